/* SPDX-License-Identifier: Apache-2.0 */
/* Look-up of a key: which owners the library asks, and the result of their answers. */
#include "config/clock.h"
#include "engine/client/page/batch.h"
#include "engine/client/rings/channel.h"
#include "tests/unit/client/rig.h"

static void hook(fake_op_hook *on_op)
{
	LET(on_op, on_op);
}

static uint32_t a_is_down(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->peer == FAKE_A ? OP_PEER_DOWN : FAKE_DO;
}

static unsigned a_was_asked; /* ops for FAKE_A; under fake_lock() */

/* Answers as a rail that waits for a connection does: with a time-out, at the op's deadline. */
static uint32_t a_is_silent(struct fake *f, uint32_t rail, const struct op *op)
{
	uint64_t now_ns = clock_monotonic_ns();

	if (op->peer != FAKE_A)
		return FAKE_DO;
	a_was_asked++;
	if (now_ns < op->deadline_ns)
		usleep((useconds_t)((op->deadline_ns - now_ns) / 1000));
	return OP_TIMEOUT;
}

static uint32_t hold_looks(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->kind == OP_LOOKUP ? FAKE_HOLD : FAKE_DO;
}

/* Finds a name whose first owner is `first` and whose second owner is `second`. */
static void name_of(const char *stem, uint32_t first, uint32_t second, unsigned *at, char *ret_name)
{
	uint32_t owner[REPLICAS_MAX] = {0};

	do {
		struct page_key key;

		fake_name_owned(&fake, stem, first, at, ret_name);
		key = fake_key(ret_name);
		assert_true(fake_owners(&fake, &key, owner) >= 2);
	} while (owner[1] != second);
}

/* Writes an entry for a page of FAKE_A into the shard of one owner only. */
static void insert_at(const char *name, uint32_t owner)
{
	struct page_key key = fake_key(name);

	fake_insert(&fake, &key, owner,
		&(struct dir_entry){.ref = FAKE_REF(FAKE_A), .place = 1, .generation = 7});
}

static void a_key_is_a_miss_after_every_owner_has_answered(void **state)
{
	unsigned n = 0;
	char name[FAKE_NAME_BYTES];

	name_of("absent", FAKE_A, FAKE_B, &n, name);
	assert_int_equal(exists_one(name, PATIENCE_MS), PC_MISS);
	assert_int_equal(SEEN(reads), 2);
	name_of("absent", FAKE_SELF, FAKE_B, &n, name);
	assert_int_equal(exists_one(name, PATIENCE_MS), PC_MISS);
	assert_int_equal(SEEN(reads), 3);
}

static void a_key_known_to_only_one_owner_is_found(void **state)
{
	static const uint32_t owners[][2] = {
		{FAKE_A, FAKE_B}, {FAKE_B, FAKE_A}, {FAKE_SELF, FAKE_B}, {FAKE_B, FAKE_SELF}};
	unsigned n = 0;
	char name[FAKE_NAME_BYTES];

	for (unsigned k = 0; k < sizeof(owners) / sizeof(owners[0]); k++)
		for (unsigned which = 0; which < 2; which++) {
			name_of("one", owners[k][0], owners[k][1], &n, name);
			insert_at(name, owners[k][which]);
			assert_int_equal(exists_one(name, PATIENCE_MS), PC_HIT);
		}
}

/* The first owner has no entry: both buckets of the key in its shard are full of other keys. */
static void a_key_that_did_not_fit_into_one_shard_is_found_in_another(void **state)
{
	unsigned n = 0;
	char name[FAKE_NAME_BYTES];

	for (unsigned k = 0; k < 8; k++) {
		struct page_key key;
		uint32_t first;

		name_of("full", FAKE_A, FAKE_B, &n, name);
		key = fake_key(name);
		first = dir_bucket_first(&key, FAKE_BITS);
		for (unsigned e = 0; e < BUCKET_ENTRIES; e++) {
			struct dir_entry other = {
				.tag = dir_tag(&key) + 1 + e, .ref = FAKE_REF(FAKE_B), .place = e};

			fake.node[FAKE_A].shard[first].entry[e] = other;
			fake.node[FAKE_A]
				.shard[dir_bucket_other(first, dir_tag(&key), FAKE_BITS)]
				.entry[e] = other;
		}
		insert_at(name, FAKE_B);
		assert_int_equal(exists_one(name, PATIENCE_MS), PC_HIT);
	}
}

