/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections (struct conn): add, probe, break, drop, retire and return them, detect stalls, and
 * the loss of the NIC. The control plane hands a connection over and gets it back when the NIC
 * can no longer write for it: because every WQE has retired, or because the control plane has
 * destroyed the QPs or closed the device; what was posted then retires without completions. Poll
 * core only. In fault-free operation only conn_qp_find() runs per op.
 */
#include "engine/rail/core.h"

/*
 * ---- hash table: QP number -> QP ---------------------------------------------------------------
 */

/* The entry of the hash table at which the search for a QP number begins. */
static uint32_t qp_table_home(uint32_t qpn)
{
	return qpn * 0x9e3779b1u >> 8 & (CONN_TABLE_SLOTS - 1);
}

static uint32_t qp_table_after(uint32_t at)
{
	return (at + 1) & (CONN_TABLE_SLOTS - 1);
}

struct conn_qp *conn_qp_find(struct rail *rail, uint32_t qpn)
{
	for (uint32_t at = qp_table_home(qpn); rail->table[at].used; at = qp_table_after(at)) {
		uint16_t qp = rail->table[at].qp;

		if (rail->table[at].qpn == qpn)
			return &rail->conn[qp / QPS_PER_PEER_MAX].qp[qp % QPS_PER_PEER_MAX];
	}
	return NULL;
}

/*
 * Adds a QP. An entry with the same number is overwritten: its QP was destroyed and the NIC has
 * given the number to the new one.
 */
static void qp_table_add(struct rail *rail, uint32_t qpn, uint16_t qp)
{
	uint32_t at = qp_table_home(qpn);

	while (rail->table[at].used && rail->table[at].qpn != qpn)
		at = qp_table_after(at);
	rail->table[at].qpn = qpn;
	rail->table[at].qp = qp;
	rail->table[at].used = 1;
}

/*
 * Removes a QP and closes the gap, so that every later entry is still found from its home entry
 * (Knuth, TAOCP 6.4, algorithm R). Does nothing if the number belongs to another QP already.
 */
static void qp_table_remove(struct rail *rail, uint32_t qpn, uint16_t qp)
{
	uint32_t gap = qp_table_home(qpn);
	uint32_t at;

	while (rail->table[gap].qpn != qpn || !rail->table[gap].used) {
		if (!rail->table[gap].used)
			return;
		gap = qp_table_after(gap);
	}
	if (rail->table[gap].qp != qp)
		return;
	for (at = qp_table_after(gap); rail->table[at].used; at = qp_table_after(at)) {
		uint32_t home = qp_table_home(rail->table[at].qpn);
		uint32_t mask = CONN_TABLE_SLOTS - 1;

		if (((at - home) & mask) < ((at - gap) & mask))
			continue;
		rail->table[gap] = rail->table[at];
		gap = at;
	}
	rail->table[gap].used = 0;
}

/*
 * ---- connections -------------------------------------------------------------------------------
 */

static void conn_event_send(struct rail *rail, uint32_t kind, const struct rail_conn *handle,
	uint32_t detail, void *object)
{
	struct rail_event event = {.kind = kind,
		.peer = handle->peer,
		.ref = handle->ref,
		.detail = detail,
		.object = object};

	rail_event_send(rail, &event);
}

void peer_want(struct rail *rail, struct peer_slot *slot, uint16_t peer, uint32_t ref)
{
	struct rail_event event = {.kind = RAIL_CONN_WANTED, .peer = peer, .ref = ref};

	if (slot->wanted)
		return;
	slot->wanted = true;
	slot->wanted_ref = ref;
	rail_event_send(rail, &event); /* conns_wanted() of the control plane */
}

/*
 * Fails the runs with READs to post: one without outstanding WQEs ends now, the others end when
 * their last WQE retires.
 */
static void conn_fail_pending(struct rail *rail, struct conn *conn)
{
	while (list_linked(&conn->runs))
		run_fail(rail, container_of(conn->runs.next, struct rail_run, pending),
			OP_PEER_DOWN);
	while (list_linked(&conn->run_heads))
		run_fail(rail, container_of(conn->run_heads.next, struct rail_run, heads),
			OP_PEER_DOWN);
	list_remove(&conn->waiting);
}

