/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of rails and nodes, missed deadlines and broken maps: what the library returns. */
#include "config/clock.h"
#include "engine/client/page/batch.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "tests/unit/client/rig_clock.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

static unsigned char *memory(size_t bytes)
{
	void *at = NULL;

	assert_int_equal(pc_memory_alloc(pc, bytes, &at), 0);
	return at;
}

static uint32_t hold_pages(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->kind == OP_PAGE ? FAKE_HOLD : FAKE_DO;
}

/* After that time, the deadline of a get of a minute is over. */
static uint32_t hold_pages_for_a_minute(struct fake *f, uint32_t rail, const struct op *op)
{
	if (op->kind == OP_PAGE)
		rig_pass_ms(60000);
	return hold_pages(f, rail, op);
}

static uint32_t hold_everything(struct fake *f, uint32_t rail, const struct op *op)
{
	return FAKE_HOLD;
}

static uint32_t rail_0_is_broken(struct fake *f, uint32_t rail, const struct op *op)
{
	return rail == 0 ? OP_NIC_ERROR : FAKE_DO;
}

static uint32_t a_is_down(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->peer == FAKE_A ? OP_PEER_DOWN : FAKE_DO;
}

/* ops for FAKE_A, and the time of the first failure; under fake_lock() */
static unsigned a_was_asked;
static uint64_t a_failed_ns;

/* Answers as a rail that waits for a connection does: with a time-out, at the op's deadline. */
static uint32_t a_is_silent(struct fake *f, uint32_t rail, const struct op *op)
{
	static uint64_t last_ns;

	if (op->peer != FAKE_A)
		return FAKE_DO;
	a_was_asked++;
	last_ns = clock_monotonic_ns();
	if (last_ns < op->deadline_ns)
		rig_pass_ns(op->deadline_ns - last_ns);
	if (a_was_asked == 1)
		a_failed_ns = rig_real_ns();
	return OP_TIMEOUT;
}

static void hook(fake_op_hook *on_op)
{
	fake_lock(&fake);
	LET(on_op, on_op);
	fake_unlock(&fake);
}

static void every_page_is_read_while_one_rail_is_broken(void **state)
{
	unsigned char *at = memory(1 << 20);
	uint64_t start_ns = clock_monotonic_ns();

	hook(rail_0_is_broken);
	for (unsigned n = 0; n < 8; n++) {
		char name[32];

		sprintf(name, "key-%u", n);
		fake_lock(&fake);
		fake_page(&fake, name, FAKE_A, n % 2, 1000);
		fake_unlock(&fake);
		assert_int_equal(get_one(name, at, 1000, PATIENCE_MS), PC_HIT);
		assert_true(same(name, at, 0, 1000));
	}
	/* The library avoids a failed rail for RAIL_REST_NS, which bounds the failed READs. */
	assert_true(SEEN(pages[0]) <= 1 + (clock_monotonic_ns() - start_ns) / RAIL_REST_NS);
	assert_true(counts().reissued <= SEEN(pages[0]));
}

static void keys_of_a_dead_owner_are_found_at_the_other_owner(void **state)
{
	unsigned char *at = memory(1 << 20);
	unsigned n = 0;
	char name[64];

	hook(a_is_down);
	for (unsigned k = 0; k < 20; k++) {
		fake_name_owned(&fake, "dead", FAKE_A, &n, name);
		fake_lock(&fake);
		fake_page(&fake, name, FAKE_B, 0, 1000);
		fake_unlock(&fake);
		assert_int_equal(get_one(name, at, 1000, PATIENCE_MS), PC_HIT);
	}
}

