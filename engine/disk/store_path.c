/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One path: its memory, its I/O in flight, how it leaves service, and the record of which paths
 * have all tombstones. Runs on the thread that steps the store.
 *
 * The record. A removal is acknowledged when every path in service has its tombstone. A path that
 * leaves service misses later ones, so before the next removal is acknowledged all others write to
 * their path files which paths are left (generation + 1) and up to where the lost one was complete.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/disk/store.h"
#include "numa/limit.h"

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

bool path_in_service(const struct store_path *path)
{
	return path->report.state == DISK_PATH_IN_SERVICE;
}

void path_submit(struct store_path *path, struct device_io *io)
{
	io->since_ns = 0; /* the next step sets it */
	TAILQ_INSERT_TAIL(&path->flying, io, flying);
	path->device->submit(path->device, io);
}

void path_landed(struct store_path *path, struct device_io *io)
{
	TAILQ_REMOVE(&path->flying, io, flying);
}

static void requests_fail(struct store_path *path, struct disk_requests *list)
{
	struct store *store = path->store;
	struct disk_request *request;

	while ((request = STAILQ_FIRST(list))) {
		STAILQ_REMOVE_HEAD(list, next);
		if (request->op == DISK_WRITE)
			busy_drop(store, &request->key);
		store_finish(store, request, request->op == DISK_WRITE ? DISK_OFFLINE : DISK_MISS);
	}
	path->report.queued_bytes = 0;
}

/* Tombstones need not be on this path any more: the other paths record that it has left. */
static void tombstones_fail(struct store_path *path, struct tombstones *list)
{
	struct tombstone *tombstone;

	while ((tombstone = STAILQ_FIRST(list))) {
		STAILQ_REMOVE_HEAD(list, next);
		remove_done(path, tombstone);
	}
}

/* The lost path had all tombstones that were acknowledged so far: those below `sequence`. */
static void remember_left(struct store *store, uint64_t id, uint64_t sequence)
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
static uint64_t complete_until(const struct store_path *path)
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
	vsnprintf(path->report.reason, sizeof(path->report.reason), format, arguments);
	va_end(arguments);
	log_error("disk %s: %s; out of service until the engine is restarted, its pages are misses",
		path->device ? path->device->name : "path", path->report.reason);
	path->report.state = DISK_PATH_OUT;
	if (!served)
		return;
	if (!store->starting)
		remember_left(store, path->file.path_id, complete_until(path));
	store->generation++;
	for (unsigned i = 0; i < DISK_BLOCKS_FLIGHT; i++)
		if (path->block[i].busy)
			for (uint32_t r = 0; r < path->block[i].block->entries; r++)
				busy_drop(store, &path->block[i].request[r]->key);
	requests_fail(path, &path->writes);
	requests_fail(path, &path->reads);
	for (uint32_t i = 0; i < path->segments; i++)
		disk_index_empty(&store->index, path->first + i);
	tombstones_fail(path, &path->tombstones);
	tombstones_fail(path, &path->batch);
}

static void record_submit(struct store_path *path)
{
	struct device_io *io = &path->record_io;

	io->file = DEVICE_PATH_FILE;
	if (path->record_step == 1) {
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
		path->record_step = 0;
		path->report.io_errors++;
		path_fail(path, "cannot write its path file: %s", limit_error((int)io->result));
		return;
	}
	if (path->record_step++ == 1) {
		record_submit(path);
		return;
	}
	path->record_step = 0;
	path->recorded = path->record_unit->generation;
}

/* Fills in the unit that is written: the members of this moment. */
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
	file->count++;
	file->members = 0;
	for (unsigned i = 0; i < store->paths; i++)
		if (path_in_service(&store->path[i]))
			file->member[file->members++] = store->path[i].file.path_id;
	memcpy(file->left, store->left, sizeof(file->left));
	layout_path_file_seal(file);
	*path->record_unit = *file;
	path->record_io.done = record_landed;
	path->record_io.context = path;
	path->record_step = 1;
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
		busy_drop(store, &request->key);
		store_finish(store, request, any ? DISK_OK : DISK_OFFLINE);
	}
}
