/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl status, members and health. `status` prints series as /metrics names them, without
 * the prefix peercache_. One thread.
 */
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "config/address_text.h"
#include "config/version.h"
#include "tools/common.h"
#include "tools/ctl.h"

/* ---- series ---------------------------------------------------------------------------------- */

/* Counters that are 0 are left out: there are many, and they tell nothing. */
static void print_series(const char *name, double value)
{
	size_t length = strcspn(name, "{");
	char text[WORDS_BYTES];

	if (value == 0 && length > 6 && !strncmp(name + length - 6, "_total", 6))
		return;
	if (value >= 1024 && strstr(name, "bytes"))
		printf("  %-52s %.12g (%s)\n", name, value, text_bytes(value, text));
	else
		printf("  %-52s %.12g\n", name, value);
}

/* The figures of the engine, of a rail or of a poll core. */
static void print_figures(json_object *of, const char *labels)
{
	char series[128];

	json_object_object_foreach (json_get(of, "figures"), name, value) {
		snprintf(series, sizeof(series), "%s%s", name, labels);
		print_series(series, json_object_get_double(value));
	}
}

/*
 * `prefix`: "rail_" or "". Two counters of rails have names of their own, those of poll_core_*.
 */
static void print_counters(json_object *o, const char *prefix, const char *labels)
{
	char series[128];

	json_object_object_foreach (o, name, value) {
		if (!strncmp(name, "poll_gap", 8))
			continue;
		snprintf(series, sizeof(series), "%s%s_total%s", prefix, name, labels);
		print_series(series, (double)json_object_get_int64(value));
	}
}

static void print_latency(const char *name, json_object *o)
{
	char p50[WORDS_BYTES], p99[WORDS_BYTES], p999[WORDS_BYTES];

	printf("  %-52s p50 %s, p99 %s, p99.9 %s\n", name,
		text_ns((uint64_t)json_number(o, "p50_ns"), p50),
		text_ns((uint64_t)json_number(o, "p99_ns"), p99),
		text_ns((uint64_t)json_number(o, "p999_ns"), p999));
}

static void print_calls(json_object *calls)
{
	char name[128];

	json_object_object_foreach (calls, op, call) {
		json_object_object_foreach (call, result, value) {
			if (!strcmp(result, "batches") || !strcmp(result, "pages") ||
				strstr(result, "_ns"))
				continue;
			snprintf(name, sizeof(name), "call_pages_total{op=\"%s\",result=\"%s\"}",
				op, result);
			print_series(name, (double)json_object_get_int64(value));
		}
		if (!json_number(call, "batches"))
			continue;
		snprintf(name, sizeof(name), "call_seconds{op=\"%s\"}", op);
		print_latency(name, call);
	}
}

static void print_rails(json_object *report)
{
	json_object *rails = json_get(report, "rails"), *cores = json_get(report, "poll_cores");
	char labels[32], name[128];

	for (size_t i = 0; i < json_length(rails); i++) {
		json_object *rail = json_at(rails, i);

		snprintf(labels, sizeof(labels), "{rail=\"%zu\"}", i);
		printf("rail %zu, %s\n", i, json_text(rail, "device"));
		snprintf(name, sizeof(name), "rail_state{rail=\"%zu\",state=\"%s\"}", i,
			json_text(rail, "state"));
		print_series(name, 1);
		print_figures(rail, labels);
		print_counters(json_get(rail, "counters"), "rail_", labels);
		snprintf(name, sizeof(name), "rail_read_seconds%s", labels);
		print_latency(name, json_get(rail, "read_latency"));
	}
	for (size_t i = 0; i < json_length(cores); i++) {
		snprintf(labels, sizeof(labels), "{core=\"%zu\"}", i);
		printf("poll core %zu\n", i);
		print_figures(json_at(cores, i), labels);
	}
}

