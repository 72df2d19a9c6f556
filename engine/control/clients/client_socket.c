/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Unix socket of clients. Either a keeper or systemd passed it to the engine: it listens all
 * the time, and a client that connects before the engine can answer waits. SO_PEERCRED tells it
 * that the engine before has ended, until client_socket_answer() has made it this process. Or the
 * engine binds it, before it allocates its memory, so that an error in engine.socket is found at
 * once; then it listens only when the engine can answer, and a client that connects earlier is
 * refused and tries again. Under systemd it then stores the socket, which is passed to the next
 * engine.
 *
 * <engine.socket>.pid contains the engine's process id. The engine locks it before the bind and
 * until it has ended, so that two engines never share a path, even while one of them starts. The
 * kernel releases the lock when the process ends. Used at start-up and shutdown, on the control
 * plane's thread.
 */
#include "engine/control/clients/clients_inner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/keeper/service.h"
#include "engine/keeper/socket_file.h"

struct client_socket {
	struct socket_file file; /* file.fd: the socket; -1: it is removed, or was never bound */
	/* the socket, and so its file, belongs to a keeper or systemd, which passes or stores it */
	bool passed;
	int lock; /* descriptor of <engine.socket>.pid, which is locked; -1: the lock is not held */
	int keeper; /* pipe that ends with the keeper; -1: none */
	struct event *keeper_ended;
	struct control *control;
};

/* backlog of listen(): long enough that a client which connects without blocking is not refused */
#define SOCKET_BACKLOG SOMAXCONN
/*
 * limit of attempts to take the lock; an attempt fails when another engine has just removed the
 * lock file
 */
#define LOCK_TRIES 100
#define LOCK_PATH_BYTES (SOCKET_PATH_BYTES + sizeof(".pid"))

/* ---- the lock -------------------------------------------------------------------------------- */

static void socket_lock_path(const struct client_socket *s, char ret[LOCK_PATH_BYTES])
{
	snprintf(ret, LOCK_PATH_BYTES, "%s.pid", s->file.path);
}

/*
 * Logs that another engine holds the lock, with the process id that the lock file names (0 if fd is
 * -1).
 */
static int socket_lock_busy(const struct client_socket *s, int fd)
{
	char pid[16] = "";
	ssize_t got = pread(fd, pid, sizeof(pid) - 1, 0);

	log_error(
		"clients: another engine (pid %ld) owns %s; it is starting, serving or stopping. End it, or give this engine another engine.socket",
		got > 0 ? strtol(pid, NULL, 10) : 0, s->file.path);
	return -EADDRINUSE;
}

/*
 * Locks <engine.socket>.pid. Returns 0, -errno, or 1: locked, but the file is not at its path any
 * more, because the engine that removed it has ended.
 */
static int socket_lock_try(const struct client_socket *s, int fd, const char *path)
{
	struct stat held, there;

	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		int rc = -errno;

		if (rc == -EWOULDBLOCK)
			return socket_lock_busy(s, fd);
		log_error(
			"clients: cannot lock %s: %s; set engine.socket to a path on a local file system",
			path, strerror(-rc));
		return rc;
	}
	return fstat(fd, &held) < 0 || stat(path, &there) < 0 || held.st_dev != there.st_dev ||
	       held.st_ino != there.st_ino;
}

static int socket_lock_take(struct client_socket *s)
{
	char path[LOCK_PATH_BYTES];
	int rc = 1;

	socket_lock_path(s, path);
	for (unsigned i = 0; i < LOCK_TRIES && rc > 0; i++) {
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);

		if (fd < 0) {
			rc = -errno;
			log_error(
				"clients: engine.socket = %s: cannot create %s: %s; make its directory writable for this user, or set engine.socket to a path this user can create",
				s->file.path, path, strerror(-rc));
			return rc;
		}
		rc = socket_lock_try(s, fd, path);
		if (rc == 0)
			s->lock = fd;
		else
			close(fd);
	}
	if (rc > 0)
		return socket_lock_busy(s, -1);
	if (rc == 0 && (ftruncate(s->lock, 0) < 0 || dprintf(s->lock, "%d\n", (int)getpid()) < 0))
		log_warn("clients: cannot write the process id to %s: %s", path, strerror(errno));
	return rc;
}

