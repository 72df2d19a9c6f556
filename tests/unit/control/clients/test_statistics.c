/* SPDX-License-Identifier: Apache-2.0 */
/*
 * statistics.c: what honest clients count arrives in the totals, which never shrink; what is
 * impossible is refused and spoils nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "config/limits.h"
#include "engine/control/clients/clients_inner.h"

#define SECOND 1000000000ull

static struct statistics statistics;
static struct statistics_source source;
static struct channel_statistics area;

static int setup(void **state)
{
	memset(&statistics, 0, sizeof(statistics));
	memset(&source, 0, sizeof(source));
	memset(&area, 0, sizeof(area));
	source.read_ns = SECOND;
	return 0;
}

/* An honest batch. */
static void batch(enum statistics_call call, unsigned pages, unsigned misses, uint64_t ns)
{
	struct statistics_calls *c = &area.words.calls[call];

	statistics_write_begin(&area);
	c->batches++;
	c->pages += pages;
	c->result[STATISTICS_HIT] += pages - misses;
	c->result[STATISTICS_MISS] += misses;
	c->latency_ns_sum += ns;
	c->latency[latency_bucket(ns)]++;
	statistics_write_end(&area);
}

static bool collect(uint64_t now_ns)
{
	return statistics_collect(&statistics, &source, &area, now_ns);
}

static void differences_are_added_and_channels_that_come_anew_too(void **state)
{
	const struct statistics_calls *get = &statistics.total.calls[STATISTICS_GET];

	for (unsigned channel = 1; channel <= 3; channel++) {
		memset(&area, 0, sizeof(area));
		source = (struct statistics_source){.read_ns = SECOND};
		batch(STATISTICS_GET, 10, 3, 5000);
		assert_true(collect(2 * SECOND));
		assert_true(collect(2 * SECOND)); /* nothing new */
		batch(STATISTICS_GET, 0, 0, UINT64_C(1) << 37);
		assert_true(collect(3 * SECOND));
		assert_int_equal(get->batches, channel * 2);
		assert_int_equal(get->pages, channel * 10);
		assert_int_equal(get->result[STATISTICS_MISS], channel * 3);
		assert_int_equal(get->latency[latency_bucket(5000)], channel);
		assert_true(get->latency_ns_sum == channel * (5000 + (UINT64_C(1) << 37)));
	}
	assert_int_equal(statistics.refused, 0);
}

static void a_client_that_writes_meanwhile_is_read_later(void **state)
{
	statistics_write_begin(&area);
	area.words.get_bytes = UINT64_MAX; /* half of it is there */
	assert_true(collect(2 * SECOND));
	assert_int_equal(statistics.total.get_bytes, 0);
	area.words.get_bytes = 4096;
	statistics_write_end(&area);
	assert_true(collect(2 * SECOND));
	assert_int_equal(statistics.total.get_bytes, 4096);
	assert_int_equal(statistics.refused, 0);
}

/* Each of these lies is refused for good, and the totals stay as they were. */
static void refused(const char *what)
{
	struct statistics before = statistics;

	print_message("%s\n", what);
	area.sequence += 2;
	assert_false(collect(3 * SECOND));
	assert_memory_equal(&statistics.total, &before.total, sizeof(before.total));
	assert_int_equal(statistics.refused, before.refused + 1);
	batch(STATISTICS_GET, 1, 0, 1000);
	assert_false(collect(4 * SECOND));
	assert_memory_equal(&statistics.total, &before.total, sizeof(before.total));
	assert_int_equal(statistics.refused, before.refused + 1);
	setup(NULL);
	batch(STATISTICS_SET, 4, 0, 2000);
	assert_true(collect(2 * SECOND));
}

static void what_is_impossible_is_refused(void **state)
{
	struct statistics_calls *set = &area.words.calls[STATISTICS_SET];

	batch(STATISTICS_SET, 4, 0, 2000);
	assert_true(collect(2 * SECOND));
	set->batches--;
	refused("a counter shrinks");
	batch(STATISTICS_SET, 2, 0, 2000);
	set->pages++;
	refused("results are not the pages");
	set->result[STATISTICS_HIT] += 1ull << 63;
	set->result[STATISTICS_MISS] += 1ull << 63;
	refused("results overflow");
	batch(STATISTICS_SET, 1, 0, 5000);
	set->latency[latency_bucket(5000)] += 1ull << 63;
	set->latency[latency_bucket(7000)] += 1ull << 63;
	refused("latencies overflow");
	set->latency[5]++;
	refused("more latencies than batches");
	set->batches++;
	refused("fewer latencies than batches");
	set->batches++;
	set->latency[latency_bucket(2000)]++;
	set->latency_ns_sum += 20000;
	refused("a sum above the buckets'");
	set->batches++;
	set->latency[latency_bucket(1 << 20)]++;
	set->latency_ns_sum += 1000;
	refused("a sum below the buckets'");
	set->batches++;
	set->latency[LATENCY_BUCKETS - 1]++;
	set->latency_ns_sum = UINT64_MAX;
	refused("a sum at the end of its range");
	set->batches += 1000000000;
	set->latency[0] += 1000000000;
	refused("more batches than a thread can do");
	set->batches += 1u << 20;
	set->latency[0] += 1u << 20;
	set->pages += (1ull << 20) * BATCH_MAX;
	set->result[STATISTICS_HIT] += (1ull << 20) * BATCH_MAX;
	refused("more pages than a thread can do");
	set->pages += BATCH_MAX + 1;
	set->result[STATISTICS_HIT] += BATCH_MAX + 1;
	set->batches++;
	set->latency[0]++;
	refused("more pages than a batch has");
	area.words.get_bytes = 1ull << 50;
	refused("more bytes than memory can move");
	area.words.get_staged = 1;
	refused("more staged than read");
	area.words.set_bytes = 1ull << 50;
	refused("more bytes stored than memory can move");
	batch(STATISTICS_GET, 4, 1, 2000);
	area.words.get_usable = 4;
	refused("more usable pages of get than hits");
	batch(STATISTICS_EXISTS, 4, 1, 2000);
	area.words.exists_usable = 4;
	refused("more usable pages of exists than hits");
	for (unsigned i = 0; i < 6; i++) {
		uint64_t *const counts[] = {&area.words.lookups, &area.words.lookups_cached,
			&area.words.get_local, &area.words.get_remote, &area.words.set_present,
			&area.words.reissued};

		*counts[i] = 1ull << 50;
		refused("more keys or pages than a thread can do");
	}
}

