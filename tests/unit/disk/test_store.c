/* SPDX-License-Identifier: Apache-2.0 */
/* The segment log over simulated devices: damage and faults. */
#include "tests/unit/disk/store_world.h"

#include <stdio.h>
#include <string.h>

#include "engine/abi/crc32c.h"
#include "numa/clock.h"

static void pages_are_read_back_and_survive_a_restart(void **state)
{
	uint32_t pages;
	bool found;

	open_new(2);
	pages = fill(40);
	assert_int_equal(hits(pages), pages);
	assert_int_equal(world_write(&world, 3, 1), DISK_EXISTS);
	assert_true(world_forget(&world, 3));
	assert_int_equal(world_write(&world, 3, 2), DISK_OK);
	assert_int_equal(hits(pages), pages - 1);
	restart(-1);
	assert_int_equal(hits(pages), pages - 1);
	assert_int_equal(world_read(&world, 3, &found), 2);
	world_close(&world);
}

/* Writes 30 pages at once, every third with a CRC that its bytes do not have. */
static void a_page_with_another_crc_than_its_request_is_not_written(void **state)
{
	enum { PAGES = 30 };
	static struct disk_request request[PAGES];
	unsigned left = PAGES;

	open_new(1);
	for (uint32_t i = 0; i < PAGES; i++) {
		struct disk_request *r = &request[i];

		*r = (struct disk_request){
			.op = DISK_WRITE, .key = page_key_of(i), .length = page_length(i, 1)};
		r->data = aligned_alloc(PAGE_UNIT, disk_units(r->length) * PAGE_UNIT);
		assert_non_null(r->data);
		page_fill(r->data, i, 1);
		r->has_crc = i % 2 == 0 || i % 3 == 0;
		r->crc = r->has_crc ? crc32c(0, r->data, r->length) : 0;
		if (i % 3 == 0)
			((uint8_t *)r->data)[i % r->length] ^= 4;
		store_submit(&world.store, r);
	}
	while (left) {
		const struct disk_request *r = STAILQ_FIRST(&world.store.finished);

		if (!r) {
			world_turn(&world);
			continue;
		}
		STAILQ_REMOVE_HEAD(&world.store.finished, next);
		left--;
		assert_int_equal(r->status, (r - request) % 3 ? DISK_OK : DISK_CORRUPT);
		assert_int_equal(r->crc, crc32c(0, r->data, r->length));
	}
	assert_int_equal(world.store.path[0].report.queued_bytes, 0);
	for (uint32_t i = 0; i < PAGES; i++) {
		bool found;

		assert_int_equal(world_read(&world, i, &found), i % 3 ? 1 : 0);
		free(request[i].data);
	}
	/* the key of a page that was refused is not taken */
	assert_int_equal(world_write(&world, 3, 2), DISK_OK);
	world_close(&world);
}

/* One path: 26 pages, and of 2 and 3 tombstones, in a sealed segment and in the open one. */
static void fill_and_remove(void)
{
	unsigned path;

	open_new(1);
	fill(14);
	assert_true(world_forget(&world, 2));
	world_settle(&world);
	for (uint32_t i = 20; i < 34; i++)
		assert_int_equal(world_write(&world, i, 1), DISK_OK);
	assert_true(world_forget(&world, 3));
	world_settle(&world);
	for (unsigned i = 0; i < 200; i++)
		world_turn(&world);
	assert_true(world_persisted(&world, 0, &path));
}

/* The first segment that is sealed, or the one that is open. */
static uint32_t segment_in(enum segment_state state)
{
	uint32_t s = 0;

	while (s < SEGMENTS && world.store.path[0].segment[s].state != state)
		s++;
	assert_int_not_equal(s, SEGMENTS);
	return s;
}

/*
 * Starts with what is left after a damage, which it frees: what is found has its bytes. Returns how
 * many pages are found, without those that were removed.
 */
