/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot as JSON, in a buffer that grows. 64-bit identifiers (incarnations) are hexadecimal
 * strings, because JSON readers round large numbers. Any thread. Without memory there is no report.
 */
#include "engine/control/observe/report_inner.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/settings.h"
#include "config/version.h"
#include "engine/abi/segment.h"
#include "engine/abi/wire.h"
#include "engine/control/observe/health_inner.h"
#include "engine/control/observe/snapshot_inner.h"

/* ---- the buffer ------------------------------------------------------------------------------ */

struct json {
	char *text;
	size_t bytes, room;
	bool failed; /* an allocation failed: the remaining output is discarded */
	bool comma;  /* the next member of the current object or array needs a comma before it */
};

static void json_bytes(struct json *j, const char *text, size_t bytes)
{
	if (j->failed)
		return;
	if (j->bytes + bytes + 1 > j->room) {
		size_t room = (j->bytes + bytes + 1) * 2 + 1024;
		char *bigger = realloc(j->text, room);

		if (!bigger) {
			j->failed = true;
			return;
		}
		j->text = bigger;
		j->room = room;
	}
	memcpy(j->text + j->bytes, text, bytes);
	j->bytes += bytes;
	j->text[j->bytes] = '\0';
}

static void json_text(struct json *j, const char *text)
{
	json_bytes(j, text, strlen(text));
}

static void json_quoted(struct json *j, const char *text)
{
	json_text(j, "\"");
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;
		char escaped[8];

		if (c == '"' || c == '\\')
			snprintf(escaped, sizeof(escaped), "\\%c", c);
		/* escaped, because names from the network may not be UTF-8 */
		else if (c < 0x20 || c >= 0x7f)
			snprintf(escaped, sizeof(escaped), "\\u%04x", c);
		else
			snprintf(escaped, sizeof(escaped), "%c", c);
		json_text(j, escaped);
	}
	json_text(j, "\"");
}

static void json_name(struct json *j, const char *name)
{
	if (j->comma)
		json_text(j, ",");
	j->comma = true;
	if (name) {
		json_quoted(j, name);
		json_text(j, ":");
	}
}

static void json_open(struct json *j, const char *name, const char *bracket)
{
	json_name(j, name);
	json_text(j, bracket);
	j->comma = false;
}

static void json_close(struct json *j, const char *bracket)
{
	json_text(j, bracket);
	j->comma = true;
}

static void json_string(struct json *j, const char *name, const char *value)
{
	json_name(j, name);
	json_quoted(j, value);
}

static void json_number(struct json *j, const char *name, int64_t value)
{
	char text[24];

	json_name(j, name);
	snprintf(text, sizeof(text), "%" PRId64, value);
	json_text(j, text);
}

static void json_count(struct json *j, const char *name, uint64_t value)
{
	char text[24];

	json_name(j, name);
	snprintf(text, sizeof(text), "%" PRIu64, value);
	json_text(j, text);
}

static void json_hex(struct json *j, const char *name, uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%016" PRIx64, value);
	json_string(j, name, text);
}

static void json_flag(struct json *j, const char *name, bool value)
{
	json_name(j, name);
	json_text(j, value ? "true" : "false");
}

/* ---- the parts ------------------------------------------------------------------------------- */

static const char *const counter_names[COUNTER_COUNT] = {
#define COUNTER(name, help) #name,
#include "engine/abi/counter.def"
#undef COUNTER
};

static const char *const statistics_call_names[STATISTICS_CALLS] = {
	"get", "set", "exists", "remove"};
static const char *const statistics_result_names[STATISTICS_RESULTS] = {
	"hit", "miss", "stale", "unreachable", "timeout", "no_space", "other"};

static void report_counters(struct json *j, const uint64_t *counter)
{
	json_open(j, "counters", "{");
	for (unsigned i = 0; i < COUNTER_COUNT; i++)
		json_count(j, counter_names[i], counter[i]);
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
		json_string(j, "state", m->state);
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
	json_count(j, "map_epoch", s->map_epoch);
}

