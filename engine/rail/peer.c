/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections (struct lane): add, break, drop and return them, detect stalls, and keep the requests
 * whose peer has no connection. Poll core only. In fault-free operation only peer_route() and
 * lane_qp_find() run per op.
 */
#include "engine/rail/core.h"

/*
 * ---- hash table: QP number -> QP --------------------------------------------------------------
 */

/* The entry of the hash table at which the search for a QP number begins. */
static uint32_t table_home(uint32_t qpn)
{
	return qpn * 0x9e3779b1u >> 8 & (LANE_TABLE_SLOTS - 1);
}

static uint32_t table_after(uint32_t at)
{
	return (at + 1) & (LANE_TABLE_SLOTS - 1);
}

struct lane_qp *lane_qp_find(struct rail *rail, uint32_t qpn)
{
	for (uint32_t at = table_home(qpn); rail->table[at].used; at = table_after(at)) {
		uint16_t qp = rail->table[at].qp;

		if (rail->table[at].qpn == qpn)
			return &rail->lane[qp / QPS_PER_PEER_MAX].qp[qp % QPS_PER_PEER_MAX];
	}
	return NULL;
}

/*
 * Adds a QP. An entry with the same number is overwritten: its QP was destroyed and the NIC has
 * given the number to the new one.
 */
static void table_add(struct rail *rail, uint32_t qpn, uint16_t qp)
{
	uint32_t at = table_home(qpn);

	while (rail->table[at].used && rail->table[at].qpn != qpn)
		at = table_after(at);
	rail->table[at].qpn = qpn;
	rail->table[at].qp = qp;
	rail->table[at].used = 1;
}

/*
 * Removes a QP and closes the gap, so that every later entry is still found from its home entry
 * (Knuth, TAOCP 6.4, algorithm R). Does nothing if the number belongs to another QP already.
 */
static void table_remove(struct rail *rail, uint32_t qpn, uint16_t qp)
{
	uint32_t gap = table_home(qpn);
	uint32_t at;

	while (rail->table[gap].qpn != qpn || !rail->table[gap].used) {
		if (!rail->table[gap].used)
			return;
		gap = table_after(gap);
	}
	if (rail->table[gap].qp != qp)
		return;
	for (at = table_after(gap); rail->table[at].used; at = table_after(at)) {
		uint32_t home = table_home(rail->table[at].qpn);
		uint32_t mask = LANE_TABLE_SLOTS - 1;

		if (((at - home) & mask) < ((at - gap) & mask))
			continue;
		rail->table[gap] = rail->table[at];
		gap = at;
	}
	rail->table[gap].used = 0;
}

/*
 * ---- connections ------------------------------------------------------------------------------
 */

static void say_lane(struct rail *rail, uint32_t kind, const struct rail_peer *peer,
	uint32_t detail, void *object)
{
	struct rail_event event = {.kind = kind,
		.peer = peer->peer,
		.ref = peer->ref,
		.detail = detail,
		.object = object};

	rail_say(rail, &event);
}

void peer_want(struct rail *rail, struct peer_slot *slot, uint16_t peer, uint32_t ref)
{
	struct rail_event event = {.kind = RAIL_PEER_WANTED, .peer = peer, .ref = ref};

	if (slot->wanted)
		return;
	slot->wanted = true;
	slot->wanted_ref = ref;
	rail_say(rail, &event);
}

/*
 * Fails the requests of a list: one without outstanding WQEs ends now, the others end when their
 * last WQE retires.
 */
static void lane_fail_list(struct rail *rail, struct link *list)
{
	while (link_linked(list)) {
		struct request *request = container_of(list->next, struct request, pending);

		link_remove(&request->pending);
		if (request->status == OP_HIT)
			request->status = OP_PEER_DOWN;
		if (!request->outstanding)
			request_end(rail, request, request->status);
	}
}

static void lane_fail_pending(struct rail *rail, struct lane *lane)
{
	lane_fail_list(rail, &lane->heads);
	lane_fail_list(rail, &lane->pending);
	while (link_linked(&lane->runs))
		run_fail(rail, container_of(lane->runs.next, struct rail_run, pending),
			OP_PEER_DOWN);
	while (link_linked(&lane->run_heads))
		run_fail(rail, container_of(lane->run_heads.next, struct rail_run, heads),
			OP_PEER_DOWN);
	link_remove(&lane->waiting);
}

