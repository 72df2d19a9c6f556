/* SPDX-License-Identifier: Apache-2.0 */
/* Paths that leave service or are absent, and come back: what was removed meanwhile stays away. */
#include "tests/unit/disk/store_world.h"

#include <string.h>

#include "numa/clock.h"

static void without_a_member_the_others_prove_nothing_and_are_cleared(void **state)
{
	(void)state;
	open_new(2);
	fill(20);
	restart(1);
	assert_true(world.store.path[0].report.cleared);
	assert_int_equal(hits(20), 0);
	assert_int_equal(world_write(&world, 1, 1), DISK_OK);
	restart(-1);
	assert_int_equal(hits(20), 1);
	world_close(&world);
}

/* The next page, from `from` on, in a sealed segment of that path. */
static uint32_t page_on(unsigned wanted, uint32_t from)
{
	unsigned path = 0;

	while (!world_persisted(&world, from, &path) || path != wanted)
		from++;
	return from;
}

/* True if the path itself has the tombstone, in a segment that is open. */
static bool has_tombstone(unsigned path, uint32_t number)
{
	const struct store_path *p = &world.store.path[path];
	struct page_key key = page_key_of(number);

	for (uint32_t s = 0; s < p->segments; s++)
		for (uint32_t b = 0; b < p->segment[s].blocks; b++) {
			const struct disk_block *block = p->segment[s].block[b];

			for (uint32_t e = 0; e < block->entries; e++)
				if (!block->entry[e].length &&
					page_key_equal(&block->entry[e].key, &key))
					return true;
		}
	return false;
}

static void a_path_that_left_gets_missed_removals_before_it_is_used(void **state)
{
	uint32_t on_left;
	bool found;

	(void)state;
	open_new(2);
	fill(40);
	on_left = page_on(1, 0);
	/* Path 1 fails; the removal is acknowledged with path 0 alone. */
	path_fail(&world.store.path[1], "the test says so");
	assert_int_equal(world_remove(&world, on_left), DISK_OK);
	restart(-1);
	assert_false(world.store.path[0].report.cleared);
	assert_false(world.store.path[1].report.cleared);
	assert_true(has_tombstone(1, on_left));
	/* It has it without the others, too. */
	path_fail(&world.store.path[0], "the test says so");
	assert_int_equal(world_remove(&world, 50), DISK_OK);
	restart(0);
	assert_false(world.store.path[0].report.cleared);
	assert_int_equal(world_read(&world, on_left, &found), 0);
	assert_false(found);
	world_close(&world);
}

static void step(void)
{
	store_step(&world.store, clock_now_ns());
}

/* Turns until the requests have ended. */
static void requests_end(unsigned count, enum disk_status status)
{
	while (count) {
		struct disk_request *request = STAILQ_FIRST(&world.store.finished);

		if (!request) {
			world_turn(&world);
			continue;
		}
		assert_int_equal(request->status, status);
		STAILQ_REMOVE_HEAD(&world.store.finished, next);
		count--;
	}
}

/*
 * Two removals; path 1 leaves while it has both in its queue, one in its batch and one in the
 * queue, or both in the batch.
 */
static void a_path_that_returns_has_the_tombstones_that_it_had_not_synced(void **state)
{
	(void)state;
	for (unsigned in_batch = 0; in_batch <= 2; in_batch++) {
		struct disk_request remove[2] = {{.op = DISK_REMOVE}, {.op = DISK_REMOVE}};
		uint32_t page[2];

		open_new(2);
		fill(40);
		page[0] = page_on(1, 0);
		page[1] = page_on(1, page[0] + 1);
		world.sim[1]->hang = true;
		for (unsigned i = 0; i < 2; i++) {
			remove[i].key = page_key_of(page[i]);
			store_submit(&world.store, &remove[i]);
			if (i + 1 == in_batch)
				step();
		}
		assert_int_equal(world.store.path[1].batch_busy, in_batch != 0);
		assert_int_equal(STAILQ_EMPTY(&world.store.path[1].tombstones), in_batch == 2);
		path_fail(&world.store.path[1], "the test says so");
		requests_end(2, DISK_OK);
		restart(-1);
		assert_false(world.store.path[1].report.cleared);
		for (unsigned i = 0; i < 2; i++)
			assert_true(has_tombstone(1, page[i]));
		assert_int_equal(hits(40), 38);
		world_close(&world);
	}
}

