/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removals that wait until their tombstones are durable. The disk of each node is a stub: the test
 * ends the tombstones. A node is one control plane in the test's process.
 */
#include "engine/control/clients/clients.h"
#include "tests/unit/control/test_rpc_nodes.h"

#include <cmocka.h>
#include <string.h>

#include "engine/control/directory/directory_state.h"
#include "engine/control/pages/pages.h"
#include "numa/clock.h"

#define DEAD_MS 3000 /* so a request may wait 300 ms before its owner is suspect */

static int teardown(void **state)
{
	(void)state;
	nodes_teardown();
	return 0;
}

/* Nodes 1 and up have a disk. */
static void open_nodes(unsigned count)
{
	nodes_setup(20, DEAD_MS);
	for (unsigned i = 0; i < count; i++) {
		assert_int_equal(node_open(i, i ? node_at(0) : NULL), 0);
		node[i].forget = i ? FORGET_LATER : FORGET_DURABLE;
		node[i].control.tier = i ? (struct tier *)&node[i] : NULL;
	}
	assert_true(nodes_until(all_agree(), 3000));
}

static void forget(unsigned i, uint64_t number, unsigned deadline_ms)
{
	struct page_key key = key_of(number);

	directory_forget(&node[i].control, &key,
		&(struct waiter){.deadline_ns = clock_now_ns() + (uint64_t)deadline_ms * 1000000,
			.done = node_done,
			.context = &node[i],
			.cookie = 0});
}

/* Ends the tombstone that node i wrote last. */
static void synced(unsigned i, bool durable)
{
	const struct forget_wait *wait = &node[i].wait[--node[i].waits];

	wait->done(&node[i].control, wait->context, wait->cookie, durable);
}

static void put_everywhere(unsigned nodes, uint64_t number)
{
	for (unsigned i = 0; i < nodes; i++) {
		unsigned dones = node[i].dones;

		node_put(i, number, 1, 5000);
		assert_true(nodes_until(node[i].dones == dones + 1, 1000));
		node[i].dones = node[i].hits = 0;
	}
}

static struct owner *owner_seen(unsigned i, unsigned of)
{
	const struct member_record *record = member_by_ref(&node[i].control, node[of].control.ref);

	assert_non_null(record);
	return owner_at(node[i].control.directory, record->peer);
}

static void a_removal_is_answered_when_the_tombstones_of_all_members_are_durable(void **state)
{
	(void)state;
	open_nodes(3);
	put_everywhere(3, 7);
	forget(0, 7, 60000);
	assert_true(nodes_until(node[1].waits && node[2].waits, 1000));
	nodes_run(1000);
	assert_int_equal(node[0].dones, 0);
	synced(1, true);
	nodes_run(1000);
	assert_int_equal(node[0].dones, 0);
	synced(2, true);
	assert_true(nodes_until(node[0].dones == 1, 100));
	assert_int_equal(node[0].status, OP_HIT);
	/* Of a key that no member has, too: an older copy may lie on a disk. */
	forget(0, 8, 60000);
	assert_true(nodes_until(node[1].waits && node[2].waits, 1000));
	synced(1, true);
	synced(2, true);
	assert_true(nodes_until(node[0].dones == 2, 100));
	assert_int_equal(node[0].status, OP_MISS);
}

static void the_engine_of_the_client_waits_for_its_own_disk(void **state)
{
	(void)state;
	open_nodes(2);
	node[1].forget = FORGET_DURABLE;
	node[0].forget = FORGET_LATER;
	put_everywhere(2, 7);
	forget(0, 7, 60000);
	nodes_run(1000);
	assert_int_equal(node[0].dones, 0);
	synced(0, true);
	assert_true(nodes_until(node[0].dones == 1, 100));
	assert_int_equal(node[0].status, OP_HIT);
	forget(0, 7, 60000);
	synced(0, false);
	assert_true(nodes_until(node[0].dones == 2, 100));
	assert_int_equal(node[0].status, OP_PEER_DOWN);
	node[0].forget = FORGET_VOLATILE;
	forget(0, 7, 60000);
	assert_true(nodes_until(node[0].dones == 3, 100));
	assert_int_equal(node[0].status, OP_PEER_DOWN);
}

