/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page of a batch: its queues, what becomes of it after each step, and what the control plane is
 * told of it (page.c). Inline is what every page uses several times. Channel thread.
 */
#ifndef CLIENT_PAGE_H
#define CLIENT_PAGE_H

#include <stdalign.h>

#include "config/likely.h"
#include "engine/client/batch.h"
#include "engine/client/cache.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/peercache.h"

/* Adds a page that ended with a result other than PC_HIT to the channel's counters. */
void page_count(struct pc_batch *b, enum pc_result result);
/* The page's location p->at was found: queues a READ of it or of its head, or ends it here. */
void page_found(struct pc_batch *b, uint32_t i);
/* A look-up found no location of the page: every owner of its key was asked. */
void page_absent(struct pc_batch *b, uint32_t i);
/* Looks the page up, without the cache. */
void page_look_again(struct pc_batch *b, uint32_t i);
/* The location in use is stale: reports the directory entry, and is wrong. */
void page_stale(struct pc_batch *b, uint32_t i);
/*
 * The page at the location in use has another length than the caller expects, `stored` or, if it
 * is not known, 0. Another location may have it: two hosts that set at the same time, or a set of a
 * page that was on a disk only, store both.
 */
void page_length_differs(struct pc_batch *b, uint32_t i, uint32_t stored);
/* The holder of the location in use could not be asked: nothing is known of the page there. */
void page_unreached(struct pc_batch *b, uint32_t i);
/* Ends a page that the engine refused, with PC_INVALID. */
void page_refused(struct pc_batch *b, uint32_t i);
/* set: the page at p->at was there, as long as `length`, after the call had begun. */
void page_stored(struct pc_batch *b, uint32_t i, uint32_t length);
/* The page has other bytes than its head says: reports it, and the location is wrong. */
void page_corrupt(struct pc_batch *b, uint32_t i);
/* The page of another host is a hit, and was compared if that was due. */
void page_hit(struct pc_batch *b, uint32_t i);

/*
 * The i-th page of a batch, for a loop over pages. What is assumed is true; it makes the compiler
 * keep the address in a register, instead of computing it for each access.
 */
static inline struct page_work *page_at(struct pc_batch *b, uint32_t i)
{
	return __builtin_assume_aligned(&b->work[i], alignof(struct page_work));
}

static inline void page_done(struct pc_batch *b, uint32_t i, enum pc_result result)
{
	b->work[i].phase = PAGE_DONE;
	b->results[i] = result;
	b->left--;
	b->channel->moves++;
	if (unlikely(result != PC_HIT))
		page_count(b, result);
}

/*
 * True if a page in this phase waits for room on a rail. enum page_phase lists what the others wait
 * for.
 */
static inline bool waits_for_room(unsigned phase)
{
	return phase == PAGE_FETCH || phase == PAGE_STAGE;
}

static inline void page_queue(struct pc_batch *b, uint32_t i, enum page_phase phase)
{
	struct page_queue *q = &b->queue[phase];

	b->work[i].phase = (uint8_t)phase;
	if (unlikely(b->expired)) {
		page_done(b, i, PC_TIMEOUT);
		return;
	}
	b->work[i].next = CLIENT_NONE;
	if (q->head == CLIENT_NONE)
		q->head = i;
	else
		b->work[q->tail].next = i;
	q->tail = i;
	b->channel->waits[waits_for_room(phase)]++;
	b->channel->moves++;
}

static inline bool page_waits(const struct pc_batch *b, enum page_phase phase)
{
	return b->queue[phase].head != CLIENT_NONE;
}

/*
 * Removes and returns the first page of a queue; CLIENT_NONE: empty. page_requeue() puts it back in
 * front.
 */
static inline uint32_t page_unqueue(struct pc_batch *b, enum page_phase phase)
{
	struct page_queue *q = &b->queue[phase];
	uint32_t i = q->head;

	if (i == CLIENT_NONE)
		return i;
	q->head = b->work[i].next;
	b->channel->waits[waits_for_room(phase)]--;
	return i;
}

