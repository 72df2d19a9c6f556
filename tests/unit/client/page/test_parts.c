/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the library that need no engine: key hashing, the cache of locations, limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "engine/client/page/cache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/page/key.h"
#include "engine/client/peercache.h"
#include "engine/client/rings/rings.h"

static struct page_key hash(const char *name_space, const void *key, size_t bytes)
{
	struct key_space digest;
	struct page_key out;
	struct key_text text;

	assert_int_equal(key_name_space(NULL, name_space, &digest), 0);
	key_text_init(&text, &digest, &(struct epoch){0, 0});
	key_hash(&text, key, bytes, &out);
	return out;
}

/* Nodes of all versions must compute the same hashes, so these numbers never change. */
static void keys_always_hash_to_the_same_numbers(void **state)
{
	static const struct {
		const char *name_space, *key;
		uint64_t word[2];
	} vector[] = {
		{"", "a", {0x0b00c3991ae4c130, 0xc2a306d334e54379}},
		{"llama-70b/bf16", "a", {0x320048fc33c0e6ea, 0x210357f8eecfb2c9}},
		{"llama-70b/bf16", "0af3c2", {0x4a0048d39591a8e1, 0xa91957f8e0e6b759}},
		{"llama-70b/bf16",
			"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
			{0x1e0048afb6371f12, 0x1f9257f895cbc015}},
		{"llama-70b||rank 0", "a", {0x7a00673e4c4318b4, 0x4695bb10e358609b}},
		{"llama-70b", "a", {0x880067c75287e1f6, 0x7cefbb106ef56441}},
	};

	for (unsigned k = 0; k < sizeof(vector) / sizeof(vector[0]); k++) {
		struct page_key key =
			hash(vector[k].name_space, vector[k].key, strlen(vector[k].key));

		assert_true(key.word[0] == vector[k].word[0]);
		assert_true(key.word[1] == vector[k].word[1]);
	}
}

static void keys_of_a_group_and_only_these_have_its_bits(void **state)
{
	struct page_key group = hash("a", "x", 1), rank = hash("a||0", "y", 1);
	struct page_key other = hash("a|0", "x", 1), empty = hash("||a", "x", 1);

	assert_true(page_key_grouped(&rank, &group));
	assert_false(page_key_equal(&rank, &group));
	assert_false(page_key_grouped(&other, &group));
	assert_false(page_key_grouped(&empty, &group));
	rank = hash("a", "x", 1);
	rank.word[0] ^= 1ull << 40;
	assert_false(page_key_grouped(&rank, &group));
	rank.word[0] ^= 1ull << 40 | 1ull << 39 | 1ull << 56;
	rank.word[1] ^= 1ull << 31 | 1ull << 48;
	assert_true(page_key_grouped(&rank, &group));
	rank.word[1] ^= 1ull << 47;
	assert_false(page_key_grouped(&rank, &group));
}

static void namespace_and_key_are_hashed_separately(void **state)
{
	struct page_key a = hash("ab", "c", 1), b = hash("a", "bc", 2), c = hash("", "abc", 3);

	assert_false(page_key_equal(&a, &b));
	assert_false(page_key_equal(&a, &c));
	assert_false(page_key_equal(&b, &c));
}

static void keys_of_every_length_differ(void **state)
{
	static unsigned char zeros[KEY_BYTES_MAX];
	static struct page_key seen[KEY_BYTES_MAX + 1];

	for (size_t n = 1; n <= KEY_BYTES_MAX; n++) {
		seen[n] = hash("", zeros, n);
		for (size_t m = 1; m < n; m++)
			assert_false(page_key_equal(&seen[n], &seen[m]));
	}
}

