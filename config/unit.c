/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads what systemctl shows of the engine's unit, and becomes its user. One thread.
 */
#include "config/unit.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PID_MAX (1L << 22) /* of Linux */

/* ---- the unit -------------------------------------------------------------------------------- */

/* The value of "NAME=value"; NULL: another line. */
static const char *value_of(const char *line, const char *name)
{
	size_t bytes = strlen(name);

	return strncmp(line, name, bytes) == 0 && line[bytes] == '=' ? line + bytes + 1 : NULL;
}

static void line_take(struct unit *unit, const char *line, bool *loaded)
{
	const char *value;

	if ((value = value_of(line, "LoadState")) != NULL)
		*loaded = strcmp(value, "loaded") == 0;
	if ((value = value_of(line, "User")) != NULL && *value)
		snprintf(unit->user, sizeof(unit->user), "%.63s", value);
	if ((value = value_of(line, "RuntimeDirectory")) != NULL)
		snprintf(unit->runtime, sizeof(unit->runtime), "%.255s", value);
	if ((value = value_of(line, "MainPID")) != NULL)
		unit->pid = strtol(value, NULL, 10);
}

bool unit_read(struct unit *ret)
{
	char line[1024];
	bool loaded = false;
	FILE *file = popen("exec timeout 5 systemctl show " UNIT_NAME
			   " -p LoadState -p User -p RuntimeDirectory -p MainPID 2>/dev/null",
		"re");

	*ret = (struct unit){.user = "root"};
	if (!file)
		return false;
	while (fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		line_take(ret, line, &loaded);
	}
	if (ret->pid < 0 || ret->pid > PID_MAX)
		ret->pid = 0;
	return pclose(file) == 0 && loaded;
}

bool unit_makes(const struct unit *unit, const char *folder)
{
	char list[sizeof(unit->runtime)], path[sizeof(unit->runtime) + 8], *rest = NULL;

	snprintf(list, sizeof(list), "%s", unit->runtime);
	for (char *at = strtok_r(list, " ", &rest); at; at = strtok_r(NULL, " ", &rest)) {
		snprintf(path, sizeof(path), "/run/%s", at);
		if (strcmp(path, folder) == 0)
			return true;
	}
	return false;
}

/* ---- its user -------------------------------------------------------------------------------- */

int user_allowed(const char *name)
{
	const struct passwd *user = getpwnam(name);

	if (!user)
		return -ENOENT;
	return geteuid() == 0 || geteuid() == user->pw_uid ? 0 : -EPERM;
}

int user_become(const char *name)
{
	int rc = user_allowed(name);
	const struct passwd *user = rc < 0 ? NULL : getpwnam(name);

	if (!user || geteuid() == user->pw_uid)
		return rc;
	if (initgroups(name, user->pw_gid) < 0 ||
		setresgid(user->pw_gid, user->pw_gid, user->pw_gid) < 0 ||
		setresuid(user->pw_uid, user->pw_uid, user->pw_uid) < 0)
		return -errno;
	return 0;
}
