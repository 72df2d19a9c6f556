/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot path to a ConnectX: post READ and WRITE, ring the doorbell, poll completions. Inline, no
 * call, no lock, no errno. Only the poll core that owns a queue calls these.
 *
 * The handles point at memory that dv/setup.h handed out. Whether a ConnectX or the software NIC
 * consumes it cannot be told from here.
 *
 *   if (dv_sq_room(sq) >= 1)
 *           dv_post(sq, DV_READ, remote, rkey, &sge, 1, DV_CE_ALWAYS);
 *   dv_ring(sq);                                    once per batch
 *   n = dv_poll(cq, completions, 64);               wqe_counter names the WQE's first block
 */
#ifndef DV_HOT_H
#define DV_HOT_H

#include <stdalign.h>
#include <stdbool.h>
#include <string.h>

#include "dv/layout.h"
#include "dv/order.h"

enum dv_opcode {
	DV_WRITE = MLX5_OPCODE_RDMA_WRITE,
	DV_READ = MLX5_OPCODE_RDMA_READ,
};

/* A send queue. One cache line; everything in it is private to the poll core. */
struct dv_sq {
	/* owner: poll core; pi and ci move, the rest is set by dv_qp_create() */
	alignas(64) uint8_t *buf; /* wqe_cnt basic blocks */
	volatile __be32 *record;  /* the QP's doorbell record, both words */
	uint8_t *bf_reg;          /* doorbell register; +bf_offset is the half to write next */
	uint32_t wqe_cnt;         /* power of two */
	uint32_t qpn;
	uint32_t bf_size; /* the register alternates by this many bytes; 0: it does not */
	uint32_t bf_offset;
	uint32_t pi;   /* blocks posted, free running */
	uint32_t ci;   /* blocks known to be complete, free running */
	uint32_t rung; /* pi at the last doorbell */
	uint32_t last; /* first block of the last WQE posted */
};
static_assert(sizeof(struct dv_sq) == 64, "one cache line a send queue");

/* A completion queue. */
struct dv_cq {
	/* owner: poll core */
	alignas(64) uint8_t *buf;
	volatile __be32 *record;
	uint32_t cqe_cnt;  /* power of two */
	uint32_t cqe_size; /* 64 or 128; the CQE proper is the last 64 bytes */
	uint32_t ci;       /* consumed, free running */
	uint32_t cqn;
};
static_assert(sizeof(struct dv_cq) == 64, "one cache line a completion queue");

struct dv_sge {
	uint64_t address;
	uint32_t bytes;
	uint32_t lkey;
};

/* One completion. It also completes every earlier WQE of its queue that asked for none. */
struct dv_completion {
	uint32_t qpn;
	uint16_t wqe_counter; /* low 16 bits of the block index of the WQE */
	uint8_t syndrome;     /* 0: done; else enum DV_SYNDROME_* */
	uint8_t vendor;       /* vendor syndrome, for the log */
	uint32_t bytes;
};

/* Basic blocks that can be posted now. */
static inline uint32_t dv_sq_room(const struct dv_sq *sq)
{
	return sq->wqe_cnt - (sq->pi - sq->ci);
}

/* Blocks one WQE of `sges` data segments takes: 1 up to two segments, 2 for three. */
static inline uint32_t dv_wqe_blocks(unsigned sges)
{
	return (2 * DV_SEGMENT + sges * DV_SEGMENT + DV_WQEBB - 1) / DV_WQEBB;
}

static inline uint8_t *dv_sq_block(const struct dv_sq *sq, uint32_t index)
{
	return sq->buf + (size_t)(index & (sq->wqe_cnt - 1)) * DV_WQEBB;
}

/*
 * Writes one WQE. sges <= DV_SGES_MAX, none of 0 bytes: libmlx5 leaves such segments out, so a READ
 * of nothing has none. dv_sq_room() >= dv_wqe_blocks(sges). `flags` are DV_CE_* | DV_FENCE. Returns
 * the block index of the WQE (free running): its low 16 bits are what the completion names. The
 * device sees nothing before dv_ring().
 */
