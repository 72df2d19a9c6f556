/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot path to a NIC: post READ and WRITE, ring the doorbell, poll completions. All functions
 * are inline and use no lock, no system call and no errno. Only the poll core that owns a queue
 * calls them.
 *
 * dv_qp_create() and dv_cq_create() (dv/setup.h) fill the handles with pointers to the queues'
 * memory. A ConnectX or the software NIC consumes that memory; this code is the same for both.
 *
 *   if (dv_sq_room(sq) >= 1)
 *           dv_post(sq, DV_READ, remote, rkey, &sge, 1, DV_CE_ALWAYS);
 *   dv_ring(sq);                                    once for each batch
 *   n = dv_poll(cq, completions, 64);               wqe_counter: index of the WQE's first WQEBB
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

/*
 * The handle with which the poll core uses a send queue: one cache line, private to that poll core.
 */
struct dv_sq {
	/*
	 * owner: poll core; it changes pi, ci, rung, last, bf_offset; dv_qp_create() sets the rest
	 */
	alignas(64) uint8_t *buf; /* memory of the send queue: wqe_cnt WQEBBs */
	volatile __be32 *record;  /* the QP's doorbell record, two 32-bit words */
	/* the QP's doorbell register; the next doorbell is written to bf_reg + bf_offset */
	uint8_t *bf_reg;
	uint32_t wqe_cnt; /* size of the send queue in WQEBBs, a power of two */
	uint32_t qpn;
	/* distance of the doorbell register's two halves in bytes; 0: it has one half */
	uint32_t bf_size;
	uint32_t bf_offset; /* offset of the register half for the next doorbell: 0 or bf_size */
	uint32_t pi;        /* producer index: WQEBBs posted so far; free running, wraps at 2^32 */
	uint32_t ci;        /* consumer index: WQEBBs known to be complete; free running */
	uint32_t rung;      /* value of pi at the last doorbell */
	uint32_t last;      /* index of the first WQEBB of the last posted WQE */
};
static_assert(sizeof(struct dv_sq) == 64, "a send queue has one cache line");
static_assert(DV_CE_ERROR_ONLY == 0, "dv_series_read() writes it as a word");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "dv_length() joins fields");

/* The handle with which the poll core uses a completion queue. */
struct dv_cq {
	/* owner: poll core; it changes ci, dv_cq_create() sets the rest */
	alignas(64) uint8_t *buf;
	volatile __be32 *record; /* the CQ's doorbell record: tells the device the consumer index */
	uint32_t cqe_cnt;        /* number of CQEs in the queue, a power of two */
	uint32_t cqe_size;       /* bytes of a CQE, 64 or 128; the last 64 are struct mlx5_cqe64 */
	uint32_t ci;             /* consumer index: number of CQEs consumed; free running */
	uint32_t cqn;
	void *handle; /* private data of the implementation (dv/ops.h) */
};
static_assert(sizeof(struct dv_cq) == 64, "a completion queue has one cache line");

/* One data segment of a WQE: a range of local memory. */
struct dv_sge {
	uint64_t address;
	uint32_t bytes;
	uint32_t lkey;
};

/* One completion. It also completes all earlier WQEs of its send queue that have no own CQE. */
struct dv_completion {
	uint32_t qpn;
	uint16_t wqe_counter; /* low 16 bits of the index of the WQE's first WQEBB */
	uint8_t syndrome;     /* result: 0: success; else DV_SYNDROME_* */
};

/* Number of WQEBBs that can be posted to the send queue now. */
static inline uint32_t dv_sq_room(const struct dv_sq *sq)
{
	return sq->wqe_cnt - (sq->pi - sq->ci);
}

/* Number of WQEBBs of a WQE with `sges` data segments: 1 for up to two, 2 for three to six. */
static inline uint32_t dv_wqe_blocks(unsigned sges)
{
	return (2 * DV_SEGMENT + sges * DV_SEGMENT + DV_WQEBB - 1) / DV_WQEBB;
}

