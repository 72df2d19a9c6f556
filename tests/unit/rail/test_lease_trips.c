/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Validation by lease: payload and heads take one round trip, of runs and of single pages, and what
 * shares a queue pair. How the time decides is in test_lease.c.
 */
#include "tests/unit/rail/lease_world.h"

/* ---- one round trip ------------------------------------------------------------------------- */

static void a_lone_batch_takes_one_round_trip(void **state)
{
	static const struct {
		uint32_t stride, n, bytes, wqes;
	} shape[] = {{1, 32, 4096, 2}, {16, 32, 4096, 64}, {1, 1, 4096, 2}, {32, 4, 131072, 4},
		{33, 4, 131072, 8}, {64, 3, 262144, 6}, {3, 20, 9000, 40}};
	struct world *w = *state;

	for (unsigned i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
		uint64_t before = world_counter(w, COUNTER_wqes_posted);
		struct draft d =
			submit_pages(w, i, 64, shape[i].stride, shape[i].n, shape[i].bytes);

		assert_int_equal(round_trips(w), 1);
		run_expect(client, i, run_mask(0, shape[i].n), 0, OP_HIT);
		assert_arrived(w, &d);
		assert_true(world_counter(w, COUNTER_wqes_posted) - before <= shape[i].wqes);
	}
	assert_int_equal(expired(w), 0);
	assert_runs_free(w);
}

static void without_a_lease_the_same_batch_takes_two(void **state)
{
	struct world *w = *state;

	w->rail->peer[3].conn->limbo_ns = 0;
	submit_pages(w, 1, 64, 2, 8, 4096);
	assert_int_equal(round_trips(w), 2);
	run_expect(client, 1, 0xff, 0, OP_HIT);
}

static void a_peer_or_a_rail_without_lease_means_tail(void **state)
{
	struct world *w = lease_setup(state, 1);
	struct rail_conn *old = rail_conn_new(w, 4, 44, 1);

	w = *state;
	rail_conn_add(w, old); /* announced no L */
	w->rail->options.lease = false;
	world_settle(w);
	assert_int_equal(w->rail->peer[4].conn->limbo_ns, 0);
	rail_conn_add(w, handle); /* rail.validate = tail */
	world_settle(w);
	assert_int_equal(w->rail->peer[3].conn->limbo_ns, 0);
	w->rail->options.lease = true;
	rail_conn_drop(w, handle);
	world_settle(w);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, handle);
	rail_conn_add(w, handle);
	world_settle(w);
	assert_int_equal(w->rail->peer[3].conn->limbo_ns, LIMBO);
	rail_conn_drop(w, old);
	world_settle(w);
	world_event(w, RAIL_CONN_RETURNED);
	rail_conn_free(w, old);
}

/* A head that was READ on another QP could complete first, and would not cover its payload. */
static void heads_follow_their_payload_on_its_queue_pair(void **state)
{
	struct world *w = *state;
	struct draft d = submit_pages(w, 1, 64, 16, 32, 4096);
	unsigned heads = 0;

	post(w);
	for (unsigned i = 0; i < w->wqes; i++) {
		struct fake_wqe *head = &w->wqe[i];
		unsigned j = 0;

		if (head->rkey != WORLD_HEADS_RKEY)
			continue;
		heads++;
		while (w->wqe[j].rkey != WORLD_POOL_RKEY ||
			(w->wqe[j].remote - (uintptr_t)w->pool) / PAGE_UNIT !=
				(head->remote - (uintptr_t)w->heads) / sizeof(struct page_head))
			assert_true(++j < w->wqes);
		assert_ptr_equal(w->wqe[j].qp, head->qp);
		assert_true((int32_t)(head->index - w->wqe[j].index) > 0);
	}
	assert_int_equal(heads, 32);
	world_run(w);
	run_expect(client, 1, UINT32_MAX, 0, OP_HIT);
	assert_arrived(w, &d);
}

static void pages_of_several_segments_take_one_round_trip(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 64, 4, 8, 8192);
	for (unsigned parts = 2; parts <= 8; parts *= 2) {
		d = draft_of(w, parts, 64, 4, 8, 8192);
		d.run.segments = (uint16_t)parts;
		d.run.stride_or_to = 2 * (8192 / parts);
		for (unsigned i = 0; i < 8; i++)
			d.entry[i].to = 20000 * i;
		draft_submit(client, &d);
		assert_int_equal(round_trips(w), 1);
		run_expect(client, parts, 0xff, 0, OP_HIT);
	}
	assert_int_equal(expired(w), 0);
	assert_runs_free(w);
}

