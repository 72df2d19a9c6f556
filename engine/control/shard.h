/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This host's shard of the directory: the table of abi/bucket.h, written by the control plane alone
 * and read by everybody else without asking.
 */
#ifndef CONTROL_SHARD_H
#define CONTROL_SHARD_H

#include "engine/abi/bucket.h"
#include "numa/huge.h"

struct shard {
	struct huge memory;
	struct bucket *bucket;
	struct shard_side *side; /* private to shard.c: 2 bytes per bucket */
	uint32_t bits;           /* log2 of the buckets, 6..31 */
	uint64_t entries;        /* live now */
	uint64_t dropped;        /* inserts that found no room anywhere */
};

/* `entries`: how many it should hold at half load. */
int shard_open(uint64_t entries, int numa_node, bool want_huge, struct shard *ret_shard);
void shard_close(struct shard *shard);

/*
 * Inserts or replaces the entry of (key, ref). First bucket, else second, else moves entries of
 * either, up to two in a row, from their first bucket to their second (written there before they
 * are overwritten here: readers never miss them). -ENOSPC: no room; counted in dropped, and nothing
 * else changed. -EINVAL: ref or generation is 0.
 */
int shard_insert(struct shard *shard, const struct page_key *key, uint32_t ref, uint32_t place,
	uint32_t generation);
/*
 * Removes the entry only if it is (ref, place, generation): a late remove never takes a newer one.
 * Returns whether something was removed.
 */
bool shard_remove(struct shard *shard, const struct page_key *key, uint32_t ref, uint32_t place,
	uint32_t generation);
/* All entries of the key; up to `max`. */
unsigned shard_find(
	const struct shard *shard, const struct page_key *key, struct dir_entry *ret, unsigned max);
/*
 * Looks at `buckets` buckets from *cursor on (0 at first; wraps) and removes entries whose ref
 * `alive` denies. Returns how many were removed. Called in slices after a member died.
 */
unsigned shard_sweep(struct shard *shard, uint32_t *cursor, uint32_t buckets,
	bool (*alive)(void *context, uint32_t ref), void *context);

#endif
