/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directories of disk.paths, beyond what the engine's --check says: free bytes, the kind of the
 * file system and of the device. One thread.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include "engine/doctor/inner.h"

/* File systems that are no local disk. */
static const struct {
	long magic;
	const char *name, *why;
} unfit[] = {
	{TMPFS_MAGIC, "tmpfs", "it is memory: pages that leave memory go to memory"},
	{RAMFS_MAGIC, "ramfs", "it is memory: pages that leave memory go to memory"},
	{OVERLAYFS_SUPER_MAGIC, "overlay", "it is the container's layer, deleted with it"},
	{NFS_SUPER_MAGIC, "nfs", "it is on another host"},
	{0xff534d42, "cifs", "it is on another host"},
};

/*
 * Adds the bytes that files in the directory have allocated: those of an engine before. False: the
 * caller may not see them all.
 */
static bool allocated(const char *path, uint64_t *bytes)
{
	DIR *folder = opendir(path);
	struct dirent *entry;
	struct stat st;
	bool seen = true;

	if (!folder)
		return false;
	while ((entry = readdir(folder)) != NULL) {
		if (fstatat(dirfd(folder), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			seen &= errno == ENOENT; /* removed meanwhile */
		else if (S_ISREG(st.st_mode))
			*bytes += (uint64_t)st.st_blocks * 512;
	}
	closedir(folder);
	return seen;
}

/* Does the device of the directory have moving parts? */
static void device_examine(struct doctor *d, const char *path)
{
	static const char *const parents[] = {"", "../"}; /* a disk, and a part of one */
	char file[128];
	int64_t rotates = -1;
	struct stat st;

	if (stat(path, &st) < 0)
		return;
	for (size_t i = 0; i < 2 && rotates < 0; i++) {
		snprintf(file, sizeof(file), "/sys/dev/block/%u:%u/%squeue/rotational",
			major(st.st_dev), minor(st.st_dev), parents[i]);
		if (host_number(d, file, &rotates) != HOST_READ)
			rotates = -1;
	}
	if (rotates > 0)
		found(d, DOCTOR_FOUND, file, "put disk.paths on a local SSD",
			"%s is on a disk with moving parts", path);
	else if (rotates < 0)
		found(d, DOCTOR_UNKNOWN, path, "lsblk -o NAME,ROTA,MOUNTPOINT",
			"the device below it is not known");
}

/* The directories of disk.paths. */
struct paths {
	const char *path[sizeof(((struct settings *)NULL)->disk_paths) / 2];
	unsigned count;
};

/*
 * The directories that share the file system of `path`, with it. *ret_own: what their files have
 * allocated, as far as they can be seen; *ret_unseen: a directory with others, or NULL.
 */
static unsigned paths_beside(
	const struct paths *paths, const char *path, uint64_t *ret_own, const char **ret_unseen)
{
	struct stat its, other;
	unsigned same = 0;

	*ret_own = 0;
	*ret_unseen = NULL;
	if (stat(path, &its) < 0)
		return 1;
	for (unsigned i = 0; i < paths->count; i++) {
		if (stat(paths->path[i], &other) < 0 || other.st_dev != its.st_dev)
			continue;
		if (!allocated(paths->path[i], ret_own))
			*ret_unseen = paths->path[i];
		same++;
	}
	return same;
}

static void path_examine(struct doctor *d, const struct paths *paths, const char *path)
{
	uint64_t room, own, want;
	const char *unseen;
	struct statfs fs;
	unsigned same;

	if (statfs(path, &fs) < 0) {
		/* another directory that is not there is a finding of the settings */
		found(d, DOCTOR_UNKNOWN, path, NULL, "%s",
			d->of_unit && unit_makes(&d->unit, path)
				? "systemd makes it at the first start of the engine"
				: strerror(errno));
		return;
	}
	for (size_t i = 0; i < sizeof(unfit) / sizeof(unfit[0]); i++) {
		if (fs.f_type != unfit[i].magic)
			continue;
		found(d, DOCTOR_FOUND, path, "put disk.paths on a local SSD with ext4 or XFS",
			"the file system is %s: %s", unfit[i].name, unfit[i].why);
		return;
	}
	room = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
	same = paths_beside(paths, path, &own, &unseen);
	want = same * d->s->disk_bytes;
	if (room + own < want && unseen)
		found(d, DOCTOR_UNKNOWN, path, "run the doctor as root or as the engine's user",
			"%.2f GiB are free and %.2f GiB are allocated at start; files in %s may be part of that, and cannot be seen",
			(double)room / GIB, (double)want / GIB, unseen);
	else if (room + own < want)
		found(d, DOCTOR_FOUND, path, "free room there, or lower disk.bytes",
			"%.2f GiB are allocated at start, disk.bytes for %u of disk.paths on this file system, and %.2f GiB are free",
			(double)want / GIB, same, (double)(room + own) / GIB);
	else
		found(d, DOCTOR_OK, path, NULL, "%.2f GiB are free, file system type 0x%lx",
			(double)room / GIB, (unsigned long)fs.f_type);
	device_examine(d, path);
}

void check_disk(struct doctor *d)
{
	char text[sizeof(d->s->disk_paths)], *rest = text, *path;
	struct paths paths = {.count = 0};

	if (!d->s->disk_paths[0]) {
		found(d, DOCTOR_NONE, "disk.paths", NULL, "no disk is used");
		return;
	}
	snprintf(text, sizeof(text), "%s", d->s->disk_paths);
	while ((path = strsep(&rest, ",")) &&
		paths.count < sizeof(paths.path) / sizeof(paths.path[0]))
		paths.path[paths.count++] = path + strspn(path, " ");
	for (unsigned i = 0; i < paths.count; i++)
		path_examine(d, &paths, paths.path[i]);
}
