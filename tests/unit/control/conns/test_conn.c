/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections between engines, with stubs for rails and NICs: requested, answered, broken,
 * returned. A node is one control plane in the test's process.
 */
#include "tests/unit/control/conns/conn_world.h"

static void counts_are(unsigned n, unsigned live, unsigned served, unsigned qps)
{
	struct conn_counts got;

	conn_counts(&node[n].control, &got);
	assert_int_equal(got.asked, 0);
	assert_int_equal(got.live, live);
	assert_int_equal(got.served, served);
	assert_int_equal(got.qps, qps);
}

static void a_wanted_peer_is_handed_over_with_its_regions(void **state)
{
	struct rail_conn *got;

	got = connected(1);
	assert_int_equal(got->peer, peer());
	assert_int_equal(got->ref, ref());
	assert_int_equal(got->rail, 1);
	assert_int_equal(got->qps, 2);
	assert_ptr_equal(got->sq[0], &node[0].rail[1]);
	assert_null(got->conn);
	for (unsigned m = 0; m < REGIONS_EXPORTED; m++) {
		assert_int_equal(got->region[m].length, m % 16 ? 0 : 4096 * (m + 1));
		assert_int_equal(got->region[m].base, m % 16 ? 0 : 0x100000 * (m + 1));
		assert_int_equal(got->region[m].rkey, m % 16 ? 0 : 1100 + m);
	}
	assert_int_equal(conns_outstanding(&node[0].control), 1);
	assert_int_equal(qps_alive, 4); /* two queue pairs on node 0 and two on node 1 */
	counts_are(0, 1, 0, 2);
	counts_are(1, 0, 1, 2);
	/* a second request for a peer to which the rail has a connection: no further command */
	want(1);
	nodes_run(50);
	assert_int_equal(node[0].rail[1].tells, 1);
	conns_stop(&node[0].control);
}

/* 0 is not on the wire: the message is that of an engine that knows no leases. */
static void a_connection_has_the_limbo_time_of_its_peer(void **state)
{
	const struct {
		int ms;
		uint64_t ns;
	} case_of[] = {{7, 7000000}, {0, 0}, {10000, 10000000000}, {10001, 0}, {INT32_MAX, 0}};

	node[0].settings.engine_limbo_ms = 999;
	for (unsigned i = 0; i < sizeof(case_of) / sizeof(*case_of); i++) {
		struct rail_conn *got;

		node[1].settings.engine_limbo_ms = case_of[i].ms;
		got = connected(i % 2);
		assert_true(got->limbo_ns == case_of[i].ns);
		conns_returned(&node[0].control, i % 2, got);
		assert_true(nodes_until(qps_alive == 0, 500));
	}
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
}

static void a_rail_that_wants_an_unknown_member_is_refused_at_once(void **state)
{
	conns_wanted(&node[0].control, 0, 7, 12345);
	conns_wanted(&node[0].control, 0, (uint16_t)(peer() + 1), ref());
	/* Rail 0 wants a connection to its own node. */
	conns_wanted(&node[0].control, 0, 0, node[0].control.ref);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(told(0, i)->kind, RAIL_CONN_REFUSE);
	assert_int_equal(node[0].rail[0].told[0].ref, 12345);
	assert_int_equal(node[0].rail[0].told[0].peer, 7);
	assert_int_equal(qps_alive, 0);
}

/* Clients write the peer of a request, so a rail can want any member. */
static void a_rail_that_wants_a_member_without_rails_is_refused_at_once(void **state)
{
	member_find(node[0].control.members, "node-1")->record.rails = 0;
	want(0);
	assert_int_equal(told(0, 0)->kind, RAIL_CONN_REFUSE);
	assert_int_equal(qps_alive, 0);
}

static void a_rail_with_all_its_connections_gets_no_further_one(void **state)
{
	static struct out_conn full[RAIL_CONNECTIONS_MAX];
	struct conns *conns = node[0].control.conns;

	for (unsigned i = 0; i < RAIL_CONNECTIONS_MAX; i++) {
		full[i].handle.ref = ref() + 1 + i;
		LIST_INSERT_HEAD(&conns->out_conns, &full[i], next);
	}
	want(0);
	assert_int_equal(told(0, 0)->kind, RAIL_CONN_REFUSE);
	assert_int_equal(node[0].control.counter[COUNTER_connections_refused], 1);
	assert_int_equal(rails_out(), 1);
	assert_int_equal(qps_alive, 0);
	full[0].rail = 1; /* one connection fewer: the next attempt, a probe, succeeds */
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_ADD);
	for (unsigned i = 0; i < RAIL_CONNECTIONS_MAX; i++)
		LIST_REMOVE(&full[i], next);
	conns_stop(&node[0].control);
}

