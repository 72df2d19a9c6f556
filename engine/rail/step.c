/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of a rail, rail_step() at the end of this file, and its parts: post WQEs, ring
 * doorbells, reap CQEs, look at deadlines, publish the answers, send events. Poll core only; the
 * hot path. A rail never waits here: what does not fit the budgets
 * now is taken or posted in a later step.
 */
#include "engine/rail/wqe.h"

/* ---- events to the control plane ------------------------------------------------------------ */

/* Writes an event to the event ring to the control plane; false: the ring is full. */
static bool rail_event_write(struct rail *rail, const struct rail_event *event)
{
	struct ring_producer *out = &rail->inbox.event_out;

	if (ring_room(out, 1) < 1)
		return false;
	memcpy(ring_slot_new(out, 0), event, sizeof(*event));
	ring_publish(out, 1);
	return true;
}

/* Sends the events of rail->late, which found the event ring full. */
static void rail_events_write_late(struct rail *rail)
{
	while (rail->late_head != rail->late_tail &&
		rail_event_write(rail, &rail->late[rail->late_head & (RAIL_EVENTS_LATE - 1)])) {
		rail->late_head++;
		rail->events_sent = rail->news = true;
	}
}

void rail_event_send(struct rail *rail, const struct rail_event *event)
{
	rail->events_sent = rail->news = true;
	if (likely(rail->late_head == rail->late_tail) && rail_event_write(rail, event))
		return;
	/* Cannot overflow: RAIL_EVENTS_LATE in core.h counts the unread events that each object
	 * can have. */
	assert(rail->late_tail - rail->late_head < RAIL_EVENTS_LATE);
	rail->late[rail->late_tail++ & (RAIL_EVENTS_LATE - 1)] = *event;
}

/* ---- posting: runs -> WQEs ------------------------------------------------------------------ */

/*
 * Posts up to `burst` WQEs of the connection, page heads before payload, as far as there is room.
 * Returns how many.
 */
static unsigned conn_post(struct rail *rail, struct conn *conn, unsigned burst)
{
	unsigned n = 0;

	if (list_linked(&conn->run_heads))
		n += runs_post_heads(rail, conn, burst);
	n += runs_post(rail, conn, burst - n);
	list_remove(&conn->waiting);
	/* What is left waits behind the other connections, so that the next step begins with
	 * those. */
	if (list_linked(&conn->runs) || list_linked(&conn->run_heads))
		list_append(&rail->waiting, &conn->waiting);
	return n;
}

/* Posts WQEs of the connections that wait. Returns the number of WQEs. */
static unsigned rail_post(struct rail *rail)
{
	struct list *last = rail->waiting.previous;
	/* The CQ needs room for every posted WQE: one that requests no CQE produces one, too, if
	 * its QP fails. */
	uint32_t room = rail->cq.cqe_cnt - rail->wqes;
	unsigned n = 0, burst = room < RAIL_POST_BURST ? room : RAIL_POST_BURST;

	while (list_linked(&rail->waiting) && n < burst) {
		struct list *first = rail->waiting.next;

		n += conn_post(rail, container_of(first, struct conn, waiting), burst - n);
		if (first == last)
			break;
	}
	if (n)
		rail_count(rail, COUNTER_wqes_posted, n);
	return n;
}

/* ---- doorbells, and the latency of READs ---------------------------------------------------- */

/*
 * Samples READ latency: one WQE is timed from its doorbell until it retires. The sample is the last
 * WQE of the first queue pair that a step rings; which one that is does not depend on how long it
 * will take. The next sample begins at the first doorbell after a step without work, or after
 * RAIL_SAMPLE_STEPS busy steps with doorbells. Most steps cost one comparison.
 */
static void rail_sample_start(struct rail *rail)
{
	if (rail->sample_wait) {
		rail->sample_wait--;
		return;
	}
	rail->sample_wait = RAIL_SAMPLE_STEPS;
	rail->timed = rail->unrung;
	rail->timed_end = rail->unrung->sq->pi;
	rail->timed_ns = rail_now(rail);
}

