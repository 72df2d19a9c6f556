/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests eviction within one page size: the order of pages, used ones, those of one batch, and when
 * nothing is evicted.
 */
#include "tests/unit/control/pages/pool_world.h"

static void pages_are_evicted_in_the_order_of_publishing(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim[4];

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

static void a_used_page_goes_behind_others(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim[4];
	uint32_t place[5];

	for (uint64_t n = 1; n <= 4; n++)
		assert_true(page_new(pool, MIB, n, &place[n]));
	pool_touch(pool, place[1]);
	pool_touch(pool, place[2]);
	assert_int_equal(pool_victims(pool, MIB, false, 1, victim), 1);
	assert_int_equal(victim[0].key.word[0], 3);
	retire(pool, victim);
	now_ns += LIMBO_NS;
	assert_true(page_new(pool, MIB, 5, NULL));
	assert_int_equal(pool_victims(pool, MIB, false, 4, victim), 4);
	assert_int_equal(victim[0].key.word[0], 4);
	assert_int_equal(victim[1].key.word[0], 5);
	assert_int_equal(victim[2].key.word[0], 2);
	assert_int_equal(victim[3].key.word[0], 1);
	pool_close(pool);
}

/* 1 and 2 are one prompt, used before 3 and 4, which are another. */
static void of_a_prompt_that_is_used_the_last_page_goes_first(void **state)
{
	static const uint64_t want[] = {2, 1, 4, 3};
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim[4];
	uint32_t place[5];

	for (uint64_t n = 4; n >= 1; n--)
		assert_true(page_new(pool, MIB, n, &place[n]));
	for (uint64_t n = 1; n <= 4; n++) {
		pool_time_ns += n == 3 ? SECOND_NS : 1;
		pool_touch(pool, place[n]);
		pool_touch(pool, place[n]);
	}
	assert_int_equal(pool_victims(pool, MIB, false, 4, victim), 4);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(victim[i].key.word[0], want[i]);
	pool_close(pool);
}

/* Of a prompt whose head was used, 0 to 9, 700 to 719 are stored behind it. */
static void a_tail_goes_before_the_head_that_was_used_before_it_was_stored(void **state)
{
	static struct pool_victim victim[920];
	struct pool *pool = pool_new(4 * MIB);
	uint32_t place[920];
	bool head = false;

	pool_weigh(pool, USED_WEIGHT_ONE);
	for (uint64_t n = 0; n < 920; n++) {
		assert_true(page_new(pool, PAGE_UNIT, n, &place[n]));
		for (unsigned k = 0; n == 699 && k < 10; k++)
			pool_touch(pool, place[k]);
	}
	assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 920, victim), 920);
	for (unsigned i = 0; i < 920; i++) {
		head |= victim[i].key.word[0] < 10;
		assert_false(head && victim[i].key.word[0] >= 700 && victim[i].key.word[0] < 720);
	}
	assert_true(head);
	pool_close(pool);
}

/* Publishes a page in the place of the next victim. Returns the victim's number. */
static uint64_t replace(struct pool *pool, uint64_t number, uint32_t *ret_place)
{
	struct pool_victim victim;

	assert_int_equal(pool_victims(pool, MIB, false, 1, &victim), 1);
	retire(pool, &victim);
	now_ns += LIMBO_NS;
	assert_true(page_new(pool, MIB, number, ret_place));
	return victim.key.word[0];
}

static void a_page_that_was_used_ages_half_as_fast(void **state)
{
	/* 1 is spared when 2 goes; three slots turn over until it is more than twice as old */
	static const uint64_t want[] = {2, 3, 4, 5, 6, 7, 1, 8};
	struct pool *pool = pool_new(4 * MIB);
	uint32_t place = UINT32_MAX;

	assert_true(page_new(pool, MIB, 1, &place));
	for (uint64_t n = 2; n <= 4; n++)
		assert_true(page_new(pool, MIB, n, NULL));
	pool_touch(pool, place);
	for (uint64_t n = 0; n < 8; n++)
		assert_int_equal(replace(pool, 5 + n, NULL), want[n]);
	pool_close(pool);
}

