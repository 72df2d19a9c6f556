/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page memory of one rail: which units are free, which page lies where, who goes next.
 * Control plane only, except that clients write payload into slots they hold credits for.
 *
 * The pool is cut into chunks; a chunk belongs to one size class (a page size in units) at a time
 * and holds as many slots of it as fit. A class that runs dry takes a free chunk, else its own
 * coldest pages are evicted, else a chunk is taken from the class that has most. A slot is
 *
 *   FREE -> CREDIT (handed to a client) -> PAGE (published) -> LIMBO (taken away) -> FREE
 *                 \-> FREE (returned)
 *
 * Eviction is SIEVE (Zhang et al., NSDI'24): one FIFO and a hand a class, a visited bit a page.
 * All calls are O(1), amortised, except pool_reclaim_chunk().
 */
#ifndef CONTROL_POOL_H
#define CONTROL_POOL_H

#include "engine/abi/page.h"
#include "numa/huge.h"

struct pool;

struct pool_options {
	unsigned rail;
	uint64_t bytes;
	int numa_node;
	bool want_huge;
	uint64_t limbo_ns;
};

/* 4 MiB to 1 TiB; what does not fill a chunk is left out. -EINVAL, or what huge_open() says. */
int pool_open(const struct pool_options *options, struct pool **ret_pool);
void pool_close(struct pool *pool);

const struct huge *pool_memory(const struct pool *pool);
const struct huge *pool_heads(const struct pool *pool);
uint64_t pool_page_bytes_max(const struct pool *pool); /* the largest page this pool can hold */

/*
 * FREE -> CREDIT. 0; -ENOSPC: nothing free now (evict, or wait for limbo); -EMSGSIZE: larger than
 * pool_page_bytes_max(), or 0 bytes. *ret_generation is what the directory entry will carry.
 */
int pool_take(struct pool *pool, uint32_t page_bytes, uint64_t now_ns, uint32_t *ret_place,
	uint32_t *ret_generation);
/*
 * CREDIT -> LIMBO (somebody may still be writing to it). -EINVAL: (place, generation) is no
 * credit.
 */
int pool_return(struct pool *pool, uint32_t place, uint32_t generation, uint64_t now_ns);
/*
 * CREDIT -> PAGE: writes the head. -EINVAL: no such credit, length is 0 or exceeds its class, or
 * the key is all zero.
 */
int pool_publish(struct pool *pool, uint32_t place, uint32_t generation, const struct page_key *key,
	uint32_t length);
/* PAGE -> LIMBO: bumps the generation. -EINVAL: not a page of that generation. */
int pool_retire(struct pool *pool, uint32_t place, uint32_t generation, uint64_t now_ns);
/* A page was read. Places that are no page are ignored: hints come from other hosts. */
void pool_touch(struct pool *pool, uint32_t place);

struct pool_victim {
	struct page_key key;
	uint32_t place;
	uint32_t generation;
	uint32_t length;
};

/*
 * Up to `max` pages that should go so that pages of `page_bytes` can come; they stay PAGE until the
 * caller retires them (after unpublishing). Chooses within the class, or all pages of one chunk of
 * the largest other class when the class has none.
 */
unsigned pool_victims(
	struct pool *pool, uint32_t page_bytes, unsigned max, struct pool_victim *ret_victims);

/*
 * Slots of that size that pool_take() would find without evicting, not counting those that it would
 * move out of limbo first; and how many rest in limbo, whatever their size.
 */
uint32_t pool_free(const struct pool *pool, uint32_t page_bytes);
uint32_t pool_limbo(const struct pool *pool);
uint64_t pool_pages(const struct pool *pool);      /* published now */
uint64_t pool_used_bytes(const struct pool *pool); /* of the slots of these pages */
/* When the oldest slot leaves limbo; UINT64_MAX: limbo is empty. */
uint64_t pool_limbo_until(const struct pool *pool);

#endif
