/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Epochs: what a clear of the cluster raises. Each group of namespaces has one, and all groups
 * together have one more. Both are hashed into the page key, so a client that has read the present
 * ones finds no page of before. The control plane writes them into the status segment; the higher
 * of two epochs is the newer one on every host (control/directory/epochs.c).
 *
 * An epoch is a counter in the upper half and, in the lower half, the ref of the engine that raised
 * it, so no two engines raise to the same one. 0: never raised.
 */
#ifndef ABI_EPOCH_H
#define ABI_EPOCH_H

#include <stdint.h>

#include "engine/abi/page.h"

#define EPOCHS_MAX 4096u      /* groups with an epoch; above it, all groups are raised */
#define EPOCH_ALL 0xffffffffu /* in the place of a group: all of them */
#define EPOCH_GROUP_MAX 0xffffffu
#define EPOCH_COUNTER_MAX (1u << 31)

/* Element 0 is that of all groups. Elements are added and raised, never removed or moved. */
struct epochs_shared {
	/* counts changes; stored after what has changed, so it is loaded first */
	uint32_t version;
	uint32_t count; /* elements in use, at least 1 */
	uint32_t group[EPOCHS_MAX + 1];
	uint32_t spare;
	uint64_t epoch[EPOCHS_MAX + 1];
};

/* What is hashed into the keys of a group. */
struct epoch {
	uint64_t all, group;
};

/* The number of a group, 24 bits: the bits of PAGE_GROUP_*, closed up. */
static inline uint32_t epoch_group(const struct page_key *key)
{
	return (uint32_t)((key->word[0] & PAGE_GROUP_0) >> 24 |
			  (key->word[1] & PAGE_GROUP_1) >> 32);
}

/* The element of the group; `count`: it has none. The segment is not trusted. */
static inline uint32_t epochs_find(
	const struct epochs_shared *shared, uint32_t count, uint32_t group)
{
	uint32_t i = 1;

	while (i < count && shm_load(&shared->group[i]) != group)
		i++;
	return i;
}

static inline uint32_t epochs_count(const struct epochs_shared *shared)
{
	uint32_t count = shm_load(&shared->count);

	return count <= EPOCHS_MAX ? count : EPOCHS_MAX + 1;
}

static inline struct epoch epoch_load(const struct epochs_shared *shared, uint32_t group)
{
	uint32_t count = epochs_count(shared), i = epochs_find(shared, count, group);

	return (struct epoch){.all = shm_load64(&shared->epoch[0]),
		.group = i < count ? shm_load64(&shared->epoch[i]) : 0};
}

/* The bits of PAGE_EPOCH_0 in the keys of this epoch. */
static inline uint64_t epoch_bits(const struct epoch *epoch)
{
	return ((epoch->all >> 32) + (epoch->group >> 32)) << 48 & PAGE_EPOCH_0;
}

#endif
