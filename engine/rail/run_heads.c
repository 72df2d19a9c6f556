/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page heads of runs: READ together with the payload (lease), or after it has arrived (tail).
 * Poll core only; the hot path.
 */
#include "engine/rail/run_series.h"

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
		head_clear(&landing[entry->unit - start]);
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
static inline unsigned collect_heads(struct rail *rail, const struct rail_run *run, uint32_t *left,
	unsigned max, struct piece *p)
{
	uint64_t base = run->conn->handle->region[REGION_HEADS_0 + run->header.region].base;
	unsigned n = 0;

	for (; *left && n < max && rail->landings_free; n++, p++) {
		uint32_t first = (uint32_t)__builtin_ctz(*left), count;
		uint16_t block = rail->landing_stack[--rail->landings_free];
		struct page_head *landing = run_landing(rail, block);

		p->bytes = heads_join(run, *left, first, landing, &count);
		p->from = base + (uint64_t)run_entry(run, first)->unit * sizeof(struct page_head);
		p->into = (uintptr_t)landing;
		p->pages = run_mask(first, count);
		p->detail = first | (uint32_t)block << 16;
		*left &= ~p->pages;
	}
	return n;
}

/* Posts `n` READs of heads. Six parameters, in registers: hot path. */
static inline void post_collected_heads(struct rail *rail, struct conn_qp *qp, struct rail_run *run,
	const struct piece *piece, unsigned n, enum wqe_kind kind)
{
	const struct rail_conn *handle = run->conn->handle;

	post_series(rail, qp, run, piece, n,
		handle->region[REGION_HEADS_0 + run->header.region].rkey, rail->heads_lkey, kind);
}

unsigned post_leased(struct rail *rail, struct conn_qp *qp, struct rail_run *run, uint32_t pages,
	uint64_t t0_ns, unsigned max)
{
	struct piece piece[PIECES_MAX];
	uint32_t left = pages;
	unsigned n = collect_heads(rail, run, &left, max < PIECES_MAX ? max : PIECES_MAX, piece);

	if (!n)
		return 0;
	for (unsigned i = 0; i < n; i++)
		run->t0_ns[piece[i].detail & 0xffff] = t0_ns;
	run->leased |= pages & ~left;
	post_collected_heads(rail, qp, run, piece, n, WQE_RUN_LEASED);
	return n;
}

/*
 * How many pages of `left`, from the first one on, share no READ of heads with the page behind
 * them: at most `max`. Without landing blocks, no page does.
 */
static inline unsigned heads_alone(
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
 * Posts READs of page heads of the first run in conn->run_heads, to one QP. They are posted after
 * the CQEs of all payload of their pages were seen: see post_heads() in post.c for why that proves
 * the payload. Returns their number.
 */
static unsigned post_heads_of_run(struct rail *rail, struct conn *conn, unsigned burst)
{
	struct rail_run *run = container_of(conn->run_heads.next, struct rail_run, heads);
	struct conn_qp *qp = conn_pick(conn, sizeof(struct page_head));
	struct piece piece[PIECES_MAX];
	unsigned max, n;

	if (!qp)
		return 0;
	max = series_max(qp);
	max = max < burst ? max : burst;
	n = heads_alone(rail, run, run->arrived, max);
	if (n) {
		uint32_t first = (uint32_t)__builtin_ctz(run->arrived);

		run->arrived &= ~run_mask(first, n);
		post_own_heads(rail, qp, run, first, n);
	} else {
		n = collect_heads(rail, run, &run->arrived, max, piece);
		post_collected_heads(rail, qp, run, piece, n, WQE_RUN_HEADS);
		series_signal(qp);
	}
	if (!run->arrived)
		link_remove(&run->heads);
	return n;
}

unsigned post_run_heads(struct rail *rail, struct conn *conn, unsigned burst)
{
	unsigned n = 0, posted;

	while (n < burst && link_linked(&conn->run_heads)) {
		posted = post_heads_of_run(rail, conn, burst - n);
		if (!posted)
			break;
		n += posted;
	}
	return n;
}
