/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the ghosts of evicted pages: which are found, how long, and what they do to the weight. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/control/pages/ghost.h"

#define ENTRIES 20000u
#define PAGES 1000u

/* Keys as an owner of one slot of the map sees them, all of one group. */
static struct page_key key_of(uint64_t number)
{
	uint64_t x = (number + 1) * 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	x ^= x >> 31;
	return (struct page_key){{(x & ~PAGE_GROUP_0), x * 0xd6e8feb86659fd93u >> 32}};
}

static enum evicted take(struct ghosts *ghosts, uint64_t number)
{
	struct page_key key = key_of(number);

	return ghost_take(ghosts, &key, ENTRIES);
}

static void put(struct ghosts *ghosts, uint64_t number, enum evicted from)
{
	struct page_key key = key_of(number);

	ghost_put(ghosts, &key, from, ENTRIES);
}

static void a_ghost_is_taken_once_and_names_its_queue(void **state)
{
	struct ghosts ghosts = {0};

	assert_int_equal(take(&ghosts, 1), EVICTED_NOT);
	put(&ghosts, 1, EVICTED_NEW);
	put(&ghosts, 2, EVICTED_USED);
	put(&ghosts, 3, EVICTED_NOT);
	assert_int_equal(take(&ghosts, 3), EVICTED_NOT);
	assert_int_equal(take(&ghosts, 2), EVICTED_USED);
	assert_int_equal(take(&ghosts, 2), EVICTED_NOT);
	assert_int_equal(take(&ghosts, 1), EVICTED_NEW);
	/* evicted twice: the later one counts */
	put(&ghosts, 4, EVICTED_NEW);
	put(&ghosts, 4, EVICTED_USED);
	assert_int_equal(take(&ghosts, 4), EVICTED_USED);
	assert_int_equal(take(&ghosts, 4), EVICTED_NOT);
	ghosts_close(&ghosts);
	assert_int_equal(take(&ghosts, 4), EVICTED_NOT);
}

/* Of the evictions of the last minute, and none that is older, whatever the size of a unit. */
static void ghosts_younger_than_a_minute_are_counted(void **state)
{
	struct ghosts ghosts = {0};
	uint64_t second = 1000000, number = 0, soon;

	for (unsigned i = 0; i < 200; i++) { /* 200 evictions a second, a unit is 128 */
		ghosts_tick(&ghosts, ++second);
		for (unsigned n = 0; n < 200; n++)
			put(&ghosts, number++, EVICTED_NEW);
	}
	assert_int_equal(ghosts.soon, 0);
	for (uint64_t n = number - 61 * 200; n < number - 60 * 200; n++)
		assert_int_equal(take(&ghosts, n), EVICTED_NEW);
	assert_int_equal(ghosts.soon, 0);
	for (uint64_t n = number - 58 * 200; n < number - 57 * 200; n++)
		assert_int_equal(take(&ghosts, n), EVICTED_NEW);
	assert_int_equal(ghosts.soon, 200);
	ghosts_tick(&ghosts, second += 59);
	assert_int_equal(take(&ghosts, number - 300), EVICTED_NEW);
	assert_int_equal(ghosts.soon, 200);
	put(&ghosts, number++, EVICTED_NEW);
	ghosts_tick(&ghosts, second += 3600);
	soon = ghosts.soon;
	assert_int_equal(take(&ghosts, number - 1), EVICTED_NEW);
	assert_int_equal(ghosts.soon, soon);
	ghosts_close(&ghosts);
}

/* Also after the clock of the cells has gone round several times. */
static void three_times_the_entries_are_remembered_and_no_more(void **state)
{
	struct ghosts ghosts = {0};
	uint64_t number = 0;

	for (unsigned lap = 0; lap < 12; lap++) {
		unsigned found = 0, late = 0;
		uint64_t first;

		for (unsigned i = 0; i < ENTRIES; i++)
			put(&ghosts, number++, EVICTED_NEW);
		first = number;
		for (unsigned i = 0; i < 3 * ENTRIES; i++)
			put(&ghosts, number++, EVICTED_USED);
		/* the first of them are just at the end of their time */
		for (uint64_t n = first + ENTRIES / 50; n < number; n += 7)
			found += take(&ghosts, n) == EVICTED_USED;
		for (uint64_t n = first - ENTRIES; n < first - ENTRIES / 50; n++)
			late += take(&ghosts, n) != EVICTED_NOT;
		assert_true(found > (3 * ENTRIES - ENTRIES / 50) / 7 * 99 / 100);
		assert_true(late <= ENTRIES / 1000);
	}
	/* keys that were never there */
	for (unsigned i = 0, wrong = 0; i < 100000; i++) {
		wrong += take(&ghosts, number + i) != EVICTED_NOT;
		assert_true(wrong <= 20);
	}
	ghosts_close(&ghosts);
}

static void the_table_grows_with_the_entries(void **state)
{
	struct ghosts ghosts = {0};
	struct page_key key = key_of(1);

	ghost_put(&ghosts, &key, EVICTED_NEW, 0);
	assert_int_equal(ghosts.cells, 1024);
	assert_int_equal(ghost_take(&ghosts, &key, 0), EVICTED_NEW);
	for (uint64_t entries = 100; entries <= 1u << 20; entries *= 3) {
		ghost_put(&ghosts, &key, EVICTED_NEW, entries);
		assert_true(ghosts.cells >= entries * 9 / 2);
		assert_true(ghosts.cells < entries * 9 + 2048);
	}
	ghosts_close(&ghosts);
}

