/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries without a page: an owner shows what it has, and the holder removes what is wrong. A node
 * is one control plane in the test's process; time is simulated.
 */
#include "tests/unit/control/directory/holder_world.h"

#define WRONG 2000u /* entries without a page */

/* Entries of the holder in the shard of node n. */
static uint64_t held(unsigned n)
{
	const struct shard *shard = node[n].control.shard;
	struct shard_part part = {.buckets = 1u << shard->bits};
	uint64_t count = 0;

	while (shard_show(shard, &part, node[HOLDER].control.ref))
		count++;
	return count;
}

static uint64_t held_in_all(void)
{
	return held(0) + held(1) + held(HOLDER);
}

/* Node n has an entry of the holder for a key, of a page that is not there. */
static void entry_left(unsigned n, uint64_t key_number, uint32_t place, uint32_t generation)
{
	struct page_key key = key_of(key_number);

	assert_int_equal(shard_insert(node[n].control.shard, &key, node[HOLDER].control.ref, place,
				 generation),
		0);
}

static void entries_left(unsigned n)
{
	for (unsigned k = 0; k < WRONG; k++)
		entry_left(n, 1000000 + k, place_make(k & 1, k), 7);
}

/* ---- what disappears, and what stays ----------------------------------------------------------*/

static void entries_without_a_page_disappear_in_one_comparison(void **state)
{
	open_with_pages();
	assert_int_equal(held_in_all(), 2 * KEYS);
	for (unsigned i = 0; i <= HOLDER; i++)
		entries_left(i);
	compare_once();
	assert_int_equal(held_in_all(), 2 * KEYS);
	assert_int_equal(counted(COUNTER_entries_withdrawn), 3 * WRONG);
	assert_true(all_found());
}

/* The names that come closest to that of a page: each differs in one part. */
static void an_entry_that_differs_in_one_part_is_wrong(void **state)
{
	uint32_t place = place_make(0, 2), generation = 1;
	struct page_key key = key_of(2);

	open_with_pages();
	for (unsigned i = 0; i <= HOLDER; i++) {
		struct shard *shard = node[i].control.shard;
		uint32_t ref = node[HOLDER].control.ref;
		struct page_key other = {.word = {key.word[0], key.word[1] ^ 1}};

		(void)shard_remove(shard, &key, ref, place, generation);
		/* another generation, another place; another tag with the name of the page */
		assert_int_equal(shard_insert(shard, &key, ref, i & 1 ? place : place_make(1, 2),
					 generation + (i & 1)),
			0);
		assert_int_equal(shard_insert(shard, &other, ref, place, generation), 0);
		entry_left(i, 5000, place_make(PLACE_RAILS - 2, 5), 1);
		entry_left(i, 5001, place_make(PLACE_DISK, 5), 1);
		entry_left(i, 5002, place_make(0, PAGE_UNITS_MAX - 1), UINT32_MAX);
	}
	compare_once();
	compare_once(); /* the first may have repaired an entry before it was shown */
	assert_int_equal(held_in_all(), 2 * KEYS);
	assert_true(all_found());
}

static void an_entry_at_a_member_that_is_no_owner_is_wrong(void **state)
{
	unsigned put = 0;

	open_with_pages();
	for (unsigned k = 0; k < KEYS; k++)
		for (unsigned i = 0; i <= HOLDER; i++) {
			struct page_key key = key_of(k);
			struct dir_entry found[4];

			if (shard_find(node[i].control.shard, &key, found, 4))
				continue;
			entry_left(i, k, place_make(k & 1, k), 1);
			put++;
		}
	assert_int_equal(put, KEYS);
	compare_once();
	assert_int_equal(held_in_all(), 2 * KEYS);
	assert_true(all_found());
}

