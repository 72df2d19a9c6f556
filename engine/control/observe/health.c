/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Findings from a snapshot. Each says what is wrong, with what, for how long, in one line. Any
 * thread.
 */
#include "config/text_fit.h"
#include "engine/control/observe/health_inner.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* a disk that writes for a larger part of the time is too slow for what is evicted */
#define DISK_BUSY_PERCENT 70u

static const struct {
	const char *name;
	enum severity severity;
	const char *help;
} findings[FINDING_COUNT] = {
#define FINDING(id, severity, help) {#id, SEVERITY_##severity, help},
#include "engine/control/observe/health.def"
#undef FINDING
};

const char *finding_name(enum finding id)
{
	return id < FINDING_COUNT ? findings[id].name : "?";
}

const char *finding_help(enum finding id)
{
	return id < FINDING_COUNT ? findings[id].help : "?";
}

const char *severity_name(enum severity severity)
{
	static const char *const names[] = {"ok", "info", "warning", "critical"};

	return names[severity];
}

__attribute__((format(printf, 3, 4))) static void finding_add(
	struct health *h, enum finding id, const char *format, ...)
{
	unsigned at = h->count;
	va_list arguments;

	if (h->count == HEALTH_FINDINGS_MAX)
		return;
	/* In the order of health.def, and in order of arrival within one kind. */
	while (at && h->finding[at - 1].id > id) {
		h->finding[at] = h->finding[at - 1];
		at--;
	}
	h->count++;
	h->finding[at].id = id;
	h->finding[at].severity = findings[id].severity;
	va_start(arguments, format);
	text_vfit(h->finding[at].text, sizeof(h->finding[at].text), format, arguments);
	va_end(arguments);
}

/* ---- kinds of findings ----------------------------------------------------------------------- */

#define NAMED_MAX 4u /* members of one state that are named; the others are counted */

static void health_members(
	const struct snapshot *s, struct health *h, unsigned state, enum finding id)
{
	char text[ADDRESS_TEXT_BYTES];
	unsigned n = 0;

	for (unsigned i = 0; i < s->members; i++) {
		const struct snapshot_member *m = &s->member[i];

		if (m->state != state)
			continue;
		if (n++ < NAMED_MAX)
			finding_add(h, id, "%s %s (%s) is %s for %" PRIu64 " s",
				m->rails ? "member" : "the seed without pages", m->name,
				address_text(m->address, m->port, text), snapshot_state_name(state),
				m->state_ms / 1000);
	}
	if (n > NAMED_MAX)
		finding_add(
			h, id, "%u more members are %s", n - NAMED_MAX, snapshot_state_name(state));
}

/* A seed is a finding from SEED_SILENT_MS on; an engine that is alone, and refusals, at once. */
static void health_seeds(const struct snapshot *s, struct health *h)
{
	const struct seeds_report *r = &s->seeds;

	if (r->unmet && r->others)
		finding_add(h, FINDING_seeds_unmet,
			"this engine is alone: none of %u seed(s) leads to a member for %" PRIu64
			" s",
			r->others, r->unmet_ms / 1000);
	else if (r->unmet)
		finding_add(h, FINDING_seeds_unmet,
			"this engine is alone: all %u other member(s) are down for %" PRIu64 " s",
			r->lost, r->unmet_ms / 1000);
	for (unsigned i = 0; i < r->named && i < NAMED_MAX; i++)
		finding_add(h, FINDING_seed_silent,
			"seed %s has led to no member for %" PRIu64 " s: %s", r->seed[i].address,
			r->seed[i].ms / 1000, r->seed[i].why);
	if (r->silent > NAMED_MAX)
		finding_add(h, FINDING_seed_silent, "%u more seeds have led to no member",
			r->silent - NAMED_MAX);
}

static void health_refusals(struct health *h, const struct refusals_report *refusals)
{
	for (unsigned i = 0; i < refusals->named && i < NAMED_MAX; i++) {
		const struct refusal_report *r = &refusals->engine[i];

		finding_add(h, FINDING_engine_refused,
			r->theirs ? "the engine at %s refuses this one for %" PRIu64 " s: \"%s\""
				  : "the engine at %s is refused for %" PRIu64 " s: %s",
			r->from, r->ms / 1000, r->text);
	}
	if (refusals->engines > NAMED_MAX)
		finding_add(h, FINDING_engine_refused, "%u more engines are refused",
			refusals->engines - NAMED_MAX);
}

