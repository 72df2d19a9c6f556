/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that decide who belongs: secrets, which others than owner and group cannot read, and what
 * everybody may read and only the owner may write. The owner is root or the user that reads. A line
 * feed at the end is no part of it. Any thread.
 */
#ifndef CONFIG_SECRET_FILE_H
#define CONFIG_SECRET_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET_MODES 027  /* that a file with a secret has not: others read it, group writes it */
#define TRUSTED_MODES 022 /* the same of a file that is no secret */

/* Reads all of `fd` to `ret`. Returns the bytes or -errno, with *ret_wrong. */
static inline int owned_fd_read(
	int fd, mode_t modes, char *ret, size_t room, const char **ret_wrong)
{
	struct stat st;
	size_t got = 0;
	ssize_t n = 1;

	*ret_wrong = "it is no file";
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return -EINVAL;
	*ret_wrong = modes & 4 ? "other users may read or change it: chmod 600 or 640"
			       : "other users may change it: chmod 644";
	if (st.st_mode & modes)
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
 * Reads the file to `ret`, which has more room than the longest one. Returns its bytes, or -errno
 * with *ret_wrong: what is wrong and what to do.
 */
static inline int owned_file_read(
	const char *path, mode_t modes, char *ret, size_t room, const char **ret_wrong)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), rc;

	if (fd < 0) {
		rc = -errno;
		*ret_wrong =
			rc == -EACCES
				? "the user of the engine may not read it: chown it to that user"
				: strerror(-rc);
		return rc;
	}
	rc = owned_fd_read(fd, modes, ret, room, ret_wrong);
	if (rc < 0)
		explicit_bzero(ret, room);
	close(fd);
	return rc;
}

static inline int secret_file_read(const char *path, char *ret, size_t room, const char **ret_wrong)
{
	return owned_file_read(path, SECRET_MODES, ret, room, ret_wrong);
}

/*
 * A number that is another one when one of the files has changed. Taken before they are read, it
 * shows a change meanwhile, too. Never 0.
 */
static inline uint64_t files_version(const char *const *path, unsigned count)
{
	uint64_t version = 0xcbf29ce484222325ull;

	for (unsigned i = 0; i < count; i++) {
		struct stat st = {0};

		(void)stat(path[i], &st);
		const uint64_t parts[] = {st.st_dev, st.st_ino, (uint64_t)st.st_size,
			(uint64_t)st.st_ctim.tv_sec, (uint64_t)st.st_ctim.tv_nsec,
			(uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec};

		for (unsigned n = 0; n < sizeof(parts) / sizeof(parts[0]); n++)
			version = (version ^ parts[n]) * 0x9e3779b97f4a7c15ull;
		version ^= version >> 29;
	}
	return version | 1;
}

#endif
