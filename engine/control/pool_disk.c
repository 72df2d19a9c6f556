/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the disk tier needs of a pool: the pages that will be evicted soon, slots that are not
 * reused while their bytes are being written, pages that are not evicted while a client is about to
 * read them. The control plane's thread only.
 *
 * The spill pointer runs ahead of the eviction hand of its size class and counts the pages that the
 * hand will find: those that were not visited, and visited ones only when all others are counted.
 * Each counted page has a mark until it is visited or the hand passes it, so the count is exact,
 * and the work is O(1) for each page that the hand passes. The hand that reaches the pointer makes
 * it void.
 */
#include <errno.h>

#include "engine/control/pool_inner.h"

/* Pages that one call of pool_ahead() looks at, at most. */
#define AHEAD_STEPS 2048u

void spill_forget(struct size_class *class, struct slot *page)
{
	if (!(page->disk & SLOT_AHEAD))
		return;
	page->disk &= (uint8_t)~SLOT_AHEAD;
	class->ahead--;
}

void spill_passed(struct size_class *class, uint32_t slot, struct slot *page)
{
	spill_forget(class, page);
	if (slot == (class->spill == NONE ? class->oldest : class->spill) && !class->wrapped)
		class->spills = false;
	if (page->newer == NONE) {
		class->wrapped = false;
		class->fresh = NONE;
	}
}

/*
 * Moves the pointer one page on. Returns false at the end of the second lap. Pages that are
 * published behind the pointer, at the newest end, are looked at first: the hand comes there before
 * it comes to the pointer.
 */
static bool spill_step(struct size_class *class, const struct slot *page)
{
	uint32_t hand = class->hand == NONE ? class->oldest : class->hand;

	if (class->fresh != NONE) {
		class->fresh = page->newer;
		return true;
	}
	class->spill = page->newer;
	if (class->spill == NONE)
		class->wrapped = true;
	if ((class->spill == NONE ? class->oldest : class->spill) != hand)
		return true;
	class->wrapped = true;
	if (class->second)
		return false;
	class->second = true;
	return true;
}

static uint32_t spill_next(const struct size_class *class)
{
	if (class->fresh != NONE)
		return class->fresh;
	return class->spill == NONE ? class->oldest : class->spill;
}

unsigned pool_ahead(struct pool *pool, uint32_t page_bytes, uint32_t pages, unsigned max,
	struct pool_victim *ret_victims)
{
	uint32_t units = pool_units(pool, page_bytes);
	uint32_t number = units ? class_serving(pool, units) : NONE;
	struct size_class *class;
	unsigned n = 0, steps = 0;

	if (number == NONE)
		return 0;
	class = &pool->class[number];
	if (pages > class->pages)
		pages = class->pages;
	if (!class->spills) {
		class->spill = class->hand;
		class->fresh = NONE;
		class->spills = true;
		class->wrapped = class->second = false;
	}
	while (class->ahead < pages && n < max && steps++ < AHEAD_STEPS) {
		uint32_t slot = spill_next(class);
		struct slot *page = &pool->slots[slot];

		if (!(page->disk & SLOT_AHEAD) && (!page->visited || class->second)) {
			page->disk |= SLOT_AHEAD;
			class->ahead++;
			if (!(page->disk & (SLOT_CLEAN | SLOT_WRITING)))
				victim_name(pool, slot, &ret_victims[n++]);
		}
		if (!spill_step(class, page))
			break;
	}
	return n;
}

int pool_write_begin(struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	if (slot == NONE || pool->slots[slot].disk & SLOT_WRITING)
		return -EINVAL;
	pool->slots[slot].disk |= SLOT_WRITING;
	return 0;
}

void pool_write_end(struct pool *pool, uint32_t place, uint32_t generation, bool on_disk)
{
	uint32_t slot = pool_locate(pool, place);

	if (slot == NONE || !(pool->slots[slot].disk & SLOT_WRITING))
		return;
	pool->slots[slot].disk &= (uint8_t)~SLOT_WRITING;
	if (pool->slots[slot].disk & SLOT_HELD)
		limbo_end(pool, slot, pool->seen_ns);
	else if (on_disk)
		pool_clean_set(pool, place, generation);
}

void pool_clean_set(struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	if (slot != NONE)
		pool->slots[slot].disk |= SLOT_CLEAN;
}

bool pool_clean(const struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	return slot == NONE || pool->slots[slot].disk & (SLOT_CLEAN | SLOT_WRITING);
}

int pool_pin(struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	if (slot == NONE)
		return -EINVAL;
	if (pool->slots[slot].disk & SLOT_PINNED)
		return 0;
	pool->slots[slot].disk |= SLOT_PINNED;
	slot_chunk(pool, slot)->pinned++;
	pool->class[slot_chunk(pool, slot)->class].pinned++;
	return 0;
}

void slot_unpin(struct pool *pool, uint32_t slot)
{
	if (!(pool->slots[slot].disk & SLOT_PINNED))
		return;
	pool->slots[slot].disk &= (uint8_t)~SLOT_PINNED;
	slot_chunk(pool, slot)->pinned--;
	pool->class[slot_chunk(pool, slot)->class].pinned--;
}

void pool_unpin(struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	if (slot != NONE)
		slot_unpin(pool, slot);
}
