/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a path at the start. One damaged unit, wherever it is, loses no header of a sealed segment:
 * each lies in its place and in the footer, and the trailer's count also follows from the place of
 * the last copy. A unit that the device cannot read is a damaged one. Blocks; runs on the thread
 * that opens the path.
 */
#include "engine/disk/scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "numa/clock.h"

#define SCAN_UNITS 256u /* units that are read at a time in an open segment */

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
	if (rc >= 0 && count)
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
 * accepts, and marked in `damaged` (as many entries; NULL: not needed). Returns 0, or -errno for
 * another error. Six parameters: those of scan_call() without the operation, and the marks.
 */
static int scan_read(struct store_path *path, uint32_t file, uint32_t unit, void *units,
	uint32_t count, bool *damaged)
{
	int64_t rc = scan_call(path, DEVICE_READ, file, unit, units, count);

	if (damaged)
		memset(damaged, 0, count * sizeof(*damaged));
	if (rc >= 0 || !unit_is_damaged(rc))
		return rc < 0 ? (int)rc : 0;
	for (uint32_t i = 0; i < count; i++) {
		uint8_t *to = (uint8_t *)units + (size_t)i * PAGE_UNIT;

		rc = scan_call(path, DEVICE_READ, file, unit + i, to, 1);
		if (rc < 0 && !unit_is_damaged(rc))
			return (int)rc;
		if (rc < 0)
			memset(to, 0, PAGE_UNIT);
		if (damaged)
			damaged[i] = rc < 0;
	}
	return 0;
}

struct scanner {
	struct scan *scan;
	struct store_path *path;
	struct disk_geometry geometry;
	struct scan_segment *segment;
	uint64_t epoch; /* of the life that is read */
};

static int scan_read_units(
	struct scanner *scanner, uint32_t unit, void *units, uint32_t count, bool *damaged)
{
	return scan_read(scanner->path, scanner->geometry.segment, unit, units, count, damaged);
}

static bool block_of_life(const struct scanner *scanner, const struct disk_block *block)
{
	return layout_block_valid(block, &scanner->geometry) && block->epoch == scanner->epoch;
}

static int block_append(struct scanner *scanner, const struct disk_block *block, uint32_t *room)
{
	struct scan_segment *segment = scanner->segment;

	if (segment->blocks == *room) {
		uint32_t more = *room ? *room * 2 : 16;
		struct disk_block *grown = realloc(segment->block, more * sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		segment->block = grown;
		*room = more;
	}
	segment->block[segment->blocks++] = *block;
	return 0;
}

/* Units of an open segment that were read together. */
struct scan_chunk {
	struct disk_block block[SCAN_UNITS];
	bool damaged[SCAN_UNITS];
	uint32_t from, count;
};

/*
 * All headers of this life that are where they say they are. A tombstone is in two units: where two
 * in a row cannot be read, one may be missing.
 */
static int scan_open(struct scanner *scanner)
{
	uint32_t units = scanner->geometry.units, room = 0, unit = 2, damaged = 0;
	struct scan_chunk *chunk = calloc(1, sizeof(*chunk));
	int rc = chunk ? 0 : -ENOMEM;

	scanner->segment->kind = SCAN_OPEN;
	while (!rc && unit < units) {
		const struct disk_block *block;

		if (unit >= chunk->from + chunk->count) {
			chunk->from = unit;
			chunk->count = units - unit < SCAN_UNITS ? units - unit : SCAN_UNITS;
			rc = scan_read_units(
				scanner, unit, chunk->block, chunk->count, chunk->damaged);
			if (rc)
				break;
		}
		block = &chunk->block[unit - chunk->from];
		damaged = chunk->damaged[unit - chunk->from] ? damaged + 1 : 0;
		if (damaged == 2)
			scanner->segment->kind = SCAN_DAMAGED;
		unit++;
		if (!block_of_life(scanner, block) || block->unit != unit - 1)
			continue;
		rc = block_append(scanner, block, &room);
		unit += layout_block_payload(block);
	}
	free(chunk);
	return rc;
}

/* The header in its own place, where the header before it in the footer ends. */
static bool scan_primary(struct scanner *scanner, uint32_t number, struct disk_block *block)
{
	uint32_t unit = number;

	if (number >= 2) {
		const struct disk_block *before = block - 1;

		unit = before->unit + 1 + layout_block_payload(before);
	}
	return unit < scanner->geometry.units && !scan_read_units(scanner, unit, block, 1, NULL) &&
	       block_of_life(scanner, block) && block->number == number && block->unit == unit;
}

/* The `blocks` headers of a sealed segment. */
static int scan_sealed(struct scanner *scanner, uint32_t blocks)
{
	struct scan_segment *segment = scanner->segment;
	uint32_t units = scanner->geometry.units;
	int rc;

	segment->kind = SCAN_DAMAGED;
	if (blocks < 2 || blocks > (units - 1) / 2)
		return 0;
	segment->block = malloc(blocks * sizeof(*segment->block));
	if (!segment->block)
		return -ENOMEM;
	rc = scan_read_units(scanner, units - 1 - blocks, segment->block, blocks, NULL);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < blocks; i++) {
		const struct disk_block *copy = &segment->block[i];

		if ((!block_of_life(scanner, copy) || copy->number != i) &&
			!scan_primary(scanner, i, &segment->block[i]))
			return 0;
	}
	segment->blocks = blocks;
	segment->kind = SCAN_SEALED;
	return 0;
}

