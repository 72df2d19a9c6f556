/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests -> WQEs: slices of payload of up to SLICE_BYTES, and READs of page heads. A request that
 * does not fit the budgets now is posted in a later step. Poll core only; the hot path. QPs and
 * signalling: see post.h.
 */
#include "engine/rail/post.h"

/* Short single pages are leased while a connection has at most this many requests: a lone batch. */
#define LEASE_REQUESTS 32u

/*
 * The QP with the fewest bytes of long READs; the next long READs go there. The last QP is kept for
 * small READs if there are several. NULL: none has room.
 */
struct conn_qp *pick_bulk(struct conn *conn)
{
	unsigned qps = conn->handle->qps > 1 ? conn->handle->qps - 1 : 1;
	struct conn_qp *best = NULL;

	for (unsigned i = 0; i < qps; i++) {
		struct conn_qp *qp = &conn->qp[i];

		if ((!best || qp->bulk_bytes < best->bulk_bytes) && qp_has_room(qp))
			best = qp;
	}
	conn->bulk = best;
	return best;
}

/*
 * The QP with the fewest outstanding WQEBBs among those without long READs; the next small READs
 * go there. NULL: it has no room.
 */
struct conn_qp *pick_shortest(struct conn *conn)
{
	struct conn_qp *best = &conn->qp[conn->handle->qps - 1];

	for (unsigned i = 0; i + 1 < conn->handle->qps; i++) {
		struct conn_qp *qp = &conn->qp[i];

		if (!qp->bulk_bytes && qp_outstanding(qp) < qp_outstanding(best))
			best = qp;
	}
	conn->small = best;
	return qp_has_room(best) ? best : NULL;
}

/*
 * Not inline: inlining would take registers from the common path without extents.
 */
__attribute__((noinline)) uint32_t cut_at_extent(
	const struct rail *rail, uint32_t id, uint64_t at, uint32_t bytes, uint32_t *ret_lkey)
{
	unsigned shift = rail->region[id].extent_shift;
	uint64_t left = (1ull << shift) - (at & ((1ull << shift) - 1));

	*ret_lkey = rail->extent_lkey[id][at >> shift];
	return bytes < left ? bytes : (uint32_t)left;
}

/*
 * Fills SGEs with the next destination bytes of the request, at most `limit` and at most
 * DV_SGES_MAX SGEs, and advances its cursor. Returns the number of bytes.
 */
static uint32_t gather(struct rail *rail, struct request *request, uint32_t limit,
	struct dv_sge *ret_sge, unsigned *ret_sges)
{
	uint32_t wanted = limit;
	unsigned sges = 0;

	while (sges < DV_SGES_MAX && limit && request->posted < request->op.length) {
		const struct op_segment *s = &rail->block[request->block].segment[request->segment];
		const struct region_slot *region = &rail->region[s->region];
		uint64_t at = s->offset + request->segment_done;
		uint32_t left = s->length - request->segment_done;
		uint32_t bytes = left < limit ? left : limit;

		ret_sge[sges].lkey = region->lkey;
		if (unlikely(region->extent_shift))
			bytes = cut_at_extent(rail, s->region, at, bytes, &ret_sge[sges].lkey);
		ret_sge[sges].address = region->base + at;
		ret_sge[sges].bytes = bytes;
		sges++;
		limit -= bytes;
		request->posted += bytes;
		request->segment_done += bytes;
		if (request->segment_done < s->length)
			continue;
		request->segment_done = 0;
		if (++request->segment < REQUEST_SEGMENTS || request->posted == request->op.length)
			continue;
		request->segment = 0;
		request->block = rail->block_next[request->block];
	}
	*ret_sges = sges;
	return wanted - limit;
}

/*
 * gather() for a request with one segment in one MR, which most pages have: `posted` is its only
 * cursor.
 */
static void gather_one(const struct rail *rail, struct request *request, uint32_t limit,
	struct dv_sge *ret_sge, unsigned *ret_sges)
{
	const struct op_segment *s = &rail->block[request->number].segment[0];
	const struct region_slot *region = &rail->region[s->region];

	ret_sge->address = region->base + s->offset + request->posted;
	ret_sge->bytes = limit;
	ret_sge->lkey = region->lkey;
	request->posted += limit;
	*ret_sges = 1;
}

static inline void wqe_of_request(struct wqe *wqe, const struct request *request)
{
	wqe->request = request->number;
	wqe->kind = WQE_REQUEST;
}

