/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine as the plan sees it: its cores, its NUMA nodes, and the node of each NIC. A snapshot
 * that hwloc makes of this machine. Start-up only, one thread. Constant once it is open, except
 * that plan_claim() marks cores that another engine has claimed.
 *
 *   struct topology *t;
 *
 *   if (topology_open(&t) == 0)
 *           node = topology_device(t, "mlx5_0")->node;
 */
#ifndef NUMA_TOPOLOGY_H
#define NUMA_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

#include "config/limits.h"

#define TOPOLOGY_CPUS_MAX 1024
#define TOPOLOGY_NODES_MAX 64
#define TOPOLOGY_DEVICES_MAX 128

struct topology_cpu {
	/* the operating system's number of the core; settings and pin_self() use it */
	int cpu;
	int physical; /* number of the physical core, equal for all its hardware threads */
	int node;     /* the operating system's number of the core's NUMA node */
	bool allowed; /* true: the core is in the affinity mask and in the cpuset of this process */
	/* pid of the engine that has claimed the core; -1: pid unknown; 0: not claimed */
	int holder;
};

struct topology_node {
	int node;       /* the operating system's number of the NUMA node */
	uint64_t bytes; /* memory of the NUMA node, bytes */
};

/* A verbs device. */
struct topology_device {
	char name[NAME_BYTES_MAX]; /* "mlx5_0" */
	int node;                  /* its NUMA node; -1: equally near to all, or unknown */
};

struct topology {
	unsigned cpus; /* number of entries of cpu[], which are sorted by cpu[].cpu */
	struct topology_cpu cpu[TOPOLOGY_CPUS_MAX];
	unsigned nodes; /* number of entries of node[], at least 1 */
	struct topology_node node[TOPOLOGY_NODES_MAX];
	/* ACPI SLIT distance between two NUMA nodes, by their index in node[]; 10: the same node */
	uint16_t distance[TOPOLOGY_NODES_MAX][TOPOLOGY_NODES_MAX];
	unsigned devices; /* number of entries of device[] */
	struct topology_device device[TOPOLOGY_DEVICES_MAX];
};

/*
 * Reads the topology of this machine, or of the one that hwloc's variables name ($HWLOC_FSROOT,
 * $HWLOC_XMLFILE, $HWLOC_SYNTHETIC), then without claims of engines and the affinity mask. Returns
 * 0 or a negative errno; the reason is logged. The caller closes *ret with topology_close().
 */
int topology_open(struct topology **ret);
void topology_close(struct topology *t);

/* Finds a device of the topology by name; NULL: there is none. */
const struct topology_device *topology_device(const struct topology *t, const char *name);
/* Finds a core of the topology by the operating system's number; NULL: there is none. */
const struct topology_cpu *topology_cpu(const struct topology *t, int cpu);
/*
 * Distance of two NUMA nodes, given by the operating system's numbers. -1 (any) and unknown nodes
 * have the distance 10 to every node.
 */
unsigned topology_distance(const struct topology *t, int node_a, int node_b);

#endif
