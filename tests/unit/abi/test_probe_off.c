/* SPDX-License-Identifier: Apache-2.0 */
/* Without sys/sdt.h probes compile, warn of nothing and evaluate nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#undef PEERCACHE_USDT
#include "engine/abi/probe.h"

static uint32_t looked;

/* `used`: to clang it is not. */
__attribute__((used)) static uint32_t look(void)
{
	return ++looked;
}

static void nothing_is_evaluated(void **state)
{
	uint64_t cookie = 1; /* used by a probe alone */

	(void)state;
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
	const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_evaluated)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
