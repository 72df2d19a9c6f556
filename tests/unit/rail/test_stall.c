/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections with rail_conn.stall_ns, which the control plane sets if other rails can take over:
 * one without completions is broken before any deadline, and one that failed before takes no op
 * until its probe READ has succeeded.
 */
#include "tests/unit/rail/world.h"

#define MS 1000000ull
#define STALL_MS 30u
#define LONG_BYTES (128u << 10) /* page length for which each READ requests a CQE */

static struct client *client;
static struct rail_conn *handle;

static int setup(void **state)
{
	struct world *w;

	world_setup(state);
	w = *state;
	client = client_new(w, 63, WORLD_SESSION);
	handle = rail_conn_new(w, 3, 33, 2);
	handle->stall_ns = STALL_MS * MS;
	page_put(w, 8, 8192, 77);
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	rail_conn_free(w, handle);
	client_free(client);
	return world_teardown(state);
}

/* Advances the test clock by `ms` in steps of 5 ms, and steps the rail after each. */
static void pass(struct world *w, uint64_t ms)
{
	for (; ms >= 5; ms -= 5) {
		clock_test_set(w->now_ns += 5 * MS);
		world_settle(w);
	}
}

/* Flushes and drops the connection; when it is returned, all requests of the rail must be free. */
static void drop(struct world *w)
{
	struct op_done done;

	nic_flush(w, handle);
	rail_conn_drop(w, handle);
	world_settle(w);
	while (client_done(client, &done))
		assert_int_equal(done.status, OP_PEER_DOWN);
	world_event(w, RAIL_CONN_RETURNED);
	assert_true(world_silent(w));
	assert_int_equal(rail_in_flight(w->rail), 0);
	assert_int_equal(w->rail->taken_bytes, 0);
	assert_int_equal(w->rail->posted_bytes, 0);
	assert_int_equal(w->rail->parked, 0);
	assert_int_equal(w->rail->runs_free, RAIL_RUNS);
}

static void a_connection_without_completions_is_broken_before_any_deadline(void **state)
{
	struct world *w = *state;
	struct op_done done;

	rail_conn_add(w, handle);
	page_get(w, client, 1, 8, 8192, 77, 0);
	page_get(w, client, 2, 8, 8192, 77, 8192);
	world_settle(w);
	pass(w, STALL_MS - 5);
	assert_true(world_silent(w));
	pass(w, 10);
	assert_int_equal(world_event(w, RAIL_CONN_BROKEN).detail, 0);
	/* the op is not answered: the NIC may still write to its buffer */
	assert_false(client_done(client, &done));
	page_get(w, client, 3, 8, 8192, 77, 0);
	world_settle(w);
	/* the op for the broken connection is refused at once */
	client_expect(client, 3, OP_PEER_DOWN);
	drop(w);
}

static void a_connection_with_completions_is_not_broken(void **state)
{
	struct world *w = *state;
	struct op_done done;

	page_put(w, 64, LONG_BYTES, 78);
	rail_conn_add(w, handle);
	for (unsigned i = 0; i < 8; i++)
		page_get(w, client, i, 64, LONG_BYTES, 78, 0);
	world_settle(w);
	nic_pull(w);
	for (unsigned i = 0; i < 8; i++) {
		pass(w, STALL_MS - 10);
		nic_complete(w, 0, 0);
	}
	world_run(w);
	for (unsigned i = 0; i < 8; i++)
		assert_true(client_done(client, &done) && done.status == OP_HIT);
	pass(w, 5 * STALL_MS); /* a connection without READs in flight is not broken either */
	assert_true(world_silent(w));
	rail_conn_drop(w, handle);
	world_settle(w);
	world_event(w, RAIL_CONN_RETURNED);
}

static void time_in_which_the_poll_core_did_not_run_does_not_count(void **state)
{
	struct world *w = *state;

	rail_conn_add(w, handle);
	page_get(w, client, 1, 8, 8192, 77, 0);
	world_settle(w);
	pass(w, 10);
	clock_test_set(w->now_ns += 900 * MS); /* as if the poll core had not run for 900 ms */
	world_settle(w);
	pass(w, 5);
	assert_true(world_silent(w));
	world_run(w);
	client_expect(client, 1, OP_HIT);
	rail_conn_drop(w, handle);
	world_settle(w);
	world_event(w, RAIL_CONN_RETURNED);
}

static void a_probing_connection_reads_a_head_before_it_takes_ops(void **state)
{
	struct world *w = *state;

	handle->probe = true;
	rail_conn_add(w, handle);
	nic_pull(w);
	assert_int_equal(w->wqes, 1);
	assert_int_equal(w->wqe[0].rkey, WORLD_HEADS_RKEY);
	assert_int_equal(w->wqe[0].bytes, sizeof(struct page_head));
	page_get(w, client, 1, 8, 8192, 77, 0);
	world_settle(w);
	client_expect(client, 1, OP_PEER_DOWN);
	assert_true(world_silent(w));
	nic_complete(w, 0, 0);
	world_settle(w);
	assert_ptr_equal(world_event(w, RAIL_CONN_PROVEN).object, handle);
	page_get(w, client, 2, 8, 8192, 77, 0);
	world_run(w);
	client_expect(client, 2, OP_HIT);
	rail_conn_drop(w, handle);
	world_settle(w);
	world_event(w, RAIL_CONN_RETURNED);
	assert_int_equal(w->rail->runs_free, RAIL_RUNS);
}

static void a_probe_without_an_answer_breaks_the_connection(void **state)
{
	struct world *w = *state;

	handle->probe = true;
	rail_conn_add(w, handle);
	pass(w, STALL_MS + 10);
	world_event(w, RAIL_CONN_BROKEN);
	drop(w);
}

static void a_failed_probe_breaks_the_connection(void **state)
{
	struct world *w = *state;

	handle->probe = true;
	rail_conn_add(w, handle);
	nic_pull(w);
	nic_complete(w, 0, DV_SYNDROME_RETRY_EXCEEDED);
	world_settle(w);
	assert_int_equal(world_event(w, RAIL_CONN_BROKEN).detail, DV_SYNDROME_RETRY_EXCEEDED);
	drop(w);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_connection_without_completions_is_broken_before_any_deadline),
		TEST(a_connection_with_completions_is_not_broken),
		TEST(time_in_which_the_poll_core_did_not_run_does_not_count),
		TEST(a_probing_connection_reads_a_head_before_it_takes_ops),
		TEST(a_probe_without_an_answer_breaks_the_connection),
		TEST(a_failed_probe_breaks_the_connection),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