/* Headers in the footer, by its trailer or by the copy before it; 0: not sealed. */
static int64_t footer_blocks(struct scanner *scanner, bool opened)
{
	struct disk_block end[2];
	struct disk_footer trailer;
	int rc = scan_read_units(scanner, scanner->geometry.units - 2, end, 2, NULL);

	if (rc)
		return rc;
	memcpy(&trailer, &end[1], sizeof(trailer));
	if (layout_footer_valid(&trailer, &scanner->geometry) &&
		(!opened || trailer.epoch == scanner->epoch)) {
		scanner->epoch = trailer.epoch;
		scanner->segment->ordinal = trailer.ordinal;
		return trailer.blocks;
	}
	if (opened && block_of_life(scanner, &end[0]) && end[0].unit != scanner->geometry.units - 2)
		return end[0].number + 1;
	return 0;
}

static int scan_segment(struct scanner *scanner)
{
	struct scan_segment *segment = scanner->segment;
	struct disk_block opening[2];
	bool opened = false, damaged[2];
	int64_t rc = scan_read_units(scanner, 0, opening, 2, damaged);

	if (rc < 0) {
		segment->kind = rc == -ENOENT ? SCAN_MISSING : SCAN_EMPTY;
		return rc == -ENOENT ? 0 : (int)rc;
	}
	for (uint32_t i = 0; i < 2 && !opened; i++) {
		if (!layout_block_valid(&opening[i], &scanner->geometry) || opening[i].unit != i)
			continue;
		opened = true;
		scanner->epoch = opening[i].epoch;
		segment->ordinal = opening[i].ordinal;
		segment->previous = opening[i].previous;
		if (opening[i].horizon > scanner->scan->horizon)
			scanner->scan->horizon = opening[i].horizon;
	}
	rc = footer_blocks(scanner, opened);
	if (rc < 0)
		return (int)rc;
	/* It may be the newest one, whose tombstones nothing else names. */
	if (!rc && damaged[0] && damaged[1])
		return -EIO;
	if (rc > 0)
		rc = scan_sealed(scanner, (uint32_t)rc);
	else if (opened)
		rc = scan_open(scanner);
	segment->epoch = scanner->epoch;
	if (segment->blocks && !opened)
		segment->previous = segment->block[0].previous;
	return (int)rc;
}

static void scan_note_highest(struct scan *scan, const struct scan_segment *segment)
{
	if (segment->kind >= SCAN_OPEN && segment->ordinal > scan->ordinal)
		scan->ordinal = segment->ordinal;
	for (uint32_t b = 0; b < segment->blocks; b++) {
		const struct disk_block *block = &segment->block[b];

		if (block->horizon > scan->horizon)
			scan->horizon = block->horizon;
		for (uint32_t i = 0; i < block->entries; i++)
			if (block->entry[i].sequence > scan->sequence)
				scan->sequence = block->entry[i].sequence;
	}
}

static int scan_newer_first(const void *a, const void *b)
{
	uint64_t first = (*(struct scan_segment *const *)a)->ordinal;
	uint64_t second = (*(struct scan_segment *const *)b)->ordinal;

	return first > second ? -1 : first < second;
}

/*
 * Raises the horizon above every number that the path file says a path that left was complete to:
 * what is lost may be newer. The run that follows the highest number starts DISK_SEQUENCES_START
 * above it.
 */
