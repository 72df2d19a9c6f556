/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What reap.c and run_reap.c share: the end of posted WQEs and of their records. Poll core only;
 * the hot path.
 */
#ifndef RAIL_RETIRE_H
#define RAIL_RETIRE_H

#include "engine/rail/core.h"

/*
 * reap.c: the timed WQE retired: see read_time_start(). One that failed says nothing about latency.
 */
void read_time_end(struct rail *rail, bool failed);
/* The record of a WQE is free again. Returns the bytes of the READ. */
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

/*
 * Gives the first `blocks` WQEBBs of the series at index `at` a record of their own, so that its
 * READs or pairs can have different results. `blocks` is a number of whole pairs, and not 0.
 */
void run_series_split(struct rail *rail, struct conn_qp *qp, uint32_t at, uint32_t blocks);

/* WQEs up to index r.at have retired. */
static inline void retired_count(
	struct rail *rail, struct conn_qp *qp, struct retired r, bool failed)
{
	struct conn *conn = qp->conn;

	qp->sq->ci = r.at;
	if (unlikely(rail->timed == qp) && (int32_t)(r.at - rail->timed_end) >= 0)
		read_time_end(rail, failed);
	conn->moved += r.n;
	conn->wqes -= r.n;
	conn->bytes -= r.bytes;
	rail->wqes -= r.n;
	rail->posted_bytes -= r.bytes;
}

/*
 * Retires WQEs of a run that succeeded: the one at index `at`, and those after it and before `end`
 * that are of the same run and kind. Ends the run if nothing more can come of it.
 */
struct retired run_retire(struct rail *rail, struct conn_qp *qp, uint32_t at, uint32_t end);
/*
 * Consumes the most frequent CQE: a series, the oldest record of the QP, has succeeded. False: it
 * is another CQE.
 */
bool run_reap_series(struct rail *rail, struct conn_qp *qp, const struct dv_completion *completion);
/* Retires one record of a run that failed. */
void run_retire_failed(struct rail *rail, const struct wqe *wqe, enum op_status status);
#endif
