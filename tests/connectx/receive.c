/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The responder's side of messages: receive WQEs, their completions, atomics. A receive queue has
 * no doorbell register: its record alone tells how far the program has posted. Run by the NIC's
 * thread, under nic->lock.
 */
#include "tests/connectx/uverbs.h"
#include "dv/soft/check.h"

#define LKEY_END 0x100u /* key with which libmlx5 ends a short segment list; no region has it */
#define VENDOR_FLUSHED 0xf9

static uint16_t posted(const struct uv_qp *uq)
{
	uint32_t record = dv_device_load_record(&uq->qp->record[DV_DBREC_RECEIVE]);

	return (uint16_t)(record - uq->rq_ci);
}

static void complete(
	struct uv_qp *uq, uint8_t opcode, const struct uv_message *message, uint8_t syndrome)
{
	struct mlx5_cqe64 cqe = {0};
	struct mlx5_err_cqe *error = (void *)&cqe;
	bool solicited = syndrome || (message && message->solicited);
	uint32_t index = uq->rq_ci++;

	cqe.srqn_uidx = htobe32(uq->qp->uidx);
	cqe.sop_drop_qpn = htobe32(uq->qp->qpn);
	cqe.wqe_counter = htobe16((uint16_t)index);
	if (message) {
		cqe.byte_cnt = htobe32((uint32_t)message->length);
		cqe.imm_inval_pkey = message->imm;
	}
	if (syndrome) {
		error->syndrome = syndrome;
		error->vendor_err_synd = syndrome == DV_SYNDROME_FLUSHED ? VENDOR_FLUSHED : 0;
	}
	if (uq->recv_cq)
		soft_cqe_write(uq->recv_cq, &cqe, syndrome ? MLX5_CQE_RESP_ERR : opcode, solicited);
}

/*
 * Sets `to` to the segments of the next receive WQE. Returns their total length; -1: a key is
 * invalid.
 */
static int64_t scatter_list(struct uv_qp *uq, uint64_t length, struct iovec *to, unsigned *ret_n)
{
	const uint8_t *wqe = uq->rq + ((size_t)(uq->rq_ci & (uq->rq_cnt - 1)) << uq->rq_shift);
	unsigned most = (1u << uq->rq_shift) / DV_SEGMENT, n = 0;
	uint64_t room = 0;

	for (unsigned i = 0; i < most && n < SOFT_SGES_MAX; i++) {
		struct mlx5_wqe_data_seg data;
		struct dv_sge sge;

		memcpy(&data, wqe + (size_t)i * DV_SEGMENT, sizeof(data));
		sge = (struct dv_sge){.address = be64toh(data.addr),
			.bytes = be32toh(data.byte_count),
			.lkey = be32toh(data.lkey)};
		if (sge.lkey == LKEY_END)
			break;
		if (!sge.bytes)
			continue;
		if (room < length) {
			uint64_t bytes = length - room < sge.bytes ? length - room : sge.bytes;

			if (!soft_mr_local(uq->qp->nic, &sge, true))
				return -1;
			to[n++] = (struct iovec){(void *)(uintptr_t)sge.address, bytes};
		}
		room += sge.bytes;
	}
	*ret_n = n;
	return (int64_t)room;
}

/* Copies a message from its pieces in the requester's memory to the segments of a receive WQE. */
static int gather(const struct uv_message *message, int pid, struct iovec *to, unsigned n)
{
	unsigned at = 0;

	for (unsigned i = 0; i < message->pieces; i++) {
		uint64_t from = message->piece[i].address, left = message->piece[i].bytes;

		while (left && at < n) {
			uint64_t bytes = left < to[at].iov_len ? left : to[at].iov_len;
			struct iovec part = {to[at].iov_base, bytes};
			int rc = uv_copy(pid, &part, 1, from, bytes, false);

			if (rc)
				return rc;
			from += bytes;
			left -= bytes;
			to[at].iov_base = (uint8_t *)to[at].iov_base + bytes;
			to[at].iov_len -= bytes;
			at += to[at].iov_len == 0;
		}
	}
	return 0;
}

static enum uv_status fail(struct uv_qp *uq, uint8_t syndrome, enum uv_status status)
{
	complete(uq, 0, NULL, syndrome);
	soft_qp_hide(uq->qp);
	soft_flush(uq->qp);
	return status;
}

enum uv_status uv_receive(struct uv_qp *uq, const struct uv_message *message, int pid)
{
	struct iovec to[SOFT_SGES_MAX];
	unsigned n = 0;
	uint8_t opcode = MLX5_CQE_RESP_WR_IMM;

	if (!uq->rq_cnt || !posted(uq))
		return UV_RNR;
	if (message->opcode != MLX5_OPCODE_RDMA_WRITE_IMM) {
		int64_t room = scatter_list(uq, message->length, to, &n);

		opcode = message->opcode == MLX5_OPCODE_SEND ? MLX5_CQE_RESP_SEND
							     : MLX5_CQE_RESP_SEND_IMM;
		if (room < 0)
			return fail(uq, DV_SYNDROME_LOCAL_PROTECTION, UV_REMOTE_OP);
		if ((uint64_t)room < message->length)
			return fail(uq, DV_SYNDROME_LOCAL_LENGTH, UV_REMOTE_INVALID);
		if (gather(message, pid, to, n))
			return fail(uq, DV_SYNDROME_LOCAL_PROTECTION, UV_REMOTE_OP);
	}
	complete(uq, opcode, message, 0);
	return UV_OK;
}

/*
 * Executes an atomic. It is atomic towards all NICs' atomics (IBV_ATOMIC_HCA): all run here, under
 * one lock.
 */
enum uv_status uv_atomic(
	struct dv_device *nic, const struct uv_message *message, uint64_t *ret_result)
{
	const struct dv_sge sge = {.address = message->remote, .bytes = 8, .lkey = message->rkey};
	uint64_t old, new;
	uint8_t *at;

	if (message->remote % 8)
		return UV_REMOTE_INVALID;
	at = soft_mr_local(nic, &sge, true);
	if (!at || !(nic->mrs[message->rkey >> 8].access & SOFT_REMOTE_ATOMIC))
		return UV_REMOTE_ACCESS;
	memcpy(&old, at, sizeof(old));
	if (message->opcode == MLX5_OPCODE_ATOMIC_FA)
		new = old + message->swap_add;
	else
		new = old == message->compare ? message->swap_add : old;
	memcpy(at, &new, sizeof(new));
	*ret_result = old;
	return UV_OK;
}

void uv_receive_flush(struct dv_qp *qp)
{
	struct uv_qp *uq = qp->foreign;

	while (uq->rq_cnt && posted(uq))
		complete(uq, 0, NULL, DV_SYNDROME_FLUSHED);
}

/* Flushes the receive WQEs of QPs in error, including those posted after the error. */
unsigned uv_receive_scan(struct dv_device *nic)
{
	unsigned work = 0;

	for (unsigned i = 0; i < nic->qp_count; i++) {
		const struct uv_qp *uq = nic->qps[i]->foreign;

		if (nic->qps[i]->state == SOFT_ERROR && uq->rq_cnt && posted(uq)) {
			uv_receive_flush(nic->qps[i]);
			work++;
		}
	}
	return work;
}
