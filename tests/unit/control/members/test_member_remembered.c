/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of members that an engine has had: who is dialled by them when no seed is there, and
 * that nothing in the memory which outlives the process is taken as it is. A node is one control
 * plane in the test's process.
 */
#include "tests/unit/control/agree_world.h"

#define DEAD "127.0.0.1:1" /* a seed at which nothing listens */

static struct remembered memory[NODES][REMEMBERED_MAX];

static int remembers(void **state)
{
	memset(memory, 0, sizeof(memory));
	setup(state);
	for (unsigned i = 0; i < NODES; i++)
		node[i].remembered = memory[i];
	return 0;
}

/* Addresses that node `i` dials because it had members there. */
static unsigned dialled(unsigned i)
{
	const struct member_seed *seed = &node[i].control.members->seed[SEEDS_GIVEN];
	unsigned count = 0;

	for (unsigned n = 0; n < REMEMBERED_MAX; n++)
		count += seed[n].address.host[0] != '\0';
	return count;
}

/* Elements of the memory of node `i` that say something. */
static unsigned kept(unsigned i)
{
	unsigned count = 0;

	for (unsigned n = 0; n < REMEMBERED_MAX; n++)
		count += memory[i][n].check != 0;
	return count;
}

/* Nodes 0 and 1 are members of each other; node 1 has found node 0 by itself. */
static void two_meet(const char *seeds_of_1)
{
	assert_int_equal(node_open(0, DEAD), 0);
	assert_int_equal(node_open(1, seeds_of_1), 0);
	assert_true(nodes_until(all_agree() && kept(0) == 1 && kept(1) == 1, 3000));
}

/* In order: the others take it off their maps, and do not dial it. */
static void leaves(unsigned i)
{
	member_leave(&node[i].control);
	nodes_run(100);
	node_close(i);
}

static void two_engines_meet_again_when_all_seeds_are_dead(void **state)
{
	two_meet(node_at(0));
	leaves(0);
	assert_int_equal(kept(1), 0);
	nodes_run(1000);
	assert_int_equal(node_open(0, DEAD), 0);
	assert_true(nodes_until(all_agree(), 3000));
	assert_int_equal(lines_with("", "", ""), 0);
}

/* One that ends before its next heartbeat has remembered them, too. */
static void a_member_is_remembered_before_the_next_heartbeat(void **state)
{
	node[0].settings.cluster_heartbeat_ms = 60000;
	assert_int_equal(node_open(0, node_at(1)), 0);
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(kept(0) == 1, 3000));
	assert_true(sees(0, 1));
}

static void an_engine_without_seeds_meets_its_members_again(void **state)
{
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(all_agree() && kept(0) == 1, 3000));
	leaves(0);
	assert_int_equal(node_open(0, NULL), 0);
	assert_true(nodes_until(all_agree(), 3000));
}

/* Each hears that the other one leaves, and is not to forget it for that. */
static void engines_that_are_restarted_at_the_same_time_meet_again(void **state)
{
	char both[64];

	snprintf(both, sizeof(both), "%s,%s", node_at(0), node_at(1));
	assert_int_equal(node_open(0, DEAD), 0);
	assert_int_equal(node_open(1, DEAD), 0);
	assert_int_equal(node_open(2, both), 0);
	assert_true(nodes_until(all_agree() && kept(0) == 2 && kept(1) == 2, 3000));
	leaves(2);
	member_leave(&node[0].control);
	member_leave(&node[1].control);
	nodes_run(100);
	node_close(0);
	node_close(1);
	assert_int_equal(node_open(0, DEAD), 0);
	assert_int_equal(node_open(1, DEAD), 0);
	assert_true(nodes_until(all_agree(), 3000));
}

/* A dead member is forgotten after MEMBER_DEAD_NS; its address is not. */
static void a_member_that_was_away_for_long_is_met_again(void **state)
{
	struct member *member;

	node[0].remembered = NULL; /* no process keeps its memory */
	assert_int_equal(node_open(0, DEAD), 0);
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(all_agree() && dialled(0) == 1, 3000));
	node_close(1);
	assert_true(nodes_until(sees_count(0, 1), 3000));
	member = member_find(node[0].control.members, "node-1");
	assert_non_null(member);
	member->since_ns -= MEMBER_DEAD_NS;
	assert_true(nodes_until(!member_find(node[0].control.members, "node-1"), 1000));
	node[1].remembered = NULL;
	assert_int_equal(node_open(1, NULL), 0); /* it finds no one */
	assert_true(nodes_until(all_agree(), 3000));
}

/* ---- who is not dialled ---------------------------------------------------------------------- */

