/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs -> WQEs. A run is posted in lots; the lots of several channels take turns. A lot consists of
 * series:
 *
 *   READs of one run on one queue pair that are posted in one loop and have one record and one CQE,
 *   so queue pair, budgets, record and T0 cost once for all of them. Each is one WQEBB, and all
 *   bring the same number of pages, which follow each other in the run.
 *
 *   payload (tail) and buckets   | payload | payload | ... | payload: CQE |
 *   pairs (lease)                | payload | heads | payload | heads | ... | payload | heads: CQE |
 *   heads (tail)                 | head | head | ... | head: CQE |
 *
 * Pages that follow each other both in the peer's pool and in the destination share one READ of up
 * to SLICE_BYTES, and so do the page heads of neighbouring slots. Pages of several segments or MRs,
 * and heads that share a READ, have a record for each WQE. Page heads are READ together with the
 * payload (lease), or after it has arrived (tail). What does not fit the budgets now is posted in a
 * later step. Poll core only; the hot path.
 */
#include "engine/rail/lot.h"
#include "engine/rail/wqe.h"

/* ---- series: what a queue pair takes -------------------------------------------------------- */

/*
 * How many WQEs of one WQEBB a series on this QP may have: up to the next one with a CQE, but at
 * least two if there is room for them, so that a head can follow its payload.
 */
static inline unsigned qp_series_max(const struct conn_qp *qp)
{
	unsigned left = RUN_SIGNAL_WQES - qp->silent, conn = CQ_DEPTH / 2 - qp->conn->wqes;
	unsigned room = qp->blocks_max - qp_outstanding(qp), max = left > 2 ? left : 2;

	max = max < conn ? max : conn;
	return max < room ? max : room;
}

/* Requests a CQE from the last WQE of a series if it is time for one. */
static inline void qp_series_signal(struct conn_qp *qp)
{
	if (qp->silent < RUN_SIGNAL_WQES && qp->silent_bytes < RUN_SIGNAL_BYTES)
		return;
	dv_signal_last(qp->sq);
	qp->silent = qp->silent_bytes = 0;
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
	qp_series_signal(qp);
	qp_posted(rail, qp, blocks, bytes, long_reads);
}

/* ---- series: payload, pairs of payload and heads, buckets ----------------------------------- */

/* What READs of the payload of a run, or of its heads, have in common. */
struct run_reads {
	struct dv_keys keys;
	uint64_t from; /* address of the peer's region */
	uint64_t to;   /* payload: address of the destination region */
};

static inline struct run_reads region_reads(
	const struct rail *rail, const struct rail_run *run, const struct rail_remote *remote)
{
	const struct region_slot *home = &rail->region[run->header.to_region];

	return (struct run_reads){dv_keys(remote->rkey, home->lkey), remote->base, home->base};
}

static inline struct run_reads payload_reads(const struct rail *rail, const struct rail_run *run)
{
	return region_reads(rail, run, &run->conn->handle->region[run->header.region]);
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
static void series_write_pairs(
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

		page_head_clear(own);
		dv_series_read(&series, p.keys, p.from + unit * PAGE_UNIT,
			p.to + (entry->to & (RUN_TO_MAX - 1)), length);
		dv_series_read(
			&series, h.keys, h.from + unit * sizeof(*own), (uintptr_t)own, head_length);
		own++;
	} while (++entry != end);
}

/* Writes `reads` READs of the payload of `n` pages each. */
static void series_write_payload(const struct rail *rail, struct dv_sq *sq,
	const struct rail_run *run, uint32_t n, uint32_t reads)
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

