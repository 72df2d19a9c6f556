/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests completions: the order of payload and head, errors, flushes, and CQEs with invalid
 * contents.
 */
#include "tests/unit/rail/client_world.h"

static void a_page_whose_head_did_not_change_is_a_hit(void **state)
{
	struct world *w = *state;

	page_put(w, 8, 10000, 77);
	page_get(w, client, 1, 8, 10000, 77, 512);
	world_run(w);
	client_expect(client, 1, OP_HIT);
	assert_true(page_arrived(w, 8, 10000, 512));
	assert_int_equal(rail_in_flight(w->rail), 0);
	assert_int_equal(world_counter(w, COUNTER_pages_read), 1);
	assert_int_equal(world_counter(w, COUNTER_bytes_read), 10000);
}

static void the_head_is_posted_only_after_the_payload_has_completed(void **state)
{
	struct world *w = *state;

	page_put(w, 8, 3 * SLICE_BYTES, 77);
	page_get(w, client, 1, 8, 3 * SLICE_BYTES, 77, 0);
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->wqes, 3);
	while (w->wqes) {
		for (unsigned i = 0; i < w->wqes; i++)
			assert_int_equal(w->wqe[i].rkey, WORLD_POOL_RKEY);
		nic_complete(w, 0, 0);
		if (!w->wqes)
			break;
		world_settle(w);
		nic_pull(w);
	}
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->wqes, 1);
	assert_int_equal(w->wqe[0].rkey, WORLD_HEADS_RKEY);
	assert_int_equal(w->wqe[0].remote, (uintptr_t)&w->heads[8]);
	nic_complete(w, 0, 0);
	world_settle(w);
	client_expect(client, 1, OP_HIT);
}

static void a_head_that_changed_after_the_payload_is_stale(void **state)
{
	struct world *w = *state;

	page_put(w, 8, 4096, 77);
	page_get(w, client, 1, 8, 4096, 77, 0);
	world_settle(w);
	nic_pull(w);
	nic_complete(w, 0, 0);
	page_head_retire(&w->heads[8]);
	world_run(w);
	client_expect(client, 1, OP_STALE);
	assert_int_equal(world_counter(w, COUNTER_pages_stale), 1);
}

static void a_page_published_again_under_its_key_is_stale_by_its_generation(void **state)
{
	struct world *w = *state;

	page_put(w, 8, 4096, 77);
	page_get(w, client, 1, 8, 4096, 77, 0);
	page_head_retire(&w->heads[8]);
	page_put(w, 8, 4096, 77);
	world_run(w);
	client_expect(client, 1, OP_STALE);
}

static void a_head_with_another_key_or_length_is_stale(void **state)
{
	struct world *w = *state;

	page_put(w, 8, 4096, 77);
	page_get(w, client, 1, 8, 4096, 78, 0);
	world_run(w);
	client_expect(client, 1, OP_STALE);
	page_get(w, client, 2, 8, 4095, 77, 0);
	world_run(w);
	client_expect(client, 2, OP_STALE);
}

static void a_head_left_by_an_earlier_request_does_not_validate_a_page(void **state)
{
	struct world *w = *state;

	page_put(w, 8, 4096, 77);
	page_get(w, client, 1, 8, 4096, 77, 0);
	world_run(w);
	client_expect(client, 1, OP_HIT);
	page_get(w, client, 2, 8, 4096, 77, 0); /* this op gets the same request slot of the rail */
	world_settle(w);
	nic_pull(w);
	nic_complete(w, 0, 0);
	world_settle(w);
	nic_pull(w);
	w->wqe[0].sges = 0; /* the NIC completes the READ without writing a byte */
	nic_complete(w, 0, 0);
	world_settle(w);
	client_expect(client, 2, OP_STALE);
}

static void a_bucket_read_needs_no_head(void **state)
{
	struct world *w = *state;

	memset(w->shard, 0x5a, WORLD_BUCKETS * 64);
	bucket_get(w, client, 9, 1023, 64);
	world_run(w);
	client_expect(client, 9, OP_HIT);
	assert_memory_equal(w->home + 64, &w->shard[1023], 64);
	assert_int_equal(world_counter(w, COUNTER_cqes_reaped), 1);
}

