/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests what host_run() returns of programs that end, crash, hang or are not there. No time passes:
 * the poll() that a hanging program is waited for with is played (ld --wrap).
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#include "engine/doctor/inner.h"

static bool time_over;

int __real_poll(struct pollfd *list, nfds_t count, int wait_ms);
int __wrap_poll(struct pollfd *list, nfds_t count, int wait_ms);
int __wrap_poll(struct pollfd *list, nfds_t count, int wait_ms)
{
	return time_over ? 0 : __real_poll(list, count, wait_ms);
}

static int script_run(const char *script, char ret[64])
{
	char *arguments[] = {"sh", "-c", (char *)script, NULL};

	return host_run(arguments, ret, 64);
}

static void a_program_that_ends_gives_its_status_and_text(void **state)
{
	char text[64];

	assert_int_equal(script_run("echo one; exit 3", text), 3);
	assert_string_equal(text, "one\n");
}

static void a_program_that_is_not_there_and_one_that_crashes_differ(void **state)
{
	char *absent[] = {"peercache-test-none", NULL}, text[64];

	assert_int_equal(host_run(absent, text, sizeof(text)), -ENOENT);
	assert_int_equal(script_run("echo two; kill -SEGV $$", text), -EINTR);
	assert_string_equal(text, "two\n");
}

static void a_program_that_hangs_is_killed_and_told_apart(void **state)
{
	char text[64];

	time_over = true;
	assert_int_equal(script_run("exec sleep 1000", text), -ETIME);
	time_over = false;
}

static void a_sigchld_that_the_caller_ignores_hides_no_status(void **state)
{
	char text[64];

	signal(SIGCHLD, SIG_IGN);
	assert_int_equal(script_run("echo four; exit 4", text), 4);
	assert_string_equal(text, "four\n");
	assert_true(signal(SIGCHLD, SIG_DFL) == SIG_IGN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_program_that_ends_gives_its_status_and_text),
		cmocka_unit_test(a_program_that_is_not_there_and_one_that_crashes_differ),
		cmocka_unit_test(a_program_that_hangs_is_killed_and_told_apart),
		cmocka_unit_test(a_sigchld_that_the_caller_ignores_hides_no_status),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
