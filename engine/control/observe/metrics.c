/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metrics thread and what it serves over HTTP. It takes the newest snapshot, keeps the history,
 * and answers requests; what it renders is kept until the next snapshot, so that many readers cost
 * one rendering. From the top: the text for Prometheus (figures.def, the counters of counter.def,
 * histograms, on demand the names of PeerCache 0.8.4), the other answers, the port, the thread.
 *
 * Rendering and answers are the metrics thread's, the text for Prometheus any thread's; opening and
 * closing are the control plane's. The port may be taken, and then the engine runs without metrics
 * unless it was configured. Without memory for an answer the client reads 503.
 */
#include "engine/control/observe/metrics_inner.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <inttypes.h>
#include <netdb.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/log.h"
#include "config/thread.h"
#include "config/version.h"
#include "engine/control/base/control.h"
#include "engine/control/dashboard.h"
#include "engine/control/net/address.h"
#include "engine/control/net/net.h"
#include "engine/control/observe/health_inner.h"
#include "engine/control/observe/history_inner.h"
#include "engine/control/observe/http_inner.h"
#include "engine/control/observe/http_token_inner.h"
#include "engine/control/observe/json_inner.h"
#include "engine/control/observe/observe.h"
#include "engine/control/observe/snapshot_inner.h"
#include "engine/control/observe/view_inner.h"
#include "numa/clock.h"

/* ---- Prometheus: figures --------------------------------------------------------------------- */

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

static void metric_head(FILE *f, const char *type, const char *name, const char *help)
{
	fprintf(f, "# HELP peercache_%s %s\n# TYPE peercache_%s %s\n", name, help, name, type);
}

static void metric_value(FILE *f, double number)
{
	fputc(' ', f);
	number_print(f, number);
	fputc('\n', f);
}

/* The figures of the engine, or with a label those of each rail or poll core. */
static void metrics_figures(
	FILE *f, const struct snapshot *s, enum figure_group group, const char *label)
{
	const struct figure_list *list = &figure_lists[group];
	bool rails = group == FIGURES_RAIL;
	unsigned parts = !label ? 1 : rails ? s->rails : s->poll_cores;

	for (unsigned n = 0; n < list->count; n++) {
		const struct figure *figure = &list->figure[n];
		double value[FIGURES_MAX];

		metric_head(f, figure->type, figure->name, figure->help);
		for (unsigned i = 0; i < parts; i++) {
			figures_values(s, group, i, value);
			fprintf(f, "peercache_%s", figure->name);
			if (label)
				fprintf(f, "{%s=\"%u\"}", label,
					rails ? i : s->poll_core[i].number);
			metric_value(f, value[n]);
		}
	}
}

static void metrics_counters(FILE *f, const struct snapshot *s)
{
	char name[64];

	for (unsigned i = 0; i < COUNTER_COUNT; i++) {
		if (counted_by[i] == BY_RAIL || counted_by[i] == BY_NONE)
			continue;
		snprintf(name, sizeof(name), "%s_total", figure_counters[i].name);
		metric_head(f, "counter", name, figure_counters[i].help);
		fprintf(f, "peercache_%s %" PRIu64 "\n", name, s->counter[i]);
	}
	for (unsigned i = 0; i < COUNTER_COUNT; i++) {
		if (counted_by[i] != BY_RAIL && counted_by[i] != BY_BOTH)
			continue;
		snprintf(name, sizeof(name), "rail_%s_total", figure_counters[i].name);
		metric_head(f, "counter", name, figure_counters[i].help);
		for (unsigned r = 0; r < s->rails; r++)
			fprintf(f, "peercache_%s{rail=\"%u\"} %" PRIu64 "\n", name, r,
				s->rail[r].counter[i]);
	}
}

/* ---- Prometheus: states ---------------------------------------------------------------------- */

