/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the disk tier needs of a pool: pages named ahead of the eviction hand, slots that are not
 * reused while they are written, pages that are pinned.
 */
#include "tests/unit/control/pool_world.h"

#include <stdlib.h>

#define PAGE (64u << 10)
#define BYTES (8u * MIB)

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

static void pages_named_ahead_are_those_evicted_next(void **state)
{
	struct pool_victim ahead[16], victim[16];
	unsigned pages;
	struct pool *pool = full(&pages);

	(void)state;
	assert_int_equal(pool_ahead(pool, PAGE, 16, 10, ahead), 10);
	assert_int_equal(pool_ahead(pool, PAGE, 16, 10, ahead + 10), 6);
	assert_int_equal(pool_ahead(pool, PAGE, 16, 10, victim), 0);
	assert_int_equal(pool_victims(pool, PAGE, 16, victim), 16);
	for (unsigned i = 0; i < 16; i++)
		assert_int_equal(ahead[i].place, victim[i].place);
	/* The hand has reached the pointer: everything ahead of it is new. */
	assert_int_equal(pool_ahead(pool, PAGE, 4, 16, ahead), 4);
	for (unsigned i = 0; i < 4; i++)
		for (unsigned k = 0; k < 16; k++)
			assert_int_not_equal(ahead[i].place, victim[k].place);
	pool_close(pool);
}

static void pages_on_disk_or_visited_are_not_named(void **state)
{
	struct pool *pool = pool_new(BYTES);
	struct pool_victim ahead[8];
	uint32_t place[4];

	(void)state;
	/* The oldest page is the first at the hand. */
	for (unsigned i = 0; i < 4; i++)
		assert_true(page_new(pool, PAGE, i + 1, &place[i]));
	fill(pool, PAGE);
	pool_clean_set(pool, place[0], 1);
	pool_touch(pool, place[1]);
	assert_int_equal(pool_write_begin(pool, place[2], 1), 0);
	assert_true(pool_clean(pool, place[0], 1));
	assert_false(pool_clean(pool, place[1], 1));
	assert_true(pool_clean(pool, place[2], 1));
	assert_int_equal(pool_ahead(pool, PAGE, 3, 8, ahead), 1);
	assert_int_equal(ahead[0].place, place[3]);
	pool_close(pool);
}

static void removed_pages_do_not_confuse_the_pointer(void **state)
{
	struct pool_victim ahead[64], victim[1];
	unsigned pages, named = 0;
	struct pool *pool = full(&pages);

	(void)state;
	assert_int_equal(pool_ahead(pool, PAGE, 32, 64, ahead), 32);
	/* Those between the hand and the pointer go, the one at the pointer too. */
	for (unsigned i = 0; i < 32; i++)
		evict(pool, &ahead[i]);
	for (unsigned i = 0; i < pages; i++) {
		named += pool_ahead(pool, PAGE, 8, 64, ahead);
		if (!pool_victims(pool, PAGE, 1, victim))
			break;
		evict(pool, &victim[0]);
	}
	assert_int_equal(pool_pages(pool), 0);
	assert_true(named > 0 && named <= pages);
	pool_close(pool);
}

/*
 * Whatever is published, touched and removed: with 16 pages named ahead after each step, the hand
 * evicts none that was not named.
 */
