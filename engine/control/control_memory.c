/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's memory: status segment, pools and directory shard, and their registration on every
 * NIC by one thread per NIC. Start-up and shutdown, control plane's thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/loop.h"
#include "engine/control/warm.h"
#include "engine/keeper/service.h"
#include "numa/clock.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/*
 * Clients receive these files. The seals prevent a client from truncating a file and so removing
 * memory that the engine uses. They need a memfd made with MFD_ALLOW_SEALING.
 */
static void seal(const char *name, int fd)
{
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		log_debug("memory %s: not sealed: %s; a client could truncate it", name,
			strerror(errno));
}

int memory_status_open(struct control *control)
{
	int rc = huge_open(
		"peercache-status", sizeof(*control->status), -1, false, &control->status_memory);

	if (rc < 0)
		return rc;
	seal("status", control->status_memory.fd);
	control->status = control->status_memory.base;
	control->status->incarnation = control->incarnation;
	control->status->ref = control->ref;
	control->status->pid = (uint32_t)getpid();
	control->status->rails = control->rails;
	control->status->reports = 1;
	control->status->version = ABI_VERSION;
	control->status->magic = STATUS_MAGIC;
	return 0;
}

void memory_status_close(struct control *control)
{
	huge_close(&control->status_memory);
	control->status = NULL;
}

/*
 * Bytes of the pool that clients may map. Pages and heads are each rounded up to the page size of
 * their memory, so one may reach further than the other: the smaller one counts.
 */
static uint64_t pool_bytes(const struct pool *pool)
{
	uint64_t heads = pool_heads(pool)->bytes / sizeof(struct page_head) * PAGE_UNIT;

	return pool_memory(pool)->bytes < heads ? pool_memory(pool)->bytes : heads;
}

void memory_pools_close(struct control *control)
{
	for (unsigned i = 0; i < control->rails; i++) {
		if (control->rail[i].pool && !control->pools_stay)
			pool_close(control->rail[i].pool);
		control->rail[i].pool = NULL;
	}
	index_close(control->index);
	control->index = NULL;
}

int memory_pools_open(struct control *control)
{
	const struct settings *s = control->settings;
	uint64_t largest = UINT64_MAX;
	int failed = index_open(1024, &control->index);

	if (failed < 0)
		return failed;
	for (unsigned i = 0; i < control->rails; i++) {
		const struct pool_options options = {.rail = i,
			.bytes = s->engine_pool_bytes,
			.numa_node = control->plan.rail[i].numa_node,
			.want_huge = s->engine_huge_pages,
			.limbo_ns = control_limbo_ns(control)};
		struct pool *pool;
		int rc = warm_pool_open(control, &options, &pool);

		if (rc < 0) {
			log_error("pool of rail %u: %s; lower engine.pool_bytes", i, strerror(-rc));
			memory_pools_close(control);
			return rc;
		}
		control->rail[i].pool = pool;
		seal("pool", pool_memory(pool)->fd);
		seal("heads", pool_heads(pool)->fd);
		control->status->pool_bytes[i] = pool_bytes(pool);
		if (pool_page_bytes_max(pool) < largest)
			largest = pool_page_bytes_max(pool);
	}
	control->status->page_bytes_max = largest;
	return 0;
}

/*
 * Number of entries the shard must hold at half load. If the settings do not say: this node's share
 * of a cluster of equal nodes whose pools are full of the smallest pages; that is 1/64 of the pool
 * memory with two replicas. More than SHARD_ENTRIES_MAX (2 GiB) only if the settings say so.
 */
#define SHARD_ENTRIES_MAX (1ull << 26)

static uint64_t shard_entries(const struct control *control)
{
	const struct settings *s = control->settings;
	uint64_t entries = 0;

	if (s->engine_directory_entries)
		return (uint64_t)s->engine_directory_entries;
	for (unsigned i = 0; i < control->rails; i++)
		entries += pool_memory(control->rail[i].pool)->bytes / PAGE_UNIT;
	entries *= (uint64_t)s->cluster_replicas;
	return entries < SHARD_ENTRIES_MAX ? entries : SHARD_ENTRIES_MAX;
}

