/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two sides of the sleep protocol, each from its real source: client_side.c includes submit.c
 * and wait.c, rail_side.c poll_core.c, wake.c and open.c. System calls are taken away: a sleeper
 * notes that it would have slept, a waker that it would have kicked. test_sleep.c runs them against
 * each other.
 */
#ifndef TESTS_ORDER_SIDES_H
#define TESTS_ORDER_SIDES_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

struct pollfd;
struct iovec;

/* The eventfds: no descriptor is open under these numbers. */
enum { KICK_RAIL = 1000, KICK_CONTROL, KICK_CLIENT, KICKS };

/*
 * Replace the system calls of the included sources. note_poll() and note_ppoll() return only after
 * the other side has finished its part of the round, so the sleep flag stays up until then.
 */
int note_poll(struct pollfd *fds, unsigned long count, int timeout_ms);
int note_ppoll(
	struct pollfd *fds, unsigned long count, const struct timespec *span, const sigset_t *mask);
ssize_t note_write(int fd, const void *bytes, size_t count);
ssize_t note_read(int fd, void *bytes, size_t count);
ssize_t note_recv(int fd, void *bytes, size_t count, int flags);
ssize_t note_send(int fd, const void *bytes, size_t count, int flags);
ssize_t note_preadv2(int fd, const struct iovec *into, int count, off_t at, int flags);

struct status_segment;
struct client_side;
struct rail_side;

/* ---- rail_side.c: a rail, its poll core, the control plane's end of the inbox --------------- */

struct rail_side *rail_side_new(
	struct status_segment *status, void *ops, void *done, uint32_t *client_waits);
/* Sleeper: rest(), once; slept or worked. */
void rail_side_rest(struct rail_side *side);
/* Waker: poll_turn(), once: publishes its answers and kicks the client if that sleeps. */
void rail_side_turn(struct rail_side *side);
/* Waker: rail_tell() of a command that changes nothing. */
void rail_side_tell(struct rail_side *side);
/* Has everything been taken, obeyed and answered? */
bool rail_side_idle(struct rail_side *side);

/* ---- client_side.c: a channel with one rail -------------------------------------------------- */

struct client_side *client_side_new(
	struct status_segment *status, void *ops, void *done, void *ctl, uint32_t **ret_waits);
/* Writes an op that is answered at once. */
void client_side_write(struct client_side *side);
/* Wakers: publish what was written. */
void client_side_flush_rail(struct client_side *side);
void client_side_flush(struct client_side *side);
/* Writes an op of the control plane, and publishes it. */
void client_side_flush_ctl(struct client_side *side);
/* Sleeper: sleep_until(). */
void client_side_sleep(struct client_side *side);
/* Takes one completion out of the ring; false: there is none. */
bool client_side_done(struct client_side *side);

#endif
