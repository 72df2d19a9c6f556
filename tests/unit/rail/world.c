/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of world.h that need no NIC: clients of a rail, the memory of its peer, and the control
 * plane's side of the inbox. The test's thread.
 */
#include <stdlib.h>

#include "tests/unit/rail/world.h"

#define SECOND_NS 1000000000ull

void world_memory(struct world *w)
{
	w->status = aligned_alloc(64, sizeof(*w->status));
	memset(w->status, 0, sizeof(*w->status));
	w->pool = aligned_alloc(PAGE_UNIT, (size_t)WORLD_UNITS * PAGE_UNIT);
	memset(w->pool, 0, (size_t)WORLD_UNITS * PAGE_UNIT);
	w->heads = aligned_alloc(PAGE_UNIT, WORLD_UNITS * sizeof(*w->heads));
	memset(w->heads, 0, WORLD_UNITS * sizeof(*w->heads));
	w->shard = aligned_alloc(PAGE_UNIT, WORLD_BUCKETS * sizeof(*w->shard));
	memset(w->shard, 0, WORLD_BUCKETS * sizeof(*w->shard));
	w->home = aligned_alloc(PAGE_UNIT, WORLD_HOME_BYTES);
	memset(w->home, 0, WORLD_HOME_BYTES);
}

void world_memory_free(struct world *w)
{
	free(w->status);
	free(w->pool);
	free(w->heads);
	free(w->shard);
	free(w->home);
}

/* ---- the rail -------------------------------------------------------------------------------- */

void world_command(struct world *w, struct rail_command command)
{
	assert_true(rail_command_send(w->rail, &command));
}

struct rail_event world_event(struct world *w, uint32_t kind)
{
	struct rail_event event;

	assert_true(rail_event_take(w->rail, &event));
	assert_int_equal(event.kind, kind);
	return event;
}

bool world_silent(struct world *w)
{
	struct rail_event event;

	return !rail_event_take(w->rail, &event);
}

void world_settle(struct world *w)
{
	while (!w->rail->started && rail_step(w->rail, 0))
		;
}

uint64_t world_counter(struct world *w, enum counter which)
{
	uint64_t counter[COUNTER_COUNT];

	rail_counters(w->rail, counter);
	return counter[which];
}

void world_region_beyond(struct world *w)
{
	const struct region_slot slot = {.base = (uintptr_t)w->home,
		.length = WORLD_HOME_BYTES,
		.lkey = WORLD_LKEY,
		.session = WORLD_SESSION,
		.present = true};

	static_assert(offsetof(struct rail, extent_lkey) ==
			      offsetof(struct rail, region) + sizeof(w->rail->region),
		"behind the table");
	memcpy(w->rail->extent_lkey, &slot, sizeof(slot)); /* of numbers that no client has */
}

/* ---- clients --------------------------------------------------------------------------------- */

struct client *client_new(struct world *w, uint32_t id, uint32_t session)
{
	struct client *c = calloc(1, sizeof(*c));
	size_t ops = ring_bytes(OP_RING_SLOTS, sizeof(struct run_line));
	size_t done = ring_bytes(DONE_RING_SLOTS, sizeof(struct run_done));

	c->header = aligned_alloc(64, sizeof(*c->header));
	memset(c->header, 0, sizeof(*c->header));
	c->ops_memory = aligned_alloc(64, ops);
	c->done_memory = aligned_alloc(64, done);
	memset(c->ops_memory, 0, ops);
	memset(c->done_memory, 0, done);
	ring_producer_init(&c->ops, c->ops_memory, OP_RING_SLOTS, sizeof(struct run_line));
	ring_consumer_init(&c->done, c->done_memory, DONE_RING_SLOTS, sizeof(struct run_done));
	c->channel = (struct rail_channel){.id = id, .session = session, .wake = w->wake};
	c->channel.client_waits = &c->header->client_waits;
	ring_consumer_init(&c->channel.ops, c->ops_memory, OP_RING_SLOTS, sizeof(struct run_line));
	ring_producer_init(
		&c->channel.done, c->done_memory, DONE_RING_SLOTS, sizeof(struct run_done));
	world_command(w, (struct rail_command){.kind = RAIL_CHANNEL_ADD, .object = &c->channel});
	world_settle(w);
	return c;
}

