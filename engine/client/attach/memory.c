/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory: the process's table of ranges. It changes under `wire` and `lock`; each
 * channel keeps a sorted copy and renews it when `memory_changes` differs. When the engine
 * dies, a range stays in the table with region 0 and gets a new region number from the next engine.
 * Slow path; any thread.
 */
#include "config/clock.h"
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/op.h"
#include "engine/abi/ring.h"
#include "engine/abi/segment.h"
#include "engine/client/attach/attach.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/device.h"
#include "engine/client/error.h"
#include "engine/client/attach/memory.h"
#include "engine/client/peercache.h"
#include "engine/client/attach/session.h"
#include "engine/client/attach/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/*
 * Time limit of a registration, 600 s: the kernel takes about 1 s per 10 GB and NIC to pin a range,
 * and other requests may be first. An engine that is stopped is noticed earlier:
 * session_wait_readable().
 */
#define REGION_TIMEOUT_NS 600000000000ull

/* Registers a range with the engine. The caller holds `wire`. */
static int region_add(
	struct client_session *session, struct memory *m, uint64_t until_ns, uint16_t *ret_region)
{
	struct session_call call = {.kind = ATTACH_REGION_ADD,
		.a = m->offset,
		.b = m->bytes,
		.send_fd = m->memfd,
		.timeout_ms = clock_rest_ms(until_ns)};
	int rc;

	if (m->device && m->memfd < 0 && m->dmabuf < 0)
		m->dmabuf = device_export(m->base, m->bytes, &m->offset);
	if (m->device && m->memfd < 0 && m->dmabuf < 0)
		return m->dmabuf;
	if (m->memfd < 0)
		return verbs_region_add(session, m, until_ns, ret_region);
	rc = session_ask(session, &call);
	if (rc)
		return rc;
	session_close_fds(&call);
	if (call.a < REGION_CLIENT_0 || call.a >= REGIONS_MAX)
		return error_set(-EPROTO,
			"the engine answered with an invalid region number; engine and library must be of the same version");
	*ret_region = (uint16_t)call.a;
	return 0;
}

static void region_remove(struct client_session *session, uint16_t region)
{
	struct session_call call = {.kind = ATTACH_REGION_REMOVE,
		.a = region,
		.send_fd = -1,
		.timeout_ms = (unsigned)(REGION_TIMEOUT_NS / 1000000)};

	if (!session_ask(session, &call))
		session_close_fds(&call);
}

/* The table has changed: channels copy it again. The caller holds `lock`. */
static void memory_changed(struct pc *pc)
{
	/* memory_refresh() loads it without the lock */
	shm_store(&pc->memory_changes, pc->memory_changes + 1);
}

void memory_forget_regions(struct pc *pc)
{
	for (unsigned i = 0; i < REGIONS_MAX; i++)
		if (pc->memory[i])
			pc->memory[i]->region = 0;
	memory_changed(pc);
}

static void region_set(struct pc *pc, struct memory *m, uint16_t region)
{
	pthread_mutex_lock(&pc->lock);
	m->region = region;
	memory_changed(pc);
	pthread_mutex_unlock(&pc->lock);
}

/*
 * Without the engine's pidfd no READ may write into the caller's memory: nothing would tell when
 * the NIC of a dead engine has stopped writing.
 */
static bool memory_may_register(const struct client_session *session)
{
	return session->pidfd >= 0;
}

void memory_register_again(struct pc *pc, struct client_session *session, unsigned i)
{
	struct memory *m;
	uint16_t region;

	pthread_mutex_lock(&pc->wire);
	m = pc->memory[i];
	if (m && !m->region && memory_may_register(session) && !shm_load(&session->dead)) {
		int rc = region_add(session, m, clock_monotonic_ns() + REGION_TIMEOUT_NS, &region);

		if (!rc)
			region_set(pc, m, region);
		else if (!shm_load(&session->dead))
			fprintf(stderr,
				"peercache: process %d: %.1f MiB of memory at %p are not registered with the new engine, so their pages are copied: %s\n",
				(int)getpid(), (double)m->bytes / (1 << 20), (void *)m->base,
				pc_error());
	}
	pthread_mutex_unlock(&pc->wire);
}

