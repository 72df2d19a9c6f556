/* SPDX-License-Identifier: Apache-2.0 */
/* rpc.c: how often a name that cannot be resolved is logged. Time is an argument. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/control/net/rpc.c"

#define SECOND 1000000000ull
#define START (10000 * SECOND)

static unsigned lines_in(struct rpc *rpc, const char *name, uint64_t from_s, uint64_t to_s)
{
	unsigned lines = 0;

	for (uint64_t now_s = from_s; now_s < to_s; now_s++)
		lines += rpc_unresolved_line(rpc, name, START + now_s * SECOND);
	return lines;
}

static void a_name_is_logged_at_once_and_then_at_growing_intervals(void **state)
{
	struct rpc rpc = {0};

	(void)state;
	assert_true(rpc_unresolved_line(&rpc, "a", START));
	assert_false(rpc_unresolved_line(&rpc, "a", START + SECOND / 2));
	assert_in_range(lines_in(&rpc, "a", 1, 86400), 30, 40);
	/* after a long time in which it was not tried, it is new */
	assert_true(rpc_unresolved_line(&rpc, "a", START + 200000 * SECOND));
}

static void any_number_of_names_cause_few_lines(void **state)
{
	struct rpc rpc = {0};
	unsigned lines = 0;
	char name[16];

	(void)state;
	for (unsigned i = 0; i < 10000; i++) {
		snprintf(name, sizeof(name), "name-%u", i);
		lines += rpc_unresolved_line(&rpc, name, START + i * SECOND / 20);
	}
	assert_int_equal(lines, RPC_UNRESOLVED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_name_is_logged_at_once_and_then_at_growing_intervals),
		cmocka_unit_test(any_number_of_names_cause_few_lines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
