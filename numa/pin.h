/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins threads to cores, and claims cores so that two engines do not use the same one. A claim is a
 * lock on some bytes of the file `cores` in the run directory; the kernel removes it when the
 * process ends. Start-up only; any thread.
 *
 * The run directory is $PEERCACHE_RUN_DIR if set, else the first writable one of /run/peercache,
 * $XDG_RUNTIME_DIR/peercache and /tmp/peercache-cores-UID. Engines see each other's claims only in
 * the same run directory, so containers that share cores must share it.
 */
#ifndef NUMA_PIN_H
#define NUMA_PIN_H

#include <sched.h>
#include <stdbool.h>

/*
 * Pins the calling thread to `core`; -1 changes nothing. Returns 0 or a negative errno; -EINVAL
 * when the core does not exist or is outside the cpuset.
 */
int pin_self(int core);

/*
 * Claims `core` for this process. Returns 0 and in *ret_fd an fd, which holds the claim until it is
 * closed. Returns -EBUSY when the core is claimed already; *ret_holder is then the claiming
 * process, -1 if unknown. A second claim of the same process fails too.
 */
int pin_claim(int core, int *ret_fd, int *ret_holder);

/* The process that has claimed `core`: its pid, -1 if unknown, 0 if the core is not claimed. */
int pin_holder(int core);

/*
 * Leaves only the cores of the NUMA node in *set. Leaves it as it is for node -1, and if none would
 * be left or the node's cores are not known.
 */
void pin_near(int node, cpu_set_t *set);

/* True if the kernel was told to run no other threads on `core` (isolcpus). */
bool pin_isolated(int core);

#endif
