/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the disk tier needs of a pool: pages named that are not on disk, victims that are, slots
 * that are not reused while they are written, pages that are pinned.
 */
#include "tests/unit/control/pages/pool_world.h"

#include <stdlib.h>

#define PAGE (64u << 10)
#define BYTES (8u * MIB)
#define ALL POOL_AHEAD_ALL

static struct pool *full(unsigned *ret_pages)
{
	struct pool *pool = pool_new(BYTES);

	fill(pool, PAGE);
	*ret_pages = (unsigned)pool_pages(pool);
	assert_true(*ret_pages >= 64);
	return pool;
}

static void evict(struct pool *pool, const struct pool_victim *page)
{
	assert_int_equal(pool_retire(pool, page->place, page->generation), 0);
	pool_time_ns = now_ns;
	pool_rest(pool);
}

static void pages_are_named_once_in_the_order_they_were_published(void **state)
{
	struct pool_victim ahead[256], victim[16];
	unsigned pages;
	struct pool *pool = full(&pages);

	assert_int_equal(pool_ahead(pool, PAGE, ALL, 10, ahead), 10);
	assert_int_equal(pool_ahead(pool, PAGE, ALL, 256, ahead + 10), pages - 10);
	assert_int_equal(pool_victims(pool, PAGE, false, 16, victim), 16);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(ahead[i].place, victim[i].place);
	for (unsigned i = 0; i < pages; i++)
		assert_int_equal(pool_write_begin(pool, ahead[i].place, ahead[i].generation), 0);
	assert_int_equal(pool_ahead(pool, PAGE, ALL, 256, ahead), 0);
	pool_close(pool);
}

/* A quarter of the age at which pages are evicted is a quarter of the pages, while none is used. */
static void pages_are_named_by_the_age_at_which_they_are_evicted(void **state)
{
	struct pool_victim ahead[256], victim[8];
	unsigned pages, n;
	struct pool *pool = full(&pages);
	uint32_t place;

	n = pool_ahead(pool, PAGE, ALL / 4, 256, ahead);
	assert_in_range(n, pages / 4, pages / 4 + 1);
	assert_int_equal(pool_ahead(pool, PAGE, ALL / 4, 256, ahead + n), 0);
	assert_int_equal(pool_victims(pool, PAGE, false, 8, victim), 8);
	for (unsigned i = 0; i < 8; i++) {
		assert_int_equal(ahead[i].place, victim[i].place);
		evict(pool, &victim[i]);
	}
	now_ns += LIMBO_NS;
	for (unsigned i = 0; i < 8; i++)
		assert_true(page_new(pool, PAGE, 1000 + i, &place));
	assert_in_range(pool_ahead(pool, PAGE, ALL / 4, 256, ahead), 7, 9);
	pool_close(pool);
}

static void pages_on_disk_or_being_written_are_not_named(void **state)
{
	struct pool *pool = pool_new(BYTES);
	struct pool_victim ahead[8];
	uint32_t place[4];

	for (unsigned i = 0; i < 4; i++)
		assert_true(page_new(pool, PAGE, i + 1, &place[i]));
	pool_clean_set(pool, place[0], 1, true);
	pool_touch(pool, place[1]);
	assert_int_equal(pool_write_begin(pool, place[2], 1), 0);
	assert_true(pool_clean(pool, place[0], 1));
	assert_false(pool_clean(pool, place[1], 1));
	assert_true(pool_clean(pool, place[2], 1));
	assert_int_equal(pool_ahead(pool, PAGE, ALL, 8, ahead), 2);
	assert_int_equal(ahead[0].place, place[3]);
	assert_int_equal(ahead[1].place, place[1]);
	pool_close(pool);
}