void conn_break(struct rail *rail, struct conn *conn, uint32_t syndrome)
{
	if (conn->state != CONN_OPEN && conn->state != CONN_PROBING)
		return;
	conn->state = CONN_BROKEN;
	conn->ended_ns = rail_now(rail);
	rail_count(rail, COUNTER_qps_broken, conn->handle->qps);
	PROBE_RAIL_DOWN(rail->options.index, conn->number, syndrome);
	/* conns_broken() of the control plane */
	conn_event_send(rail, RAIL_CONN_BROKEN, conn->handle, syndrome, conn->handle);
	conn_fail_pending(rail, conn);
}

void conn_return_if_drained(struct rail *rail, struct conn *conn)
{
	struct rail_conn *handle = conn->handle;

	if (conn->state != CONN_DROPPED || conn->wqes)
		return;
	if (rail->peer[conn->number].conn == conn)
		rail->peer[conn->number].conn = NULL;
	for (unsigned i = 0; i < handle->qps; i++)
		qp_table_remove(rail, conn->qp[i].sq->qpn,
			(uint16_t)((conn - rail->conn) * QPS_PER_PEER_MAX + i));
	list_remove(&conn->conns);
	rail->conn_stack[rail->conns_free++] = (uint16_t)(conn - rail->conn);
	handle->conn = NULL;
	conn_event_send(rail, RAIL_CONN_RETURNED, handle, 0, handle);
}

static bool conn_is(const struct conn *conn, uint16_t peer, uint32_t ref)
{
	return conn->number == peer && conn->handle->ref == ref && conn->state != CONN_DROPPED;
}

/*
 * Several connections to the same incarnation can exist. Without `object` the command means the
 * broken one, or, if none is broken, the oldest.
 */
static struct conn *conn_to_drop(
	struct rail *rail, uint16_t peer, uint32_t ref, const struct rail_conn *object)
{
	struct conn *found = NULL;

	for (struct list *at = rail->conns.next; at != &rail->conns; at = at->next) {
		struct conn *conn = container_of(at, struct conn, conns);

		if (object && conn->handle == object)
			return conn;
		if (!object && conn_is(conn, peer, ref) &&
			(!found || (found->state != CONN_BROKEN && conn->state == CONN_BROKEN)))
			found = conn;
	}
	return found;
}

void conn_drop(struct rail *rail, uint16_t peer, uint32_t ref, const struct rail_conn *object)
{
	struct conn *conn = conn_to_drop(rail, peer, ref, object);

	if (!conn || conn->state == CONN_DROPPED)
		return;
	conn->state = CONN_DROPPED;
	if (!conn->ended_ns)
		conn->ended_ns = rail_now(rail);
	conn_fail_pending(rail, conn);
	conn_return_if_drained(rail, conn);
}

static void conn_init(struct rail *rail, struct conn *conn, struct rail_conn *handle)
{
	uint16_t first = (uint16_t)((conn - rail->conn) * QPS_PER_PEER_MAX);

	conn->handle = handle;
	conn->number = handle->peer;
	conn->state = handle->probe ? CONN_PROBING : CONN_OPEN;
	conn->stalled = conn->overdue = conn->stuck = false;
	shm_store(&handle->stalled, 0);
	conn->ended_ns = 0;
	conn->wqes = conn->bytes = conn->expired = 0;
	conn->taken_bytes = 0;
	conn->bulk = conn->small = NULL;
	conn->runs_live = conn->run_pages = 0;
	conn->moved = conn->moved_seen = 0;
	conn->still_ns = 0;
	conn->begun = false;
	conn->limbo_ns = rail->options.lease ? handle->limbo_ns : 0;
	if (TEST_HOOK(rail->options.skip_head_check))
		conn->limbo_ns = 0;
	list_init(&conn->waiting);
	list_init(&conn->runs);
	list_init(&conn->run_heads);
	list_append(&rail->conns, &conn->conns);
	for (unsigned i = 0; i < handle->qps; i++) {
		struct conn_qp *qp = &conn->qp[i];

		qp->sq = handle->sq[i];
		qp->blocks_max = (uint8_t)(qp->sq->wqe_cnt < QP_DEPTH ? qp->sq->wqe_cnt : QP_DEPTH);
		qp->conn = conn;
		qp->bulk_bytes = qp->silent_bytes = qp->silent = 0;
		qp->unrung = false;
		memset(qp->wqe, 0, sizeof(qp->wqe));
		qp_table_add(rail, qp->sq->qpn, (uint16_t)(first + i));
	}
	handle->conn = conn;
}

