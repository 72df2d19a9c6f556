/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that completes every READ at once and moves only page heads; of payload it writes one
 * word per granule, so that a client can tell which memory arrived. It takes the place of
 * a NIC for a rail (rail_cost.c). One thread.
 */
#ifndef PERF_INSTANT_H
#define PERF_INSTANT_H

#include "dv/hot.h"
#include "tests/nic_stub.h"

#define INSTANT_HEADS_RKEY 0x2000u /* READs with this rkey are of page heads and copy all bytes */

/* A WQE as the rail posted it. */
struct instant_wqe {
	uint64_t remote;
	struct dv_sge sge[DV_SGES_MAX];
	uint32_t rkey;
	uint8_t sges, flags, qp;
	bool last; /* the last one before doorbells were rung and the device was stepped */
};

struct instant {
	struct nic_stub_qp *qp;
	unsigned qps;
	/* payload: every `granule` bytes, the address read is written to the destination; 0:
	 * never */
	uint32_t granule;
	uint64_t wqes, cqes, doorbells; /* executed or written so far */
	/* recording of what the rail posts: room for trace_max WQEs; NULL: no recording */
	struct instant_wqe *trace;
	uint64_t traced, trace_max;
};

extern struct instant instant;

/* Zeroed memory, aligned to a page; ends the program if there is none. */
void *zeroed(size_t bytes);
/* Creates `qps` queue pairs. */
void instant_open(unsigned qps);
/* Executes every WQE that a doorbell announced. */
void instant_step(void);
/* Posts the recording again through dv/hot.h: the same WQEs, flags and doorbells. Returns the time
 * (ns) outside instant_step(). */
uint64_t instant_replay(void);
/* After a replay: nothing is posted, and `cq`, the rail's handle, has consumed every CQE. */
void instant_settle(struct dv_cq *cq);

#endif
