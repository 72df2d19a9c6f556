/* SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON to a stream in memory; see json_inner.h. Any thread. */
#include "engine/control/observe/json_inner.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

int json_begin(struct json *j)
{
	*j = (struct json){.comma = false};
	j->f = open_memstream(&j->text, &j->bytes);
	return j->f ? 0 : -ENOMEM;
}

int json_end(struct json *j, char **ret_text, size_t *ret_bytes)
{
	bool failed = ferror(j->f) != 0;

	if (fclose(j->f) || failed) {
		free(j->text);
		return -ENOMEM;
	}
	*ret_text = j->text;
	*ret_bytes = j->bytes;
	return 0;
}

static void json_quoted(FILE *f, const char *text)
{
	fputc('"', f);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\' || c < 0x20 || c >= 0x7f)
			fprintf(f, "\\u%04x", c);
		else
			fputc(c, f);
	}
	fputc('"', f);
}

static void json_name(struct json *j, const char *name)
{
	if (j->comma)
		fputc(',', j->f);
	j->comma = true;
	if (name) {
		json_quoted(j->f, name);
		fputc(':', j->f);
	}
}

void json_open(struct json *j, const char *name, const char *bracket)
{
	json_raw(j, name, bracket);
	j->comma = false;
}

void json_close(struct json *j, const char *bracket)
{
	fputs(bracket, j->f);
	j->comma = true;
}

void json_string(struct json *j, const char *name, const char *value)
{
	json_name(j, name);
	json_quoted(j->f, value);
}

void json_number(struct json *j, const char *name, int64_t value)
{
	json_name(j, name);
	fprintf(j->f, "%" PRId64, value);
}

void json_count(struct json *j, const char *name, uint64_t value)
{
	json_name(j, name);
	fprintf(j->f, "%" PRIu64, value);
}

void json_flag(struct json *j, const char *name, bool value)
{
	json_raw(j, name, value ? "true" : "false");
}

void json_hex(struct json *j, const char *name, uint64_t value)
{
	json_name(j, name);
	fprintf(j->f, "\"%016" PRIx64 "\"", value);
}

void json_raw(struct json *j, const char *name, const char *value)
{
	json_name(j, name);
	fputs(value, j->f);
}

void json_real(struct json *j, const char *name, double value)
{
	json_name(j, name);
	number_print(j->f, value);
}

void number_print(FILE *f, double value)
{
	bool whole = value > -0x1p53 && value < 0x1p53 && (double)(int64_t)value == value;

	fprintf(f, whole ? "%.0f" : "%.15g", value);
}
