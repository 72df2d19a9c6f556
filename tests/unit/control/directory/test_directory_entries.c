/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two messages by which an owner shows its entries, with a member that the test plays: limits,
 * and what breaks a rule. A node is one control plane in the test's process; time is simulated.
 */
#include "tests/unit/control/directory/mute_world.h"

#include "engine/abi/wire.h"

static int begin(void **state)
{
	nodes_setup(20, 300);
	return 0;
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

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		(void)mute_is_asked();
		send_entries(0, cases[i].count, cases[i].next);
		assert_true(raw_closed(mute.fd, 100)); /* before it is dead for its silence */
		(void)teardown(state);
		(void)begin(state);
	}
}

/* The sums must be those of the slots. */
static void digests_that_break_a_rule_end_the_link(void **state)
{
	static uint8_t slots[MAP_SLOTS / 8 + 1] = {5};
	static uint64_t sums[3];
	static const struct {
		size_t bytes, sums;
	} cases[] = {{0, 1}, {1, 2}, {MAP_SLOTS / 8 - 1, 2}, {sizeof(slots), 2}, {MAP_SLOTS / 8, 0},
		{MAP_SLOTS / 8, 1}, {MAP_SLOTS / 8, 3}};
	Pc__Digest body = PC__DIGEST__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct owner *owner = mute_is_asked();

		assert_true(digest_ask(node[0].control.directory, owner));
		body.serial = owner->digest->serial;
		body.slots = (ProtobufCBinaryData){cases[i].bytes, slots};
		body.sums = sums;
		body.n_sums = cases[i].sums;
		message.body_case = PC__MESSAGE__BODY_DIGEST;
		message.digest = &body;
		raw_message(mute.fd, &message);
		assert_true(raw_closed(mute.fd, 100)); /* before it is dead for its silence */
		(void)teardown(state);
		(void)begin(state);
	}
}

/* Asked again only once it acknowledges removes. */
static void no_more_is_shown_than_there_is_room_for_removes(void **state)
{
	struct owner *owner;
	uint64_t withdrawn = 0;

	owner = mute_is_asked();
	for (uint32_t bucket = 6; owner->show->asked; bucket++) {
		send_entries(owner->show->serial, MESSAGE_PAGES_MAX, bucket);
		withdrawn += MESSAGE_PAGES_MAX;
		assert_true(nodes_until(
			node[0].control.counter[COUNTER_entries_withdrawn] == withdrawn, 100));
	}
	assert_true(withdrawn > OWNER_REMOVES_MAX - MESSAGE_PAGES_MAX);
	assert_true(owner->background <= OWNER_REMOVES_MAX);
	assert_int_equal(node[0].control.counter[COUNTER_removes_dropped], 0);
	mute.answers = true;
	assert_true(mute_until(owner->show->asked, 200));
}

static void an_owner_whose_removes_were_dropped_is_unsure(void **state)
{
	struct owner *owner;

	owner = mute_is_asked();
	show_drop(owner);
	for (unsigned k = 0; !node[0].control.counter[COUNTER_removes_dropped]; k++) {
		struct page_key key = key_of(k);

		assert_false(owner->unsure);
		directory_remove(
			&node[0].control, &key, &(struct location){.place = 1, .generation = 1});
	}
	assert_true(owner->unsure);
}

static void questions_that_break_a_rule_end_the_link(void **state)
{
	static uint8_t slots[MAP_SLOTS / 8 + 1];
	static const size_t cases[] = {0, 1, MAP_SLOTS / 8 - 1, sizeof(slots)};
	Pc__EntriesAsk body = PC__ENTRIES_ASK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	assert_int_equal(node_open(0, NULL), 0);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int fd = raw_open(0);

		raw_hello(fd, "mute", 0x1234567890 + i, 9, NULL);
		assert_true(nodes_until(sees_count(0, 2), 1000));
		body.slots = (ProtobufCBinaryData){cases[i], slots};
		message.body_case = PC__MESSAGE__BODY_ENTRIES_ASK;
		message.entries_ask = &body;
		raw_message(fd, &message);
		assert_true(raw_closed(fd, 100));
		close(fd);
		assert_true(nodes_until(sees_count(0, 1), 9000));
	}
}

/* What a lying owner shows costs removes to itself, and nothing else. */
static void an_owner_that_lies_gets_removes_only(void **state)
{
	struct owner *owner;

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
		T(answers_that_break_a_rule_end_the_link),
		T(digests_that_break_a_rule_end_the_link),
		T(no_more_is_shown_than_there_is_room_for_removes),
		T(an_owner_whose_removes_were_dropped_is_unsure),
		T(questions_that_break_a_rule_end_the_link),
		T(an_owner_that_lies_gets_removes_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
