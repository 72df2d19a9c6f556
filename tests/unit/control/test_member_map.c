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

static void expect_sane(const struct map_view *view, unsigned members)
{
	assert_true(map_view_sane(view));
	assert_int_equal(view->members, members);
	for (uint32_t i = 1; i < view->points; i++)
		assert_true(view->point[i - 1].at <= view->point[i].at);
	for (uint32_t i = 1; i < view->members; i++)
		assert_true(strcmp(view->member[i - 1].name, view->member[i].name) < 0);
}

static void every_order_of_members_gives_the_same_map(void **state)
{
	struct map_member members[NODES_MAX], turned[NODES_MAX];
	struct map_view *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));

	(void)state;
	for (unsigned count = 1; count <= NODES_MAX; count = count * 2 + 1 < NODES_MAX
								     ? count * 2 + 1
							     : count < NODES_MAX ? NODES_MAX
										 : NODES_MAX + 1) {
		for (unsigned i = 0; i < count; i++) {
			members[i] = map_member_of(i);
			turned[count - 1 - i] = members[i];
		}
		member_map_build(a, members, count, 2);
		member_map_build(b, turned, count, 2);
		expect_sane(a, count);
		assert_memory_equal(a, b, sizeof(*a));
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
	member_map_build(all, members, 10, 2);
	member_map_build(less, members, 9, 2);
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
		cmocka_unit_test(removing_a_member_moves_only_its_keys),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
