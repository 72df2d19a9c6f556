/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock of the pools in tests, and the calls that read it with the time as an argument. A
 * returned or retired slot rests from that time on.
 */
#ifndef TEST_POOL_CLOCK_H
#define TEST_POOL_CLOCK_H

#include "engine/control/pages/pages_inner.h"

static uint64_t pool_time_ns;

static inline uint64_t pool_time(void)
{
	return pool_time_ns;
}

static inline int take_at(struct pool *pool, uint32_t page_bytes, uint64_t ns, uint32_t *ret_place,
	uint32_t *ret_generation)
{
	pool_time_ns = ns;
	return pool_take(pool, page_bytes, ret_place, ret_generation);
}

static inline int return_at(struct pool *pool, uint32_t place, uint32_t generation, uint64_t ns)
{
	int rc = pool_return(pool, place, generation);

	pool_time_ns = ns;
	pool_rest(pool);
	return rc;
}

static inline int retire_at(struct pool *pool, uint32_t place, uint32_t generation, uint64_t ns)
{
	int rc = pool_retire(pool, place, generation);

	pool_time_ns = ns;
	pool_rest(pool);
	return rc;
}

#endif