static void the_queue_whose_ghosts_return_gets_more_room(void **state)
{
	struct used_weight weight = {.value = USED_WEIGHT_MIN};
	uint32_t before;

	used_weight_again(&weight, EVICTED_USED, PAGES);
	assert_true(weight.value > USED_WEIGHT_MIN);
	assert_true(weight.value < USED_WEIGHT_MIN + USED_WEIGHT_MIN / 100);
	before = weight.value;
	used_weight_again(&weight, EVICTED_NEW, PAGES);
	assert_true(weight.value < before);
	/* one of few used pages counts for several of new ones, */
	for (unsigned i = 0; i < PAGES / 2; i++)
		used_weight_evicted(&weight, i % 10 ? EVICTED_NEW : EVICTED_USED, PAGES);
	before = weight.value = USED_WEIGHT_MIN;
	used_weight_again(&weight, EVICTED_USED, PAGES);
	assert_in_range(weight.value - before, USED_WEIGHT_MIN * 2 / PAGES * 7,
		USED_WEIGHT_MIN * 2 / PAGES * 10);
	/* but for eight at most, even if no other used page was evicted */
	weight.evicted[EVICTED_USED] = 0;
	before = weight.value;
	used_weight_again(&weight, EVICTED_USED, PAGES);
	assert_true(weight.value - before <= (uint64_t)before * 16 / PAGES + 1);
	for (unsigned i = 0; i < 100 * PAGES; i++)
		used_weight_again(&weight, EVICTED_USED, PAGES);
	assert_int_equal(weight.value, USED_WEIGHT_MAX);
	for (unsigned i = 0; i < 100 * PAGES; i++)
		used_weight_again(&weight, EVICTED_NEW, PAGES);
	assert_int_equal(weight.value, USED_WEIGHT_MIN);
	/* the share of what was evicted long ago fades */
	for (unsigned i = 0; i < 4 * PAGES; i++)
		used_weight_evicted(&weight, EVICTED_USED, PAGES);
	assert_true(weight.evicted[EVICTED_USED] <= PAGES);
	assert_true(weight.evicted[EVICTED_NEW] < 50);
	/* an empty host */
	used_weight_again(&weight, EVICTED_USED, 0);
	used_weight_evicted(&weight, EVICTED_USED, 0);
}

/* `pages` pages of a loop are stored, all of which were evicted before if `late`. */
static void loop(struct used_weight *weight, unsigned pages, bool late)
{
	for (unsigned i = 0; i < pages; i++) {
		used_weight_evicted(weight, EVICTED_NEW, PAGES);
		if (late)
			used_weight_again(weight, EVICTED_NEW, PAGES);
	}
}

static void old_pages_are_kept_if_all_come_back_late(void **state)
{
	const unsigned proof = PAGES / 2 + 128;
	struct used_weight weight = {.value = USED_WEIGHT_MIN};

	loop(&weight, 20 * PAGES, false); /* no page comes back */
	assert_true(used_weight_keeps(&weight, 32) && !weight.keeps);
	loop(&weight, proof, true);
	assert_false(weight.keeps || used_weight_keeps(&weight, 31));
	loop(&weight, 1, true);
	assert_true(weight.keeps);
	assert_false(used_weight_keeps(&weight, 32));
	assert_true(used_weight_keeps(&weight, 31) && used_weight_keeps(&weight, 33));
	loop(&weight, 7 * PAGES, true);
	assert_true(weight.keeps);
	loop(&weight, PAGES, true); /* for a while */
	assert_false(weight.keeps || used_weight_keeps(&weight, 31));
	loop(&weight, proof + 8, true);
	assert_true(weight.keeps);
	loop(&weight, PAGES - 1, false);
	assert_true(weight.keeps);
	loop(&weight, 1, false); /* other pages than those of the loop */
	assert_false(weight.keeps);
	loop(&weight, proof + 9, true);
	assert_true(weight.keeps);
	weight.late = 100;
	weight.used = 200;
	loop(&weight, 1, true);
	assert_true(weight.keeps);
	weight.used = 205; /* two of three pages that come back are here */
	loop(&weight, 1, true);
	assert_false(weight.keeps);
	weight.used = PAGES / 16; /* one use for eight that come late */
	loop(&weight, PAGES / 2 + 1, true);
	assert_false(weight.keeps);
	for (unsigned i = 0; i < 50 * PAGES; i++) {
		weight.used += i % 4 == 0;
		loop(&weight, 1, true);
		assert_false(weight.keeps);
	}
}

static void the_first_use_begins_order_by_last_use(void **state)
{
	struct used_weight weight = {.value = USED_WEIGHT_MIN};

	assert_true(used_weight_keeps(&weight, 0));
	weight.used++;
	assert_false(used_weight_keeps(&weight, 0) || used_weight_keeps(&weight, 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_use_begins_order_by_last_use),
		cmocka_unit_test(a_ghost_is_taken_once_and_names_its_queue),
		cmocka_unit_test(ghosts_younger_than_a_minute_are_counted),
		cmocka_unit_test(three_times_the_entries_are_remembered_and_no_more),
		cmocka_unit_test(the_table_grows_with_the_entries),
		cmocka_unit_test(the_queue_whose_ghosts_return_gets_more_room),
		cmocka_unit_test(old_pages_are_kept_if_all_come_back_late),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