static void where_no_one_is_any_more_costs_no_line_and_no_finding(void **state)
{
	struct seeds_report found;

	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(all_agree() && kept(0) == 1, 3000));
	node_close(0);
	node_close(1);
	memset(said, 0, sizeof(said));
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(dialled(0), 1);
	nodes_run(10000);
	assert_int_equal(dialled(0), 1);
	seeds_report(&node[0].control, net_now(), &found);
	assert_int_equal(found.others + found.silent + found.unmet, 0); /* alone by right */
	assert_null(strstr(said, "warn"));
	assert_false(member_seeking(&node[0].control)); /* removals.c knows who is expected back */
	node[0].control.members->remembered_until_ns[0] = net_now();
	assert_true(nodes_until(!dialled(0) && !kept(0), 1000));
}

static void an_engine_of_another_cluster_is_refused_once_and_dropped(void **state)
{
	two_meet(node_at(0));
	node_close(0);
	node_close(1);
	strcpy(node[1].settings.cluster_id, "blue");
	node[1].remembered = NULL;
	assert_int_equal(node_open(1, NULL), 0);
	assert_int_equal(node_open(0, DEAD), 0);
	assert_true(nodes_until(lines_with("cluster.id = blue there", "", ""), 2000));
	assert_true(nodes_until(!dialled(0) && !kept(0), 1000));
	nodes_run(2000);
	expect_lines(1, "cluster.id = blue there", "", "");
	expect_lines(1, "cluster.id = default there", "", "");
}

/* It is a member that has not been changed yet. */
static void an_engine_of_the_cluster_that_is_refused_is_tried_again(void **state)
{
	two_meet(node_at(0));
	node_close(0);
	node_close(1);
	node[1].settings.cluster_replicas = 1;
	node[1].remembered = NULL;
	assert_int_equal(node_open(1, NULL), 0);
	assert_int_equal(node_open(0, DEAD), 0);
	assert_true(nodes_until(lines_with("cluster.replicas = 1 there", "", ""), 2000));
	nodes_run(1000);
	node_close(1);
	node[1].settings.cluster_replicas = 2;
	assert_int_equal(node_open(1, NULL), 0);
	assert_true(nodes_until(all_agree(), 3000));
}

static void an_engine_that_belongs_elsewhere_takes_none(void **state)
{
	two_meet(node_at(0));
	node_close(0);
	strcpy(node[0].settings.cluster_id, "blue");
	assert_int_equal(node_open(0, DEAD), 0);
	assert_int_equal(dialled(0), 0);
	node_close(0);
	strcpy(node[0].settings.cluster_id, "default");
	assert_int_equal(node_open(0, "127.0.0.1:2"), 0); /* it was given other seeds */
	assert_int_equal(dialled(0), 0);
	node_close(0);
	assert_int_equal(node_open(0, DEAD), 0);
	assert_int_equal(dialled(0), 1);
}

/* The remembered address of node 0 becomes one of loopback with this port. */
static void remembered_moves(uint16_t port)
{
	struct member_seed *seed = &node[0].control.members->seed[SEEDS_GIVEN];

	seed->address.port = port;
	seed->name[0] = '\0';
	rpc_dial_stop(seed->dial);
	seed->dial = NULL;
}

