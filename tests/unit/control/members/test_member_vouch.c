/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members that only other members hear: a raw connection plays the member that hears, or does not
 * hear, a node whose event loop stands still. A node is one control plane in the test's process.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include <cmocka.h>
#include <string.h>
#include <unistd.h>

#define BEAT_MS 20
#define DEAD_MS 300
#define RAW_REF 0x34567890u

static int raw = -1;

static int setup(void **state)
{
	(void)state;
	nodes_setup(BEAT_MS, DEAD_MS);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(node_open(i, i ? node_at(0) : NULL), 0);
	assert_true(nodes_until(all_agree(), 3000));
	raw = raw_open(0);
	raw_hello(raw, "raw", 0x1200000000 + RAW_REF, 9, NULL);
	assert_true(nodes_until(sees_count(0, 4), 1000));
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	close(raw);
	nodes_teardown();
	assert_int_equal(qps_alive, 0);
	return 0;
}

/* What the raw member says of others: which it hears, and which serve it. */
struct words {
	Pc__Vouch *vouches, *served;
	size_t vouches_count, served_count;
};

static void beat_words(const uint32_t *doubts, size_t doubts_count, struct words words)
{
	static uint8_t probes[1 << 17]; /* the node reads no more until these are read */
	static Pc__Vouch *at[MEMBERS_MAX + 1], *served_at[MEMBERS_MAX + 1];
	Pc__Heartbeat heartbeat = PC__HEARTBEAT__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	while (recv(raw, probes, sizeof(probes), 0) > 0)
		continue;
	for (size_t i = 0; i < words.vouches_count; i++)
		at[i] = &words.vouches[i];
	for (size_t i = 0; i < words.served_count; i++)
		served_at[i] = &words.served[i];
	heartbeat.members_digest = node[0].control.members->digest;
	heartbeat.n_doubts = doubts_count;
	heartbeat.doubts = (uint32_t *)doubts;
	heartbeat.n_vouches = words.vouches_count;
	heartbeat.vouches = at;
	heartbeat.n_served = words.served_count;
	heartbeat.served = served_at;
	message.body_case = PC__MESSAGE__BODY_HEARTBEAT;
	message.heartbeat = &heartbeat;
	raw_message(raw, &message);
}

/* It hears these members, and they serve it. */
static void beat(const uint32_t *doubts, size_t doubts_count, Pc__Vouch *vouches, size_t count)
{
	beat_words(doubts, doubts_count, (struct words){vouches, vouches, count, count});
}

static Pc__Vouch vouch(uint32_t ref, uint32_t age_ms)
{
	Pc__Vouch made = PC__VOUCH__INIT;

	made.ref = ref;
	made.age_ms = age_ms;
	return made;
}

static const struct member *entry_of(uint32_t ref)
{
	const struct member_record *record = member_by_ref(&node[0].control, ref);

	assert_non_null(record);
	return member_peer(&node[0].control, record->peer);
}

static uint64_t since_ms(uint64_t from_ns)
{
	return (clock_now_ns() - from_ns) / 1000000;
}

static void a_silent_member_stays_while_another_member_hears_it(void **state)
{
	uint32_t ref = node[2].control.ref;
	uint64_t from_ns;

	(void)state;
	node[2].stalled = true;
	for (unsigned i = 0; i < 5 * DEAD_MS / BEAT_MS; i++) {
		/* the younger of two counts */
		Pc__Vouch both[] = {vouch(ref, 0), vouch(ref, DEAD_MS - 1)};

		beat(NULL, 0, both, 2);
		nodes_run(BEAT_MS);
	}
	from_ns = clock_now_ns();
	assert_true(sees(0, 2));
	assert_null(member_link(&node[0].control, ref)); /* closed and dialled again */
	assert_int_equal(node[0].control.counter[COUNTER_members_kept], 1);
	assert_int_equal(node[0].control.counter[COUNTER_members_died], 0);
	/* Node 0 does not pass on what it did not hear itself. */
	assert_false(sees(1, 2));
	while (sees(0, 2) && since_ms(from_ns) < 10 * DEAD_MS) {
		beat(NULL, 0, NULL, 0);
		nodes_run(BEAT_MS);
	}
	assert_in_range(since_ms(from_ns), DEAD_MS - 3 * BEAT_MS, DEAD_MS + 3 * BEAT_MS);
}

