/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A posted WQE: the choice of its QP, the post with its record, and the end of both. Poll core
 * only; the hot path.
 *
 * Which QP: with two or more QPs, the last one never gets a long READ, so on it a bucket or a page
 * head never waits behind a long one. A NIC executes 16 READs of a QP at a time and queues the rest
 * behind them, so long READs go to one QP until it has RAIL_BULK_BYTES, then to the QP with the
 * fewest bytes; few QPs mean few touched cache lines. Small READs go to one QP until its next
 * signalled WQE, so that they complete together.
 *
 * Which WQEs request a CQE: on each QP, a READ that brings the bytes posted since the last of these
 * to a limit (RUN_SIGNAL_BYTES, for lone pages RAIL_SIGNAL_BYTES) or their number to
 * RAIL_SIGNAL_WQES; and always the last WQE before a doorbell (step.c), so that no completion
 * depends on a WQE that may never be posted.
 */
#ifndef RAIL_WQE_H
#define RAIL_WQE_H

#include "engine/rail/core.h"

/* wqe.c: the slow parts of conn_pick(). */
struct conn_qp *conn_pick_bulk(struct conn *conn, uint32_t room);
struct conn_qp *conn_pick_shortest(struct conn *conn, uint32_t room);

/*
 * wqe.c: cuts a destination of `bytes` bytes from region offset `at` on at the end of its first
 * extent. Returns the bytes in that extent, and its lkey.
 */
uint32_t region_cut_at_extent(
	const struct rail *rail, uint32_t id, uint64_t at, uint32_t bytes, uint32_t *ret_lkey);

#define HEAD_BYTES ((uint32_t)sizeof(struct page_head))

/*
 * Clears the place of a page head before the READ of it. What an earlier READ has left there then
 * validates no page: no page of a run is of length 0.
 */
static inline void page_head_clear(struct page_head *head)
{
	head->length = 0;
}

/*
 * The bytes of READs that the rail's budget allows now. Cannot starve: a rail with nothing posted
 * allows more than one slice.
 */
static inline uint32_t rail_bytes_allowed(const struct rail *rail)
{
	return rail->posted_bytes < RUN_IN_FLIGHT_BYTES ? RUN_IN_FLIGHT_BYTES - rail->posted_bytes
							: 0;
}

static inline uint32_t qp_outstanding(const struct conn_qp *qp)
{
	return qp->sq->pi - qp->sq->ci;
}

/* WQEBBs that a queue pair must have free: for READs of one data segment, so that series of them
 * are not too short; and for one of many segments. */
#define QP_ROOM 4u
#define QP_ROOM_GATHERED dv_wqe_blocks(DV_SGES_MAX)

static inline bool qp_has_room(const struct conn_qp *qp, uint32_t room)
{
	return qp_outstanding(qp) + room <= qp->blocks_max;
}

/* One connection gets at most half of the CQ, so that a peer that hangs cannot block the others. */
static inline bool conn_has_room(const struct conn *conn)
{
	return conn->wqes < CQ_DEPTH / 2;
}

/*
 * The QP for the connection's next READ of `bytes`; NULL: none has this room, in WQEBBs, now. Long
 * READs go to the QP of the last one until it has RAIL_BULK_BYTES.
 */
static inline struct conn_qp *conn_pick(struct conn *conn, uint32_t bytes, uint32_t room)
{
	struct conn_qp *small = conn->small;

	if (unlikely(!conn_has_room(conn)))
		return NULL;
	if (bytes > RAIL_SMALL_BYTES) {
		struct conn_qp *bulk = conn->bulk;

		return likely(bulk && bulk->bulk_bytes + bytes <= RAIL_BULK_BYTES &&
			       qp_has_room(bulk, room))
			       ? bulk
			       : conn_pick_bulk(conn, room);
	}
	if (likely(small && small->silent && !small->bulk_bytes && qp_has_room(small, room)))
		return small;
	return conn_pick_shortest(conn, room);
}

/*
 * Accounts for the next WQE of the QP and returns its signalling flags: a CQE is requested after
 * RAIL_SIGNAL_WQES WQEs or `signal_bytes` without one.
 */
static inline uint8_t qp_signal(struct conn_qp *qp, uint32_t bytes, uint32_t signal_bytes)
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

/* Records a READ of `bytes` whose WQE has been written. Returns the record: see wqe_post(). */
static inline struct wqe *wqe_record(
	struct rail *rail, struct conn_qp *qp, uint32_t index, uint32_t blocks, uint32_t bytes)
{
	struct wqe *wqe = &qp->wqe[index & (QP_DEPTH - 1)];

	wqe->bytes = bytes;
	wqe->blocks = (uint8_t)blocks;
	qp_posted(rail, qp, 1, bytes, bytes > RAIL_SMALL_BYTES);
	return wqe;
}

/*
 * Writes one READ of one data segment to the send queue and records its length; the doorbell
 * follows in rail_ring(). Returns the record, in which the caller stores what the READ is for.
 * Six parameters: it is inlined, so that they stay in registers.
 */
static inline struct wqe *wqe_post(struct rail *rail, struct conn_qp *qp,
	const struct rail_remote *remote, uint64_t offset, struct dv_sge sge, uint32_t signal_bytes)
{
	uint8_t flags = qp_signal(qp, sge.bytes, signal_bytes);
	uint32_t index =
		dv_post(qp->sq, DV_READ, remote->base + offset, remote->rkey, &sge, 1, flags);

	return wqe_record(rail, qp, index, dv_wqe_blocks(1), sge.bytes);
}

