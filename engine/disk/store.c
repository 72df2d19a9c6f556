/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The segment log as a whole: requests in, steps, finished requests out. Spill writes pages in
 * blocks, up to DISK_BLOCKS_FLIGHT in flight a path, and tombstones with them; promotion reads a
 * page and looks at the index again. The paths and their segments are segment.c's. Runs on the
 * thread that steps the store. A request that fails is finished with a status; a write or a sync
 * that fails takes its path out of service.
 */
#include "engine/disk/store.h"

#include <errno.h>
#include <string.h>

#include "engine/abi/crc32c.h"
#include "engine/abi/map.h"

#define DAY_NS UINT64_C(86400000000000)
#define TOMBSTONES_NS 500000000u /* how long tombstones wait for pages to be written with */

/* ---- busy keys: they are being written, and not a second time ------------------------------- */

static unsigned busy_chain(const struct page_key *key)
{
	return (unsigned)(map_mix(key->word[0] ^ key->word[1]) & (BUSY_CHAINS - 1));
}

static void busy_add(struct store *store, struct disk_request *request)
{
	LIST_INSERT_HEAD(&store->busy[busy_chain(&request->key)], request, same);
	request->busy = true;
}

static bool busy_has(const struct store *store, const struct page_key *key)
{
	const struct disk_request *request;

	LIST_FOREACH (request, &store->busy[busy_chain(key)], same)
		if (page_key_equal(&request->key, key))
			return true;
	return false;
}

void busy_drop(struct disk_request *request)
{
	if (request->busy)
		LIST_REMOVE(request, same);
	request->busy = false;
}

/* ---- the end of a request ------------------------------------------------------------------- */

void store_finish(struct store *store, struct disk_request *request, enum disk_status status)
{
	busy_drop(request);
	request->status = status;
	STAILQ_INSERT_TAIL(&store->finished, request, next);
}

/*
 * ---- spill: pages of the queue become blocks ---------------------------------------------------
 *
 * A page is in the index, and can be read, when its block is written. It is persisted when its
 * segment is sealed.
 */

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
static enum disk_status write_admit(struct store *store, struct store_path *path, uint64_t bytes)
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

static void write_submit(struct store *store, struct disk_request *request)
{
	struct store_path *path = path_choose(store);
	uint64_t bytes = (uint64_t)disk_units(request->length) * PAGE_UNIT;
	struct disk_index_found found;
	enum disk_status admitted;

	/* opening block, header, its copy, trailer */
	if (!path || bytes + 4 * PAGE_UNIT > (uint64_t)store->units * PAGE_UNIT) {
		store_finish(store, request, path ? DISK_TOO_LARGE : DISK_OFFLINE);
		return;
	}
	if (busy_has(store, &request->key) ||
		disk_index_find(&store->index, &request->key, &found)) {
		store_finish(store, request, DISK_EXISTS);
		return;
	}
	admitted = write_admit(store, path, bytes);
	if (admitted != DISK_OK) {
		store_finish(store, request, admitted);
		return;
	}
	busy_add(store, request);
	request->sequence = disk_index_sequence(&store->index);
	path->report.queued_bytes += bytes;
	STAILQ_INSERT_TAIL(&path->writes, request, next);
}

/* The block is on the device: its page can be read, unless it was forgotten meanwhile. */
static enum disk_status write_publish(struct block_write *write, uint32_t at, uint32_t unit)
{
	struct store_path *path = write->path;
	const struct disk_request *request = write->request[at];

	if (!path_in_service(path))
		return DISK_OFFLINE;
	path->report.pages_written++;
	(void)disk_index_add(&path->store->index, path->first + write->segment, unit,
		&write->block->entry[at], &request->forgotten);
	return shm_load8(&request->forgotten) ? DISK_EXISTS : DISK_OK;
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
	write->busy = false;
	if (path_in_service(path) && io->result != bytes) {
		path->report.io_errors++;
		path_fail(
			path, "cannot write to segment %u: %s", write->segment, path_io_error(io));
	}
	for (uint32_t i = 0; i < block->entries; i++) {
		if (write->request[i])
			store_finish(store, write->request[i], write_publish(write, i, unit));
		unit += disk_units(block->entry[i].length);
	}
	if (path_in_service(path)) {
		path->report.bytes_written += (uint64_t)bytes;
		path->report.page_bytes += (uint64_t)bytes - PAGE_UNIT;
	}
}

/*
 * The page's units in the block: those that are whole as they are, and the last one as a copy whose
 * rest is zero, because in memory another page's bytes may lie there.
 */
static void write_add_page(struct block_write *write, struct disk_request *request)
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

/*
 * Computes the page's CRC, once. False: it differs from the caller's, or the page was forgotten;
 * the request is ended.
 */
