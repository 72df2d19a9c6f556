/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of runs share: one client, one peer with many small pages, and a run under
 * construction, which a test changes before it submits it. The test's thread.
 */
#ifndef TEST_RAIL_RUNS_H
#define TEST_RAIL_RUNS_H

#include "tests/unit/rail/world.h"

#define MS 1000000ull
#define RUN_KEY(unit) (1000u + (unit)) /* key of the page at `unit` */

struct draft {
	struct run run;
	struct run_entry entry[RUN_PAGES_MAX];
	uint32_t bucket[RUN_PAGES_MAX];
};

/* Writes the pages of `bytes` bytes at `units`, `units` + stride, ... */
static inline void pages_put(
	struct world *w, uint32_t unit, uint32_t stride, unsigned n, uint32_t bytes)
{
	for (unsigned i = 0; i < n; i++)
		page_put(w, unit + i * stride, bytes, RUN_KEY(unit + i * stride));
}

static inline struct run_entry entry_at(struct world *w, uint32_t unit, uint64_t to)
{
	return (struct run_entry){.unit = unit,
		.generation = w->heads[unit].generation,
		.to = to,
		.key = {{RUN_KEY(unit), ~(uint64_t)RUN_KEY(unit)}}};
}

/* A run of `n` pages of peer (3, 33) in slots `stride` units apart, to the start of `home`. */
static inline struct draft draft_of(struct world *w, uint32_t cookie, uint32_t unit,
	uint32_t stride, unsigned n, uint32_t bytes)
{
	struct draft d = {.run = {.cookie = cookie,
				  .peer_ref = 33,
				  .kind = OP_RUN,
				  .pages = (uint8_t)n,
				  .peer = 3,
				  .region = REGION_POOL_0,
				  .segments = 1,
				  .to_region = WORLD_REGION,
				  .page_bytes = bytes,
				  .deadline_ns = w->now_ns + 1000 * MS}};

	for (unsigned i = 0; i < n; i++)
		d.entry[i] = entry_at(w, unit + i * stride, (uint64_t)i * bytes);
	return d;
}

/* A look-up of `n` buckets from `bucket` on, `stride` apart, to the start of `home`. */
static inline struct draft lookup_of(
	struct world *w, uint32_t cookie, uint32_t bucket, uint32_t stride, unsigned n)
{
	struct draft d = {.run = {.cookie = cookie,
				  .peer_ref = 33,
				  .kind = OP_LOOKUP,
				  .pages = (uint8_t)n,
				  .peer = 3,
				  .region = REGION_SHARD,
				  .to_region = WORLD_REGION,
				  .deadline_ns = w->now_ns + 1000 * MS}};

	for (unsigned i = 0; i < n; i++)
		d.bucket[i] = bucket + i * stride;
	return d;
}

static inline void draft_submit(struct client *client, const struct draft *d)
{
	uint32_t lines = run_lines(d->run.kind, d->run.pages);

	assert_true(ring_room(&client->ops, lines) >= (int32_t)lines);
	for (uint32_t i = 0; i < lines; i++)
		memset(ring_slot_new(&client->ops, i), 0, RUN_LINE_BYTES);
	run_encode(&d->run, ring_slot_new(&client->ops, 0));
	for (uint32_t i = 0; i < d->run.pages && i < RUN_PAGES_MAX; i++)
		if (d->run.kind == OP_RUN)
			*run_entry_new(&client->ops, 0, i) = d->entry[i];
		else
			*run_bucket_new(&client->ops, 0, i) = d->bucket[i];
	ring_publish(&client->ops, lines);
}

/* Takes the client's next completion, which must be this one. */
static inline void run_expect(
	struct client *client, uint32_t cookie, uint32_t hit, uint32_t stale, enum op_status status)
{
	struct run_done done;

	assert_true(client_run_done(client, &done));
	assert_true(done.kind == OP_RUN || done.kind == OP_LOOKUP);
	assert_int_equal(done.cookie, cookie);
	assert_int_equal(done.hit, hit);
	assert_int_equal(done.stale, stale);
	assert_int_equal(done.status, status);
}

static inline void assert_no_answer(struct client *client)
{
	struct op_done done;

	assert_false(client_done(client, &done));
}

/* Every resource of runs and requests is free, and the rail has reported nothing. */
static inline void assert_runs_free(struct world *w)
{
	assert_true(world_silent(w));
	assert_int_equal(rail_in_flight(w->rail), 0);
	assert_int_equal(w->rail->wqes, 0);
	assert_int_equal(w->rail->taken_bytes, 0);
	assert_int_equal(w->rail->posted_bytes, 0);
	assert_int_equal(w->rail->parked, 0);
	assert_int_equal(w->rail->runs_free, RAIL_RUNS);
	assert_int_equal(w->rail->landings_free, RAIL_LANDINGS);
	assert_int_equal(w->rail->region[WORLD_REGION].users, 0);
}

/* The rail posts, and the fake NIC has the READs. */
static inline void post(struct world *w)
{
	world_settle(w);
	nic_pull(w);
}

/* Completes the oldest `n` WQEs. */
static inline void complete_some(struct world *w, unsigned n)
{
	while (n--)
		nic_complete(w, 0, 0);
}

/* Advances the test clock by `ms` in steps of 5 ms, and steps the rail after each. */
static inline void pass(struct world *w, uint64_t ms)
{
	for (; ms >= 5; ms -= 5) {
		clock_test_set(w->now_ns += 5 * MS);
		world_settle(w);
	}
}

#endif
