/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct pc: opening, ending and closing the session with the engine of this host, and questions
 * about the engine as a whole. reattach.c gets a new session. An ended session stays mapped until
 * its last user has released it. Slow path; any thread.
 */
#include "config/clock.h"
#include "engine/abi/ring.h"
#include "engine/abi/segment.h"
#include "engine/client/attach.h"
#include "engine/client/constants.h"
#include "engine/client/error.h"
#include "engine/client/fork.h"
#include "engine/client/key.h"
#include "engine/client/memory.h"
#include "engine/client/peercache.h"
#include "engine/client/reattach.h"
#include "engine/client/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define REPORT_BYTES_MAX (64u << 20)

#if defined(SHM_TSAN)
#include <sanitizer/tsan_interface.h>

/*
 * ThreadSanitizer of gcc 12 and clang 14 does not know pthread_mutex_clocklock(), so it is told of
 * the lock.
 */
static int clocklock(pthread_mutex_t *mutex, const struct timespec *until)
{
	int error;

	__tsan_mutex_pre_lock(mutex, __tsan_mutex_try_lock);
	error = pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, until);
	__tsan_mutex_post_lock(
		mutex, __tsan_mutex_try_lock | (error ? __tsan_mutex_try_lock_failed : 0), 0);
	return error;
}
#else
static int clocklock(pthread_mutex_t *mutex, const struct timespec *until)
{
	return pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, until);
}
#endif

int pc_wire_lock(struct pc *pc, uint64_t until_ns)
{
	const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
		.tv_nsec = (long)(until_ns % 1000000000)};

	if (clocklock(&pc->wire, &until) == 0)
		return 0;
	return error_set(-ETIMEDOUT,
		"another thread waits for the engine at %s; is it stopped, or does it register much memory?",
		pc->socket);
}

int pc_no_session(const struct pc *pc)
{
	if (pc->inherited)
		return error_set(-ENOTCONN,
			"process %d has inherited this session by fork(): a child must open its own",
			(int)getpid());
	return error_set(-ENOTCONN, "no engine at %s", pc->socket);
}

struct client_session *pc_session_get(struct pc *pc)
{
	struct client_session *session;

	pthread_mutex_lock(&pc->lock);
	session = pc->session;
	if (session)
		session->users++;
	pthread_mutex_unlock(&pc->lock);
	return session;
}

void pc_session_put(struct pc *pc, struct client_session *session)
{
	bool last;

	pthread_mutex_lock(&pc->lock);
	last = --session->users == 0;
	pthread_mutex_unlock(&pc->lock);
	if (last)
		session_free(session);
}

void pc_session_end(struct pc *pc, struct client_session *session)
{
	bool was_current;

	shm_store(&session->dead, 1);
	shutdown(session->fd, SHUT_RDWR);
	pthread_mutex_lock(&pc->lock);
	was_current = pc->session == session;
	if (was_current)
		pc->session = NULL;
	pthread_mutex_unlock(&pc->lock);
	if (was_current)
		pc_session_put(pc, session);
}

static const char *socket_path(const struct pc_options *options)
{
	const char *path = options ? options->socket : NULL;

	if (!path || !*path)
		path = getenv("PEERCACHE_SOCKET");
	return path && *path ? path : SOCKET_DEFAULT;
}

/* Programs that were built with the header of before `verify` have zeroes there. */
static_assert(offsetof(struct pc_options, verify) > offsetof(struct pc_options, no_reattach) &&
		      sizeof(struct pc_options) == 2 * sizeof(char *) + 8,
	"the fields about verify lie in what was padding");

/* One hit in *ret_one_in is compared with its CRC; 0: none. */
static int verify_option(const struct pc_options *options, uint32_t *ret_one_in)
{
	unsigned one_in = options ? options->verify_one_in : 0;

	if (one_in > PC_VERIFY_ONE_IN_MAX)
		return error_set(-EINVAL, "verify_one_in is %u; give 1 to %u, or 0 for %u", one_in,
			PC_VERIFY_ONE_IN_MAX, PC_VERIFY_ONE_IN);
	switch (options ? options->verify : PC_VERIFY_SAMPLE) {
	case PC_VERIFY_SAMPLE: *ret_one_in = one_in ? one_in : PC_VERIFY_ONE_IN; return 0;
	case PC_VERIFY_NEVER: *ret_one_in = 0; return 0;
	case PC_VERIFY_ALWAYS: *ret_one_in = 1; return 0;
	}
	return error_set(-EINVAL, "verify is %d; give a value of enum pc_verify", options->verify);
}

