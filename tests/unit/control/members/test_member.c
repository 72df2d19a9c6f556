/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Membership and the map built from it: members join, die and come back, over real connections on
 * loopback. A node is one control plane in the test's process.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#define EDGE 24u /* the last members that fit the map */

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BEAT_MS 20
#define DEAD_MS 300
#define PROBE_MS (DEAD_MS / PROBE_PART)

static int setup(void **state)
{
	(void)state;
	nodes_setup(BEAT_MS, DEAD_MS);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	nodes_teardown();
	log_test_capture(NULL, 0);
	assert_int_equal(qps_alive, 0);
	return 0;
}

static void open_agreeing(unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(node_open(i, i ? node_at(0) : NULL), 0);
	assert_true(nodes_until(all_agree(), 3000));
}

/* ---- joining --------------------------------------------------------------------------------- */

static void one_seed_on_either_side_or_both_is_enough(void **state)
{
	(void)state;
	for (unsigned way = 0; way < 3; way++) {
		nodes_setup(BEAT_MS, DEAD_MS);
		assert_int_equal(node_open(0, way != 0 ? node_at(1) : NULL), 0);
		assert_int_equal(node_open(1, way != 1 ? node_at(0) : NULL), 0);
		assert_true(nodes_until(all_agree(), 2000));
		assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
		assert_int_equal(node[1].control.counter[COUNTER_messages_bad], 0);
		/* Each node counts the other one as joined once, whichever of them dialled. */
		assert_int_equal(node[0].control.counter[COUNTER_members_joined], 1);
		assert_int_equal(node[1].control.counter[COUNTER_members_joined], 1);
		nodes_teardown();
	}
}

static void a_seed_that_starts_later_is_found(void **state)
{
	(void)state;
	assert_int_equal(node_open(0, node_at(1)), 0);
	nodes_run(200);
	assert_int_equal(node_open(1, NULL), 0);
	assert_true(nodes_until(all_agree(), 2000));
}

static void a_seed_can_be_a_name(void **state)
{
	char seed[64];

	(void)state;
	snprintf(seed, sizeof(seed), "localhost%s", strchr(node_at(0), ':'));
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node_open(1, seed), 0);
	assert_true(nodes_until(all_agree(), 3000));
}

static void an_engine_s_own_address_among_the_seeds_is_harmless(void **state)
{
	char seeds[256];

	(void)state;
	snprintf(seeds, sizeof(seeds), "%s,%s,localhost%s", node_at(0), node_at(1),
		strchr(node_at(0), ':'));
	assert_int_equal(node_open(0, seeds), 0);
	assert_int_equal(node_open(1, seeds), 0);
	assert_true(nodes_until(all_agree(), 3000));
	nodes_run(200);
	assert_true(all_agree());
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
}

static void an_engine_that_knows_one_member_finds_all(void **state)
{
	(void)state;
	open_agreeing(5);
	/* Every node has computed the same owners. */
	for (unsigned i = 1; i < 5; i++) {
		const struct map_view *a = member_map(&node[0].control);
		const struct map_view *b = member_map(&node[i].control);

		assert_memory_equal(a->owner, b->owner, 5 * sizeof(a->owner[0]));
		assert_memory_equal(a->slots, b->slots, MAP_SLOTS * map_ranked(a));
	}
}

static void a_chain_of_seeds_is_one_cluster(void **state)
{
	(void)state;
	for (unsigned i = 5; i-- > 0;)
		assert_int_equal(node_open(i, i < 4 ? node_at(i + 1) : NULL), 0);
	assert_true(nodes_until(all_agree(), 3000));
}

static void seeds_are_parsed_and_refused_with_the_reason(void **state)
{
	const char *bad[] = {"host:0", "host:65536", "host:x", "[::1", "[::1]x", ":5",
		"a:5,b:", "[10.0.0.1:1]", "1:2:3"};
	struct settings s;
	struct members *member = calloc(1, sizeof(*member));

	(void)state;
	settings_default(&s);
	snprintf(s.cluster_seeds, sizeof(s.cluster_seeds),
		"10.0.0.1:5, host , [fd00::1]:7,fd00::2,[::1],127.0.0.1");
	assert_int_equal(member_seeds_parse(&s, member), 6);
	assert_string_equal(member->seed[0].address.host, "10.0.0.1");
	assert_int_equal(member->seed[0].address.port, 5);
	assert_string_equal(member->seed[1].address.host, "host");
	assert_int_equal(member->seed[1].address.port, s.cluster_port);
	assert_string_equal(member->seed[2].address.host, "fd00::1");
	assert_int_equal(member->seed[2].address.port, 7);
	assert_string_equal(member->seed[3].address.host, "fd00::2");
	assert_string_equal(member->seed[4].address.host, "::1");
	assert_true(member->seed[5].self);
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		memset(member, 0, sizeof(*member));
		snprintf(s.cluster_seeds, sizeof(s.cluster_seeds), "%s", bad[i]);
		assert_int_equal(member_seeds_parse(&s, member), -EINVAL);
	}
	free(member);
}