/* It lies between pages that were named. */
static void a_page_of_a_batch_that_was_named_is_named(void **state)
{
	struct pool *pool = pool_new(BYTES);
	struct pool_victim ahead[8];
	uint32_t place[5];

	for (unsigned i = 0; i < 4; i++)
		assert_true(page_new(pool, PAGE, i + 1, &place[i]));
	assert_int_equal(pool_ahead(pool, PAGE, ALL, 2, ahead), 2);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pool_write_begin(pool, ahead[i].place, ahead[i].generation), 0);
	pool_order(pool, place[1]);
	assert_true(page_new(pool, PAGE, 5, &place[4]));
	assert_int_equal(pool_ahead(pool, PAGE, ALL, 8, ahead), 3);
	assert_int_equal(ahead[0].place, place[4]);
	pool_close(pool);
}

/* The write failed, or the disk has lost the page. */
static void pages_that_are_not_on_disk_after_all_are_named_again(void **state)
{
	struct pool_victim ahead[256];
	unsigned pages;
	struct pool *pool = full(&pages);

	assert_int_equal(pool_ahead(pool, PAGE, ALL, 256, ahead), pages);
	for (unsigned i = 0; i < pages; i++) {
		assert_int_equal(pool_write_begin(pool, ahead[i].place, ahead[i].generation), 0);
		pool_write_end(pool, ahead[i].place, ahead[i].generation, i % 4 != 0);
	}
	assert_int_equal(pool_ahead(pool, PAGE, ALL, 256, ahead), (pages + 3) / 4);
	for (unsigned i = 0; i < (pages + 3) / 4; i++) {
		pool_clean_set(pool, ahead[i].place, ahead[i].generation, true);
		pool_clean_set(pool, ahead[i].place, ahead[i].generation, i % 2 == 0);
	}
	assert_int_equal(pool_ahead(pool, PAGE, ALL, 256, ahead), (pages + 3) / 4 / 2);
	pool_close(pool);
}

/*
 * Whatever is published, written, lost, touched and evicted: a page that is neither on disk nor
 * being written is named before long, and the pool counts these pages without an error.
 */
static void every_page_is_named_until_it_is_on_disk(void **state)
{
	enum { STEPS = 20000, NAMES = 2 * STEPS };
	struct pool_victim ahead[8], victim[1], all[256];
	struct pool *pool = pool_new(BYTES);
	uint8_t *named = calloc(NAMES, 1); /* 1: to be named; 2: named */
	uint64_t random = 88172645463325252ull, n = 1;

	while (page_new(pool, PAGE, n, NULL))
		named[n++] = 1;
	for (unsigned step = 0; step < STEPS; step++) {
		unsigned found = step / 512 % 2 ? 0 : pool_ahead(pool, PAGE, ALL, 8, ahead);

		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		for (unsigned i = 0; i < found; i++) {
			uint64_t key = ahead[i].key.word[0];

			assert_int_equal(named[key], 1);
			assert_int_equal(
				pool_write_begin(pool, ahead[i].place, ahead[i].generation), 0);
			pool_write_end(
				pool, ahead[i].place, ahead[i].generation, (random >> i & 7) != 0);
			named[key] = (random >> i & 7) != 0 ? 2 : 1;
		}
		if (random % 4 == 0 || found == 0) {
			bool clean = random & 64 && pool_victims(pool, PAGE, true, 1, victim) == 1;

			assert_true(clean || pool_victims(pool, PAGE, false, 1, victim) == 1);
			if (clean)
				assert_int_equal(named[victim[0].key.word[0]], 2);
			evict(pool, &victim[0]);
			now_ns += LIMBO_NS;
			named[n] = 1;
			assert_true(page_new(pool, PAGE, n++, NULL));
		} else if (random % 4 == 2) {
			pool_touch(pool, place_make(0, (uint32_t)(random / 64 % (BYTES / PAGE)) *
							       (PAGE / PAGE_UNIT)));
		}
	}
	for (unsigned found = 1; found;) {
		found = pool_ahead(pool, PAGE, ALL, 8, ahead);
		for (unsigned i = 0; i < found; i++)
			pool_clean_set(pool, ahead[i].place, ahead[i].generation, true);
	}
	/* all but those that no lap begins for */
	assert_in_range(pool_victims(pool, PAGE, true, 256, all),
		pool_pages(pool) - pool_pages(pool) / 64, pool_pages(pool));
	free(named);
	pool_close(pool);
}