static void another_program_is_dropped(void **state)
{
	static const char http[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
	uint16_t port;
	int listener, fd;

	two_meet(node_at(0));
	node_close(1);
	listener = listen_raw(&port);
	remembered_moves(port);
	fd = accept_raw(listener);
	raw_bytes(fd, http, sizeof(http) - 1);
	assert_true(nodes_until(!dialled(0) && !kept(0), 3000));
	close(fd);
	close(listener);
}

static void this_engine_itself_is_dropped(void **state)
{
	two_meet(node_at(0));
	node_close(1);
	remembered_moves((uint16_t)node[0].settings.cluster_port);
	assert_true(nodes_until(!dialled(0), 3000));
	assert_int_equal(kept(0), 0);
	node_close(0);
	memcpy(&memory[0], &memory[1], sizeof(memory[0])); /* the address of node 0 */
	node[0].settings.cluster_seeds[0] = '\0';
	assert_int_equal(node_open(0, node_at(0)), 0);
	assert_int_equal(dialled(0), 0);
}

/* ---- what is in the memory ------------------------------------------------------------------- */

static unsigned taken(struct control *control)
{
	memset(&control->members->seed[SEEDS_GIVEN], 0,
		REMEMBERED_MAX * sizeof(control->members->seed[0]));
	remembered_open(control);
	return dialled(0);
}

static void a_damaged_element_is_no_address(void **state)
{
	struct remembered right;
	struct control *control = &node[0].control;

	two_meet(node_at(0));
	node_close(1);
	rpc_quiet(control);
	for (unsigned i = 0; i < REMEMBERED_MAX; i++)
		rpc_dial_stop(control->members->seed[SEEDS_GIVEN + i].dial);
	right = memory[0][0];
	assert_int_equal(taken(control), 1);
	for (size_t at = 0; at < offsetof(struct remembered, pad); at++) {
		/* after the end of the name, and when it ends, are no parts of the address */
		size_t text = at - offsetof(struct remembered, address.host);
		bool counts = at < sizeof(right.check) ||
			      at >= offsetof(struct remembered, address.port) ||
			      text <= strlen(right.address.host);

		memory[0][0] = right;
		((uint8_t *)&memory[0][0])[at] ^= 0x41;
		if (at >= offsetof(struct remembered, address) || at < sizeof(right.check))
			assert_int_equal(taken(control), counts ? 0 : 1);
		assert_true(taken(control) <= 1);
	}
	memory[0][0] = right;
	memory[0][0].until_ns = UINT64_MAX; /* of the clock of another life of the machine */
	assert_int_equal(taken(control), 1);
	assert_true(control->members->remembered_until_ns[0] <= net_now() + REMEMBER_NS);
	memset(memory[0][0].address.host, 'a', sizeof(memory[0][0].address.host));
	assert_int_equal(taken(control), 0);
	memset(memory[0], 0xff, sizeof(memory[0]));
	assert_int_equal(taken(control), 0);
	memset(memory[0], 0, sizeof(memory[0]));
	assert_int_equal(taken(control), 0);
}

/* ---- how many -------------------------------------------------------------------------------- */

enum { MANY = REMEMBERED_MAX + 8 };
static struct member *many[MANY];
static struct rpc_dial dial; /* of members that are dialled by themselves */

static void many_are(unsigned first, unsigned end, bool alive)
{
	for (unsigned i = first; i < end; i++) {
		many[i]->state = alive ? MEMBER_ALIVE : MEMBER_DEAD;
		many[i]->contact->out = alive ? (struct rpc_link *)&dial : NULL;
		many[i]->contact->dial = alive ? NULL : &dial;
	}
}

static bool many_kept(unsigned i)
{
	for (unsigned n = 0; n < REMEMBERED_MAX; n++)
		if (memory[0][n].check && memory[0][n].address.port == i + 1)
			return true;
	return false;
}

static unsigned many_kept_of(unsigned first, unsigned end)
{
	unsigned count = 0;

	for (unsigned i = first; i < end; i++)
		count += many_kept(i);
	return count;
}

/* Its only thread plays members that are there and away; no one is dialled. */
static void those_that_are_away_make_room(void **state)
{
	struct settings settings;
	struct members *members = calloc(1, sizeof(*members));
	struct control control = {
		.settings = &settings, .members = members, .remembered = memory[0]};
	uint64_t now = net_now();

	settings_default(&settings);
	assert_int_equal(member_table_open(&members->table), 0);
	for (unsigned i = 0; i < MANY; i++) {
		char name[16];

		snprintf(name, sizeof(name), "m%u", i);
		many[i] = member_new(&members->table);
		assert_true(member_name_set(
			&members->table, many[i], name, "10.0.0.9", (uint16_t)(i + 1)));
		assert_non_null(member_contact(&members->table, many[i]));
		many[i]->neighbour = true;
	}
	members->alive = 1 + MANY;
	many_are(0, REMEMBERED_MAX + 1, true);
	many[0]->contact->out = NULL; /* no dial has reached it */
	member_seeds_tick(&control, now);
	assert_int_equal(kept(0), REMEMBERED_MAX);
	assert_false(many_kept(0));
	many_are(0, MANY, true);
	member_seeds_tick(&control, now + 1000000000);
	assert_int_equal(many_kept_of(1, REMEMBERED_MAX + 1), REMEMBERED_MAX); /* they stay */
	many_are(0, 20, false);
	now += 120ull * 1000000000;
	member_seeds_tick(&control, now);
	assert_int_equal(kept(0), REMEMBERED_MAX);
	assert_int_equal(many_kept_of(20, MANY), MANY - 20);
	now += REMEMBER_NS;
	member_seeds_tick(&control, now);
	assert_int_equal(kept(0), MANY - 20); /* the others were away for too long */
	assert_int_equal(many_kept_of(0, 20), 0);
	for (unsigned i = 0; i < MANY; i++)
		many[i]->contact->out = NULL, many[i]->contact->dial = NULL;
	member_table_close(&members->table);
	free(members);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, remembers, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(two_engines_meet_again_when_all_seeds_are_dead),
		TEST(a_member_is_remembered_before_the_next_heartbeat),
		TEST(an_engine_without_seeds_meets_its_members_again),
		TEST(engines_that_are_restarted_at_the_same_time_meet_again),
		TEST(a_member_that_was_away_for_long_is_met_again),
		TEST(where_no_one_is_any_more_costs_no_line_and_no_finding),
		TEST(an_engine_of_another_cluster_is_refused_once_and_dropped),
		TEST(an_engine_of_the_cluster_that_is_refused_is_tried_again),
		TEST(an_engine_that_belongs_elsewhere_takes_none),
		TEST(another_program_is_dropped),
		TEST(this_engine_itself_is_dropped),
		TEST(a_damaged_element_is_no_address),
		TEST(those_that_are_away_make_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
