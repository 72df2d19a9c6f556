/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directories of disk.paths: their names, and what can be known about them before the disk is
 * opened. The control plane's thread only.
 */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "config/log.h"
#include "config/unit.h"
#include "engine/control/pages/tier_inner.h"

int tier_paths_split(const struct settings *s, char *text, struct disk_options *ret)
{
	char *rest = text, *path;

	memcpy(text, s->disk_paths, sizeof(s->disk_paths));
	ret->paths = 0;
	while ((path = strsep(&rest, ","))) {
		path += strspn(path, " ");
		if (!*path || ret->paths == DISK_PATHS_MAX) {
			log_error(
				"disk.paths = %s: an empty name, or more than %u; give directories, comma separated",
				s->disk_paths, DISK_PATHS_MAX);
			return -EINVAL;
		}
		ret->path[ret->paths].directory = path;
		ret->path[ret->paths++].bytes = s->disk_bytes;
	}
	return 0;
}

unsigned tier_directories(
	const struct settings *s, char *text, const char *ret_directory[DISK_PATHS_MAX])
{
	struct disk_options options = {.paths = 0};

	if (!s->disk_paths[0] || tier_paths_split(s, text, &options) < 0)
		return 0;
	for (unsigned i = 0; i < options.paths; i++)
		ret_directory[i] = options.path[i].directory;
	return options.paths;
}

/* Checks one directory. *ret_device: its file system; 0: not known, systemd will make it. */
static int path_check(const char *name, const struct unit *unit, uint64_t *ret_device)
{
	struct stat st = {.st_dev = 0};
	int rc = stat(name, &st) < 0 ? -errno : 0;
	bool made = unit_makes(unit, name);

	*ret_device = st.st_dev;
	if (rc == -ENOENT && made)
		return 0;
	if (rc == 0 && !S_ISDIR(st.st_mode))
		rc = -ENOTDIR;
	if (rc == 0 && !made && access(name, R_OK | W_OK | X_OK) < 0)
		rc = -errno;
	if (rc < 0)
		log_error(
			"disk.paths: %s: %s; give a directory that exists and that this user may write to",
			name, strerror(-rc));
	else if (!unit_writes(unit, name)) {
		log_error(
			"disk.paths: %s: it is read-only in " UNIT_NAME
			", which has ProtectSystem=strict; give a directory of its StateDirectory=, or ReadWritePaths=%s in a drop-in",
			name, name);
		rc = -EROFS;
	}
	return rc;
}

/* The files of `paths` paths must fit the file system of the directory. */
static int path_size_check(const struct settings *s, const char *name, unsigned paths)
{
	struct statvfs fs;
	uint64_t bytes;

	if (statvfs(name, &fs) < 0)
		return 0; /* not known */
	bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
	if (bytes / paths >= s->disk_bytes)
		return 0;
	log_error(
		"disk.bytes = %llu MiB in each of %u path(s), but the file system of %s has %llu MiB; lower disk.bytes",
		(unsigned long long)s->disk_bytes >> 20, paths, name,
		(unsigned long long)bytes >> 20);
	return -ENOSPC;
}

int tier_check(const struct settings *s, const struct unit *unit)
{
	struct disk_options options = {.paths = 0};
	uint64_t device[DISK_PATHS_MAX];
	char text[sizeof(s->disk_paths)];
	struct rlimit limit;
	int rc = s->disk_paths[0] ? tier_paths_split(s, text, &options) : 0;

	for (unsigned i = 0; rc == 0 && i < options.paths; i++)
		rc = path_check(options.path[i].directory, unit, &device[i]);
	for (unsigned i = 0; rc == 0 && i < options.paths; i++) {
		unsigned same = 0;

		for (unsigned k = 0; k < options.paths; k++)
			same += device[k] == device[i];
		rc = path_size_check(s, options.path[i].directory, same);
	}
	if (rc == 0 && options.paths && getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
		limit.rlim_max < (rlim_t)s->disk_segment_bytes) {
		log_error(
			"disk.segment_bytes = %llu: RLIMIT_FSIZE is %llu bytes; raise ulimit -f or LimitFSIZE=",
			(unsigned long long)s->disk_segment_bytes,
			(unsigned long long)limit.rlim_max);
		rc = -EFBIG;
	}
	return rc;
}
