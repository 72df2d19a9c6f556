/* SPDX-License-Identifier: Apache-2.0 */
/*
 * health.c: each finding appears for its fault and for no other, the most important first, in one
 * bounded line whatever the names are; and the reasons of an engine that is not ready.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/control/observe/health_inner.h"
#include "tests/unit/control/observe/snapshot_world.h"

static struct snapshot s;
static struct health health;

static int setup(void **state)
{
	sample_healthy(&s);
	moment_make(&s, &s.past);
	s.past.taken_ns -= MOMENTS_WINDOW_NS;
	return 0;
}

static void make_at(uint64_t now_ns)
{
	recents_make(&s, &s.past, &s.recent);
	memset(&health, 0xa5, sizeof(health));
	health_make(&s, now_ns, &health);
	assert_true(health.count <= HEALTH_FINDINGS_MAX);
}

static void make(void)
{
	make_at(s.taken_ns);
}

/* Asserts that the only findings are `text` of kind `id`, and `also` if it is not FINDING_COUNT. */
static void only(enum finding id, const char *text, enum finding also)
{
	unsigned found = 0;

	for (unsigned i = 0; i < health.count; i++) {
		print_message(
			"%s: %s\n", finding_name(health.finding[i].id), health.finding[i].text);
		if (health.finding[i].id == id) {
			assert_string_equal(health.finding[i].text, text);
			found++;
		} else {
			assert_int_equal(health.finding[i].id, also);
		}
	}
	assert_int_equal(found, 1);
	assert_int_equal(health.count, also == FINDING_COUNT ? 1 : 2);
}

static void a_healthy_engine_has_no_finding(void **state)
{
	make();
	assert_int_equal(health.count, 0);
	assert_int_equal(health_worst(&health), SEVERITY_OK);
	s.rails = s.poll_cores = 0; /* no rail: none is out of use */
	make();
	assert_int_equal(health.count, 0);
	memset(&s.past, 0, sizeof(s.past)); /* counters that did not grow since the start */
	memset(s.counter, 0, sizeof(s.counter));
	make();
	assert_int_equal(health.count, 0);
}

static void each_state_of_a_rail_is_one_finding(void **state)
{
	strcpy(s.rail[1].state, "lost");
	make();
	only(FINDING_rail_lost, "rail 1 (mlx5_1) is lost: its NIC died", FINDING_COUNT);
	assert_int_equal(health_worst(&health), SEVERITY_CRITICAL);
	strcpy(s.rail[1].state, "down");
	make();
	only(FINDING_rail_down, "rail 1 (mlx5_1) is down", FINDING_COUNT);
	strcpy(s.rail[1].why, "check the cable");
	make();
	only(FINDING_rail_down, "rail 1 (mlx5_1) is down: check the cable", FINDING_COUNT);
	strcpy(s.rail[1].why, "");
	assert_int_equal(health_worst(&health), SEVERITY_WARNING);
	strcpy(s.rail[1].state, "slow");
	make();
	only(FINDING_rail_slow, "rail 1 (mlx5_1) is slow", FINDING_COUNT);
	strcpy(s.rail[1].state, "up");
	s.rail[1].peers_out = 3;
	make();
	only(FINDING_peers_out, "rail 1 (mlx5_1): 3 peer(s) are not read over it", FINDING_COUNT);
	assert_int_equal(health_worst(&health), SEVERITY_INFO);
	s.rails = 1;
	strcpy(s.rail[0].state, "slow");
	make();
	only(FINDING_rails_all_out, "no rail is in use", FINDING_rail_slow);
	assert_int_equal(health_worst(&health), SEVERITY_CRITICAL);
}

