/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The serving side of connections: queue pairs made when a peer's rail sends Connect, one set per
 * (peer, its rail, our rail). Owns every struct in_conn. Control plane's thread only; a helper
 * thread makes the queue pairs, so the answer is sent on a later turn.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/conns/conns.h"
#include "engine/control/conns/conns_inner.h"
#include "engine/control/members/members.h"

static void in_conn_go_on(struct in_conn *in_conn)
{
	const struct rail_health *h = &in_conn->qps.control->conns->health[in_conn->to_rail];

	if (in_conn->gone && !in_conn->qps.busy && (!h->lost || h->cut))
		qps_start(&in_conn->qps, QPS_DESTROY);
}

void in_conn_fail(struct in_conn *in_conn)
{
	in_conn->gone = true;
	qps_abandon(&in_conn->qps);
	in_conn_go_on(in_conn);
}

static void in_conns_drop_where(struct control *control, uint32_t ref, unsigned rail)
{
	struct in_conn *in_conn;

	LIST_FOREACH (in_conn, &control->conns->in_conns, next)
		if ((ref == 0 || in_conn->ref == ref) &&
			(rail == RAILS_MAX || in_conn->to_rail == rail))
			in_conn_fail(in_conn);
}

void in_conns_drop(struct control *control, uint32_t ref)
{
	in_conns_drop_where(control, ref, RAILS_MAX);
}

void in_conns_drop_rail(struct control *control, unsigned rail)
{
	in_conns_drop_where(control, 0, rail);
}

void in_conns_free(struct control *control)
{
	struct in_conn *in_conn;

	while ((in_conn = LIST_FIRST(&control->conns->in_conns))) {
		qps_destroy(&in_conn->qps.set);
		LIST_REMOVE(in_conn, next);
		free(in_conn);
	}
}

static struct in_conn *in_conn_find(
	struct control *control, uint32_t ref, unsigned rail, unsigned to_rail)
{
	struct in_conn *in_conn;

	LIST_FOREACH (in_conn, &control->conns->in_conns, next)
		if (in_conn->ref == ref && in_conn->rail == rail && in_conn->to_rail == to_rail &&
			!in_conn->gone)
			return in_conn;
	return NULL;
}

struct region_list {
	Pc__RegionKey region[REGIONS_EXPORTED];
	Pc__RegionKey *at[REGIONS_EXPORTED];
	unsigned count;
};

static void in_conn_regions_describe(const struct control_rail *rail, struct region_list *ret)
{
	ret->count = 0;
	for (unsigned i = 0; i < REGIONS_EXPORTED; i++) {
		const struct dv_mr *mr = &rail->exported[i];
		Pc__RegionKey *region = &ret->region[ret->count];

		if (mr->length == 0)
			continue;
		*region = (Pc__RegionKey)PC__REGION_KEY__INIT;
		region->region = i;
		region->address = (uintptr_t)mr->base;
		region->length = mr->length;
		region->rkey = mr->rkey;
		ret->at[ret->count++] = region;
	}
}

/* Sends the message Connected. `in_conn` NULL: the request is refused, and `status` says why. */
static void in_conn_answer(struct control *control, uint32_t ref, uint64_t serial, int status,
	const struct in_conn *in_conn)
{
	struct rpc_link *link = member_link_now(control, ref);
	Pc__Connected connected = PC__CONNECTED__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	struct region_list regions;
	struct end_list ends;

	connected.serial = serial;
	connected.status = status;
	if (in_conn) {
		qps_describe(&in_conn->qps.set, &ends);
		in_conn_regions_describe(&control->rail[in_conn->to_rail], &regions);
		connected.n_ends = in_conn->qps.set.count;
		connected.ends = ends.at;
		connected.n_regions = regions.count;
		connected.regions = regions.at;
		connected.limbo_ns = control_limbo_ns(control);
#ifdef TEST_HOOKS
		connected.limbo_ns *= (uint64_t)control->settings->test_limbo_announced;
#endif
	}
	message.body_case = PC__MESSAGE__BODY_CONNECTED;
	message.connected = &connected;
	if (link)
		rpc_reply(link, &message);
}

