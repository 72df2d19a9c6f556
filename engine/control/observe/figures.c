/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes tables and values of figures.def, and keeps the moments that recent figures are compared
 * with. Nothing can fail. Any thread; moments_compare(): the control plane's thread.
 */
#include "engine/control/observe/snapshot_inner.h"

#include <stdlib.h>

#define SECOND_NS 1000000000ull

/* ---- the list -------------------------------------------------------------------------------- */

static const struct figure engine_figures[] = {
#define SCALAR(type, name, help, value) {#name, help, #type},
#include "engine/control/observe/figures.def"
};

static const struct figure rail_figures[] = {
#define RAIL(type, name, help, value) {#name, help, #type},
#include "engine/control/observe/figures.def"
};

static const struct figure core_figures[] = {
#define CORE(type, name, help, value) {#name, help, #type},
#include "engine/control/observe/figures.def"
};

static const struct figure recent_figures[] = {
#define RECENT(name, help, value) {#name, help, ""},
#define PLOTTED(name, help, value) {#name, help, "plotted"},
#include "engine/control/observe/figures.def"
};

static const struct figure recent_rail_figures[] = {
#define RECENT_RAIL(name, help, value) {#name, help, "plotted"},
#include "engine/control/observe/figures.def"
};

static const struct figure recent_core_figures[] = {
#define RECENT_CORE(name, help, value) {#name, help, ""},
#include "engine/control/observe/figures.def"
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define LIST(array)                                                                                \
	{                                                                                          \
		COUNT(array), array                                                                \
	}
static_assert(
	COUNT(engine_figures) <= FIGURES_MAX && COUNT(recent_figures) <= FIGURES_MAX, "values fit");
static_assert(sizeof(struct recent) == sizeof(double) * COUNT(recent_figures), "an array");
static_assert(sizeof(struct recent_rail) == sizeof(double) * COUNT(recent_rail_figures), "array");
static_assert(sizeof(struct recent_core) == sizeof(double) * COUNT(recent_core_figures), "array");

const struct figure_list figure_lists[FIGURE_GROUPS] = {
	[FIGURES_ENGINE] = LIST(engine_figures),
	[FIGURES_RAIL] = LIST(rail_figures),
	[FIGURES_CORE] = LIST(core_figures),
	[FIGURES_RECENT] = LIST(recent_figures),
	[FIGURES_RECENT_RAIL] = LIST(recent_rail_figures),
	[FIGURES_RECENT_CORE] = LIST(recent_core_figures),
};

const char *const figure_calls[STATISTICS_CALLS] = {"get", "set", "exists", "remove"};
const char *const figure_results[STATISTICS_RESULTS] = {
	"hit", "miss", "stale", "unreachable", "timeout", "no_space", "other"};

const struct figure figure_counters[COUNTER_COUNT] = {
#define COUNTER(name, help) {#name, help, "counter"},
#include "engine/abi/counter.def"
#undef COUNTER
};

/* ---- values ---------------------------------------------------------------------------------- */

static void values_engine(const struct snapshot *s, double *ret)
{
#define SCALAR(type, name, help, value) *ret++ = value;
#include "engine/control/observe/figures.def"
}

static void values_rail(const struct snapshot_rail *r, double *ret)
{
#define RAIL(type, name, help, value) *ret++ = value;
#include "engine/control/observe/figures.def"
}

static void values_core(const struct poll_core_report *c, double *ret)
{
#define CORE(type, name, help, value) *ret++ = value;
#include "engine/control/observe/figures.def"
}

void figures_values(const struct snapshot *s, enum figure_group group, unsigned i, double *ret)
{
	const void *recent = group == FIGURES_RECENT        ? (const void *)&s->recent.engine
			     : group == FIGURES_RECENT_RAIL ? (const void *)&s->recent.rail[i]
							    : (const void *)&s->recent.core[i];

	if (group == FIGURES_ENGINE)
		values_engine(s, ret);
	else if (group == FIGURES_RAIL)
		values_rail(&s->rail[i], ret);
	else if (group == FIGURES_CORE)
		values_core(&s->poll_core[i].report, ret);
	else
		memcpy(ret, recent, figure_lists[group].count * sizeof(*ret));
}

/* ---- recent figures -------------------------------------------------------------------------- */

static double ratio(double part, double whole)
{
	return whole > 0 ? part / whole : -1;
}

static double quantile(const uint64_t *now, const uint64_t *before, unsigned permille)
{
	uint64_t latency[LATENCY_BUCKETS];

	latency_between(now, before, latency);
	return latency_count(latency) ? seconds(latency_quantile_ns(latency, permille), 1e9) : -1;
}

static double pool_bytes(const struct snapshot *s, bool used)
{
	uint64_t sum = 0;

	for (unsigned r = 0; r < s->rails; r++)
		sum += used ? s->rail[r].pool_used_bytes : s->rail[r].pool_bytes;
	return (double)sum;
}

static double rails_grew(const struct snapshot *s, const struct moment *p, enum counter which)
{
	uint64_t sum = 0;

	for (unsigned r = 0; r < s->rails; r++)
		sum += s->rail[r].counter[which] - p->rail[r].counter[which];
	return (double)sum;
}

static double gap_longest(const uint64_t *now, const uint64_t *before)
{
	for (unsigned i = GAP_BUCKETS; i-- > 0;)
		if (now[i] != before[i])
			return seconds(gap_bucket_ns(i), 1e9);
	return 0;
}

/* Of members that a snapshot and a moment have under the same name. */
#define GREW(field) ((double)(s->field - p->field))
#define RATE(field) (span > 0 ? GREW(field) / span : 0)
#define RATIO(part, whole) ratio(GREW(part), GREW(whole))
#define QUANTILE(field, permille) quantile(s->field, p->field, permille)
#define CALL(name, field) clients.calls[STATISTICS_##name].field
#define COUNTED(name) counter[COUNTER_##name]

void recents_make(const struct snapshot *s, const struct moment *past, struct recents *ret)
{
	const struct moment *p = past;
	double span = seconds(s->taken_ns - p->taken_ns, 1e9);

	ret->engine = (struct recent){
#define RECENT(name, help, value) .name = value,
#include "engine/control/observe/figures.def"
	};
	for (unsigned i = 0; i < s->rails; i++)
		ret->rail[i] = (struct recent_rail){
#define RECENT_RAIL(name, help, value) .name = value,
#include "engine/control/observe/figures.def"
		};
	for (unsigned i = 0; i < s->poll_cores; i++)
		ret->core[i] = (struct recent_core){
#define RECENT_CORE(name, help, value) .name = value,
#include "engine/control/observe/figures.def"
		};
}

/* ---- moments --------------------------------------------------------------------------------- */

void moment_make(const struct snapshot *s, struct moment *ret)
{
	ret->taken_ns = s->taken_ns;
	ret->clients = s->clients;
	ret->disk_writing_ns = s->disk.writing_ns;
	memcpy(ret->counter, s->counter, sizeof(ret->counter));
	memcpy(ret->lag, s->lag, sizeof(ret->lag));
	for (unsigned i = 0; i < s->rails; i++) {
		memcpy(ret->rail[i].counter, s->rail[i].counter, sizeof(ret->rail[i].counter));
		memcpy(ret->rail[i].latency, s->rail[i].latency, sizeof(ret->rail[i].latency));
	}
	for (unsigned i = 0; i < s->poll_cores; i++)
		ret->poll_core[i].report = s->poll_core[i].report;
}

struct moments *moments_open(void)
{
	return calloc(1, sizeof(struct moments));
}

void moments_compare(struct moments *moments, struct snapshot *s)
{
	const struct moment *last = &moments->moment[(moments->count - 1) % MOMENTS];
	unsigned i, oldest;

	if (!moments->count || s->taken_ns / SECOND_NS != last->taken_ns / SECOND_NS)
		moment_make(s, &moments->moment[moments->count++ % MOMENTS]);
	oldest = moments->count > MOMENTS ? moments->count - MOMENTS : 0;
	i = moments->count - 1;
	while (i > oldest && s->taken_ns - moments->moment[i % MOMENTS].taken_ns <
				     MOMENTS_WINDOW_NS - SECOND_NS / 2)
		i--;
	s->past = moments->moment[i % MOMENTS];
	recents_make(s, &s->past, &s->recent);
}
