/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing one op into a rail's ring: takes a request for its cookie, checks for room, fills its
 * ring entries. Channel thread. Included only by client.h.
 */
#ifndef CLIENT_SUBMIT_H
#define CLIENT_SUBMIT_H

#include "engine/abi/probe.h"

static_assert(SHARE_NS_MAX < OP_SPAN_NS, "an op can say its deadline");

/* Takes a free request. Returns its index; CLIENT_NONE: all requests are in flight. */
static inline uint32_t request_take(
	struct pc_channel *ch, enum request_kind kind, struct pc_batch *b, uint32_t i)
{
	uint32_t index = ch->request_free;
	struct client_request *r;

	if (index == CLIENT_NONE)
		return CLIENT_NONE;
	r = &ch->request[index];
	ch->request_free = r->next;
	r->batch = b;
	r->page = i;
	r->kind = (uint8_t)kind;
	r->bytes = 0;
	r->hold = CLIENT_NONE;
	r->left = 1;
	r->pages = 1;
	return index;
}

static inline void request_free(struct pc_channel *ch, uint32_t index)
{
	struct client_request *r = &ch->request[index];

	r->kind = REQUEST_FREE;
	r->batch = NULL;
	r->generation++; /* an answer with the old cookie is ignored from here on */
	r->next = ch->request_free;
	ch->request_free = index;
}

static inline uint64_t request_cookie(const struct pc_channel *ch, uint32_t index)
{
	return (uint64_t)ch->request[index].generation << 32 | index;
}

/* The cookie of a run has 32 bits: the low half of the generation, and the index. */
static inline uint32_t run_cookie(uint32_t generation, uint32_t index)
{
	return generation << 16 | index;
}

/*
 * True if the rail's op ring has `slots` free entries. Counting in_flight reserves an entry of the
 * done ring for each answer, so the rail never finds the done ring full.
 */
static inline bool submit_room(struct pc_channel *ch, uint32_t rail, uint32_t slots)
{
	struct channel_rail *r = &ch->rail[rail];
	int32_t room;

	if (r->in_flight >= DONE_RING_SLOTS)
		return false;
	room = ring_room(&r->ops, r->unpublished + slots);
	if (unlikely(room < 0)) {
		channel_break(ch);
		return false;
	}
	return (uint32_t)room >= r->unpublished + slots;
}

/*
 * The same for `slots` entries behind no unpublished ones. False: not known, or no room:
 * submit_room() may find some.
 */
static inline bool submit_room_now(const struct pc_channel *ch, uint32_t rail, uint32_t slots)
{
	const struct channel_rail *r = &ch->rail[rail];

	return r->in_flight < DONE_RING_SLOTS &&
	       r->ops.tail - r->ops.head_seen + slots <= OP_RING_SLOTS && !r->unpublished;
}

/* Writes an op to the rail's op ring. The caller has called submit_room() with success. */
static inline void submit_op(struct pc_channel *ch, uint32_t rail, const struct op *op,
	const struct op_segment *segments)
{
	struct channel_rail *r = &ch->rail[rail];

	op_encode(op, segments, ring_slot_new(&r->ops, r->unpublished));
	if (unlikely(op->segments > 1))
		submit_segments(r, segments, op->segments);
	r->unpublished += op_slots(op->segments);
	PROBE_SUBMIT(ch->id, op->cookie, rail, op->peer, op->length);
	/* Publish early when the rail is idle, when FLUSH_SLOTS are pending, or when this is a long
	 * READ and the rail's backlog is at most FLUSH_DRY. Otherwise publish once, at the end of
	 * the step, where one fence and one look at the sleep flags follow for all rails. */
	if (r->in_flight++ == 0 || r->unpublished >= FLUSH_SLOTS ||
		(op->length >= FLUSH_LONG && r->bytes <= FLUSH_DRY))
		submit_publish(ch, rail);
	else
		ch->untold |= 1u << rail;
}

/*
 * Publishes a run that the caller has written as the rail's first unpublished entries, with the
 * turns of all but the first. `lines`: their number. `bytes`: length of all its pages.
 */
static inline void submit_run(struct pc_channel *ch, uint32_t rail, const struct run_header *run,
	uint32_t lines, uint32_t bytes)
{
	struct channel_rail *r = &ch->rail[rail];

	r->in_flight++;
	PROBE_SUBMIT(ch->id, (uint64_t)run->cookie, rail, run->peer, bytes);
	ring_publish_turned(&r->ops, OP_RING_SLOTS, sizeof(struct op_slot), lines);
	ch->told |= 1u << rail;
	ch->moves++;
}

#endif
