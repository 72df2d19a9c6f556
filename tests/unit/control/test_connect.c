/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs between engines, with stubs for rails and NICs: asked for, answered, broken,
 * returned.
 */
#include "tests/unit/control/connect_world.h"

static void counts_are(unsigned n, unsigned live, unsigned served, unsigned qps)
{
	struct connect_counts got;

	connect_counts(&node[n].control, &got);
	assert_int_equal(got.asked, 0);
	assert_int_equal(got.live, live);
	assert_int_equal(got.served, served);
	assert_int_equal(got.qps, qps);
}

static void a_wanted_peer_is_handed_over_with_its_regions(void **state)
{
	struct rail_peer *got;

	(void)state;
	got = connected(1);
	assert_int_equal(got->peer, peer());
	assert_int_equal(got->ref, ref());
	assert_int_equal(got->rail, 1);
	assert_int_equal(got->qps, 2);
	assert_ptr_equal(got->sq[0], &node[0].rail[1]);
	assert_null(got->lane);
	for (unsigned m = 0; m < REGIONS_EXPORTED; m++) {
		assert_int_equal(got->region[m].length, m % 16 ? 0 : 4096 * (m + 1));
		assert_int_equal(got->region[m].base, m % 16 ? 0 : 0x100000 * (m + 1));
		assert_int_equal(got->region[m].rkey, m % 16 ? 0 : 1100 + m);
	}
	assert_int_equal(connect_outstanding(&node[0].control), 1);
	assert_int_equal(qps_alive, 4); /* two at either end */
	counts_are(0, 1, 0, 2);
	counts_are(1, 0, 1, 2);
	want(1); /* it has it already */
	nodes_run(50);
	assert_int_equal(node[0].rail[1].tells, 1);
	connect_stop(&node[0].control);
}

static void whoever_is_no_member_is_refused_at_once(void **state)
{
	(void)state;
	connect_wanted(&node[0].control, 0, 7, 12345);
	connect_wanted(&node[0].control, 0, (uint16_t)(peer() + 1), ref());
	connect_wanted(&node[0].control, 0, 0, node[0].control.ref); /* itself */
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(told(0, i)->kind, RAIL_PEER_REFUSE);
	assert_int_equal(node[0].rail[0].told[0].ref, 12345);
	assert_int_equal(node[0].rail[0].told[0].peer, 7);
	assert_int_equal(qps_alive, 0);
}

static void a_broken_connection_is_drained_returned_and_made_anew(void **state)
{
	struct rail_peer *got = connected(0);

	(void)state;
	connect_broken(&node[0].control, 0, got, 0x15);
	assert_int_equal(told(0, 1)->kind, RAIL_PEER_DROP);
	assert_int_equal(qps_errors, 2); /* before that */
	assert_int_equal(node[0].rail[0].told[1].ref, ref());
	connect_broken(&node[0].control, 0, got, 0x15); /* said twice is done once */
	assert_int_equal(qps_errors, 2);
	want(0); /* the old one is still out */
	assert_int_equal(told(0, 2)->kind, RAIL_PEER_REFUSE);
	assert_int_equal(connect_outstanding(&node[0].control), 1);
	assert_int_equal(qps_alive, 4); /* never freed before the rail has drained them */
	counts_are(0, 0, 0, 2);         /* there, but nothing is read through it */
	connect_returned(&node[0].control, 0, got);
	assert_int_equal(connect_outstanding(&node[0].control), 0);
	assert_true(nodes_until(qps_alive == 0, 500)); /* the other end was told */
	want(0);                                       /* within the back-off */
	assert_int_equal(told(0, 3)->kind, RAIL_PEER_REFUSE);
	/* It is made anew without being asked for, and clients come back when it was proven. */
	assert_int_equal(told(0, 4)->kind, RAIL_PEER_ADD);
	got = told(0, 4)->object;
	assert_true(got->probe);
	assert_int_equal(rails_out(), 1);
	connect_proven(&node[0].control, 0, got);
	assert_int_equal(rails_out(), 0);
	connect_stop(&node[0].control);
}

