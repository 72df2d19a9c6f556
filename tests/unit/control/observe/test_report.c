/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.c and report.c: the figures of every part appear under their names, as valid JSON
 * whatever names come from the network. This file includes both sources; the functions that they
 * call are stubs. Python's JSON parser checks the text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/control/members/members_inner.h"
#include "engine/control/observe/report.c"
#include "engine/control/observe/snapshot.c"
#include "engine/control/pages/tier_inner.h"
#include "tests/unit/control/observe/python_world.h"
#include "tests/unit/control/warm_stub.h"

static struct members members;
static struct member entries[MEMBER_CHUNK];
static struct member_contact contacts[2];
const struct member_contact member_no_contact;
static struct control engine;
static struct shard shard;
static struct statistics statistics;
static struct moments moments_kept;

const struct member_record *member_by_ref(const struct control *control, uint32_t ref)
{
	return ref == 1 || ref == 2 ? &entries[ref - 1].record : NULL;
}

const struct member_table *members_table(const struct control *control)
{
	return &control->members->table;
}

void seeds_report(const struct control *control, uint64_t now_ns, struct seeds_report *ret)
{
	(void)control, (void)now_ns;
	*ret = (struct seeds_report){.others = 3, .silent = 2, .named = 1, .unmet_ms = 4};
	snprintf(ret->seed[0].address, sizeof(ret->seed[0].address), "[fd00::1]:9");
	snprintf(ret->seed[0].why, sizeof(ret->seed[0].why), "no route");
	ret->seed[0].ms = 7000;
}

void refusals_report(const struct control *control, uint64_t now_ns, struct refusals_report *ret)
{
	(void)control, (void)now_ns;
	*ret = (struct refusals_report){.engines = 2, .named = 1};
	snprintf(ret->engine[0].from, sizeof(ret->engine[0].from), "10.0.0.9");
	snprintf(ret->engine[0].text, sizeof(ret->engine[0].text), "its \"name\"");
	ret->engine[0].theirs = true;
	ret->engine[0].ms = 8000;
}

void view_member_fill(const struct control *control, const struct member *entry, uint64_t now_ns,
	struct snapshot_member *ret)
{
	(void)control, (void)entry, (void)now_ns, (void)ret;
}

void client_counts(const struct control *control, struct client_counts *ret)
{
	*ret = (struct client_counts){.sessions = 1, .channels = 2, .regions = 3, .extents = 7};
}

void conn_counts(const struct control *control, struct conn_counts *ret)
{
	*ret = (struct conn_counts){7, 8, 9, 10};
}

void drain_counts(const struct control *control, struct drain_counts *ret)
{
	*ret = (struct drain_counts){.state = DRAIN_DONE, .pages = 9};
}

void copies_counts(const struct control *control, struct copies_counts *ret)
{
	*ret = (struct copies_counts){.waiting = 6, .flying = 7, .bytes = 8};
}

void ctl_counts(const struct control *control, struct ctl_counts *ret)
{
	*ret = (struct ctl_counts){4, 5};
}

void rail_counters(const struct rail *rail, uint64_t ret[COUNTER_COUNT])
{
	for (unsigned i = 0; i < COUNTER_COUNT; i++)
		ret[i] = i;
}

void rail_latency(const struct rail *rail, uint64_t ret[LATENCY_BUCKETS], uint64_t *ret_ns_sum)
{
	memset(ret, 0, LATENCY_BUCKETS * sizeof(*ret));
	ret[latency_bucket(5000)] = 1000;
	*ret_ns_sum = 5000000;
}

void client_statistics_collect(struct control *control, uint64_t now_ns)
{
	assert_true(now_ns > 0);
	control->statistics->total.calls[STATISTICS_GET].pages = 77;
	control->statistics->refused = 2;
}

void tier_counts(const struct control *control, struct tier_counts *ret)
{
	*ret = (struct tier_counts){.state = TIER_SERVING,
		.serves = true,
		.spills = 7,
		.promotes = 8,
		.waiting = 9,
		.pins = 10,
		.spill_bytes = 11,
		.pinned_bytes = 12,
		.options = &control->tier->options,
		.report = &control->tier->report};
}

void directory_counts(const struct control *control, struct directory_counts *ret)
{
	*ret = (struct directory_counts){.moving = true,
		.behind = 3,
		.suspect = 2,
		.partial = 9,
		.walk_position = 5,
		.walk_end = 8,
		.sweep_left = 7};
}

void directory_owner(const struct control *control, uint16_t peer, struct directory_owner *ret)
{
	*ret = (struct directory_owner){.why = SUSPECT_UNSERVED,
		.queued = 4,
		.in_flight = 2,
		.background = 5,
		.behind = true,
		.unserved_ms = 700,
		.served_ms = 900};
}