/* Node 2 and what is said of it are as old as the pause; the pause was this engine's own. */
static void a_member_that_others_hear_survives_a_pause_of_this_engine(void **state)
{
	uint32_t ref = node[2].control.ref;
	uint64_t from_ns;

	(void)state;
	node[2].stalled = true;
	for (unsigned pause_ms = DEAD_MS / 2; pause_ms < 20 * DEAD_MS; pause_ms *= 2) {
		for (unsigned i = 0; i < 2 * DEAD_MS / BEAT_MS; i++) {
			Pc__Vouch one = vouch(ref, 0);

			beat(NULL, 0, &one, 1);
			nodes_run(BEAT_MS);
		}
		assert_true(sees(0, 2));
		nodes_pass(pause_ms);
	}
	/* from here on no member hears it */
	from_ns = clock_now_ns();
	while (sees(0, 2) && since_ms(from_ns) < 10 * DEAD_MS) {
		beat(NULL, 0, NULL, 0);
		nodes_run(BEAT_MS);
	}
	assert_in_range(since_ms(from_ns), DEAD_MS - 3 * BEAT_MS, DEAD_MS + 3 * BEAT_MS);
	assert_int_equal(node[0].control.counter[COUNTER_members_died], 1);
}

/* Time until node 0 removes node 2, which stands still, while the raw member says this of it. */
static uint64_t removed_ms(bool heard, bool served)
{
	uint64_t from_ns = clock_now_ns();

	node[2].stalled = true;
	while (sees(0, 2) && since_ms(from_ns) < 10 * DEAD_MS) {
		Pc__Vouch one = vouch(node[2].control.ref, 0);

		beat_words(NULL, 0, (struct words){&one, &one, heard, served});
		nodes_run(BEAT_MS);
	}
	return since_ms(from_ns);
}

static void a_member_that_serves_others_and_that_none_hears_is_removed(void **state)
{
	(void)state;
	assert_in_range(removed_ms(false, true), DEAD_MS - 3 * BEAT_MS, DEAD_MS + 3 * BEAT_MS);
	assert_int_equal(node[0].control.counter[COUNTER_members_kept], 0);
}

static void a_member_that_others_hear_and_that_serves_none_is_removed(void **state)
{
	uint64_t removal_ms = suspect_removal_ns(DEAD_MS * 1000000ull) / 1000000;

	(void)state;
	assert_in_range(removed_ms(true, false), removal_ms - 3 * BEAT_MS, removal_ms + DEAD_MS);
	assert_int_equal(node[0].control.counter[COUNTER_members_died], 1);
}

static void a_member_that_is_heard_again_is_no_longer_kept(void **state)
{
	uint32_t ref = node[2].control.ref;

	(void)state;
	node[2].stalled = true;
	for (unsigned i = 0; i < 2 * DEAD_MS / BEAT_MS; i++) {
		Pc__Vouch one = vouch(ref, 0);

		beat(NULL, 0, &one, 1);
		nodes_run(BEAT_MS);
	}
	assert_int_equal(node[0].control.counter[COUNTER_members_kept], 1);
	node[2].stalled = false;
	for (unsigned i = 0; i < 2 * DEAD_MS / BEAT_MS; i++) {
		beat(NULL, 0, NULL, 0);
		nodes_run(BEAT_MS);
	}
	assert_true(sees(0, 2));
	assert_false(entry_of(ref)->contact->kept);
	assert_non_null(member_link(&node[0].control, ref));
	assert_int_equal(node[0].control.counter[COUNTER_members_died], 0);
}

