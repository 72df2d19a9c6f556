/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory an engine takes: the geometry of pools and of the shard, and the process, from
 * the settings alone. pool_open.c and shard.c allocate by it; --plan and the doctor print it. Pure.
 */
#ifndef PAGES_SIZES_H
#define PAGES_SIZES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "config/limits.h"
#include "config/settings.h"
#include "numa/plan.h"

#define SIZES_HUGE_BYTES (2u << 20) /* bytes of one huge page */

/* The table of owners of a pool and the hidden side of a shard, for the next process. */
#define POOL_STATE_BYTES 64u  /* sizeof(struct pool_state) */
#define SHARD_STATE_BYTES 64u /* sizeof(struct shard_state) */
#define SHARD_SIDE_BYTES 10u  /* sizeof(struct shard_side), of one bucket */

/* What the process has on its heap for the pages of the pools and of the disk. */
#define POOL_SLOT_BYTES 16u   /* sizeof(struct slot), of each PAGE_UNIT */
#define INDEX_ENTRY_BYTES 60u /* of a page: its node and its bucket */
#define DISK_ENTRY_BYTES 32u  /* of a page on disk, at most: engine/disk/index.h */

struct pool_geometry {
	uint32_t chunks;      /* number of chunks of the pool */
	uint32_t chunk_units; /* units of one chunk, a power of two */
};

/* A chunk is about 1/32 of the pool; what does not fill a chunk is not used. */
struct pool_geometry pool_geometry(uint64_t pool_bytes);

/*
 * Entries that the shard must hold at half load: engine.directory_entries, else this node's share
 * of a cluster of equal nodes whose pools are full of the smallest pages, and whose disks are full
 * of pages of SHARD_DISK_PAGE. That is 1/64 of the pool memory, and 1/256 of the disks, with two
 * replicas; more than SHARD_ENTRIES_MAX (2 GiB) only if the settings say so.
 */
uint64_t shard_entries(const struct settings *s, unsigned rails);
/* log2 of the number of buckets for that many entries; 0: too many entries. */
uint32_t shard_bits(uint64_t entries);

/* One file of memory. */
struct memory_part {
	const char *what; /* "pool", "heads", "slots", "shard", "shard-state" */
	int rail;         /* -1: not of one rail */
	int node;         /* NUMA node that it prefers; -1: any */
	uint64_t bytes;   /* rounded up to whole pages */
	bool huge;        /* on huge pages, if there are enough of them */
};
#define MEMORY_PARTS_MAX (3 * RAILS_MAX + 2)

/* What the engine allocates for the plan. Returns the number of parts. */
unsigned memory_parts(const struct settings *s, const struct plan *plan,
	struct memory_part ret[MEMORY_PARTS_MAX]);

/* The parts by node; nodes in ascending order, -1 (any node) first. */
struct memory_node {
	int node;
	uint64_t bytes;      /* of all parts */
	uint64_t huge_pages; /* huge pages of 2 MiB that they need */
};
/* Returns the number of nodes. */
unsigned memory_nodes(
	const struct settings *s, const struct plan *plan, struct memory_node ret[RAILS_MAX + 1]);
/*
 * Bytes of the process itself, on small pages: its program, and its tables of the pages when the
 * pools are full of the smallest pages, and the disks of pages of SHARD_DISK_PAGE.
 */
uint64_t memory_process_bytes(const struct settings *s, unsigned rails);
/* Prints memory_nodes() as a table, with the process and the sum. */
void memory_print(const struct settings *s, const struct plan *plan, FILE *out);

#endif