static void a_page_that_is_stored_again_counts_as_used(void **state)
{
	/* 1 ages a quarter as fast as the others, until the weight is one again */
	static const uint64_t want[] = {2, 3, 4, 5, 6, 7, 8, 9, 10, 1};
	struct pool *pool = pool_new(4 * MIB);
	uint32_t place = UINT32_MAX, generation = UINT32_MAX;
	struct pool_victim victim;

	pool_weigh(pool, 4 * USED_WEIGHT_ONE);
	assert_true(page_new(pool, MIB, 1, &place));
	generation =
		page_head_load((const struct page_head *)pool_heads(pool)->base + place_unit(place))
			.generation;
	for (uint64_t n = 2; n <= 4; n++)
		assert_true(page_new(pool, MIB, n, NULL));
	assert_false(pool_again(pool, place, generation + 1));
	assert_false(pool_again(pool, UINT32_MAX, generation));
	assert_true(pool_again(pool, place, generation));
	assert_false(pool_again(pool, place, generation));
	for (uint64_t n = 0; n < 9; n++)
		assert_int_equal(replace(pool, 5 + n, NULL), want[n]);
	pool_weigh(pool, USED_WEIGHT_ONE);
	assert_int_equal(pool_victims(pool, MIB, false, 1, &victim), 1);
	assert_int_equal(victim.key.word[0], 1);
	assert_int_equal(victim.queue, EVICTED_USED);
	retire(pool, &victim);
	assert_int_equal(pool_victims(pool, MIB, false, 1, &victim), 1);
	assert_int_equal(victim.queue, EVICTED_NEW);
	pool_close(pool);
}

/* 3, 4 and 5 are copies: 5 and 4 go first, 3 was used meanwhile. */
static void a_copy_goes_first_unless_it_is_used(void **state)
{
	static const uint64_t want[] = {5, 4, 1, 2, 6};
	struct pool *pool = pool_new(8 * MIB);
	uint32_t place[7] = {0}, generation;

	pool_weigh(pool, USED_WEIGHT_ONE);
	for (uint64_t n = 1; n <= 8; n++) {
		assert_true(page_new(pool, MIB, n, n < 7 ? &place[n] : NULL));
		/* 2 is older than 4 and 5, in the other queue */
		if (n == 3)
			assert_true(pool_again(pool, place[2], 1));
	}
	for (unsigned n = 3; n <= 5; n++) {
		generation = page_head_load(
			(const struct page_head *)pool_heads(pool)->base + place_unit(place[n]))
				     .generation;
		assert_false(pool_last(pool, place[n], generation + 1));
		assert_true(pool_last(pool, place[n], generation));
		assert_true(pool_last(pool, place[n], generation));
	}
	pool_time_ns += SECOND_NS;
	pool_touch(pool, place[3]);
	for (unsigned n = 0; n < 5; n++)
		assert_int_equal(replace(pool, 10 + n, NULL), want[n]);
	pool_close(pool);
}

/* 2 to 5 are kept elsewhere: they go before 1, in the order in which that was said; 3 was used. */
static void pages_that_are_kept_elsewhere_go_first_in_their_order(void **state)
{
	static const uint64_t want[] = {6, 4, 2, 5, 1, 7};
	struct pool *pool = pool_new(8 * MIB);
	uint32_t place[9] = {0};

	pool_weigh(pool, USED_WEIGHT_ONE);
	for (uint64_t n = 1; n <= 8; n++)
		assert_true(page_new(pool, MIB, n, &place[n]));
	pool_time_ns += SECOND_NS;
	pool_touch(pool, place[3]);
	assert_false(pool_yield(pool, place[4], 99));
	assert_false(pool_yield(pool, place[3], 1));
	assert_true(pool_yield(pool, place[4], 1));
	assert_true(pool_yield(pool, place[2], 1));
	assert_true(pool_last(pool, place[6], 1)); /* of that another one has it, too */
	assert_true(pool_yield(pool, place[2], 1));
	assert_true(pool_yield(pool, place[5], 1));
	/* the next page of its batch is not kept elsewhere yet */
	assert_int_equal(retire_at(pool, place[8], 1, now_ns), 0);
	now_ns += LIMBO_NS;
	pool_order(pool, place[4]);
	assert_true(page_new(pool, MIB, 9, &place[8]));
	for (unsigned n = 0; n < 6; n++)
		assert_int_equal(replace(pool, 10 + n, NULL), want[n]);
	pool_close(pool);
}

