/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a run's WQEs and of the run: payload that has arrived waits for its page heads, heads
 * decide which pages are hits, and one completion answers the run. Poll core only; the hot path.
 */
#include "engine/abi/lease.h"
#include "engine/rail/core.h"

void run_quit(struct rail_run *run, enum op_status status)
{
	if (run->status == OP_HIT)
		run->status = (uint8_t)status;
	link_remove(&run->pending);
	link_remove(&run->heads);
}

void run_fail(struct rail *rail, struct rail_run *run, enum op_status status)
{
	run_quit(run, status);
	if (!run->outstanding)
		run_end(rail, run, run->status);
}

/* The pages of `mask` are decided: those of `hit` are valid. They leave the budgets. */
static inline void pages_decide(
	struct rail *rail, struct rail_run *run, uint32_t mask, uint32_t hit)
{
	uint32_t bytes = (uint32_t)__builtin_popcount(mask) * run->item_bytes;

	run->hit |= hit;
	run->stale |= mask & ~hit;
	run->bytes -= bytes;
	run->lane->taken_bytes -= bytes;
	rail->taken_bytes -= bytes; /* the connection is not stalled: one of its WQEs retires */
}

/* Pages whose payload has arrived: their heads are to be READ. Buckets are not validated. */
static void pages_arrive(struct rail *rail, struct rail_run *run, uint32_t mask)
{
	struct lane *lane = run->lane;

	if (run->header.kind != OP_RUN || unlikely(rail->options.skip_head_check)) {
		pages_decide(rail, run, mask, mask);
		return;
	}
	if (unlikely(lane->state != LANE_OPEN)) {
		run_quit(run, OP_PEER_DOWN);
		return;
	}
	run->arrived |= mask;
	if (!link_linked(&run->heads))
		link_append(&lane->run_heads, &run->heads);
	if (!link_linked(&lane->waiting))
		link_append(&rail->waiting, &lane->waiting);
}

/*
 * Validates the pages of a READ of heads: is each head the one that its entry expects? Returns the
 * pages that are valid.
 */
static inline uint32_t heads_match(
	struct rail *rail, const struct rail_run *run, const struct wqe *wqe)
{
	const struct page_head *landing = run_landing(rail, wqe->landing);
	const struct run_entry *entry = run_entry(run, wqe->first);
	uint32_t bytes = run->item_bytes, bit = 1u << wqe->first, start = entry->unit, hit = 0;

	for (uint32_t left = wqe->pages; left; left &= ~bit, bit <<= 1, entry++)
		hit |= page_head_is(
			       &landing[entry->unit - start], &entry->key, entry->generation, bytes)
			       ? bit
			       : 0;
	return hit;
}

/* After WQEs of the run have retired: ends it if nothing more can come of it. */
static inline void run_settle(struct rail *rail, struct rail_run *run)
{
	if (!run->outstanding && (unlikely(run->status != OP_HIT) ||
					 (run->hit | run->stale) == run_mask(0, run->header.pages)))
		run_end(rail, run, run->status);
}

void run_retire_failed(struct rail *rail, const struct wqe *wqe, enum op_status status)
{
	struct rail_run *run = &rail->run[wqe->request];

	if (wqe->kind != WQE_RUN_PAGES && wqe->landing != LANDING_RUN)
		rail->landing_stack[rail->landings_free++] = wqe->landing;
	run->outstanding--;
	run_quit(run, status);
	run_settle(rail, run);
}

/* Retires WQEs with payload, which are all the run's; see run_retire(). */
static inline uint32_t retire_pages(
	struct lane_qp *qp, uint32_t end, uint16_t number, struct retired *r)
{
	const struct wqe *next;
	uint32_t pages = 0;

	do {
		struct wqe *wqe = &qp->wqe[r->at & (QP_DEPTH - 1)];

		pages |= wqe->pages;
		r->at += wqe->blocks;
		r->bytes += wqe_retire(qp, wqe);
		r->n++;
		next = &qp->wqe[r->at & (QP_DEPTH - 1)];
	} while (r->at != end && next->request == number && next->kind == WQE_RUN_PAGES);
	return pages;
}

