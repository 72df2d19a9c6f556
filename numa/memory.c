/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the available memory from /proc/meminfo, cgroup v2 and /sys. Start-up and control plane
 * only, any of their threads.
 */
#include "numa/memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define PATH_BYTES 1024

static const char *root = ""; /* prefix of every path that is read; only tests set it */

void memory_test_root(const char *test_root)
{
	root = test_root ? test_root : "";
}

static FILE *open_below(const char *path)
{
	char full[PATH_BYTES];

	if (snprintf(full, sizeof(full), "%s%s", root, path) >= (int)sizeof(full))
		return NULL;
	return fopen(full, "re");
}

/* Reads a file that contains one number. Returns false when it is missing or contains "max". */
static bool read_number(const char *path, uint64_t *ret)
{
	FILE *file = open_below(path);
	bool found;

	if (!file)
		return false;
	found = fscanf(file, "%" SCNu64, ret) == 1;
	fclose(file);
	return found;
}

/* MemAvailable of /proc/meminfo in bytes; UINT64_MAX when it cannot be read. */
static uint64_t mem_available(void)
{
	FILE *file = open_below("/proc/meminfo");
	uint64_t kib = 0;
	char line[128];

	if (!file)
		return UINT64_MAX;
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
			break;
	}
	fclose(file);
	return kib ? kib * 1024 : UINT64_MAX;
}

/* Writes the cgroup v2 path of this process; "" for the root group or when there is none. */
static void cgroup_path(char *ret, size_t ret_bytes)
{
	FILE *file = open_below("/proc/self/cgroup");
	char line[PATH_BYTES / 2];

	ret[0] = '\0';
	if (!file)
		return;
	while (fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		if (strncmp(line, "0::/", 4) == 0)
			snprintf(ret, ret_bytes, "%s", line[4] ? line + 3 : "");
	}
	fclose(file);
}

uint64_t memory_available(char *limit, size_t limit_bytes)
{
	uint64_t least = mem_available();
	char group[PATH_BYTES / 2], path[PATH_BYTES];

	snprintf(limit, limit_bytes, "MemAvailable");
	cgroup_path(group, sizeof(group));
	/* The memory limits of this cgroup and of all its parents apply. */
	for (;;) {
		uint64_t max, used, left;
		char *slash;

		snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", group);
		if (read_number(path, &max)) {
			snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.current", group);
			if (!read_number(path, &used))
				used = 0;
			left = max > used ? max - used : 0;
			if (left < least) {
				least = left;
				snprintf(limit, limit_bytes, "memory.max of cgroup %.100s",
					group[0] ? group : "/");
			}
		}
		slash = strrchr(group, '/');
		if (!slash)
			return least;
		*slash = '\0';
	}
}

void memory_huge_pages(int node, struct memory_huge *ret)
{
	static const char machine[] = "/sys/kernel/mm/hugepages/hugepages-2048kB";
	uint64_t free_pages = 0, reserved = 0, overcommit = 0, surplus = 0;
	char path[128];

	*ret = (struct memory_huge){0};
	if (node >= 0) {
		snprintf(path, sizeof(path),
			"/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/free_hugepages",
			node);
		read_number(path, &ret->free);
		return;
	}
	snprintf(path, sizeof(path), "%s/free_hugepages", machine);
	read_number(path, &free_pages);
	snprintf(path, sizeof(path), "%s/resv_hugepages", machine);
	read_number(path, &reserved);
	snprintf(path, sizeof(path), "%s/nr_overcommit_hugepages", machine);
	read_number(path, &overcommit);
	snprintf(path, sizeof(path), "%s/surplus_hugepages", machine);
	read_number(path, &surplus);
	ret->free = free_pages > reserved ? free_pages - reserved : 0;
	ret->surplus = overcommit > surplus ? overcommit - surplus : 0;
}