static void every_victim_was_named_before(void **state)
{
	enum { STEPS = 20000, AHEAD = 16, LAST = 32 };
	struct pool_victim ahead[4 * AHEAD], victim[1];
	struct pool *pool = pool_new(BYTES);
	bool *named = calloc(2 * STEPS, sizeof(*named));
	uint64_t random = 88172645463325252ull, n = 1;
	uint32_t last[LAST] = {0}; /* places that were named last */
	unsigned lasts = 0;

	(void)state;
	while (page_new(pool, PAGE, n, NULL))
		n++;
	for (unsigned step = 0; step < STEPS; step++) {
		unsigned found = pool_ahead(pool, PAGE, AHEAD, 4 * AHEAD, ahead);

		for (unsigned i = 0; i < found; i++) {
			assert_false(named[ahead[i].key.word[0]]);
			named[ahead[i].key.word[0]] = true;
			last[lasts++ % LAST] = ahead[i].place;
			pool_clean_set(pool, ahead[i].place, ahead[i].generation);
		}
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		if (random % 4 == 0) {
			assert_int_equal(pool_victims(pool, PAGE, 1, victim), 1);
			assert_true(named[victim[0].key.word[0]]);
			evict(pool, &victim[0]);
			now_ns += LIMBO_NS;
			assert_true(page_new(pool, PAGE, n++, NULL));
		} else if (found && random % 64 == 1) {
			evict(pool, &ahead[random / 64 % found]);
			now_ns += LIMBO_NS;
			assert_true(page_new(pool, PAGE, n++, NULL));
		} else if (random % 256 == 3) {
			/* All that were counted: the hand passes them. */
			for (unsigned i = 0; i < LAST; i++)
				pool_touch(pool, last[i]);
		} else if (random % 4 == 2) {
			pool_touch(pool, place_make(0, (uint32_t)(random / 64 % (BYTES / PAGE)) *
							       (PAGE / PAGE_UNIT)));
		}
	}
	free(named);
	pool_close(pool);
}

static void a_slot_is_not_handed_out_while_it_is_written(void **state)
{
	struct pool_victim victim[1];
	uint32_t place, generation;
	unsigned pages;
	struct pool *pool = full(&pages);

	(void)state;
	assert_int_equal(pool_victims(pool, PAGE, 1, victim), 1);
	assert_int_equal(pool_write_begin(pool, victim[0].place, victim[0].generation), 0);
	assert_int_equal(pool_write_begin(pool, victim[0].place, victim[0].generation), -EINVAL);
	evict(pool, &victim[0]);
	now_ns += 100 * LIMBO_NS;
	assert_int_equal(take_at(pool, PAGE, now_ns, &place, &generation), -ENOSPC);
	assert_int_equal(pool_limbo(pool), 1);
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

	(void)state;
	assert_int_equal(pool_victims(pool, PAGE, 1, victim), 1);
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

	(void)state;
	/* The first of two, so that the hand comes to it before it has made a lap. */
	assert_int_equal(pool_victims(pool, PAGE, 2, victim), 2);
	assert_int_equal(pool_pin(pool, victim[0].place, victim[0].generation), 0);
	assert_int_equal(pool_pin(pool, victim[0].place, victim[0].generation + 1), -EINVAL);
	n = pool_victims(pool, PAGE, 256, victim + 1);
	assert_int_equal(n, pages - 1);
	for (unsigned i = 1; i <= n; i++)
		assert_int_not_equal(victim[i].place, victim[0].place);
	pool_unpin(pool, victim[0].place, victim[0].generation);
	assert_int_equal(pool_victims(pool, PAGE, 256, victim), pages);
	pool_close(pool);
}

static void a_removed_page_loses_its_pin(void **state)
{
	struct pool_victim victim[1];
	uint32_t place, generation;
	unsigned pages;
	struct pool *pool = full(&pages);

	(void)state;
	assert_int_equal(pool_victims(pool, PAGE, 1, victim), 1);
	assert_int_equal(pool_pin(pool, victim[0].place, victim[0].generation), 0);
	evict(pool, &victim[0]);
	now_ns += LIMBO_NS;
	assert_int_equal(take_at(pool, PAGE, now_ns, &place, &generation), 0);
	assert_int_equal(place, victim[0].place);
	assert_int_equal(
		pool_publish(pool, place, generation, &(struct page_key){{7, 7}}, PAGE), 0);
	/* The new page is neither pinned nor on disk, whatever the old one was. */
	pool_unpin(pool, victim[0].place, victim[0].generation);
	assert_false(pool_clean(pool, place, generation));
	assert_int_equal(pool_pin(pool, place, generation), 0);
	pool_close(pool);
}

#define TEST(function) cmocka_unit_test_setup(function, start)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(pages_named_ahead_are_those_evicted_next),
		TEST(pages_on_disk_or_visited_are_not_named),
		TEST(removed_pages_do_not_confuse_the_pointer),
		TEST(every_victim_was_named_before),
		TEST(a_slot_is_not_handed_out_while_it_is_written),
		TEST(a_write_that_ends_in_limbo_does_not_shorten_it),
		TEST(a_pinned_page_is_not_evicted),
		TEST(a_removed_page_loses_its_pin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
