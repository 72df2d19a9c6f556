/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One picture of `peercachectl top`: the questions of the dashboard in lines of text, from two
 * reports of the engine. Any thread; no state of its own.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "engine/abi/latency.h"
#include "tools/common.h"
#include "tools/ctl.h"

#define FINDINGS_SHOWN 4u
#define LINES_BELOW 5u /* lines below the rails: a blank one, pool, directory, clients, the keys */
#define STALE_MS 2500u /* a report this old is called stale */

struct paper {
	FILE *out;
	unsigned left, columns;
};

/* One line without its end, cut at the width. */
__attribute__((format(printf, 2, 3))) static void line(struct paper *p, const char *format, ...)
{
	char text[512], plain[512];
	va_list arguments;

	if (!p->left)
		return;
	p->left--;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	text_plain(text, plain, sizeof(plain));
	fprintf(p->out, "%.*s\n", (int)p->columns, plain);
}

/* ---- rates ----------------------------------------------------------------------------------- */

static double seconds_between(const struct frame *f)
{
	int64_t ms;

	if (!f->before ||
		strcmp(json_text(f->now, "incarnation"), json_text(f->before, "incarnation")))
		return 0;
	ms = json_number(f->now, "uptime_ms") - json_number(f->before, "uptime_ms");
	return ms > 0 ? (double)ms / 1e3 : 0;
}

/* How much a number grew, from object `before` to `now`; 0 without one. */
static double grown(json_object *now, json_object *before, const char *path)
{
	int64_t more = before ? report_number(now, path) - report_number(before, path) : 0;

	return more > 0 ? (double)more : 0;
}

static double rate(const struct frame *f, const char *path)
{
	double seconds = seconds_between(f);

	return seconds > 0 ? grown(f->now, f->before, path) / seconds : 0;
}

/* The number of `name` in each rail, added up. */
static double rails_sum(json_object *report, const char *name)
{
	json_object *rails = json_get(report, "rails");
	double sum = 0;

	for (size_t i = 0; i < json_length(rails); i++)
		sum += (double)json_number(json_at(rails, i), name);
	return sum;
}

/* What was counted between two lists of bucket counts; `before` may be NULL. Returns the sum. */
static uint64_t buckets_between(
	json_object *now, json_object *before, uint64_t ret_bucket[LATENCY_BUCKETS])
{
	memset(ret_bucket, 0, LATENCY_BUCKETS * sizeof(*ret_bucket));
	for (size_t i = 0; i < LATENCY_BUCKETS && i < json_length(now); i++) {
		int64_t n = json_object_get_int64(json_at(now, i));

		if (i < json_length(before))
			n -= json_object_get_int64(json_at(before, i));
		ret_bucket[i] = n > 0 ? (uint64_t)n : 0;
	}
	return latency_count(ret_bucket);
}

/*
 * A percentile of what was counted between two lists of bucket counts; `before` may be NULL. "-"
 * when nothing was counted.
 */
static void percentile(
	json_object *now, json_object *before, unsigned permille, char *ret, size_t bytes)
{
	uint64_t bucket[LATENCY_BUCKETS];

	if (buckets_between(now, before, bucket))
		text_ns(latency_quantile_ns(bucket, permille), ret, bytes);
	else
		snprintf(ret, bytes, "-");
}

static void percent(double part, double whole, char *ret, size_t bytes)
{
	if (whole > 0)
		snprintf(ret, bytes, "%.1f%%", 100 * part / whole);
	else
		snprintf(ret, bytes, "-");
}

/* ---- the parts ------------------------------------------------------------------------------- */

static void print_head(struct paper *p, const struct frame *f)
{
	char up[32];

	text_duration((uint64_t)json_number(f->now, "uptime_ms"), up, sizeof(up));
	line(p, "peercache %s  cluster %s  version %s  up %s", json_text(f->now, "name"),
		json_text(f->now, "cluster"), json_text(f->now, "version"), up);
}

static void print_health(struct paper *p, const struct frame *f)
{
	json_object *health = json_get(f->now, "health");
	json_object *findings = json_get(health, "findings");
	size_t n = json_length(findings), shown = n > FINDINGS_SHOWN ? FINDINGS_SHOWN - 1 : n;

	if (f->age_ms > STALE_MS)
		line(p, "health   NO ANSWER for %lu s: the figures are of that time",
			f->age_ms / 1000);
	else
		line(p, "health   %s", json_text(health, "worst"));
	for (size_t i = 0; i < shown; i++) {
		json_object *finding = json_at(findings, i);

		line(p, "  %-8s %s: %s", json_text(finding, "severity"), json_text(finding, "id"),
			json_text(finding, "text"));
	}
	if (shown < n)
		line(p, "  %zu more: peercachectl health", n - shown);
}

