/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Points of the dashboard's plots: differences between snapshots five seconds apart. The metrics
 * thread.
 */
#include "engine/control/observe/history_inner.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "engine/control/observe/json_inner.h"

static struct history_point point_make(const struct history *h, const struct snapshot *s)
{
	struct history_point p = {.unix_ms = s->unix_ms};
	struct recents recent;

	recents_make(s, &h->last, &recent);
#define PLOTTED(name, help, value) p.name = (float)recent.engine.name;
#include "engine/control/observe/figures.def"
	for (unsigned r = 0; r < s->rails; r++)
		p.rail_bytes_per_second[r] = (float)recent.rail[r].rail_read_bytes_per_second;
	return p;
}

void history_add(struct history *h, const struct snapshot *s)
{
	if (h->any && s->taken_ns - h->last.taken_ns < HISTORY_MS * 1000000ull)
		return;
	if (h->any) {
		h->point[h->next] = point_make(h, s);
		h->next = (h->next + 1) % HISTORY_POINTS;
		if (h->count < HISTORY_POINTS)
			h->count++;
	}
	h->any = true;
	moment_make(s, &h->last);
}

static void history_point_json(struct json *j, const struct history_point *p, unsigned rails)
{
	fprintf(j->f, "[%" PRIu64, p->unix_ms);
#define PLOTTED(name, help, value) fprintf(j->f, ",%.6g", (double)p->name);
#include "engine/control/observe/figures.def"
	for (unsigned r = 0; r < rails; r++)
		fprintf(j->f, ",%.6g", (double)p->rail_bytes_per_second[r]);
	fputc(']', j->f);
}

int history_json(const struct history *h, unsigned rails, char **ret_text, size_t *ret_bytes)
{
	unsigned first = (h->next + HISTORY_POINTS - h->count) % HISTORY_POINTS;
	struct json j;

	if (json_begin(&j) < 0)
		return -ENOMEM;
	fprintf(j.f, "{\"seconds\":%u,\"columns\":[\"unix_ms\"", HISTORY_MS / 1000);
#define PLOTTED(name, help, value) fprintf(j.f, ",\"" #name "\"");
#include "engine/control/observe/figures.def"
	for (unsigned r = 0; r < rails; r++)
		fprintf(j.f, ",\"rail_%u_bytes_per_second\"", r);
	fprintf(j.f, "],\"points\":[");
	for (unsigned i = 0; i < h->count; i++) {
		if (i)
			fputc(',', j.f);
		history_point_json(&j, &h->point[(first + i) % HISTORY_POINTS], rails);
	}
	fprintf(j.f, "]}\n");
	return json_end(&j, ret_text, ret_bytes);
}
