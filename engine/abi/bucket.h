/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A directory shard: a power-of-two number of 64-byte buckets of four entries, in registered
 * memory.
 *
 * The owner's control plane is the only writer; readers READ one bucket (or load it, on the owner's
 * host) without any lock. A bucket read torn or stale is harmless: the page head decides. A key
 * belongs to its first bucket or, when that is full, to its second; the two are computed from each
 * other and the tag alone, so the owner can move an entry without knowing the key.
 *
 * A reader asks the second bucket only when the first one has no empty entry. A deleted entry
 * becomes a tombstone (tag 0, generation 1), which is free for the writer but not empty for the
 * reader.
 */
#ifndef ABI_BUCKET_H
#define ABI_BUCKET_H

#include <string.h>

#include "engine/abi/page.h"

#define BUCKET_ENTRIES 4

/* "Node `ref` has the page of `tag` at `place`, as long as its generation is `generation`." */
struct dir_entry {
	uint32_t tag;        /* 32 bits of the key; never 0 in a live entry */
	uint32_t ref;        /* low 32 bits of the producing engine's incarnation; never 0 */
	uint32_t place;      /* abi/page.h */
	uint32_t generation; /* of the page head at `place` */
};
static_assert(sizeof(struct dir_entry) == 16, "four to a bucket");

struct bucket {
	/* owner: control plane of the shard's node; anybody reads */
	alignas(64) struct dir_entry entry[BUCKET_ENTRIES];
};
static_assert(sizeof(struct bucket) == 64, "one cache line, one READ");

static inline uint32_t dir_tag(const struct page_key *key)
{
	uint32_t tag = (uint32_t)key->word[1];

	return tag ? tag : 1;
}

/* `bits`: log2 of the shard's buckets, 0..31, from the owner's member record. */
static inline uint32_t dir_bucket_first(const struct page_key *key, uint32_t bits)
{
	return (uint32_t)(key->word[0] >> 8) & ((1u << bits) - 1);
}

/* The other bucket of an entry; its own inverse. */
static inline uint32_t dir_bucket_other(uint32_t bucket, uint32_t tag, uint32_t bits)
{
	uint32_t mix = tag * 0x9e3779b1u;

	return (bucket ^ (mix >> 3 | 1)) & ((1u << bits) - 1);
}

static inline bool dir_entry_empty(const struct dir_entry *e)
{
	return e->tag == 0 && e->generation == 0;
}

/* A copy of a bucket that the owner may be writing; entry halves are loaded whole. */
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
 * The same, loaded until two loads agree: one load alone can take the tag of one entry with the
 * place of the next, or see an entry empty that is filled before the load ends, and so miss a page
 * that is there. The fence also keeps a second bucket's load behind this one's: entries move from
 * first to second only. Bounded; what is still moving then is taken as it is, the page head
 * decides.
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

static inline bool bucket_has_empty(const struct bucket *b)
{
	for (unsigned i = 0; i < BUCKET_ENTRIES; i++)
		if (dir_entry_empty(&b->entry[i]))
			return true;
	return false;
}

#endif
