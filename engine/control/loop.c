/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control plane's loop: one thread that reads the rails' events, serves the ctl rings and runs
 * libevent for everything else. It looks at shared memory first and sleeps in libevent only when
 * there is nothing left to do.
 *
 * Shutdown has three steps, each bounded in time: end the clients' sessions and leave the cluster;
 * wait until the rails have returned channels, regions and connections; wait until the poll threads
 * have ended. control_close() frees what is left.
 */
#include "engine/control/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "config/log.h"
#include "engine/control/base/outbox.h"
#include "engine/control/clients/clients.h"
#include "engine/control/conns/conns.h"
#include "engine/control/control_inner.h"
#include "engine/control/control_open.h"
#include "engine/control/copies/copies.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/observe/observe.h"
#include "engine/control/pages/pages.h"
#include "numa/pin.h"

/* ---- events from the rails ------------------------------------------------------------------- */

/*
 * A rail needs a connection to a peer. While the engine stops, no connection is made: the requests
 * that wait for it fail at once.
 */
static void loop_peer_wanted(struct control *control, unsigned rail, const struct rail_event *event)
{
	if (control->stopping)
		conn_refuse(control, rail, event->peer, event->ref);
	else
		conns_wanted(control, rail, event->peer, event->ref);
}

static void loop_event_serve(struct control *control, unsigned rail, const struct rail_event *event)
{
	switch (event->kind) {
	case RAIL_CONN_WANTED: loop_peer_wanted(control, rail, event); break;
	case RAIL_CONN_BROKEN: conns_broken(control, rail, event->object, event->detail); break;
	case RAIL_CONN_RETURNED: conns_returned(control, rail, event->object); break;
	case RAIL_CONN_STUCK: conns_stuck(control, rail, event->object, event->ns); break;
	case RAIL_QUIET: conns_quiet(control, rail); break;
	case RAIL_CONN_PROVEN: conns_proven(control, rail, event->object); break;
	case RAIL_CHANNEL_BROKEN:
		client_channel_broken(control, ((struct rail_channel *)event->object)->id);
		break;
	case RAIL_CHANNEL_RETURNED:
		if (((struct rail_channel *)event->object)->id == CHANNEL_COPIES)
			copies_returned(control);
		else
			client_channel_returned(control, event->object);
		break;
	case RAIL_REGION_RETURNED: client_region_returned(control, event->detail); break;
	case RAIL_STOPPED: control->loop->stopped[rail] = true; break;
	default:
		log_error("control: rail %u sent event %u, which is unknown; it is ignored", rail,
			event->kind);
	}
}

static unsigned loop_events_take(struct control *control)
{
	unsigned taken = 0;

	for (unsigned i = 0; i < control->rails; i++) {
		struct rail_event event;

		for (unsigned n = 0; n < LOOP_EVENTS_BURST; n++) {
			if (!rail_event_take(control->rail[i].rail, &event))
				break;
			loop_event_serve(control, i, &event);
			taken++;
		}
	}
	return taken;
}

static unsigned loop_turn(struct control *control)
{
	unsigned work = 0;

	work += loop_events_take(control); /* take the rails' events for conns and clients */
	work += tier_turn(control);        /* read pages from disk, write those to be evicted */
	work += copies_turn(control);      /* bring pages of other hosts here */
	work += ctl_turn(control);         /* serve the ctl rings: credits, publishes */
	work += groups_turn(control);      /* evict what groups have above their quotas */
	work += clear_turn(control);       /* remove pages of groups that clients clear */
	work += clients_turn(control);     /* answer clients, free sessions that have ended */
	directory_flush(control);          /* send batches of directory entries to the owners */
	ctl_flush(control);                /* wake the clients whose answers are in their rings */
	/* send the commands that did not fit the inboxes before */
	work += outbox_flush(control);
	return work;
}

/* ---- shutdown -------------------------------------------------------------------------------- */

void control_stop(struct control *control)
{
	shm_store(&control->loop->stop_asked, 1);
	(void)eventfd_write(control->kick, 1);
}

void control_drain(struct control *control, unsigned seconds)
{
	shm_store(&control->loop->drain_asked, 1 + (seconds < 86400 ? seconds : 86400));
	(void)eventfd_write(control->kick, 1);
}

static void loop_copies_drain(struct control *control)
{
	uint32_t asked = control->stopping ? 0 : shm_exchange(&control->loop->drain_asked, 0);

	if (asked)
		copies_drain(control, (asked - 1) * 1000000000ull);
}

static void loop_drain_start(struct control *control, uint64_t now_ns)
{
	struct loop *loop = control->loop;

	log_info("stopping: ending the sessions of clients and leaving the cluster");
	(void)net_timer_set(loop->wakeup, LOOP_STOPPING_US);
	control->stopping = true;
	clients_stop(control);
	copies_stop(control);
	member_leave(control);
	conns_stop(control);
	loop->phase = LOOP_DRAINING;
	loop->phase_until_ns = now_ns + LOOP_DRAIN_NS;
	loop->goodbye_until_ns = now_ns + (member_count(control) > 1 ? LOOP_GOODBYE_NS : 0);
}

