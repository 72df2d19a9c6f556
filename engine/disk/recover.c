/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The start: scans all paths, adopts their segments, and builds the index from the headers that
 * were read. Segments that were open go on: the newest one is filled further, the others are
 * sealed. Blocks; runs on the thread that opens the tier, with one more thread a path while it
 * scans. A path that cannot be used is out of service.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "config/thread.h"
#include "engine/disk/scan.h"
#include "numa/limit.h"

struct recovery {
	struct store *store;
	struct scan scan[DISK_PATHS_MAX];
	uint64_t **sequence; /* of each page of each segment in the index */
};

/* ---- what the paths hold -------------------------------------------------------------------- */

static void *scan_thread(void *argument)
{
	scan_path(argument);
	return NULL;
}

static void paths_scan(struct recovery *recovery)
{
	struct store *store = recovery->store;
	pthread_t thread[DISK_PATHS_MAX];
	bool started[DISK_PATHS_MAX] = {false};

	for (unsigned i = 0; i < store->paths; i++) {
		if (!store->path[i].device)
			continue;
		recovery->scan[i].path = &store->path[i];
		if (store->parallel)
			started[i] = !thread_start(&thread[i], scan_thread, &recovery->scan[i]);
		if (!started[i])
			scan_path(&recovery->scan[i]);
	}
	for (unsigned i = 0; i < store->paths; i++)
		if (started[i])
			pthread_join(thread[i], NULL);
}

/* Takes paths that cannot be used out of service, with the reason. */
static void paths_check(struct recovery *recovery)
{
	struct store *store = recovery->store;

	for (unsigned i = 0; i < store->paths; i++) {
		struct store_path *path = &store->path[i];
		const struct scan *scan = &recovery->scan[i];

		if (!path->device)
			continue;
		if (scan->rc)
			path_fail(path, "%s: %s",
				scan->removing ? "cannot remove a segment that it does not use"
					       : "cannot be read",
				limit_error(scan->rc));
		else if (scan->fault == PATH_FILE_VERSION)
			path_fail(path,
				"has layout version %u, this engine %u; start the engine that wrote it, or empty the directory to use it",
				path->file.version, DISK_LAYOUT_VERSION);
		else if (scan->fault == PATH_FILE_SIZES)
			path_fail(path,
				"has blocks of %u and segments of %u bytes, not %u and %u; empty the directory to use it",
				path->file.unit_bytes, path->file.segment_bytes, PAGE_UNIT,
				store->units * PAGE_UNIT);
		else
			path->report.state = DISK_PATH_IN_SERVICE;
	}
}

/* Writes the path file if the path is new or has another size. */
static void path_identify(struct store_path *path)
{
	struct disk_path_file *file = &path->file;
	int64_t rc;

	if (file->path_id && file->segments == path->segments)
		return;
	while (!file->path_id)
		file->path_id = path->store->random(path->store->random_context);
	file->unit_bytes = PAGE_UNIT;
	file->segment_bytes = path->store->units * PAGE_UNIT;
	file->segments = path->segments;
	layout_path_file_seal(file);
	rc = scan_call(path, DEVICE_WRITE, DEVICE_PATH_FILE, 0, file, 1);
	if (rc == PAGE_UNIT)
		rc = scan_call(path, DEVICE_SYNC, DEVICE_PATH_FILE, 0, NULL, 0);
	if (rc)
		path_fail(path, "cannot write its path file: %s",
			limit_error(rc < 0 ? (int)rc : -ENOSPC));
}

/* A segment that was open: it has these headers. */
static void segment_resume(
	struct store_path *path, uint32_t number, const struct scan_segment *from)
{
	struct segment *segment = &path->segment[number];

	path->active = number;
	for (uint32_t b = 0; b < from->blocks; b++) {
		struct disk_block *block = segment_block(path);

		if (!block) {
			path_fail(path, "no memory for a header");
			return;
		}
		*block = from->block[b];
		segment->fill = block->unit + 1 + layout_block_payload(block);
	}
	path->active = SEGMENT_NONE;
	segment->state = SEGMENT_SEALING;
}

/* Segments as they were found; missing ones are created. */
static void path_adopt_segments(struct recovery *recovery, unsigned number)
{
	struct store_path *path = &recovery->store->path[number];
	const struct scan *scan = &recovery->scan[number];
	uint32_t newest = SEGMENT_NONE;

	path->ordinal = scan->ordinal;
	for (uint32_t i = 0; i < path->segments && path_in_service(path); i++) {
		const struct scan_segment *from = &scan->segment[i];
		struct segment *segment = &path->segment[i];

		segment->ordinal = from->ordinal;
		segment->epoch = from->epoch;
		disk_index_epoch(&recovery->store->index, path->first + i, from->epoch);
		if (from->kind == SCAN_SEALED) {
			segment->state = SEGMENT_SEALED;
			path->report.sealed++;
		} else if (from->kind == SCAN_OPEN) {
			segment_resume(path, i, from);
			if (newest == SEGMENT_NONE || from->ordinal > path->segment[newest].ordinal)
				newest = i;
		} else if (from->kind == SCAN_MISSING) {
			int64_t rc = scan_call(path, DEVICE_CREATE, i, 0, NULL, 0);

			if (rc)
				path_fail(path, "cannot create segment %u: %s", i,
					limit_error((int)rc));
		}
	}
	if (newest != SEGMENT_NONE)
		path->segment[newest].state = SEGMENT_ACTIVE;
	path->active = newest;
}

