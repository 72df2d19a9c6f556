/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of other engines on a shard, sent over a raw connection: what is served and what breaks
 * a rule. A node is one control plane in the test's process.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include <cmocka.h>
#include <unistd.h>

#include "engine/control/directory/directory_state.h"

static int teardown(void **state)
{
	nodes_teardown();
	return 0;
}

static const uint64_t raw_incarnation = 0x4200000042;

static void expect_bad(Pc__Message *message)
{
	uint64_t before = node[0].control.counter[COUNTER_messages_bad];
	uint64_t entries = node[0].control.shard->entries;
	int fd = raw_open(0);

	raw_hello(fd, "raw", raw_incarnation, 9, NULL);
	raw_message(fd, message);
	assert_true(raw_closed(fd, 2000));
	close(fd);
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], before + 1);
	assert_int_equal(node[0].control.shard->entries, entries);
}

static void messages_that_break_a_rule_change_nothing(void **state)
{
	static Pc__Entry entry[MESSAGE_PAGES_MAX + 1];
	static Pc__Entry *entries[MESSAGE_PAGES_MAX + 1];
	uint32_t places[] = {place_make(2, 0)}, failed[] = {1};
	Pc__Publish publish = PC__PUBLISH__INIT;
	Pc__Remove remove = PC__REMOVE__INIT;
	Pc__Forget forget = PC__FORGET__INIT;
	Pc__Touch touch = PC__TOUCH__INIT;
	Pc__Ack ack = PC__ACK__INIT;
	Pc__Message m = PC__MESSAGE__INIT;

	nodes_setup(20, 300);
	assert_int_equal(node_open(0, NULL), 0);
	for (unsigned i = 0; i <= MESSAGE_PAGES_MAX; i++) {
		entry[i] = (Pc__Entry)PC__ENTRY__INIT;
		entry[i].key0 = i + 1;
		entry[i].ref = 1;
		entries[i] = &entry[i];
	}
	m.body_case = PC__MESSAGE__BODY_PUBLISH;
	m.publish = &publish;
	publish.entries = entries;
	publish.n_entries = 1;
	publish.ref = (uint32_t)raw_incarnation + 1; /* the ref of another engine than the sender */
	expect_bad(&m);
	publish.ref = (uint32_t)raw_incarnation;
	publish.n_entries = 0;
	expect_bad(&m);
	publish.n_entries = MESSAGE_PAGES_MAX + 1;
	expect_bad(&m);
	publish.n_entries = 2;
	/* the entry's place is on rail 2; the sender has only two rails */
	entry[1].place = place_make(2, 0);
	expect_bad(&m);
	entry[1].place = 0;
	entry[1].key0 = 0; /* the key {0, 0} is not valid */
	expect_bad(&m);
	m.body_case = PC__MESSAGE__BODY_REMOVE;
	m.remove = &remove;
	remove.entries = entries;
	remove.n_entries = 2;
	expect_bad(&m);
	entry[1].key0 = 1;
	entry[1].ref = 0; /* the entry names no holder (ref 0) */
	expect_bad(&m);
	m.body_case = PC__MESSAGE__BODY_FORGET;
	m.forget = &forget;
	forget.entries = entries;
	forget.n_entries = MESSAGE_PAGES_MAX + 1;
	expect_bad(&m);
	m.body_case = PC__MESSAGE__BODY_TOUCH;
	m.touch = &touch;
	touch.places = places;
	touch.n_places = 1; /* node 0 has two rails, so this place does not exist */
	expect_bad(&m);
	assert_int_equal(node[0].touches, 0);
	m.body_case = PC__MESSAGE__BODY_ACK;
	m.ack = &ack;
	ack.serial = 1; /* refused: node 0 has sent no batch with this serial */
	ack.failed = failed;
	ack.n_failed = 1;
	expect_bad(&m);
}

