/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into perftest: each call of gettimeofday() is 100 us later than the last one. perftest
 * calibrates the processor's clock with that call for 0.2 s, after each size of message, which was
 * most of the time of its tests. They do not use what it measures. Any thread.
 */
#include <stdint.h>
#include <sys/time.h>

int gettimeofday(struct timeval *restrict ret, void *restrict zone);

__attribute__((visibility("default"))) int gettimeofday(
	struct timeval *restrict ret, void *restrict zone)
{
	static uint64_t us = 1700000000000000;
	uint64_t now_us = __atomic_add_fetch(&us, 100, __ATOMIC_RELAXED);

	(void)zone;
	*ret = (struct timeval){
		.tv_sec = (time_t)(now_us / 1000000), .tv_usec = (suseconds_t)(now_us % 1000000)};
	return 0;
}
