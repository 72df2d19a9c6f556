/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of this host: its settings, its versions, and what runs now. One thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/json_read.h"
#include "engine/doctor/inner.h"

#define ARGUMENTS_MAX 128
#define OUTPUT_BYTES 16384

/* ---- programs ------------------------------------------------------------------------------- */

/* What host_run() has returned, without what was to be known. `option`: what it was run with. */
static void program_tell(
	struct doctor *d, const char *name, const char *option, int status, const char *output)
{
	char why[160];
	size_t bytes = strcspn(output, "\n");

	if (status == -ENOENT) {
		found(d, DOCTOR_UNKNOWN, name, "install it beside peercachectl, or put it in $PATH",
			"the program cannot be started%s%.*s", bytes ? ": " : "", (int)bytes,
			output);
		return;
	}
	if (status == -ETIME)
		snprintf(why, sizeof(why), "it has not ended in %d s", HOST_RUN_S);
	else if (status == -EINTR)
		snprintf(why, sizeof(why), "a signal ended it");
	else if (status < 0)
		snprintf(why, sizeof(why), "starting it: %s", strerror(-status));
	else
		snprintf(why, sizeof(why), "it ended with status %d: %.*s", status,
			(int)(bytes < 100 ? bytes : 100), output);
	fix_set(found(d, DOCTOR_UNKNOWN, name, NULL, "%s %s: %s", name, option, why), "run %s %s",
		name, option);
}

/* ---- --check --------------------------------------------------------------------------------- */

