/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From doorbell to decoded WQE: takes the doorbell register, only then reads the doorbell record,
 * and decodes each WQE into a struct soft_op. Errors of the poll core are counted by soft_blame().
 * Runs in a step, under nic->lock.
 */
#include "dv/soft/soft.h"

enum { /* vendor syndromes of an invalid WQE: they tell which check failed */
	VENDOR_INDEX = 0x51,
	VENDOR_QPN = 0x52,
	VENDOR_SIZE = 0x53,
	VENDOR_OPCODE = 0x54,
};

/*
 * Returns the address of byte `offset` of the WQE whose first WQEBB has number `index`; the send
 * queue wraps.
 */
static const void *wqe_at(const struct dv_qp *qp, uint32_t index, uint32_t offset)
{
	size_t bytes = (size_t)qp->wqe_cnt * DV_WQEBB; /* bytes of the send queue, a power of two */

	return qp->buf + (((size_t)index * DV_WQEBB + offset) & (bytes - 1));
}

static uint32_t blocks_of(uint32_t ds)
{
	return ds ? (ds * DV_SEGMENT + DV_WQEBB - 1) / DV_WQEBB : 1;
}

uint32_t soft_wqe_skip(const struct dv_qp *qp, struct soft_op *op)
{
	const struct mlx5_wqe_ctrl_seg *ctrl = wqe_at(qp, op->index, 0);
	uint32_t blocks = blocks_of(be32toh(ctrl->qpn_ds) & 0x3f), left = qp->rung - op->index;

	op->opcode = be32toh(ctrl->opmod_idx_opcode) & 0xff;
	return blocks < left ? blocks : left;
}

/* ---- doorbells ------------------------------------------------------------------------------- */

/*
 * A doorbell carries the first 8 bytes of the last WQE. The record may be ahead of it (the other
 * half of the register then gets another doorbell) but never behind it.
 */
static bool doorbell_fits(struct dv_qp *qp, uint64_t doorbell, uint32_t record)
{
	struct dv_device *nic = qp->nic;
	uint32_t words[2];
	uint32_t qpn, end;

	memcpy(words, &doorbell, sizeof(words));
	qpn = be32toh(words[1]) >> 8;
	end = (be32toh(words[0]) >> 8 & 0xffff) + blocks_of(be32toh(words[1]) & 0x3f);
	nic->stats.doorbells++;
	if (qpn != qp->qpn)
		soft_blame(nic, &nic->stats.bad_doorbell,
			"the doorbell of queue pair 0x%x names 0x%x", qp->qpn, qpn);
	else if ((uint16_t)(record - end) > qp->wqe_cnt)
		soft_blame(nic, &nic->stats.bad_doorbell,
			"queue pair 0x%x: the doorbell's WQE ends at %u, but the doorbell record is %u",
			qp->qpn, end & 0xffff, record);
	else
		return true;
	return false;
}

