/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A path and its segments: the I/O in flight, how the path leaves service, the life of a segment,
 * and the record of which paths have all tombstones. Runs on the thread that steps the store. A
 * write, sync or allocation that fails takes the whole path out of service, see path_fail().
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "config/text_fit.h"
#include "engine/disk/store.h"
#include "numa/limit.h"

/* ---- the headers of a segment --------------------------------------------------------------- */

/* Frees the headers of a segment. */
static void segment_forget(struct segment *segment)
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

/* ---- memory of a path ----------------------------------------------------------------------- */

static void *units_alloc(size_t units)
{
	void *memory = aligned_alloc(PAGE_UNIT, units * PAGE_UNIT);

	if (memory)
		memset(memory, 0, units * PAGE_UNIT);
	return memory;
}

int path_open(struct store_path *path, uint32_t segments)
{
	path->segment = calloc(segments, sizeof(*path->segment));
	path->open_units = units_alloc(3);
	path->record_unit = units_alloc(1);
	if (!path->segment || !path->open_units || !path->record_unit)
		return -1;
	for (unsigned i = 0; i <= DISK_BLOCKS_FLIGHT; i++) {
		path->block[i].path = path;
		if (i == DISK_BLOCKS_FLIGHT)
			continue;
		/* Not touched before it is used. */
		path->block[i].tail = aligned_alloc(PAGE_UNIT, DISK_BLOCK_PAGES * PAGE_UNIT);
		if (!path->block[i].tail)
			return -1;
	}
	for (unsigned i = 0; i < DISK_READS_FLIGHT; i++)
		path->read[i].path = path;
	path->segments = segments;
	path->active = path->next = path->sealing = SEGMENT_NONE;
	path->report.segments = segments;
	STAILQ_INIT(&path->writes);
	STAILQ_INIT(&path->reads);
	STAILQ_INIT(&path->tombstones);
	STAILQ_INIT(&path->batch);
	return 0;
}

static void tombstones_free(struct tombstones *list)
{
	struct tombstone *tombstone;

	while ((tombstone = STAILQ_FIRST(list))) {
		STAILQ_REMOVE_HEAD(list, next);
		free(tombstone);
	}
}

void path_close(struct store_path *path)
{
	for (uint32_t i = 0; i < path->segments; i++)
		segment_forget(&path->segment[i]);
	for (unsigned i = 0; i <= DISK_BLOCKS_FLIGHT; i++)
		free(path->block[i].tail);
	tombstones_free(&path->tombstones);
	tombstones_free(&path->batch);
	free(path->segment);
	free(path->open_units);
	free(path->footer_units);
	free(path->record_unit);
}

/* ---- I/O in flight, and leaving service ----------------------------------------------------- */

bool path_in_service(const struct store_path *path)
{
	return path->report.state == DISK_PATH_IN_SERVICE;
}

void path_submit(struct store_path *path, struct device_io *io)
{
	io->since_ns = 0; /* the next step sets it */
	/* The budget of the day is charged when a write begins, so none is in flight beside it. */
	for (unsigned i = 0; io->op == DEVICE_WRITE && i < io->iovs; i++)
		path->store->budget_used += io->iov[i].iov_len;
	TAILQ_INSERT_TAIL(&path->flying, io, flying);
	path->report.flying++;
	path->device->submit(path->device, io);
}

const char *path_io_error(const struct device_io *io)
{
	static _Thread_local char text[96];
	size_t bytes = 0;

	if (io->result < 0)
		return limit_error((int)io->result);
	for (unsigned i = 0; i < io->iovs; i++)
		bytes += io->iov[i].iov_len;
	snprintf(text, sizeof(text), "%lld of %zu bytes were written; is the device full?",
		(long long)io->result, bytes);
	return text;
}

static void requests_fail(struct store_path *path, struct disk_requests *list)
{
	struct disk_request *request;

	while ((request = STAILQ_FIRST(list))) {
		STAILQ_REMOVE_HEAD(list, next);
		store_finish(
			path->store, request, request->op == DISK_WRITE ? DISK_OFFLINE : DISK_MISS);
	}
	path->report.queued_bytes = 0;
}

/* Its result is known, but the device may still move its bytes, for ever if it hangs. */
static void request_hold(struct store *store, struct disk_request *request)
{
	busy_drop(request);
	if (!request->internal)
		STAILQ_INSERT_TAIL(&store->held, request, next_held);
}

/* Holds the requests whose I/O is in flight. */
static void requests_hold(struct store_path *path)
{
	for (unsigned i = 0; i < DISK_BLOCKS_FLIGHT; i++)
		for (uint32_t r = 0; path->block[i].busy && r < path->block[i].block->entries; r++)
			request_hold(path->store, path->block[i].request[r]);
	for (unsigned i = 0; i < DISK_READS_FLIGHT; i++)
		if (path->read[i].busy)
			request_hold(path->store, path->read[i].request);
}

