/* SPDX-License-Identifier: Apache-2.0 */
/* The clock is CLOCK_MONOTONIC, never goes back, and can be replaced. */
#include <stdarg.h>
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
	assert_true(cost > 0 && cost < 100000);
	clock_start();
	assert_int_equal(clock_cost_ns(), cost);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_is_the_clock_every_other_process_reads),
		cmocka_unit_test(it_never_goes_back),
		cmocka_unit_test(a_test_sets_it_and_gives_it_back),
		cmocka_unit_test(starting_measures_what_a_reading_costs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
