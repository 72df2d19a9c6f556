/* SPDX-License-Identifier: Apache-2.0 */
/*
 * summary_*() of view.c: the 256 bytes that engines exchange, the bounds of what is received, and
 * how far percentiles of merged histograms are from those of all samples. Random tests print their
 * seed and take one from the environment variable SEED.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "config/limits.h"
#include "engine/control/observe/summary_inner.h"

static uint64_t random_state;

static int seed(void **state)
{
	const char *given = getenv("SEED");

	(void)state;
	random_state = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
	print_message("SEED=%llu\n", (unsigned long long)random_state);
	return 0;
}

static uint64_t rnd(void)
{
	random_state += 0x9e3779b97f4a7c15ull;
	uint64_t z = random_state;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/* ---- the layout ------------------------------------------------------------------------------ */

/* Engines of other versions read these bytes: the test fails when a field moves. */
static void the_bytes_are_as_they_were_in_version_1(void **state)
{
	static const uint8_t head[] = {1, 2, 3, 4, 5, 3, 7, 0, 8, 0, 0xe7, 3, 100, 0, 200, 0, 0x2c,
		1, 0x10, 0x27, 0x15, 0xcd, 0x5b, 0x07, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x05, 0, 0, 1,
		0, 0, 0, 0, 0, 0, 0, 0x78, 0x56, 0x34, 0x12, 2, 0, 0, 0, 'p', 'o', 'o', 'l', '_',
		'f', 'u', 'l', 'l', 0};
	struct summary s = {.made = 1,
		.severity = 2,
		.flags = 3,
		.findings = 4,
		.rails = 5,
		.rails_up = 3,
		.members_up = 7,
		.members_down = 8,
		.pool_used = 999,
		.directory_used = 100,
		.hits = 500,
		.window_ms = 10000,
		.uptime_s = 123456789,
		.get_bytes_per_s = 0x056789abcdef,
		.set_bytes_per_s = 1,
		.get_pages_per_s = 0x12345678,
		.evictions_per_s = 2,
		.finding = "pool_full",
		.dashboard_port = 0x7cfd};
	struct summary got;

	(void)state;
	s.latency[SUMMARY_GET][0] = 0xa1;
	s.latency[SUMMARY_SET][0] = 0xa2;
	s.latency[SUMMARY_EXISTS][SUMMARY_BUCKETS - 1] = 0xa3;
	assert_memory_equal(&s, head, sizeof(head));
	assert_int_equal(((uint8_t *)&s)[72], 0xfd);
	assert_int_equal(((uint8_t *)&s)[73], 0x7c);
	assert_int_equal(((uint8_t *)&s)[94], 0xa1);
	assert_int_equal(((uint8_t *)&s)[94 + 54], 0xa2);
	assert_int_equal(((uint8_t *)&s)[255], 0xa3);
	assert_true(summary_decode((uint8_t *)&s, sizeof(s), &got));
	assert_memory_equal(&got, &s, sizeof(s));
}

static void a_later_version_is_read_and_its_new_fields_are_ignored(void **state)
{
	struct summary s = {.made = 9, .severity = 1, .rails = 2}, got;

	(void)state;
	memset(s.spare, 0xff, sizeof(s.spare));
	assert_true(summary_decode((uint8_t *)&s, sizeof(s), &got));
	memset(s.spare, 0, sizeof(s.spare));
	assert_memory_equal(&got, &s, sizeof(s));
	s.made = 0;
	assert_false(summary_decode((uint8_t *)&s, sizeof(s), &got));
	s.made = 1;
	assert_false(summary_decode((uint8_t *)&s, sizeof(s) - 1, &got));
	assert_false(summary_decode((uint8_t *)&s, 0, &got));
}

/* ---- hostile bytes --------------------------------------------------------------------------- */

