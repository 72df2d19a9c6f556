/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes requests to the rings: checks for room, fills ring entries, publishes many at once, wakes
 * a sleeping rail or control plane. Channel thread.
 */
#ifndef CLIENT_SUBMIT_H
#define CLIENT_SUBMIT_H

#include "config/likely.h"
#include "engine/abi/op.h"
#include "engine/abi/probe.h"
#include "engine/abi/run.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"

static_assert(SHARE_NS_MAX < OP_SPAN_NS, "an op can say its deadline");

/* Publishes the entries written to this rail's op ring. submit_flush() wakes the rail. */
void submit_publish(struct pc_channel *ch, uint32_t rail);
/*
 * True if the ctl ring has room for one op with `answers` answers, and `reserve` entries stay free.
 */
bool submit_ctl_room(struct pc_channel *ch, uint32_t answers, uint32_t reserve);
/*
 * Writes a request of `lines` ring entries, which gets `answers` answers: the caller has called
 * submit_ctl_room() with success, and has written the entries behind the first one.
 */
void submit_ctl_lines(
	struct pc_channel *ch, const struct ctl_op *op, uint32_t lines, uint32_t answers);
static inline void submit_ctl(struct pc_channel *ch, const struct ctl_op *op, uint32_t answers)
{
	submit_ctl_lines(ch, op, 1, answers);
}
/* Publishes the ctl ring in the middle of a step, so that the control plane works during copies. */
void submit_ctl_flush(struct pc_channel *ch);
/* The thread has nothing to do but wait: ends a nap of the control plane that has requests. */
void submit_ctl_hurry(struct pc_channel *ch);
/*
 * Ends a step of the channel: publishes all entries, then wakes the rails and the control plane
 * that sleep, behind one fence.
 */
void submit_flush(struct pc_channel *ch);

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

/* Writes the segments of an op after its first one into the ring entries behind the op's own. */
static inline void submit_segments(
	struct channel_rail *r, const struct op_segment *segments, uint32_t count)
{
	struct op_segments *slot = NULL;

	for (uint32_t s = 0; s < count; s++) {
		if (s % 4 == 0)
			slot = ring_slot_new(&r->ops, r->unpublished + 1 + s / 4);
		slot->segment[s % 4] = segments[s];
	}
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