static void digests_that_break_a_rule_change_nothing(void **state)
{
	static uint64_t sums[MAP_SLOTS + 1];
	Pc__Digest digest = PC__DIGEST__INIT;
	Pc__Message m = PC__MESSAGE__INIT;

	nodes_setup(20, 300);
	assert_int_equal(node_open(0, NULL), 0);
	m.body_case = PC__MESSAGE__BODY_DIGEST; /* to a question that was not asked */
	m.digest = &digest;
	digest.sums = sums;
	digest.n_sums = sizeof(sums) / sizeof(sums[0]);
	expect_bad(&m);
}

/* As the requests above, but without an error: the publish is served. */
static void a_correct_publish_over_a_raw_connection_is_served(void **state)
{
	Pc__Entry entry = PC__ENTRY__INIT, *entries = &entry;
	Pc__Publish publish = PC__PUBLISH__INIT;
	Pc__Message m = PC__MESSAGE__INIT;
	struct page_key key = {.word = {11, 12}};
	struct dir_entry found[2];
	int fd;

	nodes_setup(20, 300);
	assert_int_equal(node_open(0, NULL), 0);
	entry.key0 = 11;
	entry.key1 = 12;
	entry.place = place_make(1, 3);
	entry.generation = 9;
	publish.ref = (uint32_t)raw_incarnation;
	publish.n_entries = 1;
	publish.entries = &entries;
	m.body_case = PC__MESSAGE__BODY_PUBLISH;
	m.publish = &publish;
	fd = raw_open(0);
	raw_hello(fd, "raw", raw_incarnation, 9, NULL);
	raw_message(fd, &m);
	assert_true(nodes_until(shard_find(node[0].control.shard, &key, found, 2) == 1, 1000));
	assert_int_equal(found[0].ref, (uint32_t)raw_incarnation);
	assert_int_equal(found[0].place, place_make(1, 3));
	assert_int_equal(found[0].generation, 9);
	close(fd);
	/* The member that published the entry is dead, so node 0 sweeps its entry later. */
	assert_true(nodes_until(!member_by_ref(&node[0].control, (uint32_t)raw_incarnation), 1000));
	assert_int_equal(shard_find(node[0].control.shard, &key, found, 2), 1);
	departed_tick(node[0].control.directory, UINT64_MAX);
	assert_true(nodes_until(shard_find(node[0].control.shard, &key, found, 2) == 0, 1000));
}

/* A member may say of any entry that it is wrong: the holder knows better. */
static void the_entry_of_a_page_that_is_here_stays(void **state)
{
	Pc__Entry entry = PC__ENTRY__INIT, *entries = &entry;
	Pc__Remove remove = PC__REMOVE__INIT;
	Pc__Message m = PC__MESSAGE__INIT;
	struct page_key key = key_of(6);
	struct dir_entry found[2];
	uint64_t in;
	int fd;

	nodes_setup(20, 300);
	assert_int_equal(node_open(0, NULL), 0);
	fd = raw_open(0);
	raw_hello(fd, "raw", raw_incarnation, 9, NULL);
	node_put(0, 6, 1, 3000);
	assert_true(nodes_until(shard_find(node[0].control.shard, &key, found, 2) == 1, 3000));
	entry.key0 = key.word[0];
	entry.key1 = key.word[1];
	entry.ref = found[0].ref;
	entry.place = found[0].place;
	entry.generation = found[0].generation;
	remove.entries = &entries;
	remove.n_entries = 1;
	m.body_case = PC__MESSAGE__BODY_REMOVE;
	m.remove = &remove;
	for (unsigned turn = 0; turn < 3; turn++) {
		bool gone = turn == 2;

		entry.key0 = key.word[0] ^ (turn == 1); /* has the same tag and bucket */
		if (gone)
			assert_true(index_remove(node[0].control.index, &key));
		in = node[0].control.counter[COUNTER_messages_in];
		raw_message(fd, &m);
		assert_true(nodes_until(node[0].control.counter[COUNTER_messages_in] > in, 1000));
		assert_int_equal(shard_find(node[0].control.shard, &key, found, 2), !gone);
	}
	close(fd);
}

