/* SPDX-License-Identifier: Apache-2.0 */
/* Directory buckets (engine/abi/bucket.h): the two buckets of a key, tags, tombstones, copies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/abi/bucket.h"
#include "engine/abi/map.h"

static struct page_key key_of(uint64_t i)
{
	return (struct page_key){{map_mix(2 * i + 1), map_mix(2 * i + 2)}};
}

static void the_other_bucket_differs_and_the_mapping_is_its_own_inverse(void **state)
{
	for (uint32_t bits = 1; bits <= 31; bits++)
		for (uint64_t i = 0; i < 20000; i++) {
			struct page_key key = key_of(i);
			uint32_t tag = dir_tag(&key), first = dir_bucket_first(&key, bits);
			uint32_t other = dir_bucket_other(first, tag, bits);

			if (first >= 1u << bits || other >= 1u << bits || other == first ||
				dir_bucket_other(other, tag, bits) != first)
				fail_msg("bits %u key %lu: %u and %u", bits, (unsigned long)i,
					first, other);
		}
}

static void a_shard_with_one_bucket_has_it_as_first_and_other(void **state)
{
	struct page_key key = key_of(1);

	assert_int_equal(dir_bucket_first(&key, 0), 0);
	assert_int_equal(dir_bucket_other(0, dir_tag(&key), 0), 0);
}

static void a_tag_is_never_zero(void **state)
{
	struct page_key zero = {{5, 0}}, high = {{5, 0xffffffff00000000ull}};

	assert_int_not_equal(dir_tag(&zero), 0);
	assert_int_not_equal(dir_tag(&high), 0);
}

static void keys_spread_over_the_buckets(void **state)
{
	static uint32_t count[1024];
	uint32_t most = 0;

	for (uint64_t i = 0; i < 64 * 1024; i++) {
		struct page_key key = key_of(i);
		uint32_t first = dir_bucket_first(&key, 10);

		count[first]++;
		count[dir_bucket_other(first, dir_tag(&key), 10)]++;
	}
	for (unsigned i = 0; i < 1024; i++)
		most = count[i] > most ? count[i] : most;
	assert_true(most < 200); /* the average number of keys per bucket is 128 */
}

static void a_tombstone_is_not_empty(void **state)
{
	struct bucket b = {0};

	assert_true(bucket_has_empty(&b));
	for (unsigned i = 0; i < BUCKET_ENTRIES; i++)
		b.entry[i] = (struct dir_entry){.tag = 0, .generation = 1};
	assert_false(bucket_has_empty(&b));
	assert_false(dir_entry_empty(&b.entry[0]));
	b.entry[3] = (struct dir_entry){.tag = 9, .generation = 0};
	assert_false(bucket_has_empty(&b));
	b.entry[3] = (struct dir_entry){0};
	assert_true(bucket_has_empty(&b));
}

static void a_copy_has_every_entry(void **state)
{
	struct bucket b, copy;

	for (uint32_t i = 0; i < BUCKET_ENTRIES; i++)
		b.entry[i] = (struct dir_entry){4 * i + 1, 4 * i + 2, 4 * i + 3, 4 * i + 4};
	copy = bucket_load(&b);
	assert_memory_equal(&copy, &b, sizeof(b));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_other_bucket_differs_and_the_mapping_is_its_own_inverse),
		cmocka_unit_test(a_shard_with_one_bucket_has_it_as_first_and_other),
		cmocka_unit_test(a_tag_is_never_zero),
		cmocka_unit_test(keys_spread_over_the_buckets),
		cmocka_unit_test(a_tombstone_is_not_empty),
		cmocka_unit_test(a_copy_has_every_entry),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
