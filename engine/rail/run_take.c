/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client rings -> runs: all lines of a run are copied once, and the copy is validated, because the
 * client may write its ring at any time. Poll core only; the hot path.
 */
#include "engine/rail/core.h"

static struct rail_run *run_new(struct rail *rail)
{
	struct rail_run *run = rail->run_stack[--rail->runs_free];

	run->conn = NULL;
	link_init(&run->pending);
	link_init(&run->heads);
	run->hit = run->stale = run->arrived = run->leased = 0;
	run->outstanding = 0;
	run->next = 0;
	run->status = OP_HIT;
	run->done = run->segment_done = 0;
	run->segment = 0;
	run->counted = run->expired = false;
	run->split = NULL;
	return run;
}

void run_free(struct rail *rail, struct rail_run *run)
{
	rail->run_stack[rail->runs_free++] = run;
}

/* Copies the lines of a run that follow its first one, which is copied already. */
static void lines_copy(struct rail_run *run, const struct ring_consumer *ops, uint32_t at)
{
	const struct run_line *ring = (const void *)ops->slots;
	uint32_t mask = ops->capacity - 1, from = ops->head + at;
	struct run_line *to = run->line;

	for (uint32_t left = run_lines(run->header.kind, run->header.pages); --left;)
		*++to = ring[++from & mask];
}

/*
 * Removes the words with turns from the copy of a look-up, so that its buckets follow each other.
 */
static void buckets_join(struct rail_run *run)
{
	uint32_t *word = &run->line[0].bucket[0], lines = run_lines(OP_LOOKUP, run->header.pages);

	for (uint32_t k = 1; k < lines; k++)
		memmove(&word[16 * k + 4 - k], &word[16 * k + 4], 15 * sizeof(*word));
}
static_assert(RUN_LINE_BUCKETS == 15, "word 3 of each line but the first has its turn");

/* True for a region in which an OP_LOOKUP may READ. */
static inline bool looked_at(uint8_t region)
{
	return region == REGION_SHARD ||
	       (region >= REGION_HEADS_0 && region < REGION_HEADS_0 + RAILS_MAX);
}

/*
 * Validates a header; computes item_bytes, segment_bytes and bytes. Nothing here overflows: a
 * stride is below 2^48, and there are at most RUN_SEGMENTS_MAX of them.
 */
static bool header_possible(struct rail_run *run)
{
	const struct run *h = &run->header;

	if (h->kind == OP_LOOKUP) {
		if (!looked_at(h->region) || h->segments || h->page_bytes)
			return false;
		run->item_bytes = run->segment_bytes = sizeof(struct bucket);
	} else {
		if (h->region >= REGION_POOL_0 + RAILS_MAX || h->page_bytes < 1 ||
			h->page_bytes > RUN_PAGE_BYTES_MAX)
			return false;
		run->item_bytes = run->segment_bytes = h->page_bytes;
		if (unlikely(h->segments != 1)) {
			if (h->segments < 1 || h->segments > RUN_SEGMENTS_MAX ||
				h->page_bytes % h->segments)
				return false;
			run->segment_bytes = h->page_bytes / h->segments;
			if (h->stride_or_to < run->segment_bytes)
				return false;
		} else if (h->stride_or_to) {
			return false;
		}
	}
	run->bytes = run->item_bytes * h->pages;
	return true;
}

/* measure() for a look-up. */
static uint64_t measure_buckets(struct rail_run *run)
{
	const uint32_t *at = run_bucket(run, 0), *end = at + run->header.pages;
	uint32_t at_max = 0;

	for (; at != end; at++)
		at_max = *at > at_max ? *at : at_max;
	run->joined = 0;
	run->reach = ((uint64_t)at_max + 1) * sizeof(struct bucket);
	return run->header.stride_or_to + run->bytes;
}

/* The last pages so far, by their places at the peer and here: see measure(). */
struct reach {
	uint64_t unit_max, to_max;
};

/* Adds pages that follow each other, of which the last one is before `unit` and `to`. */
static inline void reach_add(struct reach *r, uint64_t unit, uint64_t to)
{
	r->unit_max = unit > r->unit_max ? unit : r->unit_max;
	r->to_max = to > r->to_max ? to : r->to_max;
}

