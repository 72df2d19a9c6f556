/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common setup of the tests of runs: COUNT pages whose destinations lie behind each other, and a
 * seed, which setup() prints; $SEED repeats one. TEST(f) runs a test with them. Nothing below is
 * needed by every test.
 */
#ifndef TESTS_CLIENT_RUN_RIG_H
#define TESTS_CLIENT_RUN_RIG_H

#include "config/clock.h"
#include "tests/unit/client/rig.h"

#define COUNT 32u
#define BYTES 20480u

static struct one one[COUNT];
static struct pc_page page[COUNT];
static enum pc_result result[COUNT];
static unsigned char *memory;
static uint32_t place[COUNT];
static uint64_t dice;

static inline void hook(fake_op_hook *op, fake_run_hook *run)
{
	fake_lock(&fake);
	fake.on_op = op;
	fake.on_run = run;
	fake_unlock(&fake);
}

static inline uint32_t roll(uint32_t below)
{
	dice += 0x9e3779b97f4a7c15ull;
	return (uint32_t)(map_mix(dice) >> 16) % below;
}

static int setup(void **state)
{
	const char *seed = getenv("SEED");
	void *at;

	dice = seed ? strtoull(seed, NULL, 0) : clock_monotonic_ns();
	print_message("SEED=%llu\n", (unsigned long long)dice);
	rig_setup(state);
	assert_int_equal(pc_memory_alloc(pc, COUNT * BYTES, &at), 0);
	memory = at;
	for (unsigned i = 0; i < COUNT; i++) {
		char name[FAKE_NAME_BYTES];

		snprintf(name, sizeof(name), "page-%u-%c", i, 'a' + (int)(i % 26));
		page[i] = *one_page(&one[i], name, memory + i * BYTES, BYTES);
	}
	return 0;
}

static inline void store(uint32_t rails)
{
	for (unsigned i = 0; i < COUNT; i++)
		place[i] = fake_page(&fake, one[i].name, FAKE_A, i % rails, BYTES);
}

static inline void get_all(void)
{
	memset(memory, 0xee, COUNT * BYTES);
	assert_int_equal(pc_get(ch, page, COUNT, PATIENCE_MS, result), 0);
}

static inline void all_are_hits(void)
{
	for (unsigned i = 0; i < COUNT; i++) {
		assert_int_equal(result[i], PC_HIT);
		assert_true(same(one[i].name, memory + i * BYTES, 0, BYTES));
	}
}

/* Makes the channel remember the locations, so that a get plans all pages at once. */
static inline void look_up_all(void)
{
	assert_int_equal(pc_exists(ch, page, COUNT, PATIENCE_MS, result), 0);
}

static inline uint32_t hold_pages(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->kind == OP_PAGE ? FAKE_HOLD : FAKE_DO;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, rig_teardown)

#endif
