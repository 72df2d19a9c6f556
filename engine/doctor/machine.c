/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel and the firmware do to poll cores and to memory: isolation, interrupts, clock
 * frequency, power states, moved pages, the clock. One thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/doctor/inner.h"

#define CPU "/sys/devices/system/cpu"
#define EXIT_US 10 /* a longer exit latency of a C-state delays a poll core that sleeps */
#define LIST_BYTES 2048

/* The core of a path such as /sys/devices/system/cpu/cpu12/...; -1: none. */
static int path_core(const char *path)
{
	const char *at = strstr(path, "/cpu/cpu");

	return at ? atoi(at + strlen("/cpu/cpu")) : -1;
}

/* Without pinned poll cores, all cores count. */
static bool core_counts(const struct doctor *d, const char *path)
{
	int core = path_core(path);

	return CPU_COUNT(&d->poll) == 0 ||
	       (core >= 0 && core < CPU_SETSIZE && CPU_ISSET((size_t)core, &d->poll));
}

static bool poll_cores_missing(struct doctor *d)
{
	if (CPU_COUNT(&d->poll))
		return false;
	if (d->planned)
		found(d, DOCTOR_NONE, "rail.cores", NULL, "no poll core is pinned");
	else
		found(d, DOCTOR_UNKNOWN, "rail.cores", NULL,
			"without a plan it is not known which cores are poll cores");
	return true;
}

void check_isolation(struct doctor *d)
{
	static const char *const lists[] = {"isolated", "nohz_full"};
	char text[LIST_BYTES], missing[LIST_BYTES] = "", path[64];
	struct doctor_finding *f;
	size_t used = 0;

	if (poll_cores_missing(d))
		return;
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		cpu_set_t list, lacking;
		enum host_read read;

		snprintf(path, sizeof(path), CPU "/%s", lists[i]);
		read = host_cores(d, path, &list);
		if (read == HOST_UNREADABLE || (read == HOST_ABSENT && i == 0)) {
			(void)host_not_read(d, HOST_UNREADABLE, path);
			return;
		}
		lacking = cores_without(&d->poll, &list);
		if (CPU_COUNT(&lacking) && used < sizeof(missing))
			used += (size_t)snprintf(missing + used, sizeof(missing) - used, "%s%s: %s",
				used ? ", not " : "", lists[i], cores_text(&lacking, text, 128));
	}
	cores_text(&d->poll, text, sizeof(text));
	if (!missing[0]) {
		found(d, DOCTOR_OK, CPU "/isolated", NULL, "cores %s are isolated", text);
		return;
	}
	f = found(d, DOCTOR_FOUND, CPU "/isolated", NULL,
		"the scheduler or its timer tick runs on poll cores not %s", missing);
	fix_set(f,
		"kernel command line: isolcpus=managed_irq,domain,%s nohz_full=%s rcu_nocbs=%s; then reboot",
		text, text, text);
}

static bool irqbalance_runs(const struct doctor *d)
{
	struct host_paths paths = host_glob(d, "/proc/[0-9]*/comm");
	bool runs = false;
	char name[64];

	for (size_t i = 0; i < paths.count && !runs; i++)
		runs = host_text(d, paths.path[i], name, sizeof(name)) == HOST_READ &&
		       strcmp(name, "irqbalance") == 0;
	host_paths_free(&paths);
	return runs;
}

/* The cores where an interrupt of this number goes now, and where it may go. */
static bool irq_read(
	const struct doctor *d, const char *path, cpu_set_t *allowed, cpu_set_t *effective)
{
	char other[256];
	const char *at = strrchr(path, '/');

	snprintf(other, sizeof(other), "%.*s/effective_affinity_list", (int)(at - path), path);
	if (host_cores(d, path, allowed) != HOST_READ)
		return false;
	if (host_cores(d, other, effective) != HOST_READ || CPU_COUNT(effective) == 0)
		*effective = *allowed;
	return true;
}

