/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view_own() and view_json(): the summary that is made of a snapshot, and the text of /api/cluster,
 * which Python's JSON parser checks.
 */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/control/observe/view_inner.h"
#include "numa/clock.h"
#include "tests/unit/control/observe/python_world.h"

#define NOW_NS 1000000000000ull

static struct snapshot s;

static int setup(void **state)
{
	memset(&s, 0, sizeof(s));
	s.taken_ns = NOW_NS;
	return 0;
}

static struct snapshot_member *member(const char *name, unsigned state)
{
	struct snapshot_member *m = &s.member[s.members++];

	snprintf(m->name, sizeof(m->name), "%s", name);
	m->state = state;
	return m;
}

static void summary(struct snapshot_member *m, unsigned severity, const char *finding, uint64_t age)
{
	m->summary_ns = NOW_NS - age;
	m->summary = (struct summary){.made = 1,
		.severity = (uint8_t)severity,
		.rails = 2,
		.rails_up = 1,
		.hits = SUMMARY_NONE,
		.get_bytes_per_s = 10,
		.get_pages_per_s = 0};
	snprintf(m->summary.finding, sizeof(m->summary.finding), "%s", finding);
	m->summary.calls[SUMMARY_GET] = (struct summary_calls){100, {33, 33, 33}};
}

/* A Python expression about the answer `v` and its rows `r` by name holds. */
static void expect(const char *holds)
{
	size_t bytes;
	char *text;

	assert_int_equal(view_json(&s, NOW_NS, &text, &bytes), 0);
	assert_int_equal(bytes, strlen(text));
	python_expect("view", holds, text, bytes);
	free(text);
}

/* ---- /api/cluster ---------------------------------------------------------------------------- */

static void rows_are_worst_first_with_the_reason_why_a_summary_is_missing(void **state)
{
	summary(member("fine", SNAPSHOT_UP), SEVERITY_OK, "", 0);
	member("new", SNAPSHOT_UP);
	member("silent", SNAPSHOT_UP)->summary_silent = true;
	summary(member("stale", SNAPSHOT_UP), SEVERITY_CRITICAL, "rail_lost",
		VIEW_FRESH_NS + 1000000);
	summary(member("info", SNAPSHOT_UP), SEVERITY_INFO, "directory_moving", 5000000000);
	summary(member("warn", SNAPSHOT_UP), SEVERITY_WARNING, "pool_full", 1000000000);
	summary(member("crit", SNAPSHOT_UP), SEVERITY_CRITICAL, "rail_lost", 1000000000);
	summary(member("dead", SNAPSHOT_DOWN), SEVERITY_OK, "", 2000000000);
	summary(member("late", SNAPSHOT_SILENT), SEVERITY_CRITICAL, "rail_lost", 0);
	expect("o == [\"late\", \"crit\", \"dead\", \"silent\", \"warn\", \"info\", \"fine\", \"new\", \"stale\"]");
	expect("[r[n][\"why\"] for n in o] == [\"\"]*3 + [\"unanswered\"] + [\"\"]*3 + [\"waiting\"]*2");
	expect("[r[n][\"severity\"] for n in o] == [\"critical\"]*2 + [\"warning\"]*3 + [\"info\"] + [\"ok\"]*3");
	expect("v[\"others\"] == dict(info=1, warning=2, critical=1)"); /* of members that are up */
	for (unsigned i = 0; i < s.members; i++)
		s.member[i].self = !strcmp(s.member[i].name, "crit");
	expect("v[\"others\"] == dict(info=1, warning=2, critical=0)"); /* beside this engine */
	expect("[r[n][\"finding\"] for n in o[:5]] == [\"member_silent\", \"rail_lost\", \"member_down\", \"\", \"pool_full\"]");
	expect("r[\"new\"][\"summary\"] is None and r[\"new\"][\"age_ms\"] == -1 and r[\"warn\"][\"age_ms\"] == 1000 and r[\"dead\"][\"age_ms\"] == 2000");
	/* down and stale ones count in no total */
	expect("(v[\"members\"], v[\"up\"], v[\"silent\"], v[\"down\"], v[\"shown\"], v[\"asked\"]) == (9, 7, 1, 1, 9, 5)");
	expect("v[\"totals\"][\"rails\"] == 10 and v[\"totals\"][\"rails_up\"] == 5 and v[\"totals\"][\"get_bytes_per_second\"] == 50");
	expect("v[\"totals\"][\"get_batches\"] == 500 and v[\"totals\"][\"get_p50_seconds\"] == 33e-6");
	expect("v[\"totals\"][\"set_batches\"] == 0 and v[\"totals\"][\"set_p50_seconds\"] == -1");
	expect("r[\"warn\"][\"summary\"][\"get_batches\"] == 100 and r[\"warn\"][\"summary\"][\"get_p999_seconds\"] == 33e-6");
}

