/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs that are parked, expire, are cancelled, or lose their connection in the middle: which pages
 * stay hits, what the others get, and that no run is answered while the NIC holds one of its READs.
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

/*
 * A run of 16 pages of 128 KiB, of which 8 are posted: 1 MiB. They have arrived and their heads are
 * posted, and so is payload of the other 8.
 */
static void half_a_run(struct world *w)
{
	struct draft d;

	rail_conn_add(w, handle);
	pages_put(w, 0, 33, 16, 131072);
	d = draft_of(w, 1, 0, 33, 16, 131072);
	for (unsigned i = 0; i < 16; i++)
		d.entry[i].to = i * 131072u;
	draft_submit(client, &d);
	post(w);
	assert_int_equal(w->wqes, 8);
	complete_some(w, 8);
	post(w);
	assert_true(w->wqes > 0);
	assert_no_answer(client);
}

static unsigned index_of_heads(const struct world *w)
{
	unsigned i = 0;

	while (i < w->wqes && w->wqe[i].rkey != WORLD_HEADS_RKEY)
		i++;
	assert_true(i < w->wqes);
	return i;
}

/* Completes all READs of heads; the QP they are on has nothing before them. */
static void complete_heads(struct world *w)
{
	for (unsigned i = 0; i < w->wqes;) {
		bool first = w->wqe[i].rkey == WORLD_HEADS_RKEY;

		for (unsigned j = 0; j < i; j++)
			first = first && w->wqe[j].qp != w->wqe[i].qp;
		if (first)
			nic_complete(w, i, 0);
		else
			i++;
	}
}

static void pages_validated_before_an_error_stay_hits(void **state)
{
	struct world *w = *state;

	half_a_run(w);
	complete_heads(w);
	world_settle(w);
	nic_pull(w);
	nic_complete(w, 0, DV_SYNDROME_REMOTE_ACCESS);
	world_settle(w);
	/* the NIC holds the other READs: no answer yet */
	assert_true(w->wqes > 0);
	assert_no_answer(client);
	world_event(w, RAIL_CONN_BROKEN);
	nic_flush(w, handle);
	world_settle(w);
	run_expect(client, 1, 0xff, 0, OP_NIC_ERROR);
	assert_int_equal(world_counter(w, COUNTER_pages_read), 8);
	assert_int_equal(world_counter(w, COUNTER_pages_stale), 0);
	assert_int_equal(world_counter(w, COUNTER_reads_failed), 8);
	assert_runs_free(w);
}

static void pages_whose_heads_were_not_read_are_not_stale(void **state)
{
	struct world *w = *state;
	struct rail_event event;

	half_a_run(w);
	nic_complete(w, index_of_heads(w), DV_SYNDROME_RETRY_EXCEEDED);
	world_settle(w);
	assert_no_answer(client);
	event = world_event(w, RAIL_CONN_BROKEN);
	assert_int_equal(event.detail, DV_SYNDROME_RETRY_EXCEEDED);
	nic_flush(w, handle);
	world_settle(w);
	run_expect(client, 1, 0, 0, OP_NIC_ERROR);
	assert_runs_free(w);
}

static void payload_that_arrives_after_its_connection_broke_is_no_hit(void **state)
{
	struct world *w = *state;
	struct draft d;

	rail_conn_add(w, handle);
	pages_put(w, 0, 33, 4, 4096);
	d = draft_of(w, 1, 0, 33, 4, 4096);
	draft_submit(client, &d);
	post(w);
	rail_conn_drop(w, handle);
	world_settle(w);
	assert_no_answer(client);
	while (w->wqes)
		nic_complete(w, 0, 0);
	world_settle(w);
	run_expect(client, 1, 0, 0, OP_PEER_DOWN);
	world_event(w, RAIL_CONN_RETURNED);
	assert_runs_free(w);
}

static void a_dropped_connection_answers_when_its_last_read_is_flushed(void **state)
{
	struct world *w = *state;

	half_a_run(w);
	complete_heads(w);
	rail_conn_drop(w, handle);
	world_settle(w);
	assert_no_answer(client);
	nic_flush(w, handle);
	world_settle(w);
	run_expect(client, 1, 0xff, 0, OP_PEER_DOWN);
	world_event(w, RAIL_CONN_RETURNED);
	assert_runs_free(w);
}

static void a_lost_nic_holds_its_runs_until_they_are_retired(void **state)
{
	struct world *w = *state;

	half_a_run(w);
	complete_heads(w);
	world_settle(w);
	world_command(w, (struct rail_command){.kind = RAIL_LOST});
	world_settle(w);
	world_event(w, RAIL_CONN_BROKEN);
	world_event(w, RAIL_QUIET);
	assert_no_answer(client);
	world_command(w, (struct rail_command){.kind = RAIL_CONN_RETIRE, .object = handle});
	world_settle(w);
	run_expect(client, 1, 0xff, 0, OP_PEER_DOWN);
	world_event(w, RAIL_CONN_RETURNED);
	assert_runs_free(w);
}

