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

static void random_changes_equal_a_model(void **state)
{
	static struct disk_index index;
	static uint32_t segment_of[KEYS], length_of[KEYS];
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL);
	uint32_t live = 0;

	(void)state;
	printf("SEED=%u\n", seed);
	srandom(seed);
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
			assert_int_not_equal(disk_index_add(&index, segment, number % 65536, &key,
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

	(void)state;
	assert_int_equal(disk_index_open(&index, SEGMENTS), 0);
	disk_index_epoch(&index, 3, 0xfedcba9876543210);
	disk_index_add(&index, 3, 40, &key, 5000, 1);
	disk_index_add(&index, 3, 43, &other, 5000, 1);
	assert_true(disk_index_find(&index, &key, &found));
	assert_int_equal(found.place, place_make(PLACE_DISK, 0x6543210));
	assert_int_equal(found.generation, 3u << 16 | 40);
	assert_true(disk_index_find(&index, &other, &again));
	assert_int_not_equal(again.generation, found.generation);
	disk_index_empty(&index, 3);
	disk_index_epoch(&index, 3, 0x1111);
	disk_index_add(&index, 3, 40, &key, 5000, 1);
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

	(void)state;
	assert_int_equal(disk_index_open(&index, SEGMENTS), 0);
	for (uint32_t i = 0; i < KEYS; i++) {
		struct page_key key = key_of(i);

		disk_index_add(&index, i % (SEGMENTS - 1) + 1, i, &key, i + 1, 0);
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

static void pages_that_left_are_told_once_in_order(void **state)
{
	static struct disk_index index;
	struct disk_page page[400];
	struct disk_index_found found;
	struct page_key key = key_of(0);
	unsigned n;

	(void)state;
	assert_int_equal(disk_index_open(&index, SEGMENTS), 0);
	for (uint32_t i = 0; i < KEYS; i++) {
		key = key_of(i);
		disk_index_add(&index, 1 + i / 2000, i % 2000, &key, 4096, 0);
	}
	/* before disk_index_keep_lost(), nothing is recorded */
	assert_true(disk_index_find(&index, &key, &found));
	disk_index_remove(&index, &found);
	assert_false(disk_index_has_lost(&index));
	disk_index_keep_lost(&index);
	key = key_of(2500);
	assert_true(disk_index_find(&index, &key, &found));
	disk_index_remove(&index, &found);
	disk_index_empty(&index, 1);
	assert_true(disk_index_has_lost(&index));
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
	assert_false(disk_index_has_lost(&index));
	assert_int_equal(disk_index_lost(&index, 400, page), 0);
	assert_int_equal(index.lost_unknown, 0);
	disk_index_close(&index);
}

static void a_page_takes_at_most_32_bytes(void **state)
{
	static struct disk_index index;
	uint32_t pages, segments = 1000000 / 2046 + 1;
	uint64_t bytes;

	(void)state;
	assert_int_equal(disk_index_open(&index, segments), 0);
	for (uint32_t i = 0; i < 1000000; i++) {
		struct page_key key = key_of(i + 1);

		assert_int_not_equal(
			disk_index_add(&index, i / 2046, i % 65536, &key, 131072, i), INDEX_NONE);
		if (i % 2046 == 2045)
			disk_index_trim(&index, i / 2046);
	}
	bytes = disk_index_bytes(&index, &pages);
	printf("%u pages, %.2f bytes a page\n", pages, (double)bytes / pages);
	assert_int_equal(pages, 1000000);
	assert_true(bytes <= 32 * (uint64_t)pages);
	disk_index_close(&index);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_changes_equal_a_model),
		cmocka_unit_test(names_are_of_a_life_of_a_segment),
		cmocka_unit_test(the_walks_of_all_slots_visit_every_page_once),
		cmocka_unit_test(pages_that_left_are_told_once_in_order),
		cmocka_unit_test(a_page_takes_at_most_32_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
