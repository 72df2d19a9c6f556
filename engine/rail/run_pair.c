/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload of runs with a lease: each READ of pages is followed directly, on the same queue pair, by
 * the READ of their heads: a pair. Pairs are posted in series. The pairs of a series have the same
 * number of pages, which follow each other in the run, and the series has one record. So queue
 * pair, budgets, record, T0 and CQE cost once for all of its pages. Poll core only; the hot path.
 *
 *   send queue   | payload | heads | payload | heads | ... | payload | heads: CQE |
 *   qp->wqe[]      record: pages, bytes, blocks = 2 * pairs
 */
#include "engine/rail/run_series.h"

#define HEAD_BYTES ((uint32_t)sizeof(struct page_head))

/* What the pairs of a run on one connection have in common. */
struct pairs {
	struct dv_keys payload, heads; /* the keys of both READs of a pair */
	uint64_t pool, pool_heads;     /* addresses of the peer's pool and of its page heads */
	uint64_t to;                   /* address of the destination region */
};

static inline struct pairs pairs_of(const struct rail *rail, const struct rail_run *run)
{
	const struct rail_remote *pool = &run->lane->peer->region[run->header.region];
	const struct rail_remote *heads = pool + (REGION_HEADS_0 - REGION_POOL_0);
	const struct region_slot *home = &rail->region[run->header.to_region];

	return (struct pairs){.payload = dv_keys(pool->rkey, home->lkey),
		.heads = dv_keys(heads->rkey, rail->heads_lkey),
		.pool = pool->base,
		.pool_heads = heads->base,
		.to = home->base};
}

/*
 * Writes `pairs` pairs of one page each. Their heads arrive in the place of the run. They are
 * cleared, so that heads left there by an earlier READ cannot validate these pages.
 */
static void write_single_pages(
	struct rail *rail, struct dv_sq *sq, const struct rail_run *run, uint32_t pairs)
{
	const struct run_entry *entry = run_entry(run, run->next), *end = entry + pairs;
	struct page_head *own = run_own_heads(rail, run->number) + run->next;
	struct dv_series series = dv_series_begin(sq);
	struct pairs p = pairs_of(rail, run);
	uint64_t length = dv_length(p.payload, run->item_bytes);
	uint64_t head_length = dv_length(p.heads, HEAD_BYTES);

	do {
		uint64_t unit = entry->unit;

		memset(own, 0, sizeof(*own));
		dv_series_read(&series, p.payload, p.pool + unit * PAGE_UNIT,
			p.to + (entry->to & (RUN_TO_MAX - 1)), length);
		dv_series_read(&series, p.heads, p.pool_heads + unit * sizeof(*own), (uintptr_t)own,
			head_length);
		own++;
	} while (++entry != end);
	dv_series_end(sq, &series);
}

/*
 * Where the heads of `n` joined pages arrive: side by side in the place of the run, or, if heads of
 * others lie between them, in a landing block, of which one is free. Clears those of the pages.
 */
static inline struct page_head *heads_land(
	struct rail *rail, struct rail_run *run, uint32_t at, uint32_t n, uint32_t units)
{
	struct page_head *head = run_own_heads(rail, run->number) + at, *clear;

	if (units > 1) {
		run->landing[at] = rail->landing_stack[--rail->landings_free];
		head = run_landing(rail, run->landing[at]);
	}
	clear = head;
	do {
		memset(clear, 0, sizeof(*clear));
		clear += units;
	} while (--n);
	return head;
}

/* Writes `pairs` pairs of `n` joined pages each. */
static void write_joined_pages(
	struct rail *rail, struct dv_sq *sq, struct rail_run *run, uint32_t n, uint32_t pairs)
{
	const struct run_entry *entry = run_entry(run, run->next);
	struct dv_series series = dv_series_begin(sq);
	struct pairs p = pairs_of(rail, run);
	uint32_t units = run->item_bytes / PAGE_UNIT, at = run->next;
	uint64_t length = dv_length(p.payload, n * run->item_bytes);
	uint64_t head_length = dv_length(p.heads, HEAD_BYTES * ((n - 1) * units + 1));

