/* SPDX-License-Identifier: Apache-2.0 */
/* pc_get() and pc_exists(): the look-up of pages, the cache of locations, and the destinations. */
#include "tests/unit/client/rig_clock.h"

#include <time.h>
#include <unistd.h>

static unsigned char *memory(size_t bytes)
{
	void *at = NULL;

	assert_int_equal(pc_memory_alloc(pc, bytes, &at), 0);
	return at;
}

static void a_page_of_another_node_lands_in_registered_memory(void **state)
{
	unsigned char *at = memory(1 << 20);

	fake_page(&fake, "key-1", FAKE_A, 1, PAGE_BYTES);
	assert_int_equal(get_one("key-1", at + 100, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_true(same("key-1", at + 100, 0, PAGE_BYTES));
	assert_int_equal(counts().hits_remote, 1);
	assert_int_equal(counts().bytes_staged, 0);
	assert_int_equal(SEEN(pages[1]), 1);
}

static void a_page_lands_in_ordinary_memory_through_staging(void **state)
{
	unsigned char *at = malloc(PAGE_BYTES);

	fake_page(&fake, "key-1", FAKE_A, 0, PAGE_BYTES);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_true(same("key-1", at, 0, PAGE_BYTES));
	assert_int_equal(counts().bytes_staged, PAGE_BYTES);
	free(at);
}

static void a_page_larger_than_staging_lands_in_ordinary_memory_too(void **state)
{
	uint32_t bytes = 12u << 20;
	unsigned char *at = malloc(bytes);

	fake_page(&fake, "key-1", FAKE_A, 0, bytes);
	for (unsigned turn = 0; turn < 2; turn++) {
		memset(at, 0, bytes);
		assert_int_equal(get_one("key-1", at, bytes, PATIENCE_MS), PC_HIT);
		assert_true(same("key-1", at, 0, bytes));
	}
	free(at);
}

static void a_page_is_scattered_to_many_segments(void **state)
{
	struct pc_segment segment[SEGMENTS_MAX];
	struct pc_page page = {.key = "key-1", .key_bytes = 5, .segments = segment};
	unsigned char *at = memory(8 << 20);
	enum pc_result result;

	for (unsigned n = 1; n <= SEGMENTS_MAX; n = n == 5 ? SEGMENTS_MAX : n + 1) {
		char name[32];

		sprintf(name, "key-%u", n);
		fake_page(&fake, name, FAKE_B, n % 2, 40 * n);
		for (unsigned s = 0; s < n; s++)
			segment[s] = (struct pc_segment){at + s * 4096, 40};
		page.key = name;
		page.key_bytes = strlen(name);
		page.segment_count = n;
		assert_int_equal(pc_get(ch, &page, 1, PATIENCE_MS, &result), 0);
		assert_int_equal(result, PC_HIT);
		for (unsigned s = 0; s < n; s++)
			assert_true(same(name, segment[s].base, s * 40, 40));
	}
	assert_int_equal(SEEN(segments_max), SEGMENTS_MAX);
}

static void a_page_partly_in_registered_memory_is_staged(void **state)
{
	unsigned char *at = memory(1 << 20), plain[100];
	struct pc_segment segment[2] = {{at, 100}, {plain, 100}};
	struct pc_page page = {
		.key = "key-1", .key_bytes = 5, .segments = segment, .segment_count = 2};
	enum pc_result result;

	fake_page(&fake, "key-1", FAKE_A, 0, 200);
	assert_int_equal(pc_get(ch, &page, 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_HIT);
	assert_true(same("key-1", at, 0, 100) && same("key-1", plain, 100, 100));
	assert_int_equal(counts().bytes_staged, 200);
}

static void a_key_that_no_node_has_is_a_miss(void **state)
{
	unsigned char at[64];

	for (unsigned n = 0; n < 20; n++) {
		char name[32];

		sprintf(name, "absent-%u", n);
		assert_int_equal(get_one(name, at, sizeof(at), PATIENCE_MS), PC_MISS);
		assert_int_equal(exists_one(name, PATIENCE_MS), PC_MISS);
	}
	assert_int_equal(counts().misses, 40);
}

static void a_page_of_this_host_is_copied_without_a_rail(void **state)
{
	unsigned char *at = malloc(PAGE_BYTES);
	unsigned n = 0;
	char name[64];

	fake_name_owned(&fake, "here", FAKE_SELF, &n, name);
	fake_page(&fake, name, FAKE_SELF, 1, PAGE_BYTES);
	assert_int_equal(get_one(name, at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_true(same(name, at, 0, PAGE_BYTES));
	assert_int_equal(counts().hits_local, 1);
	assert_int_equal(SEEN(reads), 0); /* the owner is this host, so its shard is read locally */
	free(at);
}

/* Fills the key's first bucket in the shard of `node` with entries of other keys. */
static void crowd(const struct page_key *key, uint32_t node)
{
	struct bucket *b = &fake.node[node].shard[dir_bucket_first(key, FAKE_BITS)];

	for (unsigned k = 0; k < BUCKET_ENTRIES; k++)
		b->entry[k] = (struct dir_entry){
			.tag = dir_tag(key) + 1 + k, .ref = FAKE_REF(FAKE_B), .generation = 7};
}

static void the_second_bucket_is_read_when_the_first_is_full(void **state)
{
	unsigned char at[64];

	for (uint32_t node = 0; node < FAKE_NODES; node++) {
		char name[64];
		unsigned n = 0;
		struct page_key key;

		fake_name_owned(&fake, "over", node, &n, name);
		key = fake_key(name);
		for (uint32_t k = 0; k < FAKE_NODES; k++)
			crowd(&key, k);
		fake_page(&fake, name, FAKE_A, 0, sizeof(at));
		assert_int_equal(exists_one(name, PATIENCE_MS), PC_HIT);
		assert_int_equal(get_one(name, at, sizeof(at), PATIENCE_MS), PC_HIT);
	}
}

static void the_second_bucket_is_not_read_when_the_first_has_room(void **state)
{
	unsigned n = 0;
	char name[64];

	do /* choose a key that this host does not own: its look-up needs a READ */
		fake_name_owned(&fake, "plain", FAKE_A, &n, name);
	while (exists_one(name, PATIENCE_MS) != PC_MISS || SEEN(reads) == 0);
	LET(reads, 0);
	assert_int_equal(exists_one(name, PATIENCE_MS), PC_MISS);
	assert_int_equal(SEEN(reads), 1);
}

static void a_known_location_needs_no_second_lookup(void **state)
{
	unsigned char at[64];

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_HIT);
	assert_int_equal(counts().lookups, 1);
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_HIT);
	assert_int_equal(counts().lookups, 1);
	assert_int_equal(counts().lookups_cached, 2);
}

static void exists_looks_up_again_after_one_second(void **state)
{
	unsigned char at[64];

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_HIT);
	rig_pass_ms(1050);
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_HIT);
	assert_int_equal(counts().lookups, 2);
	rig_pass_ms(1050);
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
	assert_int_equal(counts().lookups, 2);
}

static void a_key_named_twice_in_a_batch_is_read_twice(void **state)
{
	unsigned char *at = memory(1 << 20);
	struct one o[2];
	enum pc_result result[2];

	fake_page(&fake, "key-1", FAKE_A, 0, 1000);
	one_page(&o[0], "key-1", at, 1000);
	one_page(&o[1], "key-1", at + 2000, 1000);
	assert_int_equal(
		pc_get(ch, (struct pc_page[]){o[0].page, o[1].page}, 2, PATIENCE_MS, result), 0);
	assert_int_equal(result[0], PC_HIT);
	assert_int_equal(result[1], PC_HIT);
	assert_true(same("key-1", at, 0, 1000) && same("key-1", at + 2000, 0, 1000));
}

static void a_page_that_is_read_is_touched_once_a_second(void **state)
{
	unsigned char at[64];

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	for (unsigned n = 0; n < 5; n++)
		assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
	assert_int_equal(exists_one("other", PATIENCE_MS), PC_MISS);
	SEEN_SOON(touches);
	assert_int_equal(SEEN(touches), 1);
}

static void a_head_that_is_looked_up_is_touched_twenty_times_a_second(void **state)
{
	const unsigned touches[] = {1, 2, 2, 3}; /* after each look-up */

	fake_page(&fake, "key-1", FAKE_A, 0, 64);
	for (unsigned n = 0; n < 4; n++) {
		pc_channel_head(ch, n != 2);
		assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_HIT);
		assert_int_equal(exists_one("other", PATIENCE_MS), PC_MISS);
		for (unsigned ms = 0; SEEN(touches) < touches[n] && ms < PATIENCE_MS; ms++)
			usleep(1000);
		assert_int_equal(SEEN(touches), touches[n]);
		rig_pass_ms(60);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(a_page_of_another_node_lands_in_registered_memory),
		RIG_TEST(a_page_lands_in_ordinary_memory_through_staging),
		RIG_TEST(a_page_larger_than_staging_lands_in_ordinary_memory_too),
		RIG_TEST(a_page_is_scattered_to_many_segments),
		RIG_TEST(a_page_partly_in_registered_memory_is_staged),
		RIG_TEST(a_key_that_no_node_has_is_a_miss),
		RIG_TEST(a_page_of_this_host_is_copied_without_a_rail),
		RIG_TEST(the_second_bucket_is_read_when_the_first_is_full),
		RIG_TEST(the_second_bucket_is_not_read_when_the_first_has_room),
		RIG_TEST(a_known_location_needs_no_second_lookup),
		RIG_TEST(exists_looks_up_again_after_one_second),
		RIG_TEST(a_key_named_twice_in_a_batch_is_read_twice),
		RIG_TEST(a_page_that_is_read_is_touched_once_a_second),
		RIG_TEST(a_head_that_is_looked_up_is_touched_twenty_times_a_second),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