/*
 * Called when a helper thread has finished a driver call on the queue pairs of an incoming
 * connection.
 */
static void in_conn_done(struct qps *qps)
{
	struct in_conn *in_conn = (struct in_conn *)((char *)qps - offsetof(struct in_conn, qps));

	if (qps->call == QPS_DESTROY) {
		LIST_REMOVE(in_conn, next);
		free(in_conn);
		return;
	}
	/* nothing reads through them: the peer's rail is gone, or has sent a newer Connect */
	if (in_conn->gone) {
		in_conn_go_on(in_conn);
	} else if (qps->status) {
		log_warn("rail %u: no queue pairs for a peer: %s", in_conn->to_rail, qps->text);
		in_conn_answer(qps->control, in_conn->ref, in_conn->serial, qps->status, NULL);
		in_conn_fail(in_conn);
	} else if (qps_stale(qps)) {
		in_conn_answer(qps->control, in_conn->ref, in_conn->serial, -ESTALE, NULL);
		in_conn_fail(in_conn);
	} else {
		in_conn_answer(qps->control, in_conn->ref, in_conn->serial, 0, in_conn);
	}
}

/*
 * True while a helper thread works on queue pairs for the connection that `connect` names, even if
 * they are not needed any more.
 */
static bool in_conn_making(struct control *control, uint32_t ref, const Pc__Connect *connect)
{
	struct in_conn *in_conn;

	LIST_FOREACH (in_conn, &control->conns->in_conns, next)
		if (in_conn->ref == ref && in_conn->rail == connect->rail &&
			in_conn->to_rail == connect->to_rail && qps_making(&in_conn->qps))
			return true;
	return false;
}

/*
 * Starts making the queue pairs that the peer will read through; in_conn_done() answers the peer.
 * Returns 0 or -errno.
 */
static int in_conn_open(struct control *control, uint32_t ref, const Pc__Connect *connect)
{
	struct in_conn *old = in_conn_find(control, ref, connect->rail, connect->to_rail);
	struct in_conn *in_conn;

	if (old)
		in_conn_fail(old);
	if (in_conn_making(control, ref, connect))
		return -EBUSY; /* the peer sends Connect again after its back-off */
	in_conn = calloc(1, sizeof(*in_conn));
	if (!in_conn)
		return -ENOMEM;
	in_conn->ref = ref;
	in_conn->rail = connect->rail;
	in_conn->to_rail = connect->to_rail;
	in_conn->serial = connect->serial;
	in_conn->qps.control = control;
	in_conn->qps.rail = connect->to_rail;
	in_conn->qps.count = (unsigned)connect->n_ends;
	in_conn->qps.depth = 1;
	in_conn->qps.done = in_conn_done;
	qps_remote(&in_conn->qps, connect->n_ends, connect->ends);
	LIST_INSERT_HEAD(&control->conns->in_conns, in_conn, next);
	qps_start(&in_conn->qps, QPS_MAKE);
	return 0;
}

bool conn_accept(struct control *control, struct rpc_link *link, const Pc__Connect *connect)
{
	uint32_t ref = member_link_ref(link);
	int status;

	if (connect->n_ends == 0 || !ends_fit(connect->n_ends, connect->ends) ||
		connect->rail >= link->member->record.rails || connect->to_rail >= control->rails)
		return false;
	if (control->stopping)
		status = -ESHUTDOWN;
	else if (connect->incarnation != control->incarnation)
		status = -ESTALE;
	else if (control->conns->health[connect->to_rail].lost)
		status = -ENETDOWN;
	else if (control->conns->health[connect->to_rail].port)
		status = control->conns->health[connect->to_rail].port;
	else
		status = in_conn_open(control, ref, connect);
	if (status)
		in_conn_answer(control, ref, connect->serial, status, NULL);
	return true;
}

bool conn_accept_disconnect(
	struct control *control, struct rpc_link *link, const Pc__Disconnect *disconnect)
{
	struct in_conn *in_conn =
		in_conn_find(control, member_link_ref(link), disconnect->rail, disconnect->to_rail);

	if (in_conn && in_conn->serial == disconnect->serial)
		in_conn_fail(in_conn);
	return true;
}
