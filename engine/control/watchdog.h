/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends an engine whose control loop or one of whose poll cores stands still: its clients wait for
 * answers that never come, and its keeper starts another engine.
 *
 * Time is the watchdog's own ticks, which it only takes when it runs: a process that is stopped, in
 * a debugger or on a host that was suspended takes none, and neither does anything else of it.
 */
#ifndef CONTROL_WATCHDOG_H
#define CONTROL_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

struct control;

#define WATCHDOG_TICK_MS 500u
#define WATCHDOG_TICKS                                                                             \
	20u /* without a turn: 10 s. The loop and idle poll cores wake at least every
			      500 ms */

int watchdog_open(struct control *control);
void watchdog_close(struct control *control);

/* One of those that are watched, for tests. */
struct watched {
	uint64_t beat;
	unsigned still; /* ticks without another beat */
};
/* A tick, at which it is at `beat`: has it stood still for too long? */
bool watched_stands(struct watched *watched, uint64_t beat);

#endif
