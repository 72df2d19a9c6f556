/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl doctor: reads the settings, asks the engine that runs for its report, runs the
 * checks of engine/doctor and prints what they find. One thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/settings.h"
#include "engine/doctor/doctor.h"
#include "tools/common.h"
#include "tools/ctl.h"

static_assert(DOCTOR_PEERS < DOCTOR_PEERS_MAX, "a NULL ends the peers");

/* ---- the settings ---------------------------------------------------------------------------- */

static void settings_read(const struct ctl_run *ctl, struct settings *s)
{
	char err[SETTINGS_ERR_BYTES] = "";

	if (settings_default(s) < 0)
		die("the defaults of the settings are wrong");
	/* as the engine does it: files first */
	for (unsigned i = 0; i < ctl->arguments; i += 2)
		if (!strcmp(ctl->argument[i], "--config") &&
			settings_load(s, ctl->argument[i + 1], err, sizeof(err)) < 0)
			die("%s", err);
	for (unsigned i = 0; i < ctl->arguments; i += 2)
		if (!strcmp(ctl->argument[i], "--set") &&
			settings_override(s, ctl->argument[i + 1], err, sizeof(err)) < 0)
			die("%s", err);
	if (settings_check(s, err, sizeof(err)) < 0)
		die("%s", err);
}

/*
 * The settings of the running engine, as arguments, too: the doctor passes them on. The engine may
 * be of another version: what this one does not know is left out, as are defaults.
 */
static void settings_take(struct ctl_run *ctl, json_object *report, struct settings *s)
{
	json_object *settings = json_get(report, "settings");

	if (!settings || !json_object_is_type(settings, json_type_object))
		return;
	json_object_object_foreach (settings, name, value) {
		char err[SETTINGS_ERR_BYTES];
		struct settings before = *s;
		bool same;
		const char *word = json_object_get_string(value);
		char *text;

		if (json_object_is_type(value, json_type_boolean))
			word = json_object_get_boolean(value) ? "yes" : "no";
		if (asprintf(&text, "%s=%s", name, word) < 0)
			die("no memory");
		same = settings_override(s, text, err, sizeof(err)) < 0;
		memcpy(s->given, before.given, sizeof(before.given));
		same |= memcmp(&before, s, sizeof(before)) == 0;
		if (same || ctl->arguments + 2 > DOCTOR_ARGUMENTS) {
			*s = before;
			free(text);
			continue;
		}
		ctl->argument[ctl->arguments++] = (char *)"--set";
		ctl->argument[ctl->arguments++] = text; /* until the program ends */
	}
}

/* ---- the engine ------------------------------------------------------------------------------ */

#define ANSWER_BYTES (4u << 20) /* of a report, with the letter in front of it */

struct report_ask {
	const struct ctl_run *ctl;
	const char *socket;
};

/* The child: writes 'R' and the report, 'U' and why the engine could not be asked, or nothing. */
static void report_write(void *context, int fd)
{
	const struct report_ask *ask = context;
	const struct pc_options options = {
		.socket = ask->socket, .name_space = ask->ctl->name_space};
	struct pc *pc;
	int rc = pc_open(&options, &pc);
	char *text;

	if (rc == -ENOENT || rc == -ECONNREFUSED)
		return;
	if (rc < 0 || pc_report(pc, &text) < 0)
		rc = dprintf(fd, "U%s", pc_error());
	else
		rc = dprintf(fd, "R%s", text);
	if (rc < 0)
		_exit(1);
}

/*
 * The report of the engine with this socket; the caller frees it. NULL: none runs, or it could not
 * be asked, for the reason in `unasked`. A child asks, which ends with the time: an engine that
 * hangs answers no call.
 */
static json_object *report_find(
	const struct ctl_run *ctl, const char *socket, char *unasked, size_t bytes)
{
	struct report_ask ask = {.ctl = ctl, .socket = socket};
	char *answer = malloc(ANSWER_BYTES);
	json_object *report = NULL;
	int status =
		answer ? doctor_child(report_write, &ask, ctl->timeout_ms, answer, ANSWER_BYTES)
		       : -ENOMEM;

	if (status == -ETIME)
		snprintf(unasked, bytes, "no answer within %u ms; the engine hangs",
			ctl->timeout_ms);
	else if (status > 0 || status == -EINTR)
		snprintf(unasked, bytes, "the process that asks it failed");
	else if (status < 0)
		die("asking the engine: %s", strerror(-status));
	else if (answer[0] == 'R' && !(report = json_tokener_parse(answer + 1)))
		snprintf(unasked, bytes, "its report is not JSON");
	else if (answer[0] == 'U')
		snprintf(unasked, bytes, "%s", answer + 1);
	free(answer);
	return report;
}

