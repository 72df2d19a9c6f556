/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests eviction within one page size: the order of SIEVE, visited pages, and when nothing is
 * evicted.
 */
#include "tests/unit/control/pages/pool_world.h"

static void pages_are_evicted_in_the_order_of_publishing(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim[4];

	(void)state;
	fill(pool, MIB);
	for (uint64_t n = 1; n <= 3; n++) {
		assert_int_equal(pool_victims(pool, MIB, false, 1, victim), 1);
		assert_int_equal(victim[0].key.word[0], n);
		assert_int_equal(victim[0].length, MIB);
		retire(pool, victim);
	}
	assert_int_equal(pool_victims(pool, MIB, false, 4, victim), 1);
	assert_int_equal(victim[0].key.word[0], 4);
	pool_close(pool);
}

static void the_hand_keeps_its_position_when_its_page_is_retired(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim;
	uint32_t place[5];

	(void)state;
	for (uint64_t n = 1; n <= 4; n++)
		assert_true(page_new(pool, MIB, n, &place[n]));
	assert_int_equal(pool_victims(pool, MIB, false, 1, &victim), 1);
	assert_int_equal(victim.key.word[0], 1);
	assert_int_equal(retire_at(pool, place[2], 1, now_ns), 0);
	assert_int_equal(pool_victims(pool, MIB, false, 1, &victim), 1);
	assert_int_equal(victim.key.word[0], 3);
	pool_close(pool);
}

static void a_visited_page_is_spared_once(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim[4];
	uint32_t place[5];

	(void)state;
	for (uint64_t n = 1; n <= 4; n++)
		assert_true(page_new(pool, MIB, n, &place[n]));
	pool_touch(pool, place[1]);
	pool_touch(pool, place[2]);
	assert_int_equal(pool_victims(pool, MIB, false, 1, victim), 1);
	assert_int_equal(victim[0].key.word[0], 3);
	retire(pool, victim);
	/*
	 * The eviction hand is at page 4, and page 5 is the newest: after them come the two visited
	 * pages that the hand spared.
	 */
	now_ns += LIMBO_NS;
	assert_true(page_new(pool, MIB, 5, NULL));
	assert_int_equal(pool_victims(pool, MIB, false, 4, victim), 4);
	assert_int_equal(victim[0].key.word[0], 4);
	assert_int_equal(victim[1].key.word[0], 5);
	assert_int_equal(victim[2].key.word[0], 1);
	assert_int_equal(victim[3].key.word[0], 2);
	pool_close(pool);
}

static void victims_of_one_call_differ_even_if_all_were_visited(void **state)
{
	static struct pool_victim victim[2000];
	struct pool *pool = pool_new(4 * MIB);
	uint32_t place[1024];
	bool seen[1025] = {false};

	(void)state;
	for (uint64_t n = 0; n < 1024; n++)
		assert_true(page_new(pool, PAGE_UNIT, n + 1, &place[n]));
	for (unsigned n = 0; n < 1024; n++)
		pool_touch(pool, place[n]);
	assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 700, victim), 700);
	for (unsigned i = 0; i < 700; i++) {
		assert_false(seen[victim[i].key.word[0]]);
		seen[victim[i].key.word[0]] = true;
	}
	/*
	 * The victims were not retired, so pool_victims() may return them again, each once per
	 * call.
	 */
	memset(seen, 0, sizeof(seen));
	assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 2000, victim), 1024);
	for (unsigned i = 0; i < 1024; i++) {
		assert_false(seen[victim[i].key.word[0]]);
		seen[victim[i].key.word[0]] = true;
	}
	pool_close(pool);
}

static void finding_a_victim_among_visited_pages_takes_bounded_work(void **state)
{
	struct pool *pool = pool_new(64 * MIB);
	struct pool_victim victim;
	uint32_t place[1000];

	(void)state;
	for (uint64_t n = 0; n < 1000; n++) {
		assert_true(page_new(pool, PAGE_UNIT, n, &place[n]));
		pool_touch(pool, place[n]);
	}
	assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 1, &victim), 1);
	assert_in_range(victim.key.word[0], 1, 100);
	pool_close(pool);
}

static void nothing_is_evicted_while_a_chunk_is_free(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim;

	(void)state;
	assert_int_equal(pool_victims(pool, MIB, false, 1, &victim), 0);
	assert_true(page_new(pool, PAGE_UNIT, 1, NULL));
	assert_int_equal(pool_victims(pool, MIB, false, 1, &victim), 0);
	pool_close(pool);
}

static void a_pool_full_of_credits_has_neither_slots_nor_victims(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim[4];
	uint32_t place, generation, taken = 0;

	(void)state;
	while (take_at(pool, PAGE_UNIT, 0, &place, &generation) == 0)
		taken++;
	assert_int_equal(taken, 1024);
	assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 4, victim), 0);
	assert_int_equal(pool_victims(pool, MIB, false, 4, victim), 0);
	assert_int_equal(take_at(pool, MIB, SECOND_NS, &place, &generation), -ENOSPC);
	assert_int_equal(return_at(pool, place, generation, 0), 0);
	assert_int_equal(take_at(pool, PAGE_UNIT, LIMBO_NS, &place, &generation), 0);
	pool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(pages_are_evicted_in_the_order_of_publishing, start),
		cmocka_unit_test_setup(the_hand_keeps_its_position_when_its_page_is_retired, start),
		cmocka_unit_test_setup(a_visited_page_is_spared_once, start),
		cmocka_unit_test_setup(victims_of_one_call_differ_even_if_all_were_visited, start),
		cmocka_unit_test_setup(
			finding_a_victim_among_visited_pages_takes_bounded_work, start),
		cmocka_unit_test_setup(nothing_is_evicted_while_a_chunk_is_free, start),
		cmocka_unit_test_setup(a_pool_full_of_credits_has_neither_slots_nor_victims, start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
