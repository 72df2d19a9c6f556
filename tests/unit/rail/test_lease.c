/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Validation by lease: payload and heads in one round trip, the time that decides, and what follows
 * when it does not. The rail's clock, the fake NIC's samples and stops of the reader are under the
 * test's control: dv_poll() is replaced by one that can stop the thread before it looks at the CQ.
 */
#define dv_poll real_dv_poll
#include "dv/hot.h"
#undef dv_poll

static unsigned stopping_poll(struct dv_cq *cq, struct dv_completion *ret, unsigned max);
#define dv_poll stopping_poll
#include "engine/rail/step.c"
#undef dv_poll

#include "tests/unit/rail/lease_world.h"

static struct world *stopped; /* the next dv_poll() is preceded by a stop of this world */
static uint64_t stop_ns;      /* for this long; meanwhile the NIC completes everything */

static unsigned stopping_poll(struct dv_cq *cq, struct dv_completion *ret, unsigned max)
{
	struct world *w = stopped;

	stopped = NULL;
	if (w) {
		nic_pull(w);
		while (w->wqes)
			nic_complete(w, 0, 0);
		clock_test_set(w->now_ns += stop_ns);
	}
	return real_dv_poll(cq, ret, max);
}

/* ---- the time that decides ------------------------------------------------------------------ */

/* Reads a run that takes `ns`; returns how many of its 8 pages were READ in vain. */
static uint64_t expired_after(struct world *w, uint64_t ns)
{
	uint64_t before = expired(w);

	submit_pages(w, 1, 64, 2, 8, 4096);
	post(w);
	complete_some(w, w->wqes);
	advance(w, ns);
	world_run(w);
	run_expect(client, 1, 0xff, 0, OP_HIT);
	return expired(w) - before;
}

static void a_lease_holds_for_less_than_95_percent_of_limbo(void **state)
{
	struct world *w = *state;

	assert_int_equal(expired_after(w, 0), 0);
	assert_int_equal(expired_after(w, LEASE - 1), 0);
	assert_int_equal(expired_after(w, LEASE), 8);
	assert_int_equal(expired_after(w, 10 * LIMBO), 8);
	/* the rule itself: neither L = 0 nor a clock that goes back validates */
	assert_false(lease_valid(5, 5, 0));
	assert_false(lease_valid(6, 5, LIMBO));
	assert_true(lease_valid(5, 5, LIMBO));
	assert_runs_free(w);
}

/* CLOCK_MONOTONIC slewed by 8%: 0.90 L on it are 0.978 L in truth. */
static void a_slewed_clock_does_not_stretch_the_lease(void **state)
{
	struct world *w = *state;
	uint64_t raw = w->now_ns;

	submit_pages(w, 1, 64, 2, 8, 4096);
	post(w);
	complete_some(w, w->wqes);
	advance(w, LIMBO / 100 * 90);
	clock_test_set_raw(raw + LIMBO / 1000 * 978);
	world_run(w);
	run_expect(client, 1, 0xff, 0, OP_HIT);
	assert_int_equal(expired(w), 8);
	/* slewed the other way, 0.96 L on CLOCK_MONOTONIC are 0.883 L */
	submit_pages(w, 2, 64, 2, 8, 4096);
	clock_test_set(w->now_ns);
	raw = w->now_ns;
	post(w);
	complete_some(w, w->wqes);
	advance(w, LIMBO / 100 * 96);
	clock_test_set_raw(raw + LIMBO / 1000 * 883);
	world_run(w);
	run_expect(client, 2, 0xff, 0, OP_HIT);
	assert_int_equal(expired(w), 8);
}

/*
 * Clocks that differ by 5%: while the reader's clock, which is slow, counts less than 0.95 L, the
 * owner's counts less than L.
 */
static void the_margin_covers_clocks_that_differ_by_five_percent(void **state)
{
	for (uint64_t limbo = 1000; limbo <= LEASE_NS_MAX; limbo *= 10)
		for (uint64_t reader = limbo / 2; reader < limbo; reader += limbo / 1000)
			if (lease_valid(0, reader, limbo))
				assert_true(reader * 100 < limbo * 95 && reader * 100 / 95 < limbo);
}

static void a_reader_stopped_before_it_polls_does_not_use_an_older_time(void **state)
{
	struct world *w = *state;

	submit_pages(w, 1, 64, 2, 8, 4096);
	rail_step(w->rail, w->now_ns);
	stopped = w;
	stop_ns = 10 * LIMBO;
	/* the caller hands over the time that it read before the stop */
	rail_step(w->rail, w->now_ns);
	assert_int_equal(expired(w), 8);
	assert_no_answer(client);
	world_run(w);
	run_expect(client, 1, 0xff, 0, OP_HIT);
}

/* T1 of one burst is too old for the next one. */
static void each_burst_of_cqes_has_its_own_time(void **state)
{
	struct world *w = *state;
	uint64_t now_ns = w->now_ns;

	submit_pages(w, 1, 64, 16, 8, 4096);
	post(w);
	submit_pages(w, 2, 1024, 16, 8, 4096);
	post(w);
	complete_some(w, 16);
	rail_step(w->rail, now_ns);
	run_expect(client, 1, 0xff, 0, OP_HIT);
	complete_some(w, 16);
	advance(w, 2 * LIMBO);
	rail_step(w->rail, now_ns);
	assert_no_answer(client);
	assert_int_equal(expired(w), 8);
	world_run(w);
	run_expect(client, 2, 0xff, 0, OP_HIT);
}

