/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the cgroups of a process: its file "cgroup" in /proc names them, /proc/self/mountinfo says
 * where they can be read. A container may see only a part of the tree, whose root is then its own
 * group.
 */
#include "numa/cgroup.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "numa/kernel_file.h"

#define PATH_BYTES 1024
#define LINE_BYTES 4096

static const char *process = "self"; /* the folder of /proc; NULL: none */

void cgroup_process(const char *whose)
{
	process = whose;
}

/* One limit as the kernel shows it. `controller` NULL: version 2. */
struct shown {
	enum cgroup_limit limit;
	const char *controller;
	const char *max, *used;  /* `used` NULL: the limit is one of rate */
	const char *reclaimable; /* its line in memory.stat; NULL: none */
	/* file with the period of a rate; the same one: its second number */
	const char *period;
};

static const struct shown shown[] = {
	{CGROUP_MEMORY, NULL, "memory.max", "memory.current", "inactive_file", NULL},
	{CGROUP_MEMORY, NULL, "memory.high", "memory.current", "inactive_file", NULL},
	{CGROUP_MEMORY, "memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
		"total_inactive_file", NULL},
	{CGROUP_HUGE, NULL, "hugetlb.2MB.max", "hugetlb.2MB.current", NULL, NULL},
	{CGROUP_HUGE_RESERVED, NULL, "hugetlb.2MB.rsvd.max", "hugetlb.2MB.rsvd.current", NULL,
		NULL},
	{CGROUP_HUGE, "hugetlb", "hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.usage_in_bytes", NULL,
		NULL},
	{CGROUP_HUGE_RESERVED, "hugetlb", "hugetlb.2MB.rsvd.limit_in_bytes",
		"hugetlb.2MB.rsvd.usage_in_bytes", NULL, NULL},
	{CGROUP_TASKS, NULL, "pids.max", "pids.current", NULL, NULL},
	{CGROUP_TASKS, "pids", "pids.max", "pids.current", NULL, NULL},
	{CGROUP_CPU, NULL, "cpu.max", NULL, NULL, "cpu.max"},
	{CGROUP_CPU, "cpu", "cpu.cfs_quota_us", NULL, NULL, "cpu.cfs_period_us"},
};

/* Where a hierarchy of groups is mounted, and the process's group in it. */
struct place {
	char mount[PATH_BYTES / 4];
	char group[PATH_BYTES / 4]; /* below `mount`: "" or "/a/b" */
};

/* Whether the comma separated list contains the word. */
static bool list_has(const char *list, const char *word)
{
	size_t bytes = strlen(word);

	for (const char *at = list; at; at = strchr(at, ',')) {
		at += *at == ',';
		if (strncmp(at, word, bytes) == 0 && strchr(",\n", at[bytes]))
			return true;
	}
	return false;
}

/* The group of the process as the kernel names it; false: none, or its name is too long. */
static bool group_named(const char *controller, char *ret, size_t ret_bytes)
{
	char line[LINE_BYTES], path_of[64];
	bool found = false;
	FILE *file;

	if (!process)
		return false;
	snprintf(path_of, sizeof(path_of), "/proc/%s/cgroup", process);
	file = kernel_file_open(path_of);
	while (file && !found && fgets(line, sizeof(line), file)) {
		char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;

		if (!path)
			continue;
		*path++ = '\0';
		path[strcspn(path, "\n")] = '\0';
		found = controller ? list_has(list + 1, controller) : list[1] == '\0';
		if (found)
			found = snprintf(ret, ret_bytes, "%s", path) < (int)ret_bytes;
	}
	if (file)
		fclose(file);
	return found;
}

/* Reads a line of mountinfo: true if it mounts this hierarchy. The fields end with a zero. */
static bool mount_read(char *line, const char *controller, char **ret_root, char **ret_mount)
{
	char *rest = strstr(line, " - "), *kind, *options;

	if (!rest)
		return false;
	*rest = '\0';
	kind = rest + 3;
	options = strrchr(kind, ' ');
	for (unsigned i = 0; line && i < 3; i++)
		line = strchr(line + (i > 0), ' ');
	if (!line || !options)
		return false;
	*ret_root = line + 1;
	*ret_mount = strchr(*ret_root, ' ');
	if (!*ret_mount)
		return false;
	*(*ret_mount)++ = '\0';
	(*ret_mount)[strcspn(*ret_mount, " ")] = '\0';
	if (!controller)
		return strncmp(kind, "cgroup2 ", 8) == 0;
	return strncmp(kind, "cgroup ", 7) == 0 && list_has(options + 1, controller);
}

