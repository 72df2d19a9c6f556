/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spill: pages of the queue become blocks, up to DISK_BLOCKS_FLIGHT in flight a path. A page is in
 * the index, and can be read, when its block is written. It is persisted when its segment is
 * sealed.
 * Runs on the thread that steps the store.
 */
#include <string.h>

#include "engine/abi/crc32c.h"
#include "engine/disk/store.h"

static struct store_path *path_choose(struct store *store)
{
	struct store_path *best = NULL;

	for (unsigned i = 0; i < store->paths; i++) {
		struct store_path *path = &store->path[i];

		if (path_in_service(path) &&
			(!best || path->report.queued_bytes < best->report.queued_bytes ||
				(path->report.queued_bytes == best->report.queued_bytes &&
					path->report.bytes_written < best->report.bytes_written)))
			best = path;
	}
	return best;
}

/* DISK_OK if the page may be written: the queue has room and so has the budget of the day. */
static enum disk_status admit(struct store *store, struct store_path *path, uint64_t bytes)
{
	uint64_t queued = 0;

	if (path->report.queued_bytes && path->report.queued_bytes + bytes > DISK_QUEUE_BYTES) {
		store->dropped_queue++;
		return DISK_DROPPED;
	}
	for (unsigned i = 0; i < store->paths; i++)
		queued += store->path[i].report.queued_bytes;
	if (store->budget_bytes && store->budget_used + queued + bytes > store->budget_bytes) {
		store->dropped_budget++;
		return DISK_SPENT;
	}
	return DISK_OK;
}

void write_submit(struct store *store, struct disk_request *request)
{
	struct store_path *path = path_choose(store);
	uint64_t bytes = (uint64_t)disk_units(request->length) * PAGE_UNIT;
	struct disk_index_found found;
	enum disk_status admitted;

	if (!path || 4 * PAGE_UNIT + bytes + 3 * PAGE_UNIT > (uint64_t)store->units * PAGE_UNIT) {
		store_finish(store, request, path ? DISK_TOO_LARGE : DISK_OFFLINE);
		return;
	}
	if (busy_has(store, &request->key) ||
		disk_index_find(&store->index, &request->key, &found)) {
		store_finish(store, request, DISK_EXISTS);
		return;
	}
	admitted = admit(store, path, bytes);
	if (admitted != DISK_OK || !busy_add(store, &request->key)) {
		store_finish(store, request, admitted == DISK_OK ? DISK_DROPPED : admitted);
		return;
	}
	request->sequence = store->sequence++;
	path->report.queued_bytes += bytes;
	STAILQ_INSERT_TAIL(&path->writes, request, next);
}

static void write_landed(struct device_io *io)
{
	struct block_write *write = io->context;
	struct store_path *path = write->path;
	struct store *store = path->store;
	const struct disk_block *block = write->block;
	int64_t bytes = (int64_t)(write->payload + 1) * PAGE_UNIT;
	uint32_t unit = write->unit + 1;

	path_landed(path, io);
	path->segment[write->segment].writing--;
	if (path_in_service(path) && io->result != bytes) {
		path->report.io_errors++;
		path_fail(path, "cannot write to segment %u: result %lld of %lld", write->segment,
			(long long)io->result, (long long)bytes);
	}
	write->busy = false;
	for (uint32_t i = 0; i < block->entries; i++) {
		const struct disk_entry *entry = &block->entry[i];

		if (path_in_service(path)) {
			(void)disk_index_add(&store->index, path->first + write->segment, unit,
				&entry->key, entry->length, entry->crc);
			busy_drop(store, &entry->key);
			path->report.pages_written++;
		}
		unit += disk_units(entry->length);
		store_finish(
			store, write->request[i], path_in_service(path) ? DISK_OK : DISK_OFFLINE);
	}
	if (path_in_service(path)) {
		path->report.bytes_written += (uint64_t)bytes;
		path->report.page_bytes += (uint64_t)bytes - PAGE_UNIT;
		store->budget_used += (uint64_t)bytes;
	}
}

/*
 * The page's units in the block: those that are whole as they are, and the last one as a copy whose
 * rest is zero, because in memory another page's bytes may lie there.
 */
