/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One picture of `peercachectl top`: the questions of the dashboard in lines of text, from a report
 * of the engine. Any thread; no state of its own.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "config/text_fit.h"
#include "tools/common.h"
#include "tools/ctl.h"

#define FINDINGS_SHOWN 4u
/* lines below the rails: a blank one, pool, usable, directory, clients, the keys */
#define LINES_BELOW 6u
#define STALE_MS 2500u /* a report this old is called stale */

struct paper {
	FILE *out;
	unsigned left, columns;
	const char *line_begin;
};

/* Where columns of a table end. */
static const unsigned char call_stops[] = {6, 15, 25, 34, 41, 48, 55, 63, 71, 79, 0},
			   rail_stops[] = {4, 10, 20, 27, 35, 45, 55, 64, 72, 79, 0};

/*
 * How much of a line of a table fits: whole columns. Of a line without `stops`: whole parts of the
 * sentence, or whole words that end with no number, whose unit would be missing.
 */
static size_t line_fits(const struct paper *p, const unsigned char *stops, const char *text)
{
	size_t end = p->columns, part = 0;

	if (strlen(text) <= end)
		return strlen(text);
	for (unsigned i = 0; stops && stops[i] && stops[i] <= p->columns; i++)
		part = stops[i];
	for (size_t i = 1; !stops && i < end; i++)
		if (text[i + 1] == ' ' && strchr(",;", text[i]))
			part = i;
	if (part && !stops)
		return part;
	end = part ? part : end;
	for (;; end--) {
		while (end && text[end] != ' ')
			end--;
		while (end && text[end - 1] == ' ')
			end--;
		if (stops || !end || text[end - 1] < '0' || text[end - 1] > '9')
			return end;
	}
}

/* One line without its end, of which only what the width has room for. */
__attribute__((format(printf, 3, 4))) static void row(
	struct paper *p, const unsigned char *stops, const char *format, ...)
{
	char text[512], plain[512];
	va_list arguments;

	if (!p->left)
		return;
	p->left--;
	va_start(arguments, format);
	text_vfit(text, sizeof(text), format, arguments);
	va_end(arguments);
	text_plain(text, plain, sizeof(plain));
	fprintf(p->out, "%s%.*s\n", p->line_begin, (int)line_fits(p, stops, plain), plain);
}

#define line(p, ...) row(p, NULL, __VA_ARGS__)

/* ---- figures --------------------------------------------------------------------------------- */

/* A figure of the engine, a rail or a poll core in a report; -1: it is not there. */
static double frame_figure(json_object *of, const char *name)
{
	json_object *value = json_get(json_get(of, "recent"), name);

	if (!value)
		value = json_get(json_get(of, "figures"), name);
	return value ? json_object_get_double(value) : -1;
}

static const char *text_time(double seconds, char ret[WORDS_BYTES])
{
	return seconds < 0 ? "-" : text_ns((uint64_t)(seconds * 1e9), ret);
}

static const char *text_ratio(double ratio, char ret[WORDS_BYTES])
{
	snprintf(ret, WORDS_BYTES, ratio < 0 ? "-" : "%.1f%%", 100 * ratio);
	return ret;
}

static const char *text_rate(double per_second, char ret[WORDS_BYTES])
{
	return per_second < 0 ? "-" : text_count(per_second, ret);
}

/* ---- the parts ------------------------------------------------------------------------------- */

static void print_head(struct paper *p, const struct frame *f)
{
	char up[WORDS_BYTES];

	line(p, "peercache %s  cluster %s  version %s  up %s", json_text(f->report, "name"),
		json_text(f->report, "cluster"), json_text(f->report, "version"),
		text_duration((uint64_t)json_number(f->report, "uptime_ms"), up));
}

static void print_health(struct paper *p, const struct frame *f)
{
	json_object *health = json_get(f->report, "health");
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
	json_object *members = json_get(f->report, "members");
	size_t n = json_length(members), silent = 0, others = 0;

	for (size_t i = 0; i < n; i++) {
		json_object *member = json_at(members, i);
		const char *software = json_text(member, "software"); /* "": not known yet */

		silent += !strcmp(json_text(member, "state"), "silent");
		others += software[0] && strcmp(software, json_text(f->report, "version")) != 0;
	}
	n += (size_t)json_number(f->report, "members_unlisted");
	line(p, "members  %zu up, %zu silent, %zu down; %zu of another version", n - silent, silent,
		json_length(json_get(f->report, "members_down")) +
			(size_t)json_number(f->report, "members_down_unlisted"),
		others);
}

#define CALL_FORMAT "%-6s %8s %9s %8s %6s %6s %6s %7s %7s %7s"

/* A figure of a call; -1: it is not there, for calls have different ones. */
static double call_figure(json_object *report, const char *call, const char *what)
{
	char name[64];

	snprintf(name, sizeof(name), "%s_%s", call, what);
	return frame_figure(report, name);
}

static void print_call(struct paper *p, json_object *report, const char *call)
{
	static const char *const ratios[] = {"hit_ratio", "local_ratio", "remote_ratio"};
	static const char *const times[] = {"p50_seconds", "p99_seconds", "p999_seconds"};
	char pages[WORDS_BYTES], batches[WORDS_BYTES], bytes[WORDS_BYTES], text[6][WORDS_BYTES];
	const char *ratio[3], *time[3];

	for (unsigned i = 0; i < 3; i++) {
		ratio[i] = text_ratio(call_figure(report, call, ratios[i]), text[i]);
		time[i] = text_time(call_figure(report, call, times[i]), text[3 + i]);
	}
	row(p, call_stops, CALL_FORMAT, call,
		text_rate(call_figure(report, call, "pages_per_second"), pages),
		text_rate(call_figure(report, call, "batches_per_second"), batches),
		text_rate(call_figure(report, call, "bytes_per_second") / 1e6, bytes), ratio[0],
		ratio[1], ratio[2], time[0], time[1], time[2]);
}

