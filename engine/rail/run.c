/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs: up to RUN_PAGES_MAX pages of one peer, or buckets of a look-up. intake.c takes a run and
 * finds its connection; run_post.c posts its WQEs; this file retires them, and ends the run with
 * the completion that answers it. lone_page.c posts and retires a run of one page that is READ by
 * itself. Payload that has arrived waits for its page heads, heads decide which pages are hits, and
 * every run is answered exactly once, in run_end(). Poll core only; the hot path.
 */
#include "engine/abi/page.h"
#include "engine/rail/lot.h"
#include "engine/rail/wqe.h"

/* ---- the free runs -------------------------------------------------------------------------- */

struct rail_run *run_new(struct rail *rail)
{
	struct rail_run *run = rail->run_stack[--rail->runs_free];

	run->conn = NULL;
	list_init(&run->pending);
	list_init(&run->heads);
	run->hit = run->stale = run->arrived = run->leased = 0;
	run->outstanding = 0;
	run->next = 0;
	run->status = OP_HIT;
	run->done = run->segment_done = run->lot = 0;
	run->listed = run->several = run->counted = run->expired = false;
	run->item_bytes = 0;
	run->segment = 0;
	run->split = NULL;
	return run;
}

void run_free(struct rail *rail, struct rail_run *run)
{
	rail->run_stack[rail->runs_free++] = run;
}

/* ---- what becomes of pages ------------------------------------------------------------------ */

void run_quit(struct rail_run *run, enum op_status status)
{
	if (run->status == OP_HIT)
		run->status = (uint8_t)status;
	list_remove(&run->pending);
	list_remove(&run->heads);
}

void run_fail(struct rail *rail, struct rail_run *run, enum op_status status)
{
	run_quit(run, status);
	if (!run->outstanding)
		run_end(rail, run, run->status);
}

/*
 * The pages of `mask` are decided: those of `hit` are valid. Their `bytes` leave the budgets, also
 * those of the rail: the connection is not stalled, because one of its WQEs retires.
 */
static inline void run_decide_bytes(
	struct rail *rail, struct rail_run *run, uint32_t mask, uint32_t hit, uint32_t bytes)
{
	run->hit |= hit;
	run->stale |= mask & ~hit;
	run->bytes -= bytes;
	run->conn->taken_bytes -= bytes;
	rail->taken_bytes -= bytes;
}

static inline void run_decide_pages(
	struct rail *rail, struct rail_run *run, uint32_t mask, uint32_t hit)
{
	run_decide_bytes(
		rail, run, mask, hit, (uint32_t)__builtin_popcount(mask) * run->item_bytes);
}

/* Pages whose payload has arrived: their heads are to be READ. Buckets are not validated. */
static void run_pages_arrive(struct rail *rail, struct rail_run *run, uint32_t mask)
{
	struct conn *conn = run->conn;

	if (run->header.kind != OP_RUN || TEST_HOOK(rail->options.skip_head_check)) {
		run_decide_pages(rail, run, mask, mask);
		return;
	}
	if (unlikely(conn->state != CONN_OPEN)) {
		run_quit(run, OP_PEER_DOWN);
		return;
	}
	run->arrived |= mask;
	run_queue_heads(rail, conn, run);
}

/*
 * The lease of these pages, whose heads match, ended before their READs. Their heads are READ
 * again, because all of their CQEs were seen now.
 */
static void run_lease_expired(struct rail *rail, struct rail_run *run, uint32_t pages)
{
	rail_count(rail, COUNTER_leases_expired, (unsigned)__builtin_popcount(pages));
	if (run->status == OP_HIT)
		run_pages_arrive(rail, run, pages);
}

/* After WQEs of the run have retired: ends it if nothing more can come of it. */
static inline void run_settle(struct rail *rail, struct rail_run *run)
{
	if (!run->outstanding && (unlikely(run->status != OP_HIT) ||
					 (run->hit | run->stale) == run_mask(0, run->header.pages)))
		run_end(rail, run, run->status);
}

/* ---- retiring a record of one WQE ----------------------------------------------------------- */

/*
 * Validates the pages of a READ of heads: is each head the one that its entry expects? Returns the
 * pages that are valid.
 */
static inline uint32_t run_heads_match(
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

/* Retires WQEs with payload, which are all the run's; see run_retire(). */
static inline uint32_t run_retire_pages(
	struct conn_qp *qp, uint32_t end, uint16_t number, struct retired *r)
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
	} while (r->at != end && next->run == number && next->kind == WQE_RUN_PAGES);
	return pages;
}

/*
 * Retires READs of heads, which are all the run's and of this kind, and validates their pages.
 * The CQEs of their payload were seen as well: before these READs were posted, or, if they are
 * leased, because the payload was posted before them on the same QP. Six parameters, in registers:
 * hot path.
 */