/*
 * ---- probing a connection that failed before ---------------------------------------------------
 */

/*
 * Queues the probe, a run of the rail itself: a READ of the first page head of the peer, whose
 * content does not matter.
 */
static void conn_probe(struct rail *rail, struct conn *conn)
{
	struct rail_run *run;
	uint8_t region = 0;

	while (region < RAILS_MAX && !conn->handle->region[REGION_HEADS_0 + region].length)
		region++;
	if (region == RAILS_MAX || !rail->runs_free) {
		/* the probe cannot be sent now; the control plane connects again later */
		conn_break(rail, conn, 0);
		return;
	}
	run = run_new(rail);
	run->header = (struct run){.kind = OP_PAGE, .pages = 1, .region = region};
	run->line[0].half[1] = (struct run_entry){.unit = 0};
	run->bytes = 0;
	run->alone = true;
	run->arrived = 1;
	run->next = 1;
	run->channel = CHANNEL_NONE;
	run_enter_conn(rail, conn, run);
	shm_store(&rail->in_flight, rail->in_flight + 1);
	run_set_live(rail, run, rail_now(rail) + RUN_STOP_NS);
	run_queue_heads(rail, conn, run);
}

void conn_probed(struct rail *rail, struct conn *conn, enum op_status status)
{
	if (conn->state != CONN_PROBING || status == OP_NIC_ERROR)
		/* the connection is broken already, or rail_reap_one() breaks it next with the
		 * syndrome of that CQE */
		return;
	if (status != OP_HIT) { /* which a stale page has, too */
		conn_break(rail, conn, 0);
		return;
	}
	conn->state = CONN_OPEN;
	conn_event_send(rail, RAIL_CONN_PROVEN, conn->handle, 0, conn->handle);
}

/*
 * ---- runs that wait for a connection -------------------------------------------------------
 */

/*
 * Called when RAIL_CONN_WANTED for incarnation `ref` was answered. If runs still wait (for
 * another incarnation of the same peer), a connection for the first of them is requested.
 */
static void peer_want_next(struct rail *rail, struct peer_slot *slot, uint32_t ref)
{
	if (!slot->wanted || slot->wanted_ref != ref)
		return;
	slot->wanted = false;
	if (list_linked(&slot->parked)) {
		const struct run *run =
			&container_of(slot->parked.next, struct rail_run, pending)->header;

		peer_want(rail, slot, run->peer, run->peer_ref);
	}
}

/*
 * Called before QPs are added to the table. If one of them has the number of a destroyed QP that is
 * not retired yet, the CQEs of the old QP are in the CQ by now and are consumed before the number
 * means the new QP.
 */
static void qp_numbers_settle(struct rail *rail, const struct rail_conn *handle)
{
	for (unsigned i = 0; i < handle->qps; i++)
		if (conn_qp_find(rail, handle->sq[i]->qpn)) {
			rail_reap_all(rail);
			return;
		}
}

void conn_add(struct rail *rail, struct rail_conn *handle)
{
	struct peer_slot *slot = peer_slot_of(rail, handle->peer);
	struct conn *conn;

	if (!rail->conns_free || rail->stopping || rail->lost) {
		conn_event_send(rail, RAIL_CONN_RETURNED, handle, 0, handle);
		peer_refuse(rail, handle->peer, handle->ref);
		return;
	}
	qp_numbers_settle(rail, handle);
	conn = &rail->conn[rail->conn_stack[--rail->conns_free]];
	conn_init(rail, conn, handle);
	slot->conn = conn;
	if (conn->state == CONN_PROBING)
		conn_probe(rail, conn);
	for (struct list *at = slot->parked.next, *next; at != &slot->parked; at = next) {
		struct rail_run *run = container_of(at, struct rail_run, pending);

		next = at->next;
		if (run->header.peer_ref != handle->ref)
			continue;
		list_remove(&run->pending);
		rail->parked -= run->header.pages;
		run_route(rail, run);
	}
	peer_want_next(rail, slot, handle->ref);
}

void peer_refuse(struct rail *rail, uint16_t peer, uint32_t ref)
{
	struct peer_slot *slot = peer_slot_of(rail, peer);

	for (struct list *at = slot->parked.next, *next; at != &slot->parked; at = next) {
		struct rail_run *run = container_of(at, struct rail_run, pending);

		next = at->next;
		if (run->header.peer_ref == ref)
			run_end(rail, run, OP_PEER_DOWN);
	}
	peer_want_next(rail, slot, ref);
}

