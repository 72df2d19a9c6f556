/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promotion: one read per page, its CRC, and a second look at the index: the page must still be the
 * one that was found. Runs on the thread that steps the store.
 */
#include "engine/abi/crc32c.h"
#include "engine/disk/store.h"

static struct store_path *path_of(struct store *store, uint32_t segment)
{
	unsigned i = 0;

	while (i + 1 < store->paths && segment >= store->path[i + 1].first)
		i++;
	return &store->path[i];
}

void read_submit(struct store *store, struct disk_request *request)
{
	struct disk_index_found found;
	struct store_path *path;

	if (!disk_index_find(&store->index, &request->key, &found) ||
		found.length != request->length) {
		store_finish(store, request, DISK_MISS);
		return;
	}
	path = path_of(store, found.segment);
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

	if (!disk_index_still(index, &read->found))
		return DISK_MISS; /* recycled, removed, or the path failed meanwhile */
	if (read->io.result != (int64_t)read->iov.iov_len) {
		path->report.read_errors++;
		disk_index_remove(index, &read->found);
		read_error(path);
		return DISK_MISS;
	}
	if (crc32c(0, request->data, request->length) != read->found.crc) {
		path->report.crc_errors++;
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

void read_step(struct store_path *path)
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
			path_of(path->store, read->found.segment) != path)
			store_finish(path->store, request, DISK_MISS);
		else
			read_start(read, request);
		request = STAILQ_FIRST(&path->reads);
	}
}