void rail_sample_end(struct rail *rail, bool failed)
{
	uint64_t ns = rail_now(rail) - rail->timed_ns;

	rail->timed = NULL;
	if (failed)
		return;
	shm_count(&rail->latency[latency_bucket(ns)], 1);
	shm_count(&rail->latency_ns_sum, ns);
}

/* Rings the doorbell of every QP of the rail with WQEs posted since its last doorbell. */
static void rail_ring(struct rail *rail)
{
	unsigned n = 0;

	if (rail->unrung && !rail->timed)
		rail_sample_start(rail);
	while (rail->unrung) {
		struct conn_qp *qp = rail->unrung;

		rail->unrung = qp->rung_next;
		qp->unrung = false;
		/* Request a CQE from the QP's last WQE: no later WQE may follow that would
		 * request one. */
		if (qp->silent)
			dv_signal_last(qp->sq);
		qp->silent = qp->silent_bytes = 0;
		dv_ring(qp->sq);
		n++;
	}
	if (n)
		rail_count(rail, COUNTER_doorbells, n);
}

/*
 * ---- reaping: CQEs -> runs --------------------------------------------------------------------
 *
 * A CQE retires its WQE and every earlier one of the same QP.
 */

static inline const struct wqe *wqe_at(const struct conn_qp *qp, uint32_t index)
{
	return &qp->wqe[index & (QP_DEPTH - 1)];
}

/*
 * completion_possible() for a CQE that names no WQE with a record of its own: is it one of a
 * series? Only the last WQE of a series requests a CQE. A READ or pair that failed gets its own
 * record, and those before it and behind it as well: they have other results. Six parameters, in
 * registers: hot path.
 */
static bool series_possible(struct rail *rail, struct conn_qp *qp, uint32_t named, bool failed,
	uint32_t *ret_index, uint32_t *ret_end)
{
	uint32_t at = qp->sq->ci, one, before;

	while (named - at >= wqe_at(qp, at)->blocks)
		at += wqe_at(qp, at)->blocks;
	if (!wqe_is_series(wqe_at(qp, at)))
		return false;
	*ret_index = at;
	*ret_end = at + wqe_at(qp, at)->blocks;
	if (likely(!failed))
		return named + 1 == *ret_end;
	one = wqe_is_pairs(wqe_at(qp, at)) ? 2 : 1;
	before = (named - at) / one * one;
	if (before)
		series_split(rail, qp, at, before);
	at += before;
	if (wqe_at(qp, at)->blocks > one)
		series_split(rail, qp, at, one);
	*ret_index = at;
	/* If the first WQE of a pair, which requests no CQE, failed, the pair retires with the
	 * CQE of the second one, which is flushed. */
	*ret_end = one == 2 && named == at ? at : at + one;
	return true;
}

/*
 * Finds the record of the WQE that a CQE names. *ret_end: index behind the WQEs that it retires.
 * False: the CQE names no WQE that was posted and announced by a doorbell, or one that requested
 * none, which is an error of the device.
 */
static inline bool completion_possible(struct rail *rail, struct conn_qp *qp,
	const struct dv_completion *completion, uint32_t *ret_index, uint32_t *ret_end)
{
	const struct dv_sq *sq = qp->sq;
	uint32_t distance = (uint16_t)(completion->wqe_counter - (uint16_t)sq->ci);
	uint32_t index = sq->ci + distance;
	const struct wqe *wqe = wqe_at(qp, index);

	if (distance >= sq->rung - sq->ci)
		return false;
	if (!wqe->blocks || wqe_is_series(wqe))
		return series_possible(rail, qp, index, completion->syndrome, ret_index, ret_end);
	*ret_index = index;
	*ret_end = index + wqe->blocks;
	return true;
}

