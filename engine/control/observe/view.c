/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster view: summaries of all members, while a page of some dashboard is watched. Owns
 * struct view. From the top: the format of a summary (counts on a logarithmic scale, checks of what
 * was received, merging), the summary of this engine, requests to other members and answers to
 * theirs, the text of /api/cluster.
 *
 * The control plane's thread; functions of the format and view_json(): any thread. A member that
 * does not answer is shown as silent, one that lies spoils its own row.
 */
#include "engine/control/observe/view_inner.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "config/limits.h"
#include "engine/control/net/address.h"
#include "engine/control/net/net.h"
#include "engine/control/observe/json_inner.h"

/* ---- summaries: checks of what was received -------------------------------------------------- */

static uint64_t value_at_most(uint64_t value, uint64_t limit)
{
	return value < limit ? value : limit;
}

/* An id of lower-case letters, digits and underscores with zeros behind it; else it is emptied. */
static void summary_finding_check(char finding[SUMMARY_FINDING_BYTES])
{
	size_t bytes = strnlen(finding, SUMMARY_FINDING_BYTES);
	bool good = bytes < SUMMARY_FINDING_BYTES;

	for (size_t i = 0; i < bytes; i++) {
		char c = finding[i];

		good = good && ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_');
	}
	memset(finding + (good ? bytes : 0), 0, SUMMARY_FINDING_BYTES - (good ? bytes : 0));
}

bool summary_decode(const uint8_t *data, size_t bytes, struct summary *ret)
{
	struct summary *s = ret;

	if (bytes != SUMMARY_BYTES || data[0] == 0)
		return false;
	memcpy(s, data, SUMMARY_BYTES);
	s->severity = (uint8_t)value_at_most(s->severity, SEVERITY_CRITICAL);
	s->flags &= SUMMARY_FLAGS;
	s->rails = (uint8_t)value_at_most(s->rails, RAILS_MAX);
	s->rails_up = (uint8_t)value_at_most(s->rails_up, s->rails);
	s->members_up = (uint16_t)value_at_most(s->members_up, SUMMARY_MEMBERS_MAX);
	s->members_down = (uint16_t)value_at_most(s->members_down, SUMMARY_MEMBERS_MAX);
	s->pool_used = (uint16_t)value_at_most(s->pool_used, 1000);
	s->directory_used = (uint16_t)value_at_most(s->directory_used, 1000);
	if (s->hits != SUMMARY_NONE)
		s->hits = (uint16_t)value_at_most(s->hits, 1000);
	s->window_ms = (uint16_t)value_at_most(s->window_ms, SUMMARY_WINDOW_MS_MAX);
	s->get_bytes_per_s = value_at_most(s->get_bytes_per_s, SUMMARY_BYTES_PER_S_MAX);
	s->set_bytes_per_s = value_at_most(s->set_bytes_per_s, SUMMARY_BYTES_PER_S_MAX);
	s->get_pages_per_s = (uint32_t)value_at_most(s->get_pages_per_s, SUMMARY_PER_S_MAX);
	s->evictions_per_s = (uint32_t)value_at_most(s->evictions_per_s, SUMMARY_PER_S_MAX);
	summary_finding_check(s->finding);
	memset(s->spare, 0, sizeof(s->spare));
	for (unsigned call = 0; call < SUMMARY_CALLS; call++)
		s->calls[call].batches =
			(uint32_t)value_at_most(s->calls[call].batches, SUMMARY_BATCHES_MAX);
	return true;
}

/* ---- the summary of this engine -------------------------------------------------------------- */

static const enum statistics_call summary_calls[SUMMARY_CALLS] = {
	STATISTICS_GET, STATISTICS_SET, STATISTICS_EXISTS};
static const struct {
	const char *name;
	unsigned permille;
} summary_times[SUMMARY_TIMES] = {{"p50", 500}, {"p99", 990}, {"p999", 999}};

/* A figure of which the summary has room for values up to `limit`. */
static uint64_t summary_value(double value, uint64_t limit)
{
	return value <= 0 ? 0 : value < (double)limit ? (uint64_t)value : limit;
}

/* 1/1000; SUMMARY_NONE for the ratio of nothing. */
static uint16_t summary_ratio(double ratio)
{
	return ratio < 0 ? SUMMARY_NONE : (uint16_t)summary_value(ratio * 1e3, 1000);
}

