/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the loop adds to struct control for itself, and the one thing it offers the other files of
 * this folder: commands to rails that are kept when a rail's inbox is full.
 * The loop's thread only, except control_stop().
 */
#ifndef CONTROL_LOOP_H
#define CONTROL_LOOP_H

#include "engine/control/control.h"
#include "engine/control/snapshot.h"

#define LOOP_EVENTS_BURST 256u /* events heard from one rail in one turn */
#define LOOP_SPIN_NS 50000ull  /* after work, on a core of its own: before it sleeps */
#define LOOP_WAKEUP_US 500000  /* the longest sleep: the log may owe lines about repeats */
#define LOOP_LAG_US 50000      /* between two measurements of how late the loop's timers fire */
#define LOOP_STOPPING_US 5000  /* the same while stopping, whose steps are bounded in time */
#define LOOP_DRAIN_NS 2000000000ull /* shutdown: for the rails to return everything */
#define LOOP_STOP_NS 3000000000ull  /* shutdown: for the poll threads to end */
#define LOOP_GOODBYE_NS 50000000ull /* shutdown: for the goodbye to reach the other engines */

/* Commands that found the rail's inbox full, oldest first. */
struct loop_outbox {
	struct rail_command *command;
	size_t first, count, room;
};

enum loop_phase {
	LOOP_SERVING,
	LOOP_DRAINING, /* asked to stop: rails give back channels, regions and peers */
	LOOP_STOPPING, /* RAIL_STOP was sent: poll threads end */
	LOOP_ENDED,
};

/* One engine: struct control is its first member, so that either pointer leads to the other. */
struct loop {
	struct control control;
	struct event *kick;
	struct event *wakeup; /* bounds a sleep */
	struct loop_outbox outbox[RAILS_MAX];
	bool started[RAILS_MAX]; /* the poll thread runs */
	bool stopped[RAILS_MAX]; /* RAIL_STOPPED was heard */
	enum loop_phase phase;
	uint64_t phase_until_ns;
	uint64_t goodbye_until_ns;
	uint64_t started_ns;
	uint64_t spin_ns;
	uint64_t beat;         /* another one each turn; the watchdog reads it */
	struct event *measure; /* every LOOP_LAG_US */
	uint64_t measure_ns;   /* when it was due last */
	uint64_t snapshot_ns;  /* when the last snapshot was taken */
	/* how late `measure` fired: abi/latency.h */
	uint64_t lag[LATENCY_BUCKETS];
	uint64_t lag_ns_sum, lag_worst_ns;
	struct snapshots *snapshots; /* for the metrics thread */
	uint32_t stop_asked;         /* set by control_stop(), any thread */
	int result;
};

static inline struct loop *loop_of(const struct control *control)
{
	return (struct loop *)(uintptr_t)control;
}

/* Tells the rail now or, in order, as soon as its inbox has room. False: no memory to keep it. */
bool loop_tell(struct control *control, unsigned rail, const struct rail_command *command);
/* Everything given to loop_tell() is in the rails' inboxes. */
bool loop_told(const struct control *control);
/* Sends what waits; returns how many left. */
unsigned loop_outbox_send(struct control *control);
/* Asks every poll thread that runs to end and waits; -ETIMEDOUT: one has not, within wait_ns. */
int loop_rails_stop(struct loop *loop, uint64_t wait_ns);
/* The events of the loop's own; close also frees what the outboxes keep. */
int loop_events_open(struct loop *loop);
void loop_events_close(struct loop *loop);
/* control_memory.c, steps of control_open(): an open that fails has undone itself. */
int memory_status_open(struct control *control);
int memory_pools_open(struct control *control);
int memory_shard_open(struct control *control);
int memory_export(struct control *control);
void memory_status_close(struct control *control);
void memory_pools_close(struct control *control);
void memory_shard_close(struct control *control);
void memory_unexport(struct control *control);
/* No rail polls on the control plane's core. */
bool loop_core_is_own(const struct plan *plan);

#endif
