/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engines of one address may do: how many join, how many they name, what is logged, and
 * how long engines that never answered are remembered.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include <arpa/inet.h>
#include <cmocka.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"

#define DEAD_MS 300
#define MORE 6u

#define FLOOD 960u /* records in a message */

/* Records of invented members; they come over links that have only an address. */
static struct {
	Pc__Member subject[FLOOD];
	Pc__MemberRecord record[FLOOD], *at[FLOOD];
	char name[FLOOD][32];
} crowd;
static struct rpc_link liar = {.from = "192.0.2.1"}, other = {.from = "192.0.2.2"};
static char log_text[65536];
static int raw[SOURCE_JOINS + MORE];

static int setup(void **state)
{
	nodes_setup(20, DEAD_MS);
	assert_int_equal(node_open(0, NULL), 0);
	memset(log_text, 0, sizeof(log_text));
	log_test_capture(log_text, sizeof(log_text));
	for (unsigned i = 0; i < SOURCE_JOINS + MORE; i++)
		raw[i] = -1;
	return 0;
}

static int teardown(void **state)
{
	for (unsigned i = 0; i < SOURCE_JOINS + MORE; i++)
		if (raw[i] >= 0)
			close(raw[i]);
	log_test_capture(NULL, 0);
	nodes_teardown();
	return 0;
}

static void raw_join(unsigned i)
{
	char name[32];

	snprintf(name, sizeof(name), "invented-%u", i);
	raw[i] = raw_open(0);
	raw_hello(raw[i], name, 1000 + i, (uint16_t)(1 + i), NULL);
}

static unsigned lines(const char *text)
{
	unsigned count = 0;

	for (const char *at = log_text; (at = strstr(at, text)); at++)
		count++;
	return count;
}

static void crowd_set(unsigned i, const char *name, uint64_t incarnation)
{
	snprintf(crowd.name[i], sizeof(crowd.name[i]), "%s", name);
	crowd.subject[i] = (Pc__Member)PC__MEMBER__INIT;
	crowd.subject[i].name = crowd.name[i];
	crowd.subject[i].incarnation = incarnation;
	crowd.subject[i].address = "127.0.0.1";
	crowd.subject[i].port = crowd.subject[i].rails = 1;
	crowd.record[i] = (Pc__MemberRecord)PC__MEMBER_RECORD__INIT;
	crowd.record[i].member = &crowd.subject[i];
	crowd.record[i].admission = 1;
	crowd.at[i] = &crowd.record[i];
}

static void crowd_take(struct rpc_link *link, unsigned count)
{
	assert_true(member_records(&node[0].control, link, count, crowd.at));
}

/* A message with FLOOD names of that round. */
static void flood(struct rpc_link *link, unsigned round)
{
	char name[32];

	for (unsigned i = 0; i < FLOOD; i++) {
		snprintf(name, sizeof(name), "flood-%u-%u", round, i);
		crowd_set(i, name, 1000 + round * FLOOD + i);
	}
	crowd_take(link, FLOOD);
}

/* The engine has more than MEMBER_MESH_MAX members, and started a while ago. */
static void rings_begin(void)
{
	node[0].control.members->rings = true;
	node[0].control.members->sole_last_ns = net_now() - NAMES_OPENING_NS;
}

static uint64_t names_refused(void)
{
	return node[0].control.counter[COUNTER_names_refused];
}

static uint64_t refused(void)
{
	return node[0].control.counter[COUNTER_joins_refused];
}

static bool joined(unsigned others)
{
	return node[0].control.members->alive == others + 1;
}

static bool knows(const char *name)
{
	return member_find(node[0].control.members, name) != NULL;
}

/* What the Hello that refuses the sender says. */
static void assert_told(int fd, const char *why)
{
	uint8_t frame[8192];
	size_t have = 0, more;
	uint32_t length = 0;
	Pc__Message *message;

	while ((have < 4 || have < 4 + (size_t)length) &&
		(more = raw_read(fd, frame + have, sizeof(frame) - have, 50))) {
		have += more;
		memcpy(&length, frame, 4);
		length = ntohl(length);
	}
	assert_true(length && have >= 4 + (size_t)length);
	message = pc__message__unpack(NULL, length, frame + 4);
	assert_non_null(message);
	assert_int_equal(message->body_case, PC__MESSAGE__BODY_HELLO);
	assert_non_null(strstr(message->hello->refusal, why));
	pc__message__free_unpacked(message, NULL);
}

