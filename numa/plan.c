/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes the plan: the device of each rail, then its NUMA node, its core and its polling.
 * Start-up only, one thread. A pure computation: it pins, claims and opens nothing.
 */
#include "config/text_fit.h"
#include "numa/plan.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"

/* Cores that the rails leave free with rail.polling = busy: one, for the control plane. */
#define CONTROL_ONLY 1
/* Cores that the rails leave free with any other polling: two, one of them for applications. */
#define CONTROL_AND_OTHERS 2

/* The inputs of plan_make(), and the plan as far as it is complete. */
struct plan_work {
	const struct topology *t;
	const struct settings *s;
	struct plan *plan;
	bool taken[TOPOLOGY_CPUS_MAX]; /* taken[i]: the plan uses core t->cpu[i] */
};

/* Appends a text to the plan's note; truncates it when the note is full. */
__attribute__((format(printf, 2, 3))) static void note(struct plan *plan, const char *format, ...)
{
	size_t used = strlen(plan->note);
	va_list args;

	if (used && used + 3 < sizeof(plan->note)) {
		memcpy(plan->note + used, "; ", 3);
		used += 2;
	}
	va_start(args, format);
	text_vfit(plan->note + used, sizeof(plan->note) - used, format, args);
	va_end(args);
}

/*
 * Copies the next item of a comma-separated list, without blanks around it, and advances *list.
 * Returns false at the end of the list.
 */
static bool next_item(const char **list, char *ret, size_t ret_bytes)
{
	const char *start = *list;
	size_t length;

	if (!start)
		return false;
	start += strspn(start, " \t");
	length = strcspn(start, ",");
	*list = start[length] ? start + length + 1 : NULL;
	while (length && (start[length - 1] == ' ' || start[length - 1] == '\t'))
		length--;
	snprintf(ret, ret_bytes, "%.*s", (int)(length < ret_bytes ? length : ret_bytes - 1), start);
	return true;
}

static bool is_soft(const char *device)
{
	return strcmp(device, "soft") == 0 || strncmp(device, "soft:", 5) == 0;
}

static void log_unknown_device(const struct topology *t, const char *device)
{
	char names[256] = "";
	size_t used = 0;

	for (unsigned i = 0; i < t->devices && used < sizeof(names); i++)
		used += (size_t)snprintf(
			names + used, sizeof(names) - used, " %s", t->device[i].name);
	log_error(
		"rail.devices: no NIC %s on this machine; there are:%s; use one of these, or soft",
		device, names[0] ? names : " none (is its driver loaded?)");
}

/*
 * A NIC that has vanished is a rail that is lost, if another one is there and rail.require_all
 * does not say that all must be.
 */
static int check_absent(struct plan_work *w)
{
	const char *first = NULL;
	unsigned absent = 0;

	for (unsigned i = 0; i < w->plan->rails; i++) {
		const struct plan_rail *rail = &w->plan->rail[i];

		absent += rail->absent;
		if (rail->absent && !first)
			first = rail->device;
	}
	if (!first)
		return 0;
	if (absent == w->plan->rails || w->s->rail_require_all) {
		log_unknown_device(w->t, first);
		return -EINVAL;
	}
	note(w->plan, "%u of %u NICs are not on this machine, the first is %s", absent,
		w->plan->rails, first);
	return 0;
}

static int find_devices(struct plan_work *w)
{
	const char *list = w->s->rail_devices;
	struct plan *plan = w->plan;
	/* one byte more than a device name may have, so that a longer name is seen and refused */
	char device[NAME_BYTES_MAX + 1];

	if (settings_seed_only(w->s)) {
		plan->rail[0].numa_node = -1; /* where its other memory belongs */
		return 0;
	}
	while (next_item(&list, device, sizeof(device))) {
		struct plan_rail *rail = &plan->rail[plan->rails];
		const struct topology_device *nic = topology_device(w->t, device);

		if (device[0] == '\0') {
			log_error("rail.devices = %s: an empty name; remove the extra comma",
				w->s->rail_devices);
			return -EINVAL;
		}
		if (plan->rails == RAILS_MAX) {
			log_error("rail.devices: more than %d NICs; remove %s and those after it",
				RAILS_MAX, device);
			return -EINVAL;
		}
		if (is_soft(device) && strlen(device) < NAME_BYTES_MAX) {
			/* Software NICs are assigned to the NUMA nodes in turn, like the NICs of
			 * a real host; with one node there is no choice. */
			rail->numa_node =
				w->t->nodes > 1 ? w->t->node[plan->rails % w->t->nodes].node : -1;
		} else if (nic) {
			rail->numa_node = nic->node;
		} else if (strlen(device) < NAME_BYTES_MAX) {
			rail->numa_node = -1;
			rail->absent = true;
		} else {
			log_unknown_device(w->t, device);
			return -EINVAL;
		}
		for (unsigned i = 0; i < plan->rails; i++) {
			if (strcmp(plan->rail[i].device, device) != 0 ||
				strcmp(device, "soft") == 0)
				continue;
			log_error(
				"rail.devices: %s is named twice; each NIC is one rail, name it once",
				device);
			return -EINVAL;
		}
		snprintf(rail->device, sizeof(rail->device), "%.63s", device);
		rail->core = -1;
		plan->rails++;
	}
	return check_absent(w);
}