static void a_holder_without_pages_compares_too(void **state)
{
	struct page_key key = key_of(1);

	open_three();
	node_put(HOLDER, 1, 1, 3000);
	assert_true(nodes_until(node[HOLDER].hits == 1, 3000));
	directory_remove(&node[HOLDER].control, &key,
		&(struct location){.place = place_make(1, 1), .generation = 1});
	assert_true(index_remove(node[HOLDER].control.index, &key));
	assert_true(nodes_until(settled() && held_in_all() == 0, 3000));
	entries_left(0);
	entries_left(1);
	compare_once();
	assert_int_equal(held_in_all(), 0);
}

static void entries_of_pages_on_disk_stay(void **state)
{
	static struct disk_page on_disk[100];

	open_with_pages();
	for (unsigned k = 0; k < 100; k++)
		on_disk[k] = (struct disk_page){.key = key_of(20000 + k),
			.place = place_make(PLACE_DISK, 77),
			.generation = k + 1,
			.length = 1};
	node[HOLDER].disk = on_disk;
	node[HOLDER].disk_pages = 100;
	directory_disk_opened(&node[HOLDER].control);
	assert_true(nodes_until(settled() && held_in_all() == 2 * (KEYS + 100), 9000));
	entry_left(0, 30000, place_make(PLACE_DISK, 77), 101);
	entry_left(1, 30001, place_make(PLACE_DISK, 78), 1);
	on_disk[99].key = key_of(3); /* in memory, too: that entry counts */
	compare_once();
	compare_once();
	assert_int_equal(held_in_all(), 2 * (KEYS + 99));
	node[HOLDER].disk_pages = 0;
	compare_once();
	assert_int_equal(held_in_all(), 2 * KEYS);
}

/* More entries than a message may have, in a shard that is read in several parts. */
static void a_shard_full_of_wrong_entries_is_emptied(void **state)
{
	struct shard *shard = node[0].control.shard;
	uint32_t ref;
	uint64_t entries;

	nodes_entries = 8 * SHOW_BUCKETS;
	open_with_pages();
	ref = node[HOLDER].control.ref;
	for (unsigned k = 0; k < 2u * BUCKET_ENTRIES << shard->bits; k++) {
		struct page_key key = key_of(1000000 + k);

		(void)shard_insert(shard, &key, ref, place_make(k & 1, k), 7);
	}
	entries = shard->entries;
	assert_true(entries > 2 * OWNER_REMOVES_MAX && entries > 4 * MESSAGE_PAGES_MAX);
	compare_once();
	assert_int_equal(held_in_all(), 2 * KEYS);
	assert_int_equal(node[HOLDER].control.counter[COUNTER_removes_dropped], 0);
	assert_true(all_found());
}

/* ---- when ------------------------------------------------------------------------------------ */

/* An owner that was full is asked, and once it has room it gets what it had refused. */
static void an_owner_that_was_full_gets_what_it_refused(void **state)
{
	struct shard *shard = node[0].control.shard;

	open_with_pages();
	for (unsigned k = 0; k < 8u * BUCKET_ENTRIES << shard->bits; k++) {
		struct page_key key = key_of(1000000 + k);

		(void)shard_insert(shard, &key, node[HOLDER].control.ref, place_make(0, k), 7);
	}
	for (unsigned k = KEYS; k < 2 * KEYS; k++)
		node_put(HOLDER, k, 1, 3000);
	assert_true(nodes_until(node[HOLDER].hits == 2 * KEYS && settled(), 9000));
	assert_true(node[0].control.counter[COUNTER_entries_dropped] > 0);
	compare_once();
	assert_in_range(held_in_all(), 2 * KEYS, 4 * KEYS - 1);
	/* it has removed what it should not have */
	compare_once();
	assert_int_equal(held_in_all(), 4 * KEYS);
	for (unsigned k = 0; k < 2 * KEYS; k++)
		assert_int_equal(found_at_owners(0, HOLDER, k), 2);
}

static void an_unsure_owner_is_compared_with_at_once(void **state)
{
	struct owner *owner;

	open_with_pages();
	entries_left(0);
	STAILQ_FOREACH (owner, &holder()->owners, next)
		if (owner->ref == node[0].control.ref)
			owner->unsure = true; /* as target_leave_out() does */
	assert_true(nodes_until(settled() && held_in_all() == 2 * KEYS, 3000));
}

