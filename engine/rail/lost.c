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
#define CONN_DRAIN_NS (1500ull * 1000 * 1000)

/*
 * The earliest deadline of the connection's requests and runs, CLOCK_MONOTONIC; 0 if one of them is
 * past its deadline already.
 */
static uint64_t conn_deadline_ns(struct rail *rail, const struct conn *conn)
{
	uint64_t ns = UINT64_MAX;

	for (struct request *request = live_from(rail, 0); request;
		request = live_from(rail, request->number + 1u)) {
		uint64_t over_ns = request->expired ? 0 : request->deadline_ns;

		if (request->conn == conn && over_ns < ns)
			ns = over_ns;
	}
	for (struct rail_run *run = run_from(rail, 0); run;
		run = run_from(rail, run->number + 1u)) {
		uint64_t over_ns = run->expired ? 0 : run->deadline_ns;

		if (run->conn == conn && over_ns < ns)
			ns = over_ns;
	}
	return ns;
}

void conn_drain_watch(struct rail *rail, struct conn *conn, uint64_t now_ns)
{
	struct rail_event event = {.kind = RAIL_CONN_STUCK, .object = conn->handle};

	if (!conn->ended_ns || conn->stuck || !conn->wqes ||
		now_ns - conn->ended_ns < CONN_DRAIN_NS)
		return;
	conn->stuck = true;
	event.peer = conn->handle->peer;
	event.ref = conn->handle->ref;
	event.ns = conn_deadline_ns(rail, conn);
	rail_event_send(rail, &event);
}

/* Finds the connection of `object`. NULL: the rail has none (any more). */
static struct conn *conn_of(struct rail *rail, const struct rail_conn *object)
{
	for (struct link *at = rail->conns.next; at != &rail->conns; at = at->next) {
		struct conn *conn = container_of(at, struct conn, conns);

		if (conn->handle == object)
			return conn;
	}
	return NULL;
}

/*
 * CQEs that are already in the CQ are consumed first: they are valid answers, and the NIC may give
 * the numbers of destroyed QPs to new ones.
 */
void conn_retire(struct rail *rail, const struct rail_conn *object)
{
	struct conn *conn = conn_of(rail, object);

	if (!conn)
		return; /* the connection drained in the meantime, so it was returned already */
	conn_drop(rail, conn->number, conn->handle->ref, object);
	rail_reap_all(rail);
	conn = conn_of(rail, object);
	if (!conn)
		return;
	conn_retire_posted(rail, conn);
	conn_return_if_drained(rail, conn);
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
	for (struct link *at = rail->conns.next; at != &rail->conns; at = at->next)
		conn_break(rail, container_of(at, struct conn, conns), 0);
	rail_event_send(rail, &event);
}
