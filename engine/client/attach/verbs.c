/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registers memory with the engine's NICs in this process: verbs import. The engine lends the
 * descriptor of each NIC's device; one thread per NIC imports device and domain and registers the
 * range in extents. Then the descriptors are closed, and the engine receives handles and keys of
 * the registrations. It owns them from then on: it deregisters them when the region or this process
 * ends. (abi/segment.h) All of it begins anew when the engine wants its devices back meanwhile.
 *
 * No descriptor may outlive this: while one is open, the kernel keeps the queues of an engine that
 * has ended, and its NICs would write into memory that was given back.
 *
 * libibverbs is loaded when it is first needed, so a host without RDMA runs without it.
 */
#include "engine/client/attach/verbs.h"
#include "config/clock.h"
#include "config/text_fit.h"
#include "config/thread.h"
#include "engine/client/attach/memory.h"
#include "engine/client/attach/session.h"
#include "engine/client/error.h"
#include "engine/client/peercache.h"
#include "engine/abi/ring.h"

#include <errno.h>
#include <pthread.h>

/* held as long as there is a descriptor */
static pthread_mutex_t lent = PTHREAD_MUTEX_INITIALIZER;

void verbs_lock(void)
{
	pthread_mutex_lock(&lent);
}

void verbs_unlock(void)
{
	pthread_mutex_unlock(&lent);
}

#ifdef PC_VERBS

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#define LEND_AGAIN_NS 20000000 /* before the engine is asked again that is busy */
#define LEND_TIMEOUT_MS 10000u
#define LOST_TRIES 50u /* the engine has noticed within these that its NIC is lost */

/* ---- libibverbs ------------------------------------------------------------------------------ */

static struct {
	struct ibv_context *(*import_device)(int fd);
	int (*close_device)(struct ibv_context *context);
	struct ibv_pd *(*import_pd)(struct ibv_context *context, uint32_t handle);
	void (*unimport_pd)(struct ibv_pd *pd);
	struct ibv_mr *(*reg_mr)(
		struct ibv_pd *pd, void *at, size_t bytes, uint64_t iova, unsigned access);
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t bytes,
		uint64_t iova, int fd, int access); /* NULL before version 34 */
	void (*unimport_mr)(struct ibv_mr *mr);
	int (*fork_init)(void);
	enum ibv_fork_status (*is_fork_initialized)(void); /* NULL before version 35 */
	char why[ERROR_TEXT_BYTES];                        /* not empty: it cannot be used */
} lib;

/*
 * A kernel before 5.12 gives pinned pages to the child of fork() as soon as this process writes to
 * them: NICs would write into the child's. ibv_fork_init() keeps what is registered from children.
 */
static void fork_make_safe(void)
{
	int rc;

	if (lib.is_fork_initialized && lib.is_fork_initialized() != IBV_FORK_DISABLED)
		return;
	rc = lib.fork_init();
	if (rc)
		text_fit(lib.why, sizeof(lib.why),
			"after fork() NICs would write into the child's memory, because this kernel is older than 5.12, and ibv_fork_init() failed: %s. Start the process with RDMAV_FORK_SAFE=1",
			strerror(rc));
}

static void lib_load(void)
{
	static const struct {
		const char *name;
		size_t at;
	} functions[] = {
		{"ibv_import_device", offsetof(typeof(lib), import_device)},
		{"ibv_close_device", offsetof(typeof(lib), close_device)},
		{"ibv_import_pd", offsetof(typeof(lib), import_pd)},
		{"ibv_unimport_pd", offsetof(typeof(lib), unimport_pd)},
		{"ibv_reg_mr_iova2", offsetof(typeof(lib), reg_mr)},
		{"ibv_reg_dmabuf_mr", offsetof(typeof(lib), reg_dmabuf_mr)},
		{"ibv_unimport_mr", offsetof(typeof(lib), unimport_mr)},
		{"ibv_fork_init", offsetof(typeof(lib), fork_init)},
		{"ibv_is_fork_initialized", offsetof(typeof(lib), is_fork_initialized)},
	};
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

	if (!library)
		text_fit(lib.why, sizeof(lib.why),
			"%.80s; install libibverbs1 and ibverbs-providers", dlerror());
	for (size_t i = 0; library && i < sizeof(functions) / sizeof(functions[0]); i++) {
		void *function = dlsym(library, functions[i].name);

		if (!function && functions[i].at != offsetof(typeof(lib), is_fork_initialized) &&
			functions[i].at != offsetof(typeof(lib), reg_dmabuf_mr))
			text_fit(lib.why, sizeof(lib.why),
				"libibverbs has no %s; version 32 or later has", functions[i].name);
		memcpy((char *)&lib + functions[i].at, &function, sizeof(function));
	}
	if (!lib.why[0])
		fork_make_safe();
}

static bool lib_has(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, lib_load);
	return !lib.why[0];
}

/* ---- one NIC --------------------------------------------------------------------------------- */

