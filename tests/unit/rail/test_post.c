/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How requests become WQEs: slices, scatter lists, the in-flight budget, full send queues, the
 * choice of the QP, signalled WQEs, and page heads read together.
 */
#include "tests/unit/rail/client_world.h"

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
	/* DV_SGES_MAX segments of the page share a WQE; one more WQE reads the head. */
	assert_int_equal(world_counter(w, COUNTER_wqes_posted),
		(SEGMENTS_MAX + DV_SGES_MAX - 1) / DV_SGES_MAX + 1);
}

static void segments_that_follow_each_other_share_a_data_segment(void **state)
{
	struct world *w = *state;
	struct op op = page_op(w, 1, 100, 30 * 512, 5);
	struct op_segment s[30];

	page_put(w, 100, 30 * 512, 5);
	op.generation = w->heads[100].generation;
	op.segments = 30;
	for (unsigned i = 0; i < 30; i++) /* there is a gap before number 10 */
		s[i] = home_at(1000 + i * 512 + (i >= 10), 512);
	client_submit(client, &op, s);
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->wqes, 1);
	assert_int_equal(w->wqe[0].sges, 2);
	assert_int_equal(w->wqe[0].sge[0].bytes, 10 * 512);
	world_run(w);
	client_expect(client, 1, OP_HIT);
	assert_memory_equal(w->home + 1000, w->pool + 100 * PAGE_UNIT, 10 * 512);
	assert_memory_equal(w->home + 6121, w->pool + 100 * PAGE_UNIT + (size_t)10 * 512, 20 * 512);
}

static void every_region_of_the_segments_is_held_until_the_answer(void **state)
{
	struct world *w = *state;
	struct rail_region other = {.id = 104,
		.session = WORLD_SESSION,
		.base = (uintptr_t)w->home + (4 << 20),
		.length = 1 << 20,
		.lkey = WORLD_LKEY};
	struct op op = page_op(w, 1, 100, 6 * 512, 5);
	struct op_segment s[6];

	page_put(w, 100, 6 * 512, 5);
	op.generation = w->heads[100].generation;
	op.segments = 6;
	world_command(w, (struct rail_command){.kind = RAIL_REGION_ADD, .region = other});
	for (unsigned i = 0; i < 6; i++) { /* the other region is the second one, and the last */
		s[i] = home_at(i * 1024, 512);
		if (i == 2 || i == 3 || i == 5)
			s[i].region = 104;
	}
	client_submit(client, &op, s);
	world_settle(w);
	world_command(
		w, (struct rail_command){.kind = RAIL_REGION_DROP, .region.id = WORLD_REGION});
	world_command(w, (struct rail_command){.kind = RAIL_REGION_DROP, .region.id = 104});
	world_settle(w);
	assert_true(world_silent(w));
	world_run(w);
	client_expect(client, 1, OP_HIT);
	assert_int_equal(world_event(w, RAIL_REGION_RETURNED).detail, WORLD_REGION);
	assert_int_equal(world_event(w, RAIL_REGION_RETURNED).detail, 104);
	assert_true(world_silent(w));
	for (unsigned i = 0; i < 6; i++)
		assert_memory_equal(w->home + s[i].offset + (s[i].region == 104 ? 4 << 20 : 0),
			w->pool + 100 * PAGE_UNIT + (size_t)i * 512, 512);
}

static void a_page_larger_than_the_budget_is_posted_slice_by_slice(void **state)
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
	/* only one op is in flight: the second op waits in its ring */
	assert_int_equal(rail_in_flight(w->rail), 1);
	for (unsigned i = 0; i < RAIL_IN_FLIGHT_BYTES / SLICE_BYTES; i++)
		/* the NIC has no WQE left, and half of the page is not posted yet */
		nic_complete(w, 0, 0);
	world_settle(w);
	nic_pull(w);
	assert_in_range(w->rail->posted_bytes, RAIL_IN_FLIGHT_BYTES, RUN_IN_FLIGHT_BYTES);
	while (w->wqes) {
		nic_complete(w, 0, 0);
		world_settle(w);
		nic_pull(w);
		assert_true(w->rail->posted_bytes <= RUN_IN_FLIGHT_BYTES);
	}
	world_run(w);
	assert_true(page_arrived(w, 16, length, 100));
	client_expect(client, 1, OP_HIT);
	client_expect(client, 2, OP_HIT);
}

