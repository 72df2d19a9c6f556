/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SEND, immediate data and atomics need the remote NIC's work: a request goes to it in a datagram
 * and an answer comes back; the payload is copied from the requester's memory. The socket's
 * abstract name contains the NIC's number, which makes it unique on the host and free when the
 * process ends. Run by the NIC's thread, under nic->lock.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/connectx/uverbs.h"
#include "dv/soft/check.h"

#define MESSAGES_MAX 32u      /* messages that one step receives, at most */
#define AGAIN_NS 500000000ull /* time without an answer after which a request is retransmitted */
#define AGAIN_MAX 8u
#define NOT_READY_NS 200000u

static socklen_t name_of(uint16_t number, struct sockaddr_un *ret_name)
{
	int n;

	*ret_name = (struct sockaddr_un){.sun_family = AF_UNIX};
	n = snprintf(
		ret_name->sun_path + 1, sizeof(ret_name->sun_path) - 1, "soft-connectx-%u", number);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int uv_message_open(uint16_t number)
{
	struct sockaddr_un name;
	socklen_t bytes = name_of(number, &name);
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, rc;

	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0 &&
		bind(fd, (struct sockaddr *)&name, bytes) == 0)
		return fd;
	rc = -errno;
	close(fd);
	return rc;
}

/*
 * Sends a message to NIC `number`. False: the peer's queue is full, or (`ret_gone`) the peer does
 * not exist.
 */
bool uv_message_send(const struct uv_device *device, uint16_t number,
	const struct uv_message *message, bool *ret_gone)
{
	struct sockaddr_un name;
	socklen_t bytes = name_of(number, &name);
	ssize_t n = sendto(device->message_fd, message, sizeof(*message),
		MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&name, bytes);

	*ret_gone = n < 0 && errno == ECONNREFUSED;
	return n == sizeof(*message);
}

/* ---- requesting ------------------------------------------------------------------------------ */

static void request_of(
	const struct dv_qp *qp, const struct soft_op *op, uint64_t id, struct uv_message *ret)
{
	*ret = (struct uv_message){
		.magic = UV_MESSAGE_MAGIC,
		.kind = UV_REQUEST,
		.dest_qpn = qp->remote.qpn,
		.src_qpn = qp->qpn,
		.src_psn = qp->psn,
		.src_number = uv_device_of(qp->nic)->number,
		.rkey = op->rkey,
		.id = id,
		.remote = op->remote,
		.length = op->total,
		.swap_add = op->swap_add,
		.compare = op->compare,
		.imm = op->imm,
		.opcode = op->opcode,
		.solicited = !!(op->flags & MLX5_WQE_CTRL_SOLICITED),
		.pieces = op->sges,
	};
	for (unsigned i = 0; i < op->sges; i++) {
		ret->piece[i].address = op->sge[i].address;
		ret->piece[i].bytes = op->sge[i].bytes;
	}
}

enum soft_result uv_message_ask(struct dv_qp *qp, struct soft_op *op)
{
	struct uv_qp *uq = qp->foreign;
	struct uv_message message;
	bool gone;

