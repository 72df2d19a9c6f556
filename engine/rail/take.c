/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Client rings -> requests: an op and its segments are copied once, and the copy is validated,
 * because the client may write its ring at any time. Poll core only; the hot path.
 */
#include "engine/rail/core.h"

/*
 * How many more ops may be taken from this channel: limited by free entries of the done ring.
 * Breaks the channel if the client's index of the done ring is impossible.
 */
static uint32_t take_limit(struct rail *rail, struct channel_slot *slot)
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

/* Validates an op without looking at its segments. */
static bool op_possible(const struct op *op)
{
	if (op->kind != OP_READ && op->kind != OP_PAGE)
		return false;
	if (op->segments < 1 || op->segments > SEGMENTS_MAX || op->region >= REGIONS_EXPORTED ||
		op->peer >= NODES_MAX)
		return false;
	if (op->length < 1 || op->length > PAGE_BYTES_MAX)
		return false;
	if (op->kind != OP_PAGE)
		return op->slice == 0;
	return op->region < REGION_POOL_0 + RAILS_MAX && op->offset % PAGE_UNIT == 0 &&
	       op->page_bytes <= PAGE_BYTES_MAX &&
	       (uint64_t)op->slice * SLICE_BYTES + op->length <= op->page_bytes;
}

/* Validates one segment of an op: it must lie in a region of the channel's session. */
static bool segment_possible(
	const struct rail *rail, const struct rail_channel *channel, const struct op_segment *s)
{
	const struct region_slot *region;

	if (s->region >= REGIONS_MAX)
		return false;
	region = &rail->region[s->region];
	return region->session == channel->session && s->length >= 1 &&
	       s->offset <= region->length && s->length <= region->length - s->offset;
}

/* Validates an op and all its segments, whose lengths must add up to the length of the op. */
static bool request_possible(
	const struct rail *rail, const struct rail_channel *channel, const struct request *request)
{
	const struct op *op = &request->op;
	uint16_t block = request->number;
	uint64_t sum = 0;

	if (!op_possible(op))
		return false;
	if (likely(op->segments == 1)) /* its length is the op's length: see op_decode() */
		return segment_possible(rail, channel, &rail->block[block].segment[0]);
	for (uint32_t i = 0; i < op->segments; i++) {
		const struct op_segment *s;

		if (i && i % REQUEST_SEGMENTS == 0)
			block = rail->block_next[block];
		s = &rail->block[block].segment[i % REQUEST_SEGMENTS];
		if (!segment_possible(rail, channel, s))
			return false;
		sum += s->length;
	}
	return sum == op->length;
}

/*
 * request_hold_regions() for a request with one segment; decides whether each slice needs one SGE.
 */
static void hold_region(struct rail *rail, struct request *request)
{
	uint16_t id = rail->block[request->number].segment[0].region;
	struct region_slot *region = &rail->region[id];

	region->users++;
	request->one_sge = region->extent_shift == 0;
	if (unlikely(!request->one_sge))
		request_cursor_start(request);
	request->counted = true;
}

/* Starts a request whose op leaves the ring; from here on it is answered exactly once. */
static void take_start(
	struct rail *rail, struct rail_channel *channel, struct request *request, bool possible)
{
	uint64_t now = rail_now(rail);

	PROBE_TAKE(channel->id, request->op.cookie, rail->options.index, request->op.peer,
		request->op.length);
	channel->in_flight++;
	shm_store(&rail->in_flight, rail->in_flight + 1);
	request->channel = (uint16_t)channel->id;
	if (unlikely(rail->stopping)) {
		request_end(rail, request, OP_CANCELLED);
		return;
	}
	if (unlikely(!possible)) {
		request_end(rail, request, OP_INVALID);
		return;
	}
	if (unlikely(request->op.deadline_ns <= now)) {
		request_end(rail, request, OP_TIMEOUT);
		return;
	}
	if (likely(request->op.segments == 1)) {
		hold_region(rail, request);
	} else {
		request_hold_regions(rail, request);
	}
	request->deadline_ns = request->op.deadline_ns;
	if (request->deadline_ns - now > REQUEST_DEADLINE_MAX_NS)
		request->deadline_ns = now + REQUEST_DEADLINE_MAX_NS;
	if (request->deadline_ns < rail->nearest_ns)
		rail->nearest_ns = request->deadline_ns;
	rail->live[request->number] = true;
	peer_route(rail, request);
}

/*
 * True if the op must stay in its ring because the connection of its peer holds its share of the
 * requests (conn_full()). It stays until a request of the connection ends, or until the connection
 * counts as stalled; then peer_route() refuses it. A rail that stops takes every op, to cancel it.
 * The op is not validated yet.
 */
