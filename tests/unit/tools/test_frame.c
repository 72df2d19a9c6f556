/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the picture of `peercachectl top`, made of a report. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/ctl.h"

static unsigned columns = 80; /* of the terminal */

/* The picture of this report; the caller frees it. */
static char *picture_of(const char *report)
{
	struct frame frame = {.rows = 24, .columns = columns, .report = json_tokener_parse(report)};
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	assert_non_null(out);
	assert_non_null(frame.report);
	frame_print(&frame, out);
	fclose(out);
	json_object_put(frame.report);
	return text;
}

static void assert_shown(const char *report, const char *words)
{
	char *text = picture_of(report);

	if (!strstr(text, words))
		fail_msg("%s", text);
	free(text);
}

static void members_whose_version_is_not_known_are_not_of_another_one(void **state)
{
	(void)state;
	assert_shown(
		"{\"version\":\"1\",\"members\":[{\"state\":\"up\",\"software\":\"1\"},"
		"{\"state\":\"up\",\"software\":\"2\"},{\"state\":\"silent\",\"software\":\"\"},"
		"{\"state\":\"up\"}]}",
		"members  3 up, 1 silent, 0 down; 1 of another version");
}

static void a_figure_that_a_call_lacks_is_a_dash_and_no_number(void **state)
{
	(void)state;
	assert_shown("{}",
		"get           -         -        -      -      -      -       -       -       -\n");
	assert_shown("{\"recent\":{\"set_pages_per_second\":0,\"set_bytes_per_second\":5e6,"
		     "\"set_p50_seconds\":0.001}}",
		"set           0         -        5      -      -      -   1.0ms       -       -\n");
}

/* Each word of a narrow picture that has a digit is a word of the wide one, with its unit. */
static void a_narrow_terminal_has_fewer_columns_and_no_number_that_is_cut(void **state)
{
	static const char report[] =
		"{\"version\":\"1.2.3\",\"uptime_ms\":123456789,\"members\":[{\"state\":\"up\"}],"
		"\"recent\":{\"seconds\":10,\"get_pages_per_second\":123456,"
		"\"get_batches_per_second\":4321,\"get_bytes_per_second\":5e9,\"get_hit_ratio\":0.987,"
		"\"get_p50_seconds\":0.00012,\"get_p99_seconds\":0.0123,\"get_p999_seconds\":1.25},"
		"\"figures\":{\"pool_used_bytes\":57e6,\"pool_bytes\":64e6,\"pool_used_ratio\":0.891,"
		"\"directory_entries\":1234,\"directory_capacity_entries\":56789},"
		"\"rails\":[{\"state\":\"up\",\"figures\":{\"rail_pool_bytes\":64e6,"
		"\"rail_pages\":98765,\"rail_in_flight_operations\":1234}}]}";
	char *wide, *narrow, *line, *rest = NULL;

	(void)state;
	wide = picture_of(report);
	for (columns = 79; columns >= 10; columns--) {
		narrow = picture_of(report);
		for (line = strtok_r(narrow, "\n", &rest); line;
			line = strtok_r(NULL, "\n", &rest)) {
			size_t bytes = strlen(line);
			const char *whole = strstr(wide, line);

			assert_in_range(bytes, 0, columns);
			assert_non_null(whole);
			/* what follows is a blank, a comma, or the unit of no number */
			assert_non_null(strchr(" \n,;", whole[bytes]));
			if (bytes && line[bytes - 1] >= '0' && line[bytes - 1] <= '9' &&
				whole[bytes] == ' ' && whole[bytes + 1] >= 'A')
				fail_msg("%s", line);
		}
		free(narrow);
	}
	columns = 80;
	free(wide);
	/* whole columns */
	columns = 50;
	assert_shown(report, "call    pages/s batches/s     MB/s    hit  local\n"
			     "get        123k      4321     5000  98.7%      -\n");
	assert_shown(report, "rail state      pool   used   pages read MB/s\n");
	columns = 80;
}

static void what_a_full_pool_costs_is_one_line(void **state)
{
	(void)state;
	assert_shown("{}", "usable     - of exists; eviction age -; - back in a minute\n");
	assert_shown("{\"recent\":{\"exists_usable_ratio\":0.881,\"again_soon_ratio\":0.012,"
		     "\"eviction_age_seconds\":7380.5}}",
		"usable     88.1% of exists; eviction age 2 h 3 min; 1.2% back in a minute\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(members_whose_version_is_not_known_are_not_of_another_one),
		cmocka_unit_test(what_a_full_pool_costs_is_one_line),
		cmocka_unit_test(a_figure_that_a_call_lacks_is_a_dash_and_no_number),
		cmocka_unit_test(a_narrow_terminal_has_fewer_columns_and_no_number_that_is_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
