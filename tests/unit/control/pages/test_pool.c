/* SPDX-License-Identifier: Apache-2.0 */
/* The states of a slot: credits, pages, limbo, generations, page sizes, and invalid arguments. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/control/pages/pool_clock.h"

#define MIB (1u << 20)
#define RAIL 3u
#define LIMBO_NS 1000u

static const struct page_key key_a = {{1, 2}}, key_b = {{3, 4}};

static struct pool *pool_new(uint64_t bytes)
{
	struct pool_options options = {.rail = RAIL,
		.bytes = bytes,
		.numa_node = -1,
		.limbo_ns = LIMBO_NS,
		.clock_ns = pool_time};
	struct pool *pool;

	assert_int_equal(pool_open(&options, &pool), 0);
	return pool;
}

static struct page_head head_at(const struct pool *pool, uint32_t place)
{
	const struct page_head *heads = pool_heads(pool)->base;

	return page_head_load(&heads[place_unit(place)]);
}

static uint32_t take(struct pool *pool, uint32_t bytes, uint64_t now_ns, uint32_t *ret_generation)
{
	uint32_t place;

	assert_int_equal(take_at(pool, bytes, now_ns, &place, ret_generation), 0);
	assert_int_equal(place_rail(place), RAIL);
	return place;
}

static void a_pool_of_any_size_has_at_least_four_chunks_of_a_power_of_two(void **state)
{
	for (uint64_t bytes = 4 * MIB; bytes <= 3000ull * MIB; bytes += bytes / 3) {
		struct pool *pool = pool_new(bytes);
		uint64_t page = pool_page_bytes_max(pool);

		assert_int_equal(page & (page - 1), 0);
		assert_true(page <= PAGE_BYTES_MAX && bytes / page >= 4);
		assert_true(bytes < 64 * MIB || (page >= 2 * MIB && bytes / page >= 32));
		assert_true(pool_memory(pool)->bytes >= bytes / page * page);
		assert_true(pool_heads(pool)->bytes >=
			    bytes / page * page / PAGE_UNIT * sizeof(struct page_head));
		assert_int_equal(pool_free(pool, (uint32_t)page), bytes / page);
		pool_close(pool);
	}
	pool_close(NULL);
}

static void a_pool_of_an_impossible_size_or_rail_is_refused(void **state)
{
	struct pool_options options = {.rail = 0, .bytes = 4 * MIB - 1, .numa_node = -1};
	struct pool *pool = NULL;

	assert_int_equal(pool_open(&options, &pool), -EINVAL);
	options.bytes = (1ull << 40) + PAGE_UNIT;
	assert_int_equal(pool_open(&options, &pool), -EINVAL);
	options = (struct pool_options){.rail = RAILS_MAX, .bytes = 4 * MIB, .numa_node = -1};
	assert_int_equal(pool_open(&options, &pool), -EINVAL);
	assert_null(pool);
}

static void a_page_is_published_with_the_generation_of_its_credit(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	uint32_t generation, place = take(pool, 5000, 0, &generation);
	struct page_head head;
	struct page_key key;

	assert_true(generation >= 1);
	assert_false(pool_key(pool, place, generation, &key));
	head = head_at(pool, place);
	assert_false(page_head_is(&head, &key_a, generation, 5000));
	assert_int_equal(pool_publish(pool, place, generation, &key_a, 5000), 0);
	head = head_at(pool, place);
	assert_true(page_head_is(&head, &key_a, generation, 5000));
	assert_true(pool_key(pool, place, generation, &key));
	assert_memory_equal(&key, &key_a, sizeof(key));
	assert_false(pool_key(pool, place, generation + 1, &key));
	assert_false(pool_key(pool, place + 1, generation, &key));
	assert_false(pool_key(pool, PAGE_UNITS_MAX - 1, generation, &key));
	assert_int_equal(pool_pages(pool), 1);
	assert_int_equal(retire_at(pool, place, generation, 0), 0);
	head = head_at(pool, place);
	assert_int_equal(head.generation, generation + 1);
	assert_false(pool_key(pool, place, generation, &key));
	assert_false(page_head_is(&head, &key_a, generation, 5000));
	assert_int_equal(head.key.word[0] | head.key.word[1] | head.length, 0);
	assert_int_equal(pool_pages(pool), 0);
	pool_close(pool);
}

static void page_sizes_that_fit_no_slot_are_refused(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	uint32_t max = (uint32_t)pool_page_bytes_max(pool), place, generation;

	assert_int_equal(max, MIB);
	assert_int_equal(take_at(pool, 0, 0, &place, &generation), -EMSGSIZE);
	assert_int_equal(take_at(pool, max + 1, 0, &place, &generation), -EMSGSIZE);
	assert_int_equal(take_at(pool, UINT32_MAX, 0, &place, &generation), -EMSGSIZE);
	assert_int_equal(pool_free(pool, 0), 0);
	assert_int_equal(pool_free(pool, max + 1), 0);
	assert_int_equal(pool_victims(pool, max + 1, false, 1, NULL), 0);
	place = take(pool, max, 0, &generation);
	assert_int_equal(pool_publish(pool, place, generation, &key_a, max), 0);
	place = take(pool, PAGE_UNIT + 1, 0, &generation);
	assert_int_equal(pool_publish(pool, place, generation, &key_a, 0), -EINVAL);
	assert_int_equal(pool_publish(pool, place, generation, &key_a, 2 * PAGE_UNIT + 1), -EINVAL);
	assert_int_equal(
		pool_publish(pool, place, generation, &(struct page_key){{0, 0}}, 1), -EINVAL);
	assert_int_equal(pool_publish(pool, place, generation, &key_a, 2 * PAGE_UNIT), 0);
	pool_close(pool);
}

static void a_credit_is_used_once(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	uint32_t generation, place, again;

	for (unsigned i = 0; i < 3; i++)
		take(pool, MIB, 0, &generation);
	place = take(pool, MIB, 0, &generation);
	assert_int_equal(pool_publish(pool, place, generation + 1, &key_a, 1), -EINVAL);
	assert_int_equal(retire_at(pool, place, generation, 0), -EINVAL);
	assert_int_equal(return_at(pool, place, generation + 1, 0), -EINVAL);
	assert_int_equal(return_at(pool, place, generation, 0), 0);
	assert_int_equal(return_at(pool, place, generation, 0), -EINVAL);
	assert_int_equal(pool_publish(pool, place, generation, &key_a, 1), -EINVAL);

	/* The slot is handed out again, with a new generation. The old credit stays invalid. */
	assert_int_equal(take(pool, MIB, LIMBO_NS, &again), place);
	assert_int_not_equal(again, generation);
	assert_int_equal(pool_publish(pool, place, generation, &key_a, 1), -EINVAL);
	assert_int_equal(pool_publish(pool, place, again, &key_a, 1), 0);
	assert_int_equal(pool_publish(pool, place, again, &key_b, 1), -EINVAL);
	assert_int_equal(return_at(pool, place, again, 0), -EINVAL);
	assert_int_equal(retire_at(pool, place, generation, 0), -EINVAL);
	assert_int_equal(retire_at(pool, place, again, 0), 0);
	assert_int_equal(retire_at(pool, place, again, 0), -EINVAL);
	pool_close(pool);
}