/* ---- dying ----------------------------------------------------------------------------------- */

static void a_closed_engine_is_off_the_map_at_once(void **state)
{
	uint64_t from;

	(void)state;
	nodes_setup(BEAT_MS, 20000);
	open_agreeing(3);
	nodes_run(100);
	node_close(2);
	from = clock_now_ns();
	assert_true(nodes_until(all_agree(), 5000));
	print_message("after %u ms\n", (unsigned)((clock_now_ns() - from) / 1000000));
}

static void a_silent_engine_is_off_the_map_and_comes_back(void **state)
{
	uint64_t from;

	(void)state;
	open_agreeing(3);
	node[2].stalled = true;
	from = clock_now_ns();
	assert_true(nodes_until(sees_count(0, 2) && sees_count(1, 2), 3000));
	assert_in_range(
		(clock_now_ns() - from) / 1000000, DEAD_MS - 2 * BEAT_MS, DEAD_MS + 2 * BEAT_MS);
	/* Gossip of the other nodes does not bring the member that left back. */
	nodes_run(300);
	assert_true(sees_count(0, 2) && sees_count(1, 2));
	node[2].stalled = false;
	assert_true(nodes_until(all_agree(), 3000));
}

/*
 * An engine that was itself stopped, for example with its whole host, must not declare the other
 * members dead.
 */
static void an_engine_that_was_stopped_keeps_its_members(void **state)
{
	(void)state;
	open_agreeing(2);
	nodes_pass(2 * DEAD_MS);
	/*
	 * The heartbeat timer of node 0 runs before it reads messages: by the clock, it has
	 * received none for a long time.
	 */
	members_tick(&node[0].control, clock_now_ns());
	members_tick(&node[1].control, clock_now_ns());
	nodes_run(DEAD_MS);
	assert_int_equal(node[0].control.counter[COUNTER_members_died], 0);
	assert_int_equal(node[1].control.counter[COUNTER_members_died], 0);
	assert_true(all_agree());
}

static void a_restarted_engine_replaces_its_former_incarnation(void **state)
{
	uint32_t old_ref;
	uint16_t old_peer;

	(void)state;
	open_agreeing(3);
	for (unsigned round = 0; round < 5; round++) {
		const struct member_record *now;

		old_ref = node[2].control.ref;
		old_peer = member_by_ref(&node[0].control, old_ref)->peer;
		node_close(2);
		assert_int_equal(node_open(2, node_at(0)), 0);
		assert_true(nodes_until(all_agree(), 2000));
		assert_null(member_by_ref(&node[0].control, old_ref));
		now = member_by_ref(&node[0].control, node[2].control.ref);
		assert_non_null(now);
		/* The pair (old peer number, old ref) finds no member any more. */
		assert_int_not_equal(now->peer, old_peer);
		assert_ptr_equal(member_by_peer(&node[0].control, now->peer), now);
		assert_null(member_by_peer(&node[0].control, old_peer));
	}
}

static void a_member_that_leaves_is_off_the_map_at_once(void **state)
{
	(void)state;
	nodes_setup(BEAT_MS, 20000);
	open_agreeing(3);
	member_leave(&node[2].control);
	node[2].stalled = true; /* the event loop of node 2 gets no further turn */
	assert_true(nodes_until(sees_count(0, 2) && sees_count(1, 2), 2000));
	/* No node dials node 2 again: nothing listens at its address. */
	nodes_run(100);
	assert_int_equal(raw_open(2), -1);
	node_close(2);
	assert_true(nodes_until(all_agree(), 2000));
	assert_int_equal(node_open(2, node_at(1)), 0);
	assert_true(nodes_until(all_agree(), 2000));
}

static void gossip_alone_puts_no_engine_on_the_map(void **state)
{
	Pc__Member ghost = PC__MEMBER__INIT;
	int fd;

	(void)state;
	open_agreeing(2);
	ghost.name = "ghost";
	ghost.incarnation = 0x9999;
	ghost.address = "127.0.0.1";
	ghost.port = 9;
	ghost.rails = 1;
	fd = raw_open(0);
	raw_hello(fd, "raw", 0x1234567890, 9, &ghost);
	assert_true(nodes_until(sees_count(0, 3), 1000));
	nodes_run(200);
	assert_null(member_by_ref(&node[0].control, 0x9999));
	close(fd);
	assert_true(nodes_until(all_agree(), 1000));
}