uint64_t member_unserved_ns(const struct member *entry, uint64_t now_ns)
{
	return 1200 * 1000000ull;
}

uint64_t member_served_age_ns(const struct member *entry, uint64_t now_ns)
{
	return 1300 * 1000000ull;
}

bool member_on_trial(const struct member *entry)
{
	return entry->state == MEMBER_DEAD;
}

const char *conns_rail_state(const struct control *control, unsigned rail, unsigned *ret_peers_out)
{
	*ret_peers_out = 1;
	return "up";
}

const char *conns_rail_why(const struct control *control, unsigned rail)
{
	return "";
}

uint32_t rail_in_flight(const struct rail *rail)
{
	return 9;
}

void poll_core_report(const struct poll_core *core, struct poll_core_report *ret)
{
	assert_ptr_equal(core, &engine);
	*ret = (struct poll_core_report){.gaps = {[3] = 1ull << 40},
		.gaps_long = 5,
		.gap_worst_ns = 6,
		.busy_ns = 7,
		.spin_ns = 8,
		.nic_ns = 4,
		.age_ns = 9};
}

uint64_t gap_bucket_ns(unsigned bucket)
{
	return bucket * 100;
}

void dv_attributes(const struct dv_device *device, struct dv_attributes *ret)
{
	*ret = (struct dv_attributes){.bits_per_second = 400000000000, .modelled = true};
}

/* Checks that the Python expression `condition` holds for the report `r`. */
static void check(const char *text, const char *condition)
{
	python_expect("report", condition, text, strlen(text));
}

static void named(struct member_record *record, const char *name, const char *address)
{
	assert_true(member_text_set(record, name, address, 77));
}

static int setup(void **state)
{
	static const struct settings settings = {
		.cluster_id = "blue", .cluster_address = "127.0.0.1"};
	const struct pool_options options = {.bytes = 4u << 20, .numa_node = -1};

	memset(&engine, 0, sizeof(engine));
	engine.settings = &settings;
	engine.shard = &shard;
	statistics = (struct statistics){.refused = 0};
	engine.statistics = &statistics;
	engine.rails = engine.plan.rails = 1;
	/* the plan has two poll cores, and the second one has not started yet */
	engine.plan.poll_cores = 2;
	engine.poll_core[0] = (struct poll_core *)&engine;
	engine.incarnation = 0xfedcba9876543210ull;
	strcpy(engine.name, "host:1");
	engine.status = aligned_alloc(64, sizeof(struct status_segment));
	memset(engine.status, 0, sizeof(struct status_segment));
	assert_int_equal(index_open(64, &engine.index), 0);
	assert_int_equal(pool_open(&options, &engine.rail[0].pool), 0);
	strcpy(engine.plan.rail[0].device, "soft");
	memset(&members, 0, sizeof(members));
	memset(contacts, 0, sizeof(contacts));
	members.table.chunk[0] = entries;
	members.table.entries = 2;
	engine.members = &members;
	for (unsigned i = 0; i < 2; i++) {
		entries[i] = (struct member){.contact = &contacts[i],
			.state = MEMBER_ALIVE,
			.record = {.self = i == 0, .incarnation = i ? 2 : UINT64_MAX}};
		named(&entries[i].record, i ? "" : "host:1", i ? "" : "10.0.0.1");
	}
	moments_kept.count = 0;
	engine.moments = &moments_kept;
	engine.snapshots = snapshots_open();
	assert_non_null(engine.snapshots);
	return 0;
}

static int teardown(void **state)
{
	member_text_clear(&entries[0].record);
	member_text_clear(&entries[1].record);
	snapshots_close(engine.snapshots);
	pool_close(engine.rail[0].pool);
	index_close(engine.index);
	free(engine.status);
	return 0;
}

