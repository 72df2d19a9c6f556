/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's side of the protocol with the process that started it: systemd, peercache-keeper, or
 * a shell, which speaks none. That process passes file descriptors (sd_listen_fds(3)) and is told
 * what the engine does (sd_notify(3)). The state is one per process, as is the environment that it
 * comes from. Main thread only.
 */
#ifndef KEEPER_SERVICE_H
#define KEEPER_SERVICE_H

/* largest number of file descriptors that an engine takes from the process that started it */
#define SERVICE_FDS_MAX 320
/* what service_extend() adds to the time that a start may take, s */
#define SERVICE_EXTEND_SECONDS 120
/* name of the pipe whose end tells an engine that its keeper has ended */
#define SERVICE_KEEPER_NAME "keeper"

/*
 * Reads NOTIFY_SOCKET, LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, and removes the last three from
 * the environment. A descriptor that this engine has no use for is closed, and the other side is
 * told to close it too. Call it before the first thread starts.
 */
void service_open(void);

/*
 * Gives the listening socket of clients to the caller, who closes it. *ret_fd = -1: none was
 * passed. Returns 0, or -EINVAL after logging why the passed socket cannot be that of `path`.
 */
int service_listener(const char *path, int *ret_fd);

/*
 * Gives the caller the read end of a pipe that ends with the keeper. -1: this engine has no keeper.
 */
int service_keeper(void);

/*
 * Sends lines such as "READY=1" to the process that started this engine; no effect without one.
 * Waits at most 1 s for it.
 */
void service_tell(const char *text);

/*
 * Tells that the start goes on and may take SERVICE_EXTEND_SECONDS more, so that a time-out of
 * starts does not end an engine that allocates or registers a large pool.
 */
void service_extend(void);

#endif