static void print_calls(struct paper *p, json_object *report)
{
	line(p, "of the last %.0f s:", frame_figure(report, "seconds"));
	row(p, call_stops, CALL_FORMAT, "call", "pages/s", "batches/s", "MB/s", "hit", "local",
		"remote", "p50", "p99", "p99.9");
	print_call(p, report, "get");
	print_call(p, report, "set");
	print_call(p, report, "exists");
}

static void print_rail(struct paper *p, json_object *report, size_t i)
{
	json_object *rail = json_at(json_get(report, "rails"), i);
	size_t poll_core = (size_t)json_number(rail, "poll_core");
	json_object *core = json_at(json_get(report, "poll_cores"), poll_core);
	char size[WORDS_BYTES], used[WORDS_BYTES], pages[WORDS_BYTES], speed[WORDS_BYTES],
		gaps[WORDS_BYTES], worst[WORDS_BYTES], p99[WORDS_BYTES];

	row(p, rail_stops, "%-4zu %-5s %9s %6s %7s %9s %9.0f %8s %7s %6s", i,
		json_text(rail, "state"), text_bytes(frame_figure(rail, "rail_pool_bytes"), size),
		text_ratio(frame_figure(rail, "rail_pool_used_ratio"), used),
		text_count(frame_figure(rail, "rail_pages"), pages),
		text_count(frame_figure(rail, "rail_read_bytes_per_second") / 1e6, speed),
		frame_figure(rail, "rail_in_flight_operations"),
		text_time(frame_figure(rail, "rail_read_p99_seconds"), p99),
		text_count(frame_figure(core, "poll_core_gaps"), gaps),
		text_time(frame_figure(core, "poll_core_gap_worst_seconds"), worst));
}

static void print_rails(struct paper *p, json_object *report)
{
	size_t n = json_length(json_get(report, "rails")), room, shown;

	line(p, "%s", "");
	row(p, rail_stops, "%-4s %-5s %9s %6s %7s %9s %9s %8s %7s %6s", "rail", "state", "pool",
		"used", "pages", "read MB/s", "in flight", "READ p99", "gaps", "worst");
	room = p->left > LINES_BELOW ? p->left - LINES_BELOW : 0;
	shown = n <= room ? n : room ? room - 1 : 0;
	for (size_t i = 0; i < shown; i++)
		print_rail(p, report, i);
	if (shown < n && room)
		line(p, "%zu more rails: peercachectl status", n - shown);
}

static void print_pool(struct paper *p, json_object *report)
{
	char size[WORDS_BYTES], full[WORDS_BYTES], share[WORDS_BYTES], evicted[WORDS_BYTES],
		refused[WORDS_BYTES];

	line(p, "pool       %s of %s, %s; pages/s evicted %s; requests for room refused %s",
		text_bytes(frame_figure(report, "pool_used_bytes"), full),
		text_bytes(frame_figure(report, "pool_bytes"), size),
		text_ratio(frame_figure(report, "pool_used_ratio"), share),
		text_count(frame_figure(report, "evicted_pages_per_second"), evicted),
		text_count(frame_figure(report, "room_refused"), refused));
}

static void print_usable(struct paper *p, json_object *report)
{
	char usable[WORDS_BYTES], age[WORDS_BYTES], again[WORDS_BYTES];
	double seconds = frame_figure(report, "eviction_age_seconds");

	line(p, "usable     %s of exists; eviction age %s; %s back in a minute",
		text_ratio(frame_figure(report, "exists_usable_ratio"), usable),
		seconds < 0 ? "-" : text_duration((uint64_t)(seconds * 1e3), age),
		text_ratio(frame_figure(report, "again_soon_ratio"), again));
}

static void print_directory(struct paper *p, json_object *report)
{
	char count[WORDS_BYTES], room[WORDS_BYTES], share[WORDS_BYTES], dropped[WORDS_BYTES];

	line(p, "directory  %s of %s entries, %s; %s dropped; %s; %.0f owners behind",
		text_count(frame_figure(report, "directory_entries"), count),
		text_count(frame_figure(report, "directory_capacity_entries"), room),
		text_ratio(frame_figure(report, "directory_used_ratio"), share),
		text_count(frame_figure(report, "entries_dropped"), dropped),
		frame_figure(report, "directory_moving") > 0 ? "moving" : "not moving",
		frame_figure(report, "directory_owners_behind"));
}

static void print_clients(struct paper *p, json_object *report)
{
	char lag[WORDS_BYTES], worst[WORDS_BYTES];

	line(p, "clients    %.0f sessions, %.0f channels; control plane lag p99 %s, worst %s",
		frame_figure(report, "client_sessions"), frame_figure(report, "client_channels"),
		text_time(frame_figure(report, "loop_lag_p99_seconds"), lag),
		text_time(frame_figure(report, "loop_lag_worst_seconds"), worst));
}

void frame_print(const struct frame *frame, FILE *out)
{
	struct paper p = {
		out, frame->rows, frame->columns, frame->line_begin ? frame->line_begin : ""};

	print_head(&p, frame);
	print_health(&p, frame);
	print_members(&p, frame);
	print_calls(&p, frame->report);
	print_rails(&p, frame->report);
	line(&p, "%s", "");
	print_pool(&p, frame->report);
	print_usable(&p, frame->report);
	print_directory(&p, frame->report);
	print_clients(&p, frame->report);
}