/* Why a key that no owner has is unreachable to a reader of this host, not absent: abi/map.h. */
static void health_absence(const struct snapshot *s, struct health *h)
{
	unsigned n = 0;

	for (unsigned i = 0; i < s->members; i++) {
		const struct snapshot_member *m = &s->member[i];

		/* a silent one is a finding of its own */
		if (m->self || !m->rails || !m->on_map || m->state != SNAPSHOT_UP ||
			!suspect_steers(m->owner.why))
			continue;
		if (n++ < NAMED_MAX)
			finding_add(h, FINDING_absence_unproven,
				"member %s is suspect (%s): keys that no other owner has are unreachable to readers",
				m->name, suspect_name(m->owner.why));
	}
	if (n > NAMED_MAX)
		finding_add(h, FINDING_absence_unproven, "%u more members are suspect as owners",
			n - NAMED_MAX);
}

static void health_versions(const struct snapshot *s, struct health *h)
{
	const char *ours = s->members ? s->member[0].software : "";
	const struct snapshot_member *other = NULL;
	unsigned n = 0;

	for (unsigned i = 0; i < s->members; i++)
		if (s->member[i].self)
			ours = s->member[i].software;
	for (unsigned i = 0; i < s->members; i++) {
		/* without a link a member's version is not known */
		if (!s->member[i].on_map || !s->member[i].software[0] ||
			!strcmp(s->member[i].software, ours))
			continue;
		other = &s->member[i];
		n++;
	}
	if (other)
		finding_add(h, FINDING_versions_differ,
			"%u member(s) run another version: %s runs %s, this engine %s", n,
			other->name, other->software, ours);
}

static void health_addresses(const struct snapshot *s, struct health *h)
{
	for (unsigned i = 0; i < ADDRESSES; i++)
		if (s->addresses_gone & 1u << i)
			finding_add(h, FINDING_address_gone,
				"%s = %s: no interface of this host has this address any more: give it back, or restart the engine with one that this host has",
				address_setting[i], address_value(s->settings, i));
}

static void health_rails(const struct snapshot *s, struct health *h)
{
	unsigned out = 0;

	for (unsigned i = 0; i < s->rails; i++) {
		const struct snapshot_rail *r = &s->rail[i];

		if (!strcmp(r->state, "lost"))
			finding_add(h, FINDING_rail_lost, "rail %u (%s) is lost: %s", i, r->device,
				r->why[0] ? r->why : "its NIC died");
		else if (!strcmp(r->state, "down"))
			finding_add(h, FINDING_rail_down, "rail %u (%s) is down%s%s", i, r->device,
				r->why[0] ? ": " : "", r->why);
		else if (!strcmp(r->state, "slow"))
			finding_add(h, FINDING_rail_slow, "rail %u (%s) is slow", i, r->device);
		else if (r->peers_out)
			finding_add(h, FINDING_peers_out,
				"rail %u (%s): %u peer(s) are not read over it", i, r->device,
				r->peers_out);
		out += strcmp(r->state, "up") != 0;
	}
	if (out && out == s->rails)
		finding_add(h, FINDING_rails_all_out, "no rail is in use");
}

/*
 * A set whose deadline is shorter than an eviction ends before its request for room is refused:
 * then pages time out and slots are granted late. Neither alone is a full pool.
 */
static void health_pool_full(const struct snapshot *s, struct health *h)
{
	const struct recent *recent = &s->recent.engine;

	if (recent->room_refused > 0)
		finding_add(h, FINDING_pool_full,
			"pool full: %.0f requests for room were refused in the last 10 s",
			recent->room_refused);
	else if (recent->room_late_pages > 0)
		finding_add(h, FINDING_pool_full,
			"pool full: %.0f pages of set timed out while evictions made room in the last 10 s",
			recent->room_late_pages);
}

static uint64_t counter_grew(const struct snapshot *s, enum counter which)
{
	return s->counter[which] - s->past.counter[which];
}