static void metrics_states(FILE *f, const struct snapshot *s)
{
	static const char *const rail_states[] = {"up", "slow", "down", "lost"};

	metric_head(f, "gauge", "build_info", "1; the label is the version of the program.");
	fprintf(f, "peercache_build_info{version=\"%s\"} 1\n", PEERCACHE_VERSION);
	metric_head(
		f, "gauge", "cluster_members", "Members that this engine knows, itself included.");
	for (unsigned state = 0; state < SNAPSHOT_MEMBER_STATES; state++)
		fprintf(f, "peercache_cluster_members{state=\"%s\"} %u\n",
			snapshot_state_name(state), snapshot_members(s, state));
	metric_head(f, "gauge", "rail_state", "1 for the state the rail is in.");
	for (unsigned r = 0; r < s->rails; r++)
		for (unsigned state = 0; state < 4; state++)
			fprintf(f, "peercache_rail_state{rail=\"%u\",state=\"%s\"} %u\n", r,
				rail_states[state], !strcmp(s->rail[r].state, rail_states[state]));
}

static void metrics_groups(FILE *f, const struct snapshot *s)
{
	metric_head(f, "gauge", "group_bytes",
		"Page memory that a group of namespaces has here; 64 groups, those with a quota first.");
	for (unsigned i = 0; i < s->groups; i++)
		fprintf(f, "peercache_group_bytes{group=\"0x%06x\"} %" PRIu64 "\n",
			s->group[i].number, s->group[i].bytes);
	metric_head(f, "gauge", "group_quota_bytes", "What it may have.");
	for (unsigned i = 0; i < s->groups; i++)
		if (s->group[i].quota)
			fprintf(f, "peercache_group_quota_bytes{group=\"0x%06x\"} %" PRIu64 "\n",
				s->group[i].number, s->group[i].quota);
}

static void metrics_findings(FILE *f, const struct health *health)
{
	metric_head(f, "gauge", "findings",
		"Findings of peercachectl health at this moment, by their kind.");
	for (unsigned id = 0; id < FINDING_COUNT; id++) {
		unsigned count = 0;

		for (unsigned i = 0; i < health->count; i++)
			count += health->finding[i].id == id;
		fprintf(f, "peercache_findings{kind=\"%s\"} %u\n", finding_name(id), count);
	}
}

/* ---- Prometheus: histograms ------------------------------------------------------------------ */

/* Upper bounds of exported buckets: every second power of two, 4 us to 17 s; 12 and +Inf. */
#define EXPORT_POWER_FIRST 12u
#define EXPORT_POWER_LAST 34u

/* The buckets of one series; `label` is "" or NAME="VALUE". */
static void metrics_histogram(
	FILE *f, const char *name, const char *label, const uint64_t *latency, uint64_t ns_sum)
{
	const char *open = *label ? "{" : "", *close = *label ? "}" : "";
	uint64_t below = 0;
	unsigned at = 0;

	for (unsigned power = EXPORT_POWER_FIRST; power <= EXPORT_POWER_LAST; power += 2) {
		for (; latency_lower_ns(at) < 1ull << power; at++)
			below += latency[at];
		fprintf(f, "peercache_%s_bucket{%s%sle=\"%.9g\"} %" PRIu64 "\n", name, label,
			*label ? "," : "", (double)(1ull << power) / 1e9, below);
	}
	fprintf(f, "peercache_%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name, label,
		*label ? "," : "", latency_count(latency));
	fprintf(f, "peercache_%s_sum%s%s%s %.9f\n", name, open, label, close, seconds(ns_sum, 1e9));
	fprintf(f, "peercache_%s_count%s%s%s %" PRIu64 "\n", name, open, label, close,
		latency_count(latency));
}

static void metrics_calls(FILE *f, const struct snapshot *s)
{
	char label[64];

	metric_head(f, "counter", "call_pages_total",
		"Pages of the calls of all clients, by their result.");
	for (unsigned call = 0; call < STATISTICS_CALLS; call++)
		for (unsigned r = 0; r < STATISTICS_RESULTS; r++)
			fprintf(f,
				"peercache_call_pages_total{op=\"%s\",result=\"%s\"} %" PRIu64 "\n",
				figure_calls[call], figure_results[r],
				s->clients.calls[call].result[r]);
	metric_head(
		f, "histogram", "call_seconds", "Time of a batch, from the call to its last page.");
	for (unsigned call = 0; call < STATISTICS_CALLS; call++) {
		const struct statistics_calls *c = &s->clients.calls[call];

		snprintf(label, sizeof(label), "op=\"%s\"", figure_calls[call]);
		metrics_histogram(f, "call_seconds", label, c->latency, c->latency_ns_sum);
	}
}

