/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands of the control plane: stopping channels, dropped regions, the stop of a rail, and a full
 * event ring. Nothing is returned while the NIC may still use it.
 */
#include "tests/unit/rail/runs.h"

#define CLIENT_NUMBER 9
#include "tests/unit/rail/client_world.h"

static void get_from(struct world *w, struct client *c, uint64_t cookie, uint16_t number)
{
	struct op op = page_op(w, cookie, 8, 8192, 77);
	struct op_segment s = home_at(cookie * 8192, 8192);

	op.peer = (uint16_t)number;
	client_submit(c, &op, &s);
}

static void stop_channel(struct world *w, struct client *c)
{
	world_command(w, (struct rail_command){.kind = RAIL_CHANNEL_STOP, .object = &c->channel});
	world_settle(w);
}

static void an_idle_channel_that_stops_is_returned_at_once(void **state)
{
	struct world *w = *state;
	struct client *other = client_new(w, 10, WORLD_SESSION);

	stop_channel(w, client);
	assert_ptr_equal(world_event(w, RAIL_CHANNEL_RETURNED).object, &client->channel);
	get_from(w, client, 1, 3);
	get_from(w, other, 2, 3);
	world_run(w);
	client_expect(other, 2, OP_HIT);
	assert_int_equal(world_counter(w, COUNTER_ops_taken), 1);
	client_free(other);
}

static void a_stopping_channel_is_returned_after_its_last_cqe_and_gets_no_completion(void **state)
{
	struct world *w = *state;
	struct op_done done;

	get_from(w, client, 1, 3);
	get_from(w, client, 2, 3);
	get_from(w, client, 3, 4); /* this op is parked: it waits for a connection to its peer */
	world_settle(w);
	world_event(w, RAIL_CONN_WANTED);
	nic_pull(w);
	assert_int_equal(client->channel.in_flight, 3);
	stop_channel(w, client);
	assert_int_equal(client->channel.in_flight, 2);
	assert_true(world_silent(w));
	nic_complete(w, 0, 0);
	world_settle(w);
	assert_true(world_silent(w));
	nic_complete(w, 0, 0);
	world_settle(w);
	assert_ptr_equal(world_event(w, RAIL_CHANNEL_RETURNED).object, &client->channel);
	assert_false(client_done(client, &done));
	/* The rail posted no READ of a page head for the cancelled ops. */
	nic_pull(w);
	assert_int_equal(w->wqes, 0);
}

/* The CQE and the command are seen in the same step, before its completions are published. */
static void a_channel_that_stops_in_the_step_of_its_completion_is_not_answered(void **state)
{
	struct world *w = *state;
	struct op_done done;

	for (uint32_t stopped = 0; stopped < 2; stopped++) { /* the first one, the last one */
		struct client *c[2];

		for (uint32_t i = 0; i < 2; i++) {
			c[i] = client_new(w, 10 + i, WORLD_SESSION);
			get_from(w, c[i], i, 3);
		}
		for (unsigned i = 0; i < 2; i++) { /* payload, page heads */
			world_settle(w);
			nic_pull(w);
			while (w->wqes)
				nic_complete(w, 0, 0);
		}
		stop_channel(w, c[stopped]);
		assert_ptr_equal(
			world_event(w, RAIL_CHANNEL_RETURNED).object, &c[stopped]->channel);
		assert_false(client_done(c[stopped], &done));
		client_expect(c[!stopped], !stopped, OP_HIT);
		stop_channel(w, c[!stopped]);
		world_event(w, RAIL_CHANNEL_RETURNED);
		client_free(c[0]);
		client_free(c[1]);
	}
}

static void a_stopping_channel_does_not_wait_for_a_dead_peer(void **state)
{
	struct world *w = *state;
	struct op op = page_op(w, 1, 8, 8192, 77);
	struct op_segment s = home_at(0, 8192);

	op.deadline_ns = w->now_ns + OP_SPAN_NS - OP_TIME_NS;
	client_submit(client, &op, &s);
	world_settle(w);
	nic_pull(w);
	stop_channel(w, client);
	for (unsigned ms = 0; ms < 1040; ms += 10) {
		clock_test_set(w->now_ns += 10 * 1000 * 1000);
		world_settle(w);
	}
	assert_int_equal(world_event(w, RAIL_CONN_BROKEN).detail, 0);
	assert_true(world_silent(w));
	nic_flush(w, handle);
	world_settle(w);
	world_event(w, RAIL_CHANNEL_RETURNED);
}

static void a_stopping_channel_posts_no_more_slices_of_a_large_page(void **state)
{
	struct world *w = *state;
	struct op op = page_op(w, 1, 16, 2 * RAIL_IN_FLIGHT_BYTES, 5);
	struct op_segment s = home_at(0, 2 * RAIL_IN_FLIGHT_BYTES);

	client_submit(client, &op, &s);
	world_settle(w);
	nic_pull(w);
	stop_channel(w, client);
	while (w->wqes) {
		assert_true(world_silent(w));
		nic_complete(w, 0, 0);
		world_settle(w);
	}
	world_event(w, RAIL_CHANNEL_RETURNED);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), RAIL_IN_FLIGHT_BYTES / SLICE_BYTES);
}