/* The order in which the pages of a batch go: the last one first, older batches before. */
static void the_last_page_of_a_batch_goes_first(void **state)
{
	static const uint64_t want[] = {2, 1, 4, 3}, left[] = {2, 1, 4, 5};
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim[4];
	uint32_t place[5];

	for (uint64_t n = 1; n <= 4; n++) {
		pool_order(pool, n % 2 ? UINT32_MAX : place[n - 1]);
		assert_true(page_new(pool, MIB, n, &place[n]));
	}
	assert_int_equal(pool_victims(pool, MIB, false, 4, victim), 4);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(victim[i].key.word[0], want[i]);
	/* nothing follows what is no page, and a publish that fails leaves no order behind */
	assert_int_equal(retire_at(pool, place[3], 1, now_ns), 0);
	now_ns += LIMBO_NS;
	pool_order(pool, place[1]);
	assert_int_equal(pool_publish(pool, place[3], 1, &(struct page_key){{9, 1}}, MIB), -EINVAL);
	assert_true(page_new(pool, MIB, 5, &place[3]));
	assert_int_equal(pool_victims(pool, MIB, false, 4, victim), 4);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(victim[i].key.word[0], left[i]);
	assert_int_equal(retire_at(pool, place[3], 2, now_ns), 0);
	now_ns += LIMBO_NS;
	pool_order(pool, place[3]);
	assert_true(page_new(pool, MIB, 5, NULL));
	assert_int_equal(pool_victims(pool, MIB, false, 4, victim), 4);
	assert_int_equal(victim[3].key.word[0], 5);
	pool_close(pool);
}

/* Pages 2 to 9 are a batch, beside a page that was used one publish before it. */
static void a_batch_is_as_old_as_its_first_page(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim;
	uint32_t place[10] = {0};

	assert_true(page_new(pool, MIB / 4, 1, &place[1]));
	pool_touch(pool, place[1]);
	assert_int_equal(pool_victims(pool, MIB / 4, false, 1, &victim), 1);
	for (uint64_t n = 2; n <= 9; n++) {
		pool_order(pool, n == 2 ? UINT32_MAX : place[n - 1]);
		assert_true(page_new(pool, MIB / 4, n, &place[n]));
	}
	assert_int_equal(pool_victims(pool, MIB / 4, false, 1, &victim), 1);
	assert_int_equal(victim.key.word[0], 9);
	pool_close(pool);
}

static void a_page_follows_none_that_was_used_again_or_is_long_there(void **state)
{
	struct pool *pool = pool_new(64 * MIB);
	struct pool_victim victim[4];
	uint32_t first = 0, last = 0;
	uint64_t seen = 0;

	assert_true(page_new(pool, PAGE_UNIT, 1, &first));
	pool_touch(pool, first);
	assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 1, victim), 1);
	assert_true(page_new(pool, PAGE_UNIT, 2, NULL));
	pool_order(pool, first);
	assert_true(page_new(pool, PAGE_UNIT, 3, &last));
	assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 4, victim), 3);
	for (unsigned i = 0; i < 3; i++)
		seen += 1ull << 8 * victim[i].key.word[0];
	assert_int_equal(seen, 0x01010100);
	for (uint64_t n = 4; n < 8000; n++) {
		pool_order(pool, n == 7999 ? last : UINT32_MAX);
		assert_true(page_new(pool, PAGE_UNIT, n, NULL));
	}
	assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 1, victim), 1);
	assert_int_equal(victim[0].key.word[0], 2);
	retire(pool, victim);
	assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 1, victim), 1);
	assert_int_equal(victim[0].key.word[0], 3);
	pool_close(pool);
}

