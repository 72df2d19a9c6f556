/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines for which the map, or the memory, has no room: each side learns why, and none joins and
 * leaves again and again. A node is one control plane in the test's process.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include <arpa/inet.h>
#include <cmocka.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define EDGE 24u /* the last members that fit the map */

static int teardown(void **state)
{
	nodes_teardown();
	log_test_capture(NULL, 0);
	return 0;
}

/* Members that do not answer. The port accepts connections and answers none. */
static void members_add(struct control *control, unsigned count, uint16_t port)
{
	char name[16], address[] = "127.0.0.1";
	Pc__Member m = PC__MEMBER__INIT;

	m.name = name;
	m.address = address;
	m.port = port;
	m.rails = 1;
	for (unsigned i = 0; i < count; i++) {
		struct member *entry = member_take(control);

		snprintf(name, sizeof(name), "silent-%u", i);
		m.incarnation = 0x600000000 + 1000000 + i;
		assert_non_null(entry);
		assert_true(member_fill(control, entry, &m));
		assert_int_equal(member_put_on_map(control, entry), 0);
	}
}

static void more_engines_than_the_map_holds_are_refused(void **state)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(at);
	int fd[EDGE + 4], listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char said[8192];

	nodes_setup(200, 10000);
	assert_int_equal(node_open(0, NULL), 0);
	log_test_capture(said, sizeof(said));
	assert_int_equal(listen(listener, 128), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &bytes), 0);
	members_add(&node[0].control, NODES_MAX - EDGE, ntohs(at.sin_port));
	for (unsigned i = 0; i < EDGE + 4; i++) {
		char name[16];

		snprintf(name, sizeof(name), "raw-%u", i);
		fd[i] = raw_open(0);
		raw_hello(fd[i], name, 0x500000000 + i + 1, (uint16_t)(i + 1), NULL);
		nodes_turn();
		nodes_turn();
	}
	assert_true(nodes_until(sees_count(0, NODES_MAX), 2000));
	nodes_run(100);
	assert_true(sees_count(0, NODES_MAX));
	assert_non_null(strstr(said, "which is the limit"));
	for (unsigned i = 0; i < EDGE + 4; i++)
		close(fd[i]);
	close(listener);
}

static struct refusals_report refusals(unsigned i)
{
	struct refusals_report found;

	refusals_report(&node[i].control, net_now(), &found);
	return found;
}

static void silent_members_go(struct control *control, unsigned count)
{
	char name[16];

	for (unsigned i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "silent-%u", i);
		member_take_off_map(control, member_find(control->members, name), "test");
	}
}

static void an_engine_that_finds_no_room_is_a_finding_on_both_sides_until_it_joins(void **state)
{
	static const char why[] = "the cluster has 16384 engines already";

	static_assert(NODES_MAX == 16384, "the text");
	nodes_setup(200, 1000000);
	assert_int_equal(node_open(0, NULL), 0);
	members_add(&node[0].control, NODES_MAX - 1, 1);
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(refusals(0).engines && refusals(1).engines, 5000));
	nodes_run(3000);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(refusals(i).engines, 1);
		assert_int_equal(refusals(i).engine[0].theirs, i);
		assert_non_null(strstr(refusals(i).engine[0].text, why));
		assert_true(refusals(i).engine[0].ms > 2000);
		assert_int_equal(node[i].control.members->alive, i ? 1 : NODES_MAX);
	}
	/* its visit was answered: it knows the name, and would know the members beside it */
	assert_non_null(member_find(node[1].control.members, node[0].control.name));
	silent_members_go(&node[0].control, NODES_MAX - 3);
	assert_true(nodes_until(sees(0, 1) && sees(1, 0), 60000));
	assert_int_equal(refusals(0).engines, 0);
	assert_int_equal(refusals(1).engines, 0);
}

/*
 * A full engine dials the other one, as its seed. Neither puts the other on its map: it would be
 * taken off again when its link closes.
 */
static void a_full_engine_visits_its_seed_and_neither_joins(void **state)
{
	static const char why[] = "the cluster has 16384 engines already";

	nodes_setup(200, 1000000);
	assert_int_equal(node_open(1, NULL), 0);
	assert_int_equal(node_open(0, node_at(1)), 0);
	members_add(&node[0].control, NODES_MAX - 1, 1);
	assert_true(nodes_until(refusals(0).engines && refusals(1).engines, 5000));
	nodes_run(1000);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(refusals(i).engines, 1);
		assert_int_equal(refusals(i).engine[0].theirs, i);
		assert_non_null(strstr(refusals(i).engine[0].text, why));
		assert_int_equal(node[i].control.members->alive, i ? 1 : NODES_MAX);
	}
	assert_true(refusals(0).engine[0].ms > 500);
	assert_true(node[0].control.members->seed[0].refused); /* so it is not silent */
	assert_int_equal(node[1].control.counter[COUNTER_members_joined], 0);
}

/* Node 0 names it to itself, as a third engine would. */
static void node_0_learns_node_1(void)
{
	struct member_texts texts;
	Pc__Member m;

	member_describe(node[1].control.members->self, &texts, &m);
	member_learn(&node[0].control, NULL, &m);
}

static void an_engine_that_was_dialled_learns_that_it_finds_no_room(void **state)
{
	nodes_setup(200, 1000000);
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node_open(1, NULL), 0);
	node_0_learns_node_1();
	members_add(&node[0].control, NODES_MAX - 1, 1); /* while the dial goes on */
	assert_true(nodes_until(node[1].control.counter[COUNTER_members_died], 5000));
	assert_int_equal(refusals(1).engines, 1);
	assert_non_null(strstr(refusals(1).engine[0].text, "which is the limit"));
	nodes_run(1000);
	assert_int_equal(node[1].control.members->alive, 1);
	assert_int_equal(node[1].control.counter[COUNTER_members_joined], 1); /* dialled once */
	assert_int_equal(node[0].control.members->alive, NODES_MAX);
}

/* The table has no place, which stands for no memory. Each side dials once. */
static void an_engine_for_which_there_is_no_memory_learns_it(void **state)
{
	for (unsigned dials = 0; dials < 2; dials++) {
		nodes_setup(200, 1000000);
		assert_int_equal(node_open(0, NULL), 0);
		members_add(&node[0].control, NODES_MAX - 1, 1);
		node[0].control.members->alive--;
		assert_int_equal(node_open(1, dials ? node_at(0) : NULL), 0);
		if (!dials)
			node_0_learns_node_1();
		assert_true(nodes_until(refusals(0).engines && refusals(1).engines, 5000));
		for (unsigned i = 0; i < 2; i++) {
			assert_int_equal(refusals(i).engine[0].theirs, i);
			assert_non_null(strstr(refusals(i).engine[0].text, "no memory"));
		}
		nodes_run(500);
		assert_int_equal(node[1].control.members->alive, 1);
		assert_true(node[1].control.counter[COUNTER_members_joined] <= 1);
		nodes_teardown();
	}
}

#define T(name) cmocka_unit_test_teardown(name, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(more_engines_than_the_map_holds_are_refused),
		T(an_engine_that_finds_no_room_is_a_finding_on_both_sides_until_it_joins),
		T(a_full_engine_visits_its_seed_and_neither_joins),
		T(an_engine_that_was_dialled_learns_that_it_finds_no_room),
		T(an_engine_for_which_there_is_no_memory_learns_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
