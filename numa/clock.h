/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time for every thread, the poll loop included: CLOCK_MONOTONIC in nanoseconds. The same clock in
 * every process of the host, so that a deadline may travel in a ring.
 *
 * It is clock_gettime() through the vDSO, which reads the time-stamp counter with the kernel's own
 * calibration: 28 ns where the bare counter costs 11 (README.md), without drift between processes.
 * A poll step reads it once, when something moved; clock_ticks() is for spans that every turn
 * measures. Tests replace it: clock_test_set() makes clock_now_ns() return what it
 * was given.
 */
#ifndef NUMA_CLOCK_H
#define NUMA_CLOCK_H

#include <stdint.h>

/*
 * Call once at start, before threads; a second call does nothing. Measures what a reading costs and
 * warns when the kernel has to be asked (a clock source other than tsc).
 */
void clock_start(void);
uint64_t clock_now_ns(void);
/* Nanoseconds one reading took at clock_start(); 0 before. */
uint64_t clock_cost_ns(void);
/* Tests only, one thread: 0 goes back to real time. */
void clock_test_set(uint64_t now_ns);

/* The processor's own counter, for short spans on one core; not replaced in tests. */
static inline uint64_t clock_ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	return clock_now_ns();
#endif
}

extern uint64_t clock_tick_scale; /* nanoseconds a tick, times 2^24; clock_start() measures it */

/* A span of ticks in nanoseconds, to about 1 in 1000; spans over a minute are cut to about that. */
static inline uint64_t clock_ticks_ns(uint64_t ticks)
{
	const uint64_t most = UINT64_C(1) << 38;

	return ((ticks < most ? ticks : most) * clock_tick_scale) >> 24;
}

#endif