struct job {
	struct client_session *session;
	const struct memory *memory;
	struct region_key *key; /* of its extents */
	unsigned extents, shift;
	uint32_t domain;
	int fd; /* -1: the NIC is away */
	pthread_t thread;
	bool joinable;
	int status;
	const char *what; /* that failed */
};

/*
 * After a failed import: closes the descriptor unless libibverbs has, which depends on how far it
 * came.
 */
static void lent_close(int fd, const struct stat *before)
{
	struct stat now;

	if (fstat(fd, &now) == 0 && now.st_dev == before->st_dev && now.st_ino == before->st_ino)
		close(fd);
}

/* Whether to go on with the next extent: 0 or -errno. */
static int registers_still(struct client_session *session)
{
	if (shm_load(session->stop) || session_ended(session))
		return -ECANCELED;
	return shm_load(&session->status->lent_back) ? -EAGAIN : 0;
}

/* Registers the bytes from `at` on. The NIC knows them by their address in any case. */
static struct ibv_mr *extent_register(
	const struct memory *m, struct ibv_pd *pd, uint64_t at, uint64_t bytes)
{
	const unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
	unsigned char *base = m->base + at;

	errno = EOPNOTSUPP;
	if (m->dmabuf < 0)
		return lib.reg_mr(pd, base, bytes, (uintptr_t)base, access);
	return lib.reg_dmabuf_mr ? lib.reg_dmabuf_mr(pd, m->offset + at, bytes, (uintptr_t)base,
					   m->dmabuf, (int)access)
				 : NULL;
}

static int extents_register(struct job *job, struct ibv_pd *pd)
{
	for (unsigned i = 0; i < job->extents; i++) {
		int rc = registers_still(job->session);
		uint64_t at = (uint64_t)i << job->shift, bytes = job->memory->bytes - at;
		struct ibv_mr *mr;

		if (rc)
			return rc;
		if (job->shift && bytes > 1ull << job->shift)
			bytes = 1ull << job->shift;
		mr = extent_register(job->memory, pd, at, bytes);
		if (!mr)
			return errno ? -errno : -EIO;
		job->key[i] = (struct region_key){mr->handle, mr->lkey};
		lib.unimport_mr(mr); /* frees the struct: the registration is the engine's */
	}
	return 0;
}

static void *job_run(void *argument)
{
	struct job *job = argument;
	struct ibv_context *context;
	struct stat before = {0};
	struct ibv_pd *pd;

	(void)fstat(job->fd, &before);
	job->what = "ibv_import_device";
	context = lib.import_device(job->fd);
	if (!context) {
		job->status = errno ? -errno : -EIO;
		lent_close(job->fd, &before);
		return NULL;
	}
	job->what = "ibv_import_pd";
	pd = lib.import_pd(context, job->domain);
	job->status = pd ? 0 : errno ? -errno : -EIO;
	if (pd) {
		job->what = job->memory->dmabuf < 0 ? "ibv_reg_mr" : "ibv_reg_dmabuf_mr";
		job->status = extents_register(job, pd);
		lib.unimport_pd(pd);
	}
	lib.close_device(context); /* closes the descriptor */
	return NULL;
}

/* ---- all NICs -------------------------------------------------------------------------------- */

/* *ret_loan: the engine's first descriptor for rail 0. */
static int lend(struct client_session *session, const struct memory *m, unsigned rail,
	struct job *job, int *ret_loan)
{
	struct session_call call = {.kind = ATTACH_LEND,
		.a = rail,
		.b = m->bytes,
		.send_fd = -1,
		.timeout_ms = LEND_TIMEOUT_MS};
	unsigned device = rail == 0;
	int rc = session_ask(session, &call);

	if (rc == -ETIMEDOUT) { /* the reply, which has descriptors, must not wait in the socket */
		shm_store(&session->dead, 1);
		shutdown(session->fd, SHUT_RDWR);
	}
	if (rc)
		return rc;
	*job = (struct job){.session = session, .memory = m, .fd = -1, .domain = (uint32_t)call.a};
	job->shift = call.b < 64 ? (unsigned)call.b : 0;
	job->extents = job->shift ? (unsigned)((m->bytes - 1) >> job->shift) + 1 : 1;
	if (device && call.fds) {
		*ret_loan = call.fd[0];
		call.fd[0] = -1;
	}
	if (call.fds > device && job->extents <= EXTENTS_MAX) {
		job->fd = call.fd[device];
		call.fd[device] = -1;
	}
	session_close_fds(&call);
	return job->extents <= EXTENTS_MAX
		       ? 0
		       : error_set(-EPROTO, "the engine lends its NICs for too many extents");
}

