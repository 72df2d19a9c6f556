/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries without a page: an owner shows what it has, and the holder removes what is wrong. A node
 * is one control plane in the test's process; time is simulated.
 */
#include "tests/unit/control/mute_world.h"

#include "engine/abi/wire.h"

#undef KEYS
#define KEYS 1500 /* pages of the holder */
#define HOLDER 2
#define WRONG 2000u /* entries without a page */

static int begin(void **state)
{
	(void)state;
	nodes_setup(20, 300);
	return 0;
}

static struct directory *holder(void)
{
	return node[HOLDER].control.directory;
}

static uint64_t counted(enum counter counter)
{
	return node[HOLDER].control.counter[counter];
}

static bool shows(const struct directory *dir)
{
	const struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->show)
			return true;
	return false;
}

static bool settled(void)
{
	return all_agree() && holder()->phase == MOVE_NONE && holder()->background == 0 &&
	       !behind_any(holder()) && !shows(holder()) && !holder()->own.left;
}

static void open_three(void)
{
	for (unsigned i = 0; i <= HOLDER; i++)
		assert_int_equal(node_open(i, i ? node_at(0) : node_at(1)), 0);
	assert_true(nodes_until(settled(), 9000));
}

/* Three nodes; HOLDER has KEYS pages that all owners have, and compares at no time of its own. */
static void open_with_pages(void)
{
	open_three();
	for (unsigned k = 0; k < KEYS; k++)
		node_put(HOLDER, k, 1, 3000);
	assert_true(nodes_until(node[HOLDER].hits == KEYS && settled(), 9000));
	holder()->compare_ns = UINT64_MAX;
}

static void compare_once(void)
{
	directory_compare(&node[HOLDER].control);
	assert_true(nodes_until(holder()->compare_ns != 0, 3000));
	assert_true(nodes_until(settled(), 9000));
	holder()->compare_ns = UINT64_MAX;
}

static bool all_found(void)
{
	for (unsigned k = 0; k < KEYS; k++)
		if (found_at_owners(0, HOLDER, k) != 2)
			return false;
	return true;
}

