/* SPDX-License-Identifier: Apache-2.0 */
/* The start over one or two simulated devices: how much it can hold, and when it gives up. */
#include "engine/disk/recover.c"

#include "tests/unit/disk/store_world.h"

static void the_table_of_removals_has_twice_their_number_or_is_refused(void **state)
{
	(void)state;
	assert_int_equal(removals_room(0), 16);
	assert_int_equal(removals_room(8), 16);
	assert_int_equal(removals_room(9), 32);
	assert_int_equal(removals_room(REMOVALS_MAX), 2 * (uint64_t)REMOVALS_MAX);
	assert_int_equal(removals_room(REMOVALS_MAX + UINT64_C(1)), 0);
	assert_int_equal(removals_room(UINT64_MAX), 0);
}

/* Damages the last two units of all segments: none is known to be sealed. */
static void unseal_all(struct sim *sim)
{
	for (uint32_t s = 0; s < SEGMENTS; s++)
		for (uint32_t unit = UNITS - 2; unit < UNITS; unit++)
			sim_bytes(sim, s, unit)[0] ^= 1;
}

/* Path 0 is recovered first; the opening of its next segment is in flight and has no answer. */
static void a_path_without_room_leaves_service_whatever_another_one_does(void **state)
{
	struct sim *sim[2];

	(void)state;
	open_new(2);
	for (uint32_t i = 0; !world.store.path[1].report.recycled; i++)
		assert_int_equal(world_write(&world, i, 1), DISK_OK);
	for (unsigned i = 0; i < 2; i++)
		sim[i] = sim_copy(world.sim[i]);
	unseal_all(sim[1]);
	world_close(&world);
	assert_int_equal(world_open(&world, sim, 2, &rng), 0);
	assert_non_null(strstr(world.store.path[1].report.reason, "has no room to recover"));
	assert_int_equal(world.store.path[0].report.state, DISK_PATH_IN_SERVICE);
	world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(
			the_table_of_removals_has_twice_their_number_or_is_refused, setup),
		cmocka_unit_test_setup(
			a_path_without_room_leaves_service_whatever_another_one_does, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