static inline void page_requeue(struct pc_batch *b, uint32_t i)
{
	struct page_queue *q = &b->queue[b->work[i].phase];

	b->work[i].next = q->head;
	if (q->head == CLIENT_NONE)
		q->tail = i;
	q->head = i;
	b->channel->waits[waits_for_room(b->work[i].phase)]++;
}

/* Removes the first waiting run. Returns its first page; CLIENT_NONE: none. */
static inline uint32_t run_unqueue(struct pc_batch *b)
{
	uint32_t head = b->runs.head;

	if (head != CLIENT_NONE) {
		b->runs.head = b->work[head].run_next;
		b->channel->waits[1]--;
	}
	return head;
}

static inline void page_in_flight(struct pc_batch *b, uint32_t i, uint32_t request)
{
	b->work[i].phase = PAGE_IN_FLIGHT;
	b->work[i].request = request;
	b->channel->moves++;
}

/* The phase in which a page waits to be READ from another host. */
static inline enum page_phase page_read_phase(const struct page_work *p)
{
	if (likely(p->regular))
		return PAGE_RUN;
	return p->flags & PAGE_REGISTERED ? PAGE_FETCH : PAGE_STAGE;
}

/*
 * The deadline of one attempt that others may follow, ns: it gets 1 / `parts` of the time to the
 * batch's deadline.
 */
static inline uint64_t page_attempt_ns(const struct pc_batch *b, unsigned parts)
{
	struct pc_channel *ch = b->channel;
	uint64_t ns = ch->now_ns < b->deadline_ns ? b->deadline_ns - ch->now_ns : 0;

	if (parts > 1)
		ns /= parts;
	return ch->now_ns + (ns < SHARE_NS_MAX ? ns : SHARE_NS_MAX);
}

/* ---- segments -------------------------------------------------------------------------------- */

/* Distance between the starts of the segments of a regular page; 0: it has only one. */
static inline uint64_t page_stride(const struct pc_page *page)
{
	const struct pc_segment *s = page->segments;

	return page->segment_count > 1 ? (uintptr_t)s[1].base - (uintptr_t)s[0].base : 0;
}

/* Bytes from the start of the first segment of a regular page to the end of the last one. */
static inline uint64_t page_span(const struct pc_page *page)
{
	return page_stride(page) * (page->segment_count - 1) + page->segments->bytes;
}

/* ---- comparing with the CRC ------------------------------------------------------------------ */

/* Chooses the first hit that is compared. */
void verify_open(struct pc_channel *ch);
/*
 * The page is the one to compare: makes it VERIFY_DUE, so that no run contains it any more, and
 * chooses the distance to the next one.
 */
void verify_choose(struct pc_channel *ch, struct page_work *p);

/* True if this hit is one to compare; the page is then VERIFY_DUE. */
static inline bool verify_due(struct pc_channel *ch, struct page_work *p)
{
	if (likely(!ch->verify_left || --ch->verify_left))
		return p->verify != VERIFY_NOT;
	verify_choose(ch, p);
	return true;
}

/* ---- pages of this host ---------------------------------------------------------------------- */

/*
 * Copies a page of this host. Returns PC_HIT, PC_STALE, or PC_INVALID: the stored page has another
 * length. *ret_corrupt: PC_STALE, for the CRC of the head.
 */
enum pc_result local_get(struct pc_channel *ch, const struct page_work *p,
	const struct pc_page *page, bool *ret_corrupt);
/* Returns the length of the page that is at `at` now, bytes; 0: it is not there. */
uint32_t local_length(const struct client_session *session, const struct page_key *key,
	const struct location *at);

/* ---- what the control plane is told ---------------------------------------------------------- */

/*
 * notice_touch() calls it. `e`: the page's entry in the location cache, or NULL: the cache does not
 * have the page.
 */
void notice_touch_due(
	struct pc_channel *ch, const struct page_work *p, struct cache_entry *e, uint32_t now_ms);
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
