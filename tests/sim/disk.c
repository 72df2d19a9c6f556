/* SPDX-License-Identifier: Apache-2.0 */
/* disk.h. One thread. */
#include "tests/sim/disk.h"

#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>

#include "engine/abi/crc32c.h"
#include "engine/disk/disk.c"
#include "tests/disk/sim.h"
#include "tests/sim/run.h"
#include "tests/sim/world.h"

#define STEP_NS 50000u         /* a disk ends one operation in this time and up to twice that */
#define IDLE_NS (100 * SIM_MS) /* between two looks at operations that do not end */
#define KEPT_MAX (SIM_PATHS * SIM_SEGMENTS * SIM_SEGMENT_UNITS) /* pages of a host's disks */

/* Of a host. */
static struct host {
	struct sim *path[SIM_PATHS];
	int epochs[SIM_PATHS];       /* file of its epochs; 0: none */
	struct sim *left[SIM_PATHS]; /* by a process that was killed: what its disks keep */
	uint64_t random;
	struct disk *disk; /* of the process that runs; NULL: it has not opened it */
	struct thing *steps;
	bool dying;
	/*
	 * Pages of sealed segments of paths in service, when the last process ended: the next one
	 * recovers them.
	 */
	struct page_key *kept;
	unsigned kept_count;
	bool ended; /* the process that had opened the disk; `kept` is valid */
} host[SIM_NODES_MAX];

/* ---- disks ----------------------------------------------------------------------------------- */

/* Recovery waits for its operations. */
static void device_wait(struct device *device, uint64_t wait_ns)
{
	(void)wait_ns;
	(void)sim_complete((struct sim *)(void *)device);
}

/* The disk stays the host's. */
static int device_close(struct device *device)
{
	(void)device;
	return 0;
}

static void path_set(unsigned node, unsigned path, struct sim *sim)
{
	host[node].path[path] = sim;
	sim->device.wait = device_wait;
	sim->device.close = device_close;
}

void disks_open(unsigned node)
{
	host[node].random = world_random();
	for (unsigned i = 0; i < SIM_PATHS; i++)
		path_set(node, i, sim_new(SIM_SEGMENTS, SIM_SEGMENT_UNITS, &host[node].random));
	host[node].kept = calloc(KEPT_MAX, sizeof(*host[node].kept));
	if (!host[node].kept)
		abort();
}

void disks_free(unsigned node)
{
	for (unsigned i = 0; i < SIM_PATHS && host[node].path[i]; i++) {
		sim_free(host[node].path[i]);
		if (host[node].epochs[i])
			close(host[node].epochs[i]);
	}
	free(host[node].kept);
	host[node] = (struct host){.disk = NULL};
}

void disk_fault(unsigned node, unsigned path, enum disk_fault fault)
{
	struct sim *sim = host[node].path[path];

	sim->fail_read = fault == DISK_FAULT_READ ? -EIO : 0;
	sim->fail_write = fault == DISK_FAULT_WRITE ? -EIO : 0;
	sim->hang = fault == DISK_FAULT_HANG;
}

int device_file_open(const struct device_file_options *options, char *reason, size_t reason_bytes,
	struct device **ret_device)
{
	unsigned path = (unsigned)(options->directory[1] - '0');

	(void)reason;
	(void)reason_bytes;
	*ret_device = &host[world.current].path[path]->device;
	return 0;
}

/* ---- files of epochs, in the directories of the paths ---------------------------------------- */

FILE *__wrap_fopen64(const char *name, const char *mode);
FILE *__real_fopen64(const char *name, const char *mode);

/* One that is written is the host's at once. */
FILE *__wrap_fopen64(const char *name, const char *mode)
{
	int *fd = &host[world.current].epochs[(unsigned)(name[1] - '0') % SIM_PATHS];

	if (!strstr(name, "/peercache-disk.epochs"))
		return __real_fopen64(name, mode);
	if (*mode == 'w' && world.mutant != MUTANT_LOST_EPOCHS) {
		if (*fd)
			close(*fd);
		*fd = memfd_create("epochs", MFD_CLOEXEC);
	}
	if (*fd <= 0) {
		errno = ENOENT;
		return NULL;
	}
	(void)lseek(*fd, 0, SEEK_SET);
	return fdopen(dup(*fd), mode);
}

int __wrap_rename(const char *from, const char *to);

int __wrap_rename(const char *from, const char *to)
{
	(void)from, (void)to;
	return 0;
}