void lane_break(struct rail *rail, struct lane *lane, uint32_t syndrome)
{
	if (lane->state != LANE_OPEN && lane->state != LANE_PROBING)
		return;
	lane->state = LANE_BROKEN;
	lane->ended_ns = rail_now(rail);
	rail_count(rail, COUNTER_qps_broken, lane->peer->qps);
	PROBE_RAIL_DOWN(rail->options.index, lane->number, syndrome);
	say_lane(rail, RAIL_PEER_BROKEN, lane->peer, syndrome, lane->peer);
	lane_fail_pending(rail, lane);
}

void lane_return_if_drained(struct rail *rail, struct lane *lane)
{
	struct rail_peer *peer = lane->peer;

	if (lane->state != LANE_DROPPED || lane->wqes)
		return;
	if (rail->peer[lane->number].lane == lane)
		rail->peer[lane->number].lane = NULL;
	for (unsigned i = 0; i < peer->qps; i++)
		table_remove(rail, lane->qp[i].sq->qpn,
			(uint16_t)((lane - rail->lane) * QPS_PER_PEER_MAX + i));
	link_remove(&lane->lanes);
	rail->lane_stack[rail->lanes_free++] = (uint16_t)(lane - rail->lane);
	peer->lane = NULL;
	say_lane(rail, RAIL_PEER_RETURNED, peer, 0, peer);
}

static bool lane_is(const struct lane *lane, uint16_t peer, uint32_t ref)
{
	return lane->number == peer && lane->peer->ref == ref && lane->state != LANE_DROPPED;
}

/*
 * Several connections to the same incarnation can exist. Without `object` the command means the
 * broken one, or, if none is broken, the oldest.
 */
static struct lane *lane_to_drop(
	struct rail *rail, uint16_t peer, uint32_t ref, const struct rail_peer *object)
{
	struct lane *found = NULL;

	for (struct link *at = rail->lanes.next; at != &rail->lanes; at = at->next) {
		struct lane *lane = container_of(at, struct lane, lanes);

		if (object && lane->peer == object)
			return lane;
		if (!object && lane_is(lane, peer, ref) &&
			(!found || (found->state != LANE_BROKEN && lane->state == LANE_BROKEN)))
			found = lane;
	}
	return found;
}

void lane_drop(struct rail *rail, uint16_t peer, uint32_t ref, const struct rail_peer *object)
{
	struct lane *lane = lane_to_drop(rail, peer, ref, object);

	if (!lane || lane->state == LANE_DROPPED)
		return;
	lane->state = LANE_DROPPED;
	if (!lane->ended_ns)
		lane->ended_ns = rail_now(rail);
	lane_fail_pending(rail, lane);
	lane_return_if_drained(rail, lane);
}

static void lane_init(struct rail *rail, struct lane *lane, struct rail_peer *peer)
{
	uint16_t first = (uint16_t)((lane - rail->lane) * QPS_PER_PEER_MAX);

	lane->peer = peer;
	lane->number = peer->peer;
	lane->state = peer->probe ? LANE_PROBING : LANE_OPEN;
	lane->stalled = lane->overdue = lane->stuck = false;
	shm_store(&peer->stalled, 0);
	lane->ended_ns = 0;
	lane->wqes = lane->bytes = lane->requests = lane->expired = 0;
	lane->taken_bytes = 0;
	lane->bulk = lane->small = NULL;
	lane->runs_live = lane->run_pages = 0;
	lane->runs_first = false;
	lane->moved = lane->moved_seen = 0;
	lane->still_ns = 0;
	lane->begun = false;
	lane->limbo_ns = rail->options.lease ? peer->limbo_ns : 0;
	if (TEST_HOOK(rail->options.skip_head_check))
		lane->limbo_ns = 0;
	link_init(&lane->waiting);
	link_init(&lane->pending);
	link_init(&lane->heads);
	link_init(&lane->runs);
	link_init(&lane->run_heads);
	link_append(&rail->lanes, &lane->lanes);
	for (unsigned i = 0; i < peer->qps; i++) {
		struct lane_qp *qp = &lane->qp[i];

		qp->sq = peer->sq[i];
		qp->blocks_max = (uint8_t)(qp->sq->wqe_cnt < QP_DEPTH ? qp->sq->wqe_cnt : QP_DEPTH);
		qp->lane = lane;
		qp->bulk_bytes = qp->silent_bytes = qp->silent = 0;
		qp->unrung = false;
		memset(qp->wqe, 0, sizeof(qp->wqe));
		table_add(rail, qp->sq->qpn, (uint16_t)(first + i));
	}
	peer->lane = lane;
}

/*
 * ---- probing a connection that failed before --------------------------------------------------
 */

