/* SPDX-License-Identifier: Apache-2.0 */
/* The format of summaries: counts on a logarithmic scale, checks of what was received, merging. */
#include "engine/control/observe/summary.h"

#include <string.h>

#include "config/limits.h"

/* ---- counts ---------------------------------------------------------------------------------- */

/* Code 8 e + m stands for (8 + m) << (e - 1), as in a floating-point number; e = 0: for m. */
uint64_t summary_count(uint8_t code)
{
	unsigned e = code >> 3, m = code & 7;

	return e ? (uint64_t)(8 + m) << (e - 1) : m;
}

uint8_t summary_code(uint64_t count)
{
	unsigned shift, m;

	if (count < 8)
		return (uint8_t)count;
	if (count >= summary_count(255))
		return 255;
	shift = 60u - (unsigned)__builtin_clzll(count); /* count >> shift is 8..15 */
	m = (unsigned)(count >> shift);
	if (shift && count >> (shift - 1) & 1)
		m++;
	/* m = 16 carries into e: the code of (8 + 0) << (shift + 1) */
	return (uint8_t)(8 * (shift + 1) + m - 8);
}

/* ---- buckets --------------------------------------------------------------------------------- */

/* Buckets 1..104 of abi/latency.h go in pairs into buckets 1..52; the first and the last stay. */
static unsigned bucket_of(unsigned latency_bucket)
{
	return latency_bucket ? (latency_bucket + 1) / 2 : 0;
}
static_assert((LATENCY_BUCKETS - 1 + 1) / 2 == SUMMARY_BUCKETS - 1, "the last bucket stays alone");

uint64_t summary_lower_ns(unsigned bucket)
{
	return latency_lower_ns(bucket ? 2 * bucket - 1 : 0);
}

void summary_latency(const uint64_t latency[LATENCY_BUCKETS], uint8_t ret_codes[SUMMARY_BUCKETS])
{
	uint64_t batches[SUMMARY_BUCKETS] = {0};

	for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
		batches[bucket_of(i)] += latency[i];
	for (unsigned i = 0; i < SUMMARY_BUCKETS; i++)
		ret_codes[i] = summary_code(batches[i]);
}

void summary_merge(struct summary_merged *merged, const struct summary *summary)
{
	for (unsigned call = 0; call < SUMMARY_CALLS; call++)
		for (unsigned i = 0; i < SUMMARY_BUCKETS; i++)
			merged->batches[call][i] += summary_count(summary->latency[call][i]);
}

uint64_t summary_batches(const uint64_t batches[SUMMARY_BUCKETS])
{
	uint64_t n = 0;

	for (unsigned i = 0; i < SUMMARY_BUCKETS; i++)
		n += batches[i];
	return n;
}

uint64_t summary_quantile_ns(const uint64_t batches[SUMMARY_BUCKETS], unsigned permille)
{
	uint64_t total = summary_batches(batches), seen = 0;
	uint64_t rank = total / 1000 * permille + (total % 1000 * permille + 999) / 1000;

	if (total == 0)
		return 0;
	if (rank == 0)
		rank = 1;
	for (unsigned i = 0; i + 1 < SUMMARY_BUCKETS; i++) {
		seen += batches[i];
		if (seen >= rank)
			return summary_lower_ns(i + 1);
	}
	return summary_lower_ns(SUMMARY_BUCKETS - 1);
}

/* ---- checking -------------------------------------------------------------------------------- */

static uint64_t at_most(uint64_t value, uint64_t limit)
{
	return value < limit ? value : limit;
}

/* An id of lower-case letters, digits and underscores with zeros behind it; else it is emptied. */
static void finding_check(char finding[SUMMARY_FINDING_BYTES])
{
	size_t bytes = strnlen(finding, SUMMARY_FINDING_BYTES);
	bool good = bytes < SUMMARY_FINDING_BYTES;

	for (size_t i = 0; i < bytes; i++) {
		char c = finding[i];

		good = good && ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_');
	}
	memset(finding + (good ? bytes : 0), 0, SUMMARY_FINDING_BYTES - (good ? bytes : 0));
}

static void hits_check(struct summary *s)
{
	if (s->hit_local == SUMMARY_NONE || s->hit_remote == SUMMARY_NONE) {
		s->hit_local = s->hit_remote = SUMMARY_NONE;
		return;
	}
	s->hit_local = (uint16_t)at_most(s->hit_local, 1000);
	s->hit_remote = (uint16_t)at_most(s->hit_remote, 1000u - s->hit_local);
}

static void latency_check(uint8_t codes[SUMMARY_BUCKETS])
{
	uint64_t n = 0;

	for (unsigned i = 0; i < SUMMARY_BUCKETS; i++)
		n += summary_count(codes[i]);
	if (n > SUMMARY_BATCHES_MAX)
		memset(codes, 0, SUMMARY_BUCKETS);
}

bool summary_decode(const uint8_t *data, size_t bytes, struct summary *ret)
{
	struct summary *s = ret;

	if (bytes != SUMMARY_BYTES || data[0] == 0)
		return false;
	memcpy(s, data, SUMMARY_BYTES);
	s->severity = (uint8_t)at_most(s->severity, SUMMARY_CRITICAL);
	s->flags &= SUMMARY_FLAGS;
	s->rails = (uint8_t)at_most(s->rails, RAILS_MAX);
	s->rails_up = (uint8_t)at_most(s->rails_up, s->rails);
	s->members_up = (uint16_t)at_most(s->members_up, SUMMARY_MEMBERS_MAX);
	s->members_down = (uint16_t)at_most(s->members_down, SUMMARY_MEMBERS_MAX);
	s->pool_used = (uint16_t)at_most(s->pool_used, 1000);
	s->directory_used = (uint16_t)at_most(s->directory_used, 1000);
	hits_check(s);
	s->window_ms = (uint16_t)at_most(s->window_ms, SUMMARY_WINDOW_MS_MAX);
	s->get_bytes_per_s = at_most(s->get_bytes_per_s, SUMMARY_BYTES_PER_S_MAX);
	s->set_bytes_per_s = at_most(s->set_bytes_per_s, SUMMARY_BYTES_PER_S_MAX);
	s->get_pages_per_s = (uint32_t)at_most(s->get_pages_per_s, SUMMARY_PER_S_MAX);
	s->evictions_per_s = (uint32_t)at_most(s->evictions_per_s, SUMMARY_PER_S_MAX);
	finding_check(s->finding);
	memset(s->spare, 0, sizeof(s->spare));
	for (unsigned call = 0; call < SUMMARY_CALLS; call++)
		latency_check(s->latency[call]);
	return true;
}