static void block_add(struct block_write *write, struct disk_request *request)
{
	struct disk_block *block = write->block;
	size_t whole = request->length / PAGE_UNIT * PAGE_UNIT, rest = request->length - whole;

	if (whole)
		write->iov[write->io.iovs++] = (struct iovec){request->data, whole};
	if (rest) {
		uint8_t *tail = write->tail + (size_t)block->entries * PAGE_UNIT;

		memcpy(tail, (const uint8_t *)request->data + whole, rest);
		memset(tail + rest, 0, PAGE_UNIT - rest);
		write->iov[write->io.iovs++] = (struct iovec){tail, PAGE_UNIT};
	}
	write->request[block->entries] = request;
	block->entry[block->entries++] = (struct disk_entry){.key = request->key,
		.sequence = request->sequence,
		.length = request->length,
		.crc = request->crc};
}

/* Computes the page's CRC, once. False: it differs from the caller's; the request is ended. */
static bool page_check(struct store_path *path, struct disk_request *request)
{
	uint32_t crc;

	if (request->checked)
		return true;
	crc = crc32c(0, request->data, request->length);
	request->checked = !request->has_crc || request->crc == crc;
	request->crc = crc;
	if (request->checked)
		return true;
	STAILQ_REMOVE(&path->writes, request, disk_request, next);
	path->report.queued_bytes -= (uint64_t)disk_units(request->length) * PAGE_UNIT;
	busy_drop(path->store, &request->key);
	store_finish(path->store, request, DISK_CORRUPT);
	return false;
}

/*
 * How many of the queue's pages the next block takes, and their units. Pages whose bytes are wrong
 * leave the queue.
 */
static uint32_t block_plan(struct store_path *path, uint32_t *ret_pages)
{
	struct disk_request *request, *after;
	uint32_t pages = 0, units = 0;

	for (request = STAILQ_FIRST(&path->writes); request; request = after) {
		uint32_t more = disk_units(request->length);

		after = STAILQ_NEXT(request, next);
		if (!page_check(path, request))
			continue;

		if (pages == DISK_BLOCK_PAGES ||
			(pages && (units + more > DISK_BLOCK_BYTES / PAGE_UNIT ||
					  units + more > path->store->units / 4)))
			break;
		pages++;
		units += more;
	}
	*ret_pages = pages;
	return units;
}

static void block_start(struct store_path *path, struct block_write *write, uint32_t pages)
{
	write->segment = path->active;
	write->unit = path->segment[path->active].fill;
	write->block = segment_block(path);
	if (!write->block) {
		path_fail(path, "no memory for a header");
		return;
	}
	write->busy = true;
	write->io = (struct device_io){.op = DEVICE_WRITE,
		.file = write->segment,
		.offset = (uint64_t)write->unit * PAGE_UNIT,
		.iov = write->iov,
		.done = write_landed,
		.context = write};
	write->iov[write->io.iovs++] = (struct iovec){write->block, PAGE_UNIT};
	for (uint32_t i = 0; i < pages; i++) {
		struct disk_request *request = STAILQ_FIRST(&path->writes);

		STAILQ_REMOVE_HEAD(&path->writes, next);
		path->report.queued_bytes -= (uint64_t)disk_units(request->length) * PAGE_UNIT;
		block_add(write, request);
	}
	write->payload = layout_block_payload(write->block);
	layout_block_seal(write->block);
	path->segment[write->segment].fill += write->payload;
	path->segment[write->segment].payload += write->payload;
	path->segment[write->segment].writing++;
	path_submit(path, &write->io);
}

void write_step(struct store_path *path)
{
	unsigned flying = 0;

	for (unsigned i = 0; i < DISK_BLOCKS_FLIGHT; i++)
		flying += path->block[i].busy;
	for (unsigned i = 0; i < DISK_BLOCKS_FLIGHT; i++) {
		uint32_t pages, units;

		if (path->block[i].busy)
			continue;
		units = block_plan(path, &pages);
		/* A short block only when the device would be idle without it. */
		if (!pages || (flying > 1 && pages < DISK_BLOCK_PAGES &&
				      units < DISK_BLOCK_BYTES / PAGE_UNIT / 2))
			return;
		if (!segment_room(path, 1, units))
			return;
		block_start(path, &path->block[i], pages);
		if (!path_in_service(path))
			return;
		flying++;
	}
}