static void members_are_named_up_to_a_number_and_then_counted(void **state)
{
	s.member[2].state = SNAPSHOT_SILENT;
	s.member[2].state_ms = 2999;
	make();
	only(FINDING_member_silent, "member host:3 (10.0.0.3:7002) is silent for 2 s",
		FINDING_COUNT);
	s.member[2].state = SNAPSHOT_DOWN;
	s.member[2].state_ms = 61000;
	make();
	only(FINDING_member_down, "member host:3 (10.0.0.3:7002) is down for 61 s", FINDING_COUNT);
	while (s.members < 9)
		sample_member(&s, "gone", SNAPSHOT_DOWN);
	make();
	assert_int_equal(health.count, 5);
	assert_string_equal(health.finding[3].text, "member gone (10.0.0.6:7005) is down for 0 s");
	assert_string_equal(health.finding[4].text, "3 more members are down");
}

static void a_seed_that_is_down_has_lost_no_pages(void **state)
{
	s.member[2].rails = 0;
	s.member[2].owner.why = SUSPECT_UNSERVED; /* it owns no keys */
	make();
	assert_int_equal(health.count, 0);
	s.member[2].state = SNAPSHOT_DOWN;
	s.member[2].state_ms = 61000;
	make();
	only(FINDING_member_down, "the seed without pages host:3 (10.0.0.3:7002) is down for 61 s",
		FINDING_COUNT);
}

/* Two seeds, one of which does not answer. */
static void sample_unmet(struct snapshot *ret)
{
	ret->seeds = (struct seeds_report){
		.others = 2, .silent = 1, .named = 1, .unmet = true, .unmet_ms = 7900};
	strcpy(ret->seeds.seed[0].address, "10.0.0.9:31998");
	strcpy(ret->seeds.seed[0].why, "Connection refused");
	ret->seeds.seed[0].ms = 6500;
}

static void seeds_without_an_answer_are_findings(void **state)
{
	sample_unmet(&s);
	make();
	only(FINDING_seeds_unmet,
		"this engine is alone: none of 2 seed(s) leads to a member for 7 s",
		FINDING_seed_silent);
	assert_int_equal(health_worst(&health), SEVERITY_CRITICAL);
	s.seeds.unmet = false;
	make();
	only(FINDING_seed_silent,
		"seed 10.0.0.9:31998 has led to no member for 6 s: Connection refused",
		FINDING_COUNT);
	s.seeds.silent = 40;
	s.seeds.named = SEEDS_NAMED;
	make();
	assert_int_equal(health.count, 5);
	assert_string_equal(health.finding[4].text, "36 more seeds have led to no member");
}

static void engines_that_refuse_each_other_are_findings_with_the_reason(void **state)
{
	s.refusals = (struct refusals_report){.engines = 1, .named = 1};
	strcpy(s.refusals.engine[0].from, "10.0.0.9");
	strcpy(s.refusals.engine[0].text, "its name is taken");
	s.refusals.engine[0].ms = 3100;
	make();
	only(FINDING_engine_refused, "the engine at 10.0.0.9 is refused for 3 s: its name is taken",
		FINDING_COUNT);
	s.refusals.engine[0].theirs = true;
	make();
	only(FINDING_engine_refused,
		"the engine at 10.0.0.9 refuses this one for 3 s: \"its name is taken\"",
		FINDING_COUNT);
	assert_int_equal(health_worst(&health), SEVERITY_WARNING);
}

static void memory_that_is_registered_for_long_is_a_finding(void **state)
{
	s.registering = true;
	s.uptime_ms = SEED_SILENT_MS - 1;
	make();
	assert_int_equal(health.count, 0);
	s.uptime_ms = 61000;
	make();
	only(FINDING_registering,
		"this engine has not joined: 61 s after its start, its memory is still being registered on the NICs",
		FINDING_COUNT);
	assert_int_equal(health_worst(&health), SEVERITY_WARNING);
}

static void an_address_of_ipv6_is_written_as_seeds_take_it(void **state)
{
	s.member[2].state = SNAPSHOT_DOWN;
	strcpy(s.member[2].address, "fd00::3");
	s.member[2].state_ms = 1000;
	make();
	only(FINDING_member_down, "member host:3 ([fd00::3]:7002) is down for 1 s", FINDING_COUNT);
}

