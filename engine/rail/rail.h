/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rail: one NIC and everything that drives it; and the poll core: the thread that steps one or
 * more rails in turn. This header is all the control plane sees of them; the messages between them
 * are in inbox.h. Unless a function says otherwise, the control plane's thread calls it.
 *
 * A rail reads pages at given places and knows no directory. It never waits: an op whose peer is
 * not connected is parked until its deadline while the control plane connects. Every op is answered
 * exactly once, and not before the NIC has finished with its buffers, that is after its last CQE,
 * or after the control plane moved its QP to the error state and the QP drained.
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
	unsigned index; /* index of the rail, 0..RAILS_MAX-1 */
	/* NIC of the rail, opened by the caller, who closes it after rail_close() */
	struct dv_device *device;
	/* status segment; the rail uses the members rail[index].sleeps and control_sleeps */
	struct status_segment *status;
	/* eventfd that wakes the poll core; clients and the control plane write it when they
	 * find rail[index].sleeps set. The rails of one poll core have duplicates of one eventfd */
	int kick;
	/* eventfd that wakes the control plane; the poll core writes it after an event if
	 * control_sleeps is set */
	int control_kick;
	/* true: pages are validated by lease where the peer announced its limbo time; false: by
	 * their heads, READ after the payload (tail). See engine/control/pages/VALIDATION.md */
	bool lease;
#ifdef TEST_HOOKS
	bool skip_head_check; /* true: pages are answered without validation of their heads */
#endif
};

/*
 * Allocates everything the rail needs and creates its CQ. Does not start it. Returns 0 or a
 * negative errno: -EINVAL, -ENOMEM, or what mmap() or the device answered.
 */
int rail_open(const struct rail_options *options, struct rail **ret_rail);
/*
 * Frees a rail. Only after poll_core_close(), or if no poll core was started with it. NULL is
 * allowed.
 */
void rail_close(struct rail *rail);
/*
 * The device of a rail that has lost its NIC was opened anew (dv_reopen()): creates its CQ and
 * registers the memory of page heads. RAIL_FOUND then gives the NIC to the rail. Between the rail's
 * RAIL_QUIET, or rail_open() without a NIC, and RAIL_FOUND; any thread, while no other makes or
 * destroys queues of the device. Returns 0 or a negative errno; the device is then to be cut.
 */
int rail_nic_open(struct rail *rail);
/* Frees what rail_nic_open() made, before the device is cut that the rail did not get. */
void rail_nic_close(struct rail *rail);

struct model_clock_file; /* model_clock.h */

struct poll_core_options {
	int core;         /* CPU the thread is pinned to; -1: not pinned */
	bool busy;        /* true: the thread never yields, naps or sleeps */
	uint64_t spin_ns; /* if not `busy`: time without work after which the thread sleeps, ns */
#ifdef TEST_HOOKS
	/* mapped file of test.clock_file; NULL: the clock of the modelled ports does not stop */
	struct model_clock_file *clock;
	/* with `clock`, what this thread would pay a real port and does not pay a software NIC,
	 * ns: for a doorbell, and to read a cache line that the NIC wrote (CQE, page head) */
	uint32_t doorbell_ns, line_ns;
#endif
};

/*
 * Starts a thread that steps these rails, 1 to RAILS_MAX of them, until each has stopped. Returns 0
 * or a negative errno; on failure no thread runs.
 */
int poll_core_start(const struct poll_core_options *options, struct rail *const *rails,
	unsigned count, struct poll_core **ret_core);
/*
 * Creates the file that test.clock_file names, and maps it until the process ends. NULL with errno
 * on failure. Only in a build with test hooks.
 */
struct model_clock_file *model_clock_map(const char *path);
/*
 * Heartbeat: the value changes with each turn, and a turn runs at least every 100 ms. Any thread.
 */
uint64_t poll_core_beat(const struct poll_core *core);
/*
 * Joins the thread and frees the poll core. Only after RAIL_STOPPED of each of its rails was
 * received. NULL is allowed.
 */
void poll_core_close(struct poll_core *core);

/*
 * A gap is the time from the end of one turn of a poll core to the end of the next, during which
 * its rings were not looked at. Gaps during which the thread gave up its core itself (yield, nap,
 * sleep) are not counted.
 */
#define GAP_BUCKETS 32
#define GAP_LONG_NS 10000u
struct poll_core_report {
	/* number of gaps between two turns, by length; bucket i begins at gap_bucket_ns(i) */
	uint64_t gaps[GAP_BUCKETS];
	/* number of gaps between two turns that are longer than GAP_LONG_NS */
	uint64_t gaps_long;
	uint64_t gap_worst_ns; /* length of the longest gap above GAP_LONG_NS, ns; 0: none */
	uint64_t busy_ns;      /* time spent in turns that did work, ns */
	/* time spent in turns without work, ns; for the rest of age_ns the thread rested */
	uint64_t spin_ns;
	/* part of busy_ns spent in software NICs, ns; a hardware port needs no CPU time */
	uint64_t nic_ns;
	uint64_t age_ns; /* time since poll_core_start(), ns */
};
/*
 * Fills the report of a poll core. Any thread; the values are read one by one and may be slightly
 * stale.
 */
void poll_core_report(const struct poll_core *core, struct poll_core_report *ret);
/* The shortest gap that bucket `bucket` (0..GAP_BUCKETS-1) of the histogram counts, ns. */
uint64_t gap_bucket_ns(unsigned bucket);

/* The CQ on which all QPs of this rail are created. Any thread. */
struct dv_cq *rail_cq(struct rail *rail);

/*
 * The control plane's ends of the inbox; its thread only. rail_command_send() sends a command and
 * wakes the poll core if it sleeps; it returns false if the ring is full: try again on the next
 * turn of the event loop. rail_event_take() takes one event; it returns false if there is none.
 */
bool rail_command_send(struct rail *rail, const struct rail_command *command);
bool rail_event_take(struct rail *rail, struct rail_event *ret_event);

/*
 * Copies the rail's counters, in the order of abi/counter.def. Any thread; the values may be
 * slightly stale.
 */
enum counter {
#define COUNTER(name, help) COUNTER_##name,
#include "engine/abi/counter.def"
#undef COUNTER
	COUNTER_COUNT
};
void rail_counters(const struct rail *rail, uint64_t ret_counters[COUNTER_COUNT]);
/*
 * Copies the latency histogram of sampled READs, doorbell to completion (abi/latency.h), and the
 * sum of these latencies in ns. Any thread; values may be slightly stale.
 */
void rail_latency(
	const struct rail *rail, uint64_t ret_latency[LATENCY_BUCKETS], uint64_t *ret_ns_sum);
/* Number of runs in flight now, parked ones included. Any thread; may be slightly stale. */
uint32_t rail_in_flight(const struct rail *rail);
/*
 * Number of the last stall of a connection, which changes with each: see rail_conn.stalled. Any
 * thread; it may be seen earlier or later than that word.
 */
uint32_t rail_stalls(const struct rail *rail);

/*
 * One step of one rail. Called by its poll core, and by unit tests without a thread. `now_ns`:
 * CLOCK_MONOTONIC as an earlier rail of this turn read it; 0: the rail reads the clock if it needs
 * the time. Returns how much work was done; 0: none.
 */
unsigned rail_step(struct rail *rail, uint64_t now_ns);

#endif
