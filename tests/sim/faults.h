/* SPDX-License-Identifier: Apache-2.0 */
/* The scenarios in which the oracle of truth.h listens, and their load. One thread. */
#ifndef TESTS_SIM_FAULTS_H
#define TESTS_SIM_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/run.h"

/* Ends with one without a name. */
extern const struct scenario faults[];
/* Starts the nodes, runs the scenario under load, ends all faults, and judges. */
void fault_run(void (*fault)(void));

/* ---- load.c ---------------------------------------------------------------------------------- */

/*
 * Calls are about pages 0 .. of_pages - 1, of which some are in use at a time; this share of the
 * calls are removals.
 */
void load_set(uint64_t of_pages, uint64_t in_use, unsigned removes_percent);
/* One of the pages in use. */
uint64_t load_page(void);
/* The clients of a node stop calling. */
void load_none(unsigned node, bool none);
/* Each client calls once. */
void load_calls(void);
/* Lets this time pass with calls of the clients of all nodes, also of those that are stopped. */
void load(uint64_t ns);

#endif
