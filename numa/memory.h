/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory the machine has left: free memory, the cgroup's limit, huge pages. Start-up only.
 */
#ifndef NUMA_MEMORY_H
#define NUMA_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Huge pages of 2 MiB. */
struct memory_huge {
	uint64_t free;    /* and not reserved */
	uint64_t surplus; /* the kernel may still make (whole machine only) */
};

/* Bytes this process can still get; `limit` says what bounds them ("MemAvailable", a cgroup). */
uint64_t memory_available(char *limit, size_t limit_bytes);

/* node: -1 for the whole machine. Zeros where the kernel has no huge pages. */
void memory_huge_pages(int node, struct memory_huge *ret);

/* Tests only: read /proc and /sys below this directory; NULL goes back to "". Kept, not copied. */
void memory_test_root(const char *root);

#endif
