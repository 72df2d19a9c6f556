/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decodes the segments of a WQE that libmlx5 wrote, after the control segment, which dv/soft/wqe.c
 * checks. Run by the NIC's thread, under nic->lock.
 *
 *   READ, WRITE    ctrl | raddr | data or inline ...
 *
 * An inline segment is a length with bit 31 set, followed by that number of bytes, padded to a
 * multiple of 16; it may wrap at the end of the queue. Its bytes stay in place until the WQE is
 * complete, so they are treated as data segments that need no key.
 */
#include "tests/connectx/uverbs.h"

#define INLINE_SEGMENT 0x80000000u
#define LENGTH_MAX (1ull << 30)
#define VENDOR_SEGMENTS 0x55

bool uv_knows(uint8_t opcode)
{
	return opcode == MLX5_OPCODE_RDMA_READ || opcode == MLX5_OPCODE_RDMA_WRITE;
}

static uint8_t *wqe_at(
	const struct dv_qp *qp, const struct soft_op *op, uint32_t offset, uint32_t *ret_left)
{
	uint32_t bytes = qp->wqe_cnt * DV_WQEBB;
	uint32_t at = ((op->index & (qp->wqe_cnt - 1)) * DV_WQEBB + offset) % bytes;

	*ret_left = bytes - at; /* number of bytes from `at` to the end of the queue */
	return qp->buf + at;
}

/* Copies a segment of 16 bytes from the queue; it is aligned to 16, so it never wraps. */
static void copy_segment(
	const struct dv_qp *qp, const struct soft_op *op, uint32_t offset, void *to)
{
	uint32_t left;

	memcpy(to, wqe_at(qp, op, offset, &left), DV_SEGMENT);
}

static bool add_piece(
	struct soft_op *op, uint64_t address, uint32_t bytes, uint32_t lkey, bool inlined)
{
	if (op->sges == SOFT_SGES_MAX)
		return false;
	if (inlined)
		op->inlined |= 1u << op->sges;
	op->sge[op->sges++] = (struct dv_sge){.address = address, .bytes = bytes, .lkey = lkey};
	op->total += bytes;
	return true;
}

static bool decode_inline(struct dv_qp *qp, struct soft_op *op, uint32_t offset, uint32_t bytes)
{
	uint32_t left;
	uint8_t *at = wqe_at(qp, op, offset, &left);
	uint32_t first = bytes < left ? bytes : left;

	if (first && !add_piece(op, (uintptr_t)at, first, 0, true))
		return false;
	return bytes == first || add_piece(op, (uintptr_t)qp->buf, bytes - first, 0, true);
}

static bool decode_data(struct dv_qp *qp, struct soft_op *op, uint32_t offset, uint32_t end)
{
	while (offset < end) {
		struct mlx5_wqe_data_seg data;
		uint32_t bytes;

		copy_segment(qp, op, offset, &data);
		bytes = be32toh(data.byte_count);
		if (bytes & INLINE_SEGMENT) {
			bytes &= ~INLINE_SEGMENT;
			if (bytes > end - offset - 4 || !decode_inline(qp, op, offset + 4, bytes))
				return false;
			offset += (4 + bytes + DV_SEGMENT - 1) / DV_SEGMENT * DV_SEGMENT;
			continue;
		}
		/* a length field of 0 means 2 GiB, which exceeds the maximum message length */
		if (!add_piece(op, be64toh(data.addr), bytes ? bytes : INLINE_SEGMENT,
			    be32toh(data.lkey), false))
			return false;
		offset += DV_SEGMENT;
	}
	return true;
}

void uv_decode(struct dv_qp *qp, struct soft_op *op, uint32_t ds)
{
	struct mlx5_wqe_raddr_seg raddr;
	uint32_t offset = 2 * DV_SEGMENT, end = ds * DV_SEGMENT;

	copy_segment(qp, op, DV_SEGMENT, &raddr);
	op->remote = be64toh(raddr.raddr);
	op->rkey = be32toh(raddr.rkey);
	if (offset > end || !decode_data(qp, op, offset, end) ||
		(op->inlined && op->opcode == MLX5_OPCODE_RDMA_READ))
		soft_op_fail(op, DV_SYNDROME_LOCAL_QP_OP, VENDOR_SEGMENTS);
	else if (op->total > LENGTH_MAX)
		soft_op_fail(op, DV_SYNDROME_LOCAL_LENGTH, 0);
}
