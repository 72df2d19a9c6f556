/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster map (engine/abi/map.h): the owners of a key, how evenly keys are spread, which keys
 * move when a member leaves, and readers that race with a writer or read an invalid map.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/abi/map.h"

#define KEYS 100000u

static struct map_shared *shared;
static struct map_view *view, *previous;

static int setup(void **state)
{
	(void)state;
	shared = aligned_alloc(64, sizeof(*shared));
	memset(shared, 0, sizeof(*shared));
	view = calloc(1, sizeof(*view));
	previous = calloc(1, sizeof(*previous));
	return !shared || !view || !previous;
}

static int teardown(void **state)
{
	(void)state;
	free(shared);
	free(view);
	free(previous);
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct map_point *x = a, *y = b;

	return x->at < y->at ? -1 : x->at > y->at;
}

/* Builds a map with the members "node-<name[i]>", in the given order. */
static void build(struct map_view *v, const unsigned *name, unsigned members, unsigned replicas)
{
	memset(v, 0, sizeof(*v));
	v->members = members;
	v->points = map_owning(members) * VNODES;
	v->replicas = replicas;
	for (unsigned m = 0; m < members; m++) {
		struct map_member *member = &v->member[m];

		snprintf(member->name, sizeof(member->name), "node-%u", name[m]);
		member->peer = (uint16_t)name[m];
		member->ref = name[m] + 1;
		for (unsigned i = 0; m < OWNERS_MAX && i < VNODES; i++)
			v->point[m * VNODES + i] = (struct map_point){
				.at = map_point_at(member->name, i), .member = m};
	}
	qsort(v->point, v->points, sizeof(*v->point), by_place);
}

static struct page_key key_of(uint64_t i)
{
	return (struct page_key){{i * 0x10001, i}};
}

static const unsigned eight[] = {0, 1, 2, 3, 4, 5, 6, 7}, without_three[] = {0, 1, 2, 4, 5, 6, 7};

static void owners_are_different_members(void **state)
{
	(void)state;
	for (unsigned members = 1; members <= 8; members++)
		for (unsigned replicas = 1; replicas <= REPLICAS_MAX; replicas++) {
			unsigned want = replicas < members ? replicas : members;

			build(view, eight, members, replicas);
			for (uint64_t i = 0; i < 2000; i++) {
				struct page_key key = key_of(i);
				uint32_t owner[REPLICAS_MAX];

				assert_int_equal(map_owners(view, &key, owner), want);
				for (unsigned a = 0; a < want; a++) {
					assert_true(owner[a] < members);
					for (unsigned b = 0; b < a; b++)
						assert_int_not_equal(owner[a], owner[b]);
				}
			}
		}
}

/* Compares map_guide_owners() with map_owners(). */
static void compare_guide(const struct map_view *v, const struct map_guide *guide, uint64_t i)
{
	struct page_key key = key_of(i);
	uint32_t owner[REPLICAS_MAX], other[REPLICAS_MAX];
	unsigned owners = map_owners(v, &key, owner);

	assert_int_equal(map_guide_owners(v, guide, &key, other), owners);
	assert_memory_equal(owner, other, owners * sizeof(*owner));
}

static void the_guide_gives_the_same_owners_as_the_search(void **state)
{
	static const unsigned sizes[] = {1, 2, 3, 8, OWNERS_MAX};
	static struct map_guide guide;
	unsigned name[OWNERS_MAX];

	(void)state;
	for (unsigned i = 0; i < OWNERS_MAX; i++)
		name[i] = i;
	for (unsigned s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
		build(view, name, sizes[s], 3);
		map_guide_make(view, &guide);
		for (uint64_t i = 0; i < 20000; i++)
			compare_guide(view, &guide, i);
	}
	/* keys exactly at a point, in front of the first one and behind the last one */
	build(view, name, 4, 3);
	for (unsigned i = 0; i < view->points; i++)
		view->point[i].at = map_mix(key_of(i + view->points / 2).word[0]);
	qsort(view->point, view->points, sizeof(*view->point), by_place);
	map_guide_make(view, &guide);
	for (uint64_t i = 0; i < 2 * view->points; i++)
		compare_guide(view, &guide, i);
	memset(view, 0, sizeof(*view));
	map_guide_make(view, &guide);
	compare_guide(view, &guide, 1);
}

