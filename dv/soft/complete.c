/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completions of one QP: WQEs leave the window in order, their CQEs are written, and an error
 * flushes the rest. Called by a step or by a setup caller, under nic->lock.
 */
#include "dv/soft/soft.h"

#define VENDOR_FLUSHED 0xf9 /* vendor syndrome of a flushed CQE, as a ConnectX writes it */

/* Marks a full CQ as broken, which is final, and flushes all QPs that use it. */
static void break_cq(struct soft_cq *cq)
{
	struct dv_device *nic = cq->nic;

	soft_blame(nic, &nic->stats.cq_overruns,
		"completion queue %u: overrun, all %u entries hold completions that were not reaped",
		cq->cqn, cq->cqe_cnt);
	cq->broken = true;
	if (nic->hooks)
		nic->hooks->overrun(cq);
	for (unsigned i = 0; i < nic->qp_count; i++)
		if (nic->qps[i]->cq == cq)
			soft_flush(nic->qps[i]);
}

/* Returns where the next CQE is written; NULL: the CQ is broken (it was full). */
static inline struct mlx5_cqe64 *cqe_place(struct soft_cq *cq)
{
	size_t slot = cq->pi & (cq->cqe_cnt - 1);

	if (unlikely(cq->broken))
		return NULL;
	if (unlikely(
		    ((cq->pi - dv_device_load_record(&cq->record[0])) & 0xffffff) >= cq->cqe_cnt)) {
		break_cq(cq);
		return NULL;
	}
	return (void *)(cq->buf + (slot + 1) * cq->cqe_size - sizeof(struct mlx5_cqe64));
}

/*
 * Hands a CQE to the program: bytes 0 to 62 are written before, the byte with the opcode and owner
 * bit is stored last.
 */
static inline void cqe_give(
	struct soft_cq *cq, struct mlx5_cqe64 *at, uint8_t opcode, bool solicited)
{
	dv_device_store_owner(&at->op_own, (uint8_t)(opcode << 4 | !!(cq->pi & cq->cqe_cnt)));
	cq->pi++;
	cq->nic->stats.cqes++;
	if (unlikely(cq->nic->hooks != NULL))
		cq->nic->hooks->completed(cq, solicited);
}

/* Writes the CQE of a WQE of this QP. Its opcode field tells libmlx5 which operation it was. */
static inline void write_cqe(struct dv_qp *qp, const struct soft_op *op, uint32_t bytes,
	uint8_t syndrome, uint8_t vendor)
{
	struct mlx5_cqe64 *at = qp->cq ? cqe_place(qp->cq) : NULL;
	uint64_t *words = (void *)at;

	if (unlikely(!at || qp->nic->fault.dead & DV_DEAD_CQES))
		return;
	for (unsigned i = 0; i < offsetof(struct mlx5_cqe64, sop_drop_qpn) / sizeof(*words); i++)
		words[i] = 0;
	at->byte_cnt = htobe32(bytes);
	at->sop_drop_qpn = htobe32((uint32_t)op->opcode << 24 | qp->qpn);
	at->srqn_uidx = htobe32(qp->uidx);
	at->wqe_counter = htobe16((uint16_t)op->index);
	at->signature = 0;
	if (unlikely(syndrome)) {
		struct mlx5_err_cqe *error = (void *)at;

		error->vendor_err_synd = vendor;
		error->syndrome = syndrome;
		qp->nic->stats.cqe_errors++;
	}
	cqe_give(qp->cq, at, syndrome ? MLX5_CQE_REQ_ERR : MLX5_CQE_REQ, syndrome);
}

static inline void retire_done(struct dv_qp *qp, const struct soft_op *op)
{
	struct dv_soft_stats *stats = &qp->nic->stats;

	stats->wqes++;
	stats->bytes += op->total;
	*(op->opcode == MLX5_OPCODE_RDMA_READ ? &stats->reads : &stats->writes) += 1;
	qp->retired = op->index + op->blocks;
	qp->reads -= op->opcode == MLX5_OPCODE_RDMA_READ;
	qp->head++;
	if ((op->flags & DV_CE_ALWAYS) == DV_CE_ALWAYS)
		write_cqe(qp, op, (uint32_t)op->total, 0, 0);
}

/*
 * Fault injection: a READ marked for retransmission does not retire until a later READ has
 * executed. Clears the mark if there is no READ to wait for.
 */
static bool waits_for_later(struct dv_qp *qp, struct soft_op *op)
{
	if (!op->again)
		return false;
	for (uint32_t n = qp->head + 1; n != qp->tail; n++) {
		const struct soft_op *later = soft_op(qp, n);

		if (later->state == OP_FAILED)
			break;
		if (later->opcode == MLX5_OPCODE_RDMA_READ)
			return true;
	}
	op->again = false;
	return false;
}

/* Completes the QP's executed WQEs in order, from the oldest. Returns their number. */
unsigned soft_retire(struct dv_qp *qp)
{
	unsigned count = 0;

	while (qp->state == SOFT_RTS && qp->head != qp->tail) {
		struct soft_op *op = soft_op(qp, qp->head);

		if (op->state == OP_FAILED) {
			soft_flush(qp);
			return count + 1;
		}
		if (op->state != OP_DONE || waits_for_later(qp, op) ||
			op->ready_step > qp->nic->steps || !soft_reached(qp->nic, op->ready_at))
			break;
		retire_done(qp, op);
		count++;
	}
	return count;
}

/*
 * Flushes the QP's window. If the oldest WQE failed, its CQE has the reason; all others are
 * flushed.
 */
static void flush_window(struct dv_qp *qp)
{
	bool first = true;

	while (qp->head != qp->tail) {
		/*
		 * The op leaves the window before its CQE is written: the CQE may break the CQ,
		 * which flushes again.
		 */
		struct soft_op *op = soft_op(qp, qp->head++);

		if (op->state == OP_SENT)
			soft_tcp_cancel(qp, op);
		qp->retired = op->index + op->blocks;
		if (first && op->state == OP_FAILED) {
			write_cqe(qp, op, 0, op->syndrome, op->vendor);
		} else {
			write_cqe(qp, op, 0, DV_SYNDROME_FLUSHED, VENDOR_FLUSHED);
			qp->nic->stats.flushed++;
		}
		first = false;
	}
	qp->executed = qp->tail;
	qp->reads = 0;
}

/* Flushes the QP's WQEs that were rung but never decoded. */
static void flush_rung(struct dv_qp *qp)
{
	while (qp->fetched != qp->rung) {
		struct soft_op op = {.index = qp->fetched};

		qp->fetched += soft_wqe_skip(qp, &op);
		qp->retired = qp->fetched;
		write_cqe(qp, &op, 0, DV_SYNDROME_FLUSHED, VENDOR_FLUSHED);
		qp->nic->stats.flushed++;
	}
}

void soft_flush(struct dv_qp *qp)
{
	bool overrun; /* changes nothing: the QP is in error */

	if (qp->state == SOFT_RTS) {
		soft_qp_hide(qp);
		/* First complete the WQEs that were executed but not yet retired: they succeed. */
		while (qp->head != qp->tail && soft_op(qp, qp->head)->state == OP_DONE)
			retire_done(qp, soft_op(qp, qp->head));
	}
	qp->state = SOFT_ERROR;
	soft_doorbell(qp, &overrun);
	flush_window(qp);
	flush_rung(qp);
}
