/* SPDX-License-Identifier: Apache-2.0 */
/*
 * one outgoing connection, from its allocation to its end: its queue pairs are made, Connect is
 * sent, the queue pairs are connected, handed to the rail, put in the error state and destroyed.
 * This file owns every struct out_conn; a rail holds it from RAIL_CONN_ADD until it returns it, a
 * helper thread during a driver call. Control plane's thread only.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/conns/conn_state.h"
#include "engine/control/members/member.h"
#include "numa/clock.h"

void out_conn_deadline_end(struct out_conn *conn)
{
	if (conn->deadline)
		event_free(conn->deadline);
	conn->deadline = NULL;
}

void out_conn_free(struct out_conn *conn)
{
	LIST_REMOVE(conn, next);
	out_conn_deadline_end(conn);
	free(conn);
}

/*
 * The command names the connection by its pointer, because several connections to the same peer may
 * exist.
 */
static void tell_of(const struct out_conn *conn, uint32_t kind)
{
	struct rail_command command = {.kind = kind,
		.peer = conn->handle.peer,
		.ref = conn->handle.ref,
		.object = (void *)(uintptr_t)&conn->handle};

	(void)outbox_send(conn->control, conn->rail, &command);
}

/*
 * The NIC writes nothing any more: the rail may end its posted work. The rail gets the full
 * CONN_ABORT_NS again, to process that command.
 */
static void out_conn_retire(struct out_conn *conn)
{
	conn->retired = true;
	out_conn_ticks_set(conn, CONN_ABORT_NS);
	tell_of(conn, RAIL_CONN_RETIRE);
}

/*
 * Next step of a connection that ends. A broken connection is put in the error state and the rail
 * drains it. If it does not drain, or could not be put in the error state, its queue pairs are
 * destroyed once the rail has reported it stuck, never before: until then the rail may not have
 * read the command and may still post on it. The alternative is that the whole device is closed
 * (conn_lost.c). After either one the rail ends the posted work.
 */
void out_conn_go_on(struct out_conn *conn)
{
	const struct rail_health *h = &conn->control->conns->health[conn->rail];

	if (conn->qps.busy || (h->lost && !h->cut))
		return;
	if (conn->gone) {
		qps_start(&conn->qps, QPS_DESTROY);
	} else if (conn->state != OUT_CONN_BROKEN || conn->retired) {
		return;
	} else if (h->cut) {
		out_conn_retire(conn);
	} else if (!conn->errored) {
		qps_start(&conn->qps, QPS_ERROR);
	} else if (conn->kill) {
		qps_start(&conn->qps, QPS_KILL);
	}
}

/*
 * Gives up a connection that the rail has not got yet. It can be destroyed at once, because nothing
 * was posted on it.
 */
void out_conn_give_up(struct out_conn *conn)
{
	struct control *control = conn->control;
	unsigned rail = conn->rail;
	uint16_t peer = conn->handle.peer;
	uint32_t ref = conn->handle.ref;

	if (conn->gone)
		return;
	conn->gone = true;
	qps_abandon(&conn->qps);
	out_conn_deadline_end(conn);
	conn_back_off(control, rail, peer, ref);
	conn_health_out(control, rail, peer, ref);
	conn_refuse(control, rail, peer, ref);
	out_conn_go_on(conn);
}

void out_conn_break(struct out_conn *conn)
{
	if (conn->gone || conn->state != OUT_CONN_LIVE)
		return;
	conn->state = OUT_CONN_BROKEN;
	out_conn_go_on(conn);
}

void out_conn_end(struct out_conn *conn)
{
	if (conn->state < OUT_CONN_LIVE)
		out_conn_give_up(conn);
	else
		out_conn_break(conn);
}