/* One text serves all keys of a namespace; nothing of a longer key reaches the next hash. */
static void a_key_hashes_alike_after_any_other_key(void **state)
{
	static unsigned char bytes[KEY_BYTES_MAX];
	struct key_space digest;
	struct page_key out, alone;
	struct key_text text;
	const char *given = getenv("SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);

	print_message("seed %lu\n", seed);
	assert_int_equal(key_name_space(NULL, "llama-70b/bf16", &digest), 0);
	key_text_init(&text, &digest, &(struct epoch){0, 0});
	for (unsigned k = 0; k < 3000; k++) {
		size_t count = map_mix(seed + k) % KEY_BYTES_MAX + 1;

		for (size_t n = 0; n < count; n++)
			bytes[n] = (unsigned char)map_mix(seed + k + n);
		key_hash(&text, bytes, k % 4 ? count : 64, &out);
		alone = hash("llama-70b/bf16", bytes, k % 4 ? count : 64);
		assert_true(page_key_equal(&out, &alone));
	}
}

static struct pc_channel *cache_only(void)
{
	struct pc_channel *ch = calloc(1, sizeof(*ch));

	ch->cache = aligned_alloc(64, CACHE_SETS * sizeof(*ch->cache));
	memset(ch->cache, 0, CACHE_SETS * sizeof(*ch->cache));
	return ch;
}

static void the_cache_finds_only_the_key_that_was_put(void **state)
{
	struct pc_channel *ch = cache_only();
	struct page_key a = {{5, 0}}, same_set = {{5 + CACHE_SETS, 0}};
	struct location at = {.ref = 9, .place = 8, .generation = 7};
	uint32_t number;

	assert_null(cache_find(ch, &a));
	cache_put(ch, &a, &at, 1);
	assert_int_equal(cache_find(ch, &a)->at.place, 8);
	assert_null(cache_find(ch, &same_set));
	cache_drop(ch, &same_set);
	assert_non_null(cache_find(ch, &a));
	at.place = 6;
	cache_put(ch, &same_set, &at, 1);
	assert_int_equal(cache_find(ch, &a)->at.place, 8);
	assert_int_equal(cache_find(ch, &same_set)->at.place, 6);
	number = cache_number(&same_set, cache_way(cache_set(ch, &same_set), &same_set));
	assert_ptr_equal(cache_numbered(ch, number, &same_set), cache_find(ch, &same_set));
	assert_null(cache_numbered(ch, number, &a));
	cache_drop(ch, &same_set);
	assert_null(cache_find(ch, &same_set));
	assert_null(cache_numbered(ch, number, &same_set));
	assert_non_null(cache_find(ch, &a));
	free(ch->cache);
	free(ch);
}

/* Keys of one set with one tag differ only in bits that neither the set nor the tag has. */
static void the_oldest_location_of_a_full_set_is_replaced(void **state)
{
	struct pc_channel *ch = cache_only();
	struct location at = {.ref = 9};

	for (uint32_t k = 0; k < CACHE_WAYS; k++) {
		at.place = k;
		/* the key that is put first is confirmed last */
		cache_put(ch, &(struct page_key){{(uint64_t)CACHE_SETS * k, 0}}, &at,
			k ? k : CACHE_WAYS);
	}
	for (uint32_t k = 0; k < CACHE_WAYS; k++)
		assert_int_equal(
			cache_find(ch, &(struct page_key){{(uint64_t)CACHE_SETS * k, 0}})->at.place,
			k);
	cache_put(ch, &(struct page_key){{CACHE_SETS * 99ull, 0}}, &at, 99);
	for (uint32_t k = 0; k < CACHE_WAYS; k++)
		assert_int_equal(
			!cache_find(ch, &(struct page_key){{(uint64_t)CACHE_SETS * k, 0}}), k == 1);
	free(ch->cache);
	free(ch);
}

/* Times near each other, alike, and up to the largest distance. */
static void the_victim_of_a_full_set_is_the_first_of_its_oldest(void **state)
{
	static const uint32_t masks[] = {1, 7, 0xffff, UINT32_MAX};
	static struct cache_set set;
	uint64_t random = 1;

	memset(set.tag, 0xff, sizeof(set.tag));
	for (unsigned n = 0; n < 4000; n++) {
		uint32_t now_ms = (uint32_t)map_mix(random++), oldest = 0;

		for (uint32_t way = 0; way < CACHE_WAYS; way++) {
			set.seen_ms[way] = now_ms - ((uint32_t)map_mix(random++) & masks[n % 4]);
			if (now_ms - set.seen_ms[way] > now_ms - set.seen_ms[oldest])
				oldest = way;
		}
		assert_int_equal(cache_victim(&set, now_ms), oldest);
	}
}

static void the_cache_remembers_as_many_locations_as_it_is_made_for(void **state)
{
	struct pc_channel *ch = cache_only();
	const uint32_t count = 65536; /* not a constant of the cache: a smaller one must fail */
	const char *given = getenv("SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
	struct page_key *key = malloc(count * sizeof(*key));
	uint32_t found = 0;

	print_message("seed %lu\n", seed);
	for (uint32_t i = 0; i < count; i++) {
		char text[65];

		snprintf(text, sizeof(text), "%032lx%032x", seed, i);
		key[i] = hash("tests", text, 64);
		cache_put(ch, &key[i], &(struct location){.ref = 1, .place = i}, i / 1000);
	}
	for (uint32_t i = 0; i < count; i++) {
		const struct cache_entry *e = cache_find(ch, &key[i]);

		assert_true(!e || e->at.place == i);
		found += e != NULL;
	}
	print_message("found %.2f%% of %u\n", 100.0 * found / count, count);
	assert_true(found >= count / 100 * 98);
	free(key);
	free(ch->cache);
	free(ch);
}

/* Makes a channel with `rails` rails and empty op rings, without a session. */
static struct pc_channel *rails_new(uint32_t rails)
{
	struct pc_channel *ch = calloc(1, sizeof(*ch));

	ch->rails = rails;
	for (uint32_t r = 0; r < rails; r++)
		ring_producer_init(&ch->rail[r].ops,
			aligned_alloc(64, ring_bytes(OP_RING_SLOTS, sizeof(struct run_line))),
			OP_RING_SLOTS, sizeof(struct run_line));
	for (uint32_t r = 0; r < rails; r++)
		memset(ch->rail[r].ops.shared, 0, sizeof(struct ring_shared));
	return ch;
}

static void rails_delete(struct pc_channel *ch)
{
	for (uint32_t r = 0; r < ch->rails; r++)
		free(ch->rail[r].ops.shared);
	free(ch);
}

static void control_requests_are_limited_by_the_room_for_their_answers(void **state)
{
	struct pc_channel *ch = rails_new(1);
	void *ring = aligned_alloc(64, ring_bytes(CTL_RING_SLOTS, sizeof(struct ctl_op)));

	memset(ring, 0, sizeof(struct ring_shared));
	ring_producer_init(&ch->ctl, ring, CTL_RING_SLOTS, sizeof(struct ctl_op));
	assert_true(submit_ctl_room(ch, CTL_DONE_SLOTS, 0));
	ch->ctl_awaited = CTL_DONE_SLOTS - 1;
	assert_true(submit_ctl_room(ch, 1, 0));
	assert_false(submit_ctl_room(ch, 2, 0));
	ch->ctl_unpublished = CTL_RING_SLOTS / 2;
	assert_true(submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2 - 1));
	assert_false(submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2));
	free(ring);
	rails_delete(ch);
}

