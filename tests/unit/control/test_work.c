/* SPDX-License-Identifier: Apache-2.0 */
/* Helper threads: a blocked call does not delay others, and works_close() waits for all calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <event2/event.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/control/work.h"

#define CALLS 32u
#define CALL_US 500000u
/* time that works_close() gives each call in this test; in the engine 10 s by the real clock */
#define LIMIT_S 3u

struct call {
	struct work work;
	uint32_t blocked;
	useconds_t us;
};

static struct event_base *base;
static struct works *works;
static struct call call[CALLS];
static unsigned made, done;

/*
 * Returns a time 7 s in the past. The kernel does not use this clock, so a deadline computed from
 * it expires 7 s early.
 */
__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *ret)
{
	int rc = (int)syscall(SYS_clock_gettime, id, ret);

	if (id == CLOCK_MONOTONIC)
		ret->tv_sec -= 10 - LIMIT_S;
	return rc;
}

static void run(struct work *work)
{
	struct call *c = (struct call *)work;

	usleep(c->us);
	while (__atomic_load_n(&c->blocked, __ATOMIC_SEQ_CST))
		usleep(1000);
	__atomic_fetch_add(&made, 1, __ATOMIC_SEQ_CST);
}

static void was_made(struct work *work)
{
	(void)work;
	done++;
}

static int setup(void **state)
{
	(void)state;
	base = event_base_new();
	made = done = 0;
	for (unsigned i = 0; i < CALLS; i++)
		call[i] = (struct call){.work = {.run = run, .done = was_made}};
	return works_open(base, 2, &works);
}

static int teardown(void **state)
{
	(void)state;
	works_close(works);
	event_base_free(base);
	return 0;
}

static void submit(unsigned first, unsigned count)
{
	for (unsigned i = first; i < first + count; i++)
		work_submit(works, 0, &call[i].work);
}

static void done_come(unsigned count)
{
	while (done < count)
		event_base_loop(base, EVLOOP_ONCE);
}

static void a_blocked_call_does_not_delay_the_next(void **state)
{
	(void)state;
	for (unsigned i = 0; i < WORK_THREADS - 1; i++)
		call[i].blocked = 1;
	submit(0, CALLS);
	done_come(CALLS - (WORK_THREADS - 1));
	assert_int_equal(works_busy(works), WORK_THREADS - 1);
	for (unsigned i = 0; i < WORK_THREADS - 1; i++)
		__atomic_store_n(&call[i].blocked, 0, __ATOMIC_SEQ_CST);
	done_come(CALLS);
}

/*
 * All calls together take longer than the limit of one call. If works_close() aborted, this program
 * would end.
 */
static void works_close_gives_each_call_its_time_and_makes_all(void **state)
{
	(void)state;
	for (unsigned i = 0; i < CALLS; i++)
		call[i].us = CALL_US;
	assert_true(CALLS / WORK_THREADS * CALL_US > LIMIT_S * 1000000);
	submit(0, CALLS);
	works_close(works);
	assert_int_equal(made, CALLS);
	assert_int_equal(done, 0);
	/* opened again, because the teardown closes it */
	assert_int_equal(works_open(base, 1, &works), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_blocked_call_does_not_delay_the_next),
		TEST(works_close_gives_each_call_its_time_and_makes_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
