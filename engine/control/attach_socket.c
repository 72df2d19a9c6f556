/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Unix socket of clients, as a file. It is bound before the engine allocates its memory, so
 * that an error in engine.socket is found at once. It listens only when the engine can answer: a
 * client that connects earlier is refused and tries again.
 *
 * <engine.socket>.pid contains the engine's process id. The engine locks it before the bind and
 * until it has ended, so that two engines never share a path, even while one of them starts. The
 * kernel releases the lock when the process ends. Used at start-up and shutdown, on the control
 * plane's thread.
 */
#include "engine/control/attach.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "config/log.h"

struct attach_socket {
	char path[128];
	int fd;   /* the bound socket; -1: it is removed, or was never bound */
	int lock; /* descriptor of <engine.socket>.pid, which is locked; -1: the lock is not held */
	/*
	 * device and inode of the socket file, so that this engine removes no file of another
	 * engine
	 */
	dev_t device;
	ino_t inode;
};

/* backlog of listen(): long enough that a client which connects without blocking is not refused */
#define SOCKET_BACKLOG SOMAXCONN
/*
 * limit of attempts to take the lock; an attempt fails when another engine has just removed the
 * lock file
 */
#define LOCK_TRIES 100

/*
 * Creates the last directory of `path`. The directories above it must exist; if they do not, `path`
 * is taken for a mistake.
 */
static int folder_make(const char *path)
{
	char folder[sizeof(((struct attach_socket *)0)->path)];
	char *slash;
	int rc;

	snprintf(folder, sizeof(folder), "%s", path);
	slash = strrchr(folder, '/');
	if (!slash || slash == folder)
		return 0;
	*slash = '\0';
	if (mkdir(folder, 0755) == 0) {
		log_info("clients: created directory %s for engine.socket, mode 0755", folder);
		return 0;
	}
	rc = -errno;
	if (rc == -EEXIST)
		return 0;
	if (rc == -ENOENT)
		log_error(
			"clients: engine.socket = %s: neither %s nor the directory above it exists; create it, or correct engine.socket",
			path, folder);
	else
		log_error(
			"clients: engine.socket = %s: cannot create directory %s: %s; create it as a user that may, or set engine.socket to a path this user can create",
			path, folder, strerror(-rc));
	return rc;
}

/* ---- the lock -------------------------------------------------------------------------------- */

static void lock_path(const struct attach_socket *s, char ret[sizeof(s->path) + 8])
{
	snprintf(ret, sizeof(s->path) + 8, "%s.pid", s->path);
}

/*
 * Logs that another engine holds the lock, with the process id that the lock file names (0 if fd is
 * -1).
 */
static int lock_busy(const struct attach_socket *s, int fd)
{
	char pid[16] = "";
	ssize_t got = pread(fd, pid, sizeof(pid) - 1, 0);

	log_error(
		"clients: another engine (pid %ld) owns %s; it is starting, serving or stopping. End it, or give this engine another engine.socket",
		got > 0 ? strtol(pid, NULL, 10) : 0, s->path);
	return -EADDRINUSE;
}

/*
 * Locks <engine.socket>.pid. Returns 0, -errno, or 1: locked, but the file is not at its path any
 * more, because the engine that removed it has ended.
 */
static int lock_try(const struct attach_socket *s, int fd, const char *path)
{
	struct stat held, there;

	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		int rc = -errno;

		if (rc == -EWOULDBLOCK)
			return lock_busy(s, fd);
		log_error(
			"clients: cannot lock %s: %s; set engine.socket to a path on a local file system",
			path, strerror(-rc));
		return rc;
	}
	return fstat(fd, &held) < 0 || stat(path, &there) < 0 || held.st_dev != there.st_dev ||
	       held.st_ino != there.st_ino;
}

static int lock_take(struct attach_socket *s)
{
	char path[sizeof(s->path) + 8];
	int rc = 1;

	lock_path(s, path);
	for (unsigned i = 0; i < LOCK_TRIES && rc > 0; i++) {
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);

		if (fd < 0) {
			rc = -errno;
			log_error(
				"clients: engine.socket = %s: cannot create %s: %s; make its directory writable for this user, or set engine.socket to a path this user can create",
				s->path, path, strerror(-rc));
			return rc;
		}
		rc = lock_try(s, fd, path);
		if (rc == 0)
			s->lock = fd;
		else
			close(fd);
	}
	if (rc > 0)
		return lock_busy(s, -1);
	if (rc == 0 && (ftruncate(s->lock, 0) < 0 || dprintf(s->lock, "%d\n", (int)getpid()) < 0))
		log_warn("clients: cannot write the process id to %s: %s", path, strerror(errno));
	return rc;
}

/* ---- the socket ------------------------------------------------------------------------------ */

