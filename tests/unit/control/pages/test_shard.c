/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the table of directory entries, written by its owner and read in the way of a reader on
 * another host.
 */
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

/*
 * Looks up an entry with the algorithm of a reader on another host. Returns how many buckets it
 * read; 0: not found.
 */
static unsigned reader_finds(
	const struct shard *shard, const struct page_key *key, uint32_t ref, struct dir_entry *ret)
{
	uint32_t at = dir_bucket_first(key, shard->bits), tag = dir_tag(key);

	for (unsigned reads = 1; reads <= 2; reads++) {
		struct bucket copy = bucket_load(&shard->bucket[at]);

		for (unsigned i = 0; i < BUCKET_ENTRIES; i++)
			if (copy.entry[i].tag == tag && copy.entry[i].ref == ref) {
				*ret = copy.entry[i];
				return reads;
			}
		if (bucket_has_empty(&copy))
			break;
		at = dir_bucket_other(at, tag, shard->bits);
	}
	return 0;
}

static unsigned buckets_read_for(const struct shard *shard, const struct page_key *key)
{
	struct bucket copy = bucket_load(&shard->bucket[dir_bucket_first(key, shard->bits)]);

	return bucket_has_empty(&copy) ? 1 : 2;
}

/* Returns a key whose first candidate bucket is `bucket`. Each n gives another key. */
static struct page_key key_in_bucket(const struct shard *shard, uint32_t bucket, uint64_t n)
{
	struct page_key key = key_of(n);

	key.word[0] = (uint64_t)bucket << 8 | (key.word[0] & ~((1ull << (shard->bits + 8)) - 256));
	assert_int_equal(dir_bucket_first(&key, shard->bits), bucket);
	return key;
}

static void the_table_has_twice_the_requested_slots(void **state)
{
	struct shard shard;

	for (uint64_t entries = 0; entries < 5000; entries += 61) {
		shard = shard_new(entries);
		assert_true((uint64_t)BUCKET_ENTRIES << shard.bits >= 2 * entries);
		assert_true(
			shard.bits == 6 || (uint64_t)BUCKET_ENTRIES << shard.bits < 4 * entries);
		assert_true(shard.memory.bytes >= sizeof(struct bucket) << shard.bits);
		shard_close(&shard);
	}
	shard_close(&shard);
	shard = (struct shard){0};
	assert_int_equal(shard_open(1ull << 33, -1, false, &shard), -EINVAL);
	assert_int_equal(shard_open(UINT64_MAX, -1, false, &shard), -EINVAL);
	assert_null(shard.bucket);
}

static void an_entry_is_replaced_by_a_later_one_of_the_same_engine(void **state)
{
	struct shard shard = shard_new(100);
	struct page_key key = key_of(1);
	struct dir_entry found[4];

	assert_int_equal(shard_insert(&shard, &key, REF, 10, 1), 0);
	assert_int_equal(shard_insert(&shard, &key, REF, 11, 5), 0);
	assert_int_equal(shard_insert(&shard, &key, REF + 1, 12, 9), 0);
	assert_int_equal(shard.entries, 2);
	assert_int_equal(shard_find(&shard, &key, found, 4), 2);
	assert_int_equal(found[0].place, 11);
	assert_int_equal(found[0].generation, 5);
	assert_int_equal(found[1].ref, REF + 1);
	assert_int_equal(shard_find(&shard, &key, found, 1), 1);
	shard_close(&shard);
}

static void entries_that_look_empty_to_readers_are_refused(void **state)
{
	struct shard shard = shard_new(100);
	struct page_key key = key_of(1);

	assert_int_equal(shard_insert(&shard, &key, 0, 10, 1), -EINVAL);
	assert_int_equal(shard_insert(&shard, &key, REF, 10, 0), -EINVAL);
	assert_int_equal(shard.entries, 0);
	key.word[1] = 0;
	assert_int_equal(shard_insert(&shard, &key, REF, 0, 1), 0);
	assert_true(shard_remove(&shard, &key, REF, 0, 1));
	shard_close(&shard);
}

static void a_late_remove_never_deletes_a_newer_entry(void **state)
{
	struct shard shard = shard_new(100);
	struct page_key key = key_of(1);
	struct dir_entry found;

	assert_int_equal(shard_insert(&shard, &key, REF, 10, 1), 0);
	assert_int_equal(shard_insert(&shard, &key, REF, 10, 2), 0);
	assert_false(shard_remove(&shard, &key, REF, 10, 1));
	assert_false(shard_remove(&shard, &key, REF, 11, 2));
	assert_false(shard_remove(&shard, &key, REF + 1, 10, 2));
	assert_int_equal(reader_finds(&shard, &key, REF, &found), 1);
	assert_true(shard_remove(&shard, &key, REF, 10, 2));
	assert_false(shard_remove(&shard, &key, REF, 10, 2));
	assert_int_equal(reader_finds(&shard, &key, REF, &found), 0);
	assert_int_equal(shard.entries, 0);
	shard_close(&shard);
}