/* The lost path had all tombstones that were acknowledged so far: those below `sequence`. */
static void store_remember_left(struct store *store, uint64_t id, uint64_t sequence)
{
	unsigned at = DISK_LEFT_MAX - 1;

	for (unsigned i = 0; i < DISK_LEFT_MAX; i++)
		if (!store->left[i].id || store->left[i].id == id) {
			at = i;
			break;
		}
	store->left[at].id = id;
	store->left[at].sequence = sequence;
}

/* The lowest number of a tombstone that is not synced on this path: what it may lack. */
static uint64_t path_complete_until(const struct store_path *path)
{
	uint64_t lowest = path->store->sequence;
	const struct tombstone *tombstone;

	STAILQ_FOREACH (tombstone, &path->tombstones, next)
		lowest = tombstone->sequence < lowest ? tombstone->sequence : lowest;
	STAILQ_FOREACH (tombstone, &path->batch, next)
		lowest = tombstone->sequence < lowest ? tombstone->sequence : lowest;
	return lowest - 1;
}

void path_fail(struct store_path *path, const char *format, ...)
{
	struct store *store = path->store;
	bool served = path_in_service(path);
	va_list arguments;

	if (path->report.state == DISK_PATH_OUT)
		return;
	va_start(arguments, format);
	text_vfit(path->report.reason, sizeof(path->report.reason), format, arguments);
	va_end(arguments);
	log_error("disk %s: %s; out of service until the engine is restarted, its pages are misses",
		path->device ? path->device->name : "path", path->report.reason);
	path->report.state = DISK_PATH_OUT;
	if (!served)
		return;
	if (!store->starting)
		store_remember_left(store, path->file.path_id, path_complete_until(path));
	store->generation++;
	requests_hold(path);
	requests_fail(path, &path->writes);
	requests_fail(path, &path->reads);
	for (uint32_t i = 0; i < path->segments; i++)
		disk_index_empty(&store->index, path->first + i);
	/* They need not be on this path any more: the other paths record that it has left. */
	tombstones_done(path, &path->tombstones);
	tombstones_done(path, &path->batch);
}

/*
 * ---- a segment ---------------------------------------------------------------------------------
 *
 * It is opened (which invalidates what it held), filled, sealed, and recycled in the order in which
 * it was opened. Sealing is in order of ordinals, so that the sealed segments of a path are always
 * the oldest ones without a gap: recovery relies on it to see that a segment is missing.
 */

static void segment_io_failed(struct store_path *path, uint32_t segment, const struct device_io *io)
{
	path->report.io_errors++;
	path_fail(path, "cannot %s segment %u: %s", io->op == DEVICE_SYNC ? "sync" : "write",
		segment, path_io_error(io));
}

/* The I/O of a step has completed: true if the next step may follow. */
static bool segment_step_landed(
	struct store_path *path, uint32_t segment, const struct device_io *io)
{
	int64_t expected = io->op == DEVICE_WRITE ? (int64_t)io->iov->iov_len : 0;

	if (!path_in_service(path))
		return false;
	if (io->result != expected) {
		segment_io_failed(path, segment, io);
		return false;
	}
	if (io->op == DEVICE_WRITE)
		path->report.bytes_written += (uint64_t)expected;
	return true;
}

/* ---- opening ---------------------------------------------------------------------------- */

static void segment_open_landed(struct device_io *io);

