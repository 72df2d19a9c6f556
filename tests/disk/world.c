/* SPDX-License-Identifier: Apache-2.0 */
/* A store over simulated devices; see world.h. One thread. */
#include "tests/disk/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numa/clock.h"

#define IDLE_MAX 100000u /* turns without any work; a lost request fails a test, it does not hang */

static uint64_t world_random(void *context)
{
	return sim_random(context);
}

int world_open(struct world *world, struct sim *const sim[], unsigned paths, uint64_t *rng)
{
	struct disk_options options = {
		.paths = paths, .segment_bytes = sim[0]->units * PAGE_UNIT, .timeout_ms = 60000};
	uint32_t segments[DISK_PATHS_MAX] = {0};

	memset(world, 0, sizeof(*world));
	world->paths = paths;
	world->rng = rng;
	world->units = sim[0]->units;
	world->segments = sim[0]->files - 1;
	for (unsigned i = 0; i < paths; i++) {
		options.path[i].bytes = (uint64_t)world->segments * options.segment_bytes;
		segments[i] = world->segments;
		world->sim[i] = sim[i];
	}
	if (store_open(&world->store, &options))
		abort();
	for (unsigned i = 0; i < paths; i++)
		world->store.path[i].device = &sim[i]->device;
	world->store.random = world_random;
	world->store.random_context = rng;
	return store_recover(&world->store, segments);
}

void world_close(struct world *world)
{
	for (unsigned i = 0; i < world->paths; i++) {
		world->sim[i]->hang = false;
		world->store.path[i].report.state = DISK_PATH_OUT; /* nothing new */
		while (sim_complete(world->sim[i]))
			device_dispatch(&world->sim[i]->device);
	}
	store_close(&world->store);
	for (unsigned i = 0; i < world->paths; i++)
		sim_free(world->sim[i]);
}

void world_turn(struct world *world)
{
	unsigned work = store_step(&world->store, clock_now_ns());

	work += sim_complete(world->sim[sim_random(world->rng) % world->paths]);
	world->idle = work ? 0 : world->idle + 1;
	if (world->idle < IDLE_MAX)
		return;
	fprintf(stderr, "the store waits for what never comes: %u turns did nothing\n", IDLE_MAX);
	abort();
}

enum disk_status world_call(struct world *world, struct disk_request *request)
{
	struct disk_request *finished;

	store_submit(&world->store, request);
	for (;;) {
		STAILQ_FOREACH (finished, &world->store.finished, next)
			if (finished == request) {
				STAILQ_REMOVE(&world->store.finished, request, disk_request, next);
				return request->status;
			}
		world_turn(world);
	}
}

struct page_key page_key_of(uint32_t number)
{
	uint64_t seed = number;
	struct page_key key = {{sim_random(&seed), 0}};

	key.word[1] = sim_random(&seed) | 1;
	return key;
}

uint32_t page_length(uint32_t number, uint32_t version)
{
	uint64_t seed = (uint64_t)number << 32 | version;

	seed = sim_random(&seed);
	/* A third are whole units; the shortest has its name. */
	return seed % 3 ? 16 + (uint32_t)(seed >> 32) % (3 * PAGE_UNIT - 16)
			: PAGE_UNIT * (1 + (uint32_t)(seed >> 32) % 3);
}

void page_fill(uint8_t *bytes, uint32_t number, uint32_t version)
{
	uint32_t length = page_length(number, version);
	uint64_t seed = (uint64_t)number << 32 | version, word = 0;

	for (uint32_t i = 0; i < length; i++) {
		if (i % 8 == 0)
			word = i ? sim_random(&seed) : seed;
		bytes[i] = (uint8_t)(word >> i % 8 * 8);
	}
}

uint32_t page_version(const uint8_t *bytes, uint32_t length, uint32_t number)
{
	uint8_t *expected;
	uint32_t version;

	memcpy(&version, bytes, sizeof(version));
	if (page_length(number, version) != length)
		return 0;
	expected = malloc(length);
	if (!expected)
		abort();
	page_fill(expected, number, version);
	if (memcmp(bytes, expected, length))
		version = 0;
	free(expected);
	return version;
}

uint32_t world_read(struct world *world, uint32_t number, bool *ret_found)
{
	struct page_key key = page_key_of(number);
	struct disk_request request = {.op = DISK_READ, .key = key};
	struct disk_index_found found;
	uint32_t version = 0, bytes;

	*ret_found = disk_index_find(&world->store.index, &key, &found);
	if (!*ret_found)
		return 0;
	bytes = disk_units(found.length) * PAGE_UNIT;
	request.length = found.length;
	request.data = aligned_alloc(PAGE_UNIT, bytes);
	if (!request.data)
		abort();
	memset(request.data, 0xa5, bytes);
	if (world_call(world, &request) == DISK_OK) {
		const uint8_t *data = request.data;

		version = page_version(data, found.length, number);
		for (uint32_t i = found.length; i < bytes; i++)
			if (data[i] && !world->any_tail)
				version = 0;
		if (!version)
			version = UINT32_MAX;
	}
	free(request.data);
	return version;
}

enum disk_status world_write(struct world *world, uint32_t number, uint32_t version)
{
	struct disk_request request = {.op = DISK_WRITE, .key = page_key_of(number)};
	enum disk_status status;
	uint32_t bytes;

	request.length = page_length(number, version);
	bytes = disk_units(request.length) * PAGE_UNIT;
	request.data = aligned_alloc(PAGE_UNIT, bytes);
	if (!request.data)
		abort();
	memset(request.data, 0xee, bytes);
	page_fill(request.data, number, version);
	status = world_call(world, &request);
	free(request.data);
	return status;
}

bool world_forget(struct world *world, uint32_t number)
{
	struct page_key key = page_key_of(number);

	return disk_index_forget(&world->store.index, &key);
}

void world_settle(struct world *world)
{
	store_step(&world->store, clock_now_ns());
	store_step(&world->store, clock_now_ns() + UINT64_C(1000000000));
	while (store_flying(&world->store))
		world_turn(world);
}

uint64_t world_persisted(struct world *world, uint32_t number, unsigned *ret_path)
{
	struct page_key key = page_key_of(number);
	struct disk_index_found found;
	const struct segment *segment;

	if (!disk_index_find(&world->store.index, &key, &found))
		return 0;
	*ret_path = found.segment / world->segments;
	segment = &world->store.path[*ret_path].segment[found.segment % world->segments];
	return segment->state == SEGMENT_SEALED ? segment->ordinal : 0;
}
