/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of figures (figures.def) for those who show them, and the recent ones of a snapshot:
 * what changed since a moment before it. Pure functions: any thread. The ring of moments belongs to
 * the control plane's thread.
 */
#ifndef CONTROL_FIGURES_INNER_H
#define CONTROL_FIGURES_INNER_H

#include <stdint.h>

#include "engine/abi/latency.h"
#include "engine/abi/statistics.h"
#include "engine/rail/rail.h"

struct snapshot;

/* `value` counts units of which a second has `per_second`. */
static inline double seconds(uint64_t value, double per_second)
{
	return (double)value / per_second;
}

/* ---- the list -------------------------------------------------------------------------------- */

enum figure_group {
	FIGURES_ENGINE,
	FIGURES_RAIL,
	FIGURES_CORE,
	FIGURES_RECENT,
	FIGURES_RECENT_RAIL,
	FIGURES_RECENT_CORE,
	FIGURE_GROUPS,
};

struct figure {
	const char *name, *help;
	const char *type; /* "gauge", "counter"; recent ones: "plotted" or "" */
};

struct figure_list {
	unsigned count;
	const struct figure *figure;
};

#define FIGURES_MAX 80u /* of one group */

extern const struct figure_list figure_lists[FIGURE_GROUPS];
/* The values of a group in the order of its list; `i`: number of the rail or the poll core. */
void figures_values(const struct snapshot *s, enum figure_group group, unsigned i, double *ret);

/* Names of calls, of results of pages and of counters, in the order of their enums. */
extern const char *const figure_calls[STATISTICS_CALLS];
extern const char *const figure_results[STATISTICS_RESULTS];
extern const struct figure figure_counters[COUNTER_COUNT];

/* ---- moments: what recent figures compare a snapshot with ------------------------------------ */

#define MOMENTS 12u                      /* one a second: more than WINDOW and an interval */
#define MOMENTS_WINDOW_NS 10000000000ull /* that recent figures cover */

/* What grows in a snapshot, with the names of its members there. */
struct moment {
	uint64_t taken_ns; /* CLOCK_MONOTONIC */
	uint64_t counter[COUNTER_COUNT];
	struct statistics_words clients;
	uint64_t lag[LATENCY_BUCKETS];
	uint64_t disk_writing_ns;
	struct {
		uint64_t counter[COUNTER_COUNT];
		uint64_t latency[LATENCY_BUCKETS];
	} rail[RAILS_MAX];
	struct {
		struct poll_core_report report;
	} poll_core[RAILS_MAX];
};

void moment_make(const struct snapshot *s, struct moment *ret);

/* A ring of past moments; all zeros: empty. */
struct moments {
	struct moment moment[MOMENTS];
	unsigned count; /* moments ever added */
};

/*
 * Fills `past` and `recent` of the snapshot: `past` is the moment MOMENTS_WINDOW_NS before it, give
 * or take 500 ms and an interval of snapshots, or the oldest known one. Adds the moment of the
 * snapshot to the ring if it is of another second than the last one: snapshots come every
 * SNAPSHOT_MS, so moments that were a second apart at least would be 1.5 s apart at times.
 */
void moments_compare(struct moments *moments, struct snapshot *s);

/* ---- recent figures: RECENT and PLOTTED of figures.def --------------------------------------- */

struct recent {
#define RECENT(name, help, value) double name;
#include "engine/control/observe/figures.def"
};

struct recent_rail {
#define RECENT_RAIL(name, help, value) double name;
#include "engine/control/observe/figures.def"
};

struct recent_core {
#define RECENT_CORE(name, help, value) double name;
#include "engine/control/observe/figures.def"
};

struct recents {
	struct recent engine;
	struct recent_rail rail[RAILS_MAX];
	struct recent_core core[RAILS_MAX];
};

/* What changed in `s` since `past`. */
void recents_make(const struct snapshot *s, const struct moment *past, struct recents *ret);

#endif