static void a_silent_owner_leaves_time_to_ask_the_next_owner(void **state)
{
	unsigned char *at = memory(1 << 20);
	uint32_t owner[REPLICAS_MAX];
	unsigned n = 0, asked, most;
	char name[64];

	a_was_asked = 0;
	hook(a_is_silent);
	for (unsigned k = 0; k < 4; k++) {
		do {
			struct page_key key;

			fake_name_owned(&fake, "mute", FAKE_A, &n, name);
			key = fake_key(name);
			fake_owners(&fake, &key, owner);
		} while (owner[1] != FAKE_B); /* this host would be asked first */
		fake_lock(&fake);
		fake_page(&fake, name, FAKE_B, 0, 1000);
		fake_unlock(&fake);
		assert_int_equal(get_one(name, at, 1000, 3 * PATIENCE_MS), PC_HIT);
		/*
		 * For PEER_REST_NS after its failure FAKE_A is asked last, so only the first page
		 * waits for it.
		 */
		fake_lock(&fake);
		asked = a_was_asked;
		most = 1 + (unsigned)((rig_real_ns() - a_failed_ns) / PEER_REST_NS);
		fake_unlock(&fake);
		assert_in_range(asked, 1, most);
	}
}

static void a_page_on_a_dead_node_is_unreachable(void **state)
{
	unsigned char at[64];
	unsigned n = 0;
	char name[64];

	fake_name_owned(&fake, "gone", FAKE_B, &n, name);
	fake_page(&fake, name, FAKE_A, 0, sizeof(at));
	hook(a_is_down);
	assert_int_equal(get_one(name, at, sizeof(at), PATIENCE_MS), PC_UNREACHABLE);
	assert_int_equal(counts().unreachable, 1);
}

static void a_copy_on_a_live_node_is_read_when_the_other_died(void **state)
{
	unsigned char at[64];

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	fake_page(&fake, "key-1", FAKE_B, 0, sizeof(at));
	hook(a_is_down);
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
	assert_true(same("key-1", at, 0, sizeof(at)));
}

static void a_lookup_without_answer_times_out(void **state)
{
	uint64_t start_ns = clock_monotonic_ns();
	unsigned n = 0;
	char name[64];

	hook(hold_everything);
	fake_name_owned(&fake, "mute", FAKE_A, &n, name);
	/* If the key's other owner is this host, the result is a miss: try the next name. */
	while (exists_one(name, 100) != PC_TIMEOUT)
		fake_name_owned(&fake, "mute", FAKE_A, &n, name);
	/* The calls end at their own deadlines, long before the default deadline. */
	assert_true(elapsed_ms(start_ns) < PC_TIMEOUT_MS_DEFAULT);
	/* The rails answer late, when the pages have already ended. */
	fake_lock(&fake);
	LET(on_op, NULL);
	fake_answer_held(&fake);
	fake_unlock(&fake);
	assert_int_not_equal(exists_one(name, PATIENCE_MS), PC_TIMEOUT);
}

static void a_staged_page_times_out_at_its_deadline_and_keeps_its_block(void **state)
{
	unsigned char at[4096] = {0};
	uint64_t start_ns;

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	fake_page(&fake, "key-2", FAKE_A, 0, sizeof(at));
	hook(hold_pages_for_a_minute);
	start_ns = clock_monotonic_ns();
	assert_int_equal(get_one("key-1", at, sizeof(at), 60000), PC_TIMEOUT);
	assert_in_range(elapsed_ms(start_ns), 60000, 60000 + PC_TIMEOUT_MS_DEFAULT);
	assert_true(ch->staging.last - ch->staging.first == 1);
	hook(NULL);
	assert_int_equal(get_one("key-2", at, sizeof(at), PATIENCE_MS), PC_HIT);
	fake_lock(&fake);
	/* The late answer writes key-1 into its abandoned block, which key-2 does not use. */
	fake_answer_held(&fake);
	fake_unlock(&fake);
	assert_true(same("key-2", at, 0, sizeof(at)));
	assert_int_equal(get_one("key-2", at, sizeof(at), PATIENCE_MS), PC_HIT);
	assert_true(same("key-2", at, 0, sizeof(at)));
	assert_true(ch->staging.last - ch->staging.first == 0);
}

static unsigned char *guard; /* destination of a copy, which cannot be written at first */

/* The copy takes a minute. */
static void pass_a_minute(int number)
{
	rig_pass_ms(60000);
	mprotect(guard, 4096, PROT_READ | PROT_WRITE);
}

