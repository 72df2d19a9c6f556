/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot of a healthy engine for the tests of what is made from snapshots: three members, two
 * rails, two poll cores, every figure different from the others. One thread.
 */
#ifndef TESTS_SNAPSHOT_WORLD_H
#define TESTS_SNAPSHOT_WORLD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/control/observe/snapshot_inner.h"

#define SAMPLE_NS 100000000000ull /* taken_ns of the healthy snapshot */

static inline void sample_member(struct snapshot *s, const char *name, unsigned state)
{
	struct snapshot_member *m = &s->member[s->members];

	*m = (struct snapshot_member){.port = (uint16_t)(7000 + s->members),
		.ref = s->members + 1,
		.rails = 2,
		.state = state,
		.self = s->members == 0,
		.on_map = true};
	snprintf(m->name, sizeof(m->name), "%s", name);
	snprintf(m->address, sizeof(m->address), "10.0.0.%u", s->members + 1);
	snprintf(m->software, sizeof(m->software), "0.1.0");
	s->members++;
}

/* `ns`: how long one batch took; `call` ended `pages` pages, `missed` of them as misses. */
static inline void sample_batch(
	struct snapshot *s, enum statistics_call call, uint64_t pages, uint64_t missed, uint64_t ns)
{
	struct statistics_calls *c = &s->clients.calls[call];

	c->batches++;
	c->pages += pages;
	c->result[STATISTICS_HIT] += pages - missed;
	c->result[STATISTICS_MISS] += missed;
	c->latency_ns_sum += ns;
	c->latency[latency_bucket(ns)]++;
}

static inline void sample_healthy(struct snapshot *s)
{
	memset(s, 0, sizeof(*s));
	s->taken_ns = SAMPLE_NS;
	s->unix_ms = 1700000000000ull;
	s->uptime_ms = 90000;
	s->started_unix_ms = s->unix_ms - s->uptime_ms;
	snprintf(s->name, sizeof(s->name), "host:1");
	sample_member(s, "host:1", SNAPSHOT_UP);
	sample_member(s, "host:2", SNAPSHOT_UP);
	sample_member(s, "host:3", SNAPSHOT_UP);
	s->security = "key";
	s->rails = s->poll_cores = 2;
	for (unsigned r = 0; r < s->rails; r++) {
		struct snapshot_rail *rail = &s->rail[r];

		snprintf(rail->device, sizeof(rail->device), "mlx5_%u", r);
		strcpy(rail->state, "up");
		rail->pool_bytes = 1u << 30;
		rail->pool_used_bytes = 1u << 28;
		rail->gbps = 400;
		for (unsigned i = 0; i < COUNTER_COUNT; i++)
			rail->counter[i] = 1000 * (r + 1) + i;
		rail->latency[latency_bucket(9000)] = 3;
		rail->latency_ns_sum = 27000;
		s->poll_core[r].number = r;
	}
	for (unsigned i = 0; i < COUNTER_COUNT; i++)
		s->counter[i] = 50000 + i;
	/* any other number is a finding */
	s->counter[COUNTER_pages_corrupt] = 0;
	sample_batch(s, STATISTICS_GET, 10, 4, 5000);
	sample_batch(s, STATISTICS_GET, 10, 0, 3000000);
	sample_batch(s, STATISTICS_SET, 8, 0, 70000);
	sample_batch(s, STATISTICS_EXISTS, 128, 28, 40000);
	s->clients.get_local = 9;
	s->clients.get_remote = 7;
	s->clients.get_bytes = 65536;
	s->clients.set_bytes = 32768;
	s->lag[latency_bucket(20000)] = 60;
	s->lag_ns_sum = 1200000;
	s->lag_worst_ns = 21000;
}

#endif