static bool write_check_page(struct store_path *path, struct disk_request *request)
{
	bool forgotten = shm_load8(&request->forgotten);
	uint32_t crc;

	if (!forgotten && !request->checked) {
		crc = crc32c(0, request->data, request->length);
		request->checked = !request->has_crc || request->crc == crc;
		request->crc = crc;
	}
	if (!forgotten && request->checked)
		return true;
	STAILQ_REMOVE(&path->writes, request, disk_request, next);
	path->report.queued_bytes -= (uint64_t)disk_units(request->length) * PAGE_UNIT;
	store_finish(path->store, request, forgotten ? DISK_EXISTS : DISK_CORRUPT);
	return false;
}

/*
 * How many of the queue's pages the next block takes, at most `max`, and their units. Pages that
 * are not to be written leave the queue.
 */
static uint32_t write_plan_block(struct store_path *path, uint32_t max, uint32_t *ret_pages)
{
	struct disk_request *request, *after;
	uint32_t pages = 0, units = 0;

	for (request = STAILQ_FIRST(&path->writes); request; request = after) {
		uint32_t more = disk_units(request->length);

		after = STAILQ_NEXT(request, next);
		if (!write_check_page(path, request))
			continue;

		if (pages == max || (pages && (units + more > DISK_BLOCK_BYTES / PAGE_UNIT ||
						      units + more > path->store->units / 4)))
			break;
		pages++;
		units += more;
	}
	*ret_pages = pages;
	return units;
}

static void write_start_block(struct store_path *path, struct block_write *write, uint32_t pages)
{
	struct store *store = path->store;

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
	for (; store->tombstones; write->block->entries++) {
		write->request[write->block->entries] = NULL;
		write->block->entry[write->block->entries] = store->tombstone[--store->tombstones];
	}
	for (uint32_t i = 0; i < pages; i++) {
		struct disk_request *request = STAILQ_FIRST(&path->writes);

		STAILQ_REMOVE_HEAD(&path->writes, next);
		path->report.queued_bytes -= (uint64_t)disk_units(request->length) * PAGE_UNIT;
		write_add_page(write, request);
	}
	write->payload = layout_block_payload(write->block);
	layout_block_seal(write->block);
	path->segment[write->segment].fill += write->payload;
	path->segment[write->segment].writing++;
	path_submit(path, &write->io);
}

static void write_step(struct store_path *path, uint64_t now_ns)
{
	const struct store *store = path->store;
	unsigned flying = 0;

	for (unsigned i = 0; i < DISK_BLOCKS_FLIGHT; i++)
		flying += path->block[i].busy;
	for (unsigned i = 0; i < DISK_BLOCKS_FLIGHT; i++) {
		uint32_t pages, units;
		bool due = store->tombstones &&
			   (store->ending || store->tombstones == TOMBSTONES_MAX ||
				   now_ns - store->tombstones_ns > TOMBSTONES_NS);

		if (path->block[i].busy)
			continue;
		units = write_plan_block(path, DISK_BLOCK_PAGES - store->tombstones, &pages);
		/* A short block only when the device would be idle without it. */
		if ((!pages && !due) ||
			(flying > 1 && !due && pages + store->tombstones < DISK_BLOCK_PAGES &&
				units < DISK_BLOCK_BYTES / PAGE_UNIT / 2))
			return;
		if (!segment_room(path, units))
			return;
		write_start_block(path, &path->block[i], pages);
		if (!path_in_service(path))
			return;
		flying++;
	}
}

/*
 * ---- promotion ---------------------------------------------------------------------------------
 *
 * One read per page, its CRC, and a second look at the index: the page must still be the one that
 * was found.
 */

static struct store_path *store_path_of(struct store *store, uint32_t segment)
{
	unsigned i = 0;

	while (i + 1 < store->paths && segment >= store->path[i + 1].first)
		i++;
	return &store->path[i];
}

static void read_submit(struct store *store, struct disk_request *request)
{
	struct disk_index_found found;
	struct store_path *path;

	if (!disk_index_find(&store->index, &request->key, &found) ||
		found.length != request->length) {
		store_finish(store, request, DISK_MISS);
		return;
	}
	path = store_path_of(store, found.segment);
	STAILQ_INSERT_TAIL(&path->reads, request, next);
}

static void read_error(struct store_path *path)
{
	if (path->report.read_errors + path->report.crc_errors > DISK_READ_ERRORS_MAX)
		path_fail(path, "%llu reads failed, %llu pages had wrong bytes",
			(unsigned long long)path->report.read_errors,
			(unsigned long long)path->report.crc_errors);
}

static enum disk_status read_check(struct page_read *read)
{
	struct store_path *path = read->path;
	struct disk_request *request = read->request;
	struct disk_index *index = &path->store->index;
	bool whole = read->io.result == (int64_t)read->iov.iov_len;

	if (!disk_index_still(index, &read->found))
		return DISK_MISS; /* recycled, removed, or the path failed meanwhile */
	if (!whole || crc32c(0, request->data, request->length) != read->found.crc) {
		path->report.read_errors += !whole;
		path->report.crc_errors += whole;
		disk_index_remove(index, &read->found);
		read_error(path);
		return DISK_MISS;
	}
	request->crc = read->found.crc;
	path->report.pages_read++;
	path->report.bytes_read += read->iov.iov_len;
	return DISK_OK;
}

