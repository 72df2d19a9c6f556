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

#include "tools/ctl_top.c"

json_object *ctl_report(struct ctl_run *ctl)
{
	return NULL;
}

void ctl_deadline(const struct ctl_run *ctl)
{
}

int ctl_no_answer(const struct ctl_run *ctl, const char *why)
{
	(void)ctl, (void)why;
	return CTL_NO_ANSWER;
}

/* The picture of this report; the caller frees it. */
static char *picture_of(const char *report)
{
	json_object *parsed = json_tokener_parse(report);
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	assert_non_null(out);
	assert_non_null(parsed);
	picture_print(parsed, out);
	fclose(out);
	json_object_put(parsed);
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
	assert_shown(
		"{\"version\":\"1\",\"members\":[{\"state\":\"up\",\"software\":\"1\"},"
		"{\"state\":\"up\",\"software\":\"2\"},{\"state\":\"silent\",\"software\":\"\"},"
		"{\"state\":\"up\"}]}",
		"members  3 up, 1 silent, 0 down; 1 of another version");
}

static void a_figure_that_a_call_lacks_is_a_dash_and_no_number(void **state)
{
	assert_shown("{}",
		"get           -         -        -      -      -      -       -       -       -\n");
	assert_shown("{\"recent\":{\"set_pages_per_second\":0,\"set_bytes_per_second\":5e6,"
		     "\"set_p50_seconds\":0.001}}",
		"set           0         -        5      -      -      -   1.0ms       -       -\n");
}

static void a_long_line_is_cut_at_a_word(void **state)
{
	assert_shown(
		"{\"health\":{\"findings\":[{\"severity\":\"warning\",\"id\":\"seed_silent\","
		"\"text\":\"seed 10.0.0.1:31998 has led to no member for 12 s: connection refused\"}]}}",
		"  warning  seed_silent: seed 10.0.0.1:31998 has led to no member for 12 s: ...\n");
}

static void of_many_rails_and_findings_the_first_are_shown_in_24_lines(void **state)
{
	char report[2048] = "{\"rails\":[{}", *text;
	unsigned lines = 0;

	for (unsigned i = 0; i < 11; i++)
		strcat(report, ",{}");
	strcat(report, "],\"health\":{\"findings\":[{}");
	for (unsigned i = 0; i < 5; i++)
		strcat(report, ",{}");
	strcat(report, "]}}");
	assert_shown(report, "  3 more: peercachectl health\n");
	assert_shown(report, "8 more rails: peercachectl status\n");
	text = picture_of(report);
	for (const char *at = text; *at; at++)
		lines += *at == '\n';
	free(text);
	assert_int_equal(lines, 24);
}

static void what_a_full_pool_costs_is_one_line(void **state)
{
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
		cmocka_unit_test(a_long_line_is_cut_at_a_word),
		cmocka_unit_test(of_many_rails_and_findings_the_first_are_shown_in_24_lines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
