/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directory entries follow the map: after members join, die, restart or are cut off, every page is
 * eventually found at all its present owners, and nowhere else. A node is one control plane in the
 * test's process.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/control/pages/pages.h"
#include "tests/unit/control/directory/still_world.h"

#define KEYS 1500 /* number of keys that each publishing node publishes */
#define DEAD_MS 300

static int setup(void **state)
{
	(void)state;
	nodes_setup(20, DEAD_MS);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	nodes_teardown();
	return 0;
}

static void open_with_keys(unsigned count, unsigned with_keys)
{
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(node_open(i, i ? node_at(0) : node_at(1)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	for (unsigned i = 0; i < with_keys; i++) {
		for (unsigned k = 0; k < KEYS; k++)
			node_put(i, i * KEYS + k, 1, 3000);
		assert_true(nodes_until(node[i].hits == KEYS, 3000));
	}
}

/*
 * True if every key of node i is found at all of its `owners` owners, by the map of every open
 * node.
 */
static bool all_found(unsigned i, unsigned owners)
{
	for (unsigned k = 0; k < KEYS; k++)
		for (unsigned reader = 0; reader < NODES; reader++)
			if (node[reader].open && found_at_owners(reader, i, i * KEYS + k) != owners)
				return false;
	return true;
}

static bool found_only_there(unsigned i, unsigned owners)
{
	for (unsigned k = 0; k < KEYS; k++)
		if (found_anywhere(i, i * KEYS + k) != owners)
			return false;
	return true;
}

/* The time that entries of members off the map stay in the shards has passed. */
static void sweep(void)
{
	for (unsigned i = 0; i < NODES; i++)
		if (node[i].open)
			departed_tick(node[i].control.directory, UINT64_MAX);
}

static unsigned entries_of(unsigned owner, uint32_t ref)
{
	const struct shard *shard = node[owner].control.shard;
	unsigned found = 0;

	for (uint32_t b = 0; b < 1u << shard->bits; b++)
		for (unsigned e = 0; e < BUCKET_ENTRIES; e++)
			found += shard->bucket[b].entry[e].tag &&
				 shard->bucket[b].entry[e].ref == ref;
	return found;
}

static void a_new_member_gets_the_entries_it_owns_and_the_former_owners_drop_them(void **state)
{
	(void)state;
	open_with_keys(2, 2);
	assert_int_equal(node_open(2, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 2000));
	assert_true(nodes_until(all_found(0, 2) && all_found(1, 2), 3000));
	assert_true(entries_of(2, node[0].control.ref) > KEYS / 3);
	assert_true(nodes_until(found_only_there(0, 2) && found_only_there(1, 2), 5000));
}

/* Pages are read once to publish those of the slots that moved, and once to compare afterwards. */
static void a_change_publishes_the_pages_of_slots_that_have_moved_only(void **state)
{
	const uint64_t *counter = node[0].control.counter;
	struct directory *dir;
	uint64_t before;

	(void)state;
	open_with_keys(3, 1);
	dir = node[0].control.directory;
	assert_true(nodes_until(still(dir), 5000));
	before = counter[COUNTER_pages_moving];
	assert_int_equal(node_open(3, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 2000));
	assert_true(nodes_until(all_found(0, 2) && still(dir), 5000));
	assert_in_range(counter[COUNTER_pages_moving] - before, KEYS, KEYS * 3);
	before = counter[COUNTER_pages_moving];
	node_close(3);
	assert_true(nodes_until(all_agree(), 2000));
	assert_true(nodes_until(all_found(0, 2) && still(dir), 5000));
	assert_in_range(counter[COUNTER_pages_moving] - before, KEYS / 3, KEYS * 2 / 3);
}

static void expect_counts(bool moving, uint64_t position, uint64_t end)
{
	struct directory_counts counts;

	directory_counts(&node[0].control, &counts);
	assert_int_equal(counts.moving, moving);
	assert_int_equal(counts.walk_position, position);
	assert_int_equal(counts.walk_end, end);
}

static void the_counts_show_where_the_walk_is(void **state)
{
	struct directory_counts counts;
	struct directory *dir;

	(void)state;
	open_with_keys(2, 1);
	dir = node[0].control.directory;
	assert_true(nodes_until(still(dir), 5000));
	expect_counts(false, 0, 0);
	dir->lack.most = 40;
	dir->lack.count = 15;
	expect_counts(true, 25, 40);
	dir->lack.most = dir->lack.count = 0;
	dir->sweep.left = 30;
	directory_counts(&node[0].control, &counts);
	assert_int_equal(counts.sweep_left, 30);
	dir->sweep.left = 0;
}

static void after_a_death_every_key_has_all_its_owners_again(void **state)
{
	uint32_t dead_ref;

	(void)state;
	open_with_keys(4, 3);
	dead_ref = node[2].control.ref;
	node_close(2);
	assert_true(nodes_until(all_agree(), 2000));
	/*
	 * Even before anything has migrated, every key still has one owner: two replicas survive
	 * one death.
	 */
	for (unsigned i = 0; i < 2; i++)
		for (unsigned k = 0; k < KEYS; k++)
			assert_true(found_at_owners(3, i, i * KEYS + k) >= 1);
	assert_true(nodes_until(all_found(0, 2) && all_found(1, 2), 3000));
	/* The entries whose holder is dead are swept from the shards later. */
	assert_true(entries_of(3, dead_ref) > 0);
	sweep();
	for (unsigned i = 0; i < 4; i++)
		if (node[i].open)
			assert_true(nodes_until(entries_of(i, dead_ref) == 0, 2000));
}

static void a_restarted_owner_gets_all_its_entries_again(void **state)
{
	(void)state;
	open_with_keys(3, 2);
	for (unsigned round = 0; round < 3; round++) {
		node_close(2);
		assert_int_equal(node_open(2, node_at(1)), 0);
		assert_true(nodes_until(all_agree(), 2000));
		assert_true(nodes_until(all_found(0, 2) && all_found(1, 2), 3000));
	}
}

/* Node 2 is stalled: the others declare it dead and drop its entries. Returns its ref. */
static uint32_t node_2_dropped(void)
{
	uint32_t ref = node[2].control.ref;

	node[2].stalled = true;
	assert_true(nodes_until(sees_count(0, 2) && sees_count(1, 2), 3000));
	sweep();
	assert_true(nodes_until(entries_of(0, ref) == 0 && entries_of(1, ref) == 0, 2000));
	return ref;
}

static void after_a_partition_every_key_is_found_again(void **state)
{
	uint32_t ref;

	(void)state;
	open_with_keys(3, 3);
	ref = node_2_dropped();
	/* publishes keys while node 2 is cut off: node 2 must get them later */
	for (unsigned k = 0; k < KEYS; k++)
		node_put(0, k, 2, 3000);
	nodes_run(100);
	node[2].stalled = false;
	assert_true(nodes_until(all_agree(), 3000));
	assert_int_equal(node[2].control.ref, ref);
	assert_true(nodes_until(all_found(0, 2) && all_found(1, 2) && all_found(2, 2), 5000));
}

/*
 * Node 2 is stalled, so the others declare it dead and drop its entries. Node 2 itself declared no
 * member dead, so its map did not change. From the terms in the others' Hellos it learns that they
 * have dropped its entries.
 */
static void a_member_that_others_dropped_without_its_noticing_publishes_again(void **state)
{
	(void)state;
	node[2].settings.cluster_dead_after_ms = 60000;
	open_with_keys(3, 3);
	(void)node_2_dropped();
	node[2].stalled = false;
	assert_true(nodes_until(all_agree(), 3000));
	assert_true(nodes_until(all_found(2, 2), 5000));
	assert_int_equal(node[2].control.counter[COUNTER_members_died], 0);
	assert_true(nodes_until(all_found(0, 2) && all_found(1, 2), 3000));
}

/* Publishes overtake removes that are queued for the owner as a former one. */
static void an_owner_that_gets_slots_back_before_removes_of_them_is_repaired(void **state)
{
	struct directory *dir;
	struct owner *owner;

	(void)state;
	open_with_keys(2, 1);
	assert_int_equal(node_open(2, node_at(0)), 0);
	dir = node[0].control.directory;
	owner = owner_of(dir, node[1].control.ref);
	assert_true(nodes_until(all_agree() && all_found(0, 2) && !moves_any(dir), 2000));
	owner->in_flight += BATCHES_MAX; /* nothing is sent to it */
	assert_true(nodes_until(owner->queued[DIR_REMOVE] > KEYS / 4, 5000));
	node_close(2);
	assert_true(nodes_until(owner->queued[DIR_PUBLISH] > KEYS / 4, 200));
	owner->in_flight -= BATCHES_MAX;
	owner_dirty(dir, owner);
	dir->turn.at_ns = UINT64_MAX;
	assert_true(nodes_until(still(dir) && all_found(0, 2), 5000));
}

/* The same, and the owner says that it has dropped our entries. */
static void an_owner_that_forgets_before_removes_is_repaired(void **state)
{
	struct directory *dir;
	struct owner *owner;

	(void)state;
	open_with_keys(2, 1);
	dir = node[0].control.directory;
	owner = owner_of(dir, node[1].control.ref);
	assert_true(nodes_until(still(dir), 5000));
	owner->in_flight += BATCHES_MAX;
	for (unsigned k = 0; k < KEYS; k++) {
		struct page_key key = key_of(k);
		const struct index_entry *entry = index_find(node[0].control.index, &key);

		directory_remove(&node[0].control, &key,
			&(struct location){.place = entry->place, .generation = entry->generation});
	}
	directory_forgotten(&node[0].control, owner->ref);
	assert_true(nodes_until(!moves_any(dir), 5000));
	owner->in_flight -= BATCHES_MAX;
	owner_dirty(dir, owner);
	dir->turn.at_ns = UINT64_MAX;
	assert_true(nodes_until(still(dir), 5000));
	for (unsigned k = 0; k < KEYS; k++) {
		struct page_key key = key_of(k);
		struct dir_entry found[2];

		assert_int_equal(shard_find(node[1].control.shard, &key, found, 2), 1);
	}
}

/* An owner to which publishes are skipped all the time delays its own comparison only. */
static void skipped_publishes_delay_no_other_comparison(void **state)
{
	struct owner *busy, *other;
	struct directory *dir;

	(void)state;
	open_with_keys(3, 1);
	dir = node[0].control.directory;
	assert_true(nodes_until(still(dir), 5000));
	busy = owner_of(dir, node[1].control.ref);
	other = owner_of(dir, node[2].control.ref);
	for (unsigned ms = 0; ms < 2000 && (ms < 100 || other->unsure); ms++) {
		for (uint32_t slot = 0; slot < MAP_SLOTS;
			slot += 8) /* as target_leave_out() does */
			lack_add(dir, busy, slot);
		if (ms == 50)
			other->unsure = true;
		move_soon(dir);
		nodes_run(1);
	}
	assert_true(busy->walk.slots);
	assert_false(other->unsure);
}

static void nothing_is_read_before_the_changes_end(void **state)
{
	struct control *control = &node[0].control;
	struct directory *dir;
	uint64_t before;

	(void)state;
	open_with_keys(3, 1);
	dir = control->directory;
	assert_true(nodes_until(still(dir), 5000));
	before = control->counter[COUNTER_pages_moving];
	node_close(2);
	assert_true(nodes_until(dir->map.settled->owners == 2, 1000));
	assert_true(dir->lack.count > 0);
	for (; clock_now_ns() + 5000000 < dir->move.walk_ns; nodes_run(1))
		assert_int_equal(control->counter[COUNTER_pages_moving], before);
	for (unsigned turn = 0; turn < 100; turn++) {
		directory_forgotten(control, node[1].control.ref);
		assert_true(dir->move.walk_ns <= dir->move.changed_ns + MOVE_QUIET_MAX_NS);
		nodes_run(30);
	}
	assert_true(control->counter[COUNTER_pages_moving] > before);
}

static void an_answer_of_before_it_forgot_is_not_believed(void **state)
{
	struct directory *dir;
	struct owner *owner;

	(void)state;
	open_with_keys(2, 1);
	dir = node[0].control.directory;
	owner = owner_of(dir, node[1].control.ref);
	owner->unsure = true;
	assert_true(nodes_until(owner->digest, 5000));
	directory_forgotten(&node[0].control, owner->ref);
	assert_null(owner->digest);
	assert_true(owner->unsure && owner->walk.slots);
}

/* The next map changes come while the walk is still in progress. */
static void changes_during_a_walk_lose_no_key(void **state)
{
	(void)state;
	open_with_keys(2, 2);
	for (unsigned round = 0; round < 6; round++) {
		unsigned i = 2 + round % 3;

		if (node[i].open)
			node_close(i);
		else
			assert_int_equal(node_open(i, node_at(round & 1)), 0);
		nodes_run(round * 3);
	}
	assert_true(nodes_until(all_agree(), 3000));
	assert_true(nodes_until(all_found(0, 2) && all_found(1, 2), 5000));
}

/* Walks go on where they are. */
static void a_change_in_the_middle_of_a_walk_adds_to_it(void **state)
{
	const unsigned keys = 3 * MOVE_KEYS;
	uint64_t lacked;
	struct directory *dir;

	(void)state;
	open_with_keys(2, 0);
	for (unsigned k = 0; k < keys; k++)
		node_put(0, k, 1, 5000);
	assert_true(nodes_until(node[0].dones == keys, 5000));
	dir = node[0].control.directory;
	assert_true(nodes_until(!moves_any(dir), 2000));
	assert_int_equal(node_open(2, node_at(0)), 0);
	assert_true(nodes_until(dir->lack.count && dir->lack.count < dir->lack.most, 2000));
	assert_true(dir->lack.count > 0);
	lacked = dir->lack.count;
	/* stops the timer of the walks, which then wait until the next map change */
	net_timer_stop(dir->move.timer);
	dir->move.soon = false;
	assert_int_equal(node_open(3, node_at(0)), 0);
	assert_true(nodes_until(dir->map.settled->owners == 4, 3000));
	assert_in_range(dir->lack.count, lacked / 2, lacked + keys * 6 / 10);
	assert_true(moves_any(dir));
	assert_true(nodes_until(all_agree(), 3000));
	assert_true(nodes_until(!moves_any(dir) && dir->background == 0, 5000));
	for (unsigned k = 0; k < keys; k++)
		assert_int_equal(found_at_owners(3, 0, k), 2);
}

/* The environment variable SEED repeats a run. */
static void after_random_changes_every_key_is_found(void **state)
{
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL);

	(void)state;
	print_message("SEED=%u\n", seed);
	srandom(seed);
	open_with_keys(3, 2);
	for (unsigned step = 0; step < 40; step++) {
		unsigned i = 2 + (unsigned)random() % (NODES - 2);

		if (!node[i].open)
			assert_int_equal(node_open(i, node_at(random() & 1)), 0);
		else if (random() & 1)
			node[i].stalled = !node[i].stalled;
		else
			node_close(i);
		nodes_run((unsigned)random() % 60);
	}
	for (unsigned i = 0; i < NODES; i++)
		node[i].stalled = false;
	assert_true(nodes_until(all_agree(), 5000));
	assert_true(nodes_until(all_found(0, 2) && all_found(1, 2), 8000));
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
	assert_int_equal(node[1].control.counter[COUNTER_messages_bad], 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_new_member_gets_the_entries_it_owns_and_the_former_owners_drop_them),
		T(a_change_publishes_the_pages_of_slots_that_have_moved_only),
		T(the_counts_show_where_the_walk_is),
		T(after_a_death_every_key_has_all_its_owners_again),
		T(a_restarted_owner_gets_all_its_entries_again),
		T(after_a_partition_every_key_is_found_again),
		T(a_member_that_others_dropped_without_its_noticing_publishes_again),
		T(an_owner_that_gets_slots_back_before_removes_of_them_is_repaired),
		T(an_owner_that_forgets_before_removes_is_repaired),
		T(skipped_publishes_delay_no_other_comparison),
		T(nothing_is_read_before_the_changes_end),
		T(an_answer_of_before_it_forgot_is_not_believed),
		T(changes_during_a_walk_lose_no_key),
		T(a_change_in_the_middle_of_a_walk_adds_to_it),
		T(after_random_changes_every_key_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