static inline void run_retire_heads(struct rail *rail, struct conn_qp *qp, uint32_t end,
	struct rail_run *run, enum wqe_kind kind, struct retired *r)
{
	const struct wqe *next;
	uint32_t pages = 0, hit = 0, late = 0;

	do {
		struct wqe *wqe = &qp->wqe[r->at & (QP_DEPTH - 1)];

		pages |= wqe->pages;
		hit |= run_heads_match(rail, run, wqe);
		if (kind == WQE_RUN_LEASED && unlikely(!lease_valid(run->t0_ns[wqe->first],
						      rail_t1(rail), run->conn->limbo_ns)))
			late |= wqe->pages;
		rail->landing_stack[rail->landings_free++] = wqe->landing;
		r->at++;
		wqe->blocks = 0;
		r->bytes += wqe->bytes;
		r->n++;
		next = &qp->wqe[r->at & (QP_DEPTH - 1)];
	} while (r->at != end && next->run == run->number && next->kind == kind);
	late &= hit; /* a head with another generation is final: the page is stale */
	if (unlikely(late))
		run_lease_expired(rail, run, late);
	run_decide_pages(rail, run, pages & ~late, hit & ~late);
}

/* ---- retiring a series: one record of many WQEs, see run_post.c ----------------------------- */

/* Validates a series page by page. Returns the pages that are valid. */
static uint32_t series_match(struct rail *rail, const struct rail_run *run, const struct wqe *wqe)
{
	const struct page_head *own = run_own_heads(rail, run->number);
	uint32_t n = wqe->landing, units = run->item_bytes / PAGE_UNIT, hit = 0;

	for (uint32_t left = wqe->pages; left; left &= left - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(left), k = (i - wqe->first) % n;
		const struct run_entry *e = run_entry(run, i);
		const struct page_head *head = &own[i];

		if (run_pair_lands(run, n))
			head = &run_landing(rail, run->landing[i - k])[k * units];
		if (page_head_is(head, &e->key, e->generation, run->item_bytes))
			hit |= 1u << i;
	}
	return hit;
}

/*
 * The bits in which heads differ from the expected ones: 0 if page_head_is() says yes to each of
 * the `n` >= 1 pages. The heads lie `stride` apart.
 */
static inline uint64_t page_heads_differ(const struct page_head *head, uint32_t stride,
	const struct run_entry *entry, uint32_t n, uint32_t bytes)
{
	uint64_t length = (uint64_t)bytes << 32, differ = 0;

	do {
		uint64_t word;

		memcpy(&word, &head->generation, sizeof(word));
		differ |= (head->key.word[0] ^ entry->key.word[0]) |
			  (head->key.word[1] ^ entry->key.word[1]) |
			  (word ^ (entry->generation | length));
		entry++;
		head += stride;
	} while (--n);
	return differ;
}
static_assert(offsetof(struct page_head, length) == offsetof(struct page_head, generation) + 4,
	"page_heads_differ() compares both at once");

/*
 * page_heads_differ() for all pages of a series of pairs. Landing blocks are free again; their
 * content stays until the next post.
 */
static inline uint64_t series_pairs_differ(
	struct rail *rail, const struct rail_run *run, const struct wqe *wqe)
{
	uint32_t n = wqe->landing, at = wqe->first, pairs = wqe->blocks / 2u;
	uint32_t bytes = run->item_bytes, units = bytes / PAGE_UNIT, free = rail->landings_free;
	const struct run_entry *entry = run_entry(run, at);
	uint64_t differ = 0;

	if (!run_pair_lands(run, n))
		return page_heads_differ(
			run_own_heads(rail, run->number) + at, 1, entry, pairs * n, bytes);
	do {
		uint16_t block = run->landing[at];

		rail->landing_stack[free++] = block;
		differ |= page_heads_differ(run_landing(rail, block), units, entry, n, bytes);
		at += n;
		entry += n;
	} while (--pairs);
	rail->landings_free = free;
	return differ;
}

/* Validates a series of pairs, whose record this is. */
static inline void series_validate_pairs(
	struct rail *rail, struct rail_run *run, const struct wqe *wqe)
{
	uint32_t pages = wqe->pages, hit = pages;

	if (unlikely(series_pairs_differ(rail, run, wqe)))
		hit = series_match(rail, run, wqe);
	/* T0 is that of the series, T1 that of the burst of CQEs. */
	if (likely(lease_valid(run->t0_ns[wqe->first], rail_t1(rail), run->conn->limbo_ns))) {
		run_decide_bytes(rail, run, pages, hit, wqe->bytes);
	} else {
		if (hit) /* a head with another generation is final: the page is stale */
			run_lease_expired(rail, run, hit);
		run_decide_pages(rail, run, pages & ~hit, 0);
	}
}