int memory_shard_open(struct control *control)
{
	int rc = warm_shard_open(control, shard_entries(control), control->plan.rail[0].numa_node,
		control->settings->engine_huge_pages);

	if (rc < 0) {
		log_error("directory shard: %s; lower engine.directory_entries", strerror(-rc));
		return rc;
	}
	seal("shard", control->shard.memory.fd);
	control->status->bucket_bits = control->shard.bits;
	return 0;
}

void memory_shard_close(struct control *control)
{
	shard_close(&control->shard);
}

/* ---- registration on every NIC --------------------------------------------------------------- */

/* seconds between two log lines about the registration of the engine's memory on one NIC */
#define EXPORT_TELL_SECONDS 5

struct registration {
	pthread_t thread;
	struct control *control;
	unsigned nic;
	bool started;
	int result;
	char text[256];
};

static int export_one(struct registration *r, unsigned region, const struct huge *memory)
{
	struct control_rail *rail = &r->control->rail[r->nic];

	r->result = dv_mr_register(rail->device, memory->base, memory->bytes, DV_REMOTE_READ,
		memory->fd, 0, &rail->exported[region]);
	if (r->result < 0)
		snprintf(r->text, sizeof(r->text), "%s", dv_error());
	return r->result;
}

/*
 * Registers every pool and head array of the host, and the shard, on one NIC. Runs on its own
 * thread.
 */
static void *export_all(void *context)
{
	struct registration *r = context;
	struct control *control = r->control;

	for (unsigned i = 0; i < control->rails; i++) {
		if (export_one(r, REGION_POOL_0 + i, pool_memory(control->rail[i].pool)) < 0 ||
			export_one(r, REGION_HEADS_0 + i, pool_heads(control->rail[i].pool)) < 0)
			return NULL;
	}
	(void)export_one(r, REGION_SHARD, &control->shard.memory);
	return NULL;
}

static uint64_t export_bytes(const struct control *control)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < control->rails; i++)
		bytes += pool_memory(control->rail[i].pool)->bytes;
	return bytes;
}

void memory_unexport(struct control *control)
{
	for (unsigned i = 0; i < control->rails; i++) {
		for (unsigned region = 0; region < REGIONS_EXPORTED; region++) {
			struct dv_mr *mr = &control->rail[i].exported[region];

			if (mr->length && dv_mr_deregister(control->rail[i].device, mr) < 0)
				log_warn("rail %u: %s", i, dv_error());
			mr->length = 0;
		}
	}
}

/*
 * Waits for the thread that registers memory; logs a line every EXPORT_TELL_SECONDS while it runs.
 */
static void join_and_tell(struct registration *r, uint64_t began_ns)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += EXPORT_TELL_SECONDS;
	while (pthread_timedjoin_np(r->thread, NULL, &until) == ETIMEDOUT) {
		log_info("rail %u: registering %.1f GiB of pools: not done after %" PRIu64 " s",
			r->nic, (double)export_bytes(r->control) / (1u << 30),
			(clock_now_ns() - began_ns) / 1000000000);
		service_extend();
		until.tv_sec += EXPORT_TELL_SECONDS;
	}
}

int memory_export(struct control *control)
{
	struct registration *all = calloc(control->rails, sizeof(*all));
	uint64_t began_ns = clock_now_ns();
	int rc = all ? 0 : -ENOMEM;

	for (unsigned i = 0; all && i < control->rails; i++) {
		struct registration *r = &all[i];

		*r = (struct registration){.control = control, .nic = i};
		r->started = pthread_create(&r->thread, NULL, export_all, r) == 0;
		if (!r->started)
			export_all(r);
	}
	for (unsigned i = 0; all && i < control->rails; i++) {
		struct registration *r = &all[i];

		if (r->started)
			join_and_tell(r, began_ns);
		if (r->result < 0) {
			log_error("rail %u: registering pools: %s", i, r->text);
			rc = r->result;
		}
	}
	free(all);
	if (rc < 0)
		memory_unexport(control);
	else
		log_debug("pools registered on %u NICs in %" PRIu64 " ms", control->rails,
			(clock_now_ns() - began_ns) / 1000000);
	return rc;
}
