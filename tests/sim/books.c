/* SPDX-License-Identifier: Apache-2.0 */
/*
 * truth.h: the books of an engine's slots, credits and answers, when no call is open. One thread.
 */
#include "engine/control/clients/ctl_inner.h"
#include "engine/control/pages/pool_inner.h"
#include "tests/sim/truth_state.h"

/* The page is in the index with the slot's place and generation. */
static bool slot_is_indexed(const struct control *control, const struct pool *pool, uint32_t slot)
{
	uint32_t unit = slot_unit(pool, slot), place = place_make(pool->rail, unit);
	const struct page_head head = page_head_load(&pool->heads[unit]);
	const struct index_entry *entry = index_find(control->index, &head.key);

	return entry && entry->place == place && entry->generation == head.generation;
}

/* Every slot that was used is a page of the index, or rests or is free. Returns the pages. */
static uint64_t slots_judge(unsigned node, const struct pool *pool)
{
	uint64_t pages = 0;

	for (uint32_t i = 0; i < pool->chunks; i++)
		for (uint32_t k = 0; k < pool->chunk[i].carved; k++) {
			uint32_t slot = (i << pool->shift) + k;
			bool page = pool->slots[slot].state == SLOT_PAGE;

			pages += page;
			if (pool->slots[slot].state == SLOT_CREDIT)
				truth_broken(RULE_CREDITS, node);
			if (page && !slot_is_indexed(&world.node[node].control, pool, slot))
				truth_broken(RULE_SLOTS, node);
		}
	return pages;
}

static uint64_t held_of(const struct evict_rail *rail)
{
	uint64_t held = 0;

	for (unsigned i = 0; i < CLASSES_MAX; i++)
		held += rail->class[i].held;
	return held;
}

void books_judge(unsigned node)
{
	const struct control *control = &world.node[node].control;
	const struct ctl *ctl = control->ctl;
	uint64_t pages = 0;

	for (unsigned i = 0; i < control->rails; i++) {
		uint64_t of_rail = slots_judge(node, control->rail[i].pool);

		pages += of_rail;
		if (of_rail != pool_pages(control->rail[i].pool) ||
			of_rail != held_of(&control->evict->rail[i]))
			truth_broken(RULE_SLOTS, node);
		if (control->evict->rail[i].requests)
			truth_broken(RULE_ANSWERS, node);
	}
	if (pages != index_count(control->index))
		truth_broken(RULE_SLOTS, node);
	if (control->evict->credits)
		truth_broken(RULE_CREDITS, node);
	if (ctl->answers_used)
		truth_broken(RULE_ANSWERS, node);
	for (unsigned i = 0; i < ctl->channels_end; i++) {
		const struct ctl_channel *c = ctl->channel[i];

		if (c && (c->credits.count || c->asked))
			truth_broken(RULE_CREDITS, node);
		if (c && c->owed)
			truth_broken(RULE_ANSWERS, node);
	}
}
