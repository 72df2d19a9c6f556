/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the connections of a rail share: its requests and its CQ. A peer that answers nothing leaves
 * room for the others even before its connection counts as stalled, and no number of full
 * connections overruns the CQ.
 */
#include "tests/unit/rail/world.h"

#define MS 1000000ull
#define CONNS 4u
/* number of the rail's requests that one connection can hold alone */
#define SHARE (RAIL_RUNS / 3 + 1)

static struct client *client, *other;
static struct rail_conn *handle[CONNS + 1];

static int setup(void **state)
{
	struct world *w;

	world_setup(state);
	w = *state;
	client = client_new(w, 63, WORLD_SESSION);
	other = client_new(w, 64, WORLD_SESSION);
	for (unsigned i = 0; i <= CONNS; i++) {
		handle[i] = rail_conn_new(w, (uint16_t)i, 33, QPS_PER_PEER_MAX);
		rail_conn_add(w, handle[i]);
	}
	page_put(w, 8, 8192, 77);
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	for (unsigned i = 0; i <= CONNS; i++)
		rail_conn_free(w, handle[i]);
	client_free(client);
	client_free(other);
	return world_teardown(state);
}

static struct conn *conn_of(const struct world *w, unsigned number)
{
	return w->rail->peer[number].conn;
}

static void read_start(struct world *w, struct client *from, uint64_t cookie, unsigned number)
{
	struct op op = page_op(w, cookie, 8, 8192, 77);
	struct op_segment s = home_at(0, 64);

	op.length = 64;
	op.peer = (uint16_t)number;
	client_submit(from, &op, &s);
}

static void get(struct world *w, struct client *from, uint64_t cookie, unsigned number)
{
	struct op op = page_op(w, cookie, 8, 8192, 77);
	struct op_segment s = home_at(8192, 8192);

	op.peer = (uint16_t)number;
	client_submit(from, &op, &s);
}

/* Completes what is posted to the peer `only`, and nothing else, until nothing is left to do. */
static void serve(struct world *w, const struct rail_conn *only)
{
	unsigned n;

	do {
		world_settle(w);
		nic_pull(w);
		n = 0;
		for (unsigned i = 0; i < w->wqes; i++)
			for (unsigned q = 0; q < only->qps; q++)
				if (&w->wqe[i].qp->stub.sq == only->sq[q]) {
					nic_complete(w, i--, 0);
					n++;
					break;
				}
	} while (n);
}

static void count_answers(struct client *of, enum op_status status, unsigned n)
{
	struct op_done done;

	for (unsigned i = 0; i < n; i++) {
		assert_true(client_done(of, &done));
		assert_int_equal(done.status, status);
	}
	assert_false(client_done(of, &done));
}

static void assert_nothing_left(const struct world *w)
{
	assert_int_equal(rail_in_flight(w->rail), 0);
	assert_int_equal(w->rail->wqes, 0);
	assert_int_equal(w->rail->parked, 0);
	assert_int_equal(w->rail->taken_bytes, 0);
	assert_int_equal(w->rail->posted_bytes, 0);
	assert_int_equal(w->rail->runs_free, RAIL_RUNS);
}

/* Lets 40 ms pass in which no peer answers. */
static void silence(struct world *w)
{
	for (unsigned ms = 0; ms < 40; ms += 5) {
		clock_test_set(w->now_ns += 5 * MS);
		world_settle(w);
	}
}

/* ---- requests ------------------------------------------------------------------------------- */

