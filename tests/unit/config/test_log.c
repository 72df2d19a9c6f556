/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests config/log.c: levels, repeats, bursts, several threads, and a stderr that no process reads.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "config/log.h"
#include "config/text_fit.h"

#define SECOND_NS 1000000000ull

static char text[65536];
static uint64_t now_ns = SECOND_NS;

static int start(void **state)
{
	log_flush();
	now_ns += 100 * SECOND_NS;
	log_test_clock(now_ns);
	log_test_capture(text, sizeof(text));
	log_level_set(LOG_INFO);
	return 0;
}

static int stop(void **state)
{
	log_flush();
	log_test_capture(NULL, 0);
	log_test_clock(0);
	return 0;
}

static void pass_ns(uint64_t ns)
{
	now_ns += ns;
	log_test_clock(now_ns);
}

static void say(const char *what)
{
	log_warn("%s", what);
}

static void messages_above_the_level_are_not_printed(void **state)
{
	log_error("one");
	log_info("two %d", 2);
	log_debug("three");
	assert_string_equal(text, "error one\ninfo  two 2\n");
	log_level_set(LOG_ERROR);
	log_warn("four");
	log_level_set(LOG_DEBUG);
	log_debug("five");
	assert_string_equal(text, "error one\ninfo  two 2\ndebug five\n");
}

/* Makes `fd` stderr and returns what stderr was. */
static int become_stderr(int fd)
{
	int before = dup(STDERR_FILENO);

	assert_true(before >= 0);
	assert_int_equal(dup2(fd, STDERR_FILENO), STDERR_FILENO);
	return before;
}

/* Logs to a socket of which `stream` is $JOURNAL_STREAM, and returns what came out. */
static void log_to(const char *stream, enum log_format format, int fd[2], char got[512])
{
	ssize_t bytes;
	int before;

	assert_int_equal(setenv("JOURNAL_STREAM", stream, 1), 0);
	log_test_capture(NULL, 0);
	before = become_stderr(fd[0]);
	log_format_set(format);
	log_level_set(LOG_DEBUG);
	log_flush();
	pass_ns(2 * LOG_WINDOW_NS);
	log_error("one");
	log_warn("two");
	log_info("three");
	log_debug("four");
	log_plain(LOG_ERROR, "five\nsix");
	fflush(stderr);
	bytes = recv(fd[1], got, 511, 0);
	assert_int_equal(dup2(before, STDERR_FILENO), STDERR_FILENO);
	close(before);
	assert_true(bytes > 0);
	got[bytes] = '\0';
	unsetenv("JOURNAL_STREAM");
	log_format_set(LOG_TEXT);
}

static void lines_for_the_journal_have_its_priority_and_no_time(void **state)
{
	char stream[64], got[512];
	struct stat st;
	int fd[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
	assert_int_equal(fstat(fd[0], &st), 0);
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
		(unsigned long long)st.st_ino);
	log_to(stream, LOG_TEXT, fd, got);
	assert_string_equal(got,
		"<3>error one\n<4>warn  two\n<6>info  three\n<7>debug four\n<3>five\n<3>six\n");
	log_to(stream, LOG_JSON, fd, got);
	assert_ptr_equal(
		strstr(got, "<3>{\"level\":\"error\",\"message\":\"one\"}\n<4>{\"level\""), got);
	/* of another stream: the program's output goes elsewhere */
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
		(unsigned long long)st.st_ino + 1);
	log_to(stream, LOG_TEXT, fd, got);
	assert_int_equal(got[0], '2');
	assert_non_null(strstr(got, " error one\n"));
	assert_non_null(strstr(got, "\nfive\nsix\n"));
	close(fd[0]);
	close(fd[1]);
}

static void repeated_messages_are_counted_not_printed(void **state)
{
	for (int i = 0; i < 1000; i++)
		say("port down");
	assert_string_equal(text, "warn  port down\n");
	say("port up");
	assert_string_equal(text,
		"warn  port down\n"
		"warn  last message repeated 999 times: port down\nwarn  port up\n");
}

static void a_count_is_printed_when_its_window_ends(void **state)
{
	say("again");
	say("again");
	pass_ns(LOG_WINDOW_NS);
	log_info("another site");
	assert_string_equal(text, "warn  again\nwarn  last message repeated 1 times: again\n"
				  "info  another site\n");
	/* After the time window of repeats has ended, the same text is printed again. */
	say("again");
	assert_non_null(strstr(text, "another site\nwarn  again\n"));
}

