/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercachectl quota: what the groups of namespaces have of the pools of this host, and may have;
 * sets the limits of one. One thread.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/group_limits.h"
#include "engine/abi/epoch.h"
#include "tools/common.h"
#include "tools/ctl.h"

#define LOOK_NS 50000000L

/* The name that reports give the group of the channel's namespace. */
static void group_name(struct ctl_run *ctl, char ret[16])
{
	struct page_key key = {{0}};
	char *text = NULL;
	json_object *o;

	if (pc_explain(ctl->channel, "", 1, ctl->timeout_ms, &text))
		die("%s", pc_error());
	o = json_tokener_parse(text);
	(void)sscanf(json_text(o, "hash"), "%16" SCNx64 "%16" SCNx64, &key.word[0], &key.word[1]);
	snprintf(ret, 16, "0x%06x", epoch_group(&key));
	json_object_put(o);
	free(text);
}

/* NULL: it is not in the report. */
static json_object *group_find(json_object *groups, const char *name)
{
	for (size_t i = 0; i < json_length(groups); i++)
		if (!strcmp(json_text(json_at(groups, i), "group"), name))
			return json_at(groups, i);
	return NULL;
}

static bool group_has(json_object *group, const char *limit, int64_t wanted)
{
	return wanted < 0 || json_number(group, limit) == wanted;
}

/* The report of an engine that has the limits of the group. */
static json_object *limits_set(struct ctl_run *ctl, const char *name, int64_t quota, int64_t ttl_s)
{
	const struct timespec pause = {.tv_nsec = LOOK_NS};
	uint64_t end_ns = now_ns() + ctl->timeout_ms * 1000000ull;
	const struct pc_page page = {.key = "", .key_bytes = 1};
	enum pc_result result;

	if (pc_limits(ctl->pc, quota, ttl_s) ||
		pc_exists(ctl->channel, &page, 1, ctl->timeout_ms, &result)) /* tells them */
		die("%s", pc_error());
	for (;;) {
		json_object *report = engine_report(ctl->pc);
		json_object *group = group_find(json_get(report, "groups"), name);

		if (group_has(group, "quota", quota) && group_has(group, "ttl_s", ttl_s))
			return report;
		if (now_ns() > end_ns)
			die("the engine has not taken the limits of %s; peercachectl health and its log say why",
				name);
		json_object_put(report);
		nanosleep(&pause, NULL);
	}
}

static void group_print(json_object *group)
{
	char bytes[WORDS_BYTES], quota[WORDS_BYTES];

	printf("%-9s %11s %11s %10" PRId64 " %10" PRId64 " %9" PRId64 " %10" PRId64 "\n",
		json_text(group, "group"), text_bytes((double)json_number(group, "bytes"), bytes),
		json_number(group, "quota") ? text_bytes((double)json_number(group, "quota"), quota)
					    : "-",
		json_number(group, "pages"), json_number(group, "evicted"),
		json_number(group, "ttl_s"), json_number(group, "expired"));
}

int ctl_quota(struct ctl_run *ctl, const char *size)
{
	int64_t quota = size ? (int64_t)parse_size("quota", size, 0, GROUP_LIMIT_MAX) : -1;
	json_object *report, *groups, *one = NULL;
	char name[16];

	if ((size || ctl->ttl_s >= 0) && !ctl->group)
		die("quota: name the group whose limits are to be set, with --namespace");
	if (ctl->group)
		group_name(ctl, name);
	report = size || ctl->ttl_s >= 0 ? limits_set(ctl, name, quota, ctl->ttl_s)
					 : engine_report(ctl->pc);
	groups = json_get(report, "groups");
	if (ctl->group)
		one = group_find(groups, name);
	if (ctl->json) {
		json_object *o = json_object_new_object();

		json_object_object_add(o, ctl->group ? "group" : "groups",
			json_object_get(ctl->group ? one : groups));
		print_json(o, stdout);
	} else {
		printf("%-9s %11s %11s %10s %10s %9s %10s\n", "group", "bytes", "quota", "pages",
			"evicted", "ttl_s", "expired");
		for (size_t i = 0; i < json_length(groups); i++)
			if (!ctl->group || json_at(groups, i) == one)
				group_print(json_at(groups, i));
	}
	json_object_put(report);
	return 0;
}