static void an_error_breaks_the_connection_once_and_requests_end_after_their_last_wqe(void **state)
{
	struct world *w = *state;
	struct op_done done;
	struct rail_event event;

	page_put(w, 8, 3 * SLICE_BYTES, 77);
	page_get(w, client, 1, 8, 3 * SLICE_BYTES, 77, 0);
	page_get(w, client, 2, 8, SLICE_BYTES, 77, 2 << 20);
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->wqes, 4);
	nic_complete(w, 0, DV_SYNDROME_REMOTE_ACCESS);
	world_settle(w);
	event = world_event(w, RAIL_CONN_BROKEN);
	assert_int_equal(event.detail, DV_SYNDROME_REMOTE_ACCESS);
	assert_ptr_equal(event.object, handle);
	assert_false(client_done(client, &done));
	/* An op that is submitted after the error is refused at once. */
	page_get(w, client, 3, 8, 4096, 77, 0);
	world_settle(w);
	client_expect(client, 3, OP_PEER_DOWN);
	nic_flush(w, handle);
	world_settle(w);
	client_expect(client, 1, OP_NIC_ERROR);
	client_expect(client, 2, OP_PEER_DOWN);
	assert_true(world_silent(w));
	rail_conn_drop(w, handle);
	world_settle(w);
	event = world_event(w, RAIL_CONN_RETURNED);
	assert_ptr_equal(event.object, handle);
	assert_null(handle->conn);
	assert_int_equal(handle->sq[0]->ci, handle->sq[0]->pi);
	assert_int_equal(handle->sq[1]->ci, handle->sq[1]->pi);
}

static void one_cqe_also_retires_the_earlier_wqes_of_its_qp(void **state)
{
	struct world *w = *state;
	unsigned last = 0;

	for (unsigned i = 0; i < 40; i++) {
		page_put(w, i, 4096, i + 1);
		page_get(w, client, i, i, 4096, i + 1, i * 4096);
	}
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->wqes, 40);
	/* Only the last WQE of each QP requests a CQE. */
	for (unsigned i = 0; i < w->wqes; i++)
		w->wqe[i].flags = DV_CE_ERROR_ONLY;
	for (unsigned i = 0; i < w->wqes; i++)
		if (w->wqe[i].qp == w->wqe[0].qp)
			last = i;
	w->wqe[last].flags = DV_CE_ALWAYS;
	w->wqe[w->wqes - 1].flags = DV_CE_ALWAYS;
	while (w->wqes)
		nic_complete(w, 0, 0);
	world_run(w);
	for (unsigned i = 0; i < 40; i++) {
		struct op_done done;

		assert_true(client_done(client, &done));
		assert_int_equal(done.status, OP_HIT);
	}
}

/* ---- CQEs that retire several WQEs ---- */

/* Submits READs of the buckets 0..n-1, which all go to one QP. */
static void buckets_get(struct world *w, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		bucket_get(w, client, i, i, i * 64);
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->wqes, n);
}

static void an_error_among_unsignalled_reads_ends_each_once_with_its_own_status(void **state)
{
	const unsigned n = RAIL_SIGNAL_WQES, bad = RAIL_SIGNAL_WQES / 2;
	struct world *w = *state;
	struct op_done done;

	buckets_get(w, n);
	for (unsigned i = 0; i < bad; i++)
		assert_false(nic_complete(w, 0, 0)); /* the WQE is executed and writes no CQE */
	world_settle(w);
	assert_false(client_done(client, &done));
	assert_true(nic_complete(w, 0, DV_SYNDROME_REMOTE_ACCESS));
	world_settle(w);
	for (unsigned i = 0; i < bad; i++)
		client_expect(client, i, OP_HIT);
	client_expect(client, bad, OP_NIC_ERROR);
	/* the other READs of the op are still at the NIC */
	assert_false(client_done(client, &done));
	world_event(w, RAIL_CONN_BROKEN);
	nic_flush(w, handle);
	world_settle(w);
	for (unsigned i = bad + 1; i < n; i++)
		client_expect(client, i, OP_PEER_DOWN);
	assert_false(client_done(client, &done));
	assert_int_equal(w->rail->wqes, 0);
}

static void wqes_before_a_flushed_one_do_not_count_as_successful(void **state)
{
	struct world *w = *state;
	struct op_done done;

	buckets_get(w, RAIL_SIGNAL_WQES);
	/* The device reports only the last of the flushed WQEs of a failed QP. */
	for (unsigned i = 0; i + 1 < RAIL_SIGNAL_WQES; i++)
		assert_false(nic_complete(w, 0, 0));
	nic_complete(w, 0, DV_SYNDROME_FLUSHED);
	world_settle(w);
	for (unsigned i = 0; i < RAIL_SIGNAL_WQES; i++)
		client_expect(client, i, OP_PEER_DOWN);
	assert_false(client_done(client, &done));
	world_event(w, RAIL_CONN_BROKEN);
}

