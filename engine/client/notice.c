/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages to the control plane that get no answer: stale entries, damaged and used pages. Best
 * effort: half of the ctl ring stays free for requests that wait for an answer.
 */
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/op.h"
#include "engine/abi/ring.h"
#include "engine/abi/run.h"
#include "engine/client/batch.h"
#include "engine/client/cache.h"
#include "engine/client/channel.h"
#include "engine/client/notice.h"
#include "engine/client/session.h"
#include "engine/client/submit.h"

#include <string.h>

void notice_stale(struct pc_channel *ch, const struct page_work *p)
{
	struct ctl_op op = {.kind = CTL_STALE,
		.length = p->bytes,
		.key = p->key,
		.place = p->at.place,
		.generation = p->at.generation,
		.ref = p->at.ref};

	if (submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2))
		submit_ctl(ch, &op, 0);
}

void notice_corrupt(struct pc_channel *ch, const struct page_work *p)
{
	struct ctl_op op = {.kind = CTL_CORRUPT,
		.length = p->bytes,
		.key = p->key,
		.place = p->at.place,
		.generation = p->at.generation,
		.ref = p->at.ref};

	if (shm_load(&ch->session->status->reports) && submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2))
		submit_ctl(ch, &op, 0);
}

__attribute__((noinline)) void notice_touches_submit(struct pc_channel *ch)
{
	struct ctl_op op;

	memcpy(&op, &ch->touches, sizeof(op));
	ch->touches.count = 0;
	submit_ctl(ch, &op, 0);
}

void notice_touches_end(struct pc_channel *ch)
{
	if (!ch->touches.count)
		return;
	if (submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2))
		notice_touches_submit(ch);
	ch->touches.count = 0;
}

/* Collects a touch of a page of another engine. False: no room. */
static bool tell_far(struct pc_channel *ch, const struct cache_entry *e)
{
	struct ctl_touches *t = &ch->touches;

	if (!t->count && !submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2))
		return false;
	t->kind = CTL_TOUCHES;
	t->page[t->count].ref = e->at.ref;
	t->page[t->count++].place = e->at.place;
	if (t->count == CTL_TOUCHES_MAX)
		notice_touches_end(ch);
	return true;
}

/* Tells of a touch at once, in an op of its own. False: no room. */
static bool tell_alone(struct pc_channel *ch, const struct cache_entry *e)
{
	struct ctl_op op = {.kind = CTL_TOUCH,
		.key = e->key,
		.place = e->at.place,
		.generation = e->at.generation,
		.ref = e->at.ref};

	if (!submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2))
		return false;
	submit_ctl(ch, &op, 0);
	return true;
}

/* `alone`: at once, in an op of its own. */
static void tell(struct pc_channel *ch, struct cache_entry *e, bool alone, uint32_t now_ms)
{
	bool far = !alone && e->at.ref != ch->session->ref &&
		   shm_load(&ch->session->status->reports) > 1;

	if (!(far ? tell_far(ch, e) : tell_alone(ch, e)))
		return;
	e->touched_ms = notice_stamp(now_ms);
}

static void touch(struct pc_channel *ch, struct cache_entry *e, uint32_t now_ms)
{
	if (cache_touch_due(e, now_ms))
		tell(ch, e, false, now_ms);
}

__attribute__((noinline)) void notice_touch_due(
	struct pc_channel *ch, const struct page_work *p, struct cache_entry *e, uint32_t now_ms)
{
	if (!e || unlikely(p->disk == DISK_PROMOTED))
		e = cache_put(ch, &p->key, &p->at, now_ms);
	/* never left out and never late: it ends the pin of a page that came from disk */
	if (unlikely(p->disk == DISK_PROMOTED))
		tell(ch, e, true, now_ms);
	else
		touch(ch, e, now_ms);
}

void notice_want(struct pc_channel *ch, const struct page_work *p)
{
	struct ctl_op op = {.kind = CTL_WANT, .key = p->key, .ref = p->at.ref};

	if (submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2))
		submit_ctl(ch, &op, 0);
}

bool notice_wanted_room(struct pc_channel *ch)
{
	ch->touches.kind = CTL_TOUCHES;
	return shm_load(&ch->session->status->reports) > 1 &&
	       submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2 + RUN_PAGES_MAX / CTL_TOUCHES_MAX + 1);
}

void notice_wanted(struct pc_channel *ch, const struct page_work *p)
{
	struct cache_entry *e = cache_numbered(ch, p->cached, &p->key);

	if (unlikely(!e))
		e = cache_find(ch, &p->key);
	if (e)
		/* cache_set.seen_ms stays: the look-up did not confirm the location */
		touch(ch, e, channel_now_ms(ch));
}
