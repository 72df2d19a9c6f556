/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Controls of a software NIC for tests and perf, beyond dv/setup.h: faults, retry time-out, clock,
 * counters. Any thread may call them.
 *
 * In a test that steps the NIC itself they are deterministic: the same posts, steps and seed give
 * the same completions in the same step.
 */
#ifndef DV_SOFT_FAULT_H
#define DV_SOFT_FAULT_H

#include "dv/setup.h"

/* The faults to inject; all zero: none. Percentages are drawn per READ from the seed. */
struct dv_fault {
	uint64_t seed;
	unsigned delay_steps_max; /* a completion is delayed by 0 to this many steps */
	bool shuffle;             /* each step serves the QPs in another order */
	/* nothing reaches any peer: WQEs are retried, then fail with 0x15 */
	bool link_down;
	unsigned retransmit_percent; /* share of READs executed again after a later unfenced READ */
	/* bytes moved per step, from either end; 0: all; not over TCP */
	unsigned piece_bytes;
	bool silent;   /* link_down raises no port event */
	unsigned slow; /* slowdown factor; 0 or 1: none */
	/* QP whose WQE number error_at (0: the next) fails; 0: any QP */
	uint32_t error_qpn;
	uint32_t error_at;
	uint8_t error_syndrome; /* syndrome with which that WQE fails; 0: no WQE fails */
	bool lose;              /* the next READ's request is lost and retransmitted, once */
	unsigned dead;          /* enum dv_dead: the functions of the device that no longer work */
};

/* Replaces all faults, from the next step on; restarts the random sequence from the seed. */
void dv_soft_faults(struct dv_device *device, const struct dv_fault *fault);

/*
 * How long a WQE is retried towards a peer that does not answer; default 1 s. `steps` != 0: counted
 * in steps of this NIC instead of time.
 */
void dv_soft_patience(struct dv_device *device, uint64_t retry_ns, uint64_t steps);

/* The NIC's clock from its next step on: reads *now_ns; NULL: CLOCK_MONOTONIC. */
void dv_soft_clock(struct dv_device *device, const uint64_t *now_ns);

struct dv_soft_stats {
	uint64_t wqes, reads, writes; /* executed successfully */
	uint64_t bytes;               /* payload, including bytes a model did not move */
	uint64_t cqes, cqe_errors;    /* CQEs written; of these, errors, including flushes */
	uint64_t flushed;             /* WQEs completed as flushed */
	uint64_t doorbells;
	uint64_t retries;     /* WQEs that had to wait for their peer; each counted once */
	uint64_t retransmits; /* READ payloads that were moved again, and lost requests */
	uint64_t fence_waits; /* fenced WQEs that had to wait; each counted once */
	/* Errors of the poll core; a correct program leaves all of these zero. */
	uint64_t bad_doorbell; /* doorbells for another QP, or beyond the doorbell record */
	uint64_t bad_index;    /* WQEs whose index is not their position in the queue */
	uint64_t bad_qpn;      /* WQEs that carry another QP's number */
	uint64_t bad_wqe;      /* WQEs whose opcode or size the NIC does not know */
	uint64_t sq_overruns;  /* doorbells for more WQEs than the send queue holds */
	uint64_t cq_overruns;  /* CQEs that found their CQ full */
	/* QPs whose record is ahead of their last doorbell, at the time of the call */
	uint64_t missing_doorbells;
	uint64_t unmappable; /* peers requested memory that was registered without a memfd */
	char reason[120];    /* text of the last error counted here; "": no error */
};

/* Copies the counters. missing_doorbells is exact only while no other thread posts. */
void dv_soft_stats(struct dv_device *device, struct dv_soft_stats *ret);

#endif
