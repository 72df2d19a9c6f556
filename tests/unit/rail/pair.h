/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two software NICs in one process: the rail is on the near one, the peer's memory on the far one.
 * The test steps them, or each has its own thread.
 */
#ifndef TEST_RAIL_PAIR_H
#define TEST_RAIL_PAIR_H

#include "dv/setup.h"
#include "dv/soft/fault.h"
#include "tests/unit/rail/world.h"

struct pair_peer {
	struct rail_peer peer;                /* must be first: an event's object points to it */
	struct dv_qp *near[QPS_PER_PEER_MAX]; /* the rail's QPs */
	struct dv_qp *far[QPS_PER_PEER_MAX];  /* the peer's QPs */
};

struct pair {
	struct world world;
	struct dv_device *near, *far;
	struct dv_cq far_cq;
	struct dv_mr pool, heads, shard, home;
	int kick, control_kick;
	bool busy; /* value of poll_core_options.busy */
	/* the poll core, in the first of the pairs that share it; NULL: no thread, the test
	 * steps the rail */
	struct poll_core *core;
};

/* Opens two software NICs and a rail. `threaded`: each NIC has its own thread. */
struct pair *pair_open(bool threaded, bool busy);
/* Starts one poll core for the rails of all these pairs, with one eventfd that wakes it. */
void pair_start(struct pair *const *pairs, unsigned count);
/* Closes a pair. If it has a poll core, all of that core's rails have stopped. */
void pair_close(struct pair *pair);
/* Steps the rail and both NICs until none has work `quiet` times in a row. */
void pair_run(struct pair *pair, unsigned quiet);
/* Steps the rail and both NICs once. */
void pair_step(struct pair *pair);

/* Creates and connects `qps` QPs on both NICs; the rail is not told. */
struct pair_peer *pair_peer_new(struct pair *pair, uint16_t number, uint32_t ref, unsigned qps);
/* Moves the near QPs to the error state and sends RAIL_PEER_DROP. */
void pair_peer_drop(struct pair *pair, struct pair_peer *peer);
void pair_peer_free(struct pair_peer *peer);

/* Opens and closes the socket pair through which the rail wakes this world's clients. */
void wake_open(struct world *w);
void wake_close(struct world *w);

#endif
