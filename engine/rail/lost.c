/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that do not drain, and a NIC that is lost for good. The control plane destroys the
 * QPs or closes the device; from then on the NIC writes nothing, and this file retires what was
 * posted without completions. Poll core only.
 */
#include "engine/rail/core.h"

/*
 * Drain time-out of an ended connection: a QP in the error state flushes its WQEs at once, so a
 * longer wait means that the flush CQEs are missing.
 */
#define LANE_DRAIN_NS (1500ull * 1000 * 1000)

/*
 * The earliest deadline of the connection's requests and runs, CLOCK_MONOTONIC; 0 if one of them is
 * past its deadline already.
 */
static uint64_t lane_deadline_ns(struct rail *rail, const struct lane *lane)
{
	uint64_t ns = UINT64_MAX;

	for (struct request *request = live_from(rail, 0); request;
		request = live_from(rail, request->number + 1u)) {
		uint64_t over_ns = request->expired ? 0 : request->deadline_ns;

		if (request->lane == lane && over_ns < ns)
			ns = over_ns;
	}
	for (struct rail_run *run = run_from(rail, 0); run;
		run = run_from(rail, run->number + 1u)) {
		uint64_t over_ns = run->expired ? 0 : run->deadline_ns;

		if (run->lane == lane && over_ns < ns)
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

/* Finds the connection of `object`. NULL: the rail has none (any more). */
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
 * CQEs that are already in the CQ are consumed first: they are valid answers, and the NIC may give
 * the numbers of destroyed QPs to new ones.
 */
void lane_retire(struct rail *rail, const struct rail_peer *object)
{
	struct lane *lane = lane_of(rail, object);

	if (!lane)
		return; /* the connection drained in the meantime, so it was returned already */
	lane_drop(rail, lane->number, lane->peer->ref, object);
	rail_reap_all(rail);
	lane = lane_of(rail, object);
	if (!lane)
		return;
	lane_retire_posted(rail, lane);
	lane_return_if_drained(rail, lane);
}

/* Replaces the lost NIC's CQ and doorbell record by a CQ that never holds a completion. */
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