static void counters_that_grew_within_the_window_are_findings(void **state)
{
	s.counter[COUNTER_credits_refused] += 3;
	s.clients.calls[STATISTICS_SET].result[STATISTICS_NO_SPACE] += 4;
	make();
	only(FINDING_pool_full, "pool full: 7 requests for room were refused in the last 10 s",
		FINDING_COUNT);
	setup(NULL);
	s.clients.calls[STATISTICS_SET].result[STATISTICS_NO_SPACE]++;
	make();
	only(FINDING_pool_full, "pool full: 1 requests for room were refused in the last 10 s",
		FINDING_COUNT);
	setup(NULL);
	s.clients.calls[STATISTICS_SET].result[STATISTICS_TIMEOUT] += 6;
	make(); /* for whatever reason: no slot came late */
	assert_int_equal(health.count, 0);
	s.counter[COUNTER_credits_late] += 2;
	make();
	only(FINDING_pool_full,
		"pool full: 6 pages of set timed out while evictions made room in the last 10 s",
		FINDING_COUNT);
	setup(NULL);
	s.counter[COUNTER_storage_missed] += 5; /* before the policy was local */
	make();
	assert_int_equal(health.count, 0);
	s.copies = (struct copies_counts){.offers = true, .storage_hosts = 1};
	make();
	only(FINDING_storage_missed,
		"5 pages of the last 10 s are at no storage host: those are too slow, too full or just lost, or engine.pool_bytes is too small here",
		FINDING_COUNT);
	s.copies.storage_hosts = 0;
	s.uptime_ms = SEED_SILENT_MS;
	make();
	only(FINDING_storage_missed,
		"no member has engine.role = storage: pages that clients of this host store are here only; start a storage host, or set engine.write_policy = local",
		FINDING_COUNT);
	setup(NULL);
	s.counter[COUNTER_credits_late] += 2; /* requested ahead: no call missed them */
	make();
	assert_int_equal(health.count, 0);
	s.counter[COUNTER_pages_corrupt] = 3;
	make();
	only(FINDING_pages_corrupt,
		"3 damaged page(s) were taken out since the engine started; the log names their places",
		FINDING_COUNT);
	setup(NULL);
	s.counter[COUNTER_entries_dropped] += 5;
	make();
	only(FINDING_directory_full, "directory full: 5 entries were dropped in the last 10 s",
		FINDING_COUNT);
	setup(NULL);
	s.rail[0].counter[COUNTER_reads_failed] += 2;
	s.rail[1].counter[COUNTER_reads_failed] += 4;
	make();
	only(FINDING_reads_failing, "6 READs failed in the last 10 s", FINDING_COUNT);
	moment_make(&s, &s.past); /* ten seconds later without another failure */
	make();
	assert_int_equal(health.count, 0);
}

static void another_version_on_the_map_is_a_finding(void **state)
{
	strcpy(s.member[2].software, "0.2.0");
	make();
	only(FINDING_versions_differ,
		"1 member(s) run another version: host:3 runs 0.2.0, this engine 0.1.0",
		FINDING_COUNT);
	s.member[2].on_map = false;
	make();
	assert_int_equal(health.count, 0);
	s.member[1].software[0] = '\0';
	make();
	assert_int_equal(health.count, 0); /* not known: no link has told it */
	setup(NULL);
	s.member[0].self = false; /* the own entry is not always the first one */
	s.member[1].self = true;
	strcpy(s.member[1].software, "9");
	make();
	only(FINDING_versions_differ,
		"2 member(s) run another version: host:3 runs 0.1.0, this engine 9", FINDING_COUNT);
}

static void lose_addresses(void)
{
	static struct settings settings;

	strcpy(settings.cluster_address, "10.0.0.1");
	strcpy(settings.soft_address, "10.0.1.1");
	s.settings = &settings;
	s.addresses_gone = 1u << ADDRESS_CLUSTER;
}

static void a_certificate_is_a_finding_14_days_before_its_end(void **state)
{
	setup(NULL);
	s.unix_ms = 1700000000999;
	s.secure_ends_s = 1700000000 + 14 * 86400;
	make();
	assert_int_equal(health.count, 0);
	s.secure_ends_s--;
	make();
	only(FINDING_certificate_ends,
		"a certificate or CRL of cluster.tls_dir ends in 335 h: replace the files, which are read again by themselves",
		FINDING_COUNT);
}

