/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory shard: a power-of-two number of 64-byte buckets with four entries each, in registered
 * memory.
 *
 * The owner's control plane is the only writer. Readers READ one bucket, or load it on the owner's
 * host, without a lock. A torn or stale bucket is harmless, because the page head decides whether a
 * page is valid. An entry is in the first bucket of its key or, if that was full, in the second.
 * Each of the two is computed from the other and the tag alone, so the owner can move an entry
 * without knowing the key.
 *
 * A reader looks in the second bucket only if the first one has no empty entry. A deleted entry
 * becomes a tombstone (tag 0, generation 1): the writer may reuse it, but to a reader it is not
 * empty.
 */
#ifndef ABI_BUCKET_H
#define ABI_BUCKET_H

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <string.h>

#include "engine/abi/page.h"

#define BUCKET_ENTRIES 4

/*
 * One location: the engine `ref` has a page whose key has the tag `tag` at `place`, as long as the
 * page head there has the generation `generation`.
 */
struct dir_entry {
	uint32_t tag;        /* 32 bits of the page key; never 0 in an entry that is in use */
	uint32_t ref;        /* low 32 bits of the holder's incarnation; never 0 */
	uint32_t place;      /* place of the page, see abi/page.h */
	uint32_t generation; /* generation that the page head at `place` must have */
};
static_assert(sizeof(struct dir_entry) == 16, "four to a bucket");

struct bucket {
	/* owner: control plane of the shard's engine; any thread of any host may read it */
	alignas(64) struct dir_entry entry[BUCKET_ENTRIES];
};
static_assert(sizeof(struct bucket) == 64, "one cache line, one READ");

/* Returns the tag of a page key: 32 of its bits. */
static inline uint32_t dir_tag(const struct page_key *key)
{
	uint32_t tag = (uint32_t)key->word[1];

	return tag ? tag : 1;
}

/* The first bucket of a key. `mask`: number of buckets in the shard, a power of two, - 1. */
static inline uint32_t dir_bucket_masked(const struct page_key *key, uint32_t mask)
{
	return (uint32_t)(key->word[0] >> 8) & mask;
}

/* The same. `bits`: log2 of the number of buckets, 0..31, from the owner's member record. */
static inline uint32_t dir_bucket_first(const struct page_key *key, uint32_t bits)
{
	return dir_bucket_masked(key, (1u << bits) - 1);
}

/*
 * Returns the other one of the two buckets in which an entry may be; applied twice it gives the
 * first one again.
 */
static inline uint32_t dir_bucket_other(uint32_t bucket, uint32_t tag, uint32_t bits)
{
	uint32_t mix = tag * 0x9e3779b1u;

	return (bucket ^ (mix >> 3 | 1)) & ((1u << bits) - 1);
}

/* True if the entry was never used. The tombstone of a removed entry is not empty. */
static inline bool dir_entry_empty(const struct dir_entry *e)
{
	return e->tag == 0 && e->generation == 0;
}

/*
 * Copies a bucket that the owner may be writing. Each 8-byte half of an entry is loaded at once, so
 * a half is never torn.
 */
static inline struct bucket bucket_load_once(const struct bucket *shared)
{
	struct bucket copy;
	const uint64_t *from = (const uint64_t *)(const void *)shared;
	uint64_t *to = (uint64_t *)(void *)&copy;

	for (unsigned i = 0; i < sizeof(copy) / sizeof(*to); i++)
		to[i] = shm_load64(&from[i]);
	return copy;
}

/*
 * Copies a bucket until two copies are equal, at most 16 times; then the last copy is used as it
 * is, because the page head decides. A single copy can combine the tag of one entry with the place
 * of the next, or see an entry as empty that is filled during the copy, and so miss a page that is
 * present. The final fence also orders the load of a second bucket after this one, because entries
 * move from the first to the second bucket only.
 */
static inline struct bucket bucket_load(const struct bucket *shared)
{
	struct bucket before = bucket_load_once(shared), after = before;

	for (unsigned tries = 0; tries < 16; tries++) {
		shm_fence_load();
		after = bucket_load_once(shared);
		if (memcmp(&before, &after, sizeof(after)) == 0)
			break;
		before = after;
	}
	shm_fence_load();
	return after;
}

/* The entries of a private copy of a bucket that have the tag, a bit each. */
static inline uint32_t bucket_match(const struct bucket *b, uint32_t tag)
{
#if defined(__SSE2__)
	const __m128i *e = (const __m128i *)(const void *)b->entry;
	__m128i low = _mm_unpacklo_epi32(_mm_load_si128(&e[0]), _mm_load_si128(&e[1]));
	__m128i high = _mm_unpacklo_epi32(_mm_load_si128(&e[2]), _mm_load_si128(&e[3]));
	__m128i equal = _mm_cmpeq_epi32(_mm_unpacklo_epi64(low, high), _mm_set1_epi32((int)tag));

	return (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(equal));
#else
	uint32_t found = 0;

	for (unsigned k = 0; k < BUCKET_ENTRIES; k++)
		found |= (uint32_t)(b->entry[k].tag == tag) << k;
	return found;
#endif
}
static_assert(offsetof(struct dir_entry, tag) == 0 && BUCKET_ENTRIES == 4, "see bucket_match()");

static inline bool bucket_has_empty(const struct bucket *b)
{
	for (unsigned i = 0; i < BUCKET_ENTRIES; i++)
		if (dir_entry_empty(&b->entry[i]))
			return true;
	return false;
}

#endif
