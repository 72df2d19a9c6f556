/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the two files of recovery: recover.c decides what is believed, salvage.c builds the
 * index from it and moves what open segments hold. Memory of the start only; one thread.
 */
#ifndef DISK_RECOVER_H
#define DISK_RECOVER_H

#include "engine/disk/scan.h"

/* The highest tombstone of a key. sequence 0: an unused place of the hash table. */
struct removal {
	struct page_key key;
	uint64_t sequence;
};

struct recovery {
	struct store *store;
	struct scan scan[DISK_PATHS_MAX];
	/* tombstones above this number are written to the path; UINT64_MAX: none */
	uint64_t replay_after[DISK_PATHS_MAX];
	struct removal *removal; /* hash table of all tombstones of believed paths */
	uint32_t removals_room;
	uint64_t **sequence; /* of each page of each segment in the index */
};

/* Steps until `finished`; false if the path has left service. */
bool recovery_run(struct store_path *path, bool (*finished)(const struct store_path *path));

/* salvage.c */
/* Fills the index: of each key the page with the highest number that was not removed. */
int recovery_index(struct recovery *recovery);
/* Moves pages and tombstones of open segments to new ones, then removes the open ones. */
void recovery_salvage(struct recovery *recovery, unsigned number);
void recovery_free(struct recovery *recovery);

#endif