static void the_states_of_the_engine_are_findings(void **state)
{
	s.keeper_gone = true;
	make();
	only(FINDING_keeper_gone,
		"the keeper of this engine has ended: nothing starts the engine again, and its pages end with it; end it and start a keeper when that suits",
		FINDING_COUNT);
	setup(NULL);
	lose_addresses();
	s.addresses_gone = 0;
	s.unsecured = true;
	make();
	only(FINDING_unsecured,
		"links between engines are unsecured: any process that reaches port 0 can join and change pages. Set cluster.psk_file (peercachectl keygen), or cluster.security = none",
		FINDING_COUNT);
	setup(NULL);
	lose_addresses();
	s.addresses_gone = 1u << ADDRESS_SOFT;
	make();
	only(FINDING_address_gone,
		"soft.address = 10.0.1.1: no interface of this host has this address any more: give it back, or restart the engine with one that this host has",
		FINDING_COUNT);
	assert_int_equal(health_worst(&health), SEVERITY_CRITICAL);
	s.addresses_gone |= 1u << ADDRESS_CLUSTER;
	make();
	assert_int_equal(health.count, 2);
	assert_non_null(strstr(health.finding[0].text, "cluster.address = 10.0.0.1: "));
	setup(NULL);
	s.stopping = true;
	make();
	only(FINDING_stopping, "the engine is stopping", FINDING_COUNT);
	setup(NULL);
	s.directory.moving = true;
	make();
	only(FINDING_directory_moving, "directory entries move to new owners", FINDING_COUNT);
	setup(NULL);
	s.directory.behind = 2;
	make();
	only(FINDING_directory_behind,
		"2 directory owner(s) have not yet taken all entries of this host", FINDING_COUNT);
	setup(NULL);
	s.attached.refused = 2;
	s.attached.refused_pid = 4711;
	strcpy(s.attached.refusal, "user 7");
	make();
	only(FINDING_client_refused,
		"2 process(es) try to attach and are refused, the last is process 4711: user 7",
		FINDING_COUNT);
	setup(NULL);
	s.attached.denied = 1;
	s.attached.denied_pid = 4712;
	strcpy(s.attached.denial, "it clears");
	make();
	only(FINDING_client_denied,
		"a request of 1 process(es) was refused in the last minute, the last is process 4712: it clears",
		FINDING_COUNT);
	setup(NULL);
	s.statistics_refused = 1;
	make();
	only(FINDING_statistics_refused, "1 channel(s) wrote impossible statistics", FINDING_COUNT);
}

static void what_makes_absent_keys_unreachable_is_a_finding(void **state)
{
	s.member[2].owner.why = SUSPECT_UNLINKED; /* it is asked all the same */
	make();
	assert_int_equal(health.count, 0);
	s.member[2].owner.why = SUSPECT_UNSERVED;
	make();
	only(FINDING_absence_unproven,
		"member host:3 is suspect (unserved): keys that no other owner has are unreachable to readers",
		FINDING_COUNT);
	assert_int_equal(health_worst(&health), SEVERITY_INFO);
	s.member[2].on_map = false; /* it owns nothing */
	make();
	assert_int_equal(health.count, 0);
	s.member[2].on_map = true;
	s.member[2].owner.why = SUSPECT_SILENT;
	s.member[2].state = SNAPSHOT_SILENT;
	make();
	only(FINDING_member_silent, "member host:3 (10.0.0.3:7002) is silent for 0 s",
		FINDING_COUNT);
}

static void an_old_snapshot_means_a_blocked_control_plane(void **state)
{
	make_at(s.taken_ns + HEALTH_BLOCKED_NS);
	assert_int_equal(health.count, 0);
	make_at(s.taken_ns - 1); /* taken after the clock was read */
	assert_int_equal(health.count, 0);
	make_at(s.taken_ns + HEALTH_BLOCKED_NS + 1);
	only(FINDING_loop_blocked, "the control plane is blocked for 1 s; figures are of that time",
		FINDING_COUNT);
}