void conn_retire_posted(struct rail *rail, struct conn *conn)
{
	for (unsigned i = 0; i < conn->handle->qps; i++) {
		struct conn_qp *qp = &conn->qp[i];

		wqes_retire(rail, qp, qp->sq->last, qp->sq->pi, DV_SYNDROME_FLUSHED,
			DV_SYNDROME_FLUSHED);
	}
}

static inline void rail_reap_one(struct rail *rail, const struct dv_completion *completion)
{
	struct conn_qp *qp = conn_qp_find(rail, completion->qpn);
	struct conn *conn;
	uint32_t index, end;

	if (likely(qp) && likely(series_reap(rail, qp, completion)))
		return;
	if (unlikely(completion->syndrome))
		rail_count(rail, COUNTER_cqes_error, 1);
	if (unlikely(!qp || !completion_possible(rail, qp, completion, &index, &end))) {
		if (!completion->syndrome)
			rail_count(rail, COUNTER_cqes_error, 1);
		else if (qp) /* an error CQE: its QP has failed, even if its WQE index is wrong */
			conn_break(rail, qp->conn, completion->syndrome);
		return;
	}
	conn = qp->conn;
	/* A QP completes in order, so the WQEs before a failed one have succeeded. Those before
	 * a flushed one may have been flushed as well, because some devices report only the last
	 * flushed WQE. Failed ones go to run_retire_failed() or lone_retire(). */
	wqes_retire(rail, qp, index, end,
		completion->syndrome == DV_SYNDROME_FLUSHED ? DV_SYNDROME_FLUSHED : 0,
		completion->syndrome);
	if (unlikely(end == index)) /* a pair */
		run_quit(&rail->run[wqe_at(qp, index)->run], syndrome_status(completion->syndrome));
	if (unlikely(completion->syndrome))
		conn_break(rail, conn, completion->syndrome);
	if (unlikely(conn->state == CONN_DROPPED))
		conn_return_if_drained(rail, conn);
}

/* Consumes up to RAIL_REAP_BURST CQEs. Returns their number. */
static unsigned rail_reap(struct rail *rail)
{
	struct dv_completion completion[RAIL_REAP_BURST];
	unsigned n = dv_poll(&rail->cq, completion, RAIL_REAP_BURST);

	rail->t1_ns = 0; /* a time that was read before these CQEs proves nothing */
	for (unsigned i = 0; i < n; i++)
		rail_reap_one(rail, &completion[i]);
	if (n)
		rail_count(rail, COUNTER_cqes_reaped, n);
	return n;
}

void rail_reap_all(struct rail *rail)
{
	for (unsigned i = 0; i <= CQ_DEPTH / RAIL_REAP_BURST && rail_reap(rail); i++)
		;
}

/*
 * ---- deadlines ---------------------------------------------------------------------------------
 *
 * A run with no WQE at the NIC is answered at once. One with posted WQEs is answered
 * when they retire, because the NIC may still write its buffers: a connection that makes
 * progress gets RUN_GRACE_NS for that, one that does not is broken, so that the control plane
 * moves its QPs to the error state. An op with too short a deadline therefore does not fail other
 * ops.
 */

/*
 * Ends or cancels one run past its deadline; pages that were validated stay hits. Returns false if
 * the run was answered and freed.
 */
static bool run_expire(struct rail *rail, struct rail_run *run, uint64_t now)
{
	bool over = run->expired;

	if (!run->outstanding) { /* the run is parked, or none of its WQEs is posted */
		run_end(rail, run, OP_TIMEOUT);
		return false;
	}
	if (!over)
		run->conn->expired++;
	run->expired = true;
	run->deadline_ns = now + RUN_GRACE_NS;
	run_quit(run, OP_TIMEOUT); /* the rest of its payload is never posted */
	if (over)
		run->conn->overdue = true;
	return true;
}

/*
 * conn_break() ends runs, so it is called after the loop over the live runs, not within it.
 */