int pc_open(const struct pc_options *options, struct pc **ret_pc)
{
	const char *path = socket_path(options);
	const char *name_space = options && options->name_space ? options->name_space : "";
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	uint32_t one_in = 0;
	struct pc *pc;
	int rc;

	error_clear();
	if (!ret_pc)
		return error_set(-EINVAL, "pc_open() needs a place for its result");
	if (strlen(path) >= sizeof(pc->socket))
		return error_set(-ENAMETOOLONG, "the socket path %s is longer than %zu bytes", path,
			sizeof(pc->socket) - 1);
	rc = verify_option(options, &one_in);
	if (rc)
		return rc;
	pc = calloc(1, sizeof(*pc));
	if (!pc)
		return error_set(-ENOMEM, "cannot open a session: out of memory");
	pthread_mutex_init(&pc->wire, NULL);
	pthread_mutex_init(&pc->lock, NULL);
	attacher_init(pc);
	memcpy(pc->socket, path, strlen(path) + 1);
	key_name_space(name_space, &pc->name_space);
	pc->no_reattach = options && options->no_reattach;
	pc->verify_one_in = one_in;
	pc->cores = cores > 0 ? (unsigned)cores : 1;
	fork_watch(pc);
	rc = pc_attach(pc);
	if (rc) {
		pc_close(pc);
		return rc;
	}
	*ret_pc = pc;
	return 0;
}

void pc_close(struct pc *pc)
{
	struct client_session *session;

	if (!pc)
		return;
	attacher_stop(pc);
	/* End the session before freeing memory. The engine then releases everything of the session
	 * by itself, and no request per range has to wait for a hanging engine. No READ is in
	 * flight, because all channels are closed. */
	session = pc_session_get(pc);
	if (session) {
		pc_session_end(pc, session);
		pc_session_put(pc, session);
	}
	memory_free_all(pc);
	attacher_close(pc);
	fork_unwatch(pc);
	pthread_mutex_destroy(&pc->wire);
	pthread_mutex_destroy(&pc->lock);
	free(pc);
}

bool pc_attached(const struct pc *pc)
{
	/* Casting away const is safe: only the lock and the session's user count change. */
	struct pc *mutable_pc = (struct pc *)(uintptr_t)pc;
	struct client_session *session;
	bool attached;

	if (!pc)
		return false;
	session = pc_session_get(mutable_pc);
	if (!session)
		return false;
	attached = !session_ended(session);
	pc_session_put(mutable_pc, session);
	return attached;
}

uint64_t pc_page_bytes_max(const struct pc *pc)
{
	struct pc *mutable_pc = (struct pc *)(uintptr_t)pc;
	struct client_session *session;
	uint64_t bytes = 0;

	if (!pc)
		return 0;
	session = pc_session_get(mutable_pc);
	if (session) {
		bytes = session_ended(session) ? 0 : session->page_bytes_max;
		pc_session_put(mutable_pc, session);
	}
	return bytes;
}

static int read_text(int fd, uint64_t bytes, char **ret_text)
{
	struct stat about;
	uint64_t got = 0;
	char *text;

	if (bytes > REPORT_BYTES_MAX || fstat(fd, &about) || (uint64_t)about.st_size < bytes)
		return error_set(-EPROTO, "the engine's report has an invalid size");
	text = malloc(bytes + 1);
	if (!text)
		return error_set(-ENOMEM, "out of memory for a report of %llu bytes",
			(unsigned long long)bytes);
	while (got < bytes) {
		ssize_t n = pread(fd, text + got, bytes - got, (off_t)got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			free(text);
			return error_set(-EPROTO, "the engine's report ends early");
		}
		got += (uint64_t)n;
	}
	text[bytes] = '\0';
	*ret_text = text;
	return 0;
}

int pc_report(struct pc *pc, char **ret_json)
{
	struct session_call call = {.kind = ATTACH_REPORT, .send_fd = -1, .timeout_ms = 10000};
	struct client_session *session;
	int rc;

	error_clear();
	if (!pc || !ret_json)
		return error_set(-EINVAL, "pc_report() needs a session and a place for its result");
	pc_reattach(pc, clock_monotonic_ns() + ATTACH_WAIT_NS);
	session = pc_session_get(pc);
	if (!session)
		return pc_no_session(pc);
	rc = pc_wire_lock(pc, clock_monotonic_ns() + call.timeout_ms * 1000000ull);
	if (!rc) {
		rc = session_ask(session, &call);
		pthread_mutex_unlock(&pc->wire);
	}
	if (!rc && call.fds != 1)
		rc = error_set(-EPROTO, "the engine sent no report");
	if (!rc)
		rc = read_text(call.fd[0], call.a, ret_json);
	session_close_fds(&call);
	if (shm_load(&session->dead))
		pc_session_end(pc, session);
	pc_session_put(pc, session);
	return rc;
}
