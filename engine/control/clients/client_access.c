/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may attach: the engine's own user, root, engine.allowed_users and engine.allowed_groups; and
 * who administers the engine: the first two, engine.admin_users and engine.admin_groups. The kernel
 * tells the ids of a process that connects in the engine's user namespace; ids that do not exist
 * there all become one id, the overflow id, which therefore proves nothing in a namespace that
 * lacks some ids. Names are resolved once, before memory is made. Control plane's thread.
 */
#include "config/text_fit.h"
#include "engine/control/clients/clients_inner.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/log.h"
#include "config/settings.h"
#include "config/unit.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59 /* constant of Linux 4.13 that older kernel headers lack */
#endif

#define LIST_SHOWN 32      /* bytes of a list of allowed ones that a refusal shows */
#define GROUPS_SHOWN 32    /* bytes for the number of groups that were compared */
#define ID_NONE UINT32_MAX /* the kernel's number for no user and no group */

/* ---- names ----------------------------------------------------------------------------------- */

static int user_id(const char *name, uint32_t *ret_id)
{
	const struct passwd *entry;
	int rc = user_find(name, &entry);

	if (rc == 0)
		*ret_id = entry->pw_uid;
	return rc;
}

static int group_id(const char *name, uint32_t *ret_id)
{
	const struct group *entry;
	int rc = group_find(name, &entry);

	if (rc == 0)
		*ret_id = entry->gr_gid;
	return rc;
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

/* The id of a number or a name. Returns 0, or -errno after logging. */
static int word_parse(const char *setting, const char *word,
	int (*find)(const char *name, uint32_t *ret_id), uint32_t *ret_id)
{
	int rc = number_parse(word, ret_id) ? 0 : find(word, ret_id);

	if (rc == -ENOENT) {
		log_error(
			"%s: %s is neither a number nor a name that this host knows; correct it, or write the number",
			setting, word);
		return -EINVAL;
	}
	if (rc < 0)
		log_error("%s: %s cannot be looked up: %s; write the number", setting, word,
			strerror(-rc));
	return rc;
}

/*
 * Stores the ids of a comma separated list in `ids`. Returns 0 or -errno, logged but for -ENOMEM.
 * `setting`: its name, for the log.
 */
static int list_parse(const char *setting, const char *list,
	int (*find)(const char *name, uint32_t *ret_id), struct client_ids *ids)
{
	char *text = strdup(list), *rest = text, *word;
	int rc = text ? 0 : -ENOMEM;

	ids->count = 0;
	while (rc == 0 && (word = strtok_r(rest, ", ", &rest))) {
		uint32_t id;

		if (ids->count == CLIENT_IDS_MAX) {
			log_error("%s has more than %u entries; name a group instead", setting,
				CLIENT_IDS_MAX);
			rc = -EINVAL;
		} else {
			rc = word_parse(setting, word, find, &id);
		}
		if (rc == 0)
			ids->id[ids->count++] = id;
	}
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
	int rc = list_parse(
		"engine.allowed_users", s->engine_allowed_users, user_id, &ret->clients.users);

	if (rc == 0)
		rc = list_parse("engine.allowed_groups", s->engine_allowed_groups, group_id,
			&ret->clients.groups);
	if (rc == 0)
		rc = list_parse(
			"engine.admin_users", s->engine_admin_users, user_id, &ret->admins.users);
	if (rc == 0)
		rc = list_parse("engine.admin_groups", s->engine_admin_groups, group_id,
			&ret->admins.groups);
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

static bool group_allowed(
	const struct client_access *a, const struct client_ids *groups, uint32_t id)
{
	return id != a->unknown_group && ids_have(groups, id);
}

/*
 * Whether one of the supplementary groups is allowed. *ret_count: how many were compared; -1: they
 * cannot be read.
 */
static bool groups_allowed(
	const struct client_access *a, const struct client_ids *groups, int fd, int *ret_count)
{
	socklen_t bytes = CLIENT_GROUPS_MAX * sizeof(gid_t);
	gid_t *group = malloc(bytes);
	bool allowed = false;

	*ret_count = -1;
	if (group && getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, group, &bytes) == 0)
		*ret_count = (int)(bytes / sizeof(group[0]));
	for (int i = 0; i < *ret_count && !allowed; i++)
		allowed = group_allowed(a, groups, group[i]);
	free(group);
	return allowed;
}

/* The supplementary groups, for the log. */
static const char *groups_shown(char text[GROUPS_SHOWN], int count)
{
	if (count < 0)
		return "(others cannot be read)";
	snprintf(text, GROUPS_SHOWN, "and %d more groups", count);
	return text;
}

/* The beginning of a list of allowed ones, for the log. */
static const char *list_shown(char *text, const char *list)
{
	text_fit(text, LIST_SHOWN, "%s", list[0] ? list : "none");
	return text;
}

/* Whether the user or a group of the process is in the list. *ret_count: as groups_allowed(). */
static bool list_has(const struct client_access *a, const struct client_list *list, int fd,
	const struct ucred *peer, int *ret_count)
{
	return (peer->uid != a->unknown_user && ids_have(&list->users, peer->uid)) ||
	       group_allowed(a, &list->groups, peer->gid) ||
	       groups_allowed(a, &list->groups, fd, ret_count);
}

bool client_access_administers(const struct client_access *a, int fd, const struct ucred *peer)
{
	int more;

	if (peer->uid != a->unknown_user && (peer->uid == geteuid() || peer->uid == 0))
		return true;
	return (a->admins.users.count || a->admins.groups.count) &&
	       list_has(a, &a->admins, fd, peer, &more);
}

unsigned client_access_users(const struct client_access *a)
{
	unsigned named = a->clients.users.count + a->admins.users.count;

	if (a->clients.groups.count || a->admins.groups.count || named >= USERS_SURE)
		return USERS_SURE;
	named += named ? geteuid() != 0 : 0;
	return named + 1 < USERS_SURE ? named + 1 : USERS_SURE;
}

bool client_access_allows(const struct control *control, const struct client_access *a, int fd,
	const struct ucred *peer, char *ret_why, size_t why_bytes)
{
	const struct settings *s = control->settings;
	bool known = peer->uid != a->unknown_user;
	char users[LIST_SHOWN], groups[LIST_SHOWN], others[GROUPS_SHOWN];
	int more = 0;

	if (client_access_administers(a, fd, peer) || list_has(a, &a->clients, fd, peer, &more))
		return true;
	if (!known)
		text_fit(ret_why, why_bytes,
			"its user does not exist in the engine's user namespace, where it is seen as %u, and %s; map it there, or run the engine in the host's user namespace",
			(unsigned)peer->uid,
			more < 0 ? "its groups cannot be read" : "no group of it is allowed");
	else
		text_fit(ret_why, why_bytes,
			"user %u, group %u %s are not allowed; allowed are user %u, root, engine.allowed_users = %s and engine.allowed_groups = %s",
			(unsigned)peer->uid, (unsigned)peer->gid, groups_shown(others, more),
			(unsigned)geteuid(), list_shown(users, s->engine_allowed_users),
			list_shown(groups, s->engine_allowed_groups));
	return false;
}
