/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of a run from its lines in a client's ring to its route: rail_take() goes over the rings,
 * copies the lines of each run once, validates the copy, because the client may write its ring at
 * any time, and starts the run. Poll core only; the hot path.
 */
#include "engine/rail/lot.h"

/* ---- validation of a run --------------------------------------------------------------------- */

/* The region with this number; NULL: it is none of the channel's session. */
static const struct region_slot *session_region(
	const struct rail *rail, const struct rail_channel *channel, uint32_t id)
{
	if (id >= REGIONS_MAX || rail->region[id].session != channel->session)
		return NULL;
	return &rail->region[id];
}

/*
 * Copies the lines of a run that follow its first one, which is copied already. With ops_line() a
 * page takes one instruction more.
 */
static void run_copy_lines(struct rail_run *run, const struct ring_consumer *ops, uint32_t at)
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
static void run_join_buckets(struct rail_run *run)
{
	uint32_t *word = &run->line[0].bucket[0], lines = run_lines(OP_LOOKUP, run->header.pages);

	for (uint32_t k = 1; k < lines; k++)
		memmove(&word[16 * k + 4 - k], &word[16 * k + 4], 15 * sizeof(*word));
}
static_assert(RUN_LINE_BUCKETS == 15, "word 3 of each line but the first has its turn");

/*
 * Validates a header; computes item_bytes, segment_bytes and bytes. Nothing here overflows: a
 * stride is below 2^48, and there are 1 to SEGMENTS_MAX of them: op_unpack_segments().
 */
