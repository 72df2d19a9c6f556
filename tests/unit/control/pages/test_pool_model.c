/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool under random calls, with valid and with invalid arguments, compared with a model of what
 * was handed out: no unit has two owners, no slot is reused before limbo ends, and no retired page
 * ever validates again.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/control/pages/pool_clock.h"

#define RAIL 5u
#define BYTES (8u << 20)
#define UNITS (BYTES / PAGE_UNIT)
#define LIMBO_NS 50u
#define GONE 4096u /* number of retired pages that are remembered and checked repeatedly */
#define STEPS 300000u

enum state { NOTHING, CREDIT, PAGE, LIMBO };

struct dir_target {
	enum state state;
	uint32_t units, generation, length;
	uint64_t until_ns;
	struct page_key key;
};

struct gone {
	struct page_key key;
	uint32_t place, generation, length;
};

struct model {
	struct pool *pool;
	uint64_t random, now_ns;
	struct dir_target at[UNITS]; /* the model's slots, indexed by their first unit */
	struct gone gone[GONE];
	uint64_t retired, taken, pages, limbo, refused;
};

static uint64_t random_next(struct model *m)
{
	m->random ^= m->random << 13;
	m->random ^= m->random >> 7;
	m->random ^= m->random << 17;
	return m->random;
}

static uint32_t any(struct model *m, uint32_t below)
{
	return (uint32_t)(random_next(m) % below);
}

/*
 * Checks that no other slot has a unit of the new slot, and that limbo has ended for earlier slots.
 */
static void check_unowned(struct model *m, uint32_t unit, uint32_t units)
{
	for (uint32_t first = 0; first < UNITS; first++) {
		struct dir_target *item = &m->at[first];

		if (item->state == NOTHING || first >= unit + units || first + item->units <= unit)
			continue;
		assert_int_equal(item->state, LIMBO);
		assert_true(m->now_ns >= item->until_ns);
	}
}

/*
 * In the pool, slots whose limbo has ended become free only in pool_take(); the model does the same
 * here.
 */
static void expire(struct model *m)
{
	for (uint32_t unit = 0; unit < UNITS; unit++)
		if (m->at[unit].state == LIMBO && m->at[unit].until_ns <= m->now_ns)
			m->at[unit].state = NOTHING;
}

static void retire_all_of(struct model *m, const struct pool_victim *victim, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct dir_target *item = &m->at[place_unit(victim[i].place)];

		/*
		 * Fails for a victim that was named twice: after the first time its state is LIMBO.
		 */
		assert_int_equal(item->state, PAGE);
		assert_true(page_key_equal(&item->key, &victim[i].key));
		assert_int_equal(item->generation, victim[i].generation);
		assert_int_equal(item->length, victim[i].length);
		assert_int_equal(
			retire_at(m->pool, victim[i].place, item->generation, m->now_ns), 0);
		m->gone[m->retired++ % GONE] =
			(struct gone){item->key, victim[i].place, item->generation, item->length};
		item->state = LIMBO;
		item->until_ns = m->now_ns + LIMBO_NS;
		m->pages--;
	}
}

static void step_take(struct model *m, uint32_t sizes)
{
	static const uint32_t units[] = {1, 2, 3, 7, 16, 100, 256, 512};
	uint32_t want = units[any(m, sizes)], place, generation, free;
	uint32_t bytes = want * PAGE_UNIT - any(m, PAGE_UNIT);
	struct pool_victim victim[40];
	int rc;

	if (want * (uint64_t)PAGE_UNIT > pool_page_bytes_max(m->pool))
		return;
	free = pool_free(m->pool, bytes);
	rc = take_at(m->pool, bytes, m->now_ns, &place, &generation);
	if (rc == -ENOSPC) {
		assert_int_equal(free, 0);
		m->refused++;
		retire_all_of(
			m, victim, pool_victims(m->pool, bytes, false, 1 + any(m, 40), victim));
		return;
	}
	assert_int_equal(rc, 0);
	assert_int_equal(place_rail(place), RAIL);
	assert_true(place_unit(place) + want <= UNITS);
	check_unowned(m, place_unit(place), want);
	expire(m);
	m->at[place_unit(place)] =
		(struct dir_target){.state = CREDIT, .units = want, .generation = generation};
	m->taken++;
}

static void step_use_credit(struct model *m, uint32_t unit)
{
	struct dir_target *item = &m->at[unit];
	uint32_t place = place_make(RAIL, unit);

	if (item->state != CREDIT)
		return;
	if (any(m, 8) == 0) {
		assert_int_equal(return_at(m->pool, place, item->generation, m->now_ns), 0);
		item->state = LIMBO;
		item->until_ns = m->now_ns + LIMBO_NS;
		return;
	}
	item->key = (struct page_key){{random_next(m), random_next(m)}};
	item->length = 1 + any(m, item->units * PAGE_UNIT);
	assert_int_equal(
		pool_publish(m->pool, place, item->generation, &item->key, item->length), 0);
	item->state = PAGE;
	m->pages++;
}

