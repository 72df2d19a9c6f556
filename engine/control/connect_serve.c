/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end that is read from: passive queue pairs, made when a peer's rail asks, one set per (peer,
 * its rail, our rail). Owns every struct passive. Control plane's thread only.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/connect_state.h"
#include "engine/control/member.h"

static void passive_free(struct passive *passive)
{
	qps_error(&passive->qps);
	qps_destroy(&passive->qps);
	LIST_REMOVE(passive, next);
	free(passive);
}

void passives_drop(struct control *control, uint32_t ref)
{
	struct passive *passive, *next;

	for (passive = LIST_FIRST(&control->connect->passives); passive; passive = next) {
		next = LIST_NEXT(passive, next);
		if (ref == 0 || passive->ref == ref)
			passive_free(passive);
	}
}

static struct passive *passive_find(
	struct control *control, uint32_t ref, unsigned rail, unsigned to_rail)
{
	struct passive *passive;

	LIST_FOREACH(passive, &control->connect->passives, next)
	if (passive->ref == ref && passive->rail == rail && passive->to_rail == to_rail)
		return passive;
	return NULL;
}

/* Queue pairs ready to serve reads. 0 or -errno. */
static int passive_open(struct control *control, uint32_t ref, const Pc__Connect *connect,
	struct passive **ret_passive)
{
	struct passive *old = passive_find(control, ref, connect->rail, connect->to_rail);
	struct passive *passive;
	int status;

	if (old)
		passive_free(old);
	passive = calloc(1, sizeof(*passive));
	if (!passive)
		return -ENOMEM;
	passive->ref = ref;
	passive->rail = connect->rail;
	passive->to_rail = connect->to_rail;
	passive->serial = connect->serial;
	status = qps_create(
		control, connect->to_rail, (unsigned)connect->n_ends, 1, &passive->qps, NULL);
	if (status == 0)
		status = qps_connect(&passive->qps, connect->n_ends, connect->ends);
	if (status) {
		qps_destroy(&passive->qps);
		free(passive);
		return status;
	}
	LIST_INSERT_HEAD(&control->connect->passives, passive, next);
	*ret_passive = passive;
	return 0;
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

bool connect_serve(struct control *control, struct rpc_link *link, const Pc__Connect *connect)
{
	Pc__Connected connected = PC__CONNECTED__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	uint32_t ref = member_link_ref(link);
	struct passive *passive = NULL;
	struct region_list regions;
	struct end_list ends;

	if (connect->n_ends == 0 || !ends_fit(connect->n_ends, connect->ends) ||
		connect->rail >= link->member->record.map.rails ||
		connect->to_rail >= control->rails)
		return false;
	connected.serial = connect->serial;
	if (control->stopping)
		connected.status = -ESHUTDOWN;
	else if (connect->incarnation != control->incarnation)
		connected.status = -ESTALE;
	else
		connected.status = passive_open(control, ref, connect, &passive);
	if (passive) {
		qps_describe(&passive->qps, &ends);
		regions_describe(&control->rail[connect->to_rail], &regions);
		connected.n_ends = passive->qps.count;
		connected.ends = ends.at;
		connected.n_regions = regions.count;
		connected.regions = regions.at;
	}
	message.body_case = PC__MESSAGE__BODY_CONNECTED;
	message.connected = &connected;
	rpc_reply(link, &message);
	return true;
}

bool connect_serve_disconnect(
	struct control *control, struct rpc_link *link, const Pc__Disconnect *disconnect)
{
	struct passive *passive =
		passive_find(control, member_link_ref(link), disconnect->rail, disconnect->to_rail);

	if (passive && passive->serial == disconnect->serial)
		passive_free(passive);
	return true;
}
