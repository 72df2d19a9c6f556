/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests draining: chunks of the pool that move from one page size to another, and credits that
 * delay it.
 */
#include "tests/unit/control/pages/pool_world.h"

/*
 * Evicts pages for pages of `bytes` until there is no victim or `most` bytes or more are evicted.
 * Returns the bytes of those that had another length.
 */
static uint64_t evict_bytes(struct pool *pool, uint32_t bytes, uint64_t most)
{
	struct pool_victim victim[64];
	uint64_t sum = 0, other = 0;
	unsigned n;

	while (sum < most && (n = pool_victims(pool, bytes, false, 64, victim)) != 0)
		for (unsigned i = 0; i < n; i++) {
			sum += victim[i].length;
			other += victim[i].length == bytes ? 0 : victim[i].length;
			retire(pool, &victim[i]);
		}
	return other;
}

static void a_size_without_a_chunk_takes_one_from_the_largest_class(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	uint32_t place, generation;

	assert_true(page_new(pool, 2 * PAGE_UNIT, 1, NULL));
	fill(pool, PAGE_UNIT);
	assert_int_equal(pool_pages(pool), 1 + 3 * 256);
	assert_int_equal(take_at(pool, MIB, now_ns, &place, &generation), -ENOSPC);
	assert_int_equal(evict_bytes(pool, MIB, MIB), MIB);
	assert_int_equal(pool_resting(pool, MIB), 1);
	assert_int_equal(pool_resting(pool, PAGE_UNIT), 0);
	assert_int_equal(take_at(pool, MIB, now_ns, &place, &generation), -ENOSPC);
	now_ns += LIMBO_NS;
	/*
	 * The size class that lost the chunk does not get it back: it is reserved for the large
	 * page.
	 */
	assert_int_equal(take_at(pool, PAGE_UNIT, now_ns, &place, &generation), -ENOSPC);
	assert_int_equal(pool_free(pool, PAGE_UNIT), 0);
	assert_int_equal(pool_free(pool, MIB), 1);
	assert_int_equal(take_at(pool, MIB, now_ns, &place, &generation), 0);
	assert_int_equal(pool_pages(pool), 1 + 2 * 256);
	pool_close(pool);
}

static void a_drained_chunk_is_not_reserved_for_ever(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	uint32_t place, generation;

	fill(pool, PAGE_UNIT);
	assert_int_equal(evict_bytes(pool, MIB, MIB), MIB);
	now_ns += LIMBO_NS;
	assert_int_equal(take_at(pool, PAGE_UNIT, now_ns, &place, &generation), -ENOSPC);
	now_ns += 2 * SECOND_NS;
	assert_int_equal(take_at(pool, PAGE_UNIT, now_ns, &place, &generation), 0);
	pool_close(pool);
}

static void the_coldest_chunk_is_drained(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim[300];
	uint32_t place[1024];

	for (uint64_t n = 0; n < 1024; n++)
		assert_true(page_new(pool, PAGE_UNIT, n, &place[n]));
	/* Touches the pages of all chunks but the third. */
	for (unsigned n = 0; n < 1024; n++)
		if (place_unit(place[n]) / 256 != 2)
			pool_touch(pool, place[n]);
	assert_int_equal(pool_victims(pool, 2 * PAGE_UNIT, false, 300, victim), 256);
	for (unsigned i = 0; i < 256; i++)
		assert_int_equal(place_unit(victim[i].place) / 256, 2);
	pool_close(pool);
}