static void a_broken_connection_is_drained_returned_and_reconnected(void **state)
{
	struct rail_conn *got = connected(0);

	conns_broken(&node[0].control, 0, got, 0x15);
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_DROP);
	/* The queue pairs are put in the error state before the rail gets RAIL_CONN_DROP */
	assert_int_equal(qps_errors, 2);
	assert_int_equal(node[0].rail[0].told[1].ref, ref());
	/* a second RAIL_CONN_BROKEN event for the connection changes nothing */
	conns_broken(&node[0].control, 0, got, 0x15);
	assert_int_equal(qps_errors, 2);
	want(0); /* refused: the rail still holds the old connection to this peer */
	assert_int_equal(told(0, 2)->kind, RAIL_CONN_REFUSE);
	assert_int_equal(conns_outstanding(&node[0].control), 1);
	/* node 0 does not free the QPs before the rail has drained them */
	assert_int_equal(qps_alive, 4);
	/* node 0 counts the QPs, but does not count the broken connection as live */
	counts_are(0, 0, 0, 2);
	conns_returned(&node[0].control, 0, got);
	assert_int_equal(conns_outstanding(&node[0].control), 0);
	/* node 1 has received the Disconnect and freed its QPs */
	assert_true(nodes_until(qps_alive == 0, 500));
	want(0); /* the rail requests the connection again within the back-off */
	assert_int_equal(told(0, 3)->kind, RAIL_CONN_REFUSE);
	/*
	 * The control plane reconnects by itself; clients use the rail again once its probe is
	 * answered.
	 */
	assert_int_equal(told(0, 4)->kind, RAIL_CONN_ADD);
	got = told(0, 4)->object;
	assert_true(got->probe);
	assert_int_equal(rails_out(), 1);
	conns_proven(&node[0].control, 0, got);
	assert_int_equal(rails_out(), 0);
	conns_stop(&node[0].control);
}

static void each_rail_connects_to_its_counterpart(void **state)
{
	struct in_conn *in_conn;
	unsigned seen = 0;

	connected(0);
	connected(1);
	LIST_FOREACH (in_conn, &node[1].control.conns->in_conns, next) {
		assert_int_equal(in_conn->rail, in_conn->to_rail);
		assert_int_equal(in_conn->ref, node[0].control.ref);
		seen |= 1u << in_conn->rail;
	}
	assert_int_equal(seen, 3);
	conns_stop(&node[0].control);
}

static void a_second_connect_of_the_same_rails_replaces_the_first(void **state)
{
	struct rail_conn *got = connected(0);

	/*
	 * As if the Disconnect of the first connection arrived late: it must affect only the first
	 * one.
	 */
	((struct out_conn *)got->control)->serial += 1000;
	conns_broken(&node[0].control, 0, got, 0);
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_DROP);
	conns_returned(&node[0].control, 0, got);
	assert_true(nodes_until(qps_alive == 2, 50));
	assert_int_equal(told(0, 2)->kind, RAIL_CONN_ADD);
	assert_int_equal(qps_alive, 4);
	conns_stop(&node[0].control);
}

static void a_failed_connection_attempt_is_refused_and_leaves_no_qp(void **state)
{
	uint64_t failed_ns;

	qp_create_status = -ENOMEM;
	want(0);
	assert_int_equal(told(0, 0)->kind, RAIL_CONN_REFUSE);
	qp_create_status = 0;
	qp_connect_status = -EINVAL;
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_REFUSE);
	failed_ns = clock_now_ns();
	assert_int_equal(qps_alive, 0);
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
	assert_int_equal(rails_out(), 1);
	/* The back-off after the second failure is twice as long as after the first. */
	qp_connect_status = 0;
	assert_int_equal(told(0, 2)->kind, RAIL_CONN_ADD);
	assert_in_range((clock_now_ns() - failed_ns) / 1000000, 2 * CONN_BACKOFF_MS - 1,
		3 * CONN_BACKOFF_MS);
	conns_stop(&node[0].control);
}

