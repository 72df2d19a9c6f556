/* SPDX-License-Identifier: Apache-2.0 */
/* A store over one or two simulated devices, for tests of what it keeps over a restart. */
#ifndef TESTS_STORE_WORLD_H
#define TESTS_STORE_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "config/log.h"
#include "tests/disk/world.h"

#define SEGMENTS 8u
#define UNITS 32u

static struct world world;
static uint64_t rng;

static inline int setup(void **state)
{
	rng = 42;
	log_level_set(LOG_ERROR);
	return 0;
}

static inline void open_new(unsigned paths)
{
	struct sim *sim[WORLD_PATHS_MAX];

	for (unsigned i = 0; i < paths; i++)
		sim[i] = sim_new(SEGMENTS, UNITS, &rng);
	assert_int_equal(world_open(&world, sim, paths, &rng), 0);
}

/* Ends the engine without a crash of the machine; `skip`: a path that is absent, or -1. */
static inline void restart(int skip)
{
	struct sim *sim[WORLD_PATHS_MAX], *kept[WORLD_PATHS_MAX];
	unsigned paths = world.paths, count = 0;

	for (unsigned i = 0; i < paths; i++)
		kept[i] = sim_copy(world.sim[i]);
	world_close(&world);
	for (unsigned i = 0; i < paths; i++)
		if ((int)i == skip)
			sim_free(kept[i]);
		else
			sim[count++] = kept[i];
	assert_int_equal(world_open(&world, sim, count, &rng), 0);
}

/* Writes pages until some are in sealed segments; returns how many. */
static inline uint32_t fill(uint32_t pages)
{
	for (uint32_t i = 0; i < pages; i++)
		assert_int_equal(world_write(&world, i, 1), DISK_OK);
	for (unsigned i = 0; i < 200; i++)
		world_turn(&world);
	return pages;
}

static inline unsigned hits(uint32_t pages)
{
	unsigned hits = 0;

	for (uint32_t i = 0; i < pages; i++) {
		bool found;
		uint32_t version = world_read(&world, i, &found);

		assert_int_not_equal(version, UINT32_MAX);
		hits += version == 1;
	}
	return hits;
}

#endif