static void a_clean_victim_is_found_among_dirty_pages(void **state)
{
	struct pool_victim all[256], victim[256];
	unsigned pages;
	struct pool *pool = full(&pages);

	assert_int_equal(pool_victims(pool, PAGE, true, 8, victim), 0);
	assert_int_equal(pool_ahead(pool, PAGE, ALL, 256, all), pages);
	for (unsigned i = pages - 16; i < pages - 8; i++)
		pool_clean_set(pool, all[i].place, all[i].generation, true);
	for (unsigned i = pages - 8; i < pages; i++)
		assert_int_equal(pool_write_begin(pool, all[i].place, all[i].generation), 0);
	assert_int_equal(
		pool_pin(pool, all[pages - 1].place, all[pages - 1].generation, POOL_PIN_READER),
		0);
	assert_int_equal(pool_victims(pool, PAGE, true, 256, victim), 15);
	for (unsigned i = 0; i < 15; i++)
		assert_int_equal(victim[i].place, all[pages - 16 + i].place);
	pool_close(pool);
}

static void the_search_for_a_clean_victim_passes_few_dirty_pages(void **state)
{
	struct pool *pool = pool_new(BYTES);
	struct pool_victim victim[16];
	uint32_t place[100];

	for (unsigned i = 0; i < 100; i++)
		assert_true(page_new(pool, PAGE, i + 1, &place[i]));
	for (unsigned i = 90; i < 100; i++)
		pool_clean_set(pool, place[i], 1, true);
	assert_int_equal(pool_victims(pool, PAGE, true, 1, victim), 0);
	assert_int_equal(pool_victims(pool, PAGE, true, 10, victim), 10);
	pool_close(pool);
}

static void a_chunk_of_another_size_gives_its_clean_pages_first(void **state)
{
	struct pool_victim all[256], victim[256];
	unsigned pages, n;
	struct pool *pool = full(&pages);

	assert_int_equal(pool_victims(pool, MIB, true, 256, victim), 0);
	assert_int_equal(pool_ahead(pool, PAGE, ALL, 256, all), pages);
	for (unsigned i = 0; i < pages; i += 2)
		pool_clean_set(pool, all[i].place, all[i].generation, true);
	n = pool_victims(pool, MIB, true, 256, victim);
	assert_in_range(n, 1, pages / 2);
	for (unsigned i = 0; i < n; i++)
		assert_true(pool_clean(pool, victim[i].place, victim[i].generation));
	assert_in_range(pool_victims(pool, MIB, false, 256, victim), n + 1, pages);
	pool_close(pool);
}

static void a_slot_is_not_handed_out_while_it_is_written(void **state)
{
	struct pool_victim victim[1];
	uint32_t place, generation;
	unsigned pages;
	struct pool *pool = full(&pages);

	assert_int_equal(pool_victims(pool, PAGE, false, 1, victim), 1);
	assert_int_equal(pool_write_begin(pool, victim[0].place, victim[0].generation), 0);
	assert_int_equal(pool_write_begin(pool, victim[0].place, victim[0].generation), -EINVAL);
	evict(pool, &victim[0]);
	assert_int_equal(pool_resting(pool, PAGE), 1);
	now_ns += 100 * LIMBO_NS;
	assert_int_equal(take_at(pool, PAGE, now_ns, &place, &generation), -ENOSPC);
	assert_int_equal(pool_limbo(pool), 1);
	assert_int_equal(pool_resting(pool, PAGE), 0); /* the write may take long */
	pool_write_end(pool, victim[0].place, victim[0].generation, true);
	assert_int_equal(pool_limbo(pool), 0);
	assert_int_equal(take_at(pool, PAGE, now_ns, &place, &generation), 0);
	assert_int_equal(place, victim[0].place);
	pool_close(pool);
}

