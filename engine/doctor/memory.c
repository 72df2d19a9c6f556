/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan, the memory that it needs, and the limits of the process. One thread.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/json_read.h"
#include "engine/control/pages/sizes.h"
#include "engine/doctor/inner.h"
#include "numa/cgroup.h"
#include "numa/kernel_file.h"
#include "numa/memory.h"

#define UNLIMITED UINT64_MAX
#define FILES_WANTED 4096 /* sockets of clients and members, memory of clients */
#define TASKS_WANTED 64   /* threads of an engine, helpers counted */

/* ---- the plan -------------------------------------------------------------------------------- */

void check_plan(struct doctor *d)
{
	struct memory_node nodes[RAILS_MAX + 1];
	unsigned count;

	if (!d->planned) {
		char *error = strstr(d->plan_errors, "error ");

		found(d, d->topology ? DOCTOR_FOUND : DOCTOR_UNKNOWN, "rail.devices",
			d->topology ? "peercache-engine --plan" : NULL, "%.*s",
			(int)strcspn(error ? error + 6 : d->plan_errors, "\n"),
			error ? error + 6 : "the cores of this host cannot be read");
		return;
	}
	count = memory_nodes(d->s, &d->plan, nodes);
	for (unsigned i = 0; i < count; i++)
		for (unsigned n = 0; n < d->topology->nodes; n++)
			if (d->topology->node[n].node == nodes[i].node &&
				d->topology->node[n].bytes &&
				d->topology->node[n].bytes < nodes[i].bytes)
				found(d, DOCTOR_FOUND, "engine.pool_bytes",
					"lower engine.pool_bytes, or drop a NIC of that node from rail.devices",
					"NUMA node %d has %.1f GiB, and %.1f GiB of pools belong there",
					nodes[i].node, (double)d->topology->node[n].bytes / GIB,
					(double)nodes[i].bytes / GIB);
	if (strstr(d->plan.note, " of node "))
		found(d, DOCTOR_FOUND, "rail.cores",
			"peercache-engine --plan; free cores near the NICs, or name cores in rail.cores",
			"%s", d->plan.note);
	else if (!d->plan.rails)
		found(d, DOCTOR_OK, "rail.devices", NULL, "none: a seed only, without pages");
	else
		found(d, DOCTOR_OK, "rail.devices", NULL, "%u rails on %u poll cores%s%s",
			d->plan.rails, d->plan.poll_cores, d->plan.note[0] ? "; " : "",
			d->plan.note);
}

/* ---- huge pages ------------------------------------------------------------------------------ */

#define HUGE "hugepages/hugepages-2048kB"

/* Where pages are reserved: a NUMA node, or the machine. */
struct huge_place {
	char folder[128];
	int64_t reserved, unused;
};

/* Pages that an engine can have: one that runs has its own already, so those that are reserved. */
static int64_t huge_have(const struct doctor *d, const struct huge_place *at)
{
	return d->engine == ENGINE_SERVES ? at->reserved : at->unused;
}

/* Of node `node`; -1: of the machine. */
static enum host_read huge_read(const struct doctor *d, int node, struct huge_place *ret)
{
	char path[192];
	enum host_read read;

	if (node < 0)
		snprintf(ret->folder, sizeof(ret->folder), "/sys/kernel/mm/" HUGE);
	else
		snprintf(ret->folder, sizeof(ret->folder), "/sys/devices/system/node/node%d/" HUGE,
			node);
	snprintf(path, sizeof(path), "%s/nr_hugepages", ret->folder);
	read = host_number(d, path, &ret->reserved);
	snprintf(path, sizeof(path), "%s/free_hugepages", ret->folder);
	if (read == HOST_READ && host_number(d, path, &ret->unused) != HOST_READ)
		ret->unused = ret->reserved;
	return read;
}

/* Has the place too few pages? `need` 0: never. */
static bool huge_lacks(const struct doctor *d, const struct huge_place *at, int64_t need)
{
	return need > huge_have(d, at);
}

