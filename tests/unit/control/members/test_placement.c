/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement as a pure function of the members: evenness, weights, which slots move, and views made
 * of earlier ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/control/members/placement.h"

#define MANY 2000u
/* of ranks_are_the_same_in_every_build() */
#define RANK_HASH 0x2cd6c3e24398183bull
#define RANK_SUM 0x306dbfdde0c295b7ull

static unsigned replicas = 2; /* of the views that renew() makes */

static struct placed placed_of(unsigned i)
{
	char name[16];

	snprintf(name, sizeof(name), "m%u", i);
	return (struct placed){.hash = placement_hash(name), .ref = i + 1, .bucket_bits = 12};
}

/* The view of these members made from `from`, which it replaces. */
static void renew(struct map_view **view, const struct placed *members, unsigned count, bool anew)
{
	static struct placed copy[MANY];
	struct map_view *fresh;
	unsigned owners;

	memcpy(copy, members, count * sizeof(*members));
	owners = placement_choose(copy, count);
	fresh = map_view_make(anew ? NULL : *view, copy, owners, replicas);
	assert_non_null(fresh);
	map_view_drop(*view);
	*view = fresh;
}

static void expect_same(const struct map_view *a, const struct map_view *b)
{
	assert_int_equal(a->owners, b->owners);
	assert_int_equal(a->replicas, b->replicas);
	for (uint32_t i = 0; i < a->owners; i++) {
		assert_int_equal(a->owner[i].hash, b->owner[i].hash);
		assert_int_equal(a->owner[i].ref, b->owner[i].ref);
		assert_int_equal(a->owner[i].bucket_bits, b->owner[i].bucket_bits);
	}
	for (uint32_t s = 0; s < MAP_SLOTS; s++)
		assert_memory_equal(map_view_slot(a, s), map_view_slot(b, s), map_owning(a));
}

static bool slot_has(const struct map_view *view, uint32_t slot, uint32_t ref)
{
	for (unsigned i = 0; i < map_owning(view); i++)
		if (view->owner[map_view_slot(view, slot)[i]].ref == ref)
			return true;
	return false;
}

/* Slots that an owner by `to` has, and did not have by `from`. */
static unsigned moved(const struct map_view *from, const struct map_view *to)
{
	unsigned count = 0;

	for (uint32_t s = 0; s < MAP_SLOTS; s++)
		for (unsigned i = 0; i < map_owning(to); i++)
			count += !slot_has(from, s, to->owner[map_view_slot(to, s)[i]].ref);
	return count;
}

static unsigned slots_owned(const struct map_view *view, uint32_t ref)
{
	unsigned count = 0;

	for (uint32_t s = 0; s < MAP_SLOTS; s++)
		count += slot_has(view, s, ref);
	return count;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* These must never change: all engines of a cluster compute the same owners. */
static void ranks_are_the_same_in_every_build(void **state)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < 64; i++)
		for (uint32_t slot = 0; slot <= MAP_SLOTS; slot += 997)
			sum = map_mix(sum + placement_rank(placed_of(i).hash, i % 32, slot));
	assert_int_equal(placement_hash("host-1:7420"), RANK_HASH);
	assert_int_equal(sum, RANK_SUM);
}

static void the_owners_of_a_slot_are_those_with_the_lowest_ranks(void **state)
{
	struct placed members[20];
	struct map_view *view = NULL;

	for (unsigned i = 0; i < 20; i++) {
		members[i] = placed_of(i);
		members[i].bucket_bits = (uint8_t)(10 + i % 4);
	}
	renew(&view, members, 20, true);
	for (uint32_t s = 0; s < MAP_SLOTS; s++) {
		unsigned below[2] = {0, 0};

		for (unsigned k = 0; k < 2; k++) {
			const struct placed *o = &view->owner[map_view_slot(view, s)[k]];

			for (unsigned i = 0; i < 20; i++)
				below[k] += placement_rank(members[i].hash, members[i].bucket_bits,
						    s) < placement_rank(o->hash, o->bucket_bits, s);
		}
		assert_int_equal(below[0], 0);
		assert_int_equal(below[1], 1);
	}
	map_view_drop(view);
}

