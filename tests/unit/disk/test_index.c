/* SPDX-License-Identifier: Apache-2.0 */
/* engine/disk/index.c against a simple model, and its memory a page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "engine/abi/map.h"
#include "engine/disk/index.h"

#define KEYS 3000u
#define SEGMENTS 16u

static struct page_key key_of(uint32_t number)
{
	return (struct page_key){
		{number * UINT64_C(0x9e3779b97f4a7c15), number * UINT64_C(0xbf58476d1ce4e5b9) + 1}};
}

static uint32_t page_add(struct disk_index *index, uint32_t segment, uint32_t unit,
	const struct page_key *key, uint32_t length, uint32_t crc)
{
	const struct disk_entry entry = {.key = *key, .length = length, .crc = crc};

	return disk_index_add(index, segment, unit, &entry, NULL);
}

static void seed(void)
{
	const char *given = getenv("SEED");
	unsigned number = given ? (unsigned)atoi(given) : (unsigned)time(NULL);

	printf("SEED=%u\n", number);
	srandom(number);
}

static void random_changes_equal_a_model(void **state)
{
	static struct disk_index index;
	static uint32_t segment_of[KEYS], length_of[KEYS];
	uint32_t live = 0;

	seed();
	assert_int_equal(disk_index_open(&index, SEGMENTS), 0);
	memset(segment_of, 0xff, sizeof(segment_of));
	for (unsigned round = 0; round < 300000; round++) {
		uint32_t number = (uint32_t)random() % KEYS,
			 segment = (uint32_t)random() % SEGMENTS;
		struct page_key key = key_of(number);
		struct disk_index_found found;
		struct page_key named;
		bool has = disk_index_find(&index, &key, &found);

		assert_int_equal(has, segment_of[number] != UINT32_MAX);
		if (has) {
			assert_int_equal(found.segment, segment_of[number]);
			assert_int_equal(found.length, length_of[number]);
			assert_int_equal(found.crc, ~number);
			assert_int_equal(found.unit, number % 65536);
			assert_true(disk_index_still(&index, &found));
			assert_true(
				disk_index_named(&index, found.place, found.generation, &named));
			assert_memory_equal(&named, &key, sizeof(key));
			assert_false(disk_index_named(
				&index, found.place + 1, found.generation, &named));
		}
		if (round % 500 == 0) {
			disk_index_empty(&index, segment);
			for (uint32_t i = 0; i < KEYS; i++)
				if (segment_of[i] == segment) {
					segment_of[i] = UINT32_MAX;
					live--;
				}
			if (has && found.segment == segment) {
				assert_false(disk_index_still(&index, &found));
				assert_false(disk_index_named(
					&index, found.place, found.generation, &named));
			}
		} else if (has && random() % 2) {
			disk_index_remove(&index, &found);
			assert_false(disk_index_still(&index, &found));
			assert_false(
				disk_index_named(&index, found.place, found.generation, &named));
			segment_of[number] = UINT32_MAX;
			live--;
		} else if (!has) {
			length_of[number] = 1 + (uint32_t)random() % PAGE_BYTES_MAX;
			assert_int_not_equal(page_add(&index, segment, number % 65536, &key,
						     length_of[number], ~number),
				INDEX_NONE);
			segment_of[number] = segment;
			live++;
		}
		assert_int_equal(index.pages, live);
	}
	disk_index_close(&index);
}

/* A name is that of a segment's life and of the place in it. */
static void names_are_of_a_life_of_a_segment(void **state)
{
	static struct disk_index index;
	struct page_key key = key_of(1), other = key_of(2);
	struct disk_index_found found, again;

	assert_int_equal(disk_index_open(&index, SEGMENTS), 0);
	disk_index_epoch(&index, 3, 0xfedcba9876543210);
	page_add(&index, 3, 40, &key, 5000, 1);
	page_add(&index, 3, 43, &other, 5000, 1);
	assert_true(disk_index_find(&index, &key, &found));
	assert_int_equal(found.place, place_make(PLACE_DISK, 0x6543210));
	assert_int_equal(found.generation, 3u << 16 | 40);
	assert_true(disk_index_find(&index, &other, &again));
	assert_int_not_equal(again.generation, found.generation);
	disk_index_empty(&index, 3);
	disk_index_epoch(&index, 3, 0x1111);
	page_add(&index, 3, 40, &key, 5000, 1);
	assert_true(disk_index_find(&index, &key, &again));
	assert_int_not_equal(again.place, found.place);
	disk_index_close(&index);
}

