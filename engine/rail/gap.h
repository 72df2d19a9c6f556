/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long the rings of a poll core went unlooked at: the time from the end of one turn to the end
 * of the next, as a log-linear histogram, and where the time went. The poll core writes, any thread
 * reads. A turn costs one reading of the processor's counter and four stores.
 */
#ifndef RAIL_GAP_H
#define RAIL_GAP_H

#include "engine/rail/rail.h"
#include "numa/clock.h"

struct gaps {
	/* owner: poll core; written every turn */
	alignas(64) uint64_t last; /* counter at the end of the last turn; 0: it rested since */
	uint64_t busy_ticks;       /* in turns that did something */
	uint64_t spin_ticks;       /* in turns that did not, without their software NICs */
	uint64_t nic_ticks;        /* of the busy ones, in software NICs */
	uint64_t turn_nic_ticks;   /* of this turn so far; private */
	/* owner: poll core; a turn writes one of them, the same one or two nearly always */
	alignas(64) uint64_t bucket[GAP_BUCKETS];
};
static_assert(offsetof(struct gaps, bucket) == 64, "what every turn writes is one line");

/* Two buckets an octave from 64 ns; below, and above 2 ms, one each. */
static inline unsigned gap_bucket(uint64_t ns)
{
	unsigned octave, bucket;

	if (ns < 64)
		return 0;
	octave = 63 - (unsigned)__builtin_clzll(ns);
	bucket = 1 + 2 * (octave - 6) + (unsigned)(ns >> (octave - 1) & 1);
	return bucket < GAP_BUCKETS ? bucket : GAP_BUCKETS - 1;
}

/* A turn is over. Returns how long after the one before; 0: there was a rest between. */
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

static inline void gap_nics(struct gaps *gaps, uint64_t span)
{
	gaps->turn_nic_ticks += span;
}

/* The thread gave its core away of its own will. */
static inline void gap_rest(struct gaps *gaps)
{
	gaps->last = 0;
}

#endif
