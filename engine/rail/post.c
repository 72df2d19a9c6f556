/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests -> WQEs: slices of payload of up to SLICE_BYTES, and READs of page heads. A request that
 * does not fit the budgets now is posted in a later step. Poll core only; the hot path.
 *
 * Which QP: with two or more QPs, the last one never gets a long READ, so on it a bucket or a page
 * head never waits behind a long one. A NIC executes 16 READs of a QP at a time and queues the rest
 * behind them, so long READs go to one QP until it has RAIL_BULK_BYTES, then to the QP with the
 * fewest bytes; few QPs mean few touched cache lines. Small READs go to one QP until its next
 * signalled WQE: pages that lie side by side then complete together, and one READ fetches their
 * heads.
 *
 * Which WQEs request a CQE: on each QP, a READ that brings the bytes posted since the last of these
 * to RAIL_SIGNAL_BYTES or their number to RAIL_SIGNAL_WQES, so every long READ does; and always the
 * last WQE before a doorbell (step.c), so that no completion depends on a WQE that may never be
 * posted.
 */
#include "engine/rail/core.h"

static uint32_t qp_outstanding(const struct lane_qp *qp)
{
	return qp->sq->pi - qp->sq->ci;
}

static bool qp_has_room(const struct lane_qp *qp)
{
	/* Room is limited by the smaller one of QP_DEPTH, the size of lane_qp.wqe, and the send
	 * queue's size. */
	uint32_t blocks = qp->sq->wqe_cnt < QP_DEPTH ? qp->sq->wqe_cnt : QP_DEPTH;

	return qp_outstanding(qp) + dv_wqe_blocks(DV_SGES_MAX) <= blocks;
}

/*
 * The QP for a long READ: that of the last long READ until it has RAIL_BULK_BYTES, then the one
 * with the fewest bytes of long READs. The last QP is kept for small READs if there are several.
 * NULL: none has room.
 */
static struct lane_qp *pick_bulk(struct lane *lane, uint32_t bytes)
{
	unsigned qps = lane->peer->qps > 1 ? lane->peer->qps - 1 : 1;
	struct lane_qp *best = lane->bulk;

	if (likely(best && best->bulk_bytes + bytes <= RAIL_BULK_BYTES && qp_has_room(best)))
		return best;
	best = NULL;
	for (unsigned i = 0; i < qps; i++) {
		struct lane_qp *qp = &lane->qp[i];

		if ((!best || qp->bulk_bytes < best->bulk_bytes) && qp_has_room(qp))
			best = qp;
	}
	lane->bulk = best;
	return best;
}

/*
 * The QP with the fewest outstanding WQEBBs among those without long READs; a run of small READs
 * starts there. NULL: it has no room.
 */
static struct lane_qp *pick_shortest(struct lane *lane)
{
	struct lane_qp *best = &lane->qp[lane->peer->qps - 1];

	for (unsigned i = 0; i + 1 < lane->peer->qps; i++) {
		struct lane_qp *qp = &lane->qp[i];

		if (!qp->bulk_bytes && qp_outstanding(qp) < qp_outstanding(best))
			best = qp;
	}
	lane->run = best;
	return qp_has_room(best) ? best : NULL;
}

/*
 * The QP for the connection's next READ of `bytes`; NULL: there is no room for the largest WQE now.
 */
static inline struct lane_qp *lane_pick(struct lane *lane, uint32_t bytes)
{
	struct lane_qp *run = lane->run;

	/* One connection gets at most half of the CQ, so that a peer that hangs cannot block the
	 * others. */
	if (unlikely(lane->wqes >= CQ_DEPTH / 2))
		return NULL;
	if (bytes > RAIL_SMALL_BYTES)
		return pick_bulk(lane, bytes);
	if (likely(run && run->silent && !run->bulk_bytes && qp_has_room(run)))
		return run;
	return pick_shortest(lane);
}

/*
 * Accounts for the next WQE of the QP and returns its signalling flags: a CQE is requested after
 * RAIL_SIGNAL_WQES WQEs or RAIL_SIGNAL_BYTES without one.
 */
static uint8_t signal_of(struct lane_qp *qp, uint32_t bytes)
{
	qp->silent++;
	qp->silent_bytes += bytes;
	if (qp->silent < RAIL_SIGNAL_WQES && qp->silent_bytes < RAIL_SIGNAL_BYTES)
		return DV_CE_ERROR_ONLY;
	qp->silent = qp->silent_bytes = 0;
	return DV_CE_ALWAYS;
}

/* Writes one READ to the send queue and records it. The doorbell follows in rail_ring(). */
static void post_wqe(struct rail *rail, struct lane_qp *qp, struct request *request,
	const struct rail_remote *remote, uint64_t offset, const struct dv_sge *sge, unsigned sges,
	uint32_t bytes)
{
	struct lane *lane = qp->lane;
	uint64_t at = remote->base + offset;
	uint8_t flags = signal_of(qp, bytes);
	uint32_t index;
	struct wqe *wqe;

	if (likely(sges == 1)) /* constant 1: the compiler removes the loop over the SGEs */
		index = dv_post(qp->sq, DV_READ, at, remote->rkey, sge, 1, flags);
	else
		index = dv_post(qp->sq, DV_READ, at, remote->rkey, sge, sges, flags);
	wqe = &qp->wqe[index & (QP_DEPTH - 1)];
	wqe->bytes = bytes;
	wqe->request = request->number;
	wqe->blocks = (uint16_t)(qp->sq->pi - index);
	if (wqe->blocks > 1)
		qp->wqe[(index + 1) & (QP_DEPTH - 1)].blocks = 0;
	if (!lane->wqes)
		lane->begun = false;
	lane->wqes++;
	rail->wqes++;
	if (bytes > RAIL_SMALL_BYTES)
		qp->bulk_bytes += bytes;
	lane->bytes += bytes;
	if (likely(!lane->stalled))
		rail->posted_bytes += bytes;
	PROBE_POST(request->channel, request->op.cookie, rail->options.index, qp->sq->qpn, bytes);
	if (!qp->unrung) {
		qp->unrung = true;
		qp->rung_next = rail->unrung;
		rail->unrung = qp;
	}
}