/* Sets go on meanwhile: the pages are here. */
static void health_storage(const struct snapshot *s, struct health *h)
{
	uint64_t missed = counter_grew(s, COUNTER_storage_missed);

	if (!s->copies.offers)
		return;
	if (!s->copies.storage_hosts && s->uptime_ms >= SEED_SILENT_MS)
		finding_add(h, FINDING_storage_missed,
			"no member has engine.role = storage: pages that clients of this host store are here only; start a storage host, or set engine.write_policy = local");
	else if (missed && s->copies.storage_hosts)
		finding_add(h, FINDING_storage_missed,
			"%" PRIu64
			" pages of the last 10 s are at no storage host: those are too slow, too full or just lost, or engine.pool_bytes is too small here",
			missed);
}

static void health_disks(const struct snapshot *s, struct health *h)
{
	for (unsigned i = 0; i < s->disk.paths; i++) {
		const struct snapshot_disk_path *path = &s->disk.path[i];

		if (!strcmp(path->state, "out"))
			finding_add(h, FINDING_disk_failed, "disk %s is out of service: %s",
				path->directory, path->report.reason);
	}
}

static void health_integrity(const struct snapshot *s, struct health *h)
{
	uint64_t pages = s->counter[COUNTER_pages_corrupt];

	if (pages)
		finding_add(h, FINDING_pages_corrupt,
			"%" PRIu64
			" damaged page(s) were taken out since the engine started; the log names their places",
			pages);
}

/* Names the cause that most of the dropped pages have. */
static void health_disk_drops(const struct snapshot *s, uint64_t drops, struct health *h)
{
	uint64_t passed_ns = s->taken_ns - s->past.taken_ns;
	uint64_t writing_ns = s->disk.writing_ns - s->past.disk_writing_ns;
	unsigned percent = passed_ns ? (unsigned)(writing_ns * 100 / passed_ns) : 0;
	const char *cause = percent < DISK_BUSY_PERCENT
				    ? "bursts of sets are too large: raise engine.pool_bytes"
				    : "the disk is too slow: add a path to disk.paths";

	if (counter_grew(s, COUNTER_disk_drops_budget) > drops / 2)
		cause = "disk.write_bytes_per_day is used up";
	else if (counter_grew(s, COUNTER_disk_drops_size) > drops / 2)
		cause = "they do not fit a segment: raise disk.segment_bytes";
	finding_add(h, FINDING_disk_drops,
		"%" PRIu64
		" pages were evicted unwritten in the last 10 s: %s (writing %u%% of the time)",
		drops, cause, percent > 100 ? 100 : percent);
}

static void health_growth(const struct snapshot *s, struct health *h)
{
	const struct recent *recent = &s->recent.engine;
	uint64_t drops = counter_grew(s, COUNTER_disk_drops);

	health_pool_full(s, h);
	if (drops && s->disk.paths > s->disk.paths_out)
		health_disk_drops(s, drops, h);
	if (recent->entries_dropped > 0)
		finding_add(h, FINDING_directory_full,
			"directory full: %.0f entries were dropped in the last 10 s",
			recent->entries_dropped);
	if (recent->reads_failed > 0)
		finding_add(h, FINDING_reads_failing, "%.0f READs failed in the last 10 s",
			recent->reads_failed);
}

/* From then on no other engine believes this one, or this one no other. */
static void health_certificates(const struct snapshot *s, struct health *h)
{
	int64_t left_s = s->secure_ends_s - (int64_t)(s->unix_ms / 1000);

	if (s->secure_ends_s && left_s < CERTIFICATE_ENDS_S)
		finding_add(h, FINDING_certificate_ends,
			"a certificate or CRL of cluster.tls_dir %s %lld h: replace the files, which are read again by themselves",
			left_s < 0 ? "has ended since" : "ends in",
			(long long)(left_s < 0 ? -left_s : left_s) / 3600);
}

