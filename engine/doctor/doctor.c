/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of checks, and the findings that they make. Each check is a function of the file of its
 * topic; to add one, add a line to checks[] and its function. One thread.
 */
#include "config/text_fit.h"
#include "engine/doctor/doctor.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <json-c/json.h>

#include "config/log.h"
#include "config/json_read.h"
#include "config/ports.h"
#include "engine/control/net/address.h"
#include "engine/control/pages/sizes.h"
#include "engine/doctor/inner.h"
#include "numa/cgroup.h"
#include "numa/kernel_file.h"

/* Where a check looks: also in files of another host (--root), or only at this one. */
enum place { ANY_HOST, THIS_HOST };

static const struct {
	const char *name;
	enum place place;
	void (*run)(struct doctor *d);
	const char *explain;
} checks[] = {
	{"settings", THIS_HOST, check_settings, "what peercache-engine --check says"},
	{"engine", THIS_HOST, check_engine, "whether an engine serves, and what it finds wrong"},
	{"versions", THIS_HOST, check_versions, "engine, keeper and library are one version"},
	{"settings in use", THIS_HOST, check_differences, "the running engine has these settings"},
	{"plan", ANY_HOST, check_plan, "cores and NUMA nodes of rails and control plane"},
	{"huge pages", ANY_HOST, check_huge_pages, "pools, page heads and directory fit each node"},
	{"memory", ANY_HOST, check_memory, "what is not on huge pages fits the memory"},
	{"limits", ANY_HOST, check_limits, "locked memory, open files, threads, file sizes"},
	{"cgroup", ANY_HOST, check_cgroup, "processor time, huge pages and threads of the cgroup"},
	{"isolation", ANY_HOST, check_isolation, "the kernel runs nothing else on poll cores"},
	{"interrupts", ANY_HOST, check_interrupts, "no interrupt goes to a poll core"},
	{"governor", ANY_HOST, check_governor, "the clock of poll cores is not lowered"},
	{"C-states", ANY_HOST, check_c_states, "poll cores do not sleep deeply"},
	{"THP", ANY_HOST, check_thp, "khugepaged does not move pages of all processes"},
	{"kernel.numa_balancing", ANY_HOST, check_numa_balancing, "the kernel unmaps no pages"},
	{"vm.swappiness", ANY_HOST, check_swappiness, "clients' memory is not swapped out early"},
	{"clock source", ANY_HOST, check_clock_source, "reading the clock is no system call"},
	{"software NIC", ANY_HOST, check_software_nic, "the software NIC is used on purpose"},
	{"link", ANY_HOST, check_links, "ports of NICs are up"},
	{"GID", ANY_HOST, check_gids, "ports have a usable RoCE v2 address"},
	{"MTU", ANY_HOST, check_mtu, "the interface of a NIC allows packets of 4096 bytes"},
	{"traffic class", ANY_HOST, check_traffic_class, "packets have a class for switches"},
	{"PFC and ECN", ANY_HOST, check_lossless, "the NIC is told to lose no packets"},
	{"address", THIS_HOST, check_address, "cluster.address is one that other hosts reach"},
	{"keys", THIS_HOST, check_keys,
		"cluster.psk_file or cluster.tls_dir, as the engine reads it"},
	{"seeds", THIS_HOST, check_seeds, "names and families of seeds, and whether they answer"},
	{"ports", THIS_HOST, check_ports, "the ports are free, or the engine's own"},
	{"time", THIS_HOST, check_time, "the clock of this host is kept right"},
	{"disk", THIS_HOST, check_disk, "room, file system and device of disk.paths"},
	{"peer", THIS_HOST, check_peers, "--peer HOST: its ports can be reached from here"},
};
#define CHECKS (sizeof(checks) / sizeof(checks[0]))

/* ---- findings -------------------------------------------------------------------------------- */

