/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latency buckets: every value lies within the bounds of its bucket, and percentiles are upper
 * bounds that are at most a quarter too high.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/abi/latency.h"

static void buckets_follow_each_other_without_a_gap(void **state)
{
	for (unsigned i = 0; i < LATENCY_BUCKETS; i++) {
		uint64_t lower = latency_lower_ns(i);

		assert_int_equal(latency_bucket(lower), i);
		if (i)
			assert_int_equal(latency_bucket(lower - 1), i - 1);
	}
	assert_int_equal(latency_lower_ns(1), 1024);
	assert_int_equal(latency_lower_ns(2), 1280);
	assert_int_equal(latency_lower_ns(5), 2048);
	assert_int_equal(latency_lower_ns(LATENCY_BUCKETS - 1), 1ull << 36);
	assert_int_equal(latency_bucket(UINT64_MAX), LATENCY_BUCKETS - 1);
	assert_true(latency_lower_ns(LATENCY_BUCKETS) == UINT64_MAX);
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void a_percentile_is_an_upper_bound_and_close(void **state)
{
	static uint64_t value[5000];
	uint64_t bucket[LATENCY_BUCKETS] = {0};
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)strtoul(given, NULL, 0) : 20261122;

	print_message("seed %u\n", seed);
	srand(seed);
	assert_int_equal(latency_quantile_ns(bucket, 500), 0);
	for (unsigned i = 0; i < 5000; i++) {
		value[i] = 1024 + ((uint64_t)rand() << rand() % 8) % 1000000000;
		bucket[latency_bucket(value[i])]++;
	}
	qsort(value, 5000, sizeof(value[0]), by_value);
	for (unsigned permille = 1; permille <= 1000; permille++) {
		uint64_t rank = (5000ull * permille + 999) / 1000;
		uint64_t is = value[rank - 1], told = latency_quantile_ns(bucket, permille);

		assert_true(told > is && told <= is + is / 4 + 1);
	}
	assert_int_equal(latency_count(bucket), 5000);
}

static void the_largest_bucket_gives_its_lower_bound(void **state)
{
	uint64_t bucket[LATENCY_BUCKETS] = {[LATENCY_BUCKETS - 1] = 1};

	assert_true(latency_quantile_ns(bucket, 500) == 1ull << 36);
	bucket[0] = 999;
	assert_int_equal(latency_quantile_ns(bucket, 999), 1024);
	assert_true(latency_quantile_ns(bucket, 1000) == 1ull << 36);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(buckets_follow_each_other_without_a_gap),
		cmocka_unit_test(a_percentile_is_an_upper_bound_and_close),
		cmocka_unit_test(the_largest_bucket_gives_its_lower_bound),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