static void heads_are_read_only_after_a_cqe_covers_their_payload(void **state)
{
	struct world *w = *state;
	struct op_done done;

	for (unsigned i = 0; i < RAIL_SIGNAL_WQES; i++) {
		page_put(w, i, 4096, i + 1);
		page_get(w, client, i, i, 4096, i + 1, i * 4096);
	}
	world_settle(w);
	nic_pull(w);
	for (unsigned i = 0; i + 1 < RAIL_SIGNAL_WQES; i++)
		assert_false(nic_complete(w, 0, 0));
	world_settle(w);
	nic_pull(w);
	/* only the last payload READ is posted, and no READ of heads */
	assert_int_equal(w->wqes, 1);
	assert_true(nic_complete(w, 0, 0));
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->wqes, RAIL_SIGNAL_WQES);
	for (unsigned i = 0; i < RAIL_SIGNAL_WQES; i++)
		assert_int_equal(w->wqe[i].rkey, WORLD_HEADS_RKEY);
	/* Page 3 is evicted before its head is read, so the head no longer matches. */
	page_head_retire(&w->heads[3]);
	assert_false(client_done(client, &done));
	while (w->wqes)
		nic_complete(w, 0, 0);
	world_settle(w);
	for (unsigned i = 0; i < RAIL_SIGNAL_WQES; i++)
		client_expect(client, i, i == 3 ? OP_STALE : OP_HIT);
	assert_int_equal(world_counter(w, COUNTER_pages_stale), 1);
}

static void a_head_that_the_nic_did_not_write_is_stale(void **state)
{
	struct world *w = *state;

	/* the ops of the second round use the same runs of the rail, so the same places of heads */
	for (unsigned round = 0; round < 2; round++) {
		for (unsigned i = 0; i < RAIL_SIGNAL_WQES; i++) {
			page_put(w, i, 4096, i + 1);
			page_get(w, client, i, i, 4096, i + 1, i * 4096);
		}
		world_settle(w);
		nic_pull(w);
		while (w->wqes)
			nic_complete(w, 0, 0);
		world_settle(w);
		nic_pull(w);
		assert_int_equal(w->wqes, RAIL_SIGNAL_WQES);
		while (w->wqes) {
			if (round == 1)
				w->wqe[0].sges = 0; /* the READ completes without a byte written */
			nic_complete(w, 0, 0);
		}
		world_settle(w);
		for (unsigned i = 0; i < RAIL_SIGNAL_WQES; i++)
			client_expect(client, i, round == 1 ? OP_STALE : OP_HIT);
	}
}

static void an_error_of_the_read_of_a_head_fails_its_page(void **state)
{
	struct world *w = *state;
	struct op_done done;

	for (unsigned i = 0; i < RAIL_SIGNAL_WQES; i++) {
		page_put(w, i, 4096, i + 1);
		page_get(w, client, i, i, 4096, i + 1, i * 4096);
	}
	world_settle(w);
	nic_pull(w);
	while (w->wqes)
		nic_complete(w, 0, 0);
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->wqes, RAIL_SIGNAL_WQES);
	nic_complete(w, 0, DV_SYNDROME_REMOTE_ACCESS);
	world_settle(w);
	client_expect(client, 0, OP_NIC_ERROR);
	assert_false(client_done(client, &done));
	world_event(w, RAIL_CONN_BROKEN);
	nic_flush(w, handle);
	world_settle(w);
	for (unsigned i = 1; i < RAIL_SIGNAL_WQES; i++)
		client_expect(client, i, OP_PEER_DOWN);
	assert_int_equal(w->rail->runs_free, RAIL_RUNS);
}

static void cqes_that_name_no_outstanding_wqe_are_counted_and_ignored(void **state)
{
	struct world *w = *state;
	uint32_t qpn;
	uint16_t index;

	nic_cqe(handle->sq[0]->qpn, (uint16_t)handle->sq[0]->pi, 0);
	nic_cqe(0xabcdef, 3, DV_SYNDROME_REMOTE_OP);
	world_settle(w);
	assert_int_equal(world_counter(w, COUNTER_cqes_error), 2);
	page_put(w, 8, 4096, 77);
	page_get(w, client, 1, 8, 4096, 77, 0);
	world_settle(w);
	nic_pull(w);
	qpn = w->wqe[0].qp->stub.sq.qpn;
	index = (uint16_t)w->wqe[0].index;
	nic_cqe(qpn, (uint16_t)(index + 1), 0);
	nic_cqe(qpn, (uint16_t)(index - 1), 0);
	nic_cqe(qpn, (uint16_t)(index + 0x8000), 0);
	world_settle(w);
	assert_int_equal(world_counter(w, COUNTER_cqes_error), 5);
	world_run(w);
	client_expect(client, 1, OP_HIT);
	nic_cqe(qpn, index, 0); /* writes the same CQE a second time */
	world_settle(w);
	assert_int_equal(world_counter(w, COUNTER_cqes_error), 6);
	assert_true(world_silent(w));
}

