/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Series (run_post.c): READs that have one record and one CQE, whatever ends them. What their
 * pages share and what happens to each of them when a READ in the middle fails: pairs with a lease,
 * heads without one, and buckets.
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

/*
 * WQE `k` of those that were posted fails. `all_cqes`: each READ behind it is reported as flushed,
 * else the last one.
 */
static void fail_wqe(struct world *w, unsigned k, bool all_cqes)
{
	uint32_t qpn = w->wqe[w->wqes - 1].qp->stub.sq.qpn;
	uint16_t last = (uint16_t)w->wqe[w->wqes - 1].index;

	complete_some(w, k);
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
}

static void fail_at(struct world *w, const struct shape *s, unsigned k, bool all_cqes)
{
	submit_pages(w, 100 + k, 64, s->stride, s->n, s->bytes);
	post(w);
	assert_int_equal(w->wqes, s->wqes);
	fail_wqe(w, k, all_cqes);
	run_expect(client, 100 + k, run_mask(0, k / 2 * s->pages_per_pair), 0, OP_NIC_ERROR);
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

static void an_error_at_any_read_keeps_the_buckets_before_it(void **state)
{
	struct world *w = *state;

	for (unsigned k = 0; k < 2 * 16; k++) {
		struct draft d = lookup_of(w, 100 + k, 3, 5, 16);

		draft_submit(client, &d);
		post(w);
		assert_int_equal(w->wqes, 16);
		fail_wqe(w, k / 2, k % 2);
		run_expect(client, 100 + k, run_mask(0, k / 2), 0, OP_NIC_ERROR);
		reconnect(w);
		assert_runs_free(w);
	}
}

/* Without a lease: of pages whose payload has arrived, those whose heads have arrived are hits. */
static void an_error_at_any_head_keeps_the_pages_before_it(void **state)
{
	struct world *w = *state;

	handle->limbo_ns = 0;
	w->rail->peer[3].conn->limbo_ns = 0;
	for (unsigned k = 0; k < 2 * 8; k++) {
		submit_pages(w, 100 + k, 64, 16, 8, 4096);
		post(w);
		complete_some(w, w->wqes);
		post(w);
		assert_int_equal(w->wqes, 8);
		fail_wqe(w, k / 2, k % 2);
		run_expect(client, 100 + k, run_mask(0, k / 2), 0, OP_NIC_ERROR);
		reconnect(w);
		assert_runs_free(w);
	}
}

/* No page is a hit if its payload failed, and none is stale. */
static void an_error_at_any_payload_leaves_no_hit(void **state)
{
	struct world *w = *state;

	handle->limbo_ns = 0;
	w->rail->peer[3].conn->limbo_ns = 0;
	for (unsigned i = 0; i < 3; i++)
		for (unsigned k = 0; k < 2 * 2; k++) {
			submit_pages(w, 100 + k, 64, shapes[i].stride, 4, shapes[i].bytes);
			post(w);
			fail_wqe(w, k / 2 * (w->wqes - 1), k % 2);
			run_expect(client, 100 + k, 0, 0, OP_NIC_ERROR);
			reconnect(w);
			assert_runs_free(w);
		}
}

/* A CQE of any READ of a series but the last one proves nothing. */
static void cqes_inside(struct world *w, unsigned seen)
{
	for (unsigned k = 0; k + 1 < w->wqes; k++) {
		nic_cqe(w->wqe[k].qp->stub.sq.qpn, (uint16_t)w->wqe[k].index, 0);
		world_settle(w);
		assert_no_answer(client);
		assert_int_equal(world_counter(w, COUNTER_cqes_error), seen + k + 1);
	}
}

static void a_cqe_inside_a_series_is_an_error_of_the_device(void **state)
{
	struct world *w = *state;
	struct draft d = lookup_of(w, 2, 3, 5, 8);

	submit_pages(w, 1, 64, 16, 8, 4096);
	post(w);
	cqes_inside(w, 0);
	world_run(w);
	run_expect(client, 1, 0xff, 0, OP_HIT);
	draft_submit(client, &d);
	post(w);
	cqes_inside(w, 15);
	world_run(w);
	run_expect(client, 2, 0xff, 0, OP_HIT);
	w->rail->peer[3].conn->limbo_ns = 0;
	submit_pages(w, 3, 64, 16, 8, 4096);
	post(w);
	cqes_inside(w, 15 + 7);
	complete_some(w, w->wqes);
	post(w);
	cqes_inside(w, 15 + 7 + 7);
	world_run(w);
	run_expect(client, 3, 0xff, 0, OP_HIT);
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
		qpn = w->wqe[15].qp->stub.sq.qpn;
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
	const struct conn *conn = w->rail->peer[3].conn;

	submit_pages(w, 1, 64, 16, 8, 4096);
	post(w);
	pass(w, 40);
	assert_true(conn->stalled);
	assert_int_equal(w->rail->posted_bytes, 0);
	complete_some(w, w->wqes);
	world_settle(w);
	assert_false(conn->stalled);
	world_run(w); /* the lease has expired: the heads are read again */
	run_expect(client, 1, 0xff, 0, OP_HIT);
	assert_runs_free(w);
}

static void a_dropped_connection_is_returned_with_the_last_series(void **state)
{
	struct world *w = *state;

	submit_pages(w, 1, 64, 16, 8, 4096);
	post(w);
	rail_conn_drop(w, handle);
	world_settle(w);
	assert_true(world_silent(w));
	complete_some(w, w->wqes);
	world_settle(w);
	world_event(w, RAIL_CONN_RETURNED);
	run_expect(client, 1, 0xff, 0, OP_HIT);
	assert_runs_free(w);
	rail_conn_add(w, handle);
	world_settle(w);
}

/* Each page is validated by its own head, wherever that head arrives. */
static void heads_decide(struct world *w, unsigned trips)
{
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
				assert_int_equal(round_trips(w), trips);
				run_expect(client, page, run_mask(0, s->n) & ~(1u << page),
					1u << page, OP_HIT);
			}
	assert_runs_free(w);
}

