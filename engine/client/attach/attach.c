/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct pc: opening, losing, regaining and closing the session with the engine of this host, and
 * questions about the engine as a whole. Slow path; any thread.
 *
 * A session ends when a thread sees that its engine is gone, or when an answer of it is invalid. It
 * stays mapped until its last user has released it.
 *
 * The attach thread, a thread of the library, attaches again: it opens the session, then the
 * channels that have none, then registers memory again. It starts when a call finds no session and
 * ends when its work is done, so an attached process does not have this thread. No call waits for
 * it past the call's own deadline: while an engine accepts a connection and does not answer, calls
 * return PC_GONE.
 *
 * After fork(), the engine's session, its rings and the socket belong to the parent: a child that
 * ended the session, took answers from a ring or released memory would harm the parent. So in a
 * child each inherited session is, from its first instruction on, one whose engine is gone and that
 * never attaches again: calls return PC_GONE, and closing frees only what the child has of its own.
 */
#include "config/secret_file.h"
#include "config/clock.h"
#include "config/limits.h"
#include "config/text_fit.h"
#include "config/thread.h"
#include "engine/abi/ring.h"
#include "engine/abi/segment.h"
#include "engine/client/attach/attach.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/error.h"
#include "engine/client/page/key.h"
#include "engine/client/attach/memory.h"
#include "engine/client/peercache.h"
#include "engine/client/attach/session.h"
#include "engine/client/attach/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <sys/mman.h>
#include <unistd.h>

#define REPORT_BYTES_MAX (64u << 20)
#define OPEN_TIMEOUT_MS 10000u

/* ---- the current session and its locks ------------------------------------------------------- */

#if defined(SHM_TSAN)
#include <sanitizer/tsan_interface.h>

/*
 * ThreadSanitizer of gcc 12 and clang 14 does not know pthread_mutex_clocklock(), so it is
 * informed of the lock.
 */
static int wire_clocklock(pthread_mutex_t *mutex, const struct timespec *until)
{
	int error;

	__tsan_mutex_pre_lock(mutex, __tsan_mutex_try_lock);
	error = pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, until);
	__tsan_mutex_post_lock(
		mutex, __tsan_mutex_try_lock | (error ? __tsan_mutex_try_lock_failed : 0), 0);
	return error;
}
#else
static int wire_clocklock(pthread_mutex_t *mutex, const struct timespec *until)
{
	return pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, until);
}
#endif

int pc_wire_lock(struct pc *pc, uint64_t until_ns)
{
	const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
		.tv_nsec = (long)(until_ns % 1000000000)};

	if (wire_clocklock(&pc->wire, &until) == 0)
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
	if (*pc_refusal(pc))
		return -ENOTCONN;
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

/* ---- attaching ------------------------------------------------------------------------------- */

/*
 * After a request for a session or a channel: keeps its error text if an engine answered that gives
 * none, as one of another protocol. While an engine starts, none answers. Returns `rc`.
 */
static int attacher_note(struct pc *pc, int rc)
{
	bool answered = rc && rc != -ENOENT && rc != -ECONNREFUSED && rc != -EAGAIN &&
			rc != -ETIMEDOUT && rc != -EINPROGRESS && rc != -ECONNRESET && rc != -EPIPE;

	pthread_mutex_lock(&pc->lock);
	text_fit(pc->refusal, sizeof(pc->refusal), "%s", answered ? pc_error() : "");
	pthread_mutex_unlock(&pc->lock);
	return rc;
}

/* Opens a session with the engine and makes it the current one. Takes at most 10 s. */
static int pc_attach(struct pc *pc)
{
	struct client_session *session;
	int rc = session_open(pc->socket, &pc->attacher.closing, &session);

	if (rc)
		return attacher_note(pc, rc);
	/* Also hold `wire`: then a registration with the previous engine has ended before the
	 * regions are reset. */
	pthread_mutex_lock(&pc->wire);
	pthread_mutex_lock(&pc->lock);
	memory_forget_regions(pc);
	pc->session = session;
	pc->refusal[0] = '\0';
	pthread_mutex_unlock(&pc->lock);
	pthread_mutex_unlock(&pc->wire);
	return 0;
}

/* ---- channels for the threads that have none ------------------------------------------------- */

void pc_opened_free(struct pc *pc, struct opened *opened)
{
	if (!opened)
		return;
	session_close_fds(&opened->call);
	pc_session_put(pc, opened->session);
	free(opened);
}

/*
 * An open channel that is not in the session, for which no channel of it was opened, first one that
 * has noticed the loss of its engine; NULL: none. The caller holds `lock`.
 */