static void a_deleted_entry_does_not_hide_one_in_its_second_bucket(void **state)
{
	struct shard shard = shard_new(1000);
	struct page_key key[5];
	struct dir_entry found;

	for (unsigned i = 0; i < 5; i++) {
		key[i] = key_in_bucket(&shard, 3, i);
		assert_int_equal(shard_insert(&shard, &key[i], REF, i, 1), 0);
	}
	assert_int_equal(reader_finds(&shard, &key[4], REF, &found), 2);
	for (unsigned i = 0; i < 4; i++) {
		assert_true(shard_remove(&shard, &key[i], REF, i, 1));
		assert_int_equal(reader_finds(&shard, &key[4], REF, &found), 2);
	}
	/*
	 * The removal of the entry in the second candidate bucket makes the tombstones empty, so
	 * that an absent key costs one READ again.
	 */
	assert_int_equal(buckets_read_for(&shard, &key[0]), 2);
	assert_true(shard_remove(&shard, &key[4], REF, 4, 1));
	assert_int_equal(buckets_read_for(&shard, &key[0]), 1);
	shard_close(&shard);
}

/* A bucket whose counter is full is never taken for one that misses no entry. */
/* An entry of another key goes, of a page on disk first; the one that takes its room is found. */
static void a_full_shard_displaces_an_entry_of_another_key(void **state)
{
	struct shard shard = shard_new(64);
	struct dir_entry found;
	struct page_key key, disk = {{0}};
	uint64_t n = 0, left = 0;

	do
		key = key_of(n++);
	while (shard_insert(&shard, &key, REF, place_make(0, (uint32_t)n), 1) == 0);
	for (uint64_t k = 0; k < n - 1; k++) {
		struct page_key other = key_of(k);
		uint32_t first = dir_bucket_first(&key, shard.bits);

		if (reader_finds(&shard, &other, REF, &found) == 1 &&
			dir_bucket_first(&other, shard.bits) == first) {
			disk = other;
			assert_int_equal(
				shard_insert(&shard, &other, REF, place_make(PLACE_DISK, 9), 1), 0);
			break;
		}
	}
	assert_true(shard_displace(&shard, &key));
	assert_false(reader_finds(&shard, &disk, REF, &found));
	assert_int_equal(shard_insert(&shard, &key, REF, 3, 1), 0);
	assert_true(reader_finds(&shard, &key, REF, &found));
	/* the key's own entries stay */
	while (shard_displace(&shard, &key))
		left++;
	assert_in_range(left, BUCKET_ENTRIES, 2 * BUCKET_ENTRIES - 1);
	assert_true(reader_finds(&shard, &key, REF, &found));
	shard_close(&shard);
}

static void a_counter_of_entries_elsewhere_that_is_full_stays_full(void **state)
{
	struct shard shard = shard_new(256);
	struct page_key key;

	for (uint64_t n = 0; n < BUCKET_ENTRIES; n++) {
		key = key_in_bucket(&shard, 3, n);
		assert_int_equal(shard_insert(&shard, &key, REF, 1, 1), 0);
	}
	shard.side[3].away = UINT8_MAX;
	key = key_in_bucket(&shard, 3, BUCKET_ENTRIES);
	assert_int_equal(shard_insert(&shard, &key, REF, 1, 1), 0);
	assert_int_equal(shard.side[3].away, UINT8_MAX);
	assert_true(shard_remove(&shard, &key, REF, 1, 1));
	assert_int_equal(shard.side[3].away, UINT8_MAX);
	shard_close(&shard);
}

static void a_displaced_entry_is_found_in_its_second_bucket(void **state)
{
	struct shard shard = shard_new(1000);
	struct page_key at_first[4], at_second[4], one;
	uint32_t second, n = 0;
	struct dir_entry found;

	one = key_in_bucket(&shard, 5, 1000);
	second = dir_bucket_other(5, dir_tag(&one), shard.bits);
	for (; n < 4; n++) {
		at_first[n] = key_in_bucket(&shard, 5, n);
		at_second[n] = key_in_bucket(&shard, second, 100 + n);
		assert_int_equal(shard_insert(&shard, &at_first[n], REF, n, 1), 0);
		assert_int_equal(shard_insert(&shard, &at_second[n], REF, 100 + n, 1), 0);
	}
	assert_int_equal(shard_insert(&shard, &one, REF, 1000, 1), 0);
	assert_int_equal(reader_finds(&shard, &one, REF, &found), 1);
	for (n = 0; n < 4; n++) {
		assert_int_not_equal(reader_finds(&shard, &at_first[n], REF, &found), 0);
		assert_int_equal(found.place, n);
		assert_int_equal(reader_finds(&shard, &at_second[n], REF, &found), 1);
	}
	assert_int_equal(shard.entries, 9);
	assert_true(shard_remove(&shard, &at_first[0], REF, 0, 1));
	shard_close(&shard);
}

