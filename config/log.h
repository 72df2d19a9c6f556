/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: messages for people, on stderr, one line each, with time and level. Any thread may call
 * it, on the slow path only.
 *
 * Repeats are counted, not printed: the same text from the same call site is printed once in a
 * window of LOG_WINDOW_NS, followed by "last message repeated N times". A call site that logs more
 * than LOG_BURST different texts in one window is suppressed until the window ends; then the log
 * prints how many messages were dropped.
 *
 * A stderr that is not read (a full pipe, a stopped terminal) blocks no thread: the log waits
 * LOG_WAIT_MS once, drops the line, and then drops further lines without waiting. When stderr
 * accepts lines again, the first line says how many are missing.
 *
 * Where stderr is systemd's journal ($JOURNAL_STREAM names it), a line begins with its priority, as
 * sd-daemon(3) says, and has no time of its own, because the journal adds one.
 *
 *   log_warn("rail %s: port down; its pages are served by the other rails", name);
 */
#ifndef CONFIG_LOG_H
#define CONFIG_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Levels of a message, in the order of the words of the setting log.level. */
enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* Formats of a line, in the order of the words of the setting log.format: see log_line.h. */
enum log_format { LOG_TEXT, LOG_JSON };

#define LOG_WINDOW_NS 10000000000ull /* length of the counting window of a call site */
/* messages that a call site may print in one counting window */
#define LOG_BURST 20
#define LOG_LINE_BYTES 1024 /* bytes of the longest line; a longer message is truncated */
/* longest wait for stderr to have room; after it no line waits until one is written */
#define LOG_WAIT_MS 100

/* State of one call site of the log macros; protected by the lock of log.c. */
struct log_site {
	struct log_site *next; /* next call site in log.c's list of sites with unprinted counts */
	bool owes; /* true: the call site is in log.c's list of sites with unprinted counts */
	uint64_t window_ns; /* start of the call site's counting window, CLOCK_MONOTONIC */
	uint64_t last_hash; /* hash of the last printed text */
	unsigned printed;   /* messages printed in this counting window */
	unsigned repeats;   /* repeats of the last printed text that are not reported yet */
	/* other messages dropped in this counting window that are not reported yet */
	unsigned dropped;
	enum log_level level; /* level of the last printed message */
	char last[64];        /* start of the last printed message */
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

/*
 * Logs one message; called only through the macros log_error() to log_at(), also by the module that
 * dv/module.c loads. Preserves errno.
 */
__attribute__((format(printf, 3, 4), visibility("default"))) void log_write(
	struct log_site *site, enum log_level level, const char *format, ...);

/*
 * Writes lines to stderr as they are, for people who started the program by hand; in the journal
 * with the priority of `level`. Waits for stderr as long as it takes.
 */
void log_plain(enum log_level level, const char *text);

/* Sets the least important level that is printed. Until the first call it is LOG_INFO. */
void log_level_set(enum log_level level);
/* The format of all further lines; LOG_TEXT at start. Looks anew whether stderr is the journal. */
void log_format_set(enum log_format format);

/*
 * Prints all unprinted counts of repeated, dropped and lost lines. The control plane calls it
 * regularly; every program calls it before it exits.
 */
void log_flush(void);

/*
 * Tests only: lines go to `buffer`, without the time; the text is truncated when the buffer is full
 * and always zero-terminated. NULL: lines go to stderr again.
 */
void log_test_capture(char *buffer, size_t bytes);
/* Tests only: sets the time, in ns, that the counting windows use; 0: CLOCK_MONOTONIC again. */
void log_test_clock(uint64_t now_ns);

#endif
