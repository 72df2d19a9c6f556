/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs -> WQEs, lot by lot. Pages that follow each other both in the peer's pool and in the
 * destination share one READ of up to SLICE_BYTES, and so do the page heads of neighbouring slots.
 * What does not fit the budgets now is posted in a later step. Poll core only; the hot path.
 */
#include "engine/rail/post.h"

/* Bytes that a run's next lot is charged with, see RAIL_LOT_BYTES. */
static uint32_t lot_charge(const struct rail_run *run)
{
	uint32_t left = (run->header.pages - run->next) * (run->item_bytes + RAIL_WQE_CHARGE);

	return left < RAIL_LOT_BYTES ? left : RAIL_LOT_BYTES;
}

/*
 * Start-time fair queueing: a lot starts at the end of its channel's previous one, or now if that
 * has passed, in a time that counts charged bytes. So lots of channels alternate, whatever the
 * number and length of each channel's runs.
 */
void run_queue(struct rail *rail, struct lane *lane, struct rail_run *run)
{
	uint64_t *end = &rail->channel[run->channel].lots_end;
	struct link *at = lane->runs.previous;

	run->tag = *end > rail->lots_now ? *end : rail->lots_now;
	*end = run->tag + lot_charge(run);
	while (at != &lane->runs &&
		unlikely(container_of(at, struct rail_run, pending)->tag > run->tag))
		at = at->previous;
	link_insert_before(at->next, &run->pending);
	if (!link_linked(&lane->waiting))
		link_append(&rail->waiting, &lane->waiting);
}

/*
 * The bytes of READs that the rail's budget allows now. Cannot starve: a rail with nothing posted
 * allows more than one slice.
 */
static inline uint32_t bytes_allowed(const struct rail *rail)
{
	return rail->posted_bytes < RAIL_IN_FLIGHT_BYTES ? RAIL_IN_FLIGHT_BYTES - rail->posted_bytes
							 : 0;
}

/* Records which pages of the run a WQE reads. */
static inline void wqe_own(
	struct lane_qp *qp, uint32_t index, const struct rail_run *run, const struct wqe *what)
{
	qp->wqe[index & (QP_DEPTH - 1)] = (struct wqe){.bytes = what->bytes,
		.request = run->number,
		.blocks = 1,
		.kind = what->kind,
		.first = what->first,
		.count = what->count,
		.landing = what->landing};
}

/* Pages of a run that one READ fetches, because they follow each other on both sides. */
struct piece {
	uint64_t remote, to; /* offsets in the peer's region and in the destination region */
	uint32_t first, end; /* the pages first .. end - 1 */
	uint32_t bytes;
};

/* The piece that begins with page `first`, of at most `limit` bytes or one page. */
static inline struct piece piece_at(
	const struct rail_run *run, uint8_t kind, uint32_t first, uint32_t limit)
{
	struct piece p = {.remote = run_remote(run, kind, first),
		.to = run_to(run, kind, first),
		.first = first,
		.end = first + 1,
		.bytes = run->item_bytes};

	limit = limit < SLICE_BYTES ? limit : SLICE_BYTES;
	while (p.end < run->header.pages && p.bytes + run->item_bytes <= limit &&
		run_remote(run, kind, p.end) == p.remote + p.bytes &&
		run_to(run, kind, p.end) == p.to + p.bytes) {
		p.bytes += run->item_bytes;
		p.end++;
	}
	return p;
}

/* How many WQEs of one WQEBB a series on this QP may have: up to the next one with a CQE. */
static inline unsigned series_max(const struct lane_qp *qp, unsigned burst)
{
	uint32_t signal = RAIL_SIGNAL_WQES - qp->silent;
	uint32_t lane = CQ_DEPTH / 2 - qp->lane->wqes;
	unsigned max = burst < signal ? burst : signal;

	/* lane_pick() has seen that the send queue has room for the longest WQE; the series ends
	 * before it is full */
	return max < lane ? max : lane;
}