/* May the plan use core t->cpu[i]: is it allowed, not claimed and not used by this plan? */
static bool usable(const struct plan_work *w, unsigned i)
{
	const struct topology_cpu *cpu = &w->t->cpu[i];

	return cpu->allowed && cpu->holder == 0 && !w->taken[i];
}

static unsigned usable_count(const struct plan_work *w)
{
	unsigned count = 0;

	for (unsigned i = 0; i < w->t->cpus; i++)
		count += usable(w, i);
	return count;
}

/*
 * Is another hardware thread of the physical core of t->cpu[i] used by this plan or claimed by an
 * engine?
 */
static bool sibling_taken(const struct plan_work *w, unsigned i)
{
	for (unsigned j = 0; j < w->t->cpus; j++) {
		if (j != i && w->t->cpu[j].physical == w->t->cpu[i].physical &&
			(w->taken[j] || w->t->cpu[j].holder))
			return true;
	}
	return false;
}

/*
 * Chooses the best usable core near NUMA node `node` and marks it used. Returns its index; -1: none
 * left.
 */
static int take_near(struct plan_work *w, int node, bool for_rail)
{
	const struct topology_cpu *zero = topology_cpu(w->t, 0);
	unsigned best_cost = UINT32_MAX;
	int best = -1;

	for (unsigned i = 0; i < w->t->cpus; i++) {
		const struct topology_cpu *cpu = &w->t->cpu[i];
		unsigned cost;

		if (!usable(w, i))
			continue;
		/* The cost of a core prefers, in this order, a whole physical core, a short NUMA
		 * distance, and for a rail not physical core 0. */
		cost = 2 * topology_distance(w->t, node, cpu->node);
		if (sibling_taken(w, i))
			cost += 1u << 20;
		if (for_rail && zero && cpu->physical == zero->physical)
			cost++;
		if (cost < best_cost) {
			best_cost = cost;
			best = (int)i;
		}
	}
	if (best >= 0)
		w->taken[best] = true;
	return best;
}

/*
 * Looks up a core that a setting names. It must exist, be allowed and not be claimed. Returns its
 * index or a negative errno; the reason is logged.
 */
static int named_core(const struct plan_work *w, const char *setting, const char *text)
{
	char *end;
	long core = strtol(text, &end, 10);

	if (end == text || *end) {
		log_error("%s: \"%s\" is not a core; write numbers, comma separated, or auto",
			setting, text);
		return -EINVAL;
	}
	for (unsigned i = 0; i < w->t->cpus; i++) {
		const struct topology_cpu *cpu = &w->t->cpu[i];

		if (cpu->cpu != core)
			continue;
		if (!cpu->allowed) {
			log_error(
				"%s: core %ld is outside the affinity mask of this process; add it to the mask (taskset, CPUAffinity=, cpuset) or name another core",
				setting, core);
			return -EINVAL;
		}
		if (cpu->holder) {
			log_error(
				"%s: core %ld is claimed by process %d (another engine?); name another core or stop that process",
				setting, core, cpu->holder);
			return -EBUSY;
		}
		return (int)i;
	}
	log_error("%s: there is no core %s on this machine; name one up to %d, or auto", setting,
		text, w->t->cpu[w->t->cpus - 1].cpu);
	return -EINVAL;
}

/*
 * Puts a rail on core i of the topology: on the poll core of an earlier rail with the same core,
 * else on a new poll core.
 */
static void share_named_core(struct plan_work *w, unsigned rail, int i)
{
	struct plan *plan = w->plan;

	plan->rail[rail].core = w->t->cpu[i].cpu;
	plan->rail[rail].poll_core = plan->poll_cores;
	for (unsigned r = 0; r < rail; r++)
		if (plan->rail[r].core == plan->rail[rail].core)
			plan->rail[rail].poll_core = plan->rail[r].poll_core;
	plan->poll_cores += plan->rail[rail].poll_core == plan->poll_cores;
	w->taken[i] = true;
}

