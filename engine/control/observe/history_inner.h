/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One hour of what the dashboard plots, in memory: a point every five seconds. The metrics thread.
 */
#ifndef CONTROL_HISTORY_INNER_H
#define CONTROL_HISTORY_INNER_H

#include "engine/control/observe/snapshot_inner.h"

#define HISTORY_MS 5000u
#define HISTORY_POINTS 720u

/*
 * COLUMN(name): one float of a point; rates are per second over HISTORY_MS, members_joined and
 * members_died are of that time; -1: nothing to tell.
 */
#define HISTORY_COLUMNS(COLUMN)                                                                    \
	COLUMN(get_bytes_per_s)                                                                    \
	COLUMN(set_bytes_per_s)                                                                    \
	COLUMN(get_pages_per_s)                                                                    \
	COLUMN(hit_local)                                                                          \
	COLUMN(hit_remote)                                                                         \
	COLUMN(get_p50_us)                                                                         \
	COLUMN(get_p99_us)                                                                         \
	COLUMN(set_p99_us)                                                                         \
	COLUMN(exists_p99_us)                                                                      \
	COLUMN(evicted_per_s)                                                                      \
	COLUMN(pool_used)                                                                          \
	COLUMN(members_joined)                                                                     \
	COLUMN(members_died)                                                                       \
	COLUMN(members_up)

struct history_point {
	uint64_t unix_ms;
#define COLUMN(name) float name;
	HISTORY_COLUMNS(COLUMN)
#undef COLUMN
	float rail_bytes_per_s[RAILS_MAX];
};

struct history {
	struct history_point point[HISTORY_POINTS]; /* a ring */
	unsigned next, count;
	bool any; /* `last` is valid */
	/* the snapshot of the last point, as far as it is needed */
	uint64_t last_ns;
	struct statistics_words last;
	uint64_t last_evicted, last_joined, last_died;
	uint64_t last_rail_bytes[RAILS_MAX];
};
static_assert(sizeof(struct history) <= 1u << 20, "an hour in at most 1 MiB");

/* Adds a point if HISTORY_MS have passed since the last one. */
void history_add(struct history *history, const struct snapshot *s);
/* {"seconds":5,"columns":[...],"points":[[...],...]}, oldest first. 0 or -ENOMEM; caller frees. */
int history_json(const struct history *history, unsigned rails, char **ret_text, size_t *ret_bytes);

#endif
