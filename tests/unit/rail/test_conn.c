/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that do not exist yet, break, are dropped and come back: how the waiting requests
 * end, and when the QPs are returned.
 */
#include "tests/unit/rail/world.h"

static struct client *client;

static int setup(void **state)
{
	struct world *w;

	world_setup(state);
	w = *state;
	client = client_new(w, 0, WORLD_SESSION);
	page_put(w, 8, 8192, 77);
	return 0;
}

static int teardown(void **state)
{
	client_free(client);
	return world_teardown(state);
}

static void get(struct world *w, uint64_t cookie, uint16_t number, uint32_t ref)
{
	struct op op = page_op(w, cookie, 8, 8192, 77);
	struct op_segment s = home_at(cookie * 8192, 8192);

	op.peer = (uint16_t)number;
	op.peer_ref = ref;
	client_submit(client, &op, &s);
}

static void refuse(struct world *w, uint16_t number, uint32_t ref)
{
	world_command(
		w, (struct rail_command){.kind = RAIL_CONN_REFUSE, .peer = number, .ref = ref});
	world_settle(w);
}

static void ops_for_an_unconnected_peer_wait_and_request_one_connection(void **state)
{
	struct world *w = *state;
	struct rail_conn *handle = rail_conn_new(w, 3, 33, 1);
	struct rail_event event;

	for (unsigned i = 0; i < 10; i++)
		get(w, i, 3, 33);
	world_settle(w);
	event = world_event(w, RAIL_CONN_WANTED);
	assert_int_equal(event.peer, 3);
	assert_int_equal(event.ref, 33);
	assert_true(world_silent(w));
	rail_conn_add(w, handle);
	world_run(w);
	for (unsigned i = 0; i < 10; i++) {
		struct op_done done;

		assert_true(client_done(client, &done));
		assert_int_equal(done.status, OP_HIT);
	}
	assert_int_equal(w->rail->parked, 0);
	rail_conn_free(w, handle);
}

static void a_refused_connection_fails_the_waiting_ops_and_a_later_op_requests_it_again(
	void **state)
{
	struct world *w = *state;

	get(w, 1, 3, 33);
	get(w, 2, 4, 33);
	world_settle(w);
	world_event(w, RAIL_CONN_WANTED);
	world_event(w, RAIL_CONN_WANTED);
	refuse(w, 3, 33);
	client_expect(client, 1, OP_PEER_DOWN);
	assert_int_equal(rail_in_flight(w->rail), 1);
	get(w, 3, 3, 33);
	world_settle(w);
	assert_int_equal(world_event(w, RAIL_CONN_WANTED).peer, 3);
	refuse(w, 3, 33);
	refuse(w, 4, 33);
	client_expect(client, 3, OP_PEER_DOWN);
	client_expect(client, 2, OP_PEER_DOWN);
	assert_int_equal(w->rail->parked, 0);
	assert_int_equal(w->rail->region[WORLD_REGION].users, 0);
}

static void connections_to_two_incarnations_of_a_peer_are_requested_one_after_the_other(
	void **state)
{
	struct world *w = *state;
	struct rail_conn *handle = rail_conn_new(w, 3, 34, 1);

	get(w, 1, 3, 33);
	get(w, 2, 3, 34);
	world_settle(w);
	assert_int_equal(world_event(w, RAIL_CONN_WANTED).ref, 33);
	assert_true(world_silent(w));
	refuse(w, 3, 33);
	client_expect(client, 1, OP_PEER_DOWN);
	assert_int_equal(world_event(w, RAIL_CONN_WANTED).ref, 34);
	rail_conn_add(w, handle);
	world_run(w);
	client_expect(client, 2, OP_HIT);
	/*
	 * The op names the old incarnation, so the rail does not use the connection to the new one,
	 * although the peer number is the same.
	 */
	get(w, 3, 3, 33);
	world_settle(w);
	assert_int_equal(world_event(w, RAIL_CONN_WANTED).ref, 33);
	refuse(w, 3, 33);
	client_expect(client, 3, OP_PEER_DOWN);
	assert_true(world_silent(w));
	rail_conn_free(w, handle);
}

static void a_new_connection_serves_only_ops_for_its_incarnation(void **state)
{
	struct world *w = *state;
	struct rail_conn *handle = rail_conn_new(w, 3, 34, 1);

	get(w, 1, 3, 33);
	get(w, 2, 3, 34);
	get(w, 3, 3, 33);
	world_settle(w);
	assert_int_equal(world_event(w, RAIL_CONN_WANTED).ref, 33);
	rail_conn_add(w, handle);
	world_run(w);
	client_expect(client, 2, OP_HIT);
	assert_int_equal(rail_in_flight(w->rail), 2);
	refuse(w, 3, 33);
	client_expect(client, 1, OP_PEER_DOWN);
	client_expect(client, 3, OP_PEER_DOWN);
	assert_true(world_silent(w));
	rail_conn_free(w, handle);
}

