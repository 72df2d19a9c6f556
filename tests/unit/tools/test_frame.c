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

static void members_whose_version_is_not_known_are_not_of_another_one(void **state)
{
	struct frame frame = {.rows = 24, .columns = 80};
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	(void)state;
	assert_non_null(out);
	frame.report = json_tokener_parse(
		"{\"version\":\"1\",\"members\":[{\"state\":\"up\",\"software\":\"1\"},"
		"{\"state\":\"up\",\"software\":\"2\"},{\"state\":\"silent\",\"software\":\"\"},"
		"{\"state\":\"up\"}]}");
	assert_non_null(frame.report);
	frame_print(&frame, out);
	fclose(out);
	if (!strstr(text, "members  3 up, 1 silent, 0 down; 1 of another version"))
		fail_msg("%s", text);
	json_object_put(frame.report);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(members_whose_version_is_not_known_are_not_of_another_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
