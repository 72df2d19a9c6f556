/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may attach: the engine's own user, root, engine.allowed_users and engine.allowed_groups. The
 * kernel tells the ids of a process that connects in the engine's user namespace; ids that do not
 * exist there all become one id, the overflow id, which therefore proves nothing in a namespace
 * that lacks some ids. Names are resolved once, before memory is made. Control plane's thread.
 */
#include "engine/control/clients/clients_inner.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/log.h"
#include "config/settings.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59 /* constant of Linux 4.13 that older kernel headers lack */
#endif

#define NAME_BUFFER_BYTES 65536 /* of one entry of passwd or group, with all members of a group */
#define LIST_SHOWN 28           /* bytes of a list of allowed ones that a refusal shows */
#define ID_NONE UINT32_MAX      /* the kernel's number for no user and no group */

/* ---- names ----------------------------------------------------------------------------------- */

static bool user_find(const char *name, char *buffer, uint32_t *ret_id)
{
	struct passwd entry, *found = NULL;

	if (getpwnam_r(name, &entry, buffer, NAME_BUFFER_BYTES, &found) || !found)
		return false;
	*ret_id = entry.pw_uid;
	return true;
}

static bool group_find(const char *name, char *buffer, uint32_t *ret_id)
{
	struct group entry, *found = NULL;

	if (getgrnam_r(name, &entry, buffer, NAME_BUFFER_BYTES, &found) || !found)
		return false;
	*ret_id = entry.gr_gid;
	return true;
}

/* A number is taken as it is. ID_NONE is none. */
static bool number_parse(const char *word, uint32_t *ret_id)
{
	char *end;
	unsigned long long value;

	if (!isdigit((unsigned char)*word))
		return false;
	errno = 0;
	value = strtoull(word, &end, 10);
	if (errno || *end || value >= ID_NONE)
		return false;
	*ret_id = (uint32_t)value;
	return true;
}

/*
 * Stores the ids of a comma separated list in `ids`. Returns 0, -EINVAL (logged) or -ENOMEM.
 * `setting`: its name, for the log.
 */
static int list_parse(const char *setting, const char *list,
	bool (*find)(const char *name, char *buffer, uint32_t *ret_id), struct client_ids *ids)
{
	char *text = strdup(list), *buffer = malloc(NAME_BUFFER_BYTES), *rest = text, *word;
	int rc = text && buffer ? 0 : -ENOMEM;

	ids->count = 0;
	while (rc == 0 && (word = strtok_r(rest, ", ", &rest))) {
		uint32_t id;

		if (ids->count == CLIENT_IDS_MAX) {
			log_error("%s has more than %u entries; name a group instead", setting,
				CLIENT_IDS_MAX);
			rc = -EINVAL;
		} else if (!number_parse(word, &id) && !find(word, buffer, &id)) {
			log_error(
				"%s: %s is neither a number nor a name that this host knows; correct it, or write the number",
				setting, word);
			rc = -EINVAL;
		} else {
			ids->id[ids->count++] = id;
		}
	}
	free(buffer);
	free(text);
	return rc;
}

/* ---- the engine's user namespace ------------------------------------------------------------- */

/* Whether each id exists in the engine's user namespace. `path`: uid_map or gid_map. */
static bool namespace_is_whole(const char *path)
{
	uint64_t inside = 1, outside, count = 0;
	FILE *map = fopen(path, "re");
	bool whole =
		map &&
		fscanf(map, "%" SCNu64 " %" SCNu64 " %" SCNu64, &inside, &outside, &count) == 3 &&
		inside == 0 && count == ID_NONE;

	if (map)
		fclose(map);
	return whole;
}

/* The id that stands for all that do not exist in this namespace; ID_NONE: all exist. */
static uint32_t overflow_id(const char *map_path, const char *overflow_path)
{
	FILE *file;
	uint32_t id = 65534;

	if (namespace_is_whole(map_path))
		return ID_NONE;
	file = fopen(overflow_path, "re");
	if (file) {
		if (fscanf(file, "%" SCNu32, &id) != 1)
			id = 65534;
		fclose(file);
	}
	return id;
}

/* ---- called by other files ------------------------------------------------------------------- */

int client_access_open(const struct settings *s, struct client_access *ret)
{
	int rc =
		list_parse("engine.allowed_users", s->engine_allowed_users, user_find, &ret->users);

	if (rc == 0)
		rc = list_parse("engine.allowed_groups", s->engine_allowed_groups, group_find,
			&ret->groups);
	ret->unknown_user = overflow_id("/proc/self/uid_map", "/proc/sys/kernel/overflowuid");
	ret->unknown_group = overflow_id("/proc/self/gid_map", "/proc/sys/kernel/overflowgid");
	return rc;
}

int client_access_check(struct control *control)
{
	struct client_access access;

	return client_access_open(control->settings, &access);
}

static bool ids_have(const struct client_ids *ids, uint32_t id)
{
	for (unsigned i = 0; i < ids->count; i++)
		if (ids->id[i] == id)
			return true;
	return false;
}

static bool group_allowed(const struct client_access *a, uint32_t id)
{
	return id != a->unknown_group && ids_have(&a->groups, id);
}

/* Whether one of the supplementary groups is allowed. *ret_count: how many were compared. */
static bool groups_allowed(const struct client_access *a, int fd, unsigned *ret_count)
{
	socklen_t bytes = CLIENT_GROUPS_MAX * sizeof(gid_t);
	gid_t *group = malloc(bytes);
	bool allowed = false;

	*ret_count = 0;
	if (group && getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, group, &bytes) == 0)
		*ret_count = (unsigned)(bytes / sizeof(group[0]));
	for (unsigned i = 0; i < *ret_count && !allowed; i++)
		allowed = group_allowed(a, group[i]);
	free(group);
	return allowed;
}

/* The beginning of a list of allowed ones, for the log. */
static const char *list_shown(char *text, const char *list)
{
	snprintf(text, LIST_SHOWN + 1, "%.*s", LIST_SHOWN, list[0] ? list : "none");
	return text;
}

bool client_access_allows(const struct control *control, const struct client_access *a, int fd,
	const struct ucred *peer, char *ret_why, size_t why_bytes)
{
	const struct settings *s = control->settings;
	bool known = peer->uid != a->unknown_user;
	char users[LIST_SHOWN + 1], groups[LIST_SHOWN + 1];
	unsigned more = 0;

	if (known && (peer->uid == geteuid() || peer->uid == 0 || ids_have(&a->users, peer->uid)))
		return true;
	if (group_allowed(a, peer->gid) || groups_allowed(a, fd, &more))
		return true;
	if (!known)
		snprintf(ret_why, why_bytes,
			"its user does not exist in the engine's user namespace, where it is seen as %u, and no group of it is allowed; map it there, or run the engine in the host's user namespace",
			(unsigned)peer->uid);
	else
		snprintf(ret_why, why_bytes,
			"user %u, group %u and %u more groups are not allowed; allowed are user %u, root, engine.allowed_users = %s%s and engine.allowed_groups = %s%s",
			(unsigned)peer->uid, (unsigned)peer->gid, more, (unsigned)geteuid(),
			list_shown(users, s->engine_allowed_users),
			strlen(s->engine_allowed_users) > LIST_SHOWN ? "..." : "",
			list_shown(groups, s->engine_allowed_groups),
			strlen(s->engine_allowed_groups) > LIST_SHOWN ? "..." : "");
	return false;
}