static void made_late(evutil_socket_t fd, short what, void *context)
{
	struct out_conn *conn = context;

	(void)fd;
	(void)what;
	if (conn->state == OUT_CONN_REQUESTED)
		log_warn("rail %u: peer %u did not answer a Connect in %d ms", conn->rail,
			conn->handle.peer, CONN_ANSWER_MS);
	else
		log_warn(
			"rail %u: no connection with peer %u in %d ms: the NIC's driver has not %s the queue pairs; check that its address can be reached",
			conn->rail, conn->handle.peer, CONN_MADE_MS,
			conn->state == OUT_CONN_MAKING ? "made" : "connected");
	out_conn_give_up(conn);
}

/*
 * Sets the timer that gives the connection up: after `ms`, or at made_until_ns if that is earlier.
 */
static bool deadline_set(struct out_conn *conn, uint64_t ms)
{
	uint64_t now_ns = clock_now_ns(), left_us = 0;
	struct timeval wait;

	if (conn->made_until_ns > now_ns)
		left_us = (conn->made_until_ns - now_ns) / 1000;
	if (left_us > ms * 1000)
		left_us = ms * 1000;
	wait.tv_sec = (time_t)(left_us / 1000000);
	wait.tv_usec = (suseconds_t)(left_us % 1000000);
	return event_add(conn->deadline, &wait) == 0;
}

void out_conn_connect(struct out_conn *conn)
{
	conn->state = OUT_CONN_CONNECTING;
	if (deadline_set(conn, CONN_MADE_MS))
		qps_start(&conn->qps, QPS_CONNECT);
	else
		out_conn_give_up(conn);
}

static bool out_conn_ask(struct out_conn *conn, const struct member_record *to)
{
	Pc__Connect connect = PC__CONNECT__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	struct rpc_link *link;
	struct end_list list;

	qps_describe(&conn->qps.set, &list);
	connect.serial = conn->serial;
	connect.incarnation = to->incarnation;
	connect.rail = conn->rail;
	connect.to_rail = conn->to_rail;
	connect.n_ends = conn->qps.set.count;
	connect.ends = list.at;
	message.body_case = PC__MESSAGE__BODY_CONNECT;
	message.connect = &connect;
	if (!deadline_set(conn, CONN_ANSWER_MS))
		return false;
	link = member_link(conn->control, conn->handle.ref);
	conn->linkless = !link && member_link_soon(conn->control, conn->handle.ref);
	return conn->linkless || rpc_send(link, &message);
}

struct out_conn *out_conn_find(struct control *control, unsigned rail, uint32_t ref)
{
	struct out_conn *conn;

	LIST_FOREACH (conn, &control->conns->out_conns, next)
		if (conn->rail == rail && conn->handle.ref == ref && !conn->gone)
			return conn;
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
	return ns > CONN_STALL_ACKS * ack_ns ? ns : CONN_STALL_ACKS * ack_ns;
}

static void out_conn_made(struct out_conn *conn)
{
	const struct member_record *to = member_by_ref(conn->control, conn->handle.ref);

	if (conn->qps.status)
		log_warn("rail %u: no queue pairs: %s", conn->rail, conn->qps.text);
	memcpy(conn->handle.sq, conn->qps.sq, sizeof(conn->handle.sq));
	conn->state = OUT_CONN_REQUESTED;
	if (conn->qps.status || !to || !out_conn_ask(conn, to))
		out_conn_give_up(conn);
}

void conns_link_up(struct control *control, uint32_t ref)
{
	const struct member_record *to = member_by_ref(control, ref);
	struct out_conn *conn, *next;

	if (!control->conns || !to)
		return;
	for (conn = LIST_FIRST(&control->conns->out_conns); conn; conn = next) {
		next = LIST_NEXT(conn, next);
		if (conn->linkless && conn->handle.ref == ref && !conn->gone &&
			conn->state == OUT_CONN_REQUESTED && !out_conn_ask(conn, to))
			out_conn_give_up(conn);
	}
}

