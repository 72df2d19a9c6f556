/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deadlines. What the NIC does not have is answered at once. What it has is answered when it gives
 * it back: a lane that moves is given a little time for that, one that does not is broken, so that
 * the control plane drives its QPs to error. An op with too short a deadline thus harms nobody
 * else. Poll core only.
 */
#include "engine/rail/core.h"

/* Returns whether the request is still there. */
static bool expire(struct rail *rail, struct request *request, uint64_t now)
{
	struct lane *lane = request->lane;
	bool over = request->expired;

	if (!request->outstanding) { /* parked, or waiting for room to be posted */
		request_end(rail, request, OP_TIMEOUT);
		return false;
	}
	if (!over)
		lane->expired++;
	request->expired = true;
	request->deadline_ns = now + REQUEST_GRACE_NS;
	if (request->status == OP_HIT)
		request->status = OP_TIMEOUT;
	link_remove(&request->pending); /* whatever of it is not posted stays so */
	if (over)
		lane->overdue = true;
	return true;
}

/* Breaking a lane ends requests, so it is done when nobody stands in the list of them. */
static void break_overdue(struct rail *rail)
{
	for (struct link *at = rail->lanes.next; at != &rail->lanes; at = at->next) {
		struct lane *lane = container_of(at, struct lane, lanes);

		if (!lane->overdue)
			continue;
		lane->overdue = false;
		lane_break(rail, lane, 0);
	}
}

static unsigned expire_all(struct rail *rail, uint64_t now)
{
	uint64_t nearest = UINT64_MAX;
	unsigned n = 0;

	for (struct request *request = live_from(rail, 0); request;
		request = live_from(rail, request->number + 1u)) {
		if (request->deadline_ns <= now) {
			n++;
			if (!expire(rail, request, now))
				continue;
		}
		if (request->deadline_ns < nearest)
			nearest = request->deadline_ns;
	}
	rail->nearest_ns = nearest;
	return n;
}

unsigned rail_expire(struct rail *rail)
{
	uint64_t now = rail_now(rail);
	unsigned n = 0;

	if (now >= rail->nearest_ns) {
		n = expire_all(rail, now);
		break_overdue(rail);
		rail->watch_ns = 0;
	}
	if (now >= rail->watch_ns) {
		lanes_watch(rail, now);
		rail->watch_ns = now + LANE_WATCH_NS;
	}
	return n;
}