/*
 * Queues the probe, a request of the rail itself: a READ of the first page head of the peer, whose
 * content does not matter.
 */
static void lane_probe(struct rail *rail, struct lane *lane)
{
	struct request *request;
	uint8_t region = 0;

	while (region < RAILS_MAX && !lane->peer->region[REGION_HEADS_0 + region].length)
		region++;
	if (region == RAILS_MAX || !rail->requests_free) {
		/* the probe cannot be sent now; the control plane connects again later */
		lane_break(rail, lane, 0);
		return;
	}
	request = request_new(rail);
	request->op = (struct op){.kind = OP_READ, .region = region};
	request->stage = REQUEST_HEAD;
	request->channel = CHANNEL_NONE;
	request->deadline_ns = rail_now(rail) + REQUEST_STOP_NS;
	if (request->deadline_ns < rail->nearest_ns)
		rail->nearest_ns = request->deadline_ns;
	request->lane = lane;
	lane->requests++;
	shm_store(&rail->in_flight, rail->in_flight + 1);
	rail->live[request->number] = true;
	lane_queue(rail, lane, request);
}

void lane_probed(struct rail *rail, struct lane *lane, enum op_status status)
{
	if (lane->state != LANE_PROBING || status == OP_NIC_ERROR)
		/* the connection is broken already, or reap.c breaks it next with the syndrome
		 * of that CQE */
		return;
	if (status != OP_HIT && status != OP_STALE) {
		lane_break(rail, lane, 0);
		return;
	}
	lane->state = LANE_OPEN;
	say_lane(rail, RAIL_PEER_PROVEN, lane->peer, 0, lane->peer);
}

/*
 * ---- requests that wait for a connection ------------------------------------------------------
 */

/*
 * Called when RAIL_PEER_WANTED for incarnation `ref` was answered. If requests still wait (for
 * another incarnation of the same peer), a connection for the first of them is requested.
 */
static void want_next(struct rail *rail, struct peer_slot *slot, uint32_t ref)
{
	if (!slot->wanted || slot->wanted_ref != ref)
		return;
	slot->wanted = false;
	if (link_linked(&slot->parked)) {
		const struct op *op = &container_of(slot->parked.next, struct request, pending)->op;

		peer_want(rail, slot, op->peer, op->peer_ref);
	} else if (link_linked(&slot->parked_runs)) {
		const struct run *run =
			&container_of(slot->parked_runs.next, struct rail_run, pending)->header;

		peer_want(rail, slot, run->peer, run->peer_ref);
	}
}

/*
 * Called before QPs are added to the table. If one of them has the number of a destroyed QP that is
 * not retired yet, the CQEs of the old QP are in the CQ by now and are consumed before the number
 * means the new QP.
 */
static void numbers_settle(struct rail *rail, const struct rail_peer *peer)
{
	for (unsigned i = 0; i < peer->qps; i++)
		if (lane_qp_find(rail, peer->sq[i]->qpn)) {
			rail_reap_all(rail);
			return;
		}
}

void lane_add(struct rail *rail, struct rail_peer *peer)
{
	struct peer_slot *slot = peer_slot_of(rail, peer->peer);
	struct lane *lane;

	if (!rail->lanes_free || rail->stopping || rail->lost) {
		say_lane(rail, RAIL_PEER_RETURNED, peer, 0, peer);
		peer_refuse(rail, peer->peer, peer->ref);
		return;
	}
	numbers_settle(rail, peer);
	lane = &rail->lane[rail->lane_stack[--rail->lanes_free]];
	lane_init(rail, lane, peer);
	slot->lane = lane;
	if (lane->state == LANE_PROBING)
		lane_probe(rail, lane);
	for (struct link *at = slot->parked.next, *next; at != &slot->parked; at = next) {
		struct request *request = container_of(at, struct request, pending);

		next = at->next;
		if (request->op.peer_ref != peer->ref)
			continue;
		link_remove(&request->pending);
		rail->parked--;
		peer_route(rail, request);
	}
	for (struct link *at = slot->parked_runs.next, *next; at != &slot->parked_runs; at = next) {
		struct rail_run *run = container_of(at, struct rail_run, pending);

		next = at->next;
		if (run->header.peer_ref != peer->ref)
			continue;
		link_remove(&run->pending);
		rail->parked -= run->header.pages;
		run_route(rail, run);
	}
	want_next(rail, slot, peer->ref);
}