/* Of every length; and a key of the usual length hashes alike by both functions. */
static void keys_differ_by_the_secret(const struct key_space *with, const struct key_space *without)
{
	static unsigned char key[KEY_BYTES_MAX];
	struct key_text text[2];

	key_text_init(&text[0], with, &(struct epoch){0, 0});
	key_text_init(&text[1], without, &(struct epoch){0, 0});
	for (size_t bytes = 1; bytes <= KEY_BYTES_MAX; bytes++) {
		struct page_key any[2], all[2];

		key[bytes - 1] = (unsigned char)map_mix(bytes);
		for (unsigned i = 0; i < 2; i++) {
			any[i] = key_hash_any(&text[i], key, bytes);
			key_hash(&text[i], key, bytes, &all[i]);
			assert_int_equal(
				(any[i].word[0] ^ all[i].word[0]) & ~(uint64_t)KEY_FIXED_0, 0);
			assert_int_equal(
				(any[i].word[1] ^ all[i].word[1]) & ~(uint64_t)KEY_FIXED_1, 0);
		}
		assert_int_not_equal(any[0].word[0], any[1].word[0]);
		assert_int_not_equal(any[0].word[1], any[1].word[1]);
	}
}

/* The numbers are those of Python's hashlib.blake2b(text, key=, digest_size=16, person=). */
static void a_namespace_with_a_secret_is_keyed_blake2b(void **state)
{
	const struct page_key digest = {{0x2a929910e4e2de30, 0x116f93e93b6d40f8}};
	const struct page_key group = {
		{0x3f8c103ee098beab & PAGE_GROUP_0, 0x7efb0f0766a2e423 & PAGE_GROUP_1}};
	struct key_space space = {0}, other = {0}, none = {0};
	const struct key_secret a = {32, "0123456789abcdef0123456789abcdef"};
	const struct key_secret b = {32, "0123456789abcdef0123456789abcdeF"};

	for (unsigned i = 0; i < 2; i++) { /* the second time from memory */
		assert_int_equal(key_name_space(&a, "llama||rank 3", &space), 0);
		assert_true(page_key_equal(&space.digest, &digest));
		assert_true(page_key_equal(&space.group, &group));
	}
	assert_int_equal(key_name_space(&b, "llama||rank 3", &other), 0);
	assert_int_equal(key_name_space(NULL, "llama||rank 3", &none), 0);
	assert_false(page_key_equal(&other.digest, &digest));
	assert_false(page_key_equal(&none.digest, &digest));
	assert_int_not_equal(memcmp(space.words, none.words, sizeof(none.words)), 0);
	assert_int_not_equal(memcmp(space.words, other.words, sizeof(none.words)), 0);
	keys_differ_by_the_secret(&space, &none);
	assert_int_equal(key_name_space(&a, "llama||rank 4", &space), 0);
	assert_false(page_key_equal(&space.digest, &digest));
	assert_true(page_key_equal(&space.group, &group));
}

static void results_have_names(void **state)
{
	assert_string_equal(pc_result_name(PC_HIT), "hit");
	assert_string_equal(pc_result_name(PC_PENDING), "pending");
	assert_string_equal(pc_result_name((enum pc_result)77), "unknown");
	assert_non_null(pc_error());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys_always_hash_to_the_same_numbers),
		cmocka_unit_test(keys_of_a_group_and_only_these_have_its_bits),
		cmocka_unit_test(namespace_and_key_are_hashed_separately),
		cmocka_unit_test(keys_of_every_length_differ),
		cmocka_unit_test(a_key_hashes_alike_after_any_other_key),
		cmocka_unit_test(the_cache_finds_only_the_key_that_was_put),
		cmocka_unit_test(the_oldest_location_of_a_full_set_is_replaced),
		cmocka_unit_test(the_victim_of_a_full_set_is_the_first_of_its_oldest),
		cmocka_unit_test(the_cache_remembers_as_many_locations_as_it_is_made_for),
		cmocka_unit_test(control_requests_are_limited_by_the_room_for_their_answers),
		cmocka_unit_test(a_namespace_with_a_secret_is_keyed_blake2b),
		cmocka_unit_test(results_have_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
