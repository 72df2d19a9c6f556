/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver calls that do not return: the event loop and the other connections must go on. A node is
 * one control plane in the test's process.
 */
#include "tests/unit/control/conns/conn_world.h"

#include <pthread.h>

static struct control *control;

static int open_nodes(void **state)
{
	control = &node[0].control;
	return setup(state);
}

static void the_loop_answers_while_a_connect_call_is_blocked(void **state)
{
	connects_blocked = 1;
	want(0); /* after this request a helper thread of node 1 is blocked in dv_qp_connect() */
	assert_true(nodes_until(conns_busy(&node[1].control) == 1, 5000));
	for (unsigned i = 0; i < 20; i++) {
		uint8_t bytes[4096];
		int fd = raw_open(1);

		raw_hello(fd, "raw", 0x4200000042 + i, 9, NULL);
		assert_true(raw_read(fd, bytes, sizeof(bytes), 500) > 0);
		close(fd);
		assert_true(nodes_until(sees_count(1, 2), 1000));
	}
	assert_int_equal(conns_busy(&node[1].control), 1);
	__atomic_store_n(&connects_blocked, 0, __ATOMIC_SEQ_CST);
	assert_true(nodes_until(node[0].rail[0].tells > 0, 5000));
	conns_stop(control);
}

static void breaking_a_connection_does_not_wait_for_one_being_made(void **state)
{
	struct rail_conn *got = connected(0);

	assert_int_equal(node_open(2, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	/* node 2's two dv_qp_connect() calls return; the call of node 0 is still blocked */
	connects_free = 2;
	connects_blocked = 1;
	conns_wanted(
		control, 0, member_by_ref(control, node[2].control.ref)->peer, node[2].control.ref);
	assert_true(nodes_until(
		LIST_FIRST(&control->conns->out_conns)->state == OUT_CONN_CONNECTING, 1900));
	conns_broken(control, 0, got, 0x15);
	assert_true(nodes_until(node[0].rail[0].tells == 2, 5000));
	assert_int_equal(node[0].rail[0].told[1].kind, RAIL_CONN_DROP);
	assert_int_equal(LIST_FIRST(&control->conns->out_conns)->state, OUT_CONN_CONNECTING);
	__atomic_store_n(&connects_blocked, 0, __ATOMIC_SEQ_CST);
	conns_returned(control, 0, got);
	conns_stop(control);
}

/*
 * Rail 0 of node 0 requests node 2, which answers, but whose address does not resolve:
 * dv_qp_connect() of node 0 blocks.
 */
static void ask_the_unreachable(void)
{
	connects_free = 2; /* the two dv_qp_connect() calls of node 2 do not block */
	connects_held = 1; /* the first dv_qp_connect() call of node 0 blocks */
	connects_blocked = 1;
	conns_wanted(
		control, 0, member_by_ref(control, node[2].control.ref)->peer, node[2].control.ref);
	assert_true(nodes_until(
		LIST_FIRST(&control->conns->out_conns)->state == OUT_CONN_CONNECTING, 1900));
}

static void an_unreachable_peer_does_not_delay_other_connections(void **state)
{
	assert_int_equal(node_open(2, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	ask_the_unreachable();
	/* while that call is blocked, the same rail of node 0 gets a connection to node 1 */
	connected(0);
	assert_int_equal(conns_busy(control), 1);
	__atomic_store_n(&connects_blocked, 0, __ATOMIC_SEQ_CST);
	conns_stop(control);
}

static void a_connection_not_made_in_time_is_given_up_and_blocks_only_one_helper(void **state)
{
	uint16_t number;

	assert_int_equal(node_open(2, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	ask_the_unreachable();
	number = member_by_ref(control, node[2].control.ref)->peer;
	assert_true(nodes_until(node[0].rail[0].tells == 1, CONN_MADE_MS + 500));
	assert_int_equal(node[0].rail[0].told[0].kind, RAIL_CONN_REFUSE);
	assert_int_equal(shm_load(&control->status->peer_rails_out[number]), 1);
	__atomic_store_n(&connects_held, 1u << 30, __ATOMIC_SEQ_CST);
	/* The next two dv_qp_connect() calls, those of node 2, do not block; all later calls do */
	__atomic_store_n(&connects_free, 2, __ATOMIC_SEQ_CST);
	/*
	 * In this time node 0 would send a probe if its helper thread had returned from the blocked
	 * call
	 */
	nodes_run(10 * CONN_BACKOFF_MS);
	assert_int_equal(conns_busy(control), 1);
	__atomic_store_n(&connects_blocked, 0, __ATOMIC_SEQ_CST);
	assert_true(nodes_until(/* node 0 has a new connection to node 2 */
		shm_load(&control->status->peer_rails_out[number]) == 1 &&
			node[0].rail[0].tells > 1,
		3 * CONN_BACKOFF_MAX_MS));
	assert_int_equal(node[0].rail[0].told[1].kind, RAIL_CONN_ADD);
	conns_stop(control);
}

static void repeated_connects_of_a_peer_block_only_one_helper(void **state)
{
	/*
	 * dv_qp_connect() of node 1 blocks: node 0 gets no answer and sends Connect again and again
	 */
	connects_blocked = 1;
	want(0);
	nodes_run(CONN_ANSWER_MS + 10 * CONN_BACKOFF_MS);
	assert_int_equal(conns_busy(&node[1].control), 1);
	__atomic_store_n(&connects_blocked, 0, __ATOMIC_SEQ_CST);
	assert_true(nodes_until(node[0].rail[0].tells > 1, 2 * CONN_BACKOFF_MAX_MS));
	assert_int_equal(node[0].rail[0].told[0].kind, RAIL_CONN_REFUSE);
	conns_stop(control);
}

/*
 * Each dv_qp_connect() call may block for a second, and one connection may have eight queue pairs.
 */
static void an_abandoned_set_makes_no_further_connect_call(void **state)
{
	connects_blocked = 1;
	want(0);
	/* Waits until node 1 has made its first dv_qp_connect() call, which blocks */
	assert_true(nodes_until(qps_connects == 1, 5000));
	conns_stop(control);
	conns_stop(&node[1].control);
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

static void closing_an_engine_waits_for_one_connect_call_not_for_the_whole_set(void **state)
{
	pthread_t thread;

	connects_blocked = 1;
	want(0);
	assert_true(nodes_until(qps_connects == 1, 5000));
	assert_int_equal(pthread_create(&thread, NULL, unblock, NULL), 0);
	node_close(1);
	pthread_join(thread, NULL);
	assert_int_equal(qps_connects, 1);
	conns_stop(control);
}

#define L(name) cmocka_unit_test_setup_teardown(name, open_nodes, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		L(the_loop_answers_while_a_connect_call_is_blocked),
		L(breaking_a_connection_does_not_wait_for_one_being_made),
		L(an_unreachable_peer_does_not_delay_other_connections),
		L(a_connection_not_made_in_time_is_given_up_and_blocks_only_one_helper),
		L(repeated_connects_of_a_peer_block_only_one_helper),
		L(an_abandoned_set_makes_no_further_connect_call),
		L(closing_an_engine_waits_for_one_connect_call_not_for_the_whole_set),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
