/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of the Unix socket of clients (setting engine.socket): created, taken over from a
 * process that has ended, and removed. The keeper uses it, and an engine that runs without one. No
 * function is called by two threads at once.
 */
#ifndef KEEPER_SOCKET_FILE_H
#define KEEPER_SOCKET_FILE_H

#include <sys/types.h>

/* a path is shorter than this; it bounds sun_path of struct sockaddr_un */
#define SOCKET_PATH_BYTES 108

struct socket_file {
	char path[SOCKET_PATH_BYTES];
	int fd; /* the bound socket; -1: none */
	/*
	 * device and inode of the file, so that socket_file_remove() removes no file of another
	 * process
	 */
	dev_t device;
	ino_t inode;
};

/*
 * Creates the last directory of `path` if it is missing. The directories above it must exist; if
 * they do not, `path` is taken for a mistake. Returns 0, or -errno after logging the reason.
 */
int socket_file_folder(const char *path);
/* Can the socket be made there? Creates nothing. Returns 0, or -errno after logging the reason. */
int socket_file_check(const char *path);

/*
 * Binds a SOCK_SEQPACKET socket to `path`, with mode 0666. It replaces the socket of a process that
 * has ended; any other file stays and is an error, as is a socket on which a process listens. The
 * caller holds a lock, so that no other process does the same. The socket does not listen yet.
 * Returns 0, or -errno after logging the reason; then ret->fd is -1.
 */
int socket_file_bind(const char *path, struct socket_file *ret);

/* Removes the file if it is still the one that was bound. May be called twice. */
void socket_file_unlink(const struct socket_file *file);

/* Removes the file and closes the socket. May be called twice. */
void socket_file_remove(struct socket_file *file);

#endif