static void a_slot_rests_in_limbo_for_limbo_ns(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	uint32_t generation, place[4], again;

	for (unsigned i = 0; i < 4; i++) {
		place[i] = take(pool, MIB, 0, &generation);
		assert_int_equal(pool_publish(pool, place[i], generation, &key_a, MIB), 0);
	}
	assert_int_equal(pool_limbo_left_ns(pool), UINT64_MAX);
	assert_int_equal(take_at(pool, MIB, 0, &again, &generation), -ENOSPC);
	assert_int_equal(retire_at(pool, place[2], head_at(pool, place[2]).generation, 50), 0);
	assert_int_equal(retire_at(pool, place[1], head_at(pool, place[1]).generation, 60), 0);
	assert_int_equal(pool_limbo(pool), 2);
	assert_int_equal(pool_limbo_left_ns(pool), LIMBO_NS - 10);
	assert_int_equal(pool_free(pool, MIB), 0);
	assert_int_equal(take_at(pool, MIB, 50 + LIMBO_NS - 1, &again, &generation), -ENOSPC);
	assert_int_equal(take(pool, MIB, 50 + LIMBO_NS, &generation), place[2]);
	assert_int_equal(pool_limbo_left_ns(pool), 10);
	assert_int_equal(take_at(pool, MIB, 50 + LIMBO_NS, &again, &generation), -ENOSPC);
	assert_int_equal(take(pool, MIB, UINT64_MAX, &generation), place[1]);
	assert_int_equal(pool_limbo(pool), 0);
	assert_int_equal(pool_limbo_left_ns(pool), UINT64_MAX);
	pool_close(pool);
}

