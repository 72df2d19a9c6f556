/* SPDX-License-Identifier: Apache-2.0 */
/* pc_explain(): what it tells about owners, places and page heads, and that it changes nothing. */
#include <errno.h>

#include "tests/unit/client/explain/explain_rig.h"

static void prove(const char *name, uint32_t node, uint32_t place)
{
	struct page_key key = fake_key(name);
	struct page_head *head = fake_head(&fake, node, place);

	page_head_prove(head, &key, head->length, 0x1234abcd);
}

/* ---- owners and holders ---------------------------------------------------------------------- */

static void a_page_is_shown_at_its_holder_with_all_owners_that_name_it(void **state)
{
	static const uint32_t nodes[] = {FAKE_SELF, FAKE_A, FAKE_B};

	for (unsigned k = 0; k < 3; k++) {
		char name[FAKE_NAME_BYTES];

		snprintf(name, sizeof(name), "page-%u", k);
		prove(name, nodes[k], fake_page(&fake, name, nodes[k], k % FAKE_RAILS, PAGE_BYTES));
		expect(name);
		assert_int_equal(times("\"answer\":\"present\""), 2);
		assert_int_equal(times("\"state\":"), 1);
		assert_int_equal(times("\"state\":\"page\",\"why\":\"\",\"head_generation\":7,"
				       "\"bytes\":20480,\"crc\":\"1234abcd\",\"proven\":true"),
			1);
	}
}

static void a_page_that_left_its_place_is_evicted_there(void **state)
{
	uint32_t place = fake_page(&fake, "evicted", FAKE_A, 0, PAGE_BYTES);
	struct page_key other = {{1, 2}};

	page_head_retire(fake_head(&fake, FAKE_A, place));
	expect("evicted");
	assert_int_equal(times("\"state\":\"evicted\",\"why\":\"\",\"head_generation\":8"), 1);
	place = fake_page(&fake, "collision", FAKE_A, 0, PAGE_BYTES);
	fake_head(&fake, FAKE_A, place)->key = other;
	expect("collision");
	assert_int_equal(times("\"state\":\"other key\""), 1);
}

static void an_entry_of_an_engine_that_is_not_on_the_map_is_dead_and_no_presence(void **state)
{
	char name[FAKE_NAME_BYTES];

	name_of_a_and_b("dead", name);
	insert(name, FAKE_A, 0xdead, 1);
	expect(name);
	assert_int_equal(times("\"answer\":\"absent\""), 2);
	assert_int_equal(times("\"ref\":\"0000dead\",\"holder\":0"), 1);
	assert_int_equal(times("\"state\":\"dead\""), 1);
}

/* ---- buckets --------------------------------------------------------------------------------- */

static void fill_bucket(uint32_t node, const struct page_key *key, uint32_t bucket)
{
	fake_lock(&fake);
	for (unsigned e = 0; e < BUCKET_ENTRIES; e++)
		fake.node[node].shard[bucket].entry[e] =
			(struct dir_entry){.tag = dir_tag(key) + 1 + e,
				.ref = FAKE_REF(FAKE_B),
				.place = e,
				.generation = 7};
	fake_unlock(&fake);
}

static void the_second_bucket_counts_only_behind_a_full_first_one(void **state)
{
	char name[FAKE_NAME_BYTES];
	struct page_key key;
	uint32_t first, second;

	name_of_a_and_b("second", name);
	key = fake_key(name);
	first = dir_bucket_first(&key, FAKE_BITS);
	second = dir_bucket_other(first, dir_tag(&key), FAKE_BITS);
	fake.node[FAKE_A].shard[second].entry[2] =
		(struct dir_entry){dir_tag(&key), FAKE_REF(FAKE_B), place_make(0, 5), 7};
	expect(name);
	assert_int_equal(times("\"answer\":\"absent\""), 2);
	assert_int_equal(times("\"read\":1"), 2);
	fill_bucket(FAKE_A, &key, first);
	expect(name);
	assert_int_equal(times("\"answer\":\"present\""), 1);
	assert_int_equal(times("\"read\":2"), 1);
}

/* ---- what cannot be asked -------------------------------------------------------------------- */

static uint32_t a_is_down(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->peer == FAKE_A ? OP_PEER_DOWN : FAKE_DO;
}

static uint32_t a_is_held(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->peer == FAKE_A ? FAKE_HOLD : FAKE_DO;
}

static unsigned rail_failures; /* under fake_lock() */

static uint32_t rail_0_fails(struct fake *f, uint32_t rail, const struct op *op)
{
	if (rail)
		return FAKE_DO;
	rail_failures++;
	return OP_NIC_ERROR;
}

static void an_owner_that_cannot_be_asked_is_unreachable_and_not_absent(void **state)
{
	char name[FAKE_NAME_BYTES];

	name_of_a_and_b("cut", name);
	LET(on_op, a_is_down);
	expect(name);
	assert_int_equal(times("\"answer\":\"unreachable\",\"why\":\"no connection\""), 1);
	assert_int_equal(times("\"answer\":\"absent\""), 1);
	/* a holder behind the same connection */
	insert(name, FAKE_B, FAKE_REF(FAKE_A), 1);
	expect(name);
	assert_int_equal(times("\"state\":\"unreachable\",\"why\":\"no connection\""), 1);
}

