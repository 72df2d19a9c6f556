/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the program's memory other processes can map: what lies in a memfd that cannot become
 * shorter, mapped shared, and whose descriptor the program still has. Everything else is private.
 * A file that can shrink would take pages from under a NIC in the middle of a copy, so it counts as
 * private, too. Program threads, under uv_lock.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "dv/soft/uverbs/uverbs.h"

/* A line of /proc/self/maps. */
struct area {
	uint64_t first, end, offset;
	dev_t device;
	ino_t inode;
	bool shared;
};

static bool read_area(FILE *maps, struct area *ret)
{
	unsigned long first, end, offset, inode;
	unsigned major, minor;
	char line[512], rights[8];
	bool whole;

	if (!fgets(line, sizeof(line), maps))
		return false;
	whole = strchr(line, '\n') != NULL;
	if (sscanf(line, "%lx-%lx %7s %lx %x:%x %lu", &first, &end, rights, &offset, &major, &minor,
		    &inode) != 7)
		return false;
	for (int c = 0; !whole && c != '\n' && c != EOF;)
		c = fgetc(maps);
	*ret = (struct area){first, end, offset, makedev(major, minor), inode,
		rights[3] == 's' && strstr(line, " /memfd:")};
	return true;
}

/* The file that [start, end) lies in, and `start` in it; false: it is private, or of several. */
static bool find_file(uint64_t start, uint64_t end, struct area *ret)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	struct area area = {0};
	uint64_t at = start;

	while (maps && at < end && read_area(maps, &area)) {
		uint64_t offset = area.offset + (at - area.first);

		if (area.end <= at)
			continue;
		if (area.first > at || !area.shared)
			break;
		if (at == start) {
			*ret = area;
			ret->offset = offset;
		} else if (area.device != ret->device || area.inode != ret->inode ||
			   offset != ret->offset + (at - start)) {
			break;
		}
		at = area.end;
	}
	if (maps)
		fclose(maps);
	return at >= end;
}

/* A copy of the descriptor if it is this file and the file is what it must be; or -1. */
static int take(int fd, const struct area *file, uint64_t bytes)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	int seals = copy < 0 ? -1 : fcntl(copy, F_GET_SEALS);
	struct stat status;

	if (seals >= 0 && seals & F_SEAL_SHRINK && fstat(copy, &status) == 0 &&
		status.st_dev == file->device && status.st_ino == file->inode &&
		file->offset + bytes <= (uint64_t)status.st_size)
		return copy;
	if (copy >= 0)
		close(copy);
	return -1;
}

int uv_shared_open(uint64_t start, uint64_t bytes, uint64_t *ret_offset)
{
	struct area file = {0};
	struct dirent *entry;
	DIR *fds;
	int found = -1;

	if (!find_file(start, start + bytes, &file))
		return -1;
	fds = opendir("/proc/self/fd");
	while (fds && found < 0 && (entry = readdir(fds))) {
		struct stat status;
		int fd = atoi(entry->d_name);

		if (entry->d_name[0] != '.' && fstat(fd, &status) == 0 &&
			status.st_ino == file.inode && status.st_dev == file.device)
			found = take(fd, &file, bytes);
	}
	if (fds)
		closedir(fds);
	*ret_offset = file.offset;
	return found;
}
