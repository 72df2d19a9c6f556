/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lanes share: the rail's requests and its CQ. A peer that answers nothing leaves room for the
 * others before its lane counts as stalled, and no number of full lanes overruns the CQ.
 */
#include "tests/unit/rail/world.h"

#define MS 1000000ull
#define LANES 4u
#define SHARE (RAIL_REQUESTS / 3 + 1) /* requests that one lane gets */

static struct client *client, *other;
static struct rail_peer *peer[LANES + 1];

static int setup(void **state)
{
	struct world *w;

	world_setup(state);
	w = *state;
	client = client_new(w, 63, WORLD_SESSION);
	other = client_new(w, 64, WORLD_SESSION);
	for (unsigned i = 0; i <= LANES; i++) {
		peer[i] = peer_new(w, (uint16_t)i, 33, QPS_PER_PEER_MAX);
		peer_add(w, peer[i]);
	}
	page_put(w, 8, 8192, 77);
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	for (unsigned i = 0; i <= LANES; i++)
		peer_free(w, peer[i]);
	client_free(client);
	client_free(other);
	return world_teardown(state);
}

static struct lane *lane_of(const struct world *w, unsigned number)
{
	return w->rail->peer[number].lane;
}

static void look_up(struct world *w, struct client *from, uint64_t cookie, unsigned number)
{
	struct op op = page_op(w, cookie, 8, sizeof(struct bucket), 77);
	struct op_segment s = home_at(0, op.length);

	op.kind = OP_READ;
	op.region = REGION_SHARD;
	op.offset = 0;
	op.peer = (uint8_t)number;
	client_submit(from, &op, &s);
}

static void get(struct world *w, struct client *from, uint64_t cookie, unsigned number)
{
	struct op op = page_op(w, cookie, 8, 8192, 77);
	struct op_segment s = home_at(8192, 8192);

	op.peer = (uint8_t)number;
	client_submit(from, &op, &s);
}