struct doctor_finding *found(struct doctor *d, enum doctor_state state, const char *where,
	const char *fix, const char *format, ...)
{
	struct doctor_finding *f = &d->finding[d->findings];
	va_list arguments;

	if (d->findings < DOCTOR_FINDINGS_MAX - 1)
		d->findings++;
	free(f->fix);
	*f = (struct doctor_finding){.check = d->check, .state = state};
	snprintf(f->where, sizeof(f->where), "%s", where);
	va_start(arguments, format);
	text_vfit(f->text, sizeof(f->text), format, arguments);
	va_end(arguments);
	f->fix = fix ? strdup(fix) : NULL;
	return f;
}

void fix_set(struct doctor_finding *finding, const char *format, ...)
{
	va_list arguments;
	char *text;

	va_start(arguments, format);
	if (vasprintf(&text, format, arguments) >= 0) {
		free(finding->fix);
		finding->fix = text;
	}
	va_end(arguments);
}

/* The fix of a finding with writes: "echo VALUE | tee FILE FILE; ..." */
static void fix_of_writes(struct doctor_finding *f)
{
	char *text = NULL;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);

	if (!out)
		return;
	for (unsigned i = 0; i < f->writes; i++) {
		if (i == 0 || strcmp(f->write[i].value, f->write[i - 1].value))
			fprintf(out, "%secho %s | tee", i ? "; " : "", f->write[i].value);
		fprintf(out, " %s", f->write[i].file);
	}
	if (fclose(out) == 0) {
		free(f->fix);
		f->fix = text;
	}
}

void found_write(struct doctor_finding *f, const char *file, const char *value)
{
	struct doctor_write *more =
		realloc(f->write, (f->writes + 1) * sizeof(struct doctor_write));

	if (!more)
		return;
	f->write = more;
	f->write[f->writes++] = (struct doctor_write){strdup(file), strdup(value)};
	fix_of_writes(f);
}

/* ---- what the checks start from -------------------------------------------------------------- */

/* Other engines' claims do not count: the engine with these settings may be the one that runs. */
static void topology_examine(struct doctor *d)
{
	cpu_set_t online;

	/* without sysfs, hwloc would invent a machine */
	if (host_cores(d, "/sys/devices/system/cpu/online", &online) != HOST_READ ||
		topology_open(&d->topology) < 0) {
		d->topology = NULL;
		return;
	}
	for (unsigned i = 0; i < d->topology->cpus; i++)
		d->topology->cpu[i].holder = 0;
	d->planned = plan_make(d->topology, d->s, &d->plan) == 0;
}

/* The running engine knows best; then what rail.cores names; then the plan. */
static void poll_cores_find(struct doctor *d)
{
	json_object *rails = json_get(d->options->report, "rails");

	if (json_object_is_type(rails, json_type_array)) {
		for (size_t i = 0; i < json_object_array_length(rails); i++) {
			int64_t core;

			if (json_whole(json_object_array_get_idx(rails, i), "core", &core))
				cores_add(&d->poll, core);
		}
		return;
	}
	if (strcmp(d->s->rail_cores, "auto") != 0) {
		(void)cores_parse(d->s->rail_cores, &d->poll);
		return;
	}
	for (unsigned i = 0; d->planned && i < d->plan.rails; i++)
		cores_add(&d->poll, d->plan.rail[i].core);
}

static void engine_find(struct doctor *d)
{
	int64_t pid;

	d->engine = d->options->unasked  ? ENGINE_UNASKED
		    : d->options->report ? ENGINE_SERVES
					 : ENGINE_ABSENT;
	if (d->engine == ENGINE_SERVES && json_whole(d->options->report, "pid", &pid) && pid > 0 &&
		pid <= INT32_MAX)
		d->pid = (long)pid;
}

