/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot as JSON: its figures by their names, and what is no number. 64-bit identifiers
 * (incarnations) are hexadecimal strings, because JSON readers round large numbers. Any thread.
 * Without memory there is no report.
 */
#include "engine/control/observe/snapshot_inner.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "config/settings.h"
#include "config/version.h"
#include "engine/abi/segment.h"
#include "engine/abi/wire.h"
#include "engine/control/observe/health_inner.h"
#include "engine/control/observe/json_inner.h"

/* ---- the parts ------------------------------------------------------------------------------- */

/* The lower bound of each bucket that is not empty: its count. */
static void report_buckets(struct json *j, const uint64_t *latency)
{
	json_open(j, "from_ns", "{");
	for (unsigned i = 0; i < LATENCY_BUCKETS; i++) {
		char from[24];

		snprintf(from, sizeof(from), "%" PRIu64, latency_lower_ns(i));
		if (latency[i])
			json_count(j, from, latency[i]);
	}
	json_close(j, "}");
}

/* A group of figures.def: {name: value}. */
static void report_figures(
	struct json *j, const struct snapshot *s, enum figure_group group, unsigned i)
{
	const struct figure_list *list = &figure_lists[group];
	double value[FIGURES_MAX];

	figures_values(s, group, i, value);
	json_open(j, group < FIGURES_RECENT ? "figures" : "recent", "{");
	for (unsigned n = 0; n < list->count; n++)
		json_real(j, list->figure[n].name, value[n]);
	json_close(j, "}");
}

static void report_counters(struct json *j, const uint64_t *counter)
{
	json_open(j, "counters", "{");
	for (unsigned i = 0; i < COUNTER_COUNT; i++)
		json_count(j, figure_counters[i].name, counter[i]);
	json_close(j, "}");
}

/* The latencies that 50%, 99% and 99.9% of the samples do not exceed. */
static void report_latency(struct json *j, const uint64_t *latency)
{
	json_count(j, "p50_ns", latency_quantile_ns(latency, 500));
	json_count(j, "p99_ns", latency_quantile_ns(latency, 990));
	json_count(j, "p999_ns", latency_quantile_ns(latency, 999));
}

static void report_probes(struct json *j, const struct snapshot_member *m)
{
	json_number(j, "probe_served_ms", m->probed_ms);
	json_count(j, "probe_unserved_ms", m->unprobed_ms);
}

static void report_member_links(struct json *j, const struct snapshot_member *m)
{
	json_count(j, "links", m->links);
	json_count(j, "heard_ms", m->heard_ms);
	report_probes(j, m);
	json_string(j, "suspect", suspect_name(m->owner.why));
	json_number(j, "served_ms", m->owner.served_ms);
	json_count(j, "unserved_ms", m->owner.unserved_ms);
	json_count(j, "queued", m->owner.queued);
	json_count(j, "unacknowledged", m->owner.in_flight);
	json_count(j, "unawaited", m->owner.background);
	json_flag(j, "behind", m->owner.behind);
}

static void report_members(struct json *j, const struct snapshot *s)
{
	json_open(j, "members", "[");
	for (unsigned i = 0; i < s->members; i++) {
		const struct snapshot_member *m = &s->member[i];

		if (!m->on_map)
			continue;
		json_open(j, NULL, "{");
		json_string(j, "name", m->name);
		json_hex(j, "incarnation", m->incarnation);
		json_string(j, "address", m->address);
		json_count(j, "port", m->port);
		json_count(j, "rails", m->rails);
		json_flag(j, "self", m->self);
		json_string(j, "state", snapshot_state_name(m->state));
		json_count(j, "state_ms", m->state_ms);
		json_string(j, "software", m->software);
		report_member_links(j, m);
		json_close(j, "}");
	}
	json_close(j, "]");
	json_open(j, "members_down", "[");
	for (unsigned i = 0; i < s->members; i++) {
		const struct snapshot_member *m = &s->member[i];

		if (m->on_map)
			continue;
		json_open(j, NULL, "{");
		json_string(j, "name", m->name);
		json_string(j, "address", m->address);
		json_count(j, "port", m->port);
		json_count(j, "rails", m->rails);
		json_count(j, "state_ms", m->state_ms);
		json_flag(j, "unserving", m->unserving);
		if (m->unserving) {
			report_probes(j, m);
			json_number(j, "trial_ms", m->trial_ms);
			json_count(j, "trial_needs_ms", m->trial_needs_ms);
		}
		json_close(j, "}");
	}
	json_close(j, "]");
	json_count(j, "members_unlisted",
		s->members_more[SNAPSHOT_UP] + s->members_more[SNAPSHOT_SILENT]);
	json_count(j, "members_down_unlisted", s->members_more[SNAPSHOT_DOWN]);
}