/* One line for each directory of the disk tier. */
static void print_disk(json_object *report)
{
	json_object *paths = json_get(json_get(report, "disk"), "paths");
	char name[PLAIN_BYTES], reason[256];
	char used[WORDS_BYTES], bytes[WORDS_BYTES], queued[WORDS_BYTES];

	for (size_t i = 0; i < json_length(paths); i++) {
		json_object *path = json_at(paths, i);

		text_plain(json_text(path, "reason"), reason, sizeof(reason));
		printf("disk %zu, %s\n  %s%s%s; %s of %s sealed, %s queued, %d I/Os in flight, "
		       "%lld errors\n",
			i, json_plain(path, "directory", name), json_text(path, "state"),
			reason[0] ? ": " : "", reason,
			text_bytes((double)json_number(path, "used_bytes"), used),
			text_bytes((double)json_number(path, "bytes"), bytes),
			text_bytes((double)json_number(path, "queued_bytes"), queued),
			(int)json_number(path, "in_flight"),
			(long long)(json_number(path, "read_errors") +
				    json_number(path, "crc_errors") +
				    json_number(path, "io_errors")));
	}
}

/* ---- members --------------------------------------------------------------------------------- */

static void print_member(json_object *member, const char *state)
{
	char name[PLAIN_BYTES], address[PLAIN_BYTES], software[64], age[WORDS_BYTES];
	char place[ADDRESS_TEXT_BYTES];
	bool up = !strcmp(state, "up");

	text_plain(json_text(member, "software"), software, sizeof(software));
	printf("  %-24s %s %s%s%s%s%s%s%s\n", json_plain(member, "name", name),
		address_text(json_plain(member, "address", address),
			(unsigned)json_number(member, "port"), place),
		state, up ? "" : " for ",
		up ? "" : text_duration((uint64_t)json_number(member, "state_ms"), age),
		software[0] ? ", version " : "", software,
		json_get(member, "rails") && !json_number(member, "rails") ? ", a seed only" : "",
		json_flag(member, "self") ? ", this engine" : "");
}

static void print_age(const char *what, int64_t ms)
{
	char age[WORDS_BYTES];

	if (ms < 0) {
		printf(", never %s", what);
		return;
	}
	if (ms < 10000)
		snprintf(age, sizeof(age), "%.1f s", (double)ms / 1000);
	else
		text_duration((uint64_t)ms, age);
	printf(", %s %s ago", what, age);
}

/* What the engine exchanges with a member that is on its map. */
static void print_member_links(json_object *member)
{
	const char *suspect = json_text(member, "suspect");
	int64_t unserved_ms = json_number(member, "unserved_ms");

	if (json_flag(member, "self"))
		return;
	printf("    links %d", (int)json_number(member, "links"));
	print_age("heard", json_number(member, "heard_ms"));
	print_age("acknowledged", json_number(member, "served_ms"));
	print_age("served a probe", json_number(member, "probe_served_ms"));
	printf("\n    queued %ld, batches unacknowledged %ld, not awaited %ld",
		json_number(member, "queued"), json_number(member, "unacknowledged"),
		json_number(member, "unawaited"));
	if (unserved_ms)
		printf(", oldest waits %.1f s", (double)unserved_ms / 1000);
	if (json_number(member, "probe_unserved_ms"))
		printf(", probe waits %.1f s",
			(double)json_number(member, "probe_unserved_ms") / 1000);
	if (json_flag(member, "behind"))
		printf(", behind");
	printf("\n");
	if (*suspect)
		printf("    suspect: %s\n",
			!strcmp(suspect, "unserved") ? "requests wait for an answer"
			: !strcmp(suspect, "silent") ? "no heartbeats"
			: !strcmp(suspect, "unread") ? "reads of its memory hang"
						     : "no connection");
}

/* A member that was removed because it did not serve, and what it needs to come back. */
static void print_trial(json_object *member)
{
	int64_t trial_ms = json_number(member, "trial_ms");

	if (!json_flag(member, "unserving"))
		return;
	printf("    removed: it sent heartbeats and did not serve");
	print_age("served a probe", json_number(member, "probe_served_ms"));
	printf("\n    it must answer all probes for %.1f s",
		(double)json_number(member, "trial_needs_ms") / 1000);
	if (trial_ms < 0)
		printf(", and does not\n");
	else
		printf(", and has for %.1f s\n", (double)trial_ms / 1000);
}

/* Prints one line for each element of a list of the report: `who`, its address, `what` and why. */
static void print_strangers(json_object *list, const char *who, const char *what, int64_t count)
{
	char address[PLAIN_BYTES], why[512], age[WORDS_BYTES];

	for (size_t i = 0; i < json_length(list); i++) {
		json_object *one = json_at(list, i);

		printf("  %s %s %s for %s: %s\n", who, json_plain(one, "address", address),
			json_flag(one, "theirs") ? "refuses this one" : what,
			text_duration((uint64_t)json_number(one, "for_ms"), age),
			text_plain(json_text(one, "why"), why, sizeof(why)));
	}
	if (count > (int64_t)json_length(list))
		printf("  %lld more: %s %s\n", (long long)count - (long long)json_length(list), who,
			what);
}