/* Ends a series of `n` WQEs: requests a CQE from the last one if it is time for one. */
static inline void series_end(struct rail *rail, struct lane_qp *qp, const struct dv_series *series,
	uint32_t n, uint32_t bytes, bool bulk)
{
	dv_series_end(qp->sq, series);
	qp->silent += n;
	qp->silent_bytes += bytes;
	if (qp->silent >= RAIL_SIGNAL_WQES || qp->silent_bytes >= RUN_SIGNAL_BYTES) {
		dv_signal_last(qp->sq);
		qp->silent = qp->silent_bytes = 0;
	}
	qp_posted(rail, qp, n, bytes, bulk);
}

/*
 * Posts READs of the run's next pages, each of which is one segment in one MR, to one QP: at most
 * `burst`, and until the lot is full. Returns their number; 0: there is no room now.
 */
static inline unsigned post_pages(struct rail *rail, struct lane *lane, struct rail_run *run,
	uint8_t kind, unsigned burst, uint32_t *lot)
{
	const struct rail_remote *remote = &lane->peer->region[run->header.region];
	const struct region_slot *region = &rail->region[run->header.to_region];
	uint32_t left = bytes_allowed(rail), bytes = 0, pages = run->header.pages, charge = *lot,
		 next;
	uint64_t from = remote->base, into = region->base;
	struct piece p = piece_at(run, kind, run->next, left);
	bool bulk = p.bytes > RAIL_SMALL_BYTES;
	struct dv_series series;
	struct lane_qp *qp;
	unsigned max, n = 0;

	if (p.bytes > left)
		return 0;
	qp = lane_pick(lane, p.bytes);
	if (!qp)
		return 0;
	max = series_max(qp, burst);
	if (bulk && left > RAIL_BULK_BYTES - qp->bulk_bytes)
		left = qp->bulk_bytes < RAIL_BULK_BYTES ? RAIL_BULK_BYTES - qp->bulk_bytes : 0;
	series = dv_series_begin(qp->sq, remote->rkey, region->lkey);
	do {
		uint32_t index = dv_series_read(&series, from + p.remote, into + p.to, p.bytes);

		wqe_own(qp, index, run,
			&(struct wqe){.bytes = p.bytes,
				.kind = WQE_RUN_PAGES,
				.first = (uint8_t)p.first,
				.count = (uint8_t)(p.end - p.first)});
		PROBE_POST(run->channel, (uint64_t)run->header.cookie, rail->options.index,
			qp->sq->qpn, p.bytes);
		bytes += p.bytes;
		charge += p.bytes + RAIL_WQE_CHARGE;
		n++;
		next = p.end;
		if (next == pages || n == max || charge >= RAIL_LOT_BYTES ||
			bytes + run->item_bytes > left ||
			series.index - qp->sq->ci >= qp_blocks(qp))
			break;
		p = piece_at(run, kind, next, left - bytes);
	} while ((p.bytes > RAIL_SMALL_BYTES) == bulk);
	run->next = (uint8_t)next;
	run->outstanding = (uint16_t)(run->outstanding + n);
	series_end(rail, qp, &series, n, bytes, bulk);
	*lot = charge;
	return n;
}

/*
 * Adds the rest of the current segment to the SGEs, as far as it lies in one extent, and advances
 * the run's position in the page. False: a further SGE is needed, and there is none.
 */
static bool add_piece(
	const struct rail *rail, struct rail_run *run, struct dv_sge *sge, unsigned *sges)
{
	const struct region_slot *region = &rail->region[run->header.to_region];
	uint64_t at = run_to(run, run->header.kind, run->next) + run->segment_done;
	uint32_t bytes = run->segment_bytes - run->segment_done, lkey = region->lkey;
	struct dv_sge *last = *sges ? &sge[*sges - 1] : NULL;

	if (run->segment)
		at += run->segment * run->header.stride_or_to;
	if (unlikely(region->extent_shift))
		bytes = cut_at_extent(rail, run->header.to_region, at, bytes, &lkey);
	if (last && last->address + last->bytes == region->base + at && last->lkey == lkey) {
		last->bytes += bytes;
	} else {
		if (*sges == DV_SGES_MAX)
			return false;
		sge[(*sges)++] = (struct dv_sge){region->base + at, bytes, lkey};
	}
	run->done += bytes;
	run->segment_done += bytes;
	if (run->segment_done == run->segment_bytes) {
		run->segment_done = 0;
		run->segment++;
	}
	return true;
}

