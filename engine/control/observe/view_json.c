/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /api/cluster: the members with their summaries, worst first, and all summaries merged. Any
 * thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/control/observe/json.h"
#include "engine/control/observe/view.h"

static const char *const severities[] = {"ok", "info", "warning", "critical"};
static const char *const calls[SUMMARY_CALLS] = {"get", "set", "exists"};

/* A member as it is shown. */
struct row {
	const struct snapshot_member *member;
	unsigned severity;
	unsigned state; /* 0: up, 1: suspect, 2: down */
	const char *finding;
	bool fresh; /* its summary counts */
};

struct totals {
	unsigned asked, moving, behind, rails, rails_up;
	uint64_t get_bytes_per_s, set_bytes_per_s, get_pages_per_s, evictions_per_s;
	uint64_t hit_local, hit_remote, pages; /* hits in 1/1000 of pages */
	struct summary_merged merged;
};

/* ---- rows ------------------------------------------------------------------------------------ */

static uint64_t age_ms(const struct snapshot_member *m, uint64_t now_ns)
{
	return now_ns > m->summary_ns ? (now_ns - m->summary_ns) / 1000000 : 0;
}

static struct row row_make(const struct snapshot_member *m, uint64_t now_ns)
{
	struct row row = {.member = m, .severity = SUMMARY_OK, .finding = ""};

	row.state = !strcmp(m->state, "down") ? 2 : !strcmp(m->state, "suspect") ? 1 : 0;
	row.fresh = row.state < 2 && m->summary_ns && age_ms(m, now_ns) <= VIEW_FRESH_NS / 1000000;
	if (row.fresh) {
		row.severity = m->summary.severity;
		row.finding = m->summary.finding;
	}
	/* This engine's own view of a silent member is newer than the member's last summary. */
	if (row.state) {
		row.finding =
			finding_name(row.state == 2 ? FINDING_member_down : FINDING_member_suspect);
		if (row.severity < SUMMARY_WARNING)
			row.severity = SUMMARY_WARNING;
	}
	if (row.state < 2 && m->summary_silent && row.severity < SUMMARY_WARNING)
		row.severity = SUMMARY_WARNING;
	return row;
}

static int worse_first(const void *a, const void *b)
{
	const struct row *x = a, *y = b;

	if (x->severity != y->severity)
		return x->severity < y->severity ? 1 : -1;
	if (x->state != y->state)
		return x->state < y->state ? 1 : -1;
	return strcmp(x->member->name, y->member->name);
}

/* Why there is no fresh summary of a member that is not down. */
static const char *why(const struct row *row)
{
	if (row->state == 2)
		return "";
	if (!row->member->summaries)
		return "old";
	if (row->member->summary_silent)
		return "silent";
	return row->fresh ? "" : "waiting";
}

static const char *flag(const struct summary *s, unsigned which)
{
	return s->flags & which ? "true" : "false";
}

static void json_share(FILE *f, const char *name, unsigned permille)
{
	fprintf(f, "\"%s\":%d,", name, permille == SUMMARY_NONE ? -1 : (int)permille);
}

static void json_percentiles(FILE *f, const char *call, const uint64_t batches[SUMMARY_BUCKETS])
{
	fprintf(f,
		"\"%s\":{\"count\":%" PRIu64 ",\"p50_ns\":%" PRIu64 ",\"p99_ns\":%" PRIu64
		",\"p999_ns\":%" PRIu64,
		call, summary_batches(batches), summary_quantile_ns(batches, 500),
		summary_quantile_ns(batches, 990), summary_quantile_ns(batches, 999));
}

static void json_summary(FILE *f, const struct summary *s)
{
	struct summary_merged own = {0};

	fprintf(f, "{\"findings\":%u,\"uptime_s\":%" PRIu32 ",\"rails\":%u,\"rails_up\":%u,",
		s->findings, s->uptime_s, s->rails, s->rails_up);
	fprintf(f, "\"members_up\":%u,\"members_down\":%u,", s->members_up, s->members_down);
	json_share(f, "pool_used_permille", s->pool_used);
	json_share(f, "directory_used_permille", s->directory_used);
	json_share(f, "hit_local_permille", s->hit_local);
	json_share(f, "hit_remote_permille", s->hit_remote);
	fprintf(f, "\"get_bytes_per_s\":%" PRIu64 ",\"set_bytes_per_s\":%" PRIu64 ",",
		s->get_bytes_per_s, s->set_bytes_per_s);
	fprintf(f, "\"get_pages_per_s\":%" PRIu32 ",\"evictions_per_s\":%" PRIu32 ",",
		s->get_pages_per_s, s->evictions_per_s);
	fprintf(f, "\"moving\":%s,\"behind\":%s,\"stopping\":%s", flag(s, SUMMARY_MOVING),
		flag(s, SUMMARY_BEHIND), flag(s, SUMMARY_STOPPING));
	summary_merge(&own, s);
	for (unsigned call = 0; call < SUMMARY_CALLS; call++) {
		fputc(',', f);
		json_percentiles(f, calls[call], own.batches[call]);
		fputc('}', f);
	}
	fputc('}', f);
}