static void members_own_in_proportion_to_their_weights(void **state)
{
	static const unsigned counts[] = {2, 3, 10, 100};

	for (unsigned c = 0; c < 4; c++) {
		struct placed members[100];
		double weights = 0, worst = 0;
		unsigned count = counts[c];
		struct map_view *view;

		for (unsigned i = 0; i < count; i++) {
			members[i] = placed_of(i);
			members[i].bucket_bits = (uint8_t)(12 - 3 * (i % 2));
			weights += 1u << members[i].bucket_bits;
		}
		view = map_view_make(NULL, members, placement_choose(members, count), 1);
		for (unsigned i = 0; i < count; i++) {
			double want = MAP_SLOTS * (1u << members[i].bucket_bits) / weights;
			double is = slots_owned(view, members[i].ref), off = is / want - 1;

			/* beyond what chance gives: 4 standard deviations, and 4% */
			assert_true((is - want) * (is - want) < 16 * want + 0.0016 * want * want);
			worst = off > worst ? off : -off > worst ? -off : worst;
		}
		print_message("%u members, weights 8 : 1: shares differ by %.1f%% at most\n", count,
			worst * 100);
		map_view_drop(view);
	}
}

/* Looked up in any order, and twice. */
static void a_lazy_view_has_the_same_owners(void **state)
{
	static const unsigned counts[] = {1, 2, 3, 40, OWNERS_MAX};
	struct placed members[OWNERS_MAX];

	for (unsigned c = 0; c < 5; c++)
		for (unsigned each = 1; each <= REPLICAS_MAX; each++) {
			unsigned owners;
			struct map_view *lazy, *again, *eager;

			for (unsigned i = 0; i < counts[c]; i++)
				members[i] = placed_of(i);
			owners = placement_choose(members, counts[c]);
			eager = map_view_make(NULL, members, owners, each);
			lazy = map_view_lazy(NULL, members, owners, each);
			assert_true(lazy->lazy && !eager->lazy);
			for (uint32_t s = MAP_SLOTS; s >= 7; s -= 7)
				(void)map_view_slot(lazy, s - 1);
			expect_same(lazy, eager);
			expect_same(lazy, eager);
			again = map_view_lazy(lazy, members, owners, each);
			assert_ptr_equal(again, lazy);
			map_view_drop(again);
			/* and eager ones may be made of it, and of one without any owners */
			members[0].bucket_bits++;
			again = map_view_make(lazy, members, owners, each);
			map_view_drop(eager);
			eager = map_view_make(NULL, members, owners, each);
			expect_same(again, eager);
			map_view_drop(again);
			map_view_drop(lazy);
			lazy = map_view_lazy(NULL, members, owners, each);
			members[0].ref++;
			again = map_view_make(lazy, members, owners, each);
			map_view_drop(eager);
			eager = map_view_make(NULL, members, owners, each);
			expect_same(again, eager);
			map_view_drop(again);
			map_view_drop(eager);
			map_view_drop(lazy);
		}
}

/* ---- changes --------------------------------------------------------------------------------- */

static void every_order_of_members_gives_the_same_view(void **state)
{
	static const unsigned counts[] = {1, 2, 3, 7, 100, OWNERS_MAX, OWNERS_MAX + 1, MANY};
	static struct placed members[MANY], turned[MANY];
	struct map_view *a = NULL, *b = NULL;

	for (unsigned k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
		for (unsigned i = 0; i < counts[k]; i++) {
			members[i] = placed_of(i);
			turned[counts[k] - 1 - i] = members[i];
		}
		renew(&a, turned, counts[k], false);
		renew(&b, members, counts[k], true);
		expect_same(a, b);
	}
	map_view_drop(a);
	map_view_drop(b);
}

