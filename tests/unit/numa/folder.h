/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of a test program of its own: made before its tests and removed after them. */
#ifndef TESTS_NUMA_FOLDER_H
#define TESTS_NUMA_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char dir[] = "/tmp/peercache-test-XXXXXX";

/* Makes the folder; the engine's record of claimed cores is in it, too. */
static int make_dir(void **state)
{
	return mkdtemp(dir) && setenv("PEERCACHE_RUN_DIR", dir, 1) == 0 ? 0 : -1;
}

/* Fails if something else than the record of claimed cores is left in the folder. */
static inline int drop_dir(void **state)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/cores", dir);
	unlink(path);
	return rmdir(dir);
}

static inline int drop_tree(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf '%s'", dir);
	return system(command);
}

#endif
