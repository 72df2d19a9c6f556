/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Populates the memory that clients map: pools, page heads and the directory shard. Without it, the
 * kernel allocates a page for the process that touches it first and charges it to the cgroup of
 * that process, which is a client's in most cases. A thread does it while clients are served; it
 * only makes the kernel allocate, so it may run beside everybody who uses the memory.
 */
#include "engine/control/populate.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "config/log.h"
#include "engine/control/base/control.h"
#include "numa/clock.h"
#include "numa/memory.h"

/* bytes of one system call: it must not keep the address space locked for long */
#define STEP_BYTES (2u << 20)
/* what the limits must leave for the rest of the engine; below it the kernel ends processes */
#define SPARE_BYTES (8u << 20)
#define TELL_NS 5000000000ull /* between two log lines */
#define LONG_NS 1000000000ull /* what takes longer is logged at its end */

struct populate {
	struct control *control;
	pthread_t thread;
	uint32_t stop; /* written by the control plane */
	uint32_t done; /* written by the thread, last */
	/* the thread's until `done` */
	int result;
	char limit[CGROUP_NAME_BYTES]; /* the lowest limit of the memory */
	uint64_t bytes, total, since_ns, told_ns;
};

static double gib(uint64_t bytes)
{
	return (double)bytes / (1u << 30);
}

static void tell(struct populate *p)
{
	uint64_t now_ns = clock_now_ns();

	if (now_ns - p->told_ns < TELL_NS)
		return;
	p->told_ns = now_ns;
	log_info("memory: %.1f of %.1f GiB are populated after %.0f s", gib(p->bytes),
		gib(p->total), (double)(now_ns - p->since_ns) / 1e9);
}

/* The kernel would not refuse the memory but end a process, so the limits are asked before. */
static bool room_left(struct populate *p, const struct huge *memory)
{
	return memory->page_bytes > STEP_BYTES / 2 ||
	       memory_available(p->limit, sizeof(p->limit)) >= STEP_BYTES + SPARE_BYTES;
}

static int memory_populate(struct populate *p, const struct huge *memory)
{
	for (size_t at = 0; at < memory->bytes && !shm_load(&p->stop); at += STEP_BYTES) {
		size_t left = memory->bytes - at;
		int rc = room_left(p, memory) ? huge_populate(memory, at, STEP_BYTES) : -ENOMEM;

		if (rc < 0)
			return rc;
		p->bytes += left < STEP_BYTES ? left : STEP_BYTES;
		tell(p);
	}
	return 0;
}

static int all_populate(struct populate *p)
{
	const struct control *control = p->control;
	int rc = memory_populate(p, &control->shard.memory);

	for (unsigned i = 0; rc == 0 && i < control->rails; i++) {
		rc = memory_populate(p, pool_heads(control->rail[i].pool));
		if (rc == 0)
			rc = memory_populate(p, pool_memory(control->rail[i].pool));
	}
	return rc;
}

static void *populate_main(void *context)
{
	struct populate *p = context;

	pthread_setname_np(pthread_self(), "pc-populate");
	p->result = all_populate(p);
	shm_store(&p->done, 1);
	(void)eventfd_write(p->control->kick, 1);
	return NULL;
}

int populate_open(struct control *control)
{
	struct populate *p = calloc(1, sizeof(*p));
	sigset_t all, before;
	int rc;

	if (!p)
		return -ENOMEM;
	p->control = control;
	p->since_ns = p->told_ns = clock_now_ns();
	p->total = control->shard.memory.bytes;
	for (unsigned i = 0; i < control->rails; i++)
		p->total += pool_heads(control->rail[i].pool)->bytes +
			    pool_memory(control->rail[i].pool)->bytes;
	sigfillset(&all); /* signals are the main thread's */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(&p->thread, NULL, populate_main, p);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc < 0) {
		free(p);
		return rc;
	}
	control->populate = p;
	return 0;
}

unsigned populate_turn(struct control *control)
{
	struct populate *p = control->populate;
	uint64_t took_ns;

	if (!p || !shm_load(&p->done))
		return 0;
	took_ns = clock_now_ns() - p->since_ns;
	if (p->result < 0) {
		log_error(
			"memory: only %.2f of %.2f GiB can be populated: %s (lowest limit: %s); lower engine.pool_bytes or raise that limit",
			gib(p->bytes), gib(p->total), strerror(-p->result), p->limit);
		control->failed = p->result;
	} else if (took_ns > LONG_NS) {
		log_info("memory: %.1f GiB are populated after %.1f s", gib(p->total),
			(double)took_ns / 1e9);
	}
	populate_close(control);
	return 1;
}

void populate_close(struct control *control)
{
	struct populate *p = control->populate;

	if (!p)
		return;
	shm_store(&p->stop, 1);
	pthread_join(p->thread, NULL);
	control->populate = NULL;
	free(p);
}