/* Whose files, limits and cgroups the engine has: those of the unit's user, or of this shell. */
static void process_find(struct doctor *d)
{
	long pid = d->pid;
	int rc = d->root[0] ? -ENOENT : unit_read(&d->unit);

	d->user = d->options->user;
	d->unit_silent = rc == -ETIMEDOUT;
	if (rc == 0)
		d->of_unit = !d->user || strcmp(d->user, d->unit.user) == 0;
	if (d->of_unit)
		d->user = d->unit.user;
	if (!pid && d->of_unit)
		pid = d->unit.pid;
	if (pid)
		snprintf(d->process, sizeof(d->process), "%ld", pid);
	else if (d->engine == ENGINE_UNASKED)
		d->process_why = "the engine could not be asked, so its process is not known";
	else if (d->engine == ENGINE_SERVES)
		d->process_why = "the engine does not tell its process";
	else if (d->of_unit)
		d->process_why = UNIT_NAME " has its own, and does not run";
	else if (d->unit_silent)
		d->process_why = "systemctl has not told which process " UNIT_NAME " has";
	else
		snprintf(d->process, sizeof(d->process), "self");
	cgroup_process(d->process[0] ? d->process : NULL);
}

static void examine(struct doctor *d)
{
	unsigned rails = ports_rails(d->s, &d->soft);
	char said[256];

	d->nics = rails - d->soft;
	d->listening = *d->s;
	engine_find(d);
	process_find(d);
	d->plan.rails = rails < RAILS_MAX ? rails : RAILS_MAX;
	for (unsigned i = 0; i < RAILS_MAX; i++)
		d->plan.rail[i].numa_node = d->plan.rail[i].core = -1;
	log_test_capture(d->plan_errors, sizeof(d->plan_errors));
	topology_examine(d);
	log_test_capture(said, sizeof(said)); /* check_settings() has it */
	if (!d->root[0])
		(void)address_settle(&d->listening);
	log_test_capture(NULL, 0);
	poll_cores_find(d);
}

/* The tree of another host, or of a test: its files, and hwloc's and the verbs devices' of it. */
static void root_set(struct doctor *d)
{
	char sys[512];

	d->root = d->options->root ? d->options->root : "";
	if (!d->options->root)
		return;
	kernel_file_root(d->root);
	snprintf(sys, sizeof(sys), "%s/sys", d->root);
	setenv("HWLOC_FSROOT", d->root, 1);
	setenv("SYSFS_PATH", sys, 1);
}

/* ---- all together ---------------------------------------------------------------------------- */

struct doctor *doctor_run(const struct doctor_options *options)
{
	struct doctor *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	d->options = options;
	d->s = options->settings;
	root_set(d);
	examine(d);
	for (size_t i = 0; i < CHECKS; i++) {
		d->check = checks[i].name;
		if (d->root[0] && checks[i].place == THIS_HOST)
			found(d, DOCTOR_UNKNOWN, d->root, NULL, "not examined for another host");
		else
			checks[i].run(d);
	}
	return d;
}

unsigned doctor_count(const struct doctor *d, enum doctor_state state)
{
	unsigned count = 0;

	for (unsigned i = 0; i < d->findings; i++)
		count += d->finding[i].state == state;
	return count;
}

const struct doctor_finding *doctor_finding(const struct doctor *d, unsigned at)
{
	return at < d->findings ? &d->finding[at] : NULL;
}

const char *doctor_state_name(enum doctor_state state)
{
	static const char *const names[] = {"ok", "found", "unknown", "none"};

	return names[state];
}

const char *doctor_explain(const char *check)
{
	for (size_t i = 0; i < CHECKS; i++)
		if (!strcmp(checks[i].name, check))
			return checks[i].explain;
	return NULL;
}

uint64_t doctor_huge_pages(const struct doctor *d)
{
	struct memory_node nodes[RAILS_MAX + 1];
	unsigned count = memory_nodes(d->s, &d->plan, nodes);
	uint64_t pages = 0;

	for (unsigned i = 0; i < count; i++)
		pages += nodes[i].huge_pages;
	return pages;
}

void doctor_close(struct doctor *d)
{
	if (!d)
		return;
	for (unsigned i = 0; i < DOCTOR_FINDINGS_MAX; i++) {
		struct doctor_finding *f = &d->finding[i];

		for (unsigned w = 0; w < f->writes; w++) {
			free(f->write[w].file);
			free(f->write[w].value);
		}
		free(f->write);
		free(f->fix);
	}
	if (d->topology)
		topology_close(d->topology);
	free(d);
}
