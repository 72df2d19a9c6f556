/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a path at the start. Of a sealed segment, the footer is enough. A segment without a whole
 * one is read from its first unit on: each page whose bytes are right is kept. A unit that the
 * device cannot read is a damaged one. Blocks; runs on the thread that opens the path.
 */
#include "engine/disk/scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/abi/crc32c.h"
#include "numa/clock.h"

#define SCAN_UNITS 1024u /* units that are read at a time in an open segment, at least */

/* ---- one operation -------------------------------------------------------------------------- */

/* An operation of recovery. It stays allocated if the device does not return it in time. */
struct scan_call {
	struct device_io io; /* must be first: it is cast to struct scan_call */
	struct iovec iov;
	uint8_t *units;
	bool done;
};

static void scan_call_done(struct device_io *io)
{
	((struct scan_call *)(void *)io)->done = true;
}

/*
 * Waits for the operation; others that complete meanwhile are dispatched. -ETIMEDOUT after
 * `timeout_ns`: then it, and the memory that it names, still belong to the device.
 */
static int64_t scan_call_wait(
	struct device *device, const struct scan_call *call, uint64_t timeout_ns)
{
	uint64_t now, until = clock_now_ns() + timeout_ns;

	for (;;) {
		device_dispatch(device);
		if (call->done)
			return call->io.result;
		now = clock_now_ns();
		if (now >= until)
			return -ETIMEDOUT;
		device->wait(device, until - now);
	}
}

int64_t scan_call(struct store_path *path, enum device_op op, uint32_t file, uint32_t unit,
	void *units, uint32_t count)
{
	struct scan_call *call = calloc(1, sizeof(*call));
	size_t bytes = (size_t)count * PAGE_UNIT;
	int64_t rc;

	if (!call)
		return -ENOMEM;
	if (count) {
		call->units = aligned_alloc(PAGE_UNIT, bytes);
		if (!call->units) {
			free(call);
			return -ENOMEM;
		}
		memset(call->units, 0, bytes);
		if (op == DEVICE_WRITE)
			memcpy(call->units, units, bytes);
	}
	call->iov = (struct iovec){call->units, bytes};
	call->io = (struct device_io){.op = op,
		.file = file,
		.offset = (uint64_t)unit * PAGE_UNIT,
		.iov = &call->iov,
		.iovs = count ? 1 : 0,
		.done = scan_call_done};
	path->device->submit(path->device, &call->io);
	rc = scan_call_wait(path->device, call, path->store->timeout_ns);
	if (rc == -ETIMEDOUT)
		return rc; /* the device may still write to it */
	if (rc >= 0 && op == DEVICE_READ)
		memcpy(units, call->units, bytes);
	free(call->units);
	free(call);
	return rc;
}

/* What a device answers for a damaged unit, by the kernel's kinds of errors of block devices. */
static bool unit_is_damaged(int64_t rc)
{
	return rc == -EIO || rc == -ENODATA || rc == -EILSEQ;
}

/*
 * Reads units, each on its own after an error. Those that cannot be read are zero, which nothing
 * accepts. Returns 0, or -errno for another error.
 */
static int scan_read(
	struct store_path *path, uint32_t file, uint32_t unit, void *units, uint32_t count)
{
	int64_t rc = scan_call(path, DEVICE_READ, file, unit, units, count);

	if (rc >= 0 || !unit_is_damaged(rc))
		return rc < 0 ? (int)rc : 0;
	for (uint32_t i = 0; i < count; i++) {
		uint8_t *to = (uint8_t *)units + (size_t)i * PAGE_UNIT;

		rc = scan_call(path, DEVICE_READ, file, unit + i, to, 1);
		if (rc < 0 && !unit_is_damaged(rc))
			return (int)rc;
		if (rc < 0)
			memset(to, 0, PAGE_UNIT);
	}
	return 0;
}

struct scanner {
	struct store_path *path;
	struct disk_geometry geometry;
	struct scan_segment *segment;
	/* units of an open segment that were read together */
	uint8_t *ahead;
	uint32_t ahead_from, ahead_count, ahead_room;
};

