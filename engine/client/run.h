/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of pages: plans and posts them, takes their answers. Inline is what adds a page to those
 * that are planned together. Channel thread.
 */
#ifndef CLIENT_RUN_H
#define CLIENT_RUN_H

#include "config/likely.h"
#include "engine/abi/run.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/page.h"

struct client_request;

/*
 * run_add() adds a page to those that are planned together. run_add_end(), always in
 * the same step and with the same batch, makes runs of them and posts those. run_group_new() opens
 * group `slot` with a page; another group may have that slot, which is then posted with all others.
 */
void run_group_new(struct pc_batch *b, uint32_t i, uint32_t slot);
void run_add_end(struct pc_batch *b);
/* Posts waiting runs, plans the pages of PAGE_RUN into runs and posts those. */
void run_step(struct pc_batch *b);
/* Removes the first waiting run. Returns its first page; CLIENT_NONE: none. */
uint32_t run_unqueue(struct pc_batch *b);
/* `status` is the result of the pages in neither mask of `done`, and never OP_HIT. */
void run_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status);

/* Which attempt this is: pages of one run have made the same ones, and have as many to go. */
static inline uint32_t run_tries(const struct page_work *p)
{
	return (uint32_t)p->others << 16 | p->rails_tried;
}

/* The group of a page of the pool of rail 0 of this holder; those of the other rails follow. */
static inline uint32_t run_slot(uint32_t ref, uint32_t bytes)
{
	return (ref ^ bytes) * 0x9e3779b1u >> 27;
}

/* True if the group of the page's holder is for pages like this one. */
static inline bool run_fits(const struct run_group *g, const struct page_work *p,
	const struct pc_page *page, uint32_t tries)
{
	return p->bytes == g->bytes && page->segment_count == g->segments &&
	       !((p->to ^ g->to) >> OP_TO_BITS) && tries == g->tries &&
	       (!g->stride || page_stride(page) == g->stride);
}

/*
 * Adds a page, whose location is page_work.at, to the pages that this step plans together. `slot`:
 * run_slot(). `tries`: run_tries(), which is 0 at the first attempt. `alike`: no group of the
 * holder can be for other pages than this one, see pc_batch.alike.
 */
static inline void run_add(
	struct pc_batch *b, uint32_t i, uint32_t slot, uint32_t tries, bool alike)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	struct run_group *g;

	slot = (slot + place_rail(p->at.place)) % RUN_GROUPS_MAX;
	g = &ch->run_group[slot];
	p->phase = PAGE_RUN;
	/* the pool need not be compared: with one holder and length, each pool has its own slot */
	if (likely(p->at.ref == g->ref && (alike || likely(run_fits(g, p, &b->pages[i], tries))))) {
		b->work[g->tail].next = i;
		g->tail = i;
		g->pages++;
	} else if (likely(alike && !g->ref)) {
		/* the first page of a group that is for no others; so is what is not set here */
		ch->run_grouped |= 1u << slot;
		g->ref = p->at.ref;
		g->bytes = p->bytes;
		g->head = g->tail = i;
		g->pages = 1;
	} else {
		run_group_new(b, i, slot);
	}
}

#endif
