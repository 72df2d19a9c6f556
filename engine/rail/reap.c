/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CQEs -> requests and runs (run_reap.c): a CQE retires its WQE and every earlier one of the same
 * QP. When the last posted WQE of a request retires, its page head is read next, or the request is
 * answered. Poll core only; the hot path.
 */
#include "engine/abi/lease.h"
#include "engine/rail/retire.h"

/* Validates a page: is the page head that was read the one that the op expects? */
static bool head_matches(const struct rail *rail, const struct request *request)
{
	const struct op *op = &request->op;

	return page_head_is(&rail->head[request->head], &op->key, op->generation, op->page_bytes);
}

static enum op_status status_of(uint32_t syndrome)
{
	/* A flushed WQE did not cause the error of its QP: another WQE did. */
	return syndrome == DV_SYNDROME_FLUSHED ? OP_PEER_DOWN : OP_NIC_ERROR;
}

/* Retires one WQE of the request. Returns how many of its WQEs are still at the NIC. */
static uint16_t request_retire(struct request *request, uint32_t syndrome)
{
	if (unlikely(syndrome) && request->status == OP_HIT)
		request->status = (uint8_t)status_of(syndrome);
	return --request->outstanding;
}

/*
 * All READs of a leased request have ended: does its head decide? A head with another generation is
 * final. One that matches proves nothing if the lease ended before these READs: then it is READ
 * again.
 */
static bool lease_decides(struct rail *rail, const struct request *request)
{
	if (likely(lease_valid(rail->request_t0_ns[request->number], rail_t1(rail),
		    request->conn->limbo_ns)) ||
		!head_matches(rail, request))
		return true;
	rail_count(rail, COUNTER_leases_expired, 1);
	return false;
}

/*
 * Retires one slice of payload, or the head of a leased request. After the last one the page head
 * decides or is to be read, or the request ends.
 */
static void payload_retire(struct rail *rail, struct request *request, uint32_t syndrome)
{
	if (request_retire(request, syndrome) || link_linked(&request->pending))
		return;
	if (unlikely(request->status != OP_HIT)) {
		request_end(rail, request, request->status);
	} else if (request->op.kind != OP_PAGE || TEST_HOOK(rail->options.skip_head_check)) {
		request_end(rail, request, OP_HIT);
	} else if (request->leased && lease_decides(rail, request)) {
		request_end(rail, request, head_matches(rail, request) ? OP_HIT : OP_STALE);
	} else if (unlikely(request->conn->state != CONN_OPEN)) {
		request_end(rail, request, OP_PEER_DOWN);
	} else {
		request->stage = REQUEST_HEAD;
		conn_queue(rail, request->conn, request);
	}
}

/*
 * Retires a READ of page heads: each of its requests, from number `first` on, is validated by its
 * own head and ends.
 */
static void heads_retire(struct rail *rail, uint16_t first, uint32_t syndrome)
{
	for (uint16_t number = first; number != REQUEST_NONE;) {
		struct request *request = &rail->request[number];

		/* read before request_end(), which frees the request with its heads_next */
		number = request->heads_next;
		request_retire(request, syndrome);
		if (likely(request->status == OP_HIT) && unlikely(!head_matches(rail, request)))
			request->status = OP_STALE;
		request_end(rail, request, request->status);
	}
}

void read_time_end(struct rail *rail, bool failed)
{
	uint64_t ns = rail_now(rail) - rail->timed_ns;

	rail->timed = NULL;
	if (failed)
		return;
	shm_count(&rail->latency[latency_bucket(ns)], 1);
	shm_count(&rail->latency_ns_sum, ns);
}

static inline const struct wqe *wqe_at(const struct conn_qp *qp, uint32_t index)
{
	return &qp->wqe[index & (QP_DEPTH - 1)];
}

/*
 * Retires the QP's WQEs with indices before `end`, oldest first: the last of them, whose index is
 * `last`, with `syndrome`, the ones before it with `earlier`. A syndrome of 0 is success. Six
 * parameters, in registers: hot path.
 */
static void retire(struct rail *rail, struct conn_qp *qp, uint32_t last, uint32_t end,
	uint32_t earlier, uint32_t syndrome)
{
	struct conn *conn = qp->conn;
	uint32_t n = 0, bytes = 0, at = qp->sq->ci, good = syndrome ? last : end;

	if (unlikely(conn->stalled))
		conn_unstall(rail, conn);
	while (at != end) {
		struct wqe *wqe = &qp->wqe[at & (QP_DEPTH - 1)];
		uint32_t of_this = at == last ? syndrome : earlier;

		if (wqe->kind != WQE_REQUEST && likely(!of_this)) {
			struct retired r = run_retire(rail, qp, at, good);

			at = r.at;
			bytes += r.bytes;
			n += r.n;
			continue;
		}
		at += wqe->blocks;
		n += wqe_is_series(wqe) ? wqe->blocks : 1;
		bytes += wqe_retire(qp, wqe);
		if (wqe->kind != WQE_REQUEST)
			run_retire_failed(rail, wqe, status_of(of_this));
		else if (rail->request[wqe->request].stage == REQUEST_HEAD)
			heads_retire(rail, wqe->request, of_this);
		else
			payload_retire(rail, &rail->request[wqe->request], of_this);
	}
	retired_count(rail, qp, (struct retired){at, bytes, n}, earlier || syndrome);
}

