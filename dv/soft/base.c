/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the other files of this folder call and what calls none of them: the lock and the clock of a
 * NIC, its counters, how a WQE fails and a peer is lost, the remedy of an error. So the others
 * depend on each other in one direction.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/text_fit.h"
#include "dv/soft/check.h"

/* ---- lock, clock, counters ------------------------------------------------------------------- */

/*
 * Locks the NIC for a setup caller, which counts itself in nic->waiting, so that a busy poll core
 * yields in step().
 */
void soft_lock(struct dv_device *nic)
{
	dv_hint_add(&nic->waiting, 1);
	pthread_mutex_lock(&nic->lock);
	dv_hint_add(&nic->waiting, -1);
}

void soft_unlock(struct dv_device *nic)
{
	pthread_mutex_unlock(&nic->lock);
}

/* Sets the step's time from `now_ns`, by the NIC's own clock, which never goes back. */
void soft_step_at(struct dv_device *nic, uint64_t now_ns)
{
	uint64_t ns = now_ns - nic->behind_ns;

	nic->step_ns = nic->last_ns = ns > nic->last_ns ? ns : nic->last_ns;
}

/*
 * Returns the time of this step. Only steps that need it read the clock; NICs stepped together
 * share it.
 */
uint64_t soft_step_ns(struct dv_device *nic)
{
	if (!nic->step_ns)
		soft_step_at(nic, nic->clock ? *nic->clock : clock_monotonic_ns());
	return nic->step_ns;
}

const char *soft_remedy(int error)
{
	return error == -EMFILE ? "; raise ulimit -n or LimitNOFILE=" : "";
}

void soft_blame(struct dv_device *nic, uint64_t *counter, const char *format, ...)
{
	va_list arguments;

	++*counter;
	va_start(arguments, format);
	text_vfit(nic->stats.reason, sizeof(nic->stats.reason), format, arguments);
	va_end(arguments);
}

/* Returns the next random number: splitmix64. */
uint64_t soft_random(struct dv_device *nic)
{
	uint64_t z = nic->random += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/* ---- WQEs ------------------------------------------------------------------------------------ */

void soft_op_fail(struct soft_op *op, uint8_t syndrome, uint8_t vendor)
{
	op->state = OP_FAILED;
	op->syndrome = syndrome;
	op->vendor = vendor;
}

void soft_ask_of(const struct dv_qp *qp, const struct soft_op *op, struct soft_ask *ret_ask)
{
	*ret_ask = (struct soft_ask){
		.dest_qpn = qp->remote.qpn,
		.dest_psn = qp->remote.psn,
		.src_qpn = qp->qpn,
		.src_psn = qp->psn,
		.rkey = op->rkey,
		.access = op->opcode == MLX5_OPCODE_RDMA_READ ? DV_REMOTE_READ : DV_REMOTE_WRITE,
		.address = op->remote,
		.length = op->total,
	};
}

/*
 * The NIC reads memory that its owner may be writing: one-sided access allows that, and page heads
 * exist to detect it. It is not a data race of the program, so ThreadSanitizer must not report it:
 * under it the bytes are moved by an uninstrumented loop (it intercepts memcpy() even in this
 * function).
 */
#ifdef DV_UNDER_TSAN
__attribute__((no_sanitize("thread"))) void soft_copy(void *to, const void *from, size_t bytes)
{
	/* volatile keeps the compiler from turning the loop into memcpy() */
	volatile uint8_t *out = to;
	const volatile uint8_t *in = from;

	for (size_t i = 0; i < bytes; i++)
		out[i] = in[i];
}
#else
/*
 * Copies `bytes`. Constant sizes of a page head (32) and a directory bucket (64) avoid the call to
 * memcpy().
 */
void soft_copy(void *to, const void *from, size_t bytes)
{
	if (bytes == 32)
		memcpy(to, from, 32);
	else if (bytes == 64)
		memcpy(to, from, 64);
	else
		memcpy(to, from, bytes);
}
#endif

/*
 * Cancels a request in flight. The caller holds nic->lock; rx_lock stops the service thread, which
 * writes the answer's payload under it.
 */
void soft_tcp_cancel(struct dv_qp *qp, struct soft_op *op)
{
	struct soft_peer *peer = qp->peer;

	if (!op->id || !peer)
		return;
	pthread_mutex_lock(&peer->rx_lock);
	if (peer->rx_id == op->id)
		peer->rx_live = false;
	pthread_mutex_unlock(&peer->rx_lock);
	op->id = 0;
}

/* ---- peers ----------------------------------------------------------------------------------- */

void soft_link_wake(struct dv_device *nic)
{
	uint64_t one = 1;
	ssize_t rc = write(nic->wake_fd, &one, sizeof(one));

	(void)rc; /* the write fails only if the eventfd is full; it is readable then */
}

void soft_link_want(struct dv_device *nic, struct soft_peer *peer)
{
	if (peer->wanted)
		return;
	peer->wanted = true;
	soft_link_wake(nic);
}

/*
 * The link to the peer is lost. WQEs that wait for an answer fail here; those not started fail when
 * they are next tried.
 */
void soft_peer_dead(struct dv_device *nic, struct soft_peer *peer)
{
	if (peer->fd >= 0)
		close(peer->fd);
	peer->fd = -1;
	if (peer->state == PEER_ABSENT || (nic->tcp && peer->state == PEER_GREETED)) {
		/* the peer was never connected, so connecting is tried again */
		peer->state = PEER_ABSENT;
		return;
	}
	if (nic->hooks)
		nic->hooks->step(nic); /* takes the answers that arrived before the link was lost */
	peer->state = PEER_DEAD;
	for (unsigned i = 0; i < nic->qp_count; i++) {
		struct dv_qp *qp = nic->qps[i];

		for (uint32_t n = qp->head; qp->peer == peer && n != qp->tail; n++) {
			struct soft_op *op = soft_op(qp, n);

			if (op->state != OP_SENT)
				continue;
			soft_tcp_cancel(qp, op);
			soft_op_fail(op, DV_SYNDROME_RETRY_EXCEEDED, 0);
		}
	}
}
