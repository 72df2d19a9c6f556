/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a series and its READs end (run_post.c): at gaps in the pool or the destination, at the
 * budgets, at the room of queue pair and CQ. What becomes of a series is in test_series.c.
 */
#include "tests/unit/rail/lease_world.h"

/* The pages of the payload READs that the NIC has, in the order of their destinations. */
static unsigned payload(const struct world *w, uint32_t ret_pages[RUN_PAGES_MAX], uint32_t bytes)
{
	const struct fake_wqe *read[RUN_PAGES_MAX];
	unsigned n = 0;

	for (unsigned i = 0; i < w->wqes; i++) {
		unsigned at = n;

		if (w->wqe[i].rkey != WORLD_POOL_RKEY)
			continue;
		for (; at && read[at - 1]->sge[0].address > w->wqe[i].sge[0].address; at--)
			read[at] = read[at - 1];
		read[at] = &w->wqe[i];
		n++;
	}
	for (unsigned i = 0; i < n; i++)
		ret_pages[i] = read[i]->bytes / bytes;
	return n;
}

static void a_read_ends_where_the_pool_or_the_destination_has_a_gap(void **state)
{
	static const uint32_t expected[] = {5, 1, 3, 2, 1};
	uint32_t got[RUN_PAGES_MAX];
	struct world *w = *state;

	for (uint32_t bytes = 4096; bytes <= 16384; bytes *= 4) {
		uint32_t units = bytes / PAGE_UNIT;
		struct draft d;

		pages_put(w, 64, units, 16, bytes);
		d = draft_of(w, bytes, 64, units, 12, bytes);
		d.entry[5] = entry_at(w, 64 + 15 * units, 5 * bytes); /* elsewhere in the pool */
		for (unsigned i = 9; i < 12; i++)                     /* elsewhere here */
			d.entry[i].to += 4096;
		d.entry[11] = entry_at(w, 64 + 5 * units, d.entry[11].to); /* a unit before */
		draft_submit(client, &d);
		post(w);
		assert_int_equal(payload(w, got, bytes), 5);
		assert_memory_equal(got, expected, sizeof(expected));
		world_run(w);
		run_expect(client, bytes, 0xfff, 0, OP_HIT);
		assert_arrived(w, &d);
	}
	assert_int_equal(expired(w), 0);
	assert_runs_free(w);
}

/* Pages that end inside a unit: the next page does not begin where they end. */
static void pages_of_broken_units_share_no_read(void **state)
{
	struct world *w = *state;
	uint32_t got[RUN_PAGES_MAX];
	struct draft d;

	pages_put(w, 64, 2, 4, 9000); /* they overlap, as only a hostile peer has them */
	d = draft_of(w, 1, 64, 2, 4, 9000);
	draft_submit(client, &d);
	post(w);
	assert_int_equal(payload(w, got, 9000), 4);
	world_run(w);
	run_expect(client, 1, 0xf, 0, OP_HIT);
	assert_arrived(w, &d);
}

static void without_landing_blocks_pages_are_read_one_by_one(void **state)
{
	struct world *w = *state;
	uint32_t got[RUN_PAGES_MAX];
	struct draft d;

	for (unsigned i = 0; i < 3; i++) {
		unsigned blocks = i % 2;

		/* by tail only heads are read one by one */
		w->rail->peer[3].conn->limbo_ns = i < 2 ? LIMBO : 0;
		w->rail->landings_free = blocks;
		d = submit_pages(w, 1, 64, 32, 4, 131072);
		post(w);
		assert_int_equal(payload(w, got, 131072), i < 2 ? 4 : 2);
		complete_some(w, w->wqes);
		post(w);
		assert_int_equal(w->wqes, i < 2 ? 0 : 4);
		world_run(w);
		assert_int_equal(w->rail->landings_free, blocks);
		w->rail->landings_free = RAIL_LANDINGS;
		run_expect(client, 1, 0xf, 0, OP_HIT);
		assert_arrived(w, &d);
	}
	assert_runs_free(w);
}

/* Series end at the budget of bytes in flight, and at what one QP takes of long READs. */
static void series_stay_within_the_budgets(void **state)
{
	static const uint32_t sizes[] = {4096, 16384, 65536, 102400, 131072, 200704, 262144};
	struct world *w = *state;

	for (unsigned i = 0; i < 4 * sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint32_t bytes = sizes[i / 4], stride = bytes / PAGE_UNIT + i % 2;
		unsigned n = 12 * 262144 / bytes < 32 ? 12 * 262144 / bytes : 32;

		w->rail->peer[3].conn->limbo_ns = i & 2 ? LIMBO : 0;
		submit_pages(w, i, 0, stride, n, bytes);
		for (post(w); w->wqes; post(w)) {
			const struct conn *conn = w->rail->peer[3].conn;

			assert_in_range(w->rail->posted_bytes, 0, RUN_IN_FLIGHT_BYTES);
			for (unsigned q = 0; q < handle->qps; q++)
				assert_in_range(conn->qp[q].bulk_bytes, 0, RAIL_BULK_BYTES);
			complete_some(w, 1);
		}
		run_expect(client, i, run_mask(0, n), 0, OP_HIT);
		for (unsigned q = 0; q < handle->qps; q++)
			assert_int_equal(w->rail->peer[3].conn->qp[q].bulk_bytes, 0);
	}
	assert_int_equal(expired(w), 0);
	assert_runs_free(w);
}