/* ---- printing -------------------------------------------------------------------------------- */

static json_object *writes_json(const struct doctor_finding *f)
{
	json_object *list = json_object_new_array();

	for (unsigned i = 0; i < f->writes; i++) {
		json_object *o = json_object_new_object();

		add_text(o, "file", f->write[i].file);
		add_text(o, "value", f->write[i].value);
		json_object_array_add(list, o);
	}
	return list;
}

static void doctor_json(const struct doctor *d)
{
	json_object *o = json_object_new_object(), *list = json_object_new_array();
	const struct doctor_finding *f;

	for (unsigned i = 0; (f = doctor_finding(d, i)) != NULL; i++) {
		json_object *one = json_object_new_object();

		add_text(one, "check", f->check);
		add_text(one, "state", doctor_state_name(f->state));
		add_text(one, "where", f->where);
		add_text(one, "text", f->text);
		add_text(one, "fix", f->fix ? f->fix : "");
		json_object_object_add(one, "writes", writes_json(f));
		add_text(one, "explain", doctor_explain(f->check));
		json_object_array_add(list, one);
	}
	add_number(o, "found", doctor_count(d, DOCTOR_FOUND));
	add_number(o, "unknown", doctor_count(d, DOCTOR_UNKNOWN));
	add_number(o, "huge_pages", doctor_huge_pages(d));
	json_object_object_add(o, "findings", list);
	print_json(o, stdout);
}

/* What is to be mended first, then what is not known; the rest in the order of the checks. */
static void doctor_text(const struct doctor *d)
{
	static const enum doctor_state order[] = {
		DOCTOR_OK, DOCTOR_NONE, DOCTOR_UNKNOWN, DOCTOR_FOUND};
	const struct doctor_finding *f;
	char text[512];

	for (unsigned n = 0; n < sizeof(order) / sizeof(order[0]); n++) {
		for (unsigned i = 0; (f = doctor_finding(d, i)) != NULL; i++) {
			if (f->state != order[n])
				continue;
			text_plain(f->text, text, sizeof(text));
			printf("%-8s %s: %s: %s\n", doctor_state_name(f->state), f->check, f->where,
				text);
			if (f->fix && f->state != DOCTOR_OK)
				printf("%-8s fix: %s\n", "", f->fix);
		}
	}
	printf("%u to mend, %u not known\n", doctor_count(d, DOCTOR_FOUND),
		doctor_count(d, DOCTOR_UNKNOWN));
}

int ctl_doctor(struct ctl_run *ctl)
{
	struct doctor_options options = {.root = ctl->root,
		.user = ctl->user,
		.library = pc_version(),
		.given = ctl->arguments != 0,
		.timeout_ms = ctl->timeout_ms};
	const char *socket = ctl->socket ? ctl->socket : getenv("PEERCACHE_SOCKET");
	struct settings s;
	char unasked[256] = "";
	json_object *report;
	struct doctor *d;
	int status;

	settings_read(ctl, &s);
	if (!socket && options.given)
		socket = s.engine_socket;
	report = ctl->root ? NULL : report_find(ctl, socket, unasked, sizeof(unasked));
	if (unasked[0])
		options.unasked = unasked;
	if (!options.given)
		settings_take(ctl, report, &s);
	memcpy(options.peer, ctl->peer, sizeof(ctl->peer));
	options.settings = &s;
	options.arguments = ctl->argument;
	options.report = report;
	d = doctor_run(&options);
	if (!d)
		die("no memory");
	if (ctl->json)
		doctor_json(d);
	else
		doctor_text(d);
	status = doctor_count(d, DOCTOR_FOUND) ? 1 : 0;
	doctor_close(d);
	json_object_put(report);
	return status;
}
