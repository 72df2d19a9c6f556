/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When something is taken to stand still: after so many ticks of the watchdog without another beat,
 * however long they took.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/control/watchdog.h"

static void what_beats_never_stands(void **state)
{
	struct watched watched = {.beat = 7};

	(void)state;
	for (uint64_t tick = 0; tick < 1000; tick++)
		assert_false(watched_stands(&watched, 8 + tick / (WATCHDOG_TICKS - 1)));
}

static void what_does_not_beat_stands_after_ten_seconds_of_ticks(void **state)
{
	struct watched watched = {0};

	(void)state;
	assert_int_equal(WATCHDOG_TICKS * WATCHDOG_TICK_MS, 10000);
	assert_false(watched_stands(&watched, 5));
	for (unsigned tick = 1; tick < WATCHDOG_TICKS; tick++)
		assert_false(watched_stands(&watched, 5));
	assert_true(watched_stands(&watched, 5));
}

/* The counter is only compared: it may wrap, and may be of another clock. */
static void a_single_beat_begins_anew(void **state)
{
	struct watched watched = {0};

	(void)state;
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned tick = 0; tick < WATCHDOG_TICKS; tick++)
			assert_false(watched_stands(&watched, UINT64_MAX - round));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_beats_never_stands),
		cmocka_unit_test(what_does_not_beat_stands_after_ten_seconds_of_ticks),
		cmocka_unit_test(a_single_beat_begins_anew),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