static void too_many_joins_are_a_finding_on_both_sides(void **state)
{
	struct refusals_report found;

	for (unsigned i = 0; i < SOURCE_JOINS + MORE; i++)
		raw_join(i);
	assert_true(nodes_until(refused() == MORE, 50));
	refusals_report(&node[0].control, net_now(), &found);
	assert_int_equal(found.engines, 1); /* for all of them: names can be invented */
	assert_false(found.engine[0].theirs);
	assert_non_null(strstr(found.engine[0].text, "have joined at once"));
	assert_told(raw[SOURCE_JOINS], "have joined at once");
	nodes_pass(1000);
	raw_join(SOURCE_JOINS); /* it tries again, and is no longer one of too many */
	assert_true(nodes_until(knows("invented-64"), 50));
	nodes_pass(REFUSAL_LASTS_NS / 1000000);
	refusals_report(&node[0].control, net_now(), &found);
	assert_int_equal(found.engines, 0);
}

static void too_many_joins_are_refused_and_logged_once(void **state)
{
	for (unsigned i = 0; i < SOURCE_JOINS + MORE; i++)
		raw_join(i);
	assert_true(nodes_until(refused() == MORE, 50));
	assert_true(joined(SOURCE_JOINS));
	assert_int_equal(lines("further ones are only counted (joins_refused)"), 1);
	assert_true(raw_closed(raw[SOURCE_JOINS], 50));
}

static void a_member_that_connects_again_needs_no_room(void **state)
{
	int again = raw_open(0);

	for (unsigned i = 0; i < SOURCE_JOINS; i++)
		raw_join(i);
	assert_true(nodes_until(joined(SOURCE_JOINS), 50));
	raw_hello(again, "invented-0", 1000, 1, NULL);
	assert_false(raw_closed(again, 20));
	assert_int_equal(refused(), 0);
	close(again);
}

static void more_may_join_later(void **state)
{
	for (unsigned i = 0; i < SOURCE_JOINS; i++)
		raw_join(i);
	assert_true(nodes_until(joined(SOURCE_JOINS), 40));
	nodes_pass(1000 / SOURCE_JOINS_PER_S + 1);
	raw_join(SOURCE_JOINS);
	raw_join(SOURCE_JOINS + 1);
	raw_join(SOURCE_JOINS + 2);
	raw_join(SOURCE_JOINS + 3);
	assert_true(nodes_until(refused() >= 1, 20));
	assert_true(knows("invented-64"));
}

static void one_that_never_answered_is_not_dialled_and_soon_forgotten(void **state)
{
	const struct member *entry;

	raw_join(0);
	assert_true(nodes_until(sees_count(0, 2), 50));
	close(raw[0]);
	raw[0] = -1;
	assert_true(nodes_until(sees_count(0, 1), DEAD_MS));
	nodes_run(40);
	entry = member_find(node[0].control.members, "invented-0");
	assert_non_null(entry);
	assert_null(entry->contact->dial);
	assert_true(nodes_until(!knows("invented-0"), 11 * DEAD_MS));
}

static void one_that_did_is_dialled_and_remembered(void **state)
{
	const struct member *entry;
	char name[NAME_BYTES_MAX];

	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(all_agree() && sees_count(0, 2), 2000));
	snprintf(name, sizeof(name), "%s", node[1].control.name);
	node_close(1);
	assert_true(nodes_until(sees_count(0, 1), 2 * DEAD_MS));
	nodes_run(11 * DEAD_MS);
	entry = member_find(node[0].control.members, name);
	assert_non_null(entry);
	assert_true(entry->proven);
}