/* ---- the index ------------------------------------------------------------------------------ */

/* Adds a page unless another copy is newer. */
static int index_add_page(
	struct recovery *recovery, uint32_t segment, uint32_t unit, const struct disk_entry *entry)
{
	struct disk_index *index = &recovery->store->index;
	struct disk_index_found other;
	uint32_t id;

	if (disk_index_find(index, &entry->key, &other)) {
		if (recovery->sequence[other.segment][other.id & 0xffff] >= entry->sequence)
			return 0;
		disk_index_remove(index, &other);
	}
	id = disk_index_add(index, segment, unit, entry, NULL);
	if (id == INDEX_NONE)
		return -ENOMEM;
	recovery->sequence[segment][id & 0xffff] = entry->sequence;
	return 0;
}

static int index_add_segment(struct recovery *recovery, struct store_path *path, uint32_t number)
{
	const struct scan_segment *segment = &recovery->scan[path->number].segment[number];
	uint32_t pages = 0;
	int rc = 0;

	for (uint32_t b = 0; b < segment->blocks; b++)
		pages += segment->block[b].entries;
	recovery->sequence[path->first + number] = calloc(pages + 1, sizeof(uint64_t));
	if (!recovery->sequence[path->first + number])
		return -ENOMEM;
	for (uint32_t b = 0; b < segment->blocks && !rc; b++) {
		const struct disk_block *block = &segment->block[b];
		uint32_t unit = block->unit + 1;

		for (uint32_t i = 0; i < block->entries && !rc; i++) {
			const struct page_key *key = &block->entry[i].key;

			if (block->entry[i].length && (key->word[0] | key->word[1]))
				rc = index_add_page(
					recovery, path->first + number, unit, &block->entry[i]);
			unit += disk_units(block->entry[i].length);
		}
	}
	if (path->segment[number].state == SEGMENT_SEALED)
		disk_index_trim(&recovery->store->index, path->first + number);
	return rc;
}

/* The pages that the tombstones of a segment name leave the index. */
static void index_bury(struct recovery *recovery, const struct scan_segment *segment)
{
	struct disk_index *index = &recovery->store->index;
	struct disk_index_found found;

	for (uint32_t b = 0; b < segment->blocks; b++)
		for (uint32_t i = 0; i < segment->block[b].entries; i++) {
			const struct disk_entry *entry = &segment->block[b].entry[i];

			if (!entry->length && disk_index_find(index, &entry->key, &found) &&
				recovery->sequence[found.segment][found.id & 0xffff] <=
					entry->sequence)
				disk_index_remove(index, &found);
		}
}

/* Fills the index: of each key the page with the highest number that was not forgotten. */
static int recovery_index(struct recovery *recovery)
{
	struct store *store = recovery->store;
	int rc = 0;

	recovery->sequence = calloc(store->index.segments, sizeof(uint64_t *));
	if (!recovery->sequence)
		return -ENOMEM;
	for (unsigned p = 0; p < store->paths; p++)
		for (uint32_t i = 0;
			path_in_service(&store->path[p]) && i < store->path[p].segments && !rc; i++)
			rc = index_add_segment(recovery, &store->path[p], i);
	for (unsigned p = 0; p < store->paths; p++)
		for (uint32_t i = 0;
			path_in_service(&store->path[p]) && i < store->path[p].segments; i++)
			index_bury(recovery, &recovery->scan[p].segment[i]);
	return rc;
}

static void paths_count(struct store *store)
{
	for (unsigned p = 0; p < store->paths; p++)
		for (uint32_t i = 0;
			path_in_service(&store->path[p]) && i < store->path[p].segments; i++) {
			const struct disk_index_segment *segment =
				&store->index.segment[store->path[p].first + i];

			for (uint32_t n = 0; n < segment->pages; n++)
				store->path[p].report.pages_recovered +=
					segment->page[n].length >> 31;
		}
}

static void recovery_free(struct recovery *recovery)
{
	for (uint32_t i = 0; recovery->sequence && i < recovery->store->index.segments; i++)
		free(recovery->sequence[i]);
	free(recovery->sequence);
}

/* ---- the whole start ------------------------------------------------------------------------ */

int store_recover(struct store *store, const uint32_t segments[DISK_PATHS_MAX])
{
	struct recovery recovery = {.store = store};
	uint32_t first = 0;
	unsigned in_service = 0;
	int rc;

	for (unsigned i = 0; i < store->paths; i++) {
		struct store_path *path = &store->path[i];

		TAILQ_INIT(&path->flying);
		path->store = store;
		path->number = i;
		path->first = first;
		if (path_open(path, segments[i]))
			return -ENOMEM;
		first += segments[i];
	}
	paths_scan(&recovery);
	paths_check(&recovery);
	for (unsigned i = 0; i < store->paths; i++) {
		struct store_path *path = &store->path[i];

		if (path_in_service(path))
			path_identify(path);
		if (path_in_service(path))
			path_adopt_segments(&recovery, i);
		if (!path_in_service(path))
			continue;
		in_service++;
		if (recovery.scan[i].sequence >= store->index.sequence)
			store->index.sequence = recovery.scan[i].sequence + 1;
	}
	rc = in_service ? recovery_index(&recovery) : -ENODEV;
	paths_count(store);
	for (unsigned i = 0; i < store->paths; i++)
		if (recovery.scan[i].path)
			scan_free(&recovery.scan[i]);
	recovery_free(&recovery);
	return rc;
}