/* Seeds that lead to no member, and what is refused. */
static void report_strangers(struct json *j, const struct snapshot *s)
{
	const struct refusals_report *r = &s->refusals;

	json_open(j, "seeds_silent", "[");
	for (unsigned i = 0; i < s->seeds.named; i++) {
		json_open(j, NULL, "{");
		json_string(j, "address", s->seeds.seed[i].address);
		json_string(j, "why", s->seeds.seed[i].why);
		json_count(j, "for_ms", s->seeds.seed[i].ms);
		json_close(j, "}");
	}
	json_close(j, "]");
	json_open(j, "engines_refused", "[");
	for (unsigned i = 0; i < r->named; i++) {
		json_open(j, NULL, "{");
		json_string(j, "address", r->engine[i].from);
		json_string(j, "why", r->engine[i].text);
		json_flag(j, "theirs", r->engine[i].theirs);
		json_count(j, "for_ms", r->engine[i].ms);
		json_close(j, "}");
	}
	json_close(j, "]");
}

static void report_rail(struct json *j, const struct snapshot *s, unsigned i)
{
	const struct snapshot_rail *r = &s->rail[i];

	json_open(j, NULL, "{");
	json_string(j, "device", r->device);
	json_count(j, "poll_core", r->poll_core);
	json_number(j, "core", r->core);
	json_number(j, "node", r->node);
	json_flag(j, "busy", r->busy);
	json_flag(j, "isolated", r->isolated);
	json_flag(j, "modelled", r->modelled);
	json_count(j, "registered_bytes", r->registered_bytes);
	json_count(j, "pages", r->pages); /* short names, as in report_short() */
	json_count(j, "pool_bytes", r->pool_bytes);
	json_count(j, "pool_used_bytes", r->pool_used_bytes);
	json_string(j, "state", r->state);
	report_figures(j, s, FIGURES_RAIL, i);
	report_figures(j, s, FIGURES_RECENT_RAIL, i);
	json_open(j, "read_latency", "{");
	report_latency(j, r->latency);
	json_close(j, "}");
	report_counters(j, r->counter);
	json_close(j, "}");
}

static void report_poll_core(struct json *j, const struct snapshot *s, unsigned i)
{
	const struct snapshot_poll_core *core = &s->poll_core[i];

	json_open(j, NULL, "{");
	json_count(j, "rails", core->rails);
	json_count(j, "age_ns", core->report.age_ns);
	report_figures(j, s, FIGURES_CORE, i);
	report_figures(j, s, FIGURES_RECENT_CORE, i);
	json_open(j, "gaps_from_ns", "{"); /* the lower bound of each bucket: its count */
	for (unsigned g = 0; g < GAP_BUCKETS; g++) {
		char from[24];

		snprintf(from, sizeof(from), "%" PRIu64, gap_bucket_ns(g));
		json_count(j, from, core->report.gaps[g]);
	}
	json_close(j, "}}");
}

static void report_directory(struct json *j, const struct snapshot *s)
{
	json_open(j, "directory", "{");
	json_count(j, "dropped", s->counter[COUNTER_entries_dropped]);
	json_count(j, "walk_position", s->directory.walk_position);
	json_count(j, "walk_end", s->directory.walk_end);
	json_count(j, "sweep_left", s->directory.sweep_left);
	json_close(j, "}");
}

static void report_path(struct json *j, const struct snapshot_disk_path *path)
{
	const struct disk_path_report *r = &path->report;

	json_open(j, NULL, "{");
	json_string(j, "directory", path->directory);
	json_string(j, "state", path->state);
	json_string(j, "reason", r->reason);
	json_count(j, "bytes", path->bytes);
	json_count(j, "used_bytes", path->used_bytes);
	json_count(j, "queued_bytes", r->queued_bytes);
	json_count(j, "in_flight", r->flying);
	json_count(j, "pages_written", r->pages_written);
	json_count(j, "bytes_written", r->bytes_written);
	json_count(j, "pages_read", r->pages_read);
	json_count(j, "bytes_read", r->bytes_read);
	json_count(j, "pages_recovered", r->pages_recovered);
	json_count(j, "read_errors", r->read_errors);
	json_count(j, "crc_errors", r->crc_errors);
	json_count(j, "io_errors", r->io_errors);
	json_close(j, "}");
}

static void report_disk(struct json *j, const struct snapshot_disk *disk)
{
	json_open(j, "disk", "{");
	json_count(j, "pages", disk->pages);
	json_count(j, "used_bytes", disk->used_bytes);
	json_count(j, "spills", disk->spills);
	json_count(j, "promotes", disk->promotes);
	json_count(j, "pins", disk->pins);
	json_open(j, "paths", "[");
	for (unsigned i = 0; i < disk->paths; i++)
		report_path(j, &disk->path[i]);
	json_close(j, "]}");
}

static void report_drain(struct json *j, const struct drain_counts *d)
{
	static const char *const states[] = {
		[DRAIN_NONE] = "", [DRAIN_RUNNING] = "running", [DRAIN_DONE] = "done"};

	json_open(j, "drain", "{");
	json_string(j, "state", states[d->state]);
	json_count(j, "pages", d->pages);
	json_count(j, "left", d->left);
	json_count(j, "copied", d->copied);
	json_count(j, "copied_bytes", d->copied_bytes);
	json_count(j, "unfit", d->unfit);
	json_count(j, "gone", d->gone);
	json_close(j, "}");
}

