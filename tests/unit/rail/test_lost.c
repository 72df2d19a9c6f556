/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A NIC that does not flush its completions, or that is lost for good. Posted requests stay
 * unanswered until the control plane says that the NIC writes nothing any more.
 */
#include "tests/unit/rail/world.h"

#define MS 1000000ull

static struct client *client;
static struct rail_conn *handle;

static int setup(void **state)
{
	struct world *w;

	world_setup(state);
	w = *state;
	client = client_new(w, 63, WORLD_SESSION);
	handle = rail_conn_new(w, 3, 33, 2);
	page_put(w, 8, 8192, 77);
	rail_conn_add(w, handle);
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

/* Returns the rail's next event, which must come within `ms` of test time. */
static struct rail_event hear(struct world *w, uint32_t kind, uint64_t ms)
{
	struct rail_event event;

	while (!rail_event_take(w->rail, &event)) {
		assert_true(ms >= 5);
		pass(w, 5);
		ms -= 5;
	}
	assert_int_equal(event.kind, kind);
	return event;
}

static void retire(struct world *w)
{
	world_command(w, (struct rail_command){.kind = RAIL_CONN_RETIRE, .object = handle});
	world_settle(w);
}

static void read_start(struct world *w, uint64_t cookie)
{
	struct op op = page_op(w, cookie, 8, 8192, 77);
	struct op_segment s = home_at(cookie * 64, 64);

	op.length = 64;
	client_submit(client, &op, &s);
}

static void assert_all_free(struct world *w)
{
	assert_true(world_silent(w));
	assert_int_equal(rail_in_flight(w->rail), 0);
	assert_int_equal(w->rail->wqes, 0);
	assert_int_equal(w->rail->taken_bytes, 0);
	assert_int_equal(w->rail->posted_bytes, 0);
	assert_int_equal(w->rail->parked, 0);
	assert_int_equal(w->rail->runs_free, RAIL_RUNS);
}

static void a_connection_that_does_not_drain_is_reported_once_and_ends_when_retired(void **state)
{
	struct world *w = *state;
	uint64_t deadline_ns = w->now_ns + 1000 * MS;
	struct rail_event event;
	struct op_done done;

	page_get(w, client, 1, 8, 8192, 77, 0);
	page_get(w, client, 2, 8, 8192, 77, 8192);
	world_settle(w);
	nic_pull(w);
	/* the connection's QPs are in the error state, but the NIC flushes nothing */
	rail_conn_drop(w, handle);
	pass(w, 900);
	assert_true(world_silent(w));
	pass(w, 700);
	event = world_event(w, RAIL_CONN_STUCK);
	assert_ptr_equal(event.object, handle);
	assert_int_equal(event.ref, 33);
	assert_in_range(event.ns, 0, deadline_ns);
	pass(w, 5000);
	assert_true(world_silent(w)); /* the rail reports the stuck connection only once */
	/* the op is not answered: the NIC may still write to its buffer */
	assert_false(client_done(client, &done));
	retire(w);
	client_expect(client, 1, OP_TIMEOUT);
	client_expect(client, 2, OP_TIMEOUT);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, handle);
	assert_all_free(w);
}

/*
 * Whatever breaks the connection, the report comes within 2 s of the deadline, so that the op can
 * be answered.
 */
static void a_stuck_connection_is_reported_within_two_seconds_of_the_deadline(void **state)
{
	struct world *w = *state;

	page_get(w, client, 1, 8, 8192, 77, 0);
	world_settle(w);
	nic_pull(w);
	pass(w, 1000); /* lets the op's deadline pass */
	hear(w, RAIL_CONN_BROKEN, 300);
	/* 0: the earliest deadline of the posted requests has passed */
	assert_int_equal(hear(w, RAIL_CONN_STUCK, 1700).ns, 0);
	retire(w); /* sends RAIL_CONN_RETIRE without RAIL_CONN_DROP before it */
	client_expect(client, 1, OP_TIMEOUT);
	world_event(w, RAIL_CONN_RETURNED);
	assert_all_free(w);
}

