/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page memory of one rail: its free units, the place of each page and the choice of pages to
 * evict. Only the control plane's thread calls these functions. Clients do not call them; they
 * write payload into the slots they hold credits for.
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
 * leases depend on this (engine/README.md); so the pool itself reads the clock of limbo, after the
 * slot's new generation is visible.
 *
 * Eviction is SIEVE (Zhang et al., NSDI'24): each class has one FIFO queue and one eviction hand,
 * each page has a visited bit. Every call is amortised O(1), except pool_victims(): it looks at all
 * chunks when it chooses one to drain.
 */
#ifndef CONTROL_POOL_H
#define CONTROL_POOL_H

#include "engine/abi/page.h"
#include "engine/control/pages/pool_state.h"
#include "numa/huge.h"

struct pool;

/*
 * A slot that a client or a disk may be writing to, although the engine that granted it has ended.
 */
struct pool_quarantined {
	uint32_t owner; /* as pool_own() recorded it */
	uint32_t place, generation;
	uint32_t length; /* of the slot, bytes */
};

/*
 * A pool that an earlier process of this engine left. The fields are descriptors of its memfds,
 * which pool_open() takes ownership of, and two functions.
 */
struct pool_adopt {
	int memory_fd, heads_fd, state_fd;
	/*
	 * Tells of an adopted page. Returns false if the page is not wanted, for example because
	 * another slot has the same key: its slot is then retired.
	 */
	bool (*page)(void *context, const struct page_head *head, uint32_t place);
	/*
	 * Tells of a slot in quarantine. It is a credit: pool_return() ends its quarantine, once
	 * its owner is known to write no more.
	 */
	void (*quarantined)(void *context, const struct pool_quarantined *slot);
	void *context;
};

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

/*
 * Opens a pool of options->bytes, 4 MiB to 1 TiB; a remainder smaller than a chunk is not used.
 * Returns 0, -EINVAL (bytes or rail out of range), -ENOMEM or the error of huge_open(). With
 * options->adopt also -EPROTO: the memory is of another layout or geometry, or its state is
 * damaged; nothing in it was changed, and the caller opens a new pool.
 */
int pool_open(const struct pool_options *options, struct pool **ret_pool);
void pool_close(struct pool *pool);

const struct huge *pool_memory(const struct pool *pool);
const struct huge *pool_heads(const struct pool *pool);
/* The memory of the state; NULL without one. */
const struct huge *pool_state_memory(const struct pool *pool);
/* length of the longest page that this pool can hold */
uint64_t pool_page_bytes_max(const struct pool *pool);

/*
 * FREE -> CREDIT. Returns 0; -ENOSPC: no slot is free now (the caller evicts pages, or waits until
 * limbo ends); -EMSGSIZE: page_bytes is 0 or larger than pool_page_bytes_max(). *ret_generation is
 * the generation that the page's directory entry will carry.
 */
int pool_take(
	struct pool *pool, uint32_t page_bytes, uint32_t *ret_place, uint32_t *ret_generation);
/*
 * Records who may write to the slot of a credit; to be called before the slot is granted.
 * pool_return() and pool_publish() end the ownership. No effect on a pool without a state.
 */
void pool_own(struct pool *pool, uint32_t place, uint32_t owner);
/*
 * CREDIT -> LIMBO, because the client may still be writing to the slot. -EINVAL: (place,
 * generation) is no credit.
 */
int pool_return(struct pool *pool, uint32_t place, uint32_t generation);
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
 * Evicts a page (slot state PAGE -> LIMBO): increments its generation. -EINVAL: `place` has no page
 * of that generation.
 */
int pool_retire(struct pool *pool, uint32_t place, uint32_t generation);
/*
 * Starts the limbo time of all slots that were returned or retired since the last call: one fence
 * and one reading of the clock for all of them. Until then they rest without end. To be called
 * after a batch; pool_take() and pool_limbo_left_ns() call it too.
 */
void pool_rest(struct pool *pool);
/*
 * Marks a page as visited. A place without a page is ignored, because touches are hints that also
 * come from other hosts.
 */
void pool_touch(struct pool *pool, uint32_t place);

struct pool_victim {
	struct page_key key;
	uint32_t place;
	uint32_t generation;
	uint32_t length;
};

/*
 * Chooses up to `max` pages to evict so that pages of `page_bytes` get room. They stay PAGE until
 * the caller has unpublished and then retired them. The victims are pages of the same class or,
 * when the class has none, pages of one chunk of another class, preferably of the class with the
 * most chunks.
 */
unsigned pool_victims(
	struct pool *pool, uint32_t page_bytes, unsigned max, struct pool_victim *ret_victims);
/*
 * As pool_victims(), but passes over pages that are neither on disk nor being written. May return
 * 0 although there are others, if these are very few.
 */
unsigned pool_victims_clean(
	struct pool *pool, uint32_t page_bytes, unsigned max, struct pool_victim *ret_victims);

/* The key of the page of that generation at `place`. False: there is none. */
bool pool_key(
	const struct pool *pool, uint32_t place, uint32_t generation, struct page_key *ret_key);

/* ---- what the disk tier needs (pool_disk.c) -------------------------------------------------- */

/*
 * Names up to `max` pages of this size that are neither on disk nor being written, in the order
 * they were published, until `pages` of this size are. A page is named once, and again when its
 * write has failed or the disk has lost it. Amortised O(1) for each page that is named.
 */
unsigned pool_ahead(struct pool *pool, uint32_t page_bytes, uint32_t pages, unsigned max,
	struct pool_victim *ret_victims);
/*
 * The bytes of a page are about to be written to disk: until pool_write_end() its slot is not
 * handed out, whatever becomes of the page. -EINVAL: no page is there, or it is being written.
 */
int pool_write_begin(struct pool *pool, uint32_t place, uint32_t generation);
/* `on_disk`: the page is on disk now; it is marked unless it is gone. */
void pool_write_end(struct pool *pool, uint32_t place, uint32_t generation, bool on_disk);
/* The page is on disk, or is not any more; no effect if it is gone. */
void pool_clean_set(struct pool *pool, uint32_t place, uint32_t generation, bool on_disk);
/* True if the page is on disk, is being written to it, or does not exist. */
bool pool_clean(const struct pool *pool, uint32_t place, uint32_t generation);
/* Keeps the page from being evicted until pool_unpin() or pool_retire(). -EINVAL: not a page. */
int pool_pin(struct pool *pool, uint32_t place, uint32_t generation);
void pool_unpin(struct pool *pool, uint32_t place, uint32_t generation);

/* ---- what the scrubber needs (pool_scrub.c) -------------------------------------------------- */

/*
 * Looks at up to `most` slots from *cursor on, which is 0 at first, and stops at the first page
 * with a CRC in its head. Moves *cursor on; 0 again: the end of the pool was reached. Returns the
 * number of slots looked at.
 */
unsigned pool_scrub_next(
	struct pool *pool, uint32_t *cursor, unsigned most, struct pool_proven *ret_page);
/*
 * The page of that generation at `place`. False: there is none, or its head contains no CRC; then
 * *ret_page is unchanged.
 */
bool pool_proven(
	const struct pool *pool, uint32_t place, uint32_t generation, struct pool_proven *ret_page);
/*
 * Returns the bytes of a page, until the end of the caller's turn; NULL: no page of that generation
 * is there.
 */
const void *pool_page(const struct pool *pool, uint32_t place, uint32_t generation);

/* Prefetches the page head at this place, which need not be valid, for a publish. */
void pool_prefetch(const struct pool *pool, uint32_t place);

/*
 * pool_free(): slots for pages of that size that pool_take() would find without evicting. Slots
 * whose limbo has ended are not counted until pool_take() moves them out of limbo. pool_limbo():
 * slots of all sizes in limbo.
 */
uint32_t pool_free(const struct pool *pool, uint32_t page_bytes);
uint32_t pool_limbo(const struct pool *pool);
uint64_t pool_pages(const struct pool *pool);      /* number of pages that the pool holds now */
uint64_t pool_used_bytes(const struct pool *pool); /* bytes of the slots of these pages */
/* Returns the time, in ns, until the next slot leaves limbo; UINT64_MAX: no slot is in limbo. */
uint64_t pool_limbo_left_ns(struct pool *pool);

#endif
