/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gaps of a poll core: the time from the end of one turn to the end of the next, during which no
 * ring was looked at. Kept as a log-linear histogram, together with the sums of busy, idle and
 * software-NIC time. The poll core writes, any thread reads. A turn costs one read of the
 * processor's cycle counter and four stores.
 */
#ifndef RAIL_GAP_H
#define RAIL_GAP_H

#include "engine/rail/rail.h"
#include "numa/clock.h"

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

#endif
