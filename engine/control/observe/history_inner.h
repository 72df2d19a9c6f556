/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One hour of what the dashboard plots, in memory: a point every five seconds. The metrics thread.
 */
#ifndef CONTROL_HISTORY_INNER_H
#define CONTROL_HISTORY_INNER_H

#include "engine/control/observe/snapshot_inner.h"

#define HISTORY_MS 5000u
#define HISTORY_POINTS 720u

/* PLOTTED of figures.def; rates are per second over HISTORY_MS. */
struct history_point {
	uint64_t unix_ms;
#define PLOTTED(name, help, value) float name;
#include "engine/control/observe/figures.def"
	float rail_bytes_per_second[RAILS_MAX];
};

struct history {
	struct history_point point[HISTORY_POINTS]; /* a ring */
	unsigned next, count;
	bool any;           /* `last` is valid */
	struct moment last; /* of the last point */
};
static_assert(sizeof(struct history) <= 1u << 20, "an hour in at most 1 MiB");

/* Adds a point if HISTORY_MS have passed since the last one. */
void history_add(struct history *history, const struct snapshot *s);
/* {"seconds":5,"columns":[...],"points":[[...],...]}, oldest first. 0 or -ENOMEM; caller frees. */
int history_json(const struct history *history, unsigned rails, char **ret_text, size_t *ret_bytes);

#endif