/*
 * Calls with a random place and a small generation: what the model does not have must be refused.
 */
static void step_lie(struct model *m)
{
	uint32_t unit = any(m, UNITS + 64), place = place_make(any(m, 8) ? RAIL : any(m, 16), unit);
	struct dir_target *item = place_rail(place) == RAIL && unit < UNITS ? &m->at[unit] : NULL;
	uint32_t generation = item && any(m, 2) ? item->generation : any(m, 6);
	bool right = item && item->generation == generation;
	struct page_key key = {{1, random_next(m)}};
	int rc = -EINVAL;

	pool_touch(m->pool, place);
	if (!right || item->state != CREDIT)
		rc = any(m, 2) ? return_at(m->pool, place, generation, m->now_ns)
			       : pool_publish(m->pool, place, generation, &key, 1);
	assert_int_equal(rc, -EINVAL);
	if (!right || item->state != PAGE)
		rc = retire_at(m->pool, place, generation, m->now_ns);
	assert_int_equal(rc, -EINVAL);
}

static void check_all(struct model *m)
{
	const struct page_head *heads = pool_heads(m->pool)->base;
	uint64_t pages = 0;

	for (uint32_t unit = 0; unit < UNITS; unit++) {
		struct dir_target *item = &m->at[unit];
		struct page_head head = page_head_load(&heads[unit]);

		if (item->state == PAGE)
			assert_true(
				page_head_is(&head, &item->key, item->generation, item->length));
		else
			assert_int_equal(head.key.word[0] | head.key.word[1] | head.length, 0);
		pages += item->state == PAGE;
	}
	assert_int_equal(pages, m->pages);
	assert_int_equal(pages, pool_pages(m->pool));
	for (uint32_t i = 0; i < GONE && i < m->retired; i++) {
		struct gone *gone = &m->gone[i];
		struct page_head head = page_head_load(&heads[place_unit(gone->place)]);

		assert_false(page_head_is(&head, &gone->key, gone->generation, gone->length));
		assert_true(head.generation > gone->generation);
	}
}

/* Returns every credit, retires every page and checks that the pool is as empty as a new one. */
static void check_drained(struct model *m)
{
	uint32_t place, generation, all = BYTES / (uint32_t)pool_page_bytes_max(m->pool);

	for (uint32_t unit = 0; unit < UNITS; unit++) {
		struct dir_target *item = &m->at[unit];

		if (item->state == CREDIT)
			assert_int_equal(return_at(m->pool, place_make(RAIL, unit),
						 item->generation, m->now_ns),
				0);
		if (item->state == PAGE)
			assert_int_equal(retire_at(m->pool, place_make(RAIL, unit),
						 item->generation, m->now_ns),
				0);
	}
	/*
	 * A chunk that was drained may be reserved for another page size, so a pool_take() that
	 * fails is tried again, once.
	 */
	for (uint32_t i = 0, failed = 0; i < all; i++) {
		m->now_ns += 10000000000ull;
		if (take_at(m->pool, (uint32_t)pool_page_bytes_max(m->pool), m->now_ns, &place,
			    &generation) == 0) {
			failed = 0;
			continue;
		}
		assert_int_equal(failed++, 0);
		i--;
	}
	assert_int_equal(pool_limbo(m->pool), 0);
	assert_int_equal(pool_pages(m->pool), 0);
}

static void random_calls_agree_with_a_model(void **state)
{
	struct pool_options options = {.rail = RAIL,
		.bytes = BYTES,
		.numa_node = -1,
		.limbo_ns = LIMBO_NS,
		.clock_ns = pool_time};
	struct model *m = calloc(1, sizeof(*m));
	const char *seed = getenv("SEED");
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	m->random = seed ? strtoull(seed, NULL, 0) : (uint64_t)now.tv_nsec + 1;
	print_message("SEED=%llu\n", (unsigned long long)m->random);
	assert_int_equal(pool_open(&options, &m->pool), 0);
	for (uint32_t step = 1; step <= STEPS; step++) {
		uint32_t what = any(m, 100), sizes = step / 30000 % 2 ? 3 : 8;

		/*
		 * The test's time stands still, advances a little, or jumps past the end of a
		 * reservation.
		 */
		m->now_ns += any(m, 1000) ? any(m, 4) : 1500000000;
		if (what < 40)
			step_take(m, sizes);
		else if (what < 80)
			for (unsigned i = 0; i < 20; i++)
				step_use_credit(m, any(m, UNITS));
		else
			step_lie(m);
		if (step % 1000 == 0)
			check_all(m);
	}
	print_message("%llu taken, %llu retired, %llu refused\n", (unsigned long long)m->taken,
		(unsigned long long)m->retired, (unsigned long long)m->refused);
	assert_true(m->taken > 1000 && m->retired > 1000 && m->refused > 100);
	check_drained(m);
	pool_close(m->pool);
	free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_calls_agree_with_a_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