/* ---- deadlines ------------------------------------------------------------------------------ */

static void a_run_past_its_deadline_is_not_posted(void **state)
{
	struct world *w = *state;
	struct draft d;

	rail_conn_add(w, handle);
	pages_put(w, 0, 1, 4, 4096);
	d = draft_of(w, 1, 0, 1, 4, 4096);
	d.run.deadline_ns = w->now_ns;
	draft_submit(client, &d);
	world_settle(w);
	run_expect(client, 1, 0, 0, OP_TIMEOUT);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), 0);
	assert_int_equal(world_counter(w, COUNTER_reads_timed_out), 4);
	assert_runs_free(w);
}

static void at_the_deadline_validated_pages_stay_hits_and_the_rest_times_out(void **state)
{
	struct world *w = *state;
	uint64_t posted;

	half_a_run(w);
	complete_heads(w);
	world_settle(w);
	posted = world_counter(w, COUNTER_wqes_posted);
	clock_test_set(w->now_ns += 1001 * MS);
	world_settle(w);
	assert_no_answer(client); /* the NIC holds READs of the run */
	nic_pull(w);
	while (w->wqes) { /* one by one: heads of what has arrived are not read any more */
		nic_complete(w, 0, 0);
		post(w);
	}
	run_expect(client, 1, 0xff, 0, OP_TIMEOUT);
	/* nothing more was posted after the deadline */
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), posted);
	assert_int_equal(world_counter(w, COUNTER_reads_timed_out), 8);
	assert_runs_free(w);
}

static void a_run_that_outlives_its_grace_breaks_the_connection(void **state)
{
	struct world *w = *state;

	half_a_run(w);
	clock_test_set(w->now_ns += 1001 * MS);
	world_settle(w);
	assert_true(world_silent(w));
	clock_test_set(w->now_ns += RUN_GRACE_NS + MS);
	world_settle(w);
	world_event(w, RAIL_CONN_BROKEN);
	nic_flush(w, handle);
	world_settle(w);
	run_expect(client, 1, 0, 0, OP_TIMEOUT);
	assert_runs_free(w);
}

/* ---- parking -------------------------------------------------------------------------------- */

static struct draft parked(struct world *w, uint32_t cookie, unsigned n)
{
	struct draft d;

	pages_put(w, 0, 1, n, 4096);
	d = draft_of(w, cookie, 0, 1, n, 4096);
	draft_submit(client, &d);
	world_settle(w);
	return d;
}

static void a_run_waits_for_a_connection(void **state)
{
	struct world *w = *state;
	struct rail_event event;

	parked(w, 1, 32);
	parked(w, 2, 5);
	event = world_event(w, RAIL_CONN_WANTED);
	assert_int_equal(event.peer, 3);
	assert_int_equal(event.ref, 33);
	assert_true(world_silent(w));
	assert_int_equal(w->rail->parked, 37); /* pages, not runs */
	assert_no_answer(client);
	rail_conn_add(w, handle);
	world_run(w);
	run_expect(client, 1, UINT32_MAX, 0, OP_HIT);
	run_expect(client, 2, 0x1f, 0, OP_HIT);
	assert_runs_free(w);
}

static void a_parked_run_is_checked_against_the_connection_it_gets(void **state)
{
	struct world *w = *state;

	parked(w, 1, 32);
	world_event(w, RAIL_CONN_WANTED);
	handle->region[REGION_POOL_0].length = 31 * PAGE_UNIT;
	rail_conn_add(w, handle);
	world_run(w);
	run_expect(client, 1, 0, 0, OP_INVALID);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), 0);
	assert_runs_free(w);
}

static void parked_runs_of_another_incarnation_keep_waiting(void **state)
{
	struct world *w = *state;
	struct rail_event event;
	struct draft d;

	parked(w, 1, 4);
	world_event(w, RAIL_CONN_WANTED);
	pages_put(w, 0, 1, 4, 4096);
	d = draft_of(w, 2, 0, 1, 4, 4096);
	d.run.peer_ref = 34;
	draft_submit(client, &d);
	rail_conn_add(w, handle);
	world_run(w);
	run_expect(client, 1, 0xf, 0, OP_HIT);
	event = world_event(w, RAIL_CONN_WANTED);
	assert_int_equal(event.ref, 34);
	assert_no_answer(client);
	world_command(w, (struct rail_command){.kind = RAIL_CONN_REFUSE, .peer = 3, .ref = 34});
	world_settle(w);
	run_expect(client, 2, 0, 0, OP_PEER_DOWN);
	assert_runs_free(w);
}

static void a_parked_run_ends_at_its_deadline(void **state)
{
	struct world *w = *state;

	parked(w, 1, 4);
	world_event(w, RAIL_CONN_WANTED);
	pass(w, 995);
	assert_no_answer(client);
	pass(w, 10);
	run_expect(client, 1, 0, 0, OP_TIMEOUT);
	assert_runs_free(w);
}

