/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READs of buckets and page heads of other engines into scratch slots, from which the answers are
 * copied out, and the question where the engine of this host has a page: what pc_explain() looks
 * at. They are the "pages" of a batch of their own kind, so the deadline, a lost engine and a
 * failed rail are handled as for every other batch. Channel thread.
 */
#include "config/clock.h"
#include "engine/abi/bucket.h"
#include "engine/abi/op.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/ctl.h"
#include "engine/client/page.h"
#include "engine/client/peek.h"
#include "engine/client/peercache.h"
#include "engine/client/rail.h"
#include "engine/client/request.h"
#include "engine/client/staging.h"
#include "engine/client/submit.h"

#include <errno.h>
#include <string.h>

static void submit_peek(struct pc_batch *b, uint32_t i, uint32_t rail, uint32_t hold)
{
	struct pc_channel *ch = b->channel;
	const struct peek *peek = &b->peek[i];
	uint32_t index = request_take(ch, REQUEST_PEEK, b, i);
	struct client_request *r = &ch->request[index];
	struct op_segment segment = {.region = ch->staging.region,
		.length = peek->bytes,
		.offset = hold * sizeof(struct bucket)};
	struct op op = {.kind = OP_READ,
		.segments = 1,
		.peer = peek->peer,
		.region = peek->region,
		.offset = peek->offset,
		.peer_ref = peek->ref,
		.length = peek->bytes,
		.deadline_ns = page_attempt_ns(b, 1)};

	r->rail = (uint8_t)rail;
	r->hold = hold;
	op.cookie = request_cookie(ch, index);
	b->work[i].rails_tried |= (uint16_t)(1u << rail);
	page_in_flight(b, i, index);
	submit_op(ch, rail, &op, &segment);
}

/* False: no room; it is again first in its queue. */
static bool submit_question(struct pc_batch *b, uint32_t i)
{
	struct ctl_op op = {.kind = CTL_PROMOTE,
		.count = PROMOTE_LOOK,
		.key = b->peek[i].key,
		.deadline_ns = b->deadline_ns};

	return ctl_ask(b, i, REQUEST_DISK, &op);
}

void peek_step(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t i;

	while (!ch->broken && (i = page_unqueue(b, PAGE_HEAD)) != CLIENT_NONE) {
		uint32_t rail, hold = CLIENT_NONE;

		if (b->peek[i].engine) {
			if (submit_question(b, i))
				continue;
			return;
		}
		rail = stripe_small(ch, &(struct stripe){.peer = b->peek[i].peer,
						.tried = b->work[i].rails_tried,
						.slots = op_slots(1)});
		if (rail != CLIENT_NONE && ch->request_free != CLIENT_NONE)
			hold = scratch_take(&ch->staging, 1);
		if (hold == CLIENT_NONE) {
			page_requeue(b, i);
			return;
		}
		submit_peek(b, i, rail, hold);
	}
}

void peek_answer(struct pc_channel *ch, const struct client_request *r, uint32_t status)
{
	struct pc_batch *b = r->batch;
	struct peek *peek = &b->peek[r->page];

	if ((status == OP_NIC_ERROR || status == OP_PEER_DOWN) &&
		stripe_again(ch, peek->peer, b->work[r->page].rails_tried)) {
		/* the failure of a rail tells nothing about the engine: READ over another rail */
		page_queue(b, r->page, PAGE_HEAD);
		return;
	}
	peek->status = (uint8_t)status;
	if (status == OP_HIT)
		memcpy(&peek->data, ch->staging.base + r->hold * sizeof(struct bucket),
			peek->bytes);
	page_done(b, r->page, PC_HIT);
}

void peek_told(struct pc_batch *b, uint32_t i, const struct ctl_done *done, uint32_t status)
{
	struct peek *peek = &b->peek[i];

	peek->status = (uint8_t)status;
	peek->data.here.place = done->place;
	peek->data.here.generation = done->generation;
	page_done(b, i, PC_HIT);
}
