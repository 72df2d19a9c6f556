/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helper threads: a blocked call does not delay others, calls with parts take turns and can be
 * cancelled, and works_close() waits for all calls.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/control/base/work.h"

#define CALLS 32u
#define THREADS 4u
#define LIMIT_S 10u
/* simulated time that each call takes: less than LIMIT_S, which works_close() gives it */
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

static int wait_real(
	pthread_cond_t *cond, pthread_mutex_t *lock, clockid_t id, const struct timespec *until)
{
	static int (*real)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);

	if (!real)
		real = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
	return real(cond, lock, id, until);
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
	if (!calls_end_in_waits)
		return wait_real(cond, lock, id, until);
	if (released == CALLS - THREADS) {
		for (unsigned i = 0; i < CALLS; i++)
			__atomic_store_n(&call[i].blocked, 0, __ATOMIC_SEQ_CST);
		return pthread_cond_wait(cond, lock);
	}
	if (until->tv_sec - now.tv_sec < CALL_S)
		return ETIMEDOUT;
	pthread_mutex_unlock(lock);
	__atomic_store_n(&call[released++].blocked, 0, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&begun, __ATOMIC_SEQ_CST) < THREADS + released)
		usleep(100);
	pthread_mutex_lock(lock);
	return ETIMEDOUT;
}

static bool threads_refused;

/* In place of the C library's. */
__attribute__((visibility("default"))) int pthread_create(
	pthread_t *thread, const pthread_attr_t *with, void *(*main)(void *), void *context)
{
	static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

	if (!real)
		real = dlsym(RTLD_NEXT, "pthread_create");
	return threads_refused ? EAGAIN : real(thread, with, main, context);
}

static void run(struct work *work, unsigned part)
{
	struct call *c = (struct call *)work;

	__atomic_fetch_add(&begun, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&c->blocked, __ATOMIC_SEQ_CST))
		usleep(1000);
	__atomic_fetch_add(&made, 1, __ATOMIC_SEQ_CST);
}

static void was_made(struct work *work)
{
	done++;
}

static const struct works_options options = {
	.name = "test", .queues = 2, .threads = THREADS, .limit_s = LIMIT_S};

static int setup(void **state)
{
	base = event_base_new();
	begun = made = done = released = 0;
	calls_end_in_waits = false;
	for (unsigned i = 0; i < CALLS; i++)
		call[i] = (struct call){.work = {.run = run, .done = was_made}};
	return works_open(base, &options, &works);
}

static int teardown(void **state)
{
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
	for (unsigned i = 0; i < THREADS - 1; i++)
		call[i].blocked = 1;
	submit(0, CALLS);
	done_come(CALLS - (THREADS - 1));
	assert_int_equal(works_busy(works), THREADS - 1);
	for (unsigned i = 0; i < THREADS - 1; i++)
		__atomic_store_n(&call[i].blocked, 0, __ATOMIC_SEQ_CST);
	done_come(CALLS);
}

/*
 * All calls together take far longer than the limit of one call. If works_close() aborted, this
 * program would end.
 */
static void works_close_gives_each_call_its_time_and_makes_all(void **state)
{
	for (unsigned i = 0; i < CALLS; i++)
		call[i].blocked = 1;
	calls_end_in_waits = true;
	submit(0, CALLS);
	works_close(works);
	assert_int_equal(released, CALLS - THREADS);
	assert_int_equal(made, CALLS);
	assert_int_equal(done, 0);
	/* opened again, because the teardown closes it */
	assert_int_equal(works_open(base, &options, &works), 0);
}

/* A call with parts, which run one after the other on the only thread of their queue. */
struct parted {
	struct work work;
	uint32_t blocked; /* the first part waits for 0 */
	bool cancels;     /* part 1 skips the rest */
	unsigned ends, dones;
};

static struct parted parted[2];
static struct works *narrow;
static char order[64]; /* for each part that ran: the letter of its call */

