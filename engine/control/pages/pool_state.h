/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pool keeps about its chunks and slots in shared memory beside the page heads, so that the
 * engine's next process can adopt the pool: the size class of each chunk, and who may be writing to
 * a slot. Written by the control plane's thread only; no client and no other host maps it. Each
 * word is written at once, in the order that the comments name, because the engine may be killed
 * between any two stores.
 */
#ifndef CONTROL_POOL_STATE_H
#define CONTROL_POOL_STATE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define POOL_STATE_MAGIC 0x50435354u /* "PCST" */
#define POOL_STATE_LAYOUT 1u         /* raised when a field changes its place or meaning */

/* Owners of a slot. Every other number is that of a channel, see warm.h. */
#define POOL_OWNER_NONE 0u
#define POOL_OWNER_DISK UINT32_MAX /* the disk tier reads a page into the slot */

/*
 * Followed by `chunks` words, the page size of each chunk in units (0: the chunk has no class and
 * no slot in use), and then by one word for each unit of the pool: the owner of the slot that
 * starts there. Words of slots that were never used take no memory.
 */
struct pool_state {
	uint32_t magic, layout;
	uint32_t rail, chunks, chunk_units;
	int32_t numa_node; /* of the memory; -1: any */
	uint64_t limbo_ns; /* largest limbo time of any process that used the pool */
	/*
	 * huge_number() of the memory, of the heads and of the file that numbers the owners: parts
	 * of different pools are never taken for one pool
	 */
	uint64_t memory, heads, owners;
	uint64_t spare;
};
static_assert(sizeof(struct pool_state) == 64, "the tables behind it are aligned");

/* Bytes of the state of a pool with this number of chunks and of units in one. */
static inline size_t pool_state_bytes(uint32_t chunks, uint32_t chunk_units)
{
	return sizeof(struct pool_state) + chunks * sizeof(uint32_t) +
	       (size_t)chunks * chunk_units * sizeof(uint32_t);
}

static inline uint32_t *pool_state_units(struct pool_state *state)
{
	return (uint32_t *)(state + 1);
}

static inline uint32_t *pool_state_owners(struct pool_state *state)
{
	return pool_state_units(state) + state->chunks;
}

#endif
