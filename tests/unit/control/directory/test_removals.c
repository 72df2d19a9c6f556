/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What members that were away are told of removals, and the door of an engine that was started
 * again. A node is one control plane in the test's process; its pools are stubs, so the pages of
 * before are put into its index.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include <cmocka.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members_inner.h"
#include "engine/control/pages/pages.h"

#define DEAD_MS 1000
#define PAGES 200u

static int teardown(void **state)
{
	(void)state;
	nodes_teardown();
	return 0;
}

static void open_nodes(unsigned count)
{
	nodes_setup(20, DEAD_MS);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(node_open(i, i ? node_at(0) : NULL), 0);
	assert_true(nodes_until(all_agree(), 3000));
	assert_true(nodes_until(!removals_held(&node[0].control), 1000));
}

static enum op_status forgotten(unsigned i, uint64_t number)
{
	struct page_key key = key_of(number);
	unsigned dones = node[i].dones;

	directory_forget(&node[i].control, &key,
		&(struct waiter){.deadline_ns = clock_now_ns() + 60000000000ull,
			.done = node_done,
			.context = &node[i]});
	assert_true(nodes_until(node[i].dones == dones + 1, 4 * DEAD_MS));
	return node[i].status;
}

static void put(unsigned i, uint64_t number, uint32_t generation)
{
	unsigned dones = node[i].dones;

	node_put(i, number, generation, 5000);
	assert_true(nodes_until(node[i].dones == dones + 1, 4 * DEAD_MS));
}

static bool has(unsigned i, uint64_t number)
{
	struct page_key key = key_of(number);

	return index_find(node[i].control.index, &key) != NULL;
}

/* The pages that the node had before are in its pools again, as after a warm restart. */
static void pages_adopt(unsigned i, uint64_t first, uint64_t count)
{
	for (uint64_t n = first; n < first + count; n++) {
		const struct index_entry entry = {.key = key_of(n),
			.place = place_make(0, (uint32_t)n),
			.generation = 1,
			.length = 4096};

		assert_int_equal(index_put(node[i].control.index, &entry, NULL), 0);
	}
	directory_forgotten(&node[i].control, node[i].control.ref);
}

/* Ends node i as a kill does: without Leave, with its memory kept. */
static void kill_node(unsigned i)
{
	node[i].keep_ref = node[i].control.ref;
	node[i].keep_log = true;
	node_close(i);
}

/* kill_node(), until it is on the map of no node. */
static void lose_node(unsigned i)
{
	unsigned left = 0;

	kill_node(i);
	for (unsigned k = 0; k < NODES; k++)
		left += node[k].open;
	for (unsigned k = 0; k < NODES; k++)
		if (node[k].open)
			assert_true(nodes_until(sees_count(k, left), 3 * DEAD_MS));
}

static void restart(unsigned i, const char *seeds)
{
	assert_int_equal(node_open(i, seeds), 0);
	pages_adopt(i, 0, PAGES);
}

/* All pages of nodes 0 and 2 are removed while node 1 is away, but the last one. */
static void away_and_removed(unsigned nodes)
{
	open_nodes(nodes);
	for (uint64_t n = 0; n < PAGES; n++)
		put(1, n, 1);
	nodes_run(100);
	lose_node(1);
	for (uint64_t n = 0; n < PAGES - 1; n++)
		assert_int_equal(forgotten(0, n), OP_PEER_DOWN);
}

