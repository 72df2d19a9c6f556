/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READs of a run on one queue pair: series with one record (run_series.c), and READs of page heads
 * with a record each (run_heads.c). Poll core only; the hot path.
 */
#ifndef RAIL_RUN_SERIES_H
#define RAIL_RUN_SERIES_H

#include "engine/rail/post.h"

/*
 * The bytes of READs that the rail's budget allows now. Cannot starve: a rail with nothing posted
 * allows more than one slice.
 */
static inline uint32_t bytes_allowed(const struct rail *rail)
{
	return rail->posted_bytes < RUN_IN_FLIGHT_BYTES ? RUN_IN_FLIGHT_BYTES - rail->posted_bytes
							: 0;
}

/*
 * Clears the place of a page head before the READ of it. What an earlier READ has left there then
 * validates no page: no page of a run is of length 0.
 */
static inline void head_clear(struct page_head *head)
{
	head->length = 0;
}

/*
 * A READ to post, with one SGE. Pieces are collected first and posted then, so that each of the two
 * loops keeps its state in registers.
 */
struct piece {
	uint64_t from, into; /* addresses at the peer and here */
	uint32_t bytes;
	uint32_t pages;  /* the pages of the run that the READ completes, or whose heads it reads */
	uint32_t detail; /* wqe.first | wqe.landing << 16 */
	uint32_t end;    /* index of the page behind the last one */
};

#define PIECES_MAX RUN_SIGNAL_WQES /* a series ends with the WQE that requests a CQE */

/*
 * How many WQEs of one WQEBB a series on this QP may have: up to the next one with a CQE, but at
 * least two if there is room for them, so that a head can follow its payload.
 */
static inline unsigned series_max(const struct conn_qp *qp)
{
	unsigned left = RUN_SIGNAL_WQES - qp->silent, conn = CQ_DEPTH / 2 - qp->conn->wqes;
	unsigned room = qp->blocks_max - qp_outstanding(qp), max = left > 2 ? left : 2;

	max = max < conn ? max : conn;
	return max < room ? max : room;
}

/* Requests a CQE from the last WQE of a series if it is time for one. */
static inline void series_signal(struct conn_qp *qp)
{
	if (qp->silent < RUN_SIGNAL_WQES && qp->silent_bytes < RUN_SIGNAL_BYTES)
		return;
	dv_signal_last(qp->sq);
	qp->silent = qp->silent_bytes = 0;
}

/*
 * Posts `n` pieces to one QP, which has room for them; series_signal() follows behind the last
 * pieces that belong together. Eight parameters, in registers: hot path.
 */
static inline void post_series(struct rail *rail, struct conn_qp *qp, struct rail_run *run,
	const struct piece *piece, unsigned n, uint32_t rkey, uint32_t lkey, enum wqe_kind kind)
{
	uint32_t index = qp->sq->pi;
	struct dv_series series = dv_series_begin(qp->sq, n);
	struct dv_keys keys = dv_keys(rkey, lkey);
	uint32_t owner = wqe_owner(run->number, 1, kind), bytes = 0;
	bool bulk = piece->bytes > RAIL_SMALL_BYTES;

	for (const struct piece *end = piece + n; piece != end; piece++, index++) {
		dv_series_read(
			&series, keys, piece->from, piece->into, dv_length(keys, piece->bytes));
		wqe_store(&qp->wqe[index & (QP_DEPTH - 1)], piece->bytes, owner, piece->pages,
			piece->detail);
		PROBE_POST(run->channel, (uint64_t)run->header.cookie, rail->options.index,
			qp->sq->qpn, piece->bytes);
		bytes += piece->bytes;
	}
	run->outstanding = (uint16_t)(run->outstanding + n);
	qp->silent += n;
	qp->silent_bytes += bytes;
	qp_posted(rail, qp, n, bytes, bulk);
}

/*
 * run_heads.c: posts READs of the heads of pages whose payload was just posted to the same QP: at
 * most `max`, for which the QP has room. `t0_ns`: at or before the first WQE of this payload. Pages
 * for which there is no room are validated by tail. Returns the number of READs. Six parameters, in
 * registers: hot path.
 */
unsigned post_leased(struct rail *rail, struct conn_qp *qp, struct rail_run *run, uint32_t pages,
	uint64_t t0_ns, unsigned max);
/*
 * run_series.c: posts payload, in pairs if the connection has a lease, or buckets: those that are
 * next in the run, each of which is one segment in one MR; at most `burst` READs and `left` bytes.
 * Returns the number of READs and what they add to the lot; 0: there is no room now. Six
 * parameters, in registers: hot path.
 */
unsigned post_payload(struct rail *rail, struct conn *conn, struct rail_run *run, unsigned burst,
	uint32_t left, uint32_t *lot);
/*
 * Posts READs of the heads of `n` pages from `first` on, each on its own, to the QP, which has room
 * for them. Returns their number.
 */
unsigned post_own_heads(
	struct rail *rail, struct conn_qp *qp, struct rail_run *run, uint32_t first, uint32_t n);

#endif