static void an_owner_that_does_not_answer_costs_the_deadline_and_no_more(void **state)
{
	char name[FAKE_NAME_BYTES];

	name_of_a_and_b("mute", name);
	LET(on_op, a_is_held);
	assert_int_equal(explain(name, 200), 0);
	assert_true(times("\"answer\":\"unreachable\",\"why\":\"no answer in time\"") >= 1);
	/* the late answer belongs to no call; a new one has answers of its own */
	LET(on_op, NULL);
	fake_lock(&fake);
	assert_true(fake.held_count > 0);
	fake_answer_held(&fake);
	fake_unlock(&fake);
	expect(name);
	assert_int_equal(times("\"answer\":\"absent\""), 2);
}

static void a_failed_rail_is_replaced_by_another(void **state)
{
	char name[FAKE_NAME_BYTES];

	rail_failures = 0;
	name_of_a_and_b("rails", name);
	fake_page(&fake, name, FAKE_A, 0, PAGE_BYTES);
	LET(on_op, rail_0_fails);
	expect(name);
	assert_int_equal(times("\"answer\":\"present\""), 2);
	assert_int_equal(times("\"state\":\"page\""), 1);
	fake_lock(&fake);
	assert_true(rail_failures > 0); /* the two owners were asked over two rails */
	fake_unlock(&fake);
}

static void reads_that_find_no_scratch_slot_wait_for_one(void **state)
{
	uint32_t one[SCRATCH_SLOTS / 32] = {1}, all[SCRATCH_SLOTS / 32];
	char name[FAKE_NAME_BYTES];

	name_of_a_and_b("room", name);
	fake_page(&fake, name, FAKE_A, 0, PAGE_BYTES);
	memcpy(all, ch->staging.scratch_free, sizeof(all));
	memcpy(ch->staging.scratch_free, one, sizeof(one));
	expect(name);
	assert_int_equal(times("\"answer\":\"present\""), 2);
	assert_int_equal(times("\"state\":\"page\""), 1);
	assert_memory_equal(ch->staging.scratch_free, one, sizeof(one));
	memcpy(ch->staging.scratch_free, all, sizeof(all));
}

static void *die_soon(void *argument)
{
	SEEN_SOON(held_count);
	SEEN_SOON(reads); /* the answer of FAKE_B */
	fake_die(&fake);
	return NULL;
}

static void the_end_of_the_engine_after_an_owner_named_a_holder_is_an_error(void **state)
{
	char name[FAKE_NAME_BYTES];
	pthread_t thread;

	name_of_a_and_b("ends", name);
	insert(name, FAKE_B, FAKE_REF(FAKE_B), 1);
	LET(on_op, a_is_held);
	assert_int_equal(pthread_create(&thread, NULL, die_soon, NULL), 0);
	assert_int_equal(explain(name, PATIENCE_MS), -ENOTCONN);
	assert_non_null(strstr(pc_error(), "the engine ended"));
	pthread_join(thread, NULL);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void looking_changes_nothing(void **state)
{
	struct pc_counts before = counts(), after;
	uint32_t place = fake_page(&fake, "stale", FAKE_A, 0, PAGE_BYTES);

	page_head_retire(fake_head(&fake, FAKE_A, place));
	fake_page(&fake, "used", FAKE_SELF, 0, PAGE_BYTES);
	expect("stale");
	expect("used");
	after = counts();
	assert_memory_equal(&before, &after, sizeof(before));
	assert_int_equal(exists_one("absent", PATIENCE_MS), PC_MISS); /* notices would be sent */
	assert_int_equal(SEEN(stales), 0);
	assert_int_equal(SEEN(touches), 0);
}

static void wrong_arguments_are_refused(void **state)
{
	static char key[KEY_BYTES_MAX + 1];

	assert_int_equal(pc_explain(NULL, "a", 1, 0, &text), -EINVAL);
	assert_int_equal(pc_explain(ch, NULL, 1, 0, &text), -EINVAL);
	assert_int_equal(pc_explain(ch, "a", 0, 0, &text), -EINVAL);
	assert_int_equal(pc_explain(ch, key, sizeof(key), 0, &text), -EINVAL);
	assert_int_equal(pc_explain(ch, "a", 1, 0, NULL), -EINVAL);
	free(text);
	text = NULL;
	assert_int_equal(pc_explain(ch, key, KEY_BYTES_MAX, PATIENCE_MS, &text), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(a_page_is_shown_at_its_holder_with_all_owners_that_name_it),
		RIG_TEST(a_page_that_left_its_place_is_evicted_there),
		RIG_TEST(an_entry_of_an_engine_that_is_not_on_the_map_is_dead_and_no_presence),
		RIG_TEST(the_second_bucket_counts_only_behind_a_full_first_one),
		RIG_TEST(an_owner_that_cannot_be_asked_is_unreachable_and_not_absent),
		RIG_TEST(an_owner_that_does_not_answer_costs_the_deadline_and_no_more),
		RIG_TEST(a_failed_rail_is_replaced_by_another),
		RIG_TEST(reads_that_find_no_scratch_slot_wait_for_one),
		RIG_TEST(the_end_of_the_engine_after_an_owner_named_a_holder_is_an_error),
		RIG_TEST(looking_changes_nothing),
		RIG_TEST(wrong_arguments_are_refused),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);

	free(text);
	return failed;
}
