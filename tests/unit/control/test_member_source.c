/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engines of one address may do: how many join, what is logged, and how long engines that
 * never answered are remembered.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include <cmocka.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"

#define DEAD_MS 300
#define MORE 6u

static char log_text[65536];
static int raw[SOURCE_JOINS + MORE];

static int setup(void **state)
{
	(void)state;
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
	(void)state;
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
	raw_hello(raw[i], name, 1000 + i, 1, NULL);
}

static unsigned lines(const char *text)
{
	unsigned count = 0;

	for (const char *at = log_text; (at = strstr(at, text)); at++)
		count++;
	return count;
}

static uint64_t refused(void)
{
	return node[0].control.counter[COUNTER_joins_refused];
}

static bool joined(unsigned others)
{
	return node[0].control.member->alive == others + 1;
}

static bool knows(const char *name)
{
	return member_find(node[0].control.member, name) != NULL;
}

static void too_many_joins_are_refused_and_logged_once(void **state)
{
	(void)state;
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

	(void)state;
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
	(void)state;
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
	const struct member_entry *entry;

	(void)state;
	raw_join(0);
	assert_true(nodes_until(sees_count(0, 2), 50));
	close(raw[0]);
	raw[0] = -1;
	assert_true(nodes_until(sees_count(0, 1), DEAD_MS));
	nodes_run(40);
	entry = member_find(node[0].control.member, "invented-0");
	assert_non_null(entry);
	assert_null(entry->contact->dial);
	assert_true(nodes_until(!knows("invented-0"), 11 * DEAD_MS));
}

static void one_that_did_is_dialled_and_remembered(void **state)
{
	const struct member_entry *entry;
	char name[NAME_BYTES_MAX];

	(void)state;
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(all_agree() && sees_count(0, 2), 2000));
	snprintf(name, sizeof(name), "%s", node[1].control.name);
	node_close(1);
	assert_true(nodes_until(sees_count(0, 1), 2 * DEAD_MS));
	nodes_run(11 * DEAD_MS);
	entry = member_find(node[0].control.member, name);
	assert_non_null(entry);
	assert_true(entry->proven);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			too_many_joins_are_refused_and_logged_once, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_member_that_connects_again_needs_no_room, setup, teardown),
		cmocka_unit_test_setup_teardown(more_may_join_later, setup, teardown),
		cmocka_unit_test_setup_teardown(
			one_that_never_answered_is_not_dialled_and_soon_forgotten, setup, teardown),
		cmocka_unit_test_setup_teardown(
			one_that_did_is_dialled_and_remembered, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