/* The port is that of a fresh summary, the address that of the member as this engine knows it. */
static struct snapshot_member *dashboard(const char *name, unsigned state, const char *address)
{
	struct snapshot_member *m = member(name, state);

	summary(m, SEVERITY_OK, "", 0);
	snprintf(m->address, sizeof(m->address), "%s", address);
	m->summary.dashboard_port = 31997;
	return m;
}

static void a_dashboard_is_named_only_where_it_is_known_to_be(void **state)
{
	dashboard("v4", SNAPSHOT_UP, "10.0.0.2");
	dashboard("v6", SNAPSHOT_UP, "fd00::2");
	dashboard("name", SNAPSHOT_UP, "gpu-1.rack");
	dashboard("portless", SNAPSHOT_UP, "10.0.0.3")->summary.dashboard_port = 0;
	dashboard("old", SNAPSHOT_UP, "10.0.0.4")->summary_ns -= VIEW_FRESH_NS + 1000000;
	dashboard("silent", SNAPSHOT_SILENT, "10.0.0.5");
	dashboard("down", SNAPSHOT_DOWN, "10.0.0.6");
	dashboard("hostile", SNAPSHOT_UP, "10.0.0.7/\" onclick=\"x");
	dashboard("nowhere", SNAPSHOT_UP, "");
	member("new", SNAPSHOT_UP);
	expect("{n: r[n][\"dashboard\"] for n in o if r[n][\"dashboard\"]} == {\"v4\": \"http://10.0.0.2:31997/\", \"v6\": \"http://[fd00::2]:31997/\", \"name\": \"http://gpu-1.rack:31997/\"}");
}