static void a_slice_is_read_from_its_place_in_the_page(void **state)
{
	struct world *w = *state;
	uint32_t page = 3 * SLICE_BYTES + 100, length = SLICE_BYTES + 100;
	struct op_segment s[2] = {home_at(0, 1000), home_at(4096, length - 1000)};
	const uint8_t *from = w->pool + 100 * PAGE_UNIT + 2 * (size_t)SLICE_BYTES;
	struct op op;

	page_put(w, 100, page, 5);
	op = page_op(w, 1, 100, page, 5);
	op.slice = 2;
	op.length = length;
	for (op.segments = 1; op.segments <= 2; op.segments++) {
		memset(w->home, 0, 2 * SLICE_BYTES);
		s[0].length = op.segments == 1 ? length : 1000;
		client_submit(client, &op, s);
		world_run(w);
		client_expect(client, 1, OP_HIT);
		assert_memory_equal(w->home, from, 1000);
		if (op.segments == 2)
			assert_memory_equal(w->home + 4096, from + 1000, length - 1000);
		else
			assert_memory_equal(w->home, from, length);
	}
}

static void segments_that_slices_cut_are_read_to_their_place(void **state)
{
	struct world *w = *state;
	uint32_t part = SLICE_BYTES / 5 * 4, length = 5 * part;
	struct op_segment s[5];
	struct op op;

	page_put(w, 100, length, 5);
	op = page_op(w, 1, 100, length, 5);
	op.segments = 5;
	for (unsigned i = 0; i < 5; i++)
		s[i] = home_at((4 - i) * (part + 64), part);
	client_submit(client, &op, s);
	world_run(w);
	client_expect(client, 1, OP_HIT);
	for (unsigned i = 0; i < 5; i++)
		assert_memory_equal(
			w->home + s[i].offset, w->pool + 100 * PAGE_UNIT + (size_t)i * part, part);
}

/* A long page is posted in lots, so that a page of another channel is not behind all of it. */
static void long_pages_of_two_channels_take_turns(void **state)
{
	struct world *w = *state;
	uint32_t length = 2 * RAIL_IN_FLIGHT_BYTES, posted[2] = {0};
	uint64_t half = (uintptr_t)w->home + WORLD_HOME_BYTES / 2;
	struct client *second = client_new(w, 64, WORLD_SESSION);

	page_put(w, 16, length, 5);
	page_get(w, client, 1, 16, length, 5, 0);
	page_get(w, second, 2, 16, length, 5, WORLD_HOME_BYTES / 2);
	world_settle(w);
	nic_pull(w);
	for (unsigned i = 0; i < w->wqes; i++)
		posted[w->wqe[i].sge[0].address >= half] += w->wqe[i].bytes;
	assert_int_equal(posted[0], RAIL_IN_FLIGHT_BYTES / 2);
	assert_int_equal(posted[1], RAIL_IN_FLIGHT_BYTES / 2);
	world_run(w);
	client_expect(client, 1, OP_HIT);
	client_expect(second, 2, OP_HIT);
	client_free(second);
}

/*
 * Completes READs one by one, so that each step has room for one more, until `slices` were posted.
 * Returns how often they changed from one half of `home` to the other, and the first turn.
 */
static unsigned turns_of(struct world *w, unsigned slices)
{
	uint64_t half = (uintptr_t)w->home + WORLD_HOME_BYTES / 2;
	unsigned posted = 0, last = 2, turns = 0, pulled;

	while (posted < slices) {
		pulled = w->wqes;
		world_settle(w);
		nic_pull(w);
		for (unsigned i = pulled; i < w->wqes; i++) {
			unsigned to = w->wqe[i].sge[0].address >= half;

			if (w->wqe[i].rkey != WORLD_POOL_RKEY)
				continue;
			posted++;
			turns += to != last;
			last = to;
		}
		nic_complete(w, 0, 0);
	}
	return turns;
}

/* A lot lasts over steps, each of which posts one slice of it. */
static void long_pages_take_turns_while_the_budget_is_used_up(void **state)
{
	struct world *w = *state;
	uint32_t length = 2 * RAIL_IN_FLIGHT_BYTES, slices = 2 * (length / SLICE_BYTES);
	uint32_t lot = RAIL_LOT_BYTES / (SLICE_BYTES + RAIL_READ_CHARGE) + 1;
	struct client *second = client_new(w, 64, WORLD_SESSION);

	page_put(w, 16, length, 5);
	page_get(w, client, 1, 16, length, 5, 0);
	page_get(w, second, 2, 16, length, 5, WORLD_HOME_BYTES / 2);
	assert_int_equal(turns_of(w, slices), slices / lot);
	world_run(w);
	client_expect(client, 1, OP_HIT);
	client_expect(second, 2, OP_HIT);
	client_free(second);
}

