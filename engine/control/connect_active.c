/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One active connection, from its allocation to its end: its queue pairs are made, Connect is sent,
 * the queue pairs are connected, handed to the rail, put in the error state and destroyed. This
 * file owns every struct active; a rail holds it from RAIL_PEER_ADD until it returns it, a helper
 * thread during a driver call. Control plane's thread only.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/connect_state.h"
#include "engine/control/member.h"
#include "numa/clock.h"

void active_deadline_end(struct active *active)
{
	if (active->deadline)
		event_free(active->deadline);
	active->deadline = NULL;
}

void active_free(struct active *active)
{
	LIST_REMOVE(active, next);
	active_deadline_end(active);
	free(active);
}

/*
 * The command names the connection by its pointer, because several connections to the same peer may
 * exist.
 */
static void tell_of(const struct active *active, uint32_t kind)
{
	struct rail_command command = {.kind = kind,
		.peer = active->peer.peer,
		.ref = active->peer.ref,
		.object = (void *)(uintptr_t)&active->peer};

	connect_tell(active->control, active->rail, &command);
}

/*
 * The NIC writes nothing any more: the rail may end its posted work. The rail gets the full
 * CONNECT_ABORT_NS again, to process that command.
 */
static void active_retire(struct active *active)
{
	active->retired = true;
	active_ticks_set(active, CONNECT_ABORT_NS);
	tell_of(active, RAIL_PEER_RETIRE);
}

/*
 * Next step of a connection that ends. A broken connection is put in the error state and the rail
 * drains it. If it does not drain, or could not be put in the error state, its queue pairs are
 * destroyed once the rail has reported it stuck, never before: until then the rail may not have
 * read the command and may still post on it. The alternative is that the whole device is closed
 * (connect_lost.c). After either one the rail ends the posted work.
 */
void active_go_on(struct active *active)
{
	const struct rail_health *h = &active->control->connect->health[active->rail];

	if (active->qps.busy || (h->lost && !h->cut))
		return;
	if (active->gone) {
		qps_start(&active->qps, QPS_DESTROY);
	} else if (active->state != ACTIVE_BROKEN || active->retired) {
		return;
	} else if (h->cut) {
		active_retire(active);
	} else if (!active->errored) {
		qps_start(&active->qps, QPS_ERROR);
	} else if (active->kill) {
		qps_start(&active->qps, QPS_KILL);
	}
}

/*
 * Gives up a connection that the rail has not got yet. It can be destroyed at once, because nothing
 * was posted on it.
 */
void active_give_up(struct active *active)
{
	struct control *control = active->control;
	unsigned rail = active->rail;
	uint16_t peer = active->peer.peer;
	uint32_t ref = active->peer.ref;

	if (active->gone)
		return;
	active->gone = true;
	qps_abandon(&active->qps);
	active_deadline_end(active);
	backoff_more(control, rail, peer, ref);
	path_out(control, rail, peer, ref);
	tell_peer(control, rail, RAIL_PEER_REFUSE, peer, ref);
	active_go_on(active);
}

void active_break(struct active *active)
{
	if (active->gone || active->state != ACTIVE_LIVE)
		return;
	active->state = ACTIVE_BROKEN;
	active_go_on(active);
}

void active_end(struct active *active)
{
	if (active->state < ACTIVE_LIVE)
		active_give_up(active);
	else
		active_break(active);
}

static void made_late(evutil_socket_t fd, short what, void *context)
{
	struct active *active = context;

	(void)fd;
	(void)what;
	if (active->state == ACTIVE_ASKED)
		log_warn("rail %u: peer %u did not answer a Connect in %d ms", active->rail,
			active->peer.peer, CONNECT_ANSWER_MS);
	else
		log_warn(
			"rail %u: no connection with peer %u in %d ms: the NIC's driver has not %s the queue pairs; check that its address can be reached",
			active->rail, active->peer.peer, CONNECT_MADE_MS,
			active->state == ACTIVE_MAKING ? "made" : "connected");
	active_give_up(active);
}

/*
 * Sets the timer that gives the connection up: after `ms`, or at made_until_ns if that is earlier.
 */
static bool deadline_set(struct active *active, uint64_t ms)
{
	uint64_t now_ns = clock_now_ns(), left_us = 0;
	struct timeval wait;

	if (active->made_until_ns > now_ns)
		left_us = (active->made_until_ns - now_ns) / 1000;
	if (left_us > ms * 1000)
		left_us = ms * 1000;
	wait.tv_sec = (time_t)(left_us / 1000000);
	wait.tv_usec = (suseconds_t)(left_us % 1000000);
	return event_add(active->deadline, &wait) == 0;
}

void active_connect(struct active *active)
{
	active->state = ACTIVE_CONNECTING;
	if (deadline_set(active, CONNECT_MADE_MS))
		qps_start(&active->qps, QPS_CONNECT);
	else
		active_give_up(active);
}

static bool active_ask(struct active *active, const struct member_record *to)
{
	Pc__Connect connect = PC__CONNECT__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	struct rpc_link *link;
	struct end_list list;

	qps_describe(&active->qps.set, &list);
	connect.serial = active->serial;
	connect.incarnation = to->incarnation;
	connect.rail = active->rail;
	connect.to_rail = active->to_rail;
	connect.n_ends = active->qps.set.count;
	connect.ends = list.at;
	message.body_case = PC__MESSAGE__BODY_CONNECT;
	message.connect = &connect;
	if (!deadline_set(active, CONNECT_ANSWER_MS))
		return false;
	link = member_link(active->control, active->peer.ref);
	active->linkless = !link && member_link_soon(active->control, active->peer.ref);
	return active->linkless || rpc_send(link, &message);
}