static void parked_runs_take_at_most_their_share_of_pages(void **state)
{
	struct world *w = *state;

	for (unsigned i = 0; i < RAIL_PARKED_MAX / RUN_PAGES_MAX; i++)
		parked(w, i, RUN_PAGES_MAX);
	world_event(w, RAIL_CONN_WANTED);
	assert_no_answer(client);
	parked(w, 1000, 1);
	run_expect(client, 1000, 0, 0, OP_PEER_DOWN);
	rail_conn_add(w, handle);
	world_run(w);
	for (unsigned i = 0; i < RAIL_PARKED_MAX / RUN_PAGES_MAX; i++)
		run_expect(client, i, UINT32_MAX, 0, OP_HIT);
	assert_runs_free(w);
}

static void a_stalled_connection_counts_its_pages_as_parked(void **state)
{
	struct world *w = *state;

	half_a_run(w);
	assert_int_equal(w->rail->taken_bytes, 16 * 131072);
	complete_heads(w);
	world_settle(w);
	assert_int_equal(w->rail->taken_bytes, 8 * 131072); /* of pages that are not decided */
	pass(w, 30);
	assert_int_equal(w->rail->parked, 16);
	assert_int_equal(w->rail->taken_bytes, 0);
	nic_pull(w);
	world_run(w);
	run_expect(client, 1, 0xffff, 0, OP_HIT);
	assert_runs_free(w);
}

/* ---- cancelled ------------------------------------------------------------------------------ */

static void a_stopped_channel_cancels_what_is_not_posted_and_waits_for_the_rest(void **state)
{
	struct world *w = *state;
	uint64_t posted;

	half_a_run(w);
	parked(w, 2, 4); /* a second run */
	posted = world_counter(w, COUNTER_wqes_posted);
	world_command(
		w, (struct rail_command){.kind = RAIL_CHANNEL_STOP, .object = &client->channel});
	world_settle(w);
	assert_true(world_silent(w)); /* the NIC may still write its memory */
	nic_pull(w);
	while (w->wqes)
		nic_complete(w, 0, 0);
	world_settle(w);
	world_event(w, RAIL_CHANNEL_RETURNED);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), posted);
	assert_no_answer(client);
	assert_runs_free(w);
}

static void a_rail_that_stops_cancels_parked_and_new_runs(void **state)
{
	struct world *w = *state;
	struct draft d;

	parked(w, 1, 4);
	world_event(w, RAIL_CONN_WANTED);
	world_command(w, (struct rail_command){.kind = RAIL_STOP});
	rail_step(w->rail, 0);
	run_expect(client, 1, 0, 0, OP_CANCELLED);
	d = draft_of(w, 2, 0, 1, 4, 4096);
	draft_submit(client, &d);
	rail_step(w->rail, 0);
	run_expect(client, 2, 0, 0, OP_CANCELLED);
	for (unsigned i = 0; i < RAIL_STOP_STEPS + 2; i++)
		rail_step(w->rail, 0);
	world_event(w, RAIL_STOPPED);
	assert_runs_free(w);
}

static void a_region_is_returned_when_no_run_uses_it(void **state)
{
	struct world *w = *state;
	struct rail_command drop = {.kind = RAIL_REGION_DROP, .region = {.id = WORLD_REGION}};

	half_a_run(w);
	world_command(w, drop);
	world_settle(w);
	assert_true(world_silent(w));
	world_run(w);
	run_expect(client, 1, 0xffff, 0, OP_HIT);
	assert_int_equal(world_event(w, RAIL_REGION_RETURNED).detail, WORLD_REGION);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(pages_validated_before_an_error_stay_hits),
		TEST(pages_whose_heads_were_not_read_are_not_stale),
		TEST(payload_that_arrives_after_its_connection_broke_is_no_hit),
		TEST(a_dropped_connection_answers_when_its_last_read_is_flushed),
		TEST(a_lost_nic_holds_its_runs_until_they_are_retired),
		TEST(a_run_past_its_deadline_is_not_posted),
		TEST(at_the_deadline_validated_pages_stay_hits_and_the_rest_times_out),
		TEST(a_run_that_outlives_its_grace_breaks_the_connection),
		TEST(a_run_waits_for_a_connection),
		TEST(a_parked_run_is_checked_against_the_connection_it_gets),
		TEST(parked_runs_of_another_incarnation_keep_waiting),
		TEST(a_parked_run_ends_at_its_deadline),
		TEST(parked_runs_take_at_most_their_share_of_pages),
		TEST(a_stalled_connection_counts_its_pages_as_parked),
		TEST(a_stopped_channel_cancels_what_is_not_posted_and_waits_for_the_rest),
		TEST(a_rail_that_stops_cancels_parked_and_new_runs),
		TEST(a_region_is_returned_when_no_run_uses_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