static bool bucket_is_posted(const struct world *w)
{
	for (unsigned i = 0; i < w->wqes; i++)
		if (w->wqe[i].rkey == WORLD_SHARD_RKEY)
			return true;
	return false;
}

static void a_look_up_waits_for_one_lot_of_a_long_page_at_most(void **state)
{
	struct world *w = *state;
	uint32_t length = 4 * RAIL_IN_FLIGHT_BYTES;
	uint32_t lot = RAIL_LOT_BYTES / (SLICE_BYTES + RAIL_READ_CHARGE) + 1, steps = 0;
	struct client *second = client_new(w, 64, WORLD_SESSION);

	page_put(w, 16, length, 5);
	page_get(w, client, 1, 16, length, 5, 0);
	world_settle(w);
	nic_pull(w);
	bucket_get(w, second, 2, 5, WORLD_HOME_BYTES - sizeof(struct bucket));
	world_settle(w);
	nic_pull(w);
	while (!bucket_is_posted(w)) {
		assert_true(++steps <= lot);
		nic_complete(w, 0, 0);
		world_settle(w);
		nic_pull(w);
	}
	world_run(w);
	client_expect(client, 1, OP_HIT);
	client_expect(second, 2, OP_HIT);
	client_free(second);
}

static void more_ops_than_a_send_queue_holds_are_all_answered(void **state)
{
	struct world *w = *state;
	static bool seen[1000];
	struct op_done done;

	memset(seen, 0, sizeof(seen));
	for (unsigned i = 0; i < 1000; i++) {
		struct op_segment s[3] = {
			home_at(i * 96, 20), home_at(i * 96 + 32, 20), home_at(i * 96 + 64, 24)};
		struct op op;

		page_put(w, i, 64, i + 1);
		op = page_op(w, i, i, 64, i + 1);
		/* each WQE takes two WQEBBs: 1000 WQEs must fit 2 QPs of QP_DEPTH WQEBBs */
		op.segments = 3;
		client_submit(client, &op, s);
	}
	world_settle(w);
	/* no room for a WQE of DV_SGES_MAX segments */
	assert_true(dv_sq_room(handle->sq[0]) < dv_wqe_blocks(DV_SGES_MAX));
	assert_true(dv_sq_room(handle->sq[1]) < dv_wqe_blocks(DV_SGES_MAX));
	world_run(w);
	for (unsigned i = 0; i < 1000; i++) {
		assert_true(client_done(client, &done));
		assert_int_equal(done.status, OP_HIT);
		assert_false(seen[done.cookie]);
		seen[done.cookie] = true;
	}
	for (unsigned i = 0; i < 1000; i++) {
		const uint8_t *page = w->pool + (size_t)i * PAGE_UNIT;

		assert_memory_equal(w->home + i * 96, page, 20);
		assert_memory_equal(w->home + i * 96 + 32, page + 20, 20);
		assert_memory_equal(w->home + i * 96 + 64, page + 40, 24);
	}
}

/* ---- choice of the QP ---- */

/* Returns the number of WQEBBs outstanding on QP `q` of a connection. */
static unsigned queued(const struct rail_conn *on, unsigned q)
{
	return on->sq[q]->pi - on->sq[q]->ci;
}

/* Connects peer 4 with `qps` QPs; the tests below use it instead of peer 3, which has two. */
static struct rail_conn *conn_of(struct world *w, unsigned qps)
{
	struct rail_conn *new = rail_conn_new(w, 4, 44, qps);

	rail_conn_add(w, new);
	return new;
}

/* Submits a read of the page at `unit` of peer 4's pool. */
static void get_from(struct world *w, uint64_t cookie, uint32_t unit, uint32_t length)
{
	struct op op = page_op(w, cookie, unit, length, unit + 1);
	struct op_segment s = home_at(0, length);

	op.peer = 4;
	op.peer_ref = 44;
	client_submit(client, &op, &s);
}

