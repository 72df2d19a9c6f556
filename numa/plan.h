/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: the core and the NUMA node of each rail and of the control plane. It is computed from
 * the topology and the settings. `peercache-engine --plan` prints it; main.c pins threads and
 * places memory by it. Start-up only, one thread.
 */
#ifndef NUMA_PLAN_H
#define NUMA_PLAN_H

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>

#include "config/limits.h"
#include "config/settings.h"
#include "numa/topology.h"

struct plan_rail {
	char device[NAME_BYTES_MAX];
	int numa_node; /* NUMA node of the rail's NIC and of its pool; -1: any */
	bool absent;   /* this machine has no NIC of that name now */
	/* number of the rail's poll core, from 0; the fields below are equal for rails that
	 * share it */
	unsigned poll_core;
	int core; /* core that the rail's poll core is pinned to; -1: not pinned */
	/* true: the poll core may poll busily, because no other thread of the engine uses its
	 * core */
	bool alone;
	bool busy;     /* true: the poll core never sleeps; false: it sleeps when idle */
	bool isolated; /* the kernel runs no other thread on the core; plan_claim() finds it out */
};

struct plan {
	unsigned rails;
	struct plan_rail rail[RAILS_MAX];
	unsigned poll_cores; /* number of poll cores of the plan */
	int control_core;    /* core of the control plane; -1: not pinned */
	/* rules of plan_make() that the plan does not follow, and why; empty: none */
	char note[512];
};

/*
 * Computes the plan. Each rail gets a poll core on a core near its NIC that no other thread of the
 * engine uses: a whole physical core if one is left, preferably not core 0, never a core that
 * another engine has claimed. The control plane gets one more core, and one stays free for
 * applications unless rail.polling is busy. If fewer cores than rails remain, or rail.poll_cores
 * limits their number, rails of the same node share a poll core. If none remains, poll cores are
 * not pinned and poll adaptively. The note lists what could not be met.
 *
 * Returns 0; -EINVAL when the settings need what the machine does not have (a core or NIC that does
 * not exist, busy polling on a shared core, ...); -EBUSY when they name a core that another engine
 * has claimed. The reason is logged; *ret is unchanged on failure.
 */
int plan_make(const struct topology *topology, const struct settings *settings, struct plan *ret);
/*
 * The cores for helper threads: those of the calling thread, but not where a poll core spins, and
 * not where the control plane runs, which would wait for them. At least one is left.
 */
void plan_cores_beside(const struct plan *plan, cpu_set_t *ret);
/* Prints the plan as a table. */
void plan_print(const struct plan *plan, FILE *out);

/* The claims of a plan's cores, held by this process (numa/pin.h). */
struct plan_claims {
	unsigned count;        /* number of cores that are claimed */
	int fd[RAILS_MAX + 1]; /* fds that hold the claims; closing one ends its claim */
};

/*
 * Calls plan_make(), then claims every core of the plan. A core that another engine has claimed
 * meanwhile is marked in the topology, and the plan is computed again. Returns what plan_make()
 * returns. When no core can be claimed because no run directory is writable, it logs a warning and
 * returns the plan without claims.
 */
int plan_claim(struct topology *topology, const struct settings *settings, struct plan *ret,
	struct plan_claims *ret_claims);
/* Closes the fds of all claims, so that other engines may use the cores. */
void plan_release(struct plan_claims *claims);

#endif
