/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics_text(): the text is valid in every respect that exposition.py knows, figures stand where
 * they belong, labels are few and bounded, and with `compat` every name of PeerCache 0.8.4 is there
 * with its label.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/control/observe/health_inner.h"
#include "engine/control/observe/metrics_inner.h"
#include "tests/unit/control/observe/python_world.h"
#include "tests/unit/control/observe/snapshot_world.h"

static struct snapshot s;
static struct health health;

static int setup(void **state)
{
	sample_healthy(&s);
	health.count = 0;
	return 0;
}

/* Checks the Python expression `condition` on the text: known() of exposition.py. */
static void check(bool compat, const char *condition)
{
	size_t bytes;
	char *text;

	assert_int_equal(metrics_text(&s, &health, compat, &text, &bytes), 0);
	assert_int_equal(strlen(text), bytes);
	python_expect("exposition", condition, text, bytes);
	free(text);
}

static void the_text_is_valid_for_any_figures(void **state)
{
	uint64_t *word = (uint64_t *)(void *)&s.clients;

	check(false, "True");
	check(true, "True");
	for (size_t i = 0; i < STATISTICS_WORDS; i++)
		word[i] = UINT64_MAX >> 12;
	s.uptime_ms = s.keys = s.shard_entries = s.shard_capacity = UINT64_MAX >> 12;
	check(true, "True");
	memset(&s, 0, sizeof(s)); /* no rails, members, cores or name */
	check(true, "True");
}

/* The reader of this test refuses each of these texts. */
static void a_text_that_is_not_valid_is_refused(void **state)
{
	static const char head[] = "# HELP a x\n# TYPE a histogram\n";
	static const char *const wrong[] = {"a_sum 1\na_count 1\n",
		"a_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 2\n",
		"a_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n",
		"a_bucket{le=\"+Inf\"} 1\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n",
		"a_bucket{le=\"+Inf\"} 1\na_sum 1\n", "# HELP a x\n# TYPE a gauge\n",
		"a_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\na_count 1\n",
		"a_bucket{le=\"+Inf\"} 1\na_sum nan\na_count 1\n",
		"a_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1", "b 1\n", "\n"};
	char text[512], why[256];

	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		snprintf(text, sizeof(text), "%s%s", head, wrong[i]);
		print_message("%s", text);
		assert_false(python_holds("exposition", "True", text, strlen(text), why));
		assert_non_null(strstr(why, "Invalid"));
	}
	snprintf(text, sizeof(text), "%sa_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n", head);
	python_expect("exposition", "True", text, strlen(text));
}

static void figures_stand_where_they_belong(void **state)
{
	check(false, "v(\"get_local_pages_total\")==9 and v(\"get_remote_pages_total\")==7");
	check(false, "v(\"get_bytes_total\")==65536 and v(\"set_bytes_total\")==32768");
	check(false, "v(\"call_pages_total\",op=\"get\",result=\"hit\")==16");
	check(false, "v(\"call_pages_total\",op=\"get\",result=\"miss\")==4");
	check(false, "v(\"call_pages_total\",op=\"exists\",result=\"miss\")==28");
	check(false, "t(\"call_pages_total\",op=\"get\")==20");
	check(false, "v(\"rail_pool_used_bytes\",rail=\"1\")==2**28");
	check(false, "v(\"rail_link_bytes_per_second\",rail=\"0\")==50e9");
	check(false, "v(\"start_time_seconds\")==1699999910");
	check(false,
		"[v(\"rail_state\",rail=\"0\",state=n) for n in (\"up\",\"slow\",\"down\",\"lost\")]==[1,0,0,0]");
	s.member[1].state = SNAPSHOT_DOWN;
	s.member[2].state = SNAPSHOT_SILENT;
	sample_member(&s, "host:4", SNAPSHOT_UP);
	check(false, "v(\"cluster_members\",state=\"up\")==2 and t(\"cluster_members\")==4");
	check(false, "f[\"peercache_build_info\"].samples.popitem()[1]==1");
	s.clients.set_bytes = (1ull << 53) - 1; /* whole numbers stay whole */
	check(false, "v(\"set_bytes_total\")==2**53-1");
}

