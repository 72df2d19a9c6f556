/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a program that prints for people or scripts: what it could not write is no success.
 * Main thread.
 */
#ifndef CONFIG_STDOUT_H
#define CONFIG_STDOUT_H

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STDOUT_LOST_STATUS 2

/* For atexit(): the program ends with STDOUT_LOST_STATUS if its output was not written. */
static inline void stdout_check(void)
{
	int lost = ferror(stdout);

	errno = 0;
	if (fflush(stdout) == 0 && !lost)
		return;
	fprintf(stderr, "%s: cannot write to standard output: %s\n", program_invocation_short_name,
		errno ? strerror(errno) : "an earlier write failed");
	_exit(STDOUT_LOST_STATUS);
}

#endif
