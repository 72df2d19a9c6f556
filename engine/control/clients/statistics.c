/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the statistics of one channel, checks them and adds the difference to the totals. The
 * checks bound what a lying client can add: no more than a thread could have done in that time.
 * The loop's thread only.
 */
#include "engine/control/clients/clients_inner.h"

#include <errno.h>
#include <string.h>

#include "config/limits.h"

/* Upper bounds of one client thread, far above any that was measured. */
#define BATCHES_PER_US 10u
#define PAGES_PER_US 1000u
#define BYTES_PER_US (1u << 20) /* 1 TB/s */
#define SLACK_US 1000000u       /* a reading that was skipped belongs to the next one */
#define SPAN_US_MAX 60000000u   /* the loop collects far more often; bounds the sums below */

#define READ_ATTEMPTS 3 /* a client that writes meanwhile needs less than a microsecond */

/* The difference of two readings; false: a word became smaller. */
static bool statistics_difference(const struct statistics_words *now,
	const struct statistics_words *before, struct statistics_words *ret_more)
{
	const uint64_t *a = (const uint64_t *)(const void *)now;
	const uint64_t *b = (const uint64_t *)(const void *)before;
	uint64_t *more = (uint64_t *)(void *)ret_more;

	for (size_t i = 0; i < STATISTICS_WORDS; i++) {
		if (a[i] < b[i])
			return false;
		more[i] = a[i] - b[i];
	}
	return true;
}

/*
 * False: the buckets cannot have this count and this sum. Sums are in units of 1.024 us: with at
 * most SPAN_US_MAX * BATCHES_PER_US batches in each bucket they stay below 2^63.
 */
static bool statistics_latency_possible(const struct statistics_calls *c)
{
	uint64_t batches = 0, least = 0, most = 0, sum = c->latency_ns_sum >> LATENCY_POWER_MIN;

	for (unsigned i = 0; i < LATENCY_BUCKETS; i++) {
		uint64_t upper_ns = i + 1 < LATENCY_BUCKETS ? latency_lower_ns(i + 1)
							    : STATISTICS_LATENCY_MAX_NS;

		if (!c->latency[i])
			continue;
		if (c->latency[i] > c->batches)
			return false;
		batches += c->latency[i];
		least += c->latency[i] * (latency_lower_ns(i) >> LATENCY_POWER_MIN);
		most += c->latency[i] * ((upper_ns >> LATENCY_POWER_MIN) + 1);
	}
	return batches == c->batches && least <= sum && sum <= most;
}
static_assert((uint64_t)SPAN_US_MAX * BATCHES_PER_US < 1ull << 30,
	"statistics_latency_possible() adds these");

static bool statistics_calls_possible(const struct statistics_calls *c, uint64_t us)
{
	uint64_t pages = 0;

	if (c->batches > us * BATCHES_PER_US || c->pages > us * PAGES_PER_US ||
		c->pages > c->batches * BATCH_MAX)
		return false;
	for (unsigned r = 0; r < STATISTICS_RESULTS; r++) {
		if (c->result[r] > c->pages)
			return false;
		pages += c->result[r];
	}
	return pages == c->pages && statistics_latency_possible(c);
}

static bool statistics_possible(const struct statistics_words *more, uint64_t us)
{
	uint64_t pages = us * PAGES_PER_US, bytes = us * BYTES_PER_US;

	for (unsigned call = 0; call < STATISTICS_CALLS; call++)
		if (!statistics_calls_possible(&more->calls[call], us))
			return false;
	return more->get_local <= pages && more->get_remote <= pages && more->get_bytes <= bytes &&
	       more->get_staged <= more->get_bytes && more->set_bytes <= bytes &&
	       more->set_present <= pages && more->reissued <= pages && more->lookups <= pages &&
	       more->lookups_cached <= pages &&
	       more->get_usable <= more->calls[STATISTICS_GET].result[STATISTICS_HIT] &&
	       more->exists_usable <= more->calls[STATISTICS_EXISTS].result[STATISTICS_HIT];
}

bool statistics_collect(struct statistics *statistics, struct statistics_source *source,
	const struct channel_statistics *area, uint64_t now_ns)
{
	uint64_t *total = (uint64_t *)(void *)&statistics->total;
	struct statistics_words now, more;
	const uint64_t *add = (const uint64_t *)(const void *)&more;
	uint64_t us = (now_ns - source->read_ns) / 1000 + SLACK_US;
	uint32_t sequence = 0;
	int rc = -EAGAIN;

	if (source->refused)
		return false;
	if (shm_load(&area->sequence) == source->sequence) {
		source->read_ns = now_ns; /* idle time gives no credit */
		return true;
	}
	if (us > SPAN_US_MAX)
		us = SPAN_US_MAX;
	/* A batch that ends after this load is in the copy or not; the next call looks again. */
	for (unsigned attempt = 0; attempt < READ_ATTEMPTS && rc < 0; attempt++) {
		sequence = shm_load(&area->sequence);
		rc = statistics_read(area, &now);
	}
	if (rc < 0)
		return true;
	if (!statistics_difference(&now, &source->seen, &more) || !statistics_possible(&more, us)) {
		source->refused = true;
		statistics->refused++;
		return false;
	}
	/* Lies within the bounds can reach the end of a total; it stops there and never wraps. */
	for (size_t i = 0; i < STATISTICS_WORDS; i++)
		if (__builtin_add_overflow(total[i], add[i], &total[i]))
			total[i] = UINT64_MAX;
	source->seen = now;
	source->sequence = sequence;
	source->read_ns = now_ns;
	return true;
}
