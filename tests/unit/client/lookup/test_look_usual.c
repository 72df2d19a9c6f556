/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short way of an exists to the owner of a key: it chooses the owner that the long way chooses,
 * whatever the map says and whenever it changes. look.c is included, so that the map can change
 * between two of its loads.
 */
#include <stdint.h>

#include "engine/abi/ring.h"

static uint64_t load_trapped(const uint64_t *at);
#define shm_load_acquire64 load_trapped
#include "engine/client/lookup/look.c" /* IWYU pragma: keep */
#undef shm_load_acquire64

#include "config/clock.h"
#include "engine/client/page/cache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/attach/session.h"
#include "tests/unit/client/rig.h"

#define KEYS 6u
#define NUMBER 5u /* an owner number that no word of the fake engine's map has */

/* `trap` is called before the `trap_in`-th load of `trap_at` from now on. */
static const uint64_t *trap_at;
static unsigned trap_in;
static void (*trap)(void);

static uint64_t load_trapped(const uint64_t *at)
{
	if (at == trap_at && trap_in && --trap_in == 0)
		trap();
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static char name[KEYS][FAKE_NAME_BYTES];
static struct pc_page pages[KEYS];
static enum pc_result result[KEYS];
static unsigned asked[FAKE_NODES]; /* READs of buckets, by node; under fake_lock() */

static uint32_t count_asked(struct fake *f, uint32_t rail, const struct op *op)
{
	asked[op->peer]++;
	return FAKE_DO;
}

static void insert_at(unsigned i, uint32_t node)
{
	struct page_key key = fake_key(name[i]);

	fake_insert(&fake, &key, node,
		&(struct dir_entry){.ref = FAKE_REF(FAKE_A), .place = 1 + i, .generation = 7});
}

static uint64_t *slot_of(unsigned i)
{
	struct page_key key = fake_key(name[i]);

	return &fake.status->map.slot[map_slot_of(&key)];
}

/* The owners of the key's slot, by their numbers; `count` may be 0. */
static void own(unsigned i, unsigned count, uint32_t first, uint32_t second)
{
	struct map_slot slot = {
		.owner = {(uint8_t)first, (uint8_t)second}, .owners = (uint8_t)count};

	shm_store64(slot_of(i), map_slot_pack(&slot));
}

/* Makes owner number NUMBER that of `node`. */
static void number_is(uint32_t node)
{
	shm_store64(&fake.status->map.owner[NUMBER], fake.status->map.owner[node]);
}

static void exists_all(void)
{
	memset(asked, 0, sizeof(asked));
	assert_int_equal(pc_exists(ch, pages, KEYS, PATIENCE_MS, result), 0);
	trap_in = 0;
}

/* Keys 0 and 1 open a run of A and one of B, which have them. Every key has a slot of its own. */
static int setup(void **state)
{
	unsigned at = 0;

	rig_setup(state);
	LET(on_op, count_asked);
	fake_map(&fake, FAKE_NODES, 1);
	for (unsigned i = 0; i < KEYS; i++) {
		fake_name_owned(&fake, "usual", FAKE_A + i % 2, &at, name[i]);
		pages[i] = (struct pc_page){name[i], strlen(name[i]), NULL, 0};
		for (unsigned k = 0; k < i; k++)
			assert_ptr_not_equal(slot_of(i), slot_of(k));
	}
	insert_at(0, FAKE_A);
	insert_at(1, FAKE_B);
	return 0;
}

static void a_slot_without_owners_proves_nothing(void **state)
{
	own(2, 0, FAKE_A, FAKE_A); /* numbers behind the count are none */
	insert_at(2, FAKE_A);
	own(3, 1, NUMBER, 0); /* and a number that no member has */
	exists_all();
	assert_int_equal(result[2], PC_UNREACHABLE);
	assert_int_equal(result[3], PC_UNREACHABLE);
	assert_int_equal(result[0], PC_HIT);
	assert_int_equal(asked[FAKE_A], 2);
}

/* A change that began before the batch gives NUMBER, which the slot no longer names, to B. */
static void number_moves(void)
{
	own(4, 1, FAKE_A, 0);
	number_is(FAKE_B);
}

static void an_owner_number_that_moves_names_no_other_owner(void **state)
{
	number_is(FAKE_A);
	own(4, 1, NUMBER, 0);
	insert_at(4, FAKE_A);
	trap_at = &((const struct status_segment *)ch->session->status)->map.owner[NUMBER];
	trap_in = 1;
	trap = number_moves;
	exists_all();
	assert_int_equal(result[4], PC_HIT);
	assert_int_equal(asked[FAKE_B], 3); /* keys 1, 3 and 5 */
}

/* Two changes of the map, after which the word is the same, but the number that of B. */
static void word_comes_back(void)
{
	shm_store_release(&fake.status->map.epoch, fake.status->map.epoch + 2);
	number_is(FAKE_B);
}

static void a_word_that_comes_back_means_the_new_owner(void **state)
{
	struct page_key key;

	number_is(FAKE_A);
	own(4, 1, NUMBER, 0);
	insert_at(4, FAKE_B);
	key = fake_key(name[4]);
	trap_at =
		&((const struct status_segment *)ch->session->status)->map.slot[map_slot_of(&key)];
	trap_in = 2; /* when the word is loaded again */
	trap = word_comes_back;
	exists_all();
	assert_int_equal(result[4], PC_HIT);
}

/* The same while A, whose answer is that it has no entry, is asked. */
static uint32_t come_back_when_asked(struct fake *f, uint32_t rail, const struct op *op)
{
	if (op->peer == FAKE_A && trap_in && --trap_in == 0)
		word_comes_back();
	return count_asked(f, rail, op);
}

/* `asked_a`: READs from A until the word of key 4 means B, which has the entry. */
static void number_moves_while_asked(unsigned first, unsigned asked_a)
{
	number_is(FAKE_A);
	own(4, 1, NUMBER, 0);
	insert_at(4, FAKE_B);
	trap_at = NULL;
	trap_in = asked_a;
	LET(on_op, come_back_when_asked);
	assert_int_equal(pc_exists(ch, pages + first, 5 - first, PATIENCE_MS, result), 0);
	assert_int_equal(trap_in, 0);
	assert_int_equal(result[4 - first], PC_HIT);
}

static void the_answer_of_a_number_s_former_member_is_not_the_new_one_s(void **state)
{
	number_moves_while_asked(4, 1); /* the only key: the long way */
}

static void the_same_holds_for_the_short_way(void **state)
{
	number_moves_while_asked(0, 3); /* keys 0, 2 and 4 */
}

static void a_key_that_comes_twice_has_one_location(void **state)
{
	struct page_key key;
	const struct cache_set *set;
	unsigned ways = 0;

	pages[2] = pages[4] = pages[0];
	exists_all();
	assert_int_equal(result[2], PC_HIT);
	assert_int_equal(result[4], PC_HIT);
	key = fake_key(name[0]);
	set = cache_set(ch, &key);
	for (unsigned way = 0; way < CACHE_WAYS; way++)
		ways += set->tag[way] && page_key_equal(&set->entry[way].key, &key);
	assert_int_equal(ways, 1);
	exists_all();
	assert_int_equal(asked[FAKE_A], 0);
}

/* The map names an incarnation of A that the members do not have yet. */
static void another_incarnation_of_an_open_owner_is_not_asked(void **state)
{
	struct map_member later = map_member_unpack(fake.status->map.owner[FAKE_A]);

	later.ref++;
	shm_store64(&fake.status->map.owner[NUMBER], map_member_pack(&later));
	own(4, 1, NUMBER, 0);
	insert_at(4, FAKE_A);
	exists_all();
	assert_int_equal(result[4], PC_UNREACHABLE);
	assert_int_equal(result[0], PC_HIT);
}

/* Of two holders, the one that serves this host's engine is remembered. */
static void of_two_holders_the_better_one_is_remembered(void **state)
{
	struct page_key key = fake_key(name[3]);
	const struct cache_entry *e;

	for (uint32_t node = FAKE_A; node <= FAKE_B; node++)
		fake_insert(&fake, &key, FAKE_B,
			&(struct dir_entry){.ref = FAKE_REF(node), .place = 1, .generation = 7});
	shm_store64(fake.status->map.suspects, 1ull << FAKE_A);
	exists_all();
	assert_int_equal(result[3], PC_HIT);
	e = cache_find(ch, &key);
	assert_non_null(e);
	assert_int_equal(e->at.ref, FAKE_REF(FAKE_B));
}

static uint32_t a_times_out(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->peer == FAKE_A ? OP_TIMEOUT : FAKE_DO;
}

static void a_failed_look_up_rests_its_peer_alone(void **state)
{
	LET(on_op, a_times_out);
	exists_all();
	assert_int_equal(result[2], PC_UNREACHABLE);
	assert_int_equal(result[1], PC_HIT);
	assert_true(ch->peer_rest_until_ns[FAKE_A] != 0);
	assert_true(ch->peer_rest_until_ns[FAKE_SELF] == 0);
	assert_true(ch->peer_rest_until_ns[FAKE_B] == 0);
}

static void a_run_of_look_ups_has_32_keys_at_most(void **state)
{
	static char many[3 * RUN_PAGES_MAX][FAKE_NAME_BYTES];
	static struct pc_page page[3 * RUN_PAGES_MAX];
	static enum pc_result results[3 * RUN_PAGES_MAX];
	unsigned at = 0;

	for (unsigned i = 0; i < 3 * RUN_PAGES_MAX; i++) {
		fake_name_owned(&fake, "many", FAKE_A, &at, many[i]);
		page[i] = (struct pc_page){many[i], strlen(many[i]), NULL, 0};
	}
	for (unsigned n = 1; n <= 3 * RUN_PAGES_MAX; n++) {
		unsigned runs = SEEN(look_runs), reads = SEEN(reads);

		assert_int_equal(pc_exists(ch, page, n, PATIENCE_MS, results), 0);
		assert_int_equal(SEEN(reads) - reads, n);
		assert_int_equal(SEEN(look_runs) - runs, (n + RUN_PAGES_MAX - 1) / RUN_PAGES_MAX);
	}
}

/* The page is reported as used once, although it is looked up again. */
static void a_page_that_was_reported_is_marked(void **state)
{
	struct page_key key = fake_key(name[0]);
	const struct cache_entry *e;

	exists_all();
	e = cache_find(ch, &key);
	assert_non_null(e);
	assert_int_not_equal(e->touched_ms, 0);
	exists_all();
	set_one("urgent", name, 64, PATIENCE_MS); /* the control plane has taken what is before */
	assert_int_equal(SEEN(touches), 2);
}

static void the_second_bucket_of_the_only_owner_is_read(void **state)
{
	struct page_key key = fake_key(name[2]);
	uint32_t first = dir_bucket_first(&key, FAKE_BITS);

	fake_lock(&fake);
	for (unsigned k = 0; k < BUCKET_ENTRIES; k++)
		fake.node[FAKE_A].shard[first].entry[k] = (struct dir_entry){
			.tag = dir_tag(&key) + 1, .ref = FAKE_REF(FAKE_B), .generation = 7};
	fake_unlock(&fake);
	insert_at(2, FAKE_A);
	exists_all();
	assert_int_equal(result[2], PC_HIT);
	assert_int_equal(asked[FAKE_A], 4); /* keys 0 and 4, and key 2 twice */
}

/* An entry of an engine that is not on the map. */
static void a_holder_that_is_no_member_has_nothing(void **state)
{
	struct page_key key = fake_key(name[2]);

	fake_insert(&fake, &key, FAKE_A,
		&(struct dir_entry){.ref = 0xdead, .place = 1, .generation = 7});
	exists_all();
	assert_int_equal(result[0], PC_HIT);
	assert_int_equal(result[2], PC_MISS);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, rig_teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_slot_without_owners_proves_nothing),
		TEST(an_owner_number_that_moves_names_no_other_owner),
		TEST(a_word_that_comes_back_means_the_new_owner),
		TEST(the_answer_of_a_number_s_former_member_is_not_the_new_one_s),
		TEST(the_same_holds_for_the_short_way),
		TEST(a_key_that_comes_twice_has_one_location),
		TEST(another_incarnation_of_an_open_owner_is_not_asked),
		TEST(of_two_holders_the_better_one_is_remembered),
		TEST(a_failed_look_up_rests_its_peer_alone),
		TEST(a_run_of_look_ups_has_32_keys_at_most),
		TEST(a_page_that_was_reported_is_marked),
		TEST(the_second_bucket_of_the_only_owner_is_read),
		TEST(a_holder_that_is_no_member_has_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
