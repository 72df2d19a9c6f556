/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the disk tier needs of a pool: the pages that are not on disk, slots that are not reused
 * while their bytes are being written, pages that are not evicted while a client is about to read
 * them. The control plane's thread only.
 *
 * The spill pointer of a size class goes over its pages in the order they were published. A page
 * that it has passed was named to the tier once. Pages that are not on disk nevertheless, because
 * their write failed or the disk has lost them, are named again by another lap, as soon as they are
 * more than 1/AHEAD_MISSED of the class. So the work is O(1) for each page that is named.
 */
#include <errno.h>

#include "engine/control/pages/pool_inner.h"

/* Pages that one call of pool_ahead() looks at, at most. */
#define AHEAD_STEPS 2048u
/* share of the pages of a class that may be missing on disk before another lap begins */
#define AHEAD_MISSED 64u

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
	if (class->spill == NONE && class->dirty > class->pages / AHEAD_MISSED)
		class->spill = class->oldest;
	while (class->spill != NONE && n < max && class->pages - class->dirty + n < pages &&
		steps++ < AHEAD_STEPS) {
		const struct slot *page = &pool->slots[class->spill];

		if (slot_dirty(page))
			victim_name(pool, class->spill, &ret_victims[n++]);
		class->spill = page->newer;
	}
	return n;
}

int pool_write_begin(struct pool *pool, uint32_t place, uint32_t generation)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);

	if (slot == NONE || pool->slots[slot].disk & SLOT_WRITING)
		return -EINVAL;
	slot_know(pool, slot, pool->slots[slot].disk | SLOT_WRITING);
	return 0;
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

void pool_clean_set(struct pool *pool, uint32_t place, uint32_t generation, bool on_disk)
{
	uint32_t slot = pool_locate_exact(pool, place, generation, SLOT_PAGE);
	uint8_t disk;

	if (slot == NONE)
		return;
	disk = pool->slots[slot].disk;
	slot_know(pool, slot, on_disk ? disk | SLOT_CLEAN : disk & (uint8_t)~SLOT_CLEAN);
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