static void part_run(struct work *work, unsigned part)
{
	struct parted *p = (struct parted *)work;

	__atomic_fetch_add(&begun, 1, __ATOMIC_SEQ_CST);
	while (part == 0 && __atomic_load_n(&p->blocked, __ATOMIC_SEQ_CST))
		usleep(100);
	assert_true(part < work->parts);
	strcat(order, p == &parted[0] ? "a" : "b");
	if (part == 1 && p->cancels)
		assert_int_equal(work_cancel(narrow, 0, work), work->parts - 2);
}

static void part_end(struct work *work)
{
	((struct parted *)work)->ends++;
}

static void part_done(struct work *work)
{
	((struct parted *)work)->dones++;
}

static int narrow_setup(void **state)
{
	const struct works_options one = {.name = "narrow", .queues = 1, .threads = 1};

	if (setup(state) < 0 || works_open(base, &one, &narrow) < 0)
		return -1;
	order[0] = '\0';
	for (unsigned i = 0; i < 2; i++)
		parted[i] = (struct parted){
			.work = {.run = part_run, .end = part_end, .done = part_done}};
	return 0;
}

static int narrow_teardown(void **state)
{
	works_close(narrow);
	return teardown(state);
}

/* Submits a call of `a` parts and one of `b`, the second one while the first part runs. */
static void parts_submit(unsigned a, unsigned b)
{
	parted[0].blocked = 1;
	parted[0].work.parts = a;
	parted[1].work.parts = b;
	work_submit(narrow, 0, &parted[0].work);
	while (__atomic_load_n(&begun, __ATOMIC_SEQ_CST) == 0)
		usleep(100);
	work_submit(narrow, 0, &parted[1].work);
}

static void parts_await(const char *expected)
{
	__atomic_store_n(&parted[0].blocked, 0, __ATOMIC_SEQ_CST);
	assert_true(works_wait(narrow, 60000000000ull));
	assert_string_equal(order, expected);
	assert_int_equal(works_busy(narrow), 2);
	works_turn(narrow);
	assert_int_equal(works_busy(narrow), 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(parted[i].ends, 1);
		assert_int_equal(parted[i].dones, 1);
	}
}

static void calls_with_parts_take_turns(void **state)
{
	parts_submit(4, 2);
	parts_await("aababa");
}

static void a_cancelled_call_skips_the_parts_that_no_thread_has_taken(void **state)
{
	parts_submit(4, 2);
	assert_false(works_wait(narrow, 1000));
	assert_int_equal(work_cancel(narrow, 0, &parted[0].work), 3);
	assert_int_equal(work_cancel(narrow, 0, &parted[0].work), 0);
	assert_int_equal(work_cancel(narrow, 0, &parted[1].work), 2);
	assert_int_equal(parted[1].ends, 1);
	parts_await("a");
}

static void a_part_may_cancel_its_own_call(void **state)
{
	parted[0].cancels = true;
	parts_submit(10, 1);
	parts_await("aab");
}

static void without_threads_the_caller_makes_the_call(void **state)
{
	threads_refused = true;
	parted[0].cancels = true;
	parted[0].work.parts = 10;
	parted[1].work.parts = 1;
	work_submit(narrow, 0, &parted[0].work);
	assert_string_equal(order, "aa");
	assert_int_equal(parted[0].dones, 0);
	work_submit(narrow, 0, &parted[1].work);
	parts_await("aab");
	threads_refused = false;
}

#define NARROW_TEST(name) cmocka_unit_test_setup_teardown(name, narrow_setup, narrow_teardown)
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_blocked_call_does_not_delay_the_next),
		TEST(works_close_gives_each_call_its_time_and_makes_all),
		NARROW_TEST(calls_with_parts_take_turns),
		NARROW_TEST(a_cancelled_call_skips_the_parts_that_no_thread_has_taken),
		NARROW_TEST(a_part_may_cancel_its_own_call),
		NARROW_TEST(without_threads_the_caller_makes_the_call),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