/* Entries of the holder in the shard of node n. */
static uint64_t held(unsigned n)
{
	const struct shard *shard = &node[n].control.shard;
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

	assert_int_equal(shard_insert(&node[n].control.shard, &key, node[HOLDER].control.ref, place,
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
	(void)state;
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

	(void)state;
	open_with_pages();
	for (unsigned i = 0; i <= HOLDER; i++) {
		struct shard *shard = &node[i].control.shard;
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

	(void)state;
	open_with_pages();
	for (unsigned k = 0; k < KEYS; k++)
		for (unsigned i = 0; i <= HOLDER; i++) {
			struct page_key key = key_of(k);
			struct dir_entry found[4];

			if (shard_find(&node[i].control.shard, &key, found, 4))
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

	(void)state;
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

	(void)state;
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
	/* it is in memory again: the entry of its place on disk is wrong */
	on_disk[99].key = key_of(3);
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
	struct shard *shard = &node[0].control.shard;
	uint32_t ref;
	uint64_t entries;

	(void)state;
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
	struct shard *shard = &node[0].control.shard;

	(void)state;
	open_with_pages();
	for (unsigned k = 0; k < 8u * BUCKET_ENTRIES << shard->bits; k++) {
		struct page_key key = key_of(1000000 + k);

		(void)shard_insert(shard, &key, node[HOLDER].control.ref, place_make(0, k), 7);
	}
	for (unsigned k = KEYS; k < 2 * KEYS; k++)
		node_put(HOLDER, k, 1, 3000);
	assert_true(nodes_until(settled(), 9000));
	assert_true(shard->dropped > 0);
	compare_once();
	/* the second comes by itself: the owner is known to have room */
	assert_true(nodes_until(settled() && held_in_all() == 4 * KEYS, 9000));
	for (unsigned k = 0; k < 2 * KEYS; k++)
		assert_int_equal(found_at_owners(0, HOLDER, k), 2);
}

static void removes_that_were_dropped_are_made_up_for_at_once(void **state)
{
	struct owner *owner;

	(void)state;
	open_with_pages();
	entries_left(0);
	STAILQ_FOREACH (owner, &holder()->owners, next)
		if (owner->ref == node[0].control.ref)
			owner->unsure = true; /* as left_out() does */
	assert_true(nodes_until(settled() && held_in_all() == 2 * KEYS, 3000));
}

/* An owner was away while its entries became wrong, and comes back with its old shard. */
static void an_owner_that_was_cut_off_has_no_wrong_entry_after_it_is_back(void **state)
{
	(void)state;
	open_with_pages();
	node[0].stalled = true;
	assert_true(nodes_until(sees_count(HOLDER, 2), 9000));
	for (unsigned k = 0; k < KEYS; k += 2) {
		struct page_key key = key_of(k);

		directory_remove(&node[HOLDER].control, &key,
			&(struct location){.place = place_make(k & 1, k), .generation = 1});
		assert_true(index_remove(node[HOLDER].control.index, &key));
	}
	nodes_run(200);
	node[0].stalled = false;
	assert_true(nodes_until(settled() && held_in_all() == KEYS, 9000));
}

static void a_page_of_the_own_shard_that_found_no_room_comes_back(void **state)
{
	struct shard *shard = &node[HOLDER].control.shard;
	uint32_t other;

	(void)state;
	open_with_pages();
	other = node[0].control.ref;
	for (unsigned k = 0; k < 8u * BUCKET_ENTRIES << shard->bits; k++) {
		struct page_key key = key_of(1000000 + k);

		(void)shard_insert(shard, &key, other, place_make(0, k), 7);
	}
	for (unsigned k = KEYS; k < 2 * KEYS; k++)
		node_put(HOLDER, k, 1, 3000);
	assert_true(nodes_until(settled(), 9000));
	assert_true(held_in_all() < 4 * KEYS);
	for (unsigned k = 0; k < 8u * BUCKET_ENTRIES << shard->bits; k++) {
		struct page_key key = key_of(1000000 + k);

		(void)shard_remove(shard, &key, other, place_make(0, k), 7);
	}
	compare_once();
	assert_int_equal(held_in_all(), 4 * KEYS);
}

/* ---- pages that change meanwhile; members that lie ------------------------------------------- */

static void pages_that_change_while_they_are_shown_keep_their_entries(void **state)
{
	(void)state;
	open_with_pages();
	for (unsigned turn = 0; turn < 20; turn++) {
		for (unsigned i = 0; i < 2; i++)
			entries_left(i);
		directory_compare(&node[HOLDER].control);
		for (unsigned k = 0; k < KEYS; k++) {
			if (k % 100 == 0)
				nodes_turn();
			node_put(HOLDER, k, 2 + turn, 3000);
		}
		assert_true(nodes_until(holder()->compare_ns != 0, 3000));
		assert_true(nodes_until(settled(), 9000));
		holder()->compare_ns = UINT64_MAX;
		assert_int_equal(held_in_all(), 2 * KEYS);
		assert_true(all_found());
	}
}

static void send_entries(uint64_t serial, unsigned count, uint32_t next)
{
	static Pc__Entry entry[MESSAGE_PAGES_MAX + 1], *entries[MESSAGE_PAGES_MAX + 1];
	Pc__Entries body = PC__ENTRIES__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	for (unsigned i = 0; i < count; i++) {
		entry[i] = (Pc__Entry)PC__ENTRY__INIT;
		entry[i].key1 = i + 1;
		entry[i].place = UINT32_MAX - i;
		entry[i].generation = i;
		entries[i] = &entry[i];
	}
	body.serial = serial;
	body.entries = entries;
	body.n_entries = count;
	body.next = next;
	message.body_case = PC__MESSAGE__BODY_ENTRIES;
	message.entries = &body;
	raw_message(mute.fd, &message);
}

/* A member to which an EntriesAsk was sent, with serial 0, from bucket 5 on. */
static struct owner *mute_is_asked(void)
{
	struct owner *owner;

	assert_int_equal(node_open(0, NULL), 0);
	mute_join();
	STAILQ_FOREACH (owner, &node[0].control.directory->owners, next)
		if (owner->ref == (uint32_t)mute.incarnation)
			break;
	assert_non_null(owner);
	owner->show = calloc(1, sizeof(*owner->show) + 1);
	owner->show->bucket = 5;
	owner->show->asked = true;
	owner->show->via = member_link_now(&node[0].control, owner->ref);
	return owner;
}

static void answers_that_break_a_rule_end_the_link(void **state)
{
	static const struct {
		unsigned count;
		uint32_t next;
	} cases[] = {{MESSAGE_PAGES_MAX + 1, 9}, {1, 5}, {1, 4}};

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		(void)mute_is_asked();
		send_entries(0, cases[i].count, cases[i].next);
		assert_true(raw_closed(mute.fd, 1000));
		(void)teardown(state);
		(void)begin(state);
	}
}

static void a_member_of_version_7_is_not_asked(void **state)
{
	struct owner *owner;

	(void)state;
	owner = mute_is_asked();
	owner->show->asked = false;
	((struct rpc_link *)owner->show->via)->member->contact->wire = WIRE_VERSION_OLDEST;
	show_next(node[0].control.directory, owner);
	assert_null(owner->show);
}

static void questions_that_break_a_rule_end_the_link(void **state)
{
	static uint8_t slots[(1u << DIGEST_BITS_MAX) / 8 + 1];
	static const struct {
		uint32_t bits;
		size_t bytes;
	} cases[] = {{DIGEST_BITS_MAX + 1, sizeof(slots)}, {3, 0}, {3, 2}, {4, 1}, {UINT32_MAX, 1}};
	Pc__EntriesAsk body = PC__ENTRIES_ASK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int fd = raw_open(0);

		raw_hello(fd, "mute", 0x1234567890 + i, 9, NULL);
		assert_true(nodes_until(sees_count(0, 2), 1000));
		body.bits = cases[i].bits;
		body.slots = (ProtobufCBinaryData){cases[i].bytes, slots};
		message.body_case = PC__MESSAGE__BODY_ENTRIES_ASK;
		message.entries_ask = &body;
		raw_message(fd, &message);
		assert_true(raw_closed(fd, 1000));
		close(fd);
		assert_true(nodes_until(sees_count(0, 1), 9000));
	}
}

/* What a lying owner shows costs removes to itself, and nothing else. */
static void an_owner_that_lies_gets_removes_only(void **state)
{
	struct owner *owner;

	(void)state;
	owner = mute_is_asked();
	send_entries(17, 9, 9); /* not what was asked */
	send_entries(0, MESSAGE_PAGES_MAX, 0);
	assert_true(nodes_until(
		node[0].control.counter[COUNTER_entries_withdrawn] == MESSAGE_PAGES_MAX, 1000));
	assert_null(owner->show);
	assert_true(owner->background <= OWNER_REMOVES_MAX);
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
		T(removes_that_were_dropped_are_made_up_for_at_once),
		T(an_owner_that_was_cut_off_has_no_wrong_entry_after_it_is_back),
		T(a_page_of_the_own_shard_that_found_no_room_comes_back),
		T(pages_that_change_while_they_are_shown_keep_their_entries),
		T(answers_that_break_a_rule_end_the_link),
		T(a_member_of_version_7_is_not_asked),
		T(questions_that_break_a_rule_end_the_link),
		T(an_owner_that_lies_gets_removes_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