/* Snapshots come every 500 ms, a little early or late. */
static void the_window_is_ten_seconds_whatever_the_jitter(void **state)
{
	static struct moments moments;

	for (unsigned i = 0; i < 2000; i++) {
		s.taken_ns += SNAPSHOT_MS * 1000000ull + i * 7919 % 2001 * 1000 - 1000000;
		moments_compare(&moments, &s);
		if (i > 30)
			assert_in_range(s.taken_ns - s.past.taken_ns, MOMENTS_WINDOW_NS - 510000000,
				MOMENTS_WINDOW_NS + 520000000);
	}
}

static void pages_that_no_disk_took_name_their_cause(void **state)
{
	static const struct {
		unsigned drops, budget, size, writing_ms;
		const char *cause;
	} cases[] = {{10, 0, 0, 9000, "too slow: add a path to disk.paths"},
		{10, 0, 0, 2000, "bursts of sets are too large: raise engine.pool_bytes"},
		{10, 9, 0, 2000, "disk.write_bytes_per_day is used up"},
		{10, 0, 9, 0, "raise disk.segment_bytes"},
		{10, 5, 5, 2000, "bursts of sets are too large: raise engine.pool_bytes"}};

	s.disk.paths = 1;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		moment_make(&s, &s.past);
		s.taken_ns += MOMENTS_WINDOW_NS;
		s.counter[COUNTER_disk_drops] += cases[i].drops;
		s.counter[COUNTER_disk_drops_budget] += cases[i].budget;
		s.counter[COUNTER_disk_drops_size] += cases[i].size;
		s.disk.writing_ns += cases[i].writing_ms * 1000000ull;
		make();
		assert_int_equal(health.count, 1);
		assert_int_equal(health.finding[0].id, FINDING_disk_drops);
		assert_non_null(strstr(health.finding[0].text, cases[i].cause));
	}
}

/* Every fault at once, on as many members and rails as there may be. */
static void everything_wrong(void)
{
	while (s.members < SNAPSHOT_MEMBERS)
		sample_member(&s, "gone", s.members % 2 ? SNAPSHOT_DOWN : SNAPSHOT_SILENT);
	strcpy(s.member[1].software, "2");
	s.secure_ends_s = 1;
	s.unsecured = s.stopping = s.keeper_gone = s.registering = s.directory.moving = true;
	sample_unmet(&s);
	lose_addresses();
	s.refusals = (struct refusals_report){.engines = 1, .named = 1};
	s.directory.behind = 1;
	s.member[2].owner.why = SUSPECT_UNSERVED;
	s.statistics_refused = s.attached.refused = s.attached.denied = 1;
	s.counter[COUNTER_credits_refused]++;
	s.counter[COUNTER_entries_dropped]++;
	s.counter[COUNTER_disk_drops]++;
	s.counter[COUNTER_pages_corrupt]++;
	s.counter[COUNTER_storage_missed]++;
	s.copies.offers = true;
	s.disk.paths = 2;
	s.disk.paths_out = 1;
	strcpy(s.disk.path[0].state, "up");
	strcpy(s.disk.path[1].state, "out");
	s.rail[0].counter[COUNTER_reads_failed]++;
}

static void the_most_important_finding_comes_first(void **state)
{
	unsigned kinds = 1;

	everything_wrong();
	s.rails = 4;
	for (unsigned r = 0; r < s.rails; r++) {
		static const char *const states[] = {"slow", "up", "lost", "down"};

		s.rail[r].peers_out = 1;
		strcpy(s.rail[r].state, states[r]);
	}
	make_at(s.taken_ns + 2000000000);
	assert_int_equal(health.finding[0].id, FINDING_loop_blocked);
	for (unsigned i = 1; i < health.count; i++) {
		assert_true(health.finding[i - 1].id <= health.finding[i].id);
		assert_true(health.finding[i - 1].severity >= health.finding[i].severity);
		kinds += health.finding[i - 1].id != health.finding[i].id;
	}
	/* A rail is in use, so all kinds but rails_all_out are there. */
	assert_int_equal(kinds, FINDING_COUNT - 1);
	assert_int_equal(health_worst(&health), SEVERITY_CRITICAL);
}

