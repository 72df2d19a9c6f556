/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The summary of this engine. It is made with each snapshot, so that a request is answered with a
 * copy. Control plane's thread.
 */
#include <stdio.h>
#include <string.h>

#include "engine/control/observe/view.h"

static const enum statistics_call calls[SUMMARY_CALLS] = {
	STATISTICS_GET, STATISTICS_SET, STATISTICS_EXISTS};

void view_moment_make(const struct snapshot *s, struct view_moment *ret)
{
	const struct statistics_words *w = &s->clients;

	ret->taken_ns = s->taken_ns;
	health_remember(s, &ret->health);
	for (unsigned call = 0; call < SUMMARY_CALLS; call++)
		memcpy(ret->latency[call], w->calls[calls[call]].latency,
			sizeof(ret->latency[call]));
	ret->get_pages = w->calls[STATISTICS_GET].pages;
	ret->get_local = w->get_local;
	ret->get_remote = w->get_remote;
	ret->get_bytes = w->get_bytes;
	ret->set_bytes = w->set_bytes;
	ret->evicted = s->counter[COUNTER_pages_evicted];
}

static uint64_t rate(uint64_t now, uint64_t before, uint64_t ms, uint64_t limit)
{
	double per_s = ms ? (double)(now - before) * 1e3 / (double)ms : 0;

	return per_s < (double)limit ? (uint64_t)per_s : limit;
}

static uint16_t permille(uint64_t part, uint64_t whole)
{
	if (!whole)
		return 0;
	return part < whole ? (uint16_t)((double)part * 1e3 / (double)whole) : 1000;
}

static void rates(const struct snapshot *s, const struct view_moment *past, struct summary *ret)
{
	const struct statistics_words *w = &s->clients;
	uint64_t ms = (s->taken_ns - past->taken_ns) / 1000000;
	uint64_t pages = w->calls[STATISTICS_GET].pages - past->get_pages;

	ret->window_ms = ms < SUMMARY_WINDOW_MS_MAX ? (uint16_t)ms : SUMMARY_WINDOW_MS_MAX;
	ret->get_bytes_per_s = rate(w->get_bytes, past->get_bytes, ms, SUMMARY_BYTES_PER_S_MAX);
	ret->set_bytes_per_s = rate(w->set_bytes, past->set_bytes, ms, SUMMARY_BYTES_PER_S_MAX);
	ret->get_pages_per_s = (uint32_t)rate(pages, 0, ms, SUMMARY_PER_S_MAX);
	ret->evictions_per_s = (uint32_t)rate(
		s->counter[COUNTER_pages_evicted], past->evicted, ms, SUMMARY_PER_S_MAX);
	ret->hit_local = ret->hit_remote = SUMMARY_NONE;
	if (pages) {
		ret->hit_local = permille(w->get_local - past->get_local, pages);
		ret->hit_remote = permille(w->get_remote - past->get_remote, pages);
		if (ret->hit_local + ret->hit_remote > 1000)
			ret->hit_remote = 1000 - ret->hit_local;
	}
	for (unsigned call = 0; call < SUMMARY_CALLS; call++) {
		uint64_t latency[LATENCY_BUCKETS];

		for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
			latency[i] = w->calls[calls[call]].latency[i] - past->latency[call][i];
		summary_latency(latency, ret->latency[call]);
	}
}

/* What is wrong with this engine. That it misses a member is that member's fault, in its row. */
static void findings(const struct snapshot *s, const struct view_moment *past, struct summary *ret)
{
	struct health health;

	health_make(s, &past->health, s->taken_ns, &health);
	for (unsigned i = 0; i < health.count; i++) {
		unsigned severity = SUMMARY_INFO + health.finding[i].severity;

		if (finding_of_others(health.finding[i].id))
			continue;
		if (!ret->findings++)
			snprintf(ret->finding, sizeof(ret->finding), "%s",
				finding_name(health.finding[i].id));
		if (severity > ret->severity)
			ret->severity = (uint8_t)severity;
	}
}
static_assert(SUMMARY_INFO + SEVERITY_CRITICAL == SUMMARY_CRITICAL, "findings() relies on it");

void view_summary_make(
	const struct snapshot *s, const struct view_moment *past, struct summary *ret)
{
	uint64_t pool = 0, used = 0, uptime_s = s->uptime_ms / 1000;
	unsigned rails_up = 0;

	*ret = (struct summary){.version = SUMMARY_VERSION,
		.rails = (uint8_t)s->rails,
		.uptime_s = uptime_s < UINT32_MAX ? (uint32_t)uptime_s : UINT32_MAX,
		.directory_used = permille(s->shard_entries, s->shard_capacity)};
	if (s->directory_moving)
		ret->flags |= SUMMARY_MOVING;
	if (s->directory_behind)
		ret->flags |= SUMMARY_BEHIND;
	if (s->stopping)
		ret->flags |= SUMMARY_STOPPING;
	for (unsigned r = 0; r < s->rails; r++) {
		pool += s->rail[r].pool_bytes;
		used += s->rail[r].pool_used_bytes;
		rails_up += !strcmp(s->rail[r].state, "up");
	}
	ret->pool_used = permille(used, pool);
	ret->rails_up = (uint8_t)rails_up;
	ret->members_up = (uint16_t)snapshot_members(s, SNAPSHOT_UP);
	ret->members_down = (uint16_t)(snapshot_members(s, SNAPSHOT_SUSPECT) +
				       snapshot_members(s, SNAPSHOT_DOWN));
	findings(s, past, ret);
	rates(s, past, ret);
}

/* As health_pasts_before(). There is a moment. */
static const struct view_moment *moment_before(const struct view *view, uint64_t now_ns)
{
	unsigned oldest = view->moments > VIEW_MOMENTS ? view->moments - VIEW_MOMENTS : 0;
	unsigned i = view->moments - 1;

	while (i > oldest &&
		now_ns - view->moment[i % VIEW_MOMENTS].taken_ns < HEALTH_WINDOW_NS - 500000000)
		i--;
	return &view->moment[i % VIEW_MOMENTS];
}

void view_own(struct control *control, struct snapshot *s)
{
	struct view *view = control->view;
	const struct view_moment *last;

	if (!view)
		return;
	last = &view->moment[(view->moments + VIEW_MOMENTS - 1) % VIEW_MOMENTS];
	if (!view->moments || s->taken_ns / 1000000000 != last->taken_ns / 1000000000)
		view_moment_make(s, &view->moment[view->moments++ % VIEW_MOMENTS]);
	view_summary_make(s, moment_before(view, s->taken_ns), &view->own);
	for (unsigned i = 0; i < s->members; i++) {
		if (!s->member[i].self)
			continue;
		s->member[i].summaries = true;
		s->member[i].summary = view->own;
		s->member[i].summary_ns = s->taken_ns;
	}
}
