/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latency histograms that processes, threads and nodes share: log-linear, four buckets for each
 * power of two, so a percentile read from one is at most 25% above the true value. Histograms of
 * the same layout are merged by adding their buckets. Any thread.
 *
 *   bucket 0                      below 1.024 us
 *   bucket 1 + 4 e + q            (4 + q) << (8 + e) ns up to the next bucket's lower bound,
 *                                 e = 0..25, q = 0..3
 *   bucket LATENCY_BUCKETS - 1  68.7 s and above
 */
#ifndef ABI_LATENCY_H
#define ABI_LATENCY_H

#include <stdint.h>

#define LATENCY_POWER_MIN 10u /* the first bucket ends at 1 << 10 ns */
#define LATENCY_POWER_MAX 36u /* the last bucket starts at 1 << 36 ns */
#define LATENCY_BUCKETS (4u * (LATENCY_POWER_MAX - LATENCY_POWER_MIN) + 2u)

/* The bucket that counts a latency of `ns`; always below LATENCY_BUCKETS. */
static inline unsigned latency_bucket(uint64_t ns)
{
	unsigned power;

	if (ns < 1ull << LATENCY_POWER_MIN)
		return 0;
	if (ns >= 1ull << LATENCY_POWER_MAX)
		return LATENCY_BUCKETS - 1;
	power = 63u - (unsigned)__builtin_clzll(ns);
	return 1 + 4 * (power - LATENCY_POWER_MIN) + (unsigned)(ns >> (power - 2) & 3);
}

/* The shortest latency that `bucket` counts, in ns; bucket LATENCY_BUCKETS: UINT64_MAX. */
static inline uint64_t latency_lower_ns(unsigned bucket)
{
	if (bucket == 0)
		return 0;
	if (bucket >= LATENCY_BUCKETS)
		return UINT64_MAX;
	return (uint64_t)(4 + (bucket - 1) % 4) << (LATENCY_POWER_MIN - 2 + (bucket - 1) / 4);
}

/* Buckets of any histogram: their sum. */
static inline uint64_t buckets_count(const uint64_t *bucket, unsigned buckets)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < buckets; i++)
		n += bucket[i];
	return n;
}

/* The bucket in which the sample lies that `permille` of 1000 do not exceed; 0 if there is none. */
static inline unsigned buckets_quantile(const uint64_t *bucket, unsigned buckets, unsigned permille)
{
	uint64_t total = buckets_count(bucket, buckets);
	uint64_t rank = total / 1000 * permille + (total % 1000 * permille + 999) / 1000;
	uint64_t seen = bucket[0];
	unsigned i = 0;

	while (i + 1 < buckets && seen < (rank ? rank : 1))
		seen += bucket[++i];
	return total ? i : 0;
}

static inline uint64_t latency_count(const uint64_t bucket[LATENCY_BUCKETS])
{
	return buckets_count(bucket, LATENCY_BUCKETS);
}

/*
 * The latency that `permille` of 1000 samples do not exceed, in ns: the upper bound of the bucket
 * it lies in (of the last bucket, its lower bound). 0 for an empty histogram.
 */
static inline uint64_t latency_quantile_ns(
	const uint64_t bucket[LATENCY_BUCKETS], unsigned permille)
{
	unsigned i = buckets_quantile(bucket, LATENCY_BUCKETS, permille);

	if (!latency_count(bucket))
		return 0;
	return latency_lower_ns(i + 1 < LATENCY_BUCKETS ? i + 1 : i);
}

/* What was counted from `before` to `now`. */
static inline void latency_between(const uint64_t now[LATENCY_BUCKETS],
	const uint64_t before[LATENCY_BUCKETS], uint64_t ret[LATENCY_BUCKETS])
{
	for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
		ret[i] = now[i] - before[i];
}

#endif
