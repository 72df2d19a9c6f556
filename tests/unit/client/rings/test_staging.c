/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The allocator of staging. Blocks of any size, freed in any order, lie inside the region and never
 * overlap, and all freed space is used again. Each test prints its seed; $SEED repeats a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/clock.h"
#include "engine/client/constants.h"
#include "engine/client/rings/staging.h"

#define HELD_MAX 256u
#define STAGING_BYTES (8u << 20)
#define STAGING_PAGE_MAX (STAGING_BYTES - SCRATCH_BYTES)

struct held {
	uint32_t block, from, bytes;
};

static struct staging *staging;
static struct held held[HELD_MAX]; /* blocks in use, oldest first */
static uint32_t holding;
static uint64_t dice;

static int setup(void **state)
{
	const char *seed = getenv("SEED");

	dice = seed ? strtoull(seed, NULL, 0) : (uint64_t)clock_monotonic_ns();
	print_message("SEED=%llu\n", (unsigned long long)dice);
	staging = calloc(1, sizeof(*staging));
	assert_non_null(staging);
	/* Tests check offsets and lengths of blocks and never access their memory. */
	staging_init(staging, NULL, STAGING_BYTES, 100);
	holding = 0;
	return 0;
}

static int teardown(void **state)
{
	free(staging);
	return 0;
}

static uint32_t roll(uint32_t below)
{
	dice += 0x9e3779b97f4a7c15ull;
	return (uint32_t)(map_mix(dice) >> 16) % below;
}

/*
 * Takes a block and checks that it lies in the region and overlaps no other block. False: no room.
 */
static bool take(uint32_t bytes)
{
	uint32_t block, from;

	if (holding == HELD_MAX)
		return false;
	block = staging_take(staging, bytes);
	if (block == CLIENT_NONE)
		return false;
	from = staging_offset(staging, block);
	if (from < SCRATCH_BYTES || from > STAGING_BYTES || bytes > STAGING_BYTES - from)
		fail_msg("%u bytes at %u: outside of %u to %u", bytes, from, SCRATCH_BYTES,
			STAGING_BYTES);
	for (uint32_t k = 0; k < holding; k++)
		if (from < held[k].from + held[k].bytes && held[k].from < from + bytes)
			fail_msg("%u bytes at %u overlap %u bytes at %u", bytes, from,
				held[k].bytes, held[k].from);
	held[holding++] = (struct held){block, from, bytes};
	return true;
}

static void give(uint32_t k)
{
	staging_free(staging, held[k].block);
	holding--;
	memmove(&held[k], &held[k + 1], (holding - k) * sizeof(held[0]));
}

/* Takes and frees blocks as a client that reads batches of equal pages, answered in order. */
static void run_batches(uint32_t bytes, uint32_t batch, uint32_t turns)
{
	for (uint32_t n = 0; n < turns; n++) {
		for (uint32_t k = 0; k < batch; k++) {
			while (!take(bytes)) {
				assert_true(holding > 0);
				give(0);
			}
		}
		/* Every third batch leaves some blocks in use for the next one. */
		while (holding > (n % 3 ? batch / 3 : 0))
			give(0);
	}
	while (holding)
		give(0);
}

static void every_size_and_batch_stays_inside_the_region(void **state)
{
	static const uint32_t sizes[] = {1, 63, 64, 65, 576, 4096, 8192, 16384, 20480, 36864, 65536,
		73728, 131072, 262144, 524288, 1u << 20, STAGING_PAGE_MAX / 2,
		STAGING_PAGE_MAX / 3 & ~63u, STAGING_PAGE_MAX};

	for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
		for (uint32_t batch = 1; batch <= 128; batch *= 2)
			run_batches(sizes[s], batch, 80);
}

/* The blocks fill the region exactly: the last one before the wrap ends at the region's end. */
static void a_region_filled_to_its_end_continues_at_its_front(void **state)
{
	const uint32_t bytes = 4096, blocks = STAGING_PAGE_MAX / bytes;

	assert_int_equal(STAGING_PAGE_MAX % bytes, 0);
	for (uint32_t k = 0; k < blocks; k++) {
		assert_true(take(bytes));
		if (k > 0)
			/* One block stays in use: an empty allocator starts at its front. */
			give(0);
	}
	assert_int_equal(held[0].from + bytes, STAGING_BYTES);
	assert_true(take(bytes));
	assert_int_equal(held[1].from, SCRATCH_BYTES);
}

static uint32_t any_size(void)
{
	switch (roll(4)) {
	case 0: return 1 + roll(STAGING_PAGE_MAX);
	case 1: /* a block that just fits between the tail and the region's end, or just not */
		return 1 +
		       (STAGING_BYTES - staging->tail + roll(3) * 64 + roll(2)) % STAGING_PAGE_MAX;
	case 2: return PAGE_UNIT << roll(8);
	default: return 1 + roll(300000);
	}
}

static void blocks_of_any_size_freed_in_any_order_never_overlap(void **state)
{
	uint32_t taken = 0;

	for (unsigned turn = 0; turn < 300000; turn++) {
		if (holding && roll(2))
			give(roll(4) ? 0 : roll(holding));
		else
			taken += take(any_size());
	}
	assert_true(taken > 10000);
}

static void all_freed_space_is_reclaimed(void **state)
{
	for (unsigned turn = 0; turn < 2000; turn++) {
		while (take(any_size()))
			continue;
		while (holding)
			give(roll(holding));
		assert_true(take(STAGING_PAGE_MAX));
		assert_false(take(1));
		give(0);
	}
	assert_false(take(STAGING_PAGE_MAX + 1));
	assert_false(take(UINT32_MAX));
}

static void every_scratch_slot_is_taken_once(void **state)
{
	static bool given[SCRATCH_SLOTS];

	for (unsigned k = 0; k < SCRATCH_SLOTS; k++) {
		uint32_t slot = scratch_take(staging, 1);

		assert_true(slot < SCRATCH_SLOTS && !given[slot]);
		given[slot] = true;
	}
	assert_int_equal(scratch_take(staging, 1), CLIENT_NONE);
	scratch_free(staging, 17, 1);
	assert_int_equal(scratch_take(staging, 1), 17);
}

#define STAGING_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		STAGING_TEST(every_size_and_batch_stays_inside_the_region),
		STAGING_TEST(a_region_filled_to_its_end_continues_at_its_front),
		STAGING_TEST(blocks_of_any_size_freed_in_any_order_never_overlap),
		STAGING_TEST(all_freed_space_is_reclaimed),
		STAGING_TEST(every_scratch_slot_is_taken_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
