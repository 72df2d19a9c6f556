/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link to other hosts, requesting side: receives answers directly into the READs' destinations.
 * Run only by the service thread. A destination is written only under rx_lock and while its WQE
 * waits.
 */
#include <errno.h>
#include <sys/socket.h>

#include "config/clock.h"
#include "dv/soft/check.h"
#include "dv/soft/tcp.h"

/* limit of one recvmsg(), which bounds how long rx_lock is held */
#define RECEIVE_BYTES (256u << 10)
#define RECEIVES_MAX 64u /* recvmsg() calls for one peer before other peers are served */

/* Finds the WQE that waits for the answer `id`; NULL: none does any more. Under nic->lock. */
static struct soft_op *find_op(
	struct dv_device *nic, uint64_t id, struct dv_qp **ret_qp, uint32_t *ret_n)
{
	struct dv_qp *qp = nic->qp_slots[id % SOFT_QPS_MAX];

	for (uint32_t n = qp ? qp->head : 0; qp && n != qp->tail; n++) {
		struct soft_op *op = soft_op(qp, n);

		if (op->id != id || op->state != OP_SENT)
			continue;
		*ret_qp = qp;
		*ret_n = n;
		return op;
	}
	return NULL;
}

/*
 * Sets where the answer's payload is received to. False: the destination is not registered any
 * more.
 */
static bool aim(struct dv_device *nic, struct soft_peer *peer, const struct soft_op *op)
{
	peer->rx_to_count = peer->rx_to_at = 0;
	for (unsigned i = 0; i < op->sges; i++) {
		uint8_t *at = soft_mr_local(nic, &op->sge[i], true);

		if (!at)
			return false;
		peer->rx_to[peer->rx_to_count++] =
			(struct iovec){.iov_base = at, .iov_len = op->sge[i].bytes};
	}
	return true;
}

/* Completes the WQE: the answer's payload has arrived, or it has none. */
static void finish(struct dv_device *nic, struct soft_peer *peer)
{
	struct dv_qp *qp;
	struct soft_op *op;
	uint32_t n;

	soft_lock(nic);
	op = find_op(nic, peer->rx_id, &qp, &n);
	if (op) {
		op->id = 0;
		op->waited = false;
		soft_op_done(qp, op);
	}
	pthread_mutex_lock(&peer->rx_lock);
	peer->rx_id = 0;
	peer->rx_live = false;
	pthread_mutex_unlock(&peer->rx_lock);
	soft_unlock(nic);
}

/* Evaluates the header of an answer. False: the header is invalid, so the link must be closed. */
static bool begin(struct dv_device *nic, struct soft_peer *peer, const struct tcp_answer *answer)
{
	struct dv_qp *qp = NULL;
	struct soft_op *op;
	bool good = answer->magic == TCP_MAGIC && answer->length <= SOFT_LENGTH_MAX, live = false;
	uint32_t n = 0;

	soft_lock(nic);
	op = good ? find_op(nic, answer->id, &qp, &n) : NULL;
	if (op && qp->peer != peer)
		good = false; /* the answer names a WQE that waits for another peer */
	else if (op && answer->result == SOFT_DONE) {
		good = answer->length == op->total;
		live = good && aim(nic, peer, op);
	} else if (op && answer->result == SOFT_RETRY) {
		op->id = 0;
		soft_op_retry(qp, n);
	} else if (op) {
		op->id = 0;
		soft_op_fail(op, DV_SYNDROME_REMOTE_ACCESS, 0);
	}
	pthread_mutex_lock(&peer->rx_lock);
	peer->rx_id = answer->id;
	peer->rx_left = answer->length;
	peer->rx_live = live;
	pthread_mutex_unlock(&peer->rx_lock);
	soft_unlock(nic);
	if (good && peer->rx_left == 0)
		finish(nic, peer);
	return good;
}