/* Fills the candidate buckets of the key with entries of refs from `ref` on. */
static void buckets_fill(const struct page_key *key, uint32_t ref)
{
	for (unsigned i = 0; i < 2 * BUCKET_ENTRIES; i++)
		assert_int_equal(shard_insert(node[0].control.shard, key, ref + i, 7, 1), 0);
}

/* A host that is started often has entries of many incarnations in the buckets of one key. */
static void entries_of_members_that_left_give_their_room(void **state)
{
	const struct page_key key[] = {key_of(1), key_of(2)};
	const uint64_t *counter = node[0].control.counter;
	struct location at = {.generation = 1};
	struct dir_entry found[2 * BUCKET_ENTRIES];
	struct shard *shard;

	nodes_setup(20, 300);
	assert_int_equal(node_open(0, NULL), 0);
	shard = node[0].control.shard;
	at.ref = node[0].control.ref;
	for (unsigned disk = 0; disk < 2; disk++) {
		bool own = false;

		at.place = disk ? place_make(PLACE_DISK, 7) : place_make(0, 7);
		buckets_fill(&key[disk], 1000);
		assert_int_equal(shard_insert(shard, &key[disk], at.ref, at.place, 1), -ENOSPC);
		assert_true(entry_insert(
			node[0].control.directory, &key[disk], &at, false, &(enum evicted){0}));
		/* one gives its room, the others stay: they may come back */
		assert_int_equal(shard_find(shard, &key[disk], found, 2 * BUCKET_ENTRIES),
			2 * BUCKET_ENTRIES);
		for (unsigned i = 0; i < 2 * BUCKET_ENTRIES; i++)
			own |= found[i].ref == at.ref && found[i].place == at.place;
		assert_true(own);
		assert_int_equal(counter[COUNTER_entries_removed], disk + 1);
	}
	assert_int_equal(counter[COUNTER_entries_dropped], 0);
	assert_int_equal(counter[COUNTER_entries_surplus], 0);
}

/* Three quarters of the shard are used: pages on disk get no room that is left for others. */
static void a_page_on_disk_takes_no_room_of_members_that_left(void **state)
{
	const uint64_t *counter = node[0].control.counter;
	struct location at = {.place = place_make(PLACE_DISK, 7), .generation = 1};
	uint64_t number = 0;
	struct page_key key;
	struct shard *shard;

	nodes_setup(20, 300);
	assert_int_equal(node_open(0, NULL), 0);
	shard = node[0].control.shard;
	at.ref = node[0].control.ref;
	for (key = key_of(0); shard_insert(shard, &key, 1000, at.place, 1) == 0;
		key = key_of(number))
		number++;
	assert_int_equal(shard_insert(shard, &key, at.ref, at.place, 1), -EDQUOT);
	assert_false(entry_insert(node[0].control.directory, &key, &at, false, &(enum evicted){0}));
	assert_int_equal(counter[COUNTER_entries_removed], 0);
	assert_int_equal(counter[COUNTER_entries_dropped], 1);
	/* with an entry of a member, readers find the page without another one */
	assert_int_equal(shard_insert(shard, &key, at.ref, 7, 1), 0);
	at.ref = 1001;
	assert_false(entry_insert(node[0].control.directory, &key, &at, false, &(enum evicted){0}));
	assert_int_equal(counter[COUNTER_entries_surplus], 1);
	assert_int_equal(counter[COUNTER_entries_dropped], 1);
}

#define T(name) cmocka_unit_test_teardown(name, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(messages_that_break_a_rule_change_nothing),
		T(digests_that_break_a_rule_change_nothing),
		T(a_correct_publish_over_a_raw_connection_is_served),
		T(the_entry_of_a_page_that_is_here_stays),
		T(entries_of_members_that_left_give_their_room),
		T(a_page_on_disk_takes_no_room_of_members_that_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
