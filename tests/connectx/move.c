/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves bytes between the memory of two programs. Most memory is private and cannot be mapped by
 * another process: process_vm_readv() and process_vm_writev() move it (same user, or ptrace
 * permission). Memory of a peer in a file that can be mapped (shared.c) is copied once it is mapped
 * here. Exports are checked as on every shm link; a deregistration during the move is detected
 * after it. Run by the NIC's thread, under nic->lock.
 *
 * READs of one QP that may start in a row are checked one by one, gathered, and moved in order by
 * one system call before the QP does anything else: a system call costs more than copying a page.
 * If memory is not mapped, the call ends at that READ.
 */
#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tests/connectx/uverbs.h"
#include "dv/soft/check.h"

bool uv_keys_good(struct dv_qp *qp, const struct soft_op *op)
{
	bool write = op->opcode == MLX5_OPCODE_RDMA_READ;
	const struct uv_mr *mr;

	for (unsigned i = 0; i < op->sges; i++)
		if (!(op->inlined & 1u << i) && (!soft_mr_local(qp->nic, &op->sge[i], write) ||
							!uv_mr_of(qp, op->sge[i].lkey, &mr)))
			return false;
	return true;
}

/*
 * Copies in one system call: the kernel moves at most 2 GiB less a page, and messages are smaller.
 */
static int copy(int pid, const struct iovec *local, unsigned locals, uint64_t remote,
	uint64_t bytes, bool write)
{
	struct iovec far = {.iov_base = (void *)(uintptr_t)remote, .iov_len = bytes};
	ssize_t n;

	if (!bytes)
		return 0;
	n = write ? process_vm_writev(pid, local, locals, &far, 1, 0)
		  : process_vm_readv(pid, local, locals, &far, 1, 0);
	if (n < 0)
		return errno;
	return (uint64_t)n == bytes ? 0 : EFAULT;
}

static int peer_pid(struct uv_qp *uq, const struct soft_peer *peer)
{
	struct ucred who;
	socklen_t bytes = sizeof(who);

	if (!uq->peer_pid && getsockopt(peer->fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0)
		uq->peer_pid = who.pid;
	return uq->peer_pid;
}

/* Sets `to` to the local pieces of the WQE that hold bytes [from, from + count) of its message. */
static unsigned pieces(const struct soft_op *op, uint64_t from, uint64_t count, struct iovec *to)
{
	unsigned n = 0;

	for (unsigned i = 0; i < op->sges && count; i++) {
		uint64_t skip = from < op->sge[i].bytes ? from : op->sge[i].bytes;
		uint64_t bytes = op->sge[i].bytes - skip;

		from -= skip;
		bytes = bytes < count ? bytes : count;
		if (!bytes)
			continue;
		to[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)(op->sge[i].address + skip),
			.iov_len = bytes};
		count -= bytes;
	}
	return n;
}

/* Returns the result of a move of payload; `error` is 0 or an errno. */
static enum soft_result outcome(struct dv_qp *qp, const struct soft_op *op, int error)
{
	if (error == ESRCH)
		return SOFT_DEAD;
	if (error || !dv_guard_held(&qp->peer->table->mrs[op->rkey >> 8].rkey, op->rkey))
		return SOFT_REFUSED;
	return SOFT_DONE;
}

/* ---- READs moved together -------------------------------------------------------------------- */

static bool gathers(const struct dv_qp *qp, const struct soft_op *op, uint64_t count)
{
	return op->opcode == MLX5_OPCODE_RDMA_READ && count == op->total && !qp->nic->faulty &&
	       !uv_device_of(qp->nic)->odd;
}

static bool has_room(const struct uv_batch *batch, const struct soft_op *op)
{
	return batch->reads < UV_BATCH_READS && batch->locals + op->sges <= UV_BATCH_PIECES &&
	       batch->bytes + op->total <= UV_BATCH_BYTES;
}