static void out_conn_connected(struct out_conn *conn)
{
	struct control *control = conn->control;

	if (conn->qps.status) {
		log_warn("rail %u: no connection with peer %u: %s", conn->rail, conn->handle.peer,
			conn->qps.text);
		out_conn_give_up(conn);
		return;
	}
	out_conn_deadline_end(conn);
	conn->state = OUT_CONN_LIVE;
	conn->live_ns = clock_now_ns();
	conn->handle.stall_ns = stall_ns(control, conn->qps.ack_ns);
	control->conns->outstanding++;
	tell_of(conn, RAIL_CONN_ADD);
}

/* Called when a helper thread has finished a driver call on the connection's queue pairs. */
static void out_conn_done(struct qps *qps)
{
	struct out_conn *conn = (struct out_conn *)((char *)qps - offsetof(struct out_conn, qps));

	switch (qps->call) {
	case QPS_MAKE:
		if (!conn->gone)
			out_conn_made(conn);
		break;
	case QPS_CONNECT:
		if (!conn->gone)
			out_conn_connected(conn);
		break;
	case QPS_ERROR:
		if (qps->status)
			log_warn("rail %u: peer %u: %s", conn->rail, conn->handle.peer, qps->text);
		conn->errored = true;
		if (!conn->gone)
			tell_of(conn, RAIL_CONN_DROP);
		break;
	case QPS_KILL:
		conn->retired = qps->status == 0;
		if (conn->retired && !conn->gone)
			out_conn_retire(conn);
		else if (!conn->retired)
			rail_lost(conn->control, conn->rail, "%s", qps->text);
		break;
	case QPS_DESTROY: out_conn_free(conn); return;
	}
	out_conn_go_on(conn);
}

static bool making(const struct control *control, unsigned rail, uint32_t ref)
{
	const struct out_conn *conn;

	LIST_FOREACH (conn, &control->conns->out_conns, next)
		if (conn->rail == rail && conn->handle.ref == ref && qps_making(&conn->qps))
			return true;
	return false;
}

/* Number of the rail's connections. Each needs an entry of the rail's table until it is freed. */
static unsigned out_conns_of(const struct control *control, unsigned rail)
{
	const struct out_conn *conn;
	unsigned count = 0;

	LIST_FOREACH (conn, &control->conns->out_conns, next)
		count += conn->rail == rail;
	return count;
}

int out_conn_open(
	struct control *control, unsigned rail, const struct member_record *to, bool probe)
{
	unsigned count = qps_wanted(control, rail);
	struct out_conn *conn;

	if (making(control, rail, to->ref))
		return -EBUSY;
	if (out_conns_of(control, rail) >= RAIL_CONNECTIONS_MAX) {
		control->counter[COUNTER_connections_refused]++;
		return -EMFILE;
	}
	conn = calloc(1, sizeof(*conn));
	if (!conn)
		return -ENOMEM;
	conn->control = control;
	conn->state = OUT_CONN_MAKING;
	conn->rail = rail;
	conn->to_rail = rail % to->rails;
	conn->serial = ++control->conns->serial;
	conn->handle = (struct rail_conn){.peer = to->peer,
		.rail = (uint16_t)rail,
		.ref = to->ref,
		.qps = count,
		.probe = probe,
		.control = conn};
	conn->qps.control = control;
	conn->qps.rail = rail;
	conn->qps.count = count;
	conn->qps.depth = QP_DEPTH;
	conn->qps.done = out_conn_done;
	conn->made_until_ns = clock_now_ns() + CONN_MADE_MS * 1000000ull;
	conn->deadline = event_new(control->base, -1, 0, made_late, conn);
	if (!conn->deadline || !deadline_set(conn, CONN_MADE_MS)) {
		if (conn->deadline)
			event_free(conn->deadline);
		free(conn);
		return -ENOMEM;
	}
	LIST_INSERT_HEAD(&control->conns->out_conns, conn, next);
	qps_start(&conn->qps, QPS_MAKE);
	return 0;
}
