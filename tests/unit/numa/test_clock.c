/* SPDX-License-Identifier: Apache-2.0 */
/* Tests numa/clock.c: the clock is CLOCK_MONOTONIC, never goes back, and a test can set it. */
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

static void the_clock_is_clock_monotonic(void **state)
{
	for (int i = 0; i < 1000; i++) {
		uint64_t before = kernel_ns(), now = clock_now_ns(), after = kernel_ns();

		assert_true(before <= now && now <= after);
	}
}

static void the_clock_never_goes_back(void **state)
{
	uint64_t last = clock_now_ns();

	for (int i = 0; i < 100000; i++) {
		uint64_t now = clock_now_ns();

		assert_true(now >= last);
		last = now;
	}
}

static void a_test_can_set_and_restore_the_clock(void **state)
{
	clock_test_set(42);
	assert_int_equal(clock_now_ns(), 42);
	assert_int_equal(clock_now_ns(), 42);
	clock_test_set(0);
	assert_true(clock_now_ns() != 42);
}

static void clock_start_calibrates_the_ticks_once(void **state)
{
	uint64_t scale;

	assert_int_equal(clock_tick_scale, 0);
	clock_start();
	scale = clock_tick_scale;
	assert_true(scale > 0);
	clock_start();
	assert_int_equal(clock_tick_scale, scale);
}

static void ticks_measure_the_same_time_as_the_clock(void **state)
{
	bool agreed = false;

	clock_start();
	assert_int_equal(clock_ticks_ns(0), 0);
	assert_int_equal(clock_ticks_ns(UINT64_MAX), clock_ticks_ns(UINT64_C(1) << 38));
	/*
	 * An interrupt between two readings of the clocks makes a round wrong; one correct round is
	 * enough.
	 */
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
		cmocka_unit_test(the_clock_is_clock_monotonic),
		cmocka_unit_test(the_clock_never_goes_back),
		cmocka_unit_test(a_test_can_set_and_restore_the_clock),
		cmocka_unit_test(clock_start_calibrates_the_ticks_once),
		cmocka_unit_test(ticks_measure_the_same_time_as_the_clock),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