static void a_call_site_that_logs_too_much_is_suppressed_and_counted(void **state)
{
	unsigned lines = 0;

	for (int i = 0; i < 500; i++)
		log_warn("client %d failed", i);
	for (const char *p = text; *p; p++)
		lines += *p == '\n';
	assert_int_equal(lines, LOG_BURST);
	log_flush();
	assert_non_null(strstr(text, "480 more messages like this left out: client 19 failed\n"));
}

static void a_text_is_cut_between_words_or_between_characters(void **state)
{
	char got[20];

	text_fit(got, sizeof(got), "%s", "nineteen characters");
	assert_string_equal(got, "nineteen characters");
	text_fit(got, sizeof(got), "version %u of %u", 1234, 1234567);
	assert_string_equal(got, "version 1234 of ...");
	text_fit(got, sizeof(got), "users %s", "anne,berta,carla");
	assert_string_equal(got, "users anne ...");
	text_fit(got, sizeof(got), "/%s", "one/long/path/and/more"); /* one word */
	assert_string_equal(got, "/one/long/path/ ...");
	text_fit(got, sizeof(got), "%s",
		"\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4");
	assert_string_equal(got, "\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4 ...");
	text_fit(got, 3, "%s", "abcdef"); /* no room for the mark */
	assert_string_equal(got, "ab");
}

static void a_full_capture_buffer_is_not_overrun(void **state)
{
	char small[16] = "zzzzzzzzzzzzzzz";

	log_test_capture(small, 10);
	log_error("longer than that");
	log_error("more");
	assert_string_equal(small, "error lon");
	assert_int_equal(small[10], 'z');
}

static void *talk(void *unused)
{
	for (int i = 0; i < 2000; i++)
		say("from many threads");
	return unused;
}

static void repeats_from_several_threads_are_all_counted(void **state)
{
	pthread_t thread[4];

	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, talk, NULL), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	log_flush();
	assert_string_equal(text, "warn  from many threads\n"
				  "warn  last message repeated 7999 times: from many threads\n");
}

/* ---- a stderr that is not read --------------------------------------------------------------- */

/* Time limit in s: a log call that blocks would hang these tests, so an alarm ends them. */
#define HANG_S 20
#define LOST "lines of the log are missing here"

static int before;
static bool poll_sees_room;

/*
 * Replaces poll() of libc, also for log.c. With poll_sees_room set, it always reports that the pipe
 * has room.
 */
int poll(struct pollfd *fds, nfds_t count, int wait_ms)
{
	const struct timespec wait = {wait_ms / 1000, wait_ms % 1000 * 1000000l};

	if (!poll_sees_room)
		return ppoll(fds, count, &wait, NULL);
	fds->revents = POLLOUT;
	return 1;
}

/* Redirects stderr to `to`, fills it until not one byte fits, and sets it to blocking mode. */
static void block_stderr(int to)
{
	log_test_capture(NULL, 0);
	before = dup(STDERR_FILENO);
	assert_int_equal(dup2(to, STDERR_FILENO), STDERR_FILENO);
	assert_int_equal(fcntl(to, F_SETFL, O_NONBLOCK), 0);
	while (write(to, "x", 1) == 1)
		;
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(fcntl(to, F_SETFL, 0), 0);
	alarm(HANG_S);
}

static void restore_stderr(void)
{
	alarm(0);
	assert_int_equal(dup2(before, STDERR_FILENO), STDERR_FILENO);
	close(before);
}

/*
 * Reads up to 64 KiB that are available now, without the filling of block_stderr(). cmocka prints
 * failures to stderr, so the caller checks the text only after it has restored stderr.
 */
static void drain(int from, char got[static sizeof(text)])
{
	struct pollfd readable = {.fd = from, .events = POLLIN};
	size_t used = 0;

	while (used < sizeof(text) - 1 && poll(&readable, 1, 0) == 1) {
		ssize_t n = read(from, got + used, sizeof(text) - 1 - used);

		if (n <= 0)
			break;
		used += (size_t)n;
		got[used] = '\0';
		n = (ssize_t)strspn(got, "x");
		used -= (size_t)n;
		memmove(got, got + n, used + 1);
	}
	got[used] = '\0';
}

