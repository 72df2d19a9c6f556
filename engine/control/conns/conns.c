/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outgoing connections: queue pairs of our rails, through which they read the memory of peers. Owns
 * every struct out_conn: a rail holds it from RAIL_CONN_ADD until it returns it, a helper thread
 * during a driver call. Control plane's thread only.
 *
 * Life of a connection: its queue pairs are made, Connect is sent, Connected comes, the queue pairs
 * are connected, the rail gets them. When it breaks, or its peer leaves, it is put in the error
 * state, the rail drains and returns it, and it is destroyed.
 *
 * A connection that cannot be made, or that breaks, is out: clients use other rails towards that
 * peer. It is made anew after a back-off, and is back when a first READ, the probe, is answered.
 *
 * Queue pairs that do not drain are destroyed. If that fails, the NIC is lost (rail_health.c). As
 * long as the NIC may still write to memory, none of that memory is reused: if neither succeeds in
 * time, the engine aborts.
 */
#include "engine/control/conns/conns.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/abi/page.h"
#include "engine/control/base/fatal.h"
#include "engine/control/base/outbox.h"
#include "engine/control/conns/conns_inner.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"

/* ---- health of the connections of one rail to one peer --------------------------------------- */

/* Starts afresh. The watch of the rails looks at it once more, if it did. */
static void conn_health_reset(struct conn_health *health, uint32_t ref)
{
	*health =
		(struct conn_health){.next = health->next, .watched = health->watched, .ref = ref};
}

/*
 * The health of the connections of (rail, peer); starts afresh if `ref` is another incarnation of
 * the peer.
 */
static struct conn_health *conn_health_of(
	struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	struct conn_health *b = &control->conns->conn_health[rail][peer];

	if (peer >= control->conns->peers)
		control->conns->peers = peer + 1u;
	if (b->ref != ref)
		conn_health_reset(b, ref);
	return b;
}

const struct member_record *conn_member(const struct control *control, uint16_t peer, uint32_t ref)
{
	const struct member_record *member = member_by_ref(control, ref);

	return member && member->peer == peer ? member : NULL;
}

/* No connection is made for this time after a failure, which doubles with each further failure. */
static void conn_back_off(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	struct conn_health *b = conn_health_of(control, rail, peer, ref);
	uint64_t ms = (uint64_t)CONN_BACKOFF_MS << (b->fails > 8 ? 8 : b->fails);

	b->fails++;
	b->until_ns =
		net_now() + (ms < CONN_BACKOFF_MAX_MS ? ms : CONN_BACKOFF_MAX_MS) * 1000000ull;
}

/*
 * Takes the rail out of use for this peer: clients use other rails. It is probed again when its
 * back-off has ended. Does nothing for a member that has left.
 */
static void conn_health_out(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	struct conn_health *health;

	if (!conn_member(control, peer, ref))
		return;
	health = conn_health_of(control, rail, peer, ref);
	rail_out_bit_set(&control->status->peer_rails_out[peer], rail, true);
	if (health->out)
		return;
	health->out = true;
	conn_health_watch(control->conns, health);
	control->counter[COUNTER_paths_out]++;
}

/* A probe was answered: clients may read the peer over this rail again. */
static void conn_health_back(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	struct conn_health *health = conn_health_of(control, rail, peer, ref);

	rail_out_bit_set(&control->status->peer_rails_out[peer], rail, false);
	if (!health->out)
		return;
	health->out = false;
	control->counter[COUNTER_paths_back]++;
	log_info("rail %u: peer %u is read over it again", rail, peer);
}

/* Clears the failure records of a peer number, because another member may get that number next. */
static void conn_health_forget(struct control *control, uint16_t peer)
{
	for (unsigned r = 0; r < control->rails && peer < control->conns->peers; r++)
		conn_health_reset(&control->conns->conn_health[r][peer], 0);
	shm_store(&control->status->peer_rails_out[peer], 0);
}

/* ---- ending a connection --------------------------------------------------------------------- */