/*
 * Fills SGEs from the run's position on: the rest of the page, and the pages that follow it at the
 * peer, as far as SGEs and `allowed` bytes reach. Returns the number of bytes.
 */
static uint32_t gather_run(const struct rail *rail, struct rail_run *run, uint32_t allowed,
	struct dv_sge *sge, unsigned *ret_sges)
{
	uint32_t bytes = 0, before = run->done;
	uint8_t kind = run->header.kind;
	unsigned sges = 0;

	allowed = allowed < SLICE_BYTES ? allowed : SLICE_BYTES;

	while (add_piece(rail, run, sge, &sges)) {
		if (run->done < run->item_bytes)
			continue;
		bytes += run->done - before;
		before = run->done = 0;
		run->segment = 0;
		run->next++;
		if (run->next == run->header.pages || bytes + run->item_bytes > allowed ||
			run_remote(run, kind, run->next) !=
				run_remote(run, kind, run->next - 1u) + run->item_bytes)
			break;
	}
	*ret_sges = sges;
	return bytes + run->done - before;
}

/*
 * Posts one READ of pages of several segments, or in a region of several MRs. All WQEs of one page
 * go to one QP, which completes them in order: the last one completes the page. Returns the length
 * of the READ; 0: there is no room now.
 */
static uint32_t post_gathered(struct rail *rail, struct lane *lane, struct rail_run *run)
{
	uint32_t first = run->next, bytes, allowed = bytes_allowed(rail);
	uint64_t offset = run_remote(run, run->header.kind, first) + run->done;
	struct lane_qp *qp = run->split;
	struct dv_sge sge[DV_SGES_MAX];
	struct wqe *wqe;
	unsigned sges;

	if (run->item_bytes - run->done > allowed)
		return 0;
	if (!qp)
		qp = lane_pick(lane, run->item_bytes);
	else if (!lane_has_room(lane) || !qp_has_room(qp))
		return 0;
	if (!qp)
		return 0;
	bytes = gather_run(rail, run, allowed, sge, &sges);
	run->split = run->done ? qp : NULL;
	wqe = post_wqe(rail, qp, &lane->peer->region[run->header.region], offset, sge, sges, bytes,
		RUN_SIGNAL_BYTES);
	wqe->request = run->number;
	wqe->kind = WQE_RUN_PAGES;
	wqe->first = (uint8_t)first;
	wqe->count = (uint8_t)(run->next - first);
	run->outstanding++;
	PROBE_POST(run->channel, (uint64_t)run->header.cookie, rail->options.index, qp->sq->qpn,
		bytes);
	return bytes;
}

/* Posts the next READs of the run. Returns their number, and adds to the lot. */
static inline unsigned post_some(
	struct rail *rail, struct lane *lane, struct rail_run *run, unsigned burst, uint32_t *lot)
{
	uint32_t bytes;

	if (likely(run->one_sge && run->header.kind == OP_RUN))
		return post_pages(rail, lane, run, OP_RUN, burst, lot);
	if (run->one_sge)
		return post_pages(rail, lane, run, OP_LOOKUP, burst, lot);
	bytes = post_gathered(rail, lane, run);
	*lot += bytes + RAIL_WQE_CHARGE;
	return bytes != 0;
}

/*
 * Posts at most `burst` WQEs of the run's next lot. Returns their number, and whether that was all
 * of the lot.
 */
static unsigned post_lot(
	struct rail *rail, struct lane *lane, struct rail_run *run, unsigned burst, bool *ret_all)
{
	uint32_t lot = 0;
	unsigned n = 0, posted;

	*ret_all = false;
	while (n < burst && !*ret_all) {
		posted = post_some(rail, lane, run, burst - n, &lot);
		if (!posted)
			break;
		n += posted;
		*ret_all = run->next == run->header.pages || lot >= RAIL_LOT_BYTES;
	}
	return n;
}

