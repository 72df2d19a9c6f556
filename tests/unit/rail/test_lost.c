/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A NIC that does not let go: no flushed completion comes, or it is lost for good. What is posted
 * stays unanswered until the control plane says that the NIC writes nothing any more.
 */
#include "tests/unit/rail/world.h"

#define MS 1000000ull

static struct client *client;
static struct rail_peer *peer;

static int setup(void **state)
{
	struct world *w;

	world_setup(state);
	w = *state;
	client = client_new(w, 63, WORLD_SESSION);
	peer = peer_new(w, 3, 33, 2);
	page_put(w, 8, 8192, 77);
	peer_add(w, peer);
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	peer_free(w, peer);
	client_free(client);
	return world_teardown(state);
}

static void pass(struct world *w, uint64_t ms)
{
	for (; ms >= 5; ms -= 5) {
		clock_test_set(w->now_ns += 5 * MS);
		world_settle(w);
	}
}

/* The next event, within so many ms. */
static struct rail_event hear(struct world *w, uint32_t kind, uint64_t ms)
{
	struct rail_event event;

	while (!rail_hear(w->rail, &event)) {
		assert_true(ms >= 5);
		pass(w, 5);
		ms -= 5;
	}
	assert_int_equal(event.kind, kind);
	return event;
}

static void retire(struct world *w)
{
	world_tell(w, (struct rail_command){.kind = RAIL_PEER_RETIRE, .object = peer});
	world_settle(w);
}

static void look_up(struct world *w, uint64_t cookie)
{
	struct op op = page_op(w, cookie, 8, sizeof(struct bucket), 77);
	struct op_segment s = home_at(cookie * 64, op.length);

	op.kind = OP_READ;
	client_submit(client, &op, &s);
}

static void all_is_free(struct world *w)
{
	assert_true(world_silent(w));
	assert_int_equal(rail_in_flight(w->rail), 0);
	assert_int_equal(w->rail->wqes, 0);
	assert_int_equal(w->rail->taken_bytes, 0);
	assert_int_equal(w->rail->posted_bytes, 0);
	assert_int_equal(w->rail->parked, 0);
	assert_int_equal(w->rail->requests_free, RAIL_REQUESTS);
}

static void a_lane_that_does_not_drain_is_said_and_ends_when_it_is_retired(void **state)
{
	struct world *w = *state;
	uint64_t deadline_ns = w->now_ns + 1000 * MS;
	struct rail_event event;
	struct op_done done;

	page_get(w, client, 1, 8, 8192, 77, 0);
	page_get(w, client, 2, 8, 8192, 77, 8192);
	world_settle(w);
	nic_pull(w);
	peer_drop(w, peer); /* its queue pairs are in error, and nothing is flushed */
	pass(w, 900);
	assert_true(world_silent(w));
	pass(w, 700);
	event = world_hear(w, RAIL_PEER_STUCK);
	assert_ptr_equal(event.object, peer);
	assert_int_equal(event.ref, 33);
	assert_in_range(event.ns, 0, deadline_ns);
	pass(w, 5000);
	assert_true(world_silent(w));             /* said once */
	assert_false(client_done(client, &done)); /* the NIC may still write */
	retire(w);
	client_expect(client, 1, OP_TIMEOUT);
	client_expect(client, 2, OP_TIMEOUT);
	assert_ptr_equal(world_hear(w, RAIL_PEER_RETURNED).object, peer);
	all_is_free(w);
}

/* The answer comes within 2 s of the deadline, whatever breaks the lane, at any time. */
static void what_is_posted_past_its_deadline_is_said_within_two_seconds(void **state)
{
	struct world *w = *state;

	page_get(w, client, 1, 8, 8192, 77, 0);
	world_settle(w);
	nic_pull(w);
	pass(w, 1000); /* its deadline */
	hear(w, RAIL_PEER_BROKEN, 300);
	assert_int_equal(hear(w, RAIL_PEER_STUCK, 1700).ns, 0); /* over already */
	retire(w);                                              /* without a DROP before it */
	client_expect(client, 1, OP_TIMEOUT);
	world_hear(w, RAIL_PEER_RETURNED);
	all_is_free(w);
}