static void gather(struct uv_batch *batch, struct soft_op *op)
{
	struct iovec *last = batch->fars ? &batch->far[batch->fars - 1] : NULL;

	if (last && (uintptr_t)last->iov_base + last->iov_len == op->remote)
		last->iov_len += op->total;
	else
		batch->far[batch->fars++] = (struct iovec){
			.iov_base = (void *)(uintptr_t)op->remote, .iov_len = op->total};
	batch->locals += pieces(op, 0, op->total, &batch->local[batch->locals]);
	batch->bytes += op->total;
	batch->op[batch->reads++] = op;
}

/*
 * Moves one READ of a batch by itself, because its memory, or that of an earlier READ, is not
 * mapped.
 */
static int copy_alone(struct dv_qp *qp, const struct soft_op *op)
{
	struct iovec local[SOFT_SGES_MAX];

	return copy(peer_pid(qp->foreign, qp->peer), local, pieces(op, 0, op->total, local),
		op->remote, op->total, false);
}

static bool settle(struct dv_qp *qp, struct soft_op *op, enum soft_result result)
{
	op->moved = op->total;
	op->waited = false;
	if (result == SOFT_DONE)
		soft_op_done(qp, op);
	else
		soft_op_fail(op,
			result == SOFT_DEAD ? DV_SYNDROME_RETRY_EXCEEDED
					    : DV_SYNDROME_REMOTE_ACCESS,
			0);
	return result == SOFT_DONE;
}

/*
 * Moves the gathered READs. False: one failed; those before it are done, those after it are reset
 * to not started.
 */
static bool move_gathered(struct dv_qp *qp)
{
	struct uv_batch *batch = &uv_device_of(qp->nic)->batch;
	unsigned reads = batch->reads;
	bool good = true;
	ssize_t n;

	if (!reads)
		return true;
	n = process_vm_readv(peer_pid(qp->foreign, qp->peer), batch->local, batch->locals,
		batch->far, batch->fars, 0);
	for (unsigned i = 0; i < reads; i++) {
		struct soft_op *op = batch->op[i];
		enum soft_result result = SOFT_DONE;

		if (!good) {
			op->state = OP_NEW;
			continue;
		}
		if (n >= (ssize_t)op->total) {
			n -= (ssize_t)op->total;
			result = outcome(qp, op, 0);
		} else {
			n = 0;
			result = outcome(qp, op, copy_alone(qp, op));
		}
		good = settle(qp, op, result);
	}
	batch->reads = batch->locals = batch->fars = 0;
	batch->bytes = 0;
	return good;
}

void uv_gathered(struct dv_qp *qp)
{
	move_gathered(qp);
}

/* ---- one at a time --------------------------------------------------------------------------- */

/* Copies a WQE's payload from or to remote memory that is mapped in this process at `far`. */
static enum soft_result copy_mapped(
	struct dv_qp *qp, struct soft_op *op, uint8_t *far, uint64_t from, uint64_t count)
{
	struct iovec local[SOFT_SGES_MAX];
	unsigned locals = pieces(op, from, count, local);

	if (!move_gathered(qp))
		return SOFT_RETRY;
	for (unsigned i = 0; i < locals; far += local[i++].iov_len)
		if (op->opcode == MLX5_OPCODE_RDMA_READ)
			soft_copy(local[i].iov_base, far, local[i].iov_len);
		else
			soft_copy(far, local[i].iov_base, local[i].iov_len);
	return outcome(qp, op, 0);
}

/* ---- memory that another process has registered ---------------------------------------------- */

/* Whether a segment of the WQE is in memory of another process, or in a dma-buf. */
static bool crosses(const struct dv_qp *qp, const struct soft_op *op)
{
	const struct uv_mr *mr;

	for (unsigned i = 0; i < op->sges; i++)
		if (!(op->inlined & 1u << i) && uv_mr_of(qp, op->sge[i].lkey, &mr) &&
			(mr->memory >= 0 || mr->map))
			return true;
	return false;
}

/*
 * Moves one piece between `bytes` and a segment. The memory of a process that has ended, or that it
 * has unmapped, is pinned on a real host and used no more: here the bytes are lost.
 */