static void report_groups(struct json *j, const struct snapshot *s)
{
	char number[16];

	json_open(j, "groups", "[");
	for (unsigned i = 0; i < s->groups; i++) {
		const struct index_group *group = &s->group[i];

		snprintf(number, sizeof(number), "0x%06x", group->number);
		json_open(j, NULL, "{");
		json_string(j, "group", number);
		json_count(j, "bytes", group->bytes);
		json_count(j, "pages", group->pages);
		json_count(j, "quota", group->quota);
		json_count(j, "ttl_s", group->ttl_s);
		json_count(j, "evicted", group->evicted);
		json_count(j, "expired", group->expired);
		json_close(j, "}");
	}
	json_close(j, "]");
	json_flag(j, "groups_more", s->groups_more);
}

static void report_calls(struct json *j, const char *name, const struct statistics_calls *c)
{
	json_open(j, name, "{");
	json_count(j, "batches", c->batches);
	json_count(j, "pages", c->pages);
	for (unsigned r = 0; r < STATISTICS_RESULTS; r++)
		json_count(j, figure_results[r], c->result[r]);
	report_latency(j, c->latency);
	json_close(j, "}");
}

static void report_all_calls(struct json *j, const struct snapshot *s)
{
	json_open(j, "calls", "{");
	for (unsigned call = 0; call < STATISTICS_CALLS; call++)
		report_calls(j, figure_calls[call], &s->clients.calls[call]);
	json_close(j, "}");
	json_open(j, "loop_lag", "{");
	report_latency(j, s->lag);
	report_buckets(j, s->lag);
	json_close(j, "}");
}

/* What is wrong at `now_ns`, and what each kind of finding means. */
static void report_health(struct json *j, const struct snapshot *s, uint64_t now_ns)
{
	struct health health;

	health_make(s, now_ns, &health);
	json_open(j, "health", "{");
	json_string(j, "worst", severity_name(health_worst(&health)));
	json_open(j, "findings", "[");
	for (unsigned i = 0; i < health.count; i++) {
		json_open(j, NULL, "{");
		json_string(j, "id", finding_name(health.finding[i].id));
		json_string(j, "severity", severity_name(health.finding[i].severity));
		json_string(j, "text", health.finding[i].text);
		json_string(j, "means", finding_help(health.finding[i].id));
		json_close(j, "}");
	}
	json_close(j, "]}");
}

/* A few figures again, under the short names by which scripts watch engines. */
static void report_short(struct json *j, const struct snapshot *s)
{
	json_count(j, "keys", s->keys);
	json_count(j, "map_epoch", s->map_epoch);
	json_open(j, "shard", "{");
	json_count(j, "entries", s->shard_entries);
	json_count(j, "capacity", s->shard_capacity);
	json_close(j, "}");
}

/* ---- the whole report ------------------------------------------------------------------------ */

static void report_engine(struct json *j, const struct snapshot *s, uint64_t now_ns)
{
	char *settings = s->settings ? settings_json(s->settings) : NULL;

	json_string(j, "name", s->name);
	json_string(j, "version", PEERCACHE_VERSION);
	json_count(j, "abi", ABI_VERSION);
	json_count(j, "wire", WIRE_VERSION);
	json_string(j, "cluster", s->cluster);
	json_string(j, "security", s->security);
	json_flag(j, "unsecured", s->unsecured);
	json_hex(j, "incarnation", s->incarnation);
	json_number(j, "pid", s->pid);
	json_count(j, "time_ms", s->unix_ms);
	json_count(j, "age_ms", snapshot_age_ns(s, now_ns) / 1000000);
	json_count(j, "uptime_ms", s->uptime_ms);
	json_number(j, "control_core", s->control_core);
	/* what the engine runs with, by section.key */
	json_raw(j, "settings", settings ? settings : "{}");
	free(settings);
}

int report_make(const struct snapshot *s, uint64_t now_ns, char **ret_text, size_t *ret_bytes)
{
	struct json j;

	if (json_begin(&j) < 0)
		return -ENOMEM;
	json_open(&j, NULL, "{");
	report_engine(&j, s, now_ns);
	report_health(&j, s, now_ns);
	report_figures(&j, s, FIGURES_ENGINE, 0);
	report_figures(&j, s, FIGURES_RECENT, 0);
	report_short(&j, s);
	report_members(&j, s);
	report_strangers(&j, s);
	json_open(&j, "rails", "[");
	for (unsigned i = 0; i < s->rails; i++)
		report_rail(&j, s, i);
	json_close(&j, "]");
	json_open(&j, "poll_cores", "[");
	for (unsigned i = 0; i < s->poll_cores; i++)
		report_poll_core(&j, s, i);
	json_close(&j, "]");
	report_counters(&j, s->counter);
	report_directory(&j, s);
	report_disk(&j, &s->disk);
	report_drain(&j, &s->drain);
	report_groups(&j, s);
	report_all_calls(&j, s);
	json_close(&j, "}\n");
	return json_end(&j, ret_text, ret_bytes);
}