static void a_draining_chunk_hands_out_nothing_and_waits_for_its_credits(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	uint32_t place[4], generation[4], other, number;
	struct page_key key = {{9, 9}};
	struct pool_victim victim[3];

	/*
	 * Four size classes have one chunk each with a credit in it, so a drain must wait for a
	 * credit.
	 */
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(
			take_at(pool, (i + 1) * PAGE_UNIT, 0, &place[i], &generation[i]), 0);
		assert_true(page_new(pool, (i + 1) * PAGE_UNIT, i + 1, NULL));
	}
	assert_int_equal(pool_victims(pool, MIB, false, 3, victim), 1);
	assert_int_equal(victim[0].key.word[0], 1);
	retire(pool, victim);
	assert_int_equal(pool_free(pool, PAGE_UNIT), 0);
	assert_int_equal(pool_victims(pool, MIB, false, 3, victim), 0);
	now_ns += LIMBO_NS;
	assert_int_equal(take_at(pool, MIB, now_ns, &other, &number), -ENOSPC);
	assert_int_equal(pool_victims(pool, MIB, false, 3, victim), 0);
	/*
	 * The client publishes the page of its credit during the drain: the page becomes a victim,
	 * too.
	 */
	assert_int_equal(pool_publish(pool, place[0], generation[0], &key, 1), 0);
	assert_int_equal(pool_victims(pool, MIB, false, 3, victim), 1);
	assert_int_equal(victim[0].place, place[0]);
	retire(pool, victim);
	now_ns += LIMBO_NS;
	assert_int_equal(take_at(pool, MIB, now_ns, &other, &number), 0);
	pool_close(pool);
}

static void a_drain_moves_to_a_chunk_without_credits(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	uint32_t place[4], generation[4], other, number;
	struct pool_victim victim[3];

	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(
			take_at(pool, (i + 1) * PAGE_UNIT, 0, &place[i], &generation[i]), 0);
		assert_true(page_new(pool, (i + 1) * PAGE_UNIT, i + 1, NULL));
	}
	assert_int_equal(pool_victims(pool, MIB, false, 3, victim), 1);
	retire(pool, victim);
	now_ns += LIMBO_NS;
	assert_int_equal(return_at(pool, place[3], generation[3], now_ns), 0);
	assert_int_equal(take_at(pool, MIB, now_ns, &other, &number), -ENOSPC);
	assert_int_equal(pool_victims(pool, MIB, false, 3, victim), 1);
	assert_int_equal(victim[0].key.word[0], 4);
	retire(pool, victim);
	/* The chunk whose drain was given up hands out slots of its size class again. */
	assert_true(page_new(pool, PAGE_UNIT, 77, NULL));
	now_ns += LIMBO_NS;
	assert_int_equal(take_at(pool, MIB, now_ns, &other, &number), 0);
	pool_close(pool);
}

static void a_class_evicts_no_pages_of_its_draining_chunk(void **state)
{
	static struct pool_victim victim[2000];
	struct pool *pool = pool_new(4 * MIB);
	uint32_t draining, n;

	fill(pool, PAGE_UNIT);
	assert_int_equal(pool_victims(pool, MIB, false, 1, victim), 1);
	draining = place_unit(victim[0].place) / 256;
	assert_int_equal(pool_pin(pool, victim[0].place, victim[0].generation, POOL_PIN_READER), 0);
	n = pool_victims(pool, PAGE_UNIT, false, 2000, victim);
	assert_int_equal(n, 3 * 256);
	while (n--)
		assert_int_not_equal(place_unit(victim[n].place) / 256, draining);
	pool_close(pool);
}

/* Clients pin for hours: the chunk that drains is given up for one without pins. */
static void a_chunk_whose_pages_are_pinned_holds_no_drain_up(void **state)
{
	static struct pool_victim victim[300];
	struct pool *pool = pool_new(4 * MIB);
	unsigned draining, n;

	fill(pool, PAGE_UNIT);
	n = pool_victims(pool, MIB, false, 300, victim);
	assert_int_equal(n, 256);
	draining = place_unit(victim[0].place) / 256;
	while (n--)
		assert_int_equal(
			pool_pin(pool, victim[n].place, victim[n].generation, POOL_PIN_CLIENT), 0);
	n = pool_victims(pool, MIB, false, 300, victim);
	assert_int_equal(n, 256);
	while (n--)
		assert_int_not_equal(place_unit(victim[n].place) / 256, draining);
	pool_close(pool);
}