unsigned soft_doorbell(struct dv_qp *qp, bool *ret_overrun)
{
	struct dv_device *nic = qp->nic;
	uint64_t taken[2] = {0, 0};
	uint32_t record;
	unsigned good = 0;

	*ret_overrun = false;
	for (unsigned half = 0; half < 2; half++) {
		uint64_t *bell = qp->bell + half * SOFT_BELLS_BLOCK;

		if (dv_device_peek_doorbell(bell))
			taken[half] = dv_device_take_doorbell(bell);
	}
	if (!taken[0] && !taken[1])
		return 0;
	record = dv_device_load_record(&qp->record[DV_DBREC_SEND]) & 0xffff;
	for (unsigned half = 0; half < 2; half++)
		good += taken[half] && doorbell_fits(qp, taken[half], record);
	if (!good)
		return 0;
	if ((uint16_t)(record - qp->retired) > qp->wqe_cnt) {
		soft_blame(nic, &nic->stats.sq_overruns,
			"queue pair 0x%x: send queue overrun: doorbell record %u, %u complete, the queue holds %u",
			qp->qpn, record, qp->retired & 0xffff, qp->wqe_cnt);
		/* the doorbell record is invalid, so no new WQE is decoded */
		qp->rung = qp->fetched;
		*ret_overrun = true;
		return good;
	}
	qp->rung += (uint16_t)(record - qp->rung);
	qp->pace.rung_at = nic->model.now;
	return good;
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* Six parameters: one call for each rule that a WQE can break. */
static void bad_wqe(struct dv_qp *qp, struct soft_op *op, uint64_t *counter, uint8_t vendor,
	const char *what, uint32_t value)
{
	soft_blame(qp->nic, counter, "queue pair 0x%x: WQE at %u: %s 0x%x", qp->qpn,
		op->index & 0xffff, what, value);
	soft_op_fail(op, DV_SYNDROME_LOCAL_QP_OP, vendor);
}

static bool knows_opcode(const struct dv_device *nic, uint8_t opcode)
{
	if (nic->hooks)
		return nic->hooks->knows(opcode);
	return opcode == MLX5_OPCODE_RDMA_READ || (opcode == MLX5_OPCODE_RDMA_WRITE && !nic->tcp);
}

/*
 * Checks the control segment of a WQE: does it belong to this QP and to this position in the queue?
 */
static bool decode_control(struct dv_qp *qp, struct soft_op *op, uint32_t *ret_ds)
{
	struct dv_soft_stats *stats = &qp->nic->stats;
	const struct mlx5_wqe_ctrl_seg *ctrl = wqe_at(qp, op->index, 0);
	uint32_t word = be32toh(ctrl->opmod_idx_opcode), second = be32toh(ctrl->qpn_ds);
	uint32_t qpn = second >> 8, ds = second & 0x3f, left = qp->rung - op->index;

	op->opcode = word & 0xff;
	op->flags = ctrl->fm_ce_se;
	op->blocks = 1;
	*ret_ds = ds;
	/* Fast path for most WQEs: a READ of one segment with the expected index and QPN. */
	if (likely(ctrl->opmod_idx_opcode == htobe32((op->index & 0xffff) << 8 | DV_READ) &&
		    second == (qp->qpn << 8 | 3) && !qp->foreign))
		return true;
	op->blocks = (uint8_t)(blocks_of(ds) < left ? blocks_of(ds) : left);
	if ((word >> 8 & 0xffff) != (op->index & 0xffff))
		bad_wqe(qp, op, &stats->bad_index, VENDOR_INDEX, "index", word >> 8 & 0xffff);
	else if (qpn != qp->qpn)
		bad_wqe(qp, op, &stats->bad_qpn, VENDOR_QPN, "queue pair", qpn);
	else if (!knows_opcode(qp->nic, op->opcode))
		bad_wqe(qp, op, &stats->bad_wqe, VENDOR_OPCODE, "opcode", op->opcode);
	else if (blocks_of(ds) != op->blocks ||
		 (!qp->foreign && (ds < 2 || ds - 2 > SOFT_SGES_MAX)))
		bad_wqe(qp, op, &stats->bad_wqe, VENDOR_SIZE, "ds", ds);
	else
		return true;
	return false;
}

/*
 * Decodes address and data segments. libmlx5 never writes a data segment of 0 bytes; here it counts
 * as 2 GiB, so that its author gets an error instead of device-specific behaviour.
 */
static void decode_segments(struct dv_qp *qp, struct soft_op *op, uint32_t ds)
{
	const struct mlx5_wqe_raddr_seg *raddr = wqe_at(qp, op->index, DV_SEGMENT);
	unsigned sges = ds - 2;

	op->remote = be64toh(raddr->raddr);
	op->rkey = be32toh(raddr->rkey);
	op->sges = (uint8_t)sges;
	for (unsigned i = 0; i < sges; i++) {
		const struct mlx5_wqe_data_seg *data = wqe_at(qp, op->index, (2 + i) * DV_SEGMENT);

		op->sge[i] = (struct dv_sge){.address = be64toh(data->addr),
			.bytes = be32toh(data->byte_count),
			.lkey = be32toh(data->lkey)};
		if (op->sge[i].bytes == 0)
			op->sge[i].bytes = (uint32_t)SOFT_LENGTH_MAX;
		op->total += op->sge[i].bytes;
	}
	if (op->total > SOFT_LENGTH_MAX)
		soft_op_fail(op, DV_SYNDROME_LOCAL_LENGTH, 0);
}

/*
 * Sets field by field: a struct assignment becomes a string instruction as slow as all the
 * decoding.
 */
static void new_op(struct soft_op *op, uint32_t index)
{
	op->index = index;
	op->state = OP_NEW;
	op->syndrome = op->vendor = op->sges = 0;
	op->again = op->redone = op->backward = op->waited = false;
	op->total = op->moved = op->ready_at = op->retry_ns = 0;
}

/* Decodes the QP's rung WQEs into its window, as far as the window has room. */
void soft_wqe_fetch(struct dv_qp *qp)
{
	bool more = qp->nic->tcp || qp->foreign;

	while (qp->fetched != qp->rung && qp->tail - qp->head != SOFT_WINDOW) {
		struct soft_op *op = soft_op(qp, qp->tail);
		uint32_t ds;

		new_op(op, qp->fetched);
		op->rung_at = qp->pace.rung_at;
		if (unlikely(more))
			memset(&op->id, 0, sizeof(*op) - offsetof(struct soft_op, id));
		if (likely(decode_control(qp, op, &ds))) {
			if (unlikely(qp->foreign))
				qp->nic->hooks->decode(qp, op, ds);
			else
				decode_segments(qp, op, ds);
		}
		qp->fetched += op->blocks;
		qp->tail++;
	}
}
