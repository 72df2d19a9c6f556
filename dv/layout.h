/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory layout that a ConnectX reads and writes: send WQEs, CQEs, doorbell records, doorbell
 * registers. The structures are those of dv/mlx5.h. This file asserts the offsets that the hot path
 * and the software NIC use, and defines the constants that rdma-core lacks. No code: any thread.
 *
 *   A READ or WRITE WQE, in a queue of 64-byte basic blocks (WQEBB); it may wrap at the queue's end
 *    0  ctrl   opmod<<24 | index<<8 | opcode     qpn<<8 | ds     sig, stream, fm_ce_se     imm
 *   16  raddr  remote address (8), rkey (4), 0 (4)
 *   32  data   bytes (4), lkey (4), address (8)      1 to n of these; ds: length in 16-byte units
 */
#ifndef DV_LAYOUT_H
#define DV_LAYOUT_H

#include <assert.h>
#include <endian.h>
#include <stddef.h>

#include "dv/mlx5.h"

#define DV_WQEBB 64u   /* bytes of a WQEBB, the basic block of a send queue */
#define DV_SEGMENT 16u /* bytes of a segment (control, address, data) of a WQE */
/*
 * Data segments of one WQE, at most: as many as a ConnectX takes in a READ. With them a WQE has
 * eight WQEBBs (512 bytes). dv_device_open() refuses a device that takes fewer.
 */
#define DV_SGES_MAX 30u

enum {                         /* flags in fm_ce_se of the control segment */
	DV_CE_ERROR_ONLY = 0,  /* the NIC writes a CQE only if the WQE fails */
	DV_CE_ALWAYS = 2 << 2, /* the NIC writes a CQE when the WQE completes */
};

enum { /* index of a word in a doorbell record */
	DV_DBREC_RECEIVE = 0,
	DV_DBREC_SEND = 1,
};

#define DV_CQE_OPCODE(op_own) ((op_own) >> 4)
#define DV_CQE_OWNER 1u

enum { /* syndromes of an error CQE, from the PRM */
	DV_SYNDROME_LOCAL_LENGTH = 0x01,
	DV_SYNDROME_LOCAL_QP_OP = 0x02,
	DV_SYNDROME_LOCAL_PROTECTION = 0x04,
	DV_SYNDROME_FLUSHED = 0x05,
	DV_SYNDROME_MW_BIND = 0x06,
	DV_SYNDROME_BAD_RESPONSE = 0x10,
	DV_SYNDROME_LOCAL_ACCESS = 0x11,
	DV_SYNDROME_REMOTE_INVALID_REQUEST = 0x12,
	DV_SYNDROME_REMOTE_ACCESS = 0x13,
	DV_SYNDROME_REMOTE_OP = 0x14,
	DV_SYNDROME_RETRY_EXCEEDED = 0x15,
	DV_SYNDROME_RNR_RETRY_EXCEEDED = 0x16,
	DV_SYNDROME_ABORTED = 0x22,
};

static_assert(MLX5_OPCODE_RDMA_WRITE == 0x08 && MLX5_OPCODE_RDMA_READ == 0x10, "PRM: opcodes");
static_assert(MLX5_CQE_REQ == 0 && MLX5_CQE_REQ_ERR == 13 && MLX5_CQE_INVALID == 15, "PRM: CQEs");
static_assert(sizeof(struct mlx5_wqe_ctrl_seg) == 16, "PRM: control segment");
static_assert(offsetof(struct mlx5_wqe_ctrl_seg, qpn_ds) == 4, "PRM: control segment");
static_assert(offsetof(struct mlx5_wqe_ctrl_seg, fm_ce_se) == 11, "PRM: control segment");
static_assert(sizeof(struct mlx5_wqe_raddr_seg) == 16, "PRM: remote address segment");
static_assert(offsetof(struct mlx5_wqe_raddr_seg, rkey) == 8, "PRM: remote address segment");
static_assert(sizeof(struct mlx5_wqe_data_seg) == 16, "PRM: data segment");
static_assert(offsetof(struct mlx5_wqe_data_seg, lkey) == 4, "PRM: data segment");
static_assert(offsetof(struct mlx5_wqe_data_seg, addr) == 8, "PRM: data segment");
static_assert(sizeof(struct mlx5_cqe64) == 64, "PRM: CQE");
static_assert(offsetof(struct mlx5_cqe64, imm_inval_pkey) == 36, "PRM: CQE");
static_assert(offsetof(struct mlx5_cqe64, byte_cnt) == 44, "PRM: CQE");
static_assert(offsetof(struct mlx5_cqe64, sop_drop_qpn) == 56, "PRM: CQE");
static_assert(offsetof(struct mlx5_cqe64, wqe_counter) == 60, "PRM: CQE");
static_assert(offsetof(struct mlx5_cqe64, op_own) == 63, "PRM: CQE");
static_assert(offsetof(struct mlx5_err_cqe, vendor_err_synd) == 54, "PRM: error CQE");
static_assert(offsetof(struct mlx5_err_cqe, syndrome) == 55, "PRM: error CQE");

#endif