/* Each line that the engine says is a finding; the plan has its own. */
static unsigned lines_add(struct doctor *d, char *output)
{
	unsigned lines = 0;
	char *rest = NULL;

	for (char *line = strtok_r(output, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		json_object *o = line[0] == '{' ? json_tokener_parse(line) : NULL;
		const char *message = json_text(o, "message");

		if (!strcmp(json_text(o, "level"), "error") && *message &&
			!strstr(d->plan_errors, message)) {
			found(d, DOCTOR_FOUND, "settings",
				"peercache-engine --check; the text says what to set", "%s",
				message);
			lines++;
		}
		json_object_put(o);
	}
	return lines;
}

/* The user that --check takes on. False: there is none of that name, or it is not known. */
static bool user_examine(struct doctor *d)
{
	const char *of = d->of_unit ? " (" UNIT_NAME ")" : "";
	int rc = d->user ? user_allowed(d->user) : 0;

	if (d->unit_silent && !d->user)
		found(d, DOCTOR_UNKNOWN, "user",
			"--user NAME names the user that will run the engine; systemctl show " UNIT_NAME,
			"systemctl has not answered in %s s, so the user of the engine is not known: its folders may not be examined",
			UNIT_ANSWER_S);
	if (rc == -ENOENT)
		found(d, d->of_unit ? DOCTOR_FOUND : DOCTOR_UNKNOWN, "user",
			d->of_unit
				? "systemd-sysusers, as root, makes it; --user NAME names another"
				: "--user NAME names another",
			"the engine runs as user %s%s, and this host has no user of that name",
			d->user, of);
	else if (rc < 0 && rc != -EPERM)
		found(d, DOCTOR_UNKNOWN, "user", "--user NAME names another",
			"the engine runs as user %s%s, and that name cannot be looked up: %s",
			d->user, of, strerror(-rc));
	else if (rc < 0)
		fix_set(found(d, DOCTOR_UNKNOWN, "engine.socket, disk.paths", NULL,
				"the engine runs as user %s%s, and only root and that user see files as it does: its folders are not examined",
				d->user, of),
			"run the doctor as root or as %s; --user NAME names another user", d->user);
	return rc == 0 || rc == -EPERM;
}

/* Runs the engine's own check, with the settings that the doctor has, as the engine's user. */
void check_settings(struct doctor *d)
{
	char *arguments[ARGUMENTS_MAX + 7] = {"peercache-engine", "--check"}, *output;
	unsigned n = 2, lines;
	int status;

	if (!user_examine(d))
		return;
	if (d->user) {
		arguments[n++] = "--user";
		arguments[n++] = (char *)d->user;
	}
	for (char *const *at = d->options->arguments; *at && n < ARGUMENTS_MAX + 2; at++)
		arguments[n++] = *at;
	arguments[n++] = "--set";
	arguments[n++] = "log.format=json";
	output = malloc(OUTPUT_BYTES);
	status = output ? host_run(arguments, output, OUTPUT_BYTES) : -ENOMEM;
	if (status < 0) {
		program_tell(d, "peercache-engine", "--check", status, output ? output : "");
		free(output);
		return;
	}
	lines = lines_add(d, output);
	if (lines == 0 && status == 0)
		found(d, DOCTOR_OK, "settings", NULL, "peercache-engine --check accepts them%s%s",
			d->user ? " for user " : "", d->user ? d->user : "");
	else if (lines == 0 && !d->planned)
		found(d, DOCTOR_NONE, "settings", NULL,
			"peercache-engine --check refuses them: see plan");
	else if (doctor_count(d, DOCTOR_FOUND) == 0)
		found(d, DOCTOR_FOUND, "settings", "peercache-engine --check",
			"the engine refuses them: %.*s", (int)strcspn(output, "\n"), output);
	free(output);
}

/* ---- the engine that runs -------------------------------------------------------------------- */

/* Does the engine report a finding of that name? */
static bool engine_finds(struct doctor *d, const char *id)
{
	json_object *list = json_get(json_get(d->options->report, "health"), "findings");

	if (!json_object_is_type(list, json_type_array))
		return false;
	for (size_t i = 0; i < json_object_array_length(list); i++)
		if (!strcmp(json_text(json_object_array_get_idx(list, i), "id"), id))
			return true;
	return false;
}

void check_engine(struct doctor *d)
{
	const char *worst = json_text(json_get(d->options->report, "health"), "worst");

	if (d->engine == ENGINE_UNASKED)
		found(d, DOCTOR_UNKNOWN, d->s->engine_socket,
			"run the doctor as root or as the user of the engine",
			"the engine could not be asked: %s", d->options->unasked);
	else if (d->engine == ENGINE_ABSENT)
		found(d, DOCTOR_NONE, d->s->engine_socket, NULL, "no engine serves");
	else if (!strcmp(worst, "warning") || !strcmp(worst, "critical"))
		found(d, DOCTOR_FOUND, d->s->engine_socket, "peercachectl health",
			"the engine reports a %s finding of its own", worst);
	else
		found(d, DOCTOR_OK, d->s->engine_socket, NULL, "an engine serves, pid %ld", d->pid);
	if (d->engine == ENGINE_SERVES && engine_finds(d, "keeper_gone"))
		found(d, DOCTOR_FOUND, "peercache-keeper",
			"when its pages may be lost, end the engine and start peercache-keeper again",
			"the keeper of the engine (pid %ld) has ended: nothing starts the engine again or keeps its pages",
			d->pid);
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
	const char *running = json_text(d->options->report, "version");

	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
		char *arguments[] = {(char *)programs[i], "--version", NULL};
		char text[256];
		int status = host_run(arguments, text, sizeof(text));

		if (status != 0 || !strrchr(text, ' ')) {
			program_tell(d, programs[i], "--version", status, text);
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
	json_object *ours = text ? json_tokener_parse(text) : NULL;
	json_object *theirs = json_get(d->options->report, "settings");
	bool differs = false;

	free(text);
	if (d->engine == ENGINE_UNASKED) {
		found(d, DOCTOR_UNKNOWN, "settings", NULL, "the engine could not be asked");
	} else if (d->engine == ENGINE_ABSENT || !d->options->given) {
		found(d, DOCTOR_NONE, "settings", NULL,
			d->engine == ENGINE_ABSENT
				? "no engine serves"
				: "no file was given: those of the engine are examined");
	} else if (!ours || !json_object_is_type(theirs, json_type_object)) {
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
