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
		bool has = disk_index_find(&index, &key, &found);

		assert_int_equal(has, segment_of[number] != UINT32_MAX);
		if (has) {
			assert_int_equal(found.segment, segment_of[number]);
			assert_int_equal(found.length, length_of[number]);
			assert_int_equal(found.crc, ~number);
			assert_int_equal(found.unit, number % 65536);
			assert_true(disk_index_still(&index, &found));
		}
		if (round % 500 == 0) {
			disk_index_empty(&index, segment);
			for (uint32_t i = 0; i < KEYS; i++)
				if (segment_of[i] == segment) {
					segment_of[i] = UINT32_MAX;
					live--;
				}
			if (has && found.segment == segment)
				assert_false(disk_index_still(&index, &found));
		} else if (has && random() % 2) {
			disk_index_remove(&index, &found);
			assert_false(disk_index_still(&index, &found));
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
		cmocka_unit_test(a_page_takes_at_most_32_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