static void memory_free(struct memory *m)
{
	if (m->ours)
		munmap(m->base, m->bytes);
	if (m->memfd >= 0)
		close(m->memfd);
	if (m->dmabuf >= 0)
		close(m->dmabuf);
	free(m);
}

void memory_free_all(struct pc *pc)
{
	for (unsigned i = 0; i < REGIONS_MAX; i++) {
		if (pc->memory[i])
			memory_free(pc->memory[i]);
		pc->memory[i] = NULL;
	}
}

/* Does the range overlap a range of the table? The caller holds `lock`. */
static bool memory_overlaps(const struct pc *pc, const struct memory *m)
{
	for (unsigned i = 0; i < REGIONS_MAX; i++) {
		const struct memory *o = pc->memory[i];

		if (o && m->base < o->base + o->bytes && o->base < m->base + m->bytes)
			return true;
	}
	return false;
}

/* Adds the range to the table. The caller holds `wire`. */
static int memory_table_insert(struct pc *pc, struct memory *m)
{
	int rc = 0;

	pthread_mutex_lock(&pc->lock);
	if (memory_overlaps(pc, m)) {
		rc = error_set(-EEXIST,
			"cannot register the memory at %p: it overlaps a registered range",
			(void *)m->base);
	} else {
		for (m->slot = 0; m->slot < REGIONS_MAX && pc->memory[m->slot]; m->slot++)
			continue;
		if (m->slot == REGIONS_MAX)
			rc = error_set(-ENOSPC,
				"cannot register memory: this process has %d registered ranges, which is the limit",
				REGIONS_MAX);
	}
	if (!rc) {
		pc->memory[m->slot] = m;
		memory_changed(pc);
	}
	pthread_mutex_unlock(&pc->lock);
	return rc;
}

static void memory_table_remove(struct pc *pc, struct memory *m)
{
	pthread_mutex_lock(&pc->lock);
	pc->memory[m->slot] = NULL;
	memory_changed(pc);
	pthread_mutex_unlock(&pc->lock);
}

/*
 * Takes ownership of `m`: afterwards it is in the table, or freed after an error. Without an engine
 * it is registered with the next one. 1: GPU memory that no NIC writes to. -ETIMEDOUT: another
 * thread's request or this one was not answered by `until_ns`.
 */
static int memory_add(struct pc *pc, struct memory *m, uint64_t until_ns)
{
	struct client_session *session;
	uint64_t now_ns;
	int rc;

	if (pc->inherited) {
		memory_free(m);
		return pc_no_session(pc);
	}
	now_ns = clock_monotonic_ns();
	if (now_ns < until_ns) {
		uint64_t half_ns = (until_ns - now_ns) / 2;

		pc_reattach(pc, now_ns + (half_ns < ATTACH_WAIT_NS ? half_ns : ATTACH_WAIT_NS));
	}
	rc = pc_wire_lock(pc, until_ns);
	if (rc) {
		memory_free(m);
		return rc;
	}
	session = pc_session_get(pc);
	rc = memory_table_insert(pc, m);
	if (!rc && session && memory_may_register(session)) {
		uint16_t region = 0;

		rc = region_add(session, m, until_ns, &region);
		if (shm_load(&session->dead))
			/* the engine died during the request: the range is registered with the
			 * next engine */
			rc = 0;
		else if (rc < 0 && m->device)
			rc = 1;
		if (rc < 0)
			memory_table_remove(pc, m);
		else
			region_set(pc, m, region);
	}
	pthread_mutex_unlock(&pc->wire);
	if (session && shm_load(&session->dead))
		pc_session_end(pc, session);
	if (session)
		pc_session_put(pc, session);
	if (rc < 0)
		memory_free(m);
	return rc;
}

static int memfd_seal(int memfd)
{
	int seals = fcntl(memfd, F_GET_SEALS);

	if (seals >= 0 && (seals & F_SEAL_SHRINK))
		return 0;
	return fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK) ? -errno : 0;
}