static void the_first_deadline_of_a_stuck_lane_is_told(void **state)
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
	peer_drop(w, peer);
	pass(w, 1600);
	/* Times in ops are a little coarse. */
	assert_in_range(
		world_hear(w, RAIL_PEER_STUCK).ns, op.deadline_ns - MS, op.deadline_ns + MS);
	retire(w);
	client_expect(client, 1, OP_PEER_DOWN);
	client_expect(client, 2, OP_PEER_DOWN);
	world_hear(w, RAIL_PEER_RETURNED);
	all_is_free(w);
}

static void completions_that_are_there_are_answers_and_not_retired(void **state)
{
	struct world *w = *state;
	unsigned hits = 0, down = 0;
	struct op_done done;

	for (unsigned i = 0; i < 100; i++)
		look_up(w, i);
	world_settle(w);
	nic_pull(w);
	for (unsigned i = 0; i < 100; i++)
		if (w->wqes > 1)
			nic_complete(w, 0, 0);
	world_tell(w, (struct rail_command){.kind = RAIL_PEER_RETIRE, .object = peer});
	world_settle(w);
	while (client_done(client, &done)) {
		hits += done.status == OP_HIT;
		down += done.status == OP_PEER_DOWN;
	}
	assert_int_equal(hits + down, 100);
	assert_in_range(hits, 80, 99); /* not every WQE asks for a completion */
	world_hear(w, RAIL_PEER_RETURNED);
	all_is_free(w);
}

/* The device gives the number of a destroyed queue pair to the next one it makes. */
/* The NIC answers what was posted to that queue pair and to no other. */
static void answer_only(struct world *w, const struct rail_peer *to)
{
	unsigned i = 0;

	world_settle(w);
	nic_pull(w);
	while (i < w->wqes)
		if (&w->wqe[i].qp->sq == to->sq[0]) {
			nic_complete(w, i, 0);
			world_settle(w);
			nic_pull(w);
			i = 0;
		} else {
			i++;
		}
}

/* The device gives the number of a destroyed queue pair to the next one it makes. */
static void a_number_that_is_given_out_again_means_the_new_queue_pair(void **state)
{
	struct world *w = *state;
	uint32_t next = w->qpn_next;
	struct rail_peer *other;
	struct op_done done;

	for (unsigned i = 0; i < 20; i++)
		look_up(w, i);
	world_settle(w);
	nic_pull(w);
	peer_drop(w, peer); /* its queue pairs are destroyed; RAIL_PEER_RETIRE comes later */
	world_settle(w);
	assert_true(world_silent(w));
	w->qpn_next = peer->sq[0]->qpn;
	other = peer_new(w, 3, 33, 1);
	w->qpn_next = next;
	assert_int_equal(other->sq[0]->qpn, peer->sq[0]->qpn);
	peer_add(w, other);
	page_get(w, client, 200, 8, 8192, 77, 8192);
	answer_only(w, other);
	for (bool hit = false; !hit; hit = done.cookie == 200) {
		assert_true(client_done(client, &done));
		assert_int_equal(done.status, done.cookie == 200 ? OP_HIT : OP_PEER_DOWN);
	}
	assert_true(w->wqes > 0); /* of the old ones */
	assert_true(rail_in_flight(w->rail) > 0);
	retire(w);
	while (client_done(client, &done))
		assert_int_equal(done.status, OP_PEER_DOWN);
	assert_ptr_equal(world_hear(w, RAIL_PEER_RETURNED).object, peer);
	/* The return of the old lane has left the number to the new one. */
	page_get(w, client, 201, 8, 8192, 77, 8192);
	answer_only(w, other);
	client_expect(client, 201, OP_HIT);
	all_is_free(w);
	peer_drop(w, other);
	world_settle(w);
	assert_ptr_equal(world_hear(w, RAIL_PEER_RETURNED).object, other);
	peer_free(w, other);
}

