/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two software NICs in one process: the rail is on the near one, the peer's memory on the far one.
 * The test steps them, or a thread of the pair.
 */
#ifndef TEST_RAIL_PAIR_H
#define TEST_RAIL_PAIR_H

#include <pthread.h>

#include "dv/setup.h"
#include "dv/soft/fault.h"
#include "tests/unit/rail/world.h"

struct pair_conn {
	/* must be first: an event's object points to it and is cast to struct pair_conn */
	struct rail_conn handle;
	struct dv_qp *near[QPS_PER_PEER_MAX]; /* QPs on the NIC of the rail under test */
	struct dv_qp *far[QPS_PER_PEER_MAX];  /* QPs on the NIC of the peer */
};

struct pair {
	struct world world;
	struct dv_device *near, *far;
	struct dv_cq far_cq;
	struct dv_mr pool, heads, shard, home;
	int kick, control_kick;
	bool threaded, closing; /* a thread of the pair steps the NICs; it is to end */
	pthread_t nics;
	bool busy; /* value of poll_core_options.busy for the poll core */
	/*
	 * the poll core, held by the first of the pairs that share it; NULL: no thread, the test
	 * steps the rail
	 */
	struct poll_core *core;
};

/*
 * Opens two software NICs and a rail on the first one. `threaded`: a thread steps the NICs, and the
 * rail takes them for hardware.
 */
struct pair *pair_open(bool threaded, bool busy);
/* Starts one poll core for the rails of all these pairs, with one eventfd that wakes it. */
void pair_start(struct pair *const *pairs, unsigned count);
/* Closes a pair. If the pair has a poll core, all rails of that core must have stopped. */
void pair_close(struct pair *pair);
/* Steps the rail and both NICs until none of them has work `quiet` times in a row. */
void pair_run(struct pair *pair, unsigned quiet);
/* Steps the rail and both NICs once. */
void pair_step(struct pair *pair);

/* Creates `qps` QPs on each of the two NICs and connects them; the rail is not told. */
struct pair_conn *pair_conn_new(struct pair *pair, uint16_t number, uint32_t ref, unsigned qps);
/* Moves the QPs on the rail's side to the error state and sends the rail RAIL_CONN_DROP. */
void pair_conn_drop(struct pair *pair, struct pair_conn *conn);
void pair_conn_free(struct pair_conn *conn);

/* Opens and closes the socket pair through which the rail wakes the clients of this world. */
void wake_open(struct world *w);
void wake_close(struct world *w);

#endif
