/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the available memory from /proc/meminfo, the cgroups and /sys. Start-up and control plane
 * only, any of their threads.
 */
#include "numa/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "numa/cgroup.h"
#include "numa/kernel_file.h"

/* MemAvailable of /proc/meminfo in bytes; UINT64_MAX when it cannot be read. */
static uint64_t mem_available(void)
{
	FILE *file = kernel_file_open("/proc/meminfo");
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

uint64_t memory_available(char *limit, size_t limit_bytes)
{
	uint64_t least = mem_available();
	char name[CGROUP_NAME_BYTES] = "MemAvailable";

	(void)cgroup_left(CGROUP_MEMORY, &least, name);
	snprintf(limit, limit_bytes, "%s", name);
	return least;
}

void memory_huge_pages(int node, struct memory_huge *ret)
{
	static const char machine[] = "/sys/kernel/mm/hugepages/hugepages-2048kB";
	uint64_t free_pages = 0, reserved = 0, overcommit = 0, surplus = 0;
	char path[128];

	*ret = (struct memory_huge){.limit = UINT64_MAX};
	(void)cgroup_left(CGROUP_HUGE, &ret->limit, ret->limit_name);
	(void)cgroup_left(CGROUP_HUGE_RESERVED, &ret->limit, ret->limit_name);
	ret->limit /= 2u << 20;
	if (node >= 0) {
		snprintf(path, sizeof(path),
			"/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/free_hugepages",
			node);
		(void)kernel_file_number(path, &ret->free);
		return;
	}
	snprintf(path, sizeof(path), "%s/free_hugepages", machine);
	(void)kernel_file_number(path, &free_pages);
	snprintf(path, sizeof(path), "%s/resv_hugepages", machine);
	(void)kernel_file_number(path, &reserved);
	snprintf(path, sizeof(path), "%s/nr_overcommit_hugepages", machine);
	(void)kernel_file_number(path, &overcommit);
	snprintf(path, sizeof(path), "%s/surplus_hugepages", machine);
	(void)kernel_file_number(path, &surplus);
	ret->free = free_pages > reserved ? free_pages - reserved : 0;
	ret->surplus = overcommit > surplus ? overcommit - surplus : 0;
}