static void a_dead_incarnation_that_gossip_calls_alive_stays_dead(void **state)
{
	Pc__Member dead = PC__MEMBER__INIT;
	char name[16];
	int fd;

	(void)state;
	open_agreeing(3);
	dead.incarnation = node[2].control.incarnation;
	snprintf(name, sizeof(name), "node-2");
	dead.name = name;
	dead.address = "127.0.0.1";
	dead.port = (uint32_t)node[2].settings.cluster_port;
	dead.rails = 2;
	dead.bucket_bits = 10;
	node_close(2);
	assert_true(nodes_until(all_agree(), 2000));
	fd = raw_open(0);
	raw_hello(fd, "raw", 0x1234567890, 9, &dead);
	/* the third member of node 0's map is the raw connection, "raw" */
	assert_true(nodes_until(sees_count(0, 3), 1000));
	nodes_run(200);
	assert_null(member_by_ref(&node[0].control, (uint32_t)dead.incarnation));
	close(fd);
}

static void a_name_taken_by_a_live_engine_is_refused(void **state)
{
	char said[4096];

	(void)state;
	open_agreeing(2);
	log_test_capture(said, sizeof(said));
	{
		int fd = raw_open(0);

		raw_hello(fd, "node-1", 0x77777, 9, NULL);
		assert_true(raw_closed(fd, 1000));
		close(fd);
		fd = raw_open(0);
		raw_hello(fd, "node-0", 0x77778, 9, NULL);
		assert_true(raw_closed(fd, 1000));
		close(fd);
	}
	assert_non_null(strstr(said, "engine.name"));
	assert_true(all_agree());
}

static void an_equal_ref_is_refused(void **state)
{
	char said[4096];
	uint32_t kept;

	(void)state;
	open_agreeing(2);
	kept = node[0].control.ref;
	node[0].control.kept_ref = &kept;
	log_test_capture(said, sizeof(said));
	for (unsigned i = 2; i-- > 0;) {
		int fd = raw_open(0);

		assert_int_equal(kept, node[0].control.ref);
		raw_hello(fd, "raw", node[i].control.incarnation ^ 1ull << 40, 9, NULL);
		assert_true(raw_closed(fd, 1000));
		close(fd);
	}
	assert_int_equal(kept, 0);
	assert_non_null(strstr(said, "incarnation"));
	assert_true(all_agree());
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

	(void)state;
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
	assert_non_null(strstr(said, "NODES_MAX"));
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

	(void)state;
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

/* ---- cost ------------------------------------------------------------------------------------ */

static void an_idle_engine_sends_heartbeats_and_probes_and_nothing_else(void **state)
{
	uint64_t before[3];
	const unsigned ms = 1000;

	(void)state;
	open_agreeing(3);
	nodes_run(300);
	for (unsigned i = 0; i < 3; i++)
		before[i] = node[i].control.counter[COUNTER_messages_out];
	nodes_run(ms);
	for (unsigned i = 0; i < 3; i++)
		/* to each of the others: a probe in turn, and the answer to its probe */
		assert_in_range(node[i].control.counter[COUNTER_messages_out] - before[i],
			2 * (ms / BEAT_MS - 2) + 4 * (ms / PROBE_MS - 10),
			2 * (ms / BEAT_MS + 2) + 4 * (ms / PROBE_MS + 2));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(one_seed_on_either_side_or_both_is_enough),
		T(a_seed_that_starts_later_is_found),
		T(a_seed_can_be_a_name),
		T(an_engine_s_own_address_among_the_seeds_is_harmless),
		T(an_engine_that_knows_one_member_finds_all),
		T(a_chain_of_seeds_is_one_cluster),
		T(seeds_are_parsed_and_refused_with_the_reason),
		T(a_closed_engine_is_off_the_map_at_once),
		T(a_silent_engine_is_off_the_map_and_comes_back),
		T(an_engine_that_was_stopped_keeps_its_members),
		T(a_restarted_engine_replaces_its_former_incarnation),
		T(a_member_that_leaves_is_off_the_map_at_once),
		T(gossip_alone_puts_no_engine_on_the_map),
		T(a_dead_incarnation_that_gossip_calls_alive_stays_dead),
		T(a_name_taken_by_a_live_engine_is_refused),
		T(an_equal_ref_is_refused),
		T(more_engines_than_the_map_holds_are_refused),
		T(an_engine_that_finds_no_room_is_a_finding_on_both_sides_until_it_joins),
		T(an_idle_engine_sends_heartbeats_and_probes_and_nothing_else),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