static void assert_bounded(const struct summary *s)
{
	size_t bytes = strnlen(s->finding, sizeof(s->finding));

	assert_true(s->made >= 1 && s->severity <= SEVERITY_CRITICAL && s->flags <= 7);
	assert_true(s->rails <= RAILS_MAX && s->rails_up <= s->rails);
	assert_true(s->members_up <= 32768 && s->members_down <= 32768);
	assert_true(s->pool_used <= 1000 && s->directory_used <= 1000);
	assert_true(s->hits == SUMMARY_NONE || s->hits <= 1000);
	assert_true(s->window_ms <= 60000);
	assert_true(s->get_bytes_per_s <= 1ull << 44 && s->set_bytes_per_s <= 1ull << 44);
	assert_true(s->get_pages_per_s <= 4000000000u && s->evictions_per_s <= 4000000000u);
	assert_true(bytes < sizeof(s->finding));
	for (size_t i = 0; i < sizeof(s->finding); i++)
		assert_true(i < bytes ? (s->finding[i] >= 'a' && s->finding[i] <= 'z') ||
						(s->finding[i] >= '0' && s->finding[i] <= '9') ||
						s->finding[i] == '_'
				      : s->finding[i] == 0);
	for (unsigned call = 0; call < SUMMARY_CALLS; call++) {
		uint64_t batches = 0;

		for (unsigned i = 0; i < SUMMARY_BUCKETS; i++)
			batches += summary_count(s->latency[call][i]);
		assert_true(batches <= 1000000000ull);
	}
}

static void every_value_of_hostile_bytes_is_bounded(void **state)
{
	uint8_t data[SUMMARY_BYTES];
	struct summary s;
	unsigned kept = 0;

	(void)state;
	memset(data, 0xff, sizeof(data));
	assert_true(summary_decode(data, sizeof(data), &s));
	assert_bounded(&s);
	for (unsigned round = 0; round < 200000; round++) {
		unsigned limit = (unsigned)(rnd() % 256);

		/* Small bytes too, so that some values pass unchanged */
		for (unsigned i = 0; i < sizeof(data); i++)
			data[i] = (uint8_t)(rnd() % (limit + 1));
		if (rnd() % 2)
			snprintf((char *)data + 48, SUMMARY_FINDING_BYTES, "rail%c_%u",
				(char)(rnd() % 256), (unsigned)(rnd() % 100));
		if (!summary_decode(data, sizeof(data), &s)) {
			assert_int_equal(data[0], 0);
			continue;
		}
		assert_bounded(&s);
		kept += s.finding[0] != 0;
	}
	assert_true(kept > 1000);
}

/* ---- counts ---------------------------------------------------------------------------------- */

static void codes_are_exact_to_16_and_then_within_a_seventeenth(void **state)
{
	(void)state;
	for (unsigned code = 0; code < 256; code++) {
		assert_int_equal(summary_code(summary_count((uint8_t)code)), code);
		if (code)
			assert_true(
				summary_count((uint8_t)code) > summary_count((uint8_t)(code - 1)));
	}
	for (unsigned n = 0; n <= 16; n++)
		assert_int_equal(summary_count(summary_code(n)), n);
	assert_int_equal(summary_code(UINT64_MAX), 255);
	for (unsigned round = 0; round < 1000000; round++) {
		uint64_t n = rnd() >> (31 + rnd() % 33);
		uint64_t got = summary_count(summary_code(n));

		assert_true((got > n ? got - n : n - got) * 17 <= n);
	}
}