static void an_empty_map_has_no_owners(void **state)
{
	struct page_key key = key_of(1);
	uint32_t owner[REPLICAS_MAX];

	(void)state;
	memset(view, 0, sizeof(*view));
	view->replicas = 2;
	assert_int_equal(map_owners(view, &key, owner), 0);
}

static void eight_members_own_about_an_eighth_each(void **state)
{
	unsigned count[8] = {0};

	(void)state;
	build(view, eight, 8, 2);
	for (uint64_t i = 0; i < KEYS; i++) {
		struct page_key key = key_of(i);
		uint32_t owner[REPLICAS_MAX];

		map_owners(view, &key, owner);
		count[owner[0]]++;
	}
	for (unsigned m = 0; m < 8; m++)
		assert_in_range(count[m], KEYS / 8 * 65 / 100, KEYS / 8 * 135 / 100);
}

static void only_keys_of_a_dead_member_move_and_go_to_their_next_owner(void **state)
{
	unsigned moved = 0;

	(void)state;
	build(view, eight, 8, 2);
	build(previous, without_three, 7, 2);
	for (uint64_t i = 0; i < KEYS; i++) {
		struct page_key key = key_of(i);
		uint32_t before[REPLICAS_MAX], after[REPLICAS_MAX];
		uint16_t first, then;

		map_owners(view, &key, before);
		map_owners(previous, &key, after);
		first = view->member[before[0]].peer;
		then = previous->member[after[0]].peer;
		if (first == 3) {
			moved++;
			assert_int_equal(then, view->member[before[1]].peer);
		} else {
			assert_int_equal(then, first);
		}
	}
	assert_true(moved > 0);
}

static void owners_do_not_depend_on_the_order_of_the_members(void **state)
{
	static const unsigned backwards[] = {7, 6, 5, 4, 3, 2, 1, 0};

	(void)state;
	build(view, eight, 8, 3);
	build(previous, backwards, 8, 3);
	for (uint64_t i = 0; i < 10000; i++) {
		struct page_key key = key_of(i);
		uint32_t a[REPLICAS_MAX], b[REPLICAS_MAX];

		map_owners(view, &key, a);
		map_owners(previous, &key, b);
		for (unsigned r = 0; r < 3; r++)
			assert_int_equal(view->member[a[r]].peer, previous->member[b[r]].peer);
	}
}

static void a_map_being_written_is_not_read(void **state)
{
	uint32_t epoch = 99;

	(void)state;
	build(&shared->current, eight, 8, 2);
	map_write_begin(shared);
	assert_int_equal(map_read(shared, view, previous, &epoch), -EAGAIN);
	assert_int_equal(epoch, 99);
	map_write_end(shared);
	assert_int_equal(map_read(shared, view, previous, &epoch), 0);
	assert_int_equal(epoch, 1);
	assert_int_equal(view->members, 8);
	assert_int_equal(previous->members, 0);
}

static void a_map_with_numbers_out_of_range_is_not_read(void **state)
{
	uint32_t epoch;

	(void)state;
#define REFUSED(change)                                                                            \
	do {                                                                                       \
		build(&shared->current, eight, 8, 2);                                              \
		memset(&shared->previous, 0, sizeof(shared->previous));                            \
		assert_int_equal(map_read(shared, view, previous, &epoch), 0);                     \
		change;                                                                            \
		assert_int_equal(map_read(shared, view, previous, &epoch), -EAGAIN);               \
	} while (0)
	REFUSED(shared->current.members = NODES_MAX + 1);
	REFUSED(shared->current.members = UINT32_MAX);
	REFUSED(shared->current.members = 9); /* the ring has not the points of nine owners */
	REFUSED(shared->current.points = 9 * VNODES);
	REFUSED(shared->current.points = UINT32_MAX);
	REFUSED(shared->current.replicas = 0);
	REFUSED(shared->current.replicas = REPLICAS_MAX + 1);
	REFUSED(shared->current.point[8 * VNODES - 1].member = 8);
	REFUSED(shared->current.member[7].peer = NODES_MAX);
	REFUSED(shared->current.member[7].bucket_bits = 32);
	REFUSED(shared->current.member[0].rails = RAILS_MAX + 1);
	REFUSED((build(&shared->previous, eight, 8, 2), shared->previous.points = 1));
#undef REFUSED
}

