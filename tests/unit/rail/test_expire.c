/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deadlines: which requests are answered at once, which ones wait for the NIC, when a connection is
 * broken, and that a stalled connection does not delay the others.
 */
/* this channel number is the last bit of a word in rail->wake */
#define CLIENT_NUMBER 63
#include "tests/unit/rail/client_world.h"

#define MS 1000000ull

/* Advances the test clock by `ms` in steps of at most 5 ms, and steps the rail after each. */
static void pass(struct world *w, uint64_t ms)
{
	while (ms) {
		uint64_t now = ms < 5 ? ms : 5;

		clock_test_set(w->now_ns += now * MS);
		world_settle(w);
		ms -= now;
	}
}

static void get(struct world *w, uint64_t cookie, uint64_t deadline_ms, uint16_t number)
{
	struct op op = page_op(w, cookie, 8, 8192, 77);
	struct op_segment s = home_at(cookie * 8192, 8192);

	op.deadline_ns = w->now_ns + deadline_ms * MS;
	op.peer = (uint16_t)number;
	client_submit(client, &op, &s);
}

static void an_op_past_its_deadline_is_not_posted(void **state)
{
	struct world *w = *state;

	get(w, 1, 0, 3);
	world_settle(w);
	client_expect(client, 1, OP_TIMEOUT);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), 0);
	assert_int_equal(world_counter(w, COUNTER_reads_timed_out), 1);
}

static void a_parked_op_ends_at_its_deadline(void **state)
{
	struct world *w = *state;
	struct op_done done;

	get(w, 1, 50, 4);
	get(w, 2, 70, 4);
	world_settle(w);
	world_event(w, RAIL_CONN_WANTED);
	pass(w, 49);
	assert_false(client_done(client, &done));
	pass(w, 1);
	client_expect(client, 1, OP_TIMEOUT);
	assert_false(client_done(client, &done));
	pass(w, 20);
	client_expect(client, 2, OP_TIMEOUT);
	assert_int_equal(w->rail->parked, 0);
	assert_true(world_silent(w));
}

static void a_deadline_too_far_away_is_shortened(void **state)
{
	struct world *w = *state;
	struct op op = page_op(w, 1, 8, 8192, 77);
	struct op_segment s = home_at(0, 8192);

	op.deadline_ns = w->now_ns + OP_SPAN_NS - OP_TIME_NS;
	op.peer = 4;
	client_submit(client, &op, &s);
	world_settle(w);
	clock_test_set(w->now_ns += RUN_DEADLINE_MAX_NS);
	world_settle(w);
	client_expect(client, 1, OP_TIMEOUT);
}

static void a_posted_op_past_its_deadline_breaks_a_stalled_connection(void **state)
{
	struct world *w = *state;
	struct rail_event event;
	struct op_done done;

	get(w, 1, 100, 3);
	get(w, 2, 5000, 3);
	world_settle(w);
	nic_pull(w);
	pass(w, 99);
	assert_true(world_silent(w));
	pass(w, 10);
	event = world_event(w, RAIL_CONN_BROKEN);
	assert_int_equal(event.detail, 0);
	assert_ptr_equal(event.object, handle);
	/* The NIC may still write to the ops' buffers, so no op is answered yet. */
	assert_false(client_done(client, &done));
	nic_flush(w, handle);
	rail_conn_drop(w, handle);
	world_settle(w);
	assert_true(client_done(client, &done));
	assert_int_equal(done.status, done.cookie == 1 ? OP_TIMEOUT : OP_PEER_DOWN);
	assert_true(client_done(client, &done));
	assert_int_equal(done.status, done.cookie == 1 ? OP_TIMEOUT : OP_PEER_DOWN);
	world_event(w, RAIL_CONN_RETURNED);
	assert_true(world_silent(w));
	assert_int_equal(w->rail->taken_bytes, 0);
	assert_int_equal(w->rail->posted_bytes, 0);
	assert_int_equal(w->rail->parked, 0);
}

static void an_answered_late_op_no_longer_counts_against_its_connection(void **state)
{
	struct world *w = *state;
	struct conn *conn;

	get(w, 1, 10, 3);
	get(w, 2, 10, 3);
	world_settle(w);
	conn = w->rail->peer[3].conn;
	pass(w, 12);
	assert_int_equal(conn->expired, 2);
	world_run(w);
	client_expect(client, 1, OP_TIMEOUT);
	client_expect(client, 2, OP_TIMEOUT);
	assert_int_equal(conn->expired, 0);
	/*
	 * The connection stalls for longer than CONN_STALL_NS, while none of its ops is past its
	 * deadline.
	 */
	get(w, 3, 5000, 3);
	world_settle(w);
	pass(w, 60);
	assert_true(world_silent(w));
	world_run(w);
	client_expect(client, 3, OP_HIT);
	/* An op past its deadline on a stalled connection still breaks the connection. */
	get(w, 4, 10, 3);
	world_settle(w);
	pass(w, 60);
	world_event(w, RAIL_CONN_BROKEN);
	nic_flush(w, handle);
	world_settle(w);
	client_expect(client, 4, OP_TIMEOUT);
	assert_int_equal(conn->expired, 0);
}

