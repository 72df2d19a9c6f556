/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page memory of one rail: the states of a slot, FREE -> CREDIT -> PAGE -> LIMBO -> FREE. The
 * control plane's thread only.
 *
 * Limbo. A slot enters limbo in three steps, in this order: its generation is incremented, a fence
 * makes that visible, the clock is read (pool_rest()). Its limbo ends limbo_ns after that reading.
 * limbo_end() is the only caller of chunk_slot_free(), so there is no other way back to FREE. A
 * slot whose bytes are being written to disk leaves the list of limbo and becomes free when the
 * write has ended (pool_write_end()).
 *
 * Generations. A slot's generation is stored in the page head of its first unit and only grows. It
 * is incremented when a credit is returned and when a page is retired, both before the slot enters
 * limbo. It is never reset. When a chunk changes its class, heads of first units become heads of
 * interior units and the reverse; each head keeps its number. Therefore
 * - (place, generation) identifies one credit and the one page made of it, for ever. The number
 *   wraps after 2^32 uses of one slot, which takes decades, because a use lasts at least as long as
 *   limbo;
 * - a directory entry of a retired page never validates again: the head at its place has a later
 *   generation, and has a zero key as long as the place is interior to a larger page;
 * - generation 0 with its zero key means "never used". The first credit of a slot makes it 1.
 *
 * Places and generations come from clients and from other hosts and are not trusted: pool_locate()
 * checks every place.
 */
#include <errno.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "config/clock.h"
#include "config/log.h"
#include "engine/control/pages/pool_inner.h"
#include "numa/clock.h"

#define POOL_BYTES_MIN (4ull << 20)
#define CHUNK_BYTES_MIN (2ull << 20)
#define CHUNKS_WANTED 32
#define CHUNKS_MIN 4
/* the time that opening takes is logged for a pool of at least this size, because it is long */
#define LARGE_BYTES (1ull << 30)

/*
 * Returns the units of one chunk: a power of two, about 1/32 of the pool, at most 1/CHUNKS_MIN of
 * it.
 */
static uint32_t chunk_units_of(uint64_t pool_bytes)
{
	uint64_t bytes = CHUNK_BYTES_MIN;

	while (bytes < PAGE_BYTES_MAX && bytes * CHUNKS_WANTED * 2 <= pool_bytes)
		bytes *= 2;
	while (pool_bytes / bytes < CHUNKS_MIN)
		bytes /= 2;
	return (uint32_t)(bytes / PAGE_UNIT);
}

static void pool_lay_out(struct pool *pool, uint64_t bytes)
{
	pool->chunk_units = chunk_units_of(bytes);
	pool->shift = (uint32_t)__builtin_ctz(pool->chunk_units);
	pool->chunks = (uint32_t)(bytes / PAGE_UNIT >> pool->shift);
	pool->drain = pool->limbo_first = pool->limbo_last = pool->limbo_open = NONE;
	pool->empty = (struct chunk_list){NONE, NONE};
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
	/* chunk_units_of() keeps the result <= PAGE_BYTES_MAX */
	return (uint64_t)pool->chunk_units * PAGE_UNIT;
}

uint32_t pool_locate(const struct pool *pool, uint32_t place)
{
	uint32_t unit = place_unit(place), number = unit >> pool->shift;
	uint32_t within = unit & (pool->chunk_units - 1), index, units;

	if (place_rail(place) != pool->rail || number >= pool->chunks ||
		pool->chunk[number].class == NONE)
		return NONE;
	units = pool->class[pool->chunk[number].class].units;
	index = within / units;
	if (index * units != within || index >= pool->class[pool->chunk[number].class].slots)
		return NONE;
	return (number << pool->shift) + index;
}

uint32_t pool_locate_exact(
	const struct pool *pool, uint32_t place, uint32_t generation, enum slot_state state)
{
	uint32_t slot = pool_locate(pool, place);

	if (slot == NONE || pool->slots[slot].state != state ||
		shm_load(&pool->heads[place_unit(place)].generation) != generation)
		return NONE;
	return slot;
}