/* Counts `bytes` of payload that were received into their destination. */
static void advance(struct soft_peer *peer, size_t bytes)
{
	peer->rx_left -= bytes;
	while (bytes && peer->rx_to_at < peer->rx_to_count) {
		struct iovec *to = &peer->rx_to[peer->rx_to_at];
		size_t n = bytes < to->iov_len ? bytes : to->iov_len;

		to->iov_base = (uint8_t *)to->iov_base + n;
		to->iov_len -= n;
		bytes -= n;
		if (to->iov_len == 0)
			peer->rx_to_at++;
	}
}

/*
 * Takes payload that arrived in the buffer behind a header: copies it, or drops it if its WQE is
 * gone.
 */
static void take_payload(struct soft_peer *peer)
{
	size_t have = peer->rx_tail - peer->rx_head;

	have = have < peer->rx_left ? have : peer->rx_left;
	pthread_mutex_lock(&peer->rx_lock);
	while (have) {
		struct iovec *to = &peer->rx_to[peer->rx_to_at];
		size_t n = have;

		if (peer->rx_live) {
			n = n < to->iov_len ? n : to->iov_len;
			soft_copy(to->iov_base, peer->rx + peer->rx_head, n);
			advance(peer, n);
		} else {
			peer->rx_left -= n;
		}
		peer->rx_head += n;
		have -= n;
	}
	pthread_mutex_unlock(&peer->rx_lock);
}

/* Processes all answers in the receive buffer. False: an answer is invalid. */
static bool digest(struct dv_device *nic, struct soft_peer *peer)
{
	struct tcp_answer answer;

	for (;;) {
		if (peer->rx_left) {
			take_payload(peer);
			if (peer->rx_left)
				break;
			finish(nic, peer);
		}
		if (peer->rx_tail - peer->rx_head < sizeof(answer))
			break;
		memcpy(&answer, peer->rx + peer->rx_head, sizeof(answer));
		peer->rx_head += sizeof(answer);
		if (!begin(nic, peer, &answer))
			return false;
	}
	memmove(peer->rx, peer->rx + peer->rx_head, peer->rx_tail - peer->rx_head);
	peer->rx_tail -= peer->rx_head;
	peer->rx_head = 0;
	return true;
}

/*
 * One recvmsg(): receives the rest of the current payload to its destination and further bytes to
 * the buffer.
 */
static ssize_t receive(struct soft_peer *peer)
{
	struct iovec parts[SOFT_SGES_MAX + 1];
	struct msghdr packet = {.msg_iov = parts};
	size_t direct = 0;
	ssize_t n;

	pthread_mutex_lock(&peer->rx_lock);
	if (peer->rx_left && peer->rx_live)
		for (unsigned i = peer->rx_to_at; i < peer->rx_to_count; i++) {
			struct iovec part = peer->rx_to[i];

			if (part.iov_len > RECEIVE_BYTES - direct)
				part.iov_len = RECEIVE_BYTES - direct;
			if (part.iov_len == 0)
				break;
			direct += part.iov_len;
			parts[packet.msg_iovlen++] = part;
		}
	if (direct == (peer->rx_live ? peer->rx_left : 0))
		parts[packet.msg_iovlen++] = (struct iovec){.iov_base = peer->rx + peer->rx_tail,
			.iov_len = SOFT_RX_BYTES - peer->rx_tail};
	n = recvmsg(peer->fd, &packet, MSG_DONTWAIT);
	if (n > 0) {
		size_t placed = (size_t)n < direct ? (size_t)n : direct;

		advance(peer, placed);
		peer->rx_tail += (size_t)n - placed;
	}
	pthread_mutex_unlock(&peer->rx_lock);
	return n;
}

void soft_tcp_receive(struct dv_device *nic, struct soft_peer *peer)
{
	for (unsigned turn = 0; turn < RECEIVES_MAX && peer->fd >= 0; turn++) {
		bool was_payload = peer->rx_left != 0;
		ssize_t n = receive(peer);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		dv_hint_store64(&peer->progress_ns, clock_monotonic_ns());
		if (n > 0 && was_payload && peer->rx_left == 0)
			finish(nic, peer);
		if (n > 0 && digest(nic, peer))
			continue;
		soft_lock(nic);
		soft_peer_dead(nic, peer);
		soft_unlock(nic);
	}
}