/* A size of which clients have pinned all pages gets room from another one. */
static void a_class_whose_pages_are_pinned_takes_a_chunk(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	static struct pool_victim victim[300];
	struct pool_place large;

	assert_true(page_new(pool, MIB, 5000, NULL));
	assert_int_equal(pool_recent(pool, 1, &large), 1);
	assert_int_equal(pool_pin(pool, large.place, large.generation, POOL_PIN_CLIENT), 0);
	for (uint32_t i = 0; i < 3 * 256; i++)
		assert_true(page_new(pool, PAGE_UNIT, i + 1, NULL));
	assert_int_equal(pool_victims(pool, MIB, false, 300, victim), 256);
	assert_int_equal(victim[0].length, PAGE_UNIT);
	pool_close(pool);
}

/* A page may have two pins, and is evicted when both have ended. */
static void both_pins_of_a_page_must_end(void **state)
{
	static struct pool_victim victim[2000];
	struct pool *pool = pool_new(4 * MIB);
	const enum pool_pin pin[] = {POOL_PIN_READER, POOL_PIN_CLIENT};
	struct pool_victim one;

	fill(pool, PAGE_UNIT);
	assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 1, &one), 1);
	for (unsigned first = 0; first < 2; first++) {
		assert_int_equal(pool_pin(pool, one.place, one.generation, pin[0]), 0);
		assert_int_equal(pool_pin(pool, one.place, one.generation, pin[1]), 0);
		assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 2000, victim), 1023);
		pool_unpin(pool, one.place, one.generation, pin[first]);
		assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 2000, victim), 1023);
		pool_unpin(pool, one.place, one.generation, pin[!first]);
		assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 2000, victim), 1024);
	}
	pool_close(pool);
}

/* It has no others: it would wait until the drain is given up. */
static void a_class_evicts_the_pages_of_its_only_chunk_although_it_drains(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim[4];

	for (uint32_t i = 0; i < 8; i++)
		assert_true(page_new(pool, (i / 2 + 1) * PAGE_UNIT, i + 1, NULL));
	assert_int_equal(pool_victims(pool, MIB, false, 1, victim), 1);
	assert_int_equal(victim[0].length, PAGE_UNIT);
	assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 4, victim), 2);
	pool_close(pool);
}

/* A client may keep a credit as long as it likes. */
static void an_idle_chunk_with_a_credit_keeps_its_pages(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim;
	uint32_t place, generation;

	assert_true(page_new(pool, 2 * PAGE_UNIT, 1, NULL));
	assert_int_equal(take_at(pool, 2 * PAGE_UNIT, now_ns, &place, &generation), 0);
	fill(pool, PAGE_UNIT);
	for (uint64_t n = 0; n < 2000; n++, now_ns += LIMBO_NS) {
		assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 1, &victim), 1);
		assert_int_equal(victim.length, PAGE_UNIT);
		retire(pool, &victim);
		(void)page_new(pool, PAGE_UNIT, n, NULL);
	}
	pool_close(pool);
}

static void an_unfinished_drain_is_given_up(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim;

	fill(pool, PAGE_UNIT);
	assert_int_equal(pool_victims(pool, MIB, false, 1, &victim), 1);
	retire(pool, &victim);
	now_ns += LIMBO_NS;
	assert_false(page_new(pool, PAGE_UNIT, 1, NULL));
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 1, &victim), 1);
	assert_true(page_new(pool, PAGE_UNIT, 1, NULL));
	pool_close(pool);
}

/*
 * The clients store pages of another size than before. The memory moves to that size chunk by
 * chunk.
 */
static void an_unused_page_size_loses_its_chunks_to_the_one_in_use(void **state)
{
	struct pool *pool = pool_new(64 * MIB);
	uint32_t old = 2 * PAGE_UNIT, new = 4 * PAGE_UNIT;
	struct pool_victim victim[64];

	fill(pool, old);
	for (uint64_t n = 0; n < 40000; now_ns += LIMBO_NS) {
		while (page_new(pool, new, n, NULL))
			n++;
		for (unsigned i = 0, got = pool_victims(pool, new, false, 64, victim); i < got; i++)
			retire(pool, &victim[i]);
	}
	/* Nearly all of the pool has moved: at most 4096 pages of four units fit. */
	assert_true(pool_pages(pool) > 3500 && pool_pages(pool) <= 4096);
	pool_close(pool);
}

