/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl top: the questions of the dashboard in lines of text, from a report of the engine;
 * every second, or once. One thread.
 */
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "config/text_fit.h"
#include "tools/common.h"
#include "tools/ctl.h"

/* What is shown of lists: with the other lines no more than 24. */
#define FINDINGS_SHOWN 4u
#define RAILS_SHOWN 5u
#define COLUMNS 80

/* One line, cut at a word to COLUMNS. */
__attribute__((format(printf, 2, 3))) static void line(FILE *out, const char *format, ...)
{
	char text[COLUMNS + 1], plain[COLUMNS + 1];
	va_list arguments;

	va_start(arguments, format);
	text_vfit(text, sizeof(text), format, arguments);
	va_end(arguments);
	fprintf(out, "%s\n", text_plain(text, plain, sizeof(plain)));
}

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

static void print_head(FILE *out, json_object *report)
{
	char up[WORDS_BYTES];

	line(out, "peercache %s  cluster %s  version %s  up %s", json_text(report, "name"),
		json_text(report, "cluster"), json_text(report, "version"),
		text_duration((uint64_t)json_number(report, "uptime_ms"), up));
}

static void print_health(FILE *out, json_object *report)
{
	json_object *health = json_get(report, "health");
	json_object *findings = json_get(health, "findings");
	size_t n = json_length(findings), shown = n > FINDINGS_SHOWN ? FINDINGS_SHOWN - 1 : n;

	line(out, "health   %s", json_text(health, "worst"));
	for (size_t i = 0; i < shown; i++) {
		json_object *finding = json_at(findings, i);

		line(out, "  %-8s %s: %s", json_text(finding, "severity"), json_text(finding, "id"),
			json_text(finding, "text"));
	}
	if (shown < n)
		line(out, "  %zu more: peercachectl health", n - shown);
}

