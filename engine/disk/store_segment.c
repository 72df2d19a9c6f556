/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of a segment: opened (which invalidates what it held), filled, sealed, and recycled in the
 * order in which it was opened. Runs on the thread that steps the store.
 *
 * Sealing is in order of ordinals, so that the sealed segments of a path are always the oldest ones
 * without a gap: recovery relies on it to see that a segment is missing.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/disk/store.h"

void segment_forget(struct segment *segment)
{
	for (uint32_t i = 0; i < segment->blocks; i++)
		free(segment->block[i]);
	free(segment->block);
	segment->block = NULL;
	segment->blocks = segment->room = 0;
}

struct disk_block *segment_block(struct store_path *path)
{
	uint32_t number = path->active;
	struct segment *segment = &path->segment[number];
	struct disk_block *block;

	if (segment->blocks == segment->room) {
		uint32_t room = segment->room ? segment->room * 2 : 16;
		struct disk_block **grown = realloc(segment->block, room * sizeof(*grown));

		if (!grown)
			return NULL;
		segment->block = grown;
		segment->room = room;
	}
	block = aligned_alloc(PAGE_UNIT, sizeof(*block));
	if (!block)
		return NULL;
	memset(block, 0, sizeof(*block));
	block->path_id = path->file.path_id;
	block->epoch = segment->epoch;
	block->ordinal = segment->ordinal;
	block->previous = segment->previous;
	block->horizon = path->horizon;
	block->segment = number;
	block->number = segment->blocks;
	block->unit = segment->fill++;
	segment->block[segment->blocks++] = block;
	return block;
}

static void io_failed(struct store_path *path, uint32_t segment, const struct device_io *io)
{
	path->report.io_errors++;
	path_fail(path, "cannot %s segment %u: result %lld",
		io->op == DEVICE_SYNC ? "sync" : "write", segment, (long long)io->result);
}

/* The I/O of a step has completed: true if the next step may follow. */
static bool step_landed(struct store_path *path, uint32_t segment, const struct device_io *io)
{
	int64_t expected = io->op == DEVICE_WRITE ? (int64_t)io->iov->iov_len : 0;

	if (!path_in_service(path))
		return false;
	if (io->result != expected) {
		io_failed(path, segment, io);
		return false;
	}
	if (io->op == DEVICE_WRITE) {
		path->report.bytes_written += (uint64_t)expected;
		path->store->budget_used += (uint64_t)expected;
	}
	return true;
}

/* ---- opening ---------------------------------------------------------------------------- */

static void open_landed(struct device_io *io);

static void open_submit(struct store_path *path)
{
	struct segment *segment = &path->segment[path->next];
	struct device_io *io = &path->open_io;

	*io = (struct device_io){.op = DEVICE_WRITE,
		.file = path->next,
		.iov = &path->open_iov,
		.iovs = 1,
		.done = open_landed,
		.context = path};
	if (segment->step == 0) { /* the footer is invalid from here on */
		path->open_iov = (struct iovec){path->open_units + 2 * PAGE_UNIT, PAGE_UNIT};
		io->offset = (uint64_t)(path->store->units - 1) * PAGE_UNIT;
	} else if (segment->step == 1) { /* and so is the first header */
		path->open_iov = (struct iovec){path->open_units, 2 * PAGE_UNIT};
	} else {
		io->op = DEVICE_SYNC;
		io->iovs = 0;
	}
	path_submit(path, io);
}

static void open_landed(struct device_io *io)
{
	struct store_path *path = io->context;
	struct segment *segment = &path->segment[path->next];

	path_landed(path, io);
	if (!step_landed(path, path->next, io))
		return;
	if (segment->step++ < 2)
		open_submit(path);
	else
		segment->state = SEGMENT_READY;
}

/*
 * The segment to open next: a free one, else the oldest sealed one; SEGMENT_NONE: none now. At the
 * start free ones only, unless `needed`. Otherwise DISK_SPARES are left, because after a crash the
 * open segments are copied to other ones.
 */
static uint32_t open_choose(const struct store_path *path, bool needed)
{
	uint32_t free = SEGMENT_NONE, oldest = SEGMENT_NONE, left = 0;

	for (uint32_t i = 0; i < path->segments; i++) {
		const struct segment *segment = &path->segment[i];

		left += segment->state == SEGMENT_FREE || segment->state == SEGMENT_SEALED;
		if (segment->state == SEGMENT_FREE && free == SEGMENT_NONE)
			free = i;
		if (segment->state == SEGMENT_SEALED &&
			(oldest == SEGMENT_NONE ||
				segment->ordinal < path->segment[oldest].ordinal))
			oldest = i;
	}
	if (path->salvaging)
		return free != SEGMENT_NONE ? free : needed ? oldest : SEGMENT_NONE;
	if (left <= DISK_SPARES)
		return SEGMENT_NONE;
	return free != SEGMENT_NONE ? free : oldest;
}

static void open_start(struct store_path *path, uint32_t number)
{
	struct segment *segment = &path->segment[number];
	struct disk_block *block = (struct disk_block *)path->open_units;
	struct store *store = path->store;

	if (segment->state == SEGMENT_SEALED) {
		disk_index_empty(&store->index, path->first + number);
		path->report.recycled++;
		path->report.sealed--;
		if (segment->tombstone > path->horizon)
			path->horizon = segment->tombstone;
	}
	segment_forget(segment);
	*segment = (struct segment){.state = SEGMENT_OPENING,
		.epoch = store->random(store->random_context),
		.ordinal = ++path->ordinal,
		.previous = path->kept};
	disk_index_epoch(&store->index, path->first + number, segment->epoch);
	path->kept = segment->ordinal;
	path->next = number;
	memset(block, 0, sizeof(*block));
	block->path_id = path->file.path_id;
	block->epoch = segment->epoch;
	block->ordinal = segment->ordinal;
	block->previous = segment->previous;
	block->horizon = path->horizon;
	block->segment = number;
	block[1] = block[0];
	block[1].number = block[1].unit = 1;
	layout_block_seal(&block[0]);
	layout_block_seal(&block[1]);
	open_submit(path);
}

