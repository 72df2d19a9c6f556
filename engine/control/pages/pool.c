/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page memory of one rail: the states of a slot, FREE -> CREDIT -> PAGE -> LIMBO -> FREE, and
 * the chunks that the slots are parts of. pool_open.c opens a pool, pool_evict.c chooses the pages
 * that leave it. The control plane's thread only.
 *
 * Chunks. A class exists as long as it owns a chunk. A chunk is free again as soon as its last slot
 * has left limbo. Drained chunks stay reserved for the requesting page size until RESERVE_NS after
 * the last of them; otherwise the class that lost them could reclaim them at once. The reservation
 * ends because pages of that size may never come.
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

#include "engine/control/pages/pool_inner.h"

/* ---- where a slot is ------------------------------------------------------------------------- */

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

uint32_t pool_generation(const struct pool *pool, uint32_t place)
{
	uint32_t slot = pool_locate(pool, place);

	if (slot == NONE || pool->slots[slot].state != SLOT_PAGE)
		return 0;
	return shm_load(&pool->heads[place_unit(place)].generation);
}

uint64_t pool_hot_bytes(const struct pool *pool)
{
	return pool->hot_units * PAGE_UNIT;
}

const struct page_key *pool_key_at(const struct pool *pool, uint32_t place)
{
	return &pool->heads[place_unit(place)].key;
}

void pool_prefetch(const struct pool *pool, uint32_t place)
{
	uint32_t unit = place_unit(place);

	if (unit >> pool->shift < pool->chunks)
		__builtin_prefetch(&pool->heads[unit], 1);
}

/* ---- chunks and their size classes ----------------------------------------------------------- */

/* Whether there are too many classes for the chunks for each size to have its own. */
static bool classes_many(const struct pool *pool)
{
	uint32_t exact = pool->chunks / CLASS_CHUNKS;

	if (exact < CLASSES_FEW)
		exact = CLASSES_FEW;
	return pool->classes >= (exact < CLASSES_EXACT ? exact : CLASSES_EXACT);
}

/* The longest pages whose class has all but 1/`share` of the slots in a chunk of one of `units`. */
static uint32_t class_longest(const struct pool *pool, uint32_t units, uint32_t share)
{
	uint32_t slots = pool->chunk_units / units, longer = units + units / share;
	uint32_t most = pool->chunk_units / (slots - slots / share);

	return longer < most ? longer : most;
}

/*
 * Returns the class of that size; NONE: there is none yet. With many classes, it is that of the
 * next larger pages, if they waste little; when all are open, also if they waste much.
 */
uint32_t class_serving(const struct pool *pool, uint32_t units)
{
	uint32_t most, best = NONE;

	if (pool->class_by_units[units] != CLASS_NONE)
		return pool->class_by_units[units];
	if (!classes_many(pool))
		return NONE;
	most = pool->classes == CLASSES_MAX ? UINT32_MAX : class_longest(pool, units, CLASS_WASTE);
	for (uint32_t i = 0; i < CLASSES_MAX; i++)
		if (pool->class[i].units >= units && pool->class[i].units <= most) {
			most = pool->class[i].units;
			best = i;
		}
	return best;
}

/*
 * The page size of a class that is opened for pages of `units`: with many classes, it serves longer
 * ones, too.
 */
static uint32_t class_units(const struct pool *pool, uint32_t units)
{
	/* the last class serves all sizes, so that none is without one when all are open */
	if (pool->classes == CLASSES_MAX - 1 &&
		pool->class_by_units[pool->chunk_units] == CLASS_NONE)
		return pool->chunk_units;
	return classes_many(pool) ? class_longest(pool, units, 2 * CLASS_WASTE) : units;
}

