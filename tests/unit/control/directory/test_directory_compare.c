/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The periodic comparison: entries that an owner has lost without notice come back. A node is one
 * control plane in the test's process; time is simulated.
 */
#include "tests/unit/control/directory/holder_world.h"

#define LOST 20u

/* Owner `n` loses LOST of the holder's entries, if it has them. */
static void lose(unsigned n)
{
	for (unsigned k = 0; k < LOST; k++) {
		struct page_key key = key_of(k * 7);

		(void)shard_remove(node[n].control.shard, &key, node[HOLDER].control.ref,
			place_make(k * 7 & 1, k * 7), 1);
	}
}

static void entries_that_owners_have_lost_come_back(void **state)
{
	uint64_t before;

	open_with_pages();
	lose(0);
	lose(1);
	before = stored();
	assert_false(all_found());
	compare_once();
	assert_true(all_found());
	assert_in_range(stored() - before, LOST, 3 * LOST);
	assert_in_range(counted(COUNTER_slots_differ), LOST / 2, 2 * LOST);
	lose(0);
	compare_once();
	assert_true(all_found());
}

static void no_turn_comes_while_owners_lack_entries(void **state)
{
	open_with_pages();
	assert_int_equal(node_open(HOLDER + 1, node_at(1)), 0);
	assert_true(nodes_until(moves_any(holder()), 3000));
	node[HOLDER].control.directory->turn.at_ns = 0;
	compare_tick(holder(), clock_now_ns());
	assert_int_equal(holder()->turn.at_ns, 0);
	for (unsigned i = 0; i < 3000 && holder()->turn.at_ns == 0; i++)
		nodes_run(1);
	assert_int_equal(holder()->map.settled->owners, HOLDER + 2);
	assert_int_equal(holder()->lack.count, 0);
}

static void nothing_is_published_where_nothing_is_missing(void **state)
{
	uint64_t before;

	open_with_pages();
	before = stored();
	compare_once();
	assert_int_equal(stored(), before);
	assert_int_equal(counted(COUNTER_slots_differ), 0);
}

/*
 * Members come and go faster than entries move, so that a slot has more owners in turn than maps
 * were remembered once: none of them keeps entries, for which its digests would differ.
 */
static void nothing_is_published_after_many_changes_of_the_map(void **state)
{
	uint64_t before;

	open_with_pages();
	for (unsigned turn = 0; turn < 12; turn++) {
		unsigned i = HOLDER + 1 + turn % (NODES - HOLDER - 1);

		if (node[i].open)
			node_close(i);
		else
			assert_int_equal(node_open(i, node_at(turn & 1)), 0);
		nodes_run(70 + turn);
	}
	assert_true(nodes_until(all_agree() && settled() && all_found(), 20000));
	before = stored();
	compare_once();
	assert_int_equal(counted(COUNTER_slots_differ), 0);
	assert_int_equal(stored(), before);
	assert_true(all_found());
}

static void the_time_of_the_next_comparison_is_random_within_its_bounds(void **state)
{
	uint64_t first_ns, now_ns;

	open_with_pages();
	now_ns = clock_now_ns();
	compare_later(holder(), now_ns);
	first_ns = holder()->turn.at_ns;
	assert_in_range(first_ns - now_ns, COMPARE_MIN_NS, COMPARE_MIN_NS + COMPARE_SPREAD_NS);
	compare_later(holder(), now_ns);
	assert_int_not_equal(holder()->turn.at_ns, first_ns);
}

/* Pages change while their slots are compared: each is found as it is now. */
static void pages_set_and_removed_meanwhile_stay_as_they_are(void **state)
{
	open_with_pages();
	lose(0);
	compare_begins();
	assert_true(nodes_until(holder()->reading.on, 1000));
	for (unsigned turn = 0; turn < 10; turn++) {
		for (unsigned k = turn; k < KEYS; k += 10)
			node_put(HOLDER, k, 2, 3000);
		nodes_turn();
	}
	assert_true(nodes_until(settled() && all_found(), 5000));
}

static void a_change_of_the_map_during_a_comparison_loses_nothing(void **state)
{
	open_with_pages();
	for (unsigned turn = 0; turn < 30; turn++) {
		if (turn % 3 == 0)
			lose(turn & 1);
		compare_begins();
		nodes_run(turn % 6);
		if (node[HOLDER + 1].open)
			node_close(HOLDER + 1);
		else
			assert_int_equal(node_open(HOLDER + 1, node_at(1)), 0);
		assert_true(nodes_until(settled(), 9000));
		assert_true(turn % 3 == 0 || all_found());
		compare_once();
		assert_true(all_found());
	}
}

/* Owner `n` loses the entries of the holder's first pages. */
static void lose_to(unsigned n, unsigned keys)
{
	for (unsigned k = 0; k < keys; k++) {
		struct page_key key = key_of(k);

		(void)shard_remove(node[n].control.shard, &key, node[HOLDER].control.ref,
			place_make(k & 1, k & 0xffff), 1);
	}
}

/* An owner without room would refuse the same entries each time. */
static void an_owner_that_lacks_many_slots_gets_some_at_a_time(void **state)
{
	const unsigned keys = 3 * COMPARE_SLOTS;
	unsigned count;

	nodes_entries = 8 * keys;
	open_with_pages();
	for (unsigned k = KEYS; k < keys; k++) {
		node_put(HOLDER, k, 1, 9000);
		if (k % 100 == 0)
			nodes_turn();
	}
	assert_true(nodes_until(node[HOLDER].hits == keys && settled(), 20000));
	count = held_by(0);
	assert_in_range(count, COMPARE_SLOTS * 3 / 2, keys);
	lose_to(0, keys);
	compare_once();
	assert_in_range(held_by(0), COMPARE_SLOTS, COMPARE_SLOTS * 5 / 4);
	assert_in_range(counted(COUNTER_slots_differ), COMPARE_SLOTS + 1, count);
	compare_once();
	assert_int_equal(held_by(0), count);
}

