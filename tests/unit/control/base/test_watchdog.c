/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the watchdog reports that a loop makes no progress: after WATCHDOG_TICKS ticks without a
 * change of its counter, however long the ticks took.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/control/base/watchdog.h"

static void a_loop_that_turns_is_never_reported(void **state)
{
	struct watched watched = {.beat = 7};

	for (uint64_t tick = 0; tick < 1000; tick++)
		assert_false(watched_stands(&watched, 8 + tick / (WATCHDOG_TICKS - 1)));
}

static void a_loop_without_turns_is_reported_after_ten_seconds(void **state)
{
	struct watched watched = {0};

	assert_int_equal(WATCHDOG_TICKS * WATCHDOG_TICK_MS, 10000);
	assert_false(watched_stands(&watched, 5));
	for (unsigned tick = 1; tick < WATCHDOG_TICKS; tick++)
		assert_false(watched_stands(&watched, 5));
	assert_true(watched_stands(&watched, 5));
}

/* The watchdog only compares the turn counter for equality, so it may go backwards or wrap. */
static void a_single_turn_restarts_the_count(void **state)
{
	struct watched watched = {0};

	for (unsigned round = 0; round < 3; round++) {
		for (unsigned tick = 0; tick < WATCHDOG_TICKS; tick++)
			assert_false(watched_stands(&watched, UINT64_MAX - round));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_loop_that_turns_is_never_reported),
		cmocka_unit_test(a_loop_without_turns_is_reported_after_ten_seconds),
		cmocka_unit_test(a_single_turn_restarts_the_count),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