static void print_members(FILE *out, json_object *report)
{
	json_object *members = json_get(report, "members");
	size_t n = json_length(members), silent = 0, others = 0;

	for (size_t i = 0; i < n; i++) {
		json_object *member = json_at(members, i);
		const char *software = json_text(member, "software"); /* "": not known yet */

		silent += !strcmp(json_text(member, "state"), "silent");
		others += software[0] && strcmp(software, json_text(report, "version")) != 0;
	}
	n += (size_t)json_number(report, "members_unlisted");
	line(out, "members  %zu up, %zu silent, %zu down; %zu of another version", n - silent,
		silent,
		json_length(json_get(report, "members_down")) +
			(size_t)json_number(report, "members_down_unlisted"),
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

static void print_call(FILE *out, json_object *report, const char *call)
{
	static const char *const ratios[] = {"hit_ratio", "local_ratio", "remote_ratio"};
	static const char *const times[] = {"p50_seconds", "p99_seconds", "p999_seconds"};
	char pages[WORDS_BYTES], batches[WORDS_BYTES], bytes[WORDS_BYTES], text[6][WORDS_BYTES];
	const char *ratio[3], *time[3];

	for (unsigned i = 0; i < 3; i++) {
		ratio[i] = text_ratio(call_figure(report, call, ratios[i]), text[i]);
		time[i] = text_time(call_figure(report, call, times[i]), text[3 + i]);
	}
	line(out, CALL_FORMAT, call,
		text_rate(call_figure(report, call, "pages_per_second"), pages),
		text_rate(call_figure(report, call, "batches_per_second"), batches),
		text_rate(call_figure(report, call, "bytes_per_second") / 1e6, bytes), ratio[0],
		ratio[1], ratio[2], time[0], time[1], time[2]);
}

static void print_calls(FILE *out, json_object *report)
{
	line(out, "of the last %.0f s:", frame_figure(report, "seconds"));
	line(out, CALL_FORMAT, "call", "pages/s", "batches/s", "MB/s", "hit", "local", "remote",
		"p50", "p99", "p99.9");
	print_call(out, report, "get");
	print_call(out, report, "set");
	print_call(out, report, "exists");
}

static void print_rail(FILE *out, json_object *report, size_t i)
{
	json_object *rail = json_at(json_get(report, "rails"), i);
	size_t poll_core = (size_t)json_number(rail, "poll_core");
	json_object *core = json_at(json_get(report, "poll_cores"), poll_core);
	char size[WORDS_BYTES], used[WORDS_BYTES], pages[WORDS_BYTES], speed[WORDS_BYTES],
		gaps[WORDS_BYTES], worst[WORDS_BYTES], p99[WORDS_BYTES];

	line(out, "%-4zu %-5s %9s %6s %7s %9s %9.0f %8s %7s %6s", i, json_text(rail, "state"),
		text_bytes(frame_figure(rail, "rail_pool_bytes"), size),
		text_ratio(frame_figure(rail, "rail_pool_used_ratio"), used),
		text_count(frame_figure(rail, "rail_pages"), pages),
		text_count(frame_figure(rail, "rail_read_bytes_per_second") / 1e6, speed),
		frame_figure(rail, "rail_in_flight_operations"),
		text_time(frame_figure(rail, "rail_read_p99_seconds"), p99),
		text_count(frame_figure(core, "poll_core_gaps"), gaps),
		text_time(frame_figure(core, "poll_core_gap_worst_seconds"), worst));
}

static void print_rails(FILE *out, json_object *report)
{
	size_t n = json_length(json_get(report, "rails"));
	size_t shown = n > RAILS_SHOWN ? RAILS_SHOWN - 1 : n;

	line(out, "%s", "");
	line(out, "%-4s %-5s %9s %6s %7s %9s %9s %8s %7s %6s", "rail", "state", "pool", "used",
		"pages", "read MB/s", "in flight", "READ p99", "gaps", "worst");
	for (size_t i = 0; i < shown; i++)
		print_rail(out, report, i);
	if (shown < n)
		line(out, "%zu more rails: peercachectl status", n - shown);
}

static void print_pool(FILE *out, json_object *report)
{
	char size[WORDS_BYTES], full[WORDS_BYTES], share[WORDS_BYTES], evicted[WORDS_BYTES],
		refused[WORDS_BYTES];

	line(out, "pool       %s of %s, %s; pages/s evicted %s; requests for room refused %s",
		text_bytes(frame_figure(report, "pool_used_bytes"), full),
		text_bytes(frame_figure(report, "pool_bytes"), size),
		text_ratio(frame_figure(report, "pool_used_ratio"), share),
		text_count(frame_figure(report, "evicted_pages_per_second"), evicted),
		text_count(frame_figure(report, "room_refused"), refused));
}

static void print_usable(FILE *out, json_object *report)
{
	char usable[WORDS_BYTES], age[WORDS_BYTES], again[WORDS_BYTES];
	double seconds = frame_figure(report, "eviction_age_seconds");

	line(out, "usable     %s of exists; eviction age %s; %s back in a minute",
		text_ratio(frame_figure(report, "exists_usable_ratio"), usable),
		seconds < 0 ? "-" : text_duration((uint64_t)(seconds * 1e3), age),
		text_ratio(frame_figure(report, "again_soon_ratio"), again));
}

static void print_directory(FILE *out, json_object *report)
{
	char count[WORDS_BYTES], room[WORDS_BYTES], share[WORDS_BYTES], dropped[WORDS_BYTES];

	line(out, "directory  %s of %s entries, %s; %s dropped; %s; %.0f owners behind",
		text_count(frame_figure(report, "directory_entries"), count),
		text_count(frame_figure(report, "directory_capacity_entries"), room),
		text_ratio(frame_figure(report, "directory_used_ratio"), share),
		text_count(frame_figure(report, "entries_dropped"), dropped),
		frame_figure(report, "directory_moving") > 0 ? "moving" : "not moving",
		frame_figure(report, "directory_owners_behind"));
}

static void print_clients(FILE *out, json_object *report)
{
	char lag[WORDS_BYTES], worst[WORDS_BYTES];

	line(out, "clients    %.0f sessions, %.0f channels; control plane lag p99 %s, worst %s",
		frame_figure(report, "client_sessions"), frame_figure(report, "client_channels"),
		text_time(frame_figure(report, "loop_lag_p99_seconds"), lag),
		text_time(frame_figure(report, "loop_lag_worst_seconds"), worst));
}

static void picture_print(json_object *report, FILE *out)
{
	print_head(out, report);
	print_health(out, report);
	print_members(out, report);
	print_calls(out, report);
	print_rails(out, report);
	line(out, "%s", "");
	print_pool(out, report);
	print_usable(out, report);
	print_directory(out, report);
	print_clients(out, report);
}

#define SCREEN_CLEAR "\033[H\033[J"

/* Until a signal ends the program. */
static int top_live(struct ctl_run *ctl)
{
	if (!isatty(STDOUT_FILENO))
		die("top needs a terminal; top --once prints one picture");
	for (;;) {
		json_object *report = ctl_report(ctl);

		fputs(SCREEN_CLEAR, stdout);
		if (report)
			picture_print(report, stdout);
		else
			printf("no answer: %s\n", pc_error());
		if (fflush(stdout))
			die("the terminal: %s", strerror(errno));
		json_object_put(report);
		sleep(1);
	}
}

static int top_once(struct ctl_run *ctl)
{
	json_object *report;

	ctl_deadline(ctl);
	report = ctl_report(ctl);
	if (!report)
		return ctl_no_answer(ctl, pc_error());
	if (ctl->json)
		print_json(json_object_get(report), stdout);
	else
		picture_print(report, stdout);
	json_object_put(report);
	return 0;
}

int ctl_top(struct ctl_run *ctl)
{
	if (ctl->json && !ctl->once)
		die("top --json prints one document: give --once, too");
	return ctl->once ? top_once(ctl) : top_live(ctl);
}
