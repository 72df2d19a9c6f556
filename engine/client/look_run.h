/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of look-ups, and of page heads to READ: made of the pages that need one member, and posted.
 * Channel thread.
 */
#ifndef CLIENT_LOOK_RUN_H
#define CLIENT_LOOK_RUN_H

#include <stdalign.h>

#include "engine/abi/map.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"

/* Adds the page to a run of look-ups at `m`. False: a run found no room and is queued again. */
bool look_add(struct pc_batch *b, uint32_t i, const struct map_member *m);
/* The same for the page head at page_work.at, of the holder `m`. */
bool look_add_head(struct pc_batch *b, uint32_t i, const struct map_member *m);
/*
 * Posts an open run, which then has no pages and may take others. False: no room; its pages are
 * queued again.
 */
bool look_close(struct pc_batch *b, struct look_open *o);
/* Posts the open runs; with `room` false, queues their pages again. False: a run found no room. */
bool look_close_all(struct pc_batch *b, bool room);

/*
 * Adds the page to an open run that has room for it, to READ this bucket for it. True: the run has
 * to be closed.
 */
static inline bool look_append(
	struct pc_batch *b, struct look_open *o, struct page_work *p, uint32_t i, uint32_t bucket)
{
	uint32_t at = o->pages++;

	o->bucket[at] = bucket;
	p->phase = PAGE_LOOKING;
	if (at)
		b->work[o->tail].next = i;
	else
		o->head = i;
	o->tail = i;
	return at == RUN_PAGES_MAX - 1;
}

/* The run for look-ups at this peer; compare page_at(). */
static inline struct look_open *look_at(struct pc_channel *ch, uint32_t peer)
{
	return __builtin_assume_aligned(
		&ch->look_open[peer % LOOK_OPEN_MAX], alignof(struct look_open));
}

#endif