bool pool_key(
	const struct pool *pool, uint32_t place, uint32_t generation, struct page_key *ret_key)
{
	if (pool_locate_exact(pool, place, generation, SLOT_PAGE) == NONE)
		return false;
	*ret_key = pool->heads[place_unit(place)].key;
	return true;
}

void pool_prefetch(const struct pool *pool, uint32_t place)
{
	uint32_t unit = place_unit(place);

	if (unit >> pool->shift < pool->chunks)
		__builtin_prefetch(&pool->heads[unit], 1);
}

void limbo_enter(struct pool *pool, uint32_t slot)
{
	struct chunk *chunk = slot_chunk(pool, slot);
	struct slot *entry = &pool->slots[slot];

	entry->state = SLOT_LIMBO;
	entry->next = NONE;
	entry->until_ns = UINT64_MAX;
	if (pool->limbo_last == NONE)
		pool->limbo_first = slot;
	else
		pool->slots[pool->limbo_last].next = slot;
	pool->limbo_last = slot;
	if (pool->limbo_open == NONE)
		pool->limbo_open = slot;
	pool->limbo++;
	chunk->limbo++;
	pool->class[chunk->class].limbo++;
}

void pool_rest(struct pool *pool)
{
	uint64_t until_ns;

	if (pool->limbo_open == NONE)
		return;
	/*
	 * A reader may have sampled the old generation until the fence ends, so limbo begins with a
	 * reading of the clock after it, never with an older one.
	 */
	shm_fence_clock();
	pool->seen_ns = pool->clock_ns();
	until_ns = pool->seen_ns + pool->limbo_ns;
	for (uint32_t slot = pool->limbo_open; slot != NONE; slot = pool->slots[slot].next)
		pool->slots[slot].until_ns = until_ns;
	pool->limbo_open = NONE;
}

/*
 * Returns a time that is not in the future: the present, unless an older reading is enough to see
 * that the first slot may leave limbo.
 */
static uint64_t limbo_now(struct pool *pool)
{
	uint32_t first = pool->limbo_first;

	if (pool->reserved_units || (first != NONE && pool->slots[first].until_ns > pool->seen_ns))
		pool->seen_ns = pool->clock_ns();
	return pool->seen_ns;
}

void limbo_end(struct pool *pool, uint32_t slot, uint64_t now_ns)
{
	struct chunk *chunk = slot_chunk(pool, slot);

	pool->slots[slot].disk = 0;
	pool->limbo--;
	chunk->limbo--;
	pool->class[chunk->class].limbo--;
	chunk_slot_free(pool, slot, now_ns);
}

/* Ends the limbo of up to `max` slots. Returns of how many. */
static unsigned limbo_leave(struct pool *pool, unsigned max, uint64_t now_ns)
{
	unsigned n = 0;

	while (n < max && pool->limbo_first != NONE) {
		uint32_t slot = pool->limbo_first;

		if (pool->slots[slot].until_ns > now_ns)
			break;
		pool->limbo_first = pool->slots[slot].next;
		if (pool->limbo_first == NONE)
			pool->limbo_last = NONE;
		if (pool->slots[slot].disk & SLOT_WRITING)
			pool->slots[slot].disk |= SLOT_HELD;
		else
			limbo_end(pool, slot, now_ns);
		n++;
	}
	return n;
}

/*
 * Returns a class with a free slot for pages of `units`, after giving it a free chunk if it needs
 * one; NONE: there is no room.
 */
static uint32_t class_with_room(struct pool *pool, uint32_t units)
{
	uint32_t class = class_serving(pool, units);

	return class != NONE && pool->class[class].free ? class : chunk_assign(pool, units);
}

int pool_take(struct pool *pool, uint32_t page_bytes, uint32_t *ret_place, uint32_t *ret_generation)
{
	uint32_t units = pool_units(pool, page_bytes), class, slot, unit, generation;
	uint64_t now_ns;
	unsigned left;

	if (units == 0)
		return -EMSGSIZE;
	pool_rest(pool);
	now_ns = limbo_now(pool);
	if (pool->reserved_units && now_ns >= pool->reserved_until_ns)
		pool->reserved_units = 0;
	do {
		left = limbo_leave(pool, LIMBO_BURST, now_ns);
		class = class_with_room(pool, units);
	} while (class == NONE && left == LIMBO_BURST);
	if (class == NONE)
		return -ENOSPC;

	slot = chunk_slot_take(pool, &pool->class[class]);
	slot_chunk(pool, slot)->credits++;
	pool->slots[slot].state = SLOT_CREDIT;
	unit = slot_unit(pool, slot);
	generation = shm_load(&pool->heads[unit].generation);
	if (generation == 0)
		/* first use: no reader knows the slot, so it needs no limbo */
		generation = page_head_retire(&pool->heads[unit]);
	*ret_place = place_make(pool->rail, unit);
	*ret_generation = generation;
	return 0;
}

