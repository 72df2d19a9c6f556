/* SPDX-License-Identifier: Apache-2.0 */
/* pc_match(): which hosts have the pages of a list of keys. */
#include <errno.h>

#include "tests/unit/client/rig.h"

#define KEYS 40

static struct pc_match match;
static char names[KEYS][FAKE_NAME_BYTES];
static struct pc_page pages[KEYS];
static enum pc_result results[KEYS];

/* The names "<stem>-0" to "<stem>-39", as the list of keys. */
static void list(const char *stem)
{
	for (unsigned i = 0; i < KEYS; i++) {
		snprintf(names[i], sizeof(names[i]), "%s-%u", stem, i);
		pages[i] = (struct pc_page){.key = names[i], .key_bytes = strlen(names[i])};
	}
}

static void ask(void)
{
	memset(&match, 0xa5, sizeof(match));
	assert_int_equal(pc_match(ch, pages, KEYS, PATIENCE_MS, &match, results), 0);
}

/* The host is the n-th of the match, with these figures. */
static void expect(unsigned n, uint32_t node, unsigned prefix, unsigned count)
{
	assert_in_range(n, 0, match.holders - 1);
	assert_int_equal(match.holder[n].ref, FAKE_REF(node));
	assert_int_equal(match.holder[n].here, node == FAKE_SELF);
	assert_int_equal(match.holder[n].prefix, prefix);
	assert_int_equal(match.holder[n].pages, count);
}

/* An entry of one more holder of a key, at all its owners, or at one. */
static void also(const char *name, uint32_t only, uint32_t node, uint32_t place)
{
	struct page_key key = fake_key(name);

	fake_insert(&fake, &key, only,
		&(struct dir_entry){.ref = FAKE_REF(node), .place = place, .generation = 7});
}

static void each_holder_has_its_prefix_and_its_pages(void **state)
{
	list("spread");
	for (unsigned i = 0; i < 10; i++)
		fake_page(&fake, names[i], FAKE_A, 0, 4096);
	for (unsigned i = 10; i < 30; i++)
		fake_page(&fake, names[i], FAKE_SELF, 0, 4096);
	for (unsigned i = 0; i < 12; i++)
		also(names[i], FAKE_NODES, FAKE_B, place_make(0, 1));
	ask();
	assert_int_equal(match.prefix, 30);
	assert_int_equal(match.unknown, 0);
	assert_int_equal(match.holders, 3);
	assert_int_equal(match.holders_all, 3);
	expect(0, FAKE_B, 12, 12);
	expect(1, FAKE_A, 10, 10);
	expect(2, FAKE_SELF, 0, 20);
	for (unsigned i = 0; i < KEYS; i++) {
		assert_int_equal(results[i], i < 30 ? PC_HIT : PC_MISS);
		assert_int_equal(exists_one(names[i], PATIENCE_MS), results[i]);
	}
}

static void a_match_uses_no_cache_and_counts_nothing_as_used(void **state)
{
	list("fresh");
	fake_page(&fake, names[0], FAKE_A, 0, 4096);
	assert_int_equal(exists_one(names[0], PATIENCE_MS), PC_HIT);
	also(names[0], FAKE_NODES, FAKE_B, place_make(0, 3));
	ask();
	assert_int_equal(match.holders, 2);
	LET(touches, 0);
	ask();
	assert_int_equal(SEEN(touches), 0);
	assert_int_equal(counts().lookups_cached, 0);
}

/* The first bucket of the key is full, and only the second one has the entry of FAKE_B. */
static void a_full_bucket_is_no_end_of_the_holders(void **state)
{
	uint32_t owner[REPLICAS_MAX];

	list("full");
	for (unsigned i = 0; i < KEYS; i++) {
		struct page_key key = fake_key(names[i]);
		unsigned n = fake_owners(&fake, &key, owner);
		uint32_t first = dir_bucket_first(&key, FAKE_BITS), tag = dir_tag(&key);
		uint32_t second = dir_bucket_other(first, tag, FAKE_BITS);

		for (unsigned k = 0; k < n; k++) {
			struct bucket *shard = fake.node[owner[k]].shard;

			for (unsigned e = 0; e < BUCKET_ENTRIES; e++)
				shard[first].entry[e] = (struct dir_entry){.tag = e ? tag + e : tag,
					.ref = FAKE_REF(FAKE_A),
					.place = place_make(0, 1),
					.generation = 7};
			shard[second].entry[0] =
				(struct dir_entry){tag, FAKE_REF(FAKE_B), place_make(0, 1), 7};
		}
		assert_int_equal(pc_match(ch, &pages[i], 1, PATIENCE_MS, &match, NULL), 0);
		assert_int_equal(match.holders, 2);
		assert_int_equal(match.prefix, 1);
	}
}