static void an_error_cqe_that_names_no_wqe_breaks_its_connection(void **state)
{
	struct world *w = *state;
	struct rail_event event;
	struct op_done done;

	page_get(w, client, 1, 8, 8192, 77, 0);
	world_settle(w);
	nic_pull(w);
	nic_cqe(handle->sq[1]->qpn, (uint16_t)(handle->sq[1]->pi + 7), DV_SYNDROME_BAD_RESPONSE);
	world_settle(w);
	event = world_event(w, RAIL_CONN_BROKEN);
	assert_ptr_equal(event.object, handle);
	assert_int_equal(event.detail, DV_SYNDROME_BAD_RESPONSE);
	assert_int_equal(world_counter(w, COUNTER_cqes_error), 1);
	/* the op is not answered: the NIC may still write to its buffer */
	assert_false(client_done(client, &done));
	nic_flush(w, handle);
	rail_conn_drop(w, handle);
	world_settle(w);
	client_expect(client, 1, OP_PEER_DOWN);
	world_event(w, RAIL_CONN_RETURNED);
}

static void a_cqe_that_names_the_second_wqebb_of_a_wqe_is_ignored(void **state)
{
	struct world *w = *state;
	struct op op = page_op(w, 1, 8, 3000, 77);
	struct op_segment segment[3] = {home_at(0, 1000), home_at(4096, 1000), home_at(9000, 1000)};

	page_put(w, 8, 3000, 77);
	op.segments = 3;
	client_submit(client, &op, segment);
	world_settle(w);
	nic_pull(w);
	assert_int_equal(w->wqes, 1);
	nic_cqe(w->wqe[0].qp->stub.sq.qpn, (uint16_t)(w->wqe[0].index + 1), 0);
	world_settle(w);
	assert_int_equal(world_counter(w, COUNTER_cqes_error), 1);
	world_run(w);
	client_expect(client, 1, OP_HIT);
	assert_memory_equal(w->home + 9000, w->pool + 8 * PAGE_UNIT + 2000, 1000);
}

#ifdef TEST_HOOKS
static void with_skip_head_check_the_payload_suffices(void **state)
{
	struct world *w = *state;

	w->rail->options.skip_head_check = true;
	page_put(w, 8, 4096, 77);
	page_get(w, client, 1, 8, 4096, 78, 0);
	world_run(w);
	client_expect(client, 1, OP_HIT);
}
#endif

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_page_whose_head_did_not_change_is_a_hit),
		TEST(the_head_is_posted_only_after_the_payload_has_completed),
		TEST(a_head_that_changed_after_the_payload_is_stale),
		TEST(a_page_published_again_under_its_key_is_stale_by_its_generation),
		TEST(a_head_with_another_key_or_length_is_stale),
		TEST(a_head_left_by_an_earlier_request_does_not_validate_a_page),
		TEST(a_bucket_read_needs_no_head),
		TEST(an_error_breaks_the_connection_once_and_requests_end_after_their_last_wqe),
		TEST(one_cqe_also_retires_the_earlier_wqes_of_its_qp),
		TEST(an_error_among_unsignalled_reads_ends_each_once_with_its_own_status),
		TEST(wqes_before_a_flushed_one_do_not_count_as_successful),
		TEST(heads_are_read_only_after_a_cqe_covers_their_payload),
		TEST(a_head_that_the_nic_did_not_write_is_stale),
		TEST(an_error_of_the_read_of_a_head_fails_its_page),
		TEST(cqes_that_name_no_outstanding_wqe_are_counted_and_ignored),
		TEST(an_error_cqe_that_names_no_wqe_breaks_its_connection),
		TEST(a_cqe_that_names_the_second_wqebb_of_a_wqe_is_ignored),
#ifdef TEST_HOOKS
		TEST(with_skip_head_check_the_payload_suffices),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