static void piece_move(const struct dv_qp *qp, const struct soft_op *op, unsigned sge,
	uint64_t address, uint8_t *bytes, uint64_t count)
{
	bool read = op->opcode == MLX5_OPCODE_RDMA_READ;
	const struct uv_mr *mr = NULL;
	uint8_t *at = (uint8_t *)(uintptr_t)address;

	if (!(op->inlined & 1u << sge))
		(void)uv_mr_of(qp, op->sge[sge].lkey, &mr);
	if (mr && mr->map)
		at = mr->map + mr->map_skip + (address - (uintptr_t)mr->mr.base);
	if (!mr || mr->map || mr->memory < 0)
		soft_copy(read ? at : bytes, read ? bytes : at, count);
	else if (read)
		(void)!pwrite(mr->memory, bytes, count, (off_t)address);
	else
		(void)!pread(mr->memory, bytes, count, (off_t)address);
}

/* Moves a WQE's payload, of which a part is in memory of another process, through a buffer. */
static enum soft_result copy_across(
	struct dv_qp *qp, struct soft_op *op, uint64_t remote, uint64_t from, uint64_t count)
{
	static _Thread_local uint8_t buffer[1u << 17];
	bool write = op->opcode != MLX5_OPCODE_RDMA_READ;
	int pid = peer_pid(qp->foreign, qp->peer), rc = 0;

	for (unsigned i = 0; i < op->sges && count && !rc; i++) {
		uint64_t skip = from < op->sge[i].bytes ? from : op->sge[i].bytes;
		uint64_t at = op->sge[i].address + skip, left = op->sge[i].bytes - skip;

		from -= skip;
		left = left < count ? left : count;
		count -= left;
		while (left && !rc) {
			uint64_t n = left < sizeof(buffer) ? left : sizeof(buffer);
			struct iovec iov = {buffer, n};

			if (write)
				piece_move(qp, op, i, at, buffer, n);
			rc = copy(pid, &iov, 1, remote, n, write);
			if (!rc && !write)
				piece_move(qp, op, i, at, buffer, n);
			at += n;
			remote += n;
			left -= n;
		}
	}
	return outcome(qp, op, rc);
}

enum soft_result uv_move_plain(struct dv_qp *qp, struct soft_op *op, uint64_t from, uint64_t count)
{
	struct uv_batch *batch = &uv_device_of(qp->nic)->batch;
	struct soft_peer *peer = qp->peer;
	struct iovec local[SOFT_SGES_MAX];
	struct soft_export_mr mr = {0};
	struct soft_ask ask;
	enum soft_result result;
	uint8_t *at;

	if (uv_device_of(qp->nic)->down)
		return SOFT_RETRY;
	if (peer->state == PEER_DEAD)
		return SOFT_DEAD;
	if (peer->state == PEER_ABSENT)
		soft_link_want(qp->nic, peer);
	if (peer->state != PEER_UP)
		return SOFT_RETRY;
	soft_ask_of(qp, op, &ask);
	result = soft_mr_check(peer->table, &ask, &mr);
	if (result != SOFT_DONE || !count)
		return result;
	if (op->opcode == MLX5_OPCODE_RDMA_READ && op->total > uv_device_of(qp->nic)->move_max)
		return move_gathered(qp) ? outcome(qp, op, 0) : SOFT_RETRY;
	if (crosses(qp, op))
		return move_gathered(qp) ? copy_across(qp, op, ask.address + from, from, count)
					 : SOFT_RETRY;
	if (mr.file && soft_shm_place(qp, &ask, &mr, &at) == SOFT_DONE)
		return copy_mapped(qp, op, at + from, from, count);
	if (gathers(qp, op, count) && has_room(batch, op)) {
		gather(batch, op);
		return SOFT_SENT;
	}
	if (!move_gathered(qp))
		/* a READ before this WQE in the batch failed, so this WQE is flushed */
		return SOFT_RETRY;
	return outcome(qp, op,
		copy(peer_pid(qp->foreign, peer), local, pieces(op, from, count, local),
			ask.address + from, count, ask.access == DV_REMOTE_WRITE));
}