static void irq_finding(struct doctor *d, const cpu_set_t *online, const struct host_paths *at)
{
	const cpu_set_t others = cores_without(online, &d->poll);
	bool rest = CPU_COUNT(&others) != 0;
	char text[LIST_BYTES], names[96] = "";
	struct doctor_finding *f;
	size_t used = 0;

	for (size_t i = 0; i < at->count && used + 16 < sizeof(names); i++)
		used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%d", i ? ", " : "",
			atoi(at->path[i] + strlen("/proc/irq/")));
	f = found(d, DOCTOR_FOUND, "/proc/irq", NULL, "the poll cores may get %zu: IRQ %s%s",
		at->count, names, used + 16 < sizeof(names) ? "" : " ...");
	if (irqbalance_runs(d)) {
		size_t end = strlen(f->text);

		snprintf(f->text + end, sizeof(f->text) - end,
			"; irqbalance runs and moves them back: set IRQBALANCE_BANNED_CPULIST=%s in /etc/default/irqbalance, or stop it",
			cores_text(&d->poll, text, 128));
	}
	if (!rest)
		fix_set(f, "leave at least one core that is not a poll core");
	for (size_t i = 0; rest && i < at->count; i++) {
		cpu_set_t allowed, effective, left;

		(void)irq_read(d, at->path[i], &allowed, &effective);
		left = cores_without(CPU_COUNT(&allowed) ? &allowed : online, &d->poll);
		if (!CPU_COUNT(&left))
			left = others;
		found_write(f, at->path[i], cores_text(&left, text, sizeof(text)));
	}
}

void check_interrupts(struct doctor *d)
{
	struct host_paths all = host_glob(d, "/proc/irq/[0-9]*/smp_affinity_list");
	struct host_paths at = {0, calloc(all.count + 1, sizeof(char *))};
	cpu_set_t online, allowed, effective, others;
	unsigned unread = 0;

	if (poll_cores_missing(d) || !at.path)
		goto out;
	if (host_not_read(d, host_cores(d, CPU "/online", &online), CPU "/online"))
		goto out;
	if (!all.count) {
		found(d, DOCTOR_UNKNOWN, "/proc/irq", NULL, "it shows no interrupts here");
		goto out;
	}
	for (size_t i = 0; i < all.count; i++) {
		if (!irq_read(d, all.path[i], &allowed, &effective)) {
			unread++;
			continue;
		}
		others = cores_without(&effective, &d->poll);
		if (CPU_COUNT(&others) < CPU_COUNT(&effective))
			at.path[at.count++] = all.path[i];
	}
	if (at.count)
		irq_finding(d, &online, &at);
	else if (unread)
		found(d, DOCTOR_UNKNOWN, "/proc/irq", NULL, "%u interrupts cannot be read", unread);
	else
		found(d, DOCTOR_OK, "/proc/irq", NULL, "the poll cores get none");
out:
	free(at.path);
	host_paths_free(&all);
}

/* There are no files of this kind; or no sysfs. */
static void power_missing(struct doctor *d, const char *text)
{
	cpu_set_t online;
	bool here = host_cores(d, CPU "/online", &online) == HOST_READ;

	found(d, here ? DOCTOR_NONE : DOCTOR_UNKNOWN, CPU, NULL, "%s",
		here ? text : "its files cannot be read");
}

void check_governor(struct doctor *d)
{
	struct host_paths paths = host_glob(d, CPU "/cpu[0-9]*/cpufreq/scaling_governor");
	struct doctor_finding *f = NULL;
	bool unread = false;
	char text[64];

	if (!paths.count)
		power_missing(d, "no cpufreq: hypervisor or firmware sets the frequency");
	for (size_t i = 0; i < paths.count; i++) {
		if (!core_counts(d, paths.path[i]))
			continue;
		if (host_text(d, paths.path[i], text, sizeof(text)) != HOST_READ || !text[0]) {
			unread = true;
			continue;
		}
		if (!strcmp(text, "performance"))
			continue;
		if (!f)
			f = found(d, DOCTOR_FOUND, paths.path[i], NULL,
				"%s: the clock is lowered and rises late", text);
		found_write(f, paths.path[i], "performance");
	}
	if (paths.count && !f)
		found(d, unread ? DOCTOR_UNKNOWN : DOCTOR_OK, CPU, NULL,
			unread ? "scaling_governor cannot be read" : "performance");
	host_paths_free(&paths);
}