/* Each way in which the number of the dropped tombstone reaches the start that needs it. */
enum {
	RESTART_BEFORE = 1, /* while the tombstone is in a sealed segment */
	RESTART_AFTER = 2,  /* the recycling, and more is recycled then */
	AT_ONCE = 4,        /* nothing is written after the recycling */
	VARIANTS = 8,
};

/* Writes to path 0 alone until all that it had is recycled. */
static void recycle(uint32_t first)
{
	uint64_t from = world.store.path[0].report.recycled;

	for (uint32_t i = first; world.store.path[0].report.recycled - from < 2 * SEGMENTS; i++)
		assert_int_equal(world_write(&world, i, 1), DISK_OK);
}

/* Until its segment with a tombstone is recycled, and the next one is ready. */
static void recycle_tombstone(uint32_t first)
{
	struct store_path *path = &world.store.path[0];

	for (uint32_t i = first; !path->horizon; i++) {
		assert_in_range(path->report.recycled, 0, 2 * SEGMENTS);
		assert_int_equal(world_write(&world, i, 1), DISK_OK);
	}
	while (path->segment[path->next].state != SEGMENT_READY)
		world_turn(&world);
}

/* Until the segment that is open is sealed. */
static void seal(uint32_t first)
{
	uint32_t sealed = world.store.path[0].report.sealed;

	for (uint32_t i = first; world.store.path[0].report.sealed == sealed; i++)
		assert_int_equal(world_write(&world, i, 1), DISK_OK);
	assert_int_equal(world.store.path[0].horizon, 0);
}

/* Restarts with path 0 alone; returns path 1 as it is, for a later start. */
static struct sim *restart_without_1(struct sim *left)
{
	struct sim *kept = sim_copy(left ? left : world.sim[1]);

	if (left)
		sim_free(left);
	restart(world.paths == 2 ? 1 : -1);
	return kept;
}

static void a_page_whose_tombstone_was_recycled_stays_away(void **state)
{
	(void)state;
	for (unsigned variant = 0; variant < VARIANTS; variant++) {
		struct sim *sim[2], *left = NULL;
		uint32_t page;
		bool found;

		open_new(2);
		fill(40);
		page = page_on(1, 0);
		path_fail(&world.store.path[1], "the test says so");
		assert_int_equal(world_remove(&world, page), DISK_OK);
		if (variant & RESTART_BEFORE) {
			seal(100);
			left = restart_without_1(left);
		}
		recycle_tombstone(200);
		if (!(variant & AT_ONCE))
			recycle(300);
		if (variant & RESTART_AFTER) {
			left = restart_without_1(left);
			assert_false(world.store.path[0].report.cleared);
			if (!(variant & AT_ONCE))
				recycle(500);
		}
		sim[0] = sim_copy(world.sim[0]);
		sim[1] = left ? left : sim_copy(world.sim[1]);
		world_close(&world);
		assert_int_equal(world_open(&world, sim, 2, &rng), 0);
		/* nothing tells any more which pages of path 1 were removed */
		assert_true(world.store.path[1].report.cleared);
		assert_int_equal(world_read(&world, page, &found), 0);
		assert_false(found);
		world_close(&world);
	}
}

