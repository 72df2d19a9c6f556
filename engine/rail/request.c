/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: allocation of their segment blocks, counting of the regions they use, and their answer
 * in the channel's done ring. Every request is answered exactly once, in request_end(). Poll core
 * only; part of the hot path: no errno, allocation, lock, log or system call.
 */
#include "engine/rail/core.h"

bool request_copy_segments(
	struct rail *rail, struct request *request, const struct ring_consumer *ops, uint32_t from)
{
	uint32_t blocks = op_slots(request->op.segments) - 1;
	uint16_t at = request->number;

	if (blocks > rail->blocks_free + 1)
		return false;
	request_cursor_start(request);
	for (uint32_t i = 0; i < blocks; i++) {
		if (i > 0) {
			uint16_t next = rail->block_stack[--rail->blocks_free];

			rail->block_next[at] = next;
			at = next;
		}
		memcpy(&rail->block[at], ring_slot_old(ops, from + i), sizeof(rail->block[at]));
	}
	return true;
}

void request_hold_regions(struct rail *rail, struct request *request)
{
	uint16_t block = request->number;

	request->one_sge = false;
	request->counted = true;
	for (uint32_t i = 0; i < request->op.segments; i++) {
		uint32_t at = i % REQUEST_SEGMENTS;

		if (i && at == 0)
			block = rail->block_next[block];
		rail->region[rail->block[block].segment[at].region].users++;
	}
}

void region_release(struct rail *rail, uint32_t id)
{
	if (--rail->region[id].users == 0 && unlikely(rail->region[id].dropping))
		region_return_if_unused(rail, id);
}

/* Decrements the counts that request_hold_regions() incremented. */
static void request_release_regions(struct rail *rail, const struct request *request)
{
	uint16_t block = request->number;

	for (uint32_t i = 0; i < request->op.segments; i++) {
		uint32_t at = i % REQUEST_SEGMENTS;

		if (i && at == 0)
			block = rail->block_next[block];
		region_release(rail, rail->block[block].segment[at].region);
	}
}

void request_free(struct rail *rail, struct request *request)
{
	uint16_t block = request->number;

	/* op.segments is the number of segments that request_copy_segments() copied, or 0 if the
	 * caller refused the op. */
	for (uint32_t i = REQUEST_SEGMENTS; i < request->op.segments; i += REQUEST_SEGMENTS) {
		block = rail->block_next[block];
		rail->block_stack[rail->blocks_free++] = block;
	}
	rail->request_stack[rail->requests_free++] = request->number;
}

static inline void request_leave_lane(struct rail *rail, struct request *request)
{
	struct conn *conn = request->conn;

	conn->requests--;
	if (unlikely(request->expired))
		conn->expired--;
	conn->taken_bytes -= request->op.length;
	if (unlikely(conn->stalled))
		rail->parked--;
	else
		rail->taken_bytes -= request->op.length;
}

static void count_end(struct rail *rail, const struct request *request, enum op_status status)
{
	switch (status) {
	case OP_HIT:
		rail_count(rail,
			request->op.kind == OP_PAGE ? COUNTER_pages_read : COUNTER_buckets_read, 1);
		rail_count(rail, COUNTER_bytes_read, request->op.length);
		break;
	case OP_STALE:
		rail_count(rail, COUNTER_pages_stale, 1);
		PROBE_STALE(request->channel, request->op.cookie, rail->options.index,
			request->op.peer, request->op.offset);
		break;
	case OP_INVALID: rail_count(rail, COUNTER_ops_invalid, 1); break;
	case OP_TIMEOUT: rail_count(rail, COUNTER_reads_timed_out, 1); break;
	default: rail_count(rail, COUNTER_reads_failed, 1); break;
	}
}

void channel_answer(struct rail *rail, struct channel_slot *slot, const void *done)
{
	struct rail_channel *channel = slot->channel;

	if (likely(!channel->stopping && !channel->broken)) {
		memcpy(ring_slot_new(&channel->done, slot->fresh), done, sizeof(struct op_done));
		if (!slot->fresh++)
			rail->fresh[rail->fresh_count++] = (uint16_t)channel->id;
	}
	channel->in_flight--;
}

/* Ends the rail's own probe READ instead of request_end(): there is no channel to answer. */
static void probe_end(struct rail *rail, struct request *request, enum op_status status)
{
	struct conn *conn = request->conn;

	request_leave_lane(rail, request);
	link_remove(&request->pending);
	rail->live[request->number] = false;
	shm_store(&rail->in_flight, rail->in_flight - 1);
	request_free(rail, request);
	conn_probed(rail, conn, status);
}

void request_end(struct rail *rail, struct request *request, enum op_status status)
{
	struct channel_slot *slot = &rail->channel[request->channel];
	struct op_done done = {.cookie = request->op.cookie, .status = status};

	if (unlikely(request->channel == CHANNEL_NONE)) {
		probe_end(rail, request, status);
		return;
	}
	if (likely(request->conn))
		request_leave_lane(rail, request);
	else if (link_linked(&request->pending))
		rail->parked--;
	if (unlikely(link_linked(&request->pending)))
		link_remove(&request->pending);
	rail->live[request->number] = false;
	if (likely(request->counted && request->op.segments == 1))
		region_release(rail, rail->block[request->number].segment[0].region);
	else if (request->counted)
		request_release_regions(rail, request);
	count_end(rail, request, status);
	PROBE_COMPLETION(request->channel, request->op.cookie, rail->options.index, status,
		request->op.length);
	shm_store(&rail->in_flight, rail->in_flight - 1);
	channel_answer(rail, slot, &done);
	request_free(rail, request);
	if (unlikely(slot->channel->stopping))
		channel_return_if_idle(rail, slot->channel);
}

void rail_answer(struct rail *rail)
{
	if (!rail->fresh_count)
		return;
	rail->news = true;
	do {
		uint32_t id = rail->fresh[--rail->fresh_count];
		struct channel_slot *slot = &rail->channel[id];

		ring_publish(&slot->channel->done, slot->fresh);
		slot->fresh = 0;
		rail->wake[id / 64] |= 1ull << id % 64;
	} while (rail->fresh_count);
}
