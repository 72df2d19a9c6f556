/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Renders a snapshot for Prometheus: metrics.def, the counters of counter.def, histograms, and on
 * demand the names of PeerCache 0.8.4. Any thread.
 */
#include "engine/control/observe/metrics_text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/version.h"
#include "engine/control/base/control.h"
#include "engine/control/observe/health.h"
#include "engine/control/observe/snapshot.h"

/* Upper bounds of exported buckets: every second power of two, 4 us to 17 s; 12 and +Inf. */
#define EXPORT_POWER_FIRST 12u
#define EXPORT_POWER_LAST 34u

static const char *const call_names[STATISTICS_CALLS] = {"get", "set", "exists", "remove"};
static const char *const result_names[STATISTICS_RESULTS] = {
	"hit", "miss", "stale", "unreachable", "timeout", "no_space", "other"};

static const struct {
	const char *name, *help;
} counters[COUNTER_COUNT] = {
#define COUNTER(name, help) {#name, help},
#include "engine/abi/counter.def"
#undef COUNTER
};

/* Counters that rails count; the control plane counts the others, and those marked twice. */
enum { BY_CONTROL = 0, BY_RAIL = 1, BY_BOTH = 2, BY_NONE = 3 };
static const uint8_t counted_by[COUNTER_COUNT] = {
	[COUNTER_ops_taken] = BY_RAIL,
	[COUNTER_ops_invalid] = BY_BOTH,
	[COUNTER_pages_read] = BY_RAIL,
	[COUNTER_pages_stale] = BY_RAIL,
	[COUNTER_buckets_read] = BY_RAIL,
	[COUNTER_bytes_read] = BY_RAIL,
	[COUNTER_reads_failed] = BY_RAIL,
	[COUNTER_reads_timed_out] = BY_RAIL,
	[COUNTER_wqes_posted] = BY_RAIL,
	[COUNTER_doorbells] = BY_RAIL,
	[COUNTER_cqes_reaped] = BY_RAIL,
	[COUNTER_cqes_error] = BY_RAIL,
	[COUNTER_qps_broken] = BY_RAIL,
	[COUNTER_rings_broken] = BY_BOTH,
	[COUNTER_steps_idle] = BY_RAIL,
	[COUNTER_sleeps] = BY_RAIL,
	[COUNTER_leases_expired] = BY_RAIL,
	[COUNTER_poll_gaps_long] = BY_NONE,    /* poll_core_gaps_over_10us_total */
	[COUNTER_poll_gap_worst_ns] = BY_NONE, /* poll_core_gap_worst_seconds */
};

static double seconds(uint64_t value, double per_second)
{
	return (double)value / per_second;
}

static void head(FILE *f, const char *type, const char *name, const char *help)
{
	fprintf(f, "# HELP peercache_%s %s\n# TYPE peercache_%s %s\n", name, help, name, type);
}

/* Whole numbers stay whole: a float of 17 digits is one. */
static void value(FILE *f, double number)
{
	fprintf(f, " %.17g\n", number);
}