static void out_conn_deadline_end(struct out_conn *conn)
{
	net_timer_free(conn->deadline);
	conn->deadline = NULL;
}

static void out_conn_free(struct out_conn *conn)
{
	struct conns *conns = conn->control->conns;
	struct conn_health *health = &conns->conn_health[conn->rail][conn->handle.peer];

	if (health->conn == conn)
		health->conn = NULL;
	LIST_REMOVE(conn, next);
	out_conn_deadline_end(conn);
	free(conn);
}

/*
 * The command names the connection by its pointer, because several connections to the same peer may
 * exist.
 */
static void out_conn_tell(const struct out_conn *conn, uint32_t kind)
{
	struct rail_command command = {.kind = kind,
		.peer = conn->handle.peer,
		.ref = conn->handle.ref,
		.object = (void *)(uintptr_t)&conn->handle};

	(void)outbox_send(conn->control, conn->rail, &command);
}

/* Starts the time after which the engine aborts unless the rail has returned the connection. */
static void out_conn_ticks_set(struct out_conn *conn, uint64_t ns)
{
	conn->ticks = (unsigned)((ns + CONN_TICK_NS - 1) / CONN_TICK_NS);
	conn->tick_ns = net_now();
}

/*
 * The NIC writes nothing any more: the rail may end its posted work. The rail gets the full
 * CONN_ABORT_NS again, to process that command.
 */
static void out_conn_retire(struct out_conn *conn)
{
	conn->retired = true;
	out_conn_ticks_set(conn, CONN_ABORT_NS);
	out_conn_tell(conn, RAIL_CONN_RETIRE);
}

/*
 * Next step of a connection that ends. A broken connection is put in the error state and the rail
 * drains it. If it does not drain, or could not be put in the error state, its queue pairs are
 * destroyed once the rail has reported it stuck, never before: until then the rail may not have
 * read the command and may still post on it. The alternative is that the whole device is closed
 * (rail_health.c). After either one the rail ends the posted work.
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

void conn_refuse(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	(void)outbox_send(control, rail,
		&(struct rail_command){.kind = RAIL_CONN_REFUSE, .peer = peer, .ref = ref});
}

/*
 * Gives up a connection that the rail has not got yet. It can be destroyed at once, because nothing
 * was posted on it.
 */
static void out_conn_give_up(struct out_conn *conn)
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

/*
 * Breaks a live connection: puts it in the error state. The rail drains it, then it is destroyed.
 */
static void out_conn_break(struct out_conn *conn)
{
	if (conn->gone || conn->state != OUT_CONN_LIVE)
		return;
	conn->state = OUT_CONN_BROKEN;
	out_conn_go_on(conn);
}

/* Ends the connection with out_conn_give_up() or out_conn_break(), depending on its state. */
static void out_conn_end(struct out_conn *conn)
{
	if (conn->state < OUT_CONN_LIVE)
		out_conn_give_up(conn);
	else
		out_conn_break(conn);
}

/* ---- making a connection --------------------------------------------------------------------- */