static void buckets_are_pairs_of_those_of_the_engine(void **state)
{
	(void)state;
	assert_int_equal(summary_lower_ns(0), 0);
	assert_int_equal(summary_lower_ns(1), 1024);
	assert_int_equal(summary_lower_ns(2), 1536);
	assert_int_equal(summary_lower_ns(SUMMARY_BUCKETS - 1), 1ull << LATENCY_POWER_MAX);
	for (unsigned i = 2; i < SUMMARY_BUCKETS; i++)
		assert_true(summary_lower_ns(i) * 2 <= summary_lower_ns(i - 1) * 3);
	for (unsigned b = 0; b < LATENCY_BUCKETS; b++) {
		uint64_t latency[LATENCY_BUCKETS] = {0};
		uint8_t codes[SUMMARY_BUCKETS];

		latency[b] = 3;
		summary_latency(latency, codes);
		for (unsigned i = 0; i < SUMMARY_BUCKETS; i++) {
			bool here = latency_lower_ns(b) >= summary_lower_ns(i) &&
				    (i + 1 == SUMMARY_BUCKETS ||
					    latency_lower_ns(b) < summary_lower_ns(i + 1));

			assert_int_equal(codes[i], here ? 3 : 0);
		}
	}
}

/* ---- percentiles of the union ---------------------------------------------------------------- */

#define MEMBERS 12u
#define SAMPLES 20000u /* of one member, at most */

static uint64_t sample[MEMBERS * SAMPLES];

/*
 * Sorts the first `count` samples, by twelve bits at a time from the lowest on. qsort() took most
 * of the test's time.
 */
static void sort_samples(uint64_t count)
{
	static uint64_t sorted[MEMBERS * SAMPLES];

	for (unsigned shift = 0; shift < 48; shift += 12) {
		uint64_t at[4097] = {0};

		for (uint64_t i = 0; i < count; i++)
			at[(sample[i] >> shift & 4095) + 1]++;
		for (unsigned k = 1; k < 4096; k++)
			at[k] += at[k - 1];
		for (uint64_t i = 0; i < count; i++)
			sorted[at[sample[i] >> shift & 4095]++] = sample[i];
		memcpy(sample, sorted, count * sizeof(sample[0]));
	}
	for (uint64_t i = 1; i < count; i++)
		if (sample[i] < sample[i - 1])
			fail_msg("not sorted");
}

/* Latencies of 1.1 us to 18 s: log-uniform, narrow, with a long tail, or uniform. */
static uint64_t draw(unsigned shape, uint64_t scale)
{
	uint64_t ns;

	switch (shape) {
	case 0: ns = (scale << rnd() % 10) * (1000 + rnd() % 1000) / 1000; break;
	case 1: ns = scale + rnd() % (scale / 4); break;
	case 2: ns = scale * 1000 / (1 + rnd() % 1000); break;
	default: ns = scale + rnd() % (8 * scale); break;
	}
	return ns + rnd() % 1000;
}

/* The smallest sample that a share of `odds` : 1 of all does not exceed. */
static uint64_t exact(uint64_t samples, double odds)
{
	double share = odds / (1 + odds);
	uint64_t rank = (uint64_t)(share * (double)samples);

	if ((double)rank < share * (double)samples)
		rank++;
	return sample[rank ? rank - 1 : 0];
}

/* `alike`: all members have latencies of one scale, as hosts of one kind do. */
static uint64_t merge_some(bool alike, struct summary_merged *merged)
{
	unsigned members = 1 + (unsigned)(rnd() % MEMBERS);
	uint64_t n = 0, scale = 0;

	memset(merged, 0, sizeof(*merged));
	for (unsigned m = 0; m < members; m++) {
		uint64_t mine = alike ? 2000 + rnd() % (SAMPLES - 2000)
				      : 1 + rnd() % (rnd() % 2 ? SAMPLES : 100);
		uint64_t latency[LATENCY_BUCKETS] = {0};
		struct summary s = {.made = 1}, got;
		unsigned shape = (unsigned)(rnd() % 4);

		if (!scale || !alike)
			scale = 1100 + rnd() % (1ull << (11 + rnd() % 14));
		for (uint64_t i = 0; i < mine; i++) {
			sample[n] = draw(shape, scale);
			latency[latency_bucket(sample[n++])]++;
		}
		summary_latency(latency, s.latency[SUMMARY_GET]);
		assert_true(summary_decode((uint8_t *)&s, sizeof(s), &got));
		summary_merge(merged, &got);
	}
	sort_samples(n);
	return n;
}

