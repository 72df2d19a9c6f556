/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of this host: its settings, its versions, and what runs now. One thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <json-c/json.h>

#include "engine/doctor/inner.h"

#define ARGUMENTS_MAX 128
#define OUTPUT_BYTES 16384

/* ---- --check --------------------------------------------------------------------------------- */

/* Each line that the engine says is a finding; the plan has its own. */
static unsigned lines_add(struct doctor *d, char *output)
{
	unsigned lines = 0;
	char *rest = NULL;

	for (char *line = strtok_r(output, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		json_object *o = line[0] == '{' ? json_tokener_parse(line) : NULL, *text, *level;

		if (o && json_object_object_get_ex(o, "message", &text) &&
			json_object_object_get_ex(o, "level", &level)) {
			const char *message = json_object_get_string(text);

			if (!strcmp(json_object_get_string(level), "error") &&
				!strstr(d->plan_errors, message)) {
				found(d, DOCTOR_FOUND, "settings",
					"peercache-engine --check; the text says what to set", "%s",
					message);
				lines++;
			}
		}
		json_object_put(o);
	}
	return lines;
}

/* Runs the engine's own check, with the settings that the doctor has. */
void check_settings(struct doctor *d)
{
	char *arguments[ARGUMENTS_MAX + 5] = {"peercache-engine", "--check"}, *output;
	unsigned n = 2;
	int status;

	for (char *const *at = d->options->arguments; *at && n < ARGUMENTS_MAX; at++)
		arguments[n++] = *at;
	arguments[n++] = "--set";
	arguments[n++] = "log.format=json";
	output = malloc(OUTPUT_BYTES);
	status = output ? host_run(arguments, output, OUTPUT_BYTES) : -1;
	if (status < 0)
		found(d, DOCTOR_UNKNOWN, "peercache-engine",
			"install peercache-engine beside peercachectl, or put it in $PATH",
			"the program cannot be started");
	else if (lines_add(d, output) == 0 && (status == 0 || d->plan_errors[0]))
		found(d, DOCTOR_OK, "settings", NULL, "peercache-engine --check accepts them");
	else if (doctor_count(d, DOCTOR_FOUND) == 0)
		found(d, DOCTOR_FOUND, "settings", "peercache-engine --check",
			"the engine refuses them: %.*s", (int)strcspn(output, "\n"), output);
	free(output);
}

/* ---- the engine that runs -------------------------------------------------------------------- */

static const char *text_of(json_object *o, const char *part, const char *name)
{
	if (part && (!o || !json_object_object_get_ex(o, part, &o)))
		return "";
	if (!o || !json_object_object_get_ex(o, name, &o))
		return "";
	return json_object_is_type(o, json_type_string) ? json_object_get_string(o) : "";
}

void check_engine(struct doctor *d)
{
	const char *worst = text_of(d->options->report, "health", "worst");

	if (d->options->unasked) {
		found(d, DOCTOR_UNKNOWN, d->s->engine_socket,
			"run the doctor as root or as the user of the engine",
			"the engine could not be asked: %s", d->options->unasked);
		return;
	}
	if (!d->options->report) {
		found(d, DOCTOR_NONE, d->s->engine_socket, NULL, "no engine serves");
		return;
	}
	if (!strcmp(worst, "warning") || !strcmp(worst, "critical"))
		found(d, DOCTOR_FOUND, d->s->engine_socket, "peercachectl health",
			"the engine reports a %s finding of its own", worst);
	else
		found(d, DOCTOR_OK, d->s->engine_socket, NULL, "an engine serves, pid %ld", d->pid);
}

/* The keeper of the running engine tells no version; that its file was replaced can be seen. */
static void keeper_examine(struct doctor *d)
{
	char path[64], text[512], *end;
	ssize_t bytes;
	long parent = 0;

	snprintf(path, sizeof(path), "/proc/%ld/stat", d->pid);
	if (host_text(d, path, text, sizeof(text)) == HOST_READ && (end = strrchr(text, ')')))
		(void)sscanf(end + 1, " %*c %ld", &parent);
	snprintf(path, sizeof(path), "/proc/%ld/comm", parent);
	if (host_text(d, path, text, sizeof(text)) != HOST_READ || strcmp(text, "peercache-keepe"))
		return;
	snprintf(path, sizeof(path), "/proc/%ld/exe", parent);
	bytes = readlink(path, text, sizeof(text) - 1);
	if (bytes < 0) {
		found(d, DOCTOR_UNKNOWN, path, "run this as the user of the keeper, or as root",
			"which file the running keeper has: %s", strerror(errno));
		return;
	}
	text[bytes] = '\0';
	if (strstr(text, " (deleted)"))
		found(d, DOCTOR_FOUND, path,
			"start the keeper again when the pages of this host may be lost",
			"the file of the running keeper (pid %ld) was replaced: it is of another version",
			parent);
	else
		found(d, DOCTOR_OK, path, NULL, "the running keeper is the installed one");
}

void check_versions(struct doctor *d)
{
	static const char *const programs[] = {"peercache-engine", "peercache-keeper"};
	const char *library = d->options->library;
	const char *running = text_of(d->options->report, NULL, "version");

	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
		char *arguments[] = {(char *)programs[i], "--version", NULL};
		char text[256];

		if (host_run(arguments, text, sizeof(text)) != 0 || !strrchr(text, ' ')) {
			found(d, DOCTOR_UNKNOWN, programs[i],
				"install it beside peercachectl, or put it in $PATH",
				"the program cannot be started");
			continue;
		}
		text[strcspn(text, "\n")] = '\0';
		if (strcmp(strrchr(text, ' ') + 1, library))
			found(d, DOCTOR_FOUND, programs[i],
				"install engine, keeper and library of one version",
				"it has version %.64s, the library %s", strrchr(text, ' ') + 1,
				library);
		else
			found(d, DOCTOR_OK, programs[i], NULL, "%s, as the library", library);
	}
	if (running[0] && strcmp(running, library))
		found(d, DOCTOR_FOUND, d->s->engine_socket, "peercachectl restart",
			"the running engine has version %.64s, the installed library %s", running,
			library);
	if (d->pid)
		keeper_examine(d);
}

/* Settings of the running engine that are not those of the file. */
void check_differences(struct doctor *d)
{
	char *text = settings_json(d->s);
	json_object *ours = text ? json_tokener_parse(text) : NULL, *theirs = NULL;
	bool differs = false;

	free(text);
	if (!d->options->report || !d->options->given) {
		found(d, DOCTOR_NONE, "settings", NULL,
			d->options->report ? "no file was given: those of the engine are examined"
					   : "no engine serves");
	} else if (!ours || !json_object_object_get_ex(d->options->report, "settings", &theirs)) {
		found(d, DOCTOR_UNKNOWN, "settings", NULL, "the engine does not report them");
	} else {
		json_object_object_foreach (ours, name, value) {
			json_object *other = NULL;

			/* the engine has replaced names and auto by an address */
			if (!json_object_object_get_ex(theirs, name, &other) ||
				json_object_equal(value, other) ||
				!strcmp(name, "cluster.address") ||
				!strcmp(name, "metrics.address"))
				continue;
			found(d, DOCTOR_FOUND, name, "peercachectl restart",
				"the running engine has %.128s, the settings say %.128s",
				json_object_to_json_string(other),
				json_object_to_json_string(value));
			differs = true;
		}
		if (!differs)
			found(d, DOCTOR_OK, "settings", NULL, "those of the running engine");
	}
	json_object_put(ours);
}
