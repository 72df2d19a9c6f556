/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lone pages: runs of one page that is READ slice by slice, each slice with a record of its own.
 * The slices may go to several queue pairs, and the destination may be a list of segments in any
 * regions. This file posts the slices and the head of a lone page, and decides the page once all of
 * its READs have retired; intake.c takes it and run.c routes and ends it, as any other run. A page
 * of one segment in one MR needs no list. Poll core only; the hot path.
 */
#include "engine/abi/page.h"
#include "engine/rail/lot.h"
#include "engine/rail/wqe.h"

/* ---- the regions of a list of segments ------------------------------------------------------- */

void lone_count_regions(struct rail *rail, const struct rail_run *run, int change)
{
	const struct op_segment *s = run_segments(rail, run->number);
	const struct op_segment *end = s + run->header.segments;
	uint32_t id = UINT32_MAX;

	for (; s != end; s++) {
		if (s->region == id)
			continue;
		id = s->region;
		if (change > 0)
			rail->region[id].users++;
		else
			region_release(rail, id);
	}
}

/* ---- posting: slices ------------------------------------------------------------------------ */

/*
 * Writes the data segments of whole segments in a region of one MR, which is that of `s`: up to the
 * first segment that lies elsewhere, does not fit `left` bytes or finds no room. Returns that one.
 */
static inline const struct op_segment *sges_add_whole(struct sges *sges,
	const struct region_slot *region, const struct op_segment *s, uint32_t *left)
{
	uint64_t base = region->base;
	uint32_t lkey = region->lkey, rest = *left;
	uint16_t id = s->region;

	while (rest && s->region == id && s->length <= rest &&
		sges_add(sges, base + s->offset, s->length, lkey)) {
		rest -= s->length;
		s++;
	}
	*left = rest;
	return s;
}

/*
 * Writes the data segments of the next destination bytes of a list, at most `limit` and at most
 * DV_SGES_MAX segments, and advances the run's position. Returns the number of bytes. Not inline:
 * the loops keep their state in registers.
 */
__attribute__((noinline)) static uint32_t lone_gather(struct rail *rail, const struct conn_qp *qp,
	struct rail_run *run, uint32_t limit, uint32_t *ret_sges)
{
	const struct op_segment *list = run_segments(rail, run->number), *s = list + run->segment;
	uint32_t left = limit, done = run->segment_done, bytes, lkey;
	const struct region_slot *region;
	struct sges sges = sges_begin(qp);

	while (left) {
		region = &rail->region[s->region];
		if (likely(!done && !region->extent_shift)) {
			s = sges_add_whole(&sges, region, s, &left);
			if (!left)
				break;
			region = &rail->region[s->region];
		}
		lkey = region->lkey;
		bytes = s->length - done < left ? s->length - done : left;
		if (unlikely(region->extent_shift))
			bytes = region_cut_at_extent(
				rail, s->region, s->offset + done, bytes, &lkey);
		if (!sges_add(&sges, region->base + s->offset + done, bytes, lkey))
			break;
		left -= bytes;
		done += bytes;
		if (done == s->length) {
			done = 0;
			s++;
		}
	}
	run->segment = (uint16_t)(s - list);
	run->segment_done = done;
	*ret_sges = sges.count;
	return limit - left;
}

static inline void wqe_set_lone(struct wqe *wqe, const struct rail_run *run)
{
	wqe_store(wqe, wqe->bytes, wqe_owner(run->number, wqe->blocks, WQE_LONE), 0, 0);
}

/*
 * Posts the page's next slice if it fits the rail's budget. Returns its bytes; 0: it does not fit
 * now.
 */
static inline uint32_t lone_post_slice(struct rail *rail, struct conn *conn, struct rail_run *run)
{
	uint32_t left = run->item_bytes - run->done;
	uint32_t bytes = left < SLICE_BYTES ? left : SLICE_BYTES;
	uint64_t at = run_remote(run, OP_RUN, 0) + run->done;
	const struct rail_remote *remote = &conn->handle->region[run->header.region];
	const struct region_slot *region = &rail->region[run->header.to_region];
	struct conn_qp *qp;
	struct wqe *wqe;
	uint32_t sges;

	if (bytes > rail_bytes_allowed(rail))
		return 0;
	qp = conn_pick(conn, bytes, run->listed ? QP_ROOM_GATHERED : QP_ROOM);
	if (!qp)
		return 0;
	if (conn->limbo_ns && !run->done)
		run->t0_ns[0] = rail_t0(rail);
	at += (uint64_t)run->header.slice * SLICE_BYTES;
	if (likely(!run->listed)) {
		struct dv_sge sge = {.address = region->base + run_to(run, OP_RUN, 0) + run->done,
			.bytes = bytes,
			.lkey = region->lkey};

		wqe = wqe_post(rail, qp, remote, at, sge, RAIL_SIGNAL_BYTES);
	} else {
		bytes = lone_gather(rail, qp, run, bytes, &sges);
		wqe = wqe_post_gathered(rail, qp, remote, at, sges, bytes, RAIL_SIGNAL_BYTES);
	}
	wqe_set_lone(wqe, run);
	run->done += bytes;
	run->outstanding++;
	PROBE_POST(run->channel, (uint64_t)run->header.cookie, rail->options.index, qp->sq->qpn,
		bytes);
	return bytes;
}

/* ---- posting: page heads -------------------------------------------------------------------- */

/* Posts the READ of the page head. False: there is no room now. */
__attribute__((always_inline)) static inline bool lone_post_head(
	struct rail *rail, struct conn *conn, struct rail_run *run)
{
	struct page_head *head = run_own_heads(rail, run->number);
	struct conn_qp *qp = conn_pick(conn, HEAD_BYTES, QP_ROOM);
	struct dv_sge sge = {
		.address = (uintptr_t)head, .bytes = HEAD_BYTES, .lkey = rail->heads_lkey};

