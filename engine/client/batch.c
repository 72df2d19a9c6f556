/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch and its pages, from the call to the results. Channel thread. The phases of a page:
 *
 * A page that a get or exists does not find goes through DISK, once, if this host has a disk:
 *   DISK ~> here --> copied, DONE; or not on disk: DONE
 * A page that a get finds on a disk goes through DISK, too:
 *   DISK ~> found in the memory of that host; or not: the next location
 *
 *   get      LOOK ~> found: here --> copied, DONE
 *                           elsewhere --> RUN (or FETCH or STAGE) ~> DONE,
 *                                               or stale, or its CRC is due --> HEAD ~> DONE
 *   exists   LOOK ~> DONE
 *   set      LOOK ~> found: DONE;  absent: STORE --> PUBLISH ~> DONE
 *   remove   REMOVE ~> DONE
 *
 * An arrow --> is taken when there is room, an arrow ~> when an answer comes. Between them the page
 * waits in the queue of its phase, or is IN_FLIGHT. After a wrong location the page tries its next
 * one; after the last one it goes back to LOOK, once.
 *
 * After the deadline nothing new is posted. Answers are awaited for ANSWER_GRACE_NS more. After
 * that only READs into the caller's own memory are awaited, because the NIC may still write there.
 */
#include "config/clock.h"
#include "engine/abi/statistics.h"
#include "engine/client/batch.h"
#include "engine/client/cache.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/credit.h"
#include "engine/client/disk.h"
#include "engine/client/fetch.h"
#include "engine/client/head.h"
#include "engine/client/likely.h"
#include "engine/client/local.h"
#include "engine/client/lookup.h"
#include "engine/client/notice.h"
#include "engine/client/pages.h"
#include "engine/client/peek.h"
#include "engine/client/peercache.h"
#include "engine/client/request.h"
#include "engine/client/run.h"
#include "engine/client/session.h"
#include "engine/client/set.h"
#include "engine/client/statistics.h"
#include "engine/client/verify.h"

#include <stdlib.h>
#include <string.h>

/* pages that the memory of a batch has room for, at least */
#define BATCH_CAPACITY_MIN 128u

/* cold: once for each batch. Takes its memory from the list of spare ones, or allocates it. */
static struct pc_batch *batch_take(struct pc_channel *ch, uint32_t count)
{
	uint32_t capacity = count < BATCH_CAPACITY_MIN ? BATCH_CAPACITY_MIN : count;
	struct pc_batch *b = ch->spare;

	if (b) {
		ch->spare = b->next;
		ch->spares--;
		if (b->capacity >= count)
			return b;
		free(b); /* a larger one takes its place in the list */
	}
	b = malloc(sizeof(*b) + capacity * (sizeof(b->work[0]) + 4 * sizeof(*b->twin_table)));
	if (!b)
		return NULL;
	b->capacity = capacity;
	b->twin_table = (uint32_t *)(void *)&b->work[capacity];
	return b;
}

struct pc_batch *batch_make(struct pc_channel *ch, uint32_t count)
{
	struct pc_batch *b = batch_take(ch, count);

	if (!b)
		return NULL;
	b->channel = ch;
	b->next = NULL;
	b->count = b->left = count;
	b->twins = 0;
	memset(b->missed, 0, sizeof(b->missed));
	b->expired = b->abandoned = false;
	b->pins = 0;
	for (unsigned q = 0; q < PAGE_QUEUES; q++)
		b->queue[q].head = CLIENT_NONE;
	b->runs.head = CLIENT_NONE;
	if (ch->last)
		ch->last->next = b;
	else
		ch->first = b;
	ch->last = b;
	return b;
}

/* cold: once for each batch */
void batch_free(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	struct pc_batch *before = NULL;

	statistics_batch(b);
	pages_unpin(b);
	ch->writers -= batch_writes(b);
	if (ch->first != b)
		for (before = ch->first; before->next != b; before = before->next)
			continue;
	if (before)
		before->next = b->next;
	else
		ch->first = b->next;
	if (ch->last == b)
		ch->last = before;
	if (ch->spares == SPARE_BATCHES_MAX || (ch->spares && b->capacity > SPARE_PAGES_MAX)) {
		free(b);
		return;
	}
	b->next = ch->spare;
	ch->spare = b;
	ch->spares++;
}

/*
 * Counts a page with a result other than PC_HIT; hits are counted in get_here(), page_here() and
 * fetch.c.
 */
void page_count(struct pc_batch *b, enum pc_result result)
{
	struct pc_counts *counts = &b->channel->counts;

	if (b->kind == BATCH_PEEK)
		return;
	b->missed[result < PC_INVALID ? (unsigned)result : STATISTICS_OTHER]++;
	if (result == PC_MISS && b->kind != BATCH_REMOVE)
		counts->misses++;
	else if (result == PC_STALE)
		counts->stale++;
	else if (result == PC_UNREACHABLE)
		counts->unreachable++;
	else if (result == PC_TIMEOUT)
		counts->timeouts++;
}

static void get_here(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	enum pc_result result;
	bool corrupt;

	if (clock_monotonic_ns() >= b->deadline_ns) {
		/* the deadline is checked for each page, because many local copies in one batch
		 * take long */
		page_done(b, i, PC_TIMEOUT);
		return;
	}
	(void)verify_due(ch, p);
	result = local_get(ch, p, &b->pages[i], &corrupt);
	if (unlikely(corrupt)) {
		verify_failed(b, i);
		return;
	}
	if (result == PC_STALE) {
		p->flags |= PAGE_SAW_STALE;
		notice_stale(ch, p);
		page_wrong(b, i);
		return;
	}
	if (result == PC_HIT) {
		ch->counts.hits_local++;
		ch->counts.bytes_read += p->bytes;
		notice_touch(ch, p, channel_now_ms(ch));
	}
	page_done(b, i, result);
}