static void each_rail_connects_to_its_counterpart(void **state)
{
	struct passive *passive;
	unsigned seen = 0;

	(void)state;
	connected(0);
	connected(1);
	LIST_FOREACH (passive, &node[1].control.connect->passives, next) {
		assert_int_equal(passive->rail, passive->to_rail);
		assert_int_equal(passive->ref, node[0].control.ref);
		seen |= 1u << passive->rail;
	}
	assert_int_equal(seen, 3);
	connect_stop(&node[0].control);
}

static void a_second_connect_of_the_same_rails_replaces_the_first(void **state)
{
	struct rail_peer *got = connected(0);

	(void)state;
	/* As if the Disconnect of the first were late: it means the first only. */
	((struct active *)got->control)->serial += 1000;
	connect_broken(&node[0].control, 0, got, 0);
	assert_int_equal(told(0, 1)->kind, RAIL_PEER_DROP);
	connect_returned(&node[0].control, 0, got);
	assert_true(nodes_until(qps_alive == 2, 50));
	assert_int_equal(told(0, 2)->kind, RAIL_PEER_ADD);
	assert_int_equal(qps_alive, 4);
	connect_stop(&node[0].control);
}

static void what_fails_is_refused_and_leaves_nothing(void **state)
{
	uint64_t failed_ns;

	(void)state;
	qp_create_status = -ENOMEM;
	want(0);
	assert_int_equal(told(0, 0)->kind, RAIL_PEER_REFUSE);
	qp_create_status = 0;
	qp_connect_status = -EINVAL;
	assert_int_equal(told(0, 1)->kind, RAIL_PEER_REFUSE);
	failed_ns = clock_now_ns();
	assert_int_equal(qps_alive, 0);
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
	assert_int_equal(rails_out(), 1);
	/* The back-off has doubled. */
	qp_connect_status = 0;
	assert_int_equal(told(0, 2)->kind, RAIL_PEER_ADD);
	assert_in_range((clock_now_ns() - failed_ns) / 1000000, 2 * CONNECT_BACKOFF_MS - 1,
		3 * CONNECT_BACKOFF_MS);
	connect_stop(&node[0].control);
}

static void an_answer_that_does_not_come_is_a_refusal(void **state)
{
	(void)state;
	node[0].settings.cluster_dead_after_ms = 60000;
	node[1].stalled = true;
	want(0);
	assert_true(nodes_until(node[0].rail[0].tells == 1, CONNECT_ANSWER_MS + 500));
	assert_int_equal(node[0].rail[0].told[0].kind, RAIL_PEER_REFUSE);
	assert_int_equal(qps_alive, 0);
	/* The answer comes after all: it is too late for it, and no crime. */
	node[1].stalled = false;
	nodes_run(100);
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
	if (node[0].rail[0].tells > 1) /* another attempt is */
		assert_true(((struct rail_peer *)told(0, 1)->object)->probe);
	connect_stop(&node[0].control);
}

static void the_connections_of_a_dead_member_go(void **state)
{
	struct rail_peer *got = connected(0);

	(void)state;
	node_close(1); /* its passive ends are gone with it */
	assert_true(nodes_until(sees_count(0, 1), 1000));
	assert_int_equal(told(0, 1)->kind, RAIL_PEER_DROP);
	assert_int_equal(qps_errors >= 2, 1);
	assert_int_equal(qps_alive, 2);
	connect_returned(&node[0].control, 0, got);
	assert_true(nodes_until(qps_alive == 0, 500));
}

static void the_passive_ends_of_a_dead_member_go(void **state)
{
	(void)state;
	connected(0);
	connected(1);
	node_close(0);
	assert_true(nodes_until(qps_alive == 0, 1000));
}

static void commands_a_full_inbox_refuses_come_later_in_order(void **state)
{
	struct fake_rail *fake = &node[0].rail[0];

	(void)state;
	fake->full = true;
	for (uint32_t i = 0; i < 10; i++)
		connect_wanted(&node[0].control, 0, 9, 1000 + i);
	nodes_run(30);
	assert_int_equal(fake->tells, 0);
	fake->full = false;
	connect_wanted(&node[0].control, 0, 9, 1010); /* does not overtake them */
	assert_true(nodes_until(fake->tells == 11, 500));
	for (uint32_t i = 0; i < 11; i++)
		assert_int_equal(fake->told[i].ref, 1000 + i);
}