/*
 * One page size after the other, each for as many bytes as the pool has twice. In each limbo eight
 * chunks are filled, so several must leave at once.
 */
static void page_sizes_in_turn_each_get_the_pool(void **state)
{
	static const uint32_t units[] = {4, 16, 1, 64, 3, 10, 2};
	struct pool *pool = pool_new(64 * MIB);
	uint64_t key = 0, other = 0; /* bytes of pages of sizes before */

	for (unsigned size = 0; size < 7; size++) {
		uint32_t bytes = units[size] * PAGE_UNIT;

		for (uint64_t left = 2 * 64 * MIB / bytes; left; now_ns += LIMBO_NS) {
			for (; left && page_new(pool, bytes, key, NULL); left--)
				key++;
			if (left)
				other -= evict_bytes(pool, bytes, 8 * MIB);
		}
		assert_true(pool_used_bytes(pool) > 64 * MIB * 8 / 10);
		assert_true(other <= pool_used_bytes(pool) * 5 / 100);
		other = pool_used_bytes(pool);
	}
	pool_close(pool);
}

static void a_page_size_in_use_keeps_its_chunks_against_a_scan(void **state)
{
	struct pool *pool = pool_new(64 * MIB);
	uint32_t hot = 2 * PAGE_UNIT, scan = 4 * PAGE_UNIT, place[8192], pages = 0, kept = 0;
	struct pool_victim victim[64];

	assert_true(page_new(pool, scan, 0, NULL));
	while (page_new(pool, hot, pages, &place[pages]))
		pages++;
	for (uint64_t n = 0; n < 40000; now_ns += LIMBO_NS) {
		for (uint32_t i = 0; i < pages; i += 16)
			pool_touch(pool, place[i]);
		while (page_new(pool, scan, n, NULL))
			n++;
		for (unsigned i = 0, got = pool_victims(pool, scan, false, 64, victim); i < got;
			i++)
			retire(pool, &victim[i]);
	}
	while (pool_victims(pool, hot, false, 1, victim) && victim[0].length == hot) {
		retire(pool, victim);
		kept++;
	}
	assert_true(kept > pages * 9 / 10);
	pool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(
			a_size_without_a_chunk_takes_one_from_the_largest_class, start),
		cmocka_unit_test_setup(a_drained_chunk_is_not_reserved_for_ever, start),
		cmocka_unit_test_setup(the_coldest_chunk_is_drained, start),
		cmocka_unit_test_setup(
			a_draining_chunk_hands_out_nothing_and_waits_for_its_credits, start),
		cmocka_unit_test_setup(a_drain_moves_to_a_chunk_without_credits, start),
		cmocka_unit_test_setup(a_class_evicts_no_pages_of_its_draining_chunk, start),
		cmocka_unit_test_setup(
			a_class_evicts_the_pages_of_its_only_chunk_although_it_drains, start),
		cmocka_unit_test_setup(a_chunk_whose_pages_are_pinned_holds_no_drain_up, start),
		cmocka_unit_test_setup(a_class_whose_pages_are_pinned_takes_a_chunk, start),
		cmocka_unit_test_setup(both_pins_of_a_page_must_end, start),
		cmocka_unit_test_setup(an_idle_chunk_with_a_credit_keeps_its_pages, start),
		cmocka_unit_test_setup(an_unfinished_drain_is_given_up, start),
		cmocka_unit_test_setup(
			an_unused_page_size_loses_its_chunks_to_the_one_in_use, start),
		cmocka_unit_test_setup(page_sizes_in_turn_each_get_the_pool, start),
		cmocka_unit_test_setup(a_page_size_in_use_keeps_its_chunks_against_a_scan, start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
