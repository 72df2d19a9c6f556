/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched_yield() of a program on emulated ports: the thread that yields executes its READs itself,
 * and devices may be opened and closed meanwhile.
 */
#include <pthread.h>
#include <sched.h>

#include "tests/verbs/side.h"

static struct side s;

static void read_once(unsigned round)
{
	struct dv_sge sge = {(uintptr_t)s.local, SIDE_BYTES / 2, s.local_mr.lkey};
	struct dv_completion done;

	memset(s.remote, (int)(round % 255 + 1), SIDE_BYTES / 2);
	dv_post(s.sq, DV_READ, (uintptr_t)s.remote, s.remote_mr.rkey, &sge, 1, DV_CE_ALWAYS);
	dv_ring(s.sq);
	while (dv_poll(&s.cq, &done, 1) == 0)
		sched_yield();
	assert_int_equal(done.syndrome, 0);
	s.sq->ci++;
	assert_memory_equal(s.local, s.remote, SIDE_BYTES / 2);
}

/* The device's thread may execute some of the READs: it runs at least every 0.5 ms. */
static void a_thread_that_yields_executes_its_reads(void **state)
{
	uint64_t from_ns = now_ns();
	unsigned round = 0;

	side_open(&s);
	while (soft_connectx_yield_ns() == 0) {
		read_once(round++);
		assert_true(now_ns() - from_ns < PATIENCE_NS);
	}
	side_close(&s);
}

static void *yield_on(void *argument)
{
	const volatile uint32_t *stop = argument;

	while (!__atomic_load_n(stop, __ATOMIC_RELAXED))
		sched_yield();
	return NULL;
}

static void devices_close_while_a_thread_yields(void **state)
{
	uint32_t stop = 0;
	pthread_t yielder;

	assert_int_equal(pthread_create(&yielder, NULL, yield_on, &stop), 0);
	for (unsigned round = 0; round < 20; round++) {
		side_open(&s);
		read_once(round);
		side_close(&s);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(yielder, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_thread_that_yields_executes_its_reads),
		cmocka_unit_test(devices_close_while_a_thread_yields),
	};

	setenv("SOFT_CONNECTX_DEVICES", "2", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