/* Writes READs of `n` buckets; `heads`: of pairs of heads, each in the pool of its place. */
static inline void series_write_buckets(const struct rail *rail, struct dv_sq *sq,
	const struct rail_run *run, uint32_t n, bool heads)
{
	struct dv_series series = dv_series_begin(sq, n);
	struct run_reads p = payload_reads(rail, run);
	uint64_t length = dv_length(p.keys, sizeof(struct bucket));
	uint64_t to = p.to + run_to(run, OP_LOOKUP, run->next);
	uint32_t i = run->next, end = i + n;

	do {
		uint64_t at = (uint64_t)*run_bucket(run, i) * sizeof(struct bucket);

		if (heads) {
			const struct rail_remote *remote;

			at = run_remote(run, OP_LOOKUP, i);
			remote = run_region(run->conn, run, &at);
			p = region_reads(rail, run, remote);
		}
		dv_series_read(&series, p.keys, p.from + at, to, length);
		to += sizeof(struct bucket);
	} while (++i != end);
}

/*
 * Where the heads of `n` joined pages arrive: side by side in the place of the run, or, if heads of
 * others lie between them, in a landing block, of which one is free. Clears those of the pages.
 */
static inline struct page_head *run_heads_land(
	struct rail *rail, struct rail_run *run, uint32_t at, uint32_t n, uint32_t units)
{
	struct page_head *head = run_own_heads(rail, run->number) + at, *clear;

	if (units > 1) {
		run->landing[at] = rail->landing_stack[--rail->landings_free];
		head = run_landing(rail, run->landing[at]);
	}
	clear = head;
	do {
		page_head_clear(clear);
		clear += units;
	} while (--n);
	return head;
}

/* Writes `pairs` pairs of `n` joined pages each. */
static void series_write_joined_pairs(
	struct rail *rail, struct dv_sq *sq, struct rail_run *run, uint32_t n, uint32_t pairs)
{
	const struct run_entry *entry = run_entry(run, run->next);
	struct dv_series series = dv_series_begin(sq, 2 * pairs);
	struct run_reads p = payload_reads(rail, run), h = heads_reads(rail, run);
	uint32_t units = run->item_bytes / PAGE_UNIT, at = run->next;
	uint64_t length = dv_length(p.keys, n * run->item_bytes);
	uint64_t head_length = dv_length(h.keys, HEAD_BYTES * ((n - 1) * units + 1));