static void only_the_first_members_of_a_large_map_may_own_keys(void **state)
{
	static unsigned name[NODES_MAX];
	uint32_t epoch = 0;

	(void)state;
	for (unsigned i = 0; i < NODES_MAX; i++)
		name[i] = i;
	for (unsigned members = OWNERS_MAX; members <= NODES_MAX; members += 256) {
		build(&shared->current, name, members, 2);
		memset(&shared->previous, 0, sizeof(shared->previous));
		assert_int_equal(map_read(shared, view, previous, &epoch), 0);
		assert_memory_equal(
			view->member, shared->current.member, members * sizeof(view->member[0]));
		for (uint64_t i = 0; i < 2000; i++) {
			struct page_key key = key_of(i);
			uint32_t owner[REPLICAS_MAX];

			assert_int_equal(map_owners(view, &key, owner), 2);
			assert_in_range(owner[0], 0, OWNERS_MAX - 1);
			assert_in_range(owner[1], 0, OWNERS_MAX - 1);
		}
		shared->current.point[77].member = OWNERS_MAX;
		assert_int_equal(map_read(shared, view, previous, &epoch), -EAGAIN);
		build(&shared->current, name, members, 2);
		shared->current.points += VNODES;
		assert_int_equal(map_read(shared, view, previous, &epoch), -EAGAIN);
	}
}

static void *rewrite(void *stop)
{
	for (unsigned i = 0; !shm_load(stop); i++) {
		map_write_begin(shared);
		build(&shared->current, i % 2 ? eight : without_three, i % 2 ? 8 : 7, 2);
		map_write_end(shared);
		sched_yield();
	}
	return NULL;
}

static void a_reader_sees_one_complete_map_or_the_next(void **state)
{
	uint32_t stop = 0, epoch;
	unsigned whole = 0;
	pthread_t thread;

	(void)state;
	build(&shared->current, eight, 8, 2);
	assert_int_equal(pthread_create(&thread, NULL, rewrite, &stop), 0);
	while (whole < 300) {
		unsigned members;

		/* what lies behind the members of the map is not copied */
		memset(view, 0, sizeof(*view));
		if (map_read(shared, view, previous, &epoch)) {
			sched_yield();
			continue;
		}
		whole++;
		members = view->members;
		assert_true(members == 7 || members == 8);
		build(previous, members == 8 ? eight : without_three, members, 2);
		assert_memory_equal(view, previous, sizeof(*view));
	}
	shm_store(&stop, 1);
	pthread_join(thread, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(owners_are_different_members, setup, teardown),
		cmocka_unit_test_setup_teardown(
			the_guide_gives_the_same_owners_as_the_search, setup, teardown),
		cmocka_unit_test_setup_teardown(an_empty_map_has_no_owners, setup, teardown),
		cmocka_unit_test_setup_teardown(
			eight_members_own_about_an_eighth_each, setup, teardown),
		cmocka_unit_test_setup_teardown(
			only_keys_of_a_dead_member_move_and_go_to_their_next_owner, setup,
			teardown),
		cmocka_unit_test_setup_teardown(
			owners_do_not_depend_on_the_order_of_the_members, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_reader_sees_one_complete_map_or_the_next, setup, teardown),
		cmocka_unit_test_setup_teardown(a_map_being_written_is_not_read, setup, teardown),
		cmocka_unit_test_setup_teardown(
			only_the_first_members_of_a_large_map_may_own_keys, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_map_with_numbers_out_of_range_is_not_read, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