static void a_connect_without_an_answer_is_refused(void **state)
{
	node[0].settings.cluster_dead_after_ms = 60000;
	node[1].stalled = true;
	want(0);
	assert_true(nodes_until(node[0].rail[0].tells == 1, CONN_ANSWER_MS + 500));
	assert_int_equal(node[0].rail[0].told[0].kind, RAIL_CONN_REFUSE);
	assert_int_equal(qps_alive, 0);
	/*
	 * Node 1's answer arrives after the time limit. It is too late to be used, but it breaks no
	 * rule.
	 */
	node[1].stalled = false;
	nodes_run(100);
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
	/* if node 0 made another attempt, its connection is only a probe */
	if (node[0].rail[0].tells > 1)
		assert_true(((struct rail_conn *)told(0, 1)->object)->probe);
	conns_stop(&node[0].control);
}

static void the_active_qps_to_a_dead_member_are_dropped(void **state)
{
	struct rail_conn *got = connected(0);

	node_close(1); /* node 1 closes, which also destroys its incoming QPs */
	assert_true(nodes_until(sees_count(0, 1), 1000));
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_DROP);
	assert_int_equal(qps_errors >= 2, 1);
	assert_int_equal(qps_alive, 2);
	conns_returned(&node[0].control, 0, got);
	assert_true(nodes_until(qps_alive == 0, 500));
}

static void the_passive_qps_of_a_dead_member_are_destroyed(void **state)
{
	connected(0);
	connected(1);
	node_close(0);
	assert_true(nodes_until(qps_alive == 0, 1000));
}

static void links_close(struct member *member, bool barred)
{
	struct rpc_link *both[] = {member->contact->out, member->contact->in};

	for (unsigned i = 0; i < 2; i++) {
		if (!both[i])
			continue;
		both[i]->barred = barred;
		rpc_link_close(both[i]);
	}
}

/* Its key or certificate is no longer good: it comes with a good one in time, or is barred. */
static void a_member_without_a_right_loses_its_queue_pairs(void **state)
{
	struct control *server = &node[1].control;
	struct member *reader = member_find(server->members, "node-0");

	for (unsigned i = 0; i < 2; i++)
		node[i].settings.cluster_dead_after_ms = 60000;
	connected(0);
	links_close(reader, true);
	assert_true(nodes_until(member_link_of(reader), 1000));
	links_close(reader, false);
	server->rpc_events->rights(server);
	assert_int_not_equal(reader->contact->prove_ns, 0);
	assert_true(nodes_until(member_link_of(reader), 1000));
	nodes_run(2000);
	counts_are(1, 0, 1, 2);
	node[0].stalled = true;
	links_close(reader, true);
	nodes_run(900);
	counts_are(1, 0, 1, 2);
	assert_true(nodes_until(server->counter[COUNTER_members_barred] == 1, 200));
	nodes_run(10);
	counts_are(1, 0, 0, 0);
	assert_true(sees_count(1, 2));
	node[0].stalled = false;
	assert_true(nodes_until(member_link_of(reader), 5000));
	/* refused dials count as well; and one that is no neighbour is dialled, within 5 s */
	for (unsigned far = 0; far < 2; far++) {
		node[0].stalled = true;
		links_close(reader, far);
		reader->neighbour = !far;
		if (far) {
			member_dial_stop(reader);
			reader->contact->used_ns = 0;
			reader->contact->prove_ns = 0;
			server->rpc_events->rights(server);
			assert_int_equal(reader->contact->prove_ns, 0); /* it has no connection */
			member_prove(server, node[0].control.ref);
		} else {
			member_dial_failed(server, reader->contact->dial, EACCES);
		}
		nodes_run(far ? 4800 : 900);
		assert_int_equal(server->counter[COUNTER_members_barred], 1 + far);
		assert_true(nodes_until(server->counter[COUNTER_members_barred] == 2 + far, 400));
		node[0].stalled = false;
		assert_true(nodes_until(member_link_of(reader), 5000));
	}
	conns_stop(&node[0].control);
}