static struct pc_channel *attacher_wanting(
	const struct pc *pc, const struct client_session *session)
{
	struct pc_channel *later = NULL;

	for (struct pc_channel *ch = pc->channels; ch; ch = ch->next) {
		if (ch->session == session || (ch->opened && ch->opened->session == session))
			continue;
		if (!ch->session)
			return ch;
		later = ch;
	}
	return later;
}

static bool attacher_wanted(struct pc *pc, const struct client_session *session)
{
	bool wanted;

	pthread_mutex_lock(&pc->lock);
	wanted = attacher_wanting(pc, session) != NULL;
	pthread_mutex_unlock(&pc->lock);
	return wanted;
}

/*
 * Opens one channel at the engine. False: the engine opens no more channels, or no memory. The
 * channel for which it was may have closed meanwhile: another one has it then, or it is closed.
 */
static bool attacher_open_one(struct pc *pc, struct client_session *session)
{
	struct opened *opened = calloc(1, sizeof(*opened)), *before = opened;
	struct pc_channel *ch;
	int rc;

	if (!opened)
		return false;
	opened->call = (struct session_call){
		.kind = ATTACH_CHANNEL_OPEN, .send_fd = -1, .timeout_ms = OPEN_TIMEOUT_MS};
	pthread_mutex_lock(&pc->wire);
	rc = session_ask(session, &opened->call);
	if (attacher_note(pc, rc)) {
		pthread_mutex_unlock(&pc->wire);
		free(opened);
		return false;
	}
	opened->session = session;
	pthread_mutex_lock(&pc->lock);
	session->users++;
	ch = attacher_wanting(pc, session);
	if (ch) {
		before = ch->opened;
		ch->opened = opened;
	} else {
		session_channel_close(session, opened->call.a);
	}
	pthread_mutex_unlock(&pc->lock);
	pthread_mutex_unlock(&pc->wire);
	pc_opened_free(pc, before);
	return true;
}

/* ---- the attach thread ----------------------------------------------------------------------- */

/* Opens the missing channels. False: one could not be opened. */
static bool attacher_open_missing(struct pc *pc, struct client_session *session)
{
	while (!shm_load(&pc->attacher.closing) && attacher_wanted(pc, session))
		if (!attacher_open_one(pc, session))
			return false;
	return true;
}

static void *attacher_run(void *context)
{
	struct pc *pc = context;
	struct client_session *session = pc_session_get(pc);

	if (!session && !pc_attach(pc))
		session = pc_session_get(pc);
	if (session) {
		/* Open channels before registering memory, because registering a range may take
		 * minutes. A channel that the engine refuses is requested again by the next run. */
		bool opens = attacher_open_missing(pc, session);

		for (unsigned i = 0; i < REGIONS_MAX && !shm_load(&pc->attacher.closing); i++) {
			memory_register_again(pc, session, i);
			opens = opens && attacher_open_missing(pc, session);
		}
		if (shm_load(&session->dead))
			pc_session_end(pc, session);
		pc_session_put(pc, session);
	}
	pthread_mutex_lock(&pc->lock);
	if (session && !attacher_wanting(pc, session))
		/* so that after the next loss of an engine the thread may start at once */
		pc->attacher.tried_ns = 0;
	pc->attacher.runs = false;
	pthread_cond_broadcast(&pc->attacher.ended);
	pthread_mutex_unlock(&pc->lock);
	return NULL;
}

/* Starts the thread. The caller holds `lock`. */
static bool attacher_start(struct pc *pc)
{
	struct attacher *a = &pc->attacher;

	a->tried_ns = clock_monotonic_ns();
	if (a->joinable)
		/* `runs` is false, so the old thread no longer takes the lock that is held here */
		pthread_join(a->thread, NULL);
	a->runs = true;
	a->joinable = a->runs = thread_start(&a->thread, attacher_run, pc) == 0;
	return a->runs;
}

/* Has the attach thread work to do? The caller holds `lock`. */
static bool attacher_has_work(const struct pc *pc)
{
	const struct attacher *a = &pc->attacher;

	if (pc->no_reattach || a->runs)
		return false;
	return !pc->session || attacher_wanting(pc, pc->session);
}

void pc_reattach(struct pc *pc, uint64_t until_ns)
{
	struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
		.tv_nsec = (long)(until_ns % 1000000000)};
	struct client_session *session = pc_session_get(pc);

	if (session) {
		if (session_ended(session))
			pc_session_end(pc, session);
		pc_session_put(pc, session);
	}
	pthread_mutex_lock(&pc->lock);
	if (attacher_has_work(pc) && clock_monotonic_ns() - pc->attacher.tried_ns >= REATTACH_NS &&
		attacher_start(pc))
		while (pc->attacher.runs &&
			!pthread_cond_timedwait(&pc->attacher.ended, &pc->lock, &until))
			continue;
	pthread_mutex_unlock(&pc->lock);
}

