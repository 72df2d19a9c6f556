/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the thread of `peercachectl top` that requests the reports. The clock, the report and the
 * lock are the test's: a terminal that takes no output holds the lock while the clock goes on.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "tools/ctl_top.c"

static uint64_t clock_ns; /* of now_ns() */
static uint64_t held_ns;  /* time for which the lock is held by the main thread */
static jmp_buf turn_end;

uint64_t __wrap_now_ns(void);
uint64_t __wrap_now_ns(void)
{
	return clock_ns;
}

int __real_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock)
{
	clock_ns += held_ns;
	return __real_pthread_mutex_lock(lock);
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *ret_left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *ret_left)
{
	(void)time, (void)ret_left;
	longjmp(turn_end, 1);
}

json_object *ctl_report(struct ctl_run *ctl)
{
	(void)ctl;
	clock_ns += 1000;
	return json_object_new_object();
}

void ctl_deadline(const struct ctl_run *ctl)
{
	(void)ctl;
}

int ctl_no_answer(const struct ctl_run *ctl, const char *why)
{
	(void)ctl, (void)why;
	return CTL_NO_ANSWER;
}

static void a_report_that_waits_for_the_terminal_grows_old(void **state)
{
	static struct top top = {.lock = PTHREAD_MUTEX_INITIALIZER}; /* lives through longjmp() */

	(void)state;
	held_ns = 5000000000;
	if (!setjmp(turn_end))
		reader(&top);
	assert_non_null(top.report);
	assert_int_equal(top.taken_ns, 1000);
	assert_int_equal(clock_ns, 1000 + held_ns);
	json_object_put(top.report);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_report_that_waits_for_the_terminal_grows_old),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
