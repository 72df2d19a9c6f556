/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Series: READs of one run on one queue pair that are posted in one loop and have one record and
 * one CQE, so queue pair, budgets, record and T0 cost once for all of them. Each is one WQEBB, and
 * all bring the same number of pages, which follow each other in the run. Poll core only; the hot
 * path.
 *
 *   payload (tail) and buckets   | payload | payload | ... | payload: CQE |
 *   pairs (lease)                | payload | heads | payload | heads | ... | payload | heads: CQE |
 *   heads (tail)                 | head | head | ... | head: CQE |
 */
#include "engine/rail/run_series.h"

#define HEAD_BYTES ((uint32_t)sizeof(struct page_head))

/* What READs of the payload of a run, or of its heads, have in common. */
struct run_reads {
	struct dv_keys keys;
	uint64_t from; /* address of the peer's region */
	uint64_t to;   /* payload: address of the destination region */
};

static inline struct run_reads payload_reads(const struct rail *rail, const struct rail_run *run)
{
	const struct rail_remote *remote = &run->conn->handle->region[run->header.region];
	const struct region_slot *home = &rail->region[run->header.to_region];

	return (struct run_reads){dv_keys(remote->rkey, home->lkey), remote->base, home->base};
}

static inline struct run_reads heads_reads(const struct rail *rail, const struct rail_run *run)
{
	const struct rail_remote *remote =
		&run->conn->handle->region[REGION_HEADS_0 + run->header.region];

	return (struct run_reads){dv_keys(remote->rkey, rail->heads_lkey), remote->base, 0};
}

/*
 * Writes `n` pairs of one page each. Their heads arrive in the place of the run. They are cleared,
 * so that heads left there by an earlier READ cannot validate these pages.
 */
static void write_single_pairs(
	struct rail *rail, struct dv_sq *sq, const struct rail_run *run, uint32_t n)
{
	const struct run_entry *entry = run_entry(run, run->next), *end = entry + n;
	struct page_head *own = run_own_heads(rail, run->number) + run->next;
	struct dv_series series = dv_series_begin(sq, 2 * n);
	struct run_reads p = payload_reads(rail, run), h = heads_reads(rail, run);
	uint64_t length = dv_length(p.keys, run->item_bytes);
	uint64_t head_length = dv_length(h.keys, HEAD_BYTES);

	do {
		uint64_t unit = entry->unit;

		head_clear(own);
		dv_series_read(&series, p.keys, p.from + unit * PAGE_UNIT,
			p.to + (entry->to & (RUN_TO_MAX - 1)), length);
		dv_series_read(
			&series, h.keys, h.from + unit * sizeof(*own), (uintptr_t)own, head_length);
		own++;
	} while (++entry != end);
}

/* Writes `reads` READs of the payload of `n` pages each. */
static void write_payload(const struct rail *rail, struct dv_sq *sq, const struct rail_run *run,
	uint32_t n, uint32_t reads)
{
	const struct run_entry *entry = run_entry(run, run->next);
	struct dv_series series = dv_series_begin(sq, reads);
	struct run_reads p = payload_reads(rail, run);
	uint64_t length = dv_length(p.keys, n * run->item_bytes);

	do {
		dv_series_read(&series, p.keys, p.from + (uint64_t)entry->unit * PAGE_UNIT,
			p.to + (entry->to & (RUN_TO_MAX - 1)), length);
		entry += n;
	} while (--reads);
}

/* Writes READs of `n` buckets. */
static void write_buckets(
	const struct rail *rail, struct dv_sq *sq, const struct rail_run *run, uint32_t n)
{
	struct dv_series series = dv_series_begin(sq, n);
	struct run_reads p = payload_reads(rail, run);
	uint64_t length = dv_length(p.keys, sizeof(struct bucket));
	const uint32_t *at = run_bucket(run, run->next), *end = at + n;
	uint64_t to = p.to + run_to(run, OP_LOOKUP, run->next);

	do {
		dv_series_read(&series, p.keys, p.from + (uint64_t)*at * sizeof(struct bucket), to,
			length);
		to += sizeof(struct bucket);
	} while (++at != end);
}

/* Clears the place of the heads of `n` pages from `first` on, and writes READs of them to it. */
static void write_own_heads(
	struct rail *rail, struct dv_sq *sq, const struct rail_run *run, uint32_t first, uint32_t n)
{
	const struct run_entry *entry = run_entry(run, first), *end = entry + n;
	struct page_head *own = run_own_heads(rail, run->number) + first;
	struct dv_series series = dv_series_begin(sq, n);
	struct run_reads h = heads_reads(rail, run);
	uint64_t length = dv_length(h.keys, HEAD_BYTES);

	do {
		head_clear(own);
		dv_series_read(&series, h.keys, h.from + (uint64_t)entry->unit * sizeof(*own),
			(uintptr_t)own, length);
		own++;
	} while (++entry != end);
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
		head_clear(clear);
		clear += units;
	} while (--n);
	return head;
}

/* Writes `pairs` pairs of `n` joined pages each. */
static void write_joined_pairs(
	struct rail *rail, struct dv_sq *sq, struct rail_run *run, uint32_t n, uint32_t pairs)
{
	const struct run_entry *entry = run_entry(run, run->next);
	struct dv_series series = dv_series_begin(sq, 2 * pairs);
	struct run_reads p = payload_reads(rail, run), h = heads_reads(rail, run);
	uint32_t units = run->item_bytes / PAGE_UNIT, at = run->next;
	uint64_t length = dv_length(p.keys, n * run->item_bytes);
	uint64_t head_length = dv_length(h.keys, HEAD_BYTES * ((n - 1) * units + 1));

