/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executes the WQEs of one QP in order: limits, key checks, moving the bytes, retries. A fence adds
 * nothing to that. Runs in a step, under nic->lock.
 */
#include "config/clock.h"
#include "dv/soft/check.h"

/* back-off before a request is sent again to a TCP peer that was not ready, ns */
#define TCP_RETRY_NS 2000000u

static bool is_read(const struct soft_op *op)
{
	return op->opcode == MLX5_OPCODE_RDMA_READ;
}

/*
 * The WQE's payload is in place: the WQE completes in order, or later if a fault delays
 * completions.
 */
void soft_op_done(struct dv_qp *qp, struct soft_op *op)
{
	struct dv_device *nic = qp->nic;

	op->state = OP_DONE;
	op->step = nic->steps;
	op->ready_step = nic->steps;
	qp->proven = true;
	if (likely(!nic->faulty))
		return;
	if (nic->fault.delay_steps_max)
		op->ready_step += soft_random(nic) % (nic->fault.delay_steps_max + 1);
	if (is_read(op) && !op->redone)
		op->again = soft_fault_percent(nic, nic->fault.retransmit_percent);
	if (op->again && nic->fault.retransmit_ns)
		op->retry_ns = clock_monotonic_ns() + nic->fault.retransmit_ns;
	qp->redo |= op->again;
}

/* ---- moving bytes ---------------------------------------------------------------------------- */

/*
 * Moves message bytes [from, from + count) between remote memory (`remote` is byte 0) and the WQE's
 * segments.
 */
static void scatter(
	struct dv_qp *qp, const struct soft_op *op, uint8_t *remote, uint64_t from, uint64_t count)
{
	uint64_t start = 0; /* offset in the message of the bytes of segment `i` */

	for (unsigned i = 0; i < op->sges && count; start += op->sge[i++].bytes) {
		uint64_t skip = from - start, n;
		uint8_t *local;

		if (skip >= op->sge[i].bytes)
			continue;
		n = op->sge[i].bytes - skip < count ? op->sge[i].bytes - skip : count;
		local = soft_mr_local(qp->nic, &op->sge[i], is_read(op)) + skip;
		if (is_read(op))
			soft_copy(local, remote + from, n);
		else
			soft_copy(remote + from, local, n);
		from += n;
		count -= n;
	}
}

/*
 * Moves a WQE's bytes like scatter(), or in one copy if it is a whole READ whose one segment is
 * at `local`. Six parameters: it is inlined, so that they stay in registers.
 */
static inline void bring(struct dv_qp *qp, const struct soft_op *op, uint8_t *remote, uint64_t from,
	uint64_t count, uint8_t *local)
{
	if (!soft_moves(qp->nic, op))
		return;
	if (local && count == op->total && is_read(op))
		soft_copy(local, remote, count);
	else
		scatter(qp, op, remote, from, count);
}

/* Moves bytes of a WQE whose remote QP is in this process. */
static enum soft_result move_near(
	struct dv_qp *qp, struct soft_op *op, uint64_t from, uint64_t count, uint8_t *local)
{
	struct soft_export_mr mr = {0};
	struct soft_ask ask;
	enum soft_result result;

	soft_ask_of(qp, op, &ask);
	soft_world_keep(qp->nic);
	if (qp->near_epoch != soft_world_epoch()) {
		qp->near = soft_world_find(qp->remote.gid);
		qp->near_epoch = soft_world_epoch();
	}
	if (!qp->near) {
		result = qp->near_seen ? SOFT_DEAD : SOFT_RETRY;
	} else {
		qp->near_seen = true;
		result = soft_mr_check(qp->near->table, &ask, &mr);
		if (result == SOFT_DONE && count)
			bring(qp, op, (uint8_t *)(uintptr_t)ask.address, from, count, local);
	}
	return result;
}

/*
 * Moves bytes of a WQE whose remote QP is in another process of this host; that memory is mapped
 * here.
 */
static inline enum soft_result move_shm(
	struct dv_qp *qp, struct soft_op *op, uint64_t from, uint64_t count, uint8_t *local)
{
	struct soft_export_mr mr;
	struct soft_ask ask;
	enum soft_result result;
	uint8_t *at = NULL;

	soft_ask_of(qp, op, &ask);
	result = soft_shm_resolve(qp, &ask, &mr, &at);
	if (result != SOFT_DONE || count == 0)
		return result;
	bring(qp, op, at, from, count, local);
	/* The peer deregistered the memory during the copy: the bytes may belong to another
	 * owner. */
	if (!dv_guard_held(&qp->peer->table->mrs[op->rkey >> 8].rkey, op->rkey))
		return SOFT_REFUSED;
	return SOFT_DONE;
}

