/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Relays of a member that the test plays: node 1 passes them on, node 2 is the owner. A node is one
 * control plane in the test's process; time is simulated.
 */
#include "tests/unit/control/directory/relay_world.h"

static void relay(uint64_t serial, uint32_t holder, uint32_t owner, uint64_t order, size_t count)
{
	Pc__Entry entry[4], *at[4];
	Pc__Relay body = PC__RELAY__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	for (size_t i = 0; i < count; i++) {
		struct page_key key = key_of(7000 + i);

		entry[i] = (Pc__Entry)PC__ENTRY__INIT;
		entry[i].key0 = key.word[0];
		entry[i].key1 = key.word[1];
		entry[i].place = place_make(0, 5);
		entry[i].generation = 3;
		at[i] = &entry[i];
	}
	body.serial = serial;
	body.holder = holder;
	body.owner = owner;
	body.order = order;
	body.n_entries = count;
	body.entries = at;
	message.body_case = PC__MESSAGE__BODY_RELAY;
	message.relay = &body;
	raw_message(raw, &message);
}

/* Reads messages until a Relayed with this serial comes. */
static bool relayed_done(uint64_t serial)
{
	static uint8_t bytes[1 << 18];
	size_t have = 0;

	for (unsigned turns = 0; turns < 1000; turns++) {
		size_t at = 0;

		have += raw_read(raw, bytes + have, sizeof(bytes) - have, 10);
		while (have - at >= 4) {
			Pc__Message *message;
			uint32_t length;
			bool ours, done;

			memcpy(&length, bytes + at, 4);
			length = ntohl(length);
			if (have - at - 4 < length)
				break;
			message = pc__message__unpack(NULL, length, bytes + at + 4);
			assert_non_null(message);
			ours = message->body_case == PC__MESSAGE__BODY_RELAYED &&
			       message->relayed->serial == serial;
			done = ours && message->relayed->done;
			pc__message__free_unpacked(message, NULL);
			if (ours)
				return done;
			at += 4 + length;
		}
		memmove(bytes, bytes + at, have - at);
		have -= at;
	}
	fail_msg("no answer to relay %u", (unsigned)serial);
	return false;
}

static void a_relay_older_than_a_batch_of_its_holder_is_refused(void **state)
{
	uint64_t newest;

	(void)state;
	put(0, KEYS);
	assert_true(nodes_until(found(0, KEYS) == KEYS, 2000));
	newest = owner_seen(2, 0)->newest;
	assert_true(newest > 0);
	raw_join(2);
	relay(1, node[0].control.ref, node[2].control.ref, newest, 1);
	assert_false(relayed_done(1));
	assert_int_equal(anywhere(7000), 0);
	relay(2, node[0].control.ref, node[2].control.ref, newest + 1, 1);
	assert_true(relayed_done(2));
	assert_int_equal(anywhere(7000), 1);
	relay(3, node[0].control.ref, node[2].control.ref, newest + 1, 1);
	assert_false(relayed_done(3));
	newest = owner_seen(2, 0)->newest = 1;
	for (unsigned k = 0; k < KEYS; k++)
		drop(k);
	assert_true(nodes_until(owner_seen(2, 0)->newest > newest, 1000));
}

/* What may still come over a link that the holder has given up is older than the relay. */
static void a_relay_ends_the_old_links_with_its_holder(void **state)
{
	const struct rpc_link *link;
	uint64_t up_ns;

	(void)state;
	nodes_run(DEAD_MS);
	up_ns = clock_now_ns();
	raw_join(2);
	relay(1, node[0].control.ref, node[2].control.ref, 1000000, 1);
	assert_true(relayed_done(1));
	assert_true(nodes_until(member_link(&node[2].control, node[0].control.ref) &&
					member_link(&node[0].control, node[2].control.ref),
		2000));
	assert_true(member_link(&node[2].control, node[0].control.ref)->up_ns > up_ns);
	assert_int_equal(node[2].control.counter[COUNTER_members_died], 0);
	/* A young link is not one that the holder has given up. */
	link = member_link(&node[2].control, node[0].control.ref);
	relay(2, node[0].control.ref, node[2].control.ref, 1000001, 1);
	assert_true(relayed_done(2));
	assert_ptr_equal(link, member_link(&node[2].control, node[0].control.ref));
}

static void a_relay_for_a_holder_that_is_no_member_is_refused(void **state)
{
	(void)state;
	raw_join(2);
	relay(1, 0x777, node[2].control.ref, 1, 1);
	assert_false(relayed_done(1));
	relay(2, node[2].control.ref + 1, node[2].control.ref, 1, 1);
	assert_false(relayed_done(2));
	assert_int_equal(anywhere(7000), 0);
	assert_int_equal(node[2].control.counter[COUNTER_relays_refused], 2);
}