static void scan_raise_horizon(struct scan *scan)
{
	uint64_t highest = scan->sequence;

	for (unsigned i = 0; i < DISK_LEFT_MAX; i++)
		if (scan->path->file.left[i].sequence > highest)
			highest = scan->path->file.left[i].sequence;
	highest += 2 * DISK_SEQUENCES_START - 1;
	if (highest > scan->horizon)
		scan->horizon = highest;
}

/*
 * Drops what is older than a segment that is missing or damaged: tombstones of the older pages may
 * have been in it. A segment names the one that was opened before it and stays.
 */
static int scan_drop_behind_gap(struct scan *scan)
{
	struct scan_segment **order = calloc(scan->path->segments, sizeof(struct scan_segment *));
	uint64_t expected = 0;
	uint32_t count = 0;
	bool gap = false;

	if (!order)
		return -ENOMEM;
	for (uint32_t i = 0; i < scan->path->segments; i++)
		if (scan->segment[i].kind >= SCAN_OPEN)
			order[count++] = &scan->segment[i];
	qsort(order, count, sizeof(struct scan_segment *), scan_newer_first);
	for (uint32_t i = 0; i < count; i++) {
		struct scan_segment *segment = order[i];

		gap = gap || segment->kind == SCAN_DAMAGED || segment->ordinal < expected;
		if (!i || segment->previous < expected)
			expected = segment->previous;
		if (!gap)
			continue;
		free(segment->block);
		segment->block = NULL;
		segment->blocks = 0;
		segment->kind = SCAN_EMPTY;
		scan_raise_horizon(scan);
	}
	free(order);
	return 0;
}

/* What looks sealed may still be in the device's cache: only of the newest can that be. */
static int scan_sync_newest(struct scan *scan)
{
	uint32_t newest = SEGMENT_NONE;

	for (uint32_t i = 0; i < scan->path->segments; i++)
		if (scan->segment[i].kind == SCAN_SEALED &&
			(newest == SEGMENT_NONE ||
				scan->segment[i].ordinal > scan->segment[newest].ordinal))
			newest = i;
	return newest == SEGMENT_NONE ? 0
				      : (int)scan_call(scan->path, DEVICE_SYNC, newest, 0, NULL, 0);
}

static void scan_unlink(struct scan *scan, uint32_t number)
{
	scan->rc = (int)scan_call(scan->path, DEVICE_UNLINK, number, 0, NULL, 0);
	scan->removing = scan->rc != 0;
}

void scan_path(struct scan *scan)
{
	struct store_path *path = scan->path;
	const struct disk_path_file *current;
	struct disk_path_file slot[2];
	bool damaged[2];

	scan->segment = calloc(path->segments, sizeof(*scan->segment));
	scan->rc = scan->segment ? scan_read(path, DEVICE_PATH_FILE, 0, slot, 2, damaged) : -ENOMEM;
	if (scan->rc)
		return;
	scan->fault = layout_path_file_read(slot, path->store->units * PAGE_UNIT, &current);
	if (scan->fault == PATH_FILE_EMPTY && (damaged[0] || damaged[1])) {
		scan->rc = -EIO; /* it has a record, which cannot be read */
		return;
	}
	if (scan->fault == PATH_FILE_OK || scan->fault == PATH_FILE_SIZES)
		path->file = *current;
	if (scan->fault == PATH_FILE_VERSION)
		path->file.version = current->version;
	if (scan->fault == PATH_FILE_VERSION || scan->fault == PATH_FILE_SIZES)
		return;
	/* A smaller path: what is behind its end must not come back when it grows again. */
	for (uint32_t i = path->segments;
		i < path->file.segments && i < DISK_SEGMENTS_MAX && !scan->rc; i++)
		scan_unlink(scan, i);
	for (uint32_t i = 0; i < path->segments && !scan->rc; i++) {
		/* Files without a path file are not used in place. */
		if (scan->fault == PATH_FILE_EMPTY) {
			scan_unlink(scan, i);
			scan->segment[i].kind = SCAN_MISSING;
			continue;
		}
		struct scanner scanner = {.scan = scan,
			.path = path,
			.geometry = {path->file.path_id, i, path->store->units},
			.segment = &scan->segment[i]};

		scan->rc = scan_segment(&scanner);
		scan_note_highest(scan, &scan->segment[i]);
	}
	if (scan->rc)
		return;
	scan->rc = scan_drop_behind_gap(scan);
	if (!scan->rc)
		scan->rc = scan_sync_newest(scan);
}