/* Lets the finding reserve what is needed there beside the pages of others. */
static void huge_write(
	const struct doctor *d, struct doctor_finding *f, const struct huge_place *at, int64_t need)
{
	char path[192], text[32];

	snprintf(path, sizeof(path), "%s/nr_hugepages", at->folder);
	snprintf(text, sizeof(text), "%" PRId64, need + at->reserved - huge_have(d, at));
	found_write(f, path, text);
}

/* Adds what is to say of one place; the finding if pages are lacking, else NULL. */
static struct doctor_finding *huge_examine(
	struct doctor *d, const struct huge_place *at, const char *name, int64_t need)
{
	const char *kind = d->engine == ENGINE_SERVES ? "reserved" : "free";
	int64_t have = huge_have(d, at);
	char path[192];

	snprintf(path, sizeof(path), "%s/nr_hugepages", at->folder);
	if (d->engine == ENGINE_UNASKED)
		found(d, DOCTOR_UNKNOWN, path, NULL,
			"%" PRId64 " of 2 MiB are needed on %s; what the engine has is not known",
			need, name);
	else if (!huge_lacks(d, at, need))
		found(d, DOCTOR_OK, path, NULL,
			"%" PRId64 " of 2 MiB are needed on %s, %" PRId64 " are %s", need, name,
			have, kind);
	else
		return found(d, DOCTOR_FOUND, path, NULL,
			"%" PRId64 " of 2 MiB are needed on %s, %" PRId64
			" are %s: memory falls back to small pages, and reads are slower",
			need, name, have, kind);
	return NULL;
}

/* Pages that are needed on a node. */
static int64_t huge_need(const struct memory_node *nodes, unsigned count, int node)
{
	for (unsigned i = 0; i < count; i++)
		if (nodes[i].node == node)
			return (int64_t)nodes[i].huge_pages;
	return 0;
}

/*
 * Pages that any node may provide: all nodes reserve the share. Nodes that lack their own have a
 * finding that writes both: no file is written twice.
 */
static void huge_spread(struct doctor *d, struct doctor_finding *f, int64_t share,
	const struct memory_node *nodes, unsigned count)
{
	for (int node = 0; node < TOPOLOGY_NODES_MAX; node++) {
		int64_t need = huge_need(nodes, count, node);
		struct huge_place at;

		if (huge_read(d, node, &at) != HOST_READ || huge_lacks(d, &at, need))
			continue;
		if (huge_lacks(d, &at, need + share))
			huge_write(d, f, &at, need + share);
	}
}