static void reads_of_a_silent_peer_leave_requests_for_other_clients(void **state)
{
	struct world *w = *state;

	for (unsigned i = 0; i < OP_RING_SLOTS; i++)
		read_start(w, client, i, 0);
	world_settle(w);
	get(w, other, 1, 1);
	/* the test clock stands still, so the silent peer's connection is not stalled yet */
	serve(w, handle[1]);
	client_expect(other, 1, OP_HIT);
	assert_int_equal(conn_of(w, 0)->runs_live, SHARE);
	/* the number of a peer is checked before the connection of that peer is looked up */
	get(w, other, 5, NODES_MAX);
	get(w, other, 6, UINT16_MAX);
	world_settle(w);
	client_expect(other, 5, OP_INVALID);
	client_expect(other, 6, OP_INVALID);
	/*
	 * A stalled connection keeps its share of requests; ops for it that wait in the ring beyond
	 * that share are refused.
	 */
	silence(w);
	assert_true(conn_of(w, 0)->stalled);
	assert_int_equal(shm_load(&conn_of(w, 0)->handle->stalled), 1);
	count_answers(client, OP_PEER_DOWN, OP_RING_SLOTS - SHARE);
	get(w, other, 2, 1);
	serve(w, handle[1]);
	client_expect(other, 2, OP_HIT);
	world_run(w); /* the silent peer answers in the end */
	count_answers(client, OP_HIT, SHARE);
	assert_int_equal(shm_load(&conn_of(w, 0)->handle->stalled), 0);
	assert_nothing_left(w);
}

static void each_stall_of_a_connection_has_its_number(void **state)
{
	struct world *w = *state;

	for (unsigned stall = 1; stall < 4; stall++) {
		/* one long stall is told from several short ones by it; 0 means none */
		if (stall == 3)
			w->rail->stalls = UINT32_MAX;
		read_start(w, client, stall, 0);
		world_settle(w);
		silence(w);
		assert_int_equal(shm_load(&conn_of(w, 0)->handle->stalled), stall < 3 ? stall : 1);
		assert_int_equal(rail_stalls(w->rail), stall < 3 ? stall : 1);
		world_run(w);
		client_expect(client, stall, OP_HIT);
		assert_int_equal(shm_load(&conn_of(w, 0)->handle->stalled), 0);
	}
	assert_nothing_left(w);
}

static void an_error_does_not_end_the_stall_that_the_control_plane_sees(void **state)
{
	struct world *w = *state;

	for (unsigned i = 0; i < 2; i++) /* each on a QP of its own */
		read_start(w, client, 1 + i, 0);
	world_settle(w);
	silence(w);
	nic_pull(w);
	nic_complete(w, 0, DV_SYNDROME_RETRY_EXCEEDED);
	world_settle(w);
	client_expect(client, 1, OP_NIC_ERROR);
	assert_false(conn_of(w, 0)->stalled);
	assert_int_equal(shm_load(&handle[0]->stalled), 1);
	silence(w); /* the other one hangs on */
	assert_true(conn_of(w, 0)->stalled);
	assert_int_equal(shm_load(&handle[0]->stalled), 1);
	world_event(w, RAIL_CONN_BROKEN);
	nic_flush(w, handle[0]);
	world_settle(w);
	client_expect(client, 2, OP_PEER_DOWN);
	assert_nothing_left(w);
}

static void ops_beyond_the_share_of_their_connection_are_taken_when_it_makes_progress(void **state)
{
	struct world *w = *state;

	for (unsigned i = 0; i < OP_RING_SLOTS; i++)
		read_start(w, client, i, 0);
	world_settle(w);
	assert_true(w->rail->blocked);
	assert_int_equal(rail_in_flight(w->rail), SHARE);
	world_run(w);
	count_answers(client, OP_HIT, OP_RING_SLOTS);
	assert_nothing_left(w);
}

static void ops_beyond_the_share_of_their_connection_are_cancelled_when_the_rail_stops(void **state)
{
	struct world *w = *state;

	for (unsigned i = 0; i < OP_RING_SLOTS; i++)
		read_start(w, client, i, 0);
	world_settle(w);
	world_command(w, (struct rail_command){.kind = RAIL_STOP});
	world_settle(w);
	count_answers(client, OP_CANCELLED, OP_RING_SLOTS - SHARE);
	world_run(w);
	count_answers(client, OP_HIT, SHARE);
	assert_nothing_left(w);
}