/* ---- the socket ------------------------------------------------------------------------------ */

static void socket_remove(struct client_socket *s)
{
	if (!s->passed) {
		socket_file_remove(&s->file);
	} else if (s->file.fd >= 0) {
		close(s->file.fd); /* the file stays for the next engine */
		s->file.fd = -1;
	}
}

static void socket_free(struct client_socket *s)
{
	char path[LOCK_PATH_BYTES];

	socket_remove(s);
	if (s->keeper_ended)
		event_free(s->keeper_ended);
	if (s->keeper >= 0)
		close(s->keeper);
	if (s->lock >= 0) {
		socket_lock_path(s, path);
		/* removed while it is locked, so that another engine's socket_lock_try() notices */
		(void)unlink(path);
		close(s->lock);
	}
	free(s);
}

/* Takes the passed socket, or binds one. Returns 0 or -errno. */
static int socket_take(struct client_socket *s)
{
	int rc = service_listener(s->file.path, &s->file.fd);

	if (rc < 0)
		return rc;
	s->passed = s->file.fd >= 0;
	if (!s->passed)
		return socket_file_bind(s->file.path, &s->file);
	s->keeper = service_keeper();
	/* accept4() must not block the control plane */
	return fcntl(s->file.fd, F_SETFL, fcntl(s->file.fd, F_GETFL) | O_NONBLOCK) < 0 ? -errno : 0;
}

static void on_keeper_ended(evutil_socket_t fd, short what, void *context)
{
	struct client_socket *s = context;

	(void)fd;
	(void)what;
	log_warn(
		"the keeper of this engine has ended: the engine serves on, but it is not started again when it ends, and its memory does not survive; end it and start a keeper for %s when that suits",
		s->file.path);
	s->control->keeper_gone = true;
	event_free(s->keeper_ended);
	s->keeper_ended = NULL;
}

/* ---- called by other files of this folder ---------------------------------------------------- */

int client_socket_open(struct control *control)
{
	const char *path = control->settings->engine_socket;
	struct client_socket *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return -ENOMEM;
	s->control = control;
	s->file.fd = s->lock = s->keeper = -1;
	static_assert(sizeof(control->settings->engine_socket) <= sizeof(s->file.path),
		"settings.def bounds it");
	strcpy(s->file.path, path);
	rc = socket_file_folder(path);
	if (rc == 0)
		rc = socket_lock_take(s);
	if (rc == 0)
		rc = socket_take(s);
	if (rc < 0) {
		socket_free(s);
		return rc;
	}
	control->client_socket = s;
	return 0;
}

static int socket_listen(const struct client_socket *s)
{
	int rc = listen(s->file.fd, SOCKET_BACKLOG) == 0 ? 0 : -errno;

	if (rc < 0)
		log_error("clients: cannot listen on %s: %s", s->file.path, strerror(-rc));
	return rc;
}

int client_socket_listen(struct control *control)
{
	struct client_socket *s = control->client_socket;
	int rc;

	if (s->keeper >= 0) {
		s->keeper_ended = event_new(control->base, s->keeper, EV_READ, on_keeper_ended, s);
		if (!s->keeper_ended || event_add(s->keeper_ended, NULL) < 0)
			return -ENOMEM;
	}
	if (s->passed)
		return s->file.fd; /* it listens already */
	rc = socket_listen(s);
	if (rc < 0)
		return rc;
	if (service_stores()) {
		/* clients that come while the engine restarts wait in its backlog */
		service_store(SERVICE_LISTENER_NAME, s->file.fd);
		s->passed = true;
	}
	return s->file.fd;
}

int client_socket_answer(struct control *control)
{
	return socket_listen(control->client_socket);
}

void client_socket_remove(struct control *control)
{
	socket_remove(control->client_socket);
}

void client_socket_close(struct control *control)
{
	socket_free(control->client_socket);
	control->client_socket = NULL;
}