void check_huge_pages(struct doctor *d)
{
	struct memory_node nodes[RAILS_MAX + 1];
	unsigned count = memory_nodes(d->s, &d->plan, nodes), places = 0;
	int64_t any = huge_need(nodes, count, -1), sum = 0, share = 0;
	struct huge_place machine, at;
	struct doctor_finding *f;
	enum host_read read;
	char name[32];

	if (!d->s->engine_huge_pages) {
		found(d, DOCTOR_NONE, "engine.huge_pages", NULL, "the settings want none");
		return;
	}
	for (unsigned i = 0; i < count; i++)
		sum += (int64_t)nodes[i].huge_pages;
	for (int node = 0; node < TOPOLOGY_NODES_MAX; node++)
		places += huge_read(d, node, &at) == HOST_READ;
	read = huge_read(d, -1, &machine);
	if (any && read == HOST_READ && places && huge_lacks(d, &machine, sum))
		share = (any + places - 1) / places;
	for (unsigned i = 0; i < count; i++) {
		if (nodes[i].node < 0)
			continue;
		snprintf(name, sizeof(name), "NUMA node %d", nodes[i].node);
		if (host_not_read(d, huge_read(d, nodes[i].node, &at), at.folder))
			continue;
		f = huge_examine(d, &at, name, (int64_t)nodes[i].huge_pages);
		if (f)
			huge_write(d, f, &at, (int64_t)nodes[i].huge_pages + share);
	}
	if (!any || host_not_read(d, read, machine.folder))
		return;
	f = huge_examine(d, &machine, "this host", sum);
	if (f && places)
		huge_spread(d, f, share, nodes, count);
	else if (f)
		huge_write(d, f, &machine, sum);
	if (f && !f->writes)
		fix_set(f, "the fixes of its NUMA nodes mend it");
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Bytes on huge pages, and on small ones. */
static void bytes_needed(const struct doctor *d, uint64_t *ret_huge, uint64_t *ret_small)
{
	struct memory_part parts[MEMORY_PARTS_MAX];
	unsigned count = memory_parts(d->s, &d->plan, parts);

	*ret_huge = 0;
	*ret_small = memory_process_bytes(d->s, d->plan.rails);
	for (unsigned i = 0; i < count; i++)
		*(parts[i].huge ? ret_huge : ret_small) += parts[i].bytes;
}

/* Has the running engine another engine.pool_bytes than the settings? */
static bool pool_differs(const struct doctor *d)
{
	int64_t bytes;

	return d->options->given && (!json_whole(json_get(d->options->report, "settings"),
					     "engine.pool_bytes", &bytes) ||
					    (uint64_t)bytes != d->s->engine_pool_bytes);
}

void check_memory(struct doctor *d)
{
	char limit[CGROUP_NAME_BYTES];
	uint64_t huge, small, left = memory_available(limit, sizeof(limit));

	bytes_needed(d, &huge, &small);
	if (d->engine == ENGINE_UNASKED)
		found(d, DOCTOR_UNKNOWN, "engine.pool_bytes", NULL,
			"what the engine has is not known");
	else if (d->engine == ENGINE_SERVES && pool_differs(d))
		found(d, DOCTOR_UNKNOWN, "engine.pool_bytes", NULL,
			"the engine that runs has another value: whether %.2f GiB fit shows when it has ended",
			(double)(huge + small) / GIB);
	else if (d->engine == ENGINE_SERVES)
		found(d, DOCTOR_OK, "engine.pool_bytes", NULL, "the engine has its %.2f GiB",
			(double)(huge + small) / GIB);
	else if (left == UNLIMITED)
		found(d, DOCTOR_UNKNOWN, "/proc/meminfo", NULL, "MemAvailable cannot be read");
	else if (small > left)
		found(d, DOCTOR_FOUND, limit,
			"lower engine.pool_bytes, free memory, or raise that limit",
			"%.2f GiB on small pages are needed, %s leaves %.2f GiB",
			(double)small / GIB, limit, (double)left / GIB);
	else
		found(d, DOCTOR_OK, limit, NULL,
			"%.2f GiB on small pages are needed, %.2f GiB are left",
			(double)small / GIB, (double)left / GIB);
}

/* ---- limits of the process ------------------------------------------------------------------- */

/* The hard limit of a line of /proc/PID/limits. False: no line has that name. */
static bool limit_read(const char *path, const char *name, uint64_t *ret)
{
	char line[256], soft[32], hard[32];
	FILE *file = kernel_file_open(path);
	bool got = false;

	while (file && !got && fgets(line, sizeof(line), file))
		got = strncmp(line, name, strlen(name)) == 0 &&
		      sscanf(line + strlen(name), "%31s %31s", soft, hard) == 2;
	if (file)
		fclose(file);
	if (got && !strcmp(hard, "unlimited"))
		*ret = UNLIMITED;
	else if (got)
		got = sscanf(hard, "%" SCNu64, ret) == 1;
	return got;
}

static void limit_examine(
	struct doctor *d, const char *path, const char *name, uint64_t want, const char *fix)
{
	uint64_t have;

	if (!limit_read(path, name, &have))
		found(d, DOCTOR_UNKNOWN, path, NULL, "it has no readable line \"%s\"", name);
	else if (have < want)
		found(d, DOCTOR_FOUND, path, fix, "%s: %" PRIu64 "%s, and %" PRIu64 " are needed",
			name, have, strcmp(d->process, "self") ? "" : " in this shell", want);
	else
		found(d, DOCTOR_OK, path, NULL, "%s: enough", name);
}

void check_limits(struct doctor *d)
{
	uint64_t huge, small, largest = d->s->engine_pool_bytes;
	char path[64];

	bytes_needed(d, &huge, &small);
	if (!d->process[0]) {
		found(d, DOCTOR_UNKNOWN, "limits of the process",
			"systemctl show " UNIT_NAME " | grep ^Limit; or examine it while it runs",
			"%s", d->process_why);
		return;
	}
	snprintf(path, sizeof(path), "/proc/%s/limits", d->process);
	if (d->nics)
		limit_examine(d, path, "Max locked memory", (huge + small) * d->nics,
			"LimitMEMLOCK=infinity in the engine's systemd unit; for shells: peercache-setup-host --apply --persist and a new login");
	limit_examine(d, path, "Max open files", FILES_WANTED,
		"LimitNOFILE=65536 in the engine's systemd unit, or ulimit -n 65536");
	limit_examine(d, path, "Max processes", TASKS_WANTED,
		"LimitNPROC=4096 in the engine's systemd unit, or ulimit -u 4096");
	if (d->s->disk_paths[0] && d->s->disk_segment_bytes > largest)
		largest = d->s->disk_segment_bytes;
	limit_examine(d, path, "Max file size", largest,
		"LimitFSIZE=infinity in the engine's systemd unit, or ulimit -f unlimited");
	limit_examine(d, path, "Max address space", 2 * (huge + small) + GIB,
		"LimitAS=infinity in the engine's systemd unit, or ulimit -v unlimited");
}

/* ---- cgroups --------------------------------------------------------------------------------- */

/*
 * A thread of a group that has used its quota stands still until the next period. What the engine
 * uses all the time: its poll cores, the control plane, and helper threads for one more.
 */
static void cpu_quota_examine(struct doctor *d)
{
	char name[CGROUP_NAME_BYTES], path[64];
	struct doctor_finding *f;
	uint64_t milli = UNLIMITED, needed = d->plan.poll_cores + 2;

	snprintf(path, sizeof(path), "/proc/%s/cgroup", d->process);
	if (cgroup_left(CGROUP_CPU, &milli, name)) {
		f = found(d, milli < 1000 * needed ? DOCTOR_FOUND : DOCTOR_OK, name, NULL,
			"the time of %.2f CPUs for %u poll cores, the control plane and helper threads",
			(double)milli / 1000, d->plan.poll_cores);
		if (f->state == DOCTOR_FOUND)
			fix_set(f,
				"give the engine no CPU limit, or at least %" PRIu64
				" CPUs: CPUQuota= of its unit, the limit cpu of its container",
				needed);
	} else if (cgroup_shown(CGROUP_CPU))
		found(d, DOCTOR_OK, path, NULL, "no limit of processor time");
	else
		found(d, DOCTOR_UNKNOWN, path, NULL,
			"no cgroup of that process can be read: limits of processor time are not known");
}

void check_cgroup(struct doctor *d)
{
	uint64_t huge, small, left = UNLIMITED;
	char name[CGROUP_NAME_BYTES];

	if (!d->process[0]) {
		found(d, DOCTOR_UNKNOWN, "cgroup",
			"systemctl show " UNIT_NAME
			" -p CPUQuotaPerSecUSec -p MemoryMax -p TasksMax",
			"%s", d->process_why);
		return;
	}
	cpu_quota_examine(d);
	bytes_needed(d, &huge, &small);
	(void)cgroup_left(CGROUP_HUGE, &left, name);
	(void)cgroup_left(CGROUP_HUGE_RESERVED, &left, name);
	if (d->engine == ENGINE_ABSENT && left < huge)
		found(d, DOCTOR_FOUND, name,
			"raise that limit: hugetlb of the unit, hugepages-2Mi of the container",
			"%.2f GiB on huge pages are needed, the group allows %.2f GiB",
			(double)huge / GIB, (double)left / GIB);
	left = UNLIMITED;
	if (d->engine == ENGINE_ABSENT && cgroup_left(CGROUP_TASKS, &left, name) &&
		left < TASKS_WANTED)
		found(d, DOCTOR_FOUND, name,
			"raise that limit: TasksMax= of the unit, the pids limit of the container",
			"%d threads are needed, the group allows %" PRIu64 " more", TASKS_WANTED,
			left);
}