/* Moves bytes of a WQE. `local`: address of the WQE's only data segment, or NULL. */
static inline enum soft_result move(
	struct dv_qp *qp, struct soft_op *op, uint64_t from, uint64_t count, uint8_t *local)
{
	if (unlikely(qp->nic->fault.link_down))
		return SOFT_RETRY;
	if (unlikely(qp->foreign))
		return qp->nic->hooks->move(qp, op, from, count);
	if (qp->nic->tcp)
		return soft_tcp_start(qp, op);
	return qp->peer ? move_shm(qp, op, from, count, local)
			: move_near(qp, op, from, count, local);
}

static bool local_keys_good(struct dv_qp *qp, const struct soft_op *op, uint8_t **ret_local)
{
	*ret_local = NULL;
	if (unlikely(qp->foreign))
		return qp->nic->hooks->keys_good(qp, op);
	if (likely(op->sges == 1)) {
		*ret_local = soft_mr_local(qp->nic, &op->sge[0], is_read(op));
		return *ret_local != NULL;
	}
	for (unsigned i = 0; i < op->sges; i++)
		if (!soft_mr_local(qp->nic, &op->sge[i], is_read(op)))
			return false;
	return true;
}

/* ---- order ----------------------------------------------------------------------------------- */

static void executed(struct dv_qp *qp, const struct soft_op *op)
{
	qp->executed++;
	qp->reads += is_read(op);
}

static void go_back(struct dv_qp *qp, uint32_t n)
{
	qp->executed = n;
	qp->reads = 0;
	for (n = qp->head; n != qp->executed; n++)
		qp->reads += is_read(soft_op(qp, n));
}

/* Do the QP's earlier WQEs allow this WQE to start? */
static bool may_start(struct dv_qp *qp, struct soft_op *op)
{
	if (op->state == OP_MOVING)
		return op->step != qp->nic->steps; /* a step moves at most one piece of a WQE */
	if (qp->executed == qp->head)
		return true;
	if (qp->nic->tcp && !qp->proven)
		return false;
	return !is_read(op) || qp->reads < SOFT_READS_MAX;
}

/*
 * The responder is not ready: schedules a retry of the WQE, or fails it after the retry time-out.
 */
static void keep_trying(struct dv_qp *qp, struct soft_op *op)
{
	struct dv_device *nic = qp->nic;
	uint64_t now = soft_step_ns(nic);
	bool over;

	nic->retrying = true;
	/* so that the model starts the WQE only when the peer is ready */
	op->rung_at = nic->model.now;
	if (!op->waited) {
		op->waited = true;
		op->since_ns = now;
		op->since_step = nic->steps;
		nic->stats.retries++;
	}
	over = nic->retry_steps ? nic->steps - op->since_step >= nic->retry_steps
				: now - op->since_ns >= nic->retry_ns;
	if (over)
		soft_op_fail(op, DV_SYNDROME_RETRY_EXCEEDED, 0);
	else if (nic->tcp)
		op->retry_ns = now + TCP_RETRY_NS;
}

/*
 * Executes WQE number `n` of the window again, and the later ones, which may have been executed
 * already.
 */
void soft_op_retry(struct dv_qp *qp, uint32_t n)
{
	for (uint32_t later = n; later != qp->executed; later++) {
		struct soft_op *op = soft_op(qp, later);

		if (op->state == OP_SENT)
			soft_tcp_cancel(qp, op);
		op->state = OP_NEW;
	}
	go_back(qp, n);
	qp->proven = false;
	qp->nic->step_ns = 0;
	keep_trying(qp, soft_op(qp, n));
}

/*
 * Applies the result of a move to its WQE. True: the WQE is in flight or done; the next may start.
 */
static inline bool settle(
	struct dv_qp *qp, struct soft_op *op, enum soft_result result, uint64_t count)
{
	struct dv_device *nic = qp->nic;

	if (nic->model.on && !op->ready_at && (result == SOFT_DONE || result == SOFT_SENT))
		soft_model_start(qp, op);
	switch (result) {
	case SOFT_DONE:
		op->moved += count;
		op->step = nic->steps;
		op->waited = false; /* the peer answered: the retry time-out starts anew */
		if (soft_moves(nic, op))
			nic->step_bytes += count;
		if (op->moved < op->total) {
			op->state = OP_MOVING;
			return false;
		}
		soft_op_done(qp, op);
		executed(qp, op);
		return true;
	case SOFT_SENT:
		op->state = OP_SENT;
		nic->step_bytes += op->total;
		executed(qp, op);
		return true;
	case SOFT_RETRY:
	case SOFT_UNKNOWN_FILE: keep_trying(qp, op); return false;
	case SOFT_DEAD: soft_op_fail(op, DV_SYNDROME_RETRY_EXCEEDED, 0); return false;
	case SOFT_REFUSED: soft_op_fail(op, DV_SYNDROME_REMOTE_ACCESS, 0); return false;
	}
	return false;
}

