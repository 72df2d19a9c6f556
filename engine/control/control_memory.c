/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's memory: status segment, pools and directory shard, their registration on every NIC
 * and the population of what clients map, both by helper threads (base/work.h). Start-up and
 * shutdown, control plane's thread.
 *
 * A limit that is too low for the memory ends the start, or the engine, with an error that names
 * the limit.
 */
#include "engine/control/control_inner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/base/work.h"
#include "engine/control/loop.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"
#include "engine/control/pages/pages.h"
#include "numa/cgroup.h"
#include "numa/memory.h"
#include "numa/pin.h"
#include "numa/plan.h"

/* ---- status segment, pools, shard ------------------------------------------------------------ */

/*
 * Clients receive these files. The seals prevent a client from truncating a file and so removing
 * memory that the engine uses. They need a memfd made with MFD_ALLOW_SEALING.
 */
static void memory_seal(const char *name, int fd)
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
	memory_seal("status", control->status_memory.fd);
	control->status = control->status_memory.base;
	control->status->incarnation = control->incarnation;
	control->status->ref = control->ref;
	control->status->pid = (uint32_t)getpid();
	control->status->rails = control->rails;
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
static uint64_t memory_pool_bytes(const struct pool *pool)
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
		memory_seal("pool", pool_memory(pool)->fd);
		memory_seal("heads", pool_heads(pool)->fd);
		control->status->pool_bytes[i] = memory_pool_bytes(pool);
		if (pool_page_bytes_max(pool) < largest)
			largest = pool_page_bytes_max(pool);
	}
	control->status->page_bytes_max = control->rails ? largest : 0;
	return 0;
}

int memory_shard_open(struct control *control)
{
	int rc = warm_shard_open(control, shard_entries(control->settings, control->rails),
		control->plan.rail[0].numa_node,
		control->rails && control->settings->engine_huge_pages);

	if (rc < 0) {
		log_error("directory shard: %s; lower engine.directory_entries", strerror(-rc));
		return rc;
	}
	memory_seal("shard", control->shard->memory.fd);
	control->bucket_bits = (uint8_t)control->shard->bits;
	control->status->bucket_bits = control->shard->bits;
	return 0;
}

void memory_shard_close(struct control *control)
{
	shard_close(control->shard);
}

/* ---- registration on every NIC --------------------------------------------------------------- */

/* seconds between two log lines about the registration of the engine's memory on one NIC */
#define EXPORT_TELL_SECONDS 5

/* the start waits this long for the registration; the rest is done while clients are served */
#define EXPORT_WAIT_NS 200000000ull

/* The registration of the engine's memory: one part, and so one helper thread, for each NIC. */
struct registration {
	struct work work; /* must be first: a pointer to it is cast to struct registration */
	struct control *control;
	struct works *works;
	uint64_t began_ns, told_ns; /* when it began, and when it was logged last */
	struct {
		int result;
		char text[256];
	} nic[RAILS_MAX]; /* belongs to the helper thread of that NIC until work.done() */
};

static int memory_export_one(
	struct registration *r, unsigned nic, unsigned region, const struct huge *memory)
{
	struct control_rail *rail = &r->control->rail[nic];
	int rc = dv_mr_register(rail->device,
		&(struct dv_memory){.base = memory->base,
			.length = memory->bytes,
			.access = memory_access(region),
			.memfd = memory->fd},
		&rail->exported[region]);

	if (rc < 0)
		snprintf(r->nic[nic].text, sizeof(r->nic[nic].text), "%s", dv_error());
	return rc;
}

/* Registers every pool and head array of the host, and the shard, on one NIC. */
static void memory_export_nic(struct work *work, unsigned nic)
{
	struct registration *r = (struct registration *)work;
	struct control *control = r->control;
	int rc = 0;

	for (unsigned i = 0; i < control->rails && rc == 0; i++) {
		rc = memory_export_one(
			r, nic, REGION_POOL_0 + i, pool_memory(control->rail[i].pool));
		if (rc == 0)
			rc = memory_export_one(
				r, nic, REGION_HEADS_0 + i, pool_heads(control->rail[i].pool));
	}
	if (rc == 0)
		rc = memory_export_one(r, nic, REGION_SHARD, &control->shard->memory);
	r->nic[nic].result = rc;
}