static void small_reads_go_to_one_qp_until_its_signalled_wqe_then_to_the_shortest(void **state)
{
	struct world *w = *state;
	struct rail_conn *four = conn_of(w, 4);

	for (unsigned i = 0; i < 4 * RAIL_SIGNAL_WQES; i++)
		get_from(w, i, i, RAIL_SMALL_BYTES);
	world_settle(w);
	for (unsigned q = 0; q < 4; q++)
		assert_int_equal(queued(four, q), RAIL_SIGNAL_WQES);
	assert_int_equal(world_counter(w, COUNTER_doorbells), 4);
	nic_pull(w);
	/* the pages that one QP reads are adjacent in the peer's pool */
	for (unsigned i = 0; i < w->wqes; i++)
		assert_int_equal(w->wqe[i].remote % (RAIL_SIGNAL_WQES * PAGE_UNIT),
			(uintptr_t)(w->pool + i % RAIL_SIGNAL_WQES * PAGE_UNIT) %
				(RAIL_SIGNAL_WQES * PAGE_UNIT));
	world_run(w);
	rail_conn_free(w, four);
}

static void long_reads_never_use_the_last_qp_and_small_reads_avoid_qps_with_long_ones(void **state)
{
	const unsigned enough = RAIL_BULK_BYTES / 65536;

	for (unsigned qps = 2; qps <= 4; qps++) {
		struct world *w = *state;
		struct rail_conn *new = rail_conn_new(w, 4, 40 + qps, qps);
		struct op op = page_op(w, 1, 8, 6 * 65536, 9);
		struct op_segment s = home_at(0, 6 * 65536);

		rail_conn_add(w, new);
		op.peer = 4;
		op.peer_ref = 40 + qps;
		op.length = s.length = 65536;
		for (unsigned i = 0; i < enough + 4; i++)
			client_submit(client, &op, &s);
		op.length = s.length = RAIL_SMALL_BYTES;
		for (unsigned i = 0; i < 3 * RAIL_SIGNAL_WQES; i++)
			client_submit(client, &op, &s);
		world_settle(w);
		/*
		 * The first QP gets RAIL_BULK_BYTES of long READs before the next one gets any;
		 * with four QPs the third has none.
		 */
		assert_int_equal(queued(new, 0), qps == 2 ? enough + 4 : enough);
		assert_true(qps == 2 || queued(new, 1) == 4);
		assert_true(qps != 4 || queued(new, 2) == RAIL_SIGNAL_WQES);
		assert_int_equal(queued(new, qps - 1), (qps == 4 ? 2 : 3) * RAIL_SIGNAL_WQES);
		world_run(w);
		/* Without long READs in flight, small READs use all QPs equally. */
		for (unsigned i = 0; i < qps * RAIL_SIGNAL_WQES; i++)
			client_submit(client, &op, &s);
		world_settle(w);
		for (unsigned q = 0; q < qps; q++)
			assert_int_equal(queued(new, q), RAIL_SIGNAL_WQES);
		world_run(w);
		rail_conn_drop(w, new);
		world_settle(w);
		world_event(w, RAIL_CONN_RETURNED);
		rail_conn_free(w, new);
		while (ring_ready(&client->done) > 0)
			ring_release(&client->done, 1);
	}
}

static void heads_of_long_pages_do_not_wait_behind_long_pages(void **state)
{
	struct world *w = *state;
	struct rail_conn *three = conn_of(w, 3);
	unsigned heads = 0;

	get_from(w, 1, 0, 100000);
	world_settle(w);
	nic_pull(w);
	nic_complete(w, 0, 0);
	for (unsigned i = 0; i < 8; i++)
		get_from(w, 2 + i, 64 + 32 * i, 100000);
	world_settle(w);
	nic_pull(w);
	for (unsigned i = 0; i < w->wqes; i++) {
		bool last = &w->wqe[i].qp->stub.sq == three->sq[2];

		assert_int_equal(w->wqe[i].rkey == WORLD_HEADS_RKEY, last);
		heads += last;
	}
	assert_int_equal(heads, 1);
	world_run(w);
	rail_conn_free(w, three);
}

/* ---- signalled WQEs ---- */

static void every_eighth_small_read_and_the_last_before_a_doorbell_request_a_cqe(void **state)
{
	struct world *w = *state;
	struct rail_conn *one = conn_of(w, 1);
	unsigned n = 2 * RAIL_SIGNAL_WQES + 3;

	for (unsigned i = 0; i < n; i++)
		get_from(w, i, i, 100);
	rail_step(w->rail, 0);
	get_from(w, n, n, 100);
	rail_step(w->rail, 0);
	nic_pull(w);
	assert_int_equal(w->wqes, n + 1);
	for (unsigned i = 0; i <= n; i++)
		assert_int_equal(
			w->wqe[i].flags, i % RAIL_SIGNAL_WQES == RAIL_SIGNAL_WQES - 1 || i >= n - 1
						 ? DV_CE_ALWAYS
						 : DV_CE_ERROR_ONLY);
	world_run(w);
	rail_conn_free(w, one);
}

