/* SPDX-License-Identifier: Apache-2.0 */
/*
 * truth.h: the books of an engine's slots, credits and answers, when no call is open. One thread.
 */
#include "engine/control/clients/ctl_inner.h"
#include "engine/control/pages/pages.h"
#include "engine/control/pages/pool_inner.h"
#include "tests/sim/run.h"
#include "tests/sim/truth_state.h"

/* The page is in the index with the slot's place and generation. */
static bool slot_is_indexed(const struct control *control, const struct pool *pool, uint32_t slot)
{
	uint32_t unit = slot_unit(pool, slot), place = place_make(pool->rail, unit);
	const struct page_head head = page_head_load(&pool->heads[unit]);
	const struct index_entry *entry = index_find(control->index, &head.key);

	return entry && entry->place == place && entry->generation == head.generation;
}

/* Nothing holds the slot that would have to end first; limbo has an end. `now_ns`: the pool's. */
static bool slot_is_free_in_time(const struct pool *pool, uint32_t slot, uint64_t now_ns)
{
	const struct slot *s = &pool->slots[slot];

	return !(s->disk & (SLOT_WRITING | SLOT_HELD | SLOT_PINNED)) &&
	       (s->state != SLOT_LIMBO || s->until_ns <= now_ns + pool->limbo_ns);
}

/*
 * Every slot that was used is a page of the index, or rests for a limited time, or is free. Returns
 * the pages.
 */
static uint64_t slots_judge(unsigned node, const struct pool *pool)
{
	uint64_t pages = 0, now_ns = node_now(node);

	for (uint32_t i = 0; i < pool->chunks; i++)
		for (uint32_t k = 0; k < pool->chunk[i].carved; k++) {
			uint32_t slot = (i << pool->shift) + k;
			bool page = pool->slots[slot].state == SLOT_PAGE;

			pages += page;
			if (pool->slots[slot].state == SLOT_CREDIT)
				truth_broken(RULE_CREDITS, node);
			if (!slot_is_free_in_time(pool, slot, now_ns))
				truth_broken(RULE_SLOTS, node);
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

/* Nothing is being read from disk or written to it, and no request waits for that. */
static void tier_judge(unsigned node)
{
	const struct control *control = &world.node[node].control;
	struct tier_counts counts;

	if (!world.node[node].pages.disks)
		return;
	tier_counts(control, &counts);
	check(counts.serves, "a disk serves in the end");
	if (counts.spills || counts.promotes || counts.waiting || counts.pins ||
		promote_waiting(control))
		truth_broken(RULE_ANSWERS, node);
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
	tier_judge(node);
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