/* The alerts ask for nothing else. */
static void the_findings_of_now_are_told_by_their_kind(void **state)
{
	check(false, "t(\"findings\")==0 and len(f[\"peercache_findings\"].samples)>20");
	health.count = 3;
	health.finding[0].id = FINDING_loop_blocked;
	health.finding[1].id = health.finding[2].id = FINDING_rail_down;
	check(false,
		"[v(\"findings\",kind=k) for k in (\"loop_blocked\",\"rail_down\",\"rail_slow\")]==[1,2,0]");
	check(false, "t(\"findings\")==3");
}

static void every_counter_is_told_once_by_those_who_count_it(void **state)
{
#define COUNTER(name, help) s.counter[COUNTER_##name] = 7000000 + COUNTER_##name;
#include "engine/abi/counter.def"
#undef COUNTER
	check(false, "v(\"pages_evicted_total\")-v(\"pages_already_total\")==1");
	check(false,
		"t(\"rail_ops_taken_total\")==1000+2000 and \"peercache_ops_taken_total\" not in f");
	check(false,
		"t(\"rail_ops_invalid_total\")==1001+2001 and v(\"ops_invalid_total\")==7000001");
	check(false, "not [n for n in names() if \"poll_gap_worst_ns\" in n]");
	check(false, "all(n.endswith(\"_total\") for n in f if f[n].type==\"counter\")");
	check(false, "not [n for n in f if n.endswith(\"_total\") and f[n].type!=\"counter\"]");
}

static void histograms_hold_every_sample(void **state)
{
	check(false,
		"v(\"call_seconds_count\",op=\"get\")==2 and v(\"call_seconds_sum\",op=\"get\")==3005e-6");
	check(false, "v(\"rail_read_seconds_count\",rail=\"1\")==3");
	check(false, "v(\"loop_lag_seconds_count\")==60 and v(\"loop_lag_seconds_sum\")==1200e-6");
	/* 5 us lie between 4.096 and 16.384 us; 3 ms between 1.05 and 4.2 ms. */
	check(false,
		"[v(\"call_seconds_bucket\",op=\"get\",le=e) for e in (\"4.096e-06\",\"1.6384e-05\",\"0.001048576\",\"0.004194304\",\"+Inf\")]==[0,1,1,2,2]");
	check(false,
		"len([1 for n,l in f[\"peercache_call_seconds\"].samples if (\"op\",\"get\") in l and n[-6:]==\"bucket\"])<=20");
	/* The shortest and the longest latency are counted too. */
	sample_batch(&s, STATISTICS_REMOVE, 1, 0, 0);
	sample_batch(&s, STATISTICS_REMOVE, 1, 0, 1ull << 40);
	check(false,
		"[v(\"call_seconds_bucket\",op=\"remove\",le=e) for e in (\"4.096e-06\",\"17.1798692\",\"+Inf\")]==[1,1,2]");
}

/* The number of series does not grow with members or sessions, and labels name no member or key. */
static void labels_are_few_and_series_are_bounded(void **state)
{
	while (s.members < SNAPSHOT_MEMBERS)
		sample_member(&s, "m", SNAPSHOT_UP);
	s.members_more[SNAPSHOT_UP] = 10000;
	s.members_more[SNAPSHOT_DOWN] = 7;
	check(false,
		"[v(\"cluster_members\",state=e) for e in (\"up\",\"silent\",\"down\")]==[12048,0,7]");
	s.rails = s.poll_cores = RAILS_MAX;
	s.attached.sessions = s.attached.channels = 1000000;
	for (unsigned r = 0; r < RAILS_MAX; r++) {
		s.rail[r] = s.rail[0];
		s.poll_core[r].number = r;
	}
	check(true, "series<=2000");
	check(false,
		"{l for x in f.values() for n,ls in x.samples for l,_ in ls}<={\"rail\",\"core\",\"op\",\"result\",\"kind\",\"state\",\"version\",\"le\"}");
	check(false, "len(names())==len(set(names())) and all(n[:10]==\"peercache_\" for n in f)");
}

