/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a settings file. inih parses the lines; this file tracks line numbers, joins continued
 * lists, detects settings that are given twice, and reports all problems together. Start-up only,
 * one thread.
 *
 *   [cluster]
 *   seeds = 10.0.0.1:31998,
 *           10.0.0.2:31998        an indented line continues a list that ends in a comma
 */
#include "config/setting.h"
#include "config/text_fit.h"

#include <errno.h>
#include <ini.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define PROBLEMS_MAX 16 /* problems in a file that are reported; further ones are only counted */
/* bytes kept of a value: more than any TEXT may have, so a long value is refused, not truncated */
#define RAW_BYTES 1200
/* bytes of the longest line of a file; less than the line buffer of inih */
#define LINE_BYTES 190

struct load {
	const char *path;
	FILE *file;
	unsigned line;      /* number of the line that inih is parsing, from 1 */
	bool indented;      /* the line that inih is parsing starts with a space or a tab */
	int last;           /* index of the setting in the previous line; -1: unknown or none */
	char last_name[64]; /* key in the previous line */
	char *err;
	size_t err_bytes;
	size_t err_used;
	unsigned problems;
	unsigned given[SETTINGS_MAX];      /* number of the line that sets each setting; 0: none */
	char raw[SETTINGS_MAX][RAW_BYTES]; /* value of each setting, not yet parsed */
};

/* Appends one problem of the settings file, with its path and line number, to the error text. */
__attribute__((format(printf, 3, 4))) static void problem(
	struct load *l, unsigned line, const char *format, ...)
{
	char text[512];
	va_list args;
	int used;

	if (l->problems++ >= PROBLEMS_MAX || l->err_used >= l->err_bytes)
		return;
	va_start(args, format);
	text_vfit(text, sizeof(text), format, args);
	va_end(args);
	used = snprintf(l->err + l->err_used, l->err_bytes - l->err_used, "%s%.120s:%u: %s",
		l->err_used ? "\n" : "", l->path, line, text);
	if (used > 0)
		l->err_used += (size_t)used;
}

/*
 * The reader callback of inih: returns one whole line. A line that does not fit inih's buffer is
 * reported as a problem, because inih would take its rest for a second line.
 */
static char *read_line(char *buffer, int bytes, void *stream)
{
	struct load *l = stream;
	char *line = NULL;
	size_t line_bytes = 0;
	ssize_t got = getline(&line, &line_bytes, l->file);

	if (got < 0) {
		free(line);
		return NULL;
	}
	l->line++;
	if (strlen(line) != (size_t)got) {
		problem(l, l->line, "a zero byte; this is not a text file");
		line[0] = '\0';
	} else if (got > LINE_BYTES || got + 2 > bytes) {
		problem(l, l->line,
			"%.40s...: line longer than %d characters; end it after a comma and continue the list on an indented line",
			line, LINE_BYTES);
		line[0] = '\0';
	}
	l->indented = line[0] == ' ' || line[0] == '\t';
	snprintf(buffer, (size_t)bytes, "%s", line[0] ? line : "\n");
	free(line);
	return buffer;
}

static void continue_list(struct load *l, const char *value)
{
	const struct setting *one = &setting_table[l->last];
	char *raw = l->raw[l->last];
	size_t used = strlen(raw);

	if (!setting_is_list(one) || used == 0 || raw[used - 1] != ',') {
		problem(l, l->line,
			"%s.%s = %.80s: this indented line would continue the setting above it; remove the blanks, or end the list above with a comma",
			one->section, one->key, value);
		return;
	}
	snprintf(raw + used, RAW_BYTES - used, "%s", value);
}

/*
 * The handler callback of inih, called for each key = value. Always returns 1 (success), so that
 * inih continues after a problem and later problems are found too.
 */
static int take_pair(void *user, const char *section, const char *key, const char *value)
{
	struct load *l = user;
	bool continues = l->indented && strcmp(key, l->last_name) == 0;
	char hint[128];

	if (continues) {
		if (l->last >= 0)
			continue_list(l, value);
		return 1;
	}
	snprintf(l->last_name, sizeof(l->last_name), "%s", key);
	l->last = setting_find(section, key, hint, sizeof(hint));
	if (section[0] == '\0') {
		problem(l, l->line, "%s = %.80s: before any [section]; %s", key, value, hint);
	} else if (l->last < 0) {
		problem(l, l->line, "%s.%s = %.80s: unknown setting; %s", section, key, value,
			hint);
	} else if (l->given[l->last]) {
		problem(l, l->line,
			"%s.%s = %.80s: already given on line %u; remove one of the two", section,
			key, value, l->given[l->last]);
		l->last = -1;
	} else {
		l->given[l->last] = l->line;
		snprintf(l->raw[l->last], RAW_BYTES, "%s", value);
	}
	return 1;
}

/* Parses the values that were read from the file; every refused value becomes a problem. */
static void apply(struct load *l, struct settings *s)
{
	char why[256];

	for (unsigned i = 0; i < setting_count; i++) {
		const struct setting *one = &setting_table[i];

		if (l->given[i] && setting_parse(one, l->raw[i], s, why, sizeof(why)) < 0)
			problem(l, l->given[i], "%s.%s = %.80s: %s", one->section, one->key,
				l->raw[i], why);
	}
}

int settings_load(struct settings *s, const char *path, char *err, size_t err_bytes)
{
	struct settings fresh = *s;
	struct load *l = calloc(1, sizeof(*l));
	int syntax_line, rc = 0;

	if (!l)
		return -ENOMEM;
	static_assert(sizeof(struct settings) < 65536, "a copy of the settings fits on the stack");
	assert(setting_count <= SETTINGS_MAX);
	*l = (struct load){.path = path, .last = -1, .err = err, .err_bytes = err_bytes};
	l->file = fopen(path, "re");
	if (!l->file) {
		rc = -errno;
		snprintf(err, err_bytes, "%s: cannot open: %s; check the path and its permissions",
			path, strerror(-rc));
		goto out_free;
	}
	syntax_line = ini_parse_stream(read_line, l, take_pair, l);
	if (ferror(l->file)) {
		rc = -EIO;
		snprintf(err, err_bytes, "%s: cannot read: is it a directory?", path);
		goto out_close;
	}
	if (syntax_line != 0)
		problem(l, (unsigned)syntax_line,
			"neither [section] nor key = value; correct the line or begin it with # to make it a comment");
	apply(l, &fresh);
	if (l->problems) {
		rc = -EINVAL;
		if (l->problems > PROBLEMS_MAX && l->err_used < err_bytes)
			snprintf(err + l->err_used, err_bytes - l->err_used, "\nand %u more",
				l->problems - PROBLEMS_MAX);
		goto out_close;
	}
	*s = fresh;
out_close:
	fclose(l->file);
out_free:
	free(l);
	return rc;
}
