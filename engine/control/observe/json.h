/* SPDX-License-Identifier: Apache-2.0 */
/* Writing JSON to a stream. Any thread. */
#ifndef CONTROL_JSON_H
#define CONTROL_JSON_H

#include <stdio.h>

/* Writes a string with its quotes. Bytes above 0x7e are written as Latin-1: names may not be UTF-8.
 */
static inline void json_string(FILE *f, const char *text)
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