/* A path that left is known for longer than one start. */
static void a_path_that_stays_away_for_two_starts_gets_its_removals(void **state)
{
	struct sim *sim[2], *left;
	uint32_t page;

	(void)state;
	open_new(2);
	fill(40);
	page = page_on(1, 0);
	path_fail(&world.store.path[1], "the test says so");
	/* acknowledged when path 0 has recorded that path 1 has left */
	assert_int_equal(world_remove(&world, page + 1), DISK_OK);
	left = restart_without_1(NULL);
	assert_false(world.store.path[0].report.cleared);
	assert_int_equal(world_remove(&world, page), DISK_OK);
	left = restart_without_1(left);
	sim[0] = sim_copy(world.sim[0]);
	sim[1] = left;
	world_close(&world);
	assert_int_equal(world_open(&world, sim, 2, &rng), 0);
	assert_false(world.store.path[1].report.cleared);
	assert_true(has_tombstone(1, page));
	assert_int_equal(hits(40), 38);
	/* It is a member again: without it, path 0 proves nothing. */
	restart(1);
	assert_true(world.store.path[0].report.cleared);
	world_close(&world);
}

/* Before that, a start that does not find the record would believe the path that has left. */
static void a_removal_is_acknowledged_when_the_others_have_recorded_who_has_left(void **state)
{
	struct disk_request remove = {.op = DISK_REMOVE};

	(void)state;
	open_new(2);
	fill(40);
	remove.key = page_key_of(page_on(1, 0));
	store_submit(&world.store, &remove);
	while (!world.store.path[0].batch_busy)
		world_turn(&world);
	path_fail(&world.store.path[1], "the test says so");
	while (STAILQ_EMPTY(&world.store.finished))
		world_turn(&world);
	assert_int_equal(world.store.path[0].recorded, world.store.generation);
	assert_false(world.store.path[0].record_step);
	world_close(&world);
}

/* Where the path has the key's tombstone first, in a segment that is open. */
static void find_tombstone(
	unsigned path, uint32_t number, uint32_t *ret_segment, uint32_t *ret_unit)
{
	const struct store_path *p = &world.store.path[path];
	const struct segment *segment = &p->segment[p->active];
	struct page_key key = page_key_of(number);

	*ret_segment = p->active;
	for (uint32_t b = 0; b < segment->blocks; b++)
		if (segment->block[b]->entries && !segment->block[b]->entry[0].length &&
			page_key_equal(&segment->block[b]->entry[0].key, &key)) {
			*ret_unit = segment->block[b]->unit;
			return;
		}
	fail();
}

/*
 * Nothing that tells of the last starts can be read: `starts` of them, each but the last one with a
 * removal. Then the highest number that can be read is below those that path 1 was complete to.
 */
static void a_path_that_left_is_cleared_if_a_removal_since_then_cannot_be_read(void **state)
{
	(void)state;
	for (unsigned starts = 0; starts <= 3; starts++) {
		struct sim *sim[2];
		uint32_t page, first = 2, unit;
		bool found;

		open_new(2);
		fill(40);
		page = page_on(1, 0);
		for (unsigned i = 0; i < starts; i++) {
			restart(-1);
			if (i + 1 < starts)
				assert_int_equal(world_remove(&world, 30 + i), DISK_OK);
		}
		path_fail(&world.store.path[1], "the test says so");
		assert_int_equal(world_remove(&world, page), DISK_OK);
		for (unsigned i = 0; i < 2; i++)
			sim[i] = sim_copy(world.sim[i]);
		find_tombstone(0, page, &sim[0]->bad_file, &unit);
		if (starts > 1)
			find_tombstone(0, 30, &sim[0]->bad_file, &first);
		else
			first = unit;
		sim[0]->bad_unit = first;
		sim[0]->bad_units = unit + 2 - first;
		world_close(&world);
		assert_int_equal(world_open(&world, sim, 2, &rng), 0);
		assert_false(world.store.path[0].report.cleared);
		assert_true(world.store.path[1].report.cleared);
		assert_int_equal(world_read(&world, page, &found), 0);
		assert_false(found);
		world_close(&world);
	}
}

