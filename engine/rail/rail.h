/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rail: one NIC and everything that drives it, and the poll core, the thread that steps one rail
 * or several in turn. This is all the control plane sees of them; the conversation is in inbox.h.
 *
 * The rail speaks pages, never keys, and waits for nobody: an op whose peer is not connected is
 * parked until its deadline while the control plane connects. Every op is answered exactly once,
 * and not before the NIC is done with its buffers: after the last CQE, or after its QP was driven
 * to error by the control plane and drained.
 */
#ifndef RAIL_RAIL_H
#define RAIL_RAIL_H

#include <stdbool.h>
#include <stdint.h>

#include "config/limits.h"
#include "engine/abi/segment.h"
#include "engine/rail/inbox.h"

struct dv_cq;
struct dv_device;
struct poll_core;
struct rail;

struct rail_options {
	unsigned index;
	struct dv_device *device;      /* opened and, after rail_close(), closed by the caller */
	struct status_segment *status; /* its own line: rail[index].sleeps */
	int kick;                      /* eventfd: whoever finds rail[index].sleeps set writes it;
	                                * the rails of one poll core have the same one (dup) */
	int control_kick;              /* eventfd: written after an event when control sleeps */
	bool skip_head_check;          /* tests only */
};

/* Allocates everything the rail will ever need, creates its CQ, does not start it. 0 or -errno. */
int rail_open(const struct rail_options *options, struct rail **ret_rail);
/* After poll_core_close(), or when no poll core ever had it: frees. */
void rail_close(struct rail *rail);

struct poll_core_options {
	int core;            /* -1: not pinned */
	bool busy;           /* never sleeps */
	uint64_t spin_ns;    /* adaptive: idle time before it sleeps */
	bool leave_out_nics; /* software NICs' clocks stand still while they run: model.own_time */
};

/* Starts a thread that steps these rails, 1 to RAILS_MAX, until each has stopped. 0 or -errno. */
int poll_core_start(const struct poll_core_options *options, struct rail *const *rails,
	unsigned count, struct poll_core **ret_core);
/* Another value after each turn; there is one at least every 100 ms. Any thread. */
uint64_t poll_core_beat(const struct poll_core *core);
/* After RAIL_STOPPED of each of its rails was received: joins the thread, frees. NULL is fine. */
void poll_core_close(struct poll_core *core);

/*
 * The time from the end of one turn of a poll core to the end of the next: how long its rings went
 * unlooked at. Not counted after it gave its core away itself (yield, nap, sleep).
 */
#define GAP_BUCKETS 32
#define GAP_LONG_NS 10000u
struct poll_core_report {
	uint64_t gaps[GAP_BUCKETS]; /* how many, by length: from gap_bucket_ns() on */
	uint64_t gaps_long;         /* over GAP_LONG_NS */
	uint64_t gap_worst_ns;
	uint64_t busy_ns; /* turns that did something ... */
	uint64_t spin_ns; /* ... that did not; the rest of the time it rested */
	uint64_t nic_ns;  /* of busy_ns: in software NICs, which a port does by itself */
	uint64_t age_ns;  /* since poll_core_start() */
};
/* Any thread; values may be a moment old. */
void poll_core_report(const struct poll_core *core, struct poll_core_report *ret);
/* The shortest gap of a bucket. */
uint64_t gap_bucket_ns(unsigned bucket);

/* The completion queue all QPs of this rail are created on; any thread. */
struct dv_cq *rail_cq(struct rail *rail);

/*
 * Control plane's ends of the inbox. rail_tell() returns false when the ring is full: try again on
 * the next turn of the loop. It wakes the rail when it sleeps. rail_hear() returns false when there
 * is nothing.
 */
bool rail_tell(struct rail *rail, const struct rail_command *command);
bool rail_hear(struct rail *rail, struct rail_event *ret_event);

/* Copies the rail's counters (abi/counter.def order); any thread, values may be a moment old. */
enum counter {
#define COUNTER(name, help) COUNTER_##name,
#include "engine/abi/counter.def"
#undef COUNTER
	COUNTER_COUNT
};
void rail_counters(const struct rail *rail, uint64_t ret_counters[COUNTER_COUNT]);
/*
 * Copies the latency of sampled READs, doorbell to completion (abi/latency.h), and their sum in ns;
 * any thread, values may be a moment old.
 */
void rail_latency(
	const struct rail *rail, uint64_t ret_latency[LATENCY_BUCKETS], uint64_t *ret_ns_sum);
/* Operations in flight now; any thread, a moment old. */
uint32_t rail_in_flight(const struct rail *rail);

/*
 * One turn of one rail; its poll core calls it, and unit tests that have no thread. `now_ns`: the
 * time as a rail before it in this turn read it; 0: it reads the clock if it has to know.
 */
unsigned rail_step(struct rail *rail, uint64_t now_ns);

#endif
