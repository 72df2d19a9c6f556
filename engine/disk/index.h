/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which page is where: the memory of the disk tier, at most 32 bytes a page. The disk thread
 * changes it; the control plane looks keys up. The lock in it serializes both; each call holds it
 * for one key or one short run of pages.
 *
 * A page is an entry in the array of its segment (28 bytes) and a unit (2 bytes), so that recycling
 * a segment needs no search. A hash table of chains finds it by key; the table grows by one bucket
 * at a time (linear hashing), so that no insertion is slow.
 */
#ifndef DISK_INDEX_H
#define DISK_INDEX_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/disk/disk.h"
#include "engine/disk/layout.h"

#define INDEX_NONE UINT32_MAX
#define INDEX_FORGOTTEN_MAX 8192u /* tombstones that wait to be written; a power of two */

/* One page. 28 bytes: the key is in words of 4 bytes, so that nothing is padded. */
struct disk_index_page {
	uint32_t key[4];
	uint32_t crc;
	uint32_t length; /* bytes - 1; bit 31: the entry is in the table */
	uint32_t next;   /* next entry of the chain, with a lower id; INDEX_NONE at its end */
};
static_assert(sizeof(struct disk_index_page) == 28, "memory a page");

struct disk_index_segment {
	struct disk_index_page *page;
	uint16_t *unit; /* where the page starts in its segment */
	uint32_t pages, room;
	uint32_t life;  /* incremented when the segment is emptied: an id of before is not valid */
	uint32_t epoch; /* low bits of segment.epoch: part of the names of its pages */
};

struct disk_index {
	pthread_mutex_t lock;
	struct disk_index_segment *segment;
	uint32_t segments;
	uint32_t **chunk; /* heads of the chains, in chunks */
	uint32_t chunks, buckets;
	uint32_t pages; /* pages in the table */
	/* pages that left the table since disk_index_lost(): a vector, read from `lost_at` on */
	struct disk_page *lost;
	uint32_t lost_at, lost_count, lost_room;
	bool lost_kept;        /* false: they are not recorded (start) */
	uint64_t lost_unknown; /* pages that left without memory for their record */
	/* of the next page that is written or forgotten, so that it tells which was later */
	uint64_t sequence;
	/* tombstones that wait to be written: a ring; those that find it full are dropped */
	struct disk_entry *forgotten;
	uint32_t forgotten_first, forgotten_count;
	uint64_t forgotten_dropped;
};

/* A page as it was found. */
struct disk_index_found {
	uint32_t id; /* segment << 16 | position */
	uint32_t life;
	uint32_t segment, unit, length, crc;
	uint32_t place, generation; /* its name: struct disk_page */
};

/* Returns 0 or -ENOMEM. `segments` is at most DISK_SEGMENTS_MAX. */
int disk_index_open(struct disk_index *index, uint32_t segments);
void disk_index_close(struct disk_index *index);
bool disk_index_find(
	struct disk_index *index, const struct page_key *key, struct disk_index_found *ret_found);
/* disk_named(), disk_slot() and disk_lost() of disk.h, which says more. */
bool disk_index_named(
	struct disk_index *index, uint32_t place, uint32_t generation, struct page_key *ret_key);
/* True while the page that was found is still that page. */
bool disk_index_still(struct disk_index *index, const struct disk_index_found *found);
/*
 * Adds a page that is not in the index. Returns its id, or INDEX_NONE without memory. *forgotten,
 * if not NULL: the page was forgotten while it was written; then it gets a tombstone instead.
 */
uint32_t disk_index_add(struct disk_index *index, uint32_t segment, uint32_t unit,
	const struct disk_entry *entry, const uint8_t *forgotten);
/* Removes a page; nothing if it is not the page that was found any more. */
void disk_index_remove(struct disk_index *index, const struct disk_index_found *found);
/* disk_forget() of disk.h: the page leaves the table and gets a tombstone. */
bool disk_index_forget(struct disk_index *index, const struct page_key *key);
/* disk_forgets_many() of disk.h. */
bool disk_index_forgets_many(struct disk_index *index);
/* Takes up to `max` tombstones to write. Returns how many; 0: none is left. */
unsigned disk_index_forgotten(
	struct disk_index *index, unsigned max, struct disk_entry *ret_tombstones);
uint64_t disk_index_sequence(struct disk_index *index);
/* Removes all pages of a segment, in short steps, and frees their memory. */
void disk_index_empty(struct disk_index *index, uint32_t segment);
/* Gives back the memory that a full segment does not need. */
void disk_index_trim(struct disk_index *index, uint32_t segment);
/* The segment begins a life, or was found with this epoch; it has no pages. */
void disk_index_epoch(struct disk_index *index, uint32_t segment, uint64_t epoch);
unsigned disk_index_slot(struct disk_index *index, uint32_t slot, uint64_t *cursor, unsigned max,
	struct disk_page *ret_pages);
/* From now on pages that leave the table are recorded for disk_index_lost(). */
void disk_index_keep_lost(struct disk_index *index);
unsigned disk_index_lost(struct disk_index *index, unsigned max, struct disk_page *ret_pages);
/* Bytes of memory of the index, pages in it, and whether disk_index_lost() would return some. */
uint64_t disk_index_bytes(struct disk_index *index, uint32_t *ret_pages, bool *ret_lost);

#endif
