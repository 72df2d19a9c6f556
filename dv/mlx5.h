/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structures and numbers of a ConnectX's queues, under the names of rdma-core's
 * infiniband/mlx5dv.h, so that the tree builds without rdma-core. A file that needs mlx5dv.h
 * includes it first, as dv/verbs.h does; the asserts of dv/layout.h then check that one, too.
 * Declarations only: any thread.
 */
#ifndef DV_MLX5_H
#define DV_MLX5_H

#ifndef _MLX5DV_H_
#include <linux/types.h>
#include <stdint.h>

enum { /* opcodes of WQEs */
	MLX5_OPCODE_RDMA_WRITE = 0x08,
	MLX5_OPCODE_SEND = 0x0a,
	MLX5_OPCODE_RDMA_READ = 0x10,
};

enum { /* opcodes of CQEs */
	MLX5_CQE_REQ = 0,
	MLX5_CQE_RESP_SEND = 2,
	MLX5_CQE_REQ_ERR = 13,
	MLX5_CQE_INVALID = 15,
};

struct mlx5_wqe_ctrl_seg {
	__be32 opmod_idx_opcode;
	__be32 qpn_ds;
	uint8_t signature;
	__be16 dci_stream_channel_id;
	uint8_t fm_ce_se;
	__be32 imm;
} __attribute__((__packed__)) __attribute__((__aligned__(4)));

struct mlx5_wqe_raddr_seg {
	__be64 raddr;
	__be32 rkey;
	__be32 reserved;
};

struct mlx5_wqe_data_seg {
	__be32 byte_count;
	__be32 lkey;
	__be64 addr;
};

struct mlx5_cqe64 {
	uint8_t rsvd0[32];
	__be32 srqn_uidx;
	__be32 imm_inval_pkey;
	uint8_t app;
	uint8_t app_op;
	__be16 app_info;
	__be32 byte_cnt;
	__be64 timestamp;
	__be32 sop_drop_qpn;
	__be16 wqe_counter;
	uint8_t signature;
	uint8_t op_own;
};

struct mlx5_err_cqe {
	uint8_t rsvd0[32];
	uint32_t srqn;
	uint8_t rsvd1[18];
	uint8_t vendor_err_synd;
	uint8_t syndrome;
	uint32_t s_wqe_opcode_qpn;
	uint16_t wqe_counter;
	uint8_t signature;
	uint8_t op_own;
};
#endif

#endif