static uint64_t memory_export_bytes(const struct control *control)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < control->rails; i++)
		bytes += pool_memory(control->rail[i].pool)->bytes;
	return bytes;
}

/* Returns 0 or the first -errno of a NIC, after logging all. */
static int memory_export_result(const struct registration *r)
{
	int rc = 0;

	for (unsigned i = 0; i < r->control->rails; i++) {
		if (r->nic[i].result == 0)
			continue;
		log_error("rail %u: registering pools: %s", i, r->nic[i].text);
		if (rc == 0)
			rc = r->nic[i].result;
	}
	return rc;
}

/*
 * All memory is registered: other engines may come. Listens, and dials the seeds for the first
 * time: until here member_seeds_tick() dials none.
 */
static void memory_export_done(struct work *work)
{
	struct registration *r = (struct registration *)work;
	struct control *control = r->control;
	uint64_t took_ns = net_now() - r->began_ns;
	int rc;

	if (control->failed)
		return;
	rc = memory_export_result(r);
	if (rc < 0) {
		control->failed = rc;
		return;
	}
	control->exporting = false;
	if (took_ns > EXPORT_WAIT_NS)
		log_info("%.1f GiB of pools are registered after %.1f s; joining the cluster",
			(double)memory_export_bytes(control) / (1u << 30), (double)took_ns / 1e9);
	control->failed = rpc_listen(control);
	if (control->failed == 0)
		member_seeds_tick(control, net_now());
}

void memory_unexport(struct control *control)
{
	struct registration *r = control->registration;

	if (r && !works_wait(r->works, 0))
		log_info("stopping: waiting until %.1f GiB of pools are registered",
			(double)memory_export_bytes(control) / (1u << 30));
	if (r) {
		works_close(r->works);
		if (control->exporting && !control->failed)
			(void)memory_export_result(r);
		free(r);
		control->registration = NULL;
	}
	for (unsigned i = 0; i < control->rails; i++) {
		for (unsigned region = 0; region < REGIONS_EXPORTED; region++) {
			struct dv_mr *mr = &control->rail[i].exported[region];

			if (mr->length && dv_mr_deregister(control->rail[i].device, mr) < 0)
				log_warn("rail %u: %s", i, dv_error());
			mr->length = 0;
		}
	}
}

int memory_export(struct control *control)
{
	struct registration *r;
	int rc;

	if (!control->rails)
		return 0; /* no engine READs its memory */
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	rc = works_open(control->base,
		&(struct works_options){
			.name = "pc-register", .queues = 1, .threads = control->rails},
		&r->works);
	if (rc < 0) {
		free(r);
		return rc;
	}
	r->control = control;
	r->began_ns = r->told_ns = net_now();
	r->work = (struct work){
		.parts = control->rails, .run = memory_export_nic, .done = memory_export_done};
	control->registration = r;
	control->exporting = true;
	work_submit(r->works, 0, &r->work);
	return 0;
}

int memory_export_wait(struct control *control)
{
	struct registration *r = control->registration;
	uint64_t took_ns;

	if (!r)
		return 0;
	took_ns = net_now() - r->began_ns;
	if (works_wait(r->works, took_ns < EXPORT_WAIT_NS ? EXPORT_WAIT_NS - took_ns : 0)) {
		works_turn(r->works);
		return control->failed;
	}
	log_info(
		"registering %.1f GiB of pools takes long: clients of this host are served meanwhile, the cluster is joined after it",
		(double)memory_export_bytes(control) / (1u << 30));
	return 0;
}

void memory_export_tell(struct control *control)
{
	struct registration *r = control->registration;
	uint64_t now_ns;

	if (!control->exporting || control->failed)
		return;
	now_ns = net_now();
	if (now_ns - r->told_ns <= EXPORT_TELL_SECONDS * 1000000000ull)
		return;
	r->told_ns = now_ns;
	log_info("registering %.1f GiB of pools: not done after %" PRIu64 " s",
		(double)memory_export_bytes(control) / (1u << 30),
		(now_ns - r->began_ns) / 1000000000);
}

/* ---- population of what clients map ---------------------------------------------------------- */

/*
 * Without population, the kernel allocates a page for the process that touches it first and charges
 * it to the cgroup of that process, which is a client's in most cases. The call only makes the
 * kernel allocate, so it may run beside everything that uses the memory.
 *
 * One thread for each pool, of ordinary priority, because the kernel keeps the address space locked
 * in a call: a thread that others starve would stop their mmap(). It gives way between calls.
 */