static unsigned start_damaged(struct sim *damaged, uint32_t segment, uint32_t unit)
{
	struct world recovered;
	unsigned kept = 0;

	assert_int_equal(world_open(&recovered, &damaged, 1, &rng), 0);
	recovered.any_tail = true;
	for (uint32_t i = 0; i < 34; i++) {
		bool found;
		uint32_t version = world_read(&recovered, i, &found);

		if (version == UINT32_MAX)
			fail_msg("segment %u unit %u: page %u wrong", segment, unit, i);
		kept += version == 1 && i != 2 && i != 3;
	}
	world_close(&recovered);
	return kept;
}

/*
 * Bytes of the headers, the footer and the pages of a sealed and of an open segment, one bit at a
 * time. FLIP_STRIDE=1: every byte.
 */
static void a_flipped_bit_is_never_a_wrong_hit(void **state)
{
	uint32_t flips = 0, kept = 0, stride = 197;

	if (getenv("FLIP_STRIDE"))
		stride = (uint32_t)atoi(getenv("FLIP_STRIDE"));
	assert_true(stride);
	fill_and_remove();
	for (unsigned open = 0; open < 2; open++)
		for (uint32_t at = 0; at < UNITS * PAGE_UNIT; at += stride) {
			uint32_t s = segment_in(open ? SEGMENT_ACTIVE : SEGMENT_SEALED);
			struct sim *damaged = sim_copy(world.sim[0]);
			uint32_t unit = at / PAGE_UNIT, byte = at % PAGE_UNIT;

			sim_bytes(damaged, s, unit)[byte] ^= (uint8_t)(1u << at % 8);
			kept += start_damaged(damaged, s, unit);
			flips++;
		}
	assert_int_not_equal(flips, 0);
	printf("%u flips, %u of %u pages found\n", flips, kept, flips * 26);
	/* One bit costs a page or none; in an opening block, those of an open segment. */
	assert_true(kept >= flips * 25);
	world_close(&world);
}

static void a_unit_that_cannot_be_read_costs_its_pages(void **state)
{
	fill_and_remove();
	for (unsigned open = 0; open < 2; open++)
		for (uint32_t unit = 0; unit < UNITS; unit++) {
			uint32_t s = segment_in(open ? SEGMENT_ACTIVE : SEGMENT_SEALED);
			struct sim *damaged = sim_copy(world.sim[0]);

			damaged->bad_file = s;
			damaged->bad_unit = unit;
			damaged->bad_units = 1;
			assert_in_range(
				start_damaged(damaged, s, unit), open && !unit ? 10 : 25, 26);
		}
	world_close(&world);
}

/* Starts with units of a file that cannot be read; true if the path is in service then. */
static bool start_without(uint32_t file, uint32_t unit, uint32_t units)
{
	struct sim *damaged = sim_copy(world.sim[0]);
	struct world recovered;
	bool in_service;

	damaged->bad_file = file;
	damaged->bad_unit = unit;
	damaged->bad_units = units;
	in_service = !world_open(&recovered, &damaged, 1, &rng);
	assert_int_equal(in_service, recovered.store.path[0].report.state != DISK_PATH_OUT);
	if (in_service)
		assert_int_equal(
			recovered.store.path[0].file.path_id, world.store.path[0].file.path_id);
	else
		assert_non_null(strstr(recovered.store.path[0].report.reason,
			"cannot be read: Input/output error"));
	assert_true(in_service || sim_hash(damaged) == sim_hash(world.sim[0]));
	world_close(&recovered);
	return in_service;
}

static void a_path_whose_path_file_cannot_be_read_is_refused_and_kept(void **state)
{
	fill_and_remove();
	restart(-1); /* all is synced */
	assert_false(start_without(DEVICE_PATH_FILE, 0, 1));
	world_close(&world);
}

static void a_sealed_segment_whose_opening_cannot_be_read_is_kept(void **state)
{
	uint32_t sealed;
	struct sim *damaged;

	fill_and_remove();
	sealed = segment_in(SEGMENT_SEALED);
	assert_true(start_without(sealed, 0, 1));
	damaged = sim_copy(world.sim[0]);
	damaged->bad_file = sealed;
	damaged->bad_units = 1;
	assert_int_equal(start_damaged(damaged, sealed, 0), 26);
	/* Without its trailer, too, its pages are lost, and no other one. */
	sim_bytes(world.sim[0], sealed, UNITS - 1)[0] ^= 1;
	assert_true(start_without(sealed, 0, 1));
	world_close(&world);
}

