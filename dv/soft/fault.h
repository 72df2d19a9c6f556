/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests and perf may ask of a software NIC beyond dv/setup.h: faults, patience, counters.
 *
 * In a test that steps the NIC itself everything here is deterministic: the same posts, steps and
 * seed give the same completions in the same step. Any thread may call.
 */
#ifndef DV_SOFT_FAULT_H
#define DV_SOFT_FAULT_H

#include "dv/setup.h"

/* What goes wrong. All zero: nothing. Percentages are drawn per READ from the seed. */
struct dv_fault {
	uint64_t seed;
	unsigned delay_steps_max;    /* a completion waits 0..this many steps after execution */
	bool shuffle;                /* QPs are served in another order each step */
	bool link_down;              /* nothing reaches any peer: retries, and after a while 0x15 */
	unsigned retransmit_percent; /* READs executed again after a later unfenced READ was */
	unsigned piece_bytes;        /* moved in one step, from either end; 0: all; not over TCP */
	bool silent;                 /* link_down is not told as an event of the port */
	unsigned slow;               /* everything takes so many times as long; 0, 1: as ever */
	uint32_t error_qpn;          /* this QP's error_at-th WQE from now on (0: the next) ... */
	uint32_t error_at;
	uint8_t error_syndrome; /* ... fails with this; 0: none does. No QP: any QP's */
	bool lose;              /* the next READ's request is lost: retransmitted, once */
	unsigned dead;          /* enum dv_dead: what the device does no more */
};

/* From the next step on. Replaces what was set; the seed starts anew. */
void dv_soft_faults(struct dv_device *device, const struct dv_fault *fault);

/*
 * How long a WQE is retried towards a peer that does not answer. `steps` != 0 counts steps of this
 * NIC instead of time. Default: 1 s.
 */
void dv_soft_patience(struct dv_device *device, uint64_t retry_ns, uint64_t steps);

/* What this NIC takes for the time from its next step on; NULL: CLOCK_MONOTONIC again. */
void dv_soft_clock(struct dv_device *device, const uint64_t *now_ns);

struct dv_soft_stats {
	uint64_t wqes, reads, writes; /* executed with success */
	uint64_t bytes;               /* payload, that of a model that moves none included */
	uint64_t cqes, cqe_errors;    /* written; of these errors, flushes included */
	uint64_t flushed;
	uint64_t doorbells;
	uint64_t retries;     /* a WQE had to wait for its peer: once a WQE */
	uint64_t retransmits; /* payloads executed once more */
	uint64_t fence_waits; /* a fenced WQE was held back: once a WQE */
	/* What the poll core did wrong. A correct program leaves all of these zero. */
	uint64_t bad_doorbell;      /* for a WQE the record does not cover, or another QP */
	uint64_t bad_index;         /* a WQE with another index than its place in the queue */
	uint64_t bad_qpn;           /* a WQE with another QP's number */
	uint64_t bad_wqe;           /* an opcode or a size that the NIC does not know */
	uint64_t sq_overruns;       /* more posted than the queue holds */
	uint64_t cq_overruns;       /* a CQE had no room */
	uint64_t missing_doorbells; /* now: QPs whose record is ahead and no doorbell was rung */
	uint64_t unmappable;        /* peers asked for memory registered without a memfd */
	char reason[120];           /* the last of those, in words; "" */
};

/* missing_doorbells is meaningful while no other thread posts. */
void dv_soft_stats(struct dv_device *device, struct dv_soft_stats *ret);

#endif