static void stopping_drops_all_and_waits_for_what_rails_have(void **state)
{
	struct rail_peer *got = connected(0);

	(void)state;
	connect_stop(&node[0].control);
	connect_stop(&node[1].control);
	assert_int_equal(told(0, 1)->kind, RAIL_PEER_DROP);
	assert_int_equal(connect_outstanding(&node[0].control), 1);
	assert_true(nodes_until(qps_alive == 2, 500)); /* passive ones do not wait */
	connect_returned(&node[0].control, 0, got);
	assert_int_equal(connect_outstanding(&node[0].control), 0);
	assert_true(nodes_until(qps_alive == 0, 500));
}

/* ---- what a peer may not say ----------------------------------------------------------------- */

static struct dv_address good_address = {.version = 1, .kind = 3};

static void raw_connect(Pc__Connect *connect, bool closes, int status)
{
	uint64_t bad = node[0].control.counter[COUNTER_messages_bad];
	Pc__Message m = PC__MESSAGE__INIT;
	uint8_t bytes[8192];
	size_t got = 0;
	int fd = raw_open(0);

	raw_hello(fd, "raw", 0x4200000042, 9, NULL);
	got = raw_read(fd, bytes, sizeof(bytes), 500); /* its Hello */
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

static void a_connect_is_checked_before_anything_is_made(void **state)
{
	static Pc__QpEnd end[QPS_PER_PEER_MAX + 1], *ends[QPS_PER_PEER_MAX + 1];
	Pc__Connect c = PC__CONNECT__INIT;

	(void)state;
	for (unsigned i = 0; i <= QPS_PER_PEER_MAX; i++) {
		end[i] = (Pc__QpEnd)PC__QP_END__INIT;
		end[i].index = i;
		end[i].address.len = sizeof(good_address);
		end[i].address.data = (uint8_t *)&good_address;
		ends[i] = &end[i];
	}
	c.incarnation = node[0].control.incarnation;
	c.ends = ends;
	raw_connect(&c, true, 0); /* no ends */
	c.n_ends = QPS_PER_PEER_MAX + 1;
	raw_connect(&c, true, 0);
	c.n_ends = QPS_PER_PEER_MAX;
	raw_connect(&c, false, 0);
	c.rail = 2; /* it said it has two */
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
		{.base = (void *)UINTPTR_MAX, .length = 4096}, /* wraps */
		{.base = (void *)4096, .length = (1ull << 48) + 1},
	};

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		uint64_t before = node[0].control.counter[COUNTER_messages_bad];

		*mr = bad[i];
		node[0].rail[0].tells = 0;
		assert_true(nodes_until(all_agree() && member_link(&node[0].control, ref()), 1000));
		if (i == 0)
			want(0); /* from then on it is tried again and again */
		assert_true(
			nodes_until(node[0].control.counter[COUNTER_messages_bad] > before, 1000));
		assert_int_equal(told(0, 0)->kind, RAIL_PEER_REFUSE);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_wanted_peer_is_handed_over_with_its_regions),
		T(whoever_is_no_member_is_refused_at_once),
		T(a_broken_connection_is_drained_returned_and_made_anew),
		T(each_rail_connects_to_its_counterpart),
		T(a_second_connect_of_the_same_rails_replaces_the_first),
		T(what_fails_is_refused_and_leaves_nothing),
		T(an_answer_that_does_not_come_is_a_refusal),
		T(the_connections_of_a_dead_member_go),
		T(the_passive_ends_of_a_dead_member_go),
		T(commands_a_full_inbox_refuses_come_later_in_order),
		T(stopping_drops_all_and_waits_for_what_rails_have),
		T(a_connect_is_checked_before_anything_is_made),
		T(regions_out_of_bounds_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