void peer_refuse(struct rail *rail, uint16_t peer, uint32_t ref)
{
	struct peer_slot *slot = peer_slot_of(rail, peer);

	for (struct link *at = slot->parked.next, *next; at != &slot->parked; at = next) {
		struct request *request = container_of(at, struct request, pending);

		next = at->next;
		if (request->op.peer_ref != ref)
			continue;
		request_end(rail, request, OP_PEER_DOWN);
	}
	for (struct link *at = slot->parked_runs.next, *next; at != &slot->parked_runs; at = next) {
		struct rail_run *run = container_of(at, struct rail_run, pending);

		next = at->next;
		if (run->header.peer_ref == ref)
			run_end(rail, run, OP_PEER_DOWN);
	}
	want_next(rail, slot, ref);
}

bool lane_has_place(const struct lane *lane, const struct op *op)
{
	const struct rail_remote *remote = &lane->peer->region[op->region];
	const struct rail_remote *heads =
		&lane->peer->region[REGION_HEADS_0 + op->region % RAILS_MAX];

	uint64_t start = op_start(op);

	if (op->offset > remote->length || start > remote->length ||
		op->length > remote->length - start)
		return false;
	return op->kind != OP_PAGE ||
	       op->offset / PAGE_UNIT < heads->length / sizeof(struct page_head);
}

void peer_route(struct rail *rail, struct request *request)
{
	struct peer_slot *slot = peer_slot_of(rail, request->op.peer);
	struct lane *lane = slot->lane;

	if (likely(lane && lane->peer->ref == request->op.peer_ref)) {
		if (unlikely(lane->state != LANE_OPEN ||
			     (lane->stalled &&
				     (rail->parked >= RAIL_PARKED_MAX || lane_full(rail, lane))))) {
			request_end(rail, request, OP_PEER_DOWN);
		} else if (unlikely(!lane_has_place(lane, &request->op))) {
			request_end(rail, request, OP_INVALID);
		} else {
			request->lane = lane;
			lane->requests++;
			lane->taken_bytes += request->op.length;
			if (unlikely(lane->stalled))
				rail->parked++;
			else
				rail->taken_bytes += request->op.length;
			lane_queue(rail, lane, request);
		}
		return;
	}
	if (rail->parked >= RAIL_PARKED_MAX) {
		request_end(rail, request, OP_PEER_DOWN);
		return;
	}
	rail->parked++;
	link_append(&slot->parked, &request->pending);
	peer_want(rail, slot, request->op.peer, request->op.peer_ref);
}

/*
 * ---- stalls -----------------------------------------------------------------------------------
 */

void lane_unstall(struct rail *rail, struct lane *lane)
{
	lane->stalled = false;
	shm_store(&lane->peer->stalled, 0);
	rail->posted_bytes += lane->bytes;
	rail->taken_bytes += lane->taken_bytes;
	rail->parked -= lane->requests + lane->run_pages;
}

/* Updates whether a connection is stalled. `passed_ns`: the time since the last call. */
static void lane_watch(struct rail *rail, struct lane *lane, uint64_t passed_ns)
{
	uint64_t stall_ns = lane->peer->stall_ns;

	if (lane->moved != lane->moved_seen || !lane->wqes || !lane->begun) {
		lane->moved_seen = lane->moved;
		lane->begun = lane->wqes != 0;
		lane->still_ns = 0;
		return;
	}
	lane->still_ns += passed_ns;
	if (lane->still_ns <= LANE_STALL_NS && lane->still_ns < stall_ns)
		return;
	if (!lane->stalled && lane->still_ns > LANE_STALL_NS) {
		lane->stalled = true;
		shm_store(&lane->peer->stalled, 1);
		rail->posted_bytes -= lane->bytes;
		rail->taken_bytes -= lane->taken_bytes;
		rail->parked += lane->requests + lane->run_pages;
	}
	if ((lane->stalled && lane->expired) || (stall_ns && lane->still_ns >= stall_ns))
		lane_break(rail, lane, 0);
}

void lanes_watch(struct rail *rail, uint64_t now_ns)
{
	uint64_t passed_ns = now_ns - rail->watched_ns;

	if (passed_ns > 2 * LANE_WATCH_NS)
		/* the poll core did not run for a while, so a missing CQE of that time proves
		 * nothing */
		passed_ns = 2 * LANE_WATCH_NS;
	rail->watched_ns = now_ns;
	for (struct link *at = rail->lanes.next; at != &rail->lanes; at = at->next) {
		struct lane *lane = container_of(at, struct lane, lanes);

		lane_watch(rail, lane, passed_ns);
		lane_drain_watch(rail, lane, now_ns);
	}
}
