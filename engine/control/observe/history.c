/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Points of the dashboard's plots: differences between snapshots five seconds apart. The metrics
 * thread.
 */
#include "engine/control/observe/history_inner.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A percentile of the batches since the last point, in us; -1: there were none. */
static float recent_us(const struct history *h, const struct snapshot *s, enum statistics_call call,
	unsigned permille)
{
	const uint64_t *now = s->clients.calls[call].latency, *last = h->last.calls[call].latency;
	uint64_t latency[LATENCY_BUCKETS];

	for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
		latency[i] = now[i] - last[i];
	if (!latency_count(latency))
		return -1;
	return (float)latency_quantile_ns(latency, permille) / 1e3f;
}

static struct history_point point_make(const struct history *h, const struct snapshot *s)
{
	const struct statistics_calls *get = &s->clients.calls[STATISTICS_GET];
	float span_s = (float)(s->taken_ns - h->last_ns) / 1e9f;
	uint64_t pages = get->pages - h->last.calls[STATISTICS_GET].pages, pool = 0, used = 0;
	struct history_point p = {.unix_ms = s->unix_ms};

	p.get_bytes_per_s = (float)(s->clients.get_bytes - h->last.get_bytes) / span_s;
	p.set_bytes_per_s = (float)(s->clients.set_bytes - h->last.set_bytes) / span_s;
	p.get_pages_per_s = (float)pages / span_s;
	p.hit_local = pages ? (float)(s->clients.get_local - h->last.get_local) / (float)pages : -1;
	p.hit_remote =
		pages ? (float)(s->clients.get_remote - h->last.get_remote) / (float)pages : -1;
	p.get_p50_us = recent_us(h, s, STATISTICS_GET, 500);
	p.get_p99_us = recent_us(h, s, STATISTICS_GET, 990);
	p.set_p99_us = recent_us(h, s, STATISTICS_SET, 990);
	p.exists_p99_us = recent_us(h, s, STATISTICS_EXISTS, 990);
	p.evicted_per_s = (float)(s->counter[COUNTER_pages_evicted] - h->last_evicted) / span_s;
	for (unsigned r = 0; r < s->rails; r++) {
		pool += s->rail[r].pool_bytes;
		used += s->rail[r].pool_used_bytes;
		p.rail_bytes_per_s[r] =
			(float)(s->rail[r].counter[COUNTER_bytes_read] - h->last_rail_bytes[r]) /
			span_s;
	}
	p.pool_used = pool ? (float)used / (float)pool : 0;
	p.members_joined = (float)(s->counter[COUNTER_members_joined] - h->last_joined);
	p.members_died = (float)(s->counter[COUNTER_members_died] - h->last_died);
	p.members_up = (float)snapshot_members(s, SNAPSHOT_UP);
	return p;
}

void history_add(struct history *h, const struct snapshot *s)
{
	if (h->any && s->taken_ns - h->last_ns < HISTORY_MS * 1000000ull)
		return;
	if (h->any) {
		h->point[h->next] = point_make(h, s);
		h->next = (h->next + 1) % HISTORY_POINTS;
		if (h->count < HISTORY_POINTS)
			h->count++;
	}
	h->any = true;
	h->last_ns = s->taken_ns;
	h->last = s->clients;
	h->last_evicted = s->counter[COUNTER_pages_evicted];
	h->last_joined = s->counter[COUNTER_members_joined];
	h->last_died = s->counter[COUNTER_members_died];
	for (unsigned r = 0; r < s->rails; r++)
		h->last_rail_bytes[r] = s->rail[r].counter[COUNTER_bytes_read];
}

int history_json(const struct history *h, unsigned rails, char **ret_text, size_t *ret_bytes)
{
	unsigned first = (h->next + HISTORY_POINTS - h->count) % HISTORY_POINTS;
	FILE *f = open_memstream(ret_text, ret_bytes);
	bool failed;

	if (!f)
		return -ENOMEM;
	fprintf(f, "{\"seconds\":%u,\"columns\":[\"unix_ms\"", HISTORY_MS / 1000);
#define COLUMN(name) fprintf(f, ",\"" #name "\"");
	HISTORY_COLUMNS(COLUMN)
#undef COLUMN
	for (unsigned r = 0; r < rails; r++)
		fprintf(f, ",\"rail_%u_bytes_per_s\"", r);
	fprintf(f, "],\"points\":[");
	for (unsigned i = 0; i < h->count; i++) {
		const struct history_point *p = &h->point[(first + i) % HISTORY_POINTS];

		fprintf(f, "%s[%" PRIu64, i ? "," : "", p->unix_ms);
#define COLUMN(name) fprintf(f, ",%.6g", (double)p->name);
		HISTORY_COLUMNS(COLUMN)
#undef COLUMN
		for (unsigned r = 0; r < rails; r++)
			fprintf(f, ",%.6g", (double)p->rail_bytes_per_s[r]);
		fprintf(f, "]");
	}
	fprintf(f, "]}\n");
	failed = ferror(f) != 0;
	if (fclose(f) || failed) {
		free(*ret_text);
		return -ENOMEM;
	}
	return 0;
}
