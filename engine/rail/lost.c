/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes whose flushed completions do not come, and a NIC that is lost for good. The control plane
 * destroys the queue pairs, or closes the device; from then on the NIC writes nothing, and what was
 * posted is retired here without completions. Poll core only.
 */
#include "engine/rail/core.h"

/* A queue pair in error completes what it has at once; nothing waits longer than this. */
#define LANE_DRAIN_NS (1500ull * 1000 * 1000)

/* When the first of its requests is over, or was. */
static uint64_t lane_deadline_ns(struct rail *rail, const struct lane *lane)
{
	uint64_t ns = UINT64_MAX;

	for (struct request *request = live_from(rail, 0); request;
		request = live_from(rail, request->number + 1u)) {
		uint64_t over_ns = request->expired ? 0 : request->deadline_ns;

		if (request->lane == lane && over_ns < ns)
			ns = over_ns;
	}
	return ns;
}

void lane_drain_watch(struct rail *rail, struct lane *lane, uint64_t now_ns)
{
	struct rail_event event = {.kind = RAIL_PEER_STUCK, .object = lane->peer};

	if (!lane->ended_ns || lane->stuck || !lane->wqes ||
		now_ns - lane->ended_ns < LANE_DRAIN_NS)
		return;
	lane->stuck = true;
	event.peer = lane->peer->peer;
	event.ref = lane->peer->ref;
	event.ns = lane_deadline_ns(rail, lane);
	rail_say(rail, &event);
}

static struct lane *lane_of(struct rail *rail, const struct rail_peer *object)
{
	for (struct link *at = rail->lanes.next; at != &rail->lanes; at = at->next) {
		struct lane *lane = container_of(at, struct lane, lanes);

		if (lane->peer == object)
			return lane;
	}
	return NULL;
}

/*
 * The completions that are in the queue already come first: they are answers, and the numbers of
 * destroyed queue pairs are given out again.
 */
void lane_retire(struct rail *rail, const struct rail_peer *object)
{
	struct lane *lane = lane_of(rail, object);

	if (!lane)
		return; /* it drained after all, and was returned */
	lane_drop(rail, lane->number, lane->peer->ref, object);
	rail_reap_all(rail);
	lane = lane_of(rail, object);
	if (!lane)
		return;
	lane_retire_posted(rail, lane);
	lane_return_if_drained(rail, lane);
}

/* In place of the lost NIC's: memory that never holds a completion. */
static uint8_t cqe_of_nobody[64] = {[63] = MLX5_CQE_INVALID << 4};
static volatile __be32 record_of_nobody[2];

void rail_lose(struct rail *rail)
{
	struct rail_event event = {.kind = RAIL_QUIET};

	rail->lost = true;
	rail->cq = (struct dv_cq){.buf = cqe_of_nobody,
		.record = record_of_nobody,
		.cqe_cnt = 1,
		.cqe_size = sizeof(cqe_of_nobody)};
	for (struct link *at = rail->lanes.next; at != &rail->lanes; at = at->next)
		lane_break(rail, container_of(at, struct lane, lanes), 0);
	rail_say(rail, &event);
}
