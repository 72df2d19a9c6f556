/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READs the heads of pages of other members, for four reasons:
 *
 * - A set has found the page in the directory. Only the holder's head proves that the page is still
 *   there: an entry can outlive its page, because the holder removes the page first, and because
 *   owners miss removals while they are restarted.
 * - The page's bytes are here and are compared with the CRC in the head (page.c).
 * - The page could not be read: it was evicted, or it has another length than the caller expects.
 *   The second case is the caller's mistake; reporting it as stale would remove a good page from
 *   the directory. In a sized get it is usual: head_shorter().
 * - A prefetch needs length and CRC of the page that is to be copied.
 *
 * pc_explain() READs buckets and heads here, too, each in a run of its own. The runs are those of
 * look.c. Channel thread.
 */
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/bucket.h"
#include "engine/abi/crc32c.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/run.h"
#include "engine/client/constants.h"
#include "engine/client/device.h"
#include "engine/client/lookup/lookup.h"
#include "engine/client/page/batch.h"
#include "engine/client/peercache.h"
#include "engine/client/rings/rings.h"
#include "engine/client/rings/staging.h"

#include <string.h>

/*
 * READs a bucket of the shard of `m`, or a pair of its page heads, for page i alone. False: no
 * room; the page is queued again.
 */
static bool look_one(
	struct pc_batch *b, uint32_t i, const struct map_member *m, uint8_t region, uint32_t bucket)
{
	return look_add_to(b, i, m, region, bucket) && look_close_all(b, true);
}

/* ---- peeks, the READs of pc_explain() -------------------------------------------------------- */

/* The peek has ended with this status. */
static void peek_end(struct pc_batch *b, uint32_t i, uint32_t status)
{
	b->peek[i].status = (uint8_t)status;
	page_done(b, i, PC_HIT);
}

/* The READ of a peek was answered. OP_HIT: `data` is the bucket or pair of heads. */
static void peek_answer(
	struct pc_batch *b, uint32_t i, uint32_t rail, const struct bucket *data, uint32_t status)
{
	struct page_work *p = &b->work[i];
	struct peek *peek = &b->peek[i];
	struct page_head head[2];

	p->rails_tried |= (uint16_t)(1u << rail);
	if ((status == OP_NIC_ERROR || status == OP_PEER_DOWN) &&
		stripe_again(b->channel, p->peer, p->rails_tried)) {
		/* the failure of a rail tells nothing about the engine: READ over another rail */
		page_queue(b, i, PAGE_HEAD);
		return;
	}
	if (status == OP_HIT && peek->region == REGION_SHARD) {
		peek->data.bucket = *data;
	} else if (status == OP_HIT) {
		memcpy(head, data, sizeof(head));
		peek->data.head = head[place_unit(peek->bucket) % 2];
	}
	peek_end(b, i, status);
}

/*
 * READs what a peek names, in a run of its own: one impossible place refuses a whole run. False: no
 * room.
 */
static bool peek_read(struct pc_batch *b, uint32_t i)
{
	const struct peek *peek = &b->peek[i];
	const struct map_member *m = map_by_ref(b->channel, peek->ref);

	if (m)
		return look_one(b, i, m, peek->region, peek->bucket);
	peek_end(b, i, OP_PEER_DOWN); /* it has left the map since it was found there */
	return true;
}

/* ---- page heads ------------------------------------------------------------------------------ */

/*
 * Adds the page to a run. False: a run found no room, and its pages are queued again. A page whose
 * run was refused is READ alone: one impossible place refuses a whole run.
 */
static bool head_add(struct pc_batch *b, uint32_t i)
{
	const struct location *at = &b->work[i].at;
	const struct map_member *m = map_by_ref(b->channel, at->ref);

	if (b->kind == BATCH_SET && unlikely(!m || !directory_answers(b->channel, m))) {
		page_unreached(b, i); /* it is not asked at present: the page is stored here, too */
		return true;
	}
	if (unlikely(!m)) {
		page_stale(b, i);
		return true;
	}
	if (likely(b->work[i].piece_status != OP_INVALID))
		return look_add_to(b, i, m, REGION_HEADS_0, at->place);
	if (!look_close_all(b, true)) {
		page_requeue(b, i);
		return false;
	}
	return look_one(b, i, m, REGION_HEADS_0, at->place);
}

