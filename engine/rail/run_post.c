/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs -> WQEs, lot by lot. Pages that follow each other both in the peer's pool and in the
 * destination share one READ of up to SLICE_BYTES, and so do the page heads of neighbouring slots.
 * What does not fit the budgets now is posted in a later step. Poll core only; the hot path.
 */
#include "engine/rail/run_series.h"

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
static inline void run_tag(struct rail *rail, struct rail_run *run)
{
	uint64_t *end = &rail->channel[run->channel].lots_end;

	run->tag = *end > rail->lots_now ? *end : rail->lots_now;
	*end = run->tag + lot_charge(run);
}

void run_queue(struct rail *rail, struct lane *lane, struct rail_run *run)
{
	struct link *at = lane->runs.previous;

	run_tag(rail, run);
	while (at != &lane->runs &&
		unlikely(container_of(at, struct rail_run, pending)->tag > run->tag))
		at = at->previous;
	link_insert_before(at->next, &run->pending);
	if (!link_linked(&lane->waiting))
		link_append(&rail->waiting, &lane->waiting);
}

/*
 * Collects the READs for the run's next pages, at most `max` of them and `left` bytes. Pages that
 * follow each other at the peer and here share one, of at most SLICE_BYTES.
 */
static unsigned collect_pages(const struct rail_run *run, uint64_t from, uint64_t into,
	uint32_t left, unsigned max, struct piece *ret)
{
	const struct run_entry *entry = run_entry(run, run->next);
	uint32_t item = run->item_bytes, at = run->next, pages = run->header.pages, n = 0;
	uint64_t from_next = 0, into_next = 0;
	uint32_t bytes = SLICE_BYTES;

	for (; at < pages && item <= left; at++, entry++) {
		uint64_t remote = from + (uint64_t)entry->unit * PAGE_UNIT;
		uint64_t here = into + (entry->to & (RUN_TO_MAX - 1));

		if (remote == from_next && here == into_next && bytes + item <= SLICE_BYTES) {
			bytes += item;
			ret[-1].bytes = bytes;
			ret[-1].pages |= 1u << at;
			ret[-1].end = at + 1;
		} else {
			if (n == max)
				break;
			bytes = item;
			*ret++ = (struct piece){remote, here, item, 1u << at, at, at + 1};
			n++;
		}
		from_next = remote + item;
		into_next = here + item;
		left -= item;
	}
	return n;
}

/* The same for the buckets of a look-up, each of which is a READ of its own. */
static unsigned collect_buckets(const struct rail_run *run, uint64_t from, uint64_t into,
	uint32_t left, unsigned max, struct piece *ret)
{
	uint32_t item = sizeof(struct bucket), at = run->next, n = 0;

	into += run->header.stride_or_to;
	for (; at < run->header.pages && n < max && item <= left; at++, n++, left -= item)
		*ret++ = (struct piece){from + (uint64_t)run_bucket(run, at) * item,
			into + at * item, item, 1u << at, at, at + 1};
	return n;
}

/*
 * The number of pieces from the first one on that go to this QP, at most `max`: READs of the same
 * kind, long or small, and not more long ones than RAIL_BULK_BYTES.
 */
static inline unsigned pieces_for(
	const struct lane_qp *qp, const struct piece *piece, unsigned n, unsigned max)
{
	uint32_t bytes = qp->bulk_bytes + piece->bytes;
	bool bulk = piece->bytes > RAIL_SMALL_BYTES;
	unsigned i = 1;

	for (max = max < n ? max : n; i < max; i++) {
		bytes += piece[i].bytes;
		if ((piece[i].bytes > RAIL_SMALL_BYTES) != bulk ||
			(bulk && bytes > RAIL_BULK_BYTES))
			break;
	}
	return i;
}

/*
 * Posts READs of the run's next pages, each of which is one segment in one MR: at most `burst`, and
 * until the lot is full. Returns their number; 0: there is no room now.
 */
static unsigned post_pieces(
	struct rail *rail, struct lane *lane, struct rail_run *run, unsigned burst, uint32_t *lot)
{
	const struct rail_remote *remote = &lane->peer->region[run->header.region];
	const struct region_slot *region = &rail->region[run->header.to_region];
	uint32_t left = bytes_allowed(rail), lot_left = RAIL_LOT_BYTES - *lot;
	unsigned n, m, done = 0, max = burst < PIECES_MAX ? burst : PIECES_MAX;
	struct piece piece[PIECES_MAX];

