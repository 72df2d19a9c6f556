/* SPDX-License-Identifier: Apache-2.0 */
/*
 * figures.c: recent figures are of what changed since the moment before, and not since the start;
 * -1 stands for nothing to measure; values stand in the order of their names.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/unit/control/observe/snapshot_world.h"

static struct snapshot s;
static struct moments moments;

static int setup(void **state)
{
	sample_healthy(&s);
	moments.count = 0;
	moments_compare(&moments, &s);
	s.taken_ns += MOMENTS_WINDOW_NS;
	return 0;
}

static const struct recent *compared(void)
{
	moments_compare(&moments, &s);
	return &s.recent.engine;
}

/* Within a bucket of abi/latency.h. */
#define assert_time(seconds, ns)                                                                   \
	assert_true((seconds)*1e9 >= (ns) && (seconds)*1e9 <= 1.25 * (double)(ns))

static void nothing_that_happened_is_no_figure(void **state)
{
	const struct recent *r = compared();

	assert_true(r->seconds == 10);
	assert_true(r->get_bytes_per_second == 0 && r->evicted_pages_per_second == 0);
	assert_true(r->get_hit_ratio == -1 && r->exists_hit_ratio == -1);
	assert_true(r->exists_usable_ratio == -1 && r->eviction_age_seconds == -1);
	assert_true(r->get_p50_seconds == -1 && r->set_p999_seconds == -1);
	assert_true(r->loop_lag_p99_seconds == -1);
	assert_true(s.recent.rail[1].rail_read_p99_seconds == -1);
	assert_true(s.recent.core[1].poll_core_gap_longest_seconds == 0);
	assert_true(r->pool_used_ratio == .25 && s.recent.rail[0].rail_pool_used_ratio == .25);
	assert_true(r->directory_used_ratio == -1); /* no shard */
}

/* The engine has just started: its first snapshot is all that there is. */
static void a_first_snapshot_divides_by_no_time(void **state)
{
	moments.count = 0;
	assert_true(compared()->seconds == 0);
	assert_true(s.recent.engine.get_pages_per_second == 0);
	assert_true(s.recent.core[0].poll_core_busy_ratio == 0);
}

static void ratios_and_times_are_of_the_last_seconds(void **state)
{
	const struct recent *r;

	for (unsigned i = 0; i < 99; i++)
		sample_batch(&s, STATISTICS_GET, 4, i < 33 ? 4 : 0, 70000);
	sample_batch(&s, STATISTICS_GET, 4, 4, 9000000);
	sample_batch(&s, STATISTICS_EXISTS, 10, 4, 40000);
	s.clients.exists_usable += 3;
	s.keys = 5000;
	s.counter[COUNTER_pages_evicted] += 20;
	s.counter[COUNTER_entries_inserted] += 40;
	s.counter[COUNTER_entries_again_soon] += 10;
	s.clients.get_local += 44;
	s.clients.get_remote += 220;
	s.lag[latency_bucket(5000000)]++;
	s.rail[1].latency[latency_bucket(33000)] += 3;
	r = compared();
	assert_true(r->get_pages_per_second == 40 && r->get_batches_per_second == 10);
	assert_true(r->get_hit_ratio == .66 && r->get_local_ratio == .11);
	assert_true(r->get_remote_ratio == .55 && r->exists_hit_ratio == .6);
	assert_true(r->exists_usable_ratio == .3 && r->again_soon_ratio == .25);
	assert_true(r->eviction_age_seconds == 2500); /* 5000 pages, 2 evicted a second */
	assert_time(r->get_p50_seconds, 70000);
	assert_time(r->get_p99_seconds, 70000);
	assert_time(r->get_p999_seconds, 9000000);
	assert_time(r->exists_p99_seconds, 40000);
	assert_true(r->set_p99_seconds == -1);
	assert_time(r->loop_lag_p99_seconds, 5000000);
	assert_true(s.recent.rail[0].rail_read_p99_seconds == -1);
	assert_time(s.recent.rail[1].rail_read_p99_seconds, 33000);
}

/* Slots that come late are no fault by themselves, and neither are sets that time out. */
static void room_is_late_when_slots_and_sets_are(void **state)
{
	struct statistics_calls *set = &s.clients.calls[STATISTICS_SET];

	s.counter[COUNTER_credits_late] += 7;
	assert_true(compared()->room_late_pages == 0);
	set->result[STATISTICS_TIMEOUT] += 5;
	assert_true(compared()->room_late_pages == 5);
	s.counter[COUNTER_credits_late] -= 7;
	assert_true(compared()->room_late_pages == 0 && s.recent.engine.room_refused == 0);
	set->result[STATISTICS_NO_SPACE] += 2;
	s.counter[COUNTER_credits_refused] += 3;
	assert_true(compared()->room_refused == 5);
}

static void poll_cores_tell_their_own_gaps_and_work(void **state)
{
	struct poll_core_report *report = &s.poll_core[1].report;

	report->busy_ns += 4000000000;
	report->gaps_long += 3;
	report->gaps[9] += 3;
	report->gaps[12]++;
	compared();
	assert_true(s.recent.core[1].poll_core_busy_ratio == .4);
	assert_true(s.recent.core[1].poll_core_gaps == 3);
	assert_true(
		s.recent.core[1].poll_core_gap_longest_seconds == (double)gap_bucket_ns(12) / 1e9);
	assert_true(s.recent.core[0].poll_core_busy_ratio == 0);
	assert_true(s.recent.core[0].poll_core_gaps == 0);
}

/* The value of the figure `name` of a group. */
static double value(enum figure_group group, unsigned i, const char *name)
{
	const struct figure_list *list = &figure_lists[group];
	double values[FIGURES_MAX];

	figures_values(&s, group, i, values);
	for (unsigned n = 0; n < list->count; n++)
		if (!strcmp(list->figure[n].name, name))
			return values[n];
	fail_msg("no figure %s", name);
	return 0;
}

static void values_stand_in_the_order_of_their_names(void **state)
{
	s.keys = 55;
	s.rail[1].peers_out = 4;
	s.poll_core[1].report.gaps_long = 6;
	s.rail[1].counter[COUNTER_bytes_read] += 7000;
	compared();
	assert_true(value(FIGURES_ENGINE, 0, "pages") == 55);
	assert_true(value(FIGURES_RAIL, 1, "rail_peers_out") == 4);
	assert_true(value(FIGURES_RAIL, 0, "rail_peers_out") == 0);
	assert_true(value(FIGURES_CORE, 1, "poll_core_gaps_over_10us_total") == 6);
	assert_true(value(FIGURES_RECENT, 0, "members_up") == 3);
	assert_true(value(FIGURES_RECENT_RAIL, 1, "rail_read_bytes_per_second") == 700);
	assert_true(value(FIGURES_RECENT_RAIL, 0, "rail_read_bytes_per_second") == 0);
	assert_true(value(FIGURES_RECENT_CORE, 1, "poll_core_gaps") == 6);
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(nothing_that_happened_is_no_figure),
		TEST(a_first_snapshot_divides_by_no_time),
		TEST(ratios_and_times_are_of_the_last_seconds),
		TEST(room_is_late_when_slots_and_sets_are),
		TEST(poll_cores_tell_their_own_gaps_and_work),
		TEST(values_stand_in_the_order_of_their_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
