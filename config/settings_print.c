/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the settings: the text of --help and the accepted values in error messages, at start-up;
 * the values as JSON, in any thread.
 */
#include "config/setting.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Writes a number of bytes in the largest unit that divides it: "64MiB". */
static void size_text(uint64_t bytes, char *ret, size_t ret_bytes)
{
	static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
	unsigned unit = 0;

	while (bytes && bytes % 1024 == 0 && unit < 4) {
		bytes /= 1024;
		unit++;
	}
	snprintf(ret, ret_bytes, "%" PRIu64 "%s", bytes, units[unit]);
}

static void choices_text(const char *choices, char *ret, size_t ret_bytes)
{
	char word[SETTING_CHOICE_BYTES], next[SETTING_CHOICE_BYTES];
	size_t used = 0;

	ret[0] = '\0';
	for (int i = 0; setting_choice_copy(choices, i, word) && used < ret_bytes; i++) {
		const char *joint = i == 0                                      ? ""
				    : setting_choice_copy(choices, i + 1, next) ? ", "
										: " or ";

		used += (size_t)snprintf(ret + used, ret_bytes - used, "%s%s", joint, word);
	}
}

void setting_range(const struct setting *one, char *ret, size_t ret_bytes)
{
	char low[32], high[32];

	switch (one->type) {
	case SETTING_TEXT:
		snprintf(ret, ret_bytes, "%" PRId64 " to %" PRId64 " characters", one->min,
			one->max);
		break;
	case SETTING_SIZE:
		size_text((uint64_t)one->min, low, sizeof(low));
		size_text((uint64_t)one->max, high, sizeof(high));
		snprintf(ret, ret_bytes, "%s to %s", low, high);
		break;
	case SETTING_NUMBER:
		snprintf(ret, ret_bytes, "%" PRId64 " to %" PRId64 "%s%s", one->min, one->max,
			one->unit[0] ? " " : "", one->unit);
		break;
	case SETTING_FLAG: snprintf(ret, ret_bytes, "yes or no"); break;
	case SETTING_CHOICE: choices_text(one->choices, ret, ret_bytes); break;
	}
}

void settings_help(FILE *out)
{
	const char *section = "";
	char range[128];

	fprintf(out,
		"Settings: in the file under [section] as `key = value`, or on the command line\n"
		"as --set section.key=value. Sizes take KiB, MiB, GiB, TiB; GB and g mean GiB.\n");
	for (unsigned i = 0; i < setting_count; i++) {
		const struct setting *one = &setting_table[i];

		if (strcmp(section, one->section) != 0)
			fprintf(out, "\nSection [%s]:\n", one->section);
		section = one->section;
		setting_range(one, range, sizeof(range));
		fprintf(out, "  %s = %s\n                    %s\n                    (%s)\n",
			one->key, one->fallback, one->help, range);
	}
}

/* A text in quotes. Bytes above 0x7e are written as Latin-1, because a path may not be UTF-8. */
static void print_quoted(FILE *out, const char *text)
{
	fputc('"', out);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		fprintf(out, c == '"' || c == '\\' || c < 0x20 || c > 0x7e ? "\\u%04x" : "%c", c);
	}
	fputc('"', out);
}

static void print_value(FILE *out, const struct setting *one, const void *field)
{
	char word[SETTING_CHOICE_BYTES] = "";
	int64_t number;
	int choice;

	switch (one->type) {
	case SETTING_TEXT: print_quoted(out, field); return;
	case SETTING_SIZE:
	case SETTING_NUMBER:
		memcpy(&number, field, sizeof(number));
		fprintf(out, "%" PRId64, number);
		return;
	case SETTING_FLAG: fputs(*(const bool *)field ? "true" : "false", out); return;
	case SETTING_CHOICE:
		memcpy(&choice, field, sizeof(choice));
		(void)setting_choice_copy(one->choices, choice, word);
		print_quoted(out, word);
		return;
	}
}

char *settings_json(const struct settings *s)
{
	char *text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);

	if (!out)
		return NULL;
	for (unsigned i = 0; i < setting_count; i++) {
		const struct setting *one = &setting_table[i];

		fprintf(out, "%s\"%s.%s\":", i ? "," : "{", one->section, one->key);
		print_value(out, one, (const char *)s + one->offset);
	}
	fputc('}', out);
	if (fclose(out) == 0)
		return text;
	free(text);
	return NULL;
}
