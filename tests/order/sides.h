/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two sides of the sleep protocol, each from its real source: client_side.c includes submit.c
 * and wait.c, rail_side.c includes poll_core.c and open.c. System calls are replaced: a
 * sleeper records that it would have slept, a waker that it would have kicked. test_sleep.c runs
 * them against each other.
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

/* Numbers that stand for the eventfds; no descriptor is open under them. */
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
/* The rail goes to sleep: calls rest() once, which sleeps or finds work. */
void rail_side_rest(struct rail_side *side);
/*
 * The rail wakes the client: calls poll_turn() once, which publishes answers and kicks a sleeping
 * client.
 */
void rail_side_turn(struct rail_side *side);
/*
 * The control plane wakes the rail: calls rail_command_send() with a command that changes nothing.
 */
void rail_side_tell(struct rail_side *side);
/* True if the rail has taken, executed and answered all ops and commands. */
bool rail_side_idle(struct rail_side *side);

/* ---- client_side.c: a channel with one rail -------------------------------------------------- */

struct client_side *client_side_new(
	struct status_segment *status, void *ops, void *done, void *ctl, uint32_t **ret_waits);
/* The client writes an op that the rail answers at once; the op is not published yet. */
void client_side_write(struct client_side *side);
/* The client wakes the rail: publishes the op and kicks the rail if it sleeps. */
void client_side_flush(struct client_side *side);
/*
 * The client writes FLUSH_SLOTS ops to the ctl ring, where the last one publishes them all and
 * kicks the control plane if that sleeps.
 */
void client_side_flush_ctl(struct client_side *side);
/* The client goes to sleep: calls sleep_until(), which sleeps or finds an answer. */
void client_side_sleep(struct client_side *side);
/* The client takes one completion from its ring. Returns false if the ring is empty. */
bool client_side_done(struct client_side *side);

#endif
