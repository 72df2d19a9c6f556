/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes requests to the rings: checks for room, fills ring entries, publishes each run at once and
 * many requests to the control plane together, wakes a sleeping rail or control plane. Channel
 * thread.
 */
#ifndef CLIENT_SUBMIT_H
#define CLIENT_SUBMIT_H

#include "config/likely.h"
#include "engine/abi/op.h"
#include "engine/abi/probe.h"
#include "engine/abi/run.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"

static_assert(SHARE_NS_MAX < OP_SPAN_NS, "a run can say its deadline");

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
 * Ends a step of the channel: publishes the requests to the control plane, then wakes it and the
 * rails that sleep, behind one fence.
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
	room = ring_room(&r->ops, slots);
	if (unlikely(room < 0)) {
		channel_break(ch);
		return false;
	}
	return (uint32_t)room >= slots;
}

/*
 * The same without a look at the rail. False: not known, or no room: submit_room() may find some.
 */
static inline bool submit_room_now(const struct pc_channel *ch, uint32_t rail, uint32_t slots)
{
	const struct channel_rail *r = &ch->rail[rail];

	return r->in_flight < DONE_RING_SLOTS &&
	       r->ops.tail - r->ops.head_seen + slots <= OP_RING_SLOTS;
}

/* Counts a run that is published next: its answer has room, and submit_flush() wakes the rail. */
static inline void submit_told(
	struct pc_channel *ch, uint32_t rail, const struct run_header *run, uint32_t bytes)
{
	ch->rail[rail].in_flight++;
	PROBE_SUBMIT(ch->id, (uint64_t)run->cookie, rail, run->peer, bytes);
	ch->told |= 1u << rail;
	ch->moves++;
}

/*
 * Publishes an OP_PAGE. The caller has written its first line, which begins with the header `run`.
 * Writes its segments behind it if there are several.
 */
static inline void submit_page(struct pc_channel *ch, uint32_t rail, const struct run_header *run,
	const struct op_segment *segments)
{
	struct ring_producer *ops = &ch->rail[rail].ops;
	uint32_t count = op_unpack_segments(run->segments_region);

	if (count > 1)
		run_segments_new(ops, 0, segments, count);
	submit_told(ch, rail, run, (uint32_t)run->to);
	ring_publish(ops, op_page_lines(count));
}

/*
 * Publishes a run that the caller has written into the rail's op ring, with the turns of all lines
 * but the first. `lines`: their number. `bytes`: length of all its pages. If the rail sleeps,
 * submit_flush() wakes it at the end of channel_step().
 */
static inline void submit_run(struct pc_channel *ch, uint32_t rail, const struct run_header *run,
	uint32_t lines, uint32_t bytes)
{
	submit_told(ch, rail, run, bytes);
	ring_publish_turned(&ch->rail[rail].ops, OP_RING_SLOTS, sizeof(struct run_line), lines);
}

#endif