static void print_members(struct paper *p, const struct frame *f)
{
	json_object *members = json_get(f->now, "members");
	size_t n = json_length(members), silent = 0, others = 0;

	for (size_t i = 0; i < n; i++) {
		json_object *member = json_at(members, i);

		silent += !strcmp(json_text(member, "state"), "silent");
		others += strcmp(json_text(member, "software"), json_text(f->now, "version")) != 0;
	}
	n += (size_t)json_number(f->now, "members_unlisted");
	line(p, "members  %zu up, %zu silent, %zu down; %zu of another version", n - silent, silent,
		json_length(json_get(f->now, "members_down")) +
			(size_t)json_number(f->now, "members_down_unlisted"),
		others);
}

static void print_call(struct paper *p, const struct frame *f, const char *op)
{
	json_object *now = json_get(json_get(f->now, "calls"), op);
	json_object *before = json_get(json_get(f->before, "calls"), op);
	json_object *buckets = json_get(json_get(f->now, "latency"), op);
	json_object *past = json_get(json_get(f->before, "latency"), op);
	double pages = grown(now, before, "pages"), seconds = seconds_between(f);
	char rates[3][16] = {"-", "-", "-"}, share[3][16] = {"", "", ""}, latency[3][16], path[32];
	bool get = !strcmp(op, "get");

	if (seconds > 0) {
		text_count(pages / seconds, rates[0], sizeof(rates[0]));
		text_count(grown(now, before, "batches") / seconds, rates[1], sizeof(rates[1]));
		snprintf(path, sizeof(path), "calls.%s_bytes", op);
		if (strcmp(op, "exists"))
			text_count(rate(f, path) / 1e6, rates[2], sizeof(rates[2]));
	}
	if (strcmp(op, "set"))
		percent(grown(now, before, "hit"), pages, share[0], sizeof(share[0]));
	if (get) {
		percent(grown(f->now, f->before, "calls.get_local"), pages, share[1],
			sizeof(share[1]));
		percent(grown(f->now, f->before, "calls.get_remote"), pages, share[2],
			sizeof(share[2]));
	}
	percentile(buckets, past, 500, latency[0], sizeof(latency[0]));
	percentile(buckets, past, 990, latency[1], sizeof(latency[1]));
	percentile(buckets, past, 999, latency[2], sizeof(latency[2]));
	line(p, "%-6s %8s %9s %8s %6s %6s %6s %7s %7s %7s", op, rates[0], rates[1], rates[2],
		share[0], share[1], share[2], latency[0], latency[1], latency[2]);
}

static void print_calls(struct paper *p, const struct frame *f)
{
	line(p, "%s", "");
	line(p, "%-6s %8s %9s %8s %6s %6s %6s %7s %7s %7s", "call", "pages/s", "batches/s", "MB/s",
		"hit", "local", "remote", "p50", "p99", "p99.9");
	print_call(p, f, "get");
	print_call(p, f, "set");
	print_call(p, f, "exists");
}

static void print_rail(struct paper *p, const struct frame *f, size_t i)
{
	json_object *now = json_at(json_get(f->now, "rails"), i);
	json_object *before = json_at(json_get(f->before, "rails"), i);
	size_t poll_core = (size_t)json_number(now, "poll_core");
	json_object *core = json_at(json_get(f->now, "poll_cores"), poll_core);
	json_object *core_before = json_at(json_get(f->before, "poll_cores"), poll_core);
	double pool = (double)json_number(now, "pool_bytes"), seconds = seconds_between(f);
	char size[16], used[16], pages[16], speed[16] = "-", gaps[16] = "-", worst[16], p99[16];

	text_bytes(pool, size, sizeof(size));
	percent((double)json_number(now, "pool_used_bytes"), pool, used, sizeof(used));
	text_count((double)json_number(now, "pages"), pages, sizeof(pages));
	if (seconds > 0) {
		text_count(grown(now, before, "counters.bytes_read") / seconds / 1e6, speed,
			sizeof(speed));
		text_count(
			grown(core, core_before, "gaps_over_10us") / seconds, gaps, sizeof(gaps));
	}
	percentile(json_at(json_get(json_get(f->now, "latency"), "rails"), i),
		json_at(json_get(json_get(f->before, "latency"), "rails"), i), 990, p99,
		sizeof(p99));
	text_ns((uint64_t)json_number(core, "gap_worst_ns"), worst, sizeof(worst));
	line(p, "%-4zu %-5s %9s %6s %7s %9s %9ld %8s %7s %6s", i, json_text(now, "state"), size,
		used, pages, speed, (long)json_number(now, "in_flight"), p99, gaps, worst);
}

static void print_rails(struct paper *p, const struct frame *f)
{
	size_t n = json_length(json_get(f->now, "rails")), room, shown;

	line(p, "%s", "");
	line(p, "%-4s %-5s %9s %6s %7s %9s %9s %8s %7s %6s", "rail", "state", "pool", "used",
		"pages", "read MB/s", "in flight", "READ p99", "gaps/s", "worst");
	room = p->left > LINES_BELOW ? p->left - LINES_BELOW : 0;
	shown = n <= room ? n : room ? room - 1 : 0;
	for (size_t i = 0; i < shown; i++)
		print_rail(p, f, i);
	if (shown < n && room)
		line(p, "%zu more rails: peercachectl status", n - shown);
}

