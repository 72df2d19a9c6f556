/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What leases of readers need from a pool: L passes between the last moment at which a reader can
 * see the old generation of a slot and the moment at which the slot is handed out. The owner may be
 * stopped anywhere, also right before and right after it reads the clock.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "numa/clock.h"
#include "tests/unit/control/pages/pool_clock.h"

#define MIB (1u << 20)
#define L 1000u
#define SLOTS 4u /* pages of 1 MiB in the smallest pool */
#define ROUNDS 20000u

static struct {
	struct pool *pool;
	uint64_t random;
	uint32_t place[SLOTS], generation[SLOTS];
	/* the last time at which a reader could find the generation that the slot had as a page */
	uint64_t seen_ns[SLOTS];
	unsigned slots, readings;
	bool stops; /* the owner is stopped for a random time around each reading of the clock */
} w;

static uint64_t any(uint64_t below)
{
	w.random ^= w.random << 13;
	w.random ^= w.random >> 7;
	w.random ^= w.random << 17;
	return w.random % below;
}

static uint32_t head_generation(uint32_t place)
{
	const struct page_head *heads = pool_heads(w.pool)->base;

	return page_head_load(&heads[place_unit(place)]).generation;
}

/* Readers sample all heads now. */
static void look(void)
{
	for (unsigned i = 0; i < w.slots; i++)
		if (head_generation(w.place[i]) == w.generation[i])
			w.seen_ns[i] = pool_time_ns;
}

static void stop(void)
{
	look();
	pool_time_ns += any(2) ? any(3 * L) : 0;
	look();
}

static uint64_t clock_with_stops(void)
{
	uint64_t ns;

	w.readings++;
	if (w.stops)
		stop();
	ns = pool_time_ns;
	if (w.stops)
		stop();
	return ns;
}

static void world_open(uint64_t seed)
{
	const struct pool_options options = {
		.bytes = 4 * MIB, .numa_node = -1, .limbo_ns = L, .clock_ns = clock_with_stops};

	w.random = seed;
	w.slots = w.readings = 0;
	w.stops = false;
	pool_time_ns = 1000000;
	assert_int_equal(pool_open(&options, &w.pool), 0);
}

/* Takes a slot of `bytes`, and makes a page of it unless it is to stay a credit. */
static void slot_new(uint32_t bytes, bool page)
{
	unsigned i = w.slots++;

	assert_int_equal(pool_take(w.pool, bytes, &w.place[i], &w.generation[i]), 0);
	if (page)
		assert_int_equal(pool_publish(w.pool, w.place[i], w.generation[i],
					 &(struct page_key){{i + 1, 1}}, bytes),
			0);
}

static void slot_end(unsigned i, bool page)
{
	assert_int_equal(page ? pool_retire(w.pool, w.place[i], w.generation[i])
			      : pool_return(w.pool, w.place[i], w.generation[i]),
		0);
}

static void the_clock_is_read_once_after_all_generations_have_changed(void **state)
{
	for (unsigned slots = 1; slots <= SLOTS; slots++) {
		for (unsigned page = 0; page < 2; page++) {
			world_open(1);
			for (unsigned i = 0; i < slots; i++)
				slot_new(MIB, page);
			w.stops = true;
			w.readings = 0;
			for (unsigned i = 0; i < slots; i++)
				slot_end(i, page);
			pool_time_ns += 5 * L;
			for (unsigned i = 0; i < slots; i++)
				w.seen_ns[i] = 0;
			pool_rest(w.pool);
			assert_int_equal(w.readings, 1);
			for (unsigned i = 0; i < slots; i++)
				assert_int_equal(w.seen_ns[i], 0);
			pool_rest(w.pool);
			assert_int_equal(w.readings, 1);
			pool_close(w.pool);
		}
	}
}

/* Takes the ended slots again as early as the pool allows and checks the rest of each. */
static void take_again(bool ended[SLOTS], unsigned count)
{
	while (count--) {
		uint32_t place, generation;
		unsigned i = 0;

		while (pool_take(w.pool, MIB, &place, &generation) == -ENOSPC) {
			uint64_t left_ns;

			w.stops = false;
			left_ns = pool_limbo_left_ns(w.pool);
			/* the last nanosecond of limbo, or a time before it */
			pool_time_ns += left_ns > 1 ? (any(2) ? left_ns - 1 : any(left_ns)) : 1;
			w.stops = any(4) == 0;
		}
		while (w.place[i] != place)
			assert_true(++i < SLOTS);
		assert_true(ended[i]);
		ended[i] = false;
		assert_int_not_equal(generation, w.generation[i]);
		assert_true(pool_time_ns - w.seen_ns[i] >= L);
	}
}