void page_here(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if (b->kind == BATCH_GET) {
		get_here(b, i);
	} else if (p->at.ref == ch->session->ref && !local_has(ch->session, &p->key, &p->at)) {
		p->flags |= PAGE_SAW_STALE;
		notice_stale(ch, p);
		page_wrong(b, i);
	} else {
		ch->counts.sets_already += b->kind == BATCH_SET;
		notice_wanted(ch, p);
		page_done(b, i, PC_HIT);
	}
}

/* A look-up found no location of the page: every owner of its key was asked. */
void page_absent(struct pc_batch *b, uint32_t i)
{
	const struct page_work *p = &b->work[i];

	if (b->kind == BATCH_SET)
		page_queue(b, i, PAGE_STORE);
	else if (disk_begin(b, i))
		return;
	else if (p->flags & PAGE_SAW_STALE && b->kind == BATCH_GET)
		page_done(b, i, PC_STALE);
	else
		page_done(b, i, p->flags & PAGE_SAW_FAILURE ? PC_UNREACHABLE : PC_MISS);
}

void page_wrong(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	p->wrong = p->at;
	if (unlikely(p->verify))
		p->verify = VERIFY_DUE;
	p->rails_tried = 0;
	p->flags &= (uint8_t)~PAGE_SAW_REFUSAL;
	cache_drop(ch, &p->key);
	if (p->others) {
		p->at = p->other[--p->others];
		page_found(b, i);
	} else if (!(p->flags & PAGE_RETRIED)) {
		p->flags |= PAGE_RETRIED;
		lookup_again(b, i);
	} else {
		page_absent(b, i);
	}
}

static void give_up_twins(struct pc_batch *b)
{
	for (uint32_t i = 0; i < b->count && b->twins; i++) {
		if (b->work[i].phase != PAGE_TWIN)
			continue;
		b->twins--;
		page_done(b, i, b->results[b->work[i].twin]);
	}
}

/* Ends all queued pages of a batch at its deadline. Credits that they hold go back into stock. */
static void expire(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t i;

	b->expired = true;
	for (unsigned q = 0; q < PAGE_QUEUES; q++) {
		while ((i = page_unqueue(b, q)) != CLIENT_NONE) {
			const struct page_work *p = &b->work[i];

			if (q == PAGE_PUBLISH)
				credit_put(ch, p->bytes,
					&(struct stock_credit){p->at.place, p->at.generation});
			if (!fetch_stop(b, i))
				page_done(b, i, PC_TIMEOUT);
		}
	}
	while ((i = run_unqueue(b)) != CLIENT_NONE)
		for (uint32_t left = b->work[i].run_pages; left; left--, i = b->work[i].next)
			page_done(b, i, PC_TIMEOUT);
}

/*
 * Ends all pages at the end of the grace, except those that a NIC may still write into the caller's
 * memory.
 */
static void abandon(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;

	b->abandoned = true;
	for (uint32_t i = 0; i < ch->requests; i++)
		if (ch->request[i].kind == REQUEST_LOOK && ch->request[i].batch == b)
			ch->request[i].batch = NULL;
	for (uint32_t i = 0; i < b->count; i++) {
		const struct page_work *p = &b->work[i];

		if (p->phase == PAGE_IN_FLIGHT && !(p->pieces_out && p->flags & PAGE_REGISTERED))
			ch->request[p->request].batch = NULL;
		else if (p->phase != PAGE_LOOKING)
			continue;
		page_done(b, i, PC_TIMEOUT);
	}
}

void batch_step(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;

	if (!b->expired && ch->now_ns >= b->deadline_ns)
		expire(b);
	if (b->expired && !b->abandoned && ch->now_ns >= b->deadline_ns + ANSWER_GRACE_NS)
		abandon(b);
	if (!b->expired) {
		if (page_waits(b, PAGE_LOOK))
			lookup_step(b);
		if (page_waits(b, PAGE_RUN) || b->runs.head != CLIENT_NONE)
			run_step(b);
		if (page_waits(b, PAGE_FETCH) || page_waits(b, PAGE_STAGE))
			fetch_step(b);
		if (b->kind == BATCH_PEEK)
			peek_step(b);
		else if (page_waits(b, PAGE_HEAD))
			head_step(b);
		if (b->kind == BATCH_SET)
			set_step(b);
		else if (b->kind == BATCH_REMOVE)
			remove_step(b);
		else if (page_waits(b, PAGE_DISK))
			disk_step(b);
	}
	if (b->left && b->left == b->twins)
		give_up_twins(b);
}

/*
 * Ends every page that is not done with `result`. No READ into the caller's memory is in flight any
 * more.
 */
void batch_gone(struct pc_batch *b, enum pc_result result)
{
	for (unsigned q = 0; q < PAGE_QUEUES; q++)
		while (page_unqueue(b, q) != CLIENT_NONE)
			continue;
	while (run_unqueue(b) != CLIENT_NONE)
		continue;
	for (uint32_t i = 0; i < b->count; i++)
		if (b->work[i].phase != PAGE_DONE)
			page_done(b, i, result);
	b->twins = 0;
	b->expired = b->abandoned = true;
}
