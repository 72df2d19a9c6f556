/* SPDX-License-Identifier: Apache-2.0 */
/* Tests numa/plan_claim.c: the cores of two engines on one machine, and the printed plan. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "numa/pin.h"
#include "numa/plan.h"
#include "tests/unit/numa/folder.h"
#include "tests/unit/numa/plan_world.h"

static void a_core_shared_with_the_control_plane_is_claimed_once(void **state)
{
	struct plan_claims claims;

	machine(FOUR_CORES);
	set("rail.cores=2");
	set("control.core=2");
	assert_int_equal(plan_claim(t, &s, &p, &claims), 0);
	assert_int_equal(claims.count, 1);
	plan_release(&claims);
}

static void a_core_shared_by_rails_is_claimed_once(void **state)
{
	struct plan_claims claims;

	machine(FOUR_CORES);
	set("rail.devices=soft,soft,soft,soft");
	set("rail.poll_cores=1");
	assert_int_equal(plan_claim(t, &s, &p, &claims), 0);
	assert_int_equal(claims.count, 2);
	assert_int_equal(pin_holder(p.rail[3].core), getpid());
	plan_release(&claims);
}

static void without_a_run_directory_nothing_is_claimed(void **state)
{
	struct plan_claims claims;

	machine(FOUR_CORES);
	setenv("PEERCACHE_RUN_DIR", "/proc/nonexistent/here", 1);
	assert_int_equal(plan_claim(t, &s, &p, &claims), 0);
	setenv("PEERCACHE_RUN_DIR", dir, 1);
	assert_int_equal(claims.count, 0);
	assert_int_equal(p.rail[0].core, 1);
	assert_logged("cannot claim them");
}

static void a_plan_is_printed_as_a_table(void **state)
{
	char *out_text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&out_text, &bytes);

	machine(FOUR_CORES);
	set("rail.devices=soft:0,soft:1,soft:2");
	assert_int_equal(make(), 0);
	plan_print(&p, out);
	fclose(out);
	assert_non_null(strstr(
		out_text, "0        soft:0           any    0          1      busy, alone\n"));
	assert_non_null(strstr(
		out_text, "2        soft:2           any    1          2      busy, alone\n"));
	assert_non_null(strstr(out_text, "control                                     0"));
	assert_non_null(strstr(out_text, "note: 4 usable cores"));
	free(out_text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
		TEST(a_core_shared_with_the_control_plane_is_claimed_once),
		TEST(a_core_shared_by_rails_is_claimed_once),
		TEST(without_a_run_directory_nothing_is_claimed),
		TEST(a_plan_is_printed_as_a_table),
	};

	return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