static void the_walks_of_all_slots_visit_every_page_once(void **state)
{
	static struct disk_index index;
	static unsigned seen[KEYS];
	struct disk_page page[7];
	uint64_t cursor = 0;
	uint32_t slot = 0;

	assert_int_equal(disk_index_open(&index, SEGMENTS), 0);
	for (uint32_t i = 0; i < KEYS; i++) {
		struct page_key key = key_of(i);

		page_add(&index, i % (SEGMENTS - 1) + 1, i, &key, i + 1, 0);
	}
	for (uint32_t i = 0; i < KEYS; i += 3) {
		struct page_key key = key_of(i);
		struct disk_index_found found;

		assert_true(disk_index_find(&index, &key, &found));
		disk_index_remove(&index, &found);
	}
	do {
		unsigned n = disk_index_slot(&index, slot, &cursor, 7, page);

		assert_true(n <= 7);
		slot += cursor == 0;
		for (unsigned k = 0; k < n; k++) {
			uint32_t number = page[k].length - 1;
			struct page_key key = key_of(number);
			struct disk_index_found found;

			assert_true(page_key_equal(&page[k].key, &key));
			assert_int_equal(map_slot_of(&key), slot - (cursor == 0));
			assert_true(disk_index_find(&index, &key, &found));
			assert_int_equal(page[k].place, found.place);
			assert_int_equal(page[k].generation, found.generation);
			seen[number]++;
		}
	} while (slot < MAP_SLOTS);
	for (uint32_t i = 0; i < KEYS; i++)
		assert_int_equal(seen[i], i % 3 != 0);
	disk_index_close(&index);
}

#define SLOTTED 2000u     /* pages of three slots, of which a third stays */
#define FILLER 0x1000000u /* number of the first page of other slots */
/* pages with which the table has as many buckets as there are slots, less a few */
#define FULL (3 * MAP_SLOTS - 1000)

static struct page_key slotted_key(uint32_t number)
{
	struct page_key key = key_of(number);

	key.word[1] = (uint64_t)(number % 3 * 0x7fff) << 48 | key.word[1] >> 16;
	return key;
}

/* Segments 1 to 3 have the pages that stay, 4 to 7 the others, 8 and more those of other slots. */
static void slotted_change(struct disk_index *index, uint32_t number, bool add)
{
	struct page_key key = slotted_key(number);
	struct disk_index_found found;
	bool has = disk_index_find(index, &key, &found);

	if (has && !add)
		disk_index_remove(index, &found);
	else if (!has && add)
		page_add(index, number % 9 < 3 ? 1 + number % 3 : 4 + number % 4, number, &key,
			number + 1, 0);
}

/* What may happen between two calls of a walk. */
static void slotted_churn(struct disk_index *index, uint32_t *filler)
{
	for (unsigned i = 0; i < 40; i++) {
		uint32_t number = (uint32_t)random() % SLOTTED;
		struct page_key key = key_of(*filler);

		if (number % 9 >= 3)
			slotted_change(index, number, random() % 2);
		page_add(index, 8 + *filler % 8, 0, &key, SLOTTED + 1, 0);
		++*filler;
	}
	if (random() % 8 == 0)
		disk_index_empty(index, 4 + (uint32_t)random() % 4);
}

static void a_page_that_stays_is_seen_whatever_comes_and_goes(void **state)
{
	static struct disk_index index;
	struct disk_page page[31];

	seed();
	for (unsigned round = 0; round < 30; round++) {
		uint32_t slot = round % 3 * 0x7fff, filler = FILLER;
		bool seen[SLOTTED] = {false};
		uint64_t cursor = 0;
		unsigned calls = 0;

		assert_int_equal(disk_index_open(&index, SEGMENTS), 0);
		for (uint32_t i = 0; i < SLOTTED; i++)
			slotted_change(&index, i, true);
		/* In half of the rounds, the pages of the slot move to a second bucket. */
		for (; round % 2 && filler < FILLER + FULL; filler++) {
			struct page_key key = key_of(filler);

			page_add(&index, 8 + filler % 8, 0, &key, SLOTTED + 1, 0);
		}
		do {
			unsigned max = 1 + (unsigned)random() % 31;
			unsigned n = disk_index_slot(&index, slot, &cursor, max, page);

			assert_true(n <= max);
			while (n--) {
				assert_int_equal(map_slot_of(&page[n].key), slot);
				if (page[n].length <= SLOTTED)
					seen[page[n].length - 1] = true;
			}
			slotted_churn(&index, &filler);
			/* it comes to an end, while pages go on coming and going */
			assert_true(calls++ < SLOTTED);
		} while (cursor);
		for (uint32_t i = round % 3; i < SLOTTED; i += 9)
			assert_true(seen[i]);
		disk_index_close(&index);
	}
}

