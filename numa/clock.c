/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock: CLOCK_MONOTONIC through the vDSO, and its replacement in tests. Any thread.
 */
#include "numa/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "config/log.h"

#define COST_ROUNDS 4096
#define COST_NS_MAX 150 /* a vDSO reading takes 20 to 60; a system call several hundred */

static uint64_t cost_ns;     /* written by clock_start() before there are threads */
static uint64_t test_now_ns; /* 0: real time */
uint64_t clock_tick_scale;   /* written by clock_start() */

static uint64_t monotonic_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t clock_now_ns(void)
{
	return __builtin_expect(test_now_ns != 0, 0) ? test_now_ns : monotonic_ns();
}

/* The least of a few rounds: one interrupt must not look like a slow clock. */
static uint64_t measure(void)
{
	uint64_t least = UINT64_MAX;

	for (int round = 0; round < 4; round++) {
		uint64_t start = monotonic_ns(), took;

		for (int i = 0; i < COST_ROUNDS; i++)
			monotonic_ns();
		took = (monotonic_ns() - start) / COST_ROUNDS;
		least = took < least ? took : least;
	}
	return least ? least : 1;
}

/* Both clocks at one moment: the tightest of a few readings, should one be interrupted. */
static void read_both(uint64_t *ret_ns, uint64_t *ret_ticks)
{
	uint64_t least = UINT64_MAX;

	for (int round = 0; round < 16; round++) {
		uint64_t before = clock_ticks(), ns = monotonic_ns(), after = clock_ticks();

		if (after - before >= least)
			continue;
		least = after - before;
		*ret_ns = ns;
		*ret_ticks = before + least / 2;
	}
}

void clock_start(void)
{
	char source[64] = "unknown";
	uint64_t ns = 0, ticks = 0, ns_end = 0, ticks_end = 1;
	FILE *file;

	if (cost_ns)
		return;
	read_both(&ns, &ticks);
	cost_ns = measure(); /* about half a millisecond */
	read_both(&ns_end, &ticks_end);
	clock_tick_scale = (uint64_t)((double)(ns_end - ns) / (double)(ticks_end - ticks) * 0x1p24);
	if (cost_ns <= COST_NS_MAX)
		return;
	file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
	if (file) {
		if (fgets(source, sizeof(source), file))
			source[strcspn(source, "\n")] = '\0';
		fclose(file);
	}
	log_warn(
		"clock: one reading takes %llu ns, clock source %s; poll loops will be slow: boot with clocksource=tsc if the processor's counter is invariant",
		(unsigned long long)cost_ns, source);
}

uint64_t clock_cost_ns(void)
{
	return cost_ns;
}

void clock_test_set(uint64_t now_ns)
{
	test_now_ns = now_ns;
}