static void a_run_of_several_lots_is_validated_lot_by_lot(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 0, 64, 32, 262144);
	d = draft_of(w, 1, 0, 64, 32, 262144);
	for (unsigned i = 0; i < 32; i++)
		d.entry[i].to = i % 16 * 262144;
	draft_submit(client, &d);
	/* each lot takes less than the lease, all of them take longer */
	for (post(w); w->wqes; post(w)) {
		advance(w, LEASE / 2);
		while (w->wqes)
			nic_complete(w, 0, 0);
	}
	run_expect(client, 1, UINT32_MAX, 0, OP_HIT);
	assert_int_equal(expired(w), 0);
	assert_runs_free(w);
}

static void little_room_is_never_a_wait_for_ever(void **state)
{
	struct world *w = *state;
	struct draft d;

	for (unsigned i = 0; i < 8; i++) {
		d = submit_pages(w, i, 64 + 64 * i, 2, 32, 4096);
		post(w);
	}
	assert_true(w->wqes <= QP_DEPTH);
	for (unsigned i = 0; w->wqes; i++) {
		complete_some(w, i % 3 + 1 < w->wqes ? i % 3 + 1 : w->wqes);
		post(w);
	}
	for (unsigned i = 0; i < 8; i++)
		run_expect(client, i, UINT32_MAX, 0, OP_HIT);
	assert_arrived(w, &d);
	assert_runs_free(w);
}

/* ---- halves of a pair ----------------------------------------------------------------------- */

static void only_the_second_half_of_a_pair_completes_it(void **state)
{
	struct world *w = *state;

	submit_pages(w, 1, 64, 1, 2, 4096); /* one pair brings both */
	post(w);
	assert_int_equal(w->wqes, 2);
	nic_cqe(w->wqe[0].qp->stub.sq.qpn, (uint16_t)w->wqe[0].index, 0);
	world_settle(w);
	assert_no_answer(client);
	assert_int_equal(world_counter(w, COUNTER_cqes_error), 1);
	world_run(w);
	run_expect(client, 1, 3, 0, OP_HIT);
	assert_runs_free(w);
}

/* The NIC may still hold the second half: the run is answered after it was flushed, not before. */
static void an_error_of_the_first_half_is_answered_after_the_second_half(void **state)
{
	struct world *w = *state;

	submit_pages(w, 1, 64, 1, 2, 4096); /* one pair brings both */
	post(w);
	nic_complete(w, 0, DV_SYNDROME_REMOTE_ACCESS);
	world_settle(w);
	world_event(w, RAIL_CONN_BROKEN);
	assert_no_answer(client);
	nic_complete(w, 0, DV_SYNDROME_FLUSHED);
	world_settle(w);
	run_expect(client, 1, 0, 0, OP_NIC_ERROR);
	assert_runs_free(w);
}

static void an_error_of_the_second_half_ends_the_pair(void **state)
{
	struct world *w = *state;

	submit_pages(w, 1, 64, 32, 2, 131072); /* with a landing block */
	post(w);
	assert_int_equal(w->wqes, 2);
	nic_complete(w, 0, 0);
	nic_complete(w, 0, DV_SYNDROME_REMOTE_ACCESS);
	world_settle(w);
	world_event(w, RAIL_CONN_BROKEN);
	run_expect(client, 1, 0, 0, OP_NIC_ERROR);
	assert_runs_free(w);
}

/* ---- single pages --------------------------------------------------------------------------- */

static void a_single_page_takes_one_round_trip(void **state)
{
	struct world *w = *state;

	page_put(w, 8, 1u << 20, 77);
	page_get(w, client, 1, 8, 1u << 20, 77, 0);
	assert_int_equal(round_trips(w), 1);
	client_expect(client, 1, OP_HIT);
	assert_true(page_arrived(w, 8, 1u << 20, 0));
	assert_int_equal(expired(w), 0);
	assert_runs_free(w);
}

static void a_single_page_whose_lease_expired_is_decided_by_another_head(void **state)
{
	struct world *w = *state;

	page_put(w, 8, 8192, 77);
	for (unsigned reused = 0; reused < 2; reused++) {
		page_get(w, client, 1, 8, 8192, 77, 0);
		post(w);
		assert_int_equal(w->wqes, 2);
		complete_some(w, 2);
		advance(w, LEASE);
		if (reused)
			page_head_retire(&w->heads[8]);
		assert_int_equal(round_trips(w), 1);
		client_expect(client, 1, reused ? OP_STALE : OP_HIT);
		assert_int_equal(expired(w), reused + 1);
	}
	assert_runs_free(w);
}

static void time_of_a_single_page_begins_with_its_first_slice(void **state)
{
	struct world *w = *state;

	page_put(w, 8, 2u << 20, 77); /* longer than what may be in flight */
	page_get(w, client, 1, 8, 2u << 20, 77, 0);
	post(w);
	complete_some(w, w->wqes);
	advance(w, LEASE - 1);
	post(w); /* the rest of the page and its head */
	complete_some(w, w->wqes);
	advance(w, 1);
	world_settle(w);
	assert_no_answer(client);
	assert_int_equal(expired(w), 1);
	world_run(w);
	client_expect(client, 1, OP_HIT);
}