	do {
		struct page_head *head = heads_land(rail, run, at, n, units);
		uint64_t unit = entry->unit;

		dv_series_read(&series, p.keys, p.from + unit * PAGE_UNIT,
			p.to + (entry->to & (RUN_TO_MAX - 1)), length);
		dv_series_read(&series, h.keys, h.from + unit * sizeof(*head), (uintptr_t)head,
			head_length);
		entry += n;
		at += n;
	} while (--pairs);
}

/*
 * How many pages or buckets from the next one on have READs of one kind, within `left` bytes, and
 * how many of them one READ brings.
 */
static inline uint32_t pages_alike(const struct rail *rail, const struct rail_run *run, bool pairs,
	uint32_t left, uint32_t *ret_n)
{
	uint32_t joined = run->joined >> run->next, item = run->item_bytes, pages;

	if (joined & 1 && left >= 2 * item &&
		(item == PAGE_UNIT || !pairs || likely(rail->landings_free >= RUN_PAGES_MAX))) {
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

/*
 * Accounts for a series of `blocks` WQEs that was written behind the record `wqe`. Six parameters,
 * in registers: hot path.
 */
static inline void series_posted(struct rail *rail, struct conn_qp *qp, struct rail_run *run,
	uint32_t blocks, uint32_t bytes, bool long_reads)
{
	PROBE_POST(run->channel, (uint64_t)run->header.cookie, rail->options.index, qp->sq->qpn,
		bytes);
	run->outstanding++;
	qp->silent += blocks;
	qp->silent_bytes += bytes;
	series_signal(qp);
	qp_posted(rail, qp, blocks, bytes, long_reads);
}

/*
 * Posts a series of READs or pairs of `n` pages each to one QP, which has room for it. Six
 * parameters, in registers: hot path.
 */
static inline void post_alike(struct rail *rail, struct conn_qp *qp, struct rail_run *run,
	bool pairs, uint32_t n, uint32_t reads)
{
	struct wqe *wqe = &qp->wqe[qp->sq->pi & (QP_DEPTH - 1)];
	uint32_t first = run->next, pages = n * reads, bytes = pages * run->item_bytes;
	bool long_reads = n * run->item_bytes > RAIL_SMALL_BYTES;
	enum wqe_kind kind = (pairs ? WQE_RUN_PAIRS : WQE_RUN_SERIES) | (long_reads ? WQE_LONG : 0);

	wqe_store(wqe, bytes, wqe_owner(run->number, (uint8_t)(reads << pairs), kind),
		run_mask(first, pages), first | n << 16);
	if (pairs) {
		run->t0_ns[first] = rail_t0(rail);
		if (n == 1)
			write_single_pairs(rail, qp->sq, run, reads);
		else
			write_joined_pairs(rail, qp->sq, run, n, reads);
	} else if (likely(run->header.kind == OP_RUN)) {
		write_payload(rail, qp->sq, run, n, reads);
	} else {
		write_buckets(rail, qp->sq, run, reads);
	}
	run->next = (uint8_t)(first + pages);
	series_posted(rail, qp, run, reads << pairs, bytes, long_reads);
}

/*
 * How many of `reads` READs of `bytes` fit into what the QP takes of long READs before another one
 * is picked. A QP that was picked although it is full has the fewest bytes of all, and gets a whole
 * series more.
 */
static inline uint32_t bulk_limit(const struct conn_qp *qp, uint32_t bytes, uint32_t reads)
{
	uint32_t room = RAIL_BULK_BYTES - qp->bulk_bytes;

	if (bytes <= RAIL_SMALL_BYTES || (int32_t)(room - reads * bytes) >= 0)
		return reads;
	if ((int32_t)(room - bytes) < 0)
		room = RAIL_BULK_BYTES;
	return reads * bytes > room ? room / bytes : reads;
}

unsigned post_payload(struct rail *rail, struct conn *conn, struct rail_run *run, unsigned burst,
	uint32_t left, uint32_t *lot)
{
	bool pairs = conn->limbo_ns && run->header.kind == OP_RUN;
	uint32_t item = run->item_bytes, before = run->next, max = burst >> pairs, posted = 0;

	while (run->next < run->header.pages && posted < max && item <= left) {
		uint32_t n, pages = pages_alike(rail, run, pairs, left, &n), reads = pages, limit;
		struct conn_qp *qp = conn_pick(conn, n * item);

		limit = qp ? series_max(qp) >> pairs : 0;
		limit = limit < max - posted ? limit : max - posted;
		if (!limit)
			break;
		if (n > 1)
			reads = pages / n;
		reads = bulk_limit(qp, n * item, reads < limit ? reads : limit);
		post_alike(rail, qp, run, pairs, n, reads);
		left -= reads * n * item;
		posted += reads;
	}
	*lot = (run->next - before) * item + posted * RAIL_WQE_CHARGE;
	return posted << pairs;
}

unsigned post_own_heads(
	struct rail *rail, struct conn_qp *qp, struct rail_run *run, uint32_t first, uint32_t n)
{
	struct wqe *wqe = &qp->wqe[qp->sq->pi & (QP_DEPTH - 1)];

	wqe_store(wqe, n * HEAD_BYTES, wqe_owner(run->number, (uint8_t)n, WQE_RUN_OWN_HEADS),
		run_mask(first, n), first | 1u << 16);
	write_own_heads(rail, qp->sq, run, first, n);
	series_posted(rail, qp, run, n, n * HEAD_BYTES, false);
	return n;
}