/* ---- PeerCache 0.8.4 ------------------------------------------------------------------------- */

/* The names and types that a PeerCache 0.8.4 serves, in the order of its text. */
#define OLD_COUNTERS                                                                               \
	"read_requests read_hits read_misses read_local_hits read_remote_hits read_disk_hits write_requests bytes_read bytes_written evictions disk_writes disk_bytes_written disk_evictions promotes read_failures directory_republishes directory_lookups_saved exists_requests exists_pages_found"
#define OLD_GAUGES                                                                                 \
	"pool_bytes_used pool_capacity_bytes pool_keys disk_bytes_used disk_capacity_bytes disk_keys members storage_nodes rdma_rails rdma_read_timeouts rdma_channel_discards rdma_read_wc_errors rdma_last_wc_status rdma_local_reg_misses rdma_post_failures rdma_lease_failures rdma_lazy_local_mrs rdma_write_wc_errors rdma_write_timeouts read_hit_rate uptime_seconds"

static void every_name_of_the_old_version_is_there(void **state)
{
	check(true,
		"all(f[\"peercache_\"+n+\"_total\"].type==\"counter\" and v(n+\"_total\",node=\"host:1\")>=0 for n in \"" OLD_COUNTERS
		"\".split())");
	check(true,
		"all(f[\"peercache_\"+n].type==\"gauge\" and v(n,node=\"host:1\")>=0 for n in \"" OLD_GAUGES
		"\".split())");
	check(true,
		"all(v(\"op_latency_seconds\",node=\"host:1\",op=o,quantile=q)>0 for o in (\"read\",\"write\") for q in (\"0.5\",\"0.9\",\"0.99\"))");
	check(true,
		"v(\"op_latency_seconds_count\",node=\"host:1\",op=\"read\")==2 and v(\"op_latency_seconds_avg\",node=\"host:1\",op=\"read\")==.001502");
	check(false, "not [1 for x in f.values() for n,ls in x.samples if dict(ls).get(\"node\")]");
}

static void old_names_have_the_figures_of_this_engine(void **state)
{
	check(true,
		"[v(n,node=\"host:1\") for n in (\"read_requests_total\",\"read_hits_total\",\"read_misses_total\",\"read_hit_rate\",\"pool_bytes_used\",\"members\",\"rdma_rails\",\"uptime_seconds\",\"exists_pages_found_total\",\"read_failures_total\")]==[20,16,4,.8,2**29,3,2,90,100,3012]");
	s.member[1].state = SNAPSHOT_DOWN;
	s.member[2].state = SNAPSHOT_SILENT;
	check(true, "v(\"members\",node=\"host:1\")==2");
}

static void the_name_of_the_engine_is_escaped(void **state)
{
	strcpy(s.name, "a\"b\\c\nd} 1\n# TYPE x y");
	check(true, "v(\"pool_keys\",node=\"a\\\"b\\\\c\\nd} 1\\n# TYPE x y\")==0");
	for (unsigned i = 0; i + 1 < NAME_BYTES_MAX; i++) /* the longest that there is */
		s.name[i] = i % 2 ? '"' : '\n';
	s.name[NAME_BYTES_MAX - 1] = '\0';
	check(true, "v(\"pool_keys\",node=31*\"\\n\\\"\"+\"\\n\")==0");
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_text_is_valid_for_any_figures),
		TEST(a_text_that_is_not_valid_is_refused),
		TEST(figures_stand_where_they_belong),
		TEST(the_findings_of_now_are_told_by_their_kind),
		TEST(every_counter_is_told_once_by_those_who_count_it),
		TEST(histograms_hold_every_sample),
		TEST(labels_are_few_and_series_are_bounded),
		TEST(every_name_of_the_old_version_is_there),
		TEST(old_names_have_the_figures_of_this_engine),
		TEST(the_name_of_the_engine_is_escaped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