static void print_pool(struct paper *p, const struct frame *f)
{
	double bytes = rails_sum(f->now, "pool_bytes"), used = rails_sum(f->now, "pool_used_bytes");
	char size[16], full[16], share[16], evicted[16], refused[16];

	text_bytes(bytes, size, sizeof(size));
	text_bytes(used, full, sizeof(full));
	percent(used, bytes, share, sizeof(share));
	text_count(rate(f, "counters.pages_evicted"), evicted, sizeof(evicted));
	text_count(rate(f, "counters.credits_refused"), refused, sizeof(refused));
	line(p, "pool       %s of %s, %s; pages/s evicted %s, refused %s", full, size, share,
		evicted, refused);
}

static void print_directory(struct paper *p, const struct frame *f)
{
	double entries = (double)report_number(f->now, "shard.entries");
	double capacity = (double)report_number(f->now, "shard.capacity");
	char count[16], room[16], share[16], dropped[16];

	text_count(entries, count, sizeof(count));
	text_count(capacity, room, sizeof(room));
	percent(entries, capacity, share, sizeof(share));
	text_count(rate(f, "counters.entries_dropped"), dropped, sizeof(dropped));
	line(p, "directory  %s of %s entries, %s; %s/s dropped; %s; %ld owners behind", count, room,
		share, dropped, report_number(f->now, "directory.moving") ? "moving" : "not moving",
		(long)report_number(f->now, "directory.owners_behind"));
}

static void print_clients(struct paper *p, const struct frame *f)
{
	char lag[16], worst[16];

	percentile(json_get(json_get(f->now, "latency"), "loop"),
		json_get(json_get(f->before, "latency"), "loop"), 990, lag, sizeof(lag));
	text_ns((uint64_t)report_number(f->now, "loop_lag.worst_ns"), worst, sizeof(worst));
	line(p, "clients    %ld sessions, %ld channels; control plane lag p99 %s, worst %s",
		(long)report_number(f->now, "clients.sessions"),
		(long)report_number(f->now, "clients.channels"), lag, worst);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void add_percentiles(json_object *o, json_object *now, json_object *before)
{
	static const struct {
		const char *name;
		unsigned permille;
	} at[] = {{"p50_ns", 500}, {"p99_ns", 990}, {"p999_ns", 999}};
	uint64_t bucket[LATENCY_BUCKETS], count = buckets_between(now, before, bucket);

	for (unsigned i = 0; i < 3; i++)
		add_number(o, at[i].name, count ? latency_quantile_ns(bucket, at[i].permille) : 0);
}

static json_object *call_json(const struct frame *f, const char *op)
{
	json_object *now = json_get(json_get(f->now, "calls"), op), *o = json_object_new_object();
	json_object *before = json_get(json_get(f->before, "calls"), op);
	double seconds = seconds_between(f), per = seconds > 0 ? 1 / seconds : 0;
	char path[32];

	snprintf(path, sizeof(path), "calls.%s_bytes", op);
	add_real(o, "pages_per_second", grown(now, before, "pages") * per);
	add_real(o, "hits_per_second", grown(now, before, "hit") * per);
	add_real(o, "batches_per_second", grown(now, before, "batches") * per);
	if (strcmp(op, "exists") != 0)
		add_real(o, "bytes_per_second", rate(f, path));
	add_percentiles(o, json_get(json_get(f->now, "latency"), op),
		json_get(json_get(f->before, "latency"), op));
	return o;
}

json_object *frame_json(const struct frame *f)
{
	static const char *const ops[] = {"get", "set", "exists"};
	json_object *o = json_object_new_object(), *calls = json_object_new_object();

	add_real(o, "seconds", seconds_between(f));
	for (unsigned i = 0; i < 3; i++)
		json_object_object_add(calls, ops[i], call_json(f, ops[i]));
	json_object_object_add(o, "calls", calls);
	add_real(o, "pages_evicted_per_second", rate(f, "counters.pages_evicted"));
	add_real(o, "entries_dropped_per_second", rate(f, "counters.entries_dropped"));
	json_object_object_add(o, "health", json_object_get(json_get(f->now, "health")));
	json_object_object_add(o, "report", json_object_get(f->now));
	return o;
}

void frame_print(const struct frame *frame, FILE *out)
{
	struct paper p = {out, frame->rows, frame->columns};

	print_head(&p, frame);
	print_health(&p, frame);
	print_members(&p, frame);
	print_calls(&p, frame);
	print_rails(&p, frame);
	line(&p, "%s", "");
	print_pool(&p, frame);
	print_directory(&p, frame);
	print_clients(&p, frame);
}