/*
 * The lease of these pages, whose heads match, ended before their READs. Their heads are READ
 * again, because all of their CQEs were seen now.
 */
static void lease_expire(struct rail *rail, struct rail_run *run, uint32_t pages)
{
	rail_count(rail, COUNTER_leases_expired, (unsigned)__builtin_popcount(pages));
	if (run->status == OP_HIT)
		pages_arrive(rail, run, pages);
}

/*
 * Retires READs of heads, which are all the run's and of this kind, and validates their pages. The
 * CQEs of their payload were seen as well: before these READs were posted, or, if they are leased,
 * because the payload was posted before them on the same QP.
 */
static inline void retire_heads(struct rail *rail, struct lane_qp *qp, uint32_t end,
	struct rail_run *run, enum wqe_kind kind, struct retired *r)
{
	const struct wqe *next;
	uint32_t pages = 0, hit = 0, late = 0;

	do {
		struct wqe *wqe = &qp->wqe[r->at & (QP_DEPTH - 1)];

		pages |= wqe->pages;
		hit |= heads_match(rail, run, wqe);
		if (kind == WQE_RUN_LEASED && unlikely(!lease_valid(run->t0_ns[wqe->first],
						      rail_t1(rail), run->lane->limbo_ns)))
			late |= wqe->pages;
		rail->landing_stack[rail->landings_free++] = wqe->landing;
		r->at++;
		wqe->blocks = 0;
		r->bytes += wqe->bytes;
		r->n++;
		next = &qp->wqe[r->at & (QP_DEPTH - 1)];
	} while (r->at != end && next->request == run->number && next->kind == kind);
	late &= hit; /* a head with another generation is final: the page is stale */
	if (unlikely(late))
		lease_expire(rail, run, late);
	pages_decide(rail, run, pages & ~late, hit & ~late);
}

/* Retires pairs, which are all the run's, and validates their pages. */
static inline void retire_pairs(struct rail *rail, struct lane_qp *qp, uint32_t end,
	struct rail_run *run, struct retired *r)
{
	const struct page_head *own = run_own_heads(rail, run->number);
	const uint64_t t1_ns = rail_t1(rail), limbo_ns = run->lane->limbo_ns;
	const uint32_t bytes = run->item_bytes;
	uint32_t pages = 0, hit = 0, late = 0, at = r->at, sum = 0, n = 0;
	const uint16_t number = run->number;
	struct wqe *wqe = &qp->wqe[at & (QP_DEPTH - 1)];

	do {
		uint32_t i = wqe->first, mask = wqe->pages;

		pages |= mask;
		if (unlikely(!lease_valid(run->t0_ns[i], t1_ns, limbo_ns)))
			late |= mask;
		if (unlikely(wqe->landing != LANDING_RUN)) {
			hit |= heads_match(rail, run, wqe);
			rail->landing_stack[rail->landings_free++] = wqe->landing;
		} else {
			for (uint32_t bit = 1u << i; mask & bit; bit <<= 1, i++) {
				const struct run_entry *entry = run_entry(run, i);

				if (likely(page_head_is(
					    &own[i], &entry->key, entry->generation, bytes)))
					hit |= bit;
			}
		}
		sum += wqe_retire(qp, wqe);
		n++;
		at += 2;
		wqe = &qp->wqe[at & (QP_DEPTH - 1)];
	} while (at != end && wqe->request == number && wqe->kind == WQE_RUN_PAIR);
	r->at = at;
	r->bytes = sum;
	r->n = n;
	late &= hit; /* a head with another generation is final: the page is stale */
	if (unlikely(late))
		lease_expire(rail, run, late);
	pages_decide(rail, run, pages & ~late, hit & ~late);
}

struct retired run_retire(struct rail *rail, struct lane_qp *qp, uint32_t at, uint32_t end)
{
	const struct wqe *wqe = &qp->wqe[at & (QP_DEPTH - 1)];
	struct rail_run *run = &rail->run[wqe->request];
	struct retired r = {.at = at};