static void too_many_new_names_of_one_source_are_ignored_counted_and_logged_once(void **state)
{
	const struct member *entry;

	rings_begin();
	for (unsigned round = 0; round < 3; round++)
		flood(&liar, round);
	assert_true(joined(SOURCE_NAMES));
	assert_int_equal(names_refused(), 3 * FLOOD - SOURCE_NAMES);
	assert_int_equal(lines("(names_refused)"), 1);
	/* what another source names counts */
	crowd_take(&other, 1);
	assert_true(joined(SOURCE_NAMES + 1));
	/* so does what the first one says of known members, unless it names another process */
	entry = member_find(node[0].control.members, crowd.name[0]);
	crowd.record[0].state = RECORD_CLAIMED;
	crowd_take(&liar, 1);
	assert_int_equal(entry->stage, RECORD_CLAIMED);
	crowd_set(0, "flood-0-0", 900);
	crowd.record[0].admission = 2;
	entry = member_find(node[0].control.members, "flood-0-0");
	crowd_take(&liar, 1);
	assert_int_not_equal(entry->record.incarnation, 900);
	crowd_take(&other, 1);
	assert_int_equal(entry->record.incarnation, 900);
}

static void a_source_may_name_more_later_and_is_logged_again_after_a_quiet_time(void **state)
{
	rings_begin();
	flood(&liar, 0);
	flood(&liar, 1);
	assert_true(joined(SOURCE_NAMES));
	nodes_pass(1000);
	flood(&liar, 2);
	assert_in_range(names_refused(), 3 * FLOOD - SOURCE_NAMES - SOURCE_NAMES_PER_S - 2,
		3 * FLOOD - SOURCE_NAMES - SOURCE_NAMES_PER_S);
	assert_int_equal(lines("(names_refused)"), 1);
	nodes_pass(1000 * SOURCE_NAMES / SOURCE_NAMES_PER_S);
	flood(&liar, 3);
	flood(&liar, 4);
	assert_int_equal(lines("(names_refused)"), 2);
}

static void an_engine_that_has_just_started_takes_the_whole_list(void **state)
{
	node[0].control.members->rings = true;
	for (unsigned round = 0; round < 3; round++)
		flood(&liar, round);
	assert_true(joined(3 * FLOOD));
	assert_int_equal(names_refused(), 0);
}

/* Up to MEMBER_MESH_MAX members, records add none: the members they name are dialled. */
static void invented_names_in_records_are_few_candidates_and_soon_forgotten(void **state)
{
	const struct members *member = node[0].control.members;
	unsigned known = 0;

	/* a candidate whose first dial failed makes room for another one */
	for (unsigned round = 0; round < 10; round++) {
		flood(&liar, 0);
		nodes_run(10);
	}
	for (unsigned i = 0; i < FLOOD; i++)
		known += knows(crowd.name[i]);
	assert_in_range(known, 32, SOURCE_NAMES_MESH + 10 * SOURCE_NAMES_MESH_PER_S);
	assert_true(joined(0));
	assert_false(member->rings);
	assert_true(names_refused() > 0);
	assert_int_equal(lines("(names_refused)"), 1);
	assert_true(nodes_until(member->table.contacts == 1, 5 * DEAD_MS));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			too_many_joins_are_refused_and_logged_once, setup, teardown),
		cmocka_unit_test_setup_teardown(
			too_many_joins_are_a_finding_on_both_sides, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_member_that_connects_again_needs_no_room, setup, teardown),
		cmocka_unit_test_setup_teardown(more_may_join_later, setup, teardown),
		cmocka_unit_test_setup_teardown(
			one_that_never_answered_is_not_dialled_and_soon_forgotten, setup, teardown),
		cmocka_unit_test_setup_teardown(
			one_that_did_is_dialled_and_remembered, setup, teardown),
		cmocka_unit_test_setup_teardown(
			too_many_new_names_of_one_source_are_ignored_counted_and_logged_once, setup,
			teardown),
		cmocka_unit_test_setup_teardown(
			a_source_may_name_more_later_and_is_logged_again_after_a_quiet_time, setup,
			teardown),
		cmocka_unit_test_setup_teardown(
			an_engine_that_has_just_started_takes_the_whole_list, setup, teardown),
		cmocka_unit_test_setup_teardown(
			invented_names_in_records_are_few_candidates_and_soon_forgotten, setup,
			teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
