/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads CLOCK_MONOTONIC and CLOCK_MONOTONIC_RAW through the vDSO, or returns the time that a test
 * has set. Any thread may read a clock; clock_start() runs before other threads exist.
 */
#include "numa/clock.h"

#include <string.h>
#include <time.h>

#include "config/clock.h"
#include "config/log.h"
#include "numa/kernel_file.h"

#define COST_ROUNDS 4096 /* readings of the clock in one measurement of its cost */
/*
 * Slower readings are logged. A reading takes 20 to 60 ns in the vDSO, several 100 ns as a system
 * call.
 */
#define COST_NS_MAX 150

/* cost of one reading of the clock, ns; set by clock_start(), before other threads exist */
static uint64_t cost_ns;
static uint64_t test_now_ns; /* time that a test has set, ns; 0: the clock is CLOCK_MONOTONIC */
/* time that a test has set, ns; 0: the clock is CLOCK_MONOTONIC_RAW */
static uint64_t test_raw_ns;
/* ns per tick of the time-stamp counter, times 2^24; set by clock_start() */
uint64_t clock_tick_scale;

uint64_t clock_now_ns(void)
{
	return __builtin_expect(test_now_ns != 0, 0) ? test_now_ns : clock_monotonic_ns();
}

uint64_t clock_raw_ns(void)
{
	return __builtin_expect(test_raw_ns != 0, 0) ? test_raw_ns
						     : clock_read_ns(CLOCK_MONOTONIC_RAW);
}

/*
 * Measures the cost of one reading in ns. Returns the minimum of several rounds, because an
 * interrupt makes a round look slow.
 */
static uint64_t measure(void)
{
	uint64_t least = UINT64_MAX;

	for (int round = 0; round < 4; round++) {
		uint64_t start = clock_monotonic_ns(), took;

		for (int i = 0; i < COST_ROUNDS; i++)
			clock_monotonic_ns();
		took = (clock_monotonic_ns() - start) / COST_ROUNDS;
		least = took < least ? took : least;
	}
	return least ? least : 1;
}

/*
 * Reads the clock and the time-stamp counter at the same moment. Of several attempts it keeps the
 * one with the fewest ticks between its two counter readings; an interrupt makes the others worse.
 */
static void read_both(uint64_t *ret_ns, uint64_t *ret_ticks)
{
	uint64_t least = UINT64_MAX;

	for (int round = 0; round < 16; round++) {
		uint64_t before = clock_ticks(), ns = clock_monotonic_ns(), after = clock_ticks();

		if (after - before >= least)
			continue;
		least = after - before;
		*ret_ns = ns;
		*ret_ticks = before + least / 2;
	}
}

void clock_start(void)
{
	char source[64];
	uint64_t ns = 0, ticks = 0, ns_end = 0, ticks_end = 1;

	if (cost_ns)
		return;
	read_both(&ns, &ticks);
	/* the measurement takes about 0.5 ms, which is also the time over which ticks are
	 * calibrated */
	cost_ns = measure();
	read_both(&ns_end, &ticks_end);
	clock_tick_scale = (uint64_t)((double)(ns_end - ns) / (double)(ticks_end - ticks) * 0x1p24);
	if (cost_ns <= COST_NS_MAX)
		return;
	if (!kernel_file_line("/sys/devices/system/clocksource/clocksource0/current_clocksource",
		    source, sizeof(source)))
		strcpy(source, "unknown");
	log_warn(
		"clock: one reading takes %llu ns with clock source %s, so poll loops are slow; boot with clocksource=tsc if the processor's time-stamp counter is invariant",
		(unsigned long long)cost_ns, source);
}

void clock_test_set(uint64_t now_ns)
{
	test_now_ns = test_raw_ns = now_ns;
}

void clock_test_set_raw(uint64_t raw_ns)
{
	test_raw_ns = raw_ns;
}