int pool_return(struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_CREDIT);

	if (slot == NONE)
		return -EINVAL;
	page_head_retire(&pool->heads[place_unit(place)]);
	pool_own(pool, place, POOL_OWNER_NONE);
	slot_chunk(pool, slot)->credits--;
	limbo_enter(pool, slot);
	return 0;
}

int pool_prove(struct pool *pool, const struct pool_proven *page)
{
	if (pool_locate_exact(pool, page->place, page->generation, SLOT_CREDIT) == NONE)
		return -EINVAL;
	page_head_prove(&pool->heads[place_unit(page->place)], &page->key, page->length, page->crc);
	return 0;
}

int pool_publish(struct pool *pool, uint32_t place, uint32_t generation, const struct page_key *key,
	uint32_t length)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_CREDIT);
	struct chunk *chunk;

	if (slot == NONE || length == 0 || (key->word[0] | key->word[1]) == 0)
		return -EINVAL;
	chunk = slot_chunk(pool, slot);
	if (length > (uint64_t)pool->class[chunk->class].units * PAGE_UNIT)
		return -EINVAL;
	page_head_publish(&pool->heads[place_unit(place)], key, length);
	pool_own(pool, place, POOL_OWNER_NONE);
	chunk->credits--;
	chunk->pages++;
	chunk->used_at = ++pool->published;
	pool->pages++;
	sieve_insert(pool, slot);
	return 0;
}

int pool_retire(struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	if (slot == NONE)
		return -EINVAL;
	page_head_retire(&pool->heads[place_unit(place)]);
	slot_unpin(pool, slot);
	sieve_remove(pool, slot);
	slot_chunk(pool, slot)->pages--;
	pool->pages--;
	limbo_enter(pool, slot);
	return 0;
}

void pool_touch(struct pool *pool, uint32_t place)
{
	uint32_t slot = pool_locate(pool, place);
	struct slot *page = slot == NONE ? NULL : &pool->slots[slot];
	struct chunk *chunk;

	if (!page || page->state != SLOT_PAGE)
		return;
	chunk = slot_chunk(pool, slot);
	page->visited = 1;
	chunk->used_at = pool->published;
}

uint32_t pool_free(const struct pool *pool, uint32_t page_bytes)
{
	uint32_t units = pool_units(pool, page_bytes), class, slots = 0;
	uint64_t free;

	if (units == 0)
		return 0;
	class = class_serving(pool, units);
	if (class != NONE)
		slots = pool->class[class].slots;
	else if (pool->classes < CLASSES_MAX)
		slots = pool->chunk_units / units;
	free = (uint64_t)chunks_for(pool, units) * slots;
	return (uint32_t)(class == NONE ? free : free + pool->class[class].free);
}

uint32_t pool_limbo(const struct pool *pool)
{
	return pool->limbo;
}

uint64_t pool_pages(const struct pool *pool)
{
	return pool->pages;
}

uint64_t pool_used_bytes(const struct pool *pool)
{
	uint64_t units = 0;

	for (unsigned i = 0; i < CLASSES_MAX; i++)
		units += (uint64_t)pool->class[i].pages * pool->class[i].units;
	return units * PAGE_UNIT;
}

uint64_t pool_limbo_left_ns(struct pool *pool)
{
	uint64_t until_ns, now_ns;

	if (pool->limbo_first == NONE)
		return UINT64_MAX;
	pool_rest(pool);
	until_ns = pool->slots[pool->limbo_first].until_ns;
	now_ns = limbo_now(pool);
	return until_ns > now_ns ? until_ns - now_ns : 0;
}