/* Bytes of 20 seconds in one second, though nothing was counted in the seconds before. */
static void an_idle_time_that_was_read_gives_no_credit(void **state)
{
	assert_true(collect(50 * SECOND));
	area.words.set_bytes = 20ull << 40;
	area.sequence += 2;
	assert_false(collect(51 * SECOND));
}

/* What can be added at once is bounded, so that sums cannot overflow. */
static void a_long_time_without_a_reading_gives_bounded_credit(void **state)
{
	area.words.set_bytes = 50ull << 40;
	area.sequence += 2;
	assert_true(collect(3600 * SECOND));
	area.words.set_bytes += 100ull << 40;
	area.sequence += 2;
	assert_false(collect(7200 * SECOND));
}

/* Random words: never accepted in part, and never an overflow (the sanitizers look). */
static void rubbish_is_refused_as_a_whole(void **state)
{
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)strtoul(given, NULL, 0) : 20261122;
	uint64_t *word = (uint64_t *)(void *)&area.words;
	struct statistics_words zero;

	print_message("seed %u\n", seed);
	srand(seed);
	memset(&zero, 0, sizeof(zero));
	for (unsigned round = 0; round < 20000; round++) {
		setup(NULL);
		for (unsigned n = (unsigned)rand() % 8 + 1; n; n--)
			word[(unsigned)rand() % 160] =
				((uint64_t)rand() << 33 ^ (uint64_t)rand()) >> rand() % 64;
		area.sequence = 2;
		if (!collect(2 * SECOND))
			assert_memory_equal(&statistics.total, &zero, sizeof(zero));
		else
			assert_memory_equal(&statistics.total, &area.words, sizeof(zero));
	}
}

static void a_channel_that_was_not_read_for_long_is_not_refused(void **state)
{
	for (unsigned i = 0; i < 100000; i++)
		batch(STATISTICS_GET, 128, 1, 5000 + i);
	assert_true(collect(3600 * SECOND));
	assert_int_equal(statistics.total.calls[STATISTICS_GET].pages, 12800000);
}

/* A thousand idle channels cost the loop nothing: their words are not looked at. */
static void a_channel_without_a_new_batch_is_not_copied(void **state)
{
	batch(STATISTICS_GET, 1, 0, 5000);
	assert_true(collect(2 * SECOND));
	area.words.get_bytes = 4096; /* no honest client writes without the sequence */
	assert_true(collect(3 * SECOND));
	assert_int_equal(statistics.total.get_bytes, 0);
	batch(STATISTICS_GET, 1, 0, 5000);
	assert_true(collect(4 * SECOND));
	assert_int_equal(statistics.total.get_bytes, 4096);
}

/* Each channel may claim 73 minutes for each batch: a few channels could wrap the sum. */
static void totals_stop_at_their_end_and_never_wrap(void **state)
{
	struct statistics_calls *get = &area.words.calls[STATISTICS_GET];
	const uint64_t batches = 4000000, *sum = &statistics.total.calls[0].latency_ns_sum;
	uint64_t before = 0;

	for (unsigned channel = 0; channel < 3; channel++) {
		source = (struct statistics_source){.read_ns = SECOND};
		get->batches = get->latency[LATENCY_BUCKETS - 1] = batches;
		get->latency_ns_sum = batches * STATISTICS_LATENCY_MAX_NS;
		area.sequence += 2;
		assert_true(collect(2 * SECOND));
		assert_true(*sum >= before);
		before = *sum;
	}
	assert_true(*sum == UINT64_MAX);
	assert_int_equal(statistics.total.calls[STATISTICS_GET].batches, 3 * batches);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(
			differences_are_added_and_channels_that_come_anew_too, setup),
		cmocka_unit_test_setup(a_client_that_writes_meanwhile_is_read_later, setup),
		cmocka_unit_test_setup(what_is_impossible_is_refused, setup),
		cmocka_unit_test_setup(an_idle_time_that_was_read_gives_no_credit, setup),
		cmocka_unit_test_setup(a_long_time_without_a_reading_gives_bounded_credit, setup),
		cmocka_unit_test_setup(rubbish_is_refused_as_a_whole, setup),
		cmocka_unit_test_setup(a_channel_that_was_not_read_for_long_is_not_refused, setup),
		cmocka_unit_test_setup(a_channel_without_a_new_batch_is_not_copied, setup),
		cmocka_unit_test_setup(totals_stop_at_their_end_and_never_wrap, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
