/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread of the disk tier and the queues between it and the control plane. The thread owns the
 * store; disk->lock protects the queues and the last report.
 */
#include "engine/disk/disk.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/log.h"
#include "config/thread.h"
#include "engine/disk/store.h"
#include "numa/clock.h"

#define IDLE_MS 100 /* the thread looks for hanging I/O this often */

struct disk {
	struct store store;
	pthread_t thread;
	int wake_fd;  /* written when there is a request, read by the thread */
	int ready_fd; /* written when there is a finished request */
	uint64_t timeout_ns;

	pthread_mutex_t lock;
	struct disk_requests submitted, finished, held;
	struct disk_report report;
	bool stop, ended; /* ended: no I/O is in flight */
};

static uint64_t disk_random_number(void *context)
{
	uint64_t number = 0;

	(void)context;
	while (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number))
		;
	return number;
}

static void disk_take_submitted(struct disk *disk)
{
	struct disk_requests taken = STAILQ_HEAD_INITIALIZER(taken);
	struct disk_request *request;

	pthread_mutex_lock(&disk->lock);
	STAILQ_CONCAT(&taken, &disk->submitted);
	pthread_mutex_unlock(&disk->lock);
	while ((request = STAILQ_FIRST(&taken))) {
		STAILQ_REMOVE_HEAD(&taken, next);
		store_submit(&disk->store, request);
	}
}

static void disk_publish(struct disk *disk)
{
	struct store *store = &disk->store;
	struct disk_report *report = &disk->report;
	uint32_t pages;
	bool lost;
	uint64_t index = disk_index_bytes(&store->index, &pages, &lost);
	bool finished = !STAILQ_EMPTY(&store->finished) || !STAILQ_EMPTY(&store->held) || lost;

	pthread_mutex_lock(&disk->lock);
	STAILQ_CONCAT(&disk->finished, &store->finished);
	STAILQ_CONCAT(&disk->held, &store->held);
	report->paths = store->paths;
	report->pages = pages;
	report->index_bytes = index;
	report->dropped_queue = store->dropped_queue;
	report->dropped_budget = store->dropped_budget;
	report->dropped_tombstones = store->index.forgotten_dropped;
	report->lost_unknown = store->index.lost_unknown;
	for (unsigned i = 0; i < store->paths; i++)
		report->path[i] = store->path[i].report;
	pthread_mutex_unlock(&disk->lock);
	if (finished)
		(void)eventfd_write(disk->ready_fd, 1);
}

static void disk_rest(struct disk *disk)
{
	struct pollfd fds[1 + DISK_PATHS_MAX] = {{.fd = disk->wake_fd, .events = POLLIN}};
	unsigned count = 1;
	eventfd_t value;

	for (unsigned i = 0; i < disk->store.paths; i++)
		if (disk->store.path[i].device)
			fds[count++] = (struct pollfd){
				.fd = disk->store.path[i].device->fd, .events = POLLIN};
	(void)poll(fds, count, IDLE_MS);
	(void)eventfd_read(disk->wake_fd, &value);
}

static bool disk_has_tombstones(const struct store *store)
{
	bool in_service = false;

	for (unsigned i = 0; i < store->paths; i++)
		in_service = in_service || path_in_service(&store->path[i]);
	return in_service && (store->tombstones || store->index.forgotten_count);
}

/* The end: writes tombstones, then waits for what is in flight, and submits nothing new. */
static void disk_drain(struct disk *disk)
{
	uint64_t until = clock_now_ns() + disk->timeout_ns;

	disk->store.ending = true;
	while (disk_has_tombstones(&disk->store) && clock_now_ns() < until)
		if (!store_step(&disk->store, clock_now_ns()) && disk_has_tombstones(&disk->store))
			disk_rest(disk);
	for (unsigned i = 0; i < disk->store.paths; i++)
		disk->store.path[i].report.state = DISK_PATH_OUT;
	while (store_flying(&disk->store) && clock_now_ns() < until) {
		unsigned work = 0;

		for (unsigned i = 0; i < disk->store.paths; i++)
			if (disk->store.path[i].device)
				work += device_dispatch(disk->store.path[i].device);
		if (!work)
			disk_rest(disk);
	}
}