/*
 * Whether a process listens on the socket. Returns 0: no process; -EADDRINUSE: process *ret_pid
 * does. As the caller holds the lock, that is another program, or an engine of a version without
 * the lock.
 */
static int socket_probe(const struct sockaddr_un *address, pid_t *ret_pid)
{
	struct ucred peer = {.pid = 0};
	socklen_t bytes = sizeof(peer);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int rc = 0;

	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0) {
		(void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
		rc = -EADDRINUSE;
	} else if (errno == EAGAIN || errno == EACCES || errno == EPERM || errno == EPROTOTYPE) {
		/*
		 * connect() failed because the backlog is full, or the socket belongs to another
		 * user or has another type.
		 */
		rc = -EADDRINUSE;
	}
	close(fd);
	*ret_pid = peer.pid;
	return rc;
}

/*
 * Removes the socket of a dead engine, on which no process listens; any other file stays. The
 * caller holds the lock.
 */
static int socket_clear(const struct sockaddr_un *address)
{
	const char *path = address->sun_path;
	struct stat st;
	pid_t pid = 0;
	int rc;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode)) {
		log_error("clients: engine.socket = %s: exists and is not a socket; %s", path,
			S_ISDIR(st.st_mode) ? "name a file in that directory"
					    : "remove it, or give another path");
		return -EEXIST;
	}
	rc = socket_probe(address, &pid);
	if (rc == -EADDRINUSE) {
		log_error(
			"clients: process %d already listens on %s; stop it, or give this engine another engine.socket",
			(int)pid, path);
		return rc;
	}
	if (rc < 0)
		return rc;
	log_info("clients: %s is left over from an engine that has ended; it is replaced", path);
	if (unlink(path) == 0)
		return 0;
	rc = -errno;
	log_error("clients: cannot remove %s: %s; remove it, or set another engine.socket", path,
		strerror(-rc));
	return rc;
}

static void socket_remove(struct attach_socket *s)
{
	struct stat st;

	if (s->fd < 0)
		return;
	if (lstat(s->path, &st) == 0 && st.st_dev == s->device && st.st_ino == s->inode)
		(void)unlink(s->path);
	close(s->fd);
	s->fd = -1;
}

static void socket_free(struct attach_socket *s)
{
	char path[sizeof(s->path) + 8];

	socket_remove(s);
	if (s->lock >= 0) {
		lock_path(s, path);
		/*
		 * removed while the lock is held, so that lock_try() of another engine notices it
		 */
		(void)unlink(path);
		close(s->lock);
	}
	free(s);
}

static int socket_bind(struct attach_socket *s, const struct sockaddr_un *address)
{
	struct stat st;
	int rc;

	s->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (s->fd < 0 || bind(s->fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ||
		stat(s->path, &st) < 0) {
		rc = -errno;
		log_error(
			"clients: engine.socket = %s: cannot bind: %s; set it to a path this user can create",
			s->path, strerror(-rc));
		return rc;
	}
	s->device = st.st_dev;
	s->inode = st.st_ino;
	/*
	 * Users that may not attach can connect too, so that accept_one() can refuse them with a
	 * reason.
	 */
	if (chmod(s->path, 0666) < 0)
		log_warn(
			"clients: cannot set mode 0666 of %s: %s; clients of other users cannot connect",
			s->path, strerror(errno));
	return 0;
}

/* ---- called by other files of this folder ---------------------------------------------------- */

int attach_socket_open(struct control *control)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const char *path = control->settings->engine_socket;
	struct attach_socket *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return -ENOMEM;
	s->fd = s->lock = -1;
	static_assert(sizeof(control->settings->engine_socket) <= sizeof(address.sun_path) &&
			      sizeof(address.sun_path) <= sizeof(s->path),
		"settings.def bounds it");
	strcpy(address.sun_path, path);
	strcpy(s->path, path);
	rc = folder_make(path);
	if (rc == 0)
		rc = lock_take(s);
	if (rc == 0)
		rc = socket_clear(&address);
	if (rc == 0)
		rc = socket_bind(s, &address);
	if (rc < 0) {
		socket_free(s);
		return rc;
	}
	control->client_socket = s;
	return 0;
}

int attach_socket_listen(struct control *control)
{
	struct attach_socket *s = control->client_socket;
	int rc;

	if (listen(s->fd, SOCKET_BACKLOG) == 0)
		return s->fd;
	rc = -errno;
	log_error("clients: cannot listen on %s: %s", s->path, strerror(-rc));
	return rc;
}

void attach_socket_remove(struct control *control)
{
	socket_remove(control->client_socket);
}

void attach_socket_close(struct control *control)
{
	socket_free(control->client_socket);
	control->client_socket = NULL;
}