static void a_report_contains_the_fields_that_tools_read(void **state)
{
	size_t bytes;
	char *text;

	assert_int_equal(snapshot_report(&engine, &text, &bytes), 0);
	assert_int_equal(strlen(text), bytes);
	check(text,
		"[f[\"client_\"+n] for n in (\"sessions\",\"channels\",\"regions\",\"extents\",\"credits\",\"credits_reserved\",\"credits_waiting\",\"statistics_refused_total\")]==[1,2,3,7,4,0,5,2]");
	check(text,
		"r[\"rails\"][0][\"figures\"][\"rail_link_bytes_per_second\"]==5e10 and r[\"rails\"][0][\"modelled\"] is True");
	check(text,
		"[f[n] for n in (\"connections_waiting\",\"connections\",\"connections_served\",\"queue_pairs\")]==[7,8,9,10]");
	check(text, "r[\"rails\"][0][\"registered_bytes\"]==0");
	check(text, "r[\"incarnation\"]==\"fedcba9876543210\" and r[\"name\"]==\"host:1\"");
	check(text, "r[\"cluster\"]==\"blue\" and r[\"wire\"]>=10 and r[\"abi\"]>=14");
	check(text,
		"r[\"members\"][0][\"self\"] and r[\"members\"][0][\"port\"]==77 and r[\"members\"][0][\"incarnation\"]==16*\"f\"");
	check(text,
		"r[\"rails\"][0][\"figures\"][\"rail_in_flight_operations\"]==9 and r[\"rails\"][0][\"counters\"][\"ops_invalid\"]==1");
	check(text,
		"[(p[\"gaps_from_ns\"][\"300\"],p[\"rails\"],p[\"age_ns\"],p[\"figures\"]) for p in r[\"poll_cores\"]]==[(2**40,1,9,dict(poll_core_busy_seconds_total=7e-9,poll_core_spin_seconds_total=8e-9,poll_core_software_nic_seconds_total=4e-9,poll_core_gaps_over_10us_total=5,poll_core_gap_worst_seconds=6e-9))]");
	check(text, "f[\"directory_capacity_entries\"]==4 and f[\"seeds\"]==3");
	check(text,
		"(r[\"keys\"],r[\"shard\"])==(f[\"pages\"],dict(entries=f[\"directory_entries\"],capacity=4)) and r[\"map_epoch\"]==f[\"map_epoch\"]");
	check(text,
		"all(p[n]==p[\"figures\"][\"rail_\"+n] for p in r[\"rails\"] for n in (\"pages\",\"pool_bytes\",\"pool_used_bytes\"))");
	check(text,
		"r[\"settings\"][\"cluster.id\"]==\"blue\" and r[\"settings\"][\"cluster.port\"]==0");
	check(text, "r[\"calls\"][\"get\"][\"pages\"]==77");
	check(text,
		"[r[\"members\"][1][k] for k in (\"links\",\"suspect\",\"served_ms\",\"unserved_ms\",\"queued\",\"unacknowledged\",\"unawaited\",\"behind\",\"probe_served_ms\",\"probe_unserved_ms\")]==[0,\"unserved\",900,700,4,2,5,True,1300,1200]");
	check(text, "[r[\"members\"][0][k] for k in (\"suspect\",\"queued\")]==[\"\",0]");
	check(text,
		"[f[\"directory_\"+n] for n in (\"moving\",\"owners_behind\",\"owners_suspect\",\"sets_partial\")]==[1,3,2,9] and r[\"directory\"]==dict(dropped=0,walk_position=5,walk_end=8,sweep_left=7)");
	check(text,
		"r[\"recent\"][\"seconds\"]==0 and r[\"rails\"][0][\"recent\"][\"rail_read_p99_seconds\"]==r[\"recent\"][\"get_hit_ratio\"]==-1 and r[\"poll_cores\"][0][\"recent\"][\"poll_core_gaps\"]==0");
	check(text, "4096<=r[\"rails\"][0][\"read_latency\"][\"p50_ns\"]/5000*4096<=4096*1.2");
	free(text);
}

static void a_report_has_what_the_disk_tells_of_each_path(void **state)
{
	static struct tier tier;
	size_t bytes;
	char *text;

	engine.tier = &tier;
	tier.options.paths = 2;
	tier.options.segment_bytes = 100;
	tier.options.path[0].directory = "/a";
	tier.options.path[1].directory = "/b";
	tier.report.path[0] = (struct disk_path_report){.state = DISK_PATH_IN_SERVICE,
		.segments = 3,
		.sealed = 2,
		.queued_bytes = 11,
		.flying = 12,
		.pages_written = 13,
		.bytes_written = 14,
		.pages_read = 15,
		.bytes_read = 16,
		.pages_recovered = 17,
		.read_errors = 18,
		.crc_errors = 19,
		.io_errors = 20};
	tier.report.path[1] = (struct disk_path_report){
		.state = DISK_PATH_OUT, .reason = "no room", .io_errors = 1};
	assert_int_equal(snapshot_report(&engine, &text, &bytes), 0);
	check(text,
		"r[\"disk\"][\"paths\"][0]==dict(directory=\"/a\",state=\"up\",reason=\"\",bytes=300,used_bytes=200,queued_bytes=11,in_flight=12,pages_written=13,bytes_written=14,pages_read=15,bytes_read=16,pages_recovered=17,read_errors=18,crc_errors=19,io_errors=20)");
	check(text,
		"[r[\"disk\"][\"paths\"][1][n] for n in (\"directory\",\"state\",\"reason\")]==[\"/b\",\"out\",\"no room\"]");
	check(text,
		"[f[\"disk_\"+n] for n in (\"paths\",\"paths_out\",\"bytes\",\"used_bytes\",\"written_bytes_total\",\"read_bytes_total\",\"errors_total\")]==[2,1,300,200,14,16,58]");
	free(text);
}

