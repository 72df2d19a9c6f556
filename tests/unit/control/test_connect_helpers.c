/* SPDX-License-Identifier: Apache-2.0 */
/* Calls to NICs that do not come back: the loop goes on, and so do the other connections. */
#include "tests/unit/control/connect_world.h"

#include <pthread.h>

static struct control *control;

static int open_nodes(void **state)
{
	control = &node[0].control;
	return setup(state);
}

static void the_loop_answers_while_a_connect_does_not_come_back(void **state)
{
	(void)state;
	connects_blocked = 1;
	want(0); /* node 1 connects its end: a helper of it is in the kernel from now on */
	assert_true(nodes_until(connect_busy(&node[1].control) == 1, 5000));
	for (unsigned i = 0; i < 20; i++) {
		uint8_t bytes[4096];
		int fd = raw_open(1);

		raw_hello(fd, "raw", 0x4200000042 + i, 9, NULL);
		assert_true(raw_read(fd, bytes, sizeof(bytes), 500) > 0);
		close(fd);
		assert_true(nodes_until(sees_count(1, 2), 1000));
	}
	assert_int_equal(connect_busy(&node[1].control), 1);
	__atomic_store_n(&connects_blocked, 0, __ATOMIC_SEQ_CST);
	assert_true(nodes_until(node[0].rail[0].tells > 0, 5000));
	connect_stop(control);
}

static void what_is_broken_does_not_wait_for_what_is_being_made(void **state)
{
	struct rail_peer *got = connected(0);

	(void)state;
	assert_int_equal(node_open(2, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	connects_free = 2; /* those of node 2: our own does not come back */
	connects_blocked = 1;
	connect_wanted(control, 0, member_by_ref(control, node[2].control.ref)->map.peer,
		node[2].control.ref);
	assert_true(nodes_until(
		LIST_FIRST(&control->connect->actives)->state == ACTIVE_CONNECTING, 1900));
	connect_broken(control, 0, got, 0x15);
	assert_true(nodes_until(node[0].rail[0].tells == 2, 5000));
	assert_int_equal(node[0].rail[0].told[1].kind, RAIL_PEER_DROP);
	assert_int_equal(LIST_FIRST(&control->connect->actives)->state, ACTIVE_CONNECTING);
	__atomic_store_n(&connects_blocked, 0, __ATOMIC_SEQ_CST);
	connect_returned(control, 0, got);
	connect_stop(control);
}

/* Node 2 answers, and its address does not resolve. */
static void ask_the_unreachable(void)
{
	connects_free = 2; /* those of node 2 */
	connects_held = 1; /* the first of ours */
	connects_blocked = 1;
	connect_wanted(control, 0, member_by_ref(control, node[2].control.ref)->map.peer,
		node[2].control.ref);
	assert_true(nodes_until(
		LIST_FIRST(&control->connect->actives)->state == ACTIVE_CONNECTING, 1900));
}

static void a_peer_that_cannot_be_reached_holds_up_no_other(void **state)
{
	(void)state;
	assert_int_equal(node_open(2, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	ask_the_unreachable();
	connected(0); /* with node 1, over the same rail */
	assert_int_equal(connect_busy(control), 1);
	__atomic_store_n(&connects_blocked, 0, __ATOMIC_SEQ_CST);
	connect_stop(control);
}

static void a_path_that_is_not_made_in_time_is_given_up_and_keeps_one_helper(void **state)
{
	uint16_t number;

	(void)state;
	assert_int_equal(node_open(2, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	ask_the_unreachable();
	number = member_by_ref(control, node[2].control.ref)->map.peer;
	assert_true(nodes_until(node[0].rail[0].tells == 1, CONNECT_MADE_MS + 500));
	assert_int_equal(node[0].rail[0].told[0].kind, RAIL_PEER_REFUSE);
	assert_int_equal(shm_load(&control->status->peer_rails_out[number]), 1);
	__atomic_store_n(&connects_held, 1u << 30, __ATOMIC_SEQ_CST);
	__atomic_store_n(&connects_free, 2, __ATOMIC_SEQ_CST); /* those of node 2 */
	nodes_run(10 * CONNECT_BACKOFF_MS); /* probed meanwhile, had the helper come back */
	assert_int_equal(connect_busy(control), 1);
	__atomic_store_n(&connects_blocked, 0, __ATOMIC_SEQ_CST);
	assert_true(nodes_until(/* connected anew */
		shm_load(&control->status->peer_rails_out[number]) == 1 &&
			node[0].rail[0].tells > 1,
		3 * CONNECT_BACKOFF_MAX_MS));
	assert_int_equal(node[0].rail[0].told[1].kind, RAIL_PEER_ADD);
	connect_stop(control);
}

static void a_peer_that_asks_again_keeps_one_helper(void **state)
{
	(void)state;
	connects_blocked = 1; /* node 1 cannot reach node 0, which asks again and again */
	want(0);
	nodes_run(CONNECT_ANSWER_MS + 10 * CONNECT_BACKOFF_MS);
	assert_int_equal(connect_busy(&node[1].control), 1);
	__atomic_store_n(&connects_blocked, 0, __ATOMIC_SEQ_CST);
	assert_true(nodes_until(node[0].rail[0].tells > 1, 2 * CONNECT_BACKOFF_MAX_MS));
	assert_int_equal(node[0].rail[0].told[0].kind, RAIL_PEER_REFUSE);
	connect_stop(control);
}

/* Each connect may take a second, and there are eight of them in a set. */
static void what_was_given_up_is_not_connected_any_more(void **state)
{
	(void)state;
	connects_blocked = 1;
	want(0);
	assert_true(nodes_until(qps_connects == 1, 5000)); /* the first of node 1 */
	connect_stop(control);
	connect_stop(&node[1].control);
	__atomic_store_n(&connects_blocked, 0, __ATOMIC_SEQ_CST);
	assert_true(nodes_until(qps_alive == 0, 500));
	assert_int_equal(qps_connects, 1);
}

static void *unblock(void *unused)
{
	usleep(200000);
	__atomic_store_n(&connects_blocked, 0, __ATOMIC_SEQ_CST);
	return unused;
}

static void an_engine_that_ends_waits_for_one_connect_and_not_for_a_set(void **state)
{
	pthread_t thread;

	(void)state;
	connects_blocked = 1;
	want(0);
	assert_true(nodes_until(qps_connects == 1, 5000));
	assert_int_equal(pthread_create(&thread, NULL, unblock, NULL), 0);
	node_close(1);
	pthread_join(thread, NULL);
	assert_int_equal(qps_connects, 1);
	connect_stop(control);
}

#define L(name) cmocka_unit_test_setup_teardown(name, open_nodes, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		L(the_loop_answers_while_a_connect_does_not_come_back),
		L(what_is_broken_does_not_wait_for_what_is_being_made),
		L(a_peer_that_cannot_be_reached_holds_up_no_other),
		L(a_path_that_is_not_made_in_time_is_given_up_and_keeps_one_helper),
		L(a_peer_that_asks_again_keeps_one_helper),
		L(what_was_given_up_is_not_connected_any_more),
		L(an_engine_that_ends_waits_for_one_connect_and_not_for_a_set),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
