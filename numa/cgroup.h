/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the cgroups of a process, by default this one, still allow: version 1 and 2, of its group
 * and of all the parents, where the kernel has them mounted. Start-up and slow paths only, any
 * thread; the process is chosen by one thread.
 */
#ifndef NUMA_CGROUP_H
#define NUMA_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

enum cgroup_limit {
	CGROUP_MEMORY, /* bytes; memory that the kernel can reclaim at once counts as unused */
	CGROUP_HUGE,   /* bytes of huge pages of 2 MiB that are touched */
	CGROUP_HUGE_RESERVED, /* the same, from mmap() on */
	CGROUP_TASKS,         /* threads and processes */
	CGROUP_CPU,           /* processors, in thousandths */
};

#define CGROUP_NAME_BYTES 160 /* for the name of a limit */

/*
 * Lowers *left to what the limits allow, and writes which of them is the lowest to `name`:
 * "memory.max of cgroup /a". Returns false and changes nothing if none is lower.
 */
bool cgroup_left(enum cgroup_limit limit, uint64_t *left, char name[CGROUP_NAME_BYTES]);

/*
 * Whose groups are read from now on: a folder of /proc, such as "self" or "4711"; NULL: no one's,
 * so that no limit is shown. The caller keeps the string alive.
 */
void cgroup_process(const char *process);

/* Can the groups of the process be read for this limit? If not, nothing is known of it. */
bool cgroup_shown(enum cgroup_limit limit);

#endif