static void an_owner_stopped_anywhere_never_shortens_limbo(void **state)
{
	const char *env = getenv("SEED");
	struct timespec now;
	uint64_t seed;

	clock_gettime(CLOCK_MONOTONIC, &now);
	seed = env ? strtoull(env, NULL, 0) : (uint64_t)now.tv_nsec + 1;
	print_message("SEED=%llu\n", (unsigned long long)seed);
	world_open(seed);
	for (unsigned round = 0; round < ROUNDS; round++) {
		bool ended[SLOTS] = {false}, page[SLOTS];
		unsigned count = 0;

		w.slots = 0;
		for (unsigned i = 0; i < SLOTS; i++)
			slot_new(MIB, page[i] = any(2));
		w.stops = true;
		for (unsigned i = 0; i < SLOTS; i++) {
			stop();
			if (any(3) == 0)
				continue;
			slot_end(i, page[i]);
			ended[i] = ++count;
			stop();
			if (any(3) == 0)
				pool_rest(w.pool);
		}
		for (unsigned i = 0; i < SLOTS; i++)
			page[i] = page[i] && !ended[i];
		take_again(ended, count);
		w.stops = false;
		for (unsigned i = 0; i < SLOTS; i++) {
			w.generation[i] = head_generation(w.place[i]);
			slot_end(i, page[i]);
		}
		pool_rest(w.pool);
		pool_time_ns += 2 * L;
	}
	pool_close(w.pool);
}

/* The memory of a free chunk can become one large page: all of its slots have rested. */
static void a_chunk_changes_its_page_size_after_its_last_slot_has_rested(void **state)
{
	uint32_t place, generation, small[1024], number[1024];

	world_open(1);
	for (unsigned i = 0; i < 1024; i++)
		assert_int_equal(pool_take(w.pool, PAGE_UNIT, &small[i], &number[i]), 0);
	for (unsigned i = 0; i < 1024; i++) {
		/* one slot of each chunk ends later than all others */
		if (i % 256 != 77)
			assert_int_equal(pool_return(w.pool, small[i], number[i]), 0);
	}
	pool_rest(w.pool);
	pool_time_ns += 10 * L;
	assert_int_equal(pool_take(w.pool, MIB, &place, &generation), -ENOSPC);
	for (unsigned i = 77; i < 1024; i += 256)
		assert_int_equal(pool_return(w.pool, small[i], number[i]), 0);
	pool_rest(w.pool);
	pool_time_ns += L - 1;
	assert_int_equal(pool_take(w.pool, MIB, &place, &generation), -ENOSPC);
	pool_time_ns += 1;
	assert_int_equal(pool_take(w.pool, MIB, &place, &generation), 0);
	pool_close(w.pool);
}

static void the_first_use_of_a_slot_needs_no_rest(void **state)
{
	uint32_t place, generation;

	world_open(1);
	for (unsigned i = 0; i < SLOTS; i++) {
		assert_int_equal(pool_take(w.pool, MIB, &place, &generation), 0);
		assert_int_equal(generation, 1);
	}
	assert_int_equal(w.readings, 0);
	assert_int_equal(pool_take(w.pool, MIB, &place, &generation), -ENOSPC);
	pool_close(w.pool);
}

static void without_a_clock_of_the_caller_the_pool_uses_the_raw_clock(void **state)
{
	const struct pool_options options = {.bytes = 4 * MIB, .numa_node = -1, .limbo_ns = L};
	struct pool *pool;
	uint32_t place, generation;

	clock_test_set(5000000);
	clock_test_set_raw(1000);
	assert_int_equal(pool_open(&options, &pool), 0);
	assert_int_equal(pool_take(pool, MIB, &place, &generation), 0);
	assert_int_equal(pool_return(pool, place, generation), 0);
	assert_int_equal(pool_limbo_left_ns(pool), L);
	clock_test_set_raw(1000 + L - 1);
	assert_int_equal(pool_limbo_left_ns(pool), 1);
	clock_test_set_raw(1000 + L);
	assert_int_equal(pool_limbo_left_ns(pool), 0);
	pool_close(pool);
	clock_test_set(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_clock_is_read_once_after_all_generations_have_changed),
		cmocka_unit_test(an_owner_stopped_anywhere_never_shortens_limbo),
		cmocka_unit_test(a_chunk_changes_its_page_size_after_its_last_slot_has_rested),
		cmocka_unit_test(the_first_use_of_a_slot_needs_no_rest),
		cmocka_unit_test(without_a_clock_of_the_caller_the_pool_uses_the_raw_clock),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