static bool run_header_possible(struct rail_run *run)
{
	const struct run *h = &run->header;

	if (h->kind == OP_LOOKUP) {
		if ((h->region != REGION_SHARD && h->region != REGION_HEADS_0) || h->segments ||
			h->page_bytes)
			return false;
		run->item_bytes = run->segment_bytes = sizeof(struct bucket);
	} else {
		if (h->kind != OP_RUN || h->region >= REGION_POOL_0 + RAILS_MAX ||
			h->page_bytes < 1 || h->page_bytes > RUN_PAGE_BYTES_MAX)
			return false;
		run->item_bytes = run->segment_bytes = h->page_bytes;
		if (unlikely(h->segments != 1)) {
			if (h->page_bytes % h->segments)
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

/* run_measure() for a look-up. In page heads, conn_has_heads() does without `reach`. */
static uint64_t run_measure_buckets(struct rail_run *run)
{
	const uint32_t *at = run_bucket(run, 0), *end = at + run->header.pages;
	uint32_t at_max = 0;

	for (; at != end; at++)
		at_max = *at > at_max ? *at : at_max;
	run->joined = 0;
	run->reach = ((uint64_t)at_max + 1) * sizeof(struct bucket);
	return run->header.stride_or_to + run->bytes;
}

/* The last pages so far, by their places at the peer and here: see run_measure(). */
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
__attribute__((noinline)) static uint64_t run_measure(struct rail_run *run)
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
	const struct region_slot *region = session_region(rail, channel, h->to_region);
	uint64_t end;

	if (!region || h->pages < 1 || h->pages > RUN_PAGES_MAX || h->peer >= NODES_MAX ||
		!run_header_possible(run))
		return false;
	run_copy_lines(run, ops, at);
	if (h->kind == OP_LOOKUP) {
		run_join_buckets(run);
		end = run_measure_buckets(run);
	} else {
		end = run_measure(run);
	}
	run->one_sge = run->segment_bytes == run->item_bytes && !region->extent_shift;
	return end <= region->length;
}

/* ---- the destination of a lone page ---------------------------------------------------------- */

/* ring_slot_old() of an op ring, whose geometry is constant. */
static inline const void *ops_line(const struct ring_consumer *ops, uint32_t at)
{
	return ops->slots + ring_at(OP_RING_SLOTS, RUN_LINE_BYTES, ops->head + at);
}

/* Copies the lines of a list of segments, which begin at entry `from` after the ring's head. */
static void segments_copy(struct rail *rail, const struct rail_run *run,
	const struct ring_consumer *ops, uint32_t from)
{
	struct op_segments *to = rail->segments[run->number];
	uint32_t end = from + op_page_lines(run->header.segments) - 1;

	for (; from != end; from++)
		memcpy(to++, ops_line(ops, from), sizeof(*to));
}

/*
 * Validates segments from `s` up to `end` or the first one of another region, which it returns, and
 * adds up their lengths. NULL: one is empty, or does not lie in the region.
 */
static inline const struct op_segment *segments_lie_in(const struct region_slot *region,
	const struct op_segment *s, const struct op_segment *end, uint64_t *sum)
{
	uint64_t length = region->length, bytes = *sum;
	uint16_t id = s->region;

	do {
		/* a length of 0 becomes the longest */
		if (s->offset > length || s->length - 1ull >= length - s->offset)
			return NULL;
		bytes += s->length;
		s++;
	} while (s != end && s->region == id);
	*sum = bytes;
	return s;
}

/*
 * Validates a list of segments, whose lengths must add up to the length to READ. Regions are looked
 * up where they change; a single one becomes that of the header.
 */
static bool segments_possible(
	struct rail *rail, const struct rail_channel *channel, struct rail_run *run)
{
	const struct op_segment *s = run_segments(rail, run->number);
	const struct op_segment *end = s + run->header.segments;
	const struct region_slot *region;
	uint64_t sum = 0;

	run->header.to_region = s->region;
	run->several = false;
	for (;;) {
		region = session_region(rail, channel, s->region);
		if (!region)
			return false;
		s = segments_lie_in(region, s, end, &sum);
		if (!s || s == end)
			break;
		run->several = true;
	}
	return s && sum == run->item_bytes;
}

/* ---- validation of a lone page --------------------------------------------------------------- */

/* Validates a destination of one segment. In a region of several MRs it becomes a list of one. */
static inline bool lone_segment_possible(
	struct rail *rail, const struct rail_channel *channel, struct rail_run *run)
{
	uint16_t id = run->header.to_region;
	const struct region_slot *region = session_region(rail, channel, id);
	uint64_t to = run_to(run, OP_RUN, 0); /* below 2^48: the sum does not wrap */

	if (!region || to + run->item_bytes > region->length)
		return false;
	run->listed = region->extent_shift;
	if (unlikely(run->listed))
		*run_segments(rail, run->number) =
			(struct op_segment){.offset = to, .length = run->item_bytes, .region = id};
	return true;
}

/*
 * Validates the length of a page and computes how far it is READ from its start, in bytes; 0: it is
 * impossible. A length is below 2^48, so no sum wraps.
 */
static inline uint64_t lone_end(const struct run *h, uint64_t *ret_length)
{
	uint64_t end;

	*ret_length = h->page_bytes;
	if (likely(h->kind == OP_RUN))
		return h->page_bytes <= RUN_PAGE_BYTES_MAX && !h->stride_or_to ? h->page_bytes : 0;
	*ret_length = h->stride_or_to;
	end = (uint64_t)h->slice * SLICE_BYTES + h->stride_or_to;
	return h->stride_or_to && end <= h->page_bytes && h->page_bytes <= PAGE_BYTES_MAX ? end : 0;
}

/*
 * Validates a lone page, whose first line and header are copied, without looking at its peer;
 * copies its segments, which begin behind entry `at` of the ring.
 */
static bool lone_possible(struct rail *rail, const struct rail_channel *channel,
	struct rail_run *run, const struct ring_consumer *ops, uint32_t at)
{
	const struct run *h = &run->header;
	uint64_t length, end = lone_end(h, &length);

	if (!end || h->peer >= NODES_MAX || h->region >= REGION_POOL_0 + RAILS_MAX)
		return false;
	run->item_bytes = run->bytes = (uint32_t)length;
	run->unit_max = run_entry(run, 0)->unit;
	run->reach = run_remote(run, OP_RUN, 0) + end;
	if (likely(h->segments == 1))
		return lone_segment_possible(rail, channel, run);
	run->listed = true;
	segments_copy(rail, run, ops, at + 1);
	return segments_possible(rail, channel, run);
}

/* ---- the route: the connection of the peer, or the list of those that wait for one ---------- */

/* True if every pair of heads of the look-up lies in the heads of a pool that the peer exported. */
static bool conn_has_heads(const struct conn *conn, const struct rail_run *run)
{
	for (uint32_t i = 0; i < run->header.pages; i++) {
		uint64_t at = run_remote(run, OP_LOOKUP, i);
		const struct rail_remote *heads = run_region(conn, run, &at);

		if (at + sizeof(struct bucket) > heads->length)
			return false;
	}
	return true;
}

/*
 * True if every page of the run lies in the pool that the peer exported, and its head in the heads;
 * or every bucket in the shard, or every pair of heads in the heads.
 */
static bool conn_has_run(const struct conn *conn, const struct rail_run *run)
{
	const struct rail_remote *remote = conn->handle->region;
	uint32_t region = run->header.region;

	if (unlikely(region == REGION_HEADS_0))
		return conn_has_heads(conn, run);
	return run->reach <= remote[region].length &&
	       (run->header.kind == OP_LOOKUP ||
		       run->unit_max <
			       remote[REGION_HEADS_0 + region].length / sizeof(struct page_head));
}

void run_enter_conn(struct rail *rail, struct conn *conn, struct rail_run *run)
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
}

/* Is there room for these pages among those that wait for a peer? */
static inline bool rail_may_park(const struct rail *rail, uint32_t pages)
{
	return rail->parked + pages <= RAIL_PARKED_MAX;
}

void run_route(struct rail *rail, struct rail_run *run)
{
	const struct run *h = &run->header;
	struct peer_slot *slot = peer_slot_of(rail, h->peer);
	struct conn *conn = slot->conn;

	if (likely(conn && conn->handle->ref == h->peer_ref)) {
		if (unlikely(conn->state != CONN_OPEN ||
			     (conn->stalled &&
				     (!rail_may_park(rail, h->pages) || conn_full(rail, conn))))) {
			run_end(rail, run, OP_PEER_DOWN);
		} else if (unlikely(!conn_has_run(conn, run))) {
			run_end(rail, run, OP_INVALID);
		} else {
			run_enter_conn(rail, conn, run);
			run_queue(rail, conn, run); /* runs_post() takes it */
		}
		return;
	}
	if (!rail_may_park(rail, h->pages)) {
		run_end(rail, run, OP_PEER_DOWN);
		return;
	}
	rail->parked += h->pages;
	list_append(&slot->parked, &run->pending);
	peer_want(rail, slot, h->peer, h->peer_ref);
}

/* ---- taking ---------------------------------------------------------------------------------- */

/* Starts a run whose lines leave the ring; from here on it is answered exactly once. */
static void run_start(
	struct rail *rail, struct rail_channel *channel, struct rail_run *run, bool possible)
{
	uint64_t now = rail_now(rail), deadline_ns;
	struct region_slot *region;

	PROBE_TAKE(channel->id, (uint64_t)run->header.cookie, rail->options.index, run->header.peer,
		run->header.pages * run->item_bytes);
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
	if (unlikely(run->several)) {
		lone_count_regions(rail, run, 1);
	} else {
		region = &rail->region[run->header.to_region];
		region->users++;
	}
	run->counted = true;
	deadline_ns = run->header.deadline_ns;
	if (deadline_ns - now > RUN_DEADLINE_MAX_NS)
		deadline_ns = now + RUN_DEADLINE_MAX_NS;
	run_set_live(rail, run, deadline_ns);
	run_route(rail, run);
}

/*
 * True if the run must stay in its ring because the connection of its peer holds its share of the
 * runs (conn_full()). It stays until a run of the connection ends, or until the connection counts
 * as stalled; then run_route() refuses it. A rail that stops takes every run, to cancel it. The run
 * is not validated yet.
 */
static bool run_must_wait(const struct rail *rail, const struct run *run)
{
	const struct conn *conn;

	if (likely(rail->runs_free >= RAIL_RUNS_PLENTY) || rail->stopping || run->peer >= NODES_MAX)
		return false;
	conn = rail->peer[run->peer].conn;
	return conn && conn->handle->ref == run->peer_ref && conn->state == CONN_OPEN &&
	       !conn->stalled && conn_full(rail, conn);
}

/*
 * True if the ring has fewer than `lines` filled entries from the unreleased entry `at` on. Not
 * inline: nearly all runs were seen with all their lines.
 */
__attribute__((noinline)) static bool run_lines_missing(
	struct ring_consumer *ops, uint32_t at, uint32_t lines)
{
	return lines > (uint32_t)ring_ready_now(ops) - at;
}

/* The number of ring entries of a run that is not validated yet. One of no kind has one. */
static inline uint32_t run_lines_of(const struct run *h)
{
	if (h->kind == OP_PAGE)
		return op_page_lines(h->segments);
	return h->kind == OP_RUN || h->kind == OP_LOOKUP ? run_lines(h->kind, h->pages) : 1;
}

/* Is it a lone page? Not validated yet. */
static inline bool run_alone(const struct run *h)
{
	return h->kind == OP_PAGE || (h->kind == OP_RUN && h->pages == 1 && h->segments == 1);
}

/*
 * Takes the run whose first line is `at` entries after the head of the op ring, where `ready`
 * entries are filled. Returns the number of entries it occupies and of its pages, one page if it
 * is refused; 0: it stays in the ring.
 */
static uint32_t run_take(struct rail *rail, struct rail_channel *channel, uint32_t at,
	uint32_t ready, uint32_t *ret_pages)
{
	struct rail_run *run;
	uint32_t lines;
	bool possible;

	if (unlikely(!rail->runs_free)) {
		rail->blocked = true;
		return 0;
	}
	run = run_new(rail);
	memcpy(&run->line[0], ops_line(&channel->ops, at), sizeof(run->line[0]));
	run_decode(&run->line[0].header, rail_now(rail), &run->header);
	lines = run_lines_of(&run->header);
	if (unlikely(lines > ready) && run_lines_missing(&channel->ops, at, lines)) {
		/* The library publishes whole runs, so a partial one is that of a broken client. */
		run_free(rail, run);
		channel_break(rail, channel);
		return 0;
	}
	if (unlikely(run_must_wait(rail, &run->header))) {
		run_free(rail, run);
		rail->blocked = true;
		return 0;
	}
	run->alone = run_alone(&run->header);
	possible = run->alone ? lone_possible(rail, channel, run, &channel->ops, at)
			      : run_possible(rail, channel, run, &channel->ops, at);
	/* The run may name a region whose RAIL_REGION_ADD is in the inbox, where it arrived before
	 * the run did. Leave the run in its ring until a step has executed the command. */
	if (unlikely(!possible && ring_ready(&rail->inbox.command_in) > 0)) {
		run_free(rail, run);
		return 0;
	}
	*ret_pages = possible ? run->header.pages : 1;
	run_start(rail, channel, run, possible);
	return lines;
}

/* ---- taking: the rings of all clients -------------------------------------------------------- */

/*
 * How many more ops may be taken from this channel: limited by free entries of the done ring.
 * Breaks the channel if the client's index of the done ring is impossible.
 */
static uint32_t channel_take_limit(struct rail *rail, struct channel_slot *slot)
{
	struct rail_channel *channel = slot->channel;
	uint32_t owed = channel->in_flight + slot->fresh;
	uint32_t limit = RAIL_TAKE_BURST;
	/* Reserve room for the completion of every op taken, so that a slow client cannot block
	 * the rail. */
	int32_t room = ring_room(&channel->done, owed + limit);

	if (unlikely(room < 0)) {
		channel_break(rail, channel);
		return 0;
	}
	if (unlikely((uint32_t)room < owed + limit))
		limit = (uint32_t)room > owed ? (uint32_t)room - owed : 0;
	return limit;
}

/*
 * Is the budget of bytes taken used up for this channel? One with nothing in flight may exceed it
 * by one op, so that the lots of its run take turns with those of a long run of another channel.
 */
static inline bool channel_took_enough(const struct rail *rail, const struct rail_channel *channel)
{
	return rail->taken_bytes >= RAIL_TAKEN_BYTES && channel->in_flight;
}

static unsigned channel_take(struct rail *rail, struct channel_slot *slot)
{
	struct rail_channel *channel = slot->channel;
	uint32_t limit, lines, ready, at = 0, pages, taken = 0;
	unsigned n = 0;

	if (unlikely(channel->stopping || channel->broken))
		return 0;
	ready = (uint32_t)ring_ready_of(&channel->ops, OP_RING_SLOTS, RUN_LINE_BYTES);
	if (ready == 0)
		return 0;
	limit = channel_took_enough(rail, channel) ? 0 : channel_take_limit(rail, slot);
	while (taken < RAIL_TAKE_BURST) {
		/* The entries of the ops taken so far are not released yet; look for filled
		 * entries behind them. */
		if (at >= ready)
			ready = (uint32_t)ring_look_of(
				&channel->ops, OP_RING_SLOTS, RUN_LINE_BYTES, RING_LOOK);
		if (at >= ready)
			break;
		if (n == limit || channel_took_enough(rail, channel)) {
			rail->blocked = true;
			break;
		}
		lines = run_take(rail, channel, at, ready - at, &pages);
		if (!lines)
			break;
		at += lines;
		taken += pages; /* `limit` counts ops */
		n++;
	}
	/* The ops were copied, so the client may overwrite their ring entries. */
	if (n)
		ring_release(&channel->ops, at);
	return n;
}

unsigned rail_take(struct rail *rail)
{
	uint32_t channels = rail->channels;
	uint32_t at = rail->first;
	unsigned n = 0;

	rail->blocked = false;
	for (uint32_t i = 0; i < channels; i++) {
		at = at + 1 < channels ? at + 1 : 0;
		n += channel_take(rail, &rail->channel[rail->turn[at]]);
	}
	if (channels)
		rail->first = rail->first + 1 < channels ? rail->first + 1 : 0;
	if (n)
		rail_count(rail, COUNTER_ops_taken, n);
	return n;
}
