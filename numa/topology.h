/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine as the plan sees it: cores this process may run on, NUMA nodes, and which node each
 * NIC and GPU hangs off. A plain snapshot made by hwloc, from this machine, from a saved XML file
 * (`lstopo machine.xml`) or from hwloc's synthetic descriptions. Start-up only; constant
 * afterwards, except that plan_claim() marks cores it found taken.
 *
 *   struct topology *t;
 *
 *   if (topology_open(NULL, &t) == 0)
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
	int cpu; /* the operating system's number: what the settings and pin_self() call a core */
	int physical; /* hardware threads of one physical core share this number */
	int node;     /* the operating system's NUMA node */
	bool allowed; /* by affinity mask and cpuset */
	int holder;   /* process that has claimed it; -1: some process; 0: free */
};

struct topology_node {
	int node;       /* the operating system's number */
	uint64_t bytes; /* memory */
};

enum topology_kind { TOPOLOGY_NIC, TOPOLOGY_NET, TOPOLOGY_GPU };

struct topology_device {
	char name[NAME_BYTES_MAX]; /* "mlx5_0", "eth0", "cuda0", or a PCI address */
	enum topology_kind kind;   /* verbs device, network interface, accelerator */
	int node;                  /* -1: equally near to all, or unknown */
};

struct topology {
	unsigned cpus; /* in the order of `cpu` */
	struct topology_cpu cpu[TOPOLOGY_CPUS_MAX];
	unsigned nodes; /* at least 1 */
	struct topology_node node[TOPOLOGY_NODES_MAX];
	/* by index into node[]; 10: itself; larger is farther */
	uint16_t distance[TOPOLOGY_NODES_MAX][TOPOLOGY_NODES_MAX];
	unsigned devices;
	struct topology_device device[TOPOLOGY_DEVICES_MAX];
};

/*
 * source: NULL: this machine; "synthetic:pack:2 core:4 pu:2": hwloc's notation; else the path of an
 * XML file. 0 or a negative errno, logged. Claims of other engines are only looked up for NULL.
 */
int topology_open(const char *source, struct topology **ret);
void topology_close(struct topology *t);

/* NULL: no such device. */
const struct topology_device *topology_device(const struct topology *t, const char *name);
/* NULL: no such core. */
const struct topology_cpu *topology_cpu(const struct topology *t, int cpu);
/* Between two of the system's node numbers; -1 (any) and unknown nodes are near to everything. */
unsigned topology_distance(const struct topology *t, int node_a, int node_b);

#endif