/* All pages were used: the batch that is new is not the only one that may go. */
static void a_new_batch_stays_beside_pages_that_were_all_used(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim[100];
	uint32_t place[1024];

	for (uint64_t n = 0; n < 1024; n++)
		assert_true(page_new(pool, PAGE_UNIT, n, &place[n]));
	for (unsigned n = 0; n < 1024 - 64; n++)
		pool_touch(pool, place[n]);
	for (unsigned round = 0; round < 4; round++) {
		assert_int_equal(pool_victims(pool, PAGE_UNIT, false, 100, victim), 100);
		for (unsigned i = 0; i < 100; i++) {
			assert_true(victim[i].key.word[0] < 1024 - 64);
			retire(pool, &victim[i]);
		}
	}
	pool_close(pool);
}

/* A page that may not go, beside used ones: the call ends, and it keeps its place. */
static void pages_that_are_read_are_passed_over(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim[4];
	uint32_t place[5];

	for (uint64_t n = 1; n <= 4; n++)
		assert_true(page_new(pool, MIB, n, &place[n]));
	for (unsigned n = 2; n <= 4; n++)
		pool_touch(pool, place[n]);
	assert_int_equal(pool_pin(pool, place[1], 1, POOL_PIN_READER), 0);
	assert_int_equal(
		pool_pin(pool, place[1], 1, POOL_PIN_READER), 0); /* it has one pin all the same */
	for (unsigned round = 0; round < 3; round++) {
		assert_int_equal(pool_victims(pool, MIB, false, 4, victim), 3);
		for (unsigned i = 0; i < 3; i++)
			assert_int_equal(victim[i].key.word[0], 4 - i);
	}
	pool_unpin(pool, place[1], 1, POOL_PIN_READER);
	assert_int_equal(pool_victims(pool, MIB, false, 4, victim), 4);
	assert_int_equal(victim[0].key.word[0], 1);
	pool_close(pool);
}

static void victims_of_one_call_differ_even_if_all_were_used(void **state)
{
	static struct pool_victim victim[2000];
	struct pool *pool = pool_new(4 * MIB);
	uint32_t place[1024];
	bool seen[1025] = {false};

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

static void nothing_is_evicted_while_a_chunk_is_free(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	struct pool_victim victim;

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
		cmocka_unit_test_setup(a_used_page_goes_behind_others, start),
		cmocka_unit_test_setup(of_a_prompt_that_is_used_the_last_page_goes_first, start),
		cmocka_unit_test_setup(
			a_tail_goes_before_the_head_that_was_used_before_it_was_stored, start),
		cmocka_unit_test_setup(a_page_that_was_used_ages_half_as_fast, start),
		cmocka_unit_test_setup(a_page_that_is_stored_again_counts_as_used, start),
		cmocka_unit_test_setup(a_copy_goes_first_unless_it_is_used, start),
		cmocka_unit_test_setup(
			pages_that_are_kept_elsewhere_go_first_in_their_order, start),
		cmocka_unit_test_setup(the_last_page_of_a_batch_goes_first, start),
		cmocka_unit_test_setup(a_batch_is_as_old_as_its_first_page, start),
		cmocka_unit_test_setup(
			a_page_follows_none_that_was_used_again_or_is_long_there, start),
		cmocka_unit_test_setup(a_new_batch_stays_beside_pages_that_were_all_used, start),
		cmocka_unit_test_setup(pages_that_are_read_are_passed_over, start),
		cmocka_unit_test_setup(victims_of_one_call_differ_even_if_all_were_used, start),
		cmocka_unit_test_setup(nothing_is_evicted_while_a_chunk_is_free, start),
		cmocka_unit_test_setup(a_pool_full_of_credits_has_neither_slots_nor_victims, start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