static void too_short_deadlines_do_not_break_a_connection_that_makes_progress(void **state)
{
	struct world *w = *state;
	struct op_done done;

	for (unsigned i = 0; i < 50; i++)
		get(w, i, i % 2 ? 1 : 5000, 3);
	world_settle(w);
	nic_pull(w);
	for (unsigned i = 0; i < 50; i++) {
		pass(w, 4);
		nic_complete(w, 0, 0);
	}
	world_run(w);
	for (unsigned i = 0; i < 50; i++) {
		assert_true(client_done(client, &done));
		assert_int_equal(done.status, done.cookie % 2 ? OP_TIMEOUT : OP_HIT);
	}
	assert_true(world_silent(w));
}

static void a_hanging_qp_beside_a_working_one_breaks_the_connection(void **state)
{
	struct world *w = *state;
	struct dv_sq *stuck;

	get(w, 1, 50, 3);
	world_settle(w);
	nic_pull(w);
	stuck = &w->wqe[0].qp->stub.sq;
	for (unsigned ms = 0; ms < 340; ms += 10) {
		get(w, 2, 5000, 3);
		world_settle(w);
		nic_pull(w);
		for (unsigned i = 0; i < w->wqes; i++)
			if (&w->wqe[i].qp->stub.sq != stuck)
				nic_complete(w, i--, 0);
		pass(w, 10);
	}
	assert_int_equal(world_event(w, RAIL_CONN_BROKEN).detail, 0);
	nic_flush(w, handle);
	world_settle(w);
}

static void a_peer_that_does_not_answer_does_not_delay_the_others(void **state)
{
	struct world *w = *state;
	struct rail_conn *good = rail_conn_new(w, 4, 33, 1);
	uint32_t length = RUN_IN_FLIGHT_BYTES, slices = (length + SLICE_BYTES - 1) / SLICE_BYTES;
	struct op op = page_op(w, 1, 16, length, 5);
	struct op_segment s = home_at(0, length);
	struct op_done done;

	rail_conn_add(w, good);
	op.deadline_ns = w->now_ns + 10000 * MS;
	/* this op uses the rail's whole in-flight budget for a peer that does not answer */
	client_submit(client, &op, &s);
	world_settle(w);
	get(w, 2, 5000, 4);
	world_settle(w);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), slices);
	pass(w, 40);
	nic_pull(w);
	/* The op for the other peer was posted although the first peer does not answer. */
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), slices + 1);
	for (unsigned round = 0; round < 2; round++) {
		for (unsigned i = 0; i < w->wqes; i++)
			if (&w->wqe[i].qp->stub.sq == good->sq[0])
				nic_complete(w, i--, 0);
		world_settle(w);
		nic_pull(w);
	}
	client_expect(client, 2, OP_HIT);
	assert_int_equal(w->rail->parked, 1);
	/*
	 * When the first peer answers after all, the rail's sums of bytes in flight are right
	 * again.
	 */
	world_run(w);
	assert_true(client_done(client, &done));
	assert_int_equal(w->rail->parked, 0);
	assert_int_equal(w->rail->taken_bytes, 0);
	assert_int_equal(w->rail->posted_bytes, 0);
	assert_true(world_silent(w));
	rail_conn_free(w, good);
}

static void read_start(struct world *w, uint16_t number)
{
	struct op op = page_op(w, number, 8, 8192, 77);
	struct op_segment s = home_at(0, 64);

	op.length = 64;
	op.peer = (uint16_t)number;
	client_submit(client, &op, &s);
	world_settle(w);
}

static void small_reads_of_a_peer_that_does_not_answer_use_at_most_half_of_the_cq(void **state)
{
	struct world *w = *state;
	struct rail_conn *dead = rail_conn_new(w, 4, 33, QPS_PER_PEER_MAX);

	rail_conn_add(w, dead);
	for (unsigned i = 0; i < CQ_DEPTH + 10; i++)
		read_start(w, 4);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), CQ_DEPTH / 2);
	read_start(w, 3);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), CQ_DEPTH / 2 + 1);
	world_run(w);
	assert_int_equal(world_counter(w, COUNTER_pages_read), CQ_DEPTH + 11);
	rail_conn_free(w, dead);
}

static void an_unposted_op_ends_at_its_deadline_and_its_connection_stays_open(void **state)
{
	struct world *w = *state;
	uint32_t length = RUN_IN_FLIGHT_BYTES - 1;
	struct op op = page_op(w, 1, 16, length, 5);
	struct op_segment s = home_at(0, length);

	client_submit(client, &op, &s);
	get(w, 2, 10, 3);
	world_settle(w);
	assert_int_equal(rail_in_flight(w->rail), 2);
	pass(w, 10);
	client_expect(client, 2, OP_TIMEOUT);
	assert_true(world_silent(w));
	world_run(w);
	client_expect(client, 1, OP_STALE);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_op_past_its_deadline_is_not_posted),
		TEST(a_parked_op_ends_at_its_deadline),
		TEST(a_deadline_too_far_away_is_shortened),
		TEST(a_posted_op_past_its_deadline_breaks_a_stalled_connection),
		TEST(an_answered_late_op_no_longer_counts_against_its_connection),
		TEST(too_short_deadlines_do_not_break_a_connection_that_makes_progress),
		TEST(a_hanging_qp_beside_a_working_one_breaks_the_connection),
		TEST(a_peer_that_does_not_answer_does_not_delay_the_others),
		TEST(small_reads_of_a_peer_that_does_not_answer_use_at_most_half_of_the_cq),
		TEST(an_unposted_op_ends_at_its_deadline_and_its_connection_stays_open),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