static void copies_of_this_hosts_pages_end_at_the_deadline(void **state)
{
	struct sigaction before, action = {.sa_handler = pass_a_minute};
	unsigned char *at =
		mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	enum pc_result result[2];
	struct pc_page page[2];
	struct one one[2];

	for (unsigned i = 0; i < 2; i++) {
		page[i] = *one_page(&one[i], i ? "key-2" : "key-1", at + i * 4096, 4096);
		fake_page(&fake, one[i].name, FAKE_SELF, 0, 4096);
	}
	assert_int_equal(pc_exists(ch, page, 2, PATIENCE_MS, result), 0);
	guard = at;
	assert_int_equal(mprotect(guard, 4096, PROT_READ), 0);
	sigaction(SIGSEGV, &action, &before);
	assert_int_equal(pc_get(ch, page, 2, 60000, result), 0);
	sigaction(SIGSEGV, &before, NULL);
	assert_int_equal(result[0], PC_HIT);
	assert_int_equal(result[1], PC_TIMEOUT);
	munmap(at, 8192);
}

static uint32_t returned, returned_early; /* the get has returned; it had before the answer */

static void *answer_later(void *context)
{
	SEEN_SOON(held_count);
	rig_pass_ms(62000); /* the deadline of the get is over for two seconds */
	rig_clock_seen(&returned);
	returned_early = __atomic_load_n(&returned, __ATOMIC_SEQ_CST);
	fake_lock(context);
	fake_answer_held(context);
	fake_unlock(context);
	return NULL;
}

static void a_get_into_registered_memory_returns_only_after_the_rail_answers(void **state)
{
	int file = memfd_create("stderr", MFD_CLOEXEC), before = dup(STDERR_FILENO);
	unsigned char *at = memory(1 << 20);
	char told[1024] = "", *line;
	pthread_t thread;

	dup2(file, STDERR_FILENO);
	fake_page(&fake, "key-1", FAKE_A, 0, 1000);
	hook(hold_pages);
	assert_int_equal(pthread_create(&thread, NULL, answer_later, &fake), 0);
	get_one("key-1", at, 1000, 60000);
	__atomic_store_n(&returned, 1, __ATOMIC_SEQ_CST);
	pthread_join(thread, NULL);
	dup2(before, STDERR_FILENO);
	assert_int_equal(returned_early, 0);
	assert_true(pread(file, told, sizeof(told) - 1, 0) > 0);
	line = strstr(told, "waits for the engine");
	assert_non_null(line);
	assert_null(strstr(line + 1, "waits for the engine"));
	close(file);
	close(before);
}

static void a_short_deadline_is_kept_while_a_longer_batch_waits(void **state)
{
	unsigned char at[64];
	enum pc_result long_result, short_result;
	struct pc_batch *batch;
	struct one o;
	uint64_t start_ns;

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	hook(hold_everything);
	one_page(&o, "key-1", at, sizeof(at));
	assert_int_equal(pc_submit_get(ch, &o.page, 1, 2 * PATIENCE_MS, &long_result, &batch), 0);
	assert_false(pc_poll(batch));
	start_ns = clock_monotonic_ns();
	short_result = get_one("key-1", at, sizeof(at), 100);
	assert_int_equal(short_result, PC_TIMEOUT);
	assert_true(elapsed_ms(start_ns) < PATIENCE_MS);
	hook(NULL);
	fake_lock(&fake);
	fake_answer_held(&fake);
	fake_unlock(&fake);
	pc_wait(batch);
}

/* Replaces the words of all slots and of one owner number; returns that owner's former word. */
static uint64_t damage(uint8_t owners, unsigned number, uint64_t owner)
{
	uint64_t was = fake.status->map.owner[number];

	for (uint32_t i = 0; i < MAP_SLOTS; i++) {
		struct map_slot slot = map_slot_unpack(fake.status->map.slot[i]);

		if (owners)
			slot.owners = owners;
		shm_store_release64(&fake.status->map.slot[i], map_slot_pack(&slot));
	}
	shm_store_release64(&fake.status->map.owner[number], owner);
	return was;
}