static void a_single_page_with_another_head_is_stale(void **state)
{
	struct world *w = *state;

	page_put(w, 8, 8192, 77);
	page_get(w, client, 1, 8, 8192, 77, 0);
	w->heads[8].generation++;
	assert_int_equal(round_trips(w), 1);
	client_expect(client, 1, OP_STALE);
}

/*
 * Posts page `unit` of `bytes` bytes, as an OP_PAGE or a run of one page, and lets its deadline
 * pass while the NIC has all of its READs.
 */
static void post_overdue_page(struct world *w, bool run, uint32_t unit, uint32_t bytes)
{
	struct draft d;

	pages_put(w, unit, 1, 1, bytes);
	d = draft_of(w, 1, unit, 1, 1, bytes);
	d.run.deadline_ns = w->now_ns + LIMBO / 2;
	if (run) {
		draft_submit(client, &d);
	} else {
		struct op op = page_op(w, 1, unit, bytes, RUN_KEY(unit));
		struct op_segment s = home_at(0, bytes);

		op.deadline_ns = d.run.deadline_ns;
		client_submit(client, &op, &s);
	}
	post(w);
	advance(w, LIMBO / 2);
	post(w);
	assert_no_answer(client);
}

static void a_single_page_that_is_validated_past_its_deadline_is_a_hit(void **state)
{
	struct world *w = *state;

	for (unsigned run = 0; run < 2; run++)
		for (unsigned reused = 0; reused < 2; reused++) {
			post_overdue_page(w, run, 64, 8192);
			assert_int_equal(w->wqes, 2);
			if (reused)
				page_head_retire(&w->heads[64]);
			assert_int_equal(round_trips(w), 1);
			client_expect(client, 1, reused ? OP_STALE : OP_HIT);
			assert_runs_free(w);
		}
	assert_int_equal(expired(w), 0);
	assert_int_equal(world_counter(w, COUNTER_reads_timed_out), 0);
}

static void the_head_of_a_single_page_is_not_read_again_past_its_deadline(void **state)
{
	struct world *w = *state;

	for (unsigned run = 0; run < 2; run++) {
		post_overdue_page(w, run, 64, 8192);
		complete_some(w, 2);
		advance(w, LEASE - LIMBO / 2);
		assert_int_equal(round_trips(w), 0);
		client_expect(client, 1, OP_TIMEOUT);
		assert_int_equal(expired(w), run + 1);
		assert_runs_free(w);
	}
}

/* The head arrives on another queue pair than the slice that fails. */
static void a_single_page_with_a_failed_slice_is_no_hit_past_its_deadline(void **state)
{
	struct world *w = *state;

	for (unsigned run = 0; run < 2; run++) {
		post_overdue_page(w, run, 64, run ? SLICE_BYTES : 4 * SLICE_BYTES);
		assert_ptr_not_equal(w->wqe[0].qp, w->wqe[w->wqes - 1].qp);
		nic_complete(w, 0, DV_SYNDROME_REMOTE_ACCESS);
		world_settle(w);
		while (w->wqes)
			nic_complete(w, 0, w->wqe[0].qp->error ? DV_SYNDROME_FLUSHED : 0);
		world_settle(w);
		client_expect(client, 1, OP_TIMEOUT);
		reconnect(w);
		assert_runs_free(w);
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_lone_batch_takes_one_round_trip),
		TEST(without_a_lease_the_same_batch_takes_two),
		cmocka_unit_test_setup_teardown(
			a_peer_or_a_rail_without_lease_means_tail, NULL, teardown),
		TEST(heads_follow_their_payload_on_its_queue_pair),
		TEST(pages_of_several_segments_take_one_round_trip),
		TEST(a_run_of_several_lots_is_validated_lot_by_lot),
		cmocka_unit_test_setup_teardown(
			little_room_is_never_a_wait_for_ever, setup_one_qp, teardown),
		TEST(only_the_second_half_of_a_pair_completes_it),
		TEST(an_error_of_the_first_half_is_answered_after_the_second_half),
		TEST(an_error_of_the_second_half_ends_the_pair),
		TEST(a_single_page_takes_one_round_trip),
		TEST(a_single_page_whose_lease_expired_is_decided_by_another_head),
		TEST(time_of_a_single_page_begins_with_its_first_slice),
		TEST(a_single_page_that_is_validated_past_its_deadline_is_a_hit),
		TEST(the_head_of_a_single_page_is_not_read_again_past_its_deadline),
		TEST(a_single_page_with_a_failed_slice_is_no_hit_past_its_deadline),
		TEST(a_single_page_with_another_head_is_stale),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