static void summary_rates_fill(const struct snapshot *s, struct summary *ret)
{
	const struct recent *r = &s->recent.engine;

	ret->window_ms = (uint16_t)summary_value(r->seconds * 1e3, SUMMARY_WINDOW_MS_MAX);
	ret->get_bytes_per_s = summary_value(r->get_bytes_per_second, SUMMARY_BYTES_PER_S_MAX);
	ret->set_bytes_per_s = summary_value(r->set_bytes_per_second, SUMMARY_BYTES_PER_S_MAX);
	ret->get_pages_per_s = (uint32_t)summary_value(r->get_pages_per_second, SUMMARY_PER_S_MAX);
	ret->evictions_per_s =
		(uint32_t)summary_value(r->evicted_pages_per_second, SUMMARY_PER_S_MAX);
	ret->hits = summary_ratio(r->get_hit_ratio);
	for (unsigned call = 0; call < SUMMARY_CALLS; call++) {
		struct summary_calls *c = &ret->calls[call];
		uint64_t latency[LATENCY_BUCKETS];

		latency_between(s->clients.calls[summary_calls[call]].latency,
			s->past.clients.calls[summary_calls[call]].latency, latency);
		c->batches = (uint32_t)value_at_most(latency_count(latency), SUMMARY_BATCHES_MAX);
		for (unsigned i = 0; i < SUMMARY_TIMES; i++)
			c->us[i] = (uint32_t)value_at_most(
				latency_quantile_ns(latency, summary_times[i].permille) / 1000,
				UINT32_MAX);
	}
}

/* True if it is about other members: it says nothing of the engine that finds it. */
static bool finding_of_others(enum finding id)
{
	return id == FINDING_member_down || id == FINDING_member_silent ||
	       id == FINDING_versions_differ || id == FINDING_absence_unproven;
}

/* What is wrong with this engine. That it misses a member is that member's fault, in its row. */
static void summary_findings_fill(const struct snapshot *s, struct summary *ret)
{
	struct health health;

	health_make(s, s->taken_ns, &health);
	for (unsigned i = 0; i < health.count; i++) {
		enum severity severity = health.finding[i].severity;

		if (finding_of_others(health.finding[i].id))
			continue;
		if (!ret->findings++)
			snprintf(ret->finding, sizeof(ret->finding), "%s",
				finding_name(health.finding[i].id));
		if (severity > ret->severity)
			ret->severity = (uint8_t)severity;
	}
}

void view_summary_make(const struct snapshot *s, struct summary *ret)
{
	const struct recent *r = &s->recent.engine;
	uint64_t uptime_s = s->uptime_ms / 1000;

	*ret = (struct summary){.made = 1,
		.rails = (uint8_t)s->rails,
		.uptime_s = uptime_s < UINT32_MAX ? (uint32_t)uptime_s : UINT32_MAX,
		.pool_used = (uint16_t)summary_value(r->pool_used_ratio * 1e3, 1000),
		.directory_used = (uint16_t)summary_value(r->directory_used_ratio * 1e3, 1000),
		.members_up = (uint16_t)snapshot_members(s, SNAPSHOT_UP),
		.members_down = (uint16_t)(snapshot_members(s, SNAPSHOT_SILENT) +
					   snapshot_members(s, SNAPSHOT_DOWN))};
	if (s->directory.moving)
		ret->flags |= SUMMARY_MOVING;
	if (s->directory.behind)
		ret->flags |= SUMMARY_BEHIND;
	if (s->stopping)
		ret->flags |= SUMMARY_STOPPING;
	for (unsigned i = 0; i < s->rails; i++)
		ret->rails_up = (uint8_t)(ret->rails_up + !strcmp(s->rail[i].state, "up"));
	summary_findings_fill(s, ret);
	summary_rates_fill(s, ret);
}

void view_dashboard(struct control *control, int fd)
{
	const struct settings *s = control->settings;
	struct sockaddr_storage at, announced;
	socklen_t bytes = sizeof(at);

	/* with cluster.bind something between forwards ports, and may forward this one elsewhere */
	if (!control->view || !s->metrics_dashboard || s->cluster_bind[0] ||
		getsockname(fd, (struct sockaddr *)&at, &bytes) != 0 ||
		address_literal(s->cluster_address, 1, &announced, &bytes) != 0)
		return;
	if (address_wildcard((struct sockaddr *)&at) ||
		address_same((struct sockaddr *)&at, (struct sockaddr *)&announced))
		control->view->dashboard_port = (uint16_t)s->metrics_port;
}