/* Address of a WQEBB of the send queue, from its free-running index. */
static inline uint8_t *dv_sq_block(const struct dv_sq *sq, uint32_t index)
{
	return sq->buf + (size_t)(index & (sq->wqe_cnt - 1)) * DV_WQEBB;
}

/*
 * The data segments of the next WQE, which are written before the rest of it:
 *
 *   data = dv_data_begin(sq);
 *   dv_data_add(&data, address, bytes, lkey);              1 to DV_SGES_MAX times
 *   dv_post_data(sq, DV_READ, remote, rkey, sges, flags);  `sges`: how many were added
 *
 * A function keeps it in registers.
 */
struct dv_data {
	uint8_t *at; /* behind the last one; may be the queue's end */
	uint8_t *buf;
	const uint8_t *end;
};

static inline struct dv_data dv_data_begin(const struct dv_sq *sq)
{
	return (struct dv_data){dv_sq_block(sq, sq->pi) + 2 * DV_SEGMENT, sq->buf,
		sq->buf + (size_t)sq->wqe_cnt * DV_WQEBB};
}

static inline void dv_data_add(
	struct dv_data *data, uint64_t address, uint32_t bytes, uint32_t lkey)
{
	struct mlx5_wqe_data_seg *segment;

	/* Segments 0 and 1 are in the first WQEBB, and four in each further one. The WQE continues
	 * in WQEBB 0 of the queue when it wraps at the queue's end. */
	if (data->at == data->end)
		data->at = data->buf;
	segment = (void *)data->at;
	segment->byte_count = htobe32(bytes);
	segment->lkey = htobe32(lkey);
	segment->addr = htobe64(address);
	data->at += DV_SEGMENT;
}

/* Makes the segment that was added last `bytes` longer. */
static inline void dv_data_extend(const struct dv_data *data, uint32_t bytes)
{
	struct mlx5_wqe_data_seg *segment = (void *)(data->at - DV_SEGMENT);

	segment->byte_count = htobe32(be32toh(segment->byte_count) + bytes);
}

/* As dv_post(), with the `sges` data segments that were written. */
static inline uint32_t dv_post_data(struct dv_sq *sq, enum dv_opcode opcode, uint64_t remote,
	uint32_t rkey, unsigned sges, uint8_t flags)
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
	sq->last = index;
	sq->pi = index + dv_wqe_blocks(sges);
	return index;
}

/*
 * Writes one WQE; the device executes it after dv_ring(). The caller has checked that sges <=
 * DV_SGES_MAX, that no segment has 0 bytes (like libmlx5, which omits them, a READ of 0 bytes has
 * no segment) and that dv_sq_room() >= dv_wqe_blocks(sges). `flags`: DV_CE_*. Returns the
 * free-running index of the WQE's first WQEBB; the completion has its low 16 bits.
 * Seven parameters: it is inlined, so that they stay in registers.
 */
static inline uint32_t dv_post(struct dv_sq *sq, enum dv_opcode opcode, uint64_t remote,
	uint32_t rkey, const struct dv_sge *sge, unsigned sges, uint8_t flags)
{
	struct dv_data data = dv_data_begin(sq);

	for (unsigned i = 0; i < sges; i++)
		dv_data_add(&data, sge[i].address, sge[i].bytes, sge[i].lkey);
	return dv_post_data(sq, opcode, remote, rkey, sges, flags);
}

/*
 * A series of READs with one data segment each: as dv_post(), but what does not change from WQE to
 * WQE is prepared once, and pi is written once. Until its last READ is written the caller uses the
 * send queue for nothing else.
 *
 *   keys = dv_keys(rkey, lkey);
 *   length = dv_length(keys, bytes);                       once for READs of one length
 *   s = dv_series_begin(sq, n);                            n >= 1, at most dv_sq_room()
 *   dv_series_read(&s, keys, remote, local, length);       exactly n times
 *   dv_ring(sq);                                           after dv_signal_last() if wanted
 */
