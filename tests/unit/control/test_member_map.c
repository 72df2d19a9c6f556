/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster map as a pure function of its members.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static struct map_member map_member_of(unsigned i)
{
	struct map_member m = {.incarnation = map_mix(i + 1), .peer = (uint16_t)i, .rails = 1};

	m.ref = (uint32_t)m.incarnation;
	snprintf(m.name, sizeof(m.name), "m%u", i);
	return m;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct map_member *)a)->name, ((const struct map_member *)b)->name);
}

static int by_place(const void *a, const void *b)
{
	const struct map_point *x = a, *y = b;

	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	return (x->member > y->member) - (x->member < y->member);
}

static int by_rank(const void *a, const void *b)
{
	uint64_t x = map_point_at(((const struct map_member *)a)->name, VNODES);
	uint64_t y = map_point_at(((const struct map_member *)b)->name, VNODES);

	return x != y ? (x < y) - (x > y) : by_name(a, b);
}

/* The map as a function of its members: what a series of changes must lead to. */
static void build(struct map_view *view, const struct map_member *members, unsigned count)
{
	unsigned owners = count < OWNERS_MAX ? count : OWNERS_MAX;

	memset(view, 0, sizeof(*view));
	view->members = count;
	view->points = owners * VNODES;
	view->replicas = 2;
	memcpy(view->member, members, count * sizeof(*members));
	qsort(view->member, count, sizeof(*members), by_rank);
	qsort(view->member, owners, sizeof(*members), by_name);
	qsort(&view->member[owners], count - owners, sizeof(*members), by_name);
	for (uint32_t m = 0; m < owners; m++)
		for (uint32_t i = 0; i < VNODES; i++)
			view->point[m * VNODES + i] = (struct map_point){
				.at = map_point_at(view->member[m].name, i), .member = m};
	qsort(view->point, view->points, sizeof(view->point[0]), by_place);
}

static void expect_same(const struct map_view *a, const struct map_view *b)
{
	assert_memory_equal(a, b, offsetof(struct map_view, member));
	assert_memory_equal(a->member, b->member, a->members * sizeof(a->member[0]));
	assert_memory_equal(a->point, b->point, a->points * sizeof(a->point[0]));
}

static void update(struct map_view *view, const struct map_member *members, unsigned count)
{
	static const struct map_member *at[NODES_MAX];

	for (unsigned i = 0; i < count; i++)
		at[i] = &members[i];
	view->replicas = 2;
	member_map_update(view, at, count);
}

static void expect_sane(const struct map_view *view, unsigned members)
{
	assert_true(map_view_sane(view));
	assert_int_equal(view->members, members);
	for (uint32_t i = 1; i < view->points; i++)
		assert_true(view->point[i - 1].at <= view->point[i].at);
	for (uint32_t i = 1; i < view->members; i++)
		assert_true(i == OWNERS_MAX ||
			    strcmp(view->member[i - 1].name, view->member[i].name) < 0);
}

static void every_order_of_members_gives_the_same_map(void **state)
{
	static const unsigned counts[] = {1, 2, 3, 7, 100, OWNERS_MAX, OWNERS_MAX + 1, NODES_MAX};
	static struct map_member members[NODES_MAX], turned[NODES_MAX];
	struct map_view *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));

	(void)state;
	for (unsigned k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
		unsigned count = counts[k];

		for (unsigned i = 0; i < count; i++) {
			members[i] = map_member_of(i);
			turned[count - 1 - i] = members[i];
		}
		update(a, turned, count);
		build(b, members, count);
		expect_sane(a, count);
		expect_same(a, b);
	}
	free(a);
	free(b);
}

/* The members of the random series: which of `all` are on the map, and in which incarnation. */
struct series {
	struct map_member all[NODES_MAX + 300], members[NODES_MAX];
	bool there[NODES_MAX + 300];
	bool taken[NODES_MAX];
	unsigned count;
};

static void toggle(struct series *s, unsigned i)
{
	struct map_member *m = &s->all[i];

	if (!s->there[i] && s->count == NODES_MAX)
		return;
	if (s->there[i]) {
		s->taken[m->peer] = false;
	} else {
		uint16_t peer = (uint16_t)(rand() % NODES_MAX);

		while (s->taken[peer])
			peer = (uint16_t)((peer + 1) % NODES_MAX);
		m->peer = peer;
		s->taken[peer] = true;
		m->incarnation++;
	}
	s->there[i] = !s->there[i];
	s->count += s->there[i] ? 1u : -1u;
}

static void collect(struct series *s)
{
	unsigned count = 0;

	for (unsigned i = 0; i < NODES_MAX + 300; i++)
		if (s->there[i])
			s->members[count++] = s->all[i];
}