static void the_number_of_a_returned_channel_can_be_used_again(void **state)
{
	struct world *w = *state;
	struct client *third = client_new(w, 11, WORLD_SESSION), *next;

	stop_channel(w, client);
	world_event(w, RAIL_CHANNEL_RETURNED);
	next = client_new(w, 9, WORLD_SESSION);
	get_from(w, next, 1, 3);
	get_from(w, third, 2, 3);
	world_run(w);
	client_expect(next, 1, OP_HIT);
	client_expect(third, 2, OP_HIT);
	stop_channel(w, third);
	stop_channel(w, next);
	assert_ptr_equal(world_event(w, RAIL_CHANNEL_RETURNED).object, &third->channel);
	assert_ptr_equal(world_event(w, RAIL_CHANNEL_RETURNED).object, &next->channel);
	client_free(next);
	client_free(third);
}

static void drop_region(struct world *w, uint32_t id)
{
	struct rail_command command = {.kind = RAIL_REGION_DROP, .region.id = id};

	world_command(w, command);
	world_settle(w);
}

static void a_dropped_region_refuses_new_ops_and_is_returned_after_its_last_cqe(void **state)
{
	struct world *w = *state;

	get_from(w, client, 1, 3);
	world_settle(w);
	nic_pull(w);
	drop_region(w, WORLD_REGION);
	assert_true(world_silent(w));
	get_from(w, client, 2, 3);
	world_settle(w);
	client_expect(client, 2, OP_INVALID);
	nic_complete(w, 0, 0);
	world_settle(w);
	/*
	 * the READ of the page head is in flight, so the op is not finished and the channel not
	 * returned
	 */
	assert_true(world_silent(w));
	world_run(w);
	assert_int_equal(world_event(w, RAIL_REGION_RETURNED).detail, WORLD_REGION);
	client_expect(client, 1, OP_HIT);
	get_from(w, client, 3, 3);
	world_settle(w);
	client_expect(client, 3, OP_INVALID);
	drop_region(w, WORLD_REGION);
	world_region_beyond(w);
	drop_region(w, REGIONS_MAX);
	assert_true(world_silent(w));
}

static void an_unused_region_is_returned_at_once(void **state)
{
	struct world *w = *state;

	drop_region(w, WORLD_REGION);
	assert_int_equal(world_event(w, RAIL_REGION_RETURNED).detail, WORLD_REGION);
}

static void tell_stop(struct world *w)
{
	world_command(w, (struct rail_command){.kind = RAIL_STOP});
}

static void steps(struct world *w, unsigned n)
{
	while (n--)
		rail_step(w->rail, 0);
}

static void a_rail_stops_once_it_is_drained_and_its_connections_are_returned(void **state)
{
	struct world *w = *state;

	get_from(w, client, 1, 3);
	get_from(w, client, 2, 4);
	world_settle(w);
	world_event(w, RAIL_CONN_WANTED);
	nic_pull(w);
	tell_stop(w);
	world_settle(w);
	/* the op waited for a connection (parked), so it ends without a READ */
	client_expect(client, 2, OP_CANCELLED);
	get_from(w, client, 3, 3);
	steps(w, 100);
	client_expect(client, 3, OP_CANCELLED);
	assert_true(world_silent(w));
	rail_conn_drop(w, handle);
	steps(w, 100);
	assert_true(world_silent(w));
	nic_flush(w, handle);
	steps(w, RAIL_STOP_STEPS + 2);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, handle);
	client_expect(client, 1, OP_PEER_DOWN);
	world_event(w, RAIL_STOPPED);
	assert_true(w->rail->stopped);
	steps(w, 100);
	assert_true(world_silent(w));
}

static void a_rail_does_not_stop_before_its_connections_are_dropped(void **state)
{
	struct world *w = *state;

	tell_stop(w);
	steps(w, 2 * RAIL_STOP_STEPS);
	assert_true(world_silent(w));
	rail_conn_drop(w, handle);
	steps(w, 2);
	world_event(w, RAIL_CONN_RETURNED);
	world_event(w, RAIL_STOPPED);
}

/* Fills the ring with runs of as many buckets in each line as possible. Returns their number. */
static uint32_t ring_fill(struct world *w)
{
	uint32_t runs = 0, most = RUN_HEADER_BUCKETS + RUN_LINE_BUCKETS;
	struct draft d = lookup_of(w, 0, 0, 1, most);

	assert_int_equal(run_lines(OP_LOOKUP, most), 2);
	for (uint32_t line = 0; line < OP_RING_SLOTS; line += 2, runs++) {
		d.run.cookie = runs;
		draft_submit(client, &d);
	}
	return runs;
}

static void expect_cancelled(uint32_t runs)
{
	struct op_done done;

	for (uint32_t i = 0; i < runs; i++)
		run_expect(client, i, 0, 0, OP_CANCELLED);
	assert_false(client_done(client, &done));
}