static bool has_lost(struct disk_index *index)
{
	uint32_t pages;
	bool lost;

	(void)disk_index_bytes(index, &pages, &lost);
	return lost;
}

static void pages_that_left_are_told_once_in_order(void **state)
{
	static struct disk_index index;
	struct disk_page page[400];
	struct disk_index_found found;
	struct page_key key = key_of(0);
	unsigned n;

	assert_int_equal(disk_index_open(&index, SEGMENTS), 0);
	for (uint32_t i = 0; i < KEYS; i++) {
		key = key_of(i);
		page_add(&index, 1 + i / 2000, i % 2000, &key, 4096, 0);
	}
	/* before disk_index_keep_lost(), nothing is recorded */
	assert_true(disk_index_find(&index, &key, &found));
	disk_index_remove(&index, &found);
	assert_false(has_lost(&index));
	disk_index_keep_lost(&index);
	key = key_of(2500);
	assert_true(disk_index_find(&index, &key, &found));
	disk_index_remove(&index, &found);
	disk_index_empty(&index, 1);
	assert_true(has_lost(&index));
	assert_int_equal(disk_index_lost(&index, 1, page), 1);
	assert_true(page_key_equal(&page[0].key, &key));
	assert_int_equal(page[0].place, found.place);
	assert_int_equal(page[0].generation, found.generation);
	for (uint32_t i = 0; i < 2000; i += n) {
		n = disk_index_lost(&index, 400, page);
		assert_int_equal(n, 400);
		for (unsigned k = 0; k < n; k++) {
			key = key_of(i + k);
			assert_true(page_key_equal(&page[k].key, &key));
			assert_int_equal(page[k].generation, 1u << 16 | (i + k));
		}
	}
	assert_false(has_lost(&index));
	assert_int_equal(disk_index_lost(&index, 400, page), 0);
	assert_int_equal(index.lost_unknown, 0);
	disk_index_close(&index);
}

static void a_page_takes_at_most_32_bytes(void **state)
{
	static struct disk_index index;
	uint32_t pages, segments = 1000000 / 2046 + 1;
	uint64_t bytes;
	bool lost;

	assert_int_equal(disk_index_open(&index, segments), 0);
	for (uint32_t i = 0; i < 1000000; i++) {
		struct page_key key = key_of(i + 1);

		assert_int_not_equal(
			page_add(&index, i / 2046, i % 65536, &key, 131072, i), INDEX_NONE);
		if (i % 2046 == 2045)
			disk_index_trim(&index, i / 2046);
	}
	bytes = disk_index_bytes(&index, &pages, &lost);
	printf("%u pages, %.2f bytes a page\n", pages, (double)bytes / pages);
	assert_int_equal(pages, 1000000);
	assert_true(bytes <= 32 * (uint64_t)pages);
	disk_index_close(&index);
}

/* They wait in order; those that find no room are counted, and their pages are gone as well. */
static void tombstones_of_forgotten_pages_wait_as_far_as_there_is_room(void **state)
{
	static struct disk_index index;
	struct disk_entry tombstone[2];
	struct page_key key = key_of(0);
	unsigned taken = 0, n;

	assert_int_equal(disk_index_open(&index, SEGMENTS), 0);
	assert_false(disk_index_forget(&index, &key));
	for (uint32_t i = 0; i < INDEX_FORGOTTEN_MAX + 3; i++) {
		struct disk_index_found found;

		key = key_of(i);
		page_add(&index, 1, i, &key, 100, 0);
		assert_true(disk_index_forget(&index, &key));
		assert_false(disk_index_find(&index, &key, &found));
	}
	assert_int_equal(index.forgotten_dropped, 3);
	for (; (n = disk_index_forgotten(&index, 2, tombstone)); taken += n)
		for (unsigned i = 0; i < n; i++) {
			key = key_of(taken + i);
			assert_memory_equal(&tombstone[i].key, &key, sizeof(key));
			assert_int_equal(tombstone[i].sequence, taken + i);
			assert_int_equal(tombstone[i].length, 0);
		}
	assert_int_equal(taken, INDEX_FORGOTTEN_MAX);
	disk_index_close(&index);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_changes_equal_a_model),
		cmocka_unit_test(tombstones_of_forgotten_pages_wait_as_far_as_there_is_room),
		cmocka_unit_test(names_are_of_a_life_of_a_segment),
		cmocka_unit_test(the_walks_of_all_slots_visit_every_page_once),
		cmocka_unit_test(a_page_that_stays_is_seen_whatever_comes_and_goes),
		cmocka_unit_test(pages_that_left_are_told_once_in_order),
		cmocka_unit_test(a_page_takes_at_most_32_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
