/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload of runs with a lease: each READ of pages is followed directly, on the same queue pair, by
 * the READ of their heads. Both are a pair: they have one record, and the completion of the second
 * one completes both. Poll core only; the hot path.
 */
#include "engine/rail/run_series.h"

/*
 * How many pages from number `at` on one READ of at most `limit` bytes brings: at least one, and
 * those that follow it both at the peer and here.
 */
static inline uint32_t pages_join(const struct rail_run *run, uint32_t at, uint32_t limit)
{
	const struct run_entry *entry = run_entry(run, at);
	uint32_t item = run->item_bytes, units = item / PAGE_UNIT, bytes = 2 * item;
	uint32_t left = run->header.pages - at, n = 1;

	if (item % PAGE_UNIT)
		return 1;
	for (; n < left && bytes <= limit; n++, bytes += item, entry++)
		if (entry[1].unit != entry[0].unit + units ||
			(entry[1].to & (RUN_TO_MAX - 1)) != (entry[0].to & (RUN_TO_MAX - 1)) + item)
			break;
	return n;
}

/*
 * Where the heads of `pages` pages from number `first` on arrive. Heads that lie side by side have
 * a place in the run; others need a landing block. Clears those that the pages need, so that heads
 * left there by an earlier READ cannot validate them. Returns the block, or LANDING_RUN.
 */
static inline uint16_t heads_land(struct rail *rail, const struct rail_run *run, uint32_t first,
	uint32_t pages, struct page_head **ret)
{
	uint32_t units = run->item_bytes / PAGE_UNIT;
	uint16_t block;

	if (likely(pages == 1 || units == 1)) {
		struct page_head *at = run_own_heads(rail, run->number) + first, *end = at + pages;

		*ret = at;
		do
			memset(at, 0, sizeof(*at)); /* a constant size: two stores, no call */
		while (++at != end);
		return LANDING_RUN;
	}
	block = rail->landing_stack[--rail->landings_free];
	*ret = run_landing(rail, block);
	for (uint32_t i = 0; i < pages; i++)
		memset(*ret + i * units, 0, sizeof(struct page_head));
	return block;
}

/*
 * Posts a series of at most `max` pairs to one QP, of at most `left` bytes of payload; the first
 * READ is of `join` pages. All READs of a series are long ones, or all are small ones. Returns the
 * number of pairs.
 */
static unsigned post_pair_series(struct rail *rail, struct lane_qp *qp, struct rail_run *run,
	uint32_t join, unsigned max, uint32_t left)
{
	const struct rail_remote *pool = &run->lane->peer->region[run->header.region];
	const struct rail_remote *heads = pool + (REGION_HEADS_0 - REGION_POOL_0);
	const struct region_slot *home = &rail->region[run->header.to_region];
	struct dv_series payload = dv_series_begin(qp->sq, pool->rkey, home->lkey);
	struct dv_series head = dv_series_begin(qp->sq, heads->rkey, rail->heads_lkey);
	uint32_t item = run->item_bytes, units = item / PAGE_UNIT, at = run->next, total = 0;
	uint32_t owner = wqe_owner(run->number, 2, WQE_RUN_PAIR), bytes = join * item;
	uint64_t pool_base = pool->base, heads_base = heads->base, to_base = home->base;
	uint64_t t0_ns = rail_t0(rail);
	bool bulk = bytes > RAIL_SMALL_BYTES;
	unsigned n = 0;

	for (;;) {
		const struct run_entry *entry = run_entry(run, at);
		uint32_t index, span = (join - 1) * units + 1;
		struct page_head *landing;
		uint16_t block = heads_land(rail, run, at, join, &landing);

		index = dv_series_read(&payload, pool_base + (uint64_t)entry->unit * PAGE_UNIT,
			to_base + (entry->to & (RUN_TO_MAX - 1)), bytes);
		head.index = payload.index;
		dv_series_read(&head, heads_base + (uint64_t)entry->unit * sizeof(*landing),
			(uintptr_t)landing, span * (uint32_t)sizeof(*landing));
		payload.index = head.index;
		wqe_store(&qp->wqe[index & (QP_DEPTH - 1)], bytes, owner, run_mask(at, join),
			at | (uint32_t)block << 16);
		PROBE_POST(run->channel, (uint64_t)run->header.cookie, rail->options.index,
			qp->sq->qpn, bytes);
		run->t0_ns[at] = t0_ns;
		n++;
		total += bytes;
		at += join;
		if (n == max || at == run->header.pages || total + item > left ||
			unlikely(!rail->landings_free))
			break;
		join = pages_join(run, at, left - total < SLICE_BYTES ? left - total : SLICE_BYTES);
		bytes = join * item;
		if ((bytes > RAIL_SMALL_BYTES) != bulk ||
			(bulk && qp->bulk_bytes + total + bytes > RAIL_BULK_BYTES))
			break;
	}
	dv_series_end(qp->sq, &payload);
	run->next = (uint8_t)at;
	run->outstanding = (uint16_t)(run->outstanding + n);
	qp->silent += 2 * n;
	qp->silent_bytes += total;
	series_signal(qp);
	qp_posted(rail, qp, 2 * n, total, bulk);
	return n;
}

unsigned post_pairs(
	struct rail *rail, struct lane *lane, struct rail_run *run, unsigned burst, uint32_t *lot)
{
	unsigned posted = 0;

	while (burst - posted >= 2 && run->next < run->header.pages && *lot < RAIL_LOT_BYTES) {
		uint32_t left = bytes_allowed(rail), lot_left = RAIL_LOT_BYTES - *lot, join, n, max;
		uint32_t before = run->next;
		struct lane_qp *qp;

		if (run->item_bytes > left || unlikely(!rail->landings_free))
			break;
		if (lot_left < left)
			left = lot_left > run->item_bytes ? lot_left : run->item_bytes;
		join = pages_join(run, run->next, left < SLICE_BYTES ? left : SLICE_BYTES);
		qp = lane_pick(lane, join * run->item_bytes);
		max = qp ? series_max(qp) / 2 : 0;
		max = max < (burst - posted) / 2 ? max : (burst - posted) / 2;
		if (!max)
			break;
		n = post_pair_series(rail, qp, run, join, max, left);
		posted += 2 * n;
		*lot += (run->next - before) * run->item_bytes + n * RAIL_WQE_CHARGE;
	}
	return posted;
}