static void json_row(FILE *f, const struct row *row, uint64_t now_ns)
{
	const struct snapshot_member *m = row->member;

	fprintf(f, "{\"name\":");
	json_string(f, m->name);
	fprintf(f, ",\"self\":%s,\"state\":\"%s\",\"state_ms\":%" PRIu64 ",\"software\":",
		m->self ? "true" : "false", m->state, m->state_ms);
	json_string(f, m->software);
	fprintf(f, ",\"severity\":\"%s\",\"finding\":\"%s\",\"why\":\"%s\",\"age_ms\":%" PRId64,
		severities[row->severity], row->finding, why(row),
		m->summary_ns ? (int64_t)age_ms(m, now_ns) : -1);
	fprintf(f, ",\"summary\":");
	if (m->summary_ns)
		json_summary(f, &m->summary);
	else
		fprintf(f, "null");
	fputc('}', f);
}

/* The members beside this engine that are up, by what is wrong with them. */
static void json_others(FILE *f, const struct row *row, unsigned rows)
{
	unsigned of[SUMMARY_CRITICAL + 1] = {0};

	for (unsigned i = 0; i < rows; i++)
		if (!row[i].member->self && !row[i].state)
			of[row[i].severity]++;
	fprintf(f, "\"others\":{\"info\":%u,\"warning\":%u,\"critical\":%u},", of[SUMMARY_INFO],
		of[SUMMARY_WARNING], of[SUMMARY_CRITICAL]);
}

/* ---- totals ---------------------------------------------------------------------------------- */

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
	if (s->hit_local != SUMMARY_NONE) {
		t->hit_local += (uint64_t)s->hit_local * s->get_pages_per_s;
		t->hit_remote += (uint64_t)s->hit_remote * s->get_pages_per_s;
		t->pages += s->get_pages_per_s;
	}
	summary_merge(&t->merged, s);
}

static void json_totals(FILE *f, const struct totals *t)
{
	fprintf(f, "\"totals\":{\"get_bytes_per_s\":%" PRIu64 ",\"set_bytes_per_s\":%" PRIu64 ",",
		t->get_bytes_per_s, t->set_bytes_per_s);
	fprintf(f, "\"get_pages_per_s\":%" PRIu64 ",\"evictions_per_s\":%" PRIu64 ",",
		t->get_pages_per_s, t->evictions_per_s);
	json_share(f, "hit_local_permille",
		t->pages ? (unsigned)(t->hit_local / t->pages) : SUMMARY_NONE);
	json_share(f, "hit_remote_permille",
		t->pages ? (unsigned)(t->hit_remote / t->pages) : SUMMARY_NONE);
	fprintf(f, "\"rails\":%u,\"rails_up\":%u,\"moving\":%u,\"behind\":%u}", t->rails,
		t->rails_up, t->moving, t->behind);
}

static void json_merged(FILE *f, const struct summary_merged *merged)
{
	fprintf(f, "\"merged\":{\"lower_ns\":[");
	for (unsigned i = 0; i < SUMMARY_BUCKETS; i++)
		fprintf(f, "%s%" PRIu64, i ? "," : "", summary_lower_ns(i));
	fputc(']', f);
	for (unsigned call = 0; call < SUMMARY_CALLS; call++) {
		fputc(',', f);
		json_percentiles(f, calls[call], merged->batches[call]);
		fprintf(f, ",\"buckets\":[");
		for (unsigned i = 0; i < SUMMARY_BUCKETS; i++)
			fprintf(f, "%s%" PRIu64, i ? "," : "", merged->batches[call][i]);
		fprintf(f, "]}");
	}
	fputc('}', f);
}

/* ---- all together ---------------------------------------------------------------------------- */

/* False: no memory. */
static bool json_all(FILE *f, const struct snapshot *s, uint64_t now_ns)
{
	struct row *row = calloc(s->members + 1, sizeof(*row));
	unsigned shown = s->members < VIEW_ROWS_MAX ? s->members : VIEW_ROWS_MAX;
	unsigned up = snapshot_members(s, SNAPSHOT_UP), down = snapshot_members(s, SNAPSHOT_DOWN);
	unsigned suspect = snapshot_members(s, SNAPSHOT_SUSPECT);
	struct totals totals = {0};

	if (!row)
		return false;
	for (unsigned i = 0; i < s->members; i++) {
		row[i] = row_make(&s->member[i], now_ns);
		if (row[i].fresh)
			totals_add(&totals, &s->member[i].summary);
	}
	qsort(row, s->members, sizeof(row[0]), worse_first);
	fprintf(f, "{\"age_ms\":%" PRIu64 ",\"members\":%u,\"up\":%u,\"suspect\":%u,\"down\":%u,",
		now_ns > s->taken_ns ? (now_ns - s->taken_ns) / 1000000 : 0, up + suspect + down,
		up, suspect, down);
	json_others(f, row, s->members);
	fprintf(f, "\"shown\":%u,\"asked\":%u,\"rows\":[", shown, totals.asked);
	for (unsigned i = 0; i < shown; i++) {
		if (i)
			fputc(',', f);
		json_row(f, &row[i], now_ns);
	}
	fprintf(f, "],");
	json_merged(f, &totals.merged);
	fputc(',', f);
	json_totals(f, &totals);
	fprintf(f, "}\n");
	free(row);
	return true;
}

int view_json(const struct snapshot *s, uint64_t now_ns, char **ret_text, size_t *ret_bytes)
{
	FILE *f = open_memstream(ret_text, ret_bytes);
	bool failed;

	if (!f)
		return -ENOMEM;
	failed = !json_all(f, s, now_ns) || ferror(f);
	if (fclose(f) || failed) {
		free(*ret_text);
		return -ENOMEM;
	}
	return 0;
}
