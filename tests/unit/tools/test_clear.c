/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the exit status of `peercachectl clear --cluster`: any host that may have pages is a 1. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>

#include "tools/common.h"
#include "tools/ctl.h"

/* What the library and the engine say. */
static const char *report, *host_failed;
static int cluster_rc;

json_object *__wrap_engine_report(struct pc *pc);
json_object *__wrap_engine_report(struct pc *pc)
{
	(void)pc;
	return json_tokener_parse(report);
}

int __wrap_pc_clear_cluster(struct pc_channel *ch, const char *group, unsigned timeout_ms,
	pc_cleared_call told, void *context);
int __wrap_pc_clear_cluster(struct pc_channel *ch, const char *group, unsigned timeout_ms,
	pc_cleared_call told, void *context)
{
	(void)ch;
	(void)group;
	(void)timeout_ms;
	told(context, &(struct pc_cleared){.engine = 1, .pages = 5, .failed = host_failed}, 0);
	return cluster_rc;
}

static void the_status_is_0_only_if_all_hosts_are_known_to_be_empty(void **state)
{
	static const struct {
		int status, rc;
		const char *failed, *report;
	} row[] = {
		{0, 0, NULL, "{}"},
		/* one member is dead, by each of the ways to know it alone */
		{1, 0, NULL, "{\"members_down\":[{\"name\":\"b\",\"state_ms\":5000}]}"},
		{1, 0, NULL, "{\"members_down_unlisted\":1}"},
		{1, -EHOSTUNREACH, NULL, "{}"},
		{1, 0, "it does not answer", "{}"},
		{1, -EHOSTUNREACH, "it does not answer", "{}"},
	};

	(void)state;
	for (unsigned i = 0; i < 2 * sizeof(row) / sizeof(row[0]); i++) {
		struct ctl_run ctl = {.cluster = true, .json = i % 2};

		report = row[i / 2].report;
		host_failed = row[i / 2].failed;
		cluster_rc = row[i / 2].rc;
		assert_int_equal(ctl_clear(&ctl), row[i / 2].status);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_status_is_0_only_if_all_hosts_are_known_to_be_empty),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
