/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow-path log. Formats a message, decides for its call site whether to print it, to count it
 * as a repeat or to drop it, and writes one line to stderr with one system call. Any thread; one
 * mutex serializes them.
 */
#include "config/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log_line.h"
#include "config/text_fit.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* `lock` protects all static variables of this file. */
static enum log_level level_max = LOG_INFO;
static enum log_format line_format = LOG_TEXT;
/* list of the call sites that have unprinted counts of repeats or drops */
static struct log_site *owing;
static char *capture;
static size_t capture_bytes;
static size_t capture_used;
static uint64_t test_now_ns;
static int in_journal = -1; /* 1: stderr is the journal; -1: not known yet */
static uint64_t lost;       /* log lines dropped since stderr last accepted one */

static uint64_t now_ns(void)
{
	return test_now_ns ? test_now_ns : clock_monotonic_ns();
}

/* Returns the FNV-1a hash of `text`, with which repeats are found without comparing whole lines. */
static uint64_t hash_text(const char *text)
{
	uint64_t hash = 0xcbf29ce484222325ull;

	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * 0x100000001b3ull;
	return hash;
}

/* ---- stderr ---------------------------------------------------------------------------------- */

/* bytes of a line with the journal's prefix */
#define LINE_BYTES (LOG_LINE_ROOM + JOURNAL_PREFIX_BYTES)
#define JOURNAL_PREFIX_BYTES 3

_Static_assert(LOG_LINE_ROOM <= PIPE_BUF, "a write of one line to a pipe is atomic");

/*
 * Is stderr the stream that systemd has connected with the journal? The variable alone does not say
 * so: a child inherits it whose output goes elsewhere.
 */
static bool to_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat st;

	if (in_journal < 0)
		in_journal = stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
			     fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device &&
			     st.st_ino == inode;
	return in_journal && !capture;
}

/* The priority of a level, as in syslog(3). */
static int priority(enum log_level level)
{
	static const int of[] = {[LOG_ERROR] = 3, [LOG_WARN] = 4, [LOG_INFO] = 6, [LOG_DEBUG] = 7};

	return of[level];
}

/*
 * Like write() to stderr, but never blocks: it fails with EAGAIN or writes fewer bytes. Setting
 * O_NONBLOCK on stderr itself would affect other processes that share its open file, so this opens
 * the pipe or terminal a second time.
 */
static ssize_t write_now(const char *line, size_t bytes)
{
	int own = -1;
	struct stat st;
	ssize_t n;

	if (fstat(STDERR_FILENO, &st) == 0) {
		if (S_ISSOCK(st.st_mode))
			return send(STDERR_FILENO, line, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode))
			own = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	}
	/* stderr itself does not block either, because poll() has reported that it has room */
	n = write(own >= 0 ? own : STDERR_FILENO, line, bytes);
	if (own >= 0)
		close(own);
	return n;
}

/*
 * Writes one line to stderr. Returns false when stderr has no room: no part of the line was
 * written, or only its start.
 */
static bool write_line(const char *line, size_t bytes, int wait_ms)
{
	struct pollfd fd = {.fd = STDERR_FILENO, .events = POLLOUT};
	ssize_t n;

	if (poll(&fd, 1, wait_ms) <= 0)
		return false;
	n = write_now(line, bytes);
	/* EPIPE and other errors count as written: nothing reads stderr, so no line is missed */
	return n < 0 ? errno != EAGAIN : (size_t)n == bytes;
}

static size_t format_line(char line[LINE_BYTES], enum log_level level, const char *text)
{
	bool journal = to_journal();
	char prefix[JOURNAL_PREFIX_BYTES + 1];
	size_t used = journal ? JOURNAL_PREFIX_BYTES : 0;
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(prefix, sizeof(prefix), "<%d>", priority(level));
	memcpy(line, prefix, used);
	return used +
	       log_line(line_format, capture || journal ? NULL : &now, level, text, line + used);
}

/*
 * Reports how many lines were dropped, once stderr accepts lines again. Returns false while stderr
 * has no room.
 */
static bool tell_lost(void)
{
	char line[LINE_BYTES], text[128];

	if (!lost || capture)
		return true;
	snprintf(text, sizeof(text), "%llu lines of the log are missing here: stderr was not read",
		(unsigned long long)lost);
	if (!write_line(line, format_line(line, LOG_WARN, text), 0))
		return false;
	lost = 0;
	return true;
}

