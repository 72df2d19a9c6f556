/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and closes the pool of a rail: with new memory, or with the memory that an earlier process
 * of the engine left, however that process ended. The control plane's thread only.
 *
 * Adoption. A slot that starts in a chunk with a class is one of
 * - a page: its head is proven. Its client had written all of it, because it had asked to publish;
 * - owned: a client or a disk may still be writing. It stays a credit until pool_return();
 * - never used: its generation is 0. It is free;
 * - anything else: free, in limbo, or a head that a kill left half-written. A reader may still be
 *   reading it, so it is retired and rests for the larger of the two limbo times.
 * A place and a generation name one use of a slot for ever, also over processes, because
 * generations are in the heads and only grow.
 */
#include <errno.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "engine/control/pages/pool_inner.h"
#include "numa/clock.h"

#define POOL_BYTES_MIN (4ull << 20)
/* the time that opening takes is logged for a pool of at least this size, because it is long */
#define LARGE_BYTES (1ull << 30)

/* ---- the state for the next process ---------------------------------------------------------- */

/* Makes the state of a new pool, if options->want_state. Returns 0 or -errno. */
static int state_make(struct pool *pool, const struct pool_options *options)
{
	char name[NAME_BYTES_MAX];
	int rc;

	if (!options->want_state)
		return 0;
	snprintf(name, sizeof(name), "peercache-slots-%u", options->rail);
	rc = huge_open(name, pool_state_bytes(pool->chunks, pool->chunk_units), options->numa_node,
		false, &pool->state_memory);
	if (rc < 0)
		return rc;
	pool->state = pool->state_memory.base;
	*pool->state = (struct pool_state){.magic = POOL_STATE_MAGIC,
		.layout = POOL_STATE_LAYOUT,
		.rail = options->rail,
		.chunks = pool->chunks,
		.chunk_units = pool->chunk_units,
		.numa_node = options->numa_node,
		.limbo_ns = options->limbo_ns,
		.memory = huge_number(pool->memory.fd),
		.heads = huge_number(pool->heads_memory.fd),
		.owners = options->owners};
	pool->state_units = pool_state_units(pool->state);
	pool->state_owner = pool_state_owners(pool->state);
	return 0;
}

void pool_own(struct pool *pool, uint32_t place, uint32_t owner)
{
	if (pool->state)
		shm_store(&pool->state_owner[place_unit(place)], owner);
}

/* ---- memory of an earlier process ------------------------------------------------------------ */

/* Is the state that of this memory and geometry, and every page size in it possible? */
static bool state_is_ours(struct pool *pool, const struct pool_options *options)
{
	const struct pool_state *state = pool->state_memory.base;
	uint32_t size[CLASSES_MAX], sizes = 0;

	if (state->magic != POOL_STATE_MAGIC || state->layout != POOL_STATE_LAYOUT ||
		state->rail != options->rail || state->chunks != pool->chunks ||
		state->chunk_units != pool->chunk_units ||
		(state->numa_node != options->numa_node && options->numa_node >= 0) ||
		state->memory != huge_number(pool->memory.fd) ||
		state->heads != huge_number(pool->heads_memory.fd) ||
		state->owners != options->owners)
		return false;
	pool->state_units = pool_state_units(pool->state_memory.base);
	for (uint32_t i = 0; i < pool->chunks; i++) {
		uint32_t units = shm_load(&pool->state_units[i]), at = 0;

		if (units == 0)
			continue;
		while (at < sizes && size[at] != units)
			at++;
		if (units > pool->chunk_units || at == CLASSES_MAX)
			return false;
		size[at] = units;
		sizes += at == sizes;
	}
	return true;
}

/*
 * Maps the memory of options->adopt. Takes ownership of its descriptors, also on failure. Returns
 * 0, -EPROTO if it is not a pool of this geometry, or another -errno. Changes nothing in the
 * memory.
 */
static int adopt_map(struct pool *pool, const struct pool_options *options)
{
	const struct pool_adopt *adopt = options->adopt;
	size_t units = (size_t)pool->chunks << pool->shift;
	int memory = huge_adopt(adopt->memory_fd, units * PAGE_UNIT, &pool->memory);
	int heads = huge_adopt(adopt->heads_fd, units * sizeof(*pool->heads), &pool->heads_memory);
	int state = huge_adopt(adopt->state_fd, pool_state_bytes(pool->chunks, pool->chunk_units),
		&pool->state_memory);
	int rc = memory ? memory : heads ? heads : state;

	if (rc == -EINVAL || (rc == 0 && !state_is_ours(pool, options)))
		rc = -EPROTO;
	if (rc < 0) {
		huge_close(&pool->memory);
		huge_close(&pool->heads_memory);
		huge_close(&pool->state_memory);
		return rc;
	}
	pool->heads = pool->heads_memory.base;
	pool->state = pool->state_memory.base;
	pool->state_owner = pool_state_owners(pool->state);
	return 0;
}