static void a_waiting_op_outside_the_exported_regions_is_refused_on_connect(void **state)
{
	struct world *w = *state;
	struct rail_conn *handle = rail_conn_new(w, 3, 33, 1);

	handle->region[REGION_POOL_0].length = 9 * PAGE_UNIT;
	get(w, 1, 3, 33);
	world_settle(w);
	world_event(w, RAIL_CONN_WANTED);
	rail_conn_add(w, handle);
	world_run(w);
	client_expect(client, 1, OP_INVALID);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), 0);
	rail_conn_free(w, handle);
}

static void a_page_whose_head_is_not_exported_is_refused(void **state)
{
	struct world *w = *state;
	struct rail_conn *handle = rail_conn_new(w, 3, 33, 1);

	handle->region[REGION_HEADS_0].length = 8 * sizeof(struct page_head) + 31;
	rail_conn_add(w, handle);
	get(w, 1, 3, 33);
	world_run(w);
	client_expect(client, 1, OP_INVALID);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), 0);
	rail_conn_free(w, handle);
}

static void a_dropped_idle_connection_is_returned_at_once(void **state)
{
	struct world *w = *state;
	struct rail_conn *handle = rail_conn_new(w, 3, 33, QPS_PER_PEER_MAX);

	rail_conn_add(w, handle);
	rail_conn_drop(w, handle);
	world_settle(w);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, handle);
	rail_conn_drop(w, handle); /* a second RAIL_CONN_DROP for the connection has no effect */
	world_settle(w);
	assert_true(world_silent(w));
	rail_conn_free(w, handle);
}

#define POSTED 56u /* pages whose READs one queue pair has room for */

static void a_dropped_connection_is_returned_after_its_last_wqe(void **state)
{
	struct world *w = *state;
	struct rail_conn *handle = rail_conn_new(w, 3, 33, 2);
	unsigned arrived = 0;
	struct op_done done;

	rail_conn_add(w, handle);
	for (unsigned i = 0; i < POSTED; i++)
		get(w, i, 3, 33);
	world_settle(w);
	nic_pull(w);
	rail_conn_drop(w, handle);
	world_settle(w);
	assert_true(world_silent(w));
	assert_false(client_done(client, &done));
	get(w, 200, 3, 33);
	world_settle(w);
	client_expect(client, 200, OP_PEER_DOWN);
	/*
	 * Some payloads had arrived before the QPs went to the error state; the heads of these
	 * pages can no longer be read.
	 */
	do
		arrived++;
	while (!nic_complete(w, 0, 0));
	world_settle(w);
	for (unsigned i = 0; i < arrived; i++) {
		assert_true(client_done(client, &done));
		assert_int_equal(done.status, OP_PEER_DOWN);
	}
	assert_false(client_done(client, &done));
	nic_flush(w, handle);
	world_settle(w);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, handle);
	assert_true(world_silent(w));
	for (unsigned i = arrived; i < POSTED; i++) {
		assert_true(client_done(client, &done));
		assert_int_equal(done.status, OP_PEER_DOWN);
	}
	assert_int_equal(w->rail->posted_bytes, 0);
	assert_int_equal(w->rail->taken_bytes, 0);
	assert_int_equal(w->rail->wqes, 0);
	/* The connection is gone, so the next op makes the rail request one again. */
	get(w, 201, 3, 33);
	world_settle(w);
	world_event(w, RAIL_CONN_WANTED);
	refuse(w, 3, 33);
	rail_conn_free(w, handle);
}

static void a_new_connection_is_used_while_the_old_one_still_drains(void **state)
{
	struct world *w = *state;
	struct rail_conn *old = rail_conn_new(w, 3, 33, 2), *new = rail_conn_new(w, 3, 33, 1);

	rail_conn_add(w, old);
	get(w, 1, 3, 33);
	world_settle(w);
	rail_conn_drop(w, old);
	rail_conn_add(w, new);
	world_settle(w);
	get(w, 2, 3, 33);
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->wqes, 2);
	for (unsigned i = 0; i < w->wqes; i++)
		if (&w->wqe[i].qp->stub.sq == new->sq[0])
			nic_complete(w, i, 0);
	world_settle(w);
	nic_pull(w);
	for (unsigned i = 0; i < w->wqes; i++)
		if (&w->wqe[i].qp->stub.sq == new->sq[0])
			nic_complete(w, i, 0);
	world_settle(w);
	client_expect(client, 2, OP_HIT);
	assert_true(world_silent(w));
	nic_flush(w, old);
	world_settle(w);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, old);
	client_expect(client, 1, OP_PEER_DOWN);
	/* Returning the old connection has not removed the new connection to this peer. */
	get(w, 3, 3, 33);
	world_run(w);
	client_expect(client, 3, OP_HIT);
	/* A RAIL_CONN_DROP without an object means the connection to the peer that still exists. */
	rail_conn_drop(w, new);
	world_settle(w);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, new);
	rail_conn_free(w, old);
	rail_conn_free(w, new);
}

