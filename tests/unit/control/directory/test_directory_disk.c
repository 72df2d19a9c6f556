/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directory entries of pages on disk. A node is one control plane in the test's process; its disk
 * is a stub; time is simulated.
 */
#include "tests/unit/control/directory/mute_world.h"

#undef KEYS
#define KEYS 600 /* pages of the holder */
#define HOLDER 2

static struct disk_page disk[KEYS];

static int begin(void **state)
{
	nodes_setup(20, 300);
	for (unsigned k = 0; k < KEYS; k++)
		disk[k] = (struct disk_page){.key = key_of(k),
			.place = place_make(PLACE_DISK, 77),
			.generation = k + 1,
			.length = 4096};
	return 0;
}

static bool settled(void)
{
	const struct directory *dir = node[HOLDER].control.directory;

	return all_agree() && still(dir);
}

/* Number of owners that have this entry of HOLDER; those with another one of it do not count. */
static unsigned owners_with(const struct page_key *key, uint32_t place, uint32_t generation)
{
	const struct map_view *view = member_map(&node[0].control);
	uint32_t owner[REPLICAS_MAX];
	unsigned owners = map_owners(view, key, owner), with = 0;

	for (unsigned o = 0; o < owners; o++)
		for (unsigned n = 0; n < NODES; n++) {
			struct dir_entry found[2 * BUCKET_ENTRIES];
			unsigned count, right = 0, wrong = 0;

			if (!node[n].open || node[n].control.ref != view->owner[owner[o]].ref)
				continue;
			count = shard_find(node[n].control.shard, key, found, 2 * BUCKET_ENTRIES);
			for (unsigned f = 0; f < count; f++) {
				bool same = found[f].place == place &&
					    found[f].generation == generation;

				right += found[f].ref == node[HOLDER].control.ref && same;
				wrong += found[f].ref == node[HOLDER].control.ref && !same;
			}
			with += right == 1 && wrong == 0;
		}
	return with;
}

static unsigned owners_of_disk(unsigned k)
{
	return owners_with(&disk[k].key, disk[k].place, disk[k].generation);
}

static bool all_on_disk_found(void)
{
	for (unsigned k = 0; k < node[HOLDER].disk_pages; k++)
		if (owners_of_disk(k) != 2)
			return false;
	return true;
}

static void open_three(void)
{
	for (unsigned i = 0; i <= HOLDER; i++)
		assert_int_equal(node_open(i, i ? node_at(0) : node_at(1)), 0);
	assert_true(nodes_until(settled(), 9000));
}

/* The disk of HOLDER has the first `count` pages, as found at its start. */
static void open_disk(unsigned count)
{
	node[HOLDER].disk = disk;
	node[HOLDER].disk_pages = count;
	directory_disk_opened(&node[HOLDER].control);
}

static void pages_that_are_found_on_disk_are_published(void **state)
{
	open_three();
	open_disk(KEYS);
	assert_true(nodes_until(settled() && all_on_disk_found(), 9000));
}

/* Those in memory fill the room of the caller exactly: the next call has the page on disk. */
static void a_page_on_disk_behind_a_full_part_of_those_in_memory_is_found(void **state)
{
	struct control *holder = &node[HOLDER].control;
	const uint32_t slot = map_slot_of(&disk[0].key);
	struct index_entry entries[MOVE_PART];
	uint64_t cursor = 0;
	unsigned in_memory = 0, on_disk = 0;

	open_three();
	open_disk(1);
	for (uint32_t k = 0; k < MOVE_PART; k++) {
		struct index_entry entry = {
			.key = key_of(KEYS + k), .place = place_make(0, k), .generation = 1};

		entry.key.word[1] = (entry.key.word[1] & UINT64_MAX >> 16) | (uint64_t)slot << 48;
		assert_int_equal(index_put(holder->index, &entry, NULL), 0);
	}
	do {
		unsigned count = slot_pages(holder->directory, slot, &cursor, MOVE_PART, entries);

		for (unsigned i = 0; i < count; i++)
			if (place_on_disk(entries[i].place))
				on_disk++;
			else
				in_memory++;
	} while (cursor);
	assert_int_equal(in_memory, MOVE_PART);
	assert_int_equal(on_disk, 1);
}