/* The unit is a header of the life that is read, and of this place. */
static bool block_of_life(
	const struct scanner *scanner, const struct disk_block *block, uint32_t unit)
{
	return layout_block_valid(block, &scanner->geometry) &&
	       block->epoch == scanner->segment->epoch && block->unit == unit;
}

/* ---- a segment that is not sealed ------------------------------------------------------------ */

/* `count` units, which are read together with those behind them. Returns 0 or -errno. */
static int ahead_read(
	struct scanner *scanner, uint32_t unit, uint32_t count, const void **ret_units)
{
	uint32_t more = scanner->geometry.units - unit;
	int rc;

	if (unit < scanner->ahead_from ||
		unit + count > scanner->ahead_from + scanner->ahead_count) {
		if (more > SCAN_UNITS)
			more = count > SCAN_UNITS ? count : SCAN_UNITS;
		scanner->ahead_count = 0;
		if (more > scanner->ahead_room) {
			free(scanner->ahead);
			scanner->ahead = malloc((size_t)more * PAGE_UNIT);
			scanner->ahead_room = scanner->ahead ? more : 0;
		}
		rc = scanner->ahead ? scan_read(scanner->path, scanner->geometry.segment, unit,
					      scanner->ahead, more)
				    : -ENOMEM;
		if (rc)
			return rc;
		scanner->ahead_from = unit;
		scanner->ahead_count = more;
	}
	*ret_units = scanner->ahead + (size_t)(unit - scanner->ahead_from) * PAGE_UNIT;
	return 0;
}

static struct disk_block *block_append(struct scan_segment *segment, const void *block)
{
	/* as many as a power of two have room for */
	if (!(segment->blocks & (segment->blocks - 1))) {
		size_t room = segment->blocks ? 2 * (size_t)segment->blocks : 1;
		struct disk_block *grown = realloc(segment->block, room * sizeof(*grown));

		if (!grown)
			return NULL;
		segment->block = grown;
	}
	memcpy(&segment->block[segment->blocks], block, sizeof(*segment->block));
	return &segment->block[segment->blocks++];
}

/* The bytes are those of the page, and zeros behind them. */
static bool page_is_whole(const struct disk_entry *entry, const uint8_t *page)
{
	size_t bytes = (size_t)disk_units(entry->length) * PAGE_UNIT, at = entry->length;

	while (at < bytes && !page[at])
		at++;
	return at == bytes && crc32c(0, page, entry->length) == entry->crc;
}

/* Takes the keys of pages whose bytes are wrong. */
static void block_verify(struct disk_block *block, const uint8_t *pages)
{
	for (uint32_t i = 0; i < block->entries; i++) {
		struct disk_entry *entry = &block->entry[i];

		if (!page_is_whole(entry, pages))
			entry->key = (struct page_key){{0, 0}};
		pages += (size_t)disk_units(entry->length) * PAGE_UNIT;
	}
	layout_block_seal(block);
}

/* All headers of this life that are where they say they are. */
static int scan_open(struct scanner *scanner)
{
	struct scan_segment *segment = scanner->segment;
	uint32_t unit = 1;
	int rc = 0;

	while (!rc && unit < scanner->geometry.units) {
		struct disk_block *block = NULL;
		const void *units;
		uint32_t payload;

		rc = ahead_read(scanner, unit, 1, &units);
		if (rc || !block_of_life(scanner, units, unit++))
			continue;
		block = block_append(segment, units);
		if (!block)
			return -ENOMEM;
		payload = layout_block_payload(block);
		rc = ahead_read(scanner, unit, payload, &units);
		if (!rc)
			block_verify(block, units);
		unit += payload;
	}
	segment->kind = segment->blocks ? SCAN_OPEN : SCAN_EMPTY;
	return rc;
}

/* ---- a segment ------------------------------------------------------------------------------- */

