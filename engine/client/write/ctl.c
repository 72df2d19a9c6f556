/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the control plane that get one answer, and taking the answers of all: of pages on
 * disk, of removals, of clears, and of the credits and pages of a set (set.c). Channel thread.
 *
 * Two reasons to ask the engine of this host for a page on disk (CTL_PROMOTE):
 *
 * - A directory entry says that it is on the disk of a member. For a get, that member reads it into
 *   a pool, from which it is then read like any page; the engine of this host passes the request
 *   on.
 * - No owner of the key knows a location, and this host has a disk in service: the engine searches
 *   it, once for each page.
 */
#include "config/clock.h"
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/bucket.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/client/attach/attach.h"
#include "engine/client/page/batch.h"
#include "engine/client/page/cache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/error.h"
#include "engine/client/lookup/lookup.h"
#include "engine/client/page/key.h"
#include "engine/client/peercache.h"
#include "engine/client/attach/session.h"
#include "engine/client/write/write.h"
#include "engine/client/rings/rings.h"

#include <string.h>

/* pages between the one that ends and that whose entry in the location cache is prefetched */
#define PREFETCH_VICTIM 4u

bool ctl_ask(struct pc_batch *b, uint32_t i, enum request_kind kind, struct ctl_op *op)
{
	struct pc_channel *ch = b->channel;
	uint32_t index;

	if (ch->request_free == CLIENT_NONE || !submit_ctl_room(ch, 1, 0)) {
		page_requeue(b, i);
		return false;
	}
	index = request_take(ch, kind, b, i);
	op->cookie = request_cookie(ch, index);
	page_in_flight(b, i);
	submit_ctl(ch, op, 1);
	return true;
}

/* ---- pages on disk --------------------------------------------------------------------------- */

/* What the page on disk is for. */
static enum ctl_promote disk_purpose(const struct pc_batch *b, const struct page_work *p)
{
	if (b->kind == BATCH_PEEK)
		return PROMOTE_LOOK;
	if (b->kind == BATCH_PIN)
		return PROMOTE_PIN;
	if (b->kind == BATCH_PREFETCH)
		return p->at.ref ? PROMOTE_COPY : PROMOTE_EXISTS;
	if (b->lengths)
		return PROMOTE_ROOM;
	return b->kind == BATCH_EXISTS ? PROMOTE_EXISTS : PROMOTE_GET;
}

static void disk_step(struct pc_batch *b)
{
	uint32_t i;

	while ((i = page_unqueue(b, PAGE_DISK)) != CLIENT_NONE) {
		const struct page_work *p = &b->work[i];
		struct ctl_op op = {.kind = CTL_PROMOTE,
			.count = (uint16_t)disk_purpose(b, p),
			.key = p->key,
			.length = b->kind == BATCH_PIN ? b->channel->seconds : p->bytes,
			.ref = p->at.ref,
			.deadline_ns = b->deadline_ns};

		if (op.count == PROMOTE_COPY) {
			op.place = p->at.place;
			op.generation = p->at.generation;
			op.crc = p->crc;
			op.publish = p->flags & PAGE_PROVEN ? PUBLISH_CRC : 0;
		} else if (p->others)
			op.deadline_ns = page_attempt_ns(b, 2);
		if (!ctl_ask(b, i, REQUEST_DISK, &op))
			return;
	}
}

/* The engine of this host has answered the question of pc_explain(). */
static void disk_told(struct pc_batch *b, uint32_t i, const struct ctl_done *done, uint32_t status)
{
	struct peek *peek = &b->peek[i];

	peek->status = (uint8_t)status;
	peek->data.here.place = done->place;
	peek->data.here.generation = done->generation;
	peek->data.here.why = done->why;
	page_done(b, i, PC_HIT);
}

/* The page is in the memory of its holder now. */
static void disk_promoted(struct pc_batch *b, uint32_t i, const struct ctl_done *done)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if (!p->at.ref)
		p->at.ref = ch->session->ref;
	p->at.place = done->place;
	p->at.generation = done->generation;
	p->disk = DISK_PROMOTED;
	/* what the cache has is older; without an entry, notice_touch_due() sees DISK_PROMOTED */
	cache_drop(ch, &p->key);
	page_found(b, i);
}

/* The holder that the directory names could not serve the page: `gone`: it does not have it. */
static void disk_refused(struct pc_batch *b, uint32_t i, bool gone)
{
	if (gone)
		page_stale(b, i);
	else
		page_unreached(b, i);
}