/* Completes what was posted to this peer, and nothing else, until nothing moves. */
static void serve(struct world *w, const struct rail_peer *only)
{
	unsigned n;

	do {
		world_settle(w);
		nic_pull(w);
		n = 0;
		for (unsigned i = 0; i < w->wqes; i++)
			for (unsigned q = 0; q < only->qps; q++)
				if (&w->wqe[i].qp->sq == only->sq[q]) {
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

static void nothing_is_left(const struct world *w)
{
	assert_int_equal(rail_in_flight(w->rail), 0);
	assert_int_equal(w->rail->wqes, 0);
	assert_int_equal(w->rail->parked, 0);
	assert_int_equal(w->rail->taken_bytes, 0);
	assert_int_equal(w->rail->posted_bytes, 0);
	assert_int_equal(w->rail->requests_free, RAIL_REQUESTS);
}

/* ---- requests ------------------------------------------------------------------------------- */

static void look_ups_to_a_mute_peer_do_not_take_the_requests_of_other_clients(void **state)
{
	struct world *w = *state;

	for (unsigned i = 0; i < OP_RING_SLOTS; i++)
		look_up(w, client, i, 0);
	world_settle(w);
	get(w, other, 1, 1);
	serve(w, peer[1]); /* no time passes: the lane of the mute peer is as good as any */
	client_expect(other, 1, OP_HIT);
	assert_int_equal(lane_of(w, 0)->requests, SHARE);
	/* Stalled, it keeps its share; what waits in the ring for more of it ends at once. */
	for (unsigned ms = 0; ms < 40; ms += 5) {
		clock_test_set(w->now_ns += 5 * MS);
		world_settle(w);
	}
	assert_true(lane_of(w, 0)->stalled);
	count_answers(client, OP_PEER_DOWN, OP_RING_SLOTS - SHARE);
	get(w, other, 2, 1);
	serve(w, peer[1]);
	client_expect(other, 2, OP_HIT);
	world_run(w); /* the mute peer answers after all */
	count_answers(client, OP_HIT, SHARE);
	nothing_is_left(w);
}

static void look_ups_that_wait_for_their_lane_are_taken_when_it_moves(void **state)
{
	struct world *w = *state;

	for (unsigned i = 0; i < OP_RING_SLOTS; i++)
		look_up(w, client, i, 0);
	world_settle(w);
	assert_true(w->rail->blocked);
	assert_int_equal(rail_in_flight(w->rail), SHARE);
	world_run(w);
	count_answers(client, OP_HIT, OP_RING_SLOTS);
	nothing_is_left(w);
}

static void look_ups_that_wait_for_their_lane_are_cancelled_when_the_rail_stops(void **state)
{
	struct world *w = *state;

	for (unsigned i = 0; i < OP_RING_SLOTS; i++)
		look_up(w, client, i, 0);
	world_settle(w);
	world_tell(w, (struct rail_command){.kind = RAIL_STOP});
	world_settle(w);
	count_answers(client, OP_CANCELLED, OP_RING_SLOTS - SHARE);
	world_run(w);
	count_answers(client, OP_HIT, SHARE);
	nothing_is_left(w);
}

static void several_mute_peers_leave_the_others_some_requests(void **state)
{
	struct world *w = *state;
	struct client *greedy[LANES];

	for (unsigned i = 0; i < LANES; i++) {
		greedy[i] = client_new(w, i, WORLD_SESSION);
		for (unsigned k = 0; k < OP_RING_SLOTS; k++)
			look_up(w, greedy[i], k, i);
	}
	world_settle(w);
	assert_true(w->rail->requests_free >= RAIL_REQUESTS * 16 / 81 - LANES); /* (2/3)^4 */
	/* The CQ is theirs until they stall; a request is taken all the same. */
	get(w, other, 1, LANES);
	world_settle(w);
	assert_int_equal(lane_of(w, LANES)->requests, 1);
	while (rail_in_flight(w->rail))
		world_run(w);
	client_expect(other, 1, OP_HIT);
	for (unsigned i = 0; i < LANES; i++) {
		count_answers(greedy[i], OP_HIT, OP_RING_SLOTS);
		client_free(greedy[i]);
	}
	nothing_is_left(w);
}

/* ---- the CQ --------------------------------------------------------------------------------- */

/* More than their queues hold, and their queues hold more than the CQ. */
static void fill(struct world *w)
{
	static_assert(LANES * (CQ_DEPTH / 2) >= 2 * CQ_DEPTH, "the CQ is what is short");
	for (unsigned k = 0; k < CQ_DEPTH / 2 + 44; k++)
		for (unsigned i = 0; i < LANES; i++)
			look_up(w, client, i * CQ_DEPTH + k, i);
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->rail->wqes, CQ_DEPTH);
	assert_int_equal(w->wqes, CQ_DEPTH);
}

static void four_full_lanes_that_all_fail_do_not_overrun_the_cq(void **state)
{
	struct world *w = *state;

	fill(w);
	while (rail_in_flight(w->rail)) {
		/* A CQE for each WQE; the NIC fails the test when they overrun the CQ. A lane that
		 * hears of its error last is posted to in the room that the others leave. */
		for (unsigned i = 0; i < LANES; i++)
			nic_flush(w, peer[i]);
		world_settle(w);
	}
	for (unsigned i = 0; i < LANES; i++)
		world_hear(w, RAIL_PEER_BROKEN);
	assert_true(world_silent(w));
	count_answers(client, OP_PEER_DOWN, LANES * (CQ_DEPTH / 2 + 44));
	nothing_is_left(w);
}

static void four_full_lanes_take_turns_in_the_cq(void **state)
{
	struct world *w = *state;
	unsigned n = LANES * (CQ_DEPTH / 2 + 44);

	fill(w);
	while (rail_in_flight(w->rail)) {
		nic_complete(w, 0, 0);
		world_settle(w);
		nic_pull(w);
		assert_true(w->rail->wqes <= CQ_DEPTH);
		assert_true(w->wqes <= w->rail->wqes);
	}
	count_answers(client, OP_HIT, n);
	nothing_is_left(w);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(look_ups_to_a_mute_peer_do_not_take_the_requests_of_other_clients),
		TEST(look_ups_that_wait_for_their_lane_are_taken_when_it_moves),
		TEST(look_ups_that_wait_for_their_lane_are_cancelled_when_the_rail_stops),
		TEST(several_mute_peers_leave_the_others_some_requests),
		TEST(four_full_lanes_that_all_fail_do_not_overrun_the_cq),
		TEST(four_full_lanes_take_turns_in_the_cq),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
