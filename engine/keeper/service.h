/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's side of the protocol with the process that started it: systemd, peercache-keeper, or
 * a shell, which speaks none. That process passes file descriptors (sd_listen_fds(3)) and is told
 * what the engine does (sd_notify(3)). The state is one per process, as is the environment that it
 * comes from. Main thread only.
 */
#ifndef KEEPER_SERVICE_H
#define KEEPER_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

/* largest number of file descriptors that an engine takes from the process that started it */
#define SERVICE_FDS_MAX 704
/* what service_extend() adds to the time that a start may take, s */
#define SERVICE_EXTEND_SECONDS 120
/* name of the pipe whose end tells an engine that its keeper has ended */
#define SERVICE_KEEPER_NAME "keeper"

/* name under which an engine stores the listening socket of clients that it bound itself */
#define SERVICE_LISTENER_NAME "clients"

/*
 * Reads NOTIFY_SOCKET, FDSTORE, LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES, and removes the last
 * four from the environment. Call it before the first thread starts.
 */
void service_open(void);

/*
 * Gives the listening socket of clients to the caller, who closes it. *ret_fd = -1: none was
 * passed, or the one that an engine before this one stored has another path or no file, and is
 * dropped. Returns 0, or -EINVAL after logging why the passed socket cannot be that of `path`.
 */
int service_listener(const char *path, int *ret_fd);

/*
 * Gives the caller the read end of a pipe that ends with the keeper. -1: this engine has no keeper.
 */
int service_keeper(void);

/*
 * The pause between two signs of life, a quarter of WatchdogSec= of the unit; 0: none is wanted.
 */
uint64_t service_alive_ns(void);
/* Tells systemd that the engine's loop turns. Does not wait. */
void service_alive(void);

/*
 * Sends lines such as "READY=1" to the process that started this engine; no effect without one.
 * Waits at most 1 s for it; not at all if it did not take the message before.
 */
void service_tell(const char *text);

/*
 * Stored descriptors: the process that started this engine keeps them when the engine ends, however
 * it ends, and passes them to the next one. Names have at most 15 characters.
 *
 * service_stores(): is there a process that stores them? FDSTORE says so, as systemd sets it from
 * version 254 on. Without it the engine leaves nothing behind: it removes its socket's file.
 * service_store(): stores a copy of `fd`, until service_unstore() or the end of that process.
 * service_stored(): gives the caller a descriptor that an engine before this one stored; it stays
 * stored. -1: there is none of that name.
 * service_stored_number(): the same for a name that is `prefix` and a decimal number; any of them.
 * service_stored_drop(): closes the descriptors that the caller has not taken, and removes them
 * from the store.
 * service_barrier(): waits until all that was told is done. Returns 0, or -ETIMEDOUT.
 */
bool service_stores(void);
void service_store(const char *name, int fd);
void service_unstore(const char *name);
int service_stored(const char *name);
int service_stored_number(const char *prefix, uint32_t *ret_number);
void service_stored_drop(void);
int service_barrier(unsigned timeout_ms);

/*
 * Tells that the start goes on and may take SERVICE_EXTEND_SECONDS more, so that a time-out of
 * starts does not end an engine that allocates or registers a large pool.
 */
void service_extend(void);

#endif