static bool loop_drained(struct control *control, uint64_t now_ns)
{
	struct client_counts clients;

	client_counts(control, &clients);
	return clients.sessions == 0 && conns_outstanding(control) == 0 && copies_rest(control) &&
	       outbox_empty(control) && now_ns >= control->loop->goodbye_until_ns;
}

static void loop_rails_stop_send(struct control *control)
{
	struct rail_command stop = {.kind = RAIL_STOP};

	for (unsigned i = 0; i < control->rails; i++)
		if (control->loop->started[i])
			(void)outbox_send(control, i, &stop);
}

static bool loop_rails_stopped(const struct control *control)
{
	for (unsigned i = 0; i < control->rails; i++)
		if (control->loop->started[i] && !control->loop->stopped[i])
			return false;
	return true;
}

/*
 * Advances the shutdown to the next phase when the present phase has finished or its time limit is
 * over.
 */
static void loop_stop_advance(struct control *control)
{
	struct loop *loop = control->loop;
	uint64_t now_ns = net_now();

	if (loop->phase == LOOP_SERVING && (shm_load(&loop->stop_asked) || control->failed))
		loop_drain_start(control, now_ns);
	if (loop->phase == LOOP_DRAINING) {
		bool done = loop_drained(control, now_ns);

		if (!done && now_ns < loop->phase_until_ns)
			return;
		if (!done)
			log_warn(
				"stopping: the rails have not returned everything in %llu ms; they are stopped anyway",
				LOOP_DRAIN_NS / 1000000);
		loop_rails_stop_send(control);
		loop->phase = LOOP_STOPPING;
		loop->phase_until_ns = now_ns + LOOP_STOP_NS;
	}
	if (loop->phase == LOOP_STOPPING) {
		if (loop_rails_stopped(control)) {
			loop->phase = LOOP_ENDED;
		} else if (now_ns >= loop->phase_until_ns) {
			log_error(
				"stopping: a poll core has not ended in time; its NIC may still access the memory of the engine");
			loop->result = -ETIMEDOUT;
			loop->phase = LOOP_ENDED;
		}
	}
}

/*
 * Stops the poll cores when the event loop does not run: control_open() failed, or control_run()
 * was not called.
 */
int loop_rails_stop(struct control *control, uint64_t wait_ns)
{
	uint64_t until_ns = net_now() + wait_ns;

	if (loop_rails_stopped(control))
		return 0;
	loop_rails_stop_send(control);
	while (!loop_rails_stopped(control)) {
		(void)outbox_flush(control);
		for (unsigned i = 0; i < control->rails; i++) {
			struct rail_event event;

			while (rail_event_take(control->rail[i].rail, &event))
				if (event.kind == RAIL_STOPPED)
					control->loop->stopped[i] = true;
		}
		if (net_now() >= until_ns)
			return -ETIMEDOUT;
		shm_pause();
	}
	return 0;
}

/* ---- the loop -------------------------------------------------------------------------------- */

/*
 * While clients store pages, the sleep is a nap, and they copy on instead of writing a kick for
 * each batch. The last nap is followed by a sleep, so a client that read CONTROL_NAPS is seen by
 * the look behind the flag of that sleep at the latest. The sleep is a nap also while commands wait
 * for room in an inbox: a rail that makes room does not kick.
 */
static enum control_sleep loop_nap_or_sleep(struct control *control)
{
	if (outbox_empty(control) && net_now() - ctl_stored_ns(control) >= LOOP_NAP_FOR_NS)
		return CONTROL_SLEEPS;
	return net_timer_set(control->loop->nap, CONTROL_NAP_US) == 0 ? CONTROL_NAPS
								      : CONTROL_SLEEPS;
}

static void loop_events_run(struct control *control, int flags)
{
	net_slice(LOOP_SLICE_NS);
	event_base_loop(control->base, flags);
}

/*
 * The sleep protocol of abi/ring.h: raise the flag, fence, look once more. Every writer of a ring
 * or an inbox publishes, fences, reads the flag and, if it is raised, writes the kick.
 */
static void loop_sleep_or_work(struct control *control)
{
	struct status_segment *status = control->status;

	shm_store(&status->control_sleeps, loop_nap_or_sleep(control));
	shm_fence_sleep();
	if (loop_turn(control) == 0)
		loop_events_run(control, EVLOOP_ONCE);
	shm_store(&status->control_sleeps, CONTROL_AWAKE);
}

