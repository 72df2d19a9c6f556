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

/*
 * The faults to inject; all zero: none. Each percentage is a probability per READ, drawn from
 * `seed`.
 */
struct dv_fault {
	uint64_t seed;
	unsigned delay_steps_max; /* each completion is delayed by a random 0 to this many steps */
	bool shuffle;             /* true: each step serves the QPs in a random order */
	/* true: nothing reaches any peer: WQEs are retried, then fail with syndrome 0x15 */
	bool link_down;
	/* percentage of READs that are executed again after a later READ */
	unsigned retransmit_percent;
	uint64_t retransmit_ns; /* not before this much time after its first execution, ns */
	/* bytes of a WQE moved per step, starting at either end; 0: all; not over TCP */
	unsigned piece_bytes;
	bool silent;   /* true: link_down raises no port event */
	unsigned slow; /* factor by which everything takes longer; 0 or 1: not slower */
	/* number of the QP whose WQE error_at (0: the next) fails; 0: any QP */
	uint32_t error_qpn;
	uint32_t error_at;
	uint8_t error_syndrome; /* syndrome with which that WQE fails; 0: no WQE fails */
	/* true: the request of the next READ is lost and retransmitted, once */
	bool lose;
	/* enum dv_dead, combined with |: the functions of the device that no longer work */
	unsigned dead;
};

/*
 * Replaces all faults of the NIC from its next step on; restarts the random sequence from the seed.
 */
void dv_soft_faults(struct dv_device *device, const struct dv_fault *fault);

/*
 * How long a WQE is retried towards a peer that does not answer; default 1 s. `steps` != 0: counted
 * in steps of this NIC instead of time.
 */
void dv_soft_patience(struct dv_device *device, uint64_t retry_ns, uint64_t steps);

/* Sets the NIC's clock from its next step on: it reads *now_ns; NULL: CLOCK_MONOTONIC. */
void dv_soft_clock(struct dv_device *device, const uint64_t *now_ns);

struct dv_soft_stats {
	uint64_t wqes, reads, writes; /* WQEs, READs and WRITEs executed successfully */
	/* payload bytes of the executed WQEs, including bytes that a model did not move */
	uint64_t bytes;
	/* CQEs written; those of them that report an error, flushes included */
	uint64_t cqes, cqe_errors;
	uint64_t flushed; /* WQEs that were flushed instead of executed */
	uint64_t doorbells;
	uint64_t retries;     /* WQEs that had to wait for their peer; each is counted once */
	uint64_t retransmits; /* READs whose payload was moved again or whose request was lost */
	/* Errors of the program that posts (the poll core); a correct one leaves all of these
	 * zero. */
	/* doorbells for another QP, or with an index beyond the doorbell record */
	uint64_t bad_doorbell;
	uint64_t bad_index;   /* WQEs whose index field is not their position in the queue */
	uint64_t bad_qpn;     /* WQEs that carry another QP's number */
	uint64_t bad_wqe;     /* WQEs whose opcode or size the NIC does not know */
	uint64_t sq_overruns; /* doorbells for more WQEs than the send queue holds */
	uint64_t cq_overruns; /* CQEs that found their CQ full */
	/* QPs whose doorbell record was ahead of their last doorbell when dv_soft_stats() was
	 * called */
	uint64_t missing_doorbells;
	uint64_t strangers;  /* requests over TCP without the token of their QP */
	uint64_t unmappable; /* requests of peers for memory that was registered without a memfd */
	char reason[120];    /* text of the last error counted above; "": no error */
};

/* Copies the NIC's counters. missing_doorbells is exact only while no other thread posts. */
void dv_soft_stats(struct dv_device *device, struct dv_soft_stats *ret);

#endif