int pc_memory_register(struct pc *pc, void *base, size_t bytes, int memfd, uint64_t offset)
{
	struct memory *m;

	error_clear();
	if (!pc || !base || !bytes || memfd < -1 || bytes > UINTPTR_MAX - (uintptr_t)base)
		return error_set(-EINVAL,
			"registering memory needs a session, a range and its memfd, or -1");
	if (memfd < 0 ? offset != 0 : offset % PAGE_UNIT || (uintptr_t)base % PAGE_UNIT)
		return error_set(-EINVAL,
			"memory and its offset in the memfd must start at a multiple of %u bytes",
			PAGE_UNIT);
	m = calloc(1, sizeof(*m));
	if (!m)
		return error_set(-ENOMEM, "cannot register memory: out of memory");
	*m = (struct memory){.base = base,
		.bytes = bytes,
		.offset = offset,
		.dmabuf = -1,
		.device = device_at(base)};
	m->memfd = memfd < 0 ? -1 : fcntl(memfd, F_DUPFD_CLOEXEC, 0);
	if (m->memfd < 0 && memfd >= 0) {
		int rc = error_set(
			-errno, "cannot duplicate the memfd %d: %s", memfd, strerror(errno));

		free(m);
		return rc;
	}
	/* The result of memfd_seal() is ignored: it fails for a memfd made without
	 * MFD_ALLOW_SEALING, and the engine refuses an unsealed memfd with an error text of its
	 * own. */
	if (m->memfd >= 0 && fcntl(m->memfd, F_GET_SEALS) < 0) {
		m->dmabuf = m->memfd;
		m->memfd = -1;
	} else if (m->memfd >= 0) {
		memfd_seal(m->memfd);
	}
	return memory_add(pc, m, clock_monotonic_ns() + REGION_TIMEOUT_NS);
}

/*
 * Whether a file may have this size. Asked before, because the kernel sends SIGXFSZ, which would
 * end the process. Sets errno if not.
 */
static bool memfd_size_allows(size_t bytes)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) < 0 || bytes <= limit.rlim_cur)
		return true;
	errno = EFBIG;
	return false;
}

/* The range that starts at `base`; NULL: none. The caller holds `lock` or `wire`. */
static struct memory *memory_at(const struct pc *pc, const void *base)
{
	for (unsigned i = 0; i < REGIONS_MAX; i++)
		if (pc->memory[i] && pc->memory[i]->base == base)
			return pc->memory[i];
	return NULL;
}

int pc_memory_alloc_within(struct pc *pc, size_t bytes, unsigned timeout_ms, void **ret_memory)
{
	uint64_t until_ns = clock_monotonic_ns() + timeout_ms * 1000000ull;
	struct memory *m;
	void *at;
	int rc;

	error_clear();
	if (!pc || !ret_memory || !bytes || bytes > SIZE_MAX / 2)
		return error_set(-EINVAL,
			"allocating memory needs a session, a size and a place for the result");
	bytes = (bytes + PAGE_UNIT - 1) & ~(size_t)(PAGE_UNIT - 1);
	m = calloc(1, sizeof(*m));
	if (!m)
		return error_set(-ENOMEM, "cannot register memory: out of memory");
	m->dmabuf = -1;
	m->memfd = memfd_create("peercache-client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (m->memfd < 0 || !memfd_size_allows(bytes) || ftruncate(m->memfd, (off_t)bytes) ||
		memfd_seal(m->memfd))
		goto fail;
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->memfd, 0);
	if (at == MAP_FAILED)
		goto fail;
	/* a hint to the kernel: the memory works without huge pages, too */
	madvise(at, bytes, MADV_HUGEPAGE);
	m->base = at;
	m->bytes = bytes;
	m->ours = true;
	rc = memory_add(pc, m, until_ns);
	if (!rc)
		*ret_memory = at;
	return rc;
fail:
	rc = error_set(-errno, "cannot allocate %zu bytes of shared memory: %s%s", bytes,
		strerror(errno),
		errno == EFBIG ? "; raise RLIMIT_FSIZE (ulimit -f, LimitFSIZE=)" : "");
	memory_free(m);
	return rc;
}

int pc_memory_alloc(struct pc *pc, size_t bytes, void **ret_memory)
{
	return pc_memory_alloc_within(
		pc, bytes, (unsigned)(REGION_TIMEOUT_NS / 1000000), ret_memory);
}