static uint32_t class_open(struct pool *pool, uint32_t units)
{
	uint32_t i = 0;

	while (pool->class[i].units)
		i++;
	pool->class[i] = (struct size_class){.units = units,
		.slots = pool->chunk_units / units,
		.queue = {{NONE, NONE, NONE, NONE}, {NONE, NONE, NONE, NONE}},
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

uint32_t chunk_assign_at(struct pool *pool, uint32_t number, uint32_t units)
{
	uint8_t known = pool->class_by_units[units];
	uint32_t class = known == CLASS_NONE ? class_open(pool, units) : known;
	struct chunk *chunk = &pool->chunk[number];

	chunk_list_remove(pool, &pool->empty, number);
	pool->empties--;
	*chunk = (struct chunk){.class = class,
		.recycled = NONE,
		.free = pool->class[class].slots,
		.used_at = pool->published};
	/* before a slot of the chunk is handed out */
	if (pool->state)
		shm_store(&pool->state_units[number], units);
	pool->class[class].chunks++;
	pool->class[class].free += chunk->free;
	chunk_list_add(pool, &pool->class[class].ready, number);
	return class;
}

/*
 * Gives a free chunk to the class that serves pages of `units`, opening it if needed. Returns the
 * class; NONE: no free chunk, or no further class.
 */
static uint32_t chunk_assign(struct pool *pool, uint32_t units)
{
	uint32_t class = class_serving(pool, units);

	if (chunks_for(pool, units) == 0 || (class == NONE && pool->classes == CLASSES_MAX))
		return NONE;
	if (pool->reserved_units == units && pool->reserved)
		pool->reserved--;
	return chunk_assign_at(pool, pool->empty.first,
		class == NONE ? class_units(pool, units) : pool->class[class].units);
}

/* Takes a free slot of the size class, which must have one, and returns its number. */
static uint32_t chunk_slot_take(struct pool *pool, struct size_class *class)
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

	if (pool->drain == number)
		pool->drain = NONE;
	if (chunk->leaves_for) {
		chunk_list_remove(pool, &pool->leaving, number);
		if (pool->reserved_units != chunk->leaves_for)
			pool->reserved = 0;
		pool->reserved_units = chunk->leaves_for;
		pool->reserved++;
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

/* Marks the slot as free. A chunk whose slots are all free becomes a free chunk. */
static void chunk_slot_free(struct pool *pool, uint32_t slot, uint64_t now_ns)
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
	if (!chunk->leaves_for) {
		class->free++;
		if (chunk->free == 1)
			chunk_list_add(pool, &class->ready, number);
	}
	if (chunk->free == class->slots)
		chunk_release(pool, number, now_ns);
}

/* ---- limbo ----------------------------------------------------------------------------------- */

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

	if (pool->reserved || (first != NONE && pool->slots[first].until_ns > pool->seen_ns))
		pool->seen_ns = pool->clock_ns();
	return pool->seen_ns;
}

/* Makes a slot whose limbo has ended, and which is in no list, free. */
static void limbo_end(struct pool *pool, uint32_t slot, uint64_t now_ns)
{
	pool->slots[slot].disk = 0;
	pool->limbo--;
	chunk_slot_free(pool, slot, now_ns);
}

/* Ends the limbo of up to `max` slots. Returns of how many. */
static unsigned limbo_leave(struct pool *pool, unsigned max, uint64_t now_ns)
{
	unsigned n = 0;

	while (n < max && pool->limbo_first != NONE) {
		uint32_t slot = pool->limbo_first;
		struct chunk *chunk = slot_chunk(pool, slot);

		if (pool->slots[slot].until_ns > now_ns)
			break;
		chunk->limbo--;
		if (!chunk_rests(pool, slot >> pool->shift))
			pool->class[chunk->class].limbo--;
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

/* ---- what the disk tier knows of a slot ------------------------------------------------------ */

/* Sets what is known of a page, and counts it as dirty if it is neither on disk nor written. */
static void slot_know(struct pool *pool, uint32_t slot, uint8_t disk)
{
	struct size_class *class = &pool->class[slot_chunk(pool, slot)->class];

	if (pool->slots[slot].state == SLOT_PAGE) {
		class->dirty -= slot_dirty(&pool->slots[slot]);
		class->dirty += !(disk & (SLOT_CLEAN | SLOT_WRITING));
	}
	pool->slots[slot].disk = disk;
}

int pool_write_begin(struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	if (slot == NONE || pool->slots[slot].disk & SLOT_WRITING)
		return -EINVAL;
	slot_know(pool, slot, pool->slots[slot].disk | SLOT_WRITING);
	return 0;
}

void pool_clean_set(struct pool *pool, uint32_t place, uint32_t generation, bool on_disk)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);
	uint8_t disk;

	if (slot == NONE)
		return;
	disk = pool->slots[slot].disk;
	slot_know(pool, slot, on_disk ? disk | SLOT_CLEAN : disk & (uint8_t)~SLOT_CLEAN);
}

void pool_write_end(struct pool *pool, uint32_t place, uint32_t generation, bool on_disk)
{
	uint32_t slot = pool_locate(pool, place);

	if (slot == NONE || !(pool->slots[slot].disk & SLOT_WRITING))
		return;
	slot_know(pool, slot, pool->slots[slot].disk & (uint8_t)~SLOT_WRITING);
	if (pool->slots[slot].disk & SLOT_HELD)
		limbo_end(pool, slot, pool->seen_ns);
	else
		pool_clean_set(pool, place, generation, on_disk);
}

bool pool_clean(const struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	return slot == NONE || pool->slots[slot].disk & (SLOT_CLEAN | SLOT_WRITING);
}

int pool_pin(struct pool *pool, uint32_t place, uint32_t generation, enum pool_pin why)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	if (slot == NONE)
		return -EINVAL;
	if (!(pool->slots[slot].disk & SLOT_PINS)) {
		slot_chunk(pool, slot)->pinned++;
		pool->class[slot_chunk(pool, slot)->class].pinned++;
	}
	if (why == POOL_PIN_CLIENT && !(pool->slots[slot].disk & SLOT_KEPT)) {
		slot_chunk(pool, slot)->kept++;
		pool->class[slot_chunk(pool, slot)->class].kept++;
	}
	pool->slots[slot].disk |= (uint8_t)why;
	return 0;
}

