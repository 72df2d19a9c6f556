/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Aborts an engine whose control loop or one of whose poll cores makes no progress: its clients
 * would wait for answers that never come. The service manager then starts another engine.
 *
 * Time is counted in ticks of the watchdog's own thread. A process that is stopped, traced by a
 * debugger or on a suspended host takes no ticks, so the time in which nothing could run is not
 * counted.
 */
#ifndef CONTROL_WATCHDOG_H
#define CONTROL_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

struct control;

#define WATCHDOG_TICK_MS 500u
/*
 * Ticks without a turn until the engine is aborted: 10 s. The control loop and idle poll cores wake
 * at least every 500 ms.
 */
#define WATCHDOG_TICKS 20u

/* Start and end the watchdog's thread; called by the control plane. Returns 0 or -errno. */
int watchdog_open(struct control *control);
void watchdog_close(struct control *control);

/* State of one watched thread, the event loop or a poll core; in the header for tests. */
struct watched {
	/* value of the turn counter of the loop or poll core at the last tick */
	uint64_t beat;
	unsigned still; /* number of ticks in a row at which `beat` had not changed */
};
/*
 * Records the turn counter `beat` at one tick. Returns true when it has not changed for
 * WATCHDOG_TICKS ticks.
 */
bool watched_stands(struct watched *watched, uint64_t beat);

#endif