void head_step(struct pc_batch *b)
{
	bool room = true;
	uint32_t i;

	while (room && !b->channel->broken && (i = page_unqueue(b, PAGE_HEAD)) != CLIENT_NONE)
		room = b->kind == BATCH_PEEK ? peek_read(b, i) : head_add(b, i);
	look_close_all(b, room);
}

#define PIECE_BYTES 65536u /* of GPU memory that are copied at a time, to compute their CRC */

/* head_crc() of GPU memory; another one if the driver fails. */
static uint32_t device_crc(struct device_copies *d, const struct pc_segment *segments, size_t bytes)
{
	unsigned char piece[PIECE_BYTES];
	uint32_t crc = 0;

	device_flush(d);
	for (size_t at = 0, n; at < bytes; at += n) {
		n = bytes - at < sizeof(piece) ? bytes - at : sizeof(piece);
		if (!device_gather(d, segments, at, piece, n))
			return ~crc;
		crc = crc32c(crc, piece, n);
	}
	return crc;
}

/* The CRC32C of the first `bytes` bytes of the segments. */
static uint32_t head_crc(const struct pc_batch *b, const struct pc_segment *segments, size_t bytes)
{
	uint32_t crc = 0;

	if (unlikely(b->device))
		return device_crc(b->channel->device, segments, bytes);
	for (size_t n; bytes; bytes -= n, segments++) {
		n = segments->bytes < bytes ? segments->bytes : bytes;
		crc = crc32c(crc, segments->base, n);
	}
	return crc;
}

/* True if the head of a page whose bytes are here has no CRC, or that of the bytes. */
static bool head_matches(const struct pc_batch *b, uint32_t i, const struct page_head *head)
{
	if (!page_head_is_proven(head))
		return true;
	if (head_crc(b, b->pages[i].segments, b->work[i].bytes) != head->crc)
		return false;
	b->channel->verify_counts.verified++;
	return true;
}

/*
 * The page is shorter than its room, by the head that was READ after the READ that its rail called
 * stale. If that has brought the room, the page is the first part of it: a hit if its CRC says so,
 * too. Else the page is READ again.
 */
static void head_shorter(struct pc_batch *b, uint32_t i, const struct page_head *head)
{
	struct page_work *p = &b->work[i];
	bool landed = p->landed && page_head_is_proven(head);

	page_shorter(p, head->length);
	p->landed = 0;
	if (landed && head_matches(b, i, head))
		page_hit(b, i);
	else
		page_queue(b, i, PAGE_FETCH);
}

/* The head was READ. */
static void head_known(struct pc_batch *b, uint32_t i, const struct page_head *head)
{
	struct page_work *p = &b->work[i];

	if (!page_head_names(head, &p->key, p->at.generation) || head->length > PAGE_BYTES_MAX)
		page_stale(b, i);
	else if (b->kind == BATCH_SET)
		page_stored(b, i, head->length);
	else if (b->kind == BATCH_PREFETCH)
		page_bring(b, i, head);
	else if (p->verify == VERIFY_HEAD && b->channel->verify_all && !page_head_is_proven(head))
		page_unproven(b, i);
	else if (p->verify == VERIFY_HEAD && head->length == p->bytes && head_matches(b, i, head))
		page_hit(b, i);
	else if (p->verify == VERIFY_HEAD && head->length == p->bytes)
		page_corrupt(b, i);
	else if (head->length < p->bytes && b->lengths)
		head_shorter(b, i, head);
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
	} else if ((b->kind == BATCH_SET || b->kind == BATCH_PREFETCH) && status != OP_INVALID) {
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

	if (unlikely(b->kind == BATCH_PEEK)) {
		peek_answer(b, i, r->rail, (const struct bucket *)(const void *)pair,
			hit & 1 ? OP_HIT : status);
		return;
	}
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