/* Runs the jobs at the same time; one whose thread cannot be started runs here. */
static int jobs_run(struct job *jobs, unsigned count)
{
	int rc = 0;

	for (unsigned i = 0; i < count; i++)
		jobs[i].joinable =
			jobs[i].fd >= 0 && thread_start(&jobs[i].thread, job_run, &jobs[i]) == 0;
	for (unsigned i = 0; i < count; i++) {
		if (jobs[i].joinable)
			pthread_join(jobs[i].thread, NULL);
		else if (jobs[i].fd >= 0)
			job_run(&jobs[i]);
		jobs[i].fd = -1;
		if (jobs[i].status && !rc)
			rc = error_set(jobs[i].status,
				"cannot register %.1f MiB at %p with NIC %u of the engine: %s: %s%s",
				(double)jobs[i].memory->bytes / (1 << 20),
				(void *)jobs[i].memory->base, i, jobs[i].what,
				strerror(-jobs[i].status),
				jobs[i].status == -ENOMEM
					? "; raise the limit of locked memory (ulimit -l unlimited)"
					: "");
	}
	return rc;
}

/* Tells the engine the registrations. bytes 0: there are none. */
static int import(struct client_session *session, const struct memory *m, uint64_t bytes,
	const struct region_key *key, size_t key_bytes, uint64_t until_ns, uint16_t *ret_region)
{
	struct session_call call = {.kind = ATTACH_REGION_IMPORT,
		.a = (uintptr_t)m->base,
		.b = bytes,
		.send_fd = bytes ? memfd_create("peercache-keys", MFD_CLOEXEC) : -1,
		.timeout_ms = clock_rest_ms(until_ns)};
	int rc;

	if (bytes &&
		(call.send_fd < 0 || write(call.send_fd, key, key_bytes) != (ssize_t)key_bytes))
		call.b = 0; /* as if there were none */
	rc = session_ask(session, &call);
	if (call.send_fd >= 0)
		close(call.send_fd);
	if (rc)
		return rc;
	session_close_fds(&call);
	if (call.a < REGION_CLIENT_0 || call.a >= REGIONS_MAX)
		return error_set(-EPROTO, "the engine answered with an invalid region number");
	*ret_region = (uint16_t)call.a;
	return 0;
}

/* Registers the range on all NICs. `key` gets the keys of all extents; the caller frees it. */
static int lend_and_register(struct client_session *session, const struct memory *m,
	struct region_key **key, size_t *ret_keys, int *ret_loan)
{
	struct job jobs[RAILS_MAX];
	unsigned rails = 0;
	int rc = 0;

	while (rails < session->rails && !rc) {
		rc = lend(session, m, rails, &jobs[rails], ret_loan);
		rails += !rc;
	}
	*ret_keys = rc ? 0 : (size_t)rails * jobs[0].extents;
	*key = calloc(*ret_keys + 1, sizeof(**key));
	if (!rc && !*key)
		rc = error_set(-ENOMEM, "cannot register memory: out of memory");
	for (unsigned i = 0; i < rails && !rc; i++) {
		jobs[i].key = *key + (size_t)i * jobs[0].extents;
		jobs[i].extents = jobs[0].extents;
	}
	if (!rc)
		return jobs_run(jobs, rails);
	for (unsigned i = 0; i < rails; i++)
		if (jobs[i].fd >= 0)
			close(jobs[i].fd);
	return rc;
}

static int region_try(struct client_session *session, const struct memory *m, uint64_t until_ns,
	uint16_t *ret_region)
{
	struct region_key *key = NULL;
	char why[ERROR_TEXT_BYTES];
	size_t keys = 0;
	int rc, loan = -1;

	verbs_lock();
	rc = lend_and_register(session, m, &key, &keys, &loan);
	if (loan >= 0) { /* all devices are closed */
		(void)send(loan, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		close(loan);
	}
	verbs_unlock();
	if (!rc) {
		rc = import(session, m, m->bytes, key, keys * sizeof(*key), until_ns, ret_region);
	} else if (loan >= 0 && !shm_load(&session->dead)) {
		text_fit(why, sizeof(why), "%s", pc_error());
		(void)import(session, m, 0, NULL, 0, until_ns, ret_region);
		error_set(rc, "%s", why);
	}
	free(key);
	return rc;
}

int verbs_region_add(struct client_session *session, const struct memory *m, uint64_t until_ns,
	uint16_t *ret_region)
{
	unsigned lost = 0;
	int rc;

	if (!lib_has())
		return error_set(-EOPNOTSUPP, "%s", lib.why);
	for (;;) {
		rc = region_try(session, m, until_ns, ret_region);
		if (rc != -EAGAIN && (rc != -EIO || ++lost == LOST_TRIES))
			return rc;
		if (clock_monotonic_ns() >= until_ns || registers_still(session) == -ECANCELED)
			return rc;
		nanosleep(&(struct timespec){.tv_nsec = LEND_AGAIN_NS}, NULL);
	}
}

#else

int verbs_region_add(struct client_session *session, const struct memory *m, uint64_t until_ns,
	uint16_t *ret_region)
{
	(void)session;
	(void)m;
	(void)until_ns;
	(void)ret_region;
	return error_set(-EOPNOTSUPP, "this library was built without RDMA (-Dverbs=disabled)");
}

#endif