static void read_landed(struct device_io *io)
{
	struct page_read *read = io->context;

	path_landed(read->path, io);
	read->busy = false;
	store_finish(read->path->store, read->request, read_check(read));
}

static void read_start(struct page_read *read, struct disk_request *request)
{
	struct store_path *path = read->path;

	read->busy = true;
	read->request = request;
	read->iov = (struct iovec){request->data, (size_t)disk_units(request->length) * PAGE_UNIT};
	read->io = (struct device_io){.op = DEVICE_READ,
		.file = read->found.segment - path->first,
		.offset = (uint64_t)read->found.unit * PAGE_UNIT,
		.iov = &read->iov,
		.iovs = 1,
		.done = read_landed,
		.context = read};
	path_submit(path, &read->io);
}

static void read_step(struct store_path *path)
{
	struct disk_request *request = STAILQ_FIRST(&path->reads);

	for (unsigned i = 0; i < DISK_READS_FLIGHT && request; i++) {
		struct page_read *read = &path->read[i];

		if (read->busy)
			continue;
		STAILQ_REMOVE_HEAD(&path->reads, next);
		/* The page may have been recycled, or written elsewhere, since it was queued. */
		if (!disk_index_find(&path->store->index, &request->key, &read->found) ||
			read->found.length != request->length ||
			store_path_of(path->store, read->found.segment) != path)
			store_finish(path->store, request, DISK_MISS);
		else
			read_start(read, request);
		request = STAILQ_FIRST(&path->reads);
	}
}

/* ---- requests in ---------------------------------------------------------------------------- */

static bool request_valid(const struct disk_request *request)
{
	if (!request->key.word[0] && !request->key.word[1])
		return false;
	return request->length && request->length <= PAGE_BYTES_MAX && request->data &&
	       !((uintptr_t)request->data % PAGE_UNIT);
}

void store_submit(struct store *store, struct disk_request *request)
{
	request->busy = request->checked = false;
	if (!request_valid(request)) {
		store_finish(store, request, DISK_INVALID);
		return;
	}
	switch (request->op) {
	case DISK_READ: read_submit(store, request); return;
	case DISK_WRITE: write_submit(store, request); return;
	}
	store_finish(store, request, DISK_INVALID);
}

/* ---- the step ------------------------------------------------------------------------------- */

static void path_check_hanging(struct store_path *path, uint64_t now_ns)
{
	struct device_io *oldest = TAILQ_FIRST(&path->flying);

	if (!oldest || !path_in_service(path))
		return;
	for (struct device_io *io = oldest; io && !io->since_ns; io = TAILQ_NEXT(io, flying))
		io->since_ns = now_ns;
	if (now_ns - oldest->since_ns > path->store->timeout_ns)
		path_fail(path, "an I/O has had no answer for %llu ms",
			(unsigned long long)((now_ns - oldest->since_ns) / 1000000));
}

unsigned store_step(struct store *store, uint64_t now_ns)
{
	unsigned work = 0;

	if (now_ns - store->budget_since_ns >= DAY_NS || !store->budget_since_ns) {
		store->budget_since_ns = now_ns;
		store->budget_used = 0;
	}
	for (unsigned i = 0; i < store->paths; i++)
		if (store->path[i].device)
			work += device_dispatch(store->path[i].device);
	if (!store->tombstones)
		store->tombstones_ns = now_ns;
	store->tombstones += disk_index_forgotten(&store->index, TOMBSTONES_MAX - store->tombstones,
		&store->tombstone[store->tombstones]);
	for (unsigned i = 0; i < store->paths; i++) {
		struct store_path *path = &store->path[i];

		path_check_hanging(path, now_ns);
		if (!path_in_service(path))
			continue;
		read_step(path);
		segment_step(path);
		write_step(path, now_ns);
	}
	return work;
}

/* ---- open and close ------------------------------------------------------------------------- */

int store_open(struct store *store, const struct disk_options *options)
{
	uint64_t segments = 0;

	for (unsigned i = 0; i < options->paths; i++)
		segments += options->path[i].bytes / options->segment_bytes;
	if (!options->paths || options->paths > DISK_PATHS_MAX || segments > DISK_SEGMENTS_MAX ||
		options->segment_bytes % PAGE_UNIT || options->segment_bytes > DISK_SEGMENT_BYTES)
		return -EINVAL;
	memset(store, 0, sizeof(*store));
	store->units = options->segment_bytes / PAGE_UNIT;
	store->paths = options->paths;
	store->budget_bytes = options->write_bytes_per_day;
	store->timeout_ns = (uint64_t)options->timeout_ms * 1000000;
	STAILQ_INIT(&store->finished);
	STAILQ_INIT(&store->held);
	return disk_index_open(&store->index, segments ? (uint32_t)segments : 1);
}

void store_close(struct store *store)
{
	for (unsigned i = 0; i < store->paths; i++)
		path_close(&store->path[i]);
	disk_index_close(&store->index);
}