	if (wqe->kind == WQE_RUN_PAIR) {
		retire_pairs(rail, qp, end, run, &r);
		run->outstanding = (uint16_t)(run->outstanding - r.n);
		r.n *= 2;
		run_settle(rail, run);
		return r;
	}
	if (wqe->kind == WQE_RUN_LEASED) {
		retire_heads(rail, qp, end, run, WQE_RUN_LEASED, &r);
	} else if (wqe->kind == WQE_RUN_HEADS) {
		retire_heads(rail, qp, end, run, WQE_RUN_HEADS, &r);
	} else {
		uint32_t pages = retire_pages(qp, end, run->number, &r) & ~run->leased;

		if (pages && likely(run->status == OP_HIT))
			pages_arrive(rail, run, pages);
	}
	run->outstanding = (uint16_t)(run->outstanding - r.n);
	run_settle(rail, run);
	return r;
}

/* ---- the answer ----------------------------------------------------------------------------- */

static void count_stale(struct rail *rail, const struct rail_run *run)
{
	rail_count(rail, COUNTER_pages_stale, (unsigned)__builtin_popcount(run->stale));
	for (uint32_t left = run->stale; left; left &= left - 1)
		PROBE_STALE(run->channel, (uint64_t)run->header.cookie, rail->options.index,
			run->header.peer, run_remote(run, OP_RUN, (uint32_t)__builtin_ctz(left)));
}

/* Counts what became of the pages. Hits of a run that failed later are hits. */
static void count_run(struct rail *rail, const struct rail_run *run, enum op_status status)
{
	bool pages = run->header.kind == OP_RUN;
	uint32_t hits = (uint32_t)__builtin_popcount(run->hit);
	uint32_t rest = run->header.pages - hits - (uint32_t)__builtin_popcount(run->stale);

	if (likely(hits)) {
		rail_count(rail, pages ? COUNTER_pages_read : COUNTER_buckets_read, hits);
		rail_count(rail, COUNTER_bytes_read, (uint64_t)hits * run->item_bytes);
	}
	if (unlikely(run->stale))
		count_stale(rail, run);
	if (likely(status == OP_HIT))
		return;
	if (status == OP_INVALID)
		rail_count(rail, COUNTER_ops_invalid, 1);
	else
		rail_count(rail,
			status == OP_TIMEOUT ? COUNTER_reads_timed_out : COUNTER_reads_failed,
			rest);
}

static void run_leave_lane(struct rail *rail, struct rail_run *run)
{
	struct lane *lane = run->lane;

	lane->runs_live--;
	lane->run_pages -= run->header.pages;
	if (unlikely(run->expired))
		lane->expired--;
	lane->taken_bytes -= run->bytes;
	if (unlikely(lane->stalled))
		rail->parked -= run->header.pages;
	else
		rail->taken_bytes -= run->bytes;
}

void run_end(struct rail *rail, struct rail_run *run, enum op_status status)
{
	struct channel_slot *slot = &rail->channel[run->channel];
	struct run_done done = {.cookie = run->header.cookie,
		.hit = run->hit,
		.stale = run->stale,
		.kind = run->header.kind};

	/* a run that was refused may have any number of pages */
	if (run->counted && (run->hit | run->stale) == run_mask(0, run->header.pages))
		status = OP_HIT; /* every page was decided before the error or the deadline */
	done.status = (uint8_t)status;
	if (likely(run->lane))
		run_leave_lane(rail, run);
	else if (link_linked(&run->pending))
		rail->parked -= run->header.pages;
	if (unlikely(link_linked(&run->pending)))
		link_remove(&run->pending);
	if (unlikely(link_linked(&run->heads)))
		link_remove(&run->heads);
	rail->run_live[run->number] = false;
	if (likely(run->counted))
		region_release(rail, run->header.to_region);
	count_run(rail, run, status);
	PROBE_COMPLETION(run->channel, (uint64_t)run->header.cookie, rail->options.index, status,
		run->header.pages * run->header.page_bytes);
	shm_store(&rail->in_flight, rail->in_flight - 1);
	channel_answer(rail, slot, &done);
	run_free(rail, run);
	if (unlikely(slot->channel->stopping))
		channel_return_if_idle(rail, slot->channel);
}
