/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Without sys/sdt.h the USDT probes compile without warnings and do not evaluate their arguments.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#undef PEERCACHE_USDT
#include "engine/abi/probe.h"

static uint32_t looked;

/*
 * Has the attribute `used`, because clang sees no call that is evaluated and would warn of an
 * unused function.
 */
__attribute__((used)) static uint32_t look(void)
{
	return ++looked;
}

static void probes_without_sdt_evaluate_no_argument(void **state)
{
	uint64_t cookie = 1; /* used only as the argument of a probe */

	PROBE_SUBMIT(look(), cookie, look(), look(), look());
	PROBE_TAKE(look(), cookie, look(), look(), look());
	PROBE_POST(look(), cookie, look(), look(), look());
	PROBE_COMPLETION(look(), cookie, look(), look(), look());
	PROBE_STALE(look(), cookie, look(), look(), look());
	PROBE_EVICT(look(), look(), look());
	PROBE_RAIL_DOWN(look(), look(), look());
	assert_int_equal(looked, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(probes_without_sdt_evaluate_no_argument)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