/* The files would come back if the path grew again. */
static void a_smaller_path_is_refused_if_a_file_behind_its_end_cannot_be_removed(void **state)
{
	for (unsigned fails = 0; fails < 2; fails++) {
		struct disk_path_file *file;
		struct sim *sim;

		open_new(1);
		fill(20);
		sim = sim_copy(world.sim[0]);
		world_close(&world);
		/* the unlink of a file that is not there is no error */
		file = (struct disk_path_file *)(void *)sim_bytes(sim, DEVICE_PATH_FILE, 0);
		file->segments = SEGMENTS + 1000;
		layout_path_file_seal(file);
		sim->fail_unlink = fails ? -13 : 0;
		assert_int_equal(world_open(&world, &sim, 1, &rng), fails ? -19 : 0);
		if (fails)
			assert_non_null(strstr(world.store.path[0].report.reason,
				"cannot remove a segment that it does not use: Permission"));
		/* It is not asked 1000 times. */
		assert_true(fails ? sim->now < 10 : sim->now > 1000);
		world_close(&world);
	}
}

static void a_read_error_is_a_miss_and_many_take_the_path_out(void **state)
{
	bool found;

	open_new(1);
	fill(20);
	world.sim[0]->fail_read = -5;
	assert_int_equal(world_read(&world, 1, &found), 0);
	assert_true(found);
	assert_int_equal(world.store.path[0].report.read_errors, 1);
	world.sim[0]->fail_read = 0;
	assert_int_equal(world_read(&world, 2, &found), 1);
	world.store.path[0].report.read_errors = DISK_READ_ERRORS_MAX;
	world.sim[0]->fail_read = -5;
	assert_int_equal(world_read(&world, 3, &found), 0);
	assert_int_equal(world.store.path[0].report.state, DISK_PATH_OUT);
	assert_int_equal(world_read(&world, 4, &found), 0);
	assert_false(found);
	assert_int_equal(world_write(&world, 60, 1), DISK_OFFLINE);
	world_close(&world);
}

/* The trailer of a footer is in its place. */
static bool looks_sealed(uint32_t number)
{
	const struct store_path *path = &world.store.path[0];
	const struct disk_geometry geometry = {path->file.path_id, number, UNITS};

	return layout_footer_valid(
		(struct disk_footer *)(void *)sim_bytes(world.sim[0], number, UNITS - 1),
		&geometry);
}

/* As Linux does, the device reports the error once. What it lost is found by no start. */
static void a_segment_whose_sync_failed_is_not_sealed(void **state)
{
	struct store_path *path = &world.store.path[0];
	uint32_t pages = 0, number;
	struct sim *left;

	open_new(1);
	while (path->next == SEGMENT_NONE || path->segment[path->next].state != SEGMENT_READY)
		assert_int_equal(world_write(&world, pages++, 1), DISK_OK);
	number = path->active;
	world.sim[0]->fail_sync = -5;
	while (path_in_service(path))
		(void)world_write(&world, pages++, 1);
	assert_non_null(strstr(path->report.reason, "cannot sync segment"));
	world.sim[0]->fail_sync = 0;
	for (unsigned i = 0; i < 200; i++)
		world_turn(&world);
	assert_int_equal(path->report.sealed, 0);
	assert_false(looks_sealed(number));
	left = sim_crash(world.sim[0], &rng);
	world_close(&world);
	assert_int_equal(world_open(&world, &left, 1, &rng), 0);
	printf("%u of %u pages found\n", hits(pages), pages); /* with their bytes */
	world_close(&world);
}

static void a_full_device_takes_the_path_out(void **state)
{
	open_new(1);
	fill(5);
	world.sim[0]->fail_write = -28;
	assert_int_equal(world_write(&world, 50, 1), DISK_OFFLINE);
	assert_int_equal(world.store.path[0].report.state, DISK_PATH_OUT);
	assert_non_null(strstr(world.store.path[0].report.reason, "No space left on device"));
	world_close(&world);
}