/* Those that are not up first, then by name. */
static int member_compare(const void *one, const void *other)
{
	json_object *a = *(json_object *const *)one, *b = *(json_object *const *)other;
	bool a_up = !strcmp(json_text(a, "state"), "up"),
	     b_up = !strcmp(json_text(b, "state"), "up");

	return a_up != b_up ? a_up - b_up : strverscmp(json_text(a, "name"), json_text(b, "name"));
}

/* Sorts the two lists of members of a report, for the table and for --json. */
static void members_sort(json_object *report)
{
	static const char *const lists[] = {"members", "members_down"};

	for (unsigned i = 0; i < 2; i++)
		if (json_length(json_get(report, lists[i])))
			json_object_array_sort(json_get(report, lists[i]), member_compare);
}

static void print_members(json_object *report, bool links)
{
	json_object *up = json_get(report, "members"), *down = json_get(report, "members_down");
	json_object *figures = json_get(report, "figures");
	int64_t unlisted = json_number(report, "members_unlisted"),
		down_unlisted = json_number(report, "members_down_unlisted");
	size_t silent = 0;

	members_sort(report);
	for (size_t i = 0; i < json_length(up); i++)
		silent += strcmp(json_text(json_at(up, i), "state"), "up") != 0;
	printf("members: %zu down, %zu silent, %zu up\n", json_length(down) + (size_t)down_unlisted,
		silent, json_length(up) + (size_t)unlisted - silent);
	for (size_t i = 0; i < json_length(down); i++) {
		print_member(json_at(down, i), "down");
		if (links)
			print_trial(json_at(down, i));
	}
	for (size_t i = 0; i < json_length(up); i++) {
		json_object *member = json_at(up, i);

		print_member(member, json_text(member, "state"));
		if (links)
			print_member_links(member);
	}
	print_strangers(json_get(report, "seeds_silent"), "seed", "leads to no member",
		json_number(figures, "seeds_silent"));
	print_strangers(json_get(report, "engines_refused"), "engine at", "is refused",
		json_number(figures, "engines_refused"));
	if (unlisted + down_unlisted > 0)
		printf("%lld more members are not listed\n", (long long)(unlisted + down_unlisted));
}

int ctl_open(const struct ctl_run *ctl, struct pc **ret_pc)
{
	const struct pc_options options = {.socket = ctl->socket, .name_space = ctl->name_space};

	return pc_open_with_secret(&options, secret_file, ret_pc);
}

json_object *ctl_report(struct ctl_run *ctl)
{
	if (!ctl->pc && ctl_open(ctl, &ctl->pc))
		return NULL;
	return engine_report(ctl->pc);
}

static json_object *report_or_die(struct ctl_run *ctl)
{
	json_object *report = ctl_report(ctl);

	if (!report)
		die("%s", pc_error());
	return report;
}

static void print_members_json(json_object *report)
{
	static const char *const names[] = {"name", "members", "members_down", "members_unlisted",
		"members_down_unlisted", "seeds_silent", "engines_refused", "version"};
	/* both lists are short ones: the figures count all */
	static const char *const counts[] = {"seeds_silent", "engines_refused"};
	json_object *o = json_object_new_object(), *figures = json_object_new_object();

	members_sort(report);
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		json_object_object_add(o, names[i], json_object_get(json_get(report, names[i])));
	for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		json_object_object_add(figures, counts[i],
			json_object_get(json_get(json_get(report, "figures"), counts[i])));
	json_object_object_add(o, "figures", figures);
	print_json(o, stdout);
}

int ctl_members(struct ctl_run *ctl)
{
	json_object *report = report_or_die(ctl);

	if (ctl->json)
		print_members_json(report);
	else
		print_members(report, true);
	json_object_put(report);
	return 0;
}

