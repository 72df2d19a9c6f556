/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests how full the table of directory entries can get, and its state after long use.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "engine/control/pages/pages_inner.h"
#include "tests/unit/control/pages/random_world.h"

#define REF 7u

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static struct page_key key_of(uint64_t n)
{
	return (struct page_key){{mix(2 * n + 1), mix(2 * n + 2)}};
}

static struct shard shard_new(uint64_t entries)
{
	struct shard shard;

	assert_int_equal(shard_open(entries, -1, false, &shard), 0);
	return shard;
}

static unsigned buckets_read_for(const struct shard *shard, const struct page_key *key)
{
	struct bucket copy = bucket_load(&shard->bucket[dir_bucket_first(key, shard->bits)]);

	return bucket_has_empty(&copy) ? 1 : 2;
}

/* Pages on disk do not use up the room of pages in memory; entries that are there stay theirs. */
static void the_last_quarter_is_for_pages_in_memory(void **state)
{
	struct shard shard = shard_new(1024);
	uint64_t cells = (uint64_t)BUCKET_ENTRIES << shard.bits, n = 0;
	uint32_t disk = place_make(PLACE_DISK, 5);
	struct page_key key;

	for (key = key_of(n); shard_insert(&shard, &key, REF, disk, 1) == 0; key = key_of(n))
		n++;
	assert_int_equal(shard.entries, cells / 4 * 3);
	assert_int_equal(shard_insert(&shard, &key, REF, 0, 1), 0);
	/* an entry of a page in memory becomes one of a page on disk all the same */
	assert_int_equal(shard_insert(&shard, &key, REF, disk, 9), 0);
	key = key_of(0);
	assert_int_equal(shard_insert(&shard, &key, REF, 7, 2), 0);
	assert_int_equal(shard_insert(&shard, &key, REF, disk, 3), 0);
	assert_int_equal(shard.entries, cells / 4 * 3 + 1);
	shard_close(&shard);
}

/*
 * Measures how full tables get when an entry may be moved to make room for another one that moves.
 */
static void room_is_found_two_moves_away(void **state)
{
	uint64_t slots = 0, entries = 0;

	for (unsigned table = 0; table < 20; table++) {
		struct shard shard = shard_new(4096);
		struct page_key key = key_of(random_next());

		while (shard_insert(&shard, &key, REF, 1, 1) == 0)
			key = key_of(random_next());
		slots += (uint64_t)BUCKET_ENTRIES << shard.bits;
		entries += shard.entries;
		shard_close(&shard);
	}
	/* If an insert may move only one entry, tables fill up to 76%. */
	print_message(
		"8192 slots: first drop at %.1f%% load\n", 100.0 * (double)entries / (double)slots);
	assert_true(entries > slots * 82 / 100);
}

/*
 * After many inserts and removes, most buckets must still have an empty entry, so that a look-up of
 * an absent key reads one bucket.
 */
static void absent_keys_cost_one_read_again_after_long_use(void **state)
{
	struct shard shard = shard_new(4096);
	uint64_t oldest = 0, newest = 0, two = 0;

	for (; newest < 400000; newest++) {
		struct page_key key = key_of(newest);

		assert_int_equal(shard_insert(&shard, &key, REF, (uint32_t)newest, 1), 0);
		if (shard.entries <= 4096)
			continue;
		key = key_of(oldest);
		assert_true(shard_remove(&shard, &key, REF, (uint32_t)oldest++, 1));
	}
	for (uint64_t n = newest; n < newest + 10000; n++) {
		struct page_key key = key_of(n);

		two += buckets_read_for(&shard, &key) == 2;
	}
	print_message("half full after 100 turn-overs: %.1f%% of absent keys cost two READs\n",
		(double)two / 100);
	assert_true(two < 4000);
	shard_close(&shard);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_last_quarter_is_for_pages_in_memory),
		cmocka_unit_test(room_is_found_two_moves_away),
		cmocka_unit_test(absent_keys_cost_one_read_again_after_long_use),
	};

	return cmocka_run_group_tests(tests, start, NULL);
}