/*
 * Node 1 removed node 0, which did not run, and ended its queue pairs. Node 0 still has node 1 on
 * its map, and learns it from the Hello of the next link.
 */
static void connections_with_a_member_that_removed_this_engine_are_made_anew(void **state)
{
	struct control *reader = &node[0].control, *server = &node[1].control;
	struct rail_conn *got = connected(0), *back;

	node[1].settings.rail_qps_per_peer = 2;
	conns_wanted(server, 1, member_by_ref(server, reader->ref)->peer, reader->ref);
	assert_true(nodes_until(node[1].rail[1].tells == 1, 500));
	back = node[1].rail[1].told[0].object;
	assert_int_equal(qps_alive, 8);
	member_take_off_map(server, member_find(server->members, "node-0"), "test");
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_DROP);
	assert_true(nodes_until(all_agree(), 3000));
	conns_returned(reader, 0, got);
	/* node 1's rail has not returned its own: only these are left */
	assert_true(nodes_until(qps_alive == 2, 500));
	assert_int_equal(rails_out(), 0);
	want(0);
	assert_int_equal(told(0, 2)->kind, RAIL_CONN_ADD);
	assert_false(((struct rail_conn *)told(0, 2)->object)->probe);
	conns_returned(server, 1, back);
	conns_stop(reader);
}

static void commands_that_a_full_inbox_refuses_are_sent_later_in_order(void **state)
{
	struct fake_rail *fake = &node[0].rail[0];

	fake->full = true;
	for (uint32_t i = 0; i < 10; i++)
		conns_wanted(&node[0].control, 0, 9, 1000 + i);
	nodes_run(30);
	assert_int_equal(fake->tells, 0);
	fake->full = false;
	/* this command must not overtake the commands that are queued for a full inbox */
	conns_wanted(&node[0].control, 0, 9, 1010);
	assert_true(nodes_until(fake->tells == 11, 500));
	for (uint32_t i = 0; i < 11; i++)
		assert_int_equal(fake->told[i].ref, 1000 + i);
}

static void stopping_drops_all_connections_and_waits_for_those_that_rails_hold(void **state)
{
	struct rail_conn *got = connected(0);

	conns_stop(&node[0].control);
	conns_stop(&node[1].control);
	assert_int_equal(told(0, 1)->kind, RAIL_CONN_DROP);
	assert_int_equal(conns_outstanding(&node[0].control), 1);
	/* Node 0 destroys its incoming QPs without waiting for a rail */
	assert_true(nodes_until(qps_alive == 2, 500));
	conns_returned(&node[0].control, 0, got);
	assert_int_equal(conns_outstanding(&node[0].control), 0);
	assert_true(nodes_until(qps_alive == 0, 500));
}

/* ---- Connect messages that break a rule ------------------------------------------------------ */

static struct dv_address good_address = {.version = 1, .kind = 3};

static void raw_connect(Pc__Connect *connect, bool closes, int status)
{
	uint64_t bad = node[0].control.counter[COUNTER_messages_bad];
	Pc__Message m = PC__MESSAGE__INIT;
	uint8_t bytes[8192];
	size_t got = 0;
	int fd = raw_open(0);

	raw_hello(fd, "raw", 0x4200000042, 9, NULL);
	/* reads node 0's own Hello, which is of no interest here */
	got = raw_read(fd, bytes, sizeof(bytes), 500);
	assert_true(got > 0);
	m.body_case = PC__MESSAGE__BODY_CONNECT;
	m.connect = connect;
	raw_message(fd, &m);
	if (closes) {
		assert_true(raw_closed(fd, 1000));
		assert_int_equal(node[0].control.counter[COUNTER_messages_bad], bad + 1);
	} else {
		Pc__Message *answer = NULL;

		for (unsigned i = 0; i < 200 && !answer; i++) {
			size_t at = 0;

			got = raw_read(fd, bytes, sizeof(bytes), 50);
			for (; at + 4 < got; at += 4u + bytes[at + 3] + bytes[at + 2] * 256u) {
				size_t length = bytes[at + 3] + bytes[at + 2] * 256u;

				answer = pc__message__unpack(NULL, length, bytes + at + 4);
				assert_non_null(answer);
				if (answer->body_case == PC__MESSAGE__BODY_CONNECTED)
					break;
				pc__message__free_unpacked(answer, NULL);
				answer = NULL;
			}
		}
		assert_non_null(answer);
		assert_int_equal(answer->connected->status, status);
		assert_int_equal(answer->connected->n_ends, status ? 0 : connect->n_ends);
		pc__message__free_unpacked(answer, NULL);
	}
	close(fd);
	assert_true(nodes_until(all_agree() && qps_alive == 0, 1000));
}