void client_free(struct client *client)
{
	free(client->header);
	free(client->ops_memory);
	free(client->done_memory);
	free(client);
}

void client_submit(struct client *client, const struct op *op, const struct op_segment *segments)
{
	uint32_t lines = op_page_lines(op->segments);

	assert_true(ring_room(&client->ops, lines) >= (int32_t)lines);
	ring_publish(&client->ops, op_write(&client->ops, 0, op, segments));
}

bool client_run_done(struct client *client, struct run_done *ret_done)
{
	if (ring_ready(&client->done) < 1)
		return false;
	memcpy(ret_done, ring_slot_old(&client->done, 0), sizeof(*ret_done));
	ring_release(&client->done, 1);
	return true;
}

bool client_done(struct client *client, struct op_done *ret_done)
{
	struct run_done run;

	if (!client_run_done(client, &run))
		return false;
	*ret_done = op_done_of(&run);
	return true;
}

void client_expect(struct client *client, uint64_t cookie, enum op_status status)
{
	struct op_done done;

	assert_true(client_done(client, &done));
	assert_int_equal(done.cookie, cookie);
	assert_int_equal(done.status, status);
}

/* ---- the peer -------------------------------------------------------------------------------- */

void rail_conn_add(struct world *w, struct rail_conn *handle)
{
	world_command(w, (struct rail_command){.kind = RAIL_CONN_ADD, .object = handle});
	world_settle(w);
}

void rail_conn_drop(struct world *w, struct rail_conn *handle)
{
	world_command(w, (struct rail_command){
				 .kind = RAIL_CONN_DROP, .peer = handle->peer, .ref = handle->ref});
}

/* Returns byte i of the page with this key. */
static uint64_t bytes_of(uint64_t key, uint64_t i)
{
	return map_mix(key * 1000003 + i);
}

void page_put(struct world *w, uint32_t unit, uint32_t length, uint64_t key)
{
	struct page_key full = {{key, ~key}};
	uint8_t *at = w->pool + (size_t)unit * PAGE_UNIT;

	for (uint32_t i = 0; i < length; i++)
		at[i] = (uint8_t)bytes_of(key, i);
	page_head_publish(&w->heads[unit], &full, length);
}

static uint64_t world_deadline_ns(const struct world *w)
{
	return w->now_ns ? w->now_ns + SECOND_NS : clock_now_ns() + 60 * SECOND_NS;
}

struct op page_op(struct world *w, uint64_t cookie, uint32_t unit, uint32_t length, uint64_t key)
{
	return (struct op){.cookie = cookie,
		.kind = OP_PAGE,
		.segments = 1,
		.peer = 3,
		.region = REGION_POOL_0,
		.offset = (uint64_t)unit * PAGE_UNIT,
		.peer_ref = 33,
		.length = length,
		.page_bytes = length,
		.key = {{key, ~key}},
		.deadline_ns = world_deadline_ns(w),
		.generation = w->heads[unit].generation};
}

struct op_segment home_at(uint64_t offset, uint32_t length)
{
	return (struct op_segment){.region = WORLD_REGION, .length = length, .offset = offset};
}

void page_get(struct world *w, struct client *client, uint64_t cookie, uint32_t unit,
	uint32_t length, uint64_t key, uint64_t offset)
{
	struct op op = page_op(w, cookie, unit, length, key);
	struct op_segment segment = home_at(offset, length);

	client_submit(client, &op, &segment);
}

void bucket_get(
	struct world *w, struct client *client, uint32_t cookie, uint32_t bucket, uint64_t offset)
{
	struct run run = {.cookie = cookie,
		.peer_ref = 33,
		.kind = OP_LOOKUP,
		.pages = 1,
		.peer = 3,
		.region = REGION_SHARD,
		.to_region = WORLD_REGION,
		.stride_or_to = offset,
		.deadline_ns = world_deadline_ns(w)};

	assert_true(ring_room(&client->ops, 1) >= 1);
	run_encode(&run, ring_slot_new(&client->ops, 0));
	*run_bucket_new(&client->ops, 0, 0) = bucket;
	ring_publish(&client->ops, 1);
}

bool page_arrived(const struct world *w, uint32_t unit, uint32_t length, uint64_t offset)
{
	return memcmp(w->home + offset, w->pool + (size_t)unit * PAGE_UNIT, length) == 0;
}