static void attacher_init(struct pc *pc)
{
	pthread_condattr_t attributes;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&pc->attacher.ended, &attributes);
	pthread_condattr_destroy(&attributes);
}

/*
 * Ends the attach thread. No wait for the engine goes on longer than POLL_NS_MAX, so the join takes
 * only as long as that or the current system call.
 */
static void attacher_stop(struct pc *pc)
{
	shm_store(&pc->attacher.closing, 1);
	if (pc->attacher.joinable)
		pthread_join(pc->attacher.thread, NULL);
}

/* ---- fork() ---------------------------------------------------------------------------------- */

/*
 * The handlers of fork() run in the thread that forks. They hold the lock of every session
 * meanwhile, so the child gets tables that no thread was changing. The threads that do not exist in
 * the child may have held `wire`, so the child gets a new one.
 */

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pc *list; /* under list_lock, which is taken before the lock of a session */

static void fork_before(void)
{
	verbs_lock();
	pthread_mutex_lock(&list_lock);
	for (struct pc *pc = list; pc; pc = pc->next)
		pthread_mutex_lock(&pc->lock);
}

static void fork_in_parent(void)
{
	verbs_unlock();
	for (struct pc *pc = list; pc; pc = pc->next)
		pthread_mutex_unlock(&pc->lock);
	pthread_mutex_unlock(&list_lock);
}

static void fork_in_child(void)
{
	verbs_unlock();
	for (struct pc *pc = list; pc; pc = pc->next) {
		struct client_session *session = pc->session;

		pc->inherited = pc->no_reattach = true;
		pc->session = NULL;
		for (struct pc_channel *ch = pc->channels; ch; ch = ch->next) {
			channel_inherited(ch);
			if (ch->opened)
				session_close_fds(&ch->opened->call);
			free(ch->opened);
			ch->opened = NULL;
		}
		/* a child has no attach thread */
		pc->attacher.runs = pc->attacher.joinable = false;
		attacher_init(pc);
		/* Its other users are the channels, which have let go of it, and threads of the
		 * parent. The pools are not mapped in a child (MADV_DONTFORK), and nothing lies in
		 * their place yet. */
		if (session)
			session_free(session);
		pthread_mutex_init(&pc->wire, NULL);
		pthread_mutex_unlock(&pc->lock);
	}
	pthread_mutex_unlock(&list_lock);
}

static void fork_handlers_set(void)
{
	/* without memory for the handlers, only a child that uses the session is in danger */
	(void)pthread_atfork(fork_before, fork_in_parent, fork_in_child);
}

/* Adds `pc` to the sessions of this process; before any thread but the caller's uses it. */
static void fork_watch(struct pc *pc)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, fork_handlers_set);
	pthread_mutex_lock(&list_lock);
	pc->next = list;
	list = pc;
	pthread_mutex_unlock(&list_lock);
}

/* Removes `pc`; no other thread uses it any more. */
static void fork_unwatch(struct pc *pc)
{
	struct pc **at = &list;

	pthread_mutex_lock(&list_lock);
	while (*at != pc)
		at = &(*at)->next;
	*at = pc->next;
	pthread_mutex_unlock(&list_lock);
}

/* ---- opening and closing --------------------------------------------------------------------- */

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

static void secret_close(struct key_secret *secret)
{
	if (!secret)
		return;
	explicit_bzero(secret, sizeof(*secret));
	munmap(secret, sizeof(*secret));
}

