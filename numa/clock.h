/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time, CLOCK_MONOTONIC in nanoseconds, for every thread including poll cores. All processes of
 * the host read the same clock, so a ring can carry a deadline from one process to another.
 *
 * clock_now_ns() calls clock_gettime() through the vDSO, which reads the time-stamp counter and
 * applies the kernel's calibration: 28 ns, against 11 ns for the counter alone, but without drift
 * between processes. A step reads the clock at most once, and only when it made
 * progress; for spans that every step measures there is clock_ticks(). In tests, clock_test_set()
 * sets the time that clock_now_ns() returns.
 */
#ifndef NUMA_CLOCK_H
#define NUMA_CLOCK_H

#include <stdint.h>

/*
 * Measures the cost of one reading and calibrates clock_ticks_ns(). Logs a warning when each
 * reading needs a system call (a clock source other than tsc). Call it once at start, before other
 * threads exist; a second call does nothing.
 */
void clock_start(void);
/* Returns the time, CLOCK_MONOTONIC in ns. Any thread. */
uint64_t clock_now_ns(void);
/*
 * Returns CLOCK_MONOTONIC_RAW in ns. Any thread. For limbo and leases
 * (engine/control/pages/VALIDATION.md): their proof compares spans on two hosts, and the kernel may
 * slew CLOCK_MONOTONIC by up to 10% while it corrects the time. Never compare it with
 * clock_now_ns().
 */
uint64_t clock_raw_ns(void);
/*
 * Tests only, while there is one thread: sets the time that clock_now_ns() and clock_raw_ns()
 * return; 0: real time. clock_test_set_raw() then sets clock_raw_ns() alone, as if CLOCK_MONOTONIC
 * were slewed.
 */
void clock_test_set(uint64_t now_ns);
void clock_test_set_raw(uint64_t raw_ns);

/* Reads the processor's time-stamp counter, for short spans on one core. Tests cannot set it. */
static inline uint64_t clock_ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	return clock_now_ns();
#endif
}

/* ns per tick of the time-stamp counter, times 2^24; measured by clock_start() */
extern uint64_t clock_tick_scale;

/*
 * Converts a span of ticks to nanoseconds, with an error of about 1 in 1000. Longer spans are
 * limited to 2^38 ticks (more than a minute), so that the product does not overflow.
 */
static inline uint64_t clock_ticks_ns(uint64_t ticks)
{
	const uint64_t most = UINT64_C(1) << 38;

	return ((ticks < most ? ticks : most) * clock_tick_scale) >> 24;
}

#endif
