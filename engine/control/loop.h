/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event loop of the control plane: its state, and what control_open.c calls.
 * Control plane's thread only, except control_stop().
 */
#ifndef CONTROL_LOOP_H
#define CONTROL_LOOP_H

#include <event2/event.h>

#include "config/limits.h"
#include "numa/plan.h"

struct control;

#define LOOP_EVENTS_BURST 256u /* events taken from one rail in one turn of the control plane */
/*
 * on a core without rails: the event loop polls for this time after its last work, then sleeps; on
 * a core with rails it sleeps at once
 */
#define LOOP_SPIN_NS 50000ull
/* callbacks of the event loop run for this time before the rings are looked at again */
#define LOOP_SLICE_NS 1000000ull
/* time since the last credit or publish for which the event loop naps instead of sleeping */
#define LOOP_NAP_FOR_NS 1000000ull
/* longest sleep of the event loop: the log may have to print lines that count repeated messages */
#define LOOP_WAKEUP_US 500000
#define LOOP_LAG_US 50000 /* time between two measurements of how late the loop's timers fire */
/* longest sleep of the event loop during shutdown, whose phases have deadlines */
#define LOOP_STOPPING_US 5000
/* shutdown: time limit for the rails to return channels, regions and connections */
#define LOOP_DRAIN_NS 2000000000ull
#define LOOP_STOP_NS 3000000000ull /* shutdown: time limit for the poll threads to end */
/* shutdown: time limit for sending the message Leave to the other engines */
#define LOOP_GOODBYE_NS 50000000ull

enum loop_phase {
	LOOP_SERVING,
	/* a stop was requested: the rails return channels, regions and connections */
	LOOP_DRAINING,
	LOOP_STOPPING, /* RAIL_STOP was sent to the rails: the poll threads end */
	LOOP_ENDED,
};

/* The state of the event loop. */
struct loop {
	struct event *kick;
	struct net_timer *wakeup; /* timer that bounds the sleep of the event loop */
	bool started[RAILS_MAX];  /* true: the poll thread of the rail was started */
	bool stopped[RAILS_MAX];  /* true: the RAIL_STOPPED event of the rail was received */
	enum loop_phase phase;
	uint64_t phase_until_ns;
	uint64_t goodbye_until_ns;
	uint64_t spin_ns;
	struct net_timer *nap;     /* timer that ends a nap */
	struct net_timer *measure; /* timer, every LOOP_LAG_US */
	uint64_t measure_ns;       /* time at which `measure` fired last */
	uint64_t snapshot_ns;      /* time at which the last snapshot was published */
	/* 1: control_stop() was called, on any thread or in a signal handler */
	uint32_t stop_asked;
	/* by control_drain(), any thread: 1 more than its seconds; 0: nothing */
	uint32_t drain_asked;
	int result;
};

/*
 * Sends RAIL_STOP to every running poll thread and waits until they have ended. Returns 0, or
 * -ETIMEDOUT if one has not ended within wait_ns.
 */
int loop_rails_stop(struct control *control, uint64_t wait_ns);
/*
 * Creates and frees the loop's own libevent events. loop_events_close() also frees the outboxes.
 */
int loop_events_open(struct control *control);
void loop_events_close(struct control *control);
/* True if no rail polls on the control plane's core. */
bool loop_core_is_own(const struct plan *plan);

#endif