static int take_named_rail_cores(struct plan_work *w)
{
	const char *list = w->s->rail_cores;
	unsigned count = 0;
	char text[32];

	while (next_item(&list, text, sizeof(text))) {
		int i = named_core(w, "rail.cores", text);

		if (i < 0)
			return i;
		if (count < w->plan->rails)
			share_named_core(w, count, i);
		count++;
	}
	if (count != w->plan->rails) {
		log_error(
			"rail.cores: %u cores for %u rails (rail.devices); name one for each, or auto",
			count, w->plan->rails);
		return -EINVAL;
	}
	if (w->s->rail_poll_cores && w->plan->poll_cores > w->s->rail_poll_cores) {
		log_error(
			"rail.cores: %u different cores, but rail.poll_cores = %llu; drop one of the two settings",
			w->plan->poll_cores, (unsigned long long)w->s->rail_poll_cores);
		return -EINVAL;
	}
	return 0;
}

/*
 * Assigns each rail to one of `cores` poll cores, about the same number to each. Rails are taken in
 * the order of their NUMA nodes, so that rails of one node share a poll core.
 */
static void spread_rails(struct plan *plan, unsigned cores)
{
	/* poll core of each rail, before the poll cores are renumbered */
	unsigned loop_of[RAILS_MAX];
	unsigned number
		/* final number of each poll core; poll cores are numbered in the order of their
		 * first rails */
		[RAILS_MAX];

	for (unsigned r = 0; r < plan->rails; r++) {
		/* position of rail r: rails on lower NUMA nodes, and earlier rails on its node,
		 * come first */
		unsigned before = 0;

		for (unsigned i = 0; i < plan->rails; i++)
			before += plan->rail[i].numa_node < plan->rail[r].numa_node ||
				  (plan->rail[i].numa_node == plan->rail[r].numa_node && i < r);
		loop_of[r] = before * cores / plan->rails;
		number[r] = UINT32_MAX;
	}
	plan->poll_cores = 0;
	for (unsigned r = 0; r < plan->rails; r++) {
		if (number[loop_of[r]] == UINT32_MAX)
			number[loop_of[r]] = plan->poll_cores++;
		plan->rail[r].poll_core = number[loop_of[r]];
	}
}

/*
 * Chooses a core for one poll core, near the NICs of its rails. If these are on several nodes, the
 * rail in the middle of the list decides.
 */
static void pin_loop(struct plan_work *w, unsigned poll_core)
{
	struct plan *plan = w->plan;
	struct plan_rail *rail[RAILS_MAX] = {plan->rail};
	const struct topology_cpu *cpu;
	unsigned rails = 0;

	for (unsigned r = 0; r < plan->rails; r++)
		if (plan->rail[r].poll_core == poll_core)
			rail[rails++] = &plan->rail[r];
	cpu = &w->t->cpu[take_near(w, rail[rails / 2]->numa_node, true)];
	for (unsigned r = 0; r < rails; r++) {
		rail[r]->core = cpu->cpu;
		if (topology_distance(w->t, rail[r]->numa_node, cpu->node) > 10)
			note(plan, "rail %s of node %d gets core %d of node %d", rail[r]->device,
				rail[r]->numa_node, cpu->cpu, cpu->node);
	}
}

/* Chooses the number of poll cores and a core for each, for rail.cores = auto. */
static void take_rail_cores(struct plan_work *w)
{
	unsigned keep = w->s->rail_polling == POLLING_BUSY ? CONTROL_ONLY : CONTROL_AND_OTHERS;
	unsigned usable_at_start = usable_count(w), spare, wanted;
	struct plan *plan = w->plan;

	if (plan->control_core >= 0)
		/* the control plane's core is chosen and no longer counts as usable: leave one
		 * less */
		keep--;
	spare = usable_at_start > keep ? usable_at_start - keep : 0;
	wanted = w->s->rail_poll_cores ? (unsigned)w->s->rail_poll_cores : plan->rails;
	wanted = wanted < plan->rails ? wanted : plan->rails;
	if (spare == 0) {
		/* Without spare cores one poll core for all rails is faster than several, which
		 * would preempt each other. */
		spread_rails(plan, w->s->rail_poll_cores ? wanted : 1);
		/* poll cores that sleep when idle were wished: nothing is lost */
		if (w->s->rail_polling != POLLING_ADAPTIVE)
			note(plan,
				"%u usable cores for %u rails, the control plane and the applications: the rails are not pinned and share cores",
				usable_at_start, plan->rails);
		return;
	}
	spread_rails(plan, wanted < spare ? wanted : spare);
	for (unsigned p = 0; p < plan->poll_cores; p++)
		pin_loop(w, p);
	if (plan->poll_cores < wanted)
		note(plan,
			"%u usable cores for %u rails, the control plane and the applications: %u poll cores serve them all",
			usable_at_start, plan->rails, plan->poll_cores);
}