/* The port that an engine with these settings tells others; its server is bound to `at`. */
static unsigned told(struct settings *settings, const char *at)
{
	static struct control control;
	struct sockaddr_in address = {.sin_family = AF_INET};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	unsigned port;

	control.settings = settings;
	assert_int_equal(inet_pton(AF_INET, at, &address.sin_addr), 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(view_open(&control), 0);
	view_dashboard(&control, fd);
	view_own(&control, &s);
	port = control.view->own.dashboard_port;
	view_close(&control);
	close(fd);
	return port;
}

static void others_are_told_of_a_dashboard_only_at_the_address_that_they_have(void **state)
{
	static struct settings settings;

	settings = (struct settings){.metrics_port = 31997, .metrics_dashboard = true};
	snprintf(settings.cluster_address, sizeof(settings.cluster_address), "127.0.0.2");
	assert_int_equal(told(&settings, "127.0.0.2"), 31997);
	assert_int_equal(told(&settings, "0.0.0.0"), 31997);
	assert_int_equal(told(&settings, "127.0.0.1"), 0);
	settings.metrics_dashboard = false;
	assert_int_equal(told(&settings, "127.0.0.2"), 0);
	settings.metrics_dashboard = true;
	snprintf(settings.cluster_bind, sizeof(settings.cluster_bind), "127.0.0.2");
	assert_int_equal(told(&settings, "127.0.0.2"), 0);
	settings.cluster_bind[0] = '\0';
	snprintf(settings.cluster_address, sizeof(settings.cluster_address), "gpu-1.rack");
	assert_int_equal(told(&settings, "127.0.0.2"), 0);
}

static void hits_are_weighted_by_pages(void **state)
{
	struct snapshot_member *a, *b;

	summary(member("idle", SNAPSHOT_UP), SEVERITY_OK, "", 0);
	expect("v[\"totals\"][\"get_hit_ratio\"] == -1");
	summary(a = member("a", SNAPSHOT_UP), SEVERITY_OK, "", 0);
	summary(b = member("b", SNAPSHOT_UP), SEVERITY_OK, "", 0);
	a->summary.get_pages_per_s = 300;
	a->summary.hits = 1000;
	b->summary.get_pages_per_s = 100;
	b->summary.hits = 600;
	expect("(v[\"totals\"][\"get_hit_ratio\"], v[\"totals\"][\"get_pages_per_second\"]) == (.9, 400)");
	expect("r[\"idle\"][\"summary\"][\"get_hit_ratio\"] == -1 and r[\"b\"][\"summary\"][\"get_hit_ratio\"] == .6");
}

static void at_most_64_rows_of_many_members_are_shown(void **state)
{
	for (unsigned i = 0; i < SNAPSHOT_MEMBERS; i++) {
		char name[32];

		snprintf(name, sizeof(name), "m%04u", i);
		summary(member(name, SNAPSHOT_UP), i == 500 ? SEVERITY_CRITICAL : SEVERITY_OK, "",
			0);
	}
	expect("v[\"shown\"] == len(o) == 64 and v[\"members\"] == v[\"asked\"] == 2048 and o[:2] == [\"m0500\", \"m0000\"]");
	s.members_more[SNAPSHOT_UP] = 10000;
	s.members_more[SNAPSHOT_SILENT] = 20;
	s.members_more[SNAPSHOT_DOWN] = 3;
	expect("v[\"shown\"] == len(o) == 64 and (v[\"members\"], v[\"up\"], v[\"silent\"], v[\"down\"]) == (12071, 12048, 20, 3)");
}

static void names_from_the_network_stay_inside_their_strings(void **state)
{
	struct snapshot_member *m =
		member("<img src=x onerror=\"alert(1)\">\\\x01\xff", SNAPSHOT_UP);

	snprintf(m->software, sizeof(m->software), "\",\"x\":\"");
	expect("len(o) == 1 and o[0].startswith(\"<img src=x onerror=\\\"alert(1)\\\">\") and r[o[0]][\"software\"] == \"\\\",\\\"x\\\":\\\"\"");
}

/* ---- the engine's own summary ---------------------------------------------------------------- */

static void get_calls(struct statistics_words *w, uint64_t batches, uint64_t pages)
{
	w->calls[STATISTICS_GET].pages += pages;
	w->calls[STATISTICS_GET].latency[latency_bucket(5000)] += batches;
}

/* Calls other than gets, one in each bucket, and bytes. */
static void other_calls(struct statistics_words *w, uint64_t batches)
{
	for (unsigned i = 0; i < LATENCY_BUCKETS; i++) {
		w->calls[STATISTICS_SET].latency[i] += batches;
		w->calls[STATISTICS_EXISTS].latency[i] += 2 * batches;
	}
	w->set_bytes += batches * 7000000;
}

/* No number of the moment is 0, so one that is not subtracted is seen. */
static void the_summary_covers_the_time_since_the_moment(void **state)
{
	struct summary own;

	s.rails = 2;
	snprintf(s.rail[0].state, sizeof(s.rail[0].state), "up");
	snprintf(s.rail[1].state, sizeof(s.rail[1].state), "down");
	s.rail[0].pool_bytes = s.rail[1].pool_bytes = 1000;
	s.rail[0].pool_used_bytes = 500;
	s.shard_capacity = 400;
	s.shard_entries = 100;
	s.uptime_ms = 77999;
	s.directory.behind = 3;
	member("self", SNAPSHOT_UP);
	member("gone", SNAPSHOT_DOWN);
	get_calls(&s.clients, 1000, 50000);
	other_calls(&s.clients, 100);
	s.clients.get_local = 50000;
	s.clients.get_remote = 30000;
	s.clients.get_bytes = 1 << 30;
	s.counter[COUNTER_pages_evicted] = 99;
	moment_make(&s, &s.past);
	s.taken_ns += 10000000000ull;
	get_calls(&s.clients, 12, 4000);
	s.clients.calls[STATISTICS_GET].result[STATISTICS_HIT] += 3000;
	s.clients.get_bytes += 5000000;
	other_calls(&s.clients, 1);
	s.counter[COUNTER_pages_evicted] += 30;
	recents_make(&s, &s.past, &s.recent);
	view_summary_make(&s, &own);
	assert_int_equal(own.made, 1);
	assert_int_equal(own.window_ms, 10000);
	assert_int_equal(own.get_bytes_per_s, 500000);
	assert_int_equal(own.set_bytes_per_s, 700000);
	assert_int_equal(own.get_pages_per_s, 400);
	assert_int_equal(own.evictions_per_s, 3);
	assert_int_equal(own.hits, 750);
	assert_int_equal(own.pool_used, 250);
	assert_int_equal(own.directory_used, 250);
	assert_int_equal(own.rails, 2);
	assert_int_equal(own.rails_up, 1);
	assert_int_equal(own.members_up, 1);
	assert_int_equal(own.members_down, 1);
	assert_int_equal(own.uptime_s, 77);
	assert_int_equal(own.flags, SUMMARY_BEHIND);
	assert_int_equal(own.severity, SEVERITY_WARNING);
	assert_string_equal(own.finding, "rail_down");
	assert_int_equal(own.findings, 2); /* and directory_behind; member_down is of another */
	assert_int_equal(own.calls[SUMMARY_GET].batches, 12);
	assert_in_range(own.calls[SUMMARY_GET].us[SUMMARY_P50], 5, 6);
	assert_int_equal(
		own.calls[SUMMARY_GET].us[SUMMARY_P999], own.calls[SUMMARY_GET].us[SUMMARY_P50]);
	assert_int_equal(own.calls[SUMMARY_EXISTS].batches, 2 * own.calls[SUMMARY_SET].batches);
	moment_make(&s, &s.past); /* no time and no calls since: nothing to divide by */
	recents_make(&s, &s.past, &s.recent);
	view_summary_make(&s, &own);
	assert_int_equal(own.hits, SUMMARY_NONE);
	assert_int_equal(own.get_bytes_per_s + own.get_pages_per_s, 0);
}

/* Snapshots every half second: the window grows to ten seconds and stays there. */
static void the_window_is_the_last_ten_seconds(void **state)
{
	struct control control = {.view = NULL};
	static struct moments moments;

	assert_int_equal(view_open(&control), 0);
	member("self", SNAPSHOT_UP)->self = true;
	for (unsigned half = 0; half < 60; half++) {
		unsigned ms = half * 500;

		moments_compare(&moments, &s);
		view_own(&control, &s);
		if (ms >= 9500)
			assert_in_range(control.view->own.window_ms, 9500, 10500);
		else
			assert_int_equal(control.view->own.window_ms, ms);
		assert_memory_equal(&s.member[0].summary, &control.view->own, SUMMARY_BYTES);
		assert_int_equal(s.member[0].summary_ns, s.taken_ns);
		s.taken_ns += 500000000;
	}
	view_close(&control);
}

/* Prints what one summary and one text cost with 512 members; never fails. */
static void costs_are_printed(void **state)
{
	struct control control = {.view = NULL};
	uint64_t start_ns, end_ns;
	struct summary got;

	clock_start();
	assert_int_equal(view_open(&control), 0);
	for (unsigned i = 0; i < SNAPSHOT_MEMBERS; i++)
		summary(member("a-host-of-the-cluster:31998", i % 9 ? SNAPSHOT_UP : SNAPSHOT_DOWN),
			i % 4, "", 0);
	start_ns = clock_now_ns();
	for (unsigned i = 0; i < 1000; i++) {
		s.taken_ns += 500000000;
		view_own(&control, &s);
	}
	end_ns = clock_now_ns();
	print_message("own summary: %llu ns\n", (unsigned long long)(end_ns - start_ns) / 1000);
	start_ns = clock_now_ns();
	for (unsigned i = 0; i < 100000; i++)
		assert_true(summary_decode((uint8_t *)&control.view->own, SUMMARY_BYTES, &got));
	end_ns = clock_now_ns();
	print_message("checking one: %llu ns\n", (unsigned long long)(end_ns - start_ns) / 100000);
	control.view->rows = SNAPSHOT_MEMBERS;
	for (unsigned i = 0; i < SNAPSHOT_MEMBERS; i++)
		control.view->row[i].can = true;
	start_ns = clock_now_ns();
	for (unsigned i = 0; i < 10000; i++)
		assert_true(view_next(control.view, NOW_NS) >= 0);
	end_ns = clock_now_ns();
	print_message("choosing one: %llu ns\n", (unsigned long long)(end_ns - start_ns) / 10000);
	start_ns = clock_now_ns();
	for (unsigned i = 0; i < 100; i++) {
		size_t bytes;
		char *text;

		assert_int_equal(view_json(&s, s.taken_ns, &text, &bytes), 0);
		if (i == 0)
			print_message("/api/cluster: %zu bytes\n", bytes);
		free(text);
	}
	end_ns = clock_now_ns();
	print_message("its text: %llu us\n", (unsigned long long)(end_ns - start_ns) / 100000);
	view_close(&control);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup(name, setup)
	const struct CMUnitTest tests[] = {
		T(rows_are_worst_first_with_the_reason_why_a_summary_is_missing),
		T(a_dashboard_is_named_only_where_it_is_known_to_be),
		T(others_are_told_of_a_dashboard_only_at_the_address_that_they_have),
		T(hits_are_weighted_by_pages),
		T(at_most_64_rows_of_many_members_are_shown),
		T(names_from_the_network_stay_inside_their_strings),
		T(the_summary_covers_the_time_since_the_moment),
		T(the_window_is_the_last_ten_seconds),
		T(costs_are_printed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
