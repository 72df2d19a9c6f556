/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills struct topology from hwloc, /sys and the claims of other engines. Start-up only, one
 * thread.
 */
#include "numa/topology.h"

#include <dirent.h>
#include <errno.h>
#include <hwloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "numa/pin.h"

static int load(hwloc_topology_t *ret)
{
	hwloc_topology_t hw;
	int rc;

	if (hwloc_topology_init(&hw) < 0)
		return -ENOMEM;
	hwloc_topology_set_io_types_filter(hw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
	if (hwloc_topology_load(hw) < 0) {
		rc = errno ? -errno : -EINVAL;
		log_error(
			"topology: hwloc cannot read this machine: %s; lstopo may say more, and unset the variables HWLOC_*",
			strerror(-rc));
		hwloc_topology_destroy(hw);
		return rc;
	}
	*ret = hw;
	return 0;
}

/*
 * The NUMA node of a device with this nodeset. -1 when the set is empty, or has all of several
 * nodes: the device is then equally near to each.
 */
static int nearest_node(const struct topology *t, hwloc_const_nodeset_t set)
{
	if (!set || hwloc_bitmap_iszero(set))
		return -1;
	if (t->nodes > 1 && hwloc_bitmap_weight(set) == (int)t->nodes)
		return -1;
	return hwloc_bitmap_first(set);
}

static void fill_nodes(struct topology *t, hwloc_topology_t hw)
{
	unsigned count = (unsigned)hwloc_get_nbobjs_by_type(hw, HWLOC_OBJ_NUMANODE);
	struct hwloc_distances_s *distances = NULL;
	unsigned matrices = 1;

	t->nodes = count < TOPOLOGY_NODES_MAX ? count : TOPOLOGY_NODES_MAX;
	for (unsigned i = 0; i < t->nodes; i++) {
		hwloc_obj_t obj = hwloc_get_obj_by_type(hw, HWLOC_OBJ_NUMANODE, i);

		t->node[i].node = (int)obj->os_index;
		t->node[i].bytes = obj->attr->numanode.local_memory;
		for (unsigned j = 0; j < t->nodes; j++)
			t->distance[i][j] = i == j ? 10 : 20;
	}
	if (hwloc_distances_get_by_name(hw, "NUMALatency", &matrices, &distances, 0) < 0 ||
		matrices == 0)
		return;
	for (unsigned i = 0; i < t->nodes && distances->nbobjs == count; i++) {
		for (unsigned j = 0; j < t->nodes; j++)
			t->distance[i][j] = (uint16_t)distances->values[i * count + j];
	}
	hwloc_distances_release(hw, distances);
}

static void fill_cpus(struct topology *t, hwloc_topology_t hw, const cpu_set_t *affinity)
{
	hwloc_const_cpuset_t allowed = hwloc_topology_get_allowed_cpuset(hw);
	hwloc_obj_t pu = NULL;

	/* Lists the cores by the operating system's numbers; hwloc's own order may differ. */
	for (int cpu = hwloc_bitmap_first(allowed); cpu >= 0 && t->cpus < TOPOLOGY_CPUS_MAX;
		cpu = hwloc_bitmap_next(allowed, cpu)) {
		struct topology_cpu *one = &t->cpu[t->cpus];
		hwloc_obj_t core;

		pu = hwloc_get_pu_obj_by_os_index(hw, (unsigned)cpu);
		if (!pu)
			continue;
		core = hwloc_get_ancestor_obj_by_type(hw, HWLOC_OBJ_CORE, pu);
		one->cpu = cpu;
		one->physical = (int)(core ? core->logical_index : pu->logical_index);
		one->node = hwloc_bitmap_first(pu->nodeset);
		one->allowed = !affinity || (cpu < CPU_SETSIZE && CPU_ISSET(cpu, affinity));
		t->cpus++;
	}
}

static void add_device(struct topology *t, const char *name, int node)
{
	struct topology_device *one = &t->device[t->devices];

	if (topology_device(t, name))
		return;
	if (t->devices == TOPOLOGY_DEVICES_MAX) {
		log_warn("topology: more than %d NICs; %s is left out", TOPOLOGY_DEVICES_MAX, name);
		return;
	}
	if (snprintf(one->name, sizeof(one->name), "%s", name) >= (int)sizeof(one->name)) {
		log_warn("topology: the name of NIC %s is longer than %zu bytes; it is left out",
			name, sizeof(one->name) - 1);
		return;
	}
	one->node = node;
	t->devices++;
}

static void fill_devices(struct topology *t, hwloc_topology_t hw)
{
	hwloc_obj_t obj = NULL;

	while ((obj = hwloc_get_next_osdev(hw, obj)) != NULL) {
		hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(hw, obj);

		if (obj->name && obj->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS)
			add_device(t, obj->name, nearest_node(t, near->nodeset));
	}
}

/* The NUMA node of a verbs device, from sysfs; -1: unknown. */
static int read_node(const char *folder, const char *name)
{
	char path[768];
	FILE *file;
	int node = -1;

	snprintf(path, sizeof(path), "%s/%s/device/numa_node", folder, name);
	file = fopen(path, "re");
	if (!file)
		return -1;
	if (fscanf(file, "%d", &node) != 1)
		node = -1;
	fclose(file);
	return node;
}

/*
 * Adds the NICs that hwloc does not list. hwloc lists only PCI devices; libibverbs can open every
 * device in class/infiniband, below $SYSFS_PATH if that is set, else below /sys.
 */
static void fill_verbs(struct topology *t)
{
	const char *sysfs = getenv("SYSFS_PATH");
	struct dirent *entry;
	char folder[256];
	DIR *directory;

	snprintf(folder, sizeof(folder), "%s/class/infiniband", sysfs ? sysfs : "/sys");
	directory = opendir(folder);
	while (directory && (entry = readdir(directory)) != NULL) {
		int node;

		if (entry->d_name[0] == '.')
			continue;
		node = read_node(folder, entry->d_name);
		for (unsigned i = 0; i <= t->nodes; i++) {
			if (i == t->nodes)
				/* sysfs names a NUMA node that this machine does not have */
				node = -1;
			else if (t->node[i].node == node)
				break;
		}
		add_device(t, entry->d_name, node);
	}
	if (directory)
		closedir(directory);
}

/* Marks the cores that engines of this host have claimed. */
static void fill_claims(struct topology *t)
{
	for (unsigned i = 0; i < t->cpus; i++)
		t->cpu[i].holder = pin_holder(t->cpu[i].cpu);
}

int topology_open(struct topology **ret)
{
	hwloc_topology_t hw = NULL;
	cpu_set_t affinity;
	struct topology *t;
	bool here;
	int rc;

	rc = load(&hw);
	if (rc < 0)
		return rc;
	t = calloc(1, sizeof(*t));
	if (!t) {
		rc = -ENOMEM;
		goto out;
	}
	fill_nodes(t, hw);
	/* $HWLOC_FSROOT and other variables of hwloc name another machine */
	here = hwloc_topology_is_thissystem(hw);
	if (here && sched_getaffinity(0, sizeof(affinity), &affinity) == 0)
		fill_cpus(t, hw, &affinity);
	else
		fill_cpus(t, hw, NULL);
	fill_devices(t, hw);
	fill_verbs(t);
	if (here)
		fill_claims(t);
	if (t->cpus == 0 || t->nodes == 0) {
		log_error(
			"topology: this machine has no core or no NUMA node that this process may use");
		free(t);
		rc = -EINVAL;
		goto out;
	}
	*ret = t;
out:
	hwloc_topology_destroy(hw);
	return rc;
}

void topology_close(struct topology *t)
{
	free(t);
}

const struct topology_device *topology_device(const struct topology *t, const char *name)
{
	for (unsigned i = 0; i < t->devices; i++) {
		if (strcmp(t->device[i].name, name) == 0)
			return &t->device[i];
	}
	return NULL;
}

const struct topology_cpu *topology_cpu(const struct topology *t, int cpu)
{
	for (unsigned i = 0; i < t->cpus; i++) {
		if (t->cpu[i].cpu == cpu)
			return &t->cpu[i];
	}
	return NULL;
}

static int node_index(const struct topology *t, int node)
{
	for (unsigned i = 0; i < t->nodes; i++) {
		if (t->node[i].node == node)
			return (int)i;
	}
	return -1;
}

unsigned topology_distance(const struct topology *t, int node_a, int node_b)
{
	int a = node_index(t, node_a), b = node_index(t, node_b);

	return a < 0 || b < 0 ? 10 : t->distance[a][b];
}