/* Chooses the core of the control plane: the named one, or one near the first rail. */
static int take_control_core(struct plan_work *w, bool named)
{
	struct plan *plan = w->plan;
	bool any_pinned = false;
	int i;

	if (named) {
		i = named_core(w, "control.core", w->s->control_core);
		if (i < 0)
			return i;
		w->taken[i] = true;
		plan->control_core = w->t->cpu[i].cpu;
		return 0;
	}
	for (unsigned r = 0; r < plan->rails; r++)
		any_pinned |= plan->rail[r].core >= 0;
	i = any_pinned ? take_near(w, plan->rail[0].numa_node, false) : -1;
	if (i >= 0)
		plan->control_core = w->t->cpu[i].cpu;
	else if (any_pinned)
		note(plan, "no core is left for the control plane: it is not pinned");
	return 0;
}

/* The first rail of the plan that has the same poll core as `rail`. */
static unsigned first_of_loop(const struct plan *plan, unsigned rail)
{
	unsigned first = 0;

	while (plan->rail[first].poll_core != plan->rail[rail].poll_core)
		first++;
	return first;
}

static void note_siblings(struct plan_work *w)
{
	for (unsigned r = 0; r < w->plan->rails; r++) {
		const struct topology_cpu *cpu = topology_cpu(w->t, w->plan->rail[r].core);

		if (cpu && r == first_of_loop(w->plan, r) &&
			sibling_taken(w, (unsigned)(cpu - w->t->cpu)))
			note(w->plan,
				"core %d of rail %s shares its physical core with another thread in use",
				cpu->cpu, w->plan->rail[r].device);
	}
}

/*
 * Decides for each rail whether its poll core polls busily. -EINVAL: rail.polling = busy is not
 * possible.
 */
static int choose_polling(struct plan_work *w)
{
	struct plan *plan = w->plan;

	for (unsigned r = 0; r < plan->rails; r++) {
		struct plan_rail *rail = &plan->rail[r];

		rail->alone = rail->core >= 0 && rail->core != plan->control_core;
		rail->busy = rail->alone && w->s->rail_polling != POLLING_ADAPTIVE;
		if (rail->alone)
			continue;
		if (w->s->rail_polling == POLLING_BUSY) {
			log_error(
				"rail.polling = busy: rail %u (%s) has no core of its own; set rail.polling = auto, name a core of its own in rail.cores, drop a NIC from rail.devices, or allow this process more cores",
				r, rail->device);
			return -EINVAL;
		}
		if (rail->core >= 0)
			note(plan,
				"rail %s shares core %d with the control plane and polls adaptively",
				rail->device, rail->core);
	}
	return 0;
}

int plan_make(const struct topology *topology, const struct settings *settings, struct plan *ret)
{
	bool rails_named = strcmp(settings->rail_cores, "auto") != 0;
	bool control_named = strcmp(settings->control_core, "auto") != 0;
	struct plan plan = {.control_core = -1};
	struct plan_work w = {.t = topology, .s = settings, .plan = &plan};
	int rc;

	rc = find_devices(&w);
	/* Cores that the settings name are taken first, so that no automatic choice uses them. */
	if (rc == 0 && rails_named)
		rc = take_named_rail_cores(&w);
	if (rc == 0 && control_named)
		rc = take_control_core(&w, true);
	if (rc == 0 && !rails_named && plan.rails)
		take_rail_cores(&w);
	if (rc == 0 && !control_named)
		rc = take_control_core(&w, false);
	if (rc == 0)
		rc = choose_polling(&w);
	if (rc < 0)
		return rc;
	note_siblings(&w);
	*ret = plan;
	return 0;
}

/* Takes `core` out of the set unless it is the last one. */
static void core_avoid(cpu_set_t *set, int core)
{
	if (core >= 0 && core < CPU_SETSIZE && CPU_COUNT(set) > CPU_ISSET((size_t)core, set))
		CPU_CLR((size_t)core, set);
}

void plan_cores_beside(const struct plan *plan, cpu_set_t *ret)
{
	CPU_ZERO(ret);
	(void)sched_getaffinity(0, sizeof(*ret), ret);
	for (unsigned i = 0; i < plan->rails; i++)
		core_avoid(ret, plan->rail[i].core);
	core_avoid(ret, plan->control_core);
}
