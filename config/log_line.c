/* SPDX-License-Identifier: Apache-2.0 */
/* The text of one line of the log; see log_line.h. Any thread; no state. */
#include "config/log_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIME_BYTES 40
#define ESCAPE_BYTES 7 /* "\u001b" and its terminator */

static const char *const level_name[] = {"error", "warn", "info", "debug"};

_Static_assert(TIME_BYTES + 16 + LOG_LINE_BYTES <= LOG_LINE_ROOM, "a text line fits");

/* "2026-11-22T18:30:00.123+01:00" */
static void time_text(const struct timespec *time, char ret[TIME_BYTES])
{
	struct tm day;
	size_t used;
	long minutes;

	localtime_r(&time->tv_sec, &day);
	minutes = day.tm_gmtoff / 60;
	used = strftime(ret, TIME_BYTES, "%FT%T", &day);
	snprintf(ret + used, TIME_BYTES - used, ".%03d%c%02d:%02d", (int)(time->tv_nsec / 1000000),
		minutes < 0 ? '-' : '+', (int)(labs(minutes) / 60 % 100),
		(int)(labs(minutes) % 60));
}

/* The length of the UTF-8 character at `at`; 0: there is none. */
static size_t utf8_bytes(const unsigned char *at)
{
	static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t bytes = 4;
	unsigned code;

	if (at[0] < 0x80)
		return 1;
	if (at[0] < 0xc2 || at[0] > 0xf4)
		return 0;
	if (at[0] < 0xf0)
		bytes = at[0] < 0xe0 ? 2 : 3;
	code = at[0] & (0x7fu >> bytes);
	for (size_t i = 1; i < bytes; i++) {
		if ((at[i] & 0xc0) != 0x80) /* the terminator, too */
			return 0;
		code = code << 6 | (at[i] & 0x3fu);
	}
	if (code < least[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
		return 0;
	return bytes;
}

/* The next character of `*at` as it stands in a JSON string, terminated; returns its length. */
static size_t json_character(const unsigned char **at, char ret[ESCAPE_BYTES])
{
	size_t bytes = utf8_bytes(*at);

	if (bytes == 0) {
		*at += 1;
		return (size_t)snprintf(ret, ESCAPE_BYTES, "\\ufffd");
	}
	if (**at == '"' || **at == '\\')
		snprintf(ret, ESCAPE_BYTES, "\\%c", **at);
	else if (**at < 0x20 || **at == 0x7f)
		snprintf(ret, ESCAPE_BYTES, "\\u%04x", **at);
	else
		snprintf(ret, ESCAPE_BYTES, "%.*s", (int)bytes, (const char *)*at);
	*at += bytes;
	return strlen(ret);
}

static size_t json_line(const char *time, const char *level, const char *text, char *ret)
{
	static const char end[] = "\"}\n";
	const unsigned char *at = (const unsigned char *)text;
	char next[ESCAPE_BYTES];
	size_t used;

	used = (size_t)snprintf(ret, LOG_LINE_ROOM, "{%s%s%s\"level\":\"%s\",\"message\":\"",
		*time ? "\"time\":\"" : "", time, *time ? "\"," : "", level);
	while (*at) {
		size_t bytes = json_character(&at, next);

		if (used + bytes + strlen(end) > LOG_LINE_ROOM)
			break;
		memcpy(ret + used, next, bytes);
		used += bytes;
	}
	memcpy(ret + used, end, strlen(end));
	return used + strlen(end);
}

size_t log_line(enum log_format format, const struct timespec *time, enum log_level level,
	const char *text, char ret[LOG_LINE_ROOM])
{
	char stamp[TIME_BYTES] = "";

	if (time)
		time_text(time, stamp);
	if (format == LOG_JSON)
		return json_line(stamp, level_name[level], text, ret);
	return (size_t)snprintf(ret, LOG_LINE_ROOM, "%s%s%-5s %.*s\n", stamp, time ? " " : "",
		level_name[level], LOG_LINE_BYTES, text);
}