int control_run(struct control *control)
{
	struct loop *loop = control->loop;
	uint64_t busy_until_ns = 0;

	loop->measure_ns = net_now();
	if (net_timer_set(loop->measure, LOOP_LAG_US) < 0)
		return -ENOMEM;
	if (control->plan.control_core >= 0 && pin_self(control->plan.control_core) < 0)
		log_warn("control: cannot pin the control plane to core %d; it runs unpinned",
			control->plan.control_core);
	loop->spin_ns = loop_core_is_own(&control->plan) ? LOOP_SPIN_NS : 0;
	for (;;) {
		unsigned work = loop_turn(control);
		uint64_t now_ns;

		shm_count(&control->pace.beat, 1);
		loop_copies_drain(control);
		loop_stop_advance(control);
		if (loop->phase == LOOP_ENDED)
			break;
		if (loop->spin_ns || work) {
			now_ns = net_now();
			if (work)
				busy_until_ns = now_ns + loop->spin_ns;
			if (work || now_ns < busy_until_ns) {
				loop_events_run(control, EVLOOP_ONCE | EVLOOP_NONBLOCK);
				continue;
			}
		}
		loop_sleep_or_work(control);
	}
	return loop->result ? loop->result : control->failed;
}

bool loop_core_is_own(const struct plan *plan)
{
	for (unsigned i = 0; i < plan->rails; i++)
		if (plan->rail[i].core == plan->control_core)
			return false;
	return plan->control_core >= 0;
}

/* ---- events of the loop ---------------------------------------------------------------------- */

static void loop_on_kick(evutil_socket_t fd, short what, void *context)
{
	(void)what;
	(void)context;
	kick_take(fd);
}

/*
 * Makes the loop turn at least once per LOOP_WAKEUP_US, because shutdown has deadlines and the log
 * may have to print lines about repeated messages.
 */
static void loop_on_wakeup(void *context)
{
	log_flush();
	memory_export_tell(context);
	populate_tell(context);
}

/* The end of a nap: the loop turns. */
static void loop_on_nap(void *context)
{
	(void)context;
}

/*
 * How late a timer fires is how long an event can wait for the loop. The same timer publishes
 * snapshots and requests summaries of other members.
 */
static void loop_on_measure(void *context)
{
	struct control *control = context;
	struct loop *loop = control->loop;
	uint64_t now_ns = net_now();
	uint64_t due_ns = loop->measure_ns + LOOP_LAG_US * 1000ull;
	uint64_t late_ns = now_ns > due_ns ? now_ns - due_ns : 0;
	uint64_t watched_ns = shm_load64(&control->watched_ns);
	bool viewed = view_active(control, watched_ns, now_ns);
	uint64_t every_ns = (viewed ? SNAPSHOT_VIEWED_MS : SNAPSHOT_MS) * 1000000ull;

	loop->measure_ns = now_ns;
	shm_store(&control->status->beat, control->status->beat + 1);
	control->pace.lag[latency_bucket(late_ns)]++;
	control->pace.lag_ns_sum += late_ns;
	if (late_ns > control->pace.lag_worst_ns)
		control->pace.lag_worst_ns = late_ns;
	if (control->snapshots && now_ns - loop->snapshot_ns >= every_ns) {
		struct snapshot *snapshot = snapshots_writing(control->snapshots);

		snapshot_take(control, snapshot);
		view_own(control, snapshot);
		snapshots_publish(control->snapshots);
		loop->snapshot_ns = now_ns;
	}
	view_tick(control, watched_ns, now_ns);
}

int loop_events_open(struct control *control)
{
	struct loop *loop = control->loop;
	struct event_base *base = control->base;

	loop->kick = event_new(base, control->kick, EV_READ | EV_PERSIST, loop_on_kick, control);
	loop->wakeup = net_timer_new(base, true, loop_on_wakeup, control);
	loop->measure = net_timer_new(base, true, loop_on_measure, control);
	loop->nap = net_timer_new(base, false, loop_on_nap, control);
	control->snapshots = snapshots_open();
	control->moments = moments_open();
	loop->measure_ns = net_now();
	if (!loop->kick || !loop->wakeup || !loop->measure || !loop->nap || !control->snapshots ||
		!control->moments || event_add(loop->kick, NULL) < 0 ||
		net_timer_set(loop->wakeup, LOOP_WAKEUP_US) < 0)
		return -ENOMEM;
	return 0;
}

void loop_events_close(struct control *control)
{
	struct loop *loop = control->loop;

	if (loop->kick)
		event_free(loop->kick);
	net_timer_free(loop->wakeup);
	net_timer_free(loop->measure);
	net_timer_free(loop->nap);
	loop->kick = NULL;
	loop->wakeup = loop->measure = loop->nap = NULL;
	snapshots_close(control->snapshots);
	free(control->moments);
	control->snapshots = NULL;
	control->moments = NULL;
	outbox_close(control);
}
