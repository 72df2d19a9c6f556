/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks and classes: which page size owns which part of the pool. The control plane's thread only.
 *
 * A class exists as long as it owns a chunk. A chunk is free again as soon as its last slot has
 * left limbo. A drained chunk stays reserved for the requesting page size for RESERVE_NS; otherwise
 * the class that lost it could reclaim it at once. The reservation ends because pages of that size
 * may never come.
 */
#include "engine/control/pages/pool_inner.h"

void chunk_list_add(struct pool *pool, struct chunk_list *list, uint32_t chunk)
{
	pool->chunk[chunk].next = NONE;
	pool->chunk[chunk].prev = list->last;
	if (list->last == NONE)
		list->first = chunk;
	else
		pool->chunk[list->last].next = chunk;
	list->last = chunk;
}

void chunk_list_remove(struct pool *pool, struct chunk_list *list, uint32_t chunk)
{
	uint32_t next = pool->chunk[chunk].next, prev = pool->chunk[chunk].prev;

	if (prev == NONE)
		list->first = next;
	else
		pool->chunk[prev].next = next;
	if (next == NONE)
		list->last = prev;
	else
		pool->chunk[next].prev = prev;
}

/*
 * Returns the class of exactly that size. When CLASSES_MAX classes are open and none has that size,
 * returns the class of the next larger pages, at the cost of the unused rest of each slot.
 */
uint32_t class_serving(const struct pool *pool, uint32_t units)
{
	uint32_t best = NONE;

	if (pool->class_by_units[units] != CLASS_NONE)
		return pool->class_by_units[units];
	if (pool->classes < CLASSES_MAX)
		return NONE;
	for (uint32_t i = 0; i < CLASSES_MAX; i++)
		if (pool->class[i].units >= units &&
			(best == NONE || pool->class[i].units < pool->class[best].units))
			best = i;
	return best;
}

static uint32_t class_open(struct pool *pool, uint32_t units)
{
	uint32_t i = 0;

	while (pool->class[i].units)
		i++;
	pool->class[i] = (struct size_class){.units = units,
		.slots = pool->chunk_units / units,
		.newest = NONE,
		.oldest = NONE,
		.hand = NONE,
		.spill = NONE,
		.ready = {NONE, NONE}};
	pool->class_by_units[units] = (uint8_t)i;
	pool->classes++;
	return i;
}

static void class_close(struct pool *pool, struct size_class *class)
{
	pool->class_by_units[class->units] = CLASS_NONE;
	class->units = 0;
	pool->classes--;
}

uint32_t chunks_for(const struct pool *pool, uint32_t units)
{
	bool kept = pool->reserved_units && pool->reserved_units != units;

	return kept && pool->empties ? pool->empties - 1 : pool->empties;
}

uint32_t chunk_assign(struct pool *pool, uint32_t units)
{
	if (chunks_for(pool, units) == 0)
		return NONE;
	return chunk_assign_at(pool, pool->empty.first, units);
}

uint32_t chunk_assign_at(struct pool *pool, uint32_t number, uint32_t units)
{
	uint32_t class = class_serving(pool, units);
	struct chunk *chunk;

	if (class == NONE) {
		if (pool->classes == CLASSES_MAX)
			return NONE;
		class = class_open(pool, units);
	}
	chunk_list_remove(pool, &pool->empty, number);
	pool->empties--;
	if (pool->reserved_units == units)
		pool->reserved_units = 0;
	chunk = &pool->chunk[number];
	*chunk = (struct chunk){.class = class,
		.recycled = NONE,
		.free = pool->class[class].slots,
		.used_at = pool->published};
	/* before a slot of the chunk is handed out */
	if (pool->state)
		shm_store(&pool->state_units[number], pool->class[class].units);
	pool->class[class].chunks++;
	pool->class[class].free += chunk->free;
	chunk_list_add(pool, &pool->class[class].ready, number);
	return class;
}

uint32_t chunk_slot_take(struct pool *pool, struct size_class *class)
{
	uint32_t number = class->ready.first, slot;
	struct chunk *chunk = &pool->chunk[number];

	if (chunk->recycled != NONE) {
		slot = chunk->recycled;
		chunk->recycled = pool->slots[slot].next;
	} else {
		slot = (number << pool->shift) + chunk->carved++;
	}
	class->free--;
	if (--chunk->free == 0)
		chunk_list_remove(pool, &class->ready, number);
	return slot;
}

/* Takes the chunk from its size class and makes it a free chunk. All its slots must be free. */
static void chunk_release(struct pool *pool, uint32_t number, uint64_t now_ns)
{
	struct chunk *chunk = &pool->chunk[number];
	struct size_class *class = &pool->class[chunk->class];

	if (pool->drain == number) {
		pool->drain = NONE;
		pool->reserved_units = pool->drain_units;
		pool->reserved_until_ns = now_ns + RESERVE_NS;
	} else {
		chunk_list_remove(pool, &class->ready, number);
		class->free -= chunk->free;
	}
	chunk->class = NONE;
	if (pool->state)
		shm_store(&pool->state_units[number], 0);
	chunk_list_add(pool, &pool->empty, number);
	pool->empties++;
	if (--class->chunks == 0)
		class_close(pool, class);
}

void chunk_slot_free(struct pool *pool, uint32_t slot, uint64_t now_ns)
{
	uint32_t number = slot >> pool->shift;
	struct chunk *chunk = &pool->chunk[number];
	struct size_class *class = &pool->class[chunk->class];

	pool->slots[slot].state = SLOT_FREE;
	/* At the end: pages that were stored one after another are often evicted in that order, and
	 * new pages then find ascending slots, too. */
	pool->slots[slot].next = NONE;
	if (chunk->recycled == NONE)
		chunk->recycled = slot;
	else
		pool->slots[chunk->recycled_last].next = slot;
	chunk->recycled_last = slot;
	chunk->free++;
	if (pool->drain != number) {
		class->free++;
		if (chunk->free == 1)
			chunk_list_add(pool, &class->ready, number);
	}
	if (chunk->free == class->slots)
		chunk_release(pool, number, now_ns);
}

void drain_start(struct pool *pool, uint32_t chunk, uint32_t units)
{
	struct size_class *class = &pool->class[pool->chunk[chunk].class];

	pool->drain = chunk;
	pool->drain_units = units;
	pool->drain_cursor = 0;
	pool->drain_ignored = 0;
	class->free -= pool->chunk[chunk].free;
	if (pool->chunk[chunk].free)
		chunk_list_remove(pool, &class->ready, chunk);
}

void drain_give_up(struct pool *pool)
{
	uint32_t chunk = pool->drain;
	struct size_class *class = &pool->class[pool->chunk[chunk].class];

	pool->drain = NONE;
	class->free += pool->chunk[chunk].free;
	if (pool->chunk[chunk].free)
		chunk_list_add(pool, &class->ready, chunk);
}
