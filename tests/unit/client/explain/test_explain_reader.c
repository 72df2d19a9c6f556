/* SPDX-License-Identifier: Apache-2.0 */
/* What pc_explain() says a get returns, and why: a get agrees. */
#include "engine/abi/map.h"
#include "tests/unit/client/explain/explain_rig.h"

static uint32_t a_is_down(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->peer == FAKE_A ? OP_PEER_DOWN : FAKE_DO;
}

static void result_is(const char *result, const char *cause)
{
	char both[96];

	snprintf(both, sizeof(both), "\"result\":\"%s\",\"cause\":\"%s\"", result, cause);
	print_message("%s", text);
	assert_int_equal(times(both), 1);
}

/* A get of the same key, by a reader whose channel has not cached it, agrees. */
static void agrees(const char *name, const char *result, const char *cause, enum pc_result want)
{
	static unsigned char page[PAGE_BYTES];

	expect(name);
	result_is(result, cause);
	assert_int_equal(get_one(name, page, sizeof(page), PATIENCE_MS), want);
}

static void slot_of_name(const char *name, struct map_slot *ret, uint64_t **ret_word)
{
	struct page_key key = fake_key(name);

	*ret_word = &fake.status->map.slot[map_slot_of(&key)];
	*ret = map_slot_unpack(**ret_word);
}

static void a_key_without_an_entry_is_absent(void **state)
{
	char name[FAKE_NAME_BYTES];

	name_of_a_and_b("new", name);
	agrees(name, "miss", "", PC_MISS);
	assert_int_equal(times("\"answer\":\"absent\""), 2);
	fake_page(&fake, name, FAKE_B, 0, PAGE_BYTES);
	agrees(name, "hit", "", PC_HIT);
}

static void a_suspect_owner_is_not_asked_once_another_one_has_answered(void **state)
{
	char name[FAKE_NAME_BYTES];

	name_of_a_and_b("suspect", name);
	shm_store64(&fake.status->map.suspects[FAKE_A / 64], 1ull << FAKE_A % 64);
	agrees(name, "unreachable", "suspect owner", PC_UNREACHABLE);
	assert_int_equal(times("\"asked\":false"), 1);
	assert_int_equal(times("\"answer\":\"absent\""), 2);
	/* an entry that only the suspect owner has helps no reader */
	insert(name, FAKE_A, FAKE_REF(FAKE_B), 3);
	agrees(name, "unreachable", "suspect owner", PC_UNREACHABLE);
	/* both are suspect: both are asked */
	shm_store64(
		&fake.status->map.suspects[FAKE_A / 64], 1ull << FAKE_A % 64 | 1ull << FAKE_B % 64);
	fake_page(&fake, name, FAKE_SELF, 0, PAGE_BYTES);
	agrees(name, "hit", "", PC_HIT);
	shm_store64(&fake.status->map.suspects[FAKE_A / 64], 0);
}

static void an_owner_or_a_holder_that_cannot_be_read_makes_a_key_unreachable(void **state)
{
	char name[FAKE_NAME_BYTES];

	name_of_a_and_b("unread", name);
	LET(on_op, a_is_down);
	agrees(name, "unreachable", "owner", PC_UNREACHABLE);
	fake_page(&fake, name, FAKE_A, 0, PAGE_BYTES);
	expect(name);
	result_is("unreachable", "holder");
	LET(on_op, NULL);
}

static void an_owner_that_is_no_member_proves_nothing(void **state)
{
	struct map_member stranger = {.ref = 0xbeef, .peer = 77, .rails = 1, .bucket_bits = 4};
	char name[FAKE_NAME_BYTES];
	struct map_slot slot;
	uint64_t *word;

	name_of_a_and_b("stranger", name);
	slot_of_name(name, &slot, &word);
	shm_store64(&fake.status->map.owner[slot.owner[1]], map_member_pack(&stranger));
	agrees(name, "unreachable", "no map", PC_UNREACHABLE);
}

static void a_page_of_this_host_is_told_of_by_its_engine_alone(void **state)
{
	char name[FAKE_NAME_BYTES];

	name_of_a_and_b("here", name);
	expect(name);
	assert_int_equal(times("\"here\":\"nowhere\""), 1);
	LET(here, true);
	expect(name);
	assert_int_equal(times("\"here\":\"disk\""), 1);
	result_is("miss", ""); /* no disk is in service: no reader asks */
	shm_store(&fake.status->disk, 1);
	expect(name);
	result_is("hit", "");
	LET(here, false);
	agrees(name, "miss", "", PC_MISS);
	/* a page on the disk of another host is not one of this host */
	insert(name, FAKE_A, FAKE_REF(FAKE_B), place_make(PLACE_DISK, 77));
	expect(name);
	assert_int_equal(times("\"here\":\"nowhere\""), 1);
	result_is("hit", "");
	/* an entry that names this host's disk is wrong, if the engine does not have the page */
	insert(name, FAKE_A, FAKE_REF(FAKE_SELF), place_make(PLACE_DISK, 78));
	expect(name);
	assert_int_equal(times("\"here\":true"), 1);
	assert_int_equal(times("\"state\":\"evicted\""), 1);
}

static uint32_t nothing_is_told(struct fake *f, const struct ctl_op *op)
{
	return op->kind == CTL_PROMOTE ? FAKE_HOLD : FAKE_DO;
}

static void an_engine_that_does_not_tell_costs_the_deadline_and_proves_nothing(void **state)
{
	char name[FAKE_NAME_BYTES];

	name_of_a_and_b("untold", name);
	LET(on_ctl, nothing_is_told);
	assert_int_equal(explain(name, 200), 0);
	assert_int_equal(times("\"here\":\"not known\""), 1);
	result_is("miss", "");
	shm_store(&fake.status->disk, 1);
	assert_int_equal(explain(name, 200), 0);
	result_is("unreachable", "this engine");
	LET(on_ctl, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(a_key_without_an_entry_is_absent),
		RIG_TEST(a_suspect_owner_is_not_asked_once_another_one_has_answered),
		RIG_TEST(an_owner_or_a_holder_that_cannot_be_read_makes_a_key_unreachable),
		RIG_TEST(an_owner_that_is_no_member_proves_nothing),
		RIG_TEST(a_page_of_this_host_is_told_of_by_its_engine_alone),
		RIG_TEST(an_engine_that_does_not_tell_costs_the_deadline_and_proves_nothing),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);

	free(text);
	return failed;
}