struct dv_series {
	uint8_t *buf;  /* that of the send queue, which has at most 2^16 WQEBBs */
	uint64_t mask; /* its number of bytes - DV_WQEBB */
	/* the first 8 bytes of the next WQE's control segment in host order, shifted left by the
	 * 8 bits of opmod, which are 0: the index in the upper 16 bits, opcode, QP number, size */
	uint64_t next;
};

/* The keys of READs, as in their WQEs. */
struct dv_keys {
	uint64_t rkey; /* big-endian */
	uint64_t lkey; /* the upper half of the data segment's first 8 bytes, big-endian */
};

static inline struct dv_keys dv_keys(uint32_t rkey, uint32_t lkey)
{
	return (struct dv_keys){htobe32(rkey), (uint64_t)htobe32(lkey) << 32};
}

static inline struct dv_series dv_series_begin(struct dv_sq *sq, uint32_t n)
{
	struct dv_series s = {.buf = sq->buf,
		.mask = (sq->wqe_cnt - 1ull) * DV_WQEBB,
		.next = (uint64_t)sq->pi << 48 | (uint64_t)DV_READ << 40 |
			(uint64_t)(sq->qpn << 8 | 3) << 8};

	sq->pi += n;
	sq->last = sq->pi - 1;
	return s;
}

/* The length of a READ and its lkey as in the WQE. `bytes` is not 0. */
static inline uint64_t dv_length(struct dv_keys keys, uint32_t bytes)
{
	return htobe32(bytes) | keys.lkey;
}

/* Writes one WQE that requests no CQE. */
static inline void dv_series_read(
	struct dv_series *s, struct dv_keys keys, uint64_t remote, uint64_t local, uint64_t length)
{
	/* next >> 42: the index, times DV_WQEBB; the mask clears the bits of the opcode below it */
	uint64_t *word = (void *)(s->buf + (s->next >> 42 & s->mask));

	word[0] = htobe64(s->next >> 8);
	word[1] = DV_CE_ERROR_ONLY;
	word[2] = htobe64(remote);
	word[3] = keys.rkey;
	word[4] = length;
	word[5] = htobe64(local);
	s->next += 1ull << 48;
}
static_assert(DV_WQEBB == 1 << (48 - 42), "dv_series_read() shifts the index to its place");

/*
 * Sets DV_CE_ALWAYS in the last posted WQE. Allowed only before dv_ring(), because the device may
 * read the WQE after it.
 */
static inline void dv_signal_last(struct dv_sq *sq)
{
	struct mlx5_wqe_ctrl_seg *ctrl = (void *)dv_sq_block(sq, sq->last);

	ctrl->fm_ce_se |= DV_CE_ALWAYS;
}

/* Rings the doorbell for all WQEs posted since the last call; does nothing if there are none. */
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

/* Does the CQ have a new completion? */
static inline bool dv_cq_has(const struct dv_cq *cq)
{
	const uint8_t *cqe =
		cq->buf + (size_t)(cq->ci & (cq->cqe_cnt - 1)) * cq->cqe_size + cq->cqe_size - 64;
	uint8_t op_own = dv_owner_load(cqe + offsetof(struct mlx5_cqe64, op_own));

	return DV_CQE_OPCODE(op_own) != MLX5_CQE_INVALID &&
	       (op_own & DV_CQE_OWNER) == !!(cq->ci & cq->cqe_cnt);
}

/*
 * Consumes up to `max` completions and returns their number. A CQE with an opcode that a send queue
 * cannot produce is returned with DV_SYNDROME_BAD_RESPONSE, so that it does not end a batch early.
 * The consumer index is written once for the batch.
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
		ret[n].syndrome = 0;
		if (opcode != MLX5_CQE_REQ) {
			const struct mlx5_err_cqe *error = (const void *)at;
			bool known = opcode == MLX5_CQE_REQ_ERR && error->syndrome;

			ret[n].syndrome = known ? error->syndrome : DV_SYNDROME_BAD_RESPONSE;
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