static char first[sizeof(text)], second[sizeof(text)], third[sizeof(text)];

static void expect_no_waiting(int reader, int writer)
{
	int kept;

	block_stderr(writer);
	errno = ENOSPC;
	log_warn("the first waits a moment");
	kept = errno;
	for (int i = 0; i < 10 * HANG_S * 1000 / LOG_WAIT_MS;
		i++) { /* only the first log line waits for room; these lines do not */
		pass_ns(LOG_WINDOW_NS);
		log_warn("line %d", i);
	}
	drain(reader, first);
	log_warn("read again");
	drain(reader, second);
	log_warn("and again");
	drain(reader, third);
	restore_stderr();
	assert_int_equal(kept, ENOSPC);
	assert_string_equal(first, "");
	assert_non_null(strstr(second, " warn  2001 " LOST));
	assert_non_null(strstr(strstr(second, LOST), "read again\n"));
	assert_null(strstr(third, LOST));
	assert_non_null(strstr(third, "and again\n"));
	close(reader);
	close(writer);
}

static void a_full_pipe_blocks_no_thread_and_lost_lines_are_counted(void **state)
{
	int fd[2];

	assert_int_equal(pipe(fd), 0);
	expect_no_waiting(fd[0], fd[1]);
}

static void a_full_socket_blocks_no_thread(void **state)
{
	int fd[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	expect_no_waiting(fd[0], fd[1]);
}

static int terminal(int *ret_screen)
{
	struct termios raw;
	int fd;

	*ret_screen = posix_openpt(O_RDWR | O_NOCTTY);
	assert_true(*ret_screen >= 0);
	assert_int_equal(grantpt(*ret_screen) | unlockpt(*ret_screen), 0);
	fd = open(ptsname(*ret_screen), O_RDWR | O_NOCTTY);
	assert_true(fd >= 0);
	assert_int_equal(tcgetattr(fd, &raw), 0);
	cfmakeraw(&raw);
	assert_int_equal(tcsetattr(fd, TCSANOW, &raw), 0);
	return fd;
}

static void a_stopped_terminal_blocks_no_thread(void **state)
{
	int screen, fd = terminal(&screen);

	expect_no_waiting(screen, fd);
}

/*
 * poll() reports that stderr has room; another process with the same stderr fills it before the
 * write.
 */
static void room_taken_by_another_process_blocks_no_thread(void **state)
{
	for (unsigned kind = 0; kind < 3; kind++) {
		int fd[2];

		if (kind == 0)
			assert_int_equal(pipe(fd), 0);
		else if (kind == 1)
			assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
		else
			fd[1] = terminal(&fd[0]);
		block_stderr(fd[1]);
		poll_sees_room = true;
		log_warn("for pipe, socket and terminal: %u", kind);
		poll_sees_room = false;
		drain(fd[0], first);
		log_flush();
		drain(fd[0], second);
		restore_stderr();
		assert_string_equal(first, "");
		assert_non_null(strstr(second, " warn  1 " LOST));
		close(fd[0]);
		close(fd[1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			messages_above_the_level_are_not_printed, start, stop),
		cmocka_unit_test_setup_teardown(
			lines_for_the_journal_have_its_priority_and_no_time, start, stop),
		cmocka_unit_test_setup_teardown(
			repeated_messages_are_counted_not_printed, start, stop),
		cmocka_unit_test_setup_teardown(
			a_count_is_printed_when_its_window_ends, start, stop),
		cmocka_unit_test_setup_teardown(
			a_call_site_that_logs_too_much_is_suppressed_and_counted, start, stop),
		cmocka_unit_test(a_text_is_cut_between_words_or_between_characters),
		cmocka_unit_test_setup_teardown(a_full_capture_buffer_is_not_overrun, start, stop),
		cmocka_unit_test_setup_teardown(
			repeats_from_several_threads_are_all_counted, start, stop),
		cmocka_unit_test_setup_teardown(
			a_full_pipe_blocks_no_thread_and_lost_lines_are_counted, start, stop),
		cmocka_unit_test_setup_teardown(a_full_socket_blocks_no_thread, start, stop),
		cmocka_unit_test_setup_teardown(a_stopped_terminal_blocks_no_thread, start, stop),
		cmocka_unit_test_setup_teardown(
			room_taken_by_another_process_blocks_no_thread, start, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
