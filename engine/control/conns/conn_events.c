/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Active connections: events of the rails, the peers' Connected messages, and members that leave.
 * Control plane's thread only.
 */
#include "engine/control/conns/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/abi/lease.h"
#include "engine/control/conns/conn_state.h"
#include "engine/control/members/member.h"
#include "numa/clock.h"

/* ---- back-off -------------------------------------------------------------------------------- */

struct conn_health *conn_health_of(
	struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	struct conn_health *b = &control->conns->conn_health[rail][peer];

	if (peer >= control->conns->peers)
		control->conns->peers = peer + 1u;
	if (b->ref != ref)
		*b = (struct conn_health){.ref = ref};
	return b;
}

void conn_back_off(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	struct conn_health *b = conn_health_of(control, rail, peer, ref);
	uint64_t ms = (uint64_t)CONN_BACKOFF_MS << (b->fails > 8 ? 8 : b->fails);

	b->fails++;
	b->until_ns =
		clock_now_ns() + (ms < CONN_BACKOFF_MAX_MS ? ms : CONN_BACKOFF_MAX_MS) * 1000000ull;
}

/* ---- events of rails ------------------------------------------------------------------------- */

void conns_wanted(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	const struct member_record *to = member_by_ref(control, ref);
	const struct out_conn *there = out_conn_find(control, rail, ref);

	if (there && there->state != OUT_CONN_BROKEN)
		/*
		 * The connection was requested already, or its command to the rail was sent
		 * already.
		 */
		return;
	if (!to || to->self || to->peer != peer || there || control->stopping ||
		rail_out(control, rail) || conn_health_of(control, rail, peer, ref)->out ||
		clock_now_ns() < conn_health_of(control, rail, peer, ref)->until_ns) {
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
static void break_anew(struct control *control, struct out_conn *conn)
{
	const struct rail_conn *handle = &conn->handle;

	if (clock_now_ns() - conn->live_ns >= CONN_STEADY_NS)
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
	break_anew(control, conn);
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
			break_anew(control, conn);
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

/* ---- Connected ------------------------------------------------------------------------------- */

static bool regions_take(struct rail_conn *handle, size_t count, Pc__RegionKey *const *regions)
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
	fits = fits && regions_take(&conn->handle, connected->n_regions, connected->regions);
	if (status == 0 && !fits)
		status = -EPROTO;
	if (status) {
		member_texts(&link->member->record, &texts);
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

void conns_member_gone(struct control *control, uint16_t peer, uint32_t ref)
{
	out_conns_drop(control, ref);
	in_conns_drop(control, ref);
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

int conns_open(struct control *control)
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
	rc = works_open(control->base, 2 * control->rails, &conns->works);
	if (rc < 0)
		goto no_works;
	rc = health_open(control);
	if (rc < 0)
		goto no_health;
	return 0;

no_health:
	works_close(conns->works);
no_works:
	free(conns);
	control->conns = NULL;
	return rc;
}

void conns_close(struct control *control)
{
	struct conns *conns = control->conns;
	struct out_conn *conn;

	if (!conns)
		return;
	LIST_FOREACH (conn, &conns->out_conns, next)
		qps_abandon(&conn->qps);
	in_conns_drop(control, 0);
	works_close(conns->works);
	in_conns_free(control);
	/* The rails have stopped, so nothing is in flight on these QPs: they can be destroyed. */
	while ((conn = LIST_FIRST(&conns->out_conns))) {
		qps_destroy(&conn->qps.set);
		out_conn_free(conn);
	}
	health_close(control);
	free(conns);
	control->conns = NULL;
}
