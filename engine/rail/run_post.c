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

void run_queue(struct rail *rail, struct conn *conn, struct rail_run *run)
{
	struct link *at = conn->runs.previous;

	run_tag(rail, run);
	while (at != &conn->runs &&
		unlikely(container_of(at, struct rail_run, pending)->tag > run->tag))
		at = at->previous;
	link_insert_before(at->next, &run->pending);
	if (!link_linked(&conn->waiting))
		link_append(&rail->waiting, &conn->waiting);
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
static uint32_t post_gathered(struct rail *rail, struct conn *conn, struct rail_run *run,
	unsigned burst, unsigned *ret_posted)
{
	uint32_t first = run->next, bytes, allowed = bytes_allowed(rail);
	uint64_t offset = run_remote(run, run->header.kind, first) + run->done;
	struct conn_qp *qp = run->split;
	uint64_t t0_ns = 0;
	struct dv_sge sge[DV_SGES_MAX];
	struct wqe *wqe;
	unsigned sges;

	if (run->item_bytes - run->done > allowed)
		return 0;
	if (!qp)
		qp = conn_pick(conn, run->item_bytes);
	else if (!conn_has_room(conn) || !qp_has_room(qp))
		return 0;
	if (!qp)
		return 0;
	if (conn->limbo_ns)
		t0_ns = rail_t0(rail);
	if (!run->done)
		run->page_t0_ns = t0_ns;
	bytes = gather_run(rail, run, allowed, sge, &sges);
	run->split = run->done ? qp : NULL;
	wqe = post_wqe(rail, qp, &conn->handle->region[run->header.region], offset, sge, sges,
		bytes, RUN_SIGNAL_BYTES);
	wqe_store(wqe, bytes, wqe_owner(run->number, wqe->blocks, WQE_RUN_PAGES),
		run_mask(first, run->next - first), first);
	run->outstanding++;
	PROBE_POST(run->channel, (uint64_t)run->header.cookie, rail->options.index, qp->sq->qpn,
		bytes);
	*ret_posted = 1;
	if (conn->limbo_ns && run->header.kind == OP_RUN && run->next > first && burst > 1 &&
		conn_has_room(conn) && qp_has_room(qp)) {
		*ret_posted += post_leased(
			rail, qp, run, run_mask(first, run->next - first), run->page_t0_ns, 1);
		series_signal(qp);
	}
	if (run->next > first) /* a page that is posted in part now begins in this READ */
		run->page_t0_ns = t0_ns;
	return bytes;
}

/*
 * Posts at most `burst` WQEs of the next lot of a run whose pages have several segments or MRs.
 * Returns their number, and whether that was all of the lot. Not inline: inlining would take
 * registers from the other runs.
 */
__attribute__((noinline)) static unsigned post_gathered_lot(
	struct rail *rail, struct conn *conn, struct rail_run *run, unsigned burst, bool *ret_all)
{
	uint32_t lot = 0;
	unsigned n = 0, posted;

	*ret_all = false;
	while (n < burst && !*ret_all) {
		posted = 0;
		lot += post_gathered(rail, conn, run, burst - n, &posted) + RAIL_WQE_CHARGE;
		if (!posted)
			break;
		n += posted;
		*ret_all = run->next == run->header.pages || lot >= RAIL_LOT_BYTES;
	}
	return n;
}

/* Are all runs of the connection of one channel? Then lots do not take turns. */
static inline bool one_channel(const struct conn *conn)
{
	return conn->runs_channel != CHANNEL_NONE;
}

/*
 * The same for other runs. If no other channel waits, the lot has no limit but the budget, and is
 * charged afterwards.
 */
static inline unsigned post_lot(
	struct rail *rail, struct conn *conn, struct rail_run *run, unsigned burst, bool *ret_all)
{
	uint32_t left = bytes_allowed(rail), most = RAIL_LOT_BYTES + run->item_bytes - 1, lot;
	unsigned n;

	if (left > most && unlikely(!one_channel(conn)))
		left = most; /* of whole pages, so RAIL_LOT_BYTES at least */
	n = post_payload(rail, conn, run, burst, left, &lot);
	*ret_all = run->next == run->header.pages || lot >= RAIL_LOT_BYTES;
	if (lot > RAIL_LOT_BYTES) { /* as several lots, of which this is the last one */
		run->tag += lot - RAIL_LOT_BYTES;
		rail->channel[run->channel].lots_end += lot - RAIL_LOT_BYTES;
	}
	return n;
}

/* Puts the first run of the connection behind those whose turn comes before its next lot. */
static inline void first_run_again(struct rail *rail, struct conn *conn, struct rail_run *run)
{
	if (likely(one_channel(conn))) {
		run_tag(rail, run);
		return;
	}
	link_remove(&run->pending);
	run_queue(rail, conn, run);
}

unsigned post_runs(struct rail *rail, struct conn *conn, unsigned burst)
{
	unsigned n = 0;

	while (n < burst && link_linked(&conn->runs)) {
		struct rail_run *run = container_of(conn->runs.next, struct rail_run, pending);
		bool all;

		if (run->item_bytes - run->done > bytes_allowed(rail))
			break;
		n += likely(run->one_sge) ? post_lot(rail, conn, run, burst - n, &all)
					  : post_gathered_lot(rail, conn, run, burst - n, &all);
		if (!all)
			break;
		if (run->tag > rail->lots_now)
			rail->lots_now = run->tag;
		if (run->next < run->header.pages)
			first_run_again(rail, conn, run);
		else
			link_remove(&run->pending);
	}
	return n;
}