/*
 * Starts the QP's next WQE or moves its next piece. False: no further WQE can start in this step.
 */
static inline bool execute_next(struct dv_qp *qp)
{
	struct dv_device *nic = qp->nic;
	uint64_t count, from;
	struct soft_op *op;
	uint8_t *local;

	if (qp->executed == qp->tail)
		return false;
	op = soft_op(qp, qp->executed);
	if (op->state == OP_FAILED || !may_start(qp, op))
		return false;
	if (nic->model.on && !soft_model_may_start(qp, op))
		return false;
	if (unlikely(nic->faulty) && op->state == OP_NEW && !op->waited && soft_fault_error(qp, op))
		return false;
	if (unlikely(nic->faulty) && soft_fault_lost(nic, op))
		return false;
	if (unlikely(op->retry_ns > 0) && op->retry_ns > soft_step_ns(nic)) {
		nic->retrying = true;
		return false;
	}
	if (unlikely(!local_keys_good(qp, op, &local))) {
		soft_op_fail(op, DV_SYNDROME_LOCAL_PROTECTION, 0);
		return false;
	}
	count = op->total - op->moved;
	if (unlikely(nic->fault.piece_bytes > 0)) {
		if (count > nic->fault.piece_bytes)
			count = nic->fault.piece_bytes;
		if (op->moved == 0)
			op->backward = soft_fault_percent(nic, 50);
	}
	from = op->backward ? op->total - op->moved - count : op->moved;
	return settle(qp, op, move(qp, op, from, count, local), count);
}

/* Whether a READ after op `n` was executed. */
static bool overtaken(struct dv_qp *qp, uint32_t n)
{
	for (n++; n != qp->executed; n++) {
		const struct soft_op *later = soft_op(qp, n);

		if (is_read(later) && later->state == OP_DONE && later->step < qp->nic->steps)
			return true;
	}
	return false;
}

/* Fault injection, lost packets: moves a READ's payload again after a later READ was executed. */
static void retransmit(struct dv_qp *qp)
{
	if (!qp->redo)
		return;
	qp->redo = false;
	for (uint32_t n = qp->head; n != qp->executed; n++) {
		struct soft_op *op = soft_op(qp, n);
		uint8_t *local;

		qp->redo |= op->again;
		if (op->state != OP_DONE || !op->again || !overtaken(qp, n))
			continue;
		if (qp->nic->fault.retransmit_ns && clock_monotonic_ns() < op->retry_ns)
			continue;
		op->again = false;
		op->redone = true;
		if (!local_keys_good(qp, op, &local))
			soft_op_fail(op, DV_SYNDROME_LOCAL_PROTECTION, 0);
		else if (move(qp, op, 0, op->total, local) == SOFT_SENT)
			op->state = OP_SENT;
		qp->nic->stats.retransmits++;
	}
}

/*
 * TCP link: fails the oldest WQE if its answer is overdue and the peer has sent nothing else
 * either.
 */
static void check_answers(struct dv_qp *qp)
{
	struct dv_device *nic = qp->nic;
	struct soft_op *op = soft_op(qp, qp->head);
	uint64_t now, since;

	if (qp->head == qp->executed || op->state != OP_SENT)
		return;
	now = soft_step_ns(nic);
	since = dv_hint_load64(&qp->peer->progress_ns);
	since = op->sent_ns > since ? op->sent_ns : since;
	if (now > since && now - since >= nic->retry_ns) {
		soft_tcp_cancel(qp, op);
		soft_op_fail(op, DV_SYNDROME_RETRY_EXCEEDED, 0);
	}
}

/* Steps one QP. Returns the number of WQEs that started or completed. */
unsigned soft_qp_step(struct dv_qp *qp)
{
	struct dv_device *nic = qp->nic;
	unsigned work, started = 0, before, retired;

	if (qp->head == qp->tail && qp->fetched == qp->rung)
		return 0;
	if (qp->state == SOFT_ERROR) {
		soft_flush(qp);
		return 0;
	}
	if (nic->tcp)
		check_answers(qp);
	retransmit(qp);
	work = soft_retire(qp); /* retire completed WQEs first, which makes room in the window */
	do {
		uint64_t until = nic->step_bytes + SOFT_FLOW_BYTES;

		before = started;
		soft_wqe_fetch(qp);
		while (started < SOFT_QP_BURST && nic->step_bytes < until && execute_next(qp))
			started++;
		if (unlikely(qp->foreign))
			nic->hooks->gathered(qp);
		retired = soft_retire(qp);
		work += retired;
	} while ((retired || started != before) && started < SOFT_QP_BURST &&
		 nic->step_bytes < SOFT_STEP_BYTES);
	return work + started;
}
