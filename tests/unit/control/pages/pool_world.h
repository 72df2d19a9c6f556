/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the eviction tests: a pool, a clock that the test sets, and pages. */
#ifndef TEST_POOL_WORLD_H
#define TEST_POOL_WORLD_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "tests/unit/control/pages/pool_clock.h"

#define MIB (1u << 20)
#define LIMBO_NS 1000u
#define SECOND_NS 1000000000ull

static uint64_t now_ns;

static inline int start(void **state)
{
	now_ns = 0;
	return 0;
}

static inline struct pool *pool_new(uint64_t bytes)
{
	struct pool_options options = {
		.bytes = bytes, .numa_node = -1, .limbo_ns = LIMBO_NS, .clock_ns = pool_time};
	struct pool *pool;

	assert_int_equal(pool_open(&options, &pool), 0);
	return pool;
}

/* Publishes a page with the key {n, 1}. Returns false when there is no free slot. */
static inline bool page_new(struct pool *pool, uint32_t bytes, uint64_t n, uint32_t *ret_place)
{
	struct page_key key = {{n, 1}};
	uint32_t place, generation;

	if (take_at(pool, bytes, now_ns, &place, &generation) != 0)
		return false;
	assert_int_equal(pool_publish(pool, place, generation, &key, bytes), 0);
	if (ret_place)
		*ret_place = place;
	return true;
}

static inline void fill(struct pool *pool, uint32_t bytes)
{
	uint64_t n = 1;

	while (page_new(pool, bytes, n, NULL))
		n++;
}

static inline void retire(struct pool *pool, const struct pool_victim *victim)
{
	assert_int_equal(retire_at(pool, victim->place, victim->generation, now_ns), 0);
}

#endif