/* It has no page that is removed. One with rails is missed: away_and_removed(). */
static void a_removal_is_a_promise_while_a_member_without_rails_is_away(void **state)
{
	(void)state;
	open_nodes(2);
	node[2].bare = true;
	assert_int_equal(node_open(2, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	for (uint64_t n = 0; n < 3; n++)
		put(1, n, 1);
	assert_true(nodes_until(!member_seeking(&node[0].control), 3 * DEAD_MS));
	assert_int_equal(forgotten(0, 0), OP_HIT);
	node_close(2);
	assert_true(nodes_until(sees_count(0, 2) && sees_count(1, 2), 3 * DEAD_MS));
	assert_int_equal(forgotten(0, 1), OP_HIT);
	/* it comes back as another process, and remembers what is removed from then on */
	assert_int_equal(node_open(2, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	nodes_run(100);
	assert_int_equal(forgotten(0, 2), OP_HIT);
	assert_int_equal(node[2].control.removals->log->head, 2);
}

static void a_member_that_comes_back_publishes_no_page_that_was_removed_meanwhile(void **state)
{
	(void)state;
	away_and_removed(3);
	put(0, 5, 7); /* a new value */
	restart(1, node_at(0));
	for (unsigned turn = 0; turn < 20000 && !(has(1, PAGES - 1) && node[1].doors_opened);
		turn++) {
		for (uint64_t n = 0; n < PAGES - 1; n++)
			assert_int_equal(found_anywhere(1, n) && has(1, n), 0);
		nodes_turn();
	}
	assert_int_equal(node[1].doors_opened, 1);
	for (uint64_t n = 0; n < PAGES - 1; n++)
		assert_false(has(1, n));
	assert_true(nodes_until(all_agree(), 3000));
	assert_true(nodes_until(found_at_owners(0, 1, PAGES - 1) == 2, 3000));
	assert_int_equal(found_at_owners(0, 0, 5), 2);
	assert_int_equal(forgotten(0, PAGES - 1), OP_HIT);
	assert_false(node[1].dropped);
}

/* Until all members that it knew have told it, which the slowest one does here. */
static void the_door_waits_for_each_member_of_before(void **state)
{
	(void)state;
	away_and_removed(3);
	node[2].stalled = true;
	restart(1, node_at(0));
	assert_true(nodes_until(!has(1, 0), 500));
	nodes_run(DEAD_MS / 2);
	assert_int_equal(node[1].doors_opened, 0);
	assert_true(node[1].control.door_shut);
	assert_int_equal(found_anywhere(1, PAGES - 1), 0);
	node[2].stalled = false;
	assert_true(nodes_until(node[1].doors_opened == 1, 200));
	assert_true(nodes_until(found_anywhere(1, PAGES - 1), 1000));
}

static void the_door_waits_for_a_member_that_others_have_given_up(void **state)
{
	(void)state;
	away_and_removed(3);
	node[2].stalled = true;
	assert_true(nodes_until(sees_count(0, 1), 3 * DEAD_MS));
	restart(1, node_at(0));
	assert_true(nodes_until(!has(1, 0), 500));
	nodes_run(DEAD_MS / 2);
	assert_int_equal(node[1].doors_opened, 0);
	assert_true(nodes_until(node[1].doors_opened == 1, DEAD_MS));
}

/* It was killed before it read the Forget, just after its last message to the others. */
static void a_removal_that_a_member_was_sent_and_did_not_execute_reaches_it_later(void **state)
{
	(void)state;
	open_nodes(3);
	put(1, 3, 1);
	nodes_run(100);
	node[1].stalled = true;
	assert_int_equal(forgotten(0, 3), OP_PEER_DOWN);
	lose_node(1);
	restart(1, node_at(0));
	assert_true(nodes_until(node[1].doors_opened == 1, 2 * DEAD_MS));
	assert_false(has(1, 3));
	assert_true(has(1, 4));
}

static void the_door_opens_after_dead_after_though_no_member_answers(void **state)
{
	uint64_t began_ns;

	(void)state;
	away_and_removed(2);
	node[0].stalled = true;
	began_ns = clock_now_ns();
	restart(1, node_at(0));
	assert_true(nodes_until(node[1].doors_opened == 1, 2 * DEAD_MS));
	assert_in_range(clock_now_ns() - began_ns, DEAD_MS * 1000000ull, DEAD_MS * 1100000ull);
	/* it was away for a moment: what was removed was no promise */
	assert_false(node[1].dropped);
	node[0].stalled = false;
	assert_true(nodes_until(!has(1, 0) && !has(1, PAGES - 2), 3000));
	assert_true(has(1, PAGES - 1));
}

static void after_ten_minutes_a_removal_is_a_promise_and_unproven_pages_go(void **state)
{
	(void)state;
	away_and_removed(2);
	nodes_pass(REMOVALS_ABSENT_NS / 1000000);
	nodes_run(100);
	assert_int_equal(forgotten(0, PAGES - 1), OP_MISS);
	/* node 0 does not answer, then it does */
	node[0].stalled = true;
	restart(1, node_at(0));
	assert_true(nodes_until(node[1].doors_opened == 1, 2 * DEAD_MS));
	assert_true(node[1].dropped);
	kill_node(1);
	node[0].stalled = false;
	nodes_run(100);
	restart(1, node_at(0));
	assert_true(nodes_until(node[1].doors_opened == 1, 2 * DEAD_MS));
	assert_false(node[1].dropped);
	assert_false(has(1, PAGES - 1));
}

/* Two links come up, each with a Hello: the second Told proves no more than the first. */
static void a_member_that_remembers_nothing_proves_nothing(void **state)
{
	(void)state;
	away_and_removed(3);
	nodes_pass(REMOVALS_ABSENT_NS / 1000000);
	nodes_run(100);
	assert_int_equal(forgotten(0, PAGES - 1), OP_MISS);
	node[2].stalled = true;
	node_close(0);
	assert_int_equal(node_open(0, NULL), 0);
	restart(1, node_at(0));
	assert_true(nodes_until(node[1].doors_opened == 1, 2 * DEAD_MS));
	assert_true(node[1].dropped);
}

/* Though a second Told follows, of a teller that has nothing left to tell. */
static void a_member_that_missed_more_than_is_remembered_drops_its_pages(void **state)
{
	const struct removal some = {.key = {{1, 2}}, .number = 0};
	Pc__Hello hello = PC__HELLO__INIT;

	(void)state;
	away_and_removed(3);
	for (unsigned n = 0; n < REMOVALS_MAX; n++)
		removals_add(&node[0].control, &some);
	node[2].stalled = true;
	restart(1, node_at(0));
	assert_true(nodes_until(node[1].control.removals->incomplete, 2 * DEAD_MS));
	hello.pages = true;
	removals_hello(
		&node[0].control, member_link(&node[0].control, node[1].control.ref), &hello);
	assert_true(nodes_until(node[1].doors_opened == 1, 2 * DEAD_MS));
	assert_true(node[1].dropped);
}

static void an_engine_that_was_alone_opens_at_once_and_keeps_its_pages(void **state)
{
	(void)state;
	open_nodes(1);
	kill_node(0);
	nodes_pass(2 * REMOVALS_ABSENT_NS / 1000000);
	restart(0, NULL);
	assert_false(node[0].control.door_shut);
	assert_int_equal(forgotten(0, 1), OP_HIT);
}

/* Its number tells that the member has executed the removal, so its page is newer. */
static void a_page_that_was_set_since_stays_when_another_member_tells_the_same(void **state)
{
	(void)state;
	away_and_removed(3);
	node[2].stalled = true;
	restart(1, node_at(0));
	assert_true(nodes_until(!has(1, 3), 500));
	node_put(1, 3, 9, 5000);
	node[2].stalled = false;
	assert_true(nodes_until(node[1].doors_opened == 1 && all_agree(), 2 * DEAD_MS));
	nodes_run(100);
	assert_true(has(1, 3));
	assert_int_equal(found_at_owners(0, 1, 3), 2);
}

static void a_page_that_was_set_anew_before_the_member_left_stays(void **state)
{
	(void)state;
	open_nodes(3);
	put(1, 3, 1);
	assert_int_equal(forgotten(0, 3), OP_HIT);
	lose_node(1);
	restart(1, node_at(0));
	assert_true(nodes_until(node[1].doors_opened == 1, 2 * DEAD_MS));
	assert_true(has(1, 3));
	assert_true(nodes_until(found_at_owners(0, 1, 3) == 2, 3000));
}

/* With a disk, whose index is played by the node's. */
static void restart_with_disk(unsigned i)
{
	snprintf(node[i].settings.disk_paths, sizeof(node[i].settings.disk_paths), "/disk");
	assert_int_equal(node_open(i, node_at(0)), 0);
	node[i].control.tier = (struct tier *)&node[i];
	node[i].forget = FORGET_LATER;
}

/* Ends the tombstones that node i waits for. */
static void synced(unsigned i)
{
	while (node[i].waits) {
		const struct forget_wait *wait = &node[i].wait[--node[i].waits];

		wait->done(&node[i].control, wait->context, wait->cookie, true);
	}
}

/* The memory of removals survives the kill, the tombstone in the disk's queue does not. */
static void a_removal_that_the_disk_did_not_record_is_executed_again(void **state)
{
	(void)state;
	open_nodes(2);
	put(1, 3, 1);
	nodes_run(100);
	lose_node(1);
	assert_int_equal(forgotten(0, 3), OP_PEER_DOWN);
	for (unsigned life = 0; life < 2; life++) {
		restart_with_disk(1);
		pages_adopt(1, 3, 1); /* the disk has the page, as it was never removed there */
		assert_true(nodes_until(node[1].waits >= 1, 3000));
		assert_false(has(1, 3));
		if (life == 0)
			lose_node(1);
	}
	synced(1);
	assert_true(nodes_until(node[1].doors_opened == 1, DEAD_MS));
}

/* As a seed only it executes removals, but on no disk: what its disk has missed is told later. */
static void a_disk_is_told_what_was_removed_while_its_member_had_no_rails(void **state)
{
	(void)state;
	open_nodes(2);
	put(1, 3, 1);
	put(1, 4, 1);
	nodes_run(100);
	lose_node(1);
	node[1].bare = true;
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	nodes_run(100);
	/* the disk is expected back for ten minutes */
	assert_int_equal(forgotten(0, 3), OP_PEER_DOWN);
	nodes_pass(REMOVALS_ABSENT_NS / 1000000);
	nodes_run(100);
	assert_int_equal(forgotten(0, 4), OP_MISS);
	lose_node(1);
	node[1].bare = false;
	restart_with_disk(1);
	pages_adopt(1, 3, 2);
	assert_true(nodes_until(!has(1, 3) && !has(1, 4), 3000));
	synced(1);
	assert_true(nodes_until(node[1].doors_opened == 1, DEAD_MS));
}

/* A life as a seed only, which is sent nothing of before, pays no debt to the disk. */
static void what_a_disk_is_owed_outlives_a_life_without_rails(void **state)
{
	(void)state;
	open_nodes(2);
	put(1, 3, 1);
	nodes_run(100);
	lose_node(1);
	assert_int_equal(forgotten(0, 3), OP_PEER_DOWN);
	for (unsigned life = 0; life < 3; life++) {
		node[1].bare = life == 1;
		if (node[1].bare) {
			node[1].settings.disk_paths[0] = '\0';
			assert_int_equal(node_open(1, node_at(0)), 0);
			assert_true(nodes_until(all_agree(), 3000));
			nodes_run(100);
		} else {
			restart_with_disk(1);
			pages_adopt(1, 3, 1);
			assert_true(nodes_until(node[1].waits >= 1, 3000));
			assert_false(has(1, 3));
		}
		if (life < 2) /* before its disk has recorded the removal */
			lose_node(1);
	}
	synced(1);
	assert_true(nodes_until(node[1].doors_opened == 1, DEAD_MS));
}

/* Another member tells the same meanwhile: it must not take it as recorded. */
static void a_removal_that_the_disk_has_not_recorded_yet_stays_owed(void **state)
{
	(void)state;
	open_nodes(3);
	put(1, 3, 1);
	nodes_run(100);
	lose_node(1);
	assert_int_equal(forgotten(0, 3), OP_PEER_DOWN);
	node[2].stalled = true;
	restart_with_disk(1);
	pages_adopt(1, 3, 1);
	assert_true(nodes_until(node[1].waits == 1, 3000));
	node_put(1, 3, 9, 5000);
	node[2].stalled = false;
	assert_true(nodes_until(all_agree(), 2 * DEAD_MS));
	nodes_run(DEAD_MS);
	/* the second one took neither the new page, nor the removal as recorded */
	assert_true(has(1, 3));
	assert_int_equal(node[1].waits, 2);
	lose_node(1);
	/* node 0 is away now: only node 2 can tell it */
	node_close(0);
	snprintf(node[1].settings.disk_paths, sizeof(node[1].settings.disk_paths), "/disk");
	assert_int_equal(node_open(1, node_at(2)), 0);
	pages_adopt(1, 3, 1);
	assert_true(nodes_until(!has(1, 3), 3000));
}

/* What two members have told is recorded: it takes no page that was set later. */
static void a_removal_that_two_have_told_is_told_once(void **state)
{
	(void)state;
	open_nodes(3);
	put(1, 3, 1);
	nodes_run(100);
	lose_node(1);
	assert_int_equal(forgotten(0, 3), OP_PEER_DOWN);
	restart_with_disk(1);
	assert_true(nodes_until(node[1].waits == 2, 3000));
	synced(1);
	assert_true(nodes_until(all_agree() && !node[1].control.disk_shut, 3 * DEAD_MS));
	lose_node(1);
	restart_with_disk(1);
	pages_adopt(1, 3, 9);
	assert_true(nodes_until(all_agree() && !node[1].control.disk_shut, 3 * DEAD_MS));
	assert_true(has(1, 3));
}

/* As after a change of the layout: who was on its map is not known. */
static void restart_unread(bool alone)
{
	open_nodes(2);
	put(1, 3, 1);
	kill_node(1);
	node_close(0); /* the one that is started again remembers nothing, and proves nothing */
	if (!alone)
		assert_int_equal(node_open(0, NULL), 0);
	((struct removals_log *)mmap(
		 NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, node[1].log_fd, 0))
		->layout++;
	restart(1, node_at(0));
	assert_true(nodes_until(node[1].doors_opened == 1, 2 * DEAD_MS));
	assert_int_equal(node[1].dropped, !alone);
}

static void an_engine_that_cannot_read_what_it_remembers_was_alone_if_it_is(void **state)
{
	(void)state;
	restart_unread(true);
}

static void an_engine_with_members_that_cannot_read_what_it_remembers_was_not_alone(void **state)
{
	(void)state;
	restart_unread(false);
}

/*
 * Its Hello arrives in the turn in which the process before it leaves the map: what that one was
 * being told has failed, and has not ended yet.
 */
static void a_member_that_is_restarted_while_it_is_told_is_told_anew(void **state)
{
	Pc__Hello hello = PC__HELLO__INIT;
	struct control *control = &node[0].control;
	struct rpc_link *link;
	const struct telling *before;

	(void)state;
	open_nodes(2);
	put(1, 3, 1);
	nodes_run(100);
	lose_node(1);
	assert_int_equal(forgotten(0, 3), OP_PEER_DOWN);
	restart_with_disk(1);
	assert_true(nodes_until(node[1].waits == 1, 3 * DEAD_MS));
	before = LIST_FIRST(&control->removals->tellings);
	link = member_link(control, node[1].control.ref);
	removals_member_left(control, link->member);
	removals_member_up(control, link->member);
	hello.pages = true;
	removals_hello(control, link, &hello);
	assert_ptr_not_equal(LIST_FIRST(&control->removals->tellings), before);
	node[1].forget = FORGET_DURABLE;
	synced(1);
	assert_true(nodes_until(node[1].doors_opened == 1, DEAD_MS / 2));
	assert_true(LIST_EMPTY(&control->removals->tellings));
}

/* It opens its door, and is told the same when it was started again with a disk that works. */
static void a_member_whose_disk_failed_is_told_again(void **state)
{
	(void)state;
	open_nodes(2);
	put(1, 3, 1);
	nodes_run(100);
	lose_node(1);
	assert_int_equal(forgotten(0, 3), OP_PEER_DOWN);
	restart_with_disk(1);
	node[1].forget = FORGET_VOLATILE;
	pages_adopt(1, 3, 1);
	assert_true(nodes_until(node[1].doors_opened == 1, DEAD_MS));
	assert_false(has(1, 3));
	for (unsigned life = 0; life < 2; life++) {
		lose_node(1);
		restart_with_disk(1);
		node[1].forget = FORGET_DURABLE;
		pages_adopt(1, 3, 1);
		assert_true(nodes_until(node[1].doors_opened == 1, DEAD_MS));
		assert_int_equal(has(1, 3), life); /* the second time it owes nothing */
	}
}

static unsigned pages_of(unsigned i)
{
	return (unsigned)index_count(node[i].control.index);
}

static void link_break(unsigned i, unsigned of)
{
	rpc_link_close(member_link(&node[i].control, node[of].control.ref));
	nodes_run(200);
}

static void removals_that_were_dropped_are_told_over_the_same_link(void **state)
{
	const unsigned many = BATCHES_MAX * MESSAGE_PAGES_MAX + OWNER_REMOVES_MAX / 2;

	(void)state;
	open_nodes(2);
	for (uint64_t n = 0; n < many; n += 128)
		put(1, n, 1);
	node[1].stalled = true;
	for (uint64_t n = 0; n < many; n++) {
		struct page_key key = key_of(n);

		directory_forget(&node[0].control, &key,
			&(struct waiter){.deadline_ns = clock_now_ns() + 1000000 + n,
				.done = node_done,
				.context = &node[0]});
	}
	nodes_run(DEAD_MS / 2);
	assert_int_equal(node[0].dones, many);
	assert_int_equal(node[0].status, OP_TIMEOUT);
	assert_true(sees(0, 1));
	assert_true(pages_of(1) > 0);
	node[1].stalled = false;
	assert_true(nodes_until(pages_of(1) == 0, 3000));
	assert_int_equal(node[1].doors_opened, 0);
}

static void what_a_member_is_owed_while_it_is_told_stays_owed(void **state)
{
	const struct removal later = {.key = key_of(4), .number = 1};

	(void)state;
	open_nodes(2);
	put(1, 3, 1);
	nodes_run(100);
	lose_node(1);
	assert_int_equal(forgotten(0, 3), OP_PEER_DOWN);
	restart_with_disk(1);
	pages_adopt(1, 4, 1);
	assert_true(nodes_until(node[1].waits == 1, 3000));
	removals_owe(&node[0].control, node[1].control.ref, &later);
	synced(1);
	node[1].forget = FORGET_DURABLE;
	assert_true(nodes_until(node[1].doors_opened == 1, DEAD_MS));
	assert_true(has(1, 4));
	link_break(0, 1);
	assert_true(nodes_until(!has(1, 4), 3000));
}

/* With rings there may be no link with a member that others have admitted. */
/* What node 0 remembers of the member `ref`. */
static struct removals_name *name_of(uint32_t ref)
{
	struct removals_log *log = node[0].control.removals->log;
	unsigned i = 0;

	while (i < REMOVALS_NAMES && log->name[i].ref != ref)
		i++;
	assert_int_not_equal(i, REMOVALS_NAMES);
	return &log->name[i];
}

static void a_member_that_others_admitted_is_not_told_that_all_was_remembered(void **state)
{
	const struct removal some = {.key = {{1, 2}}, .number = 0};
	struct control *control = &node[0].control;
	struct removals_name *name;
	struct member *member;

	(void)state;
	open_nodes(2);
	member = member_link(control, node[1].control.ref)->member;
	name = name_of(member->record.ref);
	removals_member_left(control, member);
	removals_member_up(control, member);
	removals_member_admitted(control, member);
	assert_int_equal(name->limit, TOLD_ALL);
	name->at = 0; /* it is not known what it has missed */
	removals_member_admitted(control, member);
	assert_int_equal(name->limit, TOLD_NOT_KNOWN);
	removals_member_left(control, member);
	for (unsigned n = 0; n <= REMOVALS_MAX; n++)
		removals_add(control, &some);
	removals_member_up(control, member);
	removals_member_admitted(control, member);
	assert_int_equal(name->limit, TOLD_NOT_COMPLETE);
}

static void a_member_that_others_admitted_is_dialled_if_it_is_owed_removals(void **state)
{
	const struct removal some = {.key = key_of(3), .number = 1};
	struct control *control = &node[0].control;
	struct member *member;

	(void)state;
	open_nodes(2);
	member = member_link(control, node[1].control.ref)->member;
	node[1].stalled = true;
	if (member->contact->out)
		rpc_link_close(member->contact->out);
	if (member->contact->in)
		rpc_link_close(member->contact->in);
	member->neighbour = false; /* as one of many members */
	removals_member_admitted(control, member);
	assert_false(member_link_soon(control, member->record.ref));
	removals_owe(control, member->record.ref, &some);
	removals_member_admitted(control, member);
	assert_true(member_link_soon(control, member->record.ref));
}

/*
 * A member that did not notice that it was off the map for long: what was removed meanwhile were
 * promises, and the others do not remember all of them.
 */
static void a_frozen_member_that_missed_too_many_drops_its_pages_once(void **state)
{
	const struct removal some = {.key = {{1, 2}}, .number = 0};
	Pc__Hello hello = PC__HELLO__INIT;
	Pc__Told told = PC__TOLD__INIT;
	struct rpc_link *link;

	(void)state;
	open_nodes(3);
	put(1, 3, 1);
	nodes_run(200);
	node[1].stalled = true;
	assert_true(nodes_until(sees_count(0, 2) && sees_count(2, 2), 4 * DEAD_MS));
	for (unsigned i = 0; i < 3; i += 2)
		for (unsigned n = 0; n <= REMOVALS_MAX; n++)
			removals_add(&node[i].control, &some);
	node[1].doors_opened = 0;
	node[1].stalled = false;
	assert_true(nodes_until(node[1].dropped, 3 * DEAD_MS));
	assert_true(nodes_until(all_agree(), 3 * DEAD_MS));
	assert_true(nodes_until(!removals_held(&node[1].control), 3 * DEAD_MS));
	nodes_run(DEAD_MS);
	assert_int_equal(node[1].doors_opened, 1);
	assert_false(node[0].dropped);
	/* nor does a member whose Hello came before, and that was still sending Forgets */
	link = member_link_of(
		member_table_ref(members_table(&node[1].control), node[2].control.ref));
	link->member->contact->untold_ns = net_now();
	told.known = true;
	assert_true(removals_serve_told(&node[1].control, link, &told));
	assert_int_equal(node[1].doors_opened, 1);
	/* also if its second link comes up meanwhile */
	link->member->contact->untold_ns = net_now();
	removals_hello(&node[1].control, link, &hello);
	assert_true(removals_serve_told(&node[1].control, link, &told));
	assert_int_equal(node[1].doors_opened, 1);
}

/* Entries that other nodes have of node i's first `count` pages. */
static unsigned entries_elsewhere(unsigned i, uint64_t count)
{
	struct dir_entry found[8];
	unsigned entries = 0;

	for (unsigned k = 0; k < NODES; k++)
		for (uint64_t n = 0; node[k].open && k != i && n < count; n++) {
			struct page_key key = key_of(n);
			unsigned has = shard_find(node[k].control.shard, &key, found, 8);

			while (has--)
				entries += found[has].ref == node[i].control.ref;
		}
	return entries;
}

/* It did not notice that it was off the map, so it keeps its pages until it is told. */
static void a_frozen_member_publishes_no_page_that_was_removed_meanwhile(void **state)
{
	(void)state;
	open_nodes(3);
	for (uint64_t n = 0; n < PAGES; n++)
		put(1, n, 1);
	nodes_run(200);
	node[1].stalled = true;
	assert_true(nodes_until(sees_count(0, 2) && sees_count(2, 2), 4 * DEAD_MS));
	for (uint64_t n = 0; n < PAGES - 1; n++)
		assert_int_equal(forgotten(0, n), OP_PEER_DOWN);
	put(2, 5, 7);
	node[1].stalled = false;
	for (unsigned turn = 0; turn < 200000 && (!all_agree() || has(1, PAGES - 2)); turn++) {
		assert_int_equal(entries_elsewhere(1, PAGES - 1), 0);
		nodes_turn();
	}
	assert_true(all_agree());
	for (uint64_t n = 0; n < PAGES - 1; n++)
		assert_false(has(1, n));
	assert_true(nodes_until(found_at_owners(0, 1, PAGES - 1) == 2, 3000));
	assert_int_equal(found_at_owners(0, 2, 5), 2);
}

/* Entries of a member that left stay for a while: those of a page that is removed do not. */
static void entries_of_an_absent_member_go_with_the_removal(void **state)
{
	struct dir_entry found[8];
	struct page_key key = key_of(3);

	(void)state;
	open_nodes(3);
	put(1, 3, 1);
	lose_node(1);
	(void)forgotten(0, 3);
	for (unsigned i = 0; i < 3; i += 2)
		assert_int_equal(shard_find(node[i].control.shard, &key, found, 8), 0);
}

static void an_engine_that_was_restarted_knows_who_is_away(void **state)
{
	(void)state;
	open_nodes(3);
	/* in this order: for the first process of node 0, node 1 was still there */
	kill_node(0);
	lose_node(1);
	assert_int_equal(node_open(0, node_at(2)), 0);
	assert_true(nodes_until(sees_count(0, 2), 3 * DEAD_MS));
	nodes_run(50);
	assert_int_equal(forgotten(0, 1), OP_PEER_DOWN);
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	assert_int_equal(forgotten(0, 1), OP_MISS);
}

/* A member that was told passes on what it was told. */
static void what_a_member_was_told_it_tells_others(void **state)
{
	(void)state;
	open_nodes(3);
	for (uint64_t n = 0; n < PAGES; n++)
		put(1, n, 1);
	nodes_run(100);
	lose_node(2);
	lose_node(1);
	(void)forgotten(0, 3);
	assert_int_equal(node_open(2, node_at(0)), 0);
	pages_adopt(2, 1000, 1);
	assert_true(nodes_until(sees_count(0, 2) && node[2].doors_opened, 3 * DEAD_MS));
	node_close(0);
	assert_true(nodes_until(sees_count(2, 1), 3 * DEAD_MS));
	restart(1, node_at(2));
	assert_true(nodes_until(node[1].doors_opened, 3 * DEAD_MS));
	assert_false(has(1, 3));
	assert_true(has(1, 4));
}

/* It may owe removals: this engine's walks wait for its Told, but not for ever. */
static void walks_wait_for_a_member_that_owes_told(void **state)
{
	uint64_t from_ns;
	int fd[2];

	(void)state;
	open_nodes(1);
	for (unsigned i = 0; i < 2; i++) {
		fd[i] = raw_open(0);
		raw_hello_untold(
			fd[i], i ? "late" : "mute", 0x500000001 + i, (uint16_t)(9 + i), NULL);
		from_ns = clock_now_ns();
		assert_true(nodes_until(sees_count(0, 2 + i), 1000));
		nodes_run(DEAD_MS / 2);
		assert_true(removals_held(&node[0].control));
		if (i)
			raw_told(fd[i]);
		assert_true(nodes_until(!removals_held(&node[0].control), DEAD_MS));
		assert_true((clock_now_ns() - from_ns) / 1000000 >= (i ? DEAD_MS / 2 : DEAD_MS));
		assert_true(
			(clock_now_ns() - from_ns) / 1000000 < (i ? DEAD_MS * 3 / 4 : DEAD_MS * 2));
	}
	close(fd[0]);
	close(fd[1]);
}

/* A Forget of a removal that node 0 has missed. */
static void raw_forget(int fd, uint64_t serial)
{
	Pc__Message message = PC__MESSAGE__INIT;
	Pc__Forget forget = PC__FORGET__INIT;
	Pc__Entry entry = PC__ENTRY__INIT, *entries[] = {&entry};

	entry.key0 = entry.key1 = serial;
	entry.ref = 1;
	forget.serial = serial;
	forget.n_entries = 1;
	forget.entries = entries;
	message.body_case = PC__MESSAGE__BODY_FORGET;
	message.forget = &forget;
	raw_message(fd, &message);
}

static void told_is_not_late_while_parts_of_it_arrive(void **state)
{
	int fd;

	(void)state;
	open_nodes(1);
	fd = raw_open(0);
	raw_hello_untold(fd, "slow", 0x500000001, 9, NULL);
	assert_true(nodes_until(sees_count(0, 2), 1000));
	for (uint64_t part = 1; part <= 3; part++) {
		nodes_run(DEAD_MS / 2);
		assert_true(removals_held(&node[0].control));
		raw_forget(fd, part);
	}
	assert_true(nodes_until(!removals_held(&node[0].control), 2 * DEAD_MS));
	close(fd);
}

/* The first of them are acknowledged when the disk is open: the others come after it. */
static void pages_on_disk_wait_until_the_disk_is_open_and_all_removals_are_told(void **state)
{
	const struct control *control = &node[1].control;

	(void)state;
	open_nodes(2);
	lose_node(1);
	assert_int_equal(forgotten(0, 3), OP_PEER_DOWN);
	for (unsigned told = 0; told < 2; told++) {
		node[1].disk_opens = true;
		restart_with_disk(1);
		assert_true(nodes_until(node[1].doors_opened == 1, 2 * DEAD_MS));
		nodes_run(2 * DEAD_MS);
		assert_true(control->disk_shut);
		node[1].disk_opens = false;
		nodes_run(DEAD_MS / 2);
		assert_true(control->disk_shut);
		if (told)
			synced(1);
		/* a disk that records nothing is waited for no longer than a member */
		assert_true(nodes_until(!control->disk_shut, told ? DEAD_MS / 4 : DEAD_MS));
		if (!told)
			kill_node(1);
	}
}

#define T(name) cmocka_unit_test_teardown(name, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_removal_is_a_promise_while_a_member_without_rails_is_away),
		T(a_member_that_comes_back_publishes_no_page_that_was_removed_meanwhile),
		T(the_door_waits_for_each_member_of_before),
		T(the_door_waits_for_a_member_that_others_have_given_up),
		T(a_removal_that_a_member_was_sent_and_did_not_execute_reaches_it_later),
		T(the_door_opens_after_dead_after_though_no_member_answers),
		T(after_ten_minutes_a_removal_is_a_promise_and_unproven_pages_go),
		T(a_member_that_remembers_nothing_proves_nothing),
		T(a_member_that_missed_more_than_is_remembered_drops_its_pages),
		T(an_engine_that_was_alone_opens_at_once_and_keeps_its_pages),
		T(a_page_that_was_set_since_stays_when_another_member_tells_the_same),
		T(a_page_that_was_set_anew_before_the_member_left_stays),
		T(a_removal_that_the_disk_did_not_record_is_executed_again),
		T(a_disk_is_told_what_was_removed_while_its_member_had_no_rails),
		T(what_a_disk_is_owed_outlives_a_life_without_rails),
		T(a_removal_that_the_disk_has_not_recorded_yet_stays_owed),
		T(a_member_that_is_restarted_while_it_is_told_is_told_anew),
		T(a_member_whose_disk_failed_is_told_again),
		T(removals_that_were_dropped_are_told_over_the_same_link),
		T(a_removal_that_two_have_told_is_told_once),
		T(an_engine_that_cannot_read_what_it_remembers_was_alone_if_it_is),
		T(an_engine_with_members_that_cannot_read_what_it_remembers_was_not_alone),
		T(what_a_member_is_owed_while_it_is_told_stays_owed),
		T(a_member_that_others_admitted_is_not_told_that_all_was_remembered),
		T(a_member_that_others_admitted_is_dialled_if_it_is_owed_removals),
		T(a_frozen_member_that_missed_too_many_drops_its_pages_once),
		T(a_frozen_member_publishes_no_page_that_was_removed_meanwhile),
		T(entries_of_an_absent_member_go_with_the_removal),
		T(an_engine_that_was_restarted_knows_who_is_away),
		T(what_a_member_was_told_it_tells_others),
		T(walks_wait_for_a_member_that_owes_told),
		T(told_is_not_late_while_parts_of_it_arrive),
		T(pages_on_disk_wait_until_the_disk_is_open_and_all_removals_are_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
