/* SPDX-License-Identifier: Apache-2.0 */
/* Opens topologies of other machines: hwloc takes them from its environment variables. */
#ifndef TESTS_NUMA_MACHINE_H
#define TESTS_NUMA_MACHINE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "numa/topology.h"

#define SYNTHETIC "synthetic:" /* before a machine in hwloc's notation; else a file of lstopo */

/* As topology_open(), without the verbs devices of this machine. */
static inline int machine_open(const char *source, struct topology **ret)
{
	bool synthetic = strncmp(source, SYNTHETIC, strlen(SYNTHETIC)) == 0;
	const char *variable = synthetic ? "HWLOC_SYNTHETIC" : "HWLOC_XMLFILE";
	int rc;

	setenv(variable, synthetic ? source + strlen(SYNTHETIC) : source, 1);
	setenv("SYSFS_PATH", "/nonexistent", 1);
	rc = topology_open(ret);
	unsetenv("SYSFS_PATH");
	unsetenv(variable);
	return rc;
}

#endif