static void a_removal_that_is_not_durable_everywhere_is_unreachable(void **state)
{
	(void)state;
	open_nodes(3);
	put_everywhere(3, 7);
	forget(0, 7, 60000);
	forget(0, 8, 60000);
	assert_true(nodes_until(node[1].waits == 2 && node[2].waits == 2, 1000));
	for (unsigned i = 0; i < 2; i++)
		synced(1, true);
	/* The second one of the message fails, and only that one. */
	synced(2, false);
	synced(2, true);
	assert_true(nodes_until(node[0].dones == 2, 100));
	assert_int_equal(node[0].hits, 1);
	assert_int_equal(node[0].status, OP_PEER_DOWN);
	node[2].forget = FORGET_VOLATILE; /* no path is in service */
	forget(0, 9, 60000);
	assert_true(nodes_until(node[1].waits == 1, 1000));
	synced(1, true);
	assert_true(nodes_until(node[0].dones == 3, 100));
	assert_int_equal(node[0].status, OP_PEER_DOWN);
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
}

static void at_the_deadline_the_answer_is_timeout_though_a_disk_hangs(void **state)
{
	(void)state;
	open_nodes(2);
	forget(0, 7, 500);
	assert_true(nodes_until(node[1].waits == 1, 400));
	assert_int_equal(node[0].dones, 0);
	assert_true(nodes_until(node[0].dones == 1, 1000));
	assert_int_equal(node[0].status, OP_TIMEOUT);
	synced(1, true);
	assert_true(nodes_until(owner_seen(0, 1)->unsynced_count == 0, 1000));
	assert_int_equal(owner_seen(0, 1)->background, 0);
	assert_int_equal(node[0].control.directory->background, 0);
	assert_int_equal(node[0].dones, 1);
}

static void a_disk_that_hangs_delays_no_publish_and_makes_no_member_suspect(void **state)
{
	(void)state;
	open_nodes(2);
	/* More messages than may be without an acknowledgement. */
	for (unsigned n = 0; n < 2 * BATCHES_MAX; n++) {
		forget(0, n, 600000);
		assert_true(nodes_until(node[1].waits == n + 1, 1000));
	}
	nodes_run(3 * DEAD_MS);
	assert_int_equal(node[0].dones, 0);
	assert_int_equal(owner_seen(0, 1)->in_flight, 0);
	assert_int_equal(node[0].control.counter[COUNTER_owners_suspected], 0);
	assert_int_equal(node[0].control.counter[COUNTER_members_died], 0);
	node_put(0, 1000, 1, 5000);
	assert_true(nodes_until(node[0].dones == 1, 1000));
	assert_int_equal(node[0].hits, 1);
	while (node[1].waits)
		synced(1, true);
	assert_true(nodes_until(node[0].dones == 1 + 2 * BATCHES_MAX, 1000));
}

static void a_link_that_breaks_while_a_removal_waits_repeats_it(void **state)
{
	struct forget_wait before;

	(void)state;
	open_nodes(2);
	node_put(1, 7, 1, 5000);
	assert_true(nodes_until(node[1].dones == 1, 1000));
	forget(0, 7, 60000);
	assert_true(nodes_until(owner_seen(0, 1)->unsynced_count == 1, 1000));
	before = node[1].wait[--node[1].waits];
	rpc_link_close(member_link(&node[0].control, node[1].control.ref));
	assert_true(nodes_until(node[1].waits == 1, 3000));
	/* The answer to the first message has no link any more: it reaches no newer one. */
	before.done(&node[1].control, before.context, before.cookie, false);
	nodes_run(200);
	assert_int_equal(node[0].dones, 0);
	synced(1, true);
	assert_true(nodes_until(node[0].dones == 1, 1000));
	assert_int_equal(node[0].status, OP_HIT); /* the first message found the page */
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
	assert_int_equal(node[1].control.counter[COUNTER_messages_bad], 0);
}

static void a_member_that_dies_while_its_tombstone_is_written_ends_the_wait(void **state)
{
	const struct owner *owner;

	(void)state;
	open_nodes(2);
	owner = owner_seen(0, 1);
	forget(0, 7, 60000);
	assert_true(nodes_until(owner->unsynced_count == 1, 1000));
	node[1].stalled = true;
	assert_true(nodes_until(node[0].dones == 1, 4 * DEAD_MS));
	assert_int_equal(owner->unsynced_count, 0);
	node[1].stalled = false;
	synced(1, true);
	nodes_run(100);
}

static void closing_leaves_no_removal_without_an_answer(void **state)
{
	(void)state;
	open_nodes(2);
	forget(0, 7, 60000);
	assert_true(nodes_until(owner_seen(0, 1)->unsynced_count == 1, 1000));
	node_close(0);
	assert_int_equal(node[0].dones, 1);
	assert_int_equal(node[0].status, OP_CANCELLED);
	nodes_run(100);
	synced(1, true);
}

/* ---- the owners of a page -------------------------------------------------------------------- */