static void an_owner_that_has_dropped_all_gets_all(void **state)
{
	open_with_pages();
	lose_to(0, KEYS);
	directory_forgotten(&node[HOLDER].control, node[0].control.ref);
	assert_true(nodes_until(settled(), 9000));
	assert_true(all_found());
}

/* Without an answer in time, the others' slots are repaired, and the next comparison is planned. */
static void an_owner_that_does_not_answer_ends_no_comparison(void **state)
{
	uint64_t begun_ns;

	assert_int_equal(node_open(0, node_at(1)), 0);
	assert_int_equal(node_open(1, node_at(0)), 0);
	mute_join();
	mute.answers = mute.no_digests = true;
	assert_true(mute_until(sees_count(0, 3), 3000));
	for (unsigned k = 0; k < KEYS; k++)
		node_put(0, k, 1, 3000);
	assert_true(mute_until(still(node[0].control.directory) && node[0].hits == KEYS, 20000));
	for (unsigned k = 0; k < KEYS; k++) {
		struct page_key key = key_of(k);

		(void)shard_remove(
			node[1].control.shard, &key, node[0].control.ref, place_make(k & 1, k), 1);
	}
	begun_ns = clock_now_ns();
	node[0].control.directory->turn.at_ns = 0;
	assert_true(mute_until(node[0].control.directory->turn.at_ns != 0, 3000));
	assert_true(mute_until(still(node[0].control.directory), 25000));
	assert_true(clock_now_ns() - begun_ns >= DIGEST_WAIT_NS);
	for (unsigned k = 0; k < KEYS; k++)
		assert_int_equal(
			found_at_owners(0, 0, k) + owned_by((uint32_t)mute.incarnation, k), 2);
	assert_true(node[0].control.directory->turn.at_ns > clock_now_ns());
}

/* ---- links that close ------------------------------------------------------------------------ */

static struct owner *owner_first(void)
{
	return owner_of(holder(), node[0].control.ref);
}

/* Turns until the condition holds, for at most 3,000 turns. */
#define turned_until(condition)                                                                    \
	({                                                                                         \
		for (unsigned n_ = 0; !(condition) && n_ < 3000; n_++)                             \
			nodes_turn();                                                              \
		(condition);                                                                       \
	})

static void a_comparison_whose_link_closes_is_repeated(void **state)
{
	open_with_pages();
	lose(0);
	compare_begins();
	assert_true(turned_until(owner_first()->digest));
	assert_false(owner_first()->digest->answered);
	rpc_link_close((struct rpc_link *)owner_first()->digest->via);
	assert_null(owner_first()->digest);
	assert_true(nodes_until(settled() && all_found(), 9000));
}

/* The owner has an entry without a page, and was about to show it. */
static void an_owner_whose_link_closes_shows_its_entries_again(void **state)
{
	struct page_key key = key_of(3 * KEYS);
	struct dir_entry found;

	open_with_pages();
	assert_int_equal(
		shard_insert(node[0].control.shard, &key, node[HOLDER].control.ref, 5, 77), 0);
	compare_begins();
	assert_true(turned_until(owner_first()->show && owner_first()->show->asked));
	rpc_link_close((struct rpc_link *)owner_first()->show->via);
	assert_null(owner_first()->show);
	assert_true(nodes_until(settled(), 9000));
	assert_int_equal(shard_find(node[0].control.shard, &key, &found, 1), 0);
}

/* It cannot be asked while it has no link. */
static void an_owner_without_a_link_is_compared_with_later(void **state)
{
	struct member_contact *contact;

	open_with_pages();
	lose(0);
	assert_true(nodes_until(clock_now_ns() >= holder()->move.compare_ns, 1000));
	assert_false(holder()->reading.on);
	contact = member_peer(&node[HOLDER].control, owner_first()->peer)->contact;
	if (contact->in)
		rpc_link_close(contact->in);
	if (contact->out)
		rpc_link_close(contact->out);
	assert_null(member_link_now(&node[HOLDER].control, owner_first()->ref));
	owner_first()->unsure = true;
	move_slice(holder());
	assert_null(owner_first()->digest);
	assert_true(nodes_until(settled() && all_found(), 9000));
}

#define T(name) cmocka_unit_test_setup_teardown(name, begin, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(entries_that_owners_have_lost_come_back),
		T(no_turn_comes_while_owners_lack_entries),
		T(nothing_is_published_where_nothing_is_missing),
		T(nothing_is_published_after_many_changes_of_the_map),
		T(the_time_of_the_next_comparison_is_random_within_its_bounds),
		T(pages_set_and_removed_meanwhile_stay_as_they_are),
		T(a_change_of_the_map_during_a_comparison_loses_nothing),
		T(an_owner_that_lacks_many_slots_gets_some_at_a_time),
		T(an_owner_that_has_dropped_all_gets_all),
		T(an_owner_that_does_not_answer_ends_no_comparison),
		T(a_comparison_whose_link_closes_is_repeated),
		T(an_owner_whose_link_closes_shows_its_entries_again),
		T(an_owner_without_a_link_is_compared_with_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
