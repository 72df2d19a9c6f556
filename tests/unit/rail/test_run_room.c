/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs within the rail's limits: bytes in flight, QPs, CQ, free runs; and turns between channels.
 */
#include "tests/unit/rail/runs.h"

#define CLIENT_NUMBER 63
#define CLIENT_OWN_SETUP
#include "tests/unit/rail/client_world.h"

static int setup(void **state)
{
	client_setup(state, 2);
	return 0;
}

static void a_run_is_posted_within_the_budget_of_bytes_in_flight(void **state)
{
	struct world *w = *state;
	struct draft d;

	rail_conn_add(w, handle);
	pages_put(w, 0, 33, 32, 131072);
	d = draft_of(w, 1, 0, 33, 32, 131072);
	draft_submit(client, &d);
	for (unsigned i = 0; i < 200; i++) {
		post(w);
		assert_in_range(w->rail->posted_bytes, 0, RUN_IN_FLIGHT_BYTES);
		if (!w->wqes)
			break;
		complete_some(w, 1);
	}
	run_expect(client, 1, UINT32_MAX, 0, OP_HIT);
	assert_runs_free(w);
}

static void many_small_runs_stay_within_the_queues(void **state)
{
	struct world *w = *state;

	rail_conn_add(w, handle);
	pages_put(w, 0, 100, 32, 4096);
	for (unsigned i = 0; i < 100; i++) {
		struct draft d = draft_of(w, i, 0, 100, 32, 64);

		draft_submit(client, &d);
	}
	/* two QPs of 64 WQEBBs; the fake NIC checks that the CQ has room */
	post(w);
	assert_in_range(w->wqes, 100, 2 * QP_DEPTH);
	world_run(w);
	for (unsigned i = 0; i < 100; i++)
		run_expect(client, i, 0, UINT32_MAX, OP_HIT); /* another length: stale */
	assert_runs_free(w);
}

/* Bytes that the NIC has of each channel, told by their destinations. */
static void count_halves(const struct world *w, uint64_t ret_bytes[2])
{
	ret_bytes[0] = ret_bytes[1] = 0;
	for (unsigned i = 0; i < w->wqes; i++)
		if (w->wqe[i].rkey == WORLD_POOL_RKEY)
			ret_bytes[w->wqe[i].sge[0].address >=
				  (uintptr_t)w->home + WORLD_HOME_BYTES / 2] += w->wqe[i].bytes;
}

static void two_channels(struct world *w, uint32_t bytes)
{
	struct client *second = client_new(w, 7, WORLD_SESSION);
	uint64_t posted[2], sum[2] = {0, 0};
	unsigned steps = 0, both = 0;

	rail_conn_add(w, handle);
	pages_put(w, 0, 51, 16, bytes);
	for (unsigned i = 0; i < 4; i++) { /* the first channel is early and has more */
		struct draft d = draft_of(w, i, 0, 51, 16, bytes);

		draft_submit(client, &d);
	}
	post(w);
	for (unsigned i = 0; i < 2; i++) {
		struct draft d = draft_of(w, 10 + i, 0, 51, 16, bytes);

		for (unsigned j = 0; j < 16; j++)
			d.entry[j].to += WORLD_HOME_BYTES / 2;
		draft_submit(second, &d);
	}
	while (sum[1] <
		2 * 16 * (uint64_t)bytes) { /* until the second channel has got everything */
		complete_some(w, w->wqes);
		post(w);
		count_halves(w, posted);
		sum[0] += posted[0];
		sum[1] += posted[1];
		steps += posted[0] || posted[1];
		both += posted[0] && posted[1];
	}
	assert_true(both > steps / 2); /* a lot is shorter than what is posted at a time */
	assert_in_range(sum[0] * 100 / sum[1], 60, 140);
	world_run(w);
	for (unsigned i = 0; i < 4; i++)
		run_expect(client, i, 0xffff, 0, OP_HIT);
	run_expect(second, 10, 0xffff, 0, OP_HIT);
	run_expect(second, 11, 0xffff, 0, OP_HIT);
	assert_runs_free(w);
	client_free(second);
}

static void lots_of_two_channels_alternate(void **state)
{
	two_channels(*state, 131072);
}

static void lots_of_two_channels_alternate_with_a_lease(void **state)
{
	struct world *w = *state;

	w->rail->options.lease = true;
	handle->limbo_ns = 1000 * MS;
	two_channels(w, 131072);
	assert_int_equal(world_counter(w, COUNTER_leases_expired), 0);
}

/* A lot is of whole pages, whatever their length. */
static void lots_of_pages_that_fill_none_exactly_alternate(void **state)
{
	two_channels(*state, 200704);
}

/* A run of `n` pages of two segments that do not touch, to one half of `home`. */
static struct draft scattered_of(struct world *w, uint32_t cookie, unsigned n, uint32_t bytes)
{
	struct draft d = draft_of(w, cookie, 0, 51, n, bytes);

	d.run.segments = 2;
	d.run.stride_or_to = bytes / 2 + 64;
	for (unsigned i = 0; i < n; i++)
		d.entry[i].to = cookie * (WORLD_HOME_BYTES / 2) + i * (uint64_t)(bytes + 64);
	return d;
}

