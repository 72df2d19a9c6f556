/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a clock of the kernel, in nanoseconds. In the engine, numa/clock.h is used instead, whose
 * time a test can set. Any thread.
 */
#ifndef CONFIG_CLOCK_H
#define CONFIG_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_read_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* CLOCK_MONOTONIC: the time of all deadlines; all processes of the host read the same clock. */
static inline uint64_t clock_monotonic_ns(void)
{
	return clock_read_ns(CLOCK_MONOTONIC);
}

/* Milliseconds until a time of that clock; 0: it has passed. */
static inline unsigned clock_rest_ms(uint64_t until_ns)
{
	uint64_t now_ns = clock_monotonic_ns();

	return now_ns < until_ns ? (unsigned)((until_ns - now_ns) / 1000000) : 0;
}

#endif
