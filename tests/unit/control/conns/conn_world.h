/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two nodes with two stub rails each, for the tests of connections: node 0 reads, node 1
 * serves. A node is one control plane in the test's process.
 */
#ifndef TESTS_UNIT_CONTROL_CONNECT_WORLD_H
#define TESTS_UNIT_CONTROL_CONNECT_WORLD_H

#include "tests/unit/control/test_rpc_nodes.h"

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/control/conns/conns_inner.h"

static inline int setup(void **state)
{
	nodes_setup(20, 300);
	stub_counts_clear();
	node[0].settings.rail_qps_per_peer = 2;
	qp_create_status = qp_connect_status = qp_error_status = qp_kill_status = cut_status = 0;
	connects_blocked = connects_free = 0;
	/* number of dv_qp_connect() calls that a test may block: without limit */
	connects_held = 1u << 30;
	nics_come_back = false;
	reopen_status = nic_open_status = renew_left = 0;
	sessions_lent = 0;
	ack_ns = 0;
	for (unsigned i = 0; i < 2; i++) {
		if (node_open(i, i ? node_at(0) : NULL) < 0)
			return -1;
		for (unsigned r = 0; r < 2; r++)
			for (unsigned m = 0; m < REGIONS_EXPORTED; m += 16)
				node[i].control.rail[r].exported[m] = (struct dv_mr){
					.base = (void *)(uintptr_t)(0x100000 * (m + 1)),
					.length = 4096 * (m + 1),
					.rkey = i * 1000 + r * 100 + m};
	}
	return nodes_until(all_agree(), 3000) ? 0 : -1;
}

static inline int teardown(void **state)
{
	__atomic_store_n(&connects_blocked, 0, __ATOMIC_SEQ_CST);
	nodes_teardown();
	assert_int_equal(qps_alive, 0);
	return 0;
}

/* Returns the peer number that node 0 uses for node 1. */
static inline uint16_t peer(void)
{
	return member_by_ref(&node[0].control, node[1].control.ref)->peer;
}

static inline uint32_t ref(void)
{
	return node[1].control.ref;
}

/* Returns the bit mask of the rails that node 0 tells its clients not to use towards node 1. */
static inline uint32_t rails_out(void)
{
	return shm_load(&node[0].control.status->peer_rails_out[peer()]);
}

static inline void want(unsigned rail)
{
	conns_wanted(&node[0].control, rail, peer(), ref());
}

static inline struct rail_command *told(unsigned rail, unsigned nth)
{
	struct fake_rail *fake = &node[0].rail[rail];

	return nodes_until(fake->tells > nth, 500) ? &fake->told[nth] : NULL;
}

static inline struct rail_conn *connected(unsigned rail)
{
	struct rail_command *command;

	node[0].rail[rail].tells = 0;
	want(rail);
	command = told(rail, 0);
	assert_non_null(command);
	assert_int_equal(command->kind, RAIL_CONN_ADD);
	assert_int_equal(command->ref, ref());
	return command->object;
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
