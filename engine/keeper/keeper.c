/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keeper.h: the loop of the keeper, the descriptors that it stores, and what a message of the
 * engine changes. Runs on the keeper's main thread, except clients_wait(), which has a thread of
 * its own because flock() has no time-out and no poll(). An engine that ends is started again,
 * unless it has never served or refuses its settings; then the keeper ends with its status.
 */
#include "engine/keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "engine/keeper/child.h"
#include "engine/keeper/notify.h"
#include "engine/keeper/service.h"

#define MESSAGES_TURN 64u   /* messages read in one turn of the loop */
#define MESSAGES_LAST 4096u /* messages read after the engine has ended */
/* descriptors that poll() watches */
enum { POLL_SIGNALS, POLL_NOTIFY, POLL_UNUSED, POLLED };

static uint64_t later_ns(uint64_t now_ns, uint64_t us)
{
	return now_ns + us * 1000;
}

/* ---- the stored descriptors, in the order in which they came -------------------------------- */

/*
 * Do both numbers name one open file description? False when the kernel does not tell; the limit
 * of the store bounds what is then stored twice.
 */
static bool stored_is_same(int a, int b)
{
	return syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, a, b) == 0;
}

/*
 * Takes ownership of `fd`, also on failure. A descriptor that the store has already, under any
 * name, is closed, as systemd does. Returns 0, or -ENOSPC when the store is full.
 */
static int stored_add(struct fd_store *store, int fd, const char *name)
{
	struct stored *entry;

	for (unsigned i = 0; i < store->count; i++) {
		if (stored_is_same(store->entry[i].fd, fd)) {
			close(fd);
			return 0;
		}
	}
	if (store->count == STORE_FDS_MAX) {
		close(fd);
		return -ENOSPC;
	}
	entry = &store->entry[store->count++];
	*entry = (struct stored){.fd = fd};
	snprintf(entry->name, sizeof(entry->name), "%s", name);
	return 0;
}

/* Closes the descriptor at this index; the entries behind it move up by one. */
static void stored_remove_at(struct fd_store *store, unsigned index)
{
	close(store->entry[index].fd);
	memmove(&store->entry[index], &store->entry[index + 1],
		(store->count - index - 1) * sizeof(store->entry[0]));
	store->count--;
}

/* Closes all descriptors with this name. Returns how many. */
static unsigned stored_remove(struct fd_store *store, const char *name)
{
	unsigned removed = 0;

	for (unsigned i = store->count; i-- > 0;) {
		if (strcmp(store->entry[i].name, name))
			continue;
		stored_remove_at(store, i);
		removed++;
	}
	return removed;
}

static void stored_clear(struct fd_store *store)
{
	while (store->count)
		stored_remove_at(store, store->count - 1);
}

/* ---- messages of the engine ----------------------------------------------------------------- */

static void engine_ready(struct keeper *k)
{
	if (k->ready)
		return;
	k->ready = true;
	k->pause_ms = KEEPER_PAUSE_MS;
	if (!k->was_ready && k->options.ready_fd >= 0) {
		if (write(k->options.ready_fd, "", 1) != 1)
			log_warn(
				"keeper: --ready-fd: writing the ready byte to file descriptor %d: %s",
				k->options.ready_fd, strerror(errno));
		close(k->options.ready_fd);
		k->options.ready_fd = -1;
	}
	k->was_ready = true;
	log_info("keeper: the engine (pid %d) serves after %" PRIu64 " ms", (int)k->engine,
		(clock_monotonic_ns() - k->began_ns) / 1000000);
}

/* Moves the datagram's descriptors into the store. */
static void stored_take(struct keeper *k, struct notify_datagram *d, const struct notify_message *m)
{
	unsigned refused = 0;

	for (unsigned i = 0; i < d->fds; i++)
		refused += stored_add(&k->store, d->fd[i], m->name) < 0;
	d->fds = 0; /* stored_add() took all of them */
	if (refused)
		log_warn(
			"keeper: %u descriptors named %s are not stored: the store has its maximum of %u",
			refused, m->name, STORE_FDS_MAX);
}