static void *disk_thread(void *argument)
{
	struct disk *disk = argument;
	bool stop = false;

	pthread_setname_np(pthread_self(), "pc-disk");
	while (!stop) {
		unsigned work;

		disk_take_submitted(disk);
		work = store_step(&disk->store, clock_now_ns());
		/* Twice: what has completed makes room for more. */
		if (work)
			work += store_step(&disk->store, clock_now_ns());
		disk_publish(disk);
		if (!work)
			disk_rest(disk);
		pthread_mutex_lock(&disk->lock);
		stop = disk->stop;
		pthread_mutex_unlock(&disk->lock);
	}
	disk_drain(disk);
	return NULL;
}

/* The path before `number` that is the same directory, under whatever name; NULL: none is. */
static const char *disk_same_directory(const struct disk_options *options, unsigned number)
{
	struct stat it, other;

	if (stat(options->path[number].directory, &it))
		return NULL;
	for (unsigned i = 0; i < number; i++)
		if (!stat(options->path[i].directory, &other) && it.st_dev == other.st_dev &&
			it.st_ino == other.st_ino)
			return options->path[i].directory;
	return NULL;
}

static void disk_open_devices(
	struct disk *disk, const struct disk_options *options, uint32_t segments[DISK_PATHS_MAX])
{
	/* One limit for all paths: their I/O ends at the same time. */
	uint64_t lock_until_ns = clock_now_ns() + disk->timeout_ns;

	for (unsigned i = 0; i < options->paths; i++) {
		struct store_path *path = &disk->store.path[i];
		struct device_file_options file = {.directory = options->path[i].directory,
			.segment_bytes = options->segment_bytes,
			.owner = options->owner,
			.threads = options->threads,
			.lock_until_ns = lock_until_ns};
		const char *same = disk_same_directory(options, i);
		char *reason = path->report.reason;
		int rc;

		segments[i] = (uint32_t)(options->path[i].bytes / options->segment_bytes);
		if (segments[i] < DISK_SEGMENTS_MIN) {
			snprintf(reason, sizeof(path->report.reason),
				"%llu bytes are less than %u segments of %u",
				(unsigned long long)options->path[i].bytes, DISK_SEGMENTS_MIN,
				options->segment_bytes);
			rc = -EINVAL;
		} else if (same) {
			snprintf(reason, sizeof(path->report.reason),
				"is the same directory as %s; name it once in disk.paths", same);
			rc = -EINVAL;
		} else {
			rc = device_file_open(
				&file, reason, sizeof(path->report.reason), &path->device);
		}
		if (!rc)
			continue;
		path->report.state = DISK_PATH_OUT;
		log_error("disk %s: %s; the path is out of service", options->path[i].directory,
			reason);
	}
}

/* Returns -EBUSY, and frees nothing, while I/O is in flight. */
static int disk_free(struct disk *disk)
{
	bool busy = store_flying(&disk->store);

	for (unsigned i = 0; i < disk->store.paths; i++) {
		struct device *device = disk->store.path[i].device;

		if (device && !busy && device->close(device))
			busy = true; /* recovery gave up waiting for an operation of it */
	}
	if (busy)
		return -EBUSY;
	store_close(&disk->store);
	close(disk->wake_fd);
	close(disk->ready_fd);
	pthread_mutex_destroy(&disk->lock);
	free(disk);
	return 0;
}

