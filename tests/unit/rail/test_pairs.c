/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Series of pairs (run_pair.c): a series has one record and one CQE, whatever ends it. What its
 * pages share and what happens to each of them when a READ in the middle fails.
 */
#include "tests/unit/rail/lease_world.h"

static const struct shape {
	uint32_t stride, n, bytes;
	unsigned wqes, pages_per_pair;
} shapes[] = {
	{16, 8, 4096, 16, 1},  /* one series of eight pairs; heads in the place of the run */
	{32, 4, 131072, 4, 2}, /* two pairs of joined pages; heads in landing blocks */
	{16, 8, 65536, 4, 4},  /* the same, of four pages each */
	{1, 16, 4096, 2, 16},  /* one pair; heads side by side */
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* The rail gets a new connection in place of the one that broke. */
static void reconnect(struct world *w)
{
	world_hear(w, RAIL_PEER_BROKEN);
	peer_drop(w, peer);
	world_settle(w);
	world_hear(w, RAIL_PEER_RETURNED);
	for (unsigned q = 0; q < peer->qps; q++)
		container_of(peer->sq[q], struct fake_qp, sq)->error = false;
	peer_add(w, peer);
	world_settle(w);
}

/* WQE `k` of a run fails. `all_cqes`: each READ behind it is reported as flushed, else the last. */
static void fail_at(struct world *w, const struct shape *s, unsigned k, bool all_cqes)
{
	uint32_t hit = run_mask(0, k / 2 * s->pages_per_pair), qpn;
	uint16_t last;

	submit_pages(w, 100 + k, 64, s->stride, s->n, s->bytes);
	post(w);
	assert_int_equal(w->wqes, s->wqes);
	complete_some(w, k);
	qpn = w->wqe[w->wqes - 1].qp->sq.qpn;
	last = (uint16_t)w->wqe[w->wqes - 1].index;
	nic_complete(w, 0, DV_SYNDROME_REMOTE_ACCESS);
	world_settle(w);
	if (w->wqes) /* the NIC still holds READs of the run */
		assert_no_answer(client);
	if (w->wqes && !all_cqes) {
		w->wqes = 0;
		nic_cqe(qpn, last, DV_SYNDROME_FLUSHED);
	}
	while (w->wqes)
		nic_complete(w, 0, DV_SYNDROME_FLUSHED);
	world_settle(w);
	run_expect(client, 100 + k, hit, 0, OP_NIC_ERROR);
	reconnect(w);
	assert_runs_free(w);
}

static void an_error_at_any_read_keeps_the_pairs_before_it(void **state)
{
	struct world *w = *state;

	for (unsigned i = 0; i < SHAPES; i++)
		for (unsigned k = 0; k < shapes[i].wqes; k++) {
			fail_at(w, &shapes[i], k, true);
			fail_at(w, &shapes[i], k, false);
		}
}

/* Only the last READ of a series requests a CQE. One for any other READ proves nothing. */
static void a_cqe_inside_a_series_is_an_error_of_the_device(void **state)
{
	struct world *w = *state;
	unsigned wqes;

	submit_pages(w, 1, 64, 16, 8, 4096);
	post(w);
	wqes = w->wqes;
	for (unsigned k = 0; k + 1 < wqes; k++) {
		nic_cqe(w->wqe[k].qp->sq.qpn, (uint16_t)w->wqe[k].index, 0);
		world_settle(w);
		assert_no_answer(client);
		assert_int_equal(world_counter(w, COUNTER_cqes_error), k + 1);
	}
	world_run(w);
	run_expect(client, 1, 0xff, 0, OP_HIT);
	assert_runs_free(w);
}

/* The record of a series that has retired is not used again, also when the queue has wrapped. */
static void a_second_cqe_of_a_series_is_an_error_of_the_device(void **state)
{
	struct world *w = *state;

	for (unsigned i = 1; i <= 2 * QP_DEPTH / 16; i++) {
		uint32_t qpn;
		uint16_t last;

		submit_pages(w, i, 64, 16, 8, 4096);
		post(w);
		qpn = w->wqe[15].qp->sq.qpn;
		last = (uint16_t)w->wqe[15].index;
		world_run(w);
		run_expect(client, i, 0xff, 0, OP_HIT);
		nic_cqe(qpn, last, 0);
		world_settle(w);
		assert_int_equal(world_counter(w, COUNTER_cqes_error), i);
		assert_runs_free(w);
	}
}

static void a_stalled_connection_counts_again_when_a_series_completes(void **state)
{
	struct world *w = *state;
	const struct lane *lane = w->rail->peer[3].lane;

	submit_pages(w, 1, 64, 16, 8, 4096);
	post(w);
	pass(w, 40);
	assert_true(lane->stalled);
	assert_int_equal(w->rail->posted_bytes, 0);
	complete_some(w, w->wqes);
	world_settle(w);
	assert_false(lane->stalled);
	world_run(w); /* the lease has expired: the heads are read again */
	run_expect(client, 1, 0xff, 0, OP_HIT);
	assert_runs_free(w);
}

static void a_dropped_connection_is_returned_with_the_last_series(void **state)
{
	struct world *w = *state;

	submit_pages(w, 1, 64, 16, 8, 4096);
	post(w);
	peer_drop(w, peer);
	world_settle(w);
	assert_true(world_silent(w));
	complete_some(w, w->wqes);
	world_settle(w);
	world_hear(w, RAIL_PEER_RETURNED);
	run_expect(client, 1, 0xff, 0, OP_HIT);
	assert_runs_free(w);
	peer_add(w, peer);
	world_settle(w);
}

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

/* Each page of a pair is validated by its own head, wherever that head arrives. */
static void every_page_of_a_series_is_validated_by_its_own_head(void **state)
{
	struct world *w = *state;

	for (unsigned i = 0; i < SHAPES; i++)
		for (unsigned page = 0; page < shapes[i].n; page++)
			for (unsigned word = 0; word < 4; word++) {
				const struct shape *s = &shapes[i];
				struct draft d =
					submit_pages(w, page, 64, s->stride, s->n, s->bytes);
				struct page_head *head = &w->heads[d.entry[page].unit];

				head->key.word[0] ^= word == 0 ? 1ull << 63 : 0;
				head->key.word[1] ^= word == 1 ? 1 : 0;
				head->generation += word == 2;
				head->length ^= word == 3 ? 1u << 31 : 0;
				assert_int_equal(round_trips(w), 1);
				run_expect(client, page, run_mask(0, s->n) & ~(1u << page),
					1u << page, OP_HIT);
			}
	assert_runs_free(w);
}

/* What an earlier run has left in the place of the heads validates nothing. */
static void heads_that_do_not_arrive_validate_no_page(void **state)
{
	struct world *w = *state;

	for (unsigned i = 0; i < 8; i++) {
		const struct shape two = {32, 2, 131072, 2, 2};
		const struct shape *s = i / 2 < SHAPES - 1 ? &shapes[i / 2] : &two;

		submit_pages(w, i, 64, s->stride, s->n, s->bytes);
		post(w);
		for (unsigned k = 0; i % 2 && k < w->wqes; k++)
			if (w->wqe[k].rkey == WORLD_HEADS_RKEY)
				w->wqe[k].sampled = true; /* completes without its bytes */
		world_run(w);
		run_expect(client, i, i % 2 ? 0 : run_mask(0, s->n), i % 2 ? run_mask(0, s->n) : 0,
			OP_HIT);
	}
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

/* After its lease a page is read again by tail, which needs the head alone. */
static void a_series_whose_lease_expired_is_decided_by_other_heads(void **state)
{
	struct world *w = *state;

	for (unsigned i = 0; i < SHAPES; i++) {
		const struct shape *s = &shapes[i];
		uint64_t before = expired(w);
		struct draft d = submit_pages(w, 1, 64, s->stride, s->n, s->bytes);

		post(w);
		w->heads[d.entry[1].unit].generation++; /* before the head is sampled: stale */
		complete_some(w, w->wqes);
		advance(w, LEASE);
		w->heads[d.entry[2].unit].generation++; /* behind it */
		assert_int_equal(round_trips(w), 1);
		run_expect(client, 1, run_mask(0, s->n) & ~6u, 6, OP_HIT);
		assert_int_equal(expired(w) - before, s->n - 1);
		assert_arrived(w, &d);
	}
	assert_runs_free(w);
}

static void without_landing_blocks_pages_are_read_one_by_one(void **state)
{
	struct world *w = *state;
	uint32_t got[RUN_PAGES_MAX];
	struct draft d;

	for (unsigned blocks = 0; blocks < 2; blocks++) {
		w->rail->landings_free = blocks;
		d = submit_pages(w, 1, 64, 32, 4, 131072);
		post(w);
		assert_int_equal(payload(w, got, 131072), 4);
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

	for (unsigned i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint32_t bytes = sizes[i / 2], stride = bytes / PAGE_UNIT + i % 2;
		unsigned n = 12 * 262144 / bytes < 32 ? 12 * 262144 / bytes : 32;

		submit_pages(w, i, 0, stride, n, bytes);
		for (post(w); w->wqes; post(w)) {
			const struct lane *lane = w->rail->peer[3].lane;

			assert_in_range(w->rail->posted_bytes, 0, RUN_IN_FLIGHT_BYTES);
			for (unsigned q = 0; q < peer->qps; q++)
				assert_in_range(lane->qp[q].bulk_bytes, 0, RAIL_BULK_BYTES);
			complete_some(w, 1);
		}
		run_expect(client, i, run_mask(0, n), 0, OP_HIT);
		for (unsigned q = 0; q < peer->qps; q++)
			assert_int_equal(w->rail->peer[3].lane->qp[q].bulk_bytes, 0);
	}
	assert_int_equal(expired(w), 0);
	assert_runs_free(w);
}

/* Pairs of several connections fill the CQ, and the fake NIC checks that it has room. */
static void pairs_of_several_connections_fit_the_cq(void **state)
{
	struct rail_peer *other[2];
	struct world *w = *state;

	for (unsigned i = 0; i < 2; i++) {
		other[i] = peer_new(w, (uint16_t)(10 + i), 100 + i, 4);
		other[i]->limbo_ns = LIMBO;
		peer_add(w, other[i]);
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
		struct op_done one;
		struct run_done done;

		assert_true(client_done(client, &one));
		memcpy(&done, &one, sizeof(done));
		assert_int_equal(done.hit, done.cookie ? UINT32_MAX : 0x1f);
	}
	for (unsigned i = 0; i < 2; i++) {
		peer_drop(w, other[i]);
		world_settle(w);
		world_hear(w, RAIL_PEER_RETURNED);
		peer_free(w, other[i]);
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
		cmocka_unit_test_setup_teardown(
			an_error_at_any_read_keeps_the_pairs_before_it, setup_one_qp, teardown),
		TEST(a_cqe_inside_a_series_is_an_error_of_the_device),
		cmocka_unit_test_setup_teardown(
			a_second_cqe_of_a_series_is_an_error_of_the_device, setup_one_qp, teardown),
		TEST(a_stalled_connection_counts_again_when_a_series_completes),
		TEST(a_dropped_connection_is_returned_with_the_last_series),
		TEST(heads_that_do_not_arrive_validate_no_page),
		TEST(pages_of_broken_units_share_no_read),
		TEST(series_stay_within_the_budgets),
		TEST(pairs_of_several_connections_fit_the_cq),
		TEST(a_read_ends_where_the_pool_or_the_destination_has_a_gap),
		TEST(every_page_of_a_series_is_validated_by_its_own_head),
		TEST(a_series_whose_lease_expired_is_decided_by_other_heads),
		TEST(without_landing_blocks_pages_are_read_one_by_one),
		TEST(runs_of_one_channel_are_posted_in_their_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
