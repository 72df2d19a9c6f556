/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims the cores of a plan, so that other engines do not use them, and prints a plan. Start-up
 * only, one thread.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "numa/pin.h"
#include "numa/plan.h"

void plan_release(struct plan_claims *claims)
{
	for (unsigned i = 0; i < claims->count; i++)
		close(claims->fd[i]);
	claims->count = 0;
}

/*
 * Claims one core; -1 (not pinned) needs no claim. Returns -EBUSY when another process has claimed
 * it, and marks that process as the holder in the topology.
 */
static int claim(struct topology *topology, int core, struct plan_claims *claims)
{
	int fd, holder = -1, rc;

	if (core < 0)
		return 0;
	rc = pin_claim(core, &fd, &holder);
	if (rc == 0)
		claims->fd[claims->count++] = fd;
	if (rc != -EBUSY)
		return rc;
	for (unsigned i = 0; i < topology->cpus; i++) {
		if (topology->cpu[i].cpu == core)
			topology->cpu[i].holder = holder;
	}
	return rc;
}

/* Claims every core of the plan once, also if several rails or the control plane share it. */
static int claim_all(struct topology *topology, const struct plan *plan, struct plan_claims *claims)
{
	bool shared = false;
	int rc = 0;

	for (unsigned i = 0; i < plan->rails && rc == 0; i++) {
		bool claimed = false; /* an earlier rail with the same core has claimed the core */

		for (unsigned j = 0; j < i; j++)
			claimed |= plan->rail[j].core == plan->rail[i].core;
		if (!claimed)
			rc = claim(topology, plan->rail[i].core, claims);
		shared |= plan->rail[i].core == plan->control_core;
	}
	if (rc == 0 && !shared)
		rc = claim(topology, plan->control_core, claims);
	return rc;
}

int plan_claim(struct topology *topology, const struct settings *settings, struct plan *ret,
	struct plan_claims *ret_claims)
{
	struct plan_claims claims = {.count = 0};
	struct plan plan;
	int rc;

	/* Ends: each round that fails with -EBUSY marks one more core as claimed, and the next
	 * plan avoids it. */
	for (unsigned round = 0; round <= topology->cpus; round++) {
		rc = plan_make(topology, settings, &plan);
		if (rc < 0)
			return rc;
		rc = claim_all(topology, &plan, &claims);
		if (rc == 0)
			break;
		plan_release(&claims);
		if (rc != -EBUSY) {
			log_warn(
				"cores: cannot claim them: %s; another engine may use the same cores. Set PEERCACHE_RUN_DIR to a writable directory",
				strerror(-rc));
			break;
		}
	}
	for (unsigned i = 0; i < plan.rails; i++)
		plan.rail[i].isolated = pin_isolated(plan.rail[i].core);
	*ret = plan;
	*ret_claims = claims;
	return 0;
}

static const char *number_or_any(int number, char ret[16])
{
	if (number < 0)
		return "any";
	snprintf(ret, 16, "%d", number);
	return ret;
}

void plan_print(const struct plan *plan, FILE *out)
{
	char node[16], core[16];

	fprintf(out, "%-8s %-16s %-6s %-10s %-6s %s\n", "rail", "device", "node", "poll core",
		"core", "polling");
	for (unsigned i = 0; i < plan->rails; i++) {
		const struct plan_rail *rail = &plan->rail[i];

		fprintf(out, "%-8u %-16s %-6s %-10u %-6s %s%s\n", i, rail->device,
			number_or_any(rail->numa_node, node), rail->poll_core,
			number_or_any(rail->core, core), rail->busy ? "busy" : "adaptive",
			rail->alone ? ", alone" : "");
	}
	fprintf(out, "%-8s %-16s %-6s %-10s %-6s\n", "control", "", "", "",
		number_or_any(plan->control_core, core));
	if (plan->note[0])
		fprintf(out, "note: %s\n", plan->note);
}
