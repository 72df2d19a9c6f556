/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch from the call to the results: makes it, starts the steps of its pages, ends it. page.c
 * decides what a page does after each step. Channel thread.
 *
 * After the deadline nothing new is posted. Answers are awaited for ANSWER_GRACE_NS more. After
 * that only READs into the caller's own memory are awaited, because the NIC may still write there.
 */
#include "config/clock.h"
#include "config/likely.h"
#include "engine/abi/page.h"
#include "engine/client/batch.h"
#include "engine/client/cache.h"
#include "engine/client/channel.h"
#include "engine/client/clear.h"
#include "engine/client/constants.h"
#include "engine/client/credit.h"
#include "engine/client/disk.h"
#include "engine/client/error.h"
#include "engine/client/fetch.h"
#include "engine/client/head.h"
#include "engine/client/lookup.h"
#include "engine/client/map.h"
#include "engine/client/page.h"
#include "engine/client/pages.h"
#include "engine/client/peek.h"
#include "engine/client/peercache.h"
#include "engine/client/request.h"
#include "engine/client/run.h"
#include "engine/client/session.h"
#include "engine/client/set.h"
#include "engine/client/statistics.h"

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

/* ---- the start ------------------------------------------------------------------------------ */

/*
 * set: makes the second page of a key in the batch a twin of the first, so that the key is stored
 * once.
 */
static void find_twins(struct pc_batch *b)
{
	uint32_t slots = 2, *slot = b->twin_table;

	while (slots < 2 * b->count)
		slots *= 2;
	memset(slot, 0xff, slots * sizeof(*slot));
	for (uint32_t i = 0; i < b->count; i++) {
		struct page_work *p = &b->work[i];
		uint32_t at = (uint32_t)p->key.word[1] & (slots - 1);

		if (p->phase == PAGE_DONE)
			continue;
		while (slot[at] != CLIENT_NONE && !page_key_equal(&b->work[slot[at]].key, &p->key))
			at = (at + 1) & (slots - 1);
		if (slot[at] == CLIENT_NONE) {
			slot[at] = i;
			continue;
		}
		p->phase = PAGE_TWIN;
		p->twin = slot[at];
		b->twins++;
	}
}

/*
 * Plans the pages [i, end) whose locations the cache has; the others go on one by one. Returns
 * their number.
 */
static uint32_t plan(struct pc_batch *b, uint32_t i, uint32_t end)
{
	struct pc_channel *ch = b->channel;
	uint32_t here = ch->session->ref, others = 0, slot = 0, way;
	/* alike: the holder to which `slot` belongs, another host on the map; 0: none yet */
	uint32_t holder = 0;
	struct cache_set *cache = ch->cache;
	bool alike = b->alike;

	for (; i < end; i++) {
		struct page_work *p = &b->work[i];
		uint32_t set = p->cached; /* until here the set's number, see keys.c */
		const struct cache_entry *e =
			likely(p->regular) ? cache_entry_in(&cache[set], &p->key, &way) : NULL;
		struct location at;

		if (unlikely(!e || (e->at.ref != holder &&
					   (e->at.ref == here || !map_by_ref(ch, e->at.ref))))) {
			others++;
			if (p->phase != PAGE_DONE)
				lookup_begin(b, i);
			continue;
		}
		at = e->at;
		if (unlikely(at.ref != holder)) {
			slot = run_slot(at.ref, p->bytes);
			holder = alike ? at.ref : 0;
		}
		p->at = at;
		p->cached = set * CACHE_WAYS + way;
		run_add(b, i, slot, 0, alike);
	}
	return others;
}

/* Begins the look-ups of a get. Most pages have a location in the cache and are READ at once. */
static void begin_get(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t others = 0;

	b->cache_changes = ch->cache_changes;
	for (uint32_t i = 0; i < b->count; i += RUN_PLAN_MAX) {
		uint32_t end = i + RUN_PLAN_MAX < b->count ? i + RUN_PLAN_MAX : b->count;

		others += plan(b, i, end);
		run_add_end(b);
	}
	ch->counts.lookups_cached += b->count - others;
}

/* Ends a page that no set can store here. */
static void page_too_large(struct pc_batch *b, uint32_t i)
{
	error_set(0,
		"page %u has %u bytes; the pools of this host take pages of at most %llu bytes: raise engine.pool_bytes, of which that is about 1/32",
		i, b->work[i].bytes, (unsigned long long)b->channel->session->page_bytes_max);
	page_done(b, i, PC_INVALID);
}

void batch_begin(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;

	ch->now_ns = clock_monotonic_ns();
	credit_return(ch, ch->now_ns > STOCK_IDLE_NS ? ch->now_ns - STOCK_IDLE_NS : 0, 0);
	if (b->kind == BATCH_GET || b->kind == BATCH_EXISTS) {
		(b->kind == BATCH_GET ? begin_get : look_all)(b);
		return;
	}
	if (b->kind == BATCH_SET) {
		find_twins(b);
		b->first_rail = ch->turn;
		ch->turn += b->count;
	}
	for (uint32_t i = 0; i < b->count; i++) {
		struct page_work *p = &b->work[i];

		if (p->phase == PAGE_DONE || p->phase == PAGE_TWIN)
			continue;
		if (b->kind == BATCH_REMOVE)
			page_queue(b, i, PAGE_REMOVE);
		else if (b->kind == BATCH_SET && p->bytes > ch->session->page_bytes_max)
			page_too_large(b, i);
		else
			lookup_begin(b, i);
	}
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void give_up_twins(struct pc_batch *b)
{
	uint32_t first;
	bool same;

	for (uint32_t i = 0; i < b->count && b->twins; i++) {
		if (b->work[i].phase != PAGE_TWIN)
			continue;
		b->twins--;
		first = b->work[i].twin;
		same = b->results[first] != PC_HIT || b->work[first].bytes == b->work[i].bytes;
		if (same)
			page_done(b, i, b->results[first]);
		else
			page_differs(b, i, b->work[first].bytes);
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
		else if (b->kind == BATCH_CLEAR)
			clear_step(b);
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