static void several_silent_peers_leave_requests_for_the_others(void **state)
{
	struct world *w = *state;
	struct client *greedy[CONNS];

	for (unsigned i = 0; i < CONNS; i++) {
		greedy[i] = client_new(w, i, WORLD_SESSION);
		for (unsigned k = 0; k < OP_RING_SLOTS; k++)
			read_start(w, greedy[i], k, i);
	}
	world_settle(w);
	/* 16/81 = (2/3)^4 is the share of free requests that four full connections leave */
	assert_true(w->rail->runs_free >= RAIL_RUNS * 16 / 81 - CONNS);
	/*
	 * The READs of four connections fill the CQ until they stall; the op of another peer is
	 * taken nevertheless.
	 */
	get(w, other, 1, CONNS);
	world_settle(w);
	assert_int_equal(conn_of(w, CONNS)->runs_live, 1);
	while (rail_in_flight(w->rail))
		world_run(w);
	client_expect(other, 1, OP_HIT);
	for (unsigned i = 0; i < CONNS; i++) {
		count_answers(greedy[i], OP_HIT, OP_RING_SLOTS);
		client_free(greedy[i]);
	}
	assert_nothing_left(w);
}

/* ---- the CQ --------------------------------------------------------------------------------- */

/* Submits more READs than the QPs hold; the QPs together hold more than the CQ. */
static void fill(struct world *w)
{
	static_assert(CONNS * (CQ_DEPTH / 2) >= 2 * CQ_DEPTH, "the CQ is the bottleneck");
	for (unsigned k = 0; k < CQ_DEPTH / 2 + 44; k++)
		for (unsigned i = 0; i < CONNS; i++)
			read_start(w, client, i * CQ_DEPTH + k, i);
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->rail->wqes, CQ_DEPTH);
	assert_int_equal(w->wqes, CQ_DEPTH);
}

static void four_full_connections_that_all_fail_do_not_overrun_the_cq(void **state)
{
	struct world *w = *state;

	fill(w);
	while (rail_in_flight(w->rail)) {
		/* Each WQE gets a CQE, and the fake NIC fails the test if they overrun the CQ. A
		 * connection whose error is seen last gets further WQEs in the room that the
		 * others leave. */
		for (unsigned i = 0; i < CONNS; i++)
			nic_flush(w, handle[i]);
		world_settle(w);
	}
	for (unsigned i = 0; i < CONNS; i++)
		world_event(w, RAIL_CONN_BROKEN);
	assert_true(world_silent(w));
	count_answers(client, OP_PEER_DOWN, CONNS * (CQ_DEPTH / 2 + 44));
	assert_nothing_left(w);
}

static void four_full_connections_share_the_cq(void **state)
{
	struct world *w = *state;
	unsigned n = CONNS * (CQ_DEPTH / 2 + 44);

	fill(w);
	while (rail_in_flight(w->rail)) {
		nic_complete(w, 0, 0);
		world_settle(w);
		nic_pull(w);
		assert_true(w->rail->wqes <= CQ_DEPTH);
		assert_true(w->wqes <= w->rail->wqes);
	}
	count_answers(client, OP_HIT, n);
	assert_nothing_left(w);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(reads_of_a_silent_peer_leave_requests_for_other_clients),
		TEST(each_stall_of_a_connection_has_its_number),
		TEST(an_error_does_not_end_the_stall_that_the_control_plane_sees),
		TEST(ops_beyond_the_share_of_their_connection_are_taken_when_it_makes_progress),
		TEST(ops_beyond_the_share_of_their_connection_are_cancelled_when_the_rail_stops),
		TEST(several_silent_peers_leave_requests_for_the_others),
		TEST(four_full_connections_that_all_fail_do_not_overrun_the_cq),
		TEST(four_full_connections_share_the_cq),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