/* The data segments of a READ while they are collected. A function keeps it in registers. */
struct sges {
	struct dv_data data; /* of the next WQE of the queue pair */
	uint32_t count;
	uint32_t lkey;    /* that of the last one */
	uint64_t reached; /* address behind the last one */
};

static inline struct sges sges_begin(const struct conn_qp *qp)
{
	return (struct sges){.data = dv_data_begin(qp->sq), .reached = UINT64_MAX};
}

/* Adds `bytes` bytes of one MR. False: a further segment is needed, and there is none. */
static inline bool sges_add(struct sges *sges, uint64_t address, uint32_t bytes, uint32_t lkey)
{
	if (unlikely(address == sges->reached) && lkey == sges->lkey) {
		dv_data_extend(&sges->data, bytes);
	} else {
		if (unlikely(sges->count == DV_SGES_MAX))
			return false;
		dv_data_add(&sges->data, address, bytes, lkey);
		sges->count++;
		sges->lkey = lkey;
	}
	sges->reached = address + bytes;
	return true;
}

/* As wqe_post(), for the `sges` data segments that were collected, which have `bytes` bytes. */
static inline struct wqe *wqe_post_gathered(struct rail *rail, struct conn_qp *qp,
	const struct rail_remote *remote, uint64_t offset, uint32_t sges, uint32_t bytes,
	uint32_t signal_bytes)
{
	uint8_t flags = qp_signal(qp, bytes, signal_bytes);
	uint32_t index =
		dv_post_data(qp->sq, DV_READ, remote->base + offset, remote->rkey, sges, flags);

	return wqe_record(rail, qp, index, dv_wqe_blocks(sges), bytes);
}

/* ---- the end of posted WQEs ------------------------------------------------------------------ */

/* What a syndrome other than 0 means for an op. */
static inline enum op_status syndrome_status(uint32_t syndrome)
{
	/* A flushed WQE did not cause the error of its QP: another WQE did. */
	return syndrome == DV_SYNDROME_FLUSHED ? OP_PEER_DOWN : OP_NIC_ERROR;
}

/*
 * step.c: the timed WQE retired: see rail_sample_start(). One that failed says nothing about
 * latency.
 */
void rail_sample_end(struct rail *rail, bool failed);

/* wqe_retire() for a record of one WQE. */
static inline uint32_t wqe_retire_one(struct conn_qp *qp, struct wqe *wqe)
{
	wqe->blocks = 0;
	if (wqe->bytes > RAIL_SMALL_BYTES)
		qp->bulk_bytes -= wqe->bytes;
	return wqe->bytes;
}

/* The record of a WQE, or of a series, is free again. Returns the bytes of its READs. */
static inline uint32_t wqe_retire(struct conn_qp *qp, struct wqe *wqe)
{
	wqe->blocks = 0;
	if (wqe_is_series(wqe) ? wqe->kind & WQE_LONG : wqe->bytes > RAIL_SMALL_BYTES)
		qp->bulk_bytes -= wqe->bytes;
	return wqe->bytes;
}

/* WQEs that run_retire() retired: the index behind the last one, their bytes and their number. */
struct retired {
	uint32_t at, bytes, n;
};

/* WQEs up to index r.at have retired. */
static inline void retired_count(
	struct rail *rail, struct conn_qp *qp, struct retired r, bool failed)
{
	struct conn *conn = qp->conn;

	qp->sq->ci = r.at;
	if (unlikely(rail->timed == qp) && (int32_t)(r.at - rail->timed_end) >= 0)
		rail_sample_end(rail, failed);
	conn->moved += r.n;
	conn->wqes -= r.n;
	conn->bytes -= r.bytes;
	rail->wqes -= r.n;
	rail->posted_bytes -= r.bytes;
}

/*
 * wqe.c: retires the QP's WQEs with indices before `end`, oldest first: the last of them, whose
 * index is `last`, with `syndrome`, the ones before it with `earlier`. A syndrome of 0 is success.
 * Six parameters, in registers: hot path.
 */
void wqes_retire(struct rail *rail, struct conn_qp *qp, uint32_t last, uint32_t end,
	uint32_t earlier, uint32_t syndrome);

/* ---- run.c, lone_page.c: what becomes of the WQEs of runs ------------------------------------ */

/*
 * Gives the first `blocks` WQEBBs of the series at index `at` a record of their own, so that its
 * READs or pairs can have different results. `blocks` is a number of whole pairs, and not 0.
 */
void series_split(struct rail *rail, struct conn_qp *qp, uint32_t at, uint32_t blocks);

/*
 * Retires WQEs of a run that succeeded: the one at index `at`, and those after it and before `end`
 * that are of the same run and kind. Ends the run if nothing more can come of it.
 */
struct retired run_retire(struct rail *rail, struct conn_qp *qp, uint32_t at, uint32_t end);
/*
 * Consumes the most frequent CQE: a series, the oldest record of the QP, has succeeded. False: it
 * is another CQE.
 */
bool series_reap(struct rail *rail, struct conn_qp *qp, const struct dv_completion *completion);
/* Retires one record of a run that failed; lone_retire() does it for a lone page. */
void run_retire_failed(struct rail *rail, const struct wqe *wqe, enum op_status status);
/* Retires a READ of a lone page; the page is decided, or its head is to be READ, after the last. */
void lone_retire(struct rail *rail, struct rail_run *run, uint32_t syndrome);

#endif
