/* SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON into a buffer that grows, for report.c. The caller frees `text`. Any thread. */
#ifndef CONTROL_REPORT_JSON_H
#define CONTROL_REPORT_JSON_H

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct json {
	char *text;
	size_t bytes, room;
	bool failed; /* an allocation failed: the remaining output is discarded */
	bool comma;  /* the next member of the current object or array needs a comma before it */
};

static inline void json_bytes(struct json *j, const char *text, size_t bytes)
{
	if (j->failed)
		return;
	if (j->bytes + bytes + 1 > j->room) {
		size_t room = (j->bytes + bytes + 1) * 2 + 1024;
		char *bigger = realloc(j->text, room);

		if (!bigger) {
			j->failed = true;
			return;
		}
		j->text = bigger;
		j->room = room;
	}
	memcpy(j->text + j->bytes, text, bytes);
	j->bytes += bytes;
	j->text[j->bytes] = '\0';
}

static inline void json_text(struct json *j, const char *text)
{
	json_bytes(j, text, strlen(text));
}

static inline void json_quoted(struct json *j, const char *text)
{
	json_text(j, "\"");
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;
		char escaped[8];

		if (c == '"' || c == '\\')
			snprintf(escaped, sizeof(escaped), "\\%c", c);
		/* escaped, because names from the network may not be UTF-8 */
		else if (c < 0x20 || c >= 0x7f)
			snprintf(escaped, sizeof(escaped), "\\u%04x", c);
		else
			snprintf(escaped, sizeof(escaped), "%c", c);
		json_text(j, escaped);
	}
	json_text(j, "\"");
}

static inline void json_name(struct json *j, const char *name)
{
	if (j->comma)
		json_text(j, ",");
	j->comma = true;
	if (name) {
		json_quoted(j, name);
		json_text(j, ":");
	}
}

static inline void json_open(struct json *j, const char *name, const char *bracket)
{
	json_name(j, name);
	json_text(j, bracket);
	j->comma = false;
}

static inline void json_close(struct json *j, const char *bracket)
{
	json_text(j, bracket);
	j->comma = true;
}

static inline void json_string(struct json *j, const char *name, const char *value)
{
	json_name(j, name);
	json_quoted(j, value);
}

static inline void json_number(struct json *j, const char *name, int64_t value)
{
	char text[24];

	json_name(j, name);
	snprintf(text, sizeof(text), "%" PRId64, value);
	json_text(j, text);
}

static inline void json_count(struct json *j, const char *name, uint64_t value)
{
	char text[24];

	json_name(j, name);
	snprintf(text, sizeof(text), "%" PRIu64, value);
	json_text(j, text);
}

static inline void json_hex(struct json *j, const char *name, uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%016" PRIx64, value);
	json_string(j, name, text);
}

static inline void json_flag(struct json *j, const char *name, bool value)
{
	json_name(j, name);
	json_text(j, value ? "true" : "false");
}

#endif
