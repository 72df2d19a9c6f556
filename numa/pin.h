/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins threads to cores, and claims cores so that two engines never share one by accident: a claim
 * is a lock on a few bytes of the file `cores` in the run directory, gone with the process that
 * holds it.
 *
 * The run directory is $PEERCACHE_RUN_DIR, else the first of these that can be written:
 * /run/peercache, $XDG_RUNTIME_DIR/peercache, /tmp/peercache-cores-UID. Engines see each other's
 * claims only when they use the same one: containers that share cores must share it too. Start-up
 * only; any thread.
 */
#ifndef NUMA_PIN_H
#define NUMA_PIN_H

#include <stddef.h>

/*
 * The calling thread runs on `core` alone from now on; -1: it stays where it may be. 0 or a
 * negative errno: -EINVAL: no such core, or outside the cpuset.
 */
int pin_self(int core);

/*
 * Claims `core` for this process. 0 with an fd that keeps the claim until closed; -EBUSY when
 * another process holds it (*ret_holder is its pid; -1: unknown). One process may claim a core
 * once.
 */
int pin_claim(int core, int *ret_fd, int *ret_holder);

/* Who has claimed `core`: a pid, -1: somebody unknown, 0: nobody. */
int pin_holder(int core);

/*
 * What may disturb a poll loop on `core`: its clock governor, a busy sibling, missing isolation.
 * Returns the number of hints written to `text`, one a line; none is an error.
 */
int pin_check(int core, char *text, size_t text_bytes);

/* How often the kernel took the calling thread off its core although it wanted to run. */
long pin_disturbances(void);

#endif