/* The request that the device holds is returned when the device returns it, and not before. */
static void a_hanging_path_leaves_service_and_keeps_the_buffer_until_the_io_ends(void **state)
{
	struct disk_request held = {.op = DISK_READ, .key = page_key_of(1)};
	struct disk_request queued = {.op = DISK_WRITE, .key = page_key_of(50), .length = 4096};
	static _Alignas(4096) uint8_t page[4 * 4096], other[4096];
	uint64_t now = clock_now_ns();

	open_new(2);
	fill(20);
	held.data = page;
	held.length = page_length(1, 1);
	queued.data = other;
	for (unsigned i = 0; i < 2; i++)
		world.sim[i]->hang = true;
	store_submit(&world.store, &held);
	store_step(&world.store, now);
	store_step(&world.store, now + 1);
	assert_true(STAILQ_EMPTY(&world.store.finished));
	store_step(&world.store, now + 2 * world.store.timeout_ns);
	assert_int_equal((world.store.path[0].report.state == DISK_PATH_OUT) +
				 (world.store.path[1].report.state == DISK_PATH_OUT),
		1);
	assert_true(STAILQ_EMPTY(&world.store.finished));
	/* It is told at once that the device has it, and of no other one. */
	assert_ptr_equal(STAILQ_FIRST(&world.store.held), &held);
	assert_null(STAILQ_NEXT(&held, next_held));
	STAILQ_INIT(&world.store.held);
	for (unsigned i = 0; i < 2; i++)
		world.sim[i]->hang = false;
	/* The other path takes new pages. */
	assert_int_equal(world_call(&world, &queued), DISK_OK);
	while (STAILQ_EMPTY(&world.store.finished))
		world_turn(&world);
	assert_ptr_equal(STAILQ_FIRST(&world.store.finished), &held);
	assert_int_equal(held.status, DISK_MISS);
	assert_true(STAILQ_EMPTY(&world.store.held));
	world_close(&world);
}

static void the_budget_of_a_day_drops_pages(void **state)
{
	unsigned written = 0;

	open_new(1);
	world.store.budget_bytes = world.store.budget_used + 20 * PAGE_UNIT;
	for (uint32_t i = 0; i < 40; i++)
		written += world_write(&world, i, 1) == DISK_OK;
	assert_in_range(written, 3, 15);
	assert_int_equal(world.store.dropped_budget, 40 - written);
	assert_true(world_forget(&world, 0));
	world_close(&world);
}

static enum disk_status write_units(uint32_t number, uint32_t units)
{
	static _Alignas(PAGE_UNIT) uint8_t page[PAGE_BYTES_MAX];
	struct disk_request request = {.op = DISK_WRITE,
		.key = page_key_of(number),
		.data = page,
		.length = units * PAGE_UNIT};

	store_submit(&world.store, &request);
	while (STAILQ_EMPTY(&world.store.finished))
		world_turn(&world);
	STAILQ_REMOVE_HEAD(&world.store.finished, next);
	return request.status;
}

static void a_page_is_bounded_by_its_segment_and_by_what_is_left_of_the_budget(void **state)
{
	open_new(1);
	assert_int_equal(write_units(1, world.store.units - 3), DISK_TOO_LARGE);
	assert_int_equal(write_units(1, world.store.units - 4), DISK_OK);
	world.store.budget_bytes = world.store.budget_used + 3 * PAGE_UNIT;
	assert_int_equal(write_units(2, 4), DISK_SPENT);
	assert_int_equal(write_units(3, 3), DISK_OK);
	world_close(&world);
}