/* Three pages are a lot. Steps that post two of them only do not prolong it. */
static void lots_of_scattered_pages_last_over_steps(void **state)
{
	struct world *w = *state;
	struct client *second = client_new(w, 7, WORLD_SESSION);
	struct draft d[2];
	uint64_t half = (uintptr_t)w->home + WORLD_HOME_BYTES / 2;
	unsigned posted[2] = {0, 0}, last = 2, turn = 0;
	uint32_t bytes = 200704;

	rail_conn_add(w, handle);
	pages_put(w, 0, 51, 15, bytes);
	for (unsigned i = 0; i < 2; i++) {
		d[i] = scattered_of(w, i, 15, bytes);
		draft_submit(i ? second : client, &d[i]);
	}
	for (post(w); posted[0] < 15 && posted[1] < 15; post(w)) {
		for (unsigned i = 0; i < w->wqes; i++) {
			unsigned to = w->wqe[i].sge[0].address >= half;

			if (w->wqe[i].rkey != WORLD_POOL_RKEY)
				continue;
			posted[to]++;
			turn = to == last ? turn + 1 : 1;
			assert_in_range(turn, 1, 3);
			last = to;
		}
		complete_some(w, w->wqes);
	}
	world_run(w);
	run_expect(client, 0, 0x7fff, 0, OP_HIT);
	run_expect(second, 1, 0x7fff, 0, OP_HIT);
	assert_runs_free(w);
	client_free(second);
}

static void a_run_does_not_wait_behind_the_queued_runs_of_another_channel(void **state)
{
	struct world *w = *state;
	struct client *second = client_new(w, 7, WORLD_SESSION);
	uint64_t posted[2];
	struct draft d;

	rail_conn_add(w, handle);
	pages_put(w, 0, 33, 32, 131072);
	for (unsigned i = 0; i < 8; i++) { /* all of them are taken, half of them are posted */
		d = draft_of(w, i, 0, 33, 2, 131072);
		draft_submit(client, &d);
	}
	post(w);
	assert_int_equal(w->wqes, 8);
	d = draft_of(w, 100, 0, 33, 2, 131072);
	d.entry[0].to += WORLD_HOME_BYTES / 2;
	d.entry[1].to += WORLD_HOME_BYTES / 2;
	draft_submit(second, &d);
	world_settle(w);
	complete_some(w, 4);
	post(w);
	count_halves(w, posted);
	assert_int_equal(posted[1], 2 * 131072);
	world_run(w);
	run_expect(second, 100, 3, 0, OP_HIT);
	assert_runs_free(w);
	client_free(second);
}

static void a_connection_that_hangs_leaves_runs_to_the_others(void **state)
{
	struct world *w = *state;
	struct rail_conn *other = rail_conn_new(w, 4, 44, 2);
	struct op_done done;
	struct draft d;

	rail_conn_add(w, handle);
	rail_conn_add(w, other);
	pages_put(w, 0, 1, 1, 4096);
	for (unsigned i = 0; i < OP_RING_SLOTS; i++) { /* single pages: one line each */
		d = draft_of(w, i, 0, 1, 1, 64);
		draft_submit(client, &d);
	}
	world_settle(w);
	assert_in_range(w->rail->runs_free, RAIL_RUNS / 3, RAIL_RUNS);
	assert_int_equal(w->rail->parked, 0);
	nic_pull(w);
	world_run(w);
	for (unsigned i = 0; i < OP_RING_SLOTS; i++)
		assert_true(client_done(client, &done));
	assert_no_answer(client);
	assert_runs_free(w);
	rail_conn_free(w, other);
}

/* A page in more SGEs than a WQE has needs several; it has arrived when the last one has. */
static void the_wqes_of_a_scattered_page_stay_on_one_qp(void **state)
{
	struct world *w = *state;
	struct draft d;

	rail_conn_add(w, handle);
	pages_put(w, 0, 64, 4, 65536);
	d = draft_of(w, 1, 0, 64, 4, 65536);
	d.run.segments = 32;
	d.run.stride_or_to = 4096;
	for (unsigned i = 0; i < 4; i++)
		d.entry[i].to = i * 2u * 65536u;
	draft_submit(client, &d);
	post(w);
	for (unsigned i = 0; i < w->wqes; i++)
		for (unsigned j = 0; j < i; j++)
			if ((w->wqe[i].remote - (uintptr_t)w->pool) / (64 * PAGE_UNIT) ==
				(w->wqe[j].remote - (uintptr_t)w->pool) / (64 * PAGE_UNIT))
				assert_ptr_equal(w->wqe[i].qp, w->wqe[j].qp);
	world_run(w);
	run_expect(client, 1, 0xf, 0, OP_HIT);
	assert_runs_free(w);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_run_is_posted_within_the_budget_of_bytes_in_flight),
		TEST(many_small_runs_stay_within_the_queues),
		TEST(lots_of_two_channels_alternate),
		TEST(lots_of_two_channels_alternate_with_a_lease),
		TEST(lots_of_pages_that_fill_none_exactly_alternate),
		TEST(lots_of_scattered_pages_last_over_steps),
		TEST(a_run_does_not_wait_behind_the_queued_runs_of_another_channel),
		TEST(a_connection_that_hangs_leaves_runs_to_the_others),
		TEST(the_wqes_of_a_scattered_page_stay_on_one_qp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