static bool adopt_is_page(
	const struct pool *pool, const struct chunk *chunk, const struct page_head *head)
{
	return head->length && (head->key.word[0] | head->key.word[1]) &&
	       head->length <= (uint64_t)pool->class[chunk->class].units * PAGE_UNIT &&
	       page_head_is_proven(head);
}

/*
 * Takes the slot out of the free ones of its chunk. Slots are taken in the order of their numbers,
 * so chunk_slot_take() would give this one next.
 */
static void adopt_take(struct pool *pool, struct chunk *chunk, uint32_t number)
{
	struct size_class *class = &pool->class[chunk->class];

	chunk->carved++;
	class->free--;
	if (--chunk->free == 0)
		chunk_list_remove(pool, &class->ready, number);
}

static void adopt_slot(
	struct pool *pool, uint32_t number, uint32_t index, const struct pool_adopt *adopt)
{
	struct chunk *chunk = &pool->chunk[number];
	uint32_t slot = (number << pool->shift) + index, unit = slot_unit(pool, slot);
	uint32_t place = place_make(pool->rail, unit);
	struct page_head head = page_head_load(&pool->heads[unit]);
	uint32_t owner;
	bool page = adopt_is_page(pool, chunk, &head);

	adopt_take(pool, chunk, number);
	if (page)
		/* killed between the two stores of pool_publish() */
		shm_store(&pool->state_owner[unit], POOL_OWNER_NONE);
	owner = shm_load(&pool->state_owner[unit]);
	if (owner != POOL_OWNER_NONE) {
		pool->slots[slot].state = SLOT_CREDIT;
		chunk->credits++;
		adopt->quarantined(adopt->context,
			&(struct pool_quarantined){.owner = owner,
				.place = place,
				.generation = head.generation,
				.length = pool->class[chunk->class].units * PAGE_UNIT});
	} else if (page && adopt->page(adopt->context, &head, place)) {
		chunk->pages++;
		chunk->used_at = ++pool->published;
		pool->pages++;
		queue_insert(pool, slot, UINT32_MAX);
	} else {
		page_head_retire(&pool->heads[unit]);
		limbo_enter(pool, slot);
	}
}

/* The last slot of the chunk that was ever used, plus one; later ones stay free. */
static uint32_t slots_used(const struct pool *pool, uint32_t number)
{
	const struct size_class *class = &pool->class[pool->chunk[number].class];
	uint32_t used = class->slots;

	while (used && shm_load(&pool->heads[slot_unit(pool, (number << pool->shift) + used - 1)]
					 .generation) == 0)
		used--;
	return used;
}