int pc_memory_release(struct pc *pc, void *base)
{
	struct client_session *session;
	struct memory *m;
	int rc = 0;

	error_clear();
	if (!pc || !base)
		return error_set(-EINVAL, "releasing memory needs a session and the range's start");
	pthread_mutex_lock(&pc->wire);
	session = pc_session_get(pc);
	pthread_mutex_lock(&pc->lock);
	m = memory_at(pc, base);
	if (!m) {
		rc = error_set(-ENOENT, "no registered memory starts at %p", base);
	} else if (m->pins) {
		rc = error_set(-EBUSY,
			"cannot release the memory at %p: a batch in flight names it; wait for the batch first",
			base);
	} else {
		/* the index is free: a thread that pins later first copies the changed table */
		pc->memory[m->slot] = NULL;
		memory_changed(pc);
	}
	pthread_mutex_unlock(&pc->lock);
	if (!rc) {
		if (session && m->region && !shm_load(&session->dead))
			region_remove(session, m->region);
		memory_free(m);
	}
	pthread_mutex_unlock(&pc->wire);
	if (session)
		pc_session_put(pc, session);
	return rc;
}

bool pc_memory_gpu(struct pc *pc, const struct pc_segment *segments, size_t count)
{
	const void *found = NULL;

	pthread_mutex_lock(&pc->lock);
	for (unsigned i = 0; i < REGIONS_MAX && !found; i++) {
		const struct memory *m = pc->memory[i];

		for (size_t s = 0; m && m->device && s < count && !found; s++) {
			uintptr_t at = (uintptr_t)segments[s].base, base = (uintptr_t)m->base;

			if (at < base ? base - at < segments[s].bytes : at - base < m->bytes)
				found = segments[s].base;
		}
	}
	pthread_mutex_unlock(&pc->lock);
	if (found)
		error_set(-EFAULT,
			"the call copies its pages by the CPU, which cannot read the GPU memory at %p: call it without `staged`, with pages of at most %d segments",
			found, PC_SEGMENTS_MAX);
	return found;
}

/* ---- the copy of a channel, by its thread --------------------------------------------------- */

static int memory_by_base(const void *a, const void *b)
{
	const struct memory_view *x = a, *y = b;

	return x->base < y->base ? -1 : x->base > y->base;
}

/* Copies the table of registered ranges into the channel. The caller holds `lock`. */
static void memory_copy_table(struct pc_channel *ch)
{
	struct pc *pc = ch->pc;

	ch->memories = 0;
	ch->memory_last = 0;
	ch->devices = false;
	for (uint32_t i = 0; i < REGIONS_MAX; i++) {
		const struct memory *m = pc->memory[i];

		ch->devices |= m && m->device;
		if (m)
			ch->memory[ch->memories++] =
				(struct memory_view){.base = (uintptr_t)m->base,
					.bytes = m->bytes,
					.region = m->region,
					.device = m->device,
					.slot = i};
	}
	qsort(ch->memory, ch->memories, sizeof(*ch->memory), memory_by_base);
	ch->memory_changes = pc->memory_changes;
}

void memory_refresh(struct pc_channel *ch)
{
	/* No order is needed: a caller that registers memory and then names it in a batch has its
	 * own, and what pages_pin() finds under the lock is decisive. */
	if (likely(ch->memory_changes == shm_load(&ch->pc->memory_changes)))
		return;
	pthread_mutex_lock(&ch->pc->lock);
	memory_copy_table(ch);
	pthread_mutex_unlock(&ch->pc->lock);
}

__attribute__((noinline)) const struct memory_view *memory_search(
	struct pc_channel *ch, uintptr_t at, uint64_t bytes, bool device)
{
	uint32_t low = 0, high = ch->memories;

	if (!high || (device && !ch->devices))
		return NULL;
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (ch->memory[middle].base <= at)
			low = middle;
		else
			high = middle;
	}
	for (const struct memory_view *m = &ch->memory[low], *end = ch->memory + ch->memories;
		device && m < end && (m->base <= at || m->base - at < bytes); m++)
		if (m->device && (m->base > at || at - m->base < m->bytes))
			return m;
	if (device || !memory_holds(&ch->memory[low], at, bytes))
		return NULL;
	ch->memory_last = low;
	return ch->memory[low].region ? &ch->memory[low] : NULL;
}
