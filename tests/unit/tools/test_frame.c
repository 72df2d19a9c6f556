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

/* The picture of this report; the caller frees it. */
static char *picture_of(const char *report)
{
	struct frame frame = {.rows = 24, .columns = 80, .report = json_tokener_parse(report)};
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(members_whose_version_is_not_known_are_not_of_another_one),
		cmocka_unit_test(a_figure_that_a_call_lacks_is_a_dash_and_no_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