	if (qp->peer->state == PEER_DEAD)
		return SOFT_DEAD;
	if (qp->peer->state == PEER_ABSENT)
		/* opens a link to the peer only to learn from its end that the peer died */
		soft_link_want(qp->nic, qp->peer);
	if (qp->peer->state != PEER_UP)
		return SOFT_RETRY;
	request_of(qp, op, ++qp->nic->id_last, &message);
	if (!uv_message_send(uv_device_of(qp->nic), uq->peer_number, &message, &gone))
		return SOFT_RETRY;
	uq->wait = (struct uv_wait){.on = true, .n = qp->executed, .id = message.id};
	op->sent_ns = soft_step_ns(qp->nic);
	return SOFT_SENT;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Returns the duration in ns of an RNR timer code: IBTA 1.4, table 45, in units of 10 us. */
static uint64_t rnr_ns(uint32_t code)
{
	static const uint16_t tens[32] = {65535, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128,
		192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384,
		24576, 32768, 49152};

	return tens[code & 31] * 10000ull;
}

/*
 * Makes WQE number `n` of the QP's window the next to execute, at the earliest `wait_ns` from now.
 */
static void go_back(struct dv_qp *qp, uint32_t n, uint64_t wait_ns)
{
	struct soft_op *op = soft_op(qp, n);

	op->state = OP_NEW;
	op->retry_ns = soft_step_ns(qp->nic) + wait_ns;
	soft_go_back(qp, n);
}

static void finish(struct dv_qp *qp, struct soft_op *op, const struct uv_message *message)
{
	struct uv_qp *uq = qp->foreign;
	uint8_t *to;

	if (op->opcode == MLX5_OPCODE_ATOMIC_CS || op->opcode == MLX5_OPCODE_ATOMIC_FA) {
		to = soft_mr_local(qp->nic, &op->sge[0], true);
		if (!to) {
			soft_op_fail(op, DV_SYNDROME_LOCAL_PROTECTION, 0);
			return;
		}
		memcpy(to, &message->result, sizeof(message->result));
	}
	uq->rnr_left = uq->attributes.rnr_retry;
	soft_op_done(qp, op);
}

static unsigned take_answer(struct dv_device *nic, const struct uv_message *message)
{
	struct dv_qp *qp = soft_qp_find(nic, message->dest_qpn);
	struct uv_qp *uq = qp ? qp->foreign : NULL;
	struct soft_op *op;

	if (!uq || !uq->wait.on || uq->wait.id != message->id)
		return 0;
	uq->wait.on = false;
	op = soft_op(qp, uq->wait.n);
	if (op->state != OP_SENT)
		/* nothing to complete: the WQE was flushed, or its region was deregistered */
		return 0;
	switch (message->status) {
	case UV_OK: finish(qp, op, message); break;
	case UV_NOT_READY:
		soft_op_retry(qp, uq->wait.n);
		op->retry_ns = soft_step_ns(nic) + NOT_READY_NS;
		break;
	case UV_RNR:
		if (uq->attributes.rnr_retry != 7 && uq->rnr_left-- == 0)
			soft_op_fail(op, DV_SYNDROME_RNR_RETRY_EXCEEDED, 0);
		else
			go_back(qp, uq->wait.n, rnr_ns(message->timer));
		break;
	case UV_REMOTE_ACCESS: soft_op_fail(op, DV_SYNDROME_REMOTE_ACCESS, 0); break;
	case UV_REMOTE_INVALID: soft_op_fail(op, DV_SYNDROME_REMOTE_INVALID_REQUEST, 0); break;
	default: soft_op_fail(op, DV_SYNDROME_REMOTE_OP, 0);
	}
	return 1;
}

/* ---- requests -------------------------------------------------------------------------------- */

static enum uv_status execute(struct dv_device *nic, struct uv_qp *uq, struct uv_message *answer,
	const struct uv_message *message, int pid)
{
	bool atomic = message->opcode == MLX5_OPCODE_ATOMIC_CS ||
		      message->opcode == MLX5_OPCODE_ATOMIC_FA;

	if (!uq || uq->qp->state == SOFT_ERROR ||
		(uq->state != IBV_QPS_RTR && uq->state != IBV_QPS_RTS) ||
		uq->attributes.dest_qp_num != message->src_qpn ||
		uq->attributes.rq_psn != message->src_psn ||
		uq->peer_number != message->src_number || message->pieces > UV_PIECES_MAX)
		return UV_NOT_READY;
	answer->timer = uq->attributes.min_rnr_timer;
	return atomic ? uv_atomic(nic, message, &answer->result) : uv_receive(uq, message, pid);
}

static void take_request(struct dv_device *nic, const struct uv_message *message, int pid)
{
	struct dv_qp *qp = soft_qp_find(nic, message->dest_qpn);
	struct uv_qp *uq = qp ? qp->foreign : NULL;
	struct uv_message answer = {.magic = UV_MESSAGE_MAGIC,
		.kind = UV_ANSWER,
		.dest_qpn = message->src_qpn,
		.id = message->id};
	bool gone;

	if (uq && uq->last_id == message->id && uq->peer_number == message->src_number) {
		/* a retransmitted request is not executed again but gets the first answer again */
		answer = uq->answer;
	} else {
		answer.status = execute(nic, uq, &answer, message, pid);
		if (uq && answer.status != UV_NOT_READY && answer.status != UV_RNR) {
			uq->last_id = message->id;
			uq->answer = answer;
		}
	}
	if (uv_message_send(uv_device_of(nic), message->src_number, &answer, &gone) || gone || !uq)
		return;
	uq->answer = answer;
	uq->answer_on = true;
}

/* ---- the socket ------------------------------------------------------------------------------ */

/*
 * Receives a message. Returns the sender's pid as the kernel reports it; 0: no message; -1:
 * invalid.
 */
static int receive(const struct uv_device *device, struct uv_message *ret_message)
{
	struct iovec part = {.iov_base = ret_message, .iov_len = sizeof(*ret_message)};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(struct ucred))];
	} control = {0};
	struct msghdr packet = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(device->message_fd, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *header = n < 0 ? NULL : CMSG_FIRSTHDR(&packet);
	struct ucred who;

	if (n < 0)
		return 0;
	if (n != sizeof(*ret_message) || ret_message->magic != UV_MESSAGE_MAGIC || !header ||
		header->cmsg_type != SCM_CREDENTIALS)
		return -1;
	memcpy(&who, CMSG_DATA(header), sizeof(who));
	return who.uid == geteuid() || who.uid == 0 ? who.pid : -1;
}

