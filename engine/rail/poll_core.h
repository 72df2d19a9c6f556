/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct poll_core: one thread and the rails it steps in turn, one bounded step each. The thread
 * owns all of it from poll_core_start() until poll_core_close() has joined it.
 */
#ifndef RAIL_POLL_CORE_H
#define RAIL_POLL_CORE_H

#include <pthread.h>

#include "engine/rail/core.h"
#include "numa/clock.h"

/*
 * Gaps of a poll core: the time from the end of one turn to the end of the next, during which no
 * ring was looked at. Kept as a log-linear histogram, together with the sums of busy, idle and
 * software-NIC time. The poll core writes, any thread reads. A turn costs one read of the
 * processor's cycle counter and four stores.
 */
struct gaps {
	/* owner: poll core; written every turn. last: cycle counter at the end of the last turn;
	 * 0: the thread rested since then */
	alignas(64) uint64_t last;
	uint64_t busy_ticks; /* cycles spent in turns that did work */
	/* cycles spent in turns that did no work, without those spent in software NICs */
	uint64_t spin_ticks;
	uint64_t nic_ticks; /* part of busy_ticks that was spent in software NICs */
	/* cycles spent in software NICs in this turn so far; private to the poll core */
	uint64_t turn_nic_ticks;
	/* owner: poll core; number of gaps by length. Each turn increments one bucket, nearly
	 * always the same one or two */
	alignas(64) uint64_t bucket[GAP_BUCKETS];
};
static_assert(
	offsetof(struct gaps, bucket) == 64, "the members written every turn share one cache line");

/*
 * The histogram bucket of a gap: two buckets per octave from 64 ns on, one for shorter gaps; the
 * last one takes everything above about 2 ms.
 */
static inline unsigned gap_bucket(uint64_t ns)
{
	unsigned octave, bucket;

	if (ns < 64)
		return 0;
	octave = 63 - (unsigned)__builtin_clzll(ns);
	bucket = 1 + 2 * (octave - 6) + (unsigned)(ns >> (octave - 1) & 1);
	return bucket < GAP_BUCKETS ? bucket : GAP_BUCKETS - 1;
}

/*
 * Ends a turn at cycle counter `ticks`. Returns the nanoseconds since the end of the previous turn;
 * 0 if the thread rested in between.
 */
static inline uint64_t gap_turn(struct gaps *gaps, uint64_t ticks, bool worked)
{
	uint64_t span = ticks - gaps->last, nic = gaps->turn_nic_ticks, ns;

	gaps->turn_nic_ticks = 0;
	if (gaps->last == 0) {
		gaps->last = ticks;
		return 0;
	}
	gaps->last = ticks;
	shm_count(worked ? &gaps->busy_ticks : &gaps->spin_ticks, worked ? span : span - nic);
	if (worked && nic)
		shm_count(&gaps->nic_ticks, nic);
	ns = clock_ticks_ns(span);
	shm_count(&gaps->bucket[gap_bucket(ns)], 1);
	return ns;
}

/* Adds `span` cycles that this turn spent in software NICs. */
static inline void gap_nics(struct gaps *gaps, uint64_t span)
{
	gaps->turn_nic_ticks += span;
}

/*
 * The thread gave up its core (yield, nap or sleep): the gap that ends with the next turn is not
 * counted.
 */
static inline void gap_rest(struct gaps *gaps)
{
	gaps->last = 0;
}

struct poll_core {
	/* owner: the poll core; touched every turn. running: number of the core's rails that have
	 * not stopped; 0 ends the thread */
	alignas(64) unsigned running;
	uint32_t turns;      /* number of turns without work since the last turn that had some */
	uint32_t crowded;    /* number of rests that sleep instead of yielding */
	uint64_t idle_since; /* clock_ticks() when poll_rest() first saw no work; 0: not idle */
	uint64_t ticks;      /* clock_ticks() at the end of the last turn; any thread reads it */
	/* owner: the poll core; any thread reads them */
	struct gaps gaps;
	/* read-only once the thread runs */
	alignas(64) struct rail *rail[RAILS_MAX];
	struct dv_device *nic[RAILS_MAX]; /* software NICs of the rails that this thread steps */
	/* number of entries of rail[]; number of entries of nic[] */
	unsigned rails, nics;
	struct poll_core_options options;
#ifdef TEST_HOOKS
	struct model_clock {
		/* CPU time spent in software NICs and subtracted from their clocks, ns */
		uint64_t behind_ns;
		/* part of behind_ns that dv_leave_out() was told for the rail's NIC, by rail */
		uint64_t told_ns[RAILS_MAX];
		/* ns that the ports' clock still has to advance for doorbells and lines; by
		 * rail, the number of both that was charged */
		uint64_t charge_ns, doorbells[RAILS_MAX], lines[RAILS_MAX];
	} clock; /* of model_clock.c */
#endif
	uint64_t started_ns; /* CLOCK_MONOTONIC of poll_core_start(), ns */
	pthread_t thread;
};
static_assert(offsetof(struct poll_core, gaps) == 64, "every turn writes two cache lines");

/*
 * Sets the rails and collects the software NICs that need steps. Part of poll_core_start(); unit
 * tests without a thread call it directly.
 */
void poll_core_set(struct poll_core *core, struct rail *const *rails, unsigned count);
/*
 * One turn: steps every rail once, wakes sleepers, steps the software NICs. Returns how much work
 * was done; 0: none.
 */
unsigned poll_turn(struct poll_core *core);
/* Part of a turn: wakes the sleepers of rails that published completions or events. */
void poll_wake(struct poll_core *core);
/*
 * The part of a turn that all kinds of turns share: `step` steps one rail, given CLOCK_MONOTONIC in
 * this turn or 0, and returns how much work was done. Then wakes sleepers. Always inline, so that
 * the step is, too.
 */
__attribute__((always_inline)) static inline unsigned poll_rails(struct poll_core *core,
	unsigned (*step)(struct poll_core *core, unsigned i, uint64_t now_ns))
{
	unsigned work = 0, running = 0;
	bool news = false;
	/* CLOCK_MONOTONIC in this turn; the first rail that needs it reads it and the next ones
	 * use it; 0: not read yet */
	uint64_t now_ns = 0;

	for (unsigned i = 0; i < core->rails; i++) {
		struct rail *rail = core->rail[i];

		if (unlikely(rail->stopped))
			continue;
		if (i + 1 < core->rails)
			rail_prefetch(core->rail[i + 1]);
		work += step(core, i, now_ns);
		now_ns = rail->now_ns;
		news |= rail->news;
		running += !rail->stopped;
	}
	core->running = running;
	if (news)
		poll_wake(core);
	return work;
}

/* Called after a turn without work: the poll core spins, yields, naps or sleeps. */
void poll_rest(struct poll_core *core);

#endif