/* A key of which node `owner` is an owner and node `other` is none, as node 0 sees it. */
static uint64_t key_owned_by(unsigned owner, unsigned other)
{
	for (uint64_t number = 0;; number++) {
		struct page_key key = key_of(number);
		const struct map_view *view = member_map(&node[0].control);
		uint32_t at[REPLICAS_MAX];
		unsigned owners = map_owners(view, &key, at), has = 0;

		for (unsigned i = 0; i < owners; i++)
			has |= view->owner[at[i]].ref == node[owner].control.ref   ? 1
			       : view->owner[at[i]].ref == node[other].control.ref ? 2
										   : 0;
		if (has == 1)
			return number;
	}
}

/* Node 0 removes a page of node 1, of which node 2 is an owner; nodes without a disk. */
static uint64_t open_page(void)
{
	uint64_t number;

	open_nodes(3);
	for (unsigned i = 0; i < 3; i++)
		node[i].forget = FORGET_DURABLE;
	number = key_owned_by(2, 1);
	node_put(1, number, 1, 5000);
	assert_true(nodes_until(node[1].dones == 1, 1000));
	assert_int_equal(found_anywhere(1, number), 2);
	return number;
}

static void a_removal_is_answered_after_all_owners_have_dropped_the_entry(void **state)
{
	uint64_t number = open_page();
	struct page_key key = key_of(number);
	struct dir_entry found[8];

	(void)state;
	node[2].stalled = true;
	forget(0, number, 60000);
	nodes_run(200);
	assert_null(index_find(node[1].control.index, &key));
	assert_int_equal(owner_seen(0, 1)->unsynced_count, 1);
	assert_int_equal(node[0].dones, 0);
	node[2].stalled = false;
	while (!node[0].dones)
		nodes_turn();
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(shard_find(node[i].control.shard, &key, found, 8), 0);
	assert_int_equal(node[0].status, OP_HIT);
}

static void a_page_of_this_engine_is_removed_after_all_owners_have_dropped_it(void **state)
{
	uint64_t number = open_page();

	(void)state;
	node[2].stalled = true;
	forget(1, number, 60000);
	nodes_run(200);
	/* node 2 owes an answer to the Forget, too: its own part must not be what is waited for */
	assert_int_equal(node[1].dones, 1);
	node[2].stalled = false;
	while (node[1].dones == 1)
		nodes_turn();
	assert_int_equal(node[1].status, OP_HIT);
	assert_int_equal(found_anywhere(1, number), 0);
}

/* Its first removal, of an eviction or of another client, has not reached the owner. */
static void a_removal_of_a_page_that_has_just_left_waits_for_the_owners_too(void **state)
{
	uint64_t number = open_page();
	struct page_key key = key_of(number);
	struct index_entry page = *index_find(node[1].control.index, &key);
	struct dir_entry found[8];

	(void)state;
	node[2].stalled = true;
	directory_remove(&node[1].control, &key,
		&(struct location){.place = page.place, .generation = page.generation});
	(void)index_remove(node[1].control.index, &key);
	nodes_run(20);
	forget(0, number, 60000);
	nodes_run(200);
	assert_int_equal(owner_seen(0, 1)->unsynced_count, 1);
	assert_int_equal(node[0].dones, 0);
	node[2].stalled = false;
	while (!node[0].dones)
		nodes_turn();
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(shard_find(node[i].control.shard, &key, found, 8), 0);
	assert_int_equal(node[0].status, OP_MISS);
}

static void an_owner_that_leaves_before_it_has_dropped_the_entry_is_unreachable(void **state)
{
	uint64_t number = open_page();
	const struct forgets *forgets;

	(void)state;
	node[1].forget = FORGET_LATER;
	node[2].stalled = true;
	forget(0, number, 60000);
	assert_true(nodes_until(node[1].waits == 1, 100));
	forgets = LIST_FIRST(&node[1].control.directory->forgets);
	assert_int_equal(forgets->waits, 2);
	assert_true(nodes_until(forgets->waits == 1, 4 * DEAD_MS));
	assert_true(forgets->key[0].failed);
	synced(1, true);
	assert_true(nodes_until(node[0].dones == 1, 4 * DEAD_MS));
	assert_int_equal(node[0].status, OP_PEER_DOWN);
}

static void while_an_owner_is_mute_a_removal_ends_at_its_deadline(void **state)
{
	uint64_t number = open_page(), began_ns = clock_now_ns();

	(void)state;
	node[2].stalled = true;
	forget(0, number, 500);
	assert_true(nodes_until(node[0].dones == 1, 1000));
	assert_int_equal(node[0].status, OP_TIMEOUT);
	assert_in_range(clock_now_ns() - began_ns, 500000000, 600000000);
}

