/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory this process can still get: available memory, cgroup limits, huge pages. Start-up
 * and control plane only, any of their threads.
 */
#ifndef NUMA_MEMORY_H
#define NUMA_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "numa/cgroup.h"

/* Numbers of huge pages of 2 MiB. */
struct memory_huge {
	uint64_t free; /* huge pages that are free and not reserved */
	/* huge pages that the kernel may still create; 0 when the count is of one NUMA node */
	uint64_t surplus;
	/* huge pages that the cgroup limit of that name allows; very many: none does */
	uint64_t limit;
	char limit_name[CGROUP_NAME_BYTES];
};

/*
 * Returns the bytes that this process can still get, and writes to `limit` which limit is the
 * lowest ("MemAvailable", "memory.max of cgroup ...").
 */
uint64_t memory_available(char *limit, size_t limit_bytes);

/* Counts the huge pages of one NUMA node; node -1: of the machine. All 0 if the kernel has none. */
void memory_huge_pages(int node, struct memory_huge *ret);

#endif