static inline uint32_t dv_post(struct dv_sq *sq, enum dv_opcode opcode, uint64_t remote,
	uint32_t rkey, const struct dv_sge *sge, unsigned sges, uint8_t flags)
{
	uint32_t index = sq->pi;
	uint8_t *block = dv_sq_block(sq, index);
	struct mlx5_wqe_ctrl_seg *ctrl = (void *)block;
	struct mlx5_wqe_raddr_seg *raddr = (void *)(block + DV_SEGMENT);

	ctrl->opmod_idx_opcode = htobe32((index & 0xffff) << 8 | opcode);
	ctrl->qpn_ds = htobe32(sq->qpn << 8 | (2 + sges));
	ctrl->signature = 0;
	ctrl->dci_stream_channel_id = 0;
	ctrl->fm_ce_se = flags;
	ctrl->imm = 0;
	raddr->raddr = htobe64(remote);
	raddr->rkey = htobe32(rkey);
	raddr->reserved = 0;
	for (unsigned i = 0; i < sges; i++) {
		/* Segments 0 and 1 share the first block, segment 2 starts the next one, which
		 * may be the first of the queue. */
		uint8_t *at = i < 2 ? block + (2 + i) * DV_SEGMENT : dv_sq_block(sq, index + 1);
		struct mlx5_wqe_data_seg *data = (void *)at;

		data->byte_count = htobe32(sge[i].bytes);
		data->lkey = htobe32(sge[i].lkey);
		data->addr = htobe64(sge[i].address);
	}
	sq->last = index;
	sq->pi = index + dv_wqe_blocks(sges);
	return index;
}

/*
 * Asks for a completion of the last WQE after all. Only before dv_ring(): until then the device has
 * not looked at it.
 */
static inline void dv_signal_last(struct dv_sq *sq)
{
	struct mlx5_wqe_ctrl_seg *ctrl = (void *)dv_sq_block(sq, sq->last);

	ctrl->fm_ce_se |= DV_CE_ALWAYS;
}

/* Tells the device about everything posted since the last time. Nothing posted: nothing done. */
static inline void dv_ring(struct dv_sq *sq)
{
	uint64_t first8;

	if (sq->pi == sq->rung)
		return;
	dv_wqe_before_record();
	dv_record_store(&sq->record[DV_DBREC_SEND], sq->pi & 0xffff);
	dv_record_before_doorbell();
	memcpy(&first8, dv_sq_block(sq, sq->last), sizeof(first8));
	dv_mmio_store64((volatile uint64_t *)(void *)(sq->bf_reg + sq->bf_offset), first8);
	dv_doorbell_flush();
	sq->bf_offset ^= sq->bf_size;
	sq->rung = sq->pi;
}

/* Is there a completion to poll? */
static inline bool dv_cq_has(const struct dv_cq *cq)
{
	const uint8_t *cqe =
		cq->buf + (size_t)(cq->ci & (cq->cqe_cnt - 1)) * cq->cqe_size + cq->cqe_size - 64;
	uint8_t op_own = dv_owner_load(cqe + offsetof(struct mlx5_cqe64, op_own));

	return DV_CQE_OPCODE(op_own) != MLX5_CQE_INVALID &&
	       (op_own & DV_CQE_OWNER) == !!(cq->ci & cq->cqe_cnt);
}

/*
 * Consumes up to `max` completions. A CQE with an opcode that a send queue cannot produce comes
 * back as DV_SYNDROME_BAD_RESPONSE: a batch never ends early for it. The consumer index is written
 * once.
 */
static inline unsigned dv_poll(struct dv_cq *cq, struct dv_completion *ret, unsigned max)
{
	unsigned n = 0;

	while (n < max && dv_cq_has(cq)) {
		const uint8_t *at = cq->buf + (size_t)(cq->ci & (cq->cqe_cnt - 1)) * cq->cqe_size +
				    cq->cqe_size - 64;
		const struct mlx5_cqe64 *cqe = (const void *)at;
		uint8_t opcode;

		dv_owner_before_cqe();
		opcode = DV_CQE_OPCODE(cqe->op_own);
		ret[n].qpn = be32toh(cqe->sop_drop_qpn) & 0xffffff;
		ret[n].wqe_counter = be16toh(cqe->wqe_counter);
		ret[n].bytes = be32toh(cqe->byte_cnt);
		ret[n].syndrome = 0;
		ret[n].vendor = 0;
		if (opcode != MLX5_CQE_REQ) {
			const struct mlx5_err_cqe *error = (const void *)at;
			bool known = opcode == MLX5_CQE_REQ_ERR && error->syndrome;

			ret[n].syndrome = known ? error->syndrome : DV_SYNDROME_BAD_RESPONSE;
			ret[n].vendor = error->vendor_err_synd;
			ret[n].bytes = 0;
		}
		cq->ci++;
		n++;
	}
	if (n) {
		dv_cqe_before_record();
		dv_record_store(&cq->record[0], cq->ci & 0xffffff);
	}
	return n;
}

#endif