/*
 * Posts the request's next slice if it fits the rail's in-flight budget (RAIL_IN_FLIGHT_BYTES).
 * False: it does not fit now. Cannot starve: a rail with nothing posted always accepts one slice.
 */
static bool post_piece(struct rail *rail, struct conn *conn, struct request *request)
{
	uint32_t left = request->op.length - request->posted;
	uint32_t limit = left < SLICE_BYTES ? left : SLICE_BYTES;
	uint64_t offset = op_start(&request->op) + request->posted;
	struct dv_sge sge[DV_SGES_MAX];
	struct conn_qp *qp;
	unsigned sges;

	if (rail->posted_bytes && rail->posted_bytes + limit > RAIL_IN_FLIGHT_BYTES)
		return false;
	qp = conn_pick(conn, limit);
	if (!qp)
		return false;
	if (conn->limbo_ns && !request->posted)
		rail->request_t0_ns[request->number] = rail_t0(rail);
	if (likely(request->one_sge))
		gather_one(rail, request, limit, sge, &sges);
	else
		limit = gather(rail, request, limit, sge, &sges);
	wqe_of_request(post_wqe(rail, qp, &conn->handle->region[request->op.region], offset, sge,
			       sges, limit, RAIL_SIGNAL_BYTES),
		request);
	request->outstanding++;
	PROBE_POST(request->channel, request->op.cookie, rail->options.index, qp->sq->qpn, limit);
	return true;
}

/* The index of the request's page in the peer's array of page heads, one per unit. */
static uint64_t head_unit(const struct request *request)
{
	return request->op.offset / PAGE_UNIT;
}

/*
 * The request at `at` in conn->heads if its page head fits the READ that begins with the head of
 * `first` and so far ends with `last_unit`; NULL: it does not fit.
 */
static struct request *head_to_add(
	const struct conn *conn, struct link *at, const struct request *first, uint64_t last_unit)
{
	struct request *request = container_of(at, struct request, pending);
	uint64_t unit;

	if (at == &conn->heads || request->op.region != first->op.region)
		return NULL;
	unit = head_unit(request);
	/* Unsigned arithmetic: for a unit before last_unit the difference is huge, so the head
	 * does not fit. */
	return unit - last_unit <= RAIL_HEADS_GAP && unit - head_unit(first) < RAIL_HEADS_SPAN
		       ? request
		       : NULL;
}

/*
 * Removes `first` from conn->heads, and the requests after it whose heads fit the same READ.
 * Returns the length of that READ in heads.
 */
static uint32_t heads_gather(struct rail *rail, struct conn *conn, struct request *first)
{
	uint32_t place = first->number * RAIL_HEADS_SPAN;
	uint64_t unit = head_unit(first);
	struct request *request = first, *next;

	for (;;) {
		uint32_t head = place + (uint32_t)(unit - head_unit(first));

		next = head_to_add(conn, request->pending.next, first, unit);
		link_remove(&request->pending);
		/* Cleared, so that a page head left by an earlier READ cannot validate this
		 * page. */
		memset(&rail->head[head], 0, sizeof(rail->head[head]));
		request->head = head;
		request->outstanding++;
		if (!next)
			break;
		request->heads_next = next->number;
		request = next;
		unit = head_unit(next);
	}
	request->heads_next = REQUEST_NONE;
	return (uint32_t)(unit - head_unit(first)) + 1;
}

/*
 * Posts one READ for page heads that lie close together. It is posted after the CQEs of all payload
 * of all of its pages were seen, so the remote NIC samples each head after the last payload byte of
 * that page. This order proves that no overwrite had begun; neither one READ of both nor two READs
 * in flight together would guarantee it.
 */
static bool post_heads(struct rail *rail, struct conn *conn)
{
	struct request *first = container_of(conn->heads.next, struct request, pending);
	struct conn_qp *qp = conn_pick(conn, sizeof(struct page_head));
	struct dv_sge sge = {.address = (uintptr_t)&rail->head[first->number * RAIL_HEADS_SPAN],
		.lkey = rail->heads_lkey};

	if (!qp)
		return false;
	sge.bytes = heads_gather(rail, conn, first) * (uint32_t)sizeof(struct page_head);
	wqe_of_request(post_wqe(rail, qp, &conn->handle->region[REGION_HEADS_0 + first->op.region],
			       head_unit(first) * sizeof(struct page_head), &sge, 1, sge.bytes,
			       RAIL_SIGNAL_BYTES),
		first);
	PROBE_POST(first->channel, first->op.cookie, rail->options.index, qp->sq->qpn, sge.bytes);
	return true;
}