/* Seeds that lead to no member, and engines that are refused. */
static void report_strangers(struct json *j, const struct snapshot *s)
{
	json_open(j, "seeds", "{");
	json_count(j, "others", s->seeds.others);
	json_count(j, "silent", s->seeds.silent);
	json_flag(j, "unmet", s->seeds.unmet);
	json_count(j, "unmet_ms", s->seeds.unmet_ms);
	json_open(j, "named", "[");
	for (unsigned i = 0; i < s->seeds.named; i++) {
		json_open(j, NULL, "{");
		json_string(j, "address", s->seeds.seed[i].address);
		json_string(j, "why", s->seeds.seed[i].why);
		json_count(j, "for_ms", s->seeds.seed[i].ms);
		json_close(j, "}");
	}
	json_close(j, "]");
	json_close(j, "}");
	json_count(j, "engines_refused", s->refusals.engines);
	json_open(j, "refused", "[");
	for (unsigned i = 0; i < s->refusals.named; i++) {
		json_open(j, NULL, "{");
		json_string(j, "address", s->refusals.engine[i].from);
		json_string(j, "why", s->refusals.engine[i].text);
		json_flag(j, "theirs", s->refusals.engine[i].theirs);
		json_count(j, "for_ms", s->refusals.engine[i].ms);
		json_close(j, "}");
	}
	json_close(j, "]");
}

static void report_rail(struct json *j, const struct snapshot_rail *r)
{
	json_open(j, NULL, "{");
	json_string(j, "device", r->device);
	json_count(j, "poll_core", r->poll_core);
	json_number(j, "core", r->core);
	json_number(j, "node", r->node);
	json_flag(j, "busy", r->busy);
	json_flag(j, "isolated", r->isolated);
	json_count(j, "gbps", r->gbps);
	json_flag(j, "modelled", r->modelled);
	json_count(j, "pool_bytes", r->pool_bytes);
	json_count(j, "pool_used_bytes", r->pool_used_bytes);
	json_count(j, "registered_bytes", r->registered_bytes);
	json_count(j, "pages", r->pages);
	json_count(j, "limbo", r->limbo);
	json_count(j, "in_flight", r->in_flight);
	json_string(j, "state", r->state);
	json_count(j, "peers_out", r->peers_out);
	json_open(j, "read_latency", "{");
	report_latency(j, r->latency);
	json_close(j, "}");
	report_counters(j, r->counter);
	json_close(j, "}");
}

static void report_poll_core(struct json *j, const struct snapshot_poll_core *core)
{
	const struct poll_core_report *r = &core->report;

	json_open(j, NULL, "{");
	json_count(j, "rails", core->rails);
	json_count(j, "age_ns", r->age_ns);
	json_count(j, "busy_ns", r->busy_ns);
	json_count(j, "spin_ns", r->spin_ns);
	json_count(j, "nic_ns", r->nic_ns);
	json_count(j, "gaps_over_10us", r->gaps_long);
	json_count(j, "gap_worst_ns", r->gap_worst_ns);
	json_open(j, "gaps_from_ns", "{"); /* the lower bound of each bucket: its count */
	for (unsigned i = 0; i < GAP_BUCKETS; i++) {
		char from[24];

		snprintf(from, sizeof(from), "%" PRIu64, gap_bucket_ns(i));
		json_count(j, from, r->gaps[i]);
	}
	json_close(j, "}}");
}

static void report_directory(struct json *j, const struct snapshot *s)
{
	json_open(j, "shard", "{");
	json_count(j, "entries", s->shard_entries);
	json_count(j, "capacity", s->shard_capacity);
	json_count(j, "dropped", s->shard_dropped);
	json_close(j, "}");
	json_open(j, "directory", "{");
	json_flag(j, "moving", s->directory_moving);
	json_count(j, "owners_behind", s->directory_behind);
	json_count(j, "owners_suspect", s->directory_suspect);
	json_count(j, "sets_partial", s->sets_partial);
	json_string(j, "walk", s->walk ? s->walk : "");
	json_count(j, "walk_position", s->walk_position);
	json_count(j, "walk_end", s->walk_end);
	json_count(j, "sweep_left", s->sweep_left);
	json_close(j, "}");
	json_count(j, "keys", s->keys);
}

