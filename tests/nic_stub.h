/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A NIC of plain memory for tests and benchmarks that are linked without dv/: the functions of
 * dv/setup.h that rails and the control plane call (nic_stub.c), and what a stub needs to read WQEs
 * and to write CQEs. It executes nothing by itself. One thread, except registration.
 */
#ifndef TESTS_NIC_STUB_H
#define TESTS_NIC_STUB_H

#include <stdlib.h>
#include <string.h>

#include "config/limits.h"
#include "dv/hot.h"
#include "dv/setup.h"

struct nic_stub {
	/* called for each registration, on any thread; NULL: it succeeds with lkey 1 */
	int (*mr_register)(const struct dv_memory *memory, struct dv_mr *ret_mr);
	int (*mr_deregister)(struct dv_mr *mr); /* NULL: it succeeds */
	/* whether the device was opened anew since the registration; NULL: it was not */
	bool (*mr_stale)(const struct dv_mr *mr);
	/* NULL: other processes cannot register memory */
	int (*lend)(int *ret_fd, uint32_t *ret_domain);
	unsigned sweeps;  /* number of calls of dv_mr_sweep(), by any thread */
	struct dv_cq *cq; /* as the caller of dv_cq_create() has it */
	/* the CQ as it was created; a rail that lost its NIC polls another one */
	struct dv_cq cq_made;
	uint32_t cq_pi; /* number of CQEs written so far */
};
extern struct nic_stub nic_stub;

struct nic_stub_qp {
	struct dv_sq sq;
	uint32_t record[2]; /* doorbell record of the QP, which the rail writes */
	uint64_t bf[2];     /* both BlueFlame buffers, the doorbell registers */
	uint32_t seen;      /* number of WQEBBs that the stub has read so far */
};

/* A READ as it was posted. */
struct nic_stub_wqe {
	uint64_t remote; /* address in the peer's memory to read from */
	uint32_t rkey;
	uint32_t opcode; /* first word of the WQE: its index and opcode */
	uint32_t qpn;
	unsigned sges; /* number of valid entries of sge[] */
	struct dv_sge sge[DV_SGES_MAX];
	uint8_t flags; /* when the WQE requests a CQE: DV_CE_* */
};

/* Makes an empty queue pair with a send queue of QP_DEPTH blocks at `buf`, aligned to 64 bytes. */
static inline void nic_stub_qp_init(struct nic_stub_qp *qp, uint8_t *buf, uint32_t qpn)
{
	memset(qp, 0, sizeof(*qp));
	qp->sq = (struct dv_sq){.buf = buf,
		.record = (__be32 *)qp->record,
		.bf_reg = (uint8_t *)qp->bf,
		.wqe_cnt = QP_DEPTH,
		.qpn = qpn,
		.bf_size = 8};
}

/* True if the doorbell was rung since the last call; *ret_end: the end of what it announced. */
static inline bool nic_stub_rung(struct nic_stub_qp *qp, uint32_t *ret_end)
{
	if (!(dv_device_take_doorbell(&qp->bf[0]) | dv_device_take_doorbell(&qp->bf[1])))
		return false;
	*ret_end = dv_device_load_record((__be32 *)&qp->record[DV_DBREC_SEND]);
	return true;
}

/* Reads the WQE whose first WQEBB has this index. */
static inline void nic_stub_read(const struct dv_sq *sq, uint32_t index, struct nic_stub_wqe *ret)
{
	const struct mlx5_wqe_ctrl_seg *ctrl = (const void *)dv_sq_block(sq, index);
	const struct mlx5_wqe_raddr_seg *raddr = (const void *)(ctrl + 1);

	ret->remote = be64toh(raddr->raddr);
	ret->rkey = be32toh(raddr->rkey);
	ret->opcode = be32toh(ctrl->opmod_idx_opcode);
	ret->qpn = be32toh(ctrl->qpn_ds) >> 8;
	ret->sges = (be32toh(ctrl->qpn_ds) & 0x3f) - 2;
	ret->flags = ctrl->fm_ce_se;
	for (unsigned i = 0; i < ret->sges && i < DV_SGES_MAX; i++) {
		const uint8_t *at = dv_sq_block(sq, index + (2 + i) / 4) + (2 + i) % 4 * 16;
		const struct mlx5_wqe_data_seg *data = (const void *)at;

		ret->sge[i] = (struct dv_sge){.address = be64toh(data->addr),
			.bytes = be32toh(data->byte_count),
			.lkey = be32toh(data->lkey)};
	}
}

/* Writes the next CQE; syndrome 0: of a WQE without an error. The caller knows that it has room. */
static inline void nic_stub_cqe(uint32_t qpn, uint16_t counter, uint8_t syndrome)
{
	uint32_t cqe_cnt = nic_stub.cq_made.cqe_cnt;
	uint8_t *at = nic_stub.cq_made.buf + (size_t)(nic_stub.cq_pi & (cqe_cnt - 1)) * 64;
	struct mlx5_err_cqe *error = (void *)at;
	struct mlx5_cqe64 *cqe = (void *)at;
	uint8_t opcode = syndrome ? MLX5_CQE_REQ_ERR : MLX5_CQE_REQ;

	memset(at, 0, 63);
	cqe->sop_drop_qpn = htobe32(qpn);
	cqe->wqe_counter = htobe16(counter);
	if (syndrome)
		error->syndrome = syndrome;
	dv_device_store_owner(at + 63, (uint8_t)(opcode << 4 | !!(nic_stub.cq_pi & cqe_cnt)));
	nic_stub.cq_pi++;
}

#endif
