/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the disk tier writes: the path file, the header blocks and the footer of a segment. Pure
 * functions over bytes; any thread. Nothing that was read from a disk is used before one of the
 * functions below has accepted it.
 *
 *   path file   one unit: the id of the path and its sizes
 *
 *   segment     unit 0      opening block: the epoch and the ordinal of this life
 *               unit 1 ...  blocks: a header of one unit, then the pages that it describes, each in
 *                           whole units; a header may have tombstones, too
 *               ...         footer: a copy of each header, in order
 *               last unit   footer trailer
 *
 * All integers are little-endian.
 */
#ifndef DISK_LAYOUT_H
#define DISK_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "config/limits.h"
#include "engine/abi/page.h"

#define DISK_LAYOUT_VERSION 3u
#define DISK_SEQUENCE_MAX (UINT64_C(1) << 62) /* sequence numbers are below this limit */

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "disk structures are little-endian");

/* A page, or a tombstone: length 0. */
struct disk_entry {
	struct page_key
		key; /* 0: a page whose bytes were not right when its segment was found open */
	/* a tombstone removes the copies of its key that have this number or a lower one */
	uint64_t sequence;
	uint32_t length; /* bytes of the page; 0: a tombstone */
	uint32_t crc;    /* CRC32C of the page's `length` bytes */
};

/* A header block. The fields before `unit` are equal in all headers of one life of a segment. */
struct disk_block {
	uint64_t magic;
	uint32_t crc; /* CRC32C of the unit with this field as 0 */
	uint32_t entries;
	uint64_t path_id;
	uint64_t epoch;   /* random, new in each life of the segment */
	uint64_t ordinal; /* number of this life: 1 for the path's first segment, then 2, ... */
	uint32_t segment;
	uint32_t unit; /* where this header is, from the start of the segment */
	struct disk_entry entry[DISK_BLOCK_PAGES];
	uint8_t zero[PAGE_UNIT - 48 - DISK_BLOCK_PAGES * 32];
};
static_assert(sizeof(struct disk_entry) == 32, "layout on disk");
static_assert(sizeof(struct disk_block) == PAGE_UNIT, "layout on disk");

/* The last unit of a sealed segment; the copies of all headers lie in the units before it. */
struct disk_footer {
	uint64_t magic;
	uint32_t crc;
	uint32_t blocks; /* headers in the segment */
	uint64_t path_id;
	uint64_t epoch;
	uint64_t ordinal;
	uint32_t segment;
	uint32_t spare;
	uint8_t zero[PAGE_UNIT - 48];
};
static_assert(sizeof(struct disk_footer) == PAGE_UNIT, "layout on disk");

/* Identity of a path. */
struct disk_path_file {
	uint64_t magic;
	uint32_t crc;
	uint32_t
		version; /* DISK_LAYOUT_VERSION; magic, crc and version keep their place for ever */
	uint32_t unit_bytes;
	uint32_t segment_bytes;
	uint32_t segments;
	uint32_t spare;
	uint64_t path_id; /* random, never 0 */
	uint8_t zero[PAGE_UNIT - 40];
};
static_assert(sizeof(struct disk_path_file) == PAGE_UNIT, "layout on disk");

/* What a block of a segment must agree with. */
struct disk_geometry {
	uint64_t path_id;
	uint32_t segment;
	uint32_t units; /* units of a segment */
};

/* Why a path file is refused. */
enum path_file_fault { PATH_FILE_OK, PATH_FILE_EMPTY, PATH_FILE_VERSION, PATH_FILE_SIZES };

/* Units that a page of `length` bytes takes. */
static inline uint32_t disk_units(uint32_t length)
{
	return (uint32_t)(((uint64_t)length + PAGE_UNIT - 1) / PAGE_UNIT);
}

/* Fills in magic and CRC; the last step before a write. */
void layout_block_seal(struct disk_block *block);
void layout_footer_seal(struct disk_footer *footer);
void layout_path_file_seal(struct disk_path_file *file);

/*
 * True if the unit is a header that this path wrote for this segment; its entries then fit the
 * segment. The caller compares epoch, place and number. `block` stays as it is.
 */
bool layout_block_valid(const struct disk_block *block, const struct disk_geometry *geometry);
/* Units of the block's pages, without the header; the block is valid. */
uint32_t layout_block_payload(const struct disk_block *block);
/* True if the unit is the trailer of a footer that this path wrote for this segment. */
bool layout_footer_valid(const struct disk_footer *footer, const struct disk_geometry *geometry);
/*
 * Whether the path file is one of this layout and these sizes. Of a file with PATH_FILE_VERSION
 * only magic, crc and version are what they are here. Another layout version and other sizes have
 * results of their own, so that the caller does not take the path for an empty one.
 */
enum path_file_fault layout_path_file_check(
	const struct disk_path_file *file, uint32_t segment_bytes);

#endif
