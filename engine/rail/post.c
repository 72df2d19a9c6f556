/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests -> WQEs: pieces of payload of up to SLICE_BYTES, and page heads, on the least loaded QP
 * of the lane. What finds no room now is posted in a later step. Poll core only; the hot path.
 */
#include "engine/rail/core.h"

static uint32_t qp_room(const struct lane_qp *qp)
{
	/* The table of WQEs has QP_DEPTH places; the queue may be larger or smaller. */
	uint32_t table = QP_DEPTH - (qp->sq->pi - qp->sq->ci);
	uint32_t queue = dv_sq_room(qp->sq);

	return queue < table ? queue : table;
}

/* Fewest outstanding bytes, with room for the largest WQE; NULL: none. */
static struct lane_qp *lane_pick(struct rail *rail, struct lane *lane)
{
	struct lane_qp *best = NULL;

	/* Every WQE, signalled or not, may produce a CQE when its QP fails. */
	if (rail->wqes >= rail->cq.cqe_cnt || rail->wqes >= CQ_DEPTH)
		return NULL;
	for (unsigned i = 0; i < lane->peer->qps; i++) {
		struct lane_qp *qp = &lane->qp[i];

		if ((!best || qp->bytes < best->bytes) && qp_room(qp) >= dv_wqe_blocks(DV_SGES_MAX))
			best = qp;
	}
	return best;
}

static void post_wqe(struct rail *rail, struct lane_qp *qp, struct request *request,
	const struct rail_remote *remote, uint64_t offset, const struct dv_sge *sge, unsigned sges)
{
	struct lane *lane = qp->lane;
	uint32_t index = dv_post(
		qp->sq, DV_READ, remote->base + offset, remote->rkey, sge, sges, DV_CE_ALWAYS);
	struct wqe *wqe = &qp->wqe[index & (QP_DEPTH - 1)];
	uint32_t bytes = 0;

	for (unsigned i = 0; i < sges; i++)
		bytes += sge[i].bytes;
	wqe->bytes = bytes;
	wqe->request = request->number;
	wqe->blocks = (uint16_t)(qp->sq->pi - index);
	if (wqe->blocks > 1)
		qp->wqe[(index + 1) & (QP_DEPTH - 1)].blocks = 0;
	if (!lane->wqes)
		lane->moved_ns = 0;
	lane->wqes++;
	rail->wqes++;
	request->outstanding++;
	qp->bytes += bytes;
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

/* Gathers up to `limit` bytes of destination from the cursor on, and moves it. */
static unsigned gather(
	struct rail *rail, struct request *request, uint32_t limit, struct dv_sge *ret_sge)
{
	unsigned sges = 0;

	while (sges < DV_SGES_MAX && limit && request->posted < request->op.length) {
		const struct op_segment *s = &rail->block[request->block].segment[request->segment];
		const struct region_slot *region = &rail->region[s->region];
		uint32_t left = s->length - request->segment_done;
		uint32_t bytes = left < limit ? left : limit;

		ret_sge[sges].address = region->base + s->offset + request->segment_done;
		ret_sge[sges].bytes = bytes;
		ret_sge[sges].lkey = region->lkey;
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
	return sges;
}

/*
 * One slice more, if the wire's budget has room for it. Waiting for the room of a whole slice
 * cannot wait for ever: with nothing posted there is room.
 */
static bool post_piece(struct rail *rail, struct lane *lane, struct request *request)
{
	uint32_t left = request->op.length - request->posted;
	uint32_t limit = left < SLICE_BYTES ? left : SLICE_BYTES;
	uint64_t offset = request->op.offset + request->posted;
	struct dv_sge sge[DV_SGES_MAX];
	struct lane_qp *qp;
	unsigned sges;

	if (rail->posted_bytes && rail->posted_bytes + limit > RAIL_IN_FLIGHT_BYTES)
		return false;
	qp = lane_pick(rail, lane);
	if (!qp)
		return false;
	sges = gather(rail, request, limit, sge);
	post_wqe(rail, qp, request, &lane->peer->region[request->op.region], offset, sge, sges);
	return true;
}

/*
 * The head is READ by a WQE posted after the CQEs of all payload were seen: the remote NIC samples
 * it after it sampled the last payload byte. That order, which neither one READ nor two READs in
 * flight have, is the proof that no overwrite had begun.
 */
static bool post_head(struct rail *rail, struct lane *lane, struct request *request)
{
	struct lane_qp *qp = lane_pick(rail, lane);
	struct page_head *head = &rail->head[request->number];
	struct dv_sge sge = {
		.address = (uintptr_t)head, .bytes = sizeof(*head), .lkey = rail->heads_lkey};

	if (!qp)
		return false;
	/* A head that is not written must not be mistaken for the one of the slot's last request.
	 */
	memset(head, 0, sizeof(*head));
	post_wqe(rail, qp, request, &lane->peer->region[REGION_HEADS_0 + request->op.region],
		request->op.offset / PAGE_UNIT * sizeof(*head), &sge, 1);
	return true;
}

/* Posts as much of the lane as there is room and `burst` for. */
static unsigned post_lane(struct rail *rail, struct lane *lane, unsigned burst)
{
	unsigned n = 0;

	while (n < burst && link_linked(&lane->pending)) {
		struct request *request = container_of(lane->pending.next, struct request, pending);
		bool head = request->stage == REQUEST_HEAD;

		if (!(head ? post_head(rail, lane, request) : post_piece(rail, lane, request)))
			break;
		n++;
		if (head || request->posted == request->op.length)
			link_remove(&request->pending);
	}
	link_remove(&lane->waiting);
	/* Behind the others: the next step begins with them. */
	if (link_linked(&lane->pending))
		link_append(&rail->waiting, &lane->waiting);
	return n;
}

unsigned rail_post(struct rail *rail)
{
	struct link *last = rail->waiting.previous;
	unsigned n = 0;

	while (link_linked(&rail->waiting) && n < RAIL_POST_BURST) {
		struct link *first = rail->waiting.next;

		n += post_lane(
			rail, container_of(first, struct lane, waiting), RAIL_POST_BURST - n);
		if (first == last)
			break;
	}
	if (n)
		rail_count(rail, COUNTER_wqes_posted, n);
	return n;
}