static void an_owner_that_is_not_known_yet_makes_an_absent_key_unreachable(void **state)
{
	struct map_member other = {.ref = 0x77777, .peer = FAKE_B, .rails = FAKE_RAILS};
	uint64_t was;

	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_MISS);
	fake_map(&fake, FAKE_NODES, FAKE_NODES);
	was = damage(0, FAKE_B, map_member_pack(&other));
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_UNREACHABLE);
	damage(0, FAKE_B, was);
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_MISS);
}

static void an_invalid_map_is_never_a_miss(void **state)
{
	static const uint64_t words[] = {
		0, UINT64_MAX, 0xffff000000000001, 1, 0x20ull << 56 | FAKE_REF(FAKE_A)};
	unsigned char at[64];

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
	for (unsigned i = 0; i < sizeof(words) / sizeof(*words); i++) {
		fake_map(&fake, FAKE_NODES, FAKE_NODES);
		fake.status->map.peers = UINT32_MAX;
		shm_store64(&fake.status->map.member[FAKE_A], words[i]);
		fake.status->map.epoch++;
		assert_int_equal(exists_one("absent", PATIENCE_MS), PC_UNREACHABLE);
		assert_int_equal(ch->map->members, FAKE_NODES - 1);
	}
	for (unsigned owners = 0; owners < 256; owners++) {
		enum pc_result result;

		damage((uint8_t)owners, FAKE_A, words[owners % 5]);
		result = exists_one("absent", PATIENCE_MS);
		assert_true(result == PC_UNREACHABLE || owners % 8 < 3);
	}
	fake_map(&fake, FAKE_NODES, 2);
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
}

static void a_page_on_a_node_that_left_the_map_is_not_read(void **state)
{
	unsigned char at[64];
	unsigned reads;

	fake_page(&fake, "key-1", FAKE_B, 0, sizeof(at));
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_HIT);
	fake_lock(&fake);
	fake_map(&fake, 2, 2);
	fake_unlock(&fake);
	reads = SEEN(pages[0]) + SEEN(pages[1]);
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_MISS);
	assert_int_equal(SEEN(pages[0]) + SEEN(pages[1]), reads);
}

static uint32_t any_status;

static uint32_t answer_any(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->kind == OP_PAGE ? any_status : FAKE_DO;
}

static void no_status_except_hit_is_a_hit(void **state)
{
	unsigned char at[64];

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	hook(answer_any);
	for (uint32_t status = OP_HIT + 1; status < OP_STATUS_COUNT + 3; status++) {
		enum pc_result result;

		fake_lock(&fake);
		any_status = status;
		fake_unlock(&fake);
		result = get_one("key-1", at, sizeof(at), 100);
		assert_int_not_equal(result, PC_HIT);
		assert_int_not_equal(result, PC_PENDING);
	}
	fake_lock(&fake);
	any_status = UINT32_MAX;
	fake_unlock(&fake);
	assert_int_not_equal(get_one("key-1", at, sizeof(at), 100), PC_HIT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(every_page_is_read_while_one_rail_is_broken),
		RIG_TEST(keys_of_a_dead_owner_are_found_at_the_other_owner),
		RIG_TEST(a_silent_owner_leaves_time_to_ask_the_next_owner),
		RIG_TEST(a_page_on_a_dead_node_is_unreachable),
		RIG_TEST(a_copy_on_a_live_node_is_read_when_the_other_died),
		RIG_TEST(a_lookup_without_answer_times_out),
		RIG_TEST(a_staged_page_times_out_at_its_deadline_and_keeps_its_block),
		RIG_TEST(copies_of_this_hosts_pages_end_at_the_deadline),
		RIG_TEST(a_get_into_registered_memory_returns_only_after_the_rail_answers),
		RIG_TEST(a_short_deadline_is_kept_while_a_longer_batch_waits),
		RIG_TEST(an_owner_that_is_not_known_yet_makes_an_absent_key_unreachable),
		RIG_TEST(an_invalid_map_is_never_a_miss),
		RIG_TEST(a_page_on_a_node_that_left_the_map_is_not_read),
		RIG_TEST(no_status_except_hit_is_a_hit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