/*
 * Computes how far the run reaches: `reach` and `unit_max` at the peer, and returns the end of its
 * last byte in the destination region. Computes `joined` as well. Of pages that follow each other
 * the last one reaches farthest, because no sum of 64 bits wraps.
 */
__attribute__((noinline)) static uint64_t measure(struct rail_run *run)
{
	const struct run *h = &run->header;
	const struct run_entry *entry = run_entry(run, 0), *end = entry + h->pages;
	uint64_t unit_next = entry->unit, to_next = entry->to & (RUN_TO_MAX - 1);
	uint32_t item = run->item_bytes, units = item / PAGE_UNIT;
	uint64_t bit = 1, joined = 0;
	struct reach r = {0};

	/* bit 0 of joined is for a page before the first one */
	for (; entry != end; entry++, bit <<= 1) {
		uint64_t to = entry->to & (RUN_TO_MAX - 1);

		if (entry->unit == unit_next && to == to_next) {
			joined |= bit;
		} else {
			reach_add(&r, unit_next - units, to_next - item);
			unit_next = entry->unit;
			to_next = to;
		}
		unit_next += units;
		to_next += item;
	}
	reach_add(&r, unit_next - units, to_next - item);
	run->joined = item % PAGE_UNIT ? 0 : (uint32_t)(joined >> 1);
	run->join_max = SLICE_BYTES / item;
	run->unit_max = (uint32_t)r.unit_max;
	run->reach = r.unit_max * PAGE_UNIT + item;
	return r.to_max + (h->segments - 1u) * h->stride_or_to + run->segment_bytes;
}

/* Validates a run without looking at its peer; one impossible line refuses all of it. */
static bool run_possible(struct rail *rail, const struct rail_channel *channel,
	struct rail_run *run, const struct ring_consumer *ops, uint32_t at)
{
	const struct run *h = &run->header;
	const struct region_slot *region;
	uint64_t end;

	if (h->pages < 1 || h->pages > RUN_PAGES_MAX || h->to_region >= REGIONS_MAX ||
		h->peer >= NODES_MAX || !header_possible(run))
		return false;
	lines_copy(run, ops, at);
	region = &rail->region[h->to_region];
	if (h->kind == OP_LOOKUP) {
		buckets_join(run);
		end = measure_buckets(run);
	} else {
		end = measure(run);
	}
	return region->session == channel->session && end <= region->length;
}

/* Starts a run whose lines leave the ring; from here on it is answered exactly once. */
static void run_start(
	struct rail *rail, struct rail_channel *channel, struct rail_run *run, bool possible)
{
	uint64_t now = rail_now(rail);
	struct region_slot *region;

	PROBE_TAKE(channel->id, (uint64_t)run->header.cookie, rail->options.index, run->header.peer,
		run->header.pages * run->header.page_bytes);
	channel->in_flight++;
	shm_store(&rail->in_flight, rail->in_flight + 1);
	run->channel = (uint16_t)channel->id;
	if (unlikely(rail->stopping || !possible || run->header.deadline_ns <= now)) {
		run_end(rail, run,
			!possible        ? OP_INVALID
			: rail->stopping ? OP_CANCELLED
					 : OP_TIMEOUT);
		return;
	}
	region = &rail->region[run->header.to_region];
	region->users++;
	run->counted = true;
	run->one_sge = run->segment_bytes == run->item_bytes && region->extent_shift == 0;
	run->deadline_ns = run->header.deadline_ns;
	if (run->deadline_ns - now > REQUEST_DEADLINE_MAX_NS)
		run->deadline_ns = now + REQUEST_DEADLINE_MAX_NS;
	if (run->deadline_ns < rail->nearest_ns)
		rail->nearest_ns = run->deadline_ns;
	rail->run_live[run->number] = true;
	run_route(rail, run);
}

static bool runs_full(const struct rail *rail, const struct conn *conn)
{
	return 2 * conn->runs_live > rail->runs_free;
}