static void random_changes(unsigned rounds, unsigned rounds_few)
{
	static struct placed all[2 * OWNERS_MAX], members[2 * OWNERS_MAX];
	static bool there[2 * OWNERS_MAX];
	struct map_view *now = NULL, *anew = NULL;

	memset(there, 0, sizeof(there));
	srand(1);
	for (unsigned i = 0; i < 2 * OWNERS_MAX; i++)
		all[i] = placed_of(i);
	for (unsigned round = 0; round < rounds; round++) {
		/* few members, then around the limit of owners */
		unsigned range = round < rounds_few ? 6 : 2 * OWNERS_MAX, count = 0;
		unsigned changes = round == rounds_few ? 300 : (unsigned)rand() % 4;

		for (unsigned c = 0; c < changes; c++) {
			unsigned i = (unsigned)rand() % range;

			if (rand() % 8 == 0)
				all[i].bucket_bits = (uint8_t)(10 + rand() % 4);
			else if (rand() % 8 == 0)
				all[i].ref += 1000; /* restarted */
			else
				there[i] = !there[i];
		}
		there[0] = true;
		for (unsigned i = 0; i < 2 * OWNERS_MAX; i++)
			if (there[i])
				members[count++] = all[i];
		renew(&now, members, count, false);
		renew(&anew, members, count, true);
		expect_same(now, anew);
	}
	map_view_drop(now);
	map_view_drop(anew);
}

static void random_changes_give_the_view_that_one_made_anew_has(void **state)
{
	random_changes(150, 90);
}

static void so_they_do_with_the_most_and_the_fewest_owners_per_key(void **state)
{
	for (unsigned i = 0; i < 2; i++) {
		replicas = i ? 1 : REPLICAS_MAX;
		random_changes(41, 40);
	}
	replicas = 2;
}

static void what_does_not_change_is_the_same_view(void **state)
{
	static struct placed members[MANY];
	struct map_view *view = NULL, *before;

	for (unsigned i = 0; i < MANY; i++)
		members[i] = placed_of(i);
	renew(&view, members, 300, false);
	before = map_view_share(view);
	for (unsigned i = 0; i < 300; i++) {
		struct placed less[300];
		bool owns = false;

		memcpy(less, members, sizeof(less));
		less[i] = members[299];
		for (uint32_t o = 0; o < before->owners; o++)
			owns |= before->owner[o].ref == members[i].ref;
		if (owns)
			continue;
		renew(&view, less, 299, false);
		assert_ptr_equal(view, before);
	}
	assert_int_equal(before->uses, 2);
	map_view_drop(before);
	map_view_drop(view);
}

static void one_change_moves_the_entries_of_one_owner(void **state)
{
	static const unsigned counts[] = {4, 20, OWNERS_MAX, 1000};
	static struct placed members[MANY];

	for (unsigned i = 0; i < MANY; i++)
		members[i] = placed_of(i);
	for (unsigned c = 0; c < 4; c++) {
		struct map_view *a = NULL, *b = NULL;
		unsigned n = counts[c], sum = 0, changes = 0;
		double want = 0;

		for (unsigned last = n - (n > 4 ? 12 : 1); last < n + 12; last++, changes++) {
			renew(&a, members, last, changes == 0);
			renew(&b, members, last + 1, changes == 0);
			sum += moved(a, b);
			/* above the limit of owners, one loses as much as one gains */
			want += 2. * MAP_SLOTS / (last < OWNERS_MAX ? last + 1 : OWNERS_MAX / 2);
		}
		print_message("about %u members: a join moves %.3f of its share of the entries\n",
			n, sum / want);
		assert_true(sum < 1.1 * want);
		map_view_drop(a);
		map_view_drop(b);
	}
}

