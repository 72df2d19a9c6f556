/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Membership and the map built from it: members join, die and come back, over real connections on
 * loopback. A node is one control plane in the test's process.
 */
#include "tests/unit/control/test_rpc_nodes.h"

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
	nodes_setup(BEAT_MS, DEAD_MS);
	return 0;
}

static int teardown(void **state)
{
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
	assert_int_equal(node_open(0, node_at(1)), 0);
	nodes_run(200);
	assert_int_equal(node_open(1, NULL), 0);
	assert_true(nodes_until(all_agree(), 2000));
}

static void a_seed_can_be_a_name(void **state)
{
	char seed[64];

	snprintf(seed, sizeof(seed), "localhost%s", strchr(node_at(0), ':'));
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node_open(1, seed), 0);
	assert_true(nodes_until(all_agree(), 3000));
}

static void an_engine_s_own_address_among_the_seeds_is_harmless(void **state)
{
	char seeds[256];

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
	open_agreeing(5);
	/* Every node has computed the same owners. */
	for (unsigned i = 1; i < 5; i++) {
		const struct map_view *a = member_map(&node[0].control);
		const struct map_view *b = member_map(&node[i].control);

		assert_memory_equal(a->owner, b->owner, 5 * sizeof(a->owner[0]));
		assert_memory_equal(a->slots, b->slots, MAP_SLOTS * map_owning(a));
	}
}

static void a_chain_of_seeds_is_one_cluster(void **state)
{
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

/* Node 0 asks the raw connection for its list; the answer names node 1, or none. */
static void list_answer(int fd, bool names)
{
	Pc__Message *ask = raw_await(fd, PC__MESSAGE__BODY_LIST_ASK, 1000);
	Pc__Member named = PC__MEMBER__INIT;
	Pc__MemberRecord record = PC__MEMBER_RECORD__INIT, *at = &record;
	Pc__ListPage page = PC__LIST_PAGE__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	assert_non_null(ask);
	named.name = "node-1";
	named.incarnation = node[1].control.incarnation;
	named.address = "127.0.0.1";
	named.port = (uint32_t)node[1].settings.cluster_port;
	named.rails = 2;
	record.member = &named;
	record.admission = 7;
	page.serial = ask->list_ask->serial;
	page.next = (uint32_t)ask->list_ask->n_sums;
	page.n_records = names;
	page.records = &at;
	message.body_case = PC__MESSAGE__BODY_LIST_PAGE;
	message.list_page = &page;
	raw_message(fd, &message);
	pc__message__free_unpacked(ask, NULL);
}

static void an_engine_that_another_one_has_on_its_list_is_found(void **state)
{
	Pc__Heartbeat beat = PC__HEARTBEAT__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	int fd;

	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(node_open(i, NULL), 0);
	fd = raw_open(0);
	raw_hello(fd, "raw", 0x1234567890, 9, NULL);
	list_answer(fd, false); /* the first member is asked at once */
	node[0].control.members->list_ns = 0;
	beat.members_digest = node[0].control.members->digest;
	message.body_case = PC__MESSAGE__BODY_HEARTBEAT;
	message.heartbeat = &beat;
	raw_message(fd, &message);
	nodes_run(5 * BEAT_MS);
	assert_int_equal(node[0].control.members->list_ns, 0); /* the lists are equal */
	beat.members_digest++;
	raw_message(fd, &message);
	list_answer(fd, true);
	assert_true(nodes_until(sees(0, 1) && sees(1, 0), 1000));
	/* Its Hello is the admission that the other engines know, not one more. */
	assert_int_equal(member_find(node[0].control.members, "node-1")->admission, 7);
	close(fd);
}

static void a_dead_incarnation_that_gossip_calls_alive_stays_dead(void **state)
{
	Pc__Member dead = PC__MEMBER__INIT;
	char name[16];
	int fd;

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

/* A further Hello that refuses nothing breaks a rule. */
static void a_second_hello_that_is_no_refusal_closes_the_link(void **state)
{
	int fd;

	open_agreeing(2);
	fd = raw_open(0);
	raw_hello(fd, "raw", 0x77777, 9, NULL);
	assert_true(nodes_until(sees_count(0, 3), 1000));
	raw_hello(fd, "raw", 0x77777, 9, NULL);
	assert_true(raw_closed(fd, 1000));
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 1);
	close(fd);
}

/* ---- cost ------------------------------------------------------------------------------------ */

static void an_idle_engine_sends_heartbeats_and_probes_and_nothing_else(void **state)
{
	uint64_t before[3];
	const unsigned ms = 1000;

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
		T(an_engine_that_another_one_has_on_its_list_is_found),
		T(a_dead_incarnation_that_gossip_calls_alive_stays_dead),
		T(a_name_taken_by_a_live_engine_is_refused),
		T(an_equal_ref_is_refused),
		T(a_second_hello_that_is_no_refusal_closes_the_link),
		T(an_idle_engine_sends_heartbeats_and_probes_and_nothing_else),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