/*
 * Cuts a destination of `bytes` bytes from region offset `at` on at the end of its first extent.
 * Returns the bytes in that extent, and its lkey. Not inline: inlining would take registers from
 * the common path without extents.
 */
__attribute__((noinline)) static uint32_t cut_at_extent(
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

/*
 * Posts the request's next slice if it fits the rail's in-flight budget (RAIL_IN_FLIGHT_BYTES).
 * False: it does not fit now. Cannot starve: a rail with nothing posted always accepts one slice.
 */
static bool post_piece(struct rail *rail, struct lane *lane, struct request *request)
{
	uint32_t left = request->op.length - request->posted;
	uint32_t limit = left < SLICE_BYTES ? left : SLICE_BYTES;
	uint64_t offset = op_start(&request->op) + request->posted;
	struct dv_sge sge[DV_SGES_MAX];
	struct lane_qp *qp;
	unsigned sges;

	if (rail->posted_bytes && rail->posted_bytes + limit > RAIL_IN_FLIGHT_BYTES)
		return false;
	qp = lane_pick(lane, limit);
	if (!qp)
		return false;
	if (likely(request->one_sge))
		gather_one(rail, request, limit, sge, &sges);
	else
		limit = gather(rail, request, limit, sge, &sges);
	request->outstanding++;
	post_wqe(rail, qp, request, &lane->peer->region[request->op.region], offset, sge, sges,
		limit);
	return true;
}

/* The index of the request's page in the peer's array of page heads, one per unit. */
static uint64_t head_unit(const struct request *request)
{
	return request->op.offset / PAGE_UNIT;
}

/*
 * The request at `at` in lane->heads if its page head fits the READ that begins with the head of
 * `first` and so far ends with `last_unit`; NULL: it does not fit.
 */
static struct request *head_to_add(
	const struct lane *lane, struct link *at, const struct request *first, uint64_t last_unit)
{
	struct request *request = container_of(at, struct request, pending);
	uint64_t unit;

	if (at == &lane->heads || request->op.region != first->op.region)
		return NULL;
	unit = head_unit(request);
	/* Unsigned arithmetic: for a unit before last_unit the difference is huge, so the head
	 * does not fit. */
	return unit - last_unit <= RAIL_HEADS_GAP && unit - head_unit(first) < RAIL_HEADS_SPAN
		       ? request
		       : NULL;
}

/*
 * Removes `first` from lane->heads, and the requests after it whose heads fit the same READ.
 * Returns the length of that READ in heads.
 */
static uint32_t heads_gather(struct rail *rail, struct lane *lane, struct request *first)
{
	uint32_t place = first->number * RAIL_HEADS_SPAN;
	uint64_t unit = head_unit(first);
	struct request *request = first, *next;

	for (;;) {
		uint32_t head = place + (uint32_t)(unit - head_unit(first));

		next = head_to_add(lane, request->pending.next, first, unit);
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
static bool post_heads(struct rail *rail, struct lane *lane)
{
	struct request *first = container_of(lane->heads.next, struct request, pending);
	struct lane_qp *qp = lane_pick(lane, sizeof(struct page_head));
	struct dv_sge sge = {.address = (uintptr_t)&rail->head[first->number * RAIL_HEADS_SPAN],
		.lkey = rail->heads_lkey};

	if (!qp)
		return false;
	sge.bytes = heads_gather(rail, lane, first) * (uint32_t)sizeof(struct page_head);
	post_wqe(rail, qp, first, &lane->peer->region[REGION_HEADS_0 + first->op.region],
		head_unit(first) * sizeof(struct page_head), &sge, 1, sge.bytes);
	return true;
}

/*
 * Posts up to `burst` WQEs of the connection, page heads before payload, as far as there is room.
 * Returns how many.
 */
static unsigned post_lane(struct rail *rail, struct lane *lane, unsigned burst)
{
	unsigned n = 0;

	while (n < burst && link_linked(&lane->heads) && post_heads(rail, lane))
		n++;
	while (n < burst && link_linked(&lane->pending)) {
		struct request *request = container_of(lane->pending.next, struct request, pending);

		if (!post_piece(rail, lane, request))
			break;
		n++;
		if (request->posted == request->op.length)
			link_remove(&request->pending);
	}
	link_remove(&lane->waiting);
	/* Requests that are left wait behind the other connections, so that the next step begins
	 * with those. */
	if (link_linked(&lane->pending) || link_linked(&lane->heads))
		link_append(&rail->waiting, &lane->waiting);
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

		n += post_lane(rail, container_of(first, struct lane, waiting), burst - n);
		if (first == last)
			break;
	}
	if (n)
		rail_count(rail, COUNTER_wqes_posted, n);
	return n;
}
