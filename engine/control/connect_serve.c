/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The passive side of connections: queue pairs made when a peer's rail sends Connect, one set per
 * (peer, its rail, our rail). Owns every struct passive. Control plane's thread only; a helper
 * thread makes the queue pairs, so the answer is sent on a later turn.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/connect_state.h"
#include "engine/control/member.h"

static void passive_go_on(struct passive *passive)
{
	const struct rail_health *h = &passive->qps.control->connect->health[passive->to_rail];

	if (passive->gone && !passive->qps.busy && (!h->lost || h->cut))
		qps_start(&passive->qps, QPS_DESTROY);
}

void passive_fail(struct passive *passive)
{
	passive->gone = true;
	qps_abandon(&passive->qps);
	passive_go_on(passive);
}

static void drop(struct control *control, uint32_t ref, unsigned rail)
{
	struct passive *passive;

	LIST_FOREACH (passive, &control->connect->passives, next)
		if ((ref == 0 || passive->ref == ref) &&
			(rail == RAILS_MAX || passive->to_rail == rail))
			passive_fail(passive);
}

void passives_drop(struct control *control, uint32_t ref)
{
	drop(control, ref, RAILS_MAX);
}

void passives_drop_rail(struct control *control, unsigned rail)
{
	drop(control, 0, rail);
}

void passives_free(struct control *control)
{
	struct passive *passive;

	while ((passive = LIST_FIRST(&control->connect->passives))) {
		qps_destroy(&passive->qps.set);
		LIST_REMOVE(passive, next);
		free(passive);
	}
}

static struct passive *passive_find(
	struct control *control, uint32_t ref, unsigned rail, unsigned to_rail)
{
	struct passive *passive;

	LIST_FOREACH (passive, &control->connect->passives, next)
		if (passive->ref == ref && passive->rail == rail && passive->to_rail == to_rail &&
			!passive->gone)
			return passive;
	return NULL;
}

struct region_list {
	Pc__RegionKey region[REGIONS_EXPORTED];
	Pc__RegionKey *at[REGIONS_EXPORTED];
	unsigned count;
};

static void regions_describe(const struct control_rail *rail, struct region_list *ret)
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

/* Sends the message Connected. `passive` NULL: the request is refused, and `status` says why. */
static void answer(struct control *control, uint32_t ref, uint64_t serial, int status,
	const struct passive *passive)
{
	struct rpc_link *link = member_link_now(control, ref);
	Pc__Connected connected = PC__CONNECTED__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	struct region_list regions;
	struct end_list ends;

	connected.serial = serial;
	connected.status = status;
	if (passive) {
		qps_describe(&passive->qps.set, &ends);
		regions_describe(&control->rail[passive->to_rail], &regions);
		connected.n_ends = passive->qps.set.count;
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
 * Called when a helper thread has finished a driver call on the queue pairs of a passive
 * connection.
 */
static void passive_done(struct qps *qps)
{
	struct passive *passive = (struct passive *)((char *)qps - offsetof(struct passive, qps));

	if (qps->call == QPS_DESTROY) {
		LIST_REMOVE(passive, next);
		free(passive);
		return;
	}
	/* nothing reads through them: the peer's rail is gone, or has sent a newer Connect */
	if (passive->gone) {
		passive_go_on(passive);
	} else if (qps->status) {
		log_warn("rail %u: no queue pairs for a peer: %s", passive->to_rail, qps->text);
		answer(qps->control, passive->ref, passive->serial, qps->status, NULL);
		passive_fail(passive);
	} else {
		answer(qps->control, passive->ref, passive->serial, 0, passive);
	}
}

/*
 * True while a helper thread works on queue pairs for the path that `connect` names, even if they
 * are not needed any more.
 */
static bool passive_making(struct control *control, uint32_t ref, const Pc__Connect *connect)
{
	struct passive *passive;

	LIST_FOREACH (passive, &control->connect->passives, next)
		if (passive->ref == ref && passive->rail == connect->rail &&
			passive->to_rail == connect->to_rail && qps_making(&passive->qps))
			return true;
	return false;
}

/*
 * Starts making the queue pairs that the peer will read through; passive_done() answers the peer.
 * Returns 0 or -errno.
 */
static int passive_open(struct control *control, uint32_t ref, const Pc__Connect *connect)
{
	struct passive *old = passive_find(control, ref, connect->rail, connect->to_rail);
	struct passive *passive;

	if (old)
		passive_fail(old);
	if (passive_making(control, ref, connect))
		return -EBUSY; /* the peer sends Connect again after its back-off */
	passive = calloc(1, sizeof(*passive));
	if (!passive)
		return -ENOMEM;
	passive->ref = ref;
	passive->rail = connect->rail;
	passive->to_rail = connect->to_rail;
	passive->serial = connect->serial;
	passive->qps.control = control;
	passive->qps.rail = connect->to_rail;
	passive->qps.count = (unsigned)connect->n_ends;
	passive->qps.depth = 1;
	passive->qps.done = passive_done;
	qps_remote(&passive->qps, connect->n_ends, connect->ends);
	LIST_INSERT_HEAD(&control->connect->passives, passive, next);
	qps_start(&passive->qps, QPS_MAKE);
	return 0;
}

bool connect_serve(struct control *control, struct rpc_link *link, const Pc__Connect *connect)
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
	else if (control->connect->health[connect->to_rail].lost)
		status = -ENETDOWN;
	else
		status = passive_open(control, ref, connect);
	if (status)
		answer(control, ref, connect->serial, status, NULL);
	return true;
}

bool connect_serve_disconnect(
	struct control *control, struct rpc_link *link, const Pc__Disconnect *disconnect)
{
	struct passive *passive =
		passive_find(control, member_link_ref(link), disconnect->rail, disconnect->to_rail);

	if (passive && passive->serial == disconnect->serial)
		passive_fail(passive);
	return true;
}