/* Validates a series of READs of heads, which were posted after the CQEs of their payload. */
static inline void series_validate_heads(
	struct rail *rail, struct rail_run *run, const struct wqe *wqe)
{
	uint32_t pages = wqe->pages, first = wqe->first, hit = pages;

	if (unlikely(page_heads_differ(run_own_heads(rail, run->number) + first, 1,
		    run_entry(run, first), wqe->blocks, run->item_bytes)))
		hit = series_match(rail, run, wqe);
	run_decide_pages(rail, run, pages, hit);
}

/* Retires a series, whose record this is. */
static void series_retire(
	struct rail *rail, struct conn_qp *qp, struct rail_run *run, struct wqe *wqe)
{
	if (likely(wqe_is_pairs(wqe)))
		series_validate_pairs(rail, run, wqe);
	else if (wqe->kind == WQE_RUN_OWN_HEADS)
		series_validate_heads(rail, run, wqe);
	else if (likely(run->status == OP_HIT))
		run_pages_arrive(rail, run, wqe->pages);
	wqe_retire(qp, wqe);
	run->outstanding--;
	run_settle(rail, run);
}

bool series_reap(struct rail *rail, struct conn_qp *qp, const struct dv_completion *completion)
{
	struct dv_sq *sq = qp->sq;
	struct wqe *wqe = &qp->wqe[sq->ci & (QP_DEPTH - 1)];
	struct retired r = {sq->ci + wqe->blocks, wqe->bytes, wqe->blocks};

	if (completion->syndrome || !wqe_is_series(wqe) || sq->rung == sq->ci ||
		(uint16_t)(r.at - 1) != completion->wqe_counter ||
		unlikely(qp->conn->stalled || qp->conn->state == CONN_DROPPED))
		return false;
	retired_count(rail, qp, r, false);
	series_retire(rail, qp, &rail->run[wqe->run], wqe);
	return true;
}

struct retired run_retire(struct rail *rail, struct conn_qp *qp, uint32_t at, uint32_t end)
{
	struct wqe *wqe = &qp->wqe[at & (QP_DEPTH - 1)];
	struct rail_run *run = &rail->run[wqe->run];
	struct retired r = {.at = at};

	if (wqe_is_series(wqe)) {
		r = (struct retired){at + wqe->blocks, wqe->bytes, wqe->blocks};
		series_retire(rail, qp, run, wqe);
		return r;
	}
	if (wqe->kind == WQE_RUN_LEASED) {
		run_retire_heads(rail, qp, end, run, WQE_RUN_LEASED, &r);
	} else if (wqe->kind == WQE_RUN_HEADS) {
		run_retire_heads(rail, qp, end, run, WQE_RUN_HEADS, &r);
	} else {
		uint32_t pages = run_retire_pages(qp, end, run->number, &r) & ~run->leased;

		if (pages && likely(run->status == OP_HIT))
			run_pages_arrive(rail, run, pages);
	}
	run->outstanding = (uint16_t)(run->outstanding - r.n);
	run_settle(rail, run);
	return r;
}

/* ---- failed WQEs ---------------------------------------------------------------------------- */

/* The landing blocks of a series of pairs are free again. */
static void series_free_landings(
	struct rail *rail, const struct rail_run *run, const struct wqe *wqe)
{
	uint32_t n = wqe->landing, at = wqe->first;

	if (!run_pair_lands(run, n))
		return;
	for (uint32_t left = (uint32_t)__builtin_popcount(wqe->pages); left; left -= n, at += n)
		rail->landing_stack[rail->landings_free++] = run->landing[at];
}

void run_retire_failed(struct rail *rail, const struct wqe *wqe, enum op_status status)
{
	struct rail_run *run = &rail->run[wqe->run];

	if (wqe_is_pairs(wqe))
		series_free_landings(rail, run, wqe);
	else if (wqe->kind == WQE_RUN_HEADS || wqe->kind == WQE_RUN_LEASED)
		rail->landing_stack[rail->landings_free++] = wqe->landing;
	run->outstanding--;
	run_quit(run, status);
	run_settle(rail, run);
}

void series_split(struct rail *rail, struct conn_qp *qp, uint32_t at, uint32_t blocks)
{
	struct wqe *wqe = &qp->wqe[at & (QP_DEPTH - 1)];
	struct wqe *rest = &qp->wqe[(at + blocks) & (QP_DEPTH - 1)];
	struct rail_run *run = &rail->run[wqe->run];
	uint32_t pages = (wqe_is_pairs(wqe) ? blocks / 2 : blocks) * wqe->landing;

	*rest = *wqe;
	wqe->blocks = (uint8_t)blocks;
	wqe->pages = run_mask(wqe->first, pages);
	wqe->bytes = pages * (wqe->kind == WQE_RUN_OWN_HEADS ? (uint32_t)sizeof(struct page_head)
							     : run->item_bytes);
	rest->blocks = (uint8_t)(rest->blocks - blocks);
	rest->pages &= ~wqe->pages;
	rest->bytes -= wqe->bytes;
	rest->first = (uint16_t)(rest->first + pages);
	run->t0_ns[rest->first] = run->t0_ns[wqe->first];
	run->outstanding++;
}

