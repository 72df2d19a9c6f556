/* SPDX-License-Identifier: Apache-2.0 */
/*
 * history.c: a point holds the rates of the time since the last one, the ring keeps the newest
 * hour, and the text is JSON with the oldest point first. Python's JSON parser reads it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/control/observe/history_inner.h"
#include "tests/unit/control/observe/python_world.h"
#include "tests/unit/control/observe/snapshot_world.h"

#define STEP_NS (HISTORY_MS * 1000000ull)

static struct snapshot s;
static struct history history;

static int setup(void **state)
{
	sample_healthy(&s);
	memset(&history, 0, sizeof(history));
	history_add(&history, &s);
	return 0;
}

static void later(uint64_t ns)
{
	s.taken_ns += ns;
	s.unix_ms += ns / 1000000;
	history_add(&history, &s);
}

/* Checks the Python expression `condition` on the history `h`, its points as dicts in `p`. */
static void check(const char *condition)
{
	size_t bytes;
	char *text;

	assert_int_equal(history_json(&history, s.rails, &text, &bytes), 0);
	assert_int_equal(strlen(text), bytes);
	python_expect("history", condition, text, bytes);
	free(text);
}

static void a_history_without_points_is_valid(void **state)
{
	check("h[\"points\"]==[] and h[\"seconds\"]==5 and h[\"columns\"][0]==\"unix_ms\"");
	check("h[\"columns\"][-1]==\"rail_1_bytes_per_second\" and len(set(h[\"columns\"]))==18");
}

static void a_point_is_added_every_five_seconds(void **state)
{
	later(STEP_NS - 1);
	assert_int_equal(history.count, 0);
	later(1);
	assert_int_equal(history.count, 1);
	later(STEP_NS - 1);
	assert_int_equal(history.count, 1);
	later(3 * STEP_NS); /* the loop was blocked: one point for all of it */
	assert_int_equal(history.count, 2);
}

static void rates_are_differences_over_the_time_that_passed(void **state)
{
	s.clients.get_bytes += 50000000;
	s.clients.set_bytes += 25000000;
	s.clients.get_local += 10;
	s.clients.get_remote += 25;
	for (unsigned i = 0; i < 99; i++)
		sample_batch(&s, STATISTICS_GET, 1, i < 64, 2000);
	sample_batch(&s, STATISTICS_GET, 1, 0, 5000000);
	s.counter[COUNTER_pages_evicted] += 40;
	s.counter[COUNTER_members_joined] += 2;
	s.counter[COUNTER_members_died] += 3;
	s.rail[0].counter[COUNTER_bytes_read] += 1000;
	s.rail[1].counter[COUNTER_bytes_read] += 1ull << 50;
	s.member[1].state = SNAPSHOT_SILENT;
	later(STEP_NS);
	check("len(p)==1 and p[0][\"unix_ms\"]==1700000005000");
	check("(p[0][\"get_bytes_per_second\"],p[0][\"set_bytes_per_second\"])==(1e7,5e6)");
	check("(p[0][\"get_pages_per_second\"],p[0][\"evicted_pages_per_second\"])==(20,8)");
	check("(p[0][\"get_local_ratio\"],p[0][\"get_remote_ratio\"],p[0][\"get_hit_ratio\"])==(.1,.25,.36)");
	check("2e-6<=p[0][\"get_p50_seconds\"]<=2e-6*1.19 and p[0][\"get_p99_seconds\"]==p[0][\"get_p50_seconds\"]");
	check("p[0][\"set_p99_seconds\"]==p[0][\"exists_p99_seconds\"]==-1"); /* no batch ended */
	check("(p[0][\"members_joined\"],p[0][\"members_died\"])==(2,3)");
	check("p[0][\"pool_used_ratio\"]==.25 and p[0][\"members_up\"]==2");
	check("p[0][\"rail_0_bytes_per_second\"]==200 and 2.2e14<p[0][\"rail_1_bytes_per_second\"]<2.3e14");
	/* Twice the time, half the rate; nothing was read: there is no hit ratio. */
	s.clients.get_bytes += 50000000;
	sample_batch(&s, STATISTICS_SET, 1, 0, 1000000);
	later(2 * STEP_NS);
	check("len(p)==2 and p[1][\"get_bytes_per_second\"]==5e6 and p[1][\"set_bytes_per_second\"]==0");
	check("p[1][\"members_joined\"]==p[1][\"members_died\"]==0");
	check("p[1][\"get_hit_ratio\"]==p[1][\"get_local_ratio\"]==p[1][\"get_remote_ratio\"]==p[1][\"get_p50_seconds\"]==-1");
	check("1e-3<=p[1][\"set_p99_seconds\"]<=1.19e-3 and p[1][\"rail_0_bytes_per_second\"]==0");
}

static void the_ring_keeps_the_newest_hour(void **state)
{
	for (unsigned i = 1; i <= HISTORY_POINTS + 10; i++) {
		s.clients.get_bytes += 5 * i; /* point number i has the rate i */
		later(STEP_NS);
		assert_int_equal(history.count, i < HISTORY_POINTS ? i : HISTORY_POINTS);
		if (i == HISTORY_POINTS)
			check("[q[\"get_bytes_per_second\"] for q in p]==[*range(1,721)]");
	}
	check("[q[\"get_bytes_per_second\"] for q in p]==[*range(11,731)]");
	check("all(b[\"unix_ms\"]-a[\"unix_ms\"]==5000 for a,b in zip(p,p[1:]))");
	check("p[-1][\"unix_ms\"]==1700000000000+730*5000");
}

static void an_engine_without_pool_and_rails_has_points_too(void **state)
{
	s.rails = 0;
	later(STEP_NS);
	check("p[0][\"pool_used_ratio\"]==-1 and h[\"columns\"][-1]==\"pool_used_ratio\"");
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_history_without_points_is_valid),
		TEST(a_point_is_added_every_five_seconds),
		TEST(rates_are_differences_over_the_time_that_passed),
		TEST(the_ring_keeps_the_newest_hour),
		TEST(an_engine_without_pool_and_rails_has_points_too),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