static void the_report_of_a_stuck_connection_has_its_first_deadline(void **state)
{
	struct world *w = *state;
	struct op op = page_op(w, 1, 8, 8192, 77);
	struct op_segment s = home_at(0, 8192);

	op.deadline_ns = w->now_ns + 9000 * MS;
	client_submit(client, &op, &s);
	op.cookie = 2;
	op.deadline_ns = w->now_ns + 5000 * MS;
	client_submit(client, &op, &s);
	world_settle(w);
	nic_pull(w);
	rail_conn_drop(w, handle);
	pass(w, 1600);
	/*
	 * The event's deadline may be earlier than requested: deadlines in ops are rounded down to
	 * OP_TIME_NS.
	 */
	assert_in_range(
		world_event(w, RAIL_CONN_STUCK).ns, op.deadline_ns - MS, op.deadline_ns + MS);
	retire(w);
	client_expect(client, 1, OP_PEER_DOWN);
	client_expect(client, 2, OP_PEER_DOWN);
	world_event(w, RAIL_CONN_RETURNED);
	assert_all_free(w);
}

static void completions_already_in_the_cq_are_consumed_before_a_retire(void **state)
{
	struct world *w = *state;
	unsigned hits = 0, down = 0;
	struct op_done done;

	for (unsigned i = 0; i < 100; i++)
		bucket_get(w, client, i, i, i * 64);
	world_settle(w);
	nic_pull(w);
	for (unsigned i = 0; i < 100; i++)
		if (w->wqes > 1)
			nic_complete(w, 0, 0);
	world_command(w, (struct rail_command){.kind = RAIL_CONN_RETIRE, .object = handle});
	world_settle(w);
	while (client_done(client, &done)) {
		hits += done.status == OP_HIT;
		down += done.status == OP_PEER_DOWN;
	}
	assert_int_equal(hits + down, 100);
	/* not all: some WQEs did not request a CQE, so their ops count as flushed */
	assert_in_range(hits, 80, 99);
	world_event(w, RAIL_CONN_RETURNED);
	assert_all_free(w);
}

/*
 * Makes the NIC complete what is posted on the first QP of the connection `to`, and nothing else.
 */
static void answer_only(struct world *w, const struct rail_conn *to)
{
	unsigned i = 0;

	world_settle(w);
	nic_pull(w);
	while (i < w->wqes)
		if (&w->wqe[i].qp->stub.sq == to->sq[0]) {
			nic_complete(w, i, 0);
			world_settle(w);
			nic_pull(w);
			i = 0;
		} else {
			i++;
		}
}

/* Like a device, gives the number of a destroyed QP to the next QP that is created. */
static void a_reused_qp_number_means_the_new_qp(void **state)
{
	struct world *w = *state;
	uint32_t next = w->qpn_next;
	struct rail_conn *other;
	struct op_done done;

	for (unsigned i = 0; i < 20; i++)
		read_start(w, i);
	world_settle(w);
	nic_pull(w);
	/* the QPs of this connection are destroyed; RAIL_CONN_RETIRE follows later */
	rail_conn_drop(w, handle);
	world_settle(w);
	assert_true(world_silent(w));
	w->qpn_next = handle->sq[0]->qpn;
	other = rail_conn_new(w, 3, 33, 1);
	w->qpn_next = next;
	assert_int_equal(other->sq[0]->qpn, handle->sq[0]->qpn);
	rail_conn_add(w, other);
	page_get(w, client, 200, 8, 8192, 77, 8192);
	answer_only(w, other);
	for (bool hit = false; !hit; hit = done.cookie == 200) {
		assert_true(client_done(client, &done));
		assert_int_equal(done.status, done.cookie == 200 ? OP_HIT : OP_PEER_DOWN);
	}
	assert_true(w->wqes > 0); /* WQEs of the old connection's QPs are outstanding */
	assert_true(rail_in_flight(w->rail) > 0);
	retire(w);
	while (client_done(client, &done))
		assert_int_equal(done.status, OP_PEER_DOWN);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, handle);
	/*
	 * Returning the old connection has not removed the QP number from the rail's table, where
	 * it means the new QP.
	 */
	page_get(w, client, 201, 8, 8192, 77, 8192);
	answer_only(w, other);
	client_expect(client, 201, OP_HIT);
	assert_all_free(w);
	rail_conn_drop(w, other);
	world_settle(w);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, other);
	rail_conn_free(w, other);
}