static void removes_that_a_client_waits_for_are_not_dropped_at_the_limit(void **state)
{
	uint64_t number = open_page();
	struct page_key key = key_of(number);

	(void)state;
	node[2].stalled = true;
	for (unsigned k = 0; k < BATCHES_MAX * MESSAGE_PAGES_MAX + 2 * OWNER_REMOVES_MAX; k++) {
		directory_remove(
			&node[1].control, &key, &(struct location){.place = 5, .generation = 77});
		if (k % MESSAGE_PAGES_MAX == 0)
			nodes_run(1);
	}
	assert_true(node[1].control.counter[COUNTER_removes_dropped] > 0);
	forget(0, number, 60000);
	nodes_run(100);
	assert_int_equal(node[0].dones, 0);
	node[2].stalled = false;
	assert_true(nodes_until(node[0].dones == 1, 2000));
	assert_int_equal(node[0].status, OP_HIT);
	assert_int_equal(found_anywhere(1, number), 0);
}

/* ---- members that are not there -------------------------------------------------------------- */

static enum op_status forgotten(unsigned i, uint64_t number)
{
	unsigned dones = node[i].dones;

	forget(i, number, 60000);
	assert_true(nodes_until(node[i].dones == dones + 1, 4 * DEAD_MS));
	return node[i].status;
}

static void a_removal_while_a_member_is_away_is_unreachable(void **state)
{
	(void)state;
	open_nodes(3);
	for (unsigned i = 0; i < 3; i++)
		node[i].forget = FORGET_DURABLE;
	assert_int_equal(forgotten(0, 7), OP_MISS);
	node_close(2);
	assert_true(nodes_until(sees_count(0, 2), 1000));
	assert_int_equal(forgotten(0, 7), OP_PEER_DOWN);
	assert_int_equal(node_open(2, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	assert_int_equal(forgotten(0, 7), OP_MISS);
}

static void until_it_has_joined_an_engine_promises_nothing(void **state)
{
	(void)state;
	nodes_setup(20, DEAD_MS);
	/* alone, and without seeds: there is no other one */
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(forgotten(0, 7), OP_MISS);
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	assert_int_equal(node_open(2, node_at(0)), 0);
	for (unsigned seen = 1; seen < 3; nodes_turn()) {
		enum op_status status = forgotten(2, 7);

		seen = member_count(&node[2].control);
		if (status != OP_PEER_DOWN)
			assert_int_equal(seen, 3);
	}
	assert_true(nodes_until(all_agree(), 3000));
	assert_int_equal(forgotten(2, 7), OP_MISS);
}

/* It has found another engine, and does not know yet that there is a third one. */
static void an_engine_that_has_just_started_waits_for_all_its_seeds(void **state)
{
	char seeds[80];

	(void)state;
	nodes_setup(20, DEAD_MS);
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node_open(1, NULL), 0);
	node[0].stalled = true;
	snprintf(seeds, sizeof(seeds), "%s,%s", node_at(0), node_at(1));
	assert_int_equal(node_open(2, seeds), 0);
	assert_true(nodes_until(sees_count(2, 2), 1000));
	assert_int_equal(forgotten(2, 7), OP_PEER_DOWN);
	nodes_run(DEAD_MS + 100);
	assert_int_equal(forgotten(2, 7), OP_MISS);
}

#define T(name) cmocka_unit_test_teardown(name, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_removal_is_answered_when_the_tombstones_of_all_members_are_durable),
		T(the_engine_of_the_client_waits_for_its_own_disk),
		T(a_removal_that_is_not_durable_everywhere_is_unreachable),
		T(at_the_deadline_the_answer_is_timeout_though_a_disk_hangs),
		T(a_disk_that_hangs_delays_no_publish_and_makes_no_member_suspect),
		T(a_link_that_breaks_while_a_removal_waits_repeats_it),
		T(a_member_that_dies_while_its_tombstone_is_written_ends_the_wait),
		T(closing_leaves_no_removal_without_an_answer),
		T(a_removal_is_answered_after_all_owners_have_dropped_the_entry),
		T(a_page_of_this_engine_is_removed_after_all_owners_have_dropped_it),
		T(a_removal_of_a_page_that_has_just_left_waits_for_the_owners_too),
		T(an_owner_that_leaves_before_it_has_dropped_the_entry_is_unreachable),
		T(while_an_owner_is_mute_a_removal_ends_at_its_deadline),
		T(removes_that_a_client_waits_for_are_not_dropped_at_the_limit),
		T(a_removal_while_a_member_is_away_is_unreachable),
		T(until_it_has_joined_an_engine_promises_nothing),
		T(an_engine_that_has_just_started_waits_for_all_its_seeds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
