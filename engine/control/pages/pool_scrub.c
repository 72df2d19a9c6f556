/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks over the pages of a pool whose heads contain their CRC. Only slots in state PAGE are named:
 * nothing writes to their bytes, since a client writes in state CREDIT only and a slot that comes
 * back rests in LIMBO. The control plane's thread only.
 */
#include "engine/control/pages/pool_inner.h"

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