static const unsigned permille[] = {500, 900, 990, 999};

/* The ratios of percentiles of merged histograms to the exact ones. */
static void compare(bool alike, unsigned rounds, double least[4], double most[4])
{
	for (unsigned p = 0; p < 4; p++)
		least[p] = 1e9, most[p] = 0;
	for (unsigned round = 0; round < rounds; round++) {
		struct summary_merged merged;
		uint64_t n = merge_some(alike, &merged);

		for (unsigned p = 0; p < 4; p++) {
			double odds = permille[p] / (1000.0 - permille[p]);
			uint64_t got = summary_quantile_ns(merged.batches[0], permille[p]);
			double ratio = (double)got / (double)exact(n, odds);

			assert_true(got >= exact(n, odds * 8 / 9));
			assert_true((double)got <= 1.5 * (double)exact(n, odds * 9 / 8) + 1);
			most[p] = ratio > most[p] ? ratio : most[p];
			least[p] = ratio < least[p] ? ratio : least[p];
		}
	}
	for (unsigned p = 0; p < 4; p++)
		print_message("p%g: %.3f to %.3f times the exact one\n", permille[p] / 10.0,
			least[p], most[p]);
}

/* Any members, also those where a small change of the rank is a large one of the latency. */
static void merged_percentiles_keep_rank_and_value_within_the_stated_bounds(void **state)
{
	double least[4], most[4];

	(void)state;
	compare(false, 300, least, most);
}

static void percentiles_of_members_alike_are_within_a_factor_of_2(void **state)
{
	double least[4], most[4];

	(void)state;
	compare(true, 200, least, most);
	for (unsigned p = 0; p < 3; p++)
		assert_true(least[p] >= 0.5 && most[p] <= 2);
}

/* A share of rows that lie moves percentiles only by its weight; honest rows stay as they are. */
static void a_lying_member_has_at_most_the_weight_it_claims(void **state)
{
	struct summary honest = {.made = 1}, liar = {.made = 1}, got;
	struct summary_merged merged = {0};

	(void)state;
	honest.latency[SUMMARY_GET][20] = summary_code(1000000);
	memset(liar.latency, 0xff, sizeof(liar.latency));
	assert_true(summary_decode((uint8_t *)&liar, sizeof(liar), &got));
	summary_merge(&merged, &got);
	assert_int_equal(summary_batches(merged.batches[SUMMARY_GET]), 0);
	summary_merge(&merged, &honest);
	assert_int_equal(
		summary_quantile_ns(merged.batches[SUMMARY_GET], 999), summary_lower_ns(21));
	memset(liar.latency, 0, sizeof(liar.latency));
	liar.latency[SUMMARY_GET][50] = summary_code(900000);
	summary_merge(&merged, &liar);
	assert_int_equal(
		summary_quantile_ns(merged.batches[SUMMARY_GET], 500), summary_lower_ns(21));
	assert_int_equal(
		summary_quantile_ns(merged.batches[SUMMARY_GET], 990), summary_lower_ns(51));
	assert_int_equal(summary_quantile_ns(merged.batches[SUMMARY_SET], 500), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_bytes_are_as_they_were_in_version_1),
		cmocka_unit_test(a_later_version_is_read_and_its_new_fields_are_ignored),
		cmocka_unit_test_setup(every_value_of_hostile_bytes_is_bounded, seed),
		cmocka_unit_test_setup(codes_are_exact_to_16_and_then_within_a_seventeenth, seed),
		cmocka_unit_test(buckets_are_pairs_of_those_of_the_engine),
		cmocka_unit_test_setup(
			merged_percentiles_keep_rank_and_value_within_the_stated_bounds, seed),
		cmocka_unit_test_setup(percentiles_of_members_alike_are_within_a_factor_of_2, seed),
		cmocka_unit_test(a_lying_member_has_at_most_the_weight_it_claims),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