static void metrics_latencies(FILE *f, const struct snapshot *s)
{
	char label[64];

	metric_head(f, "histogram", "rail_read_seconds",
		"Time of sampled READs, from the doorbell to the completion.");
	for (unsigned r = 0; r < s->rails; r++) {
		snprintf(label, sizeof(label), "rail=\"%u\"", r);
		metrics_histogram(f, "rail_read_seconds", label, s->rail[r].latency,
			s->rail[r].latency_ns_sum);
	}
	metric_head(f, "histogram", "loop_lag_seconds", "Delay of a timer of the control plane.");
	metrics_histogram(f, "loop_lag_seconds", "", s->lag, s->lag_ns_sum);
}

/* ---- Prometheus: names of PeerCache 0.8.4 ---------------------------------------------------- */

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

static uint64_t counter_of_rails(const struct snapshot *s, enum counter which)
{
	uint64_t sum = 0;

	for (unsigned r = 0; r < s->rails; r++)
		sum += s->rail[r].counter[which];
	return sum;
}

struct compat {
	const char *type, *name, *here;
	double number;
};

static void compat_row(FILE *f, const char *node, const struct compat *row)
{
	const char *name = row->name;

	fprintf(f, "# HELP peercache_%s As in PeerCache 0.8.4; %s%s.\n# TYPE peercache_%s %s\n",
		name, *row->here ? "here " : "always 0", row->here, name, row->type);
	fprintf(f, "peercache_%s{node=\"%s\"}", name, node);
	metric_value(f, row->number);
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
	up = snapshot_members(s, SNAPSHOT_UP) + snapshot_members(s, SNAPSHOT_SILENT);
#define ROW(type, name, here, number)                                                              \
	compat_row(f, node, &(struct compat){#type, #name, here, number});
#include "engine/control/observe/metrics_compat.def"
#undef ROW
	metric_head(f, "gauge", "op_latency_seconds_avg",
		"As in PeerCache 0.8.4, but of whole batches; here peercache_call_seconds.");
	fprintf(f, "peercache_op_latency_seconds_avg{node=\"%s\",op=\"read\"} %.6f\n", node,
		get->batches ? seconds(get->latency_ns_sum / get->batches, 1e9) : 0);
	fprintf(f, "peercache_op_latency_seconds_avg{node=\"%s\",op=\"write\"} %.6f\n", node,
		set->batches ? seconds(set->latency_ns_sum / set->batches, 1e9) : 0);
	metric_head(f, "summary", "op_latency_seconds",
		"As in PeerCache 0.8.4, but of whole batches; here peercache_call_seconds.");
	compat_latency(f, node, "read", get);
	compat_latency(f, node, "write", set);
}

static void compat_names(FILE *f, const struct snapshot *s)
{
	char node[2 * NAME_BYTES_MAX + 2];

	label_escape(s->name, node, sizeof(node));
	compat_rows(f, s, node);
}

/* ---- Prometheus: the whole text -------------------------------------------------------------- */

int metrics_text(const struct snapshot *s, const struct health *health, bool compat,
	char **ret_text, size_t *ret_bytes)
{
	struct json j;
	FILE *f;

	if (json_begin(&j) < 0)
		return -ENOMEM;
	f = j.f;
	metrics_states(f, s);
	metrics_groups(f, s);
	metrics_findings(f, health);
	metrics_figures(f, s, FIGURES_ENGINE, NULL);
	metrics_figures(f, s, FIGURES_RAIL, "rail");
	metrics_figures(f, s, FIGURES_CORE, "core");
	metrics_counters(f, s);
	metrics_calls(f, s);
	metrics_latencies(f, s);
	if (compat)
		compat_names(f, s);
	return json_end(&j, ret_text, ret_bytes);
}

/* ---- the state of the thread ----------------------------------------------------------------- */

#define METRICS_TURN_US 250000 /* between two looks for a new snapshot */
#define METRICS_DENIED_NS 60000000000ull
#define PAGE_HEADERS                                                                               \
	"Content-Security-Policy: " DASHBOARD_CSP                                                  \
	"\r\nReferrer-Policy: no-referrer\r\nX-Frame-Options: DENY\r\n"

enum { TEXT_METRICS, TEXT_STATUS, TEXT_HISTORY, TEXT_CLUSTER, TEXTS };

struct metrics {
	/* read-only once the thread runs */
	const struct settings *settings;
	struct snapshots *snapshots;
	uint64_t *watched_ns, *unauthorized; /* control.h */
	unsigned rails;
	int stop; /* eventfd: the thread ends */
	cpu_set_t cores;
	pthread_t thread;
	/* owner: the metrics thread */
	struct event_base *base;
	struct event *stops, *turn;
	struct http *http;
	struct http_token token;
	struct http_tls tls;
	uint64_t denied_ns; /* of the last line in the log about a request that was refused */
	const struct snapshot *now; /* NULL: none yet */
	uint64_t seen_ns;           /* of the snapshot that was looked at last */
	struct history history;
	struct evbuffer *text[TEXTS]; /* of `now`; NULL: not rendered */
};

/* ---- snapshots ------------------------------------------------------------------------------- */

/* Responses that are being sent keep what they have of it. */
static void metrics_text_drop(struct metrics *m, unsigned which)
{
	if (m->text[which])
		evbuffer_free(m->text[which]);
	m->text[which] = NULL;
}

static void metrics_texts_drop(struct metrics *m)
{
	for (unsigned i = 0; i < TEXTS; i++)
		metrics_text_drop(m, i);
}

static void metrics_refresh(struct metrics *m)
{
	const struct snapshot *s = snapshots_newest(m->snapshots);

	if (!s || s->taken_ns == m->seen_ns)
		return;
	m->now = s;
	m->seen_ns = s->taken_ns;
	metrics_texts_drop(m);
	history_add(&m->history, s);
}

/* ---- rendering ------------------------------------------------------------------------------- */

static int metrics_render(struct metrics *m, unsigned which, char **ret_text, size_t *ret_bytes)
{
	uint64_t now_ns = clock_now_ns();
	struct health health;

	switch (which) {
	case TEXT_METRICS:
		health_make(m->now, now_ns, &health);
		return metrics_text(
			m->now, &health, m->settings->metrics_compat == 1, ret_text, ret_bytes);
	case TEXT_HISTORY: return history_json(&m->history, m->rails, ret_text, ret_bytes);
	case TEXT_CLUSTER: return view_json(m->now, now_ns, ret_text, ret_bytes);
	default: return report_make(m->now, now_ns, ret_text, ret_bytes);
	}
}

static void rendered_free(const void *text, size_t bytes, void *context)
{
	(void)bytes;
	(void)context;
	free((void *)(uintptr_t)text);
}

/* Makes the text unless it is there. False: no memory. */
static bool metrics_text_make(struct metrics *m, unsigned which)
{
	size_t bytes;
	char *text;

	if (m->text[which])
		return true;
	if (metrics_render(m, which, &text, &bytes) < 0)
		return false;
	m->text[which] = evbuffer_new();
	if (m->text[which] &&
		evbuffer_add_reference(m->text[which], text, bytes, rendered_free, NULL) == 0)
		return true;
	free(text);
	metrics_text_drop(m, which);
	return false;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void answer_line(struct http_response *ret, unsigned status, const char *line)
{
	ret->status = status;
	ret->type = "text/plain; charset=utf-8";
	(void)evbuffer_add_printf(ret->body, "%s\n", line);
}

/* The body is what the path asks for; it is empty if there was no memory for it. */
static void answer_whole(struct http_response *ret, const char *type)
{
	ret->status = 200;
	ret->type = type;
	if (!evbuffer_get_length(ret->body))
		answer_line(ret, 503, "no memory for this answer");
}

static void answer_text(
	struct metrics *m, unsigned which, const char *type, struct http_response *ret)
{
	if (!m->now) {
		answer_line(ret, 503, "the engine is starting");
		return;
	}
	/* A blocked control plane publishes nothing: ages are of this moment. */
	if (which != TEXT_HISTORY && snapshot_age_ns(m->now, clock_now_ns()) > HEALTH_BLOCKED_NS)
		metrics_text_drop(m, which);
	if (metrics_text_make(m, which))
		(void)evbuffer_add_buffer_reference(ret->body, m->text[which]);
	answer_whole(ret, type);
}

/* The loop requests summaries of other members for a while from now on. */
static void answer_cluster(struct metrics *m, struct http_response *ret)
{
	shm_store64(m->watched_ns, clock_now_ns());
	answer_text(m, TEXT_CLUSTER, "application/json", ret);
}

static void answer_ready(struct metrics *m, struct http_response *ret)
{
	const char *why = "the engine is starting";
	const struct health_wanted wanted = {
		.members = (unsigned)m->settings->metrics_ready_members,
		.alone = m->settings->metrics_ready_alone};
	char text[384];
	bool ready = true;

	if (m->now)
		why = health_not_ready(m->now, &wanted, clock_now_ns(), text, sizeof(text));
	if (!why)
		why = m->now->rails ? "ready" : "ready: a seed only, which keeps no pages";
	else
		ready = false;
	answer_line(ret, ready ? 200 : 503, why);
}

/* Alive: the loop has turned lately. An orchestrator restarts an engine that says no. */
static void answer_alive(const struct metrics *m, struct http_response *ret)
{
	if (m->now && snapshot_age_ns(m->now, clock_now_ns()) > 4 * HEALTH_BLOCKED_NS)
		answer_line(ret, 503, "the control plane is blocked");
	else
		answer_line(ret, 200, "ok");
}

static void answer_page(struct http_response *ret)
{
	ret->headers = PAGE_HEADERS;
	(void)evbuffer_add_reference(ret->body, dashboard_text, dashboard_bytes, NULL, NULL);
	answer_whole(ret, "text/html; charset=utf-8");
}

/* Counts a refusal. True once a minute: it is to be logged, with that host. */
static bool metrics_refuse(struct metrics *m, int fd, char ret_host[NAME_BYTES_MAX])
{
	uint64_t now_ns = clock_now_ns();
	struct sockaddr_storage from;
	socklen_t bytes = sizeof(from);

	shm_store64(m->unauthorized, *m->unauthorized + 1);
	if (m->denied_ns && now_ns - m->denied_ns < METRICS_DENIED_NS)
		return false;
	m->denied_ns = now_ns;
	snprintf(ret_host, NAME_BYTES_MAX, "?");
	if (getpeername(fd, (struct sockaddr *)&from, &bytes) == 0)
		(void)getnameinfo((struct sockaddr *)&from, bytes, ret_host, NAME_BYTES_MAX, NULL,
			0, NI_NUMERICHOST);
	return true;
}

static void metrics_refused(void *context, int fd, const char *why)
{
	char host[NAME_BYTES_MAX];

	if (metrics_refuse(context, fd, host))
		log_warn(
			"metrics: no TLS with %s, which metrics.tls_dir asks for: %s. It needs https://, TLS 1.3 and the CA of the certificate there; http_unauthorized_total has how many more",
			host, why);
}

/* Without the token: 401. */
static void answer_unauthorized(
	struct metrics *m, const struct http_request *request, struct http_response *ret)
{
	char host[NAME_BYTES_MAX];

	ret->headers =
		"WWW-Authenticate: Basic realm=\"peercache\"\r\nWWW-Authenticate: Bearer\r\n";
	answer_line(ret, 401,
		"the token of metrics.token_file is needed: as Authorization: Bearer TOKEN, or as the password of any user");
	if (metrics_refuse(m, request->fd, host))
		log_warn(
			"metrics: a request of %s is refused: it has %s token; give it that of %s, or see http_unauthorized_total for how many more",
			host, request->authorization[0] ? "a wrong" : "no", m->token.path);
}

static bool path_needs_token(const char *path)
{
	return strcmp(path, "/healthz") != 0 && strcmp(path, "/readyz") != 0 &&
	       strcmp(path, "/get_all_segments") != 0;
}

static void metrics_answer(
	void *context, const struct http_request *request, struct http_response *ret)
{
	struct metrics *m = context;
	const char *path = request->path;

	metrics_refresh(m);
	if (path_needs_token(path) && !http_token_allows(&m->token, request->authorization))
		answer_unauthorized(m, request, ret);
	else if (!strcmp(path, "/metrics"))
		answer_text(m, TEXT_METRICS, "text/plain; version=0.0.4; charset=utf-8", ret);
	else if (!strcmp(path, "/healthz"))
		answer_alive(m, ret);
	else if (!strcmp(path, "/readyz"))
		answer_ready(m, ret);
	else if (!strcmp(path, "/get_all_segments"))
		answer_line(ret, 200, m->settings->engine_name);
	else if (!m->settings->metrics_dashboard)
		answer_line(ret, 404,
			"not here; try /metrics /healthz /readyz; metrics.dashboard = no");
	else if (!strcmp(path, "/api/status"))
		answer_text(m, TEXT_STATUS, "application/json", ret);
	else if (!strcmp(path, "/api/history"))
		answer_text(m, TEXT_HISTORY, "application/json", ret);
	else if (!strcmp(path, "/api/cluster"))
		answer_cluster(m, ret);
	else if (!strcmp(path, "/") || !strcmp(path, "/dashboard") || !strcmp(path, "/index.html"))
		answer_page(ret);
	else
		answer_line(ret, 404,
			"not here; try / /metrics /healthz /readyz /api/status /api/history /api/cluster");
}

/* ---- the port -------------------------------------------------------------------------------- */

/* The socket is bound early, before memory is made, and listens once the engine serves. */

static const char *port_host(const struct settings *s)
{
	return s->metrics_address[0] ? s->metrics_address : s->cluster_address;
}

/*
 * The engine runs without metrics where nothing was set: several engines of a host have one default
 * port. Returns 0, or `status`: the engine must not start.
 */
static int port_missing(const struct settings *s, int status, const char *why)
{
	const char *name = s->metrics_address[0] ? "metrics.address" : "cluster.address";

	if (!settings_given(s, "metrics", "port") && !settings_given(s, "metrics", "address")) {
		log_warn(
			"metrics: cannot listen at %s port %u (%s): %s; no metrics and no dashboard. Set metrics.port to a free port, or to 0",
			port_host(s), (unsigned)s->metrics_port, name, why);
		return 0;
	}
	log_error(
		"metrics: cannot listen at %s port %u (%s): %s. Set metrics.port to a free port, or to 0, and metrics.address to an address of this host",
		port_host(s), (unsigned)s->metrics_port, name, why);
	return status;
}

/*
 * Binds the first address of the name that this host has. A port in use ends the search: another
 * address of the same name would be a place where no one looks.
 */
static int port_open(struct control *control, unsigned number)
{
	const struct settings *s = control->settings;
	int fd = -EADDRNOTAVAIL, rc;
	struct addrinfo *found;

	control->metrics_fd = -1;
	rc = address_look_up(port_host(s), number, &found);
	if (rc)
		return port_missing(s, -EADDRNOTAVAIL, gai_strerror(rc));
	for (const struct addrinfo *at = found; at && fd < 0 && fd != -EADDRINUSE; at = at->ai_next)
		fd = net_bind(at->ai_addr, at->ai_addrlen);
	freeaddrinfo(found);
	if (fd < 0)
		return port_missing(s, fd, strerror(-fd));
	control->metrics_fd = fd;
	return 0;
}

int metrics_files_check(struct control *control)
{
	const struct settings *s = control->settings;
	struct http_token token;
	struct http_tls tls;
	int rc = http_token_open(s->metrics_token_file, &token);

	explicit_bzero(&token, sizeof(token));
	if (rc == 0) {
		rc = http_tls_open(s->metrics_tls_dir, &tls);
		http_tls_close(&tls);
	}
	if (rc == 0 && (s->metrics_token_file[0] || s->metrics_tls_dir[0]) && !s->metrics_port)
		log_warn("metrics.%s has no effect: metrics.port is 0",
			s->metrics_tls_dir[0] ? "tls_dir" : "token_file");
	return rc;
}

int metrics_port_open(struct control *control)
{
	unsigned port = (unsigned)control->settings->metrics_port;
	int rc = metrics_files_check(control);

	control->metrics_fd = -1;
	return port && rc == 0 ? port_open(control, port) : rc;
}

int metrics_port_check(struct control *control)
{
	int rc = control->settings->metrics_port ? port_open(control, 0) : 0;

	metrics_port_close(control);
	return rc;
}

void metrics_port_close(struct control *control)
{
	if (control->metrics_fd >= 0)
		close(control->metrics_fd);
	control->metrics_fd = -1;
}

/*
 * The caller owns *ret_fd, which listens; -1: the engine runs without metrics. 0 or -errno. Of two
 * engines that have bound one port at the same time, listen() refuses the second.
 */
static int metrics_port_listen(struct control *control, int *ret_fd)
{
	int fd = control->metrics_fd, one = 1, error;

	*ret_fd = -1;
	if (fd < 0)
		return 0;
	/* accepted sockets inherit it: the next engine may bind while they are in TIME_WAIT */
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (listen(fd, SOMAXCONN) == 0) {
		control->metrics_fd = -1;
		view_dashboard(control, fd);
		*ret_fd = fd;
		return 0;
	}
	error = errno;
	metrics_port_close(control);
	return port_missing(control->settings, -error, strerror(error));
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void metrics_on_turn(evutil_socket_t fd, short what, void *context)
{
	struct metrics *m = context;

	(void)fd;
	(void)what;
	metrics_refresh(m);
	http_token_refresh(&m->token);
	http_tls_refresh(&m->tls);
}

static void metrics_on_stop(evutil_socket_t fd, short what, void *context)
{
	struct metrics *m = context;

	(void)fd;
	(void)what;
	event_base_loopbreak(m->base);
}

static void *metrics_run(void *context)
{
	struct metrics *m = context;

	(void)sched_setaffinity(0, sizeof(m->cores), &m->cores); /* refused: it stays as it is */
	event_base_dispatch(m->base);
	return NULL;
}

static void metrics_free(struct metrics *m)
{
	metrics_texts_drop(m);
	http_close(m->http);
	if (m->stops)
		event_free(m->stops);
	if (m->turn)
		event_free(m->turn);
	if (m->base)
		event_base_free(m->base);
	if (m->stop >= 0)
		close(m->stop);
	http_tls_close(&m->tls);
	explicit_bzero(&m->token, sizeof(m->token));
	free(m);
}

static int metrics_prepare(struct metrics *m, int fd)
{
	const struct timeval every = {.tv_usec = METRICS_TURN_US};
	int rc;

	m->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	m->base = event_base_new();
	if (m->stop < 0 || !m->base) {
		close(fd);
		return -ENOMEM;
	}
	rc = http_open(m->base, fd, metrics_answer, m, &m->http);
	m->stops = event_new(m->base, m->stop, EV_READ, metrics_on_stop, m);
	m->turn = event_new(m->base, -1, EV_PERSIST, metrics_on_turn, m);
	if (rc < 0 || !m->stops || !m->turn || event_add(m->stops, NULL) < 0 ||
		event_add(m->turn, &every) < 0)
		return -ENOMEM;
	return 0;
}

int metrics_open(struct control *control)
{
	struct metrics *m;
	int fd, rc;

	rc = metrics_port_listen(control, &fd);
	if (fd < 0)
		return rc;
	m = calloc(1, sizeof(*m));
	if (!m) {
		close(fd);
		return -ENOMEM;
	}
	m->settings = control->settings;
	m->snapshots = control->snapshots;
	m->watched_ns = &control->watched_ns;
	m->unauthorized = &control->http_unauthorized;
	m->rails = control->rails;
	m->stop = -1;
	plan_cores_beside(&control->plan, &m->cores);
	snapshot_take(control, snapshots_writing(control->snapshots));
	view_own(control, snapshots_writing(control->snapshots));
	snapshots_publish(control->snapshots);
	rc = metrics_prepare(m, fd);
	if (rc == 0)
		rc = http_token_open(m->settings->metrics_token_file, &m->token);
	if (rc == 0)
		rc = http_tls_open(m->settings->metrics_tls_dir, &m->tls);
	if (rc == 0 && m->tls.ctx)
		http_secure(m->http, &m->tls, metrics_refused);
	if (rc == 0)
		rc = thread_start(&m->thread, metrics_run, m);
	if (rc < 0) {
		metrics_free(m);
		return rc;
	}
	control->metrics = m;
	return 0;
}

void metrics_close(struct control *control)
{
	struct metrics *m = control->metrics;

	if (!m)
		return;
	(void)eventfd_write(m->stop, 1);
	pthread_join(m->thread, NULL);
	metrics_free(m);
	control->metrics = NULL;
}
