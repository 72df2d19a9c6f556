/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ghosts: the keys of pages that were evicted lately, without the pages. A page that is stored
 * again while its ghost is there was evicted too early. It is then a page that was used again, and
 * the queue that it was evicted from gets more room (as in ARC).
 *
 * The owner of a key has its ghost, because another host may store the page. The host that stores a
 * page has the weight. The control plane's thread only; the laboratory (tools/bench_policy.c) too.
 */
#ifndef CONTROL_GHOST_H
#define CONTROL_GHOST_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/abi/page.h"

/* Why the entry of a page goes, and what is known of a page that is stored: on the wire, too. */
enum evicted {
	EVICTED_NOT,  /* not evicted lately */
	EVICTED_NEW,  /* from the queue of pages that were used once */
	EVICTED_USED, /* from that of pages that were used again */
	EVICTED_KINDS,
	/* not evicted: another host has just stored the page, too; in answers only */
	EVICTED_COPY = EVICTED_KINDS
};

#define GHOST_SOON_S 60u /* a page that is stored again after less time was evicted far too early */

/* A table of cells of 4 bytes in buckets of 64 bytes. All zero: without memory, as at first. */
struct ghosts {
	uint32_t *cell;
	uint64_t cells;                  /* a power of two, or 0 */
	uint64_t clock;                  /* ghosts that were put */
	uint64_t clock_at[GHOST_SOON_S]; /* `clock` at the last seconds, by their number */
	uint64_t second;                 /* the next one */
	uint64_t soon; /* ghosts taken that were surely younger than GHOST_SOON_S */
};

/*
 * Puts the ghost of a page. The table remembers three times `entries` evictions; it grows with
 * that. Without memory for it the ghost is left out.
 */
void ghost_put(
	struct ghosts *ghosts, const struct page_key *key, enum evicted from, uint64_t entries);
/* Takes the ghost out. EVICTED_NOT: there is none. One in 30,000 keys gets that of another one. */
enum evicted ghost_take(struct ghosts *ghosts, const struct page_key *key, uint64_t entries);
/* Called at each heartbeat with the second of any one clock, by which ages of ghosts are known. */
void ghosts_tick(struct ghosts *ghosts, uint64_t second);
void ghosts_close(struct ghosts *ghosts);

/*
 * How much slower a page ages that was used again, and whether new pages are worth the room of old
 * ones. `pages`, below: that the host holds.
 */
struct used_weight {
	uint32_t value; /* in units of 1/USED_WEIGHT_ONE; USED_WEIGHT_MIN at first */
	uint64_t evicted[EVICTED_KINDS]; /* lately */
	/*
	 * true: pages come back so late that order by last use has evicted nearly all of them. What
	 * is here stays, and new pages are evicted first: a part of all has hits then, not none
	 */
	bool keeps;
	/* lately: uses of pages, and pages that were stored again; both 0: no page has come back */
	uint64_t used, late;
	uint64_t since, since_late; /* evictions since `keeps` changed; stored again since then */
};

#define USED_WEIGHT_ONE 65536u
#define USED_WEIGHT_MIN (2 * USED_WEIGHT_ONE)
#define USED_WEIGHT_MAX (16 * USED_WEIGHT_ONE)
#define KEEPS_BUT 32u /* one of 32 batches is stored like any other while old pages are kept */

/* A page was evicted from this queue; a page is stored again whose ghost is of this queue. */
void used_weight_evicted(struct used_weight *weight, enum evicted from, uint64_t pages);
void used_weight_again(struct used_weight *weight, enum evicted from, uint64_t pages);
/*
 * Whether the pages of a client's batch of this number are to be evicted first. Some batches are
 * not: old pages that nothing uses have to leave at last. As long as no page at all has come back,
 * old pages are kept, too: they are the heads of what follows, and a tail is of no use without its
 * head.
 */
static inline bool used_weight_keeps(const struct used_weight *weight, uint32_t batch)
{
	return weight->keeps ? batch % KEEPS_BUT : !weight->used && !weight->late;
}

#endif