static void message_execute(struct keeper *k, struct notify_datagram *d)
{
	struct notify_message m;
	const char *why = "";

	if (notify_parse(d->text, d->bytes, &m, &why) < 0) {
		log_warn("keeper: a message of the engine is ignored: %s", why);
		return;
	}
	/* notify_close() closes the descriptor of a barrier: all messages before it are executed */
	if (m.barrier)
		return;
	if (m.remove && stored_remove(&k->store, m.name) == 0)
		log_debug("keeper: no stored descriptor has the name %s", m.name);
	if (m.store)
		stored_take(k, d, &m);
	if (m.ready)
		engine_ready(k);
}

/*
 * Reads messages until none is there, at most `max`, and executes those that the running engine
 * sent; those of other processes are not, as with systemd's NotifyAccess=main. Returns false if
 * there may be more.
 */
static bool keeper_messages(struct keeper *k, unsigned max)
{
	for (unsigned i = 0; i < max; i++) {
		struct notify_datagram *d = &k->datagram;
		int rc = notify_receive(k->notify, d);

		if (rc == 0)
			return true;
		if (d->pid != k->engine || k->engine == 0) {
			if (!k->foreign_told)
				log_warn(
					"keeper: messages of process %d to %s are ignored: it is not the engine (pid %d)",
					(int)d->pid, k->notify_path, (int)k->engine);
			k->foreign_told = true;
		} else if (rc == -EMSGSIZE) {
			log_warn(
				"keeper: a message of the engine is ignored: it is longer than %u bytes, or has more descriptors than this process may open",
				NOTIFY_BYTES_MAX);
		} else if (rc < 0) {
			log_warn("keeper: receiving from %s: %s", k->notify_path, strerror(-rc));
		} else {
			message_execute(k, d);
		}
		notify_close(d);
	}
	return false;
}

/* ---- the engine ----------------------------------------------------------------------------- */

/* Sets the time of the next start, and a longer pause for the one after it. */
static void restart_later(struct keeper *k)
{
	k->start_at_ns = clock_monotonic_ns() + k->pause_ms * 1000000ull;
	k->pause_ms = k->pause_ms * 2 < KEEPER_PAUSE_MAX_MS ? k->pause_ms * 2 : KEEPER_PAUSE_MAX_MS;
}

/* Starts the engine. Returns -1 to go on, or the keeper's exit status. */
static int engine_start(struct keeper *k)
{
	int fd[STORE_FDS_MAX + 2] = {k->listener.fd, k->alive[0]};
	const char *name[STORE_FDS_MAX + 2] = {"clients", SERVICE_KEEPER_NAME};
	struct child child = {.argv = k->argv,
		.notify_path = k->notify_path,
		.fd = fd,
		.name = name,
		.fds = 2 + k->store.count};
	int rc;

	for (unsigned i = 0; i < k->store.count; i++) {
		fd[2 + i] = k->store.entry[i].fd;
		name[2 + i] = k->store.entry[i].name;
	}
	k->start_at_ns = 0;
	k->began_ns = clock_monotonic_ns();
	k->ready = k->foreign_told = false;
	rc = child_start(&child, &k->engine);
	if (rc < 0) {
		log_error("keeper: cannot run %s: %s", k->argv[0], strerror(-rc));
		if (!k->was_ready)
			return KEEPER_NO_PROGRAM;
		restart_later(k); /* the program may be replaced by another version just now */
		return -1;
	}
	return -1;
}

/* Asks the engine to end in order; a second call makes it end at once. */
static void engine_end(struct keeper *k)
{
	k->start_at_ns = 0;
	if (!k->ending)
		socket_file_unlink(&k->listener); /* no further client connects */
	if (k->engine && !k->ending)
		k->deadline_ns = later_ns(
			clock_monotonic_ns(), (uint64_t)k->options.stop_timeout_s * 1000000);
	k->ending = true;
	if (k->engine)
		(void)kill(k->engine, SIGTERM);
}

/*
 * The engine has ended with this status of waitpid(). Returns -1 to go on, or the keeper's exit
 * status.
 */
static int engine_ended(struct keeper *k, int status)
{
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	pid_t pid = k->engine;

	/* what it stored just before its end; afterwards its process id means nothing */
	(void)keeper_messages(k, MESSAGES_LAST);
	k->engine = 0;
	k->deadline_ns = 0;
	if (k->ending)
		return 0;
	if (!k->was_ready || code == KEEPER_SETTINGS_REFUSED) {
		log_error("keeper: the engine (pid %d) ended with status %d and is not restarted%s",
			(int)pid, code,
			k->was_ready ? ": it refuses its settings" : ": it has never served");
		return code;
	}
	log_warn("keeper: the engine (pid %d) ended with status %d%s%s; restart in %u ms", (int)pid,
		code, WIFSIGNALED(status) ? ": " : "",
		WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "", k->pause_ms);
	restart_later(k);
	return -1;
}

