/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rails clients are told not to use, and how those rails come back into use. A node is one
 * control plane in the test's process.
 */
#include "tests/unit/control/connect_world.h"

static void a_probe_that_fails_leaves_the_rail_out(void **state)
{
	struct rail_peer *got = connected(1);

	(void)state;
	assert_false(got->probe);
	assert_int_equal(rails_out(), 0);
	connect_broken(&node[0].control, 1, got, 0);
	assert_int_equal(rails_out(), 2);
	assert_int_equal(told(1, 1)->kind, RAIL_PEER_DROP);
	connect_returned(&node[0].control, 1, got);
	assert_int_equal(told(1, 2)->kind, RAIL_PEER_ADD);
	got = told(1, 2)->object;
	connect_broken(&node[0].control, 1, got, 0);
	/* the answer to the probe comes too late: the connection is broken already */
	connect_proven(&node[0].control, 1, got);
	assert_int_equal(rails_out(), 2);
	connect_returned(&node[0].control, 1, got);
	connect_stop(&node[0].control);
}

static void a_port_without_a_link_takes_its_rail_out_at_once(void **state)
{
	struct rail_peer *got = connected(1);
	unsigned peers_out;

	(void)state;
	connect_port(&node[0].control, 1, false);
	assert_int_equal(shm_load(&node[0].control.status->rails_out), 2);
	assert_int_equal(node[0].control.counter[COUNTER_rails_down], 1);
	assert_string_equal(connect_rail_state(&node[0].control, 1, &peers_out), "down");
	assert_string_equal(connect_rail_state(&node[0].control, 0, &peers_out), "up");
	assert_int_equal(told(1, 1)->kind, RAIL_PEER_DROP);
	connect_returned(&node[0].control, 1, got);
	nodes_run(2 * CONNECT_BACKOFF_MS); /* node 0 makes no attempt while its port has no link */
	assert_int_equal(node[0].rail[1].tells, 2);
	want(1);
	assert_int_equal(told(1, 2)->kind, RAIL_PEER_REFUSE);
	connect_port(&node[0].control, 1, true);
	assert_int_equal(shm_load(&node[0].control.status->rails_out), 0);
	/* bit 1: clients do not use rail 1 towards node 1 until its probe is answered */
	assert_int_equal(rails_out(), 2);
	assert_int_equal(told(1, 3)->kind, RAIL_PEER_ADD);
	connect_proven(&node[0].control, 1, told(1, 3)->object);
	assert_int_equal(rails_out(), 0);
	assert_string_equal(connect_rail_state(&node[0].control, 1, &peers_out), "up");
	assert_int_equal(peers_out, 0);
	connect_stop(&node[0].control);
}

/*
 * Both rails always have pages of 1 MiB to read; rail 0 completes `times` pages for each page of
 * rail 1.
 */
static void read_unevenly(unsigned times, unsigned ms)
{
	uint64_t until_ns = clock_now_ns() + ms * 1000000ull;

	while (clock_now_ns() < until_ns) {
		for (unsigned r = 0; r < 2; r++) {
			struct fake_rail *fake = &node[0].rail[r];
			unsigned pages = r ? 1 : times;

			fake->in_flight = 1;
			fake->counter[COUNTER_pages_read] += pages;
			fake->counter[COUNTER_bytes_read] += (uint64_t)pages << 20;
		}
		nodes_run(5);
	}
}

static void a_rail_much_slower_than_the_others_rests_and_is_probed(void **state)
{
	struct rail_peer *got = connected(1);
	unsigned peers_out;

	(void)state;
	read_unevenly(4, 500);
	assert_int_equal(shm_load(&node[0].control.status->rails_out), 0);
	read_unevenly(20, 700);
	assert_int_equal(shm_load(&node[0].control.status->rails_out), 2);
	assert_string_equal(connect_rail_state(&node[0].control, 1, &peers_out), "slow");
	assert_int_equal(told(1, 1)->kind, RAIL_PEER_DROP);
	connect_returned(&node[0].control, 1, got);
	assert_true(nodes_until(node[0].rail[1].tells == 3, 3000));
	assert_int_equal(shm_load(&node[0].control.status->rails_out), 0);
	assert_int_equal(told(1, 2)->kind, RAIL_PEER_ADD);
	assert_int_equal(rails_out(), 2);
	connect_stop(&node[0].control);
}

static void a_faster_port_gets_more_queue_pairs(void **state)
{
	static const struct {
		uint64_t gbps;
		unsigned qps;
	} ports[] = {{0, 4}, {100, 4}, {200, 5}, {400, 8}, {800, 8}};
	struct control *control = &node[0].control;

	(void)state;
	node[0].settings.rail_qps_per_peer = 0;
	for (unsigned i = 0; i < sizeof(ports) / sizeof(ports[0]); i++) {
		port_bits_per_second = ports[i].gbps * 1000000000;
		assert_int_equal(qps_wanted(control, 0), ports[i].qps);
	}
	node[0].settings.rail_qps_per_peer = 1;
	assert_int_equal(qps_wanted(control, 0), 1);
	port_bits_per_second = 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_faster_port_gets_more_queue_pairs),
		T(a_probe_that_fails_leaves_the_rail_out),
		T(a_port_without_a_link_takes_its_rail_out_at_once),
		T(a_rail_much_slower_than_the_others_rests_and_is_probed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