/* The headers by the footer; SCAN_EMPTY: not all of them can be read there. */
static int scan_sealed(struct scanner *scanner, uint32_t blocks)
{
	struct scan_segment *segment = scanner->segment;
	uint32_t units = scanner->geometry.units;
	int rc;

	if (blocks > (units - 2) / 2)
		return 0;
	segment->block = malloc(blocks * sizeof(*segment->block));
	if (!segment->block)
		return -ENOMEM;
	rc = scan_read(scanner->path, scanner->geometry.segment, units - 1 - blocks, segment->block,
		blocks);
	for (uint32_t i = 0; i < blocks && !rc; i++)
		if (!block_of_life(scanner, &segment->block[i], segment->block[i].unit)) {
			free(segment->block);
			segment->block = NULL;
			return 0;
		}
	segment->blocks = blocks;
	segment->kind = SCAN_SEALED;
	return rc;
}

static int scan_segment(struct scanner *scanner)
{
	struct scan_segment *segment = scanner->segment;
	const struct disk_geometry *geometry = &scanner->geometry;
	struct disk_block opening;
	struct disk_footer trailer;
	bool opened, sealed;
	int rc = scan_read(scanner->path, geometry->segment, 0, &opening, 1);

	if (!rc)
		rc = scan_read(scanner->path, geometry->segment, geometry->units - 1, &trailer, 1);
	if (rc) {
		segment->kind = rc == -ENOENT ? SCAN_MISSING : SCAN_EMPTY;
		return rc == -ENOENT ? 0 : rc;
	}
	opened = layout_block_valid(&opening, geometry) && !opening.unit;
	sealed = layout_footer_valid(&trailer, geometry) &&
		 (!opened || trailer.epoch == opening.epoch);
	if (!opened && !sealed)
		return 0;
	segment->epoch = sealed ? trailer.epoch : opening.epoch;
	segment->ordinal = sealed ? trailer.ordinal : opening.ordinal;
	if (sealed)
		rc = scan_sealed(scanner, trailer.blocks);
	return rc || segment->kind == SCAN_SEALED ? rc : scan_open(scanner);
}

static void scan_note_highest(struct scan *scan, const struct scan_segment *segment)
{
	if (segment->ordinal > scan->ordinal)
		scan->ordinal = segment->ordinal;
	for (uint32_t b = 0; b < segment->blocks; b++)
		for (uint32_t i = 0; i < segment->block[b].entries; i++)
			if (segment->block[b].entry[i].sequence > scan->sequence)
				scan->sequence = segment->block[b].entry[i].sequence;
}

static void scan_unlink(struct scan *scan, uint32_t number)
{
	scan->rc = (int)scan_call(scan->path, DEVICE_UNLINK, number, 0, NULL, 0);
	scan->removing = scan->rc != 0;
}

static void scan_segments(struct scan *scan)
{
	struct store_path *path = scan->path;
	struct scanner scanner = {
		.path = path, .geometry = {path->file.path_id, 0, path->store->units}};

	for (uint32_t i = 0; i < path->segments && !scan->rc; i++) {
		scanner.geometry.segment = i;
		scanner.segment = &scan->segment[i];
		scanner.ahead_count = 0;
		scan->rc = scan_segment(&scanner);
		scan_note_highest(scan, &scan->segment[i]);
	}
	free(scanner.ahead);
}

void scan_path(struct scan *scan)
{
	struct store_path *path = scan->path;
	int64_t rc = -ENOMEM;

	scan->segment = calloc(path->segments, sizeof(*scan->segment));
	if (scan->segment)
		rc = scan_call(path, DEVICE_READ, DEVICE_PATH_FILE, 0, &path->file, 1);
	scan->rc = rc < 0 ? (int)rc : 0;
	if (scan->rc)
		return;
	scan->fault = layout_path_file_check(&path->file, path->store->units * PAGE_UNIT);
	if (scan->fault == PATH_FILE_EMPTY) {
		memset(&path->file, 0, sizeof(path->file));
		/* Files without a path file are not used in place. */
		for (uint32_t i = 0; i < path->segments && !scan->rc; i++) {
			scan_unlink(scan, i);
			scan->segment[i].kind = SCAN_MISSING;
		}
	}
	if (scan->fault != PATH_FILE_OK)
		return;
	/* A path that is smaller now. */
	for (uint32_t i = path->segments;
		i < path->file.segments && i < DISK_SEGMENTS_MAX && !scan->rc; i++)
		scan_unlink(scan, i);
	scan_segments(scan);
}
