/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Relays: entries for an owner that their holder has no connection with. Node 0 holds, node 1
 * relays, node 2 owns. A node is one control plane in the test's process; time is simulated.
 */
#include "tests/unit/control/directory/relay_world.h"

static bool all_removed(void)
{
	for (unsigned k = 0; k < KEYS; k++)
		if (anywhere(k))
			return false;
	return true;
}

static void entries_reach_an_owner_through_another_member(void **state)
{
	unsigned hits;

	(void)state;
	cut(0, 2);
	put(0, KEYS);
	nodes_run(DEAD_MS / SUSPECT_PART / 2);
	assert_int_equal(node[0].control.counter[COUNTER_relays_sent], 0);
	assert_true(nodes_until(found(0, KEYS) == KEYS, 2000));
	assert_true(node[0].control.counter[COUNTER_relays_sent] > 0);
	assert_int_equal(node[1].control.counter[COUNTER_relays_passed],
		node[0].control.counter[COUNTER_relays_sent]);
	assert_int_equal(node[2].control.counter[COUNTER_relays_refused], 0);
	assert_null(member_link(&node[0].control, node[2].control.ref));
	/* Once relays work, a set waits for them: it is a hit. */
	nodes_run(DEAD_MS);
	assert_int_equal(node[0].dones, KEYS);
	assert_true(suspect_steers(owner_seen(0, 2)->why));
	hits = node[0].hits;
	put(KEYS, KEYS);
	assert_true(nodes_until(node[0].dones == 2 * KEYS, 1000));
	assert_int_equal(node[0].hits, hits + KEYS);
	assert_int_equal(found(KEYS, KEYS), KEYS);
	assert_true(sees(0, 2) && sees(2, 0));
	assert_true(nodes_until(owner_idle(owner_seen(0, 2)), 1000));
	heal(0, 2);
	assert_true(nodes_until(member_link(&node[0].control, node[2].control.ref), 1000));
	assert_false(owner_relays(owner_seen(0, 2)));
}