/* ---- what the next process recovers ---------------------------------------------------------- */

static bool segment_is_sealed(const struct store *store, uint32_t segment)
{
	const struct store_path *path = &store->path[segment / SIM_SEGMENTS];

	return path_in_service(path) &&
	       path->segment[segment % SIM_SEGMENTS].state == SEGMENT_SEALED;
}

static void disk_pages(
	unsigned node, void (*call)(unsigned node, const struct page_key *key), bool sealed)
{
	const struct store *store = &host[node].disk->store;

	for (uint32_t s = 0; s < store->index.segments; s++)
		for (uint32_t i = 0; i < store->index.segment[s].pages; i++) {
			const struct disk_index_page *page = &store->index.segment[s].page[i];
			struct page_key key;

			memcpy(&key, page->key, sizeof(key));
			if (page->length >> 31 && segment_is_sealed(store, s) == sealed)
				call(node, &key);
		}
}

static void page_keep(unsigned node, const struct page_key *key)
{
	host[node].kept[host[node].kept_count++] = *key;
}

/* The process ends: sealed pages stay, and others may not be found any more. */
static void disk_ends(unsigned node)
{
	struct disk_page lost[64];
	unsigned count;

	disk_pages(node, page_keep, true);
	host[node].ended = true;
	disk_pages(node, page_lost, false);
	/* those that the process has not seen leave */
	while ((count = disk_lost(host[node].disk, 64, lost)))
		for (unsigned i = 0; i < count; i++)
			page_lost(node, &lost[i].key);
}

/* A process has opened the disk. */
static void recovery_judge(unsigned node)
{
	struct host *h = &host[node];
	struct store *store = &h->disk->store;
	unsigned count = h->kept_count, missing = 0;
	bool recycled = false;

	h->kept_count = 0;
	h->ended = false;
	for (unsigned i = 0; i < count; i++) {
		struct disk_index_found found;

		if (disk_index_find(&store->index, &h->kept[i], &found))
			continue;
		missing++;
		page_lost(node, &h->kept[i]);
	}
	/* the start may need the segments */
	for (unsigned i = 0; i < SIM_PATHS; i++)
		recycled |= store->path[i].report.recycled != 0;
	check(!missing || recycled, "a disk recovers its pages");
}

/* ---- the thread of the disk ------------------------------------------------------------------ */

static bool disk_waits(const struct disk *disk)
{
	bool waits = store_flying(&disk->store) || !STAILQ_EMPTY(&disk->submitted);

	for (unsigned i = 0; i < disk->store.paths; i++)
		waits |= path_in_service(&disk->store.path[i]) &&
			 (!STAILQ_EMPTY(&disk->store.path[i].writes) ||
				 !STAILQ_EMPTY(&disk->store.path[i].reads));
	return waits;
}

/* A turn of the disk's thread, after each disk has ended an operation. Returns what it did. */
static unsigned disk_turn(unsigned node)
{
	struct disk *disk = host[node].disk;
	unsigned work = 0;

	for (unsigned i = 0; i < SIM_PATHS; i++)
		work += sim_complete(host[node].path[i]);
	disk_take_submitted(disk);
	for (unsigned i = 0; i < 2; i++)
		work += store_step(&disk->store, clock_now_ns());
	disk_publish(disk);
	return work;
}

static void disk_steps(struct thing *thing, uint64_t word)
{
	unsigned node = (unsigned)word, work;
	struct host *h = &host[node];
	uint32_t pages;
	bool lost;

	if (thing->closed)
		return;
	work = disk_turn(node);
	(void)disk_index_bytes(&h->disk->store.index, &pages, &lost);
	if (lost || !STAILQ_EMPTY(&h->disk->finished))
		ready_call(node, disk_fd(h->disk));
	if (thing->closed)
		return;
	world_at(world.now_ns + (work || disk_waits(h->disk) ? STEP_NS + world_random() % STEP_NS
							     : IDLE_NS),
		node, thing, node, disk_steps);
}

/* All that runs beside the control plane: the disk's thread, and those that scan paths. */
int __wrap_pthread_create(
	pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);
int __wrap_pthread_join(pthread_t thread, void **ret);

int __wrap_pthread_create(
	pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
	struct host *h = &host[world.current];

	(void)attributes;
	*thread = 0;
	if (run != disk_thread) {
		(void)run(argument);
		return 0;
	}
	h->disk = argument;
	recovery_judge(world.current);
	h->steps = calloc(1, sizeof(*h->steps));
	if (!h->steps)
		abort();
	world_at(world.now_ns + STEP_NS, world.current, h->steps, world.current, disk_steps);
	return 0;
}

