/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct poll_core: one thread and the rails that it steps in turn, each for one bounded step. The
 * thread owns all of it from poll_core_start() on.
 */
#ifndef RAIL_POLL_CORE_H
#define RAIL_POLL_CORE_H

#include <pthread.h>

#include "engine/rail/core.h"
#include "engine/rail/gap.h"

struct poll_core {
	/* owner: the poll core; touched every turn */
	alignas(64) unsigned running; /* rails that have not stopped */
	uint32_t turns;               /* fruitless ones since it was last asked how to rest */
	uint64_t idle_since;          /* ticks; 0: not idle */
	uint64_t ticks;               /* at the end of this turn; any thread reads it */
	/* owner: the poll core; any thread reads them */
	struct gaps gaps;
	/* read-only once the thread runs */
	alignas(64) struct rail *rail[RAILS_MAX];
	struct dv_device *nic[RAILS_MAX]; /* software NICs that run in this thread */
	unsigned rails, nics;
	struct poll_core_options options;
	uint64_t behind_ns;          /* spent in software NICs, left out by their clocks ... */
	uint64_t told_ns[RAILS_MAX]; /* ... as far as the rail's has been told */
	uint64_t started_ns;
	pthread_t thread;
};
static_assert(offsetof(struct poll_core, gaps) == 64, "what every turn writes is two lines");

/* poll_core_start() does it: which rails, and which of their NICs want steps. */
void poll_core_set(struct poll_core *core, struct rail *const *rails, unsigned count);
/* Steps every rail once, and the software NICs that want it. Returns how much was done. */
unsigned poll_turn(struct poll_core *core);
/* After a fruitless turn: spins, yields, naps or sleeps. */
void poll_rest(struct poll_core *core);

#endif
