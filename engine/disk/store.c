/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The segment log as a whole: requests in, steps, finished requests out. Runs on the thread that
 * steps the store.
 */
#include "engine/disk/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DAY_NS UINT64_C(86400000000000)

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
	STAILQ_INIT(&store->removed);
	STAILQ_INIT(&store->deferred);
	return disk_index_open(&store->index, segments ? (uint32_t)segments : 1);
}

void store_close(struct store *store)
{
	for (unsigned i = 0; i < store->paths; i++)
		path_close(&store->path[i]);
	disk_index_close(&store->index);
	free(store->busy);
}

void store_finish(struct store *store, struct disk_request *request, enum disk_status status)
{
	request->status = status;
	if (request->internal) {
		free(request->data);
		free(request);
		return;
	}
	STAILQ_INSERT_TAIL(&store->finished, request, next);
}

static bool request_valid(const struct disk_request *request)
{
	if (!request->key.word[0] && !request->key.word[1])
		return false;
	if (request->op == DISK_REMOVE)
		return true;
	return request->length && request->length <= PAGE_BYTES_MAX && request->data &&
	       !((uintptr_t)request->data % PAGE_UNIT);
}

void store_submit(struct store *store, struct disk_request *request)
{
	request->internal = false;
	request->checked = false;
	if (!request_valid(request)) {
		store_finish(store, request, DISK_INVALID);
		return;
	}
	switch (request->op) {
	case DISK_READ: read_submit(store, request); return;
	case DISK_WRITE: write_submit(store, request); return;
	case DISK_REMOVE: remove_submit(store, request); return;
	}
	store_finish(store, request, DISK_INVALID);
}

/* Removes that waited for a write or a remove of their key. */
static void submit_deferred(struct store *store)
{
	struct disk_requests deferred = STAILQ_HEAD_INITIALIZER(deferred);
	struct disk_request *request;

	STAILQ_CONCAT(&deferred, &store->deferred);
	while ((request = STAILQ_FIRST(&deferred))) {
		STAILQ_REMOVE_HEAD(&deferred, next);
		remove_submit(store, request);
	}
}

static void check_hanging(struct store_path *path, uint64_t now_ns)
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
	submit_deferred(store);
	for (unsigned i = 0; i < store->paths; i++) {
		struct store_path *path = &store->path[i];

		check_hanging(path, now_ns);
		if (!path_in_service(path))
			continue;
		read_step(path);
		segment_step(path);
		remove_step(path);
		write_step(path);
	}
	store_record(store);
	return work;
}

unsigned store_flying(const struct store *store)
{
	const struct device_io *io;
	unsigned n = 0;

	for (unsigned i = 0; i < store->paths; i++)
		TAILQ_FOREACH (io, &store->path[i].flying, flying)
			n++;
	return n;
}