static void a_write_that_ends_in_limbo_does_not_shorten_it(void **state)
{
	struct pool_victim victim[1];
	uint32_t place, generation;
	unsigned pages;
	struct pool *pool = full(&pages);

	assert_int_equal(pool_victims(pool, PAGE, false, 1, victim), 1);
	assert_int_equal(pool_write_begin(pool, victim[0].place, victim[0].generation), 0);
	evict(pool, &victim[0]);
	pool_write_end(pool, victim[0].place, victim[0].generation, true);
	assert_int_equal(take_at(pool, PAGE, now_ns, &place, &generation), -ENOSPC);
	now_ns += LIMBO_NS;
	assert_int_equal(take_at(pool, PAGE, now_ns, &place, &generation), 0);
	pool_close(pool);
}

static void a_pinned_page_is_not_evicted(void **state)
{
	struct pool_victim victim[256];
	unsigned pages, n;
	struct pool *pool = full(&pages);

	/* The first of two, so that the hand comes to it before it has made a lap. */
	assert_int_equal(pool_victims(pool, PAGE, false, 2, victim), 2);
	assert_int_equal(pool_pin(pool, victim[0].place, victim[0].generation, POOL_PIN_READER), 0);
	assert_int_equal(pool_pin(pool, victim[0].place, victim[0].generation + 1, POOL_PIN_READER),
		-EINVAL);
	n = pool_victims(pool, PAGE, false, 256, victim + 1);
	assert_int_equal(n, pages - 1);
	for (unsigned i = 1; i <= n; i++)
		assert_int_not_equal(victim[i].place, victim[0].place);
	pool_unpin(pool, victim[0].place, victim[0].generation, POOL_PIN_READER);
	assert_int_equal(pool_victims(pool, PAGE, false, 256, victim), pages);
	pool_close(pool);
}

static void a_removed_page_loses_its_pin(void **state)
{
	struct pool_victim victim[1];
	uint32_t place, generation;
	unsigned pages;
	struct pool *pool = full(&pages);

	assert_int_equal(pool_victims(pool, PAGE, false, 1, victim), 1);
	assert_int_equal(pool_pin(pool, victim[0].place, victim[0].generation, POOL_PIN_READER), 0);
	evict(pool, &victim[0]);
	now_ns += LIMBO_NS;
	assert_int_equal(take_at(pool, PAGE, now_ns, &place, &generation), 0);
	assert_int_equal(place, victim[0].place);
	assert_int_equal(
		pool_publish(pool, place, generation, &(struct page_key){{7, 7}}, PAGE), 0);
	/* The new page is neither pinned nor on disk, whatever the old one was. */
	pool_unpin(pool, victim[0].place, victim[0].generation, POOL_PIN_READER);
	assert_false(pool_clean(pool, place, generation));
	assert_int_equal(pool_pin(pool, place, generation, POOL_PIN_READER), 0);
	pool_close(pool);
}

#define TEST(function) cmocka_unit_test_setup(function, start)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(pages_are_named_once_in_the_order_they_were_published),
		TEST(pages_are_named_by_the_age_at_which_they_are_evicted),
		TEST(pages_on_disk_or_being_written_are_not_named),
		TEST(a_page_of_a_batch_that_was_named_is_named),
		TEST(pages_that_are_not_on_disk_after_all_are_named_again),
		TEST(every_page_is_named_until_it_is_on_disk),
		TEST(a_clean_victim_is_found_among_dirty_pages),
		TEST(the_search_for_a_clean_victim_passes_few_dirty_pages),
		TEST(a_chunk_of_another_size_gives_its_clean_pages_first),
		TEST(a_slot_is_not_handed_out_while_it_is_written),
		TEST(a_write_that_ends_in_limbo_does_not_shorten_it),
		TEST(a_pinned_page_is_not_evicted),
		TEST(a_removed_page_loses_its_pin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
