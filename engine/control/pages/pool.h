/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page memory of one rail: its free units, the place of each page and the choice of pages to
 * evict. Clients do not call these functions; they write payload into the slots they hold credits
 * for.
 *
 * The pool is cut into chunks. A chunk belongs to one size class (a page size in units) at a time
 * and holds as many slots of that size as fit. A class without a free slot takes a free chunk. If
 * there is none, it evicts its own coldest pages; if it has no pages, it takes a chunk from the
 * class with the most chunks. The states of a slot:
 *
 *   FREE -> CREDIT (handed to a client) -> PAGE (published) -> LIMBO (retired) -> FREE
 *                 \-> LIMBO (returned unused) -> FREE
 *
 * Every slot that was handed out once passes through LIMBO before it is handed out again. Readers'
 * leases depend on this (VALIDATION.md); so the pool itself reads the clock of limbo, after the
 * slot's new generation is visible.
 *
 * Eviction: each class has two queues, of new pages and of pages that were used again; a bit of
 * each page says that it was used (pool_evict.c). Every call is amortised O(1), except
 * pool_victims(): it looks at all chunks when it chooses one to drain.
 */
#ifndef CONTROL_POOL_H
#define CONTROL_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/abi/page.h"
#include "numa/huge.h"

struct pool;
struct pool_adopt; /* pages_inner.h */

struct pool_options {
	unsigned rail;
	uint64_t bytes;
	int numa_node;
	bool want_huge;
	/* L: how long a slot rests before it is handed out again, ns; fixed for the pool's life */
	uint64_t limbo_ns;
	bool want_state; /* keep a state with which the next process can adopt the pool */
	uint64_t owners; /* huge_number() of the file that numbers the owners of slots */
	/* the pool to adopt; NULL: a new one */
	const struct pool_adopt *adopt;
	/* CLOCK_MONOTONIC_RAW in ns. NULL: clock_raw_ns(); tests replace it */
	uint64_t (*clock_ns)(void);
};

void pool_close(struct pool *pool);

const struct huge *pool_memory(const struct pool *pool);
const struct huge *pool_heads(const struct pool *pool);
/* length of the longest page that this pool can hold */
uint64_t pool_page_bytes_max(const struct pool *pool);

/*
 * FREE -> CREDIT. Returns 0; -ENOSPC: no slot is free now (the caller evicts pages, or waits until
 * limbo ends); -EMSGSIZE: page_bytes is 0 or larger than pool_page_bytes_max(). *ret_generation is
 * the generation that the page's directory entry will carry.
 */
int pool_take(
	struct pool *pool, uint32_t page_bytes, uint32_t *ret_place, uint32_t *ret_generation);

/* Owners of a slot. Every other number is that of a channel, see warm.c. */
#define POOL_OWNER_NONE 0u
#define POOL_OWNER_COPIES (UINT32_MAX - 1u) /* a NIC of the engine READs a page into the slot */

/*
 * Records who may write to the slot of a credit; to be called before the slot is granted. Returning
 * the credit and pool_publish() end the ownership. No effect on a pool without a state.
 */
void pool_own(struct pool *pool, uint32_t place, uint32_t owner);

/*
 * CREDIT -> PAGE: writes the page head. -EINVAL: (place, generation) is no credit, length is 0 or
 * exceeds the page size of the slot's class, or the key is all zero.
 */
int pool_publish(struct pool *pool, uint32_t place, uint32_t generation, const struct page_key *key,
	uint32_t length);
/* A page whose head contains its CRC. length 0: none. */
struct pool_proven {
	struct page_key key;
	uint32_t place, generation, length, crc;
};
/*
 * Stores the CRC32C of the page that pool_publish() is to publish with the same arguments. The slot
 * stays CREDIT. -EINVAL: (place, generation) is no credit.
 */
int pool_prove(struct pool *pool, const struct pool_proven *page);

/*
 * Starts the limbo time of all slots that were returned or retired since the last call: one fence
 * and one reading of the clock for all of them. Until then they rest without end. To be called
 * after a batch; pool_take() and pool_limbo_left_ns() call it too.
 */
void pool_rest(struct pool *pool);
/*
 * The next page that pool_publish() makes follows that at `before`, published lately, in a prompt:
 * it is evicted before it. Without effect if `before` is no page.
 */
void pool_order(struct pool *pool, uint32_t before);
/*
 * Marks a page as used. False: there is no page at this place; touches are hints that also come
 * from other hosts.
 */
bool pool_touch(struct pool *pool, uint32_t place);

/*
 * The page at `place`, which was just published, is one that was used again: it was evicted from
 * that queue lately. False: it was known before, or it is no page.
 */
bool pool_again(struct pool *pool, uint32_t place, uint32_t generation);
/*
 * The page at `place`, which was just published, is a copy of one on another host, or behind a page
 * that is missing: it is evicted first, unless it is used. False: it is no page.
 */
bool pool_last(struct pool *pool, uint32_t place, uint32_t generation);
/*
 * Another host keeps the page, too: unless it was used it is evicted before others, but after those
 * of which this was said before. False: it is no page, or was used.
 */
bool pool_yield(struct pool *pool, uint32_t place, uint32_t generation);
/*
 * Why the page at `place` is here, enum page_why; PAGE_STORED from its publish on, until it is set,
 * once. Without effect, or PAGE_STORED, if no page of that generation is there.
 */
void pool_why_set(struct pool *pool, uint32_t place, uint32_t generation, unsigned why);
unsigned pool_why(const struct pool *pool, uint32_t place, uint32_t generation);
uint64_t pool_hot_bytes(const struct pool *pool); /* bytes of the slots of pages with PAGE_HOT */
/* The generation of the page at `place`, which may be any number; 0: no page is there. */
uint32_t pool_generation(const struct pool *pool, uint32_t place);
/* Why a page is not evicted: its readers have not read it yet, or clients want it. */
enum pool_pin { POOL_PIN_READER = 4, POOL_PIN_CLIENT = 16 };
/* Keeps the page from being evicted until pool_unpin() or pool_retire(). -EINVAL: not a page. */
int pool_pin(struct pool *pool, uint32_t place, uint32_t generation, enum pool_pin why);
void pool_unpin(struct pool *pool, uint32_t place, uint32_t generation, enum pool_pin why);
/* Sets the weight of pages that were used again (ghost.h). */
void pool_weigh(struct pool *pool, uint32_t used_weight);

struct pool_place {
	uint32_t place, generation;
};
/* Lists up to `max` pages: those used again, then the others, the newest first. O(pages). */
unsigned pool_recent(const struct pool *pool, unsigned max, struct pool_place *ret);

/* Prefetches the page head at this place, which need not be valid, for a publish. */
void pool_prefetch(const struct pool *pool, uint32_t place);

/*
 * pool_free(): slots for pages of that size that pool_take() would find without evicting. Slots
 * whose limbo has ended are not counted until pool_take() moves them out of limbo. pool_resting():
 * those that it will find when limbo ends, without those that are being written to disk even then.
 * pool_limbo(): slots of all sizes in limbo.
 */
uint32_t pool_free(const struct pool *pool, uint32_t page_bytes);
uint32_t pool_resting(const struct pool *pool, uint32_t page_bytes);
uint32_t pool_limbo(const struct pool *pool);
uint64_t pool_pages(const struct pool *pool);      /* number of pages that the pool holds now */
uint64_t pool_used_bytes(const struct pool *pool); /* bytes of the slots of these pages */
/* Returns the time, in ns, until the next slot leaves limbo; UINT64_MAX: no slot is in limbo. */
uint64_t pool_limbo_left_ns(struct pool *pool);

#endif