/* The page that was found has another length than the caller expects, `stored` if not 0. */
static void disk_length_differs(struct pc_batch *b, uint32_t i, uint32_t stored)
{
	if (b->work[i].at.ref) {
		page_length_differs(b, i, stored);
		return;
	}
	error_length(b->work[i].bytes, stored);
	if (b->lengths)
		b->lengths[i] = stored;
	b->work[i].other_length = 1; /* the search of this host's disk is the last attempt */
	page_absent(b, i);
}

static void disk_answer(
	struct pc_batch *b, uint32_t i, const struct ctl_done *done, uint32_t status)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if (b->kind == BATCH_PIN && status <= OP_MISS)
		page_done(b, i, status == OP_HIT ? PC_HIT : PC_MISS);
	else if (b->kind == BATCH_PREFETCH && status == OP_HIT) {
		cache_drop(ch, &p->key); /* the next get finds it here */
		page_done(b, i, PC_HIT);
	} else if ((b->kind == BATCH_PREFETCH || b->kind == BATCH_PIN) && status == OP_NO_SPACE)
		page_done(b, i, PC_FULL);
	else if (status == OP_HIT && done->generation && !place_on_disk(done->place))
		disk_promoted(b, i, done);
	else if (status == OP_HIT && b->kind == BATCH_EXISTS)
		page_done(b, i, PC_HIT);
	else if (status == OP_INVALID)
		disk_length_differs(b, i, done->length);
	else if (status == OP_CANCELLED)
		page_done(b, i, PC_GONE);
	else if (status == OP_TIMEOUT && ch->now_ns >= b->deadline_ns)
		page_done(b, i, PC_TIMEOUT);
	else if (p->at.ref)
		disk_refused(b, i, status == OP_MISS);
	else if (status == OP_TIMEOUT)
		page_done(b, i, PC_TIMEOUT);
	else
		page_absent(b, i);
}

/* ---- removals -------------------------------------------------------------------------------- */

static void remove_step(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t i;

	while ((i = page_unqueue(b, PAGE_REMOVE)) != CLIENT_NONE) {
		struct ctl_op op = {
			.kind = CTL_REMOVE, .key = b->work[i].key, .deadline_ns = b->deadline_ns};

		if (!ctl_ask(b, i, REQUEST_REMOVE, &op))
			return;
		cache_drop(ch, &op.key);
	}
}

static void remove_answer(struct pc_batch *b, uint32_t i, uint32_t status)
{
	struct pc_channel *ch = b->channel;

	cache_drop(ch, &b->work[i].key);
	switch (status) {
	case OP_HIT: page_done(b, i, PC_HIT); break;
	case OP_MISS: page_done(b, i, PC_MISS); break;
	case OP_TIMEOUT: page_done(b, i, PC_TIMEOUT); break;
	case OP_INVALID: page_refused(b, i); break;
	case OP_CANCELLED: page_done(b, i, PC_GONE); break;
	default: page_done(b, i, PC_UNREACHABLE);
	}
}

/* ---- clears ---------------------------------------------------------------------------------- */

static void clear_step(struct pc_batch *b)
{
	struct clear *clear = b->clear;
	uint64_t rest_ns = b->deadline_ns - b->channel->now_ns;
	struct ctl_op op = {.kind = CTL_CLEAR,
		.count = clear->what,
		.key = clear->group,
		/* so that the engine's own answer comes in time */
		.deadline_ns = b->deadline_ns - rest_ns / 16};
	uint32_t i = page_unqueue(b, PAGE_REMOVE);

	if (i != CLIENT_NONE)
		(void)ctl_ask(b, i, REQUEST_CLEAR, &op);
}

static void clear_answer(
	struct pc_batch *b, uint32_t i, const struct ctl_done *done, uint32_t status)
{
	b->clear->status = status;
	b->clear->place = done->place;
	b->clear->generation = done->generation;
	page_done(b, i,
		status == OP_CANCELLED ? PC_GONE
		: status == OP_HIT     ? PC_HIT
				       : PC_UNREACHABLE);
}

