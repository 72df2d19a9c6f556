/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock of a client's unit test: the kernel's, and what the test lets pass. So a test of a
 * second does not take one, and a deadline ends when the test says so, however busy the machine
 * is. Any thread.
 */
#ifndef TESTS_CLIENT_RIG_CLOCK_H
#define TESTS_CLIENT_RIG_CLOCK_H

#include <sys/syscall.h>
#include <time.h>

#include "tests/unit/client/rig.h"

static uint64_t rig_passed_ns, rig_clock_reads;

__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *ret)
{
	int rc = (int)syscall(SYS_clock_gettime, id, ret);

	if (id == CLOCK_MONOTONIC) {
		uint64_t ns =
			(uint64_t)ret->tv_nsec + __atomic_load_n(&rig_passed_ns, __ATOMIC_SEQ_CST);

		__atomic_fetch_add(&rig_clock_reads, 1, __ATOMIC_SEQ_CST);
		ret->tv_sec += (time_t)(ns / 1000000000);
		ret->tv_nsec = (long)(ns % 1000000000);
	}
	return rc;
}

/* A wait until a time of this clock; all condition variables of the client use CLOCK_MONOTONIC. */
__attribute__((visibility("default"))) int pthread_cond_timedwait(pthread_cond_t *restrict cond,
	pthread_mutex_t *restrict lock, const struct timespec *restrict until)
{
	uint64_t ns = (uint64_t)until->tv_sec * 1000000000 + (uint64_t)until->tv_nsec -
		      __atomic_load_n(&rig_passed_ns, __ATOMIC_SEQ_CST);
	struct timespec real = {
		.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};

	return pthread_cond_clockwait(cond, lock, CLOCK_MONOTONIC, &real);
}

/* The kernel's time. */
static inline uint64_t rig_real_ns(void)
{
	return clock_monotonic_ns() - __atomic_load_n(&rig_passed_ns, __ATOMIC_SEQ_CST);
}

/* Wakes the threads that wait for answers, so that they read the clock. */
static inline void rig_wake(void)
{
	fake_lock(&fake);
	for (unsigned c = 0; c < FAKE_CHANNELS; c++)
		if (fake.channel[c].used)
			fake_wake(&fake.channel[c]);
	fake_unlock(&fake);
}

/* Lets this time pass. */
static inline void rig_pass_ns(uint64_t ns)
{
	__atomic_fetch_add(&rig_passed_ns, ns, __ATOMIC_SEQ_CST);
	rig_wake();
}

static inline void rig_pass_ms(unsigned ms)
{
	rig_pass_ns(ms * 1000000ull);
}

/*
 * Waits until the other threads have read the clock 20 times, so they have had the occasion to act
 * on it, or until `*ended` is not 0.
 */
static inline void rig_clock_seen(const uint32_t *ended)
{
	uint64_t from = __atomic_load_n(&rig_clock_reads, __ATOMIC_SEQ_CST);

	while (__atomic_load_n(&rig_clock_reads, __ATOMIC_SEQ_CST) - from < 20 &&
		!__atomic_load_n(ended, __ATOMIC_SEQ_CST)) {
		rig_wake();
		usleep(1000);
	}
}

/* Stops the fake engine, waits until the channel has noticed, and starts it again. */
static inline void replace_engine(void)
{
	fake_die(&fake);
	while (exists_one("key-0", 10) != PC_GONE)
		usleep(1000);
	fake_revive(&fake);
	rig_pass_ms(250);
}

/* Waits until calls succeed again. */
static inline void until_attached(void)
{
	for (uint64_t start_ns = clock_monotonic_ns(); exists_one("key-0", 1000) != PC_MISS;)
		assert_true(elapsed_ms(start_ns) < PATIENCE_MS);
}

#endif