void view_own(struct control *control, struct snapshot *s)
{
	struct view *view = control->view;

	if (!view)
		return;
	view_summary_make(s, &view->own);
	view->own.dashboard_port = view->dashboard_port;
	for (unsigned i = 0; i < s->members; i++) {
		if (!s->member[i].self)
			continue;
		s->member[i].summary = view->own;
		s->member[i].summary_ns = s->taken_ns;
	}
}

/* ---- the order of requests ------------------------------------------------------------------- */

/* Severity of the member's last summary from SEVERITY_WARNING on; 0: milder, or no summary. */
static unsigned row_badness(const struct view_row *row)
{
	return row->answered_ns && row->summary.severity >= SEVERITY_WARNING ? row->summary.severity
									     : 0;
}

static bool row_due(const struct view_row *row, uint64_t now_ns)
{
	return row->can && (!row->asked_ns || now_ns - row->asked_ns >= VIEW_APART_NS);
}

int view_next(const struct view *view, uint64_t now_ns)
{
	uint64_t before_ns = view->asked_ns[view->asks % VIEW_AT_A_TIME];
	bool worst_first = view->asks % VIEW_ROUND != VIEW_ROUND - 1;
	int found = -1;
	unsigned bad = 0;

	/* before_ns is the time of the request that was sent VIEW_AT_A_TIME requests ago */
	if (before_ns && now_ns - before_ns < VIEW_APART_NS)
		return -1;
	for (unsigned i = 0; i < view->rows; i++) {
		const struct view_row *row = &view->row[i];
		unsigned worse = worst_first ? row_badness(row) : 0;

		if (!row_due(row, now_ns))
			continue;
		if (found < 0 || worse > bad ||
			(worse == bad && row->asked_ns < view->row[found].asked_ns)) {
			found = (int)i;
			bad = worse;
		}
	}
	return found;
}

