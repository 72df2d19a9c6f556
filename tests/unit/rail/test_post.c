/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How requests become WQEs: pieces, scatter lists, the wire's budget, queues that are full.
 */
#include "tests/unit/rail/world.h"

static struct client *client;
static struct rail_peer *peer;

static int setup(void **state)
{
	struct world *w;

	world_setup(state);
	w = *state;
	client = client_new(w, 5, WORLD_SESSION);
	peer = peer_new(w, 3, 33, 2);
	peer_add(w, peer);
	world_settle(w);
	page_put(w, 8, 8192, 77);
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	peer_free(w, peer);
	client_free(client);
	return world_teardown(state);
}

static void a_page_is_scattered_over_all_its_segments(void **state)
{
	struct world *w = *state;
	static struct op_segment s[SEGMENTS_MAX];
	uint32_t length = 0;
	struct op op;

	for (unsigned i = 0; i < SEGMENTS_MAX; i++) {
		s[i] = home_at((SEGMENTS_MAX - 1 - i) * 4096 + i, 1 + (i * 37) % 4000);
		length += s[i].length;
	}
	page_put(w, 100, length, 5);
	op = page_op(w, 1, 100, length, 5);
	op.segments = SEGMENTS_MAX;
	client_submit(client, &op, s);
	world_run(w);
	client_expect(client, 1, OP_HIT);
	length = 0;
	for (unsigned i = 0; i < SEGMENTS_MAX; i++) {
		assert_memory_equal(
			w->home + s[i].offset, w->pool + 100 * PAGE_UNIT + length, s[i].length);
		length += s[i].length;
	}
	/* Three segments share a WQE; one more reads the head. */
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), (SEGMENTS_MAX + 2) / 3 + 1);
	assert_int_equal(w->rail->blocks_free, REQUEST_BLOCKS - RAIL_REQUESTS);
}

static void a_page_larger_than_the_budget_goes_in_pieces(void **state)
{
	struct world *w = *state;
	uint32_t length = 2 * RAIL_IN_FLIGHT_BYTES + 12345;
	struct op op = page_op(w, 1, 16, length, 5);
	struct op_segment s = home_at(100, length);

	page_put(w, 16, length, 5);
	op.generation = w->heads[16].generation;
	client_submit(client, &op, &s);
	page_get(w, client, 2, 8, 8192, 77, 7 << 20);
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->wqes, RAIL_IN_FLIGHT_BYTES / SLICE_BYTES);
	assert_int_equal(w->rail->posted_bytes, RAIL_IN_FLIGHT_BYTES);
	assert_int_equal(rail_in_flight(w->rail), 1); /* the second one waits in its ring */
	for (unsigned i = 0; i < RAIL_IN_FLIGHT_BYTES / SLICE_BYTES; i++)
		nic_complete(w, 0, 0); /* nothing of it is with the NIC, and half is still to go */
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->rail->posted_bytes, RAIL_IN_FLIGHT_BYTES);
	while (w->wqes) {
		nic_complete(w, 0, 0);
		world_settle(w);
		nic_pull(w);
		assert_true(w->rail->posted_bytes <= RAIL_IN_FLIGHT_BYTES);
	}
	world_run(w);
	assert_true(page_arrived(w, 16, length, 100));
	client_expect(client, 1, OP_HIT);
	client_expect(client, 2, OP_HIT);
}

static void more_ops_than_a_send_queue_holds_all_get_their_answers(void **state)
{
	struct world *w = *state;
	struct op op = page_op(w, 0, 0, 64, 0);
	static bool seen[1000];
	struct op_done done;

	memset(seen, 0, sizeof(seen));
	op.kind = OP_READ;
	op.region = REGION_SHARD;
	for (unsigned i = 0; i < 1000; i++) {
		struct op_segment s[3] = {
			home_at(i * 64, 20), home_at(i * 64 + 20, 20), home_at(i * 64 + 40, 24)};

		op.cookie = i;
		op.offset = i * 64;
		op.segments = 3; /* two blocks a WQE: 1000 of them in 2 queues of 512 blocks */
		client_submit(client, &op, s);
	}
	world_settle(w);
	assert_int_equal(dv_sq_room(peer->sq[0]), 0);
	assert_int_equal(dv_sq_room(peer->sq[1]), 0);
	world_run(w);
	for (unsigned i = 0; i < 1000; i++) {
		assert_true(client_done(client, &done));
		assert_int_equal(done.status, OP_HIT);
		assert_false(seen[done.cookie]);
		seen[done.cookie] = true;
	}
	assert_memory_equal(w->home, w->shard, 64000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_page_is_scattered_over_all_its_segments),
		TEST(a_page_larger_than_the_budget_goes_in_pieces),
		TEST(more_ops_than_a_send_queue_holds_all_get_their_answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
