/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removal: writes a tombstone to every path in service and syncs it; only then is the request
 * finished. Every path gets one, because an older copy may lie on a path that the index does not
 * name. A path has one block of tombstones in flight; those that arrive meanwhile share the next
 * block and its sync. Runs on the thread that steps the store.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/disk/store.h"
#include "numa/limit.h"

bool remove_add(struct store_path *path, const struct page_key *key, uint64_t sequence,
	struct disk_request *request)
{
	struct tombstone *tombstone = malloc(sizeof(*tombstone));

	if (!tombstone)
		return false;
	*tombstone = (struct tombstone){.request = request, .key = *key, .sequence = sequence};
	STAILQ_INSERT_TAIL(&path->tombstones, tombstone, next);
	return true;
}

void remove_done(struct store_path *path, struct tombstone *tombstone)
{
	struct disk_request *request = tombstone->request;

	free(tombstone);
	if (!request)
		return;
	request->waiting &= ~(1u << path->number);
	if (!request->waiting)
		STAILQ_INSERT_TAIL(&path->store->removed, request, next);
}

void remove_submit(struct store *store, struct disk_request *request)
{
	struct disk_index_found found;
	bool all = true;

	if (busy_has(store, &request->key)) {
		STAILQ_INSERT_TAIL(&store->deferred, request, next);
		return;
	}
	if (!busy_add(store, &request->key)) {
		store_finish(store, request, DISK_OFFLINE);
		return;
	}
	if (disk_index_find(&store->index, &request->key, &found))
		disk_index_remove(&store->index, &found);
	request->sequence = store->sequence++;
	/* The bit of no path: the request is not done before all paths have their tombstone. */
	request->waiting = 1u << DISK_PATHS_MAX;
	for (unsigned i = 0; i < store->paths && all; i++) {
		struct store_path *path = &store->path[i];

		if (!path_in_service(path))
			continue;
		all = remove_add(path, &request->key, request->sequence, request);
		if (all)
			request->waiting |= 1u << i;
		else
			path_fail(path, "no memory for a tombstone");
	}
	request->waiting &= ~(1u << DISK_PATHS_MAX);
	if (!request->waiting)
		STAILQ_INSERT_TAIL(&store->removed, request, next);
}

static void batch_done(struct store_path *path)
{
	struct tombstone *tombstone;

	path->batch_busy = false;
	while ((tombstone = STAILQ_FIRST(&path->batch))) {
		STAILQ_REMOVE_HEAD(&path->batch, next);
		remove_done(path, tombstone);
	}
}

static void batch_synced(struct device_io *io)
{
	struct store_path *path = io->context;

	path_landed(path, io);
	path->segment[path->batch_segment].writing--;
	if (!path_in_service(path))
		return;
	if (io->result < 0) {
		path->report.io_errors++;
		path_fail(path, "cannot sync segment %u: %s", path->batch_segment,
			limit_error((int)io->result));
		return;
	}
	batch_done(path);
}

static void batch_written(struct device_io *io)
{
	struct block_write *write = io->context;
	struct store_path *path = write->path;

	path_landed(path, io);
	write->busy = false;
	if (!path_in_service(path) || io->result != 2 * (int64_t)PAGE_UNIT) {
		path->segment[path->batch_segment].writing--;
		path->report.io_errors++;
		path_fail(path, "cannot write tombstones to segment %u: result %lld",
			path->batch_segment, (long long)io->result);
		return;
	}
	path->batch_io = (struct device_io){.op = DEVICE_SYNC,
		.file = path->batch_segment,
		.done = batch_synced,
		.context = path};
	path_submit(path, &path->batch_io);
}

/* Moves up to one block of tombstones to the batch and into two headers of the same content. */
static bool batch_fill(struct store_path *path, struct block_write *write)
{
	struct segment *segment = &path->segment[path->active];
	struct disk_block *first = segment_block(path),
			  *second = first ? segment_block(path) : NULL;
	struct tombstone *tombstone;

	if (!second) {
		path_fail(path, "no memory for a header");
		return false;
	}
	while (first->entries < DISK_BLOCK_PAGES && (tombstone = STAILQ_FIRST(&path->tombstones))) {
		STAILQ_REMOVE_HEAD(&path->tombstones, next);
		STAILQ_INSERT_TAIL(&path->batch, tombstone, next);
		first->entry[first->entries++] =
			(struct disk_entry){.key = tombstone->key, .sequence = tombstone->sequence};
		if (tombstone->sequence > segment->tombstone)
			segment->tombstone = tombstone->sequence;
	}
	memcpy(second->entry, first->entry, sizeof(first->entry));
	second->entries = first->entries;
	layout_block_seal(first);
	layout_block_seal(second);
	write->iov[0] = (struct iovec){first, PAGE_UNIT};
	write->iov[1] = (struct iovec){second, PAGE_UNIT};
	return true;
}

void remove_step(struct store_path *path)
{
	struct block_write *write = &path->block[DISK_BLOCKS_FLIGHT];

	if (path->batch_busy || STAILQ_EMPTY(&path->tombstones) || !segment_room(path, 2, 0))
		return;
	write->unit = path->segment[path->active].fill;
	if (!batch_fill(path, write))
		return;
	path->batch_busy = write->busy = true;
	path->batch_segment = path->active;
	/* Counts as a block in flight until its sync is done, so that the segment is not sealed. */
	path->segment[path->active].writing++;
	path->report.bytes_written += 2 * PAGE_UNIT;
	write->io = (struct device_io){.op = DEVICE_WRITE,
		.file = path->active,
		.offset = (uint64_t)write->unit * PAGE_UNIT,
		.iov = write->iov,
		.iovs = 2,
		.done = batch_written,
		.context = write};
	path_submit(path, &write->io);
}
