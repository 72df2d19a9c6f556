/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages on disk. Two reasons to ask the engine of this host for one (CTL_PROMOTE):
 *
 * - A directory entry says that it is on the disk of a member. For a get, that member reads it into
 *   a pool, from which it is then read like any page; the engine of this host passes the request
 *   on.
 * - No owner of the key knows a location, and this host has a disk in service: the engine searches
 *   it, once for each page.
 *
 * Channel thread.
 */
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/client/batch.h"
#include "engine/client/cache.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/disk.h"
#include "engine/client/error.h"
#include "engine/client/page.h"
#include "engine/client/peercache.h"
#include "engine/client/request.h"
#include "engine/client/session.h"
#include "engine/client/submit.h"

void disk_step(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t i;

	while ((i = page_unqueue(b, PAGE_DISK)) != CLIENT_NONE) {
		struct ctl_op op = {.kind = CTL_PROMOTE,
			.count = b->kind == BATCH_EXISTS ? PROMOTE_EXISTS : PROMOTE_GET,
			.key = b->work[i].key,
			.length = b->work[i].bytes,
			.ref = b->work[i].at.ref,
			.deadline_ns = b->deadline_ns};
		uint32_t index;

		if (b->work[i].others)
			op.deadline_ns = page_attempt_ns(b, 2);

		if (ch->request_free == CLIENT_NONE || !submit_ctl_room(ch, 1, 0)) {
			page_requeue(b, i);
			return;
		}
		index = request_take(ch, REQUEST_DISK, b, i);
		op.cookie = request_cookie(ch, index);
		page_in_flight(b, i, index);
		submit_ctl(ch, &op, 1);
	}
}

/* The page is in the memory of its holder now. */
static void promoted(struct pc_batch *b, uint32_t i, const struct ctl_done *done)
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
static void refused(struct pc_batch *b, uint32_t i, bool gone)
{
	if (gone)
		page_stale(b, i);
	else
		page_unreached(b, i);
}

/* The page that was found has another length than the caller expects. */
static void length_differs(struct pc_batch *b, uint32_t i)
{
	if (b->work[i].at.ref) {
		page_length_differs(b, i, 0);
		return;
	}
	error_length(b->work[i].bytes, 0);
	b->work[i].other_length = 1; /* the search of this host's disk is the last attempt */
	page_absent(b, i);
}

void disk_answer(struct pc_batch *b, uint32_t i, const struct ctl_done *done, uint32_t status)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if (status == OP_HIT && done->generation && !place_on_disk(done->place))
		promoted(b, i, done);
	else if (status == OP_HIT && b->kind == BATCH_EXISTS)
		page_done(b, i, PC_HIT);
	else if (status == OP_INVALID)
		length_differs(b, i);
	else if (status == OP_CANCELLED)
		page_done(b, i, PC_GONE);
	else if (status == OP_TIMEOUT && ch->now_ns >= b->deadline_ns)
		page_done(b, i, PC_TIMEOUT);
	else if (p->at.ref)
		refused(b, i, status == OP_MISS);
	else if (status == OP_TIMEOUT)
		page_done(b, i, PC_TIMEOUT);
	else
		page_absent(b, i);
}