static void removing_a_member_moves_only_its_slots(void **state)
{
	struct placed members[10];
	struct map_view *all = NULL, *less = NULL;

	for (unsigned i = 0; i < 10; i++)
		members[i] = placed_of(i);
	renew(&all, members, 10, true);
	less = map_view_share(all);
	renew(&less, members, 9, false);
	for (uint32_t s = 0; s < MAP_SLOTS; s++) {
		uint32_t first = all->owner[map_view_slot(all, s)[0]].ref;
		uint32_t second = all->owner[map_view_slot(all, s)[1]].ref;
		uint32_t now = less->owner[map_view_slot(less, s)[0]].ref;

		assert_int_not_equal(first, second);
		assert_int_equal(now, first == 10 ? second : first);
	}
	map_view_drop(all);
	map_view_drop(less);
}

static unsigned bits_after(const unsigned *bits, unsigned count, unsigned which)
{
	struct placed members[16];

	for (unsigned i = 0; i < count; i++) {
		members[i] = placed_of(i);
		members[i].bucket_bits = (uint8_t)bits[i];
	}
	placement_cap(members, count);
	return members[which].bucket_bits;
}

static void a_weight_counts_up_to_a_limit(void **state)
{
	static const unsigned two[] = {10, 31}, three[] = {10, 31, 12}, four[] = {31, 31, 10, 10},
			      small[] = {3, 20, 20, 20, 21}, top[] = {30, 31, 31}, one[] = {31},
			      none[] = {0, 31, 0},
			      many[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 14, 14, 14},
			      large[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 12, 13};

	assert_int_equal(bits_after(two, 2, 0), 10);
	assert_int_equal(bits_after(two, 2, 1), 13);
	assert_int_equal(bits_after(three, 3, 1), 15);
	assert_int_equal(bits_after(three, 3, 2), 12);
	assert_int_equal(bits_after(four, 4, 0), 31);
	assert_int_equal(bits_after(small, 5, 0), 3);
	assert_int_equal(bits_after(small, 5, 4), 21);
	assert_int_equal(bits_after(top, 3, 1), 31);
	assert_int_equal(bits_after(one, 1, 0), 31);
	assert_int_equal(bits_after(none, 3, 1), 3);
	/* many small members do not take what large ones have */
	assert_int_equal(bits_after(many, 15, 14), 14);
	assert_int_equal(bits_after(large, 16, 15), 12);
	assert_int_equal(bits_after(large, 16, 14), 12);
}

static void the_largest_weight_does_not_take_nearly_all_slots(void **state)
{
	struct map_view *view = NULL;
	struct placed members[9];
	unsigned first = 0;

	for (unsigned i = 0; i < 9; i++)
		members[i] = placed_of(i);
	members[4].bucket_bits = 31;
	renew(&view, members, 9, true);
	for (uint32_t s = 0; s < MAP_SLOTS; s++)
		first += view->owner[map_view_slot(view, s)[0]].ref == members[4].ref;
	/* 8 of 16 parts */
	assert_in_range(first, MAP_SLOTS * 45 / 100, MAP_SLOTS * 55 / 100);
	map_view_drop(view);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_are_the_same_in_every_build),
		cmocka_unit_test(the_owners_of_a_slot_are_those_with_the_lowest_ranks),
		cmocka_unit_test(a_lazy_view_has_the_same_owners),
		cmocka_unit_test(members_own_in_proportion_to_their_weights),
		cmocka_unit_test(every_order_of_members_gives_the_same_view),
		cmocka_unit_test(random_changes_give_the_view_that_one_made_anew_has),
		cmocka_unit_test(so_they_do_with_the_most_and_the_fewest_owners_per_key),
		cmocka_unit_test(what_does_not_change_is_the_same_view),
		cmocka_unit_test(one_change_moves_the_entries_of_one_owner),
		cmocka_unit_test(removing_a_member_moves_only_its_slots),
		cmocka_unit_test(a_weight_counts_up_to_a_limit),
		cmocka_unit_test(the_largest_weight_does_not_take_nearly_all_slots),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
