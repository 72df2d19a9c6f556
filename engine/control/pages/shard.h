/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This host's shard of the directory, with the buckets of abi/bucket.h. Readers take no lock: other
 * hosts READ it over RDMA, clients on this host map it read-only.
 */
#ifndef CONTROL_SHARD_H
#define CONTROL_SHARD_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/control/pages/ghost.h"
#include "numa/huge.h"

struct shard_state;

/* Information about one bucket that only the owner has; readers do not see it. */
struct shard_side {
	/* bit i set: this bucket is the second candidate bucket of the key of entry i */
	uint8_t second;
	/*
	 * number of entries that have this bucket as first candidate but are stored in their second
	 * one
	 */
	uint8_t away;
	uint16_t slot[BUCKET_ENTRIES]; /* map_slot_of() the key of each entry */
};

struct shard {
	struct huge memory;
	struct bucket *bucket;
	/* what the next process of the engine needs beside the buckets; not visible to readers */
	struct huge state_memory;
	struct shard_state *state;
	struct shard_side *side; /* array, one for each bucket */
	uint32_t bits;           /* log2 of the number of buckets, 6..31 */
	uint64_t entries;        /* number of live entries */
	uint64_t displaced;      /* entries that shard_displace() removed */
	struct ghosts ghosts;    /* of keys whose entries this host had */
};

/* Prefetches what an insert or remove of the key's entry reads, some entries ahead of it. */
static inline void shard_prefetch(const struct shard *shard, const struct page_key *key)
{
	uint32_t first = dir_bucket_first(key, shard->bits);

	__builtin_prefetch(&shard->bucket[first], 1);
	__builtin_prefetch(&shard->side[first], 1);
}

void shard_close(struct shard *shard);

/*
 * Inserts or replaces the entry of (key, ref). It goes into the first candidate bucket of the key,
 * else into the second. If both are full, entries of either are moved from their first candidate
 * bucket to their second, at most two in a row; each is written to its new bucket before its old
 * cell is overwritten, so that readers never miss it. On an error nothing has changed. -ENOSPC: no
 * room in these buckets. -EDQUOT: the page is on disk, and three quarters of the shard are in use.
 * -EINVAL: ref or generation is 0.
 */
int shard_insert(struct shard *shard, const struct page_key *key, uint32_t ref, uint32_t place,
	uint32_t generation);
/*
 * Removes the entry of (key, ref) only if it also has this place and generation, so that a late
 * remove never deletes a newer entry. Returns whether an entry was removed.
 */
bool shard_remove(struct shard *shard, const struct page_key *key, uint32_t ref, uint32_t place,
	uint32_t generation);
/* Copies up to `max` entries of the key to `ret` and returns how many it copied. */
unsigned shard_find(
	const struct shard *shard, const struct page_key *key, struct dir_entry *ret, unsigned max);
/*
 * Looks at `buckets` buckets, starting at *cursor (0 at first; it wraps), and removes entries for
 * whose ref alive() returns false. Returns how many were removed. Called in slices after a member
 * died. Five parameters and a callback with its context.
 */
unsigned shard_sweep(struct shard *shard, uint32_t *cursor, uint32_t buckets,
	bool (*alive)(void *context, uint32_t ref), void *context);
/*
 * Removes one entry for whose ref alive() returns false from the candidate buckets of the key, to
 * make room for one of the key. False: they have none.
 */
bool shard_yield(struct shard *shard, const struct page_key *key,
	bool (*alive)(void *context, uint32_t ref), void *context);

/*
 * Removes one entry of another key from the candidate buckets of the key, of a page on disk if
 * there is one: readers find that page at another owner, or miss it. False: they have none.
 */
bool shard_displace(struct shard *shard, const struct page_key *key);

/*
 * The digest of a slot of the map: the sum of this over its entries. A holder computes it from its
 * index, the owner from its shard.
 */
static inline uint64_t shard_entry_hash(uint32_t tag, uint32_t place, uint32_t generation)
{
	return map_mix(((uint64_t)tag << 32 | place) + map_mix(generation));
}
/*
 * Adds the entries of holder `ref` in `buckets` buckets, starting at *cursor (0 at first; it
 * wraps), to the digests of their slots of the map; `sums` has MAP_SLOTS. An entry that moves
 * between two calls can be counted twice or not at all. Five parameters: `cursor` and `buckets` are
 * one slice of the shard.
 */
void shard_digest(const struct shard *shard, uint32_t *cursor, uint32_t buckets, uint32_t ref,
	uint64_t *sums);

/* A part of a shard whose entries are looked at one by one. */
struct shard_part {
	uint32_t bucket;      /* the next one to look at; past the last bucket of the shard: 0 */
	uint32_t buckets;     /* how many more to look at */
	unsigned entry;       /* of the bucket, the next one to look at; 0 at first */
	const uint8_t *slots; /* a bit for each slot whose entries are wanted; NULL: all are */
	uint32_t first;       /* first candidate bucket of the entry that was returned */
};

/*
 * Returns the next entry of holder `ref` in the part, and moves the part on; NULL: there is none.
 * Valid until the shard is changed.
 */
const struct dir_entry *shard_show(
	const struct shard *shard, struct shard_part *part, uint32_t ref);

#endif