static void a_key_with_an_unreachable_owner_is_unreachable_and_no_miss(void **state)
{
	unsigned char at[64] = {0};
	unsigned n = 0;
	char name[FAKE_NAME_BYTES];

	hook(a_is_down);
	for (unsigned k = 0; k < 4; k++) {
		name_of("cut", k & 1 ? FAKE_A : FAKE_B, k & 1 ? FAKE_B : FAKE_A, &n, name);
		assert_int_equal(exists_one(name, PATIENCE_MS), PC_UNREACHABLE);
		assert_int_equal(get_one(name, at, sizeof(at), PATIENCE_MS), PC_UNREACHABLE);
		/* No reachable owner has an entry for the key, so the page is stored. */
		assert_int_equal(set_one(name, at, sizeof(at), PATIENCE_MS), PC_HIT);
		assert_int_equal(SEEN(publishes), k + 1);
	}
	assert_int_equal(counts().misses, 0);
}

static void a_recently_failed_owner_is_not_awaited_once_another_has_answered(void **state)
{
	unsigned n = 0;
	char name[FAKE_NAME_BYTES];

	a_was_asked = 0;
	hook(a_is_silent);
	name_of("mute", FAKE_A, FAKE_B, &n, name);
	assert_int_equal(exists_one(name, 300), PC_UNREACHABLE);
	for (unsigned k = 0; k < 4; k++) {
		uint64_t rests_until_ns;

		name_of("mute", FAKE_A, FAKE_B, &n, name);
		ch->peer_rest_until_ns[FAKE_A] = rests_until_ns =
			clock_monotonic_ns() + 60000000000ull;
		assert_int_equal(exists_one(name, PATIENCE_MS), PC_UNREACHABLE);
		assert_true(ch->peer_rest_until_ns[FAKE_A] == rests_until_ns);
	}
	fake_lock(&fake);
	assert_int_equal(a_was_asked, 1);
	fake_unlock(&fake);
}

static void suspect(uint16_t peer, bool is)
{
	uint64_t *word = &fake.status->map.suspects[peer / 64];

	__atomic_store_n(word, is ? *word | 1ull << peer % 64 : *word & ~(1ull << peer % 64),
		__ATOMIC_RELAXED);
}

/* The engine says that A does not serve: a look-up does not spend its deadline on it. */
static void a_suspect_owner_is_asked_only_if_no_other_one_answers(void **state)
{
	unsigned n = 0;
	char name[FAKE_NAME_BYTES];

	suspect(FAKE_A, true);
	name_of("dark", FAKE_A, FAKE_B, &n, name);
	assert_int_equal(exists_one(name, PATIENCE_MS), PC_UNREACHABLE);
	assert_int_equal(SEEN(reads), 1);
	name_of("dark", FAKE_A, FAKE_B, &n, name);
	insert_at(name, FAKE_B);
	assert_int_equal(exists_one(name, PATIENCE_MS), PC_HIT);
	assert_int_equal(SEEN(reads), 2);
	/* With no better one left, it is asked after all, and its answer counts. */
	suspect(FAKE_B, true);
	name_of("dark", FAKE_A, FAKE_B, &n, name);
	insert_at(name, FAKE_A);
	assert_int_equal(exists_one(name, PATIENCE_MS), PC_HIT);
	suspect(FAKE_A, false);
	suspect(FAKE_B, false);
	name_of("dark", FAKE_A, FAKE_B, &n, name);
	assert_int_equal(exists_one(name, PATIENCE_MS), PC_MISS);
}