/* The numbers of its run are above those that the damage may have taken. */
static void a_path_that_left_after_a_damage_gets_its_removals(void **state)
{
	struct sim *sim[2];
	uint32_t page;

	(void)state;
	open_new(2);
	fill(40);
	for (unsigned i = 0; i < 2; i++)
		sim[i] = sim_copy(world.sim[i]);
	sim[0]->bad_file = world.store.path[0].active;
	sim[0]->bad_unit = 2;
	sim[0]->bad_units = 2;
	world_close(&world);
	assert_int_equal(world_open(&world, sim, 2, &rng), 0);
	assert_true(world.store.path[0].horizon > world.store.left[0].sequence);
	recycle(100); /* what was dropped is overwritten */
	page = page_on(1, 100);
	path_fail(&world.store.path[1], "the test says so");
	assert_int_equal(world_remove(&world, page), DISK_OK);
	restart(-1);
	assert_false(world.store.path[1].report.cleared);
	assert_true(has_tombstone(1, page));
	world_close(&world);
}

static void a_record_with_a_number_out_of_range_is_not_read(void **state)
{
	static struct disk_path_file slot[2];
	const struct disk_path_file *file;

	(void)state;
	for (unsigned over = 0; over < 2; over++) {
		slot[0].version = DISK_LAYOUT_VERSION;
		slot[0].path_id = 1;
		slot[0].left[DISK_LEFT_MAX - 1].sequence = DISK_SEQUENCE_MAX - !over;
		layout_path_file_seal(&slot[0]);
		assert_int_equal(layout_path_file_read(slot, PAGE_UNIT, &file),
			over ? PATH_FILE_EMPTY : PATH_FILE_SIZES);
	}
}

/* What a crash may leave of the unit that was written last, as a device with large sectors. */
static void tear_newest_record(struct sim *sim)
{
	struct disk_path_file *slot[2];

	for (uint32_t u = 0; u < 2; u++)
		slot[u] = (struct disk_path_file *)(void *)sim_bytes(sim, sim->files - 1, u);
	slot[slot[1]->count > slot[0]->count]->crc ^= 1;
}

static void a_crash_while_it_is_recorded_who_has_left_costs_no_page(void **state)
{
	(void)state;
	/* the steps in which a slot is written and not synced */
	for (unsigned step = 2; step <= 4; step += 2) {
		struct sim *sim[2];

		open_new(2);
		fill(40);
		path_fail(&world.store.path[1], "the test says so");
		while (world.store.path[0].record_step != step)
			world_turn(&world);
		for (unsigned i = 0; i < 2; i++)
			sim[i] = sim_copy(world.sim[i]);
		tear_newest_record(sim[0]);
		world_close(&world);
		assert_int_equal(world_open(&world, sim, 2, &rng), 0);
		assert_false(world.store.path[0].report.cleared);
		assert_int_equal(hits(40), 40);
		world_close(&world);
	}
}

/* The older record would name a member that lacks removals, and whose tombstones are recycled. */
static void a_damaged_record_does_not_make_an_older_one_current(void **state)
{
	(void)state;
	for (uint32_t slot = 0; slot < 2; slot++) {
		struct sim *sim[2];
		uint32_t page;
		bool found;

		open_new(2);
		fill(40);
		page = page_on(1, 0);
		path_fail(&world.store.path[1], "the test says so");
		assert_int_equal(world_remove(&world, page), DISK_OK);
		recycle_tombstone(200);
		for (unsigned i = 0; i < 2; i++)
			sim[i] = sim_copy(world.sim[i]);
		sim_bytes(sim[0], DEVICE_PATH_FILE, slot)[100] ^= 1;
		world_close(&world);
		assert_int_equal(world_open(&world, sim, 2, &rng), 0);
		assert_true(world.store.path[1].report.cleared);
		assert_int_equal(world_read(&world, page, &found), 0);
		assert_false(found);
		world_close(&world);
	}
}