/* Writes one line with one system call, so that lines of several processes do not mix. */
static void emit(enum log_level level, const char *text)
{
	char line[LINE_BYTES];
	size_t used = format_line(line, level, text);
	int wait_ms = lost ? 0 : LOG_WAIT_MS;

	if (capture) {
		size_t room = capture_bytes - 1 - capture_used;

		used = used < room ? used : room;
		memcpy(capture + capture_used, line, used);
		capture_used += used;
		capture[capture_used] = '\0';
	} else if (!tell_lost() || !write_line(line, used, wait_ms)) {
		lost++;
	}
}

/* ---- repeats --------------------------------------------------------------------------------- */

/* Prints the counts of repeated and dropped messages of one call site and clears them. */
static void pay(struct log_site *site)
{
	char text[160];

	if (site->repeats) {
		snprintf(text, sizeof(text), "last message repeated %u times: %s", site->repeats,
			site->last);
		emit(site->level, text);
	}
	if (site->dropped) {
		snprintf(text, sizeof(text), "%u more messages like this left out: %s",
			site->dropped, site->last);
		emit(site->level, text);
	}
	site->repeats = 0;
	site->dropped = 0;
}

/*
 * Prints the counts of each call site whose counting window (LOG_WINDOW_NS) has ended; with `all`,
 * of every call site.
 */
static void pay_due(uint64_t now, bool all)
{
	struct log_site **link = &owing;

	while (*link) {
		struct log_site *site = *link;

		if (!all && now - site->window_ns < LOG_WINDOW_NS) {
			link = &site->next;
			continue;
		}
		*link = site->next;
		site->owes = false;
		pay(site);
	}
}

/*
 * Adds `site` to the list `owing`: its counts of repeated or dropped messages are to be printed
 * later.
 */
static void owe(struct log_site *site)
{
	if (site->owes)
		return;
	site->owes = true;
	site->next = owing;
	owing = site;
}

/*
 * Prints `text`; or only counts it, as a repeat of the last text or as dropped by the rate limit.
 */
static void say(struct log_site *site, enum log_level level, const char *text)
{
	uint64_t now = now_ns(), hash = hash_text(text);
	bool in_window;

	pay_due(now, false);
	in_window = site->printed && now - site->window_ns < LOG_WINDOW_NS;
	if (in_window && hash == site->last_hash) {
		site->repeats++;
		owe(site);
		return;
	}
	if (in_window && site->printed >= LOG_BURST) {
		site->dropped++;
		owe(site);
		return;
	}
	if (!in_window) {
		site->window_ns = now;
		site->printed = 0;
	}
	if (site->repeats)
		pay(site);
	site->printed++;
	site->last_hash = hash;
	site->level = level;
	text_fit(site->last, sizeof(site->last), "%s", text);
	emit(level, text);
}

void log_write(struct log_site *site, enum log_level level, const char *format, ...)
{
	int saved_errno = errno;
	char text[LOG_LINE_BYTES];
	va_list args;

	pthread_mutex_lock(&lock);
	if (level <= level_max) {
		errno = saved_errno;
		va_start(args, format);
		text_vfit(text, sizeof(text), format, args);
		va_end(args);
		say(site, level, text);
	}
	pthread_mutex_unlock(&lock);
	errno = saved_errno;
}

void log_plain(enum log_level level, const char *text)
{
	bool journal;

	pthread_mutex_lock(&lock);
	journal = to_journal();
	pthread_mutex_unlock(&lock);
	while (*text) {
		int length = (int)strcspn(text, "\n");

		if (journal)
			fprintf(stderr, "<%d>%.*s\n", priority(level), length, text);
		else
			fprintf(stderr, "%.*s\n", length, text);
		text += length + (text[length] == '\n');
	}
}

void log_level_set(enum log_level level)
{
	pthread_mutex_lock(&lock);
	level_max = level;
	pthread_mutex_unlock(&lock);
}

void log_format_set(enum log_format format)
{
	pthread_mutex_lock(&lock);
	line_format = format;
	in_journal = -1;
	pthread_mutex_unlock(&lock);
}

void log_flush(void)
{
	pthread_mutex_lock(&lock);
	pay_due(0, true);
	(void)tell_lost();
	pthread_mutex_unlock(&lock);
}

void log_test_capture(char *buffer, size_t bytes)
{
	pthread_mutex_lock(&lock);
	capture = bytes ? buffer : NULL;
	capture_bytes = bytes;
	capture_used = 0;
	if (capture)
		capture[0] = '\0';
	pthread_mutex_unlock(&lock);
}

void log_test_clock(uint64_t now)
{
	pthread_mutex_lock(&lock);
	test_now_ns = now;
	pthread_mutex_unlock(&lock);
}
