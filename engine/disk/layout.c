/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes and checks the units that describe a path and its segments. Owns nothing; any thread. The
 * checks bound every number before they use it, and compute in 64 bits.
 */
#include "engine/disk/layout.h"

#include <string.h>

#include "engine/abi/crc32c.h"

#define BLOCK_MAGIC UINT64_C(0x31304b4c42444350)     /* "PCDBLK01" */
#define FOOTER_MAGIC UINT64_C(0x3130544f46444350)    /* "PCDFOT01" */
#define PATH_FILE_MAGIC UINT64_C(0x3130485450444350) /* "PCDPTH01" */

/* Offset of the CRC in all three structures. */
#define CRC_OFFSET 8
static_assert(offsetof(struct disk_block, crc) == CRC_OFFSET, "one place for the CRC");
static_assert(offsetof(struct disk_footer, crc) == CRC_OFFSET, "one place for the CRC");
static_assert(offsetof(struct disk_path_file, crc) == CRC_OFFSET, "one place for the CRC");

static uint32_t unit_crc(const void *unit)
{
	static const uint32_t zero;
	const uint8_t *at = unit;
	uint32_t crc = crc32c(0, at, CRC_OFFSET);

	crc = crc32c(crc, &zero, sizeof(zero));
	return crc32c(crc, at + CRC_OFFSET + 4, PAGE_UNIT - CRC_OFFSET - 4);
}

void layout_block_seal(struct disk_block *block)
{
	block->magic = BLOCK_MAGIC;
	block->crc = unit_crc(block);
}

void layout_footer_seal(struct disk_footer *footer)
{
	footer->magic = FOOTER_MAGIC;
	footer->crc = unit_crc(footer);
}

void layout_path_file_seal(struct disk_path_file *file)
{
	file->magic = PATH_FILE_MAGIC;
	file->version = DISK_LAYOUT_VERSION;
	file->crc = unit_crc(file);
}

uint32_t layout_block_payload(const struct disk_block *block)
{
	uint32_t units = 0;

	for (uint32_t i = 0; i < block->entries; i++)
		units += disk_units(block->entry[i].length);
	return units;
}

bool layout_block_valid(const struct disk_block *block, const struct disk_geometry *geometry)
{
	uint64_t end;

	if (block->magic != BLOCK_MAGIC || block->path_id != geometry->path_id ||
		block->segment != geometry->segment || block->crc != unit_crc(block))
		return false;
	if (block->entries > DISK_BLOCK_PAGES || block->unit >= geometry->units || !block->ordinal)
		return false;
	end = (uint64_t)block->unit + 1;
	for (uint32_t i = 0; i < block->entries; i++) {
		const struct disk_entry *entry = &block->entry[i];

		if (entry->length > PAGE_BYTES_MAX || entry->sequence >= DISK_SEQUENCE_MAX)
			return false;
		end += disk_units(entry->length);
	}
	return end < geometry->units; /* the last unit is the trailer's */
}

bool layout_footer_valid(const struct disk_footer *footer, const struct disk_geometry *geometry)
{
	return footer->magic == FOOTER_MAGIC && footer->path_id == geometry->path_id &&
	       footer->segment == geometry->segment && footer->blocks >= 1 &&
	       footer->blocks < geometry->units && footer->ordinal &&
	       footer->crc == unit_crc(footer);
}

enum path_file_fault layout_path_file_check(
	const struct disk_path_file *file, uint32_t segment_bytes)
{
	if (file->magic != PATH_FILE_MAGIC || file->crc != unit_crc(file))
		return PATH_FILE_EMPTY;
	if (file->version != DISK_LAYOUT_VERSION)
		return PATH_FILE_VERSION;
	if (!file->path_id)
		return PATH_FILE_EMPTY;
	return file->unit_bytes == PAGE_UNIT && file->segment_bytes == segment_bytes
		       ? PATH_FILE_OK
		       : PATH_FILE_SIZES;
}