static void a_connect_is_checked_before_any_qp_is_made(void **state)
{
	static Pc__QpEnd end[QPS_PER_PEER_MAX + 1], *ends[QPS_PER_PEER_MAX + 1];
	Pc__Connect c = PC__CONNECT__INIT;

	for (unsigned i = 0; i <= QPS_PER_PEER_MAX; i++) {
		end[i] = (Pc__QpEnd)PC__QP_END__INIT;
		end[i].index = i;
		end[i].address.len = sizeof(good_address);
		end[i].address.data = (uint8_t *)&good_address;
		ends[i] = &end[i];
	}
	c.incarnation = node[0].control.incarnation;
	c.ends = ends;
	raw_connect(&c, true, 0); /* the message has no queue pair addresses (n_ends is 0) */
	c.n_ends = QPS_PER_PEER_MAX + 1;
	raw_connect(&c, true, 0);
	c.n_ends = QPS_PER_PEER_MAX;
	raw_connect(&c, false, 0);
	c.rail = 2; /* a rail number that the sender does not have: its Hello named two rails */
	raw_connect(&c, true, 0);
	c.rail = 1;
	c.to_rail = 2;
	raw_connect(&c, true, 0);
	c.to_rail = 0;
	end[1].index = 0;
	raw_connect(&c, true, 0);
	end[1].index = 1;
	end[0].address.len--;
	raw_connect(&c, true, 0);
	end[0].address.len++;
	c.incarnation++;
	raw_connect(&c, false, -ESTALE);
	c.incarnation--;
	good_address.version = 9;
	raw_connect(&c, false, -EPROTO);
	good_address.version = 1;
}

static void regions_out_of_bounds_are_refused(void **state)
{
	struct dv_mr *mr = &node[1].control.rail[0].exported[0];
	struct dv_mr bad[] = {
		/* base + length of the region is larger than the address space */
		{.base = (void *)UINTPTR_MAX, .length = 4096},
		{.base = (void *)4096, .length = (1ull << 48) + 1},
	};

	for (unsigned i = 0; i < 2; i++) {
		uint64_t before = node[0].control.counter[COUNTER_messages_bad];

		*mr = bad[i];
		node[0].rail[0].tells = 0;
		assert_true(nodes_until(all_agree() && member_link(&node[0].control, ref()), 1000));
		if (i == 0)
			/*
			 * the rail requests the connection once; after that the control plane
			 * retries by itself
			 */
			want(0);
		assert_true(
			nodes_until(node[0].control.counter[COUNTER_messages_bad] > before, 1000));
		assert_int_equal(told(0, 0)->kind, RAIL_CONN_REFUSE);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_wanted_peer_is_handed_over_with_its_regions),
		T(a_connection_has_the_limbo_time_of_its_peer),
		T(a_rail_that_wants_an_unknown_member_is_refused_at_once),
		T(a_rail_that_wants_a_member_without_rails_is_refused_at_once),
		T(a_rail_with_all_its_connections_gets_no_further_one),
		T(a_broken_connection_is_drained_returned_and_reconnected),
		T(each_rail_connects_to_its_counterpart),
		T(a_second_connect_of_the_same_rails_replaces_the_first),
		T(a_failed_connection_attempt_is_refused_and_leaves_no_qp),
		T(a_connect_without_an_answer_is_refused),
		T(the_active_qps_to_a_dead_member_are_dropped),
		T(the_passive_qps_of_a_dead_member_are_destroyed),
		T(a_member_without_a_right_loses_its_queue_pairs),
		T(connections_with_a_member_that_removed_this_engine_are_made_anew),
		T(commands_that_a_full_inbox_refuses_are_sent_later_in_order),
		T(stopping_drops_all_connections_and_waits_for_those_that_rails_hold),
		T(a_connect_is_checked_before_any_qp_is_made),
		T(regions_out_of_bounds_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