/* The findings of a report are those of the loop: also what grew since an earlier snapshot. */
static void a_report_has_the_findings_worst_first(void **state)
{
	size_t bytes;
	char *text;

	contacts[1].heard_ns = 1;
	assert_int_equal(snapshot_report(&engine, &text, &bytes), 0);
	check(text,
		"[f[\"id\"] for f in r[\"health\"][\"findings\"]]==[\"member_silent\",\"engine_refused\",\"seed_silent\",\"peers_out\",\"directory_moving\",\"directory_behind\",\"statistics_refused\"]");
	check(text, "r[\"health\"][\"worst\"]==\"warning\"");
	check(text,
		"f[\"seeds_silent\"]==2 and r[\"seeds_silent\"]==[dict(address=\"[fd00::1]:9\",why=\"no route\",for_ms=7000)]");
	check(text,
		"f[\"engines_refused\"]==2 and r[\"engines_refused\"]==[dict(address=\"10.0.0.9\",why='its \"name\"',theirs=True,for_ms=8000)]");
	check(text, "all(i[\"means\"] and i[\"text\"] for i in r[\"health\"][\"findings\"])");
	free(text);
	engine.counter[COUNTER_entries_dropped] += 5;
	assert_int_equal(snapshot_report(&engine, &text, &bytes), 0);
	check(text,
		"\"5 entries\" in [f[\"text\"] for f in r[\"health\"][\"findings\"] if f[\"id\"]==\"directory_full\"][0]");
	free(text);
}

/* One moment a second is kept; the last one that is 9.5 s old or older is taken. */
static void the_oldest_moment_is_ten_seconds_back(void **state)
{
	static struct snapshot s;
	static struct moments moments;

	for (uint64_t i = 1; i <= 30; i++) {
		s.taken_ns = i * 1000000000;
		s.counter[COUNTER_entries_dropped] = i;
		moments_compare(&moments, &s);
		s.taken_ns += 500000000;
		moments_compare(&moments, &s);
		assert_int_equal(moments.count, i);
		assert_int_equal(s.past.taken_ns, (i > 9 ? i - 9 : 1) * 1000000000);
		assert_int_equal(s.past.counter[COUNTER_entries_dropped], i > 9 ? i - 9 : 1);
		assert_true(s.recent.engine.entries_dropped == (double)(i > 9 ? 9 : i - 1));
	}
}

/* Findings are sorted by their place in health.def: it must put worse ones first. */
static void findings_are_listed_worst_first(void **state)
{
	static const enum severity severities[] = {
#define FINDING(id, severity, help) SEVERITY_##severity,
#include "engine/control/observe/health.def"
#undef FINDING
	};

	for (unsigned i = 1; i < FINDING_COUNT; i++)
		assert_true(severities[i] <= severities[i - 1]);
}

/* Those come first that this engine has links with or remembers; no member is missing. */
static void of_more_members_than_are_listed_the_others_are_counted(void **state)
{
	enum { ALL = SNAPSHOT_MEMBERS + 300 };
	static struct settings beats = {.cluster_id = "blue", .cluster_heartbeat_ms = 1000};
	static struct member more[ALL / MEMBER_CHUNK + 1][MEMBER_CHUNK];
	struct snapshot *s = snapshots_writing(engine.snapshots);

	engine.settings = &beats;
	for (unsigned i = 2; i < ALL; i++) {
		struct member *entry =
			i < MEMBER_CHUNK ? &entries[i] : &more[i / MEMBER_CHUNK][i % MEMBER_CHUNK];

		members.table.chunk[i / MEMBER_CHUNK] =
			i < MEMBER_CHUNK ? entries : more[i / MEMBER_CHUNK];
		*entry = (struct member){.index = (uint16_t)i,
			.contact = (struct member_contact *)&member_no_contact,
			.state = i % 100 ? MEMBER_ALIVE : MEMBER_DEAD,
			.record = {.ref = 1000 + i, .plain = true}};
	}
	members.table.entries = ALL;
	more[ALL / MEMBER_CHUNK][0].contact = &contacts[1];
	snapshot_take(&engine, s);
	assert_int_equal(s->members, SNAPSHOT_MEMBERS);
	assert_true(s->member[0].self);
	assert_int_equal(s->member[2].ref, 1000 + ALL / MEMBER_CHUNK * MEMBER_CHUNK);
	assert_int_equal(s->members_more[SNAPSHOT_DOWN], (ALL - 1) / 100);
	assert_int_equal(s->members_more[SNAPSHOT_UP], 300 - (ALL - 1) / 100);
	assert_int_equal(snapshot_members(s, SNAPSHOT_UP) + snapshot_members(s, SNAPSHOT_SILENT) +
				 snapshot_members(s, SNAPSHOT_DOWN),
		ALL);
	/* As long as all are listed, they are in the order of the map. */
	members.table.entries = SNAPSHOT_MEMBERS;
	snapshot_take(&engine, s);
	assert_int_equal(s->members_more[SNAPSHOT_UP] + s->members_more[SNAPSHOT_DOWN], 0);
	assert_int_equal(s->members, SNAPSHOT_MEMBERS);
	members.table.entries = 2;
}