/*
 * completion_possible() for a CQE that names no WQE with a record of its own: is it one of a
 * series? Only the last WQE of a series requests a CQE. A READ or pair that failed gets its own
 * record, and those before it and behind it as well: they have other results. Six parameters, in
 * registers: hot path.
 */
static bool series_possible(struct rail *rail, struct conn_qp *qp, uint32_t named, bool failed,
	uint32_t *ret_index, uint32_t *ret_end)
{
	uint32_t at = qp->sq->ci, one, before;

	while (named - at >= wqe_at(qp, at)->blocks)
		at += wqe_at(qp, at)->blocks;
	if (!wqe_is_series(wqe_at(qp, at)))
		return false;
	*ret_index = at;
	*ret_end = at + wqe_at(qp, at)->blocks;
	if (likely(!failed))
		return named + 1 == *ret_end;
	one = wqe_is_pairs(wqe_at(qp, at)) ? 2 : 1;
	before = (named - at) / one * one;
	if (before)
		run_series_split(rail, qp, at, before);
	at += before;
	if (wqe_at(qp, at)->blocks > one)
		run_series_split(rail, qp, at, one);
	*ret_index = at;
	/* If the first WQE of a pair, which requests no CQE, failed, the pair retires with the
	 * CQE of the second one, which is flushed. */
	*ret_end = one == 2 && named == at ? at : at + one;
	return true;
}

/*
 * Finds the record of the WQE that a CQE names. *ret_end: index behind the WQEs that it retires.
 * False: the CQE names no WQE that was posted and announced by a doorbell, or one that requested
 * none, which is an error of the device.
 */
static bool completion_possible(struct rail *rail, struct conn_qp *qp,
	const struct dv_completion *completion, uint32_t *ret_index, uint32_t *ret_end)
{
	const struct dv_sq *sq = qp->sq;
	uint32_t distance = (uint16_t)(completion->wqe_counter - (uint16_t)sq->ci);
	uint32_t index = sq->ci + distance;
	const struct wqe *wqe = wqe_at(qp, index);

	if (distance >= sq->rung - sq->ci)
		return false;
	if (!wqe->blocks || wqe_is_series(wqe))
		return series_possible(rail, qp, index, completion->syndrome, ret_index, ret_end);
	*ret_index = index;
	*ret_end = index + wqe->blocks;
	return true;
}

void conn_retire_posted(struct rail *rail, struct conn *conn)
{
	for (unsigned i = 0; i < conn->handle->qps; i++) {
		struct conn_qp *qp = &conn->qp[i];

		retire(rail, qp, qp->sq->last, qp->sq->pi, DV_SYNDROME_FLUSHED,
			DV_SYNDROME_FLUSHED);
	}
}

static void reap_one(struct rail *rail, const struct dv_completion *completion)
{
	struct conn_qp *qp = conn_qp_find(rail, completion->qpn);
	struct conn *conn;
	uint32_t index, end;

	if (likely(qp) && likely(run_reap_series(rail, qp, completion)))
		return;
	if (unlikely(completion->syndrome))
		rail_count(rail, COUNTER_cqes_error, 1);
	if (unlikely(!qp || !completion_possible(rail, qp, completion, &index, &end))) {
		if (!completion->syndrome)
			rail_count(rail, COUNTER_cqes_error, 1);
		else if (qp) /* an error CQE: its QP has failed, even if its WQE index is wrong */
			conn_break(rail, qp->conn, completion->syndrome);
		return;
	}
	conn = qp->conn;
	/* A QP completes in order, so the WQEs before a failed one have succeeded. Those before
	 * a flushed one may have been flushed as well, because some devices report only the last
	 * flushed WQE. */
	retire(rail, qp, index, end,
		completion->syndrome == DV_SYNDROME_FLUSHED ? DV_SYNDROME_FLUSHED : 0,
		completion->syndrome);
	if (unlikely(end == index)) /* a pair */
		run_quit(&rail->run[wqe_at(qp, index)->request], status_of(completion->syndrome));
	if (unlikely(completion->syndrome))
		conn_break(rail, conn, completion->syndrome);
	if (unlikely(conn->state == CONN_DROPPED))
		conn_return_if_drained(rail, conn);
}

void rail_reap_all(struct rail *rail)
{
	for (unsigned i = 0; i <= CQ_DEPTH / RAIL_REAP_BURST && rail_reap(rail); i++)
		;
}

unsigned rail_reap(struct rail *rail)
{
	struct dv_completion completion[RAIL_REAP_BURST];
	unsigned n = dv_poll(&rail->cq, completion, RAIL_REAP_BURST);

	rail->t1_ns = 0; /* a time that was read before these CQEs proves nothing */
	for (unsigned i = 0; i < n; i++)
		reap_one(rail, &completion[i]);
	if (n)
		rail_count(rail, COUNTER_cqes_reaped, n);
	return n;
}