/* ---- the answer ----------------------------------------------------------------------------- */

static void run_count_stale(struct rail *rail, const struct rail_run *run)
{
	rail_count(rail, COUNTER_pages_stale, (unsigned)__builtin_popcount(run->stale));
	for (uint32_t left = run->stale; left; left &= left - 1)
		PROBE_STALE(run->channel, (uint64_t)run->header.cookie, rail->options.index,
			run->header.peer, run_remote(run, OP_RUN, (uint32_t)__builtin_ctz(left)));
}

/* Counts what became of the pages. Hits of a run that failed later are hits. */
static void run_count(struct rail *rail, const struct rail_run *run, enum op_status status)
{
	bool pages = run->header.kind != OP_LOOKUP;
	uint32_t hits = (uint32_t)__builtin_popcount(run->hit);
	uint32_t rest = run->header.pages - hits - (uint32_t)__builtin_popcount(run->stale);

	if (likely(hits)) {
		rail_count(rail, pages ? COUNTER_pages_read : COUNTER_buckets_read, hits);
		rail_count(rail, COUNTER_bytes_read, (uint64_t)hits * run->item_bytes);
	}
	if (unlikely(run->stale))
		run_count_stale(rail, run);
	if (likely(status == OP_HIT))
		return;
	if (status == OP_INVALID)
		rail_count(rail, COUNTER_ops_invalid, 1);
	else
		rail_count(rail,
			status == OP_TIMEOUT ? COUNTER_reads_timed_out : COUNTER_reads_failed,
			rest);
}

static void run_leave_conn(struct rail *rail, struct rail_run *run)
{
	struct conn *conn = run->conn;

	conn->runs_live--;
	conn->run_pages -= run->header.pages;
	if (unlikely(run->expired))
		conn->expired--;
	conn->taken_bytes -= run->bytes;
	if (unlikely(conn->stalled))
		rail->parked -= run->header.pages;
	else
		rail->taken_bytes -= run->bytes;
}

/*
 * Removes a run that ends with `status`, an error, from its lists. Returns OP_HIT if every page was
 * decided before the error or the deadline, otherwise `status`.
 */
static enum op_status run_status(struct rail_run *run, enum op_status status)
{
	run_quit(run, status);
	/* a run that was refused may have any number of pages */
	if (run->counted && (run->hit | run->stale) == run_mask(0, run->header.pages))
		return OP_HIT;
	return status;
}

/* Ends the rail's own probe READ instead of run_end(): there is no channel to answer. */
static void probe_end(struct rail *rail, struct rail_run *run, enum op_status status)
{
	struct conn *conn = run->conn;

	run_leave_conn(rail, run);
	run_quit(run, status);
	rail->live[run->number] = false;
	shm_store(&rail->in_flight, rail->in_flight - 1);
	run_free(rail, run);
	conn_probed(rail, conn, status);
}

void run_end(struct rail *rail, struct rail_run *run, enum op_status status)
{
	struct channel_slot *slot = &rail->channel[run->channel];
	struct run_done done = {.cookie = run->header.cookie,
		.hit = run->hit,
		.stale = run->stale,
		.kind = run->header.kind};

	if (unlikely(run->channel == CHANNEL_NONE)) {
		probe_end(rail, run, status);
		return;
	}
	if (likely(run->conn))
		run_leave_conn(rail, run);
	else if (list_linked(&run->pending))
		rail->parked -= run->header.pages;
	/* With OP_HIT every page is decided, and the run is on no list. */
	if (unlikely(status != OP_HIT))
		status = run_status(run, status);
	done.status = (uint8_t)status;
	rail->live[run->number] = false;
	if (unlikely(run->several) && run->counted)
		lone_count_regions(rail, run, -1);
	else if (likely(run->counted))
		region_release(rail, run->header.to_region);
	run_count(rail, run, status);
	PROBE_COMPLETION(run->channel, (uint64_t)run->header.cookie, rail->options.index,
		run->alone && unlikely(run->stale) ? OP_STALE : status,
		run->header.pages * run->item_bytes);
	shm_store(&rail->in_flight, rail->in_flight - 1);
	channel_answer(rail, slot, &done);
	run_free(rail, run);
	if (unlikely(slot->channel->stopping))
		channel_return_if_idle(rail, slot->channel);
}