/*
 * A leased head is a READ of its own. On a connection with many short requests tail costs less,
 * because neighbouring heads share one READ, and the second round trip delays nothing: others fill
 * the time.
 */
static inline bool lease_pays(const struct conn *conn, const struct request *request)
{
	return request->op.length > RAIL_SMALL_BYTES || conn->requests <= LEASE_REQUESTS;
}

/*
 * With a lease, posts the READ of the request's page head together with its payload, if there is
 * room: see abi/lease.h. Without room, the page is validated by tail. Returns the number of READs.
 */
static unsigned post_leased_head(struct rail *rail, struct conn *conn, struct request *request)
{
	uint32_t at = request->number * RAIL_HEADS_SPAN;
	struct dv_sge sge = {.address = (uintptr_t)&rail->head[at],
		.bytes = sizeof(struct page_head),
		.lkey = rail->heads_lkey};
	struct conn_qp *qp;

	if (!conn->limbo_ns || request->op.kind != OP_PAGE || !lease_pays(conn, request))
		return 0;
	qp = conn_pick(conn, sge.bytes);
	if (!qp)
		return 0;
	/* Cleared, so that a page head left by an earlier READ cannot validate this page. */
	memset(&rail->head[at], 0, sizeof(rail->head[at]));
	request->head = at;
	request->leased = true;
	request->outstanding++;
	wqe_of_request(
		post_wqe(rail, qp, &conn->handle->region[REGION_HEADS_0 + request->op.region],
			head_unit(request) * sizeof(struct page_head), &sge, 1, sge.bytes,
			RAIL_SIGNAL_BYTES),
		request);
	PROBE_POST(
		request->channel, request->op.cookie, rail->options.index, qp->sq->qpn, sge.bytes);
	return 1;
}

/* Posts up to `burst` slices of the connection's requests. Returns how many. */
static unsigned post_requests(struct rail *rail, struct conn *conn, unsigned burst)
{
	unsigned n = 0;

	while (n < burst && link_linked(&conn->pending)) {
		struct request *request = container_of(conn->pending.next, struct request, pending);

		if (!post_piece(rail, conn, request))
			break;
		n++;
		if (request->posted < request->op.length)
			continue;
		link_remove(&request->pending);
		if (n < burst)
			n += post_leased_head(rail, conn, request);
	}
	return n;
}

/*
 * Posts up to `burst` WQEs of requests and runs, which take turns in being first. Returns how many.
 * Not inline: inlining would take registers from a rail that has runs alone.
 */
__attribute__((noinline)) static unsigned post_requests_and_runs(
	struct rail *rail, struct conn *conn, unsigned burst)
{
	unsigned n = 0;

	while (n < burst && link_linked(&conn->heads) && post_heads(rail, conn))
		n++;
	conn->runs_first = !conn->runs_first;
	if (conn->runs_first)
		n += post_runs(rail, conn, burst - n);
	n += post_requests(rail, conn, burst - n);
	if (!conn->runs_first)
		n += post_runs(rail, conn, burst - n);
	return n;
}

/*
 * Posts up to `burst` WQEs of the connection, page heads before payload, as far as there is room.
 * Returns how many.
 */
static unsigned post_lane(struct rail *rail, struct conn *conn, unsigned burst)
{
	unsigned n = 0;

	if (link_linked(&conn->run_heads))
		n += post_run_heads(rail, conn, burst);
	if (!link_linked(&conn->heads) && !link_linked(&conn->pending))
		n += post_runs(rail, conn, burst - n);
	else
		n += post_requests_and_runs(rail, conn, burst - n);
	link_remove(&conn->waiting);
	/* What is left waits behind the other connections, so that the next step begins with
	 * those. */
	if (link_linked(&conn->pending) || link_linked(&conn->heads) || link_linked(&conn->runs) ||
		link_linked(&conn->run_heads))
		link_append(&rail->waiting, &conn->waiting);
	return n;
}

unsigned rail_post(struct rail *rail)
{
	struct link *last = rail->waiting.previous;
	/* The CQ needs room for every posted WQE: one that requests no CQE produces one, too, if
	 * its QP fails. */
	uint32_t room = rail->cq.cqe_cnt - rail->wqes;
	unsigned n = 0, burst = room < RAIL_POST_BURST ? room : RAIL_POST_BURST;

	while (link_linked(&rail->waiting) && n < burst) {
		struct link *first = rail->waiting.next;

		n += post_lane(rail, container_of(first, struct conn, waiting), burst - n);
		if (first == last)
			break;
	}
	if (n)
		rail_count(rail, COUNTER_wqes_posted, n);
	return n;
}
