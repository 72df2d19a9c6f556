/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the available memory from /proc/meminfo, the cgroups and /sys. Start-up and control plane
 * only, any of their threads.
 */
#include "numa/memory.h"

#include <inttypes.h>
#include <stdbool.h>
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

/* A number of huge pages of 2 MiB that a file of this folder has; 0 without the file. */
static uint64_t huge_read(const char *folder, const char *name)
{
	char path[128];
	uint64_t pages = 0;

	snprintf(path, sizeof(path), "%s/hugepages/hugepages-2048kB/%s", folder, name);
	(void)kernel_file_number(path, &pages);
	return pages;
}

void memory_huge_pages(int node, struct memory_huge *ret)
{
	static const char machine[] = "/sys/kernel/mm";
	uint64_t free_pages, reserved, overcommit, surplus;
	char folder[64];

	*ret = (struct memory_huge){.limit = UINT64_MAX};
	(void)cgroup_left(CGROUP_HUGE, &ret->limit, ret->limit_name);
	(void)cgroup_left(CGROUP_HUGE_RESERVED, &ret->limit, ret->limit_name);
	ret->limit /= 2u << 20;
	if (node >= 0) {
		snprintf(folder, sizeof(folder), "/sys/devices/system/node/node%d", node);
		ret->free = huge_read(folder, "free_hugepages");
		return;
	}
	free_pages = huge_read(machine, "free_hugepages");
	reserved = huge_read(machine, "resv_hugepages");
	overcommit = huge_read(machine, "nr_overcommit_hugepages");
	surplus = huge_read(machine, "surplus_hugepages");
	ret->free = free_pages > reserved ? free_pages - reserved : 0;
	ret->surplus = overcommit > surplus ? overcommit - surplus : 0;
}
