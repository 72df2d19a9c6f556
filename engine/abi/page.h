/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page's place in a pool, and the page head that says whose bytes lie there.
 *
 * Heads stand in a dense array beside each pool, one per PAGE_UNIT; a page's head is that of its
 * first unit. The owner's control plane writes heads; clients of the host map them read-only; other
 * hosts READ them after the payload. Equal heads after the payload prove that no overwrite had
 * begun while the payload was sampled, because the owner does, in this order:
 *
 *   take away   generation + 1 (release), hash zeroed   -> limbo -> free -> somebody overwrites
 *   publish     payload written, then hash and length, then the directory entry {place, generation}
 */
#ifndef ABI_PAGE_H
#define ABI_PAGE_H

#include "config/limits.h"
#include "engine/abi/ring.h"

/* 128-bit hash of (namespace, page key). All zero: no page. */
struct page_key {
	uint64_t word[2];
};

struct page_head {
	struct page_key key;
	uint32_t generation; /* bumped when the slot is taken away from its key */
	uint32_t length;     /* bytes of the page */
	uint32_t spare[2];   /* zero */
};
static_assert(sizeof(struct page_head) == 32, "fits a CQE, never straddles a cache line");

/* Where a page lies on its node: the rail whose pool it is, and the unit it starts at. */
static inline uint32_t place_make(uint32_t rail, uint32_t unit)
{
	return rail << 28 | unit;
}

static inline uint32_t place_rail(uint32_t place)
{
	return place >> 28;
}

static inline uint32_t place_unit(uint32_t place)
{
	return place & (PAGE_UNITS_MAX - 1);
}

static inline uint64_t place_offset(uint32_t place)
{
	return (uint64_t)place_unit(place) * PAGE_UNIT;
}

static inline bool page_key_equal(const struct page_key *a, const struct page_key *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1];
}

/*
 * Does `head` still describe the page that was asked for? Called on a copy that was taken after the
 * payload: by a READ that followed it, or by page_head_load() after shm_fence_load().
 */
static inline bool page_head_is(const struct page_head *head, const struct page_key *key,
	uint32_t generation, uint32_t length)
{
	return head->generation == generation && head->length == length &&
	       page_key_equal(&head->key, key);
}

/* Copy of a head in memory that another process may be writing. */
static inline struct page_head page_head_load(const struct page_head *shared)
{
	struct page_head head = {
		.key = {{shm_load64(&shared->key.word[0]), shm_load64(&shared->key.word[1])}},
		.generation = shm_load(&shared->generation),
		.length = shm_load(&shared->length)};

	return head;
}

/* Control plane only. The payload is complete; its bytes come before the head's. */
static inline void page_head_publish(
	struct page_head *shared, const struct page_key *key, uint32_t length)
{
	shm_fence_store();
	shm_store(&shared->length, length);
	shm_store64(&shared->key.word[0], key->word[0]);
	shm_store64(&shared->key.word[1], key->word[1]);
}

/*
 * Control plane only. Returns the new generation; after it the slot may go to limbo, not to
 * reuse.
 */
static inline uint32_t page_head_retire(struct page_head *shared)
{
	uint32_t generation = shm_load(&shared->generation) + 1;

	shm_store(&shared->generation, generation);
	shm_fence_store();
	shm_store64(&shared->key.word[0], 0);
	shm_store64(&shared->key.word[1], 0);
	shm_store(&shared->length, 0);
	return generation;
}

#endif