static void report_path(struct json *j, const struct snapshot_disk_path *path)
{
	json_open(j, NULL, "{");
	json_string(j, "directory", path->directory);
	json_string(j, "state", path->state);
	json_string(j, "reason", path->reason);
	json_count(j, "bytes", path->bytes);
	json_count(j, "used_bytes", path->used_bytes);
	json_count(j, "queued_bytes", path->queued_bytes);
	json_count(j, "in_flight", path->flying);
	json_count(j, "pages_written", path->pages_written);
	json_count(j, "bytes_written", path->bytes_written);
	json_count(j, "pages_read", path->pages_read);
	json_count(j, "bytes_read", path->bytes_read);
	json_count(j, "pages_recovered", path->pages_recovered);
	json_count(j, "read_errors", path->read_errors);
	json_count(j, "crc_errors", path->crc_errors);
	json_count(j, "io_errors", path->io_errors);
	json_flag(j, "cleared", path->cleared);
	json_close(j, "}");
}

static void report_disk(struct json *j, const struct snapshot_disk *disk)
{
	json_open(j, "disk", "{");
	json_count(j, "pages", disk->pages);
	json_count(j, "index_bytes", disk->index_bytes);
	json_count(j, "bytes", disk->bytes);
	json_count(j, "used_bytes", disk->used_bytes);
	json_count(j, "bytes_written", disk->bytes_written);
	json_count(j, "bytes_read", disk->bytes_read);
	json_count(j, "errors", disk->errors);
	json_count(j, "paths_out", disk->paths_out);
	json_count(j, "spills", disk->spills);
	json_count(j, "spill_bytes", disk->spill_bytes);
	json_count(j, "promotes", disk->promotes);
	json_count(j, "promotes_waiting", disk->waiting);
	json_count(j, "pins", disk->pins);
	json_count(j, "pinned_bytes", disk->pinned_bytes);
	json_open(j, "paths", "[");
	for (unsigned i = 0; i < disk->paths; i++)
		report_path(j, &disk->path[i]);
	json_close(j, "]}");
}

static void report_connections(struct json *j, const struct snapshot *s)
{
	json_open(j, "connections", "{");
	json_count(j, "asked", s->connections.asked);
	json_count(j, "live", s->connections.live);
	json_count(j, "served", s->connections.served);
	json_count(j, "qps", s->connections.qps);
	json_close(j, "}");
}

static void report_calls(struct json *j, const char *name, const struct statistics_calls *c)
{
	json_open(j, name, "{");
	json_count(j, "batches", c->batches);
	json_count(j, "pages", c->pages);
	for (unsigned r = 0; r < STATISTICS_RESULTS; r++)
		json_count(j, statistics_result_names[r], c->result[r]);
	report_latency(j, c->latency);
	json_close(j, "}");
}

static void report_clients(struct json *j, const struct snapshot *s)
{
	const struct statistics_words *w = &s->clients;

	json_open(j, "clients", "{");
	json_count(j, "sessions", s->sessions);
	json_count(j, "channels", s->channels);
	json_count(j, "regions", s->regions);
	json_count(j, "extents", s->extents);
	json_count(j, "credits", s->credits);
	json_count(j, "reserved", s->warm.reserved);
	json_count(j, "waiting", s->waiting);
	json_count(j, "answers", s->answers);
	json_count(j, "statistics_refused", s->statistics_refused);
	json_close(j, "}");
	json_open(j, "calls", "{");
	for (unsigned call = 0; call < STATISTICS_CALLS; call++)
		report_calls(j, statistics_call_names[call], &w->calls[call]);
	json_count(j, "get_local", w->get_local);
	json_count(j, "get_remote", w->get_remote);
	json_count(j, "get_bytes", w->get_bytes);
	json_count(j, "get_staged_bytes", w->get_staged);
	json_count(j, "set_bytes", w->set_bytes);
	json_count(j, "set_present", w->set_present);
	json_count(j, "reissued", w->reissued);
	json_count(j, "lookups", w->lookups);
	json_count(j, "lookups_cached", w->lookups_cached);
	json_close(j, "}");
}