/* True if the run, not validated yet, must stay in its ring: as must_wait() in take.c. */
static bool must_wait(const struct rail *rail, const struct run *run)
{
	const struct conn *conn;

	if (likely(rail->runs_free >= RAIL_RUNS_PLENTY) || rail->stopping || run->peer >= NODES_MAX)
		return false;
	conn = rail->peer[run->peer].conn;
	return conn && conn->handle->ref == run->peer_ref && conn->state == CONN_OPEN &&
	       !conn->stalled && runs_full(rail, conn);
}

/*
 * True if the ring has fewer than `lines` filled entries from the unreleased entry `at` on. Not
 * inline: nearly all runs were seen with all their lines.
 */
__attribute__((noinline)) static bool lines_missing(
	struct ring_consumer *ops, uint32_t at, uint32_t lines)
{
	return lines > (uint32_t)ring_ready_now(ops) - at;
}

uint32_t run_take(struct rail *rail, struct rail_channel *channel, const struct run_line *first,
	uint32_t at, uint32_t ready, uint32_t *ret_pages)
{
	uint32_t lines = run_lines(first->header.kind, first->header.pages);
	struct rail_run *run;
	bool possible;

	if (unlikely(!rail->runs_free)) {
		rail->blocked = true;
		return 0;
	}
	run = run_new(rail);
	if (unlikely(lines > ready) && lines_missing(&channel->ops, at, lines)) {
		/* The library publishes whole runs, so a partial one is that of a broken client. */
		run_free(rail, run);
		channel_break(rail, channel);
		return 0;
	}
	run->line[0] = *first;
	run_decode(&first->header, rail_now(rail), &run->header);
	if (unlikely(must_wait(rail, &run->header))) {
		run_free(rail, run);
		rail->blocked = true;
		return 0;
	}
	possible = run_possible(rail, channel, run, &channel->ops, at);
	/* The run may name a region whose RAIL_REGION_ADD is in the inbox: see take_op(). */
	if (unlikely(!possible && ring_ready(&rail->inbox.command_in) > 0)) {
		run_free(rail, run);
		return 0;
	}
	*ret_pages = run->header.pages;
	run_start(rail, channel, run, possible);
	return lines;
}

/* ---- routes --------------------------------------------------------------------------------- */

/*
 * True if every page of the run lies in the pool that the peer exported, and its head in the heads;
 * or every bucket in the shard, or every pair of heads in the heads.
 */
static bool conn_has_run(const struct conn *conn, const struct rail_run *run)
{
	const struct rail_remote *remote = conn->handle->region;
	uint32_t region = run->header.region;

	return run->reach <= remote[region].length &&
	       (run->header.kind != OP_RUN ||
		       run->unit_max <
			       remote[REGION_HEADS_0 + region].length / sizeof(struct page_head));
}

static void run_enter_lane(struct rail *rail, struct conn *conn, struct rail_run *run)
{
	run->conn = conn;
	if (conn->runs_live && unlikely(conn->runs_channel != run->channel))
		conn->runs_channel = CHANNEL_NONE;
	else
		conn->runs_channel = run->channel;
	conn->runs_live++;
	conn->run_pages += run->header.pages;
	conn->taken_bytes += run->bytes;
	if (unlikely(conn->stalled))
		rail->parked += run->header.pages;
	else
		rail->taken_bytes += run->bytes;
	run_queue(rail, conn, run);
}

void run_route(struct rail *rail, struct rail_run *run)
{
	const struct run *h = &run->header;
	struct peer_slot *slot = peer_slot_of(rail, h->peer);
	struct conn *conn = slot->conn;
	bool room = rail->parked + h->pages <= RAIL_PARKED_MAX;

	if (likely(conn && conn->handle->ref == h->peer_ref)) {
		if (unlikely(conn->state != CONN_OPEN ||
			     (conn->stalled && (!room || runs_full(rail, conn)))))
			run_end(rail, run, OP_PEER_DOWN);
		else if (unlikely(!conn_has_run(conn, run)))
			run_end(rail, run, OP_INVALID);
		else
			run_enter_lane(rail, conn, run);
		return;
	}
	if (!room) {
		run_end(rail, run, OP_PEER_DOWN);
		return;
	}
	rail->parked += h->pages;
	link_append(&slot->parked_runs, &run->pending);
	peer_want(rail, slot, h->peer, h->peer_ref);
}
