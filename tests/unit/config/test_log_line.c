/* SPDX-License-Identifier: Apache-2.0 */
/* One line of the log: RFC 3339 time with the zone's offset, text and JSON. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log_line.h"

static char line[LOG_LINE_ROOM + 1];

static const char *made(enum log_format format, const struct timespec *time, const char *text)
{
	size_t bytes = log_line(format, time, LOG_WARN, text, line);

	assert_true(bytes <= LOG_LINE_ROOM);
	line[bytes] = '\0';
	assert_int_equal(strlen(line), bytes);
	assert_int_equal(line[bytes - 1], '\n');
	assert_ptr_equal(strchr(line, '\n'), line + bytes - 1);
	return line;
}

static void zone(const char *name)
{
	setenv("TZ", name, 1);
	tzset();
}

static void the_time_has_the_offset_of_the_zone(void **state)
{
	const struct timespec time = {.tv_sec = 1763836200, .tv_nsec = 45999999};

	zone("UTC");
	assert_string_equal(made(LOG_TEXT, &time, "port down"),
		"2025-11-22T18:30:00.045+00:00 warn  port down\n");
	zone("XXX-5:30"); /* POSIX: hours to add for UTC */
	assert_string_equal(made(LOG_TEXT, &time, "port down"),
		"2025-11-23T00:00:00.045+05:30 warn  port down\n");
	zone("XXX3:30");
	assert_string_equal(made(LOG_JSON, &time, "port down"),
		"{\"time\":\"2025-11-22T15:00:00.045-03:30\",\"level\":\"warn\",\"message\":\"port down\"}\n");
	zone("UTC");
}

static void json_escapes_what_json_requires(void **state)
{
	assert_string_equal(made(LOG_JSON, NULL, "a\"b\\c\n\t\x1b[31m\x7f/"),
		"{\"level\":\"warn\",\"message\":\"a\\\"b\\\\c\\u000a\\u0009\\u001b[31m\\u007f/\"}\n");
	assert_string_equal(made(LOG_JSON, NULL, ""), "{\"level\":\"warn\",\"message\":\"\"}\n");
}

/* Overlong forms, halves of surrogates, codes above U+10FFFF and cut characters are no UTF-8. */
static void json_is_utf_8_whatever_the_message_is(void **state)
{
	assert_string_equal(made(LOG_JSON, NULL, "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
		"{\"level\":\"warn\",\"message\":\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"}\n");
	assert_string_equal(made(LOG_JSON, NULL, "\xc0\xaf"),
		"{\"level\":\"warn\",\"message\":\"\\ufffd\\ufffd\"}\n");
	assert_string_equal(made(LOG_JSON, NULL, "\xe0\x80\xaf"),
		"{\"level\":\"warn\",\"message\":\"\\ufffd\\ufffd\\ufffd\"}\n");
	assert_string_equal(made(LOG_JSON, NULL, "\xed\xa0\x80"),
		"{\"level\":\"warn\",\"message\":\"\\ufffd\\ufffd\\ufffd\"}\n");
	assert_string_equal(made(LOG_JSON, NULL, "\xf4\x90\x80\x80"),
		"{\"level\":\"warn\",\"message\":\"\\ufffd\\ufffd\\ufffd\\ufffd\"}\n");
	assert_string_equal(made(LOG_JSON, NULL, "\xfc\x80\x80\x80"),
		"{\"level\":\"warn\",\"message\":\"\\ufffd\\ufffd\\ufffd\\ufffd\"}\n");
	assert_string_equal(made(LOG_JSON, NULL, "x\xe2\x82"),
		"{\"level\":\"warn\",\"message\":\"x\\ufffd\\ufffd\"}\n");
	assert_string_equal(
		made(LOG_JSON, NULL, "\xff"), "{\"level\":\"warn\",\"message\":\"\\ufffd\"}\n");
}

/* Each byte becomes six: the message is cut behind an escape, and the object is still whole. */
static void a_message_that_does_not_fit_is_cut_between_characters(void **state)
{
	char text[LOG_LINE_BYTES];
	const struct timespec time = {.tv_sec = 0};
	size_t bytes;

	text[sizeof(text) - 1] = '\0';
	for (size_t plain = 0; plain < 6; plain++) { /* the room ends at each byte of an escape */
		memset(text, 1, sizeof(text) - 1);
		memset(text, 'x', plain);
		made(LOG_JSON, &time, text);
		bytes = strlen(line);
		assert_true(bytes > LOG_LINE_ROOM - 6);
		assert_string_equal(line + bytes - 9, "\\u0001\"}\n");
	}
	memset(text, 'x', sizeof(text) - 1);
	assert_int_equal(strlen(made(LOG_TEXT, NULL, text)), 6 + sizeof(text) - 1 + 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_time_has_the_offset_of_the_zone),
		cmocka_unit_test(json_escapes_what_json_requires),
		cmocka_unit_test(json_is_utf_8_whatever_the_message_is),
		cmocka_unit_test(a_message_that_does_not_fit_is_cut_between_characters),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