static void segment_open_submit(struct store_path *path)
{
	struct segment *segment = &path->segment[path->next];
	struct device_io *io = &path->open_io;

	*io = (struct device_io){.op = DEVICE_WRITE,
		.file = path->next,
		.iov = &path->open_iov,
		.iovs = 1,
		.done = segment_open_landed,
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

static void segment_open_landed(struct device_io *io)
{
	struct store_path *path = io->context;
	struct segment *segment = &path->segment[path->next];

	path_landed(path, io);
	if (!segment_step_landed(path, path->next, io))
		return;
	if (segment->step++ < 2)
		segment_open_submit(path);
	else
		segment->state = SEGMENT_READY;
}

/*
 * The segment to open next: a free one, else the oldest sealed one; SEGMENT_NONE: none now. At the
 * start free ones only, unless `needed`. Otherwise DISK_SPARES are left, because after a crash the
 * open segments are copied to other ones.
 */
static uint32_t segment_open_choose(const struct store_path *path, bool needed)
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

static void segment_open_start(struct store_path *path, uint32_t number)
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
	segment_open_submit(path);
}

/* ---- sealing ---------------------------------------------------------------------------- */

static void segment_seal_landed(struct device_io *io);

/* Copies of all headers and the trailer; false without memory. */
static bool segment_fill_footer(struct store_path *path, uint32_t number)
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

static void segment_seal_submit(struct store_path *path)
{
	struct segment *segment = &path->segment[path->sealing];
	struct device_io *io = &path->seal_io;

	*io = (struct device_io){.op = DEVICE_SYNC,
		.file = path->sealing,
		.done = segment_seal_landed,
		.context = path};
	if (segment->step == 1) {
		if (!segment_fill_footer(path, path->sealing)) {
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

static void segment_seal_landed(struct device_io *io)
{
	struct store_path *path = io->context;
	struct segment *segment = &path->segment[path->sealing];

	path_landed(path, io);
	if (!segment_step_landed(path, path->sealing, io))
		return;
	if (segment->step++ < 2) {
		segment_seal_submit(path);
		return;
	}
	segment->state = SEGMENT_SEALED; /* its pages are persisted */
	segment_forget(segment);
	disk_index_trim(&path->store->index, path->first + path->sealing);
	path->report.sealed++;
	path->sealing = SEGMENT_NONE;
}

static void segment_seal_start(struct store_path *path)
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
	segment_seal_submit(path);
}

/* ---- both ------------------------------------------------------------------------------- */

/* The opening blocks are the first two headers of the footer as well. */
static bool segment_activate(struct store_path *path)
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
				path->segment[path->next].state != SEGMENT_READY ||
				!segment_activate(path))
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
		segment_seal_start(path);
	if (path->next == SEGMENT_NONE) {
		/* The start recycles no segment while it can do without. */
		bool needed = path->active == SEGMENT_NONE &&
			      !(STAILQ_EMPTY(&path->writes) && STAILQ_EMPTY(&path->tombstones));
		uint32_t number = segment_open_choose(path, needed);

		if (number != SEGMENT_NONE)
			segment_open_start(path, number);
	}
}

/*
 * ---- the record --------------------------------------------------------------------------------
 *
 * A removal is acknowledged when every path in service has its tombstone. A path that leaves
 * service misses later ones, so before the next removal is acknowledged all others write to their
 * path files which paths are left (generation + 1) and up to where the lost one was complete.
 *
 * A record is written to both slots, so that one damaged unit does not make an older one current:
 * first to the slot that is not current, because a crash may tear what is being written.
 */

enum { RECORD_NONE, RECORD_WRITE, RECORD_SYNC, RECORD_WRITE_OTHER, RECORD_SYNC_OTHER };

/* Gives the record the next count, which also chooses the slot. */
static void record_seal(struct store_path *path)
{
	path->file.count++;
	layout_path_file_seal(&path->file);
	*path->record_unit = path->file;
}

static void record_submit(struct store_path *path)
{
	struct device_io *io = &path->record_io;

	io->file = DEVICE_PATH_FILE;
	if (path->record_step == RECORD_WRITE || path->record_step == RECORD_WRITE_OTHER) {
		record_seal(path);
		io->op = DEVICE_WRITE;
		io->offset = path->record_unit->count % 2 * PAGE_UNIT;
		path->record_iov = (struct iovec){path->record_unit, PAGE_UNIT};
		io->iov = &path->record_iov;
		io->iovs = 1;
	} else {
		io->op = DEVICE_SYNC;
		io->iovs = 0;
	}
	path_submit(path, io);
}

static void record_landed(struct device_io *io)
{
	struct store_path *path = io->context;

	path_landed(path, io);
	if (io->result != (io->op == DEVICE_WRITE ? (int64_t)PAGE_UNIT : 0)) {
		path->record_step = RECORD_NONE;
		path->report.io_errors++;
		path_fail(path, "cannot write its path file: %s", path_io_error(io));
		return;
	}
	if (!path_in_service(path))
		return;
	if (path->record_step++ < RECORD_SYNC_OTHER) {
		record_submit(path);
		return;
	}
	path->record_step = RECORD_NONE;
	path->recorded = path->record_unit->generation;
}

/* Begins to write the members of this moment. */
static void record_start(struct store_path *path)
{
	struct store *store = path->store;
	struct disk_path_file *file = &path->file;

	file->unit_bytes = PAGE_UNIT;
	file->segment_bytes = store->units * PAGE_UNIT;
	file->segments = path->segments;
	file->inode = path->device->inode;
	file->born_ns = path->device->born_ns;
	file->generation = store->generation;
	file->members = 0;
	for (unsigned i = 0; i < store->paths; i++)
		if (path_in_service(&store->path[i]))
			file->member[file->members++] = store->path[i].file.path_id;
	memcpy(file->left, store->left, sizeof(file->left));
	path->record_io.done = record_landed;
	path->record_io.context = path;
	path->record_step = RECORD_WRITE;
	record_submit(path);
}

void store_record(struct store *store)
{
	bool recorded = true, any = false;
	struct disk_request *request;

	if (store->starting)
		return;
	for (unsigned i = 0; i < store->paths; i++) {
		struct store_path *path = &store->path[i];

		if (!path_in_service(path))
			continue;
		any = true;
		if (path->recorded == store->generation)
			continue;
		recorded = false;
		if (!path->record_step)
			record_start(path);
	}
	while (recorded && (request = STAILQ_FIRST(&store->removed))) {
		STAILQ_REMOVE_HEAD(&store->removed, next);
		store_finish(store, request, any ? DISK_OK : DISK_OFFLINE);
	}
}
