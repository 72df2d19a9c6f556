/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the library that need no engine: key hashing, copies, the cache of locations, limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/client/client.h"

static struct page_key hash(const char *name_space, const void *key, size_t bytes)
{
	struct page_key digest, out;

	key_name_space(name_space, &digest);
	key_hash(&digest, key, bytes, &out);
	return out;
}

/* Nodes of all versions must compute the same hashes, so these numbers never change. */
static void keys_always_hash_to_the_same_numbers(void **state)
{
	static const struct {
		const char *name_space, *key;
		uint64_t word[2];
	} vector[] = {
		{"", "a", {0x0be4d7991ae4c130, 0xc2a3af9b34e54379}},
		{"llama-70b/bf16", "a", {0x32b79afc33c0e6ea, 0x2103ae2aeecfb2c9}},
		{"llama-70b/bf16", "0af3c2", {0x4a5741d39591a8e1, 0xa919dc8be0e6b759}},
		{"llama-70b/bf16",
			"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
			{0x1e7da8afb6371f12, 0x1f929f3495cbc015}},
	};

	(void)state;
	for (unsigned k = 0; k < sizeof(vector) / sizeof(vector[0]); k++) {
		struct page_key key =
			hash(vector[k].name_space, vector[k].key, strlen(vector[k].key));

		assert_true(key.word[0] == vector[k].word[0]);
		assert_true(key.word[1] == vector[k].word[1]);
	}
}

static void namespace_and_key_are_hashed_separately(void **state)
{
	struct page_key a = hash("ab", "c", 1), b = hash("a", "bc", 2), c = hash("", "abc", 3);

	(void)state;
	assert_false(page_key_equal(&a, &b));
	assert_false(page_key_equal(&a, &c));
	assert_false(page_key_equal(&b, &c));
}

static void keys_of_every_length_differ(void **state)
{
	static unsigned char zeros[KEY_BYTES_MAX];
	static struct page_key seen[KEY_BYTES_MAX + 1];

	(void)state;
	for (size_t n = 1; n <= KEY_BYTES_MAX; n++) {
		seen[n] = hash("", zeros, n);
		for (size_t m = 1; m < n; m++)
			assert_false(page_key_equal(&seen[n], &seen[m]));
	}
}

static void copies_of_any_length_and_alignment_are_exact(void **state)
{
	unsigned char *from = malloc(70000), *to = malloc(70000);

	(void)state;
	for (unsigned k = 0; k < 70000; k++)
		from[k] = (unsigned char)map_mix(k);
	for (unsigned turn = 0; turn < 3000; turn++) {
		uint64_t r = map_mix(turn + 99);
		size_t bytes = turn < 300 ? turn : r % 66000, at = r >> 20 & 63, of = r >> 30 & 63;

		memset(to, 0xee, at + bytes + 64);
		copy_stream(to + at, from + of, bytes);
		shm_fence_stream();
		assert_memory_equal(to + at, from + of, bytes);
		for (unsigned k = 0; k < at; k++)
			assert_int_equal(to[k], 0xee);
		for (unsigned k = 0; k < 64; k++)
			assert_int_equal(to[at + bytes + k], 0xee);
	}
	free(from);
	free(to);
}

static void the_cache_finds_only_the_key_that_was_put(void **state)
{
	struct pc_channel *ch = calloc(1, sizeof(*ch));
	struct page_key a = {{5, 0}}, same_slot = {{5 + CACHE_SLOTS, 0}};
	struct location at = {.ref = 9, .place = 8, .generation = 7};

	(void)state;
	ch->cache = calloc(CACHE_SLOTS, sizeof(*ch->cache));
	assert_null(cache_find(ch, &a));
	cache_put(ch, &a, &at, 1);
	assert_int_equal(cache_find(ch, &a)->at.place, 8);
	assert_null(cache_find(ch, &same_slot));
	cache_drop(ch, &same_slot);
	assert_non_null(cache_find(ch, &a));
	cache_put(ch, &same_slot, &at, 1);
	assert_null(cache_find(ch, &a));
	cache_drop(ch, &same_slot);
	assert_null(cache_find(ch, &same_slot));
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
			aligned_alloc(64, ring_bytes(OP_RING_SLOTS, sizeof(struct op_slot))),
			OP_RING_SLOTS, sizeof(struct op_slot));
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

	(void)state;
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

static void results_have_names(void **state)
{
	(void)state;
	assert_string_equal(pc_result_name(PC_HIT), "hit");
	assert_string_equal(pc_result_name(PC_PENDING), "pending");
	assert_string_equal(pc_result_name((enum pc_result)77), "unknown");
	assert_non_null(pc_error());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys_always_hash_to_the_same_numbers),
		cmocka_unit_test(namespace_and_key_are_hashed_separately),
		cmocka_unit_test(keys_of_every_length_differ),
		cmocka_unit_test(copies_of_any_length_and_alignment_are_exact),
		cmocka_unit_test(the_cache_finds_only_the_key_that_was_put),
		cmocka_unit_test(control_requests_are_limited_by_the_room_for_their_answers),
		cmocka_unit_test(results_have_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