/* Crashes at a moment of a start that finds a damaged slot; returns whether it came to that. */
static bool crash_after_damage(const struct sim *from, uint32_t slot, uint64_t operations)
{
	struct sim_power power = {.operations = operations};
	struct sim *damaged = sim_copy(from), *sim, *left;
	const struct sim_write *write;
	uint64_t id;

	sim_bytes(damaged, DEVICE_PATH_FILE, slot)[0] ^= 1;
	sim = sim_copy(damaged); /* the damage is durable */
	sim_free(damaged);
	id = ((struct disk_path_file *)(void *)sim_bytes(sim, DEVICE_PATH_FILE, !slot))->path_id;
	sim->power = &power;
	(void)world_open(&world, &sim, 1, &rng);
	left = sim_crash(world.sim[0], &rng);
	/* a device with large sectors tears what is not synced */
	TAILQ_FOREACH (write, &world.sim[0]->unsynced, next)
		if (write->file == DEVICE_PATH_FILE)
			sim_bytes(left, write->file, write->unit)[0] ^= 1;
	world_close(&world);
	assert_int_equal(world_open(&world, &left, 1, &rng), 0);
	assert_int_equal(world.store.path[0].file.path_id, id);
	world_close(&world);
	return power.failed;
}

static void a_damaged_slot_is_written_before_the_one_that_is_current(void **state)
{
	struct sim *sim;

	(void)state;
	open_new(1);
	assert_int_equal(world_write(&world, 1, 1), DISK_OK);
	sim = sim_copy(world.sim[0]);
	world_close(&world);
	for (uint32_t slot = 0; slot < 2; slot++)
		for (uint64_t at = 0; crash_after_damage(sim, slot, at); at++)
			;
	sim_free(sim);
}

static void a_record_that_cannot_be_written_takes_the_path_out_and_names_the_error(void **state)
{
	(void)state;
	open_new(2);
	fill(40);
	path_fail(&world.store.path[1], "the test says so");
	world.sim[0]->fail_write = -28;
	while (world.store.path[0].report.state != DISK_PATH_OUT)
		world_turn(&world);
	assert_non_null(strstr(world.store.path[0].report.reason, "path file"));
	assert_non_null(strstr(world.store.path[0].report.reason, "No space left on device"));
	world_close(&world);
}

/* Those in its queue, in its blocks, and of removals: another path takes them. */
static void keys_of_a_path_that_leaves_can_be_written_again(void **state)
{
	enum { PAGES = 60 };
	static struct disk_request request[PAGES];
	unsigned ended = 0, offline = 0;

	(void)state;
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

/* The number of a removal is higher, but the page comes into the index later. */
static void a_removal_waits_for_the_write_of_its_key(void **state)
{
	struct disk_request write = {.op = DISK_WRITE, .key = page_key_of(1)};
	struct disk_request remove[2] = {{.op = DISK_REMOVE, .key = page_key_of(1)},
		{.op = DISK_REMOVE, .key = page_key_of(1)}};
	bool found;

	(void)state;
	open_new(2);
	fill(1);
	write.length = page_length(1, 1);
	write.data = aligned_alloc(PAGE_UNIT, disk_units(write.length) * PAGE_UNIT);
	assert_non_null(write.data);
	page_fill(write.data, 1, 1);
	store_submit(&world.store, &write);
	for (unsigned i = 0; i < 2; i++)
		store_submit(&world.store, &remove[i]);
	requests_end(3, DISK_OK);
	assert_int_equal(world_read(&world, 1, &found), 0);
	assert_false(found);
	for (unsigned i = 0; i < BUSY_CHAINS; i++)
		assert_true(LIST_EMPTY(&world.store.busy[i]));
	restart(-1);
	assert_int_equal(hits(2), 1);
	free(write.data);
	world_close(&world);
}

static size_t no_memory_for; /* allocations of this size fail, once */
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);

