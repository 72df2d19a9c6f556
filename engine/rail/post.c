/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests -> WQEs: pieces of payload of up to SLICE_BYTES, and page heads. What finds no room now
 * is posted in a later step. Poll core only; the hot path.
 *
 * Which queue pair: of two or more, the last one never gets a long READ, so there is always one on
 * which a bucket or a page head waits for nothing long. A NIC runs 16 READs of a queue pair at a
 * time and queues the rest behind them, so long ones go to one queue until it has some hundred KiB,
 * and then to the least loaded; the fewer queues, the fewer cache lines. Small READs go to one
 * queue until its next completion is asked for: pages that lie side by side complete together, and
 * one READ fetches their heads.
 *
 * Which WQEs ask for a completion: each long READ, every RAIL_SIGNAL_WQES-th short one, and always
 * the last one before a doorbell (step.c), so that nothing waits for a WQE that may never come.
 */
#include "engine/rail/core.h"

static uint32_t qp_outstanding(const struct lane_qp *qp)
{
	return qp->sq->pi - qp->sq->ci;
}

static bool qp_has_room(const struct lane_qp *qp)
{
	/* The table of WQEs has QP_DEPTH places; the queue may be larger or smaller. */
	uint32_t blocks = qp->sq->wqe_cnt < QP_DEPTH ? qp->sq->wqe_cnt : QP_DEPTH;

	return qp_outstanding(qp) + dv_wqe_blocks(DV_SGES_MAX) <= blocks;
}

/*
 * The queue of the last one, until it has enough; then that of the fewest outstanding bytes. The
 * last queue is kept for small READs.
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

/* The shortest of those with no long READ on them: a run of small ones starts there. */
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

/* NULL: there is no room for the largest WQE now. */
static inline struct lane_qp *lane_pick(struct lane *lane, uint32_t bytes)
{
	struct lane_qp *run = lane->run;

	/* A peer that hangs leaves others half of the CQ. */
	if (unlikely(lane->wqes >= CQ_DEPTH / 2))
		return NULL;
	if (bytes > RAIL_SMALL_BYTES)
		return pick_bulk(lane, bytes);
	if (likely(run && run->silent && !run->bulk_bytes && qp_has_room(run)))
		return run;
	return pick_shortest(lane);
}

/* Should the next WQE of the queue ask for a completion? Counts it. */
static uint8_t signal_of(struct lane_qp *qp, uint32_t bytes)
{
	qp->silent++;
	qp->silent_bytes += bytes;
	if (qp->silent < RAIL_SIGNAL_WQES && qp->silent_bytes < RAIL_SIGNAL_BYTES)
		return DV_CE_ERROR_ONLY;
	qp->silent = qp->silent_bytes = 0;
	return DV_CE_ALWAYS;
}

static void post_wqe(struct rail *rail, struct lane_qp *qp, struct request *request,
	const struct rail_remote *remote, uint64_t offset, const struct dv_sge *sge, unsigned sges,
	uint32_t bytes)
{
	struct lane *lane = qp->lane;
	uint64_t at = remote->base + offset;
	uint8_t flags = signal_of(qp, bytes);
	uint32_t index;
	struct wqe *wqe;

	if (likely(sges == 1)) /* the same, without a loop */
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
 * Of `bytes` bytes from `at` on in the region, those in the first one's extent, and its key. Not
 * inline: it would cost the others registers.
 */
__attribute__((noinline)) static uint32_t cut_at_extent(
	const struct rail *rail, uint32_t id, uint64_t at, uint32_t bytes, uint32_t *ret_lkey)
{
	unsigned shift = rail->region[id].extent_shift;
	uint64_t left = (1ull << shift) - (at & ((1ull << shift) - 1));

	*ret_lkey = rail->extent_lkey[id][at >> shift];
	return bytes < left ? bytes : (uint32_t)left;
}

/* Gathers up to `limit` bytes of destination from the cursor on, and moves it. Returns how many. */
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

/* Most pages have one segment in one MR: the cursor is `posted` alone. */
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
 * One slice more, if the wire's budget has room for it. Waiting for the room of a whole slice
 * cannot wait for ever: with nothing posted there is room.
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

static uint64_t head_unit(const struct request *request)
{
	return request->op.offset / PAGE_UNIT;
}

/* The request that waits for its head at this place of the list, if the READ can take it in. */
static struct request *head_to_add(
	const struct lane *lane, struct link *at, const struct request *first, uint64_t last_unit)
{
	struct request *request = container_of(at, struct request, pending);
	uint64_t unit;

	if (at == &lane->heads || request->op.region != first->op.region)
		return NULL;
	unit = head_unit(request);
	/* One before the last is very far behind it. */
	return unit - last_unit <= RAIL_HEADS_GAP && unit - head_unit(first) < RAIL_HEADS_SPAN
		       ? request
		       : NULL;
}

/* Takes from lane->heads the first request and those its READ has room for. Returns the heads. */
static uint32_t heads_gather(struct rail *rail, struct lane *lane, struct request *first)
{
	uint32_t place = first->number * RAIL_HEADS_SPAN;
	uint64_t unit = head_unit(first);
	struct request *request = first, *next;

	for (;;) {
		uint32_t head = place + (uint32_t)(unit - head_unit(first));

		next = head_to_add(lane, request->pending.next, first, unit);
		link_remove(&request->pending);
		/* A head that is not written must not be mistaken for one that was here before. */
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
 * Page heads that lie close together are READ by one WQE. It is posted after the CQEs of all
 * payload of all of its pages were seen: the remote NIC samples each head after it sampled the last
 * payload byte of that page. That order, which neither one READ nor two READs in flight have, is
 * the proof that no overwrite had begun.
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

/* Posts as much of the lane as there is room and `burst` for. */
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
	/* Behind the others: the next step begins with them. */
	if (link_linked(&lane->pending) || link_linked(&lane->heads))
		link_append(&rail->waiting, &lane->waiting);
	return n;
}

unsigned rail_post(struct rail *rail)
{
	struct link *last = rail->waiting.previous;
	/* Every WQE, signalled or not, may produce a CQE when its QP fails. */
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
