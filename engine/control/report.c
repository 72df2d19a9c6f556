/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the engine's state as JSON into a buffer that grows. 64-bit identifiers (incarnations) are
 * hexadecimal strings, because JSON readers round large numbers. Control plane's thread only.
 */
#include "engine/control/report.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/version.h"
#include "engine/abi/wire.h"
#include "engine/control/attach.h"
#include "engine/control/connect.h"
#include "engine/control/loop.h"
#include "engine/control/publish.h"
#include "numa/clock.h"

struct json {
	char *text;
	size_t bytes, room;
	bool failed; /* an allocation failed: the remaining output is discarded */
	bool comma;  /* the next member of the current object or array needs a comma before it */
};

static const char *const counter_names[COUNTER_COUNT] = {
#define COUNTER(name, help) #name,
#include "engine/abi/counter.def"
#undef COUNTER
};

/* ---- writing --------------------------------------------------------------------------------- */

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

static void report_counters(struct json *j, const uint64_t *counter)
{
	json_open(j, "counters", "{");
	for (unsigned i = 0; i < COUNTER_COUNT; i++)
		json_count(j, counter_names[i], counter[i]);
	json_close(j, "}");
}

static void report_members(struct json *j, const struct control *control)
{
	const struct map_view *map = member_map(control);

	json_open(j, "members", "[");
	for (uint32_t i = 0; i < map->members; i++) {
		const struct map_member *m = &map->member[i];
		const struct member_record *r = member_by_ref(control, m->ref);

		json_open(j, NULL, "{");
		json_string(j, "name", m->name);
		json_hex(j, "incarnation", m->incarnation);
		json_string(j, "address", r ? r->address : "");
		json_count(j, "port", r ? r->port : 0);
		json_count(j, "rails", m->rails);
		json_flag(j, "self", m->self != 0);
		json_close(j, "}");
	}
	json_close(j, "]");
	json_count(j, "map_epoch", shm_load(&control->status->map.epoch));
}

static void report_rails(struct json *j, const struct control *control)
{
	json_open(j, "rails", "[");
	for (unsigned i = 0; i < control->rails; i++) {
		const struct control_rail *rail = &control->rail[i];
		const struct plan_rail *plan = &control->plan.rail[i];
		uint64_t counter[COUNTER_COUNT];
		struct dv_attributes nic;
		uint64_t registered = 0;
		unsigned peers_out;

		for (unsigned region = 0; region < REGIONS_EXPORTED; region++)
			registered += rail->exported[region].length;
		dv_attributes(rail->device, &nic);
		rail_counters(rail->rail, counter);
		json_open(j, NULL, "{");
		json_string(j, "device", plan->device);
		json_count(j, "poll_core", plan->poll_core);
		json_number(j, "core", plan->core);
		json_number(j, "node", plan->numa_node);
		json_flag(j, "busy", plan->busy);
		json_count(j, "gbps", nic.bits_per_second / 1000000000);
		json_flag(j, "modelled", nic.modelled);
		json_count(j, "pool_bytes", control->status->pool_bytes[i]);
		json_count(j, "registered_bytes", registered);
		json_count(j, "pages", pool_pages(rail->pool));
		json_count(j, "limbo", pool_limbo(rail->pool));
		json_count(j, "in_flight", rail_in_flight(rail->rail));
		json_string(j, "state", connect_rail_state(control, i, &peers_out));
		json_count(j, "peers_out", peers_out);
		report_counters(j, counter);
		json_close(j, "}");
	}
	json_close(j, "]");
}

static void report_poll_core(struct json *j, const struct control *control, unsigned number)
{
	const struct plan *plan = &control->plan;
	struct poll_core_report r;
	unsigned rails = 0;

	poll_core_report(control->poll_core[number], &r);
	json_open(j, NULL, "{");
	for (unsigned i = 0; i < plan->rails; i++)
		rails += plan->rail[i].poll_core == number;
	json_count(j, "rails", rails);
	json_count(j, "age_ns", r.age_ns);
	json_count(j, "busy_ns", r.busy_ns);
	json_count(j, "spin_ns", r.spin_ns);
	json_count(j, "nic_ns", r.nic_ns);
	json_count(j, "gaps_over_10us", r.gaps_long);
	json_count(j, "gap_worst_ns", r.gap_worst_ns);
	/*
	 * Writes the histogram of gaps between turns: the name of each member is the shortest gap
	 * of a bucket in ns, its value the number of gaps
	 */
	json_open(j, "gaps_from_ns", "{");
	for (unsigned i = 0; i < GAP_BUCKETS; i++) {
		char from[24];

		snprintf(from, sizeof(from), "%" PRIu64, gap_bucket_ns(i));
		json_count(j, from, r.gaps[i]);
	}
	json_close(j, "}");
	json_close(j, "}");
}

static void report_poll_cores(struct json *j, const struct control *control)
{
	json_open(j, "poll_cores", "[");
	for (unsigned p = 0; p < control->plan.poll_cores; p++)
		if (control->poll_core[p])
			report_poll_core(j, control, p);
	json_close(j, "]");
}

static void report_shard(struct json *j, const struct control *control)
{
	json_open(j, "shard", "{");
	json_count(j, "entries", control->shard.entries);
	json_count(j, "capacity", (uint64_t)BUCKET_ENTRIES << control->shard.bits);
	json_count(j, "dropped", control->shard.dropped);
	json_close(j, "}");
}

static void report_connections(struct json *j, const struct control *control)
{
	struct connect_counts counts;

	connect_counts(control, &counts);
	json_open(j, "connections", "{");
	json_count(j, "asked", counts.asked);
	json_count(j, "live", counts.live);
	json_count(j, "served", counts.served);
	json_count(j, "qps", counts.qps);
	json_close(j, "}");
}

static void report_clients(struct json *j, const struct control *control)
{
	struct attach_counts attached;
	struct publish_counts published;

	attach_counts(control, &attached);
	publish_counts(control, &published);
	json_open(j, "clients", "{");
	json_count(j, "sessions", attached.sessions);
	json_count(j, "channels", attached.channels);
	json_count(j, "regions", attached.regions);
	json_count(j, "extents", attached.extents);
	json_count(j, "credits", published.credits);
	json_count(j, "waiting", published.waiting);
	json_count(j, "answers", published.answers);
	json_close(j, "}");
}

int report_make(const struct control *control, char **ret_text, size_t *ret_bytes)
{
	struct json j = {.comma = false};
	uint64_t up_ns = clock_now_ns() - loop_of(control)->started_ns;

	json_open(&j, NULL, "{");
	json_string(&j, "name", control->name);
	json_string(&j, "version", PEERCACHE_VERSION);
	json_count(&j, "abi", ABI_VERSION);
	json_count(&j, "wire", WIRE_VERSION);
	json_string(&j, "cluster", control->settings->cluster_id);
	json_hex(&j, "incarnation", control->incarnation);
	json_number(&j, "pid", getpid());
	json_count(&j, "uptime_ms", up_ns / 1000000);
	json_flag(&j, "stopping", control->stopping);
	json_number(&j, "control_core", control->plan.control_core);
	report_members(&j, control);
	report_rails(&j, control);
	report_poll_cores(&j, control);
	report_counters(&j, control->counter);
	report_shard(&j, control);
	json_count(&j, "keys", index_count(control->index));
	report_connections(&j, control);
	report_clients(&j, control);
	json_close(&j, "}");
	json_text(&j, "\n");
	if (j.failed) {
		free(j.text);
		return -ENOMEM;
	}
	*ret_text = j.text;
	*ret_bytes = j.bytes;
	return 0;
}