void *__wrap_malloc(size_t bytes)
{
	if (no_memory_for && bytes == no_memory_for) {
		no_memory_for = 0;
		return NULL;
	}
	return __real_malloc(bytes);
}

static void a_page_without_memory_to_read_it_at_the_start_is_lost_alone(void **state)
{
	(void)state;
	open_new(1);
	fill(40);
	no_memory_for = (size_t)(UNITS - 3) * PAGE_UNIT; /* behind opening blocks and header */
	restart(-1);
	assert_int_equal(no_memory_for, 0);
	assert_int_equal(hits(40), 39);
	assert_int_equal(world.store.path[0].report.state, DISK_PATH_IN_SERVICE);
	world_close(&world);
}

/* The other paths get the tombstone, and the path gets it when it comes back. */
static void a_path_without_memory_for_a_tombstone_leaves_alone(void **state)
{
	struct disk_request remove = {.op = DISK_REMOVE};
	uint32_t page;

	(void)state;
	open_new(2);
	fill(40);
	page = page_on(0, 0);
	remove.key = page_key_of(page);
	no_memory_for = sizeof(struct tombstone);
	store_submit(&world.store, &remove);
	assert_int_equal(no_memory_for, 0);
	assert_int_equal(world.store.path[0].report.state, DISK_PATH_OUT);
	assert_int_equal(remove.waiting, 2);
	requests_end(1, DISK_OK);
	assert_true(has_tombstone(1, page));
	restart(-1);
	assert_false(world.store.path[0].report.cleared);
	assert_true(has_tombstone(0, page));
	assert_int_equal(hits(40), 39);
	world_close(&world);
}

/* Path 1 alone gets a newer tombstone, which is not acknowledged, and leaves after the start. */
static void a_tombstone_stays_though_another_path_has_a_newer_one(void **state)
{
	struct disk_request again = {.op = DISK_REMOVE};
	uint32_t page;
	bool found;

	(void)state;
	open_new(2);
	fill(40);
	page = page_on(0, 0);
	assert_int_equal(world_remove(&world, page), DISK_OK);
	again.key = page_key_of(page);
	world.sim[0]->hang = true;
	store_submit(&world.store, &again);
	while (again.waiting != 1)
		world_turn(&world);
	restart(-1);
	path_fail(&world.store.path[1], "the test says so");
	assert_int_equal(world_remove(&world, 50), DISK_OK);
	restart(1);
	assert_false(world.store.path[0].report.cleared);
	assert_int_equal(world_read(&world, page, &found), 0);
	assert_false(found);
	world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup(name, setup)
		T(a_path_that_left_gets_missed_removals_before_it_is_used),
		T(without_a_member_the_others_prove_nothing_and_are_cleared),
		T(a_path_that_returns_has_the_tombstones_that_it_had_not_synced),
		T(a_page_whose_tombstone_was_recycled_stays_away),
		T(a_path_that_stays_away_for_two_starts_gets_its_removals),
		T(a_removal_is_acknowledged_when_the_others_have_recorded_who_has_left),
		T(a_crash_while_it_is_recorded_who_has_left_costs_no_page),
		T(a_path_that_left_is_cleared_if_a_removal_since_then_cannot_be_read),
		T(a_path_that_left_after_a_damage_gets_its_removals),
		T(a_record_with_a_number_out_of_range_is_not_read),
		T(a_damaged_record_does_not_make_an_older_one_current),
		T(a_damaged_slot_is_written_before_the_one_that_is_current),
		T(a_record_that_cannot_be_written_takes_the_path_out_and_names_the_error),
		T(keys_of_a_path_that_leaves_can_be_written_again),
		T(a_removal_waits_for_the_write_of_its_key),
		T(a_path_without_memory_for_a_tombstone_leaves_alone),
		T(a_page_without_memory_to_read_it_at_the_start_is_lost_alone),
		T(a_tombstone_stays_though_another_path_has_a_newer_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