/* An owner is away while every step-th page goes, and comes back with its old shard. */
static void away_while_pages_go(unsigned step)
{
	open_with_pages();
	node[0].stalled = true;
	assert_true(nodes_until(sees_count(HOLDER, 2), 9000));
	for (unsigned k = 0; k < KEYS; k += step) {
		struct page_key key = key_of(k);

		directory_remove(&node[HOLDER].control, &key,
			&(struct location){.place = place_make(k & 1, k), .generation = 1});
		assert_true(index_remove(node[HOLDER].control.index, &key));
	}
	nodes_run(200);
	node[0].stalled = false;
	assert_true(nodes_until(
		settled() && held_in_all() == 2 * (KEYS - (KEYS + step - 1) / step), 9000));
}

static void an_owner_that_was_cut_off_has_no_wrong_entry_after_it_is_back(void **state)
{
	away_while_pages_go(2);
}

static void a_holder_whose_pages_are_all_gone_is_shown_its_entries_too(void **state)
{
	away_while_pages_go(1);
}

static void a_page_of_the_own_shard_that_found_no_room_comes_back(void **state)
{
	struct shard *shard = node[HOLDER].control.shard;
	uint32_t other;

	open_with_pages();
	other = node[0].control.ref;
	for (unsigned k = 0; k < 8u * BUCKET_ENTRIES << shard->bits; k++) {
		struct page_key key = key_of(1000000 + k);

		(void)shard_insert(shard, &key, other, place_make(0, k), 7);
	}
	for (unsigned k = KEYS; k < 2 * KEYS; k++)
		node_put(HOLDER, k, 1, 3000);
	assert_true(nodes_until(node[HOLDER].hits == 2 * KEYS && settled(), 9000));
	assert_true(held_in_all() < 4 * KEYS);
	for (unsigned k = 0; k < 8u * BUCKET_ENTRIES << shard->bits; k++) {
		struct page_key key = key_of(1000000 + k);

		(void)shard_remove(shard, &key, other, place_make(0, k), 7);
	}
	compare_once();
	assert_int_equal(held_in_all(), 4 * KEYS);
}

/* ---- pages that change meanwhile ------------------------------------------------------------- */

static void pages_that_change_while_they_are_shown_keep_their_entries(void **state)
{
	open_with_pages();
	for (unsigned turn = 0; turn < 20; turn++) {
		for (unsigned i = 0; i < 2; i++)
			entries_left(i);
		node[HOLDER].control.directory->turn.at_ns = 0; /* from the next heartbeat on */
		for (unsigned k = 0; k < KEYS; k++) {
			if (k % 100 == 0)
				nodes_turn();
			node_put(HOLDER, k, 2 + turn, 3000);
		}
		assert_true(nodes_until(holder()->turn.at_ns != 0, 3000));
		assert_true(nodes_until(settled(), 9000));
		holder()->turn.at_ns = UINT64_MAX;
		assert_int_equal(held_in_all(), 2 * KEYS);
		assert_true(all_found());
	}
}

#define T(name) cmocka_unit_test_setup_teardown(name, begin, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(entries_without_a_page_disappear_in_one_comparison),
		T(an_entry_that_differs_in_one_part_is_wrong),
		T(an_entry_at_a_member_that_is_no_owner_is_wrong),
		T(a_holder_without_pages_compares_too),
		T(entries_of_pages_on_disk_stay),
		T(a_shard_full_of_wrong_entries_is_emptied),
		T(an_owner_that_was_full_gets_what_it_refused),
		T(an_unsure_owner_is_compared_with_at_once),
		T(an_owner_that_was_cut_off_has_no_wrong_entry_after_it_is_back),
		T(a_holder_whose_pages_are_all_gone_is_shown_its_entries_too),
		T(a_page_of_the_own_shard_that_found_no_room_comes_back),
		T(pages_that_change_while_they_are_shown_keep_their_entries),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