/* `pins`: SLOT_PINNED, SLOT_KEPT or both. */
static void slot_unpin(struct pool *pool, uint32_t slot, unsigned pins)
{
	if (!(pool->slots[slot].disk & pins))
		return;
	if (pool->slots[slot].disk & pins & SLOT_KEPT) {
		slot_chunk(pool, slot)->kept--;
		pool->class[slot_chunk(pool, slot)->class].kept--;
	}
	pool->slots[slot].disk &= (uint8_t)~pins;
	if (pool->slots[slot].disk & SLOT_PINS)
		return;
	slot_chunk(pool, slot)->pinned--;
	pool->class[slot_chunk(pool, slot)->class].pinned--;
}

void pool_unpin(struct pool *pool, uint32_t place, uint32_t generation, enum pool_pin why)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	if (slot != NONE)
		slot_unpin(pool, slot, why);
}

/* ---- states ---------------------------------------------------------------------------------- */

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
	if (now_ns >= pool->reserved_until_ns)
		pool->reserved = 0;
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
	uint32_t before = pool->before;
	struct chunk *chunk;

	pool->before = UINT32_MAX;
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
	queue_insert(pool, slot, before);
	return 0;
}

int pool_retire(struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	if (slot == NONE)
		return -EINVAL;
	page_head_retire(&pool->heads[place_unit(place)]);
	slot_unpin(pool, slot, SLOT_PINS);
	queue_remove(pool, slot);
	slot_chunk(pool, slot)->pages--;
	pool->pages--;
	limbo_enter(pool, slot);
	return 0;
}

bool pool_touch(struct pool *pool, uint32_t place)
{
	uint32_t slot = pool_locate(pool, place);
	struct slot *page = slot == NONE ? NULL : &pool->slots[slot];
	struct chunk *chunk;

	if (!page || page->state != SLOT_PAGE)
		return false;
	chunk = slot_chunk(pool, slot);
	chunk->used_at = pool->published;
	queue_use(pool, slot);
	return true;
}

/* ---- bytes and CRCs of pages ----------------------------------------------------------------- */

/*
 * Only slots in state PAGE are named: nothing writes to their bytes, since a client writes in state
 * CREDIT only and a slot that comes back rests in LIMBO.
 */

/* The page in a slot that starts at `unit`. False: the slot has none with a CRC. */
static bool proven_at(
	const struct pool *pool, uint32_t slot, uint32_t unit, struct pool_proven *ret_page)
{
	const struct chunk *chunk = slot_chunk(pool, slot);
	struct page_head head = page_head_load(&pool->heads[unit]);

	if (pool->slots[slot].state != SLOT_PAGE || !page_head_is_proven(&head) ||
		head.length > (uint64_t)pool->class[chunk->class].units * PAGE_UNIT)
		return false;
	*ret_page = (struct pool_proven){.key = head.key,
		.place = place_make(pool->rail, unit),
		.generation = head.generation,
		.length = head.length,
		.crc = head.crc};
	return true;
}

unsigned pool_scrub_next(
	struct pool *pool, uint32_t *cursor, unsigned most, struct pool_proven *ret_page)
{
	uint32_t slots = pool->chunks << pool->shift, slot = *cursor;
	unsigned looked = 0;

	ret_page->length = 0;
	while (slot < slots && looked < most && !ret_page->length) {
		const struct chunk *chunk = slot_chunk(pool, slot);

		looked++;
		if (chunk->class == NONE || (slot & (pool->chunk_units - 1)) >= chunk->carved) {
			/* The other slots of the chunk were never used. */
			slot = ((slot >> pool->shift) + 1) << pool->shift;
			continue;
		}
		(void)proven_at(pool, slot, slot_unit(pool, slot), ret_page);
		slot++;
	}
	*cursor = slot < slots ? slot : 0;
	return looked;
}

bool pool_proven(
	const struct pool *pool, uint32_t place, uint32_t generation, struct pool_proven *ret_page)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	return slot != NONE && proven_at(pool, slot, place_unit(place), ret_page) &&
	       ret_page->generation == generation;
}

const void *pool_page(const struct pool *pool, uint32_t place, uint32_t generation)
{
	if (pool_locate_exact(pool, place, generation, SLOT_PAGE) == NONE)
		return NULL;
	return (const unsigned char *)pool->memory.base + place_offset(place);
}

/* ---- figures --------------------------------------------------------------------------------- */

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
