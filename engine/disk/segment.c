/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A path and its segments: the I/O in flight, how the path leaves service, and the life of a
 * segment. Runs on the thread that steps the store. A write, sync or allocation that fails takes
 * the whole path out of service, see path_fail().
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
	block->segment = number;
	block->unit = segment->fill++;
	segment->block[segment->blocks++] = block;
	return block;
}

/* ---- memory of a path ----------------------------------------------------------------------- */

int path_open(struct store_path *path, uint32_t segments)
{
	path->segment = calloc(segments, sizeof(*path->segment));
	path->open_units = aligned_alloc(PAGE_UNIT, 2 * PAGE_UNIT);
	if (!path->segment || !path->open_units)
		return -1;
	memset(path->open_units, 0, 2 * PAGE_UNIT);
	for (unsigned i = 0; i < DISK_BLOCKS_FLIGHT; i++) {
		path->block[i].path = path;
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
	return 0;
}

void path_close(struct store_path *path)
{
	for (uint32_t i = 0; i < path->segments; i++)
		segment_forget(&path->segment[i]);
	for (unsigned i = 0; i < DISK_BLOCKS_FLIGHT; i++)
		free(path->block[i].tail);
	free(path->segment);
	free(path->open_units);
	free(path->footer_units);
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
	STAILQ_INSERT_TAIL(&store->held, request, next_held);
}

/* Holds the requests whose I/O is in flight. */
static void requests_hold(struct store_path *path)
{
	for (unsigned i = 0; i < DISK_BLOCKS_FLIGHT; i++)
		for (uint32_t r = 0; path->block[i].busy && r < path->block[i].block->entries; r++)
			if (path->block[i].request[r])
				request_hold(path->store, path->block[i].request[r]);
	for (unsigned i = 0; i < DISK_READS_FLIGHT; i++)
		if (path->read[i].busy)
			request_hold(path->store, path->read[i].request);
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
	requests_hold(path);
	requests_fail(path, &path->writes);
	requests_fail(path, &path->reads);
	for (uint32_t i = 0; i < path->segments; i++)
		disk_index_empty(&store->index, path->first + i);
}

/*
 * ---- a segment ---------------------------------------------------------------------------------
 *
 * It is opened (which invalidates what it held), filled, sealed, and recycled in the order in which
 * it was opened.
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
		path->open_iov = (struct iovec){path->open_units + PAGE_UNIT, PAGE_UNIT};
		io->offset = (uint64_t)(path->store->units - 1) * PAGE_UNIT;
	} else if (segment->step == 1) { /* and so are the headers of another epoch */
		path->open_iov = (struct iovec){path->open_units, PAGE_UNIT};
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

/* The segment to open next: a free one, else the oldest sealed one; SEGMENT_NONE: none now. */
static uint32_t segment_open_choose(const struct store_path *path)
{
	uint32_t oldest = SEGMENT_NONE;

	for (uint32_t i = 0; i < path->segments; i++) {
		const struct segment *segment = &path->segment[i];

		if (segment->state == SEGMENT_FREE)
			return i;
		if (segment->state == SEGMENT_SEALED &&
			(oldest == SEGMENT_NONE ||
				segment->ordinal < path->segment[oldest].ordinal))
			oldest = i;
	}
	return oldest;
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
	}
	segment_forget(segment);
	*segment = (struct segment){.state = SEGMENT_OPENING,
		.epoch = store->random(store->random_context),
		.ordinal = ++path->ordinal,
		.fill = 1};
	disk_index_epoch(&store->index, path->first + number, segment->epoch);
	path->next = number;
	memset(block, 0, sizeof(*block));
	block->path_id = path->file.path_id;
	block->epoch = segment->epoch;
	block->ordinal = segment->ordinal;
	block->segment = number;
	layout_block_seal(block);
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
	uint32_t i = 0;

	while (i < path->segments &&
		(path->segment[i].state != SEGMENT_SEALING || path->segment[i].writing))
		i++;
	if (i == path->segments)
		return;
	path->sealing = i;
	path->segment[i].step = 0;
	segment_seal_submit(path);
}

/* ---- both ------------------------------------------------------------------------------- */

bool segment_room(struct store_path *path, uint32_t payload)
{
	for (;;) {
		struct segment *segment;

		if (path->active == SEGMENT_NONE) {
			if (path->next == SEGMENT_NONE ||
				path->segment[path->next].state != SEGMENT_READY)
				return false;
			path->active = path->next;
			path->next = SEGMENT_NONE;
			path->segment[path->active].state = SEGMENT_ACTIVE;
		}
		segment = &path->segment[path->active];
		/* A header takes a unit here and one in the footer, which ends in a trailer. */
		if ((uint64_t)segment->fill + 1 + payload + segment->blocks + 1 + 1 <=
			path->store->units)
			return true;
		if (!segment->blocks)
			return false; /* an empty segment: the block fits none */
		segment->state = SEGMENT_SEALING;
		path->active = SEGMENT_NONE;
	}
}

/* A segment more is needed soon: none is recycled before. */
static bool segment_wanted(const struct store_path *path)
{
	if (path->active == SEGMENT_NONE)
		return !STAILQ_EMPTY(&path->writes) || path->store->tombstones;
	return path->segment[path->active].fill > path->store->units / 2;
}

void segment_step(struct store_path *path)
{
	if (path->sealing == SEGMENT_NONE)
		segment_seal_start(path);
	if (path->next == SEGMENT_NONE && segment_wanted(path)) {
		uint32_t number = segment_open_choose(path);

		if (number != SEGMENT_NONE)
			segment_open_start(path, number);
	}
}