/* Send queues shorter than QP_DEPTH. */
static int setup_short_queues(void **state)
{
	struct world *w = lease_setup(state, 4);

	for (unsigned q = 0; q < handle->qps; q++)
		handle->sq[q]->wqe_cnt = 32;
	rail_conn_add(w, handle);
	return 0;
}

/* A page that is posted in parts is as old as its first part. */
static void time_begins_with_the_first_part_of_a_page(void **state)
{
	struct world *w = *state;
	unsigned parts = 128; /* five WQEs of up to eight WQEBBs */
	struct draft d;

	pages_put(w, 64, 16, 1, 65536);
	d = draft_of(w, 1, 64, 16, 1, 65536);
	d.run.segments = (uint16_t)parts;
	d.run.stride_or_to = 2 * (65536 / parts);
	draft_submit(client, &d);
	post(w); /* as much as fits the queue pair */
	complete_some(w, w->wqes);
	advance(w, LEASE - 1);
	post(w); /* the rest, and the head */
	assert_true(w->wqes > 1);
	assert_int_equal(w->wqe[w->wqes - 1].rkey, WORLD_HEADS_RKEY);
	complete_some(w, w->wqes);
	advance(w, 1);
	world_settle(w);
	assert_no_answer(client);
	world_run(w);
	run_expect(client, 1, 1, 0, OP_HIT);
	assert_int_equal(expired(w), 1);
	assert_runs_free(w);
}

/* ---- what an expired lease leads to --------------------------------------------------------- */

/*
 * The reader stops for 10 L between T0 and T1, and the slots are reused. The NIC had sampled the
 * heads before, and samples the payload, sent again, afterwards.
 */
static void pages_reused_while_the_reader_was_stopped_are_not_hits(void **state)
{
	struct world *w = *state;

	submit_pages(w, 1, 64, 2, 8, 4096);
	post(w);
	for (unsigned i = 0; i < w->wqes; i++)
		if (w->wqe[i].rkey == WORLD_HEADS_RKEY)
			nic_sample(w, i);
	for (unsigned i = 0; i < 4; i++) {
		page_head_retire(&w->heads[64 + 2 * i]);
		memset(w->pool + (64 + 2 * i) * (size_t)PAGE_UNIT, 0x66, PAGE_UNIT);
	}
	advance(w, 10 * LIMBO);
	complete_some(w, w->wqes);
	assert_int_equal(round_trips(w), 1); /* the heads, again */
	run_expect(client, 1, 0xf0, 0x0f, OP_HIT);
	assert_int_equal(expired(w), 8);
	assert_int_equal(world_counter(w, COUNTER_pages_stale), 4);
	assert_runs_free(w);
}

static void a_head_that_does_not_match_is_stale_without_another_read(void **state)
{
	struct world *w = *state;

	submit_pages(w, 1, 64, 2, 8, 4096);
	w->heads[66].generation++;
	post(w);
	complete_some(w, w->wqes);
	advance(w, 10 * LIMBO);
	world_run(w);
	run_expect(client, 1, 0xfd, 0x02, OP_HIT);
	assert_int_equal(expired(w), 7);
}

static void a_connection_that_breaks_keeps_validated_pages_and_drops_the_rest(void **state)
{
	struct world *w = *state;

	submit_pages(w, 1, 64, 16, 8, 4096);
	post(w);
	complete_some(w, 8 + 4); /* six pages with their heads */
	nic_complete(w, 0, DV_SYNDROME_REMOTE_ACCESS);
	while (w->wqes)
		nic_complete(w, 0, DV_SYNDROME_FLUSHED);
	world_settle(w);
	run_expect(client, 1, 0x3f, 0, OP_NIC_ERROR);
	world_event(w, RAIL_CONN_BROKEN);
	assert_int_equal(w->rail->landings_free, RAIL_LANDINGS);
}

static void a_run_whose_lease_and_connection_end_is_not_read_again(void **state)
{
	struct world *w = *state;

	submit_pages(w, 1, 64, 2, 8, 4096);
	post(w);
	complete_some(w, w->wqes);
	advance(w, 2 * LIMBO);
	w->rail->peer[3].conn->state = CONN_BROKEN;
	world_settle(w);
	run_expect(client, 1, 0, 0, OP_PEER_DOWN);
	w->rail->peer[3].conn->state = CONN_OPEN;
	assert_runs_free(w);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_lease_holds_for_less_than_95_percent_of_limbo),
		TEST(a_slewed_clock_does_not_stretch_the_lease),
		TEST(the_margin_covers_clocks_that_differ_by_five_percent),
		TEST(a_reader_stopped_before_it_polls_does_not_use_an_older_time),
		TEST(each_burst_of_cqes_has_its_own_time),
		cmocka_unit_test_setup_teardown(
			time_begins_with_the_first_part_of_a_page, setup_short_queues, teardown),
		TEST(pages_reused_while_the_reader_was_stopped_are_not_hits),
		TEST(a_head_that_does_not_match_is_stale_without_another_read),
		TEST(a_connection_that_breaks_keeps_validated_pages_and_drops_the_rest),
		TEST(a_run_whose_lease_and_connection_end_is_not_read_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
