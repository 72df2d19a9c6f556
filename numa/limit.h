/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors in words, with the limit of this process that caused them. Slow paths only, any thread.
 */
#ifndef NUMA_LIMIT_H
#define NUMA_LIMIT_H

/*
 * As strerror(); `error` may be negative. For an error that a limit of the process causes, the
 * limit, its value and how to raise it: EAGAIN of a new thread, EFBIG of a file, EMFILE. The text
 * is valid until the thread calls this function again.
 */
const char *limit_error(int error);

#endif