static void what_is_in_flight_and_tombstones_count_in_the_budget(void **state)
{
	static struct disk_request request[40];
	static _Alignas(PAGE_UNIT) uint8_t page[2 * PAGE_UNIT];
	uint64_t before;
	unsigned spent = 0;

	open_new(1);
	assert_int_equal(world_write(&world, 100, 1), DISK_OK);
	before = world.store.budget_used;
	assert_true(world_forget(&world, 100));
	world_settle(&world);
	assert_int_equal(world.store.budget_used - before, PAGE_UNIT);
	world.sim[0]->hang = true;
	before = world.store.budget_used;
	world.store.budget_bytes = before + 20 * PAGE_UNIT;
	for (uint32_t i = 0; i < 40; i++) {
		request[i] = (struct disk_request){.op = DISK_WRITE,
			.key = page_key_of(i),
			.data = page,
			.length = sizeof(page)};
		store_submit(&world.store, &request[i]);
		store_step(&world.store, clock_now_ns()); /* a block begins, and does not end */
	}
	/* two blocks of a page and a header; 14 units are left for the queue */
	assert_int_equal(world.store.budget_used - before, 2 * 3 * PAGE_UNIT);
	while (!STAILQ_EMPTY(&world.store.finished)) {
		spent += STAILQ_FIRST(&world.store.finished)->status == DISK_SPENT;
		STAILQ_REMOVE_HEAD(&world.store.finished, next);
	}
	assert_int_equal(spent, 40 - 2 - 7);
	world_close(&world);
}

static void an_answer_after_the_path_has_left_is_no_error_of_it(void **state)
{
	open_new(1);
	fill(5);
	for (uint32_t i = 0; i < 5; i++)
		assert_true(world_forget(&world, i));
	store_step(&world.store, clock_now_ns());
	store_step(&world.store, clock_now_ns() + 1000000000);
	assert_true(world.store.path[0].block[0].busy);
	path_fail(&world.store.path[0], "the test says so");
	while (store_flying(&world.store))
		world_turn(&world);
	assert_int_equal(world.store.path[0].report.io_errors, 0);
	world_close(&world);
}

/* Those that fill half a block are written at once, others after half a second. */
static void tombstones_wait_for_each_other(void **state)
{
	const struct store_path *path = &world.store.path[0];
	uint64_t written;

	open_new(1);
	fill(TOMBSTONES_MAX + 1);
	written = path->report.bytes_written;
	for (uint32_t i = 0; i < TOMBSTONES_MAX - 1; i++)
		assert_true(world_forget(&world, i));
	for (unsigned i = 0; i < 200; i++)
		world_turn(&world);
	assert_int_equal(path->report.bytes_written - written, 0);
	assert_true(world_forget(&world, TOMBSTONES_MAX - 1));
	for (unsigned i = 0; i < 200; i++)
		world_turn(&world);
	assert_int_equal(path->report.bytes_written - written, PAGE_UNIT);
	assert_true(world_forget(&world, TOMBSTONES_MAX));
	world_settle(&world);
	assert_int_equal(path->report.bytes_written - written, 2 * PAGE_UNIT);
	world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(pages_are_read_back_and_survive_a_restart, setup),
		cmocka_unit_test_setup(tombstones_wait_for_each_other, setup),
		cmocka_unit_test_setup(
			a_page_with_another_crc_than_its_request_is_not_written, setup),
		cmocka_unit_test_setup(a_flipped_bit_is_never_a_wrong_hit, setup),
		cmocka_unit_test_setup(a_unit_that_cannot_be_read_costs_its_pages, setup),
		cmocka_unit_test_setup(
			a_path_whose_path_file_cannot_be_read_is_refused_and_kept, setup),
		cmocka_unit_test_setup(
			a_sealed_segment_whose_opening_cannot_be_read_is_kept, setup),
		cmocka_unit_test_setup(
			a_smaller_path_is_refused_if_a_file_behind_its_end_cannot_be_removed,
			setup),
		cmocka_unit_test_setup(a_read_error_is_a_miss_and_many_take_the_path_out, setup),
		cmocka_unit_test_setup(a_segment_whose_sync_failed_is_not_sealed, setup),
		cmocka_unit_test_setup(a_full_device_takes_the_path_out, setup),
		cmocka_unit_test_setup(
			a_hanging_path_leaves_service_and_keeps_the_buffer_until_the_io_ends,
			setup),
		cmocka_unit_test_setup(the_budget_of_a_day_drops_pages, setup),
		cmocka_unit_test_setup(
			a_page_is_bounded_by_its_segment_and_by_what_is_left_of_the_budget, setup),
		cmocka_unit_test_setup(what_is_in_flight_and_tombstones_count_in_the_budget, setup),
		cmocka_unit_test_setup(an_answer_after_the_path_has_left_is_no_error_of_it, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
