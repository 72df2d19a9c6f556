/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster map of real member tables: what readers find in shared memory while members join and
 * leave.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>

#include "engine/control/members/members_inner.h"

#define BEAT_MS 20
#define DEAD_MS 300

static int setup(void **state)
{
	nodes_setup(BEAT_MS, DEAD_MS);
	return 0;
}

static int teardown(void **state)
{
	nodes_teardown();
	return 0;
}

static void open_agreeing(unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(node_open(i, i ? node_at(0) : NULL), 0);
	assert_true(nodes_until(all_agree(), 3000));
}

/* ---- readers of the map ---------------------------------------------------------------------- */

struct map_reader {
	const struct map_shared *shared;
	uint32_t stop;
	unsigned reads, again, wrong;
};

static void *read_slots(void *context)
{
	struct map_reader *reader = context;

	for (uint32_t slot = 0; !shm_load_acquire(&reader->stop); slot = (slot + 1) % MAP_SLOTS) {
		struct map_owners owners;

		if (slot % 64 == 0)
			sched_yield(); /* the writer's turns may need this core */
		if (!map_owners_load(reader->shared, slot, &owners)) {
			reader->again++;
			continue;
		}
		reader->reads++;
		reader->wrong += owners.owners < 1 || owners.owners > 2;
		for (unsigned k = 0; k < owners.owners; k++)
			reader->wrong += !map_member_sane(&owners.member[k]);
	}
	return NULL;
}

/*
 * One reader reads the owners of all slots while a member joins and leaves a hundred times. Each
 * slot has an owner all the time.
 */
static void readers_find_an_owner_of_each_slot_through_200_changes(void **state)
{
	/* static: after a failed assertion the thread still uses it */
	static struct map_reader reader;
	pthread_t thread;

	memset(&reader, 0, sizeof(reader));
	open_agreeing(2);
	reader.shared = &node[0].control.status->map;
	assert_int_equal(pthread_create(&thread, NULL, read_slots, &reader), 0);
	for (unsigned i = 0; i < 100; i++) {
		node_close(1);
		assert_true(nodes_until(sees_count(0, 1), 2000));
		assert_int_equal(node_open(1, node_at(0)), 0);
		assert_true(nodes_until(sees_count(0, 2) && sees(0, 1), 2000));
	}
	shm_store_release(&reader.stop, 1);
	pthread_join(thread, NULL);
	print_message("%u slots read, %u read again\n", reader.reads, reader.again);
	assert_int_equal(reader.wrong, 0);
	assert_true(reader.reads > 0);
	assert_true(node[0].control.counter[COUNTER_members_joined] >= 101);
	assert_true(node[0].control.counter[COUNTER_members_died] >= 100);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(readers_find_an_owner_of_each_slot_through_200_changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