/* Makes the tables from the memory, and retires the slots that are neither page nor owned. */
static void adopt_slots(struct pool *pool, const struct pool_adopt *adopt)
{
	uint64_t limbo_ns = pool->limbo_ns;

	for (uint32_t i = 0; i < pool->chunks; i++) {
		uint32_t units = shm_load(&pool->state_units[i]), used;

		if (units == 0)
			continue;
		(void)chunk_assign_at(pool, i, units);
		used = slots_used(pool, i);
		for (uint32_t index = 0; index < used; index++)
			adopt_slot(pool, i, index, adopt);
	}
	/* readers of the earlier process were promised its limbo time */
	if (pool->state->limbo_ns > pool->limbo_ns)
		pool->limbo_ns = pool->state->limbo_ns;
	else
		pool->state->limbo_ns = pool->limbo_ns;
	pool_rest(pool);
	pool->limbo_ns = limbo_ns;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void pool_lay_out(struct pool *pool, uint64_t bytes)
{
	struct pool_geometry geometry = pool_geometry(bytes);

	pool->chunk_units = geometry.chunk_units;
	pool->shift = (uint32_t)__builtin_ctz(pool->chunk_units);
	pool->chunks = geometry.chunks;
	pool->used_weight = USED_WEIGHT_MIN;
	pool->before = pool->touched = pool->drain = pool->limbo_first = pool->limbo_last =
		pool->limbo_open = NONE;
	pool->empty = pool->leaving = (struct chunk_list){NONE, NONE};
}

/*
 * Allocates the tables of slots, chunks and classes. calloc() does not touch the entries of slots
 * that were never used, so these take no memory.
 */
static int pool_allocate(struct pool *pool)
{
	pool->slots = calloc((size_t)pool->chunks << pool->shift, sizeof(*pool->slots));
	pool->chunk = calloc(pool->chunks, sizeof(*pool->chunk));
	pool->class_by_units = malloc(pool->chunk_units + 1);
	if (!pool->slots || !pool->chunk || !pool->class_by_units)
		return -ENOMEM;
	memset(pool->class_by_units, CLASS_NONE, pool->chunk_units + 1);
	for (uint32_t i = 0; i < pool->chunks; i++) {
		pool->chunk[i].class = NONE;
		chunk_list_add(pool, &pool->empty, i);
	}
	pool->empties = pool->chunks;
	return 0;
}

static int pool_map(struct pool *pool, const struct pool_options *options)
{
	size_t units = (size_t)pool->chunks << pool->shift;
	char name[NAME_BYTES_MAX];
	int rc;

	if (options->adopt)
		return adopt_map(pool, options);
	snprintf(name, sizeof(name), "peercache-pool-%u", options->rail);
	rc = huge_open(
		name, units * PAGE_UNIT, options->numa_node, options->want_huge, &pool->memory);
	if (rc)
		return rc;
	snprintf(name, sizeof(name), "peercache-heads-%u", options->rail);
	rc = huge_open(name, units * sizeof(*pool->heads), options->numa_node, options->want_huge,
		&pool->heads_memory);
	if (rc == 0) {
		pool->heads = pool->heads_memory.base;
		rc = state_make(pool, options);
	}
	if (rc) {
		huge_close(&pool->heads_memory);
		huge_close(&pool->memory);
	}
	return rc;
}

static void pool_free_memory(struct pool *pool)
{
	free(pool->class_by_units);
	free(pool->chunk);
	free(pool->slots);
	free(pool);
}

int pool_open(const struct pool_options *options, struct pool **ret_pool)
{
	uint64_t begin_ns = clock_monotonic_ns();
	struct pool *pool;
	int rc;

	if (options->rail >= RAILS_MAX || options->bytes < POOL_BYTES_MIN ||
		options->bytes / PAGE_UNIT > PAGE_UNITS_MAX) {
		log_error(
			"pool of rail %u: cannot open a pool of %llu bytes; a pool has 4 MiB to 1 TiB: change its size",
			options->rail, (unsigned long long)options->bytes);
		return -EINVAL;
	}
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return -ENOMEM;
	pool->rail = options->rail;
	pool->limbo_ns = options->limbo_ns;
	pool->clock_ns = options->clock_ns ? options->clock_ns : clock_raw_ns;
	pool_lay_out(pool, options->bytes);
	rc = pool_allocate(pool);
	if (rc)
		goto fail;
	rc = pool_map(pool, options);
	if (rc)
		goto fail;
	if (options->adopt)
		adopt_slots(pool, options->adopt);
	if (options->bytes >= LARGE_BYTES)
		log_info("pool of rail %u: %llu MiB in %u chunks of %u KiB, ready after %llu ms",
			pool->rail, (unsigned long long)(pool->memory.bytes >> 20), pool->chunks,
			pool->chunk_units * (PAGE_UNIT / 1024),
			(unsigned long long)((clock_monotonic_ns() - begin_ns) / 1000000));
	*ret_pool = pool;
	return 0;
fail:
	pool_free_memory(pool);
	return rc;
}

void pool_close(struct pool *pool)
{
	if (!pool)
		return;
	huge_close(&pool->state_memory);
	huge_close(&pool->heads_memory);
	huge_close(&pool->memory);
	pool_free_memory(pool);
}

/* ---- memory ---------------------------------------------------------------------------------- */

const struct huge *pool_memory(const struct pool *pool)
{
	return &pool->memory;
}

const struct huge *pool_heads(const struct pool *pool)
{
	return &pool->heads_memory;
}

const struct huge *pool_state_memory(const struct pool *pool)
{
	return pool->state ? &pool->state_memory : NULL;
}

uint64_t pool_page_bytes_max(const struct pool *pool)
{
	static_assert(PAGE_BYTES_MAX % PAGE_UNIT == 0, "chunks end with a whole unit");
	/* pool_geometry() keeps the result <= PAGE_BYTES_MAX */
	return (uint64_t)pool->chunk_units * PAGE_UNIT;
}
