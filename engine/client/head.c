/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READs the head of a page of another member, to compare the page's bytes with its CRC (verify.c),
 * or to find out why the page could not be read: it was evicted, or it has another length than the
 * caller expects. The second case is the caller's mistake; reporting it as stale would remove a
 * good page from the directory. This path is rare. Channel thread.
 */
#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/head.h"
#include "engine/client/map.h"
#include "engine/client/page.h"
#include "engine/client/peercache.h"
#include "engine/client/request.h"
#include "engine/client/staging.h"
#include "engine/client/stripe.h"
#include "engine/client/submit.h"
#include "engine/client/verify.h"

static void submit_head(
	struct pc_batch *b, uint32_t i, const struct map_member *m, uint32_t rail, uint32_t hold)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	uint32_t index = request_take(ch, REQUEST_HEAD, b, i);
	struct client_request *r = &ch->request[index];
	struct op_segment segment = {
		.region = ch->staging.region, .length = sizeof(struct page_head)};
	struct op op = {.kind = OP_READ,
		.segments = 1,
		.peer = m->peer,
		.region = (uint8_t)(REGION_HEADS_0 + place_rail(p->at.place)),
		.offset = (uint64_t)place_unit(p->at.place) * sizeof(struct page_head),
		.peer_ref = m->ref,
		.length = sizeof(struct page_head),
		.deadline_ns = page_attempt_ns(b, 3)};

	r->rail = (uint8_t)rail;
	r->hold = hold;
	segment.offset = r->hold * sizeof(struct bucket);
	op.cookie = request_cookie(ch, index);
	p->peer = m->peer;
	p->rails_tried |= (uint16_t)(1u << rail);
	page_in_flight(b, i, index);
	submit_op(ch, rail, &op, &segment);
}

void head_step(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t i;

	while (!ch->broken && (i = page_unqueue(b, PAGE_HEAD)) != CLIENT_NONE) {
		const struct map_member *m = map_by_ref(ch, b->work[i].at.ref);
		uint32_t rail, hold = CLIENT_NONE;

		if (!m) {
			page_stale(b, i);
			continue;
		}
		rail = stripe_small(ch, &(struct stripe){.peer = m->peer,
						.tried = b->work[i].rails_tried,
						.slots = op_slots(1)});
		if (rail != CLIENT_NONE && ch->request_free != CLIENT_NONE)
			hold = scratch_take(&ch->staging, 1);
		if (hold == CLIENT_NONE) {
			page_requeue(b, i);
			return;
		}
		submit_head(b, i, m, rail, hold);
	}
}

void head_answer(struct pc_batch *b, uint32_t i, const struct page_head *head, uint32_t status)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	bool ours = status == OP_HIT && page_head_is(head, &p->key, p->at.generation, head->length);

	if ((status == OP_NIC_ERROR || status == OP_PEER_DOWN) &&
		stripe_again(ch, p->peer, p->rails_tried)) {
		/* the failure of a rail tells nothing about the page: READ the head over another
		 * rail */
		page_queue(b, i, PAGE_HEAD);
		return;
	}
	if (p->verify == VERIFY_HEAD && status != OP_HIT) {
		/* the bytes may be right, but that cannot be proven */
		p->flags |= PAGE_SAW_FAILURE;
		page_wrong(b, i);
		return;
	}
	if (p->verify == VERIFY_HEAD && ours && head->length == p->bytes) {
		if (verify_matches(b, i, head))
			page_hit(b, i);
		else
			page_corrupt(b, i);
		return;
	}
	if (ours && (head->length != p->bytes || p->flags & PAGE_SAW_REFUSAL))
		page_done(b, i, PC_INVALID);
	else
		page_stale(b, i);
}