static void every_page_of_a_series_is_validated_by_its_own_head(void **state)
{
	struct world *w = *state;

	heads_decide(w, 1);
	w->rail->peer[3].conn->limbo_ns = 0;
	heads_decide(w, 2);
}

/* What an earlier run has left in the place of the heads validates nothing. */
static void heads_do_not_arrive(struct world *w)
{
	for (unsigned i = 0; i < 8; i++) {
		const struct shape two = {32, 2, 131072, 2, 2};
		const struct shape *s = i / 2 < SHAPES - 1 ? &shapes[i / 2] : &two;

		submit_pages(w, i, 64, s->stride, s->n, s->bytes);
		for (post(w); w->wqes; post(w)) {
			for (unsigned k = 0; i % 2 && k < w->wqes; k++)
				if (w->wqe[k].rkey == WORLD_HEADS_RKEY)
					w->wqe[k].sampled = true; /* completes without its bytes */
			complete_some(w, w->wqes);
		}
		run_expect(client, i, i % 2 ? 0 : run_mask(0, s->n), i % 2 ? run_mask(0, s->n) : 0,
			OP_HIT);
	}
	assert_runs_free(w);
}

static void heads_that_do_not_arrive_validate_no_page(void **state)
{
	struct world *w = *state;

	heads_do_not_arrive(w);
	w->rail->peer[3].conn->limbo_ns = 0;
	heads_do_not_arrive(w);
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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			an_error_at_any_read_keeps_the_pairs_before_it, setup_one_qp, teardown),
		cmocka_unit_test_setup_teardown(
			an_error_at_any_read_keeps_the_buckets_before_it, setup_one_qp, teardown),
		cmocka_unit_test_setup_teardown(
			an_error_at_any_head_keeps_the_pages_before_it, setup_one_qp, teardown),
		cmocka_unit_test_setup_teardown(
			an_error_at_any_payload_leaves_no_hit, setup_one_qp, teardown),
		TEST(a_cqe_inside_a_series_is_an_error_of_the_device),
		cmocka_unit_test_setup_teardown(
			a_second_cqe_of_a_series_is_an_error_of_the_device, setup_one_qp, teardown),
		TEST(a_stalled_connection_counts_again_when_a_series_completes),
		TEST(a_dropped_connection_is_returned_with_the_last_series),
		TEST(heads_that_do_not_arrive_validate_no_page),
		TEST(every_page_of_a_series_is_validated_by_its_own_head),
		TEST(a_series_whose_lease_expired_is_decided_by_other_heads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