/* bytes of one system call: it must not keep the address space locked for long */
#define POPULATE_STEP_BYTES (2u << 20)
/* what the limits must leave for the rest of the engine; below it the kernel ends processes */
#define POPULATE_SPARE_BYTES (8u << 20)
#define POPULATE_TELL_NS 5000000000ull /* between two log lines */
#define POPULATE_LONG_NS 1000000000ull /* what takes longer is logged at its end */
/* ns of rest for each ns that a thread waited for a core */
#define POPULATE_REST 16
#define POPULATE_REST_NS_MIN 1000000ull  /* shorter rests are left out */
#define POPULATE_REST_NS_MAX 20000000ull /* the end of the engine waits for it */

/* A pool, or the first one and the shard; the helper thread's until work.done() */
struct populate_part {
	int result;
	char limit[CGROUP_NAME_BYTES]; /* the lowest limit of the memory */
};

struct populate {
	struct work work; /* must be first: a pointer to it is cast to struct populate */
	struct control *control;
	struct works *works;
	uint32_t stop; /* written by the control plane, and by a thread that fails */
	unsigned parts;
	struct populate_part part[RAILS_MAX];
	uint64_t since_ns, told_ns;
};

static double populate_gib(uint64_t bytes)
{
	return (double)bytes / (1u << 30);
}

/*
 * The kernel would not refuse the memory but end a process, so the limits are asked before. Other
 * threads ask at the same time.
 */
static bool populate_room_left(
	const struct populate *p, struct populate_part *part, const struct huge *memory)
{
	return memory->page_bytes > POPULATE_STEP_BYTES / 2 ||
	       memory_available(part->limit, sizeof(part->limit)) >=
		       p->parts * (uint64_t)POPULATE_STEP_BYTES + POPULATE_SPARE_BYTES;
}

/*
 * Huge pages were reserved when the memory was made, and are charged to the cgroup only here. The
 * kernel answers EFAULT for a limit. Names the limit that is used up, and returns -ENOMEM.
 */
static int populate_huge_refused(struct populate_part *part)
{
	uint64_t room = POPULATE_STEP_BYTES;

	snprintf(part->limit, sizeof(part->limit),
		"free huge pages, or a hugetlb limit that this process cannot see");
	(void)cgroup_left(CGROUP_HUGE, &room, part->limit);
	return -ENOMEM;
}

static int populate_step(
	const struct populate *p, struct populate_part *part, const struct huge *memory, size_t at)
{
	int rc = populate_room_left(p, part, memory)
			 ? huge_populate(memory, at, POPULATE_STEP_BYTES)
			 : -ENOMEM;

	/* fallocate() of an older kernel answers ENOSPC */
	if ((rc == -EFAULT || rc == -ENOSPC) && memory->page_bytes > POPULATE_STEP_BYTES / 2)
		rc = populate_huge_refused(part);
	return rc;
}

static uint64_t populate_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/*
 * Others want the core on which the thread waited. Pools are used from their start on, as they are
 * populated: more than `done` is allocated only if a client is ahead, which then pays for what it
 * touches.
 */
static void populate_give_way(const struct huge *memory, size_t done, uint64_t waited_ns)
{
	uint64_t rest_ns = waited_ns * POPULATE_REST;

	if (rest_ns < POPULATE_REST_NS_MIN || huge_allocated(memory) > done)
		return;
	if (rest_ns > POPULATE_REST_NS_MAX)
		rest_ns = POPULATE_REST_NS_MAX;
	nanosleep(&(struct timespec){.tv_nsec = (long)rest_ns}, NULL);
}

/* Ends early if nothing is left to allocate, as in adopted memory. */
static int populate_memory(
	const struct populate *p, struct populate_part *part, const struct huge *memory)
{
	for (size_t at = 0;
		huge_allocated(memory) < memory->bytes && at < memory->bytes && !shm_load(&p->stop);
		at += POPULATE_STEP_BYTES) {
		uint64_t wall_ns = net_now(), cpu_ns = populate_cpu_ns();
		int rc = populate_step(p, part, memory, at);

		if (rc < 0)
			return rc;
		wall_ns = net_now() - wall_ns;
		cpu_ns = populate_cpu_ns() - cpu_ns;
		populate_give_way(
			memory, at + POPULATE_STEP_BYTES, wall_ns > cpu_ns ? wall_ns - cpu_ns : 0);
	}
	return 0;
}