/* Number of owners of `a` that do not own on `b`, by name. */
static unsigned owners_gone(const struct map_view *a, const struct map_view *b)
{
	unsigned gone = 0;

	for (uint32_t i = 0; i < map_owning(a->members); i++)
		gone += !bsearch(&a->member[i], b->member, map_owning(b->members),
			sizeof(b->member[0]), by_name);
	return gone;
}

static void random_changes_give_the_map_that_one_made_anew_has(void **state)
{
	static struct series s;
	struct map_view *now = calloc(1, sizeof(*now)), *anew = calloc(1, sizeof(*anew)),
			*before = calloc(1, sizeof(*before));

	(void)state;
	srand(1);
	for (unsigned i = 0; i < NODES_MAX + 300; i++)
		s.all[i] = map_member_of(i);
	for (unsigned i = 0; i < OWNERS_MAX; i++)
		toggle(&s, i);
	for (unsigned round = 0; round < 1500; round++) {
		/* around the limit of owners; then from few members to all that the map can have */
		unsigned range = round < 700 ? 2 * OWNERS_MAX + 1 : NODES_MAX + 300;
		unsigned changes = round % 3 ? 1 : (unsigned)rand() % 5;

		if (round >= 700 && s.count < NODES_MAX - 10)
			changes += 2;
		for (unsigned c = 0; c < changes; c++)
			toggle(&s, (unsigned)rand() % range);
		collect(&s);
		*before = *now;
		update(now, s.members, s.count);
		build(anew, s.members, s.count);
		expect_same(now, anew);
		assert_true(map_view_sane(now));
		if (round)
			assert_in_range(owners_gone(before, now), 0, changes);
	}
	free(now);
	free(anew);
	free(before);
}

static void one_change_moves_the_keys_of_one_owner(void **state)
{
	static struct map_member members[NODES_MAX];
	struct map_view *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));
	unsigned counts[] = {OWNERS_MAX, 1000};

	(void)state;
	for (unsigned i = 0; i < NODES_MAX; i++)
		members[i] = map_member_of(i);
	for (unsigned c = 0; c < 2; c++) {
		unsigned worst = 0;

		update(a, members, counts[c]);
		for (unsigned last = counts[c] - 12; last < counts[c] + 12; last++) {
			unsigned moved = 0;

			update(a, members, last);
			*b = *a;
			update(b, members, last + 1);
			for (unsigned k = 0; k < 20000; k++) {
				uint32_t old[REPLICAS_MAX], new[REPLICAS_MAX];
				struct page_key key = key_of(k);

				map_owners(a, &key, old);
				map_owners(b, &key, new);
				for (unsigned i = 0; i < 2; i++) {
					const char *name = b->member[new[i]].name;

					moved += strcmp(name, a->member[old[0]].name) &&
						 strcmp(name, a->member[old[1]].name);
				}
			}
			worst = moved > worst ? moved : worst;
		}
		print_message("%u members: at most %.2f * 2 / %u of the entries move\n", counts[c],
			worst / 20000. / 2 * OWNERS_MAX, OWNERS_MAX);
		/* shares of the ring vary by an eighth; those of two owners may move */
		assert_in_range(worst, 0, (unsigned)(2 * 1.5 * 2 * 20000 / OWNERS_MAX));
	}
	free(a);
	free(b);
}

static void removing_a_member_moves_only_its_keys(void **state)
{
	struct map_member members[10];
	struct map_view *all = calloc(1, sizeof(*all)), *less = calloc(1, sizeof(*less));
	unsigned counts[10] = {0};

	(void)state;
	for (unsigned i = 0; i < 10; i++)
		members[i] = map_member_of(i);
	update(all, members, 10);
	update(less, members, 9);
	for (unsigned k = 0; k < 10000; k++) {
		uint32_t before[REPLICAS_MAX], after[REPLICAS_MAX];
		struct page_key key = key_of(k);
		const char *first;

		assert_int_equal(map_owners(all, &key, before), 2);
		assert_int_equal(map_owners(less, &key, after), 2);
		assert_int_not_equal(before[0], before[1]);
		first = all->member[before[0]].name;
		counts[before[0]]++;
		if (strcmp(first, "m9") != 0)
			assert_string_equal(first, less->member[after[0]].name);
		else
			assert_string_equal(
				all->member[before[1]].name, less->member[after[0]].name);
	}
	for (unsigned i = 0; i < 10; i++)
		assert_in_range(counts[i], 500, 1700);
	free(all);
	free(less);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_order_of_members_gives_the_same_map),
		cmocka_unit_test(random_changes_give_the_map_that_one_made_anew_has),
		cmocka_unit_test(one_change_moves_the_keys_of_one_owner),
		cmocka_unit_test(removing_a_member_moves_only_its_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
