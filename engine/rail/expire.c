/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deadlines of requests and runs. One with no WQE at the NIC is answered at once. One with posted
 * WQEs is answered when they retire, because the NIC may still write its buffers: a connection that
 * makes progress gets REQUEST_GRACE_NS for that, one that does not is broken, so that the control
 * plane moves its QPs to the error state. An op with too short a deadline therefore does not fail
 * other ops. Poll core only.
 */
#include "engine/rail/core.h"

/*
 * Ends or cancels one request past its deadline. Returns false if the request was answered and
 * freed.
 */
static bool expire(struct rail *rail, struct request *request, uint64_t now)
{
	struct conn *conn = request->conn;
	bool over = request->expired;

	if (!request->outstanding) { /* the request is parked, or none of its WQEs is posted */
		request_end(rail, request, OP_TIMEOUT);
		return false;
	}
	if (!over)
		conn->expired++;
	request->expired = true;
	request->deadline_ns = now + REQUEST_GRACE_NS;
	if (request->status == OP_HIT)
		request->status = OP_TIMEOUT;
	link_remove(&request->pending); /* the rest of the request's payload is never posted */
	if (over)
		conn->overdue = true;
	return true;
}

/* The same for a run. Pages that were validated stay hits. */
static bool expire_run(struct rail *rail, struct rail_run *run, uint64_t now)
{
	bool over = run->expired;

	if (!run->outstanding) {
		run_end(rail, run, OP_TIMEOUT);
		return false;
	}
	if (!over)
		run->conn->expired++;
	run->expired = true;
	run->deadline_ns = now + REQUEST_GRACE_NS;
	run_quit(run, OP_TIMEOUT);
	if (over)
		run->conn->overdue = true;
	return true;
}

/*
 * conn_break() ends requests, so it is called after the loop over the live requests, not within it.
 */
static void break_overdue(struct rail *rail)
{
	for (struct link *at = rail->conns.next; at != &rail->conns; at = at->next) {
		struct conn *conn = container_of(at, struct conn, conns);

		if (!conn->overdue)
			continue;
		conn->overdue = false;
		conn_break(rail, conn, 0);
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
	for (struct rail_run *run = run_from(rail, 0); run;
		run = run_from(rail, run->number + 1u)) {
		if (run->deadline_ns <= now) {
			n++;
			if (!expire_run(rail, run, now))
				continue;
		}
		if (run->deadline_ns < nearest)
			nearest = run->deadline_ns;
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
		conns_watch(rail, now);
		rail->watch_ns = now + CONN_WATCH_NS;
	}
	return n;
}
