/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file with a secret: only its owner may read it, and a line feed at its end is no part of it.
 * Any thread.
 */
#ifndef CONFIG_SECRET_FILE_H
#define CONFIG_SECRET_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads all of `fd` to `ret`. Returns the bytes or -errno, with *ret_wrong. */
static inline int secret_fd_read(int fd, char *ret, size_t room, const char **ret_wrong)
{
	struct stat st;
	size_t got = 0;
	ssize_t n = 1;

	*ret_wrong = "it is no file";
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return -EINVAL;
	*ret_wrong = "other users may read or change it: chmod 600";
	if (st.st_mode & 077)
		return -EPERM;
	*ret_wrong =
		"it belongs to another user, who can change it: chown it to the user that reads it";
	if (st.st_uid != geteuid() && st.st_uid != 0)
		return -EPERM;
	while (got < room && n > 0) {
		n = read(fd, ret + got, room - got);
		got += n > 0 ? (size_t)n : 0;
	}
	*ret_wrong = "it cannot be read";
	if (n < 0)
		return -EIO;
	*ret_wrong = "it is too long";
	if (got == room)
		return -EFBIG;
	while (got && (ret[got - 1] == '\n' || ret[got - 1] == '\r'))
		got--;
	*ret_wrong = "it is empty";
	return got ? (int)got : -EINVAL;
}

/*
 * Reads the secret to `ret`, which has more room than the longest one. Returns its bytes, or -errno
 * with *ret_wrong: what is wrong and what to do.
 */
static inline int secret_file_read(const char *path, char *ret, size_t room, const char **ret_wrong)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), rc;

	if (fd < 0) {
		rc = -errno;
		*ret_wrong = strerror(-rc);
		return rc;
	}
	rc = secret_fd_read(fd, ret, room, ret_wrong);
	if (rc < 0)
		explicit_bzero(ret, room);
	close(fd);
	return rc;
}

#endif