/* Reads a file. Returns 0, or -errno with an error text. */
static int secret_open(const char *path, struct key_secret **ret)
{
	struct key_secret *secret = mmap(
		NULL, sizeof(*secret), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char text[sizeof(secret->byte) + 3]; /* a line end, and one that is too long */
	const char *wrong = "out of memory";
	int n;

	if (secret == MAP_FAILED)
		return error_set(-ENOMEM, "namespace secret %s: out of memory", path);
	(void)madvise(secret, sizeof(*secret), MADV_DONTDUMP);
	(void)madvise(secret, sizeof(*secret), MADV_WIPEONFORK);
	n = secret_file_read(path, text, sizeof(text), &wrong);
	if (n >= 0 && n <= (int)sizeof(secret->byte)) {
		memcpy(secret->byte, text, (size_t)n);
		secret->bytes = (unsigned)n;
	}
	explicit_bzero(text, sizeof(text));
	if (n >= 0 && secret->bytes < KEY_SECRET_BYTES_MIN) {
		wrong = "it has not 32 to 64 bytes; make one with openssl rand -hex 32";
		n = -EINVAL;
	}
	if (n < 0) {
		secret_close(secret);
		return error_set(-EINVAL, "namespace secret %s: %s", path, wrong);
	}
	*ret = secret;
	return 0;
}

int pc_open(const struct pc_options *options, struct pc **ret_pc)
{
	return pc_open_with_secret(options, NULL, ret_pc);
}

int pc_open_with_secret(
	const struct pc_options *options, const char *secret_file, struct pc **ret_pc)
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
		return error_set(-ENAMETOOLONG, "the socket path is longer than %zu bytes: %s",
			sizeof(pc->socket) - 1, path);
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
	pc->no_reattach = options && options->no_reattach;
	pc->verify_one_in = one_in;
	pc->cores = cores > 0 ? (unsigned)cores : 1;
	fork_watch(pc);
	if (secret_file && *secret_file)
		rc = secret_open(secret_file, &pc->secret);
	if (!rc)
		rc = key_name_space(pc->secret, name_space, &pc->name_space);
	if (!rc)
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
	secret_close(pc->secret);
	pthread_cond_destroy(&pc->attacher.ended);
	fork_unwatch(pc);
	pthread_mutex_destroy(&pc->wire);
	pthread_mutex_destroy(&pc->lock);
	free(pc);
}

/* ---- questions ------------------------------------------------------------------------------- */

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

const char *pc_refusal(const struct pc *pc)
{
	struct pc *mutable_pc = (struct pc *)(uintptr_t)pc;

	error_clear();
	if (!pc)
		return pc_error();
	pthread_mutex_lock(&mutable_pc->lock);
	error_set(0, "%s", pc->refusal);
	pthread_mutex_unlock(&mutable_pc->lock);
	return pc_error();
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

static int reply_read(int fd, uint64_t bytes, char **ret_text)
{
	struct stat about;
	char *text;

	if (bytes > REPORT_BYTES_MAX || fstat(fd, &about) || (uint64_t)about.st_size < bytes)
		return error_set(-EPROTO, "the engine's reply has an invalid size");
	text = malloc(bytes + 1);
	if (!text)
		return error_set(-ENOMEM, "out of memory for a reply of %llu bytes",
			(unsigned long long)bytes);
	if (pread(fd, text, bytes, 0) != (ssize_t)bytes) {
		free(text);
		return error_set(-EPROTO, "the engine's reply ends early");
	}
	text[bytes] = '\0';
	*ret_text = text;
	return 0;
}

/* Sends a request whose reply has call->a bytes in a file, which the caller of this frees. */
static int session_fetch(struct pc *pc, struct session_call *call, char **ret_text)
{
	struct client_session *session;
	int rc;

	pc_reattach(pc, clock_monotonic_ns() + ATTACH_WAIT_NS);
	session = pc_session_get(pc);
	if (!session)
		return pc_no_session(pc);
	rc = pc_wire_lock(pc, clock_monotonic_ns() + call->timeout_ms * 1000000ull);
	if (!rc) {
		rc = session_ask(session, call);
		pthread_mutex_unlock(&pc->wire);
	}
	if (!rc && call->fds != 1)
		rc = error_set(-EPROTO, "the engine sent nothing with its reply");
	if (!rc)
		rc = reply_read(call->fd[0], call->a, ret_text);
	session_close_fds(call);
	if (shm_load(&session->dead))
		pc_session_end(pc, session);
	pc_session_put(pc, session);
	return rc;
}

int pc_report(struct pc *pc, char **ret_json)
{
	struct session_call call = {.kind = ATTACH_REPORT, .send_fd = -1, .timeout_ms = 10000};

	error_clear();
	if (!pc || !ret_json)
		return error_set(-EINVAL, "pc_report() needs a session and a place for its result");
	return session_fetch(pc, &call, ret_json);
}

int pc_asked(struct pc *pc, bool gets, uint64_t **ret_words, size_t *ret_count)
{
	struct session_call call = {.kind = ATTACH_ASKED,
		.a = gets ? STATISTICS_GET : STATISTICS_EXISTS,
		.send_fd = -1,
		.timeout_ms = 10000};
	char *text;
	int rc;

	error_clear();
	if (!pc || !ret_words || !ret_count)
		return error_set(-EINVAL, "pc_asked() needs a session and places for its results");
	rc = session_fetch(pc, &call, &text);
	if (rc)
		return rc;
	*ret_words = (uint64_t *)(void *)text; /* from malloc() */
	*ret_count = call.a / sizeof(**ret_words);
	return 0;
}
