/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of /proc and /sys: opened, or read when they have one line. Start-up and slow paths only,
 * any thread.
 */
#ifndef NUMA_KERNEL_FILE_H
#define NUMA_KERNEL_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Opens a file for reading. NULL: it cannot be opened. The caller closes it. */
FILE *kernel_file_open(const char *path);
/* Reads the first line, without its end. False: there is none, or it is empty; *ret is "" then. */
bool kernel_file_line(const char *path, char *ret, size_t bytes);
/* Reads the number at the start of a file. False: there is none, such as "max"; *ret is as it was. */
bool kernel_file_number(const char *path, uint64_t *ret);

/*
 * From now on these files are read below this directory: another host's, or a test's. NULL: those
 * of this host again. The caller keeps the string alive. One thread.
 */
void kernel_file_root(const char *root);

#endif
