/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages for people, on stderr: one line each, with time and level. Slow path only; any thread.
 *
 * Repeats are counted, not repeated: the same text from the same place in the code is printed once
 * in LOG_WINDOW_NS, then "last message repeated N times". A place that says LOG_BURST different
 * things in one window is cut off until the next, and says how many messages were left out.
 *
 * A stderr that is not read (a full pipe, a stopped terminal) stops no thread: after LOG_WAIT_MS
 * the line is dropped, later ones at once. When it is read again, a line says how many.
 *
 *   log_warn("rail %s: port down; its pages are served by the other rails", name);
 */
#ifndef CONFIG_LOG_H
#define CONFIG_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG }; /* as the choices of log.level */

#define LOG_WINDOW_NS 10000000000ull
#define LOG_BURST 20
#define LOG_LINE_BYTES 1024 /* a longer message is cut */
#define LOG_WAIT_MS 100     /* for room in stderr, once, until a line fits again */

/* One place in the code that logs; under log.c's lock. */
struct log_site {
	struct log_site *next; /* sites that owe a line about repeats */
	bool owes;
	uint64_t window_ns; /* when its window began */
	uint64_t last_hash; /* of the text printed last */
	unsigned printed;   /* in this window */
	unsigned repeats;   /* of the text printed last, since it was printed */
	unsigned dropped;   /* other texts left out of this window */
	enum log_level level;
	char last[64]; /* beginning of the text printed last */
};

#define log_error(...) log_at(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_at(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_at(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_at(LOG_DEBUG, __VA_ARGS__)

#define log_at(level, ...)                                                                         \
	do {                                                                                       \
		static struct log_site log_site_;                                                  \
		log_write(&log_site_, level, __VA_ARGS__);                                         \
	} while (0)

/* Use the macros above. Keeps errno. */
__attribute__((format(printf, 3, 4))) void log_write(
	struct log_site *site, enum log_level level, const char *format, ...);

/* The least important level that is printed; LOG_INFO at start. */
void log_level_set(enum log_level level);

/* Prints what is owed about repeats: the control plane now and then, and everybody before exit. */
void log_flush(void);

/* Tests only: lines go to `buffer` (cut when full, always terminated) without time; NULL: stderr.
 */
void log_test_capture(char *buffer, size_t bytes);
/* Tests only: the time that windows are measured by; 0 goes back to real time. */
void log_test_clock(uint64_t now_ns);

#endif