/* ---- sealing ---------------------------------------------------------------------------- */

static void seal_landed(struct device_io *io);

/* Copies of all headers and the trailer; false without memory. */
static bool footer_fill(struct store_path *path, uint32_t number)
{
	const struct segment *segment = &path->segment[number];
	size_t bytes = (size_t)(segment->blocks + 1) * PAGE_UNIT;
	struct disk_footer *trailer;

	if (path->footer_room < bytes) {
		free(path->footer_units);
		path->footer_units = aligned_alloc(PAGE_UNIT, bytes);
		path->footer_room = path->footer_units ? bytes : 0;
	}
	if (!path->footer_units)
		return false;
	for (uint32_t i = 0; i < segment->blocks; i++)
		memcpy(path->footer_units + (size_t)i * PAGE_UNIT, segment->block[i], PAGE_UNIT);
	trailer = (struct disk_footer *)(path->footer_units + bytes - PAGE_UNIT);
	memset(trailer, 0, sizeof(*trailer));
	trailer->blocks = segment->blocks;
	trailer->path_id = path->file.path_id;
	trailer->epoch = segment->epoch;
	trailer->ordinal = segment->ordinal;
	trailer->segment = number;
	layout_footer_seal(trailer);
	path->seal_iov = (struct iovec){path->footer_units, bytes};
	return true;
}

static void seal_submit(struct store_path *path)
{
	struct segment *segment = &path->segment[path->sealing];
	struct device_io *io = &path->seal_io;

	*io = (struct device_io){
		.op = DEVICE_SYNC, .file = path->sealing, .done = seal_landed, .context = path};
	if (segment->step == 1) {
		if (!footer_fill(path, path->sealing)) {
			path_fail(path, "no memory for a footer");
			return;
		}
		io->op = DEVICE_WRITE;
		io->offset = (uint64_t)(path->store->units - 1 - segment->blocks) * PAGE_UNIT;
		io->iov = &path->seal_iov;
		io->iovs = 1;
	}
	path_submit(path, io);
}

static void seal_landed(struct device_io *io)
{
	struct store_path *path = io->context;
	struct segment *segment = &path->segment[path->sealing];

	path_landed(path, io);
	if (!step_landed(path, path->sealing, io))
		return;
	if (segment->step++ < 2) {
		seal_submit(path);
		return;
	}
	segment->state = SEGMENT_SEALED; /* its pages are persisted */
	segment_forget(segment);
	disk_index_trim(&path->store->index, path->first + path->sealing);
	path->report.sealed++;
	path->sealing = SEGMENT_NONE;
}

static void seal_start(struct store_path *path)
{
	uint32_t oldest = SEGMENT_NONE;

	for (uint32_t i = 0; i < path->segments; i++)
		if (path->segment[i].state == SEGMENT_SEALING &&
			(oldest == SEGMENT_NONE ||
				path->segment[i].ordinal < path->segment[oldest].ordinal))
			oldest = i;
	if (oldest == SEGMENT_NONE || path->segment[oldest].writing)
		return;
	path->sealing = oldest;
	path->segment[oldest].step = 0;
	seal_submit(path);
}

/* ---- both ------------------------------------------------------------------------------- */

/* The opening blocks are the first two headers of the footer as well. */
static bool activate(struct store_path *path)
{
	struct segment *segment = &path->segment[path->next];
	struct disk_block *block;

	path->active = path->next;
	path->next = SEGMENT_NONE;
	segment->state = SEGMENT_ACTIVE;
	for (unsigned i = 0; i < 2; i++) {
		block = segment_block(path);
		if (!block) {
			path_fail(path, "no memory for a header");
			return false;
		}
		memcpy(block, path->open_units + (size_t)i * PAGE_UNIT, PAGE_UNIT);
	}
	return true;
}

bool segment_room(struct store_path *path, uint32_t headers, uint32_t payload)
{
	for (;;) {
		struct segment *segment;

		if (path->active == SEGMENT_NONE) {
			if (path->next == SEGMENT_NONE ||
				path->segment[path->next].state != SEGMENT_READY || !activate(path))
				return false;
		}
		segment = &path->segment[path->active];
		/* A header takes a unit here and one in the footer, which ends in a trailer. */
		if ((uint64_t)segment->fill + payload + headers + segment->blocks + headers + 1 <=
			path->store->units)
			return true;
		if (segment->blocks == 2)
			return false; /* an empty segment: the block fits none */
		segment->state = SEGMENT_SEALING;
		path->active = SEGMENT_NONE;
	}
}

void segment_step(struct store_path *path)
{
	if (path->sealing == SEGMENT_NONE)
		seal_start(path);
	if (path->next == SEGMENT_NONE) {
		/* The start recycles no segment while it can do without. */
		bool needed = path->active == SEGMENT_NONE &&
			      !(STAILQ_EMPTY(&path->writes) && STAILQ_EMPTY(&path->tombstones));
		uint32_t number = open_choose(path, needed);

		if (number != SEGMENT_NONE)
			open_start(path, number);
	}
}
