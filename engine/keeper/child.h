/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting a program with passed file descriptors, as sd_listen_fds(3) describes: they are numbers
 * 3 and up in the program, and LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES say how many and which.
 * Keeper's main thread only.
 */
#ifndef KEEPER_CHILD_H
#define KEEPER_CHILD_H

#include <sys/types.h>

struct child {
	char *const *argv;       /* the program, searched in PATH, and its arguments; NULL last */
	const char *notify_path; /* becomes NOTIFY_SOCKET */
	const int *fd;           /* the passed descriptors, all different */
	const char *const *name; /* their names, without ':' */
	unsigned fds;
};

/*
 * Starts the program with default signal handlers, without blocked signals, and with no other
 * descriptor than those passed, 0, 1, 2 and those that are not close-on-exec. Returns 0 when the
 * program runs, or -errno when it cannot be run; then no process is left.
 */
int child_start(const struct child *child, pid_t *ret_pid);

#endif
