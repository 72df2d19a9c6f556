/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot as JSON text, for tools and tests: engine, members, rails, counters, clients; and JSON
 * strings for those who write to a stream. Any thread.
 */
#ifndef CONTROL_REPORT_INNER_H
#define CONTROL_REPORT_INNER_H

#include <stddef.h>
#include <stdio.h>

struct health;
struct snapshot;

/*
 * With `health`, the report also has its findings and the latency histograms as bucket counts, for
 * percentiles of the time between two reports; NULL: without. Returns 0 with a zero-terminated
 * text of *ret_bytes characters, which the caller frees, or -ENOMEM.
 */
int report_make(const struct snapshot *snapshot, const struct health *health, char **ret_text,
	size_t *ret_bytes);

/*
 * Writes `text` as a JSON string. Bytes above 0x7e are written as Latin-1: names may not be UTF-8.
 */
static inline void json_print(FILE *f, const char *text)
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

#endif