/* A queue pair that is the only one for long READs gets whole series, not READ after READ. */
static void series_do_not_shrink_when_the_only_queue_pair_is_full(void **state)
{
	struct world *w = *state;
	unsigned signalled = 0;

	submit_pages(w, 1, 0, 33, 8, 131072);
	post(w);
	assert_int_equal(w->wqes, 16);
	assert_int_equal(w->rail->peer[3].conn->qp[0].bulk_bytes, 2 * RAIL_BULK_BYTES);
	for (unsigned i = 0; i < w->wqes; i++)
		signalled += !!(w->wqe[i].flags & DV_CE_ALWAYS);
	assert_int_equal(signalled, 2);
	assert_int_equal(w->rail->run[0].outstanding, 2);
	world_run(w);
	run_expect(client, 1, 0xff, 0, OP_HIT);
	assert_runs_free(w);
}

/* Pairs of several connections fill the CQ, and the fake NIC checks that it has room. */
static void pairs_of_several_connections_fit_the_cq(void **state)
{
	struct rail_conn *other[2];
	struct world *w = *state;

	for (unsigned i = 0; i < 2; i++) {
		other[i] = rail_conn_new(w, (uint16_t)(10 + i), 100 + i, 4);
		other[i]->limbo_ns = LIMBO;
		rail_conn_add(w, other[i]);
	}
	world_settle(w);
	pages_put(w, 0, 16, 32, 4096);
	for (unsigned i = 0; i < 17; i++) { /* a short one, then more than there is room for */
		struct draft d = draft_of(w, i, 0, 16, i ? 32 : 5, 4096);

		if (i) {
			d.run.peer = other[i % 2]->peer;
			d.run.peer_ref = other[i % 2]->ref;
		}
		draft_submit(client, &d);
	}
	post(w);
	assert_in_range(w->rail->wqes, CQ_DEPTH - 8, CQ_DEPTH);
	world_run(w);
	for (unsigned i = 0; i < 17; i++) {
		struct run_done done;

		assert_true(client_run_done(client, &done));
		assert_int_equal(done.hit, done.cookie ? UINT32_MAX : 0x1f);
	}
	for (unsigned i = 0; i < 2; i++) {
		rail_conn_drop(w, other[i]);
		world_settle(w);
		world_event(w, RAIL_CONN_RETURNED);
		rail_conn_free(w, other[i]);
	}
	assert_runs_free(w);
}

/* Runs of one channel do not take turns: the first one is answered before the second one begins. */
static void runs_of_one_channel_are_posted_in_their_order(void **state)
{
	uint64_t half = (uintptr_t)((struct world *)*state)->home + WORLD_HOME_BYTES / 2;
	struct world *w = *state;
	unsigned first = 0, second = 0;

	pages_put(w, 0, 33, 12, 131072);
	for (unsigned i = 0; i < 2; i++) {
		struct draft d = draft_of(w, i, 0, 33, 12, 131072);

		for (unsigned j = 0; i && j < 12; j++)
			d.entry[j].to += WORLD_HOME_BYTES / 2;
		draft_submit(client, &d);
	}
	for (post(w); w->wqes; post(w)) {
		for (unsigned i = 0; i < w->wqes; i++)
			if (w->wqe[i].rkey == WORLD_POOL_RKEY) {
				first += w->wqe[i].sge[0].address < half;
				second += w->wqe[i].sge[0].address >= half;
			}
		assert_true(first == 12 || !second);
		/* All that was posted is charged, so that another channel would be next. */
		assert_true(w->rail->channel[CLIENT_NUMBER].lots_end >=
			    (uint64_t)(first + second) * 131072);
		complete_some(w, w->wqes);
	}
	assert_int_equal(second, 12);
	run_expect(client, 0, 0xfff, 0, OP_HIT);
	run_expect(client, 1, 0xfff, 0, OP_HIT);
	assert_runs_free(w);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_read_ends_where_the_pool_or_the_destination_has_a_gap),
		TEST(pages_of_broken_units_share_no_read),
		TEST(without_landing_blocks_pages_are_read_one_by_one),
		TEST(series_stay_within_the_budgets),
		cmocka_unit_test_setup_teardown(
			series_do_not_shrink_when_the_only_queue_pair_is_full, setup_one_qp,
			teardown),
		TEST(pairs_of_several_connections_fit_the_cq),
		TEST(runs_of_one_channel_are_posted_in_their_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