unsigned post_runs(struct rail *rail, struct lane *lane, unsigned burst)
{
	unsigned n = 0;

	while (n < burst && link_linked(&lane->runs)) {
		struct rail_run *run = container_of(lane->runs.next, struct rail_run, pending);
		bool all;

		n += post_lot(rail, lane, run, burst - n, &all);
		if (!all)
			break;
		if (run->tag > rail->lots_now)
			rail->lots_now = run->tag;
		link_remove(&run->pending);
		if (run->next < run->header.pages)
			run_queue(rail, lane, run);
	}
	return n;
}

/* ---- page heads ----------------------------------------------------------------------------- */

/*
 * Finds the pages from `first` on whose heads share one READ: pages of the mask `left`, in
 * ascending slots that lie close together. Clears their heads at `landing`, so that heads left
 * there by an earlier READ cannot validate them. Returns the length of the READ in bytes.
 */
static inline uint32_t heads_join(const struct rail_run *run, uint64_t left, uint32_t first,
	struct page_head *landing, uint32_t *ret_count)
{
	const struct run_entry *entry = run_entry(run, first);
	uint32_t units = run->item_bytes / PAGE_UNIT, start = entry->unit, last = start, n = 0;
	uint32_t gap = units > RUN_HEADS_GAP ? units : RUN_HEADS_GAP;

	do {
		memset(&landing[entry->unit - start], 0, sizeof(*landing));
		last = entry->unit;
		n++;
		entry++;
		/* Unsigned arithmetic: for a unit before `last` the difference is huge. */
	} while (left >> first >> n & 1 && entry->unit - last <= gap &&
		 entry->unit - start < RUN_HEADS_SPAN);
	*ret_count = n;
	return (last - start + 1) * (uint32_t)sizeof(struct page_head);
}

/*
 * Posts READs of page heads of the first run in lane->run_heads, to one QP. They are posted after
 * the CQEs of all payload of their pages were seen: see post_heads() in post.c for why that proves
 * the payload. Returns their number.
 */
static unsigned post_heads_of_run(struct rail *rail, struct lane *lane, unsigned burst)
{
	struct rail_run *run = container_of(lane->run_heads.next, struct rail_run, heads);
	const struct rail_remote *remote = &lane->peer->region[REGION_HEADS_0 + run->header.region];
	struct lane_qp *qp = lane_pick(lane, sizeof(struct page_head));
	uint32_t bytes = 0, left = run->arrived;
	struct dv_series series;
	unsigned max, n = 0;

	if (!qp)
		return 0;
	max = series_max(qp, burst);
	series = dv_series_begin(qp->sq, remote->rkey, rail->heads_lkey);
	while (left && n < max && rail->landings_free &&
		series.index - qp->sq->ci < qp_blocks(qp)) {
		uint32_t first = (uint32_t)__builtin_ctz(left), count, of_this;
		uint16_t block = rail->landing_stack[--rail->landings_free];
		struct page_head *landing = run_landing(rail, block);

		of_this = heads_join(run, left, first, landing, &count);
		wqe_own(qp,
			dv_series_read(&series,
				remote->base + (uint64_t)run_entry(run, first)->unit *
						       sizeof(struct page_head),
				(uintptr_t)landing, of_this),
			run,
			&(struct wqe){.bytes = of_this,
				.kind = WQE_RUN_HEADS,
				.first = (uint8_t)first,
				.count = (uint8_t)count,
				.landing = block});
		PROBE_POST(run->channel, (uint64_t)run->header.cookie, rail->options.index,
			qp->sq->qpn, of_this);
		left &= ~run_mask(first, count);
		bytes += of_this;
		n++;
	}
	if (!n)
		return 0;
	run->outstanding = (uint16_t)(run->outstanding + n);
	run->arrived = left;
	series_end(rail, qp, &series, n, bytes, false);
	if (!left)
		link_remove(&run->heads);
	return n;
}

unsigned post_run_heads(struct rail *rail, struct lane *lane, unsigned burst)
{
	unsigned n = 0, posted;

	while (n < burst && link_linked(&lane->run_heads)) {
		posted = post_heads_of_run(rail, lane, burst - n);
		if (!posted)
			break;
		n += posted;
	}
	return n;
}