void health_make(const struct snapshot *s, uint64_t now_ns, struct health *ret)
{
	ret->count = 0;
	if (snapshot_age_ns(s, now_ns) > HEALTH_BLOCKED_NS)
		finding_add(ret, FINDING_loop_blocked,
			"the control plane is blocked for %" PRIu64 " s; figures are of that time",
			snapshot_age_ns(s, now_ns) / 1000000000);
	if (s->registering && s->uptime_ms >= SEED_SILENT_MS)
		finding_add(ret, FINDING_registering,
			"this engine has not joined: %" PRIu64
			" s after its start, its memory is still being registered on the NICs",
			s->uptime_ms / 1000);
	health_addresses(s, ret);
	health_rails(s, ret);
	health_members(s, ret, SNAPSHOT_DOWN, FINDING_member_down);
	health_members(s, ret, SNAPSHOT_SILENT, FINDING_member_silent);
	health_seeds(s, ret);
	health_refusals(ret, &s->refusals);
	health_storage(s, ret);
	health_disks(s, ret);
	health_integrity(s, ret);
	health_growth(s, ret);
	health_versions(s, ret);
	if (s->keeper_gone)
		finding_add(ret, FINDING_keeper_gone,
			"the keeper of this engine has ended: nothing starts the engine again, and its pages end with it; end it and start a keeper when that suits");
	if (s->unsecured)
		finding_add(ret, FINDING_unsecured,
			"links between engines are unsecured: any process that reaches port %d can join and change pages. Set cluster.psk_file (peercachectl keygen), or cluster.security = none",
			(int)s->settings->cluster_port);
	health_certificates(s, ret);
	if (s->stopping)
		finding_add(ret, FINDING_stopping, "the engine is stopping");
	if (s->directory.moving)
		finding_add(ret, FINDING_directory_moving, "directory entries move to new owners");
	health_absence(s, ret);
	if (s->directory.behind)
		finding_add(ret, FINDING_directory_behind,
			"%u directory owner(s) have not yet taken all entries of this host",
			s->directory.behind);
	if (s->attached.refused)
		finding_add(ret, FINDING_client_refused,
			"%u process(es) try to attach and are refused, the last is process %d: %s",
			s->attached.refused, s->attached.refused_pid, s->attached.refusal);
	if (s->attached.denied)
		finding_add(ret, FINDING_client_denied,
			"a request of %u process(es) was refused in the last minute, the last is process %d: %s",
			s->attached.denied, s->attached.denied_pid, s->attached.denial);
	if (s->statistics_refused)
		finding_add(ret, FINDING_statistics_refused,
			"%" PRIu64 " channel(s) wrote impossible statistics",
			s->statistics_refused);
}

enum severity health_worst(const struct health *health)
{
	enum severity worst = SEVERITY_OK;

	for (unsigned i = 0; i < health->count; i++)
		if (health->finding[i].severity > worst)
			worst = health->finding[i].severity;
	return worst;
}

const char *health_not_ready(const struct snapshot *s, const struct health_wanted *wanted,
	uint64_t now_ns, char *text, size_t bytes)
{
	unsigned up = snapshot_members(s, SNAPSHOT_UP), rails_up = 0;

	if (s->stopping)
		return "the engine is stopping";
	if (snapshot_age_ns(s, now_ns) > HEALTH_BLOCKED_NS) {
		snprintf(text, bytes, "the control plane is blocked for %" PRIu64 " s",
			snapshot_age_ns(s, now_ns) / 1000000000);
		return text;
	}
	if (s->registering)
		return "the pools are being registered on the NICs; the cluster is joined after that";
	for (unsigned i = 0; i < s->rails; i++)
		rails_up += !strcmp(s->rail[i].state, "up");
	if (s->rails && !rails_up)
		return "no rail is in use";
	if (s->seeds.unmet && !s->seeds.others && !wanted->alone) {
		snprintf(text, bytes,
			"this engine is alone: all %u other member(s) are down (metrics.ready_alone)",
			s->seeds.lost);
		return text;
	}
	if (s->seeds.unmet && !wanted->alone) {
		snprintf(text, bytes,
			"this engine is alone: none of %u seed(s) leads to a member (metrics.ready_alone)%s%s%s%s",
			s->seeds.others, s->seeds.named ? "; " : "",
			s->seeds.named ? s->seeds.seed[0].address : "", s->seeds.named ? ": " : "",
			s->seeds.named ? s->seeds.seed[0].why : "");
		return text;
	}
	if (up < wanted->members) {
		snprintf(text, bytes, "%u of %u members are up (metrics.ready_members)", up,
			wanted->members);
		return text;
	}
	return NULL;
}
