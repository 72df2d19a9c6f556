/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket_file.h: the file of the Unix socket of clients. Runs on the keeper's main thread, or on
 * the thread of an engine's control plane.
 */
#include "engine/keeper/socket_file.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "config/log.h"

static_assert(sizeof(((struct sockaddr_un *)0)->sun_path) == SOCKET_PATH_BYTES, "a path fits");

int socket_file_folder(const char *path)
{
	char folder[SOCKET_PATH_BYTES];
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

int socket_file_check(const char *path)
{
	char folder[SOCKET_PATH_BYTES];
	char *slash;
	int error = 0;

	snprintf(folder, sizeof(folder), "%s", path);
	/* the last directory is created if it is missing */
	for (unsigned level = 0; level < 2; level++) {
		slash = strrchr(folder, '/');
		if (!slash)
			return 0;
		slash[slash == folder] = '\0';
		if (access(folder, W_OK | X_OK) == 0)
			return 0;
		error = errno;
		if (error != ENOENT)
			break;
	}
	log_error(
		"clients: engine.socket = %s: %s: %s; create it as a user that may, or set engine.socket to a path this user can create",
		path, folder, strerror(error));
	return -error;
}

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

static int file_bind(struct socket_file *f, const struct sockaddr_un *address)
{
	struct stat st;
	int rc;

	f->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (f->fd < 0 || bind(f->fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ||
		stat(f->path, &st) < 0) {
		rc = -errno;
		log_error(
			"clients: engine.socket = %s: cannot bind: %s; set it to a path this user can create",
			f->path, strerror(-rc));
		if (f->fd >= 0)
			close(f->fd);
		f->fd = -1;
		return rc;
	}
	f->device = st.st_dev;
	f->inode = st.st_ino;
	/*
	 * Users that may not attach can connect too, so that the engine can refuse them with a
	 * reason.
	 */
	if (chmod(f->path, 0666) < 0)
		log_warn(
			"clients: cannot set mode 0666 of %s: %s; clients of other users cannot connect",
			f->path, strerror(errno));
	return 0;
}

int socket_file_bind(const char *path, struct socket_file *ret)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int rc;

	ret->fd = -1;
	if (strlen(path) >= sizeof(ret->path)) {
		log_error("clients: engine.socket = %s: longer than %zu bytes; give a shorter path",
			path, sizeof(ret->path) - 1);
		return -ENAMETOOLONG;
	}
	memmove(ret->path, path, strlen(path) + 1); /* it may be the path that `ret` has */
	strcpy(address.sun_path, path);
	rc = socket_clear(&address);
	return rc < 0 ? rc : file_bind(ret, &address);
}

void socket_file_unlink(const struct socket_file *f)
{
	struct stat st;

	if (f->fd >= 0 && lstat(f->path, &st) == 0 && st.st_dev == f->device &&
		st.st_ino == f->inode)
		(void)unlink(f->path);
}

void socket_file_remove(struct socket_file *f)
{
	socket_file_unlink(f);
	if (f->fd >= 0)
		close(f->fd);
	f->fd = -1;
}
