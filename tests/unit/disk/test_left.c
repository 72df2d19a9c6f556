/* SPDX-License-Identifier: Apache-2.0 */
/* Paths that leave service, and what is written at the start. */
#include "tests/unit/disk/store_world.h"

#include <string.h>

#include "numa/clock.h"

static void step(void)
{
	store_step(&world.store, clock_now_ns());
}

static void a_path_file_that_cannot_be_written_takes_the_path_out_and_names_the_error(void **state)
{
	struct sim *sim = sim_new(SEGMENTS, UNITS, &rng);

	sim->fail_write = -28;
	assert_int_equal(world_open(&world, &sim, 1, &rng), -19);
	assert_non_null(strstr(world.store.path[0].report.reason, "path file"));
	assert_non_null(strstr(world.store.path[0].report.reason, "No space left on device"));
	world_close(&world);
}

static void paths_come_and_go_with_their_pages(void **state)
{
	open_new(2);
	fill(40);
	path_fail(&world.store.path[1], "the test says so");
	restart(-1);
	assert_int_equal(hits(40), 40);
	restart(1);
	assert_in_range(hits(40), 10, 30);
	world_close(&world);
}

/* Those in its queue and in its blocks: another path takes them. */
static void keys_of_a_path_that_leaves_can_be_written_again(void **state)
{
	enum { PAGES = 60 };
	static struct disk_request request[PAGES];
	unsigned ended = 0, offline = 0;

	open_new(2);
	for (uint32_t i = PAGES; i < PAGES + 8; i++) /* both have an open segment */
		assert_int_equal(world_write(&world, i, 1), DISK_OK);
	for (uint32_t i = 0; i < PAGES; i++) {
		request[i] = (struct disk_request){
			.op = DISK_WRITE, .key = page_key_of(i), .length = page_length(i, 1)};
		request[i].data =
			aligned_alloc(PAGE_UNIT, disk_units(request[i].length) * PAGE_UNIT);
		assert_non_null(request[i].data);
		page_fill(request[i].data, i, 1);
		store_submit(&world.store, &request[i]);
		if (i == PAGES / 2)
			step();
	}
	assert_true(world.store.path[1].block[0].busy);
	assert_false(STAILQ_EMPTY(&world.store.path[1].writes));
	path_fail(&world.store.path[1], "the test says so");
	assert_int_equal(world.store.path[1].report.queued_bytes, 0);
	while (ended < PAGES) {
		const struct disk_request *r = STAILQ_FIRST(&world.store.finished);

		if (!r) {
			world_turn(&world);
			continue;
		}
		STAILQ_REMOVE_HEAD(&world.store.finished, next);
		ended++;
		offline += r->status == DISK_OFFLINE;
	}
	assert_in_range(offline, PAGES / 4, PAGES - 1);
	for (uint32_t i = 0; i < PAGES; i++) {
		assert_int_equal(world_write(&world, i, 1),
			request[i].status == DISK_OFFLINE ? DISK_OK : DISK_EXISTS);
		free(request[i].data);
	}
	world_close(&world);
}

/* It is written when its block was begun before, and then its tombstone keeps it away. */
static void a_page_that_is_forgotten_while_it_is_written_is_not_found(void **state)
{
	for (unsigned begun = 0; begun < 2; begun++) {
		struct disk_request write = {.op = DISK_WRITE, .key = page_key_of(1)};
		bool found;

		open_new(1);
		fill(1);
		write.length = page_length(1, 1);
		write.data = aligned_alloc(PAGE_UNIT, disk_units(write.length) * PAGE_UNIT);
		assert_non_null(write.data);
		page_fill(write.data, 1, 1);
		store_submit(&world.store, &write);
		if (begun)
			step();
		assert_int_equal(world.store.path[0].block[0].busy, begun);
		disk_write_forget(&write);
		assert_false(world_forget(&world, 1));
		while (STAILQ_EMPTY(&world.store.finished))
			world_turn(&world);
		assert_int_equal(write.status, DISK_EXISTS);
		assert_int_equal(world.store.path[0].report.pages_written, 1 + begun);
		assert_int_equal(world_read(&world, 1, &found), 0);
		assert_false(found);
		for (unsigned i = 0; i < BUSY_CHAINS; i++)
			assert_true(LIST_EMPTY(&world.store.busy[i]));
		world_settle(&world);
		restart(-1);
		assert_int_equal(hits(2), 1);
		free(write.data);
		world_close(&world);
	}
}

/* They are written with the next pages, or alone after a while, on any path. */
static void forgotten_pages_stay_away_after_a_kill(void **state)
{
	for (unsigned alone = 0; alone < 2; alone++) {
		open_new(2);
		fill(40);
		for (uint32_t i = 0; i < 40; i += 4)
			assert_true(world_forget(&world, i));
		if (alone)
			world_settle(&world);
		else
			assert_int_equal(world_write(&world, 0, 2), DISK_OK);
		restart(-1);
		assert_int_equal(hits(40), 30);
		/* the tombstones stay where they are */
		restart(-1);
		assert_int_equal(hits(40), 30);
		assert_int_equal(world.store.index.pages, 31 - alone);
		world_close(&world);
	}
}

/* The newest one is filled further: a restart costs no room. */
static void segments_that_are_open_go_on_after_a_restart(void **state)
{
	struct store_path *path = &world.store.path[0];
	uint32_t active;

	open_new(1);
	for (uint32_t i = 0; i < 40; i++) {
		assert_int_equal(world_write(&world, i, 1), DISK_OK);
		active = path->active;
		restart(-1);
		assert_int_equal(path->active, active);
		assert_int_equal(hits(i + 1), i + 1);
		assert_int_equal(path->report.pages_recovered, i + 1);
	}
	assert_int_equal(path->report.recycled, 0);
	world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup(name, setup)
		T(paths_come_and_go_with_their_pages),
		T(a_path_file_that_cannot_be_written_takes_the_path_out_and_names_the_error),
		T(keys_of_a_path_that_leaves_can_be_written_again),
		T(a_page_that_is_forgotten_while_it_is_written_is_not_found),
		T(forgotten_pages_stay_away_after_a_kill),
		T(segments_that_are_open_go_on_after_a_restart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
