/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers. A run prints its seed; SEED=... in the environment repeats it. */
#ifndef TEST_RANDOM_WORLD_H
#define TEST_RANDOM_WORLD_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <time.h>

static uint64_t random_state;

static inline uint64_t random_next(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static inline uint64_t time_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Takes the seed from SEED or from the clock, and prints it. */
static inline int start(void **state)
{
	const char *seed = getenv("SEED");

	random_state = seed ? strtoull(seed, NULL, 0) : time_ns();
	random_state += random_state == 0;
	print_message("SEED=%llu\n", (unsigned long long)random_state);
	return 0;
}

#endif
