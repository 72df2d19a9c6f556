/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_next(): the order and the times at which members are asked. The clock is a variable of the
 * test. Random tests print their seed and take one from the environment variable SEED.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "engine/control/observe/view_inner.h"

#define MS 1000000ull
#define TICK_NS (50 * MS) /* LOOP_LAG_US */
#define START_NS (1000 * MS)
#define ASKED_MAX 65536u

static struct view view;
static uint64_t now_ns;
/* every request, in order */
static struct {
	unsigned row;
	uint64_t at_ns;
} asked[ASKED_MAX];
static unsigned asks;

static int setup(void **state)
{
	memset(&view, 0, sizeof(view));
	now_ns = START_NS;
	asks = 0;
	return 0;
}

/* Members 1..count can be asked. */
static void members(unsigned count)
{
	view.rows = count + 1;
	for (unsigned i = 1; i <= count; i++)
		view.row[i].can = true;
}

static void severity(unsigned row, unsigned severity)
{
	view.row[row].answered_ns = now_ns;
	view.row[row].summary = (struct summary){.made = 1, .severity = (uint8_t)severity};
}

/* Does as view_tick() does, without messages. */
static void run(uint64_t ns, uint64_t tick_ns)
{
	for (uint64_t end_ns = now_ns + ns; now_ns < end_ns; now_ns += tick_ns)
		for (unsigned n = 0; n < VIEW_TICK_ASKS; n++) {
			int row = view_next(&view, now_ns);

			if (row < 0)
				break;
			view_asked(&view, (unsigned)row, now_ns);
			assert_true(asks < ASKED_MAX);
			asked[asks].row = (unsigned)row;
			asked[asks++].at_ns = now_ns;
		}
}

/* Requests to members `first` to `last` so far. */
static unsigned asks_to(unsigned first, unsigned last)
{
	unsigned n = 0;

	for (unsigned i = 0; i < asks; i++)
		n += asked[i].row >= first && asked[i].row <= last;
	return n;
}

/* Members of `first` to `last` that were asked at least once. */
static unsigned seen(unsigned first, unsigned last)
{
	unsigned n = 0;

	for (unsigned row = first; row <= last; row++)
		n += asks_to(row, row) > 0;
	return n;
}

/* The two limits that hold whatever the members are. */
static void assert_limits(void)
{
	static uint64_t last_ns[MEMBER_ENTRIES];

	memset(last_ns, 0, sizeof(last_ns));
	for (unsigned i = 0; i < asks; i++) {
		if (i >= VIEW_AT_A_TIME)
			assert_true(asked[i].at_ns - asked[i - 64].at_ns >= 1000 * MS);
		if (last_ns[asked[i].row])
			assert_true(asked[i].at_ns - last_ns[asked[i].row] >= 1000 * MS);
		last_ns[asked[i].row] = asked[i].at_ns;
	}
}

static void a_few_members_are_all_asked_once_a_second(void **state)
{
	members(3);
	run(10000 * MS, TICK_NS);
	assert_limits();
	for (unsigned row = 1; row <= 3; row++)
		assert_int_equal(asks_to(row, row), 10);
	assert_int_equal(asks, 30);
}

static void at_most_64_of_255_are_asked_in_a_second_and_all_are_seen_in_four(void **state)
{
	members(255);
	run(1000 * MS, TICK_NS);
	assert_int_equal(asks, 64);
	run(3000 * MS, TICK_NS);
	assert_limits();
	assert_int_equal(seen(1, 255), 255);
}

/* 10 bad ones among 255 are asked every second, the others in turn. */
static void the_worst_members_are_refreshed_before_the_others(void **state)
{
	members(255);
	for (unsigned row = 201; row <= 210; row++)
		severity(row, row == 205 ? SEVERITY_CRITICAL : SEVERITY_WARNING);
	run(20000 * MS, TICK_NS);
	assert_limits();
	assert_int_equal(asked[0].row, 205); /* the worst one is the very first */
	assert_in_range(asks_to(201, 210), 190, 200);
	assert_int_equal(seen(1, 255), 255);
}

static void findings_that_are_only_information_do_not_come_first(void **state)
{
	members(255);
	severity(255, SEVERITY_INFO);
	run(1000 * MS, TICK_NS);
	assert_int_equal(asks_to(255, 255), 0);
}

/* When all places could go to bad members, a quarter is kept for the others. */
static void all_members_are_seen_while_many_are_bad(void **state)
{
	members(255);
	for (unsigned row = 128; row <= 255; row++)
		severity(row, SEVERITY_CRITICAL);
	run(1000 * MS, TICK_NS);
	assert_int_equal(asks_to(128, 255), 48);
	run(15000 * MS, TICK_NS);
	assert_limits();
	assert_int_equal(seen(1, 255), 255);
	assert_true(VIEW_FRESH_NS >= 16000 * MS);
}

static void a_member_that_cannot_be_asked_is_not(void **state)
{
	members(100);
	for (unsigned row = 10; row <= 90; row++)
		view.row[row].can = false;
	severity(50, SEVERITY_CRITICAL);
	run(5000 * MS, TICK_NS);
	assert_limits();
	assert_int_equal(asks_to(10, 90), 0);
	assert_int_equal(asks, 5 * 19);
	for (unsigned row = 1; row < 10; row++)
		view.row[row].can = false;
	for (unsigned row = 91; row <= 100; row++)
		view.row[row].can = false;
	now_ns += 2000 * MS;
	assert_int_equal(view_next(&view, now_ns), -1);
}

/* Ticks at any distance, members that come, go and change: the limits hold and all are seen. */
static void the_limits_hold_whatever_happens(void **state)
{
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL);

	print_message("SEED=%u\n", seed);
	srandom(seed);
	for (unsigned round = 0; round < 20; round++) {
		unsigned count = 1 + (unsigned)random() % 255;

		setup(state);
		members(count);
		for (unsigned step = 0; step < 400; step++) {
			unsigned row = 1 + (unsigned)random() % count;

			if (random() % 4 == 0)
				view.row[row].can = !view.row[row].can;
			severity(row, (unsigned)random() % 4);
			run(1 + (uint64_t)random() % (200 * MS), 1 + (uint64_t)random() % TICK_NS);
		}
		assert_limits();
		members(count);
		asks = 0;
		run(20000 * MS, TICK_NS);
		assert_int_equal(seen(1, count), count);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup(name, setup)
		T(a_few_members_are_all_asked_once_a_second),
		T(at_most_64_of_255_are_asked_in_a_second_and_all_are_seen_in_four),
		T(the_worst_members_are_refreshed_before_the_others),
		T(findings_that_are_only_information_do_not_come_first),
		T(all_members_are_seen_while_many_are_bad),
		T(a_member_that_cannot_be_asked_is_not),
		T(the_limits_hold_whatever_happens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
