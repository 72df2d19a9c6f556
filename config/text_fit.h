/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text for people in a buffer of fixed size. One that is too long ends behind its last whole word
 * with " ...", so that no number and no name in it is a part of another one. Any thread.
 */
#ifndef CONFIG_TEXT_FIT_H
#define CONFIG_TEXT_FIT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/*
 * The text has lost its end in a buffer of `bytes`: ends it behind a whole word. One word that is
 * longer than half of the buffer, such as a path, is cut between two characters.
 */
static inline void text_cut(char *text, size_t bytes)
{
	static const char mark[] = " ...";
	size_t most = bytes > sizeof(mark) ? bytes - sizeof(mark) : 0, end = most;

	while (end > most / 2 && !strchr(" ,\n", text[end]))
		end--;
	if (end == most / 2)
		for (end = most; end && ((unsigned char)text[end] & 0xc0) == 0x80;)
			end--;
	if (most)
		memcpy(text + end, mark, sizeof(mark));
}

/* Like vsnprintf(). */
__attribute__((format(printf, 3, 0))) static inline void text_vfit(
	char *text, size_t bytes, const char *format, va_list arguments)
{
	int length = vsnprintf(text, bytes, format, arguments);

	if (length > 0 && (size_t)length >= bytes)
		text_cut(text, bytes);
}

/* Like snprintf(). */
__attribute__((format(printf, 3, 4))) static inline void text_fit(
	char *text, size_t bytes, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	text_vfit(text, bytes, format, arguments);
	va_end(arguments);
}

#endif
