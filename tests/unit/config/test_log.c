/* SPDX-License-Identifier: Apache-2.0 */
/* Levels, repeats, bursts and threads of the slow-path log. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "config/log.h"

#define SECOND_NS 1000000000ull

static char text[65536];
static uint64_t now_ns = SECOND_NS;

static int start(void **state)
{
	(void)state;
	log_flush();
	now_ns += 100 * SECOND_NS;
	log_test_clock(now_ns);
	log_test_capture(text, sizeof(text));
	log_level_set(LOG_INFO);
	return 0;
}

static int stop(void **state)
{
	(void)state;
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

static void only_important_enough_messages_are_printed(void **state)
{
	(void)state;
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

static void repeats_are_counted_not_repeated(void **state)
{
	(void)state;
	for (int i = 0; i < 1000; i++)
		say("port down");
	assert_string_equal(text, "warn  port down\n");
	say("port up");
	assert_string_equal(text,
		"warn  port down\n"
		"warn  last message repeated 999 times: port down\nwarn  port up\n");
}

static void a_count_is_printed_when_its_window_is_over(void **state)
{
	(void)state;
	say("again");
	say("again");
	pass_ns(LOG_WINDOW_NS);
	log_info("somebody else");
	assert_string_equal(text, "warn  again\nwarn  last message repeated 1 times: again\n"
				  "info  somebody else\n");
	/* A new window: the same text is news again. */
	say("again");
	assert_non_null(strstr(text, "somebody else\nwarn  again\n"));
}

static void a_flush_leaves_nothing_owed(void **state)
{
	(void)state;
	say("last");
	say("last");
	say("last");
	log_flush();
	assert_string_equal(text, "warn  last\nwarn  last message repeated 2 times: last\n");
	log_flush();
	assert_string_equal(text, "warn  last\nwarn  last message repeated 2 times: last\n");
}

static void a_place_that_says_too_much_is_cut_off_and_counted(void **state)
{
	unsigned lines = 0;

	(void)state;
	for (int i = 0; i < 500; i++)
		log_warn("client %d failed", i);
	for (const char *p = text; *p; p++)
		lines += *p == '\n';
	assert_int_equal(lines, LOG_BURST);
	log_flush();
	assert_non_null(strstr(text, "480 more messages like this left out: client 19 failed\n"));
}

static void places_are_counted_apart(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) {
		log_warn("same");
		log_error("same");
	}
	assert_string_equal(text, "warn  same\nerror same\n");
}

static void errno_survives_and_can_be_printed(void **state)
{
	(void)state;
	errno = ENOSPC;
	log_warn("write: %m");
	assert_int_equal(errno, ENOSPC);
	assert_string_equal(text, "warn  write: No space left on device\n");
}

static void long_messages_are_cut(void **state)
{
	char message[2 * LOG_LINE_BYTES];

	(void)state;
	memset(message, 'x', sizeof(message) - 1);
	message[sizeof(message) - 1] = '\0';
	say(message);
	assert_int_equal(strlen(text), strlen("warn  ") + LOG_LINE_BYTES - 1 + 1);
	assert_int_equal(text[strlen(text) - 1], '\n');
}

static void a_full_capture_is_cut_not_overrun(void **state)
{
	char small[16] = "zzzzzzzzzzzzzzz";

	(void)state;
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

static void threads_lose_no_count(void **state)
{
	pthread_t thread[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, talk, NULL), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	log_flush();
	assert_string_equal(text, "warn  from many threads\n"
				  "warn  last message repeated 7999 times: from many threads\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			only_important_enough_messages_are_printed, start, stop),
		cmocka_unit_test_setup_teardown(repeats_are_counted_not_repeated, start, stop),
		cmocka_unit_test_setup_teardown(
			a_count_is_printed_when_its_window_is_over, start, stop),
		cmocka_unit_test_setup_teardown(a_flush_leaves_nothing_owed, start, stop),
		cmocka_unit_test_setup_teardown(
			a_place_that_says_too_much_is_cut_off_and_counted, start, stop),
		cmocka_unit_test_setup_teardown(places_are_counted_apart, start, stop),
		cmocka_unit_test_setup_teardown(errno_survives_and_can_be_printed, start, stop),
		cmocka_unit_test_setup_teardown(long_messages_are_cut, start, stop),
		cmocka_unit_test_setup_teardown(a_full_capture_is_cut_not_overrun, start, stop),
		cmocka_unit_test_setup_teardown(threads_lose_no_count, start, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