static void a_page_on_disk_counts_and_one_that_left_this_host_does_not(void **state)
{
	uint32_t place;

	list("disk");
	also(names[0], FAKE_NODES, FAKE_A, place_make(PLACE_DISK, 9));
	place = fake_page(&fake, names[1], FAKE_SELF, 0, 4096);
	page_head_retire(fake_head(&fake, FAKE_SELF, place));
	ask();
	assert_int_equal(match.prefix, 1);
	assert_int_equal(match.holders, 1);
	expect(0, FAKE_A, 1, 1);
	assert_int_equal(match.holder[0].pages_on_disk, 1);
	assert_int_equal(exists_one(names[1], PATIENCE_MS), PC_MISS);
}

static uint32_t a_is_down(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->peer == FAKE_A ? OP_PEER_DOWN : FAKE_DO;
}

static void keys_whose_owner_cannot_be_asked_are_unknown(void **state)
{
	unsigned unreachable = 0;

	list("cut");
	LET(on_op, a_is_down);
	ask();
	for (unsigned i = 0; i < KEYS; i++)
		unreachable += exists_one(names[i], PATIENCE_MS) == PC_UNREACHABLE;
	assert_in_range(unreachable, 1, KEYS - 1);
	assert_int_equal(match.unknown, unreachable);
	assert_int_equal(match.prefix, 0);
	assert_int_equal(match.holders, 0);
}

/* The members A and B, a holder, leave while the match runs; the channel learns it by an answer. */
static uint32_t others_leave(struct fake *f, uint32_t rail, const struct op *op)
{
	fake_map(f, 1, 1);
	return OP_PEER_DOWN;
}

static void a_holder_that_left_meanwhile_is_none(void **state)
{
	list("left");
	for (unsigned i = 0; i < KEYS; i++)
		also(names[i], FAKE_NODES, FAKE_B, place_make(0, 1));
	LET(on_op, others_leave);
	ask();
	LET(on_op, NULL);
	assert_int_equal(match.holders, 0);
	fake_map(&fake, FAKE_NODES, 2);
}

static void without_an_engine_all_keys_are_unknown(void **state)
{
	list("gone");
	fake_die(&fake);
	assert_int_equal(pc_match(ch, pages, KEYS, 200, &match, NULL), 0);
	assert_int_equal(match.unknown, KEYS);
	assert_int_equal(match.holders + match.prefix + match.holders_all, 0);
	fake_revive(&fake);
}

static void wrong_arguments_are_refused(void **state)
{
	list("wrong");
	assert_int_equal(pc_match(NULL, pages, 1, 0, &match, NULL), -EINVAL);
	assert_int_equal(pc_match(ch, pages, 1, 0, NULL, NULL), -EINVAL);
	assert_int_equal(pc_match(ch, NULL, 1, 0, &match, NULL), -EINVAL);
	assert_int_equal(pc_match(ch, pages, PC_BATCH_MAX + 1, 0, &match, NULL), -EINVAL);
	pages[3].key_bytes = 0;
	assert_int_equal(pc_match(ch, pages, KEYS, 0, &match, NULL), -EINVAL);
	assert_non_null(strstr(pc_error(), "page 3"));
	assert_int_equal(pc_match(ch, NULL, 0, 0, &match, NULL), 0);
	assert_int_equal(match.holders + match.prefix + match.unknown, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(each_holder_has_its_prefix_and_its_pages),
		RIG_TEST(a_match_uses_no_cache_and_counts_nothing_as_used),
		RIG_TEST(a_full_bucket_is_no_end_of_the_holders),
		RIG_TEST(a_page_on_disk_counts_and_one_that_left_this_host_does_not),
		RIG_TEST(keys_whose_owner_cannot_be_asked_are_unknown),
		RIG_TEST(a_holder_that_left_meanwhile_is_none),
		RIG_TEST(without_an_engine_all_keys_are_unknown),
		RIG_TEST(wrong_arguments_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
