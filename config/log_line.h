/* SPDX-License-Identifier: Apache-2.0 */
/* The text of one line of the log. Any thread; no state. Only log.c and its test include this. */
#ifndef CONFIG_LOG_LINE_H
#define CONFIG_LOG_LINE_H

#include <time.h>

#include "config/log.h"

#define LOG_LINE_ROOM 4096 /* bytes of a line with time, level, escapes and line feed, at most */

/*
 * Writes one line with its line feed, not terminated, and returns its length. The time is RFC 3339
 * with milliseconds and the offset of the local zone; `time` NULL: without time.
 *
 *   LOG_TEXT   2026-11-22T18:30:00.123+01:00 warn  rail 0: port down
 *   LOG_JSON   {"time":"2026-11-22T18:30:00.123+01:00","level":"warn","message":"..."}
 *
 * A JSON line is valid UTF-8 whatever `text` is; a message that does not fit is cut.
 */
size_t log_line(enum log_format format, const struct timespec *time, enum log_level level,
	const char *text, char ret[LOG_LINE_ROOM]);

#endif