	do {
		struct page_head *head = run_heads_land(rail, run, at, n, units);
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
static inline uint32_t run_pages_alike(const struct rail *rail, const struct rail_run *run,
	bool pairs, uint32_t left, uint32_t *ret_n)
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
 * Posts a series of READs or pairs of `n` pages each to one QP, which has room for it. Six
 * parameters, in registers: hot path.
 */
static inline void series_post(struct rail *rail, struct conn_qp *qp, struct rail_run *run,
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
			series_write_pairs(rail, qp->sq, run, reads);
		else
			series_write_joined_pairs(rail, qp->sq, run, n, reads);
	} else if (likely(run->header.kind == OP_RUN)) {
		series_write_payload(rail, qp->sq, run, n, reads);
	} else if (likely(run->header.region == REGION_SHARD)) {
		series_write_buckets(rail, qp->sq, run, reads, false);
	} else {
		series_write_buckets(rail, qp->sq, run, reads, true);
	}
	run->next = (uint8_t)(first + pages);
	series_posted(rail, qp, run, reads << pairs, bytes, long_reads);
}

/*
 * How many of `reads` READs of `bytes` fit into what the QP takes of long READs before another one
 * is picked. A QP that was picked although it is full has the fewest bytes of all, and gets a whole
 * series more.
 */
static inline uint32_t qp_bulk_limit(const struct conn_qp *qp, uint32_t bytes, uint32_t reads)
{
	uint32_t room = RAIL_BULK_BYTES - qp->bulk_bytes;

	if (bytes <= RAIL_SMALL_BYTES || (int32_t)(room - reads * bytes) >= 0)
		return reads;
	if ((int32_t)(room - bytes) < 0)
		room = RAIL_BULK_BYTES;
	return reads * bytes > room ? room / bytes : reads;
}

/*
 * Posts payload, in pairs if the connection has a lease, or buckets: those that are next in the
 * run, each of which is one segment in one MR; at most `burst` READs and `left` bytes. Returns the
 * number of READs and what they add to the lot; 0: there is no room now. Six parameters, in
 * registers: hot path.
 */
static unsigned run_post_payload(struct rail *rail, struct conn *conn, struct rail_run *run,
	unsigned burst, uint32_t left, uint32_t *lot)
{
	bool pairs = conn->limbo_ns && run->header.kind == OP_RUN;
	uint32_t item = run->item_bytes, before = run->next, max = burst >> pairs, posted = 0;

	while (run->next < run->header.pages && posted < max && item <= left) {
		uint32_t n, pages = run_pages_alike(rail, run, pairs, left, &n), reads = pages,
			    limit;
		struct conn_qp *qp = conn_pick(conn, n * item, QP_ROOM);

		limit = qp ? qp_series_max(qp) >> pairs : 0;
		limit = limit < max - posted ? limit : max - posted;
		if (!limit)
			break;
		if (n > 1)
			reads = pages / n;
		reads = qp_bulk_limit(qp, n * item, reads < limit ? reads : limit);
		series_post(rail, qp, run, pairs, n, reads);
		left -= reads * n * item;
		posted += reads;
	}
	*lot = (run->next - before) * item + posted * RAIL_READ_CHARGE;
	return posted << pairs;
}

/* ---- heads that share a READ: one landing block and one record each ------------------------- */

/*
 * A READ to post, with one SGE. Pieces are collected first and posted then, so that each of the two
 * loops keeps its state in registers.
 */
struct piece {
	uint64_t from, into; /* addresses at the peer and here */
	uint32_t bytes;
	uint32_t pages;  /* the pages of the run that the READ completes, or whose heads it reads */
	uint32_t detail; /* wqe.first | wqe.landing << 16 */
	uint32_t end;    /* index of the page behind the last one */
};

#define PIECES_MAX RUN_SIGNAL_WQES /* a series ends with the WQE that requests a CQE */

/*
 * Posts `n` pieces to one QP, which has room for them; qp_series_signal() follows behind the last
 * pieces that belong together. Eight parameters, in registers: hot path.
 */
static inline void pieces_post(struct rail *rail, struct conn_qp *qp, struct rail_run *run,
	const struct piece *piece, unsigned n, uint32_t rkey, uint32_t lkey, enum wqe_kind kind)
{
	uint32_t index = qp->sq->pi;
	struct dv_series series = dv_series_begin(qp->sq, n);
	struct dv_keys keys = dv_keys(rkey, lkey);
	uint32_t owner = wqe_owner(run->number, 1, kind), bytes = 0;
	bool bulk = piece->bytes > RAIL_SMALL_BYTES;

	for (const struct piece *end = piece + n; piece != end; piece++, index++) {
		dv_series_read(
			&series, keys, piece->from, piece->into, dv_length(keys, piece->bytes));
		wqe_store(&qp->wqe[index & (QP_DEPTH - 1)], piece->bytes, owner, piece->pages,
			piece->detail);
		PROBE_POST(run->channel, (uint64_t)run->header.cookie, rail->options.index,
			qp->sq->qpn, piece->bytes);
		bytes += piece->bytes;
	}
	run->outstanding = (uint16_t)(run->outstanding + n);
	qp->silent += n;
	qp->silent_bytes += bytes;
	qp_posted(rail, qp, n, bytes, bulk);
}

/*
 * Finds the pages from `first` on whose heads share one READ: pages of the mask `left`, in
 * ascending slots that lie close together. Clears their heads at `landing`, so that heads left
 * there by an earlier READ cannot validate them. Returns the length of the READ in bytes.
 */
static inline uint32_t run_heads_join(const struct rail_run *run, uint64_t left, uint32_t first,
	struct page_head *landing, uint32_t *ret_count)
{
	const struct run_entry *entry = run_entry(run, first);
	uint32_t units = run->item_bytes / PAGE_UNIT, start = entry->unit, last = start, n = 0;
	uint32_t gap = units > RUN_HEADS_GAP ? units : RUN_HEADS_GAP;