/* What a test sends. */
static void take_change(struct uv_device *device, const struct uv_message *message)
{
	switch (message->kind) {
	case UV_PORT: uv_port_changed(device, message->status); break;
	case UV_GID: uv_gids_moved(device, message->status); break;
	case UV_GONE: uv_device_removed(device, message->status); break;
	}
}

void uv_message_idle(struct uv_device *device)
{
	struct uv_message message;
	int pid;

	while (!device->nic && (pid = receive(device, &message)) != 0)
		if (pid > 0)
			take_change(device, &message);
}

static void ask_again(struct dv_device *nic, struct dv_qp *qp)
{
	struct uv_qp *uq = qp->foreign;
	struct soft_op *op = soft_op(qp, uq->wait.n);
	uint64_t now = soft_step_ns(nic);
	struct uv_message message;
	bool gone;

	if (op->state != OP_SENT || now - op->sent_ns < AGAIN_NS)
		return;
	if (++uq->wait.again > AGAIN_MAX) {
		uq->wait.on = false;
		soft_op_fail(op, DV_SYNDROME_RETRY_EXCEEDED, 0);
		return;
	}
	op->sent_ns = now;
	request_of(qp, op, uq->wait.id, &message);
	uv_message_send(uv_device_of(nic), uq->peer_number, &message, &gone);
}

/* Receives messages and retransmits overdue requests. Returns the number of messages received. */
unsigned uv_message_poll(struct dv_device *nic)
{
	const struct uv_device *device = uv_device_of(nic);
	struct uv_message message;
	unsigned work = 0;
	bool gone;
	int pid;

	while (work < MESSAGES_MAX && (pid = receive(device, &message)) != 0) {
		work++;
		if (pid < 0)
			continue;
		if (message.kind == UV_REQUEST)
			take_request(nic, &message, pid);
		else if (message.kind == UV_ANSWER)
			take_answer(nic, &message);
		else
			take_change(uv_device(device->index), &message);
	}
	for (unsigned i = 0; i < nic->qp_count; i++) {
		struct uv_qp *uq = nic->qps[i]->foreign;

		if (uq->wait.on)
			ask_again(nic, nic->qps[i]);
		if (uq->answer_on)
			uq->answer_on =
				!uv_message_send(device, uq->peer_number, &uq->answer, &gone) &&
				!gone;
	}
	return work;
}