	do {
		struct page_head *head = heads_land(rail, run, at, n, units);
		uint64_t unit = entry->unit;

		dv_series_read(&series, p.payload, p.pool + unit * PAGE_UNIT,
			p.to + (entry->to & (RUN_TO_MAX - 1)), length);
		dv_series_read(&series, p.heads, p.pool_heads + unit * sizeof(*head),
			(uintptr_t)head, head_length);
		entry += n;
		at += n;
	} while (--pairs);
	dv_series_end(sq, &series);
}

/*
 * How many pages from the next one on have READs of one kind, within `left` bytes, and how many of
 * them one READ brings.
 */
static inline uint32_t pages_alike(
	const struct rail *rail, const struct rail_run *run, uint32_t left, uint32_t *ret_n)
{
	uint32_t joined = run->joined >> run->next, item = run->item_bytes, pages;

	if (joined & 1 && left >= 2 * item &&
		(item == PAGE_UNIT || likely(rail->landings_free >= RUN_PAGES_MAX))) {
		pages = 1 + (uint32_t)__builtin_ctz(~joined);
		if (pages * item > left)
			pages = left / item;
		*ret_n = pages < run->join_max ? pages : run->join_max;
		return pages;
	}
	*ret_n = 1;
	if (joined & 1)
		return 1;
	pages = joined ? (uint32_t)__builtin_ctz(joined) : (uint32_t)run->header.pages - run->next;
	return pages * item > left ? left / item : pages;
}

/* Posts a series of pairs of `n` pages each to one QP, which has room for it. */
static inline void post_series_of_pairs(
	struct rail *rail, struct lane_qp *qp, struct rail_run *run, uint32_t n, uint32_t pairs)
{
	struct wqe *wqe = &qp->wqe[qp->sq->pi & (QP_DEPTH - 1)];
	uint32_t first = run->next, pages = n * pairs, bytes = pages * run->item_bytes;
	bool long_reads = n * run->item_bytes > RAIL_SMALL_BYTES;

	run->t0_ns[first] = rail_t0(rail);
	wqe_store(wqe, bytes,
		wqe_owner(run->number, (uint8_t)(2 * pairs),
			long_reads ? WQE_RUN_LONG_PAIRS : WQE_RUN_PAIRS),
		run_mask(first, pages), first | n << 16);
	if (n == 1)
		write_single_pages(rail, qp->sq, run, pairs);
	else
		write_joined_pages(rail, qp->sq, run, n, pairs);
	PROBE_POST(run->channel, (uint64_t)run->header.cookie, rail->options.index, qp->sq->qpn,
		bytes);
	run->next = (uint8_t)(first + pages);
	run->outstanding++;
	qp->silent += 2 * pairs;
	qp->silent_bytes += bytes;
	series_signal(qp);
	qp_posted(rail, qp, 2 * pairs, bytes, long_reads);
}

/* How many READs of `bytes` fit into what the QP takes of long READs: at least one. */
static inline uint32_t bulk_limit(const struct lane_qp *qp, uint32_t bytes, uint32_t pairs)
{
	uint32_t room = RAIL_BULK_BYTES - qp->bulk_bytes;

	if (bytes <= RAIL_SMALL_BYTES || (int32_t)(room - pairs * bytes) >= 0)
		return pairs;
	return (int32_t)(room - bytes) >= 0 ? room / bytes : 1;
}

unsigned post_pairs(struct rail *rail, struct lane *lane, struct rail_run *run, unsigned burst,
	uint32_t left, uint32_t *lot)
{
	uint32_t item = run->item_bytes, before = run->next, max = burst / 2, posted = 0;

	while (run->next < run->header.pages && posted < max && item <= left) {
		uint32_t n, pages = pages_alike(rail, run, left, &n), pairs = pages, limit;
		struct lane_qp *qp = lane_pick(lane, n * item);

		limit = qp ? series_max(qp) / 2 : 0;
		limit = limit < max - posted ? limit : max - posted;
		if (!limit)
			break;
		if (n > 1)
			pairs = pages / n;
		pairs = bulk_limit(qp, n * item, pairs < limit ? pairs : limit);
		post_series_of_pairs(rail, qp, run, n, pairs);
		left -= pairs * n * item;
		posted += pairs;
	}
	*lot = (run->next - before) * item + posted * RAIL_WQE_CHARGE;
	return 2 * posted;
}