static void a_drop_without_an_object_means_the_broken_connection(void **state)
{
	struct world *w = *state;
	struct rail_conn *old = rail_conn_new(w, 3, 33, 1), *new = rail_conn_new(w, 3, 33, 1);

	rail_conn_add(w, old);
	get(w, 1, 3, 33);
	world_settle(w);
	nic_pull(w);
	nic_complete(w, 0, DV_SYNDROME_RETRY_EXCEEDED);
	world_settle(w);
	client_expect(client, 1, OP_NIC_ERROR);
	assert_int_equal(world_event(w, RAIL_CONN_BROKEN).detail, DV_SYNDROME_RETRY_EXCEEDED);
	rail_conn_add(w, new);
	rail_conn_drop(w, old);
	world_settle(w);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, old);
	get(w, 2, 3, 33);
	world_run(w);
	client_expect(client, 2, OP_HIT);
	rail_conn_free(w, old);
	rail_conn_free(w, new);
}

static void every_qp_is_found_by_number_while_connections_come_and_go(void **state)
{
	struct world *w = *state;
	struct rail_conn *handle[40] = {0};
	unsigned seed = 1;

	for (unsigned round = 0; round < 2000; round++) {
		unsigned i = (seed = seed * 1103515245 + 12345) >> 16;

		i %= 40;
		if (handle[i]) {
			rail_conn_drop(w, handle[i]);
			world_settle(w);
			assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, handle[i]);
			rail_conn_free(w, handle[i]);
			handle[i] = NULL;
			continue;
		}
		w->qpn_next = round << 10 | (seed >> 8 & 0x3f) << 4;
		handle[i] = rail_conn_new(w, (uint16_t)i, 33, 1 + i % QPS_PER_PEER_MAX);
		rail_conn_add(w, handle[i]);
		world_settle(w);
		for (unsigned j = 0; j < 40; j++)
			for (unsigned q = 0; handle[j] && q < handle[j]->qps; q++)
				assert_ptr_equal(conn_qp_find(w->rail, handle[j]->sq[q]->qpn)->sq,
					handle[j]->sq[q]);
	}
	for (unsigned i = 0; i < 40; i++)
		if (handle[i])
			rail_conn_free(w, handle[i]);
}

static void ops_for_an_unreachable_peer_leave_room_for_others(void **state)
{
	struct world *w = *state;
	struct rail_conn *handle = rail_conn_new(w, 4, 44, 1);
	struct op_done done;

	for (unsigned i = 0; i < RAIL_PARKED_MAX + 10; i++) {
		get(w, i % 1000, 3, 33);
		if (i % 100 == 0)
			world_settle(w);
	}
	world_settle(w);
	for (unsigned i = 0; i < 10; i++) {
		assert_true(client_done(client, &done));
		assert_int_equal(done.status, OP_PEER_DOWN);
	}
	assert_false(client_done(client, &done));
	rail_conn_add(w, handle);
	get(w, 5, 4, 44);
	world_run(w);
	client_expect(client, 5, OP_HIT);
	refuse(w, 3, 33);
	assert_int_equal(rail_in_flight(w->rail), 0);
	rail_conn_free(w, handle);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(ops_for_an_unconnected_peer_wait_and_request_one_connection),
		TEST(a_refused_connection_fails_the_waiting_ops_and_a_later_op_requests_it_again),
		TEST(connections_to_two_incarnations_of_a_peer_are_requested_one_after_the_other),
		TEST(a_new_connection_serves_only_ops_for_its_incarnation),
		TEST(a_waiting_op_outside_the_exported_regions_is_refused_on_connect),
		TEST(a_page_whose_head_is_not_exported_is_refused),
		TEST(a_dropped_idle_connection_is_returned_at_once),
		TEST(a_dropped_connection_is_returned_after_its_last_wqe),
		TEST(a_new_connection_is_used_while_the_old_one_still_drains),
		TEST(a_drop_without_an_object_means_the_broken_connection),
		TEST(every_qp_is_found_by_number_while_connections_come_and_go),
		TEST(ops_for_an_unreachable_peer_leave_room_for_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