/* So that new pages lie as those lay that left before them. */
static void slots_are_used_again_in_the_order_in_which_they_became_free(void **state)
{
	static const unsigned order[] = {0, 1, 2, 6, 5, 4};
	struct pool *pool = pool_new(4 * MIB);
	uint32_t generation, place[16];

	for (unsigned i = 0; i < 16; i++) {
		place[i] = take(pool, MIB / 4, 0, &generation);
		assert_int_equal(pool_publish(pool, place[i], generation, &key_a, MIB / 4), 0);
	}
	for (unsigned i = 0; i < 6; i++) {
		uint32_t slot = place[order[i] / 3 * 4 + order[i] % 3];

		assert_int_equal(retire_at(pool, slot, head_at(pool, slot).generation, 0), 0);
	}
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(take(pool, MIB / 4, LIMBO_NS, &generation),
			place[order[i] / 3 * 4 + order[i] % 3]);
	pool_close(pool);
}

static void an_empty_chunk_serves_any_size_at_once(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	uint32_t generation[1024], place[1024];

	for (unsigned i = 0; i < 1024; i++)
		place[i] = take(pool, PAGE_UNIT, 0, &generation[i]);
	assert_int_equal(pool_free(pool, 2 * PAGE_UNIT), 0);
	for (unsigned i = 0; i < 1024; i++)
		assert_int_equal(return_at(pool, place[i], generation[i], 0), 0);
	for (unsigned i = 0; i < 4 * (256 / 3); i++)
		take(pool, 3 * PAGE_UNIT, LIMBO_NS, &generation[0]);
	assert_int_equal(pool_free(pool, 3 * PAGE_UNIT), 0);
	assert_int_equal(take_at(pool, 3 * PAGE_UNIT, LIMBO_NS, place, generation), -ENOSPC);
	pool_close(pool);
}

/* One chunk holds small pages, then one large page, then small pages again. */
static void generations_survive_a_change_of_page_size(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	uint32_t generation[1024], place[1024], large, number;

	for (unsigned i = 0; i < 1024; i++) {
		place[i] = take(pool, PAGE_UNIT, 0, &generation[i]);
		assert_int_equal(pool_publish(pool, place[i], generation[i], &key_a, PAGE_UNIT), 0);
	}
	for (unsigned i = 0; i < 1024; i++)
		assert_int_equal(retire_at(pool, place[i], generation[i], 0), 0);
	large = take(pool, MIB, LIMBO_NS, &number);
	assert_int_equal(pool_publish(pool, large, number, &key_b, MIB), 0);
	for (unsigned i = 0; i < 1024; i++) {
		struct page_head head = head_at(pool, place[i]);

		assert_true(head.generation > generation[i]);
		assert_false(page_head_is(&head, &key_a, generation[i], PAGE_UNIT));
		assert_int_equal(retire_at(pool, place[i], head.generation, 0),
			place[i] == large ? 0 : -EINVAL);
	}
	for (unsigned i = 0; i < 1024; i++) {
		uint32_t again, unit = take(pool, PAGE_UNIT, 2 * LIMBO_NS, &again);

		for (unsigned j = 0; j < 1024; j++)
			assert_true(place[j] != unit || again > generation[j]);
	}
	pool_close(pool);
}

/* The longest pages that the class for pages of `units`, which has a free slot, serves. */
static uint32_t served_to(struct pool *pool, uint32_t units)
{
	uint32_t free = pool_free(pool, units * PAGE_UNIT), longer = units;

	while (pool_free(pool, (longer + 1) * PAGE_UNIT) == free)
		longer++;
	return longer;
}

static void many_sizes_share_classes_of_little_longer_pages(void **state)
{
	struct pool_options options = {.rail = RAIL,
		.bytes = (CLASSES_MAX + 1) * (uint64_t)PAGE_BYTES_MAX,
		.numa_node = -1,
		.limbo_ns = LIMBO_NS,
		.clock_ns = pool_time};
	uint32_t generation, place, units, longest = PAGE_BYTES_MAX / PAGE_UNIT, to;
	struct pool *pool;

	if (pool_open(&options, &pool) == -ENOMEM) {
		print_message("skipped: needs %llu MiB\n", (unsigned long long)options.bytes / MIB);
		skip();
	}
	for (units = 0; units < 16; units++)
		(void)take(pool, (longest - units) * PAGE_UNIT, 0, &generation);
	units = 1;
	for (uint32_t i = 16; i < CLASSES_MAX; i++, units = to + 1) {
		place = take(pool, units * PAGE_UNIT, 0, &generation);
		to = served_to(pool, units);
		assert_in_range(to, units + units / 20, units + units / 8);
		assert_int_equal(pool_publish(pool, place, generation, &key_a, to * PAGE_UNIT), 0);
	}
	/* no further class: that of much longer pages */
	place = take(pool, units * PAGE_UNIT, 0, &generation);
	units = longest - 15;
	assert_int_equal(pool_publish(pool, place, generation, &key_a, units * PAGE_UNIT), 0);
	pool_close(pool);
}