int disk_open(const struct disk_options *options, struct disk **ret_disk)
{
	struct disk *disk = calloc(1, sizeof(*disk));
	uint32_t segments[DISK_PATHS_MAX] = {0};
	int rc;

	if (!disk)
		return -ENOMEM;
	rc = store_open(&disk->store, options);
	if (rc) {
		free(disk);
		return rc;
	}
	pthread_mutex_init(&disk->lock, NULL);
	STAILQ_INIT(&disk->submitted);
	STAILQ_INIT(&disk->finished);
	STAILQ_INIT(&disk->held);
	disk->timeout_ns = (uint64_t)options->timeout_ms * 1000000;
	disk->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	disk->ready_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	disk->store.random = disk_random_number;
	disk->store.parallel = true;
	disk_open_devices(disk, options, segments);
	rc = disk->wake_fd < 0 || disk->ready_fd < 0 ? -EMFILE
						     : store_recover(&disk->store, segments);
	if (!rc) {
		disk_index_keep_lost(&disk->store.index);
		disk_publish(disk);
		rc = thread_start(&disk->thread, disk_thread, disk);
	}
	if (rc) {
		if (options->failed) {
			disk_publish(disk);
			*options->failed = disk->report;
		}
		(void)disk_free(disk);
		return rc;
	}
	*ret_disk = disk;
	return 0;
}

bool disk_find(struct disk *disk, const struct page_key *key, struct disk_page *ret_page)
{
	struct disk_index_found found;

	if (!disk_index_find(&disk->store.index, key, &found))
		return false;
	*ret_page = (struct disk_page){*key, found.place, found.generation, found.length};
	return true;
}

bool disk_forget(struct disk *disk, const struct page_key *key)
{
	return disk_index_forget(&disk->store.index, key);
}

bool disk_forgets_many(struct disk *disk)
{
	return disk_index_forgets_many(&disk->store.index);
}

bool disk_named(struct disk *disk, uint32_t place, uint32_t generation, struct page_key *ret_key)
{
	return disk_index_named(&disk->store.index, place, generation, ret_key);
}

unsigned disk_slot(struct disk *disk, uint32_t slot, uint64_t *cursor, unsigned max,
	struct disk_page *ret_pages)
{
	return disk_index_slot(&disk->store.index, slot, cursor, max, ret_pages);
}

unsigned disk_lost(struct disk *disk, unsigned max, struct disk_page *ret_pages)
{
	return disk_index_lost(&disk->store.index, max, ret_pages);
}

void disk_submit(struct disk *disk, struct disk_request *request)
{
	bool first;

	pthread_mutex_lock(&disk->lock);
	first = STAILQ_EMPTY(&disk->submitted);
	STAILQ_INSERT_TAIL(&disk->submitted, request, next);
	pthread_mutex_unlock(&disk->lock);
	if (first)
		(void)eventfd_write(disk->wake_fd, 1);
}

struct disk_request *disk_reap(struct disk *disk)
{
	struct disk_request *request;
	eventfd_t value;

	pthread_mutex_lock(&disk->lock);
	/* Held ones first: one of them may be finished, too. */
	if ((request = STAILQ_FIRST(&disk->held))) {
		STAILQ_REMOVE_HEAD(&disk->held, next_held);
		request->held = true;
	} else if ((request = STAILQ_FIRST(&disk->finished))) {
		STAILQ_REMOVE_HEAD(&disk->finished, next);
		request->held = false;
	} else
		(void)eventfd_read(disk->ready_fd, &value);
	pthread_mutex_unlock(&disk->lock);
	return request;
}

int disk_fd(const struct disk *disk)
{
	return disk->ready_fd;
}

void disk_report(struct disk *disk, struct disk_report *ret_report)
{
	pthread_mutex_lock(&disk->lock);
	*ret_report = disk->report;
	pthread_mutex_unlock(&disk->lock);
}

int disk_close(struct disk *disk)
{
	pthread_mutex_lock(&disk->lock);
	disk->stop = true;
	pthread_mutex_unlock(&disk->lock);
	(void)eventfd_write(disk->wake_fd, 1);
	pthread_join(disk->thread, NULL);
	return disk_free(disk);
}