/* As disk_drain(), when the disk is closed. */
int __wrap_pthread_join(pthread_t thread, void **ret)
{
	struct host *h = &host[world.current];

	(void)thread;
	(void)ret;
	if (!h->disk)
		return 0;
	if (!h->dying)
		disk_ends(world.current);
	for (unsigned i = 0; i < SIM_PATHS; i++) {
		h->disk->store.path[i].report.state = DISK_PATH_OUT;
		h->path[i]->hang =
			false; /* an I/O without end would keep the memory of the process */
		while (sim_complete(h->path[i]))
			;
		(void)device_dispatch(&h->path[i]->device);
	}
	thing_close(h->steps);
	h->disk = NULL;
	return 0;
}

/* ---- closing --------------------------------------------------------------------------------- */

/* The stop writes pages and waits for the disk: its clock goes on, and no other one. */
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	const struct disk *disk = host[world.current].disk;

	if (!disk || fds->fd != disk_fd(disk))
		return __real_poll(fds, count, timeout_ms);
	world.node[world.current].clock_ns += disk_turn(world.current) ? STEP_NS : (int64_t)SIM_MS;
	return 0;
}

__typeof__(disk_submit) __real_disk_submit, __wrap_disk_submit;

void __wrap_disk_submit(struct disk *disk, struct disk_request *request)
{
	if (world.mutant != MUTANT_UNREAD || request->op != DISK_READ) {
		__real_disk_submit(disk, request);
		return;
	}
	request->status = DISK_OK;
	request->crc = crc32c(0, request->data, request->length);
	STAILQ_INSERT_TAIL(&disk->finished, request, next);
}

/* A process that was killed takes nothing any more. */
__typeof__(disk_reap) __real_disk_reap, __wrap_disk_reap;

struct disk_request *__wrap_disk_reap(struct disk *disk)
{
	struct disk_request *request = host[world.current].dying ? NULL : __real_disk_reap(disk);

	if (world.mutant == MUTANT_ERROR_IS_OK && request && request->op == DISK_READ &&
		!request->held && request->status == DISK_MISS) {
		request->status = DISK_OK;
		request->crc = crc32c(0, request->data, request->length);
	}
	return request;
}

__typeof__(store_recover) __real_store_recover, __wrap_store_recover;

int __wrap_store_recover(struct store *store, const uint32_t segments[DISK_PATHS_MAX])
{
	int rc = __real_store_recover(store, segments);

	for (uint32_t s = 0; world.mutant == MUTANT_NO_RECOVERY && s < store->index.segments; s++)
		disk_index_empty(&store->index, s);
	return rc;
}

/* ---- crashes, and what the oracle knows ------------------------------------------------------ */

void disks_crash(unsigned node, bool power)
{
	struct host *h = &host[node];

	if (!h->path[0])
		return;
	h->dying = true;
	if (h->disk)
		disk_ends(node);
	for (unsigned i = 0; i < SIM_PATHS; i++) {
		h->left[i] = power ? sim_crash(h->path[i], &h->random) : sim_copy(h->path[i]);
		if (h->disk)
			h->disk->store.path[i].report.state = DISK_PATH_OUT;
	}
}

void disks_crashed(unsigned node)
{
	struct host *h = &host[node];

	for (unsigned i = 0; h->dying && i < SIM_PATHS; i++) {
		sim_free(h->path[i]);
		path_set(node, i, h->left[i]);
	}
	h->dying = false;
}

bool disk_content(unsigned node, const struct page_key *key, struct content *ret)
{
	struct disk *disk = host[node].disk;
	struct disk_index_found found;
	unsigned path;

	if (!disk || !disk_index_find(&disk->store.index, key, &found))
		return false;
	path = found.segment / SIM_SEGMENTS;
	memcpy(ret, sim_bytes(host[node].path[path], found.segment % SIM_SEGMENTS, found.unit),
		sizeof(*ret));
	return true;
}

bool disk_has(unsigned node, const struct page_key *key)
{
	const struct host *h = &host[node];
	struct disk_index_found found;

	if (h->disk && !h->ended)
		return disk_index_find(&h->disk->store.index, key, &found);
	for (unsigned i = 0; i < h->kept_count; i++)
		if (page_key_equal(&h->kept[i], key))
			return true;
	return false;
}
