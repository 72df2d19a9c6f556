/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads what systemctl shows of the engine's unit; becomes its user; looks up names. One thread.
 */
#include "config/unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PID_MAX (1L << 22) /* of Linux */
#define LINE_BYTES 1024
#define TIMEOUT_STATUS 124 /* of timeout, when the time was over */

/* ---- the unit -------------------------------------------------------------------------------- */

/* The value of "NAME=value"; NULL: another line. */
static const char *value_of(const char *line, const char *name)
{
	size_t bytes = strlen(name);

	return strncmp(line, name, bytes) == 0 && line[bytes] == '=' ? line + bytes + 1 : NULL;
}

/* Adds the folders that `value` names below `root` to a list. False: it is full. */
static bool list_add(char list[UNIT_FOLDERS_BYTES], const char *root, const char *value)
{
	char copy[LINE_BYTES], *rest = NULL;
	size_t used = strlen(list);

	snprintf(copy, sizeof(copy), "%s", value);
	for (char *at = strtok_r(copy, " ", &rest); at; at = strtok_r(NULL, " ", &rest)) {
		int bytes = snprintf(list + used, UNIT_FOLDERS_BYTES - used, "%s%s ", root,
			at + strspn(at, "-+")); /* the prefixes of ReadWritePaths= */

		if (bytes < 0 || (size_t)bytes >= UNIT_FOLDERS_BYTES - used) {
			list[used] = '\0';
			return false;
		}
		used += (size_t)bytes;
	}
	return true;
}

/* False: the line has more than is understood, so that `strict` is not known. */
static bool line_take(struct unit *unit, const char *line, bool *loaded)
{
	static const struct {
		const char *name, *root;
	} made[] = {{"RuntimeDirectory", "/run/"}, {"StateDirectory", "/var/lib/"},
		{"CacheDirectory", "/var/cache/"}, {"LogsDirectory", "/var/log/"}};
	const char *value;

	if ((value = value_of(line, "LoadState")) != NULL)
		*loaded = strcmp(value, "loaded") == 0;
	if ((value = value_of(line, "User")) != NULL && *value)
		snprintf(unit->user, sizeof(unit->user), "%.63s", value);
	if ((value = value_of(line, "MainPID")) != NULL)
		unit->pid = strtol(value, NULL, 10);
	if ((value = value_of(line, "ProtectSystem")) != NULL)
		unit->strict = strcmp(value, "strict") == 0;
	if ((value = value_of(line, "ReadWritePaths")) != NULL)
		return list_add(unit->writes, "", value);
	for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++)
		if ((value = value_of(line, made[i].name)) != NULL)
			return list_add(unit->makes, made[i].root, value);
	value = value_of(line, "BindPaths");
	return !value || !*value;
}

int unit_read(struct unit *ret)
{
	char line[LINE_BYTES];
	bool loaded = false, known = true;
	int status;
	FILE *file = popen(
		"exec timeout " UNIT_ANSWER_S " systemctl show " UNIT_NAME
		" -p LoadState -p User -p MainPID -p ProtectSystem -p ReadWritePaths -p BindPaths"
		" -p RuntimeDirectory -p StateDirectory -p CacheDirectory -p LogsDirectory 2>/dev/null",
		"re");

	*ret = (struct unit){.user = "root"};
	if (!file)
		return -ENOENT;
	while (fgets(line, sizeof(line), file)) {
		size_t bytes = strcspn(line, "\n");

		known &= line[bytes] == '\n'; /* a line that is too long comes in parts */
		line[bytes] = '\0';
		known &= line_take(ret, line, &loaded);
	}
	ret->strict &= known;
	if (ret->pid < 0 || ret->pid > PID_MAX)
		ret->pid = 0;
	status = pclose(file);
	if (status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == TIMEOUT_STATUS)
		return -ETIMEDOUT;
	return status == 0 && loaded ? 0 : -ENOENT;
}

/* Is the folder in the list or, with `below`, below a folder of it? */
static bool list_has(const char list[UNIT_FOLDERS_BYTES], const char *folder, bool below)
{
	char copy[UNIT_FOLDERS_BYTES], *rest = NULL;

	snprintf(copy, sizeof(copy), "%s", list);
	for (char *at = strtok_r(copy, " ", &rest); at; at = strtok_r(NULL, " ", &rest)) {
		size_t bytes = strlen(at);

		while (bytes && at[bytes - 1] == '/')
			bytes--;
		if (strncmp(folder, at, bytes))
			continue;
		if (strspn(folder + bytes, "/") == strlen(folder + bytes) ||
			(below && folder[bytes] == '/'))
			return true;
	}
	return false;
}

bool unit_makes(const struct unit *unit, const char *folder)
{
	return list_has(unit->makes, folder, false);
}

bool unit_writes(const struct unit *unit, const char *folder)
{
	char *real;
	bool writes = !unit->strict || folder[0] != '/' || list_has(unit->makes, folder, true) ||
		      list_has(unit->writes, folder, true);

	if (writes)
		return true;
	real = realpath(folder, NULL);
	writes = real && (list_has(unit->makes, real, true) || list_has(unit->writes, real, true));
	free(real);
	return writes;
}

/* ---- its user -------------------------------------------------------------------------------- */

/* `error`: errno after libc found no entry; 0 and these two: there is none of that name. */
static int entry_missing(int error)
{
	return error == 0 || error == ENOENT || error == ESRCH ? -ENOENT : -error;
}

int user_find(const char *name, const struct passwd **ret)
{
	errno = 0;
	*ret = getpwnam(name);
	return *ret ? 0 : entry_missing(errno);
}

int group_find(const char *name, const struct group **ret)
{
	errno = 0;
	*ret = getgrnam(name);
	return *ret ? 0 : entry_missing(errno);
}

static int user_find_allowed(const char *name, const struct passwd **ret)
{
	int rc = user_find(name, ret);

	if (rc < 0)
		return rc;
	return geteuid() == 0 || geteuid() == (*ret)->pw_uid ? 0 : -EPERM;
}

int user_allowed(const char *name)
{
	const struct passwd *user;

	return user_find_allowed(name, &user);
}

int user_become(const char *name)
{
	const struct passwd *user;
	int rc = user_find_allowed(name, &user);

	if (rc < 0 || geteuid() == user->pw_uid)
		return rc;
	if (initgroups(name, user->pw_gid) < 0 ||
		setresgid(user->pw_gid, user->pw_gid, user->pw_gid) < 0 ||
		setresuid(user->pw_uid, user->pw_uid, user->pw_uid) < 0)
		return -errno;
	return 0;
}