static void scalars(FILE *f, const struct snapshot *s)
{
#define SCALAR(type, name, help, amount)                                                           \
	head(f, #type, #name, help);                                                               \
	fprintf(f, "peercache_" #name);                                                            \
	value(f, amount);
#define RAIL(type, name, help, amount)
#define CORE(type, name, help, amount)
#include "engine/control/observe/metrics.def"
#undef SCALAR
#undef RAIL
#undef CORE
}

static void rails(FILE *f, const struct snapshot *s)
{
#define SCALAR(type, name, help, amount)
#define RAIL(type, name, help, amount)                                                             \
	head(f, #type, #name, help);                                                               \
	for (unsigned i = 0; i < s->rails; i++) {                                                  \
		const struct snapshot_rail *r = &s->rail[i];                                       \
                                                                                                   \
		fprintf(f, "peercache_" #name "{rail=\"%u\"}", i);                                 \
		value(f, amount);                                                                  \
	}
#define CORE(type, name, help, amount)
#include "engine/control/observe/metrics.def"
#undef SCALAR
#undef RAIL
#undef CORE
}

static void cores(FILE *f, const struct snapshot *s)
{
#define SCALAR(type, name, help, amount)
#define RAIL(type, name, help, amount)
#define CORE(type, name, help, amount)                                                             \
	head(f, #type, #name, help);                                                               \
	for (unsigned i = 0; i < s->poll_cores; i++) {                                             \
		const struct poll_core_report *c = &s->poll_core[i].report;                        \
                                                                                                   \
		fprintf(f, "peercache_" #name "{core=\"%u\"}", s->poll_core[i].number);            \
		value(f, amount);                                                                  \
	}
#include "engine/control/observe/metrics.def"
#undef SCALAR
#undef RAIL
#undef CORE
}

static void engine_counters(FILE *f, const struct snapshot *s)
{
	char name[64];

	for (unsigned i = 0; i < COUNTER_COUNT; i++) {
		if (counted_by[i] == BY_RAIL || counted_by[i] == BY_NONE)
			continue;
		snprintf(name, sizeof(name), "%s_total", counters[i].name);
		head(f, "counter", name, counters[i].help);
		fprintf(f, "peercache_%s %" PRIu64 "\n", name, s->counter[i]);
	}
	for (unsigned i = 0; i < COUNTER_COUNT; i++) {
		if (counted_by[i] != BY_RAIL && counted_by[i] != BY_BOTH)
			continue;
		snprintf(name, sizeof(name), "rail_%s_total", counters[i].name);
		head(f, "counter", name, counters[i].help);
		for (unsigned r = 0; r < s->rails; r++)
			fprintf(f, "peercache_%s{rail=\"%u\"} %" PRIu64 "\n", name, r,
				s->rail[r].counter[i]);
	}
}

/* ---- states ---------------------------------------------------------------------------------- */

static void states(FILE *f, const struct snapshot *s)
{
	static const char *const rail_states[] = {"up", "slow", "down", "lost"};

	head(f, "gauge", "build_info", "1; the label is the version of the program.");
	fprintf(f, "peercache_build_info{version=\"%s\"} 1\n", PEERCACHE_VERSION);
	head(f, "gauge", "cluster_members", "Members that this engine knows, itself included.");
	for (unsigned state = 0; state < SNAPSHOT_MEMBER_STATES; state++)
		fprintf(f, "peercache_cluster_members{state=\"%s\"} %u\n",
			snapshot_state_name(state), snapshot_members(s, state));
	head(f, "gauge", "rail_state", "1 for the state the rail is in.");
	for (unsigned r = 0; r < s->rails; r++)
		for (unsigned state = 0; state < 4; state++)
			fprintf(f, "peercache_rail_state{rail=\"%u\",state=\"%s\"} %u\n", r,
				rail_states[state], !strcmp(s->rail[r].state, rail_states[state]));
}

static void findings(FILE *f, const struct health *health)
{
	head(f, "gauge", "findings",
		"Findings of peercachectl health at this moment, by their kind.");
	for (unsigned id = 0; id < FINDING_COUNT; id++) {
		unsigned count = 0;

		for (unsigned i = 0; i < health->count; i++)
			count += health->finding[i].id == id;
		fprintf(f, "peercache_findings{kind=\"%s\"} %u\n", finding_name(id), count);
	}
}

/* ---- histograms ------------------------------------------------------------------------------ */

/* The buckets of one series; `labels` is empty or ends in a comma. */
static void histogram(
	FILE *f, const char *name, const char *labels, const uint64_t *latency, uint64_t ns_sum)
{
	uint64_t below = 0;
	unsigned at = 0;

	for (unsigned power = EXPORT_POWER_FIRST; power <= EXPORT_POWER_LAST; power += 2) {
		for (; latency_lower_ns(at) < 1ull << power; at++)
			below += latency[at];
		fprintf(f, "peercache_%s_bucket{%sle=\"%.9g\"} %" PRIu64 "\n", name, labels,
			(double)(1ull << power) / 1e9, below);
	}
	fprintf(f, "peercache_%s_bucket{%sle=\"+Inf\"} %" PRIu64 "\n", name, labels,
		latency_count(latency));
	if (labels[0]) {
		int bytes = (int)strlen(labels) - 1;

		fprintf(f, "peercache_%s_sum{%.*s} %.9f\n", name, bytes, labels,
			seconds(ns_sum, 1e9));
		fprintf(f, "peercache_%s_count{%.*s} %" PRIu64 "\n", name, bytes, labels,
			latency_count(latency));
	} else {
		fprintf(f, "peercache_%s_sum %.9f\npeercache_%s_count %" PRIu64 "\n", name,
			seconds(ns_sum, 1e9), name, latency_count(latency));
	}
}

static void calls(FILE *f, const struct snapshot *s)
{
	char labels[64];

	head(f, "counter", "call_pages_total",
		"Pages of the calls of all clients, by their result.");
	for (unsigned call = 0; call < STATISTICS_CALLS; call++)
		for (unsigned r = 0; r < STATISTICS_RESULTS; r++)
			fprintf(f,
				"peercache_call_pages_total{op=\"%s\",result=\"%s\"} %" PRIu64 "\n",
				call_names[call], result_names[r],
				s->clients.calls[call].result[r]);
	head(f, "histogram", "call_seconds", "Time of a batch, from the call to its last page.");
	for (unsigned call = 0; call < STATISTICS_CALLS; call++) {
		const struct statistics_calls *c = &s->clients.calls[call];

		snprintf(labels, sizeof(labels), "op=\"%s\",", call_names[call]);
		histogram(f, "call_seconds", labels, c->latency, c->latency_ns_sum);
	}
}

static void latencies(FILE *f, const struct snapshot *s)
{
	char labels[64];

	head(f, "histogram", "rail_read_seconds",
		"Time of sampled READs, from the doorbell to the completion.");
	for (unsigned r = 0; r < s->rails; r++) {
		snprintf(labels, sizeof(labels), "rail=\"%u\",", r);
		histogram(f, "rail_read_seconds", labels, s->rail[r].latency,
			s->rail[r].latency_ns_sum);
	}
	head(f, "histogram", "loop_lag_seconds", "Delay of a timer of the control plane.");
	histogram(f, "loop_lag_seconds", "", s->lag, s->lag_ns_sum);
}

/* ---- PeerCache 0.8.4 ------------------------------------------------------------------------- */

/* A label value: backslash, quote and line feed are escaped. */
static void label_escape(const char *text, char *ret, size_t bytes)
{
	size_t n = 0;

	for (; *text && n + 3 < bytes; text++) {
		if (*text == '\\' || *text == '"' || *text == '\n')
			ret[n++] = '\\';
		ret[n++] = *text == '\n' ? 'n' : *text;
	}
	ret[n] = '\0';
}

static void compat_latency(
	FILE *f, const char *node, const char *op, const struct statistics_calls *c)
{
	static const unsigned permille[] = {500, 900, 990};
	uint64_t count = latency_count(c->latency);

	for (unsigned i = 0; i < 3; i++)
		fprintf(f,
			"peercache_op_latency_seconds{node=\"%s\",op=\"%s\",quantile=\"%g\"} %.6f\n",
			node, op, permille[i] / 1e3,
			seconds(latency_quantile_ns(c->latency, permille[i]), 1e9));
	fprintf(f, "peercache_op_latency_seconds_sum{node=\"%s\",op=\"%s\"} %.6f\n", node, op,
		seconds(c->latency_ns_sum, 1e9));
	fprintf(f, "peercache_op_latency_seconds_count{node=\"%s\",op=\"%s\"} %" PRIu64 "\n", node,
		op, count);
}

static uint64_t rails_sum(const struct snapshot *s, enum counter which)
{
	uint64_t sum = 0;

	for (unsigned r = 0; r < s->rails; r++)
		sum += s->rail[r].counter[which];
	return sum;
}

static void compat_row(FILE *f, const char *node, const char *type, const char *name, double number)
{
	fprintf(f, "# HELP peercache_%s As in PeerCache 0.8.4.\n# TYPE peercache_%s %s\n", name,
		name, type);
	fprintf(f, "peercache_%s{node=\"%s\"}", name, node);
	value(f, number);
}

/* What this engine has no counterpart of is 0: an old alert stays silent instead of missing. */
static void compat_rows(FILE *f, const struct snapshot *s, const char *node)
{
	const struct statistics_calls *get = &s->clients.calls[STATISTICS_GET];
	const struct statistics_calls *set = &s->clients.calls[STATISTICS_SET];
	const struct statistics_calls *exists = &s->clients.calls[STATISTICS_EXISTS];
	double hits = (double)get->result[STATISTICS_HIT], pool = 0, used = 0, up = 0;

	for (unsigned r = 0; r < s->rails; r++) {
		pool += (double)s->rail[r].pool_bytes;
		used += (double)s->rail[r].pool_used_bytes;
	}
	up = snapshot_members(s, SNAPSHOT_UP) + snapshot_members(s, SNAPSHOT_SUSPECT);
#define ROW(type, name, number) compat_row(f, node, #type, #name, number);
#include "engine/control/observe/metrics_compat.def"
#undef ROW
	head(f, "gauge", "op_latency_seconds_avg", "As in PeerCache 0.8.4.");
	fprintf(f, "peercache_op_latency_seconds_avg{node=\"%s\",op=\"read\"} %.6f\n", node,
		get->batches ? seconds(get->latency_ns_sum / get->batches, 1e9) : 0);
	fprintf(f, "peercache_op_latency_seconds_avg{node=\"%s\",op=\"write\"} %.6f\n", node,
		set->batches ? seconds(set->latency_ns_sum / set->batches, 1e9) : 0);
	head(f, "summary", "op_latency_seconds", "As in PeerCache 0.8.4, but of whole batches.");
	compat_latency(f, node, "read", get);
	compat_latency(f, node, "write", set);
}

static void compat_names(FILE *f, const struct snapshot *s)
{
	char node[2 * NAME_BYTES_MAX + 2];

	label_escape(s->name, node, sizeof(node));
	compat_rows(f, s, node);
}

int metrics_text(const struct snapshot *s, const struct health *health, bool compat,
	char **ret_text, size_t *ret_bytes)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *f = open_memstream(&text, &bytes);
	bool failed;

	if (!f)
		return -ENOMEM;
	states(f, s);
	findings(f, health);
	scalars(f, s);
	rails(f, s);
	cores(f, s);
	engine_counters(f, s);
	calls(f, s);
	latencies(f, s);
	if (compat)
		compat_names(f, s);
	failed = ferror(f) != 0;
	if (fclose(f) || failed) {
		free(text);
		return -ENOMEM;
	}
	*ret_text = text;
	*ret_bytes = bytes;
	return 0;
}
