/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What posting requests (post.c) and posting runs (run_post.c) share: the choice of a QP, and the
 * WQE with its record. Poll core only; the hot path.
 *
 * Which QP: with two or more QPs, the last one never gets a long READ, so on it a bucket or a page
 * head never waits behind a long one. A NIC executes 16 READs of a QP at a time and queues the rest
 * behind them, so long READs go to one QP until it has RAIL_BULK_BYTES, then to the QP with the
 * fewest bytes; few QPs mean few touched cache lines. Small READs go to one QP until its next
 * signalled WQE: pages that lie side by side then complete together, and one READ fetches their
 * heads.
 *
 * Which WQEs request a CQE: on each QP, a READ that brings the bytes posted since the last of these
 * to a limit (RAIL_SIGNAL_BYTES, for runs RUN_SIGNAL_BYTES) or their number to RAIL_SIGNAL_WQES;
 * and always the last WQE before a doorbell (step.c), so that no completion depends on a WQE that
 * may never be posted.
 */
#ifndef RAIL_POST_H
#define RAIL_POST_H

#include "engine/rail/core.h"

/* post.c: the slow parts of conn_pick(). */
struct conn_qp *pick_bulk(struct conn *conn);
struct conn_qp *pick_shortest(struct conn *conn);

/*
 * post.c: cuts a destination of `bytes` bytes from region offset `at` on at the end of its first
 * extent. Returns the bytes in that extent, and its lkey.
 */
uint32_t cut_at_extent(
	const struct rail *rail, uint32_t id, uint64_t at, uint32_t bytes, uint32_t *ret_lkey);

static inline uint32_t qp_outstanding(const struct conn_qp *qp)
{
	return qp->sq->pi - qp->sq->ci;
}

/* Is there room for the largest WQE? */
static inline bool qp_has_room(const struct conn_qp *qp)
{
	return qp_outstanding(qp) + dv_wqe_blocks(DV_SGES_MAX) <= qp->blocks_max;
}

/* One connection gets at most half of the CQ, so that a peer that hangs cannot block the others. */
static inline bool conn_has_room(const struct conn *conn)
{
	return conn->wqes < CQ_DEPTH / 2;
}

/*
 * The QP for the connection's next READ of `bytes`; NULL: there is no room for the largest WQE now.
 * Long READs go to the QP of the last one until it has RAIL_BULK_BYTES.
 */
static inline struct conn_qp *conn_pick(struct conn *conn, uint32_t bytes)
{
	struct conn_qp *small = conn->small;

	if (unlikely(!conn_has_room(conn)))
		return NULL;
	if (bytes > RAIL_SMALL_BYTES) {
		struct conn_qp *bulk = conn->bulk;

		return likely(bulk && bulk->bulk_bytes + bytes <= RAIL_BULK_BYTES &&
			       qp_has_room(bulk))
			       ? bulk
			       : pick_bulk(conn);
	}
	if (likely(small && small->silent && !small->bulk_bytes && qp_has_room(small)))
		return small;
	return pick_shortest(conn);
}

/*
 * Accounts for the next WQE of the QP and returns its signalling flags: a CQE is requested after
 * RAIL_SIGNAL_WQES WQEs or `signal_bytes` without one.
 */
static inline uint8_t signal_of(struct conn_qp *qp, uint32_t bytes, uint32_t signal_bytes)
{
	qp->silent++;
	qp->silent_bytes += bytes;
	if (qp->silent < RAIL_SIGNAL_WQES && qp->silent_bytes < signal_bytes)
		return DV_CE_ERROR_ONLY;
	qp->silent = qp->silent_bytes = 0;
	return DV_CE_ALWAYS;
}

/*
 * Accounts for `n` WQEs of `bytes` together that were posted to the QP; the doorbell follows in
 * rail_ring(). `bulk`: they are long READs.
 */
static inline void qp_posted(
	struct rail *rail, struct conn_qp *qp, uint32_t n, uint32_t bytes, bool bulk)
{
	struct conn *conn = qp->conn;

	if (!conn->wqes)
		conn->begun = false;
	conn->wqes += n;
	rail->wqes += n;
	if (bulk)
		qp->bulk_bytes += bytes;
	conn->bytes += bytes;
	if (likely(!conn->stalled))
		rail->posted_bytes += bytes;
	if (!qp->unrung) {
		qp->unrung = true;
		qp->rung_next = rail->unrung;
		rail->unrung = qp;
	}
}

/*
 * Writes one READ to the send queue and records its length; the doorbell follows in rail_ring().
 * Returns the record, in which the caller stores what the READ is for. Eight parameters: it is
 * inlined, so that they stay in registers.
 */
static inline struct wqe *post_wqe(struct rail *rail, struct conn_qp *qp,
	const struct rail_remote *remote, uint64_t offset, const struct dv_sge *sge, unsigned sges,
	uint32_t bytes, uint32_t signal_bytes)
{
	uint64_t at = remote->base + offset;
	uint8_t flags = signal_of(qp, bytes, signal_bytes);
	uint32_t index;
	struct wqe *wqe;

	if (likely(sges == 1)) /* constant 1: the compiler removes the loop over the SGEs */
		index = dv_post(qp->sq, DV_READ, at, remote->rkey, sge, 1, flags);
	else
		index = dv_post(qp->sq, DV_READ, at, remote->rkey, sge, sges, flags);
	wqe = &qp->wqe[index & (QP_DEPTH - 1)];
	wqe->bytes = bytes;
	wqe->blocks = (uint8_t)(qp->sq->pi - index);
	for (uint32_t i = 1; unlikely(i < wqe->blocks); i++)
		qp->wqe[(index + i) & (QP_DEPTH - 1)].blocks = 0;
	qp_posted(rail, qp, 1, bytes, bytes > RAIL_SMALL_BYTES);
	return wqe;
}

/*
 * run_post.c: post up to `burst` WQEs of the connection's runs: payload, lot by lot; page heads.
 * Return how many.
 */
unsigned post_runs(struct rail *rail, struct conn *conn, unsigned burst);
unsigned post_run_heads(struct rail *rail, struct conn *conn, unsigned burst);

#endif