static void print_heading(json_object *report)
{
	char name[PLAIN_BYTES], cluster[PLAIN_BYTES], up[WORDS_BYTES];
	char populated[WORDS_BYTES], all[WORDS_BYTES];
	json_object *health = json_get(report, "health"), *figures = json_get(report, "figures");
	double bytes = json_real(figures, "memory_populated_bytes"),
	       of = json_real(figures, "memory_bytes");
	size_t n = json_length(json_get(health, "findings"));

	printf("%s, cluster %s, version %s, pid %d, up %s\n", json_plain(report, "name", name),
		json_plain(report, "cluster", cluster), json_text(report, "version"),
		(int)json_number(report, "pid"),
		text_duration((uint64_t)json_number(report, "uptime_ms"), up));
	printf("health: %s", json_text(health, "worst"));
	if (n)
		printf(", %zu finding%s: see peercachectl health", n, n == 1 ? "" : "s");
	printf("\n");
	if (bytes < of)
		printf("memory: %s of %s are populated\n", text_bytes(bytes, populated),
			text_bytes(of, all));
}

int ctl_status(struct ctl_run *ctl)
{
	json_object *report = report_or_die(ctl);

	if (ctl->json) {
		print_json(json_object_get(report), stdout);
	} else {
		print_heading(report);
		print_members(report, false);
		printf("engine\n");
		print_figures(report, "");
		print_counters(json_get(report, "counters"), "", "");
		print_calls(json_get(report, "calls"));
		print_latency("loop_lag_seconds", json_get(report, "loop_lag"));
		print_disk(report);
		print_rails(report);
	}
	json_object_put(report);
	return 0;
}

/* ---- health ---------------------------------------------------------------------------------- */

int ctl_no_answer(const struct ctl_run *ctl, const char *why)
{
	if (ctl->json) {
		json_object *o = json_object_new_object();

		add_text(o, "worst", "no answer");
		add_text(o, "error", why);
		print_json(o, stdout);
	} else {
		printf("no answer: %s\n", why);
	}
	fflush(stdout);
	return CTL_NO_ANSWER;
}

static bool deadline_json;

/* A signal handler: nothing but write() and _exit(). */
static void deadline_passed(int signal)
{
	static const char text[] = "no answer: the engine did not answer in time\n";
	static const char json[] =
		"{ \"worst\": \"no answer\", \"error\": \"not in time\", \"version\": \"" PEERCACHE_VERSION
		"\", \"json_version\": " JSON_VERSION_TEXT " }\n";

	(void)signal;
	if (deadline_json)
		(void)!write(STDOUT_FILENO, json, sizeof(json) - 1);
	else
		(void)!write(STDOUT_FILENO, text, sizeof(text) - 1);
	_exit(CTL_NO_ANSWER);
}

void ctl_deadline(const struct ctl_run *ctl)
{
	const struct itimerval in = {.it_value = {.tv_sec = ctl->timeout_ms / 1000,
					     .tv_usec = ctl->timeout_ms % 1000 * 1000}};

	deadline_json = ctl->json;
	signal(SIGALRM, deadline_passed);
	setitimer(ITIMER_REAL, &in, NULL);
}

static void print_findings(json_object *report, json_object *health)
{
	json_object *findings = json_get(health, "findings");
	size_t n = json_length(findings);
	char text[256];

	printf("%s: %s: %zu finding%s\n", json_text(health, "worst"),
		text_plain(json_text(report, "name"), text, sizeof(text)), n, n == 1 ? "" : "s");
	for (size_t i = 0; i < n; i++) {
		json_object *finding = json_at(findings, i);

		printf("%-9s %s: %s\n", json_text(finding, "severity"), json_text(finding, "id"),
			text_plain(json_text(finding, "text"), text, sizeof(text)));
		printf("%-9s %s\n", "", json_text(finding, "means"));
	}
}

int ctl_health(struct ctl_run *ctl)
{
	json_object *report, *health;
	const char *worst;
	int status = 0;

	ctl_deadline(ctl);
	report = ctl_report(ctl);
	if (!report)
		return ctl_no_answer(ctl, pc_error());
	health = json_get(report, "health");
	if (!health)
		return ctl_no_answer(ctl, "the report of the engine has no findings");
	worst = json_text(health, "worst");
	if (!strcmp(worst, "warning"))
		status = 1;
	else if (!strcmp(worst, "critical"))
		status = 2;
	if (ctl->json) {
		json_object_object_add(health, "name", json_object_get(json_get(report, "name")));
		print_json(json_object_get(health), stdout);
	} else {
		print_findings(report, health);
	}
	json_object_put(report);
	return status;
}