void check_c_states(struct doctor *d)
{
	struct host_paths paths = host_glob(d, CPU "/cpu[0-9]*/cpuidle/state[0-9]*/disable");
	struct doctor_finding *f = NULL;
	bool unread = false;

	if (!paths.count)
		power_missing(d, "no cpuidle: hypervisor or firmware sets the C-states");
	for (size_t i = 0; i < paths.count; i++) {
		int folder = (int)(strrchr(paths.path[i], '/') - paths.path[i]);
		int64_t latency, disabled;
		char path[256], name[32];

		if (!core_counts(d, paths.path[i]))
			continue;
		snprintf(path, sizeof(path), "%.*s/latency", folder, paths.path[i]);
		if (host_number(d, path, &latency) != HOST_READ ||
			host_number(d, paths.path[i], &disabled) != HOST_READ) {
			unread = true;
			continue;
		}
		if (latency <= EXIT_US || disabled)
			continue;
		snprintf(path, sizeof(path), "%.*s/name", folder, paths.path[i]);
		(void)host_text(d, path, name, sizeof(name));
		if (!f)
			f = found(d, DOCTOR_FOUND, paths.path[i], NULL,
				"%s: exit latency %lld us, more than %d us", name,
				(long long)latency, EXIT_US);
		found_write(f, paths.path[i], "1");
	}
	if (paths.count && !f)
		found(d, unread ? DOCTOR_UNKNOWN : DOCTOR_OK, CPU, NULL,
			unread ? "states of cpuidle cannot be read"
			       : "none has an exit latency above %d us",
			EXIT_US);
	host_paths_free(&paths);
}

void check_thp(struct doctor *d)
{
	static const char path[] = "/sys/kernel/mm/transparent_hugepage/enabled";
	char text[128];

	if (host_not_read(d, host_text(d, path, text, sizeof(text)), path))
		return;
	if (strstr(text, "[always]"))
		found_write(found(d, DOCTOR_FOUND, path, NULL,
				    "always: khugepaged moves pages of all processes"),
			path, "madvise");
	else if (strstr(text, "[madvise]") || strstr(text, "[never]"))
		found(d, DOCTOR_OK, path, NULL, "%s", text);
	else
		found(d, DOCTOR_UNKNOWN, path, NULL, "no valid value");
}

static void check_number(
	struct doctor *d, const char *path, int64_t most, const char *want, const char *why)
{
	int64_t value;

	if (host_not_read(d, host_number(d, path, &value), path))
		return;
	if (value <= most)
		found(d, DOCTOR_OK, path, NULL, "%lld", (long long)value);
	else
		found_write(found(d, DOCTOR_FOUND, path, NULL, "%lld: %s", (long long)value, why),
			path, want);
}

void check_numa_balancing(struct doctor *d)
{
	check_number(d, "/proc/sys/kernel/numa_balancing", 0, "0",
		"the kernel unmaps pages to find out which node uses them");
}

void check_swappiness(struct doctor *d)
{
	check_number(d, "/proc/sys/vm/swappiness", 10, "1",
		"the kernel swaps out clients' memory early");
}

void check_clock_source(struct doctor *d)
{
	static const char path[] =
		"/sys/devices/system/clocksource/clocksource0/current_clocksource";
	static const char others[] =
		"/sys/devices/system/clocksource/clocksource0/available_clocksource";
	static const char *const good[] = {
		"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"};
	char text[64], list[256];
	struct doctor_finding *f;

	if (host_not_read(d, host_text(d, path, text, sizeof(text)), path))
		return;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		if (!strcmp(text, good[i])) {
			found(d, DOCTOR_OK, path, NULL, "%s", text);
			return;
		}
	}
	f = found(d, DOCTOR_FOUND, path, "kernel command line: clocksource=tsc; then reboot",
		"%s: each reading of the clock may be a system call", text);
	if (host_text(d, others, list, sizeof(list)) == HOST_READ && strstr(list, "tsc"))
		found_write(f, path, "tsc");
}