static void report_loop(struct json *j, const struct snapshot *s)
{
	json_open(j, "loop_lag", "{");
	report_latency(j, s->lag);
	json_count(j, "worst_ns", s->lag_worst_ns);
	json_close(j, "}");
}

/* As in /api/status, and what each kind of finding means. */
static void report_health(struct json *j, const struct health *health)
{
	json_open(j, "health", "{");
	json_string(j, "worst", health->count ? severity_name(health_worst(health)) : "ok");
	json_open(j, "findings", "[");
	for (unsigned i = 0; i < health->count; i++) {
		json_open(j, NULL, "{");
		json_string(j, "id", finding_name(health->finding[i].id));
		json_string(j, "severity", severity_name(health->finding[i].severity));
		json_string(j, "text", health->finding[i].text);
		json_string(j, "means", finding_help(health->finding[i].id));
		json_close(j, "}");
	}
	json_close(j, "]}");
}

static void report_buckets(struct json *j, const char *name, const uint64_t *latency)
{
	json_open(j, name, "[");
	for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
		json_count(j, NULL, latency[i]);
	json_close(j, "]");
}

/* As in /api/status. */
static void report_histograms(struct json *j, const struct snapshot *s)
{
	json_open(j, "latency", "{");
	json_open(j, "lower_ns", "[");
	for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
		json_count(j, NULL, latency_lower_ns(i));
	json_close(j, "]");
	report_buckets(j, "get", s->clients.calls[STATISTICS_GET].latency);
	report_buckets(j, "set", s->clients.calls[STATISTICS_SET].latency);
	report_buckets(j, "exists", s->clients.calls[STATISTICS_EXISTS].latency);
	report_buckets(j, "loop", s->lag);
	json_open(j, "rails", "[");
	for (unsigned r = 0; r < s->rails; r++)
		report_buckets(j, NULL, s->rail[r].latency);
	json_close(j, "]}");
}

/* ---- the whole report ------------------------------------------------------------------------ */

int report_make(
	const struct snapshot *s, const struct health *health, char **ret_text, size_t *ret_bytes)
{
	char *settings = s->settings ? settings_json(s->settings) : NULL;
	struct json j = {.comma = false};

	json_open(&j, NULL, "{");
	json_string(&j, "name", s->name);
	json_string(&j, "version", PEERCACHE_VERSION);
	json_count(&j, "abi", ABI_VERSION);
	json_count(&j, "wire", WIRE_VERSION);
	json_string(&j, "cluster", s->cluster);
	json_hex(&j, "incarnation", s->incarnation);
	json_number(&j, "pid", s->pid);
	json_number(&j, "life", s->warm.life);
	json_count(&j, "time_ms", s->unix_ms);
	json_count(&j, "uptime_ms", s->uptime_ms);
	json_flag(&j, "stopping", s->stopping);
	json_number(&j, "control_core", s->control_core);
	json_name(&j, "settings"); /* what the engine runs with, by section.key */
	json_text(&j, settings ? settings : "{}");
	free(settings);
	report_members(&j, s);
	report_strangers(&j, s);
	json_open(&j, "rails", "[");
	for (unsigned i = 0; i < s->rails; i++)
		report_rail(&j, &s->rail[i]);
	json_close(&j, "]");
	json_open(&j, "poll_cores", "[");
	for (unsigned i = 0; i < s->poll_cores; i++)
		report_poll_core(&j, &s->poll_core[i]);
	json_close(&j, "]");
	report_counters(&j, s->counter);
	report_directory(&j, s);
	report_disk(&j, &s->disk);
	report_connections(&j, s);
	report_clients(&j, s);
	report_loop(&j, s);
	if (health) {
		report_health(&j, health);
		report_histograms(&j, s);
	}
	json_close(&j, "}\n");
	if (j.failed) {
		free(j.text);
		return -ENOMEM;
	}
	*ret_text = j.text;
	*ret_bytes = j.bytes;
	return 0;
}
