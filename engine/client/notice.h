/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to the control plane that get no answer. Channel thread. */
#ifndef CLIENT_NOTICE_H
#define CLIENT_NOTICE_H

#include "config/likely.h"
#include "engine/client/batch.h"
#include "engine/client/cache.h"
#include "engine/client/channel.h"

/* Reports a stale directory entry. */
void notice_stale(struct pc_channel *ch, const struct page_work *p);
/* Reports a page whose bytes differ from its CRC, if the engine takes these reports. */
void notice_corrupt(struct pc_channel *ch, const struct page_work *p);
/*
 * notice_touch() calls it. `e`: the page's entry in the location cache, or NULL: the
 * cache does not have the page.
 */
void notice_touch_due(
	struct pc_channel *ch, const struct page_work *p, struct cache_entry *e, uint32_t now_ms);
/* An exists found the page on a disk, at p->at: a get may follow. */
void notice_want(struct pc_channel *ch, const struct page_work *p);
/*
 * Reports a page that was looked up but not read as used, so that eviction spares it for a while.
 */
void notice_wanted(struct pc_channel *ch, const struct page_work *p);
/*
 * True if each page of a run can be reported as used: up to RUN_PAGES_MAX of other hosts are added
 * to pc_channel.touches, which notice_touches_submit() submits whenever it is full.
 */
bool notice_wanted_room(struct pc_channel *ch);
/* Submits CTL_TOUCHES_MAX or fewer touches that were collected; there is room for them. */
void notice_touches_submit(struct pc_channel *ch);
void notice_touches_end(struct pc_channel *ch); /* submits the touches that were collected */

/*
 * The page was read: confirms its location in the cache, and tells the control plane at most once
 * in TOUCH_NS. `now_ms`: CLOCK_MONOTONIC.
 */
static inline void notice_touch(struct pc_channel *ch, const struct page_work *p, uint32_t now_ms)
{
	struct cache_entry *e = cache_again(ch, p->cached, &p->key, &p->at, now_ms);

	if (unlikely(!e || cache_touch_due(e, now_ms)))
		notice_touch_due(ch, p, e, now_ms);
}

/* The time of a touch as cache_entry.touched_ms has it: never 0. */
static inline uint32_t notice_stamp(uint32_t now_ms)
{
	return now_ms + !now_ms;
}

#endif
