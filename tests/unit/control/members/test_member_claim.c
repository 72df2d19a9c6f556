/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Silent members: a raw connection plays the member that is served by one whose event loop stands
 * still, and says so, or claims it. A node is one control plane in the test's process.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include <cmocka.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BEAT_MS 20
#define DEAD_MS 300
#define RAW_REF 0x34567890u

static int raw = -1;

static int setup(void **state)
{
	nodes_setup(BEAT_MS, DEAD_MS);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(node_open(i, i ? node_at(0) : NULL), 0);
	assert_true(nodes_until(all_agree(), 3000));
	raw = raw_open(0);
	raw_hello(raw, "raw", 0x1200000000 + RAW_REF, 9, NULL);
	assert_true(nodes_until(sees_count(0, 4), 1000));
	nodes_run(5 * BEAT_MS);
	return 0;
}

static int teardown(void **state)
{
	close(raw);
	nodes_teardown();
	assert_int_equal(qps_alive, 0);
	return 0;
}

static struct member *entry_of(uint32_t ref)
{
	const struct member_record *record = member_by_ref(&node[0].control, ref);

	assert_non_null(record);
	return member_peer(&node[0].control, record->peer);
}

/* The raw member says this of a live one. */
static void say(const struct member *entry, enum record_state state, uint32_t admission)
{
	struct member_texts texts;
	Pc__Member member = PC__MEMBER__INIT;

	member_describe(entry, &texts, &member);
	raw_record(raw, &member, state, admission);
}

/* A heartbeat of the raw member, which reads what came. */
static void beat(void)
{
	static uint8_t bytes[1 << 17];

	while (recv(raw, bytes, sizeof(bytes), 0) > 0)
		continue;
	raw_beat(raw);
}

/* Lets the time pass; the raw member refutes claims of node 2. */
static void run_refuting(unsigned ms)
{
	for (unsigned i = 0; i < ms / BEAT_MS; i++) {
		const struct member *entry = entry_of(node[2].control.ref);

		beat();
		if (entry->stage == RECORD_CLAIMED)
			say(entry, RECORD_ALIVE, entry->admission + 1);
		nodes_run(BEAT_MS);
	}
}

static uint64_t since_ms(uint64_t from_ns)
{
	return (clock_now_ns() - from_ns) / 1000000;
}

static void a_silent_member_stays_while_it_serves_another_one(void **state)
{
	uint32_t ref = node[2].control.ref;
	uint64_t from_ns;

	node[2].stalled = true;
	run_refuting(4 * DEAD_MS);
	assert_true(sees(0, 2) && sees(1, 2));
	assert_null(member_link(&node[0].control, ref)); /* closed and dialled again */
	assert_int_equal(node[0].control.counter[COUNTER_members_kept], 1);
	assert_int_equal(node[0].control.counter[COUNTER_members_died], 0);
	/* That one is served no longer, either. Node 0 has heard nothing that spares the member. */
	from_ns = clock_now_ns();
	say(entry_of(ref), RECORD_CLAIMED, entry_of(ref)->admission);
	while (sees(0, 2) && since_ms(from_ns) < 10 * DEAD_MS) {
		beat();
		nodes_run(BEAT_MS);
	}
	assert_in_range(since_ms(from_ns), DEAD_MS / 10, DEAD_MS / 10 + 3 * BEAT_MS);
}

static void a_member_that_is_heard_again_is_no_longer_kept(void **state)
{
	uint32_t ref = node[2].control.ref;

	node[2].stalled = true;
	run_refuting(2 * DEAD_MS);
	assert_int_equal(node[0].control.counter[COUNTER_members_kept], 1);
	node[2].stalled = false;
	run_refuting(2 * DEAD_MS);
	assert_true(sees(0, 2));
	assert_false(entry_of(ref)->contact->kept);
	assert_non_null(member_link(&node[0].control, ref));
	assert_int_equal(node[0].control.counter[COUNTER_members_died], 0);
	/* The claim is forgotten with the silence: the next one comes at once. */
	assert_int_equal(entry_of(ref)->contact->accused_ns, 0);
}

static void a_silent_member_that_serves_none_is_removed_in_time(void **state)
{
	uint64_t from_ns = clock_now_ns();

	node[2].stalled = true;
	while (sees(0, 2) && since_ms(from_ns) < 10 * DEAD_MS) {
		beat();
		nodes_run(BEAT_MS / 4);
	}
	assert_in_range(since_ms(from_ns), DEAD_MS - 3 * BEAT_MS, DEAD_MS + 3 * BEAT_MS);
	assert_int_equal(node[0].control.counter[COUNTER_members_kept], 0);
}

/* The raw member answers no probe, and says that it serves. */
static void a_member_s_own_word_voids_no_claim(void **state)
{
	uint64_t from_ns = clock_now_ns();
	const struct member *own = entry_of(RAW_REF);

	raw_serves = false;
	while (sees_count(0, 4) && since_ms(from_ns) < 10 * DEAD_MS) {
		beat();
		if (own->stage == RECORD_CLAIMED)
			say(own, RECORD_ALIVE, own->admission + 1);
		nodes_run(BEAT_MS);
	}
	assert_true(since_ms(from_ns) < 3 * DEAD_MS);
	raw_serves = true;
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_silent_member_stays_while_it_serves_another_one),
		T(a_member_that_is_heard_again_is_no_longer_kept),
		T(a_silent_member_that_serves_none_is_removed_in_time),
		T(a_member_s_own_word_voids_no_claim),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