/*
 * Two keys have the same tag, and the first candidate bucket of each is the second one of the
 * other. The entry of one must not be taken for the entry of the other.
 */
static void keys_with_one_tag_and_swapped_buckets_are_kept_apart(void **state)
{
	struct shard shard = shard_new(1000);
	struct page_key a = key_in_bucket(&shard, 5, 1), b = a, filler[4];
	struct dir_entry found[4];

	b = key_in_bucket(&shard, dir_bucket_other(5, dir_tag(&a), shard.bits), 2);
	b.word[1] = a.word[1];
	for (unsigned i = 0; i < 4; i++) {
		filler[i] = key_in_bucket(&shard, 5, 10 + i);
		assert_int_equal(shard_insert(&shard, &filler[i], REF, 10 + i, 1), 0);
	}
	assert_int_equal(shard_insert(&shard, &a, REF, 1, 1), 0);
	assert_int_equal(shard_insert(&shard, &b, REF, 2, 1), 0);
	assert_int_equal(shard.entries, 6);
	assert_int_equal(shard_find(&shard, &a, found, 4), 1);
	assert_int_equal(found[0].place, 1);
	assert_int_equal(shard_find(&shard, &b, found, 4), 1);
	assert_int_equal(found[0].place, 2);
	assert_true(shard_remove(&shard, &b, REF, 2, 1));
	assert_true(shard_remove(&shard, &a, REF, 1, 1));
	shard_close(&shard);
}

static void an_insert_without_room_changes_nothing(void **state)
{
	struct shard shard = shard_new(64);
	uint64_t slots = (uint64_t)BUCKET_ENTRIES << shard.bits;
	uint64_t n = 0, accepted = 0;
	struct dir_entry found;

	for (; n < 4 * slots; n++) {
		struct page_key key = key_of(n);
		struct bucket *before = malloc(sizeof(struct bucket) << shard.bits);
		int rc;

		memcpy(before, shard.bucket, sizeof(struct bucket) << shard.bits);
		rc = shard_insert(&shard, &key, REF, (uint32_t)n, 1);
		assert_true(rc == 0 || rc == -ENOSPC);
		accepted += rc == 0;
		assert_int_equal(reader_finds(&shard, &key, REF, &found) != 0, rc == 0);
		if (rc)
			assert_memory_equal(
				before, shard.bucket, sizeof(struct bucket) << shard.bits);
		free(before);
	}
	assert_int_equal(shard.entries, accepted);
	assert_true(accepted > slots * 3 / 4 && accepted <= slots);
	shard_close(&shard);
}

/* Entries that were moved, replaced or removed count in the slot of the map of their key. */
static void digests_are_those_of_the_slots_of_the_keys(void **state)
{
	static uint64_t expected[MAP_SLOTS], sums[MAP_SLOTS];
	struct shard shard = shard_new(4096);
	uint64_t keys = (uint64_t)BUCKET_ENTRIES << shard.bits, shown = 0;
	uint8_t wanted[MAP_SLOTS / 8] = {0};
	struct shard_part part = {.buckets = UINT32_MAX, .slots = wanted};
	uint32_t cursor = 0;

	for (uint64_t n = 0; n < keys; n++) {
		struct page_key key = key_of(n);
		uint32_t place = (uint32_t)n, slot = map_slot_of(&key);
		bool in = shard_insert(&shard, &key, REF, place, 1) == 0;

		if (in && n % 3 == 0)
			in = shard_insert(&shard, &key, REF, ++place, 2) == 0;
		if (in && n % 5 == 0)
			in = !shard_remove(&shard, &key, REF, place, n % 3 ? 1 : 2);
		(void)shard_insert(&shard, &key, REF + 1, place, 1);
		if (!in)
			continue;
		expected[slot] += shard_entry_hash(dir_tag(&key), place, n % 3 ? 1 : 2);
		if (slot % 2)
			wanted[slot / 8] |= (uint8_t)(1u << slot % 8);
		shown += slot % 2;
	}
	for (uint32_t left = 1u << shard.bits; left; left -= 64)
		shard_digest(&shard, &cursor, 64, REF, sums);
	assert_memory_equal(sums, expected, sizeof(sums));
	for (const struct dir_entry *entry; (entry = shard_show(&shard, &part, REF)); shown--)
		assert_int_equal(entry->ref, REF);
	assert_int_equal(shown, 0);
	shard_close(&shard);
}