/*
 * ---- QPs that are destroyed, and a NIC that is lost, and found again ---------------------------
 */

/* Finds the connection of `object`. NULL: the rail has none (any more). */
static struct conn *conn_of(struct rail *rail, const struct rail_conn *object)
{
	for (struct list *at = rail->conns.next; at != &rail->conns; at = at->next) {
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

void rail_without_nic(struct rail *rail)
{
	rail->lost = true;
	rail->cq = (struct dv_cq){.buf = cqe_of_nobody,
		.record = record_of_nobody,
		.cqe_cnt = 1,
		.cqe_size = sizeof(cqe_of_nobody)};
}

void rail_lose(struct rail *rail)
{
	struct rail_event event = {.kind = RAIL_QUIET};

	rail_without_nic(rail);
	for (struct list *at = rail->conns.next; at != &rail->conns; at = at->next)
		conn_break(rail, container_of(at, struct conn, conns), 0);
	rail_event_send(rail, &event);
}

void rail_find(struct rail *rail)
{
	assert(rail->lost && !list_linked(&rail->conns));
	rail->lost = false;
	rail->cq = rail->cq_made;
	rail->heads_lkey = rail->heads_lkey_made;
}

/*
 * ---- stalls ------------------------------------------------------------------------------------
 */

/*
 * The earliest deadline of the connection's runs, CLOCK_MONOTONIC; 0 if one of them is
 * past its deadline already.
 */
static uint64_t conn_deadline_ns(struct rail *rail, const struct conn *conn)
{
	uint64_t ns = UINT64_MAX;

	for (struct rail_run *run = run_live_from(rail, 0); run;
		run = run_live_from(rail, run->number + 1u)) {
		uint64_t over_ns = run->expired ? 0 : run->deadline_ns;

		if (run->conn == conn && over_ns < ns)
			ns = over_ns;
	}
	return ns;
}

/* Sends RAIL_CONN_STUCK, once, for an ended connection whose WQEs have not all retired in time. */
static void conn_drain_watch(struct rail *rail, struct conn *conn, uint64_t now_ns)
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

void conn_unstall(struct rail *rail, struct conn *conn, uint32_t syndrome)
{
	conn->stalled = false;
	if (!syndrome)
		shm_store(&conn->handle->stalled, 0);
	rail->posted_bytes += conn->bytes;
	rail->taken_bytes += conn->taken_bytes;
	rail->parked -= conn->run_pages;
}

/* Updates whether a connection is stalled. `passed_ns`: the time since the last call. */
static void conn_watch(struct rail *rail, struct conn *conn, uint64_t passed_ns)
{
	uint64_t stall_ns = conn->handle->stall_ns;

	if (conn->moved != conn->moved_seen || !conn->wqes || !conn->begun) {
		conn->moved_seen = conn->moved;
		conn->begun = conn->wqes != 0;
		conn->still_ns = 0;
		return;
	}
	conn->still_ns += passed_ns;
	if (conn->still_ns <= CONN_STALL_NS && conn->still_ns < stall_ns)
		return;
	if (!conn->stalled && conn->still_ns > CONN_STALL_NS) {
		conn->stalled = true;
		if (!shm_load(&conn->handle->stalled)) { /* else an error came between */
			shm_store(&rail->stalls, rail->stalls + 1 ? rail->stalls + 1 : 1);
			shm_store(&conn->handle->stalled, rail->stalls);
		}
		rail->posted_bytes -= conn->bytes;
		rail->taken_bytes -= conn->taken_bytes;
		rail->parked += conn->run_pages;
	}
	if ((conn->stalled && conn->expired) || (stall_ns && conn->still_ns >= stall_ns))
		conn_break(rail, conn, 0);
}

void conns_watch(struct rail *rail, uint64_t now_ns)
{
	uint64_t passed_ns = now_ns - rail->watched_ns;

	if (passed_ns > 2 * CONN_WATCH_NS)
		/* the poll core did not run for a while, so a missing CQE of that time proves
		 * nothing */
		passed_ns = 2 * CONN_WATCH_NS;
	rail->watched_ns = now_ns;
	for (struct list *at = rail->conns.next; at != &rail->conns; at = at->next) {
		struct conn *conn = container_of(at, struct conn, conns);

		conn_watch(rail, conn, passed_ns);
		conn_drain_watch(rail, conn, now_ns);
	}
}