/* More findings than there is room for: those of low importance are left out. */
static void findings_are_bounded(void **state)
{
	unsigned lost = 0;

	everything_wrong();
	s.rails = RAILS_MAX;
	for (unsigned r = 0; r < s.rails; r++)
		strcpy(s.rail[r].state, "lost");
	make_at(s.taken_ns + 2000000000);
	assert_int_equal(health.count, HEALTH_FINDINGS_MAX);
	for (unsigned i = 0; i < health.count; i++) {
		lost += health.finding[i].id == FINDING_rail_lost;
		assert_true(health.finding[i].severity >= SEVERITY_WARNING);
	}
	assert_int_equal(health.finding[1].id, FINDING_rails_all_out);
	assert_int_equal(lost, RAILS_MAX);
}

static void names_of_any_length_and_content_stay_in_their_line(void **state)
{
	static const char hostile[] = "<img src=x onerror=alert(1)>%s%n\"\\";

	strcpy(s.member[1].name, hostile);
	s.member[1].state = SNAPSHOT_DOWN;
	make();
	only(FINDING_member_down,
		"member <img src=x onerror=alert(1)>%s%n\"\\ (10.0.0.2:7001) is down for 0 s",
		FINDING_COUNT);
	for (unsigned i = 1; i < 3; i++) {
		memset(s.member[i].name, 'n', NAME_BYTES_MAX - 1);
		memset(s.member[i].address, 'a', NAME_BYTES_MAX - 1);
		memset(s.member[i].software, 'v', SNAPSHOT_SOFTWARE_BYTES - 1);
		s.member[i].state = SNAPSHOT_SILENT;
		s.member[i].state_ms = UINT64_MAX;
		s.member[i].port = UINT16_MAX;
	}
	memset(s.rail[0].device, 'd', NAME_BYTES_MAX - 1);
	strcpy(s.rail[0].state, "lost");
	make();
	assert_int_equal(health.count, 4);
	for (unsigned i = 0; i < health.count; i++) {
		assert_non_null(memchr(health.finding[i].text, '\0', HEALTH_TEXT_BYTES));
		assert_null(strchr(health.finding[i].text, '\n'));
	}
}

/* ---- ready ----------------------------------------------------------------------------------- */

static const char *not_ready(unsigned members, uint64_t age_ns)
{
	const struct health_wanted wanted = {.members = members};
	static char text[384];

	return health_not_ready(&s, &wanted, s.taken_ns + age_ns, text, sizeof(text));
}

static void an_engine_that_has_met_no_member_is_not_ready_unless_it_may_be_alone(void **state)
{
	const struct health_wanted may_be_alone = {.members = 1, .alone = true};
	char text[384];

	sample_unmet(&s);
	assert_string_equal(not_ready(1, 0),
		"this engine is alone: none of 2 seed(s) leads to a member (metrics.ready_alone); 10.0.0.9:31998: Connection refused");
	assert_null(health_not_ready(&s, &may_be_alone, s.taken_ns, text, sizeof(text)));
	s.seeds.unmet_ms = 0; /* at once after the start: health is not green before */
	s.seeds.silent = s.seeds.named = 0;
	assert_string_equal(not_ready(1, 0),
		"this engine is alone: none of 2 seed(s) leads to a member (metrics.ready_alone)");
	make();
	only(FINDING_seeds_unmet,
		"this engine is alone: none of 2 seed(s) leads to a member for 0 s", FINDING_COUNT);
	s.seeds.others = 0; /* the first host of a cluster is cut off */
	s.seeds.lost = 3;
	assert_string_equal(not_ready(1, 0),
		"this engine is alone: all 3 other member(s) are down (metrics.ready_alone)");
	assert_null(health_not_ready(&s, &may_be_alone, s.taken_ns, text, sizeof(text)));
	make();
	only(FINDING_seeds_unmet, "this engine is alone: all 3 other member(s) are down for 0 s",
		FINDING_COUNT);
}