static void out_conn_made_late(void *context)
{
	struct out_conn *conn = context;

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
static bool out_conn_deadline_set(struct out_conn *conn, uint64_t ms)
{
	uint64_t now_ns = net_now(), left_us = 0;

	if (conn->made_until_ns > now_ns)
		left_us = (conn->made_until_ns - now_ns) / 1000;
	if (left_us > ms * 1000)
		left_us = ms * 1000;
	return net_timer_set(conn->deadline, left_us) == 0;
}

/* The peer's message Connected has arrived: starts QPS_CONNECT, with a time limit of its own. */
static void out_conn_connect(struct out_conn *conn)
{
	conn->state = OUT_CONN_CONNECTING;
	if (out_conn_deadline_set(conn, CONN_MADE_MS))
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
	if (!out_conn_deadline_set(conn, CONN_ANSWER_MS))
		return false;
	link = member_link(conn->control, conn->handle.ref);
	conn->linkless = !link && member_link_soon(conn->control, conn->handle.ref);
	return conn->linkless || rpc_send(link, &message);
}

static struct out_conn *out_conn_find(struct control *control, unsigned rail, uint32_t ref)
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
static uint64_t out_conn_stall_ns(const struct control *control, uint64_t ack_ns)
{
	uint64_t ns = (uint64_t)control->settings->rail_stall_ms * 1000000;

	if (control->rails == 1)
		return 0;
	return ns > CONN_STALL_ACKS * ack_ns ? ns : CONN_STALL_ACKS * ack_ns;
}

/* How long its queue pairs may go on after this engine, if a client has their device. */
static void lent_time_raise(const struct control *control, uint64_t ack_ns)
{
	uint32_t ms = CONN_LENT_MS + (uint32_t)(DV_GIVE_UP_ACKS * ack_ns / 1000000);

	if (ms > control->status->lent_ms)
		shm_store(&control->status->lent_ms, ms);
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

	if (conn->qps.status || qps_stale(&conn->qps)) {
		if (!conn->handle.probe)
			log_warn("rail %u: no connection with peer %u: %s", conn->rail,
				conn->handle.peer,
				conn->qps.status ? conn->qps.text
						 : "the address of its port changed meanwhile");
		out_conn_give_up(conn);
		return;
	}
	out_conn_deadline_end(conn);
	conn->state = OUT_CONN_LIVE;
	conn->live_ns = net_now();
	conn->handle.stall_ns = out_conn_stall_ns(control, conn->qps.ack_ns);
	lent_time_raise(control, conn->qps.ack_ns);
	control->conns->outstanding++;
	out_conn_tell(conn, RAIL_CONN_ADD);
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
			out_conn_tell(conn, RAIL_CONN_DROP);
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

static bool out_conn_making(const struct control *control, unsigned rail, uint32_t ref)
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

/*
 * Starts a connection: makes the queue pairs, then sends Connect to the peer. Returns 0, -ENOMEM,
 * -EBUSY if a helper thread still works on queue pairs to that peer that were given up, or -EMFILE
 * if the rail has RAIL_CONNECTIONS_MAX connections.
 */
static int out_conn_open(
	struct control *control, unsigned rail, const struct member_record *to, bool probe)
{
	unsigned count = qps_wanted(control, rail);
	struct out_conn *conn;

	if (out_conn_making(control, rail, to->ref))
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
	conn->made_until_ns = net_now() + CONN_MADE_MS * 1000000ull;
	conn->deadline = net_timer_new(control->base, false, out_conn_made_late, conn);
	if (!conn->deadline || !out_conn_deadline_set(conn, CONN_MADE_MS)) {
		net_timer_free(conn->deadline);
		free(conn);
		return -ENOMEM;
	}
	LIST_INSERT_HEAD(&control->conns->out_conns, conn, next);
	conn_health_of(control, rail, to->peer, to->ref)->conn = conn;
	qps_start(&conn->qps, QPS_MAKE);
	return 0;
}

/* ---- the message Connected ------------------------------------------------------------------- */

static bool out_conn_regions_take(
	struct rail_conn *handle, size_t count, Pc__RegionKey *const *regions)
{
	if (count > REGIONS_EXPORTED)
		return false;
	for (size_t i = 0; i < count; i++) {
		const Pc__RegionKey *r = regions[i];

		if (r->region >= REGIONS_EXPORTED || handle->region[r->region].length ||
			r->length == 0 || r->length > REGION_BYTES_MAX ||
			r->address + r->length < r->address)
			return false;
		handle->region[r->region] = (struct rail_remote){
			.base = r->address, .length = r->length, .rkey = r->rkey};
	}
	return true;
}

bool conn_accept_connected(
	struct control *control, struct rpc_link *link, const Pc__Connected *connected)
{
	uint32_t ref = member_link_ref(link);
	struct out_conn *conn;
	int status = connected->status < 0 ? connected->status : 0;
	bool fits = ends_fit(connected->n_ends, connected->ends);
	struct member_texts texts;

	LIST_FOREACH (conn, &control->conns->out_conns, next)
		if (conn->serial == connected->serial && conn->handle.ref == ref)
			break;
	if (!conn || conn->gone || conn->state != OUT_CONN_REQUESTED)
		return fits; /* the peer's answer is late: the connection was given up before */
	fits = fits &&
	       out_conn_regions_take(&conn->handle, connected->n_regions, connected->regions);
	if (status == 0 && !fits)
		status = -EPROTO;
	if (status) {
		member_texts(&link->member->record, &texts);
		/* a probe is repeated until it is answered, and the first refusal was told */
		if (!conn->handle.probe)
			log_warn("rail %u: no connection with %s: %s", conn->rail, texts.name,
				strerror(-status));
		out_conn_give_up(conn);
		return fits;
	}
	conn->handle.limbo_ns = lease_bounded(connected->limbo_ns);
	qps_remote(&conn->qps, connected->n_ends, connected->ends);
	out_conn_connect(conn);
	return true;
}

/* ---- events of the rails and of queue pairs -------------------------------------------------- */

void conns_wanted(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	const struct member_record *to = conn_member(control, peer, ref);
	const struct out_conn *there = out_conn_find(control, rail, ref);

	if (there && there->state != OUT_CONN_BROKEN)
		/*
		 * The connection was requested already, or its command to the rail was sent
		 * already.
		 */
		return;
	if (!to || to->self || !to->rails || there || control->stopping ||
		rail_out(control, rail) || conn_health_of(control, rail, peer, ref)->out ||
		net_now() < conn_health_of(control, rail, peer, ref)->until_ns) {
		conn_refuse(control, rail, peer, ref);
		return;
	}
	if (out_conn_open(control, rail, to, false) < 0) {
		conn_back_off(control, rail, peer, ref);
		conn_health_out(control, rail, peer, ref);
		conn_refuse(control, rail, peer, ref);
	}
}

void conns_probe(struct control *control, unsigned rail, const struct member_record *to)
{
	if (!out_conn_find(control, rail, to->ref) && out_conn_open(control, rail, to, true) < 0)
		conn_back_off(control, rail, to->peer, to->ref);
}

/*
 * Breaks a live connection and starts its back-off. After it a new connection is made and probed.
 */
static void out_conn_break_anew(struct control *control, struct out_conn *conn)
{
	const struct rail_conn *handle = &conn->handle;

	if (net_now() - conn->live_ns >= CONN_STEADY_NS)
		conn_health_of(control, conn->rail, handle->peer, handle->ref)->fails = 0;
	conn_back_off(control, conn->rail, handle->peer, handle->ref);
	conn_health_out(control, conn->rail, handle->peer, handle->ref);
	out_conn_break(conn);
}

void conns_broken(
	struct control *control, unsigned rail, struct rail_conn *handle, uint32_t syndrome)
{
	struct out_conn *conn = handle->control;

	if (conn->gone || conn->state != OUT_CONN_LIVE)
		return;
	if (!conn_health_of(control, rail, handle->peer, handle->ref)->out)
		log_warn("rail %u: connection with peer %u broke: %s; other rails take over", rail,
			handle->peer,
			syndrome ? dv_syndrome((uint8_t)syndrome)
				 : "nothing completes on it any more");
	out_conn_break_anew(control, conn);
}

void conns_proven(struct control *control, unsigned rail, struct rail_conn *handle)
{
	struct out_conn *conn = handle->control;

	if (conn->state == OUT_CONN_LIVE)
		conn_health_back(control, rail, handle->peer, handle->ref);
}

void out_conns_break_rail(struct control *control, unsigned rail)
{
	struct out_conn *conn, *next;

	for (conn = LIST_FIRST(&control->conns->out_conns); conn; conn = next) {
		next = LIST_NEXT(conn, next);
		if (conn->rail != rail)
			continue;
		conn_health_out(control, rail, conn->handle.peer, conn->handle.ref);
		out_conn_end(conn);
	}
}

void conns_replace_stale(struct control *control, unsigned rail)
{
	struct out_conn *conn, *next;
	struct in_conn *in_conn;
	unsigned out = 0, in = 0;

	for (conn = LIST_FIRST(&control->conns->out_conns); conn; conn = next) {
		next = LIST_NEXT(conn, next);
		if (conn->rail != rail || conn->gone || conn->state == OUT_CONN_BROKEN ||
			!qps_stale(&conn->qps))
			continue;
		out++;
		if (conn->state == OUT_CONN_LIVE)
			out_conn_break_anew(control, conn);
		else
			out_conn_give_up(conn);
	}
	LIST_FOREACH (in_conn, &control->conns->in_conns, next)
		if (in_conn->to_rail == rail && !in_conn->gone && qps_stale(&in_conn->qps)) {
			in++;
			in_conn_fail(in_conn);
		}
	if (out || in)
		log_info(
			"rail %u: the GID of its port is another or at another index: %u outgoing and %u incoming connections are made anew",
			rail, out, in);
}

void conns_returned(struct control *control, unsigned rail, struct rail_conn *handle)
{
	struct out_conn *conn = handle->control;
	Pc__Disconnect disconnect = PC__DISCONNECT__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	disconnect.serial = conn->serial;
	disconnect.rail = rail;
	disconnect.to_rail = conn->to_rail;
	message.body_case = PC__MESSAGE__BODY_DISCONNECT;
	message.disconnect = &disconnect;
	(void)rpc_send(member_link_now(control, handle->ref), &message);
	control->conns->outstanding--;
	conn->gone = true;
	out_conn_deadline_end(conn);
	out_conn_go_on(conn);
}

void conns_qp_failed(struct control *control, unsigned rail, uint32_t qpn, const char *why)
{
	struct conns *conns = control->conns;
	struct out_conn *conn;
	struct in_conn *in_conn;

	LIST_FOREACH (conn, &conns->out_conns, next)
		if (conn->rail == rail && conn->state == OUT_CONN_LIVE &&
			qps_have(&conn->qps, qpn)) {
			log_warn("rail %u: connection with peer %u: %s; other rails take over",
				rail, conn->handle.peer, why);
			out_conn_break_anew(control, conn);
			return;
		}
	LIST_FOREACH (in_conn, &conns->in_conns, next)
		if (in_conn->to_rail == rail && qps_have(&in_conn->qps, qpn)) {
			log_warn(
				"rail %u: a queue pair that rail %u of another engine reads through: %s; that engine reconnects",
				rail, in_conn->rail, why);
			in_conn_fail(in_conn);
			return;
		}
}

/* ---- queue pairs that do not drain ----------------------------------------------------------- */

/*
 * A late tick does not count: the process was stopped or the host was suspended, and the loop must
 * first process what helper threads and the rail have done meanwhile.
 */
static void out_conn_abort_tick(void *context)
{
	struct out_conn *conn = context;
	uint64_t passed_ns = net_now() - conn->tick_ns;

	conn->tick_ns += passed_ns;
	if (passed_ns >= 2 * CONN_TICK_NS)
		return;
	if (conn->ticks > 1) {
		conn->ticks--;
		return;
	}
	engine_abort(
		"rail %u: %s does not give up the memory that READs from peer %u were posted to, %llu s after their deadline: neither could its queue pairs be destroyed nor the device be closed",
		conn->rail, conn->control->plan.rail[conn->rail].device, conn->handle.peer,
		(CONN_OVERDUE_NS + CONN_ABORT_NS) / 1000000000);
}

void conns_stuck(struct control *control, unsigned rail, struct rail_conn *handle, uint64_t ns)
{
	struct out_conn *conn = handle->control;
	uint64_t now_ns = net_now(), until_ns = ns + CONN_OVERDUE_NS;

	if (conn->gone)
		return;
	log_warn(
		"rail %u: what was posted to peer %u is not flushed; its queue pairs are destroyed",
		rail, conn->handle.peer);
	out_conn_deadline_end(conn);
	conn->deadline = net_timer_new(control->base, true, out_conn_abort_tick, conn);
	if (!conn->deadline || net_timer_set(conn->deadline, CONN_TICK_NS / 1000))
		engine_abort("no memory for a deadline");
	out_conn_ticks_set(conn, (until_ns > now_ns ? until_ns - now_ns : 0) + CONN_ABORT_NS);
	conn->kill = true;
	out_conn_go_on(conn);
}

/* ---- members leave, the engine stops --------------------------------------------------------- */

static void out_conns_drop(struct control *control, uint32_t ref)
{
	struct out_conn *conn, *next;

	for (conn = LIST_FIRST(&control->conns->out_conns); conn; conn = next) {
		next = LIST_NEXT(conn, next);
		if (ref == 0 || conn->handle.ref == ref)
			out_conn_end(conn);
	}
}

void conns_forgotten(struct control *control, uint32_t ref)
{
	out_conns_drop(control, ref);
	in_conns_drop(control, ref);
}

void conns_prove(struct control *control)
{
	const struct out_conn *conn;
	const struct in_conn *in_conn;

	LIST_FOREACH (conn, &control->conns->out_conns, next)
		if (!conn->gone)
			member_prove(control, conn->handle.ref);
	LIST_FOREACH (in_conn, &control->conns->in_conns, next)
		if (!in_conn->gone)
			member_prove(control, in_conn->ref);
}

void conns_member_gone(struct control *control, uint16_t peer, uint32_t ref)
{
	conns_forgotten(control, ref);
	conn_health_forget(control, peer);
}

void conns_stop(struct control *control)
{
	out_conns_drop(control, 0);
	in_conns_drop(control, 0);
}

unsigned conns_outstanding(const struct control *control)
{
	return control->conns->outstanding;
}

unsigned conns_busy(const struct control *control)
{
	return works_busy(control->conns->works);
}

void conn_counts(const struct control *control, struct conn_counts *ret)
{
	const struct out_conn *conn;
	const struct in_conn *in_conn;

	*ret = (struct conn_counts){0};
	LIST_FOREACH (conn, &control->conns->out_conns, next) {
		ret->asked += !conn->gone && conn->state < OUT_CONN_LIVE;
		ret->live += !conn->gone && conn->state == OUT_CONN_LIVE;
		ret->qps += conn->qps.busy ? 0 : conn->qps.set.count;
	}
	LIST_FOREACH (in_conn, &control->conns->in_conns, next) {
		ret->served += !in_conn->gone;
		ret->qps += in_conn->qps.busy ? 0 : in_conn->qps.set.count;
	}
}

int out_conns_open(struct control *control)
{
	struct conns *conns = calloc(1, sizeof(*conns));
	int rc;

	if (!conns)
		return -ENOMEM;
	/*
	 * Serials count from the incarnation, so a restarted engine does not repeat serials that it
	 * used before the restart.
	 */
	conns->serial = control->incarnation;
	control->conns = conns;
	rc = works_open(control->base,
		&(struct works_options){.name = "pc-connections",
			.queues = control->rails ? 2 * control->rails : 1,
			.threads = CONN_CALLS,
			.limit_s = CONN_CALL_S},
		&conns->works);
	if (rc < 0)
		goto no_works;
	rc = nic_lost_open(control);
	if (rc < 0)
		goto no_openers;
	return 0;

no_openers:
	works_close(conns->works);
no_works:
	free(conns);
	control->conns = NULL;
	return rc;
}

void out_conns_close(struct control *control)
{
	struct conns *conns = control->conns;
	struct out_conn *conn;

	LIST_FOREACH (conn, &conns->out_conns, next)
		qps_abandon(&conn->qps);
	in_conns_drop(control, 0);
	works_close(conns->works);
	nic_lost_close(control);
	in_conns_free(control);
	/* The rails have stopped, so nothing is in flight on these QPs: they can be destroyed. */
	while ((conn = LIST_FIRST(&conns->out_conns))) {
		qps_destroy(&conn->qps.set);
		out_conn_free(conn);
	}
	free(conns);
	control->conns = NULL;
}