/* As a poll core, which steps the rail until it has stopped. */
static void steps_until_stopped(struct world *w)
{
	struct rail_event event;
	unsigned took = 1;

	steps(w, 1);
	world_event(w, RAIL_CONN_RETURNED);
	for (; !rail_event_take(w->rail, &event); took++)
		steps(w, 1);
	assert_int_equal(event.kind, RAIL_STOPPED);
	assert_int_equal(took, RAIL_STOP_STEPS + 1);
}

static void a_rail_that_stops_cancels_every_run_of_a_full_ring(void **state)
{
	struct world *w = *state;
	uint32_t runs = ring_fill(w);

	tell_stop(w);
	rail_conn_drop(w, handle);
	steps_until_stopped(w);
	expect_cancelled(runs);
}

/* As if many connections, which have not ended yet, held all runs. */
static void a_rail_that_stops_cancels_a_full_ring_after_it_had_no_free_run(void **state)
{
	struct world *w = *state;
	uint32_t runs, others;

	get_from(w, client, 1, 3);
	world_settle(w);
	nic_pull(w);
	others = w->rail->runs_free;
	w->rail->runs_free = 0;
	runs = ring_fill(w);
	tell_stop(w);
	rail_conn_drop(w, handle);
	steps(w, 2 * RAIL_STOP_STEPS);
	assert_true(world_silent(w));
	w->rail->runs_free = others;
	nic_flush(w, handle);
	steps_until_stopped(w);
	client_expect(client, 1, OP_PEER_DOWN);
	expect_cancelled(runs);
}

static void a_rail_without_channels_stops_at_once(void **state)
{
	struct world *w = *state;

	stop_channel(w, client);
	world_event(w, RAIL_CHANNEL_RETURNED);
	rail_conn_drop(w, handle);
	tell_stop(w);
	steps(w, 1);
	world_event(w, RAIL_CONN_RETURNED);
	world_event(w, RAIL_STOPPED);
}

static void a_connection_added_to_a_stopping_rail_is_returned_at_once(void **state)
{
	struct world *w = *state;
	struct rail_conn *late = rail_conn_new(w, 5, 55, 1);

	tell_stop(w);
	rail_conn_drop(w, handle);
	world_command(w, (struct rail_command){.kind = RAIL_CONN_ADD, .object = late});
	steps(w, RAIL_STOP_STEPS + 2);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, handle);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, late);
	world_event(w, RAIL_STOPPED);
	rail_conn_free(w, late);
}

static void no_event_is_lost_when_the_event_ring_is_full(void **state)
{
	struct world *w = *state;
	struct rail_region region = {.session = WORLD_SESSION, .length = 4096, .lkey = WORLD_LKEY};
	unsigned heard = 0;
	struct rail_event event;

	for (unsigned i = 0; i < INBOX_SLOTS;
		i++) { /* fills the event ring with requests for connections until it has no room */
		rail_event_send(w->rail, &(struct rail_event){.kind = RAIL_CONN_WANTED, .ref = i});
		rail_step(w->rail, 0);
	}
	for (region.id = REGION_CLIENT_0; region.id < WORLD_REGION; region.id++) {
		world_command(w, (struct rail_command){.kind = RAIL_REGION_ADD, .region = region});
		drop_region(w, region.id);
	}
	while (rail_event_take(w->rail, &event)) {
		if (heard < INBOX_SLOTS) {
			assert_int_equal(event.ref, heard);
		} else {
			assert_int_equal(event.kind, RAIL_REGION_RETURNED);
			assert_int_equal(event.detail, REGION_CLIENT_0 + heard - INBOX_SLOTS);
		}
		heard++;
		rail_step(w->rail, 0);
	}
	assert_int_equal(heard, INBOX_SLOTS + WORLD_REGION - REGION_CLIENT_0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_idle_channel_that_stops_is_returned_at_once),
		TEST(a_stopping_channel_is_returned_after_its_last_cqe_and_gets_no_completion),
		TEST(a_channel_that_stops_in_the_step_of_its_completion_is_not_answered),
		TEST(a_stopping_channel_does_not_wait_for_a_dead_peer),
		TEST(a_stopping_channel_posts_no_more_slices_of_a_large_page),
		TEST(the_number_of_a_returned_channel_can_be_used_again),
		TEST(a_dropped_region_refuses_new_ops_and_is_returned_after_its_last_cqe),
		TEST(an_unused_region_is_returned_at_once),
		TEST(a_rail_stops_once_it_is_drained_and_its_connections_are_returned),
		TEST(a_rail_does_not_stop_before_its_connections_are_dropped),
		TEST(a_rail_that_stops_cancels_every_run_of_a_full_ring),
		TEST(a_rail_that_stops_cancels_a_full_ring_after_it_had_no_free_run),
		TEST(a_rail_without_channels_stops_at_once),
		TEST(a_connection_added_to_a_stopping_rail_is_returned_at_once),
		TEST(no_event_is_lost_when_the_event_ring_is_full),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