/* Neither its seeds nor a permission to be alone hide that its port refuses other engines. */
static void an_engine_whose_memory_is_registered_is_not_ready(void **state)
{
	static const char why[] =
		"the pools are being registered on the NICs; the cluster is joined after that";
	const struct health_wanted may_be_alone = {.members = 1, .alone = true};
	char text[384];

	s.registering = true;
	assert_string_equal(not_ready(1, 0), why);
	assert_string_equal(
		health_not_ready(&s, &may_be_alone, s.taken_ns, text, sizeof(text)), why);
	sample_unmet(&s);
	assert_string_equal(not_ready(1, 0), why);
	s.registering = false;
	assert_string_not_equal(not_ready(1, 0), why);
}

static void an_engine_that_is_not_ready_says_why(void **state)
{
	assert_null(not_ready(1, 0));
	assert_null(not_ready(3, HEALTH_BLOCKED_NS));
	assert_string_equal(not_ready(4, 0), "3 of 4 members are up (metrics.ready_members)");
	s.member[1].state = SNAPSHOT_SILENT;
	assert_string_equal(not_ready(3, 0), "2 of 3 members are up (metrics.ready_members)");
	assert_null(not_ready(2, 0));
	strcpy(s.rail[0].state, "down");
	assert_null(not_ready(2, 0)); /* the other rail serves */
	strcpy(s.rail[1].state, "lost");
	assert_string_equal(not_ready(2, 0), "no rail is in use");
	s.rails = 0; /* a seed only */
	assert_null(not_ready(2, 0));
	s.rails = 2;
	assert_string_equal(
		not_ready(2, 3 * HEALTH_BLOCKED_NS), "the control plane is blocked for 4 s");
	s.stopping = true;
	assert_string_equal(not_ready(2, 3 * HEALTH_BLOCKED_NS), "the engine is stopping");
}

static void kinds_and_severities_have_names(void **state)
{
	for (unsigned id = 0; id < FINDING_COUNT; id++)
		for (unsigned other = 0; other < id; other++)
			assert_string_not_equal(finding_name(id), finding_name(other));
	assert_string_equal(finding_name(FINDING_pool_full), "pool_full");
	assert_string_equal(finding_name(FINDING_COUNT), "?");
	assert_string_equal(severity_name(SEVERITY_INFO), "info");
	assert_string_equal(severity_name(SEVERITY_WARNING), "warning");
	assert_string_equal(severity_name(SEVERITY_CRITICAL), "critical");
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_healthy_engine_has_no_finding),
		TEST(each_state_of_a_rail_is_one_finding),
		TEST(members_are_named_up_to_a_number_and_then_counted),
		TEST(a_seed_that_is_down_has_lost_no_pages),
		TEST(seeds_without_an_answer_are_findings),
		TEST(engines_that_refuse_each_other_are_findings_with_the_reason),
		TEST(memory_that_is_registered_for_long_is_a_finding),
		TEST(an_address_of_ipv6_is_written_as_seeds_take_it),
		TEST(an_engine_that_has_met_no_member_is_not_ready_unless_it_may_be_alone),
		TEST(counters_that_grew_within_the_window_are_findings),
		TEST(another_version_on_the_map_is_a_finding),
		TEST(the_states_of_the_engine_are_findings),
		TEST(a_certificate_is_a_finding_14_days_before_its_end),
		TEST(what_makes_absent_keys_unreachable_is_a_finding),
		TEST(the_window_is_ten_seconds_whatever_the_jitter),
		TEST(an_old_snapshot_means_a_blocked_control_plane),
		TEST(pages_that_no_disk_took_name_their_cause),
		TEST(the_most_important_finding_comes_first),
		TEST(findings_are_bounded),
		TEST(names_of_any_length_and_content_stay_in_their_line),
		TEST(an_engine_whose_memory_is_registered_is_not_ready),
		TEST(an_engine_that_is_not_ready_says_why),
		TEST(kinds_and_severities_have_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