struct active *active_find(struct control *control, unsigned rail, uint32_t ref)
{
	struct active *active;

	LIST_FOREACH (active, &control->connect->actives, next)
		if (active->rail == rail && active->peer.ref == ref && !active->gone)
			return active;
	return NULL;
}

/*
 * How long a connection may go without a completion before it is broken; 0: for ever. A lost packet
 * is retransmitted when its ACK is late, which by the IBTA specification may take four times the
 * ACK time-out: that must not count as a stall. With only one rail there is no other rail to use
 * instead.
 */
static uint64_t stall_ns(const struct control *control, uint64_t ack_ns)
{
	uint64_t ns = (uint64_t)control->settings->rail_stall_ms * 1000000;

	if (control->rails == 1)
		return 0;
	return ns > CONNECT_STALL_ACKS * ack_ns ? ns : CONNECT_STALL_ACKS * ack_ns;
}

static void active_made(struct active *active)
{
	const struct member_record *to = member_by_ref(active->control, active->peer.ref);

	if (active->qps.status)
		log_warn("rail %u: no queue pairs: %s", active->rail, active->qps.text);
	memcpy(active->peer.sq, active->qps.sq, sizeof(active->peer.sq));
	active->state = ACTIVE_ASKED;
	if (active->qps.status || !to || !active_ask(active, to))
		active_give_up(active);
}

void connect_link_up(struct control *control, uint32_t ref)
{
	const struct member_record *to = member_by_ref(control, ref);
	struct active *active, *next;

	if (!control->connect || !to)
		return;
	for (active = LIST_FIRST(&control->connect->actives); active; active = next) {
		next = LIST_NEXT(active, next);
		if (active->linkless && active->peer.ref == ref && !active->gone &&
			active->state == ACTIVE_ASKED && !active_ask(active, to))
			active_give_up(active);
	}
}

static void active_connected(struct active *active)
{
	struct control *control = active->control;

	if (active->qps.status) {
		log_warn("rail %u: no connection with peer %u: %s", active->rail, active->peer.peer,
			active->qps.text);
		active_give_up(active);
		return;
	}
	active_deadline_end(active);
	active->state = ACTIVE_LIVE;
	active->live_ns = clock_now_ns();
	active->peer.stall_ns = stall_ns(control, active->qps.ack_ns);
	control->connect->outstanding++;
	tell_of(active, RAIL_PEER_ADD);
}

/* Called when a helper thread has finished a driver call on the connection's queue pairs. */
static void active_done(struct qps *qps)
{
	struct active *active = (struct active *)((char *)qps - offsetof(struct active, qps));

	switch (qps->call) {
	case QPS_MAKE:
		if (!active->gone)
			active_made(active);
		break;
	case QPS_CONNECT:
		if (!active->gone)
			active_connected(active);
		break;
	case QPS_ERROR:
		if (qps->status)
			log_warn(
				"rail %u: peer %u: %s", active->rail, active->peer.peer, qps->text);
		active->errored = true;
		if (!active->gone)
			tell_of(active, RAIL_PEER_DROP);
		break;
	case QPS_KILL:
		active->retired = qps->status == 0;
		if (active->retired && !active->gone)
			active_retire(active);
		else if (!active->retired)
			rail_lost(active->control, active->rail, "%s", qps->text);
		break;
	case QPS_DESTROY: active_free(active); return;
	}
	active_go_on(active);
}

static bool making(const struct control *control, unsigned rail, uint32_t ref)
{
	const struct active *active;

	LIST_FOREACH (active, &control->connect->actives, next)
		if (active->rail == rail && active->peer.ref == ref && qps_making(&active->qps))
			return true;
	return false;
}

/* Number of the rail's connections. Each needs an entry of the rail's table until it is freed. */
static unsigned actives_of(const struct control *control, unsigned rail)
{
	const struct active *active;
	unsigned count = 0;

	LIST_FOREACH (active, &control->connect->actives, next)
		count += active->rail == rail;
	return count;
}

int active_open(struct control *control, unsigned rail, const struct member_record *to, bool probe)
{
	unsigned count = qps_wanted(control, rail);
	struct active *active;

	if (making(control, rail, to->ref))
		return -EBUSY;
	if (actives_of(control, rail) >= RAIL_CONNECTIONS_MAX) {
		control->counter[COUNTER_connections_refused]++;
		return -EMFILE;
	}
	active = calloc(1, sizeof(*active));
	if (!active)
		return -ENOMEM;
	active->control = control;
	active->state = ACTIVE_MAKING;
	active->rail = rail;
	active->to_rail = rail % to->rails;
	active->serial = ++control->connect->serial;
	active->peer = (struct rail_peer){.peer = to->peer,
		.rail = (uint16_t)rail,
		.ref = to->ref,
		.qps = count,
		.probe = probe,
		.control = active};
	active->qps.control = control;
	active->qps.rail = rail;
	active->qps.count = count;
	active->qps.depth = QP_DEPTH;
	active->qps.done = active_done;
	active->made_until_ns = clock_now_ns() + CONNECT_MADE_MS * 1000000ull;
	active->deadline = event_new(control->base, -1, 0, made_late, active);
	if (!active->deadline || !deadline_set(active, CONNECT_MADE_MS)) {
		if (active->deadline)
			event_free(active->deadline);
		free(active);
		return -ENOMEM;
	}
	LIST_INSERT_HEAD(&control->connect->actives, active, next);
	qps_start(&active->qps, QPS_MAKE);
	return 0;
}