void view_asked(struct view *view, unsigned row, uint64_t now_ns)
{
	view->asked_ns[view->asks++ % VIEW_AT_A_TIME] = now_ns;
	view->row[row].asked_ns = now_ns;
	if (!view->row[row].silent_ns)
		view->row[row].silent_ns = now_ns;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Adapts the rows to members that have joined, died or been replaced since the last call. */
static void view_rows_update(struct control *control)
{
	struct view *view = control->view;

	view->rows = members_table(control)->entries;
	for (unsigned i = 1; i < view->rows; i++) {
		const struct member *entry = member_at(members_table(control), i);
		struct view_row *row = &view->row[i];

		if (row->incarnation != entry->record.incarnation)
			*row = (struct view_row){.incarnation = entry->record.incarnation};
		row->can = entry->state == MEMBER_ALIVE &&
			   (member_link_of(entry) || !member_watched(entry));
	}
}

/*
 * Within VIEW_WATCH_NS; 0: never. The metrics thread may have read the clock later than the loop:
 * then_ns may be above now_ns.
 */
static bool watched_recently(uint64_t then_ns, uint64_t now_ns)
{
	return then_ns && (now_ns < then_ns || now_ns - then_ns < VIEW_WATCH_NS);
}

bool view_active(const struct control *control, uint64_t watched_ns, uint64_t now_ns)
{
	return control->view && (watched_recently(watched_ns, now_ns) ||
					watched_recently(control->view->sent_ns, now_ns));
}

void view_tick(struct control *control, uint64_t watched_ns, uint64_t now_ns)
{
	struct view *view = control->view;
	Pc__SummaryAsk ask = PC__SUMMARY_ASK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	if (!view || control->stopping || !watched_recently(watched_ns, now_ns))
		return;
	view_rows_update(control);
	message.body_case = PC__MESSAGE__BODY_SUMMARY_ASK;
	message.summary_ask = &ask;
	for (unsigned n = 0; n < VIEW_TICK_ASKS; n++) {
		int row = view_next(view, now_ns);

		if (row < 0)
			return;
		view_asked(view, (unsigned)row, now_ns);
		/*
		 * If the link is full or is only dialled now, the member is asked again in a
		 * second.
		 */
		if (rpc_send(member_link(control,
				     member_at(members_table(control), (unsigned)row)->record.ref),
			    &message))
			control->counter[COUNTER_summaries_asked]++;
	}
}

/* ---- messages -------------------------------------------------------------------------------- */

/*
 * A request that comes too early gets no answer, so a member cannot make this engine work. An
 * answer for which the link has no room is dropped: the view is no reason to close a link.
 */
bool view_serve_ask(struct control *control, struct rpc_link *link)
{
	uint64_t now_ns = net_now();
	struct view *view = control->view;
	Pc__Summary summary = PC__SUMMARY__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	if (!view || !view->own.made ||
		(link->summary_ns && now_ns - link->summary_ns < VIEW_ANSWER_NS))
		return true;
	link->summary_ns = view->sent_ns = now_ns;
	summary.data.len = sizeof(view->own);
	summary.data.data = (uint8_t *)&view->own;
	message.body_case = PC__MESSAGE__BODY_SUMMARY;
	message.summary = &summary;
	if (rpc_send(link, &message))
		control->counter[COUNTER_summaries_sent]++;
	return true;
}

bool view_serve_summary(struct control *control, struct rpc_link *link, const Pc__Summary *summary)
{
	struct view *view = control->view;
	struct view_row *row;
	struct summary got;

	if (summary->data.len != SUMMARY_BYTES)
		return false;
	if (!view)
		return true;
	row = &view->row[link->member->index];
	/* Ignores a summary that was not requested, or was requested of a former incarnation */
	if (!row->silent_ns || row->incarnation != link->member->record.incarnation)
		return true;
	if (!summary_decode(summary->data.data, summary->data.len, &got))
		return true;
	row->summary = got;
	row->answered_ns = net_now();
	row->silent_ns = 0;
	return true;
}

/* ---- the rows of a snapshot ------------------------------------------------------------------ */

void view_member_fill(const struct control *control, const struct member *entry, uint64_t now_ns,
	struct snapshot_member *ret)
{
	const struct view *view = control->view;
	const struct view_row *row;

	if (!view)
		return;
	row = &view->row[entry->index];
	if (row->incarnation != entry->record.incarnation)
		return;
	ret->summary_silent =
		row->silent_ns && now_ns > row->silent_ns + VIEW_SILENT_NS && row->can;
	if (!row->answered_ns)
		return;
	ret->summary_ns = row->answered_ns;
	ret->summary = row->summary;
}

/* ---- /api/cluster: rows ---------------------------------------------------------------------- */

#define ADDRESS_CHARACTERS "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.:-"

/* A member as it is shown. */
struct row {
	const struct snapshot_member *member;
	unsigned severity;
	const char *finding;
	bool fresh; /* its summary counts */
};

struct totals {
	unsigned asked, moving, behind, rails, rails_up;
	uint64_t get_bytes_per_s, set_bytes_per_s, get_pages_per_s, evictions_per_s;
	uint64_t hits, pages; /* hits in 1/1000 of pages */
	struct summary_calls calls[SUMMARY_CALLS];
};

static uint64_t summary_age_ms(const struct snapshot_member *m, uint64_t now_ns)
{
	return now_ns > m->summary_ns ? (now_ns - m->summary_ns) / 1000000 : 0;
}

static struct row row_make(const struct snapshot_member *m, uint64_t now_ns)
{
	struct row row = {.member = m, .severity = SEVERITY_OK, .finding = ""};

	row.fresh = m->state != SNAPSHOT_DOWN && m->summary_ns &&
		    summary_age_ms(m, now_ns) <= VIEW_FRESH_NS / 1000000;
	if (row.fresh) {
		row.severity = m->summary.severity;
		row.finding = m->summary.finding;
	}
	/* This engine's own view of a silent member is newer than the member's last summary. */
	if (m->state != SNAPSHOT_UP) {
		row.finding = finding_name(
			m->state == SNAPSHOT_DOWN ? FINDING_member_down : FINDING_member_silent);
		if (row.severity < SEVERITY_WARNING)
			row.severity = SEVERITY_WARNING;
	}
	if (m->state != SNAPSHOT_DOWN && m->summary_silent && row.severity < SEVERITY_WARNING)
		row.severity = SEVERITY_WARNING;
	return row;
}

static int row_worse_first(const void *a, const void *b)
{
	const struct row *x = a, *y = b;

	if (x->severity != y->severity)
		return x->severity < y->severity ? 1 : -1;
	if (x->member->state != y->member->state)
		return x->member->state < y->member->state ? 1 : -1;
	return strcmp(x->member->name, y->member->name);
}

/* Why there is no fresh summary of a member that is not down. */
static const char *row_why(const struct row *row)
{
	if (row->member->state == SNAPSHOT_DOWN)
		return "";
	if (row->member->summary_silent)
		return "unanswered";
	return row->fresh ? "" : "waiting";
}

static void json_ratio(struct json *j, const char *name, unsigned permille)
{
	json_real(j, name, permille == SUMMARY_NONE ? -1 : permille / 1e3);
}

static void json_batches(struct json *j, const struct summary_calls *calls)
{
	char name[32];

	for (unsigned call = 0; call < SUMMARY_CALLS; call++) {
		const char *of = figure_calls[summary_calls[call]];

		snprintf(name, sizeof(name), "%s_batches", of);
		json_count(j, name, calls[call].batches);
		for (unsigned i = 0; i < SUMMARY_TIMES; i++) {
			snprintf(name, sizeof(name), "%s_%s_seconds", of, summary_times[i].name);
			json_real(j, name,
				calls[call].batches ? seconds(calls[call].us[i], 1e6) : -1);
		}
	}
}

static void json_summary(struct json *j, const struct summary *s)
{
	json_open(j, "summary", "{");
	json_count(j, "findings", s->findings);
	json_count(j, "uptime_s", s->uptime_s);
	json_count(j, "rails", s->rails);
	json_count(j, "rails_up", s->rails_up);
	json_count(j, "members_up", s->members_up);
	json_count(j, "members_down", s->members_down);
	json_ratio(j, "pool_used_ratio", s->pool_used);
	json_ratio(j, "directory_used_ratio", s->directory_used);
	json_ratio(j, "get_hit_ratio", s->hits);
	json_count(j, "get_bytes_per_second", s->get_bytes_per_s);
	json_count(j, "set_bytes_per_second", s->set_bytes_per_s);
	json_count(j, "get_pages_per_second", s->get_pages_per_s);
	json_count(j, "evicted_pages_per_second", s->evictions_per_s);
	json_flag(j, "moving", s->flags & SUMMARY_MOVING);
	json_flag(j, "behind", s->flags & SUMMARY_BEHIND);
	json_flag(j, "stopping", s->flags & SUMMARY_STOPPING);
	json_batches(j, s->calls);
	json_close(j, "}");
}

/*
 * Where the member's dashboard is; "": not known. Only of a fresh summary, because another engine,
 * or none, may have the port later. The address comes from the member: only characters of one pass.
 */
static void json_dashboard(struct json *j, const struct row *row)
{
	const struct snapshot_member *m = row->member;
	char url[sizeof(m->address) + sizeof("http://[]:65535/")] = "";
	bool v6 = strchr(m->address, ':') != NULL;

	if (row->fresh && m->state == SNAPSHOT_UP && m->summary.dashboard_port && m->address[0] &&
		m->address[strspn(m->address, ADDRESS_CHARACTERS)] == '\0')
		snprintf(url, sizeof(url), "http://%s%s%s:%u/", v6 ? "[" : "", m->address,
			v6 ? "]" : "", (unsigned)m->summary.dashboard_port);
	json_string(j, "dashboard", url);
}

static void json_row(struct json *j, const struct row *row, uint64_t now_ns)
{
	const struct snapshot_member *m = row->member;

	json_open(j, NULL, "{");
	json_string(j, "name", m->name);
	json_flag(j, "self", m->self);
	json_string(j, "state", snapshot_state_name(m->state));
	json_count(j, "state_ms", m->state_ms);
	json_string(j, "software", m->software);
	json_dashboard(j, row);
	json_string(j, "severity", severity_name(row->severity));
	json_string(j, "finding", row->finding);
	json_string(j, "why", row_why(row));
	json_number(j, "age_ms", m->summary_ns ? (int64_t)summary_age_ms(m, now_ns) : -1);
	if (m->summary_ns)
		json_summary(j, &m->summary);
	else
		json_raw(j, "summary", "null");
	json_close(j, "}");
}

/* The members beside this engine that are up, by what is wrong with them. */
static void json_others(struct json *j, const struct row *row, unsigned rows)
{
	unsigned of[SEVERITY_CRITICAL + 1] = {0};

	for (unsigned i = 0; i < rows; i++)
		if (!row[i].member->self && row[i].member->state == SNAPSHOT_UP)
			of[row[i].severity]++;
	json_open(j, "others", "{");
	for (unsigned severity = SEVERITY_INFO; severity <= SEVERITY_CRITICAL; severity++)
		json_count(j, severity_name(severity), of[severity]);
	json_close(j, "}");
}

/* ---- /api/cluster: totals -------------------------------------------------------------------- */

static void totals_add(struct totals *t, const struct summary *s)
{
	t->asked++;
	t->moving += (s->flags & SUMMARY_MOVING) != 0;
	t->behind += (s->flags & SUMMARY_BEHIND) != 0;
	t->rails += s->rails;
	t->rails_up += s->rails_up;
	t->get_bytes_per_s += s->get_bytes_per_s;
	t->set_bytes_per_s += s->set_bytes_per_s;
	t->get_pages_per_s += s->get_pages_per_s;
	t->evictions_per_s += s->evictions_per_s;
	if (s->hits != SUMMARY_NONE) {
		t->hits += (uint64_t)s->hits * s->get_pages_per_s;
		t->pages += s->get_pages_per_s;
	}
	for (unsigned call = 0; call < SUMMARY_CALLS; call++) {
		const struct summary_calls *c = &s->calls[call];
		struct summary_calls *sum = &t->calls[call];

		sum->batches =
			(uint32_t)value_at_most((uint64_t)sum->batches + c->batches, UINT32_MAX);
		for (unsigned i = 0; i < SUMMARY_TIMES; i++)
			sum->us[i] = c->us[i] > sum->us[i] ? c->us[i] : sum->us[i];
	}
}

static void json_totals(struct json *j, const struct totals *t)
{
	json_open(j, "totals", "{");
	json_count(j, "get_bytes_per_second", t->get_bytes_per_s);
	json_count(j, "set_bytes_per_second", t->set_bytes_per_s);
	json_count(j, "get_pages_per_second", t->get_pages_per_s);
	json_count(j, "evicted_pages_per_second", t->evictions_per_s);
	json_ratio(j, "get_hit_ratio", t->pages ? (unsigned)(t->hits / t->pages) : SUMMARY_NONE);
	json_count(j, "rails", t->rails);
	json_count(j, "rails_up", t->rails_up);
	json_count(j, "moving", t->moving);
	json_count(j, "behind", t->behind);
	json_batches(j, t->calls);
	json_close(j, "}");
}

/* ---- /api/cluster: all together -------------------------------------------------------------- */

/* `row` has room for all members. */
static void json_view(struct json *j, const struct snapshot *s, uint64_t now_ns, struct row *row)
{
	unsigned shown = s->members < VIEW_ROWS_MAX ? s->members : VIEW_ROWS_MAX, all = 0;
	struct totals totals = {0};

	for (unsigned i = 0; i < s->members; i++) {
		row[i] = row_make(&s->member[i], now_ns);
		if (row[i].fresh)
			totals_add(&totals, &s->member[i].summary);
	}
	qsort(row, s->members, sizeof(row[0]), row_worse_first);
	json_open(j, NULL, "{");
	json_count(j, "age_ms", snapshot_age_ns(s, now_ns) / 1000000);
	for (unsigned state = 0; state < SNAPSHOT_MEMBER_STATES; state++) {
		json_count(j, snapshot_state_name(state), snapshot_members(s, state));
		all += snapshot_members(s, state);
	}
	json_count(j, "members", all);
	json_others(j, row, s->members);
	json_count(j, "shown", shown);
	json_count(j, "asked", totals.asked);
	json_open(j, "rows", "[");
	for (unsigned i = 0; i < shown; i++)
		json_row(j, &row[i], now_ns);
	json_close(j, "]");
	json_totals(j, &totals);
	json_close(j, "}\n");
}

int view_json(const struct snapshot *s, uint64_t now_ns, char **ret_text, size_t *ret_bytes)
{
	struct row *row = calloc(s->members + 1, sizeof(*row));
	struct json j;

	if (!row || json_begin(&j) < 0) {
		free(row);
		return -ENOMEM;
	}
	json_view(&j, s, now_ns, row);
	free(row);
	return json_end(&j, ret_text, ret_bytes);
}

/* ---- open and close -------------------------------------------------------------------------- */

int view_open(struct control *control)
{
	control->view = calloc(1, sizeof(*control->view));
	return control->view ? 0 : -ENOMEM;
}

void view_close(struct control *control)
{
	free(control->view);
	control->view = NULL;
}
