/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READs the heads of pages of other members, in runs (look_run.c), for three reasons:
 *
 * - A set has found the page in the directory. Only the holder's head proves that the page is still
 *   there: an entry can outlive its page, because the holder removes the page first, and because
 *   owners miss removals while they are restarted.
 * - The page's bytes are here and are compared with the CRC in the head (verify.c).
 * - The page could not be read: it was evicted, or it has another length than the caller expects.
 *   The second case is the caller's mistake; reporting it as stale would remove a good page from
 *   the directory.
 *
 * Channel thread.
 */
#include "config/likely.h"
#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/run.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/head.h"
#include "engine/client/look_run.h"
#include "engine/client/map.h"
#include "engine/client/page.h"
#include "engine/client/peercache.h"
#include "engine/client/request.h"
#include "engine/client/stripe.h"
#include "engine/client/verify.h"

/*
 * Adds the page to a run. False: a run found no room, and its pages are queued again. A page whose
 * run was refused is READ alone: one impossible place refuses a whole run.
 */
static bool head_add(struct pc_batch *b, uint32_t i)
{
	const struct map_member *m = map_by_ref(b->channel, b->work[i].at.ref);

	if (unlikely(!m)) {
		if (b->kind == BATCH_SET)
			page_unreached(b, i);
		else
			page_stale(b, i);
		return true;
	}
	if (likely(b->work[i].piece_status != OP_INVALID))
		return look_add_head(b, i, m);
	if (!look_close_all(b, true)) {
		page_requeue(b, i);
		return false;
	}
	return look_add_head(b, i, m) && look_close_all(b, true);
}

void head_step(struct pc_batch *b)
{
	bool room = true;
	uint32_t i;

	while (room && !b->channel->broken && (i = page_unqueue(b, PAGE_HEAD)) != CLIENT_NONE)
		room = head_add(b, i);
	look_close_all(b, room);
}

/* The head was READ. */
static void head_known(struct pc_batch *b, uint32_t i, const struct page_head *head)
{
	struct page_work *p = &b->work[i];

	if (!page_head_names(head, &p->key, p->at.generation))
		page_stale(b, i);
	else if (b->kind == BATCH_SET)
		page_stored(b, i, head->length);
	else if (p->verify == VERIFY_HEAD && head->length == p->bytes && verify_matches(b, i, head))
		page_hit(b, i);
	else if (p->verify == VERIFY_HEAD && head->length == p->bytes)
		page_corrupt(b, i);
	else if (head->length != p->bytes)
		page_length_differs(b, i, head->length);
	else if (p->flags & PAGE_SAW_REFUSAL)
		page_refused(b, i);
	else
		page_stale(b, i);
}

/* The head could not be READ. */
static void head_unknown(struct pc_batch *b, uint32_t i, uint32_t status)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if ((status == OP_NIC_ERROR || status == OP_PEER_DOWN) &&
		stripe_again(ch, p->peer, p->rails_tried)) {
		/* the failure of a rail tells nothing about the page: READ the head over another
		 * rail */
		page_queue(b, i, PAGE_HEAD);
	} else if (p->verify == VERIFY_HEAD) {
		page_unreached(b, i); /* the bytes may be right, but that cannot be proven */
	} else if (b->kind == BATCH_SET && status != OP_INVALID) {
		ch->peer_rest_until_ns[p->peer] = ch->now_ns + PEER_REST_NS;
		page_unreached(b, i);
	} else {
		page_stale(b, i); /* its rail said so, or the place is impossible */
	}
}

void head_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status)
{
	const struct page_head *pair =
		(const struct page_head *)(const void *)ch->staging.base + 2 * r->hold;
	struct pc_batch *b = r->batch;
	uint32_t hit = done->hit, i = r->page, next;

	if (hit)
		ch->peer_rest_until_ns[b->work[i].peer] = 0;
	for (uint32_t left = r->pages; left; left--, i = next, pair += 2, hit >>= 1) {
		struct page_work *p = &b->work[i];
		struct page_head head = pair[place_unit(p->at.place) % 2];

		next = p->next;
		p->piece_status = OP_HIT;
		if (likely(hit & 1)) {
			head_known(b, i, &head);
		} else if (status == OP_INVALID && r->pages > 1) {
			p->piece_status = OP_INVALID;
			page_queue(b, i, PAGE_HEAD);
		} else {
			p->rails_tried |= (uint16_t)(1u << r->rail);
			head_unknown(b, i, status);
		}
	}
}