	if (!qp)
		return false;
	page_head_clear(head);
	wqe_set_lone(wqe_post(rail, qp, &conn->handle->region[REGION_HEADS_0 + run->header.region],
			     run_entry(run, 0)->unit * sizeof(*head), sge, RAIL_SIGNAL_BYTES),
		run);
	run->outstanding++;
	list_remove(&run->heads);
	PROBE_POST(run->channel, (uint64_t)run->header.cookie, rail->options.index, qp->sq->qpn,
		HEAD_BYTES);
	return true;
}

unsigned lone_pages_post_heads(struct rail *rail, struct conn *conn, unsigned burst)
{
	unsigned n = 0;

	while (n < burst && list_linked(&conn->run_heads)) {
		struct rail_run *run = container_of(conn->run_heads.next, struct rail_run, heads);

		if (!run->alone || !lone_post_head(rail, conn, run))
			break;
		n++;
	}
	return n;
}

/* ---- posting: lots -------------------------------------------------------------------------- */

/*
 * Posts at most `burst` slices of the lot of a lone page that began in this step or an earlier one.
 * Returns their number, and whether the lot ended.
 */
static inline unsigned lone_post_lot(
	struct rail *rail, struct conn *conn, struct rail_run *run, unsigned burst, bool *ret_all)
{
	uint32_t bytes;
	unsigned n = 0;

	*ret_all = false;
	do {
		bytes = lone_post_slice(rail, conn, run);
		if (unlikely(!bytes))
			return n;
		n++;
		run->lot += bytes + RAIL_READ_CHARGE;
		*ret_all = likely(run->done == run->item_bytes) || run->lot >= RAIL_LOT_BYTES;
	} while (unlikely(n < burst && !*ret_all));
	if (likely(*ret_all))
		run->lot = 0;
	return n;
}

unsigned lone_pages_post(struct rail *rail, struct conn *conn, unsigned burst, bool *ret_all)
{
	unsigned n = 0;

	*ret_all = true;
	while (*ret_all && n < burst && list_linked(&conn->runs)) {
		struct rail_run *run = container_of(conn->runs.next, struct rail_run, pending);

		if (!run->alone)
			break;
		n += lone_post_lot(rail, conn, run, burst - n, ret_all);
		if (!*ret_all)
			break;
		run->next = run->done == run->item_bytes;
		/* With a lease, the head is READ together with the payload if there is room.
		 * Otherwise the page is validated by tail. */
		if (conn->limbo_ns && run->next && n < burst && lone_post_head(rail, conn, run)) {
			run->leased = 1;
			n++;
		}
		conn_end_lot(rail, conn, run);
	}
	return n;
}

/* ---- retiring ------------------------------------------------------------------------------- */

static inline bool lone_head_matches(struct rail *rail, const struct rail_run *run)
{
	const struct run_entry *entry = run_entry(run, 0);

	return page_head_is(run_own_heads(rail, run->number), &entry->key, entry->generation,
		run->header.page_bytes);
}

/*
 * The head of a leased page matches. False: the lease ended before its READs, so this proves
 * nothing.
 */
static bool lone_lease_holds(struct rail *rail, struct rail_run *run)
{
	if (likely(lease_valid(run->t0_ns[0], rail_t1(rail), run->conn->limbo_ns)))
		return true;
	rail_count(rail, COUNTER_leases_expired, 1);
	run->leased = 0;
	return false;
}

/* All payload has arrived: the head is to be READ. */
__attribute__((noinline)) static void lone_arrives(struct rail *rail, struct rail_run *run)
{
	if (unlikely(run->conn->state != CONN_OPEN)) {
		run_end(rail, run, OP_PEER_DOWN);
		return;
	}
	if (TEST_HOOK(rail->options.skip_head_check)) {
		run->hit = 1;
		run_end(rail, run, OP_HIT);
		return;
	}
	run->arrived = 1;
	run_queue_heads(rail, run->conn, run);
}

/*
 * The head was READ after the CQEs of all payload, or together with it under a lease: it decides,
 * also past the deadline. One with another generation is final. The head is READ again only before
 * the deadline.
 */
__attribute__((noinline)) static void lone_decide(struct rail *rail, struct rail_run *run)
{
	bool match = lone_head_matches(rail, run);

	if (match && run->leased && !lone_lease_holds(rail, run)) {
		if (likely(run->status == OP_HIT))
			lone_arrives(rail, run);
		else
			run_end(rail, run, run->status);
		return;
	}
	run->hit = match;
	run->stale = !match;
	run_end(rail, run, OP_HIT);
}

/* One of its READs has failed: nothing more of the page is posted, and no head decides it. */
__attribute__((noinline)) static void lone_fail(
	struct rail *rail, struct rail_run *run, uint32_t syndrome)
{
	run_quit(run, syndrome_status(syndrome));
	run->arrived = run->leased = 0;
	if (!--run->outstanding)
		run_end(rail, run, run->status);
}

/* Each branch ends with a call of a function that is not inline, so this one saves no register. */
void lone_retire(struct rail *rail, struct rail_run *run, uint32_t syndrome)
{
	if (unlikely(syndrome))
		lone_fail(rail, run, syndrome);
	else if (--run->outstanding)
		return;
	else if (run->arrived || run->leased) /* all payload and the head have arrived */
		lone_decide(rail, run);
	else if (unlikely(run->status != OP_HIT))
		run_end(rail, run, run->status);
	else if (run->next)
		lone_arrives(rail, run);
}
