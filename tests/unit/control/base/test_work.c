/* SPDX-License-Identifier: Apache-2.0 */
/* Helper threads: a blocked call does not delay others, and works_close() waits for all calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/control/base/work.h"

#define CALLS 32u
/* simulated time that each call takes: less than the 10 s that works_close() gives it */
#define CALL_S 9

struct call {
	struct work work;
	uint32_t blocked;
};

static struct event_base *base;
static struct works *works;
static struct call call[CALLS];
static unsigned begun, made, done;
static unsigned released; /* calls that ended, each in a wait of its own; 0: waits are real */
static bool calls_end_in_waits;

/* The time, and what the waits of works_close() took. */
__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *ret)
{
	int rc = (int)syscall(SYS_clock_gettime, id, ret);

	if (id == CLOCK_MONOTONIC)
		ret->tv_sec += (time_t)released * CALL_S;
	return rc;
}

/*
 * In place of the C library's: one call ends in this wait, after CALL_S, and a thread begins the
 * next one. If the deadline is sooner, none ends.
 */
__attribute__((visibility("default"))) int pthread_cond_clockwait(
	pthread_cond_t *cond, pthread_mutex_t *lock, clockid_t id, const struct timespec *until)
{
	struct timespec now;

	clock_gettime(id, &now);
	if (!calls_end_in_waits || released == CALLS - WORK_THREADS) {
		for (unsigned i = 0; i < CALLS; i++)
			__atomic_store_n(&call[i].blocked, 0, __ATOMIC_SEQ_CST);
		return pthread_cond_wait(cond, lock);
	}
	if (until->tv_sec - now.tv_sec < CALL_S)
		return ETIMEDOUT;
	pthread_mutex_unlock(lock);
	__atomic_store_n(&call[released++].blocked, 0, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&begun, __ATOMIC_SEQ_CST) < WORK_THREADS + released)
		usleep(100);
	pthread_mutex_lock(lock);
	return ETIMEDOUT;
}

static void run(struct work *work)
{
	struct call *c = (struct call *)work;

	__atomic_fetch_add(&begun, 1, __ATOMIC_SEQ_CST);
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
	begun = made = done = released = 0;
	calls_end_in_waits = false;
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
 * All calls together take far longer than the limit of one call. If works_close() aborted, this
 * program would end.
 */
static void works_close_gives_each_call_its_time_and_makes_all(void **state)
{
	(void)state;
	for (unsigned i = 0; i < CALLS; i++)
		call[i].blocked = 1;
	calls_end_in_waits = true;
	submit(0, CALLS);
	works_close(works);
	assert_int_equal(released, CALLS - WORK_THREADS);
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