	if (lot_left < left)
		left = lot_left > run->item_bytes ? lot_left : run->item_bytes;
	if (run->item_bytes > bytes_allowed(rail))
		return 0;
	n = likely(run->header.kind == OP_RUN)
		    ? collect_pages(run, remote->base, region->base, left, max, piece)
		    : collect_buckets(run, remote->base, region->base, left, max, piece);
	for (; done < n; done += m) {
		struct lane_qp *qp = lane_pick(lane, piece[done].bytes);

		if (!qp)
			break;
		m = pieces_for(qp, &piece[done], n - done, series_max(qp));
		post_series(
			rail, qp, run, &piece[done], m, remote->rkey, region->lkey, WQE_RUN_PAGES);
		series_signal(qp);
		for (unsigned i = done; i < done + m; i++)
			*lot += piece[i].bytes + RAIL_WQE_CHARGE;
		run->next = (uint8_t)piece[done + m - 1].end;
	}
	return done;
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
 * go to one QP, which completes them in order: the last one completes the page. With a lease, a
 * READ of the heads of the pages that are complete follows on that QP, if `burst` allows it.
 * Returns the length of the READ and the number of READs; 0: there is no room now.
 */
static uint32_t post_gathered(struct rail *rail, struct lane *lane, struct rail_run *run,
	unsigned burst, unsigned *ret_posted)
{
	uint32_t first = run->next, bytes, allowed = bytes_allowed(rail);
	uint64_t offset = run_remote(run, run->header.kind, first) + run->done;
	struct lane_qp *qp = run->split;
	uint64_t t0_ns = 0;
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
	if (lane->limbo_ns)
		t0_ns = rail_t0(rail);
	if (!run->done)
		run->page_t0_ns = t0_ns;
	bytes = gather_run(rail, run, allowed, sge, &sges);
	run->split = run->done ? qp : NULL;
	wqe = post_wqe(rail, qp, &lane->peer->region[run->header.region], offset, sge, sges, bytes,
		RUN_SIGNAL_BYTES);
	wqe_store(wqe, bytes, wqe_owner(run->number, wqe->blocks, WQE_RUN_PAGES),
		run_mask(first, run->next - first), first);
	run->outstanding++;
	PROBE_POST(run->channel, (uint64_t)run->header.cookie, rail->options.index, qp->sq->qpn,
		bytes);
	*ret_posted = 1;
	if (lane->limbo_ns && run->header.kind == OP_RUN && run->next > first && burst > 1 &&
		lane_has_room(lane) && qp_has_room(qp)) {
		*ret_posted += post_leased(
			rail, qp, run, run_mask(first, run->next - first), run->page_t0_ns, 1);
		series_signal(qp);
	}
	if (run->next > first) /* a page that is posted in part now begins in this READ */
		run->page_t0_ns = t0_ns;
	return bytes;
}

/* Posts the next READs of the run. Returns their number, and adds to the lot. */
static inline unsigned post_some(
	struct rail *rail, struct lane *lane, struct rail_run *run, unsigned burst, uint32_t *lot)
{
	unsigned posted = 0;

	if (likely(run->one_sge))
		return post_pieces(rail, lane, run, burst, lot);
	*lot += post_gathered(rail, lane, run, burst, &posted) + RAIL_WQE_CHARGE;
	return posted;
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

/* Are all runs of the connection of one channel? Then lots do not take turns. */
static inline bool one_channel(const struct lane *lane)
{
	return lane->runs_channel != CHANNEL_NONE;
}

/*
 * post_lot() for pages in pairs. If no other channel waits, the lot has no limit but the budget,
 * and is charged afterwards.
 */
static inline unsigned post_lot_of_pairs(
	struct rail *rail, struct lane *lane, struct rail_run *run, unsigned burst, bool *ret_all)
{
	uint32_t left = bytes_allowed(rail), item = run->item_bytes, lot;
	unsigned n;

	if (left > RAIL_LOT_BYTES && unlikely(!one_channel(lane)))
		left = RAIL_LOT_BYTES > item ? RAIL_LOT_BYTES : item;
	n = post_pairs(rail, lane, run, burst, left, &lot);
	*ret_all = run->next == run->header.pages || lot >= RAIL_LOT_BYTES;
	if (lot > RAIL_LOT_BYTES)
		rail->channel[run->channel].lots_end += lot - RAIL_LOT_BYTES;
	return n;
}

/* Puts the first run of the connection behind those whose turn comes before its next lot. */
static inline void first_run_again(struct rail *rail, struct lane *lane, struct rail_run *run)
{
	if (likely(one_channel(lane))) {
		run_tag(rail, run);
		return;
	}
	link_remove(&run->pending);
	run_queue(rail, lane, run);
}

unsigned post_runs(struct rail *rail, struct lane *lane, unsigned burst)
{
	unsigned n = 0;

	while (n < burst && link_linked(&lane->runs)) {
		struct rail_run *run = container_of(lane->runs.next, struct rail_run, pending);
		bool all;

		if (run->item_bytes - run->done > bytes_allowed(rail))
			break;
		n += lane->limbo_ns && run->one_sge && run->header.kind == OP_RUN
			     ? post_lot_of_pairs(rail, lane, run, burst - n, &all)
			     : post_lot(rail, lane, run, burst - n, &all);
		if (!all)
			break;
		if (run->tag > rail->lots_now)
			rail->lots_now = run->tag;
		if (run->next < run->header.pages)
			first_run_again(rail, lane, run);
		else
			link_remove(&run->pending);
	}
	return n;
}