static void every_long_read_requests_a_cqe(void **state)
{
	struct world *w = *state;
	struct rail_conn *one = conn_of(w, 1);

	for (unsigned i = 0; i < 4; i++)
		get_from(w, i, i * 32, RAIL_SIGNAL_BYTES);
	for (unsigned i = 0; i < 4; i++)
		get_from(w, i, i * 32, RAIL_SIGNAL_BYTES / 2);
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->wqes, 8);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(w->wqe[i].flags, i < 4 || i % 2 ? DV_CE_ALWAYS : DV_CE_ERROR_ONLY);
	world_run(w);
	rail_conn_free(w, one);
}

/* ---- page heads read together ---- */

/*
 * Reads pages at these units, whose payloads all complete before any head is posted. Returns the
 * number of READs that are posted for the heads.
 */
static unsigned heads_of(struct world *w, const uint32_t *units, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		page_put(w, units[i], 100, units[i] + 1);
		get_from(w, i, units[i], 100);
	}
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->wqes, n);
	while (w->wqes)
		nic_complete(w, 0, 0);
	world_settle(w);
	nic_pull(w);
	return w->wqes;
}

static void the_head_of_each_lone_page_is_read_by_itself(void **state)
{
	static const uint32_t units[] = {10, 11, 10 + RUN_HEADS_GAP, 5, 5, 6};
	struct world *w = *state;
	struct rail_conn *one = conn_of(w, 1);

	assert_int_equal(heads_of(w, units, 6), 6);
	for (unsigned i = 0; i < 6; i++) {
		assert_int_equal(w->wqe[i].remote, (uintptr_t)&w->heads[units[i]]);
		assert_int_equal(w->wqe[i].bytes, sizeof(struct page_head));
	}
	world_run(w);
	for (unsigned i = 0; i < 6; i++)
		client_expect(client, i, OP_HIT);
	rail_conn_free(w, one);
}

static void heads_of_two_pools_are_read_separately(void **state)
{
	struct world *w = *state;
	struct rail_conn *one = rail_conn_new(w, 4, 44, 1);
	struct page_key key = {{12, ~12ull}};
	struct op op = page_op(w, 2, 11, 100, 12);
	struct op_segment s = home_at(4096, 100);

	one->region[REGION_POOL_0 + 1] = one->region[REGION_POOL_0];
	one->region[REGION_HEADS_0 + 1] = one->region[REGION_HEADS_0];
	one->region[REGION_HEADS_0 + 1].base += 100 * sizeof(struct page_head);
	one->region[REGION_HEADS_0 + 1].length -= 100 * sizeof(struct page_head);
	page_head_publish(&w->heads[111], &key, 100);
	page_put(w, 10, 100, 11);
	rail_conn_add(w, one);
	get_from(w, 1, 10, 100);
	op.peer = 4;
	op.peer_ref = 44;
	op.region = REGION_POOL_0 + 1;
	client_submit(client, &op, &s);
	world_run(w);
	client_expect(client, 1, OP_HIT);
	client_expect(client, 2, OP_HIT);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), 4);
	rail_conn_free(w, one);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_page_is_scattered_over_all_its_segments),
		TEST(segments_that_follow_each_other_share_a_data_segment),
		TEST(every_region_of_the_segments_is_held_until_the_answer),
		TEST(a_page_larger_than_the_budget_is_posted_slice_by_slice),
		TEST(a_slice_is_read_from_its_place_in_the_page),
		TEST(segments_that_slices_cut_are_read_to_their_place),
		TEST(long_pages_of_two_channels_take_turns),
		TEST(long_pages_take_turns_while_the_budget_is_used_up),
		TEST(a_look_up_waits_for_one_lot_of_a_long_page_at_most),
		TEST(more_ops_than_a_send_queue_holds_are_all_answered),
		TEST(small_reads_go_to_one_qp_until_its_signalled_wqe_then_to_the_shortest),
		TEST(long_reads_never_use_the_last_qp_and_small_reads_avoid_qps_with_long_ones),
		TEST(heads_of_long_pages_do_not_wait_behind_long_pages),
		TEST(every_eighth_small_read_and_the_last_before_a_doorbell_request_a_cqe),
		TEST(every_long_read_requests_a_cqe),
		TEST(the_head_of_each_lone_page_is_read_by_itself),
		TEST(heads_of_two_pools_are_read_separately),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