static void completions_of_a_destroyed_qp_do_not_break_the_new_qp_with_its_number(void **state)
{
	struct world *w = *state;
	uint32_t next = w->qpn_next;
	struct rail_conn *other;
	unsigned cqes = 0;

	for (unsigned i = 0; i < 100; i++)
		read_start(w, i);
	world_settle(w);
	nic_pull(w);
	rail_conn_drop(w, handle);
	world_settle(w);
	for (; w->wqes > 1; cqes++)
		nic_complete(w, 0, DV_SYNDROME_FLUSHED);
	/* there are more CQEs than one step of the rail consumes before it executes the command */
	assert_true(cqes > RAIL_REAP_BURST);
	w->qpn_next = handle->sq[0]->qpn;
	other = rail_conn_new(w, 3, 33, 1);
	w->qpn_next = next;
	rail_conn_add(w, other);
	world_settle(w);
	/* the rail reports no event, so the new connection is not broken */
	assert_true(world_silent(w));
	retire(w);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, handle);
	assert_all_free(w);
	rail_conn_drop(w, other);
	world_settle(w);
	world_event(w, RAIL_CONN_RETURNED);
	rail_conn_free(w, other);
}

static void a_retire_that_comes_after_the_return_does_nothing(void **state)
{
	struct world *w = *state;

	page_get(w, client, 1, 8, 8192, 77, 0);
	world_settle(w);
	nic_flush(w, handle);
	rail_conn_drop(w, handle);
	world_settle(w);
	client_expect(client, 1, OP_PEER_DOWN);
	world_event(w, RAIL_CONN_BROKEN);
	world_event(w, RAIL_CONN_RETURNED);
	retire(w);
	assert_all_free(w);
}

static void a_rail_without_its_nic_does_not_touch_it_and_refuses_ops(void **state)
{
	struct world *w = *state;
	struct rail_conn *other;
	struct op_done done;
	unsigned wqes;

	page_get(w, client, 1, 8, 8192, 77, 0);
	world_settle(w);
	nic_pull(w);
	wqes = w->wqes;
	world_command(w, (struct rail_command){.kind = RAIL_LOST});
	page_get(w, client, 2, 8, 8192, 77, 8192);
	world_settle(w);
	world_event(w, RAIL_CONN_BROKEN);
	world_event(w, RAIL_QUIET);
	client_expect(client, 2, OP_PEER_DOWN); /* the op for the lost rail is refused at once */
	nic_pull(w);
	assert_int_equal(w->wqes, wqes);
	/* writes a CQE to the lost NIC's CQ, which the rail no longer reads */
	nic_complete(w, 0, 0);
	pass(w, 100);
	assert_false(client_done(client, &done));
	retire(w);
	client_expect(client, 1, OP_PEER_DOWN);
	world_event(w, RAIL_CONN_RETURNED);
	other = rail_conn_new(w, 3, 34, 1);
	rail_conn_add(w, other);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, other);
	rail_conn_free(w, other);
	assert_all_free(w);
}