/* Two keys that a shard cannot tell apart: the last one counts. */
static void a_key_that_takes_the_entry_of_another_takes_its_slot(void **state)
{
	static uint64_t sums[MAP_SLOTS];
	struct shard shard = shard_new(64);
	struct page_key key = key_of(1), twin = key;
	uint32_t cursor = 0;

	twin.word[1] ^= 1ull << 63;
	assert_int_equal(shard_insert(&shard, &key, REF, 1, 1), 0);
	assert_int_equal(shard_insert(&shard, &twin, REF, 2, 1), 0);
	shard_digest(&shard, &cursor, 1u << shard.bits, REF, sums);
	assert_int_equal(sums[map_slot_of(&key)], 0);
	assert_true(sums[map_slot_of(&twin)] == shard_entry_hash(dir_tag(&twin), 2, 1));
	shard_close(&shard);
}

static bool odd_lives(void *context, uint32_t ref)
{
	return ref & 1;
}

static void a_sweep_in_slices_removes_only_entries_of_dead_members(void **state)
{
	struct shard shard = shard_new(4000);
	uint32_t cursor = 0, dead = 0, removed = 0;
	struct dir_entry found;

	for (uint32_t n = 0; n < 5000; n++) {
		struct page_key key = key_of(n);

		assert_int_equal(shard_insert(&shard, &key, 1 + n % 4, n, 1), 0);
		dead += (1 + n % 4) % 2 == 0;
	}
	for (uint32_t looked = 0; looked < 1u << shard.bits; looked += 100)
		removed += shard_sweep(&shard, &cursor, 100, odd_lives, NULL);
	assert_int_equal(removed, dead);
	assert_true(cursor < 1u << shard.bits);
	assert_int_equal(shard.entries, 5000 - dead);
	for (uint32_t n = 0; n < 5000; n++) {
		struct page_key key = key_of(n);
		bool lives = (1 + n % 4) % 2;

		assert_int_equal(reader_finds(&shard, &key, 1 + n % 4, &found) != 0, lives);
	}
	shard_close(&shard);
}

/* At every 97th step, all keys are looked up. */
static void random_inserts_and_removes_agree_with_a_model(void **state)
{
	enum { KEYS = 300 };

	for (unsigned round = 0; round < 20; round++) {
		struct shard shard = shard_new(1);
		uint32_t generation[KEYS] = {0}, live = 0;
		unsigned inserts = 40 + round % 5 * 10;

		for (uint32_t step = 1; step <= 20000; step++) {
			uint32_t n = (uint32_t)(random_next() % KEYS);
			struct page_key key = key_of(n + (uint64_t)round * KEYS);
			struct dir_entry found;

			if (random_next() % 100 < inserts) {
				int rc = shard_insert(&shard, &key, REF, n, step);

				assert_true(rc == 0 || (rc == -ENOSPC && !generation[n]));
				live += rc == 0 && !generation[n];
				generation[n] = rc == 0 ? step : generation[n];
			} else {
				bool had = shard_remove(&shard, &key, REF, n, generation[n]);

				assert_int_equal(had, generation[n] != 0);
				live -= had;
				generation[n] = 0;
			}
			assert_int_equal(shard.entries, live);
			for (n = 0; step % 97 == 0 && n < KEYS; n++) {
				key = key_of(n + (uint64_t)round * KEYS);
				assert_int_equal(reader_finds(&shard, &key, REF, &found) != 0,
					generation[n] != 0);
				assert_true(!generation[n] || found.generation == generation[n]);
				assert_int_equal(
					shard_find(&shard, &key, &found, 1), generation[n] != 0);
			}
		}
		shard_close(&shard);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_table_has_twice_the_requested_slots),
		cmocka_unit_test(an_entry_is_replaced_by_a_later_one_of_the_same_engine),
		cmocka_unit_test(entries_that_look_empty_to_readers_are_refused),
		cmocka_unit_test(a_late_remove_never_deletes_a_newer_entry),
		cmocka_unit_test(a_deleted_entry_does_not_hide_one_in_its_second_bucket),
		cmocka_unit_test(a_full_shard_displaces_an_entry_of_another_key),
		cmocka_unit_test(a_counter_of_entries_elsewhere_that_is_full_stays_full),
		cmocka_unit_test(a_displaced_entry_is_found_in_its_second_bucket),
		cmocka_unit_test(keys_with_one_tag_and_swapped_buckets_are_kept_apart),
		cmocka_unit_test(an_insert_without_room_changes_nothing),
		cmocka_unit_test(digests_are_those_of_the_slots_of_the_keys),
		cmocka_unit_test(a_key_that_takes_the_entry_of_another_takes_its_slot),
		cmocka_unit_test(a_sweep_in_slices_removes_only_entries_of_dead_members),
		cmocka_unit_test(random_inserts_and_removes_agree_with_a_model),
	};

	return cmocka_run_group_tests(tests, start, NULL);
}
