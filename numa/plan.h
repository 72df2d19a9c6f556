/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which core and which memory each rail and the control plane get. Pure: computed from the topology
 * and the settings, printed by `peercache-engine --plan`, carried out by main.c.
 */
#ifndef NUMA_PLAN_H
#define NUMA_PLAN_H

#include <stdbool.h>
#include <stdio.h>

#include "config/limits.h"
#include "config/settings.h"
#include "numa/topology.h"

struct plan_rail {
	char device[NAME_BYTES_MAX];
	int numa_node;      /* of the NIC and its pool; -1: any */
	unsigned poll_core; /* which poll loop steps it; rails of one have the same values below */
	int core;           /* of that loop; -1: not pinned */
	bool alone;         /* no other thread of this engine runs there: claimed, may busy-poll */
	bool busy;          /* polls without sleeping */
};

struct plan {
	unsigned rails;
	struct plan_rail rail[RAILS_MAX];
	unsigned poll_cores; /* poll loops: one thread each */
	int control_core;    /* -1: not pinned */
	char note[512];      /* what was not possible, and why; empty when all is well */
};

/*
 * Each rail gets a poll loop on a core of its own near its NIC: a whole physical core while there
 * are any, not core 0 if possible, none that another engine has claimed. The control plane gets
 * another, and one more is left to everybody else unless rail.polling is busy. Where that leaves
 * fewer cores than rails, or rail.poll_cores says so, rails of the same node share a loop. Where it
 * leaves none, the loops are not pinned and poll adaptively. What fell short stands in the note.
 *
 * 0; -EINVAL: the settings ask for what the machine does not have (a core or NIC that does not
 * exist, busy polling on a shared core, ...); -EBUSY: for a core of another engine's. The reason is
 * logged.
 */
int plan_make(const struct topology *topology, const struct settings *settings, struct plan *ret);
void plan_print(const struct plan *plan, FILE *out);

/* The cores of a plan, claimed for this process (numa/pin.h). */
struct plan_claims {
	unsigned count;
	int fd[RAILS_MAX + 1];
};

/*
 * plan_make(), then claims every core of the plan; cores that turn out to be taken are marked in
 * the topology and the plan is made anew. Returns what plan_make() returns. Where nothing can be
 * claimed (no run directory can be written) it warns and goes on without.
 */
int plan_claim(struct topology *topology, const struct settings *settings, struct plan *ret,
	struct plan_claims *ret_claims);
void plan_release(struct plan_claims *claims);

#endif