static void a_map_change_during_a_lookup_restarts_with_the_new_owners(void **state)
{
	enum pc_result result = PC_PENDING;
	struct pc_batch *batch;
	struct page_key key;
	struct one o;
	uint32_t owner[REPLICAS_MAX];

	/* Choose a key that only FAKE_A owns in the first map and only FAKE_B in the second. Both
	 * owners have the same bit in the look-up's bit mask of asked owners. */
	for (unsigned k = 0;; k++) {
		char name[FAKE_NAME_BYTES];

		snprintf(name, sizeof(name), "changed-%u", k);
		key = fake_key(name);
		fake_map(&fake, FAKE_NODES, 1);
		fake_owners(&fake, &key, owner);
		if (owner[0] != FAKE_B)
			continue;
		insert_at(name, FAKE_B);
		fake_map(&fake, 2, 1);
		fake_owners(&fake, &key, owner);
		if (owner[0] != FAKE_A)
			continue;
		one_page(&o, name, NULL, 0);
		break;
	}
	hook(hold_looks);
	assert_int_equal(pc_submit_exists(ch, &o.page, 1, PATIENCE_MS, &result, &batch), 0);
	while (!SEEN(held_count))
		assert_false(pc_poll(batch));
	fake_map(&fake, FAKE_NODES, 1);
	hook(NULL);
	exists_one("another", PATIENCE_MS); /* its look-up makes the channel read the new map */
	fake_lock(&fake);
	fake_answer_held(&fake);
	fake_unlock(&fake);
	pc_wait(batch);
	assert_int_equal(result, PC_HIT);
}

/* Looks up a key of which both A and B have a page. Returns the holder that is taken. */
static uint32_t holder_of_two(unsigned *at)
{
	char name[FAKE_NAME_BYTES];
	struct page_key key;

	name_of("two", FAKE_A, FAKE_B, at, name);
	(void)fake_page(&fake, name, FAKE_A, 0, PAGE_UNIT);
	(void)fake_page(&fake, name, FAKE_B, 0, PAGE_UNIT);
	assert_int_equal(exists_one(name, PATIENCE_MS), PC_HIT);
	key = fake_key(name);
	return cache_find(ch, &key)->at.ref;
}

static void of_several_holders_the_one_with_the_least_queued_is_taken(void **state)
{
	uint64_t *leaving = &fake.status->map.leaving[FAKE_A / 64];
	unsigned n = 0, of_a = 0;

	for (unsigned k = 0; k < 20; k++)
		of_a += holder_of_two(&n) == FAKE_REF(FAKE_A);
	assert_in_range(of_a, 5, 15); /* in turn, as far as nothing was read */
	for (unsigned k = 0; k < 10; k++) {
		ch->peer_load[FAKE_A] = 1ull << 40;
		ch->peer_load[FAKE_B] = 1ull << 20;
		assert_int_equal(holder_of_two(&n), FAKE_REF(FAKE_B));
		ch->peer_load[FAKE_A] = 1;
		ch->peer_load[FAKE_B] = 1ull << 40;
		assert_int_equal(holder_of_two(&n), FAKE_REF(FAKE_A));
		/* it is being drained */
		shm_store64(leaving, 1ull << FAKE_A % 64);
		assert_int_equal(holder_of_two(&n), FAKE_REF(FAKE_B));
		shm_store64(leaving, 0);
	}
	/* it is forgotten */
	ch->peer_load[FAKE_A] = 1ull << 40;
	ch->peer_loads_ns -= 60 * PEER_LOAD_NS;
	(void)holder_of_two(&n);
	assert_true(ch->peer_load[FAKE_A] < 1000);
}

static void what_a_read_takes_counts_as_load_of_its_holder(void **state)
{
	static unsigned char bytes[PAGE_UNIT];

	(void)fake_page(&fake, "loaded", FAKE_A, 0, PAGE_UNIT);
	ch->peer_load[FAKE_A] = ch->peer_load[FAKE_B] = 0;
	assert_int_equal(get_one("loaded", bytes, sizeof(bytes), PATIENCE_MS), PC_HIT);
	assert_true(ch->peer_load[FAKE_A] > 0);
	assert_true(ch->peer_load[FAKE_B] == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(a_key_is_a_miss_after_every_owner_has_answered),
		RIG_TEST(a_key_known_to_only_one_owner_is_found),
		RIG_TEST(a_key_that_did_not_fit_into_one_shard_is_found_in_another),
		RIG_TEST(a_key_with_an_unreachable_owner_is_unreachable_and_no_miss),
		RIG_TEST(a_suspect_owner_is_asked_only_if_no_other_one_answers),
		RIG_TEST(a_recently_failed_owner_is_not_awaited_once_another_has_answered),
		RIG_TEST(a_map_change_during_a_lookup_restarts_with_the_new_owners),
		RIG_TEST(of_several_holders_the_one_with_the_least_queued_is_taken),
		RIG_TEST(what_a_read_takes_counts_as_load_of_its_holder),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
