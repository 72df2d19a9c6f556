/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two software NICs in one process: a rail on the near one, the peer's memory on the far one.
 * Stepped by the test, or with threads of their own.
 */
#ifndef TEST_RAIL_PAIR_H
#define TEST_RAIL_PAIR_H

#include "dv/setup.h"
#include "dv/soft/fault.h"
#include "tests/unit/rail/world.h"

struct pair_peer {
	struct rail_peer peer; /* first: events name it */
	struct dv_qp *near[QPS_PER_PEER_MAX];
	struct dv_qp *far[QPS_PER_PEER_MAX];
};

struct pair {
	struct world world;
	struct dv_device *near, *far;
	struct dv_cq far_cq;
	struct dv_mr pool, heads, shard, home;
	int kick, control_kick;
	bool busy;
	struct poll_core *core; /* of the first of those that share one; NULL: the test steps */
};

struct pair *pair_open(bool threaded, bool busy);
/* One poll core for the rails of all these pairs, with one eventfd to wake it. */
void pair_start(struct pair *const *pairs, unsigned count);
/* Of a poll core's rails, all have stopped. */
void pair_close(struct pair *pair);
/* Rail and NICs until all are idle `quiet` times in a row. */
void pair_run(struct pair *pair, unsigned quiet);
void pair_step(struct pair *pair);

struct pair_peer *pair_peer_new(struct pair *pair, uint16_t number, uint32_t ref, unsigned qps);
/* dv_qp_error() on the near ends, then RAIL_PEER_DROP. */
void pair_peer_drop(struct pair *pair, struct pair_peer *peer);
void pair_peer_free(struct pair_peer *peer);

/* The socket pair that wakes the clients of this world. */
void wake_open(struct world *w);
void wake_close(struct world *w);

#endif