/* Sizes that come from the longest on need more classes than those that come from the shortest. */
static void the_last_class_serves_all_sizes(void **state)
{
	struct pool *pool = pool_new(70ull * PAGE_BYTES_MAX);
	uint32_t chunk = PAGE_BYTES_MAX / PAGE_UNIT, generation, opened = 0;

	for (uint32_t units = 7000; units; units--) {
		uint32_t chunks = pool_free(pool, chunk * PAGE_UNIT);

		if (pool_free(pool, units * PAGE_UNIT) != chunks * (chunk / units))
			continue; /* a class serves it */
		(void)take(pool, units * PAGE_UNIT, 0, &generation);
		opened++;
	}
	assert_in_range(opened, CLASSES_MAX, CLASSES_MAX + 6);
	(void)take(pool, chunk / 2 * PAGE_UNIT, 0, &generation);
	pool_close(pool);
}

/* 49 sizes in a pool of 32 chunks: each has room, and chunks are left for more pages. */
static void pages_of_49_sizes_take_few_chunks(void **state)
{
	struct pool *pool = pool_new(256 * MIB);
	uint32_t generation, place, before = pool_free(pool, 64 * PAGE_UNIT);

	for (uint32_t i = 0; i < 49; i++) {
		uint32_t units = i * 30 % 49 + 1;

		place = take(pool, units * PAGE_UNIT, 0, &generation);
		assert_int_equal(
			pool_publish(pool, place, generation, &key_a, units * PAGE_UNIT), 0);
	}
	/* the class of a page of half a chunk still has two slots in each */
	(void)take(pool, 4 * MIB, 0, &generation);
	assert_int_equal(pool_free(pool, 4 * MIB) % 2, 1);
	assert_true(pool_free(pool, 64 * PAGE_UNIT) > before / 3);
	pool_close(pool);
}

static void places_where_no_slot_starts_are_refused(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	uint32_t generation, place = take(pool, 3 * PAGE_UNIT, 0, &generation);
	uint32_t unit = place_unit(place);
	const uint32_t wrong[] = {place_make(RAIL, unit + 1), place_make(RAIL, unit + 2),
		place_make(RAIL, unit + 3), place_make(RAIL + 1, unit), place_make(RAIL, 1024),
		place_make(RAIL, 255), place_make(RAIL, 600), place_make(RAIL, PAGE_UNITS_MAX - 1),
		UINT32_MAX};

	for (unsigned i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		for (uint32_t g = 0; g <= generation + 1; g++) {
			pool_touch(pool, wrong[i]);
			assert_int_equal(pool_publish(pool, wrong[i], g, &key_a, 1), -EINVAL);
			assert_int_equal(return_at(pool, wrong[i], g, 0), -EINVAL);
			assert_int_equal(retire_at(pool, wrong[i], g, 0), -EINVAL);
		}
	pool_touch(pool, place);
	assert_int_equal(pool_publish(pool, place, generation, &key_a, 1), 0);
	pool_close(pool);
}

static void a_head_that_was_never_used_validates_nothing(void **state)
{
	struct pool *pool = pool_new(4 * MIB);
	uint32_t generation, place = take(pool, PAGE_UNIT, 0, &generation);
	struct page_head head = head_at(pool, place + 1);
	const struct page_key zero = {{0, 0}};

	assert_int_equal(head.generation, 0);
	for (uint32_t length = 1; length < 3; length++)
		assert_false(page_head_is(&head, &zero, 0, length));
	assert_int_equal(pool_publish(pool, place, 0, &key_a, 1), -EINVAL);
	assert_int_equal(pool_publish(pool, place + 1, 0, &key_a, 1), -EINVAL);
	pool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pool_of_any_size_has_at_least_four_chunks_of_a_power_of_two),
		cmocka_unit_test(a_pool_of_an_impossible_size_or_rail_is_refused),
		cmocka_unit_test(a_page_is_published_with_the_generation_of_its_credit),
		cmocka_unit_test(page_sizes_that_fit_no_slot_are_refused),
		cmocka_unit_test(a_credit_is_used_once),
		cmocka_unit_test(a_slot_rests_in_limbo_for_limbo_ns),
		cmocka_unit_test(slots_are_used_again_in_the_order_in_which_they_became_free),
		cmocka_unit_test(an_empty_chunk_serves_any_size_at_once),
		cmocka_unit_test(generations_survive_a_change_of_page_size),
		cmocka_unit_test(many_sizes_share_classes_of_little_longer_pages),
		cmocka_unit_test(the_last_class_serves_all_sizes),
		cmocka_unit_test(pages_of_49_sizes_take_few_chunks),
		cmocka_unit_test(places_where_no_slot_starts_are_refused),
		cmocka_unit_test(a_head_that_was_never_used_validates_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