static void a_snapshot_tells_that_the_memory_is_being_registered(void **state)
{
	struct snapshot *s = snapshots_writing(engine.snapshots);

	engine.exporting = true;
	snapshot_take(&engine, s);
	assert_true(s->registering);
	engine.exporting = false;
	snapshot_take(&engine, s);
	assert_false(s->registering);
}

/* A member is shown as up, silent or down, and for how long. */
static void the_state_of_a_member_is_told(void **state)
{
	static struct settings beats = {.cluster_id = "blue", .cluster_heartbeat_ms = 1000};
	uint64_t now_ns = net_now();
	struct snapshot *s = snapshots_writing(engine.snapshots);

	engine.settings = &beats;
	contacts[1].heard_ns = now_ns;
	snapshot_take(&engine, s);
	assert_int_equal(s->member[1].state, SNAPSHOT_SILENT); /* there is no connection */
	contacts[1].in = (struct rpc_link *)(void *)&engine;
	snapshot_take(&engine, s);
	assert_int_equal(s->member[1].state, SNAPSHOT_UP);
	contacts[1].heard_ns = now_ns - 3000000000ull;
	snapshot_take(&engine, s);
	assert_int_equal(s->member[1].state, SNAPSHOT_SILENT);
	assert_in_range(s->member[1].state_ms, 3000, 60000);
	assert_int_equal(s->members, 2);
	entries[1].state = MEMBER_DEAD;
	entries[1].since_ns = now_ns - 5000000000ull;
	snapshot_take(&engine, s);
	assert_true(s->member[0].on_map && !s->member[1].on_map);
	assert_int_equal(s->member[1].state, SNAPSHOT_DOWN);
	assert_in_range(s->member[1].state_ms, 5000, 60000);
	assert_false(s->member[1].unserving);
	contacts[1].trial.needs_ns = 10000000000ull;
	snapshot_take(&engine, s);
	assert_true(s->member[1].unserving);
	assert_int_equal(s->member[1].trial_ms, -1);
	contacts[1].trial.since_ns = now_ns - 2000000000ull;
	snapshot_take(&engine, s);
	assert_in_range(s->member[1].trial_ms, 2000, 60000);
	assert_int_equal(s->member[1].trial_needs_ms, 10000);
	entries[1].left = true; /* it sent Leave: a member that stopped in order is no fault */
	snapshot_take(&engine, s);
	assert_int_equal(s->members, 1);
}

static void hostile_names_stay_inside_their_quotes(void **state)
{
	size_t bytes;
	char *text;

	named(&entries[1].record, "a\"b\\c\n\t\x01\x7f\xff\",\"self\":true,\"", "");
	assert_int_equal(snapshot_report(&engine, &text, &bytes), 0);
	check(text, "len(r[\"members\"])==2 and r[\"members\"][1][\"self\"]==False");
	check(text, "r[\"members\"][1][\"name\"].startswith(\"a\\\"b\\\\c\\n\\t\\x01\\x7f\")");
	free(text);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_report_contains_the_fields_that_tools_read),
		TEST(a_report_has_what_the_disk_tells_of_each_path),
		TEST(a_snapshot_tells_that_the_memory_is_being_registered),
		TEST(the_state_of_a_member_is_told),
		TEST(of_more_members_than_are_listed_the_others_are_counted),
		TEST(a_report_has_the_findings_worst_first),
		TEST(the_oldest_moment_is_ten_seconds_back),
		TEST(findings_are_listed_worst_first),
		TEST(hostile_names_stay_inside_their_quotes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
