/* SPDX-License-Identifier: Apache-2.0 */
/* keeper.h. One thread. */
#include "tests/sim/keeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/keeper/service.h"
#include "tests/sim/world.h"

struct stored {
	LIST_ENTRY(stored) next;
	char name[32];
	int fd;
	bool given; /* by number, to the process that runs */
	void *map;  /* NULL: not mapped yet */
	size_t bytes;
};

static LIST_HEAD(, stored) of_node[SIM_NODES_MAX];

static struct stored *find(unsigned node, const char *name)
{
	struct stored *stored;

	LIST_FOREACH (stored, &of_node[node], next)
		if (strcmp(stored->name, name) == 0)
			return stored;
	return NULL;
}

static void drop(struct stored *stored)
{
	LIST_REMOVE(stored, next);
	if (stored->map)
		munmap(stored->map, stored->bytes);
	close(stored->fd);
	free(stored);
}

void keeper_drop(unsigned node)
{
	while (!LIST_EMPTY(&of_node[node]))
		drop(LIST_FIRST(&of_node[node]));
}

const void *keeper_memory(unsigned node, const char *name, unsigned rail, size_t *ret_bytes)
{
	struct stored *stored;
	char of_rail[32];
	struct stat st;

	snprintf(of_rail, sizeof(of_rail), "%s-%u", name, rail);
	stored = find(node, of_rail);
	if (!stored)
		return NULL;
	if (!stored->map) {
		if (fstat(stored->fd, &st) < 0)
			abort();
		stored->bytes = (size_t)st.st_size;
		stored->map = mmap(NULL, stored->bytes, PROT_READ, MAP_SHARED, stored->fd, 0);
		if (stored->map == MAP_FAILED)
			abort();
	}
	*ret_bytes = stored->bytes;
	return stored->map;
}

void keeper_start(unsigned node)
{
	struct stored *stored;

	LIST_FOREACH (stored, &of_node[node], next)
		stored->given = false;
}

void keeper_close(void)
{
	for (unsigned i = 0; i < SIM_NODES_MAX; i++)
		keeper_drop(i);
}

/* ---- service.h ------------------------------------------------------------------------------- */

bool service_stores(void)
{
	return world.keeper;
}

void service_store(const char *name, int fd)
{
	struct stored *stored = calloc(1, sizeof(*stored));

	if (!stored)
		abort();
	snprintf(stored->name, sizeof(stored->name), "%s", name);
	stored->fd = dup(fd);
	if (stored->fd < 0)
		abort();
	LIST_INSERT_HEAD(&of_node[world.current], stored, next);
}

void service_unstore(const char *name)
{
	struct stored *stored = find(world.current, name);

	if (stored)
		drop(stored);
}

int service_stored(const char *name)
{
	const struct stored *stored = find(world.current, name);

	return stored ? dup(stored->fd) : -1;
}

static bool number_read(const char *name, const char *prefix, uint32_t *ret_number)
{
	size_t bytes = strlen(prefix);
	char *end;

	if (strncmp(name, prefix, bytes))
		return false;
	*ret_number = (uint32_t)strtoul(name + bytes, &end, 10);
	return end != name + bytes && !*end;
}

int service_stored_number(const char *prefix, uint32_t *ret_number)
{
	struct stored *stored;

	LIST_FOREACH (stored, &of_node[world.current], next) {
		if (stored->given || !number_read(stored->name, prefix, ret_number))
			continue;
		stored->given = true;
		return dup(stored->fd);
	}
	return -1;
}

int service_barrier(unsigned timeout_ms)
{
	(void)timeout_ms;
	return 0;
}

uint64_t service_alive_ns(void)
{
	return 0;
}

void service_alive(void)
{
}