/* The control plane makes this call if no thread can be started: it keeps its cores. */
static void populate_run(struct work *work, unsigned number)
{
	struct populate *p = (struct populate *)work;
	const struct control *control = p->control;
	struct populate_part *part = &p->part[number];
	cpu_set_t before, cores;
	int rc = sched_getaffinity(0, sizeof(before), &before);

	plan_cores_beside(&control->plan, &cores);
	if (control->rails)
		pin_near(control->plan.rail[number].numa_node, &cores);
	if (rc == 0) /* refused: the thread runs where it may */
		(void)sched_setaffinity(0, sizeof(cores), &cores);
	part->result = number == 0 ? populate_memory(p, part, &control->shard->memory) : 0;
	if (part->result == 0 && control->rails)
		part->result = populate_memory(p, part, pool_heads(control->rail[number].pool));
	if (part->result == 0 && control->rails)
		part->result = populate_memory(p, part, pool_memory(control->rail[number].pool));
	if (part->result < 0)
		shm_store(&p->stop, 1);
	if (rc == 0)
		(void)sched_setaffinity(0, sizeof(before), &before);
}

static uint64_t populate_bytes(const struct control *control)
{
	uint64_t bytes = huge_allocated(&control->shard->memory);

	for (unsigned i = 0; i < control->rails; i++)
		bytes += huge_allocated(pool_heads(control->rail[i].pool)) +
			 huge_allocated(pool_memory(control->rail[i].pool));
	return bytes;
}

void populate_tell(struct control *control)
{
	struct populate *p = control->populate;
	uint64_t now_ns = net_now();

	if (!p || !works_busy(p->works))
		return;
	control->populated_bytes = populate_bytes(control);
	if (now_ns - p->told_ns < POPULATE_TELL_NS)
		return;
	p->told_ns = now_ns;
	log_info("memory: %.1f of %.1f GiB are populated after %.0f s",
		populate_gib(control->populated_bytes), populate_gib(control->memory_bytes),
		(double)(now_ns - p->since_ns) / 1e9);
}

static void populate_done(struct work *work)
{
	struct populate *p = (struct populate *)work;
	struct control *control = p->control;
	uint64_t took_ns = net_now() - p->since_ns;

	for (unsigned i = 0; i < p->parts; i++) {
		if (p->part[i].result == 0)
			continue;
		log_error(
			"memory: only %.2f of %.2f GiB can be populated: %s (lowest limit: %s); lower engine.pool_bytes or raise that limit",
			populate_gib(populate_bytes(control)), populate_gib(control->memory_bytes),
			strerror(-p->part[i].result), p->part[i].limit);
		control->failed = p->part[i].result;
		return;
	}
	control->populated_bytes = control->memory_bytes;
	if (took_ns > POPULATE_LONG_NS)
		log_info("memory: %.1f GiB are populated after %.1f s",
			populate_gib(control->memory_bytes), (double)took_ns / 1e9);
}

int populate_open(struct control *control)
{
	struct populate *p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return -ENOMEM;
	p->control = control;
	p->parts = control->rails ? control->rails : 1;
	p->since_ns = p->told_ns = net_now();
	rc = works_open(control->base,
		&(struct works_options){.name = "pc-populate", .queues = 1, .threads = p->parts},
		&p->works);
	if (rc < 0) {
		free(p);
		return rc;
	}
	control->memory_bytes = control->shard->memory.bytes;
	for (unsigned i = 0; i < control->rails; i++)
		control->memory_bytes += pool_heads(control->rail[i].pool)->bytes +
					 pool_memory(control->rail[i].pool)->bytes;
	control->populated_bytes = populate_bytes(control);
	p->work = (struct work){.parts = p->parts, .run = populate_run, .done = populate_done};
	control->populate = p;
	work_submit(p->works, 0, &p->work);
	return 0;
}

void populate_close(struct control *control)
{
	struct populate *p = control->populate;

	if (!p)
		return;
	shm_store(&p->stop, 1);
	works_close(p->works);
	free(p);
	control->populate = NULL;
}