/* The group as it is seen below a mount of `top`: "" if it is `top` or not below it. */
static const char *group_below(const char *group, const char *top)
{
	size_t bytes = strcmp(top, "/") ? strlen(top) : 0;

	if (strstr(group, "/..") || strncmp(group, top, bytes) || !strcmp(group, "/"))
		return "";
	return group[bytes] == '/' ? group + bytes : "";
}

static bool place_find(const char *controller, struct place *ret)
{
	FILE *file = kernel_file_open("/proc/self/mountinfo");
	char line[LINE_BYTES], group[PATH_BYTES / 4], *top, *mount;
	bool found = false;

	if (!file || !group_named(controller, group, sizeof(group))) {
		if (file)
			fclose(file);
		return false;
	}
	while (!found && fgets(line, sizeof(line), file)) {
		line[strcspn(line, "\n")] = '\0';
		if (!mount_read(line, controller, &top, &mount))
			continue;
		found = snprintf(ret->mount, sizeof(ret->mount), "%s", mount) <
			(int)sizeof(ret->mount);
		snprintf(ret->group, sizeof(ret->group), "%s", group_below(group, top));
	}
	fclose(file);
	return found;
}

/* Reads the number of a file of the group. False: there is none, or it says "max". */
static bool number_read(const struct place *p, const char *name, uint64_t *ret)
{
	char path[PATH_BYTES];

	snprintf(path, sizeof(path), "%s%s/%s", p->mount, p->group, name);
	return kernel_file_number(path, ret);
}

/* A quota in us as thousandths of a processor: the kernel's period is 1 ms to 1 s. */
static uint64_t rate_of(const struct place *p, const struct shown *s, uint64_t quota)
{
	uint64_t period = 100000;
	char path[PATH_BYTES], line[64];

	snprintf(path, sizeof(path), "%s%s/%s", p->mount, p->group, s->period);
	(void)kernel_file_line(path, line, sizeof(line));
	if (sscanf(line, strcmp(s->period, s->max) ? "%" SCNu64 : "%*s %" SCNu64, &period) != 1 ||
		period < 1000 || period > 1000000)
		period = 100000;
	return quota > UINT64_MAX / 1000 ? UINT64_MAX : quota * 1000 / period;
}

/* The number behind `name` in memory.stat of the group; 0: none. */
static uint64_t stat_read(const struct place *p, const char *name)
{
	char path[PATH_BYTES], line[256];
	size_t bytes = strlen(name);
	uint64_t value = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s%s/memory.stat", p->mount, p->group);
	file = kernel_file_open(path);
	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, name, bytes) == 0 && line[bytes] == ' ' &&
			sscanf(line + bytes, "%" SCNu64, &value) == 1)
			break;
	if (file)
		fclose(file);
	return value;
}

/* Moves on to the parent group. False: there is none, or its limits do not count for its children.
 */
static bool parent_next(struct place *p)
{
	char *slash = strrchr(p->group, '/');
	uint64_t hierarchy;

	if (!slash)
		return false;
	*slash = '\0';
	return !number_read(p, "memory.use_hierarchy", &hierarchy) || hierarchy;
}

static bool limit_apply(const struct shown *s, uint64_t *left, char name[CGROUP_NAME_BYTES])
{
	struct place p;
	bool lower = false;

	if (!place_find(s->controller, &p))
		return false;
	do {
		uint64_t max, used = 0, spare;

		if (!number_read(&p, s->max, &max))
			continue;
		if (s->used)
			(void)number_read(&p, s->used, &used);
		if (s->period)
			max = rate_of(&p, s, max);
		spare = s->reclaimable ? stat_read(&p, s->reclaimable) : 0;
		used -= spare < used ? spare : used;
		max -= used < max ? used : max;
		if (max >= *left)
			continue;
		*left = max;
		lower = true;
		snprintf(name, CGROUP_NAME_BYTES, "%s of cgroup %.100s", s->max,
			p.group[0] ? p.group : "/");
	} while (parent_next(&p));
	return lower;
}

bool cgroup_left(enum cgroup_limit limit, uint64_t *left, char name[CGROUP_NAME_BYTES])
{
	bool lower = false;

	for (unsigned i = 0; i < sizeof(shown) / sizeof(shown[0]); i++)
		if (shown[i].limit == limit)
			lower |= limit_apply(&shown[i], left, name);
	return lower;
}

bool cgroup_shown(enum cgroup_limit limit)
{
	struct place p;
	bool found = false;

	for (unsigned i = 0; i < sizeof(shown) / sizeof(shown[0]); i++)
		found |= shown[i].limit == limit && place_find(shown[i].controller, &p);
	return found;
}
