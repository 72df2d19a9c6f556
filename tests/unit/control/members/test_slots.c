/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words of the cluster map (engine/control/members/member_map.c) through series of changes:
 * what they name, and owner numbers. The member table is a stub (ld --wrap).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/control/members/member_map.c"

#define MANY (2 * OWNERS_MAX)

/* Member i has the ref i + 1 and the peer number i. */
static struct member_record record[MANY];
static char name[MANY][16];
static bool alive[MANY];
static struct members table;
static struct control control;
static struct slots slots;
static struct map_view *view;

/* The member that joins now, if free numbers are to be checked when its number is chosen. */
static uint32_t watched_ref;

/* No word names a number that has no member. */
static void expect_unnamed(void)
{
	for (uint32_t s = 0; s < MAP_SLOTS; s++) {
		struct map_slot slot = map_slot_unpack(control.status->map.slot[s]);

		for (unsigned k = 0; k < map_slot_owners(&slot); k++)
			assert_int_not_equal(slots.bound[slot.owner[k]], 0);
	}
}

const struct member_record *__wrap_member_by_ref(const struct control *c, uint32_t ref);
const struct member_record *__wrap_member_by_ref(const struct control *c, uint32_t ref)
{
	if (ref && ref == watched_ref)
		expect_unnamed();
	return ref && ref <= MANY && alive[ref - 1] ? &record[ref - 1] : NULL;
}

const struct member_record *__wrap_member_by_peer(const struct control *c, uint16_t peer);
const struct member_record *__wrap_member_by_peer(const struct control *c, uint16_t peer)
{
	return __wrap_member_by_ref(c, peer + 1u);
}

static int setup(void **state)
{
	memset(alive, 0, sizeof(alive));
	memset(&slots, 0, sizeof(slots));
	memset(&table, 0, sizeof(table));
	table.slots = &slots;
	control.members = &table;
	control.status = aligned_alloc(64, sizeof(*control.status));
	memset(control.status, 0, sizeof(*control.status));
	for (unsigned i = 0; i < MANY; i++) {
		snprintf(name[i], sizeof(name[i]), "m%u", i);
		record[i] = (struct member_record){
			.ref = i + 1, .peer = (uint16_t)i, .rails = 1, .bucket_bits = 10};
	}
	return 0;
}

static int teardown(void **state)
{
	map_view_drop(view);
	view = NULL;
	free(control.status);
	return 0;
}

static struct map_view *view_of(struct map_view *from, unsigned replicas)
{
	struct placed members[MANY];
	unsigned count = 0;

	for (unsigned i = 0; i < MANY; i++)
		if (alive[i])
			members[count++] = (struct placed){
				placement_hash(name[i]), record[i].ref, record[i].bucket_bits, {0}};
	return map_view_make(from, members, placement_choose(members, count), replicas);
}

static void change(unsigned i, bool lives, unsigned replicas)
{
	struct map_view *fresh;

	table.alive += lives ? 1 : -1u;
	alive[i] = lives;
	fresh = view_of(view, replicas);
	map_view_drop(view);
	view = fresh;
	slots_publish(&control, &slots, view);
}

static void join(unsigned members, unsigned replicas)
{
	for (unsigned i = 0; i < members; i++)
		change(i, true, replicas);
}

static struct map_owners load(uint32_t slot)
{
	struct map_owners owners;

	assert_true(map_owners_load(&control.status->map, slot, &owners));
	return owners;
}

/* Each word names the owners by the view, in their order, and no member twice or dead. */
static void expect_sound(void)
{
	for (uint32_t s = 0; s < MAP_SLOTS; s++) {
		struct map_owners owners = load(s);

		assert_int_equal(owners.owners, map_owning(view));
		for (unsigned k = 0; k < owners.owners; k++) {
			assert_int_equal(
				owners.member[k].ref, view->owner[map_view_slot(view, s)[k]].ref);
			assert_non_null(member_by_ref(&control, owners.member[k].ref));
			for (unsigned other = 0; other < k; other++)
				assert_int_not_equal(
					owners.member[k].ref, owners.member[other].ref);
		}
	}
}

static void members_that_leave_and_come_back_are_counted(void **state)
{
	join(4, 2);
	change(2, false, 2);
	expect_sound();
	change(2, true, 2);
	expect_sound();
	assert_int_equal(control.status->map.members, 4);
	change(3, false, 2);
	assert_int_equal(map_member_unpack(control.status->map.member[3]).ref, 0);
	assert_int_equal(control.status->map.peers, 3);
}

static void the_numbers_of_256_owners_are_taken_from_those_that_own_nothing(void **state)
{
	for (unsigned i = 0; i < OWNERS_MAX; i++) {
		alive[i] = true;
		table.alive++;
	}
	view = view_of(NULL, 2);
	slots_publish(&control, &slots, view);
	expect_sound();
	/* each of these may replace an owner, which has a number and lives */
	for (unsigned i = OWNERS_MAX; i < OWNERS_MAX + 20; i++) {
		watched_ref = i + 1;
		change(i, true, 2);
		watched_ref = 0;
		expect_sound();
	}
	/* and here the number of a member that has left is free */
	for (unsigned i = 0; i < 10; i++) {
		change(i, false, 2);
		expect_sound();
	}
}

/* Both owners of slot 0 die, and members that join need their numbers at once. */
static void numbers_of_the_dead_are_used_at_once(void **state)
{
	join(OWNERS_MAX, 2);
	for (unsigned k = 0; k < 2; k++) {
		unsigned dead = load(0).member[k].ref - 1;

		alive[dead] = false;
		alive[OWNERS_MAX + k] = true;
	}
	map_view_drop(view);
	view = view_of(NULL, 2);
	slots_publish(&control, &slots, view);
	expect_sound();
}

static void one_slot_in_three_changes_for_the_third_member_and_no_other_word(void **state)
{
	static uint64_t before[MAP_SLOTS];
	unsigned changed = 0;
	uint32_t epoch;

	join(2, 1);
	memcpy(before, control.status->map.slot, sizeof(before));
	epoch = control.status->map.epoch;
	change(2, true, 1);
	assert_int_equal(control.status->map.epoch, epoch + 1);
	for (uint32_t s = 0; s < MAP_SLOTS; s++) {
		bool same = before[s] == control.status->map.slot[s];

		assert_int_equal(same, load(s).member[0].ref != 3);
		changed += !same;
	}
	assert_in_range(changed, MAP_SLOTS * 31 / 100, MAP_SLOTS * 36 / 100);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(members_that_leave_and_come_back_are_counted),
		T(the_numbers_of_256_owners_are_taken_from_those_that_own_nothing),
		T(numbers_of_the_dead_are_used_at_once),
		T(one_slot_in_three_changes_for_the_third_member_and_no_other_word),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