static void old_foreign_and_unknown_vouches_keep_no_member(void **state)
{
	uint32_t ref = node[2].control.ref;
	uint64_t from_ns = clock_now_ns();

	(void)state;
	node[2].stalled = true;
	while (sees(0, 2) && since_ms(from_ns) < 10 * DEAD_MS) {
		Pc__Vouch all[] = {vouch(ref, DEAD_MS + 1), vouch(ref, UINT32_MAX),
			vouch(RAW_REF, 0), vouch(node[0].control.ref, 0), vouch(0, 0),
			vouch(0x777, 0), vouch(ref, (uint32_t)since_ms(from_ns) + BEAT_MS)};
		bool late = since_ms(from_ns) > DEAD_MS * 2 / 3;

		/* The last one is from before the silence, and arrives late. */
		beat(NULL, 0, all, sizeof(all) / sizeof(all[0]) - !late);
		nodes_run(BEAT_MS);
	}
	assert_in_range(since_ms(from_ns), DEAD_MS - 3 * BEAT_MS, DEAD_MS + 3 * BEAT_MS);
	assert_int_equal(node[0].control.counter[COUNTER_members_kept], 0);
	assert_true(sees_count(0, 3)); /* the raw connection, too, is still a member */
}

/* The word of the member itself is its heartbeat; only a message of another one is a vouch. */
static void a_member_s_word_about_itself_is_no_vouch(void **state)
{
	Pc__Vouch own = vouch(RAW_REF, 0);

	(void)state;
	beat(NULL, 0, &own, 1);
	nodes_run(BEAT_MS);
	assert_int_equal(entry_of(RAW_REF)->contact->vouched_ns, 0);
}

/* The next Heartbeat with vouches. */
static Pc__Message *vouches_read(void)
{
	Pc__Message *m;

	while ((m = raw_await(raw, PC__MESSAGE__BODY_HEARTBEAT, 1000)) && !m->heartbeat->n_vouches)
		pc__message__free_unpacked(m, NULL);
	return m;
}

static void doubts_are_answered_for_members_that_the_engine_hears_itself(void **state)
{
	uint32_t doubts[] = {
		node[1].control.ref, RAW_REF, node[0].control.ref, 0, 0x777, node[1].control.ref};
	Pc__Message *answer;

	(void)state;
	beat(doubts, sizeof(doubts) / sizeof(doubts[0]), NULL, 0);
	answer = vouches_read();
	assert_non_null(answer);
	assert_int_equal(answer->heartbeat->n_vouches, 2); /* one per doubt */
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(answer->heartbeat->vouches[i]->ref, node[1].control.ref);
		assert_in_range(answer->heartbeat->vouches[i]->age_ms, 0, 2 * BEAT_MS);
	}
	assert_int_equal(answer->heartbeat->n_doubts, 0);
	pc__message__free_unpacked(answer, NULL);
}

static void longer_lists_than_there_are_members_close_the_connection(void **state)
{
	static uint32_t doubts[MEMBERS_MAX + 1];
	static Pc__Vouch vouches[MEMBERS_MAX + 1];

	(void)state;
	for (unsigned i = 0; i <= MEMBERS_MAX; i++)
		vouches[i] = vouch(node[1].control.ref, 0);
	beat(doubts, MEMBERS_MAX, vouches, MEMBERS_MAX);
	nodes_run(2 * BEAT_MS);
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
	beat(doubts, MEMBERS_MAX + 1, NULL, 0);
	assert_true(raw_closed(raw, 1000));
	close(raw);
	raw = raw_open(0);
	raw_hello(raw, "raw", 0x1200000000 + RAW_REF, 9, NULL);
	assert_true(nodes_until(sees_count(0, 4), 2000));
	for (unsigned served = 0; served < 2; served++) {
		beat_words(NULL, 0,
			(struct words){
				vouches, vouches, MEMBERS_MAX + !served, MEMBERS_MAX + served});
		assert_true(raw_closed(raw, 1000));
		assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 2 + served);
		close(raw);
		raw = raw_open(0);
		raw_hello(raw, "raw", 0x1200000000 + RAW_REF, 9, NULL);
		assert_true(nodes_until(sees_count(0, 4), 2000));
	}
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_silent_member_stays_while_another_member_hears_it),
		T(a_member_that_others_hear_survives_a_pause_of_this_engine),
		T(a_member_that_serves_others_and_that_none_hears_is_removed),
		T(a_member_that_others_hear_and_that_serves_none_is_removed),
		T(a_member_that_is_heard_again_is_no_longer_kept),
		T(old_foreign_and_unknown_vouches_keep_no_member),
		T(a_member_s_word_about_itself_is_no_vouch),
		T(doubts_are_answered_for_members_that_the_engine_hears_itself),
		T(longer_lists_than_there_are_members_close_the_connection),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