	do {
		page_head_clear(&landing[entry->unit - start]);
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
 * Collects READs of the heads of the pages `left`, at most `max` of them. Returns their number, and
 * clears the bits of their pages.
 */
static inline unsigned run_collect_heads(struct rail *rail, const struct rail_run *run,
	uint32_t *left, unsigned max, struct piece *p)
{
	uint64_t base = run->conn->handle->region[REGION_HEADS_0 + run->header.region].base;
	unsigned n = 0;

	for (; *left && n < max && rail->landings_free; n++, p++) {
		uint32_t first = (uint32_t)__builtin_ctz(*left), count;
		uint16_t block = rail->landing_stack[--rail->landings_free];
		struct page_head *landing = run_landing(rail, block);

		p->bytes = run_heads_join(run, *left, first, landing, &count);
		p->from = base + (uint64_t)run_entry(run, first)->unit * sizeof(struct page_head);
		p->into = (uintptr_t)landing;
		p->pages = run_mask(first, count);
		p->detail = first | (uint32_t)block << 16;
		*left &= ~p->pages;
	}
	return n;
}

/* Posts `n` READs of heads. Six parameters, in registers: hot path. */
static inline void run_post_collected_heads(struct rail *rail, struct conn_qp *qp,
	struct rail_run *run, const struct piece *piece, unsigned n, enum wqe_kind kind)
{
	const struct rail_conn *handle = run->conn->handle;

	pieces_post(rail, qp, run, piece, n,
		handle->region[REGION_HEADS_0 + run->header.region].rkey, rail->heads_lkey, kind);
}

/*
 * Posts READs of the heads of pages whose payload was just posted to the same QP: at most `max`,
 * for which the QP has room. `t0_ns`: at or before the first WQE of this payload. Pages for which
 * there is no room are validated by tail. Returns the number of READs. Six parameters, in
 * registers: hot path.
 */
static unsigned run_post_leased_heads(struct rail *rail, struct conn_qp *qp, struct rail_run *run,
	uint32_t pages, uint64_t t0_ns, unsigned max)
{
	struct piece piece[PIECES_MAX];
	uint32_t left = pages;
	unsigned n =
		run_collect_heads(rail, run, &left, max < PIECES_MAX ? max : PIECES_MAX, piece);

	if (!n)
		return 0;
	for (unsigned i = 0; i < n; i++)
		run->t0_ns[piece[i].detail & 0xffff] = t0_ns;
	run->leased |= pages & ~left;
	run_post_collected_heads(rail, qp, run, piece, n, WQE_RUN_LEASED);
	return n;
}

/* ---- heads after their payload (tail) ------------------------------------------------------- */

/* Clears the place of the heads of `n` pages from `first` on, and writes READs of them to it. */
static void series_write_heads(
	struct rail *rail, struct dv_sq *sq, const struct rail_run *run, uint32_t first, uint32_t n)
{
	const struct run_entry *entry = run_entry(run, first), *end = entry + n;
	struct page_head *own = run_own_heads(rail, run->number) + first;
	struct dv_series series = dv_series_begin(sq, n);
	struct run_reads h = heads_reads(rail, run);
	uint64_t length = dv_length(h.keys, HEAD_BYTES);

	do {
		page_head_clear(own);
		dv_series_read(&series, h.keys, h.from + (uint64_t)entry->unit * sizeof(*own),
			(uintptr_t)own, length);
		own++;
	} while (++entry != end);
}

/*
 * Posts READs of the heads of `n` pages from `first` on, each on its own, to the QP, which has room
 * for them. Returns their number.
 */
static unsigned run_post_own_heads(
	struct rail *rail, struct conn_qp *qp, struct rail_run *run, uint32_t first, uint32_t n)
{
	struct wqe *wqe = &qp->wqe[qp->sq->pi & (QP_DEPTH - 1)];

	wqe_store(wqe, n * HEAD_BYTES, wqe_owner(run->number, (uint8_t)n, WQE_RUN_OWN_HEADS),
		run_mask(first, n), first | 1u << 16);
	series_write_heads(rail, qp->sq, run, first, n);
	series_posted(rail, qp, run, n, n * HEAD_BYTES, false);
	return n;
}

/*
 * How many pages of `left`, from the first one on, share no READ of heads with the page behind
 * them: at most `max`. Without landing blocks, no page does.
 */
static inline unsigned run_heads_alone(
	const struct rail *rail, const struct rail_run *run, uint32_t left, unsigned max)
{
	uint32_t first = (uint32_t)__builtin_ctz(left), units = run->item_bytes / PAGE_UNIT;
	uint32_t gap = units > RUN_HEADS_GAP ? units : RUN_HEADS_GAP;
	const struct run_entry *entry = run_entry(run, first);
	unsigned n = 0;

	if (unlikely(!rail->landings_free))
		gap = 0;
	for (left >>= first; n < max && left & 1; left >>= 1, entry++, n++)
		if (left & 2 && entry[1].unit - entry[0].unit <= gap && gap)
			break;
	return n;
}

/*
 * Posts READs of page heads of a run, the first one in conn->run_heads, to one QP. They are posted
 * after the CQEs of all payload of their pages were seen, so the remote NIC samples each head after
 * the last payload byte of its page. This order proves that no overwrite had begun; neither one
 * READ of both nor two READs in flight together would guarantee it. Returns their number.
 */
static unsigned run_post_heads(
	struct rail *rail, struct conn *conn, struct rail_run *run, unsigned burst)
{
	struct conn_qp *qp = conn_pick(conn, sizeof(struct page_head), QP_ROOM);
	struct piece piece[PIECES_MAX];
	unsigned max, n;

	if (!qp)
		return 0;
	max = qp_series_max(qp);
	max = max < burst ? max : burst;
	n = run_heads_alone(rail, run, run->arrived, max);
	if (n) {
		uint32_t first = (uint32_t)__builtin_ctz(run->arrived);

		run->arrived &= ~run_mask(first, n);
		run_post_own_heads(rail, qp, run, first, n);
	} else {
		n = run_collect_heads(rail, run, &run->arrived, max, piece);
		run_post_collected_heads(rail, qp, run, piece, n, WQE_RUN_HEADS);
		qp_series_signal(qp);
	}
	if (!run->arrived)
		list_remove(&run->heads);
	return n;
}

unsigned runs_post_heads(struct rail *rail, struct conn *conn, unsigned burst)
{
	unsigned n = 0, posted;

	while (n < burst && list_linked(&conn->run_heads)) {
		struct rail_run *run = container_of(conn->run_heads.next, struct rail_run, heads);

		posted = run->alone ? lone_pages_post_heads(rail, conn, burst - n)
				    : run_post_heads(rail, conn, run, burst - n);
		if (!posted)
			break;
		n += posted;
	}
	return n;
}

/* ---- pages of several segments or MRs ------------------------------------------------------- */

/*
 * Adds up to `n` ranges of one MR, `stride` bytes apart, none of which touches the one before it;
 * as many as there are SGEs. Returns how many. Six parameters: it is inlined.
 */
static inline uint32_t sges_add_apart(struct sges *sges, uint64_t address, uint64_t stride,
	uint32_t bytes, uint32_t lkey, uint32_t n)
{
	uint32_t room = DV_SGES_MAX - sges->count;

	n = n < room ? n : room;
	for (uint32_t i = 0; i < n; i++) {
		dv_data_add(&sges->data, address, bytes, lkey);
		address += stride;
	}
	sges->count += n;
	sges->reached = n ? address - stride + bytes : sges->reached;
	return n;
}

/*
 * Fills SGEs with the rest of the page at which the run is, as far as they reach, and advances its
 * position in the page.
 */
static inline void run_gather_page(const struct rail *rail, struct rail_run *run, struct sges *sges)
{
	const struct region_slot *region = &rail->region[run->header.to_region];
	uint32_t done = run->done, part = run->segment_done, lkey = region->lkey, bytes, more;
	uint64_t at = done ? run->segment_at : run_to(run, run->header.kind, run->next);
	uint64_t base = region->base, stride = run->header.stride_or_to;
	uint32_t item = run->item_bytes, segment = run->segment_bytes;
	bool extents = region->extent_shift;

	while (done < item) {
		bytes = segment - part;
		if (unlikely(extents))
			bytes = region_cut_at_extent(
				rail, run->header.to_region, at + part, bytes, &lkey);
		if (!sges_add(sges, base + at + part, bytes, lkey))
			break;
		done += bytes;
		part += bytes;
		if (unlikely(part < segment))
			continue;
		part = 0;
		at += stride;
		if (done < item && stride != segment && likely(!extents)) {
			more = sges_add_apart(
				sges, base + at, stride, segment, lkey, (item - done) / segment);
			done += more * segment;
			at += more * stride;
		}
	}
	run->done = done;
	run->segment_done = part;
	run->segment_at = at;
}

/*
 * Fills SGEs from the run's position on: the rest of the page, and the pages that follow it at the
 * peer, as far as SGEs and `allowed` bytes reach. Returns the number of bytes.
 */
static uint32_t run_gather(const struct rail *rail, struct conn_qp *qp, struct rail_run *run,
	uint32_t allowed, uint32_t *ret_sges)
{
	uint32_t bytes = 0, before = run->done;
	struct sges sges = sges_begin(qp);
	uint8_t kind = run->header.kind;

	allowed = allowed < SLICE_BYTES ? allowed : SLICE_BYTES;
	for (;;) {
		run_gather_page(rail, run, &sges);
		bytes += run->done - before;
		if (run->done < run->item_bytes)
			break;
		before = run->done = 0;
		run->next++;
		if (run->next == run->header.pages || bytes + run->item_bytes > allowed ||
			run_remote(run, kind, run->next) !=
				run_remote(run, kind, run->next - 1u) + run->item_bytes)
			break;
	}
	*ret_sges = sges.count;
	return bytes;
}

/*
 * With a lease, posts a READ of the heads of the pages from `first` on that are complete now,
 * behind their payload on its QP, if `burst` allows it and there is room. Adds it to the number of
 * READs. Six parameters, in registers: hot path.
 */
static inline void run_lease_gathered(struct rail *rail, struct conn_qp *qp, struct rail_run *run,
	uint32_t first, unsigned burst, unsigned *posted)
{
	struct conn *conn = run->conn;

	if (!conn->limbo_ns || run->header.kind != OP_RUN || run->next == first || burst < 2 ||
		!conn_has_room(conn) || !qp_has_room(qp, QP_ROOM))
		return;
	*posted += run_post_leased_heads(
		rail, qp, run, run_mask(first, run->next - first), run->page_t0_ns, 1);
	qp_series_signal(qp);
}

/*
 * Posts one READ of pages of several segments, or in a region of several MRs. All WQEs of one page
 * go to one QP, which completes them in order: the last one completes the page. With a lease, a
 * READ of the heads of the pages that are complete follows on that QP, if `burst` allows it.
 * Returns the length of the READ and the number of READs; 0: there is no room now.
 */
static inline uint32_t run_post_gathered(struct rail *rail, struct conn *conn, struct rail_run *run,
	unsigned burst, unsigned *ret_posted)
{
	uint32_t first = run->next, bytes, allowed = rail_bytes_allowed(rail);
	uint64_t offset = run_remote(run, run->header.kind, first) + run->done;
	struct conn_qp *qp = run->split;
	const struct rail_remote *remote;
	uint64_t t0_ns = 0;
	struct wqe *wqe;
	uint32_t sges;

	if (run->item_bytes - run->done > allowed)
		return 0;
	if (!qp)
		qp = conn_pick(conn, run->item_bytes, QP_ROOM_GATHERED);
	else if (!conn_has_room(conn) || !qp_has_room(qp, QP_ROOM_GATHERED))
		return 0;
	if (!qp)
		return 0;
	if (conn->limbo_ns)
		t0_ns = rail_t0(rail);
	if (!run->done)
		run->page_t0_ns = t0_ns;
	bytes = run_gather(rail, qp, run, allowed, &sges);
	run->split = run->done ? qp : NULL;
	remote = run_region(conn, run, &offset);
	wqe = wqe_post_gathered(rail, qp, remote, offset, sges, bytes, RUN_SIGNAL_BYTES);
	wqe_store(wqe, bytes, wqe_owner(run->number, wqe->blocks, WQE_RUN_PAGES),
		run_mask(first, run->next - first), first);
	run->outstanding++;
	PROBE_POST(run->channel, (uint64_t)run->header.cookie, rail->options.index, qp->sq->qpn,
		bytes);
	*ret_posted = 1;
	run_lease_gathered(rail, qp, run, first, burst, ret_posted);
	if (run->next > first) /* a page that is posted in part now begins in this READ */
		run->page_t0_ns = t0_ns;
	return bytes;
}

/*
 * Posts at most `burst` WQEs of the lot of a run whose pages have several segments or MRs; the lot
 * began in this step or an earlier one. Returns their number, and whether the lot ended. Not
 * inline: inlining would take registers from the other runs.
 */
__attribute__((noinline)) static unsigned run_post_gathered_lot(
	struct rail *rail, struct conn *conn, struct rail_run *run, unsigned burst, bool *ret_all)
{
	uint32_t bytes;
	unsigned n = 0, posted;

	*ret_all = false;
	while (n < burst && !*ret_all) {
		posted = 0;
		bytes = run_post_gathered(rail, conn, run, burst - n, &posted);
		if (!posted)
			break;
		n += posted;
		run->lot += bytes + RAIL_READ_CHARGE;
		*ret_all = run->next == run->header.pages || run->lot >= RAIL_LOT_BYTES;
	}
	if (*ret_all)
		run->lot = 0;
	return n;
}

/* ---- lots ----------------------------------------------------------------------------------- */

/*
 * The same for runs whose pages are one segment in one MR each. If no other channel waits, the lot
 * has no limit but the budget, and is charged afterwards.
 */
static inline unsigned run_post_lot(
	struct rail *rail, struct conn *conn, struct rail_run *run, unsigned burst, bool *ret_all)
{
	uint32_t left = rail_bytes_allowed(rail), most = RAIL_LOT_BYTES + run->item_bytes - 1, lot;
	unsigned n;

	if (left > most && unlikely(!conn_has_one_channel(conn)))
		left = most; /* of whole pages, so RAIL_LOT_BYTES at least */
	n = run_post_payload(rail, conn, run, burst, left, &lot);
	*ret_all = run->next == run->header.pages || lot >= RAIL_LOT_BYTES;
	if (lot > RAIL_LOT_BYTES) { /* as several lots, of which this is the last one */
		run->tag += lot - RAIL_LOT_BYTES;
		rail->channel[run->channel].lots_end += lot - RAIL_LOT_BYTES;
	}
	return n;
}

/* The same for any run but a lone page. */
static inline unsigned run_post_any_lot(
	struct rail *rail, struct conn *conn, struct rail_run *run, unsigned burst, bool *ret_all)
{
	*ret_all = false;
	if (run->item_bytes - run->done > rail_bytes_allowed(rail))
		return 0;
	return likely(run->one_sge) ? run_post_lot(rail, conn, run, burst, ret_all)
				    : run_post_gathered_lot(rail, conn, run, burst, ret_all);
}

unsigned runs_post(struct rail *rail, struct conn *conn, unsigned burst)
{
	unsigned n = 0;

	while (n < burst && list_linked(&conn->runs)) {
		struct rail_run *run = container_of(conn->runs.next, struct rail_run, pending);
		bool all;

		if (run->alone) {
			n += lone_pages_post(rail, conn, burst - n, &all);
			if (!all)
				break;
			continue;
		}
		n += run_post_any_lot(rail, conn, run, burst - n, &all);
		if (!all)
			break;
		conn_end_lot(rail, conn, run);
	}
	return n;
}
