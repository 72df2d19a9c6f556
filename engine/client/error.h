/* SPDX-License-Identifier: Apache-2.0 */
/* The text of the last error of a thread, which pc_error() returns. Any thread. */
#ifndef CLIENT_ERROR_H
#define CLIENT_ERROR_H

#include <errno.h> /* the numbers that error_set() takes */

#define ERROR_TEXT_BYTES 512u /* of the longest text; a longer one is cut */

/* Stores the text that pc_error() returns; returns `error`. */
int error_set(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
void error_clear(void);
/* Stores the text about a page of `bytes` bytes that is stored with `stored` bytes, 0: another. */
void error_length(unsigned bytes, unsigned stored);

#endif