/*
 * Reaps processes; as the first process of a container the keeper gets those of others, too.
 * Returns -1 to go on, or the keeper's exit status.
 */
static int processes_reap(struct keeper *k)
{
	int status, code = -1;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == k->engine)
			code = engine_ended(k, status);
	return code;
}

/* The orderly end of the engine takes too long. */
static void deadline_passed(struct keeper *k)
{
	k->deadline_ns = 0;
	log_error("keeper: the engine (pid %d) did not end within %u s of SIGTERM: killed",
		(int)k->engine, k->options.stop_timeout_s);
	if (k->engine)
		(void)kill(k->engine, SIGKILL);
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* Reads the signals. Returns -1 to go on, or the keeper's exit status. */
static int signals_read(struct keeper *k)
{
	struct signalfd_siginfo info;

	while (read(k->signals, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGHUP && k->engine)
			(void)kill(k->engine, SIGHUP);
		if (info.ssi_signo == SIGCHLD || info.ssi_signo == SIGHUP)
			continue;
		log_info("keeper: %s: ending the engine", strsignal((int)info.ssi_signo));
		engine_end(k);
	}
	return processes_reap(k);
}

/* Milliseconds until the next start or deadline; -1: none is due. */
static int wait_ms(const struct keeper *k)
{
	uint64_t now_ns = clock_monotonic_ns(),
		 at_ns = k->start_at_ns ? k->start_at_ns : k->deadline_ns;
	uint64_t ms;

	if (!at_ns)
		return -1;
	ms = at_ns > now_ns ? (at_ns - now_ns) / 1000000 + 1 : 0;
	return ms < 3600000 ? (int)ms : 3600000;
}

/* One turn of the loop. Returns -1 to go on, or the keeper's exit status. */
static int keeper_turn(struct keeper *k)
{
	struct pollfd polled[POLLED] = {
		[POLL_SIGNALS] = {.fd = k->signals, .events = POLLIN},
		[POLL_NOTIFY] = {.fd = k->notify, .events = POLLIN},
		[POLL_UNUSED] = {.fd = k->ending ? -1 : k->unused, .events = POLLIN},
	};
	uint64_t now_ns;

	if (poll(polled, POLLED, wait_ms(k)) < 0 && errno != EINTR) {
		log_error("keeper: poll: %s", strerror(errno));
		return EXIT_FAILURE;
	}
	if (polled[POLL_NOTIFY].revents)
		(void)keeper_messages(k, MESSAGES_TURN);
	if (polled[POLL_UNUSED].revents) {
		log_info("keeper: the last client has ended: ending the engine");
		engine_end(k);
	}
	now_ns = clock_monotonic_ns();
	if (k->deadline_ns && now_ns >= k->deadline_ns)
		deadline_passed(k);
	if (polled[POLL_SIGNALS].revents) {
		int code = signals_read(k);

		if (code >= 0)
			return code;
	}
	if (k->ending && !k->engine)
		return 0;
	return k->start_at_ns && now_ns >= k->start_at_ns ? engine_start(k) : -1;
}

int keeper_run(struct keeper *k)
{
	int code = engine_start(k);

	while (code < 0)
		code = keeper_turn(k);
	return code;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Waits until no client holds its shared lock. The exclusive lock stays until the keeper ends. */
static void *clients_wait(void *context)
{
	const struct keeper *k = context;
	uint64_t one = 1;

	while (flock(k->clients, LOCK_EX) < 0 && errno == EINTR)
		continue;
	if (write(k->unused, &one, sizeof(one)) < 0)
		return NULL;
	return NULL;
}

/* Watches the file of the clients. Returns 0 or -errno. */
static int clients_watch(struct keeper *k)
{
	pthread_t thread;

	if (!k->options.clients)
		return 0;
	k->clients = open(k->options.clients, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	k->unused = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (k->clients < 0 || k->unused < 0)
		return -errno;
	/* signals are blocked already, so that the thread takes none */
	if (pthread_create(&thread, NULL, clients_wait, k))
		return -EAGAIN;
	pthread_detach(thread);
	return 0;
}

/* Takes the lock on <socket>.keeper, unless the process that started this one has taken it. */
static int lock_take(struct keeper *k, const char *path)
{
	struct stat st = {.st_nlink = k->options.lock_fd >= 0};

	while (st.st_nlink == 0) { /* else a keeper that has ended has removed the file meanwhile */
		k->options.lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (k->options.lock_fd < 0)
			return -errno;
		if (flock(k->options.lock_fd, LOCK_EX | LOCK_NB) < 0) {
			if (errno != EWOULDBLOCK)
				return -errno;
			log_error(
				"keeper: another keeper has the socket %s: it holds the lock %s; end it, or give another --socket",
				k->options.socket, path);
			return -EADDRINUSE;
		}
		if (fstat(k->options.lock_fd, &st) < 0)
			return -errno;
		if (st.st_nlink == 0)
			close(k->options.lock_fd);
	}
	snprintf(k->lock_path, sizeof(k->lock_path), "%s", path);
	return 0;
}

/*
 * Signals come through a descriptor. SIGHUP is ignored, too: an engine inherits that, and is not
 * ended by one that comes before it serves. Returns 0 or -errno.
 */
static int signals_open(struct keeper *k)
{
	sigset_t mask;

	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGCHLD);
	sigaddset(&mask, SIGHUP);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	k->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	return k->signals < 0 ? -errno : 0;
}

/* The engine's command with the setting that names the socket. Returns 0 or -ENOMEM. */
static int command_make(struct keeper *k)
{
	char *setting;

	k->argv = calloc(k->options.words + 3, sizeof(*k->argv));
	if (!k->argv || asprintf(&setting, "engine.socket=%s", k->options.socket) < 0)
		return -ENOMEM;
	for (unsigned i = 0; i < k->options.words; i++)
		k->argv[i] = k->options.command[i];
	k->argv[k->options.words] = (char *)(uintptr_t) "--set";
	k->argv[k->options.words + 1] = setting;
	return 0;
}

static int listener_open(struct keeper *k)
{
	int rc = socket_file_bind(k->options.socket, &k->listener);

	if (rc == 0 && listen(k->listener.fd, SOMAXCONN) < 0) {
		rc = -errno;
		log_error("keeper: cannot listen on %s: %s", k->options.socket, strerror(-rc));
	}
	return rc;
}

int keeper_open(struct keeper *k, const struct keeper_options *options)
{
	char lock[SOCKET_PATH_BYTES + 16];
	int rc;

	memset(k, 0, sizeof(*k));
	k->options = *options;
	k->notify = k->signals = k->unused = k->clients = k->listener.fd = -1;
	k->alive[0] = k->alive[1] = -1;
	k->pause_ms = KEEPER_PAUSE_MS;
	if (snprintf(k->notify_path, sizeof(k->notify_path), "%s.notify", options->socket) >=
		(int)sizeof(k->notify_path)) {
		log_error("keeper: engine.socket = %s: longer than %zu bytes; give a shorter path",
			options->socket, sizeof(k->notify_path) - sizeof(".notify"));
		return -ENAMETOOLONG;
	}
	snprintf(lock, sizeof(lock), "%s.keeper", options->socket);
	rc = socket_file_folder(options->socket);
	if (rc == 0)
		rc = lock_take(k, lock);
	if (rc == 0)
		rc = signals_open(k);
	if (rc == 0)
		rc = listener_open(k);
	if (rc < 0)
		goto fail;
	k->notify = notify_open(k->notify_path);
	if (k->notify < 0) {
		rc = k->notify;
		log_error("keeper: cannot bind %s: %s", k->notify_path, strerror(-rc));
		return rc;
	}
	rc = pipe2(k->alive, O_CLOEXEC) < 0 ? -errno : command_make(k);
	if (rc == 0)
		rc = clients_watch(k);
fail:
	if (rc < 0 && rc != -EADDRINUSE)
		log_error("keeper: cannot start at %s: %s", options->socket, strerror(-rc));
	return rc;
}

void keeper_close(struct keeper *k)
{
	socket_file_remove(&k->listener);
	if (k->notify >= 0) {
		(void)unlink(k->notify_path);
		close(k->notify);
	}
	stored_clear(&k->store);
	if (k->lock_path[0])
		(void)unlink(k->lock_path);
	/*
	 * The locks stay until the process has ended, and with them the descriptors and the
	 * thread that waits.
	 */
	if (k->argv)
		free(k->argv[k->options.words + 1]);
	free(k->argv);
}
