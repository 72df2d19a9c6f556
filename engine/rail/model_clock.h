/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Test hook for measurements: a poll core whose modelled ports have a clock that stops while the
 * core executes the code of the software NICs. A real port runs beside the core that posts to it;
 * the model runs on that core, and figures by this clock do not contain its cost. The setting
 * test.clock_file; in other builds none of this exists.
 */
#ifndef RAIL_MODEL_CLOCK_H
#define RAIL_MODEL_CLOCK_H

#include <assert.h>
#include <stdalign.h>
#include <stdint.h>

#include "config/limits.h"

struct poll_core;

/* The file that test.clock_file names, mapped by engine and benchmark. */
struct model_clock_file {
	/* owner: the poll core whose first rail has this index; ns by which the clock of its
	 * ports is behind CLOCK_MONOTONIC; 0: it stops nowhere */
	struct {
		alignas(64) uint64_t behind_ns;
	} core[RAILS_MAX];
};
static_assert(sizeof(struct model_clock_file) == 64 * RAILS_MAX, "a cache line for each rail");

/* poll_turn() for a poll core with options.clock. Poll core. */
unsigned model_clock_turn(struct poll_core *core);

#endif