void ctl_step(struct pc_batch *b)
{
	if (b->kind == BATCH_REMOVE)
		remove_step(b);
	else if (b->kind == BATCH_CLEAR)
		clear_step(b);
	else if (page_waits(b, PAGE_DISK))
		disk_step(b);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void set_end(struct pc_batch *b, uint32_t i, uint32_t status)
{
	struct pc_channel *ch = b->channel;
	static const uint8_t result[OP_STATUS_COUNT] = {[OP_HIT] = PC_HIT,
		[OP_MISS] = PC_UNREACHABLE,
		[OP_STALE] = PC_STALE,
		[OP_PEER_DOWN] = PC_UNREACHABLE,
		[OP_TIMEOUT] = PC_TIMEOUT,
		[OP_NIC_ERROR] = PC_UNREACHABLE,
		[OP_INVALID] = PC_INVALID,
		[OP_NO_SPACE] = PC_FULL,
		[OP_CANCELLED] = PC_GONE};
	const struct page_work *p = &b->work[i];

	if (status == OP_HIT) {
		ch->counts.sets++;
		ch->counts.bytes_written += p->bytes;
		cache_put(ch, &p->key, &p->at, channel_now_ms(ch));
	}
	if (unlikely(status == OP_INVALID))
		page_refused(b, i);
	else
		page_done(b, i, (enum pc_result)result[status]);
}

/* `pages`: bit i: page i of the request has ended with `status`. */
static void set_answer(
	struct pc_channel *ch, const struct client_request *r, uint32_t pages, uint32_t status)
{
	struct pc_batch *b = r->batch;
	uint32_t ended[CTL_PAGES_MAX], count = 0, now_ms = channel_now_ms(ch);
	uint32_t i = r->page;

	for (uint32_t k = 0; k < r->pages; k++, i = b->work[i].next) {
		if (!(pages >> k & 1))
			continue;
		ended[count++] = i;
		cache_prefetch(ch, &b->work[i].key);
	}
	for (uint32_t k = 0; k < count; k++) {
		if (k + PREFETCH_VICTIM < count)
			cache_prefetch_victim(ch, &b->work[ended[k + PREFETCH_VICTIM]].key, now_ms);
		set_end(b, ended[k], status);
	}
}

/* An answer to a CTL_CREDIT. True: all slots of the request were told of. */
static bool credit_told(
	struct pc_channel *ch, struct client_request *r, const struct ctl_done *done)
{
	if (!done->count || done->count > r->left) {
		channel_break(ch);
		return false;
	}
	ch->ctl_awaited -= done->count;
	r->left -= done->count;
	credit_answer(ch, r, done);
	return !r->left;
}

/* An answer to a CTL_PUBLISH. True: all pages of the request have ended. */
static bool publish_told(struct pc_channel *ch, struct client_request *r,
	const struct ctl_done *done, uint32_t status)
{
	if (!done->pages || done->pages & ~r->waiting) {
		channel_break(ch);
		return false;
	}
	ch->ctl_awaited -= (uint32_t)__builtin_popcount(done->pages);
	r->waiting &= ~done->pages;
	if (r->batch)
		set_answer(ch, r, done->pages, status);
	return !r->waiting;
}

static void ctl_done(struct pc_channel *ch, const struct ctl_done *done)
{
	static const uint8_t kind_of[] = {[REQUEST_CREDIT] = CTL_CREDIT,
		[REQUEST_PUBLISH] = CTL_PUBLISH,
		[REQUEST_REMOVE] = CTL_REMOVE,
		[REQUEST_DISK] = CTL_PROMOTE,
		[REQUEST_CLEAR] = CTL_CLEAR};
	uint32_t status = done->status < OP_STATUS_COUNT ? done->status : OP_INVALID;
	uint32_t index;
	struct client_request *r = request_of(ch, done->cookie, &index);

	if (!r || r->kind < REQUEST_CREDIT || done->kind != kind_of[r->kind])
		return;
	ch->moves++;
	if (r->kind == REQUEST_CREDIT) {
		if (!credit_told(ch, r, done))
			return;
	} else if (r->kind == REQUEST_PUBLISH) {
		if (!publish_told(ch, r, done, status))
			return;
	} else {
		ch->ctl_awaited--;
		if (r->batch && r->batch->kind == BATCH_PEEK)
			disk_told(r->batch, r->page, done, status);
		else if (r->batch && r->kind == REQUEST_DISK)
			disk_answer(r->batch, r->page, done, status);
		else if (r->batch && r->kind == REQUEST_CLEAR)
			clear_answer(r->batch, r->page, done, status);
		else if (r->batch)
			remove_answer(r->batch, r->page, status);
	}
	request_free(ch, index);
}

void reap_ctl(struct pc_channel *ch)
{
	int32_t n = ring_ready(&ch->ctl_done);

	for (int32_t i = 0; i < n; i++) {
		struct ctl_done done;

		memcpy(&done, ring_slot_old(&ch->ctl_done, (uint32_t)i), sizeof(done));
		ctl_done(ch, &done);
	}
	if (n > 0)
		ring_release(&ch->ctl_done, (uint32_t)n);
}