static void completions_of_the_old_queue_pair_are_its_own_when_its_number_comes_back(void **state)
{
	struct world *w = *state;
	uint32_t next = w->qpn_next;
	struct rail_peer *other;
	unsigned cqes = 0;

	for (unsigned i = 0; i < 100; i++)
		look_up(w, i);
	world_settle(w);
	nic_pull(w);
	peer_drop(w, peer);
	world_settle(w);
	for (; w->wqes > 1; cqes++)
		nic_complete(w, 0, DV_SYNDROME_FLUSHED);
	assert_true(cqes > RAIL_REAP_BURST); /* more than are reaped before the command */
	w->qpn_next = peer->sq[0]->qpn;
	other = peer_new(w, 3, 33, 1);
	w->qpn_next = next;
	peer_add(w, other);
	world_settle(w);
	assert_true(world_silent(w)); /* the new one is not broken */
	retire(w);
	assert_ptr_equal(world_hear(w, RAIL_PEER_RETURNED).object, peer);
	all_is_free(w);
	peer_drop(w, other);
	world_settle(w);
	world_hear(w, RAIL_PEER_RETURNED);
	peer_free(w, other);
}

static void a_retire_that_comes_after_the_return_does_nothing(void **state)
{
	struct world *w = *state;

	page_get(w, client, 1, 8, 8192, 77, 0);
	world_settle(w);
	nic_flush(w, peer);
	peer_drop(w, peer);
	world_settle(w);
	client_expect(client, 1, OP_PEER_DOWN);
	world_hear(w, RAIL_PEER_BROKEN);
	world_hear(w, RAIL_PEER_RETURNED);
	retire(w);
	all_is_free(w);
}

static void a_lost_nic_is_not_touched_and_takes_nothing_any_more(void **state)
{
	struct world *w = *state;
	struct rail_peer *other;
	struct op_done done;
	unsigned wqes;

	page_get(w, client, 1, 8, 8192, 77, 0);
	world_settle(w);
	nic_pull(w);
	wqes = w->wqes;
	world_tell(w, (struct rail_command){.kind = RAIL_LOST});
	page_get(w, client, 2, 8, 8192, 77, 8192);
	world_settle(w);
	world_hear(w, RAIL_PEER_BROKEN);
	world_hear(w, RAIL_QUIET);
	client_expect(client, 2, OP_PEER_DOWN); /* at once */
	nic_pull(w);
	assert_int_equal(w->wqes, wqes);
	nic_complete(w, 0, 0); /* a completion in memory that is not looked at any more */
	pass(w, 100);
	assert_false(client_done(client, &done));
	retire(w);
	client_expect(client, 1, OP_PEER_DOWN);
	world_hear(w, RAIL_PEER_RETURNED);
	other = peer_new(w, 3, 34, 1);
	peer_add(w, other);
	assert_ptr_equal(world_hear(w, RAIL_PEER_RETURNED).object, other);
	peer_free(w, other);
	all_is_free(w);
}

static void a_lost_lane_that_is_not_retired_is_said_too(void **state)
{
	struct world *w = *state;

	page_get(w, client, 1, 8, 8192, 77, 0);
	world_settle(w);
	nic_pull(w);
	world_tell(w, (struct rail_command){.kind = RAIL_LOST});
	world_settle(w);
	world_hear(w, RAIL_PEER_BROKEN);
	world_hear(w, RAIL_QUIET);
	pass(w, 1600);
	world_hear(w, RAIL_PEER_STUCK);
	retire(w);
	world_hear(w, RAIL_PEER_RETURNED);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_lane_that_does_not_drain_is_said_and_ends_when_it_is_retired),
		TEST(what_is_posted_past_its_deadline_is_said_within_two_seconds),
		TEST(the_first_deadline_of_a_stuck_lane_is_told),
		TEST(completions_that_are_there_are_answers_and_not_retired),
		TEST(a_number_that_is_given_out_again_means_the_new_queue_pair),
		TEST(completions_of_the_old_queue_pair_are_its_own_when_its_number_comes_back),
		TEST(a_retire_that_comes_after_the_return_does_nothing),
		TEST(a_lost_nic_is_not_touched_and_takes_nothing_any_more),
		TEST(a_lost_lane_that_is_not_retired_is_said_too),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