static void an_eviction_replaces_the_entry_and_a_promotion_replaces_it_again(void **state)
{
	struct control *holder = &node[HOLDER].control;
	const struct index_entry *e;
	struct index_entry was;

	open_three();
	node_put(HOLDER, 3, 1, 3000);
	assert_true(nodes_until(node[HOLDER].hits == 1, 3000));
	e = index_find(holder->index, &disk[3].key);
	was = *e;
	assert_true(directory_on_disk(holder, &disk[3]));
	index_remove(holder->index, &disk[3].key);
	assert_true(nodes_until(owners_of_disk(3) == 2, 3000));
	/* a remove that is late, or a reader's report, takes nothing */
	directory_remove(holder, &disk[3].key,
		&(struct location){.place = was.place, .generation = was.generation});
	directory_stale(&node[0].control, &disk[3].key,
		&(struct location){
			.ref = holder->ref, .place = was.place, .generation = was.generation});
	nodes_run(200);
	assert_int_equal(owners_of_disk(3), 2);
	node_put(HOLDER, 3, 2, 3000);
	assert_true(nodes_until(owners_with(&disk[3].key, was.place, 2) == 2, 3000));
	/* and when the page leaves the disk, the entry of the page in memory stays */
	directory_remove(holder, &disk[3].key,
		&(struct location){.place = disk[3].place, .generation = disk[3].generation});
	nodes_run(200);
	assert_int_equal(owners_with(&disk[3].key, was.place, 2), 2);
}

static void a_page_that_leaves_the_disk_is_removed_at_all_owners(void **state)
{
	struct control *holder = &node[HOLDER].control;

	open_three();
	assert_true(directory_on_disk(holder, &disk[3]));
	assert_true(nodes_until(owners_of_disk(3) == 2, 3000));
	directory_remove(holder, &disk[3].key,
		&(struct location){.place = disk[3].place, .generation = disk[3].generation});
	assert_true(nodes_until(owners_of_disk(3) == 0, 3000));
}

static void a_new_owner_gets_the_entries_too(void **state)
{
	open_three();
	open_disk(KEYS);
	assert_true(nodes_until(settled() && all_on_disk_found(), 9000));
	assert_int_equal(node_open(HOLDER + 1, node_at(0)), 0);
	assert_true(nodes_until(sees(0, HOLDER + 1) && settled() && all_on_disk_found(), 9000));
	assert_true(node[HOLDER + 1].control.shard->entries > 0);
	node_close(0);
	assert_true(nodes_until(all_agree(), 3000));
}

/* A page in memory is published from there, whatever the disk has. */
static void a_page_that_is_in_memory_too_has_one_entry(void **state)
{
	open_three();
	node_put(HOLDER, 3, 1, 3000);
	assert_true(nodes_until(node[HOLDER].hits == 1, 3000));
	open_disk(10);
	assert_true(nodes_until(settled() && owners_of_disk(4) == 2, 9000));
	assert_int_equal(owners_of_disk(3), 0);
	assert_int_equal(found_at_owners(0, HOLDER, 3), 2);
}

static void after_a_warm_restart_they_are_found_again(void **state)
{
	open_three();
	open_disk(KEYS);
	assert_true(nodes_until(settled() && all_on_disk_found(), 9000));
	node[HOLDER].keep_ref = node[HOLDER].control.ref;
	node_close(HOLDER);
	node[HOLDER].disk_pages = 0; /* its disk is not open yet */
	assert_true(nodes_until(!sees(0, HOLDER) && !sees(1, HOLDER), 3000));
	assert_int_equal(node_open(HOLDER, node_at(0)), 0);
	assert_true(nodes_until(settled(), 9000));
	open_disk(KEYS);
	assert_true(nodes_until(settled() && all_on_disk_found(), 9000));
}

static void a_report_about_a_page_that_is_on_disk_is_wrong(void **state)
{
	struct control *holder = &node[HOLDER].control;

	open_three();
	open_disk(10);
	assert_true(nodes_until(settled() && all_on_disk_found(), 9000));
	directory_stale(holder, &disk[3].key,
		&(struct location){.ref = holder->ref,
			.place = disk[3].place,
			.generation = disk[3].generation});
	nodes_run(200);
	assert_int_equal(owners_of_disk(3), 2);
	directory_stale(holder, &disk[3].key,
		&(struct location){.ref = holder->ref, .place = disk[3].place, .generation = 9999});
	node[HOLDER].disk_pages = 0;
	directory_stale(holder, &disk[3].key,
		&(struct location){.ref = holder->ref,
			.place = disk[3].place,
			.generation = disk[3].generation});
	assert_true(nodes_until(owners_of_disk(3) == 0, 3000));
}

#define DISK_TEST(name) cmocka_unit_test_setup_teardown(name, begin, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		DISK_TEST(pages_that_are_found_on_disk_are_published),
		DISK_TEST(a_page_on_disk_behind_a_full_part_of_those_in_memory_is_found),
		DISK_TEST(an_eviction_replaces_the_entry_and_a_promotion_replaces_it_again),
		DISK_TEST(a_page_that_leaves_the_disk_is_removed_at_all_owners),
		DISK_TEST(a_new_owner_gets_the_entries_too),
		DISK_TEST(a_page_that_is_in_memory_too_has_one_entry),
		DISK_TEST(after_a_warm_restart_they_are_found_again),
		DISK_TEST(a_report_about_a_page_that_is_on_disk_is_wrong),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