static void a_relay_to_an_owner_that_is_not_reached_is_refused(void **state)
{
	(void)state;
	raw_join(1);
	relay(1, RAW_REF, 0x777, 1, 1);
	assert_false(relayed_done(1));
	cut(1, 2);
	relay(2, RAW_REF, node[2].control.ref, 2, 1);
	assert_false(relayed_done(2));
}

static void a_relay_of_a_relay_and_malformed_ones_end_the_link(void **state)
{
	(void)state;
	raw_join(1);
	relay(1, node[0].control.ref, node[2].control.ref, 1, 1);
	assert_true(raw_closed(raw, 1000));
	close(raw);
	raw_join(1);
	relay(1, RAW_REF, node[2].control.ref, 1, 0);
	assert_true(raw_closed(raw, 1000));
	close(raw);
	raw_join(1);
	relay(1, RAW_REF, RAW_REF, 1, 1);
	assert_true(raw_closed(raw, 1000));
	assert_int_equal(anywhere(7000), 0);
}

static unsigned passes(const struct rpc_link *from)
{
	const struct pass *pass;
	unsigned count = 0;

	LIST_FOREACH (pass, &node[1].control.directory->passes, next)
		count += pass->from == from;
	return count;
}

static void relays_that_pile_up_are_refused(void **state)
{
	const struct rpc_link *link;
	const struct pass *pass;

	(void)state;
	/* serials of node 1 that differ from those of the relays */
	node[1].control.directory->serial += 100000;
	raw_join(1);
	link = member_link(&node[1].control, RAW_REF);
	node[2].stalled = true;
	for (unsigned i = 1; i <= PASSES_LINK_MAX + 10; i++)
		relay(i, RAW_REF, node[2].control.ref, i, 1);
	assert_true(
		nodes_until(node[1].control.counter[COUNTER_relays_refused] == 10, DEAD_MS / 2));
	assert_int_equal(passes(link), PASSES_LINK_MAX);
	LIST_FOREACH (pass, &node[1].control.directory->passes, next)
		assert_int_not_equal(pass->serial_to, pass->serial_from);
	/* The holder's link closes: what is left has no one to answer to. */
	close(raw);
	raw = -1;
	assert_true(nodes_until(passes(link) == 0, 1000));
	node[2].stalled = false;
	assert_true(nodes_until(LIST_EMPTY(&node[1].control.directory->passes), 2000));
}

static void a_relay_whose_owner_is_lost_is_refused(void **state)
{
	(void)state;
	raw_join(1);
	node[2].stalled = true;
	relay(1, RAW_REF, node[2].control.ref, 1, 1);
	assert_true(nodes_until(passes(member_link(&node[1].control, RAW_REF)) == 1, 100));
	rpc_link_close(member_link(&node[1].control, node[2].control.ref));
	assert_false(relayed_done(1));
	assert_true(LIST_EMPTY(&node[1].control.directory->passes));
}

/* The owner runs, and answers everything but the relay. */
static void a_relay_that_its_owner_never_answers_is_refused(void **state)
{
	struct pass *pass;

	(void)state;
	raw_join(1);
	node[2].stalled = true;
	relay(1, RAW_REF, node[2].control.ref, 1, 1);
	assert_true(nodes_until(passes(member_link(&node[1].control, RAW_REF)) == 1, 100));
	/* its answer is not known here */
	pass = LIST_FIRST(&node[1].control.directory->passes);
	pass->serial_to += 1000;
	node[2].stalled = false;
	nodes_run(DEAD_MS / 2);
	assert_int_equal(passes(pass->from), 1);
	for (unsigned i = 0; i < DEAD_MS && !LIST_EMPTY(&node[1].control.directory->passes); i++)
		nodes_run(1);
	assert_true(LIST_EMPTY(&node[1].control.directory->passes));
}

/* A Relayed that answers nothing, and one with indices that do not exist. */
static void answers_to_no_relay_change_nothing(void **state)
{
	uint32_t failed[2] = {1, 0};
	Pc__Relayed body = PC__RELAYED__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	(void)state;
	raw_join(1);
	body.serial = 99;
	body.done = true;
	message.body_case = PC__MESSAGE__BODY_RELAYED;
	message.relayed = &body;
	raw_message(raw, &message);
	body.failed = failed;
	body.n_failed = 2;
	raw_message(raw, &message);
	nodes_run(50);
	assert_non_null(member_link(&node[1].control, RAW_REF));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_relay_older_than_a_batch_of_its_holder_is_refused),
		T(a_relay_ends_the_old_links_with_its_holder),
		T(a_relay_for_a_holder_that_is_no_member_is_refused),
		T(a_relay_to_an_owner_that_is_not_reached_is_refused),
		T(a_relay_of_a_relay_and_malformed_ones_end_the_link),
		T(relays_that_pile_up_are_refused),
		T(a_relay_whose_owner_is_lost_is_refused),
		T(a_relay_that_its_owner_never_answers_is_refused),
		T(answers_to_no_relay_change_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