static void conns_break_overdue(struct rail *rail)
{
	for (struct list *at = rail->conns.next; at != &rail->conns; at = at->next) {
		struct conn *conn = container_of(at, struct conn, conns);

		if (!conn->overdue)
			continue;
		conn->overdue = false;
		conn_break(rail, conn, 0);
	}
}

static unsigned rail_expire_all(struct rail *rail, uint64_t now)
{
	uint64_t nearest = UINT64_MAX;
	unsigned n = 0;

	for (struct rail_run *run = run_live_from(rail, 0); run;
		run = run_live_from(rail, run->number + 1u)) {
		if (run->deadline_ns <= now) {
			n++;
			if (!run_expire(rail, run, now))
				continue;
		}
		if (run->deadline_ns < nearest)
			nearest = run->deadline_ns;
	}
	rail->nearest_ns = nearest;
	return n;
}

/*
 * Ends runs past their deadlines, and calls conns_watch() when that is due. Returns how many runs
 * were past their deadlines.
 */
static unsigned rail_expire(struct rail *rail)
{
	uint64_t now = rail_now(rail);
	unsigned n = 0;

	if (now >= rail->nearest_ns) {
		n = rail_expire_all(rail, now);
		conns_break_overdue(rail);
		rail->watch_ns = 0;
	}
	if (now >= rail->watch_ns) {
		conns_watch(rail, now);
		rail->watch_ns = now + CONN_WATCH_NS;
	}
	return n;
}

/* ---- the step ------------------------------------------------------------------------------- */

/* Publishes the completions that this step wrote to the clients' done rings. */
static void rail_answer(struct rail *rail)
{
	if (!rail->fresh_count)
		return;
	rail->news = true;
	do {
		uint32_t id = rail->fresh[--rail->fresh_count];
		struct channel_slot *slot = &rail->channel[id];

		/* channel_answer() has written the turns */
		ring_publish_turned(&slot->channel->done, DONE_RING_SLOTS, sizeof(struct run_done),
			slot->fresh);
		slot->fresh = 0;
		rail->wake[id / 64] |= 1ull << id % 64;
	} while (rail->fresh_count);
}

/*
 * True if the deadlines are due for a check: in every idle step with runs in flight, and in
 * every RAIL_CLOCK_STEPS-th busy one.
 */
static bool rail_clock_due(struct rail *rail, unsigned work)
{
	return rail->in_flight && (!work || ++rail->steps % RAIL_CLOCK_STEPS == 0);
}

static void rail_count_idle(struct rail *rail, unsigned work)
{
	rail->steps_idle += !work;
	if (!work)
		rail->sample_wait = 0;
	if (rail->steps_idle && (work || rail->steps_idle >= RAIL_IDLE_STEPS)) {
		rail_count(rail, COUNTER_steps_idle, rail->steps_idle);
		rail->steps_idle = 0;
	}
}

/*
 * poll_turn() of poll_core.c calls it for each rail of the thread in turn. Then poll_wake() wakes
 * the clients that rail_answer() has marked, and the control plane for events.
 */
unsigned rail_step(struct rail *rail, uint64_t now_ns)
{
	unsigned work = 0;

	rail->now_ns = now_ns;
	rail->t0_ns = 0;
	work += rail_reap(rail); /* CQEs -> client completions */
	if (unlikely(ring_ready(&rail->inbox.command_in) > 0))
		work += rail_execute_commands(rail); /* commands of the control plane */
	work += rail_take(rail);                     /* client ops -> runs                 */
	work += rail_post(rail);                     /* runs       -> WQEs                 */
	rail_ring(rail);                             /* one doorbell per touched QP        */
	if (rail_clock_due(rail, work))
		work += rail_expire(rail); /* runs past their deadlines */
	rail_answer(rail);                 /* publish the completions */
	if (unlikely(rail->late_head != rail->late_tail))
		rail_events_write_late(rail);
	if (unlikely(rail->stopping))
		rail_finish(rail);
	rail_count_idle(rail, work);
	return work;
}
