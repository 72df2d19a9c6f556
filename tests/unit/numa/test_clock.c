/* SPDX-License-Identifier: Apache-2.0 */
/* The clock is CLOCK_MONOTONIC, never goes back, and can be replaced. */
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <time.h>

#include "numa/clock.h"

static uint64_t kernel_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void it_is_the_clock_every_other_process_reads(void **state)
{
	(void)state;
	for (int i = 0; i < 1000; i++) {
		uint64_t before = kernel_ns(), now = clock_now_ns(), after = kernel_ns();

		assert_true(before <= now && now <= after);
	}
}

static void it_never_goes_back(void **state)
{
	uint64_t last = clock_now_ns();

	(void)state;
	for (int i = 0; i < 100000; i++) {
		uint64_t now = clock_now_ns();

		assert_true(now >= last);
		last = now;
	}
}

static void a_test_sets_it_and_gives_it_back(void **state)
{
	(void)state;
	clock_test_set(42);
	assert_int_equal(clock_now_ns(), 42);
	assert_int_equal(clock_now_ns(), 42);
	clock_test_set(0);
	assert_true(clock_now_ns() != 42);
}

static void starting_measures_what_a_reading_costs(void **state)
{
	uint64_t cost;

	(void)state;
	assert_int_equal(clock_cost_ns(), 0);
	clock_start();
	cost = clock_cost_ns();
	assert_true(cost > 0 && cost < 10000000); /* nanoseconds */
	clock_start();
	assert_int_equal(clock_cost_ns(), cost);
}

static void ticks_measure_the_same_time_as_the_clock(void **state)
{
	bool agreed = false;

	(void)state;
	clock_start();
	assert_int_equal(clock_ticks_ns(0), 0);
	assert_int_equal(clock_ticks_ns(UINT64_MAX), clock_ticks_ns(UINT64_C(1) << 38));
	/* An interruption between two readings spoils a round, not all of them. */
	for (int round = 0; round < 1000 && !agreed; round++) {
		uint64_t ns = kernel_ns(), ticks = clock_ticks(), span;

		while (kernel_ns() - ns < 2000000)
			;
		ns = kernel_ns() - ns;
		span = clock_ticks_ns(clock_ticks() - ticks);
		agreed = span > ns - ns / 50 && span < ns + ns / 50;
	}
	assert_true(agreed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_is_the_clock_every_other_process_reads),
		cmocka_unit_test(it_never_goes_back),
		cmocka_unit_test(a_test_sets_it_and_gives_it_back),
		cmocka_unit_test(starting_measures_what_a_reading_costs),
		cmocka_unit_test(ticks_measure_the_same_time_as_the_clock),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
