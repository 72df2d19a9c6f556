/* SPDX-License-Identifier: Apache-2.0 */
/* The rule of validation by lease, at its limits. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/abi/page.h"

#define L 20000000ull /* 20 ms */

static void the_lease_is_95_percent_of_limbo(void **state)
{
	const uint64_t t0 = 123456789;

	assert_true(lease_valid(t0, t0, L));
	assert_true(lease_valid(t0, t0 + 19000000 - 1, L));
	assert_false(lease_valid(t0, t0 + 19000000, L));
	assert_false(lease_valid(t0, t0 + L, L));
	assert_false(lease_valid(t0, UINT64_MAX, L));
	assert_true(lease_valid(t0, t0 + 9499999999, LEASE_NS_MAX));
	assert_false(lease_valid(t0, t0 + 9500000000, LEASE_NS_MAX));
}

static void a_limbo_that_is_no_multiple_of_100_ns_is_rounded_down(void **state)
{
	assert_true(lease_valid(0, 94, 100));
	assert_false(lease_valid(0, 95, 100));
	assert_true(lease_valid(0, 94, 199));
	assert_false(lease_valid(0, 95, 199));
	assert_false(lease_valid(0, 0, 99));
}

static void without_limbo_nothing_is_valid(void **state)
{
	assert_false(lease_valid(0, 0, 0));
	assert_false(lease_valid(5, 5, 0));
	assert_false(lease_valid(5, 6, 0));
}

/* A difference that wrapped is a huge one, and one that wraps to a small number is refused too. */
static void times_in_the_wrong_order_prove_nothing(void **state)
{
	assert_false(lease_valid(1001, 1000, L));
	assert_false(lease_valid(UINT64_MAX, 0, L));
	assert_false(lease_valid(UINT64_MAX - 5, 5, L));
	assert_false(lease_valid(1, 0, UINT64_MAX));
	assert_true(lease_valid(UINT64_MAX - 5, UINT64_MAX, L));
}

static void an_announced_limbo_is_bounded(void **state)
{
	assert_int_equal(lease_bounded(0), 0);
	assert_int_equal(lease_bounded(1), 1);
	assert_int_equal(lease_bounded(LEASE_NS_MAX), LEASE_NS_MAX);
	assert_int_equal(lease_bounded(LEASE_NS_MAX + 1), 0);
	assert_int_equal(lease_bounded(UINT64_MAX), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_lease_is_95_percent_of_limbo),
		cmocka_unit_test(a_limbo_that_is_no_multiple_of_100_ns_is_rounded_down),
		cmocka_unit_test(without_limbo_nothing_is_valid),
		cmocka_unit_test(times_in_the_wrong_order_prove_nothing),
		cmocka_unit_test(an_announced_limbo_is_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