/* The first member that is tried does not reach the owner. */
static void another_member_is_tried_when_one_refuses(void **state)
{
	unsigned peer;

	(void)state;
	node[3].settings.cluster_replicas = 1;
	assert_int_equal(node_open(3, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	peer = entry_of(0, 1)->record.peer;
	owner_seen(0, 2)->relay_turn = peer;
	cut(0, 2);
	cut(1, 2);
	put(0, KEYS);
	assert_true(nodes_until(found(0, KEYS) == KEYS, 2000));
	assert_true(node[1].control.counter[COUNTER_relays_refused] > 0);
	assert_int_not_equal(owner_seen(0, 2)->relay_turn, peer);
}

/*
 * A relay is still with a member that does not run when a new connection with the owner is there. A
 * removal of the page that the relay publishes waits for the relay's end.
 */
static void a_removal_does_not_overtake_the_relay_of_its_page(void **state)
{
	(void)state;
	cut(0, 2);
	put(0, KEYS);
	assert_true(nodes_until(owner_seen(0, 2)->unlinked_ns &&
					clock_now_ns() - owner_seen(0, 2)->unlinked_ns > 29000000,
		100));
	node[1].stalled = true;
	assert_true(nodes_until(owner_seen(0, 2)->relay, 1000));
	heal(0, 2);
	assert_true(nodes_until(member_link(&node[0].control, node[2].control.ref), 1000));
	assert_non_null(owner_seen(0, 2)->relay);
	for (unsigned k = 0; k < KEYS; k++)
		drop(k);
	nodes_run(5);
	node[1].stalled = false;
	assert_true(
		nodes_until(owner_idle(owner_seen(0, 2)) && owner_idle(owner_seen(0, 1)), 2000));
	assert_true(all_removed());
}

static void removals_reach_an_owner_through_another_member(void **state)
{
	(void)state;
	put(0, KEYS);
	assert_true(nodes_until(found(0, KEYS) == KEYS, 2000));
	cut(0, 2);
	for (unsigned k = 0; k < KEYS; k++)
		drop(k);
	assert_true(nodes_until(owner_idle(owner_seen(0, 2)), 2000));
	assert_true(all_removed());
}

/* The sets fail in time, and the entries arrive later. */
static void a_relay_that_no_member_can_pass_on_is_refused(void **state)
{
	(void)state;
	cut(0, 2);
	cut(1, 2);
	put(0, KEYS);
	nodes_run(2 * DEAD_MS);
	assert_int_equal(node[1].control.counter[COUNTER_relays_passed], 0);
	assert_true(node[1].control.counter[COUNTER_relays_refused] > 0);
	/* bounded: RELAY_TRIES_MAX per heartbeat */
	assert_true(node[1].control.counter[COUNTER_relays_refused] <
		    RELAY_TRIES_MAX * (2u * DEAD_MS / BEAT_MS + 2));
	assert_int_equal(node[0].dones, KEYS);
	heal(1, 2);
	assert_true(nodes_until(found(0, KEYS) == KEYS, 2000));
}

/* The owner does not run for a while; then the relay's member does not; then their link closes. */
static void a_relay_that_is_lost_is_sent_again(void **state)
{
	(void)state;
	cut(0, 2);
	node[2].stalled = true;
	put(0, KEYS);
	assert_true(nodes_until(owner_seen(0, 2)->relay, 1000));
	nodes_run(DEAD_MS / 4);
	node[2].stalled = false;
	assert_true(nodes_until(found(0, KEYS) == KEYS, 2000));
	node[1].stalled = true;
	put(KEYS, KEYS);
	assert_true(nodes_until(owner_seen(0, 2)->relay, 1000));
	assert_true(nodes_until(!owner_seen(0, 2)->relay, DEAD_MS / 3));
	node[1].stalled = false;
	assert_true(nodes_until(found(KEYS, KEYS) == KEYS, 2000));
	node[2].stalled = true;
	put(2 * KEYS, KEYS);
	assert_true(nodes_until(owner_seen(0, 2)->relay, 1000));
	rpc_link_close(member_link(&node[0].control, node[1].control.ref));
	assert_null(owner_seen(0, 2)->relay);
	node[2].stalled = false;
	assert_true(nodes_until(found(2 * KEYS, KEYS) == KEYS, 2000));
}

/* The member that answers is not the one that was sent the relay. */
static void an_answer_of_another_member_is_none(void **state)
{
	Pc__Relayed body = PC__RELAYED__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	(void)state;
	raw_join(0);
	cut(0, 2);
	owner_seen(0, 2)->relay_turn = entry_of(0, 1)->record.peer;
	node[2].stalled = true;
	put(0, KEYS);
	assert_true(nodes_until(owner_seen(0, 2)->relay, 1000));
	body.serial = owner_seen(0, 2)->relay->serial;
	body.done = true;
	message.body_case = PC__MESSAGE__BODY_RELAYED;
	message.relayed = &body;
	raw_message(raw, &message);
	nodes_run(10);
	assert_non_null(owner_seen(0, 2)->relay);
}

/*
 * Links are cut and heal at random while pages come and go: in the end every page is found, and no
 * entry of a removed page is left, so no relay and no direct batch overtook another one.
 */
static void no_entry_is_lost_or_left_whatever_is_cut(void **state)
{
	bool is_cut = false;

	(void)state;
	srandom(7);
	for (unsigned step = 0; step < 4000; step++) {
		unsigned k = (unsigned)random() % KEYS, what = (unsigned)random() % 100;

		if (what < 50)
			node_put(0, k, step + 1, 1000);
		else if (what < 88)
			drop(k);
		else if (what < 90 && !is_cut)
			cut(0, 2), is_cut = true;
		else if (what == 90 && is_cut)
			heal(0, 2), is_cut = false;
		else if (what == 91)
			node[1 + random() % 2].stalled = true;
		else if (what < 94)
			node[1].stalled = node[2].stalled = false;
		else
			nodes_run((unsigned)random() % 60);
	}
	node[1].stalled = node[2].stalled = false;
	if (is_cut)
		heal(0, 2);
	assert_true(
		nodes_until(all_agree() && still(node[0].control.directory) &&
				    owner_idle(owner_seen(0, 2)) && owner_idle(owner_seen(0, 1)),
			9000));
	for (unsigned k = 0; k < KEYS; k++) {
		struct page_key key = key_of(k);

		if (index_find(node[0].control.index, &key))
			assert_int_equal(found_at_owners(0, 0, k), 1);
		else
			assert_int_equal(anywhere(k), 0);
	}
	assert_true(node[0].control.counter[COUNTER_relays_sent] > 20);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(entries_reach_an_owner_through_another_member),
		T(removals_reach_an_owner_through_another_member),
		T(a_relay_that_no_member_can_pass_on_is_refused),
		T(a_relay_that_is_lost_is_sent_again),
		T(an_answer_of_another_member_is_none),
		T(another_member_is_tried_when_one_refuses),
		T(a_removal_does_not_overtake_the_relay_of_its_page),
		T(no_entry_is_lost_or_left_whatever_is_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
