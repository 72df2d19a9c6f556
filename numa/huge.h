/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page memory: a memfd on a NUMA node, on huge pages where the machine has them.
 * Control plane or start-up only. Falls back from huge to small pages (with MADV_HUGEPAGE) and from
 * the wanted node to any, each with one clear warning.
 */
#ifndef NUMA_HUGE_H
#define NUMA_HUGE_H

#include <stdbool.h>
#include <stddef.h>

struct huge {
	int fd;            /* memfd; its name is in /proc/PID/fd, nothing in /dev/shm */
	void *base;        /* mapped read-write, zeroed */
	size_t bytes;      /* rounded up to the page size in use */
	size_t page_bytes; /* 4096 or the huge page size */
};

/*
 * node: NUMA node, -1 for any; pages come from elsewhere when the node has no more. 0, or -ENOMEM
 * when the machine or the cgroup does not have that much memory left (checked before anything is
 * touched; pools opened earlier but not yet touched count), or another negative errno. The reason
 * is logged. The kernel's memory appears when it is touched or registered: nothing is populated
 * here.
 */
int huge_open(const char *name, size_t bytes, int node, bool want_huge, struct huge *ret);
/* Unmaps and closes; a second call, or one of a zeroed struct, does nothing. */
void huge_close(struct huge *h);

#endif