static bool must_wait(const struct rail *rail, const struct op *op)
{
	const struct conn *conn;

	if (likely(rail->requests_free >= RAIL_REQUESTS_PLENTY) || rail->stopping ||
		op->peer >= NODES_MAX)
		return false;
	conn = rail->peer[op->peer].conn;
	return conn && conn->handle->ref == op->peer_ref && conn->state == CONN_OPEN &&
	       !conn->stalled && conn_full(rail, conn);
}

/*
 * Takes the op that starts `at` entries after the head of the op ring, where `ready` entries are
 * filled; `slot` is the copy of its first entry. Returns the number of entries it occupies; 0: it
 * stays in the ring.
 */
static uint32_t take_op(struct rail *rail, struct rail_channel *channel, const struct op_slot *slot,
	uint32_t at, uint32_t ready)
{
	struct request *request = request_new(rail);
	uint32_t slots;
	bool possible;

	op_decode(slot, rail_now(rail), &request->op, &rail->block[request->number].segment[0]);
	slots = op_slots(request->op.segments);
	if (unlikely(slots > ready) && slots > (uint32_t)ring_ready_now(&channel->ops) - at) {
		/* The library publishes whole ops, so a partial one is that of a broken client. */
		request->op.segments = 0;
		request_free(rail, request);
		channel_break(rail, channel);
		return 0;
	}
	if (unlikely(request->op.segments > SEGMENTS_MAX))
		request->op.segments = 0; /* refused by request_possible(); entries are skipped */
	/* An op with one segment contains it; the segments of other ops are copied from the
	 * ring. */
	if (unlikely(must_wait(rail, &request->op)) ||
		(request->op.segments > 1 &&
			unlikely(!request_copy_segments(rail, request, &channel->ops, at + 1)))) {
		request->op.segments = 0;
		request_free(rail, request);
		rail->blocked = true;
		return 0;
	}
	possible = request_possible(rail, channel, request);
	/* The op may name a region whose RAIL_REGION_ADD is in the inbox, where it arrived
	 * before the op did. Leave the op in its ring until a step has executed the command. */
	if (unlikely(!possible && ring_ready(&rail->inbox.command_in) > 0)) {
		request_free(rail, request);
		return 0;
	}
	take_start(rail, channel, request, possible);
	return slots;
}

/*
 * Copies the ring entry `at` after the head once, and takes the op or run that starts there.
 * Returns as take_op(), and how many pages it has.
 */
static uint32_t take_one(struct rail *rail, struct rail_channel *channel, uint32_t at,
	uint32_t ready, uint32_t *ret_pages)
{
	union {
		struct op_slot op;
		struct run_line run;
	} first;

	memcpy(&first, ring_slot_old(&channel->ops, at), sizeof(first));
	if (first.op.kind == OP_RUN || first.op.kind == OP_LOOKUP)
		return run_take(rail, channel, &first.run, at, ready, ret_pages);
	if (unlikely(!rail->requests_free)) {
		rail->blocked = true;
		return 0;
	}
	*ret_pages = 1;
	return take_op(rail, channel, &first.op, at, ready);
}

/*
 * Is the budget of bytes taken used up for this channel? One with nothing in flight may exceed it
 * by one op, so that the lots of its run take turns with those of a long run of another channel.
 */
static inline bool taken_enough(const struct rail *rail, const struct rail_channel *channel)
{
	return rail->taken_bytes >= RAIL_TAKEN_BYTES && channel->in_flight;
}

static unsigned take_channel(struct rail *rail, struct channel_slot *slot)
{
	struct rail_channel *channel = slot->channel;
	uint32_t limit, slots, ready, at = 0, pages, taken = 0;
	unsigned n = 0;

	if (unlikely(channel->stopping || channel->broken))
		return 0;
	ready = (uint32_t)ring_ready(&channel->ops);
	if (ready == 0)
		return 0;
	limit = taken_enough(rail, channel) ? 0 : take_limit(rail, slot);
	while (taken < RAIL_TAKE_BURST) {
		/* The entries of the ops taken so far are not released yet; look for filled
		 * entries behind them. */
		if (at >= ready)
			ready = (uint32_t)ring_look(&channel->ops, RING_LOOK);
		if (at >= ready)
			break;
		if (n == limit || taken_enough(rail, channel)) {
			rail->blocked = true;
			break;
		}
		slots = take_one(rail, channel, at, ready - at, &pages);
		if (!slots)
			break;
		at += slots;
		taken += pages; /* may be 0 of a refused run; `limit` counts ops */
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
		n += take_channel(rail, &rail->channel[rail->turn[at]]);
	}
	if (channels)
		rail->first = rail->first + 1 < channels ? rail->first + 1 : 0;
	if (n)
		rail_count(rail, COUNTER_ops_taken, n);
	return n;
}