static void an_unretired_connection_of_a_lost_nic_is_reported_as_stuck(void **state)
{
	struct world *w = *state;

	page_get(w, client, 1, 8, 8192, 77, 0);
	world_settle(w);
	nic_pull(w);
	world_command(w, (struct rail_command){.kind = RAIL_LOST});
	world_settle(w);
	world_event(w, RAIL_CONN_BROKEN);
	world_event(w, RAIL_QUIET);
	pass(w, 1600);
	world_event(w, RAIL_CONN_STUCK);
	retire(w);
	world_event(w, RAIL_CONN_RETURNED);
}

static int other_key(const struct dv_memory *memory, struct dv_mr *ret)
{
	*ret = (struct dv_mr){.base = memory->base, .length = memory->length, .lkey = 0x77};
	return 0;
}

static void region_key(struct world *w, uint32_t lkey)
{
	world_command(w, (struct rail_command){.kind = RAIL_REGION_KEY,
				 .region = {.id = WORLD_REGION, .lkey = lkey}});
	world_settle(w);
	assert_int_equal(w->rail->region[WORLD_REGION].lkey, lkey);
}

static void a_rail_uses_the_nic_that_was_found_with_its_new_keys(void **state)
{
	int (*before)(const struct dv_memory *memory, struct dv_mr *ret) = nic_stub.mr_register;
	struct world *w = *state;
	struct dv_cq old = nic_stub.cq_made;
	struct rail_conn *other;

	world_command(w, (struct rail_command){.kind = RAIL_LOST});
	world_settle(w);
	world_event(w, RAIL_CONN_BROKEN);
	world_event(w, RAIL_QUIET);
	retire(w);
	world_event(w, RAIL_CONN_RETURNED);
	nic_stub.mr_register = other_key;
	assert_int_equal(rail_nic_open(w->rail), 0);
	rail_nic_close(w->rail); /* it is cut, and opened once more */
	assert_int_equal(rail_nic_open(w->rail), 0);
	nic_stub.mr_register = before;
	assert_ptr_not_equal(nic_stub.cq_made.buf, old.buf);
	/* the poll core uses what it has until RAIL_FOUND */
	assert_ptr_not_equal(w->rail->cq.buf, nic_stub.cq_made.buf);
	assert_int_equal(w->rail->heads_lkey, WORLD_HEADS_LKEY);
	world_command(w, (struct rail_command){.kind = RAIL_FOUND});
	region_key(w, 0x78);
	nic_stub.cq = &w->rail->cq;
	assert_ptr_equal(w->rail->cq.buf, nic_stub.cq_made.buf);
	assert_int_equal(w->rail->heads_lkey, 0x77);
	/* those that the fake NIC knows */
	w->rail->heads_lkey = WORLD_HEADS_LKEY;
	region_key(w, WORLD_LKEY);
	other = rail_conn_new(w, 3, 33, 2);
	rail_conn_add(w, other);
	page_get(w, client, 1, 8, 8192, 77, 0);
	world_run(w);
	client_expect(client, 1, OP_HIT);
	assert_true(page_arrived(w, 8, 8192, 0));
	rail_conn_drop(w, other);
	world_settle(w);
	world_event(w, RAIL_CONN_RETURNED);
	rail_conn_free(w, other);
	assert_all_free(w);
	free(old.buf);
	free((void *)(uintptr_t)old.record);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_connection_that_does_not_drain_is_reported_once_and_ends_when_retired),
		TEST(a_stuck_connection_is_reported_within_two_seconds_of_the_deadline),
		TEST(the_report_of_a_stuck_connection_has_its_first_deadline),
		TEST(completions_already_in_the_cq_are_consumed_before_a_retire),
		TEST(a_reused_qp_number_means_the_new_qp),
		TEST(completions_of_a_destroyed_qp_do_not_break_the_new_qp_with_its_number),
		TEST(a_retire_that_comes_after_the_return_does_nothing),
		TEST(a_rail_without_its_nic_does_not_touch_it_and_refuses_ops),
		TEST(a_rail_uses_the_nic_that_was_found_with_its_new_keys),
		TEST(an_unretired_connection_of_a_lost_nic_is_reported_as_stuck),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
