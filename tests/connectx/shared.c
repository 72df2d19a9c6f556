/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the program's memory that other processes can map: it lies in a memfd that cannot shrink,
 * is mapped shared, and the program still has the descriptor. All other memory is private. A file
 * that can shrink would lose pages during a NIC's copy, so it counts as private. Run by program
 * threads, under uv_lock.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "tests/connectx/uverbs.h"

/* One line of /proc/self/maps: a memory mapping of this process. */
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

/*
 * Finds the file that holds [start, end), and the offset of `start`; false: private, or several
 * files.
 */
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

/*
 * Duplicates `fd` if it is this file, is sealed against shrinking and long enough; else returns -1.
 */
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
