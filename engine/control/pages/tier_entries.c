/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk tier as the directory sees it: which pages are on disk, under which names, and which
 * entries to remove because their pages left the disk. The control plane's thread only.
 */
#include <stdlib.h>

#include "engine/control/directory/directory.h"
#include "engine/control/pages/index.h"
#include "engine/control/pages/tier.h"

static bool serves(const struct tier *t)
{
	return t && t->state == TIER_SERVING;
}

bool tier_find(struct control *control, const struct page_key *key, struct disk_page *ret_page)
{
	return serves(control->tier) && disk_find(control->tier->disk, key, ret_page);
}

bool tier_opens(const struct control *control)
{
	return control->tier && control->tier->state == TIER_OPENING;
}

bool tier_named(
	struct control *control, uint32_t place, uint32_t generation, struct page_key *ret_key)
{
	return serves(control->tier) && disk_named(control->tier->disk, place, generation, ret_key);
}

unsigned tier_slot(struct control *control, uint32_t slot, uint64_t *cursor, unsigned max,
	struct disk_page *ret_pages)
{
	if (serves(control->tier))
		return disk_slot(control->tier->disk, slot, cursor, max, ret_pages);
	*cursor = 0;
	return 0;
}

struct page_key *tier_flying(struct control *control, uint32_t *ret_count)
{
	struct tier *t = control->tier;
	const struct tier_promotes *lists[] = {&t->writing, &t->capped, &t->wanted, &t->reading};
	const struct tier_promote *promote;
	const struct tier_spill *spill;
	struct page_key *keys;
	uint32_t n = 0;

	*ret_count = 0;
	if (!serves(t))
		return NULL;
	*ret_count = t->spill_count;
	for (unsigned i = 0; i < 4; i++)
		TAILQ_FOREACH (promote, lists[i], next)
			++*ret_count;
	keys = *ret_count ? malloc(*ret_count * sizeof(*keys)) : NULL;
	if (!keys)
		return NULL;
	TAILQ_FOREACH (spill, &t->spills, next)
		keys[n++] = spill->request.key;
	for (unsigned i = 0; i < 4; i++)
		TAILQ_FOREACH (promote, lists[i], next)
			keys[n++] = promote->request.key;
	return keys;
}

uint64_t tier_pages(const struct control *control)
{
	return serves(control->tier) ? control->tier->report.pages : 0;
}

unsigned tier_lost(struct tier *t)
{
	struct disk_page page[TIER_LOST_BURST];
	const struct index_entry *e;
	unsigned n;

	if (directory_busy(t->control))
		return 0; /* its acknowledgements make further turns */
	n = disk_lost(t->disk, TIER_LOST_BURST, page);
	for (unsigned i = 0; i < n; i++) {
		e = index_find(t->control->index, &page[i].key);
		if (e && !tier_has(t, &page[i].key, e->length)) {
			pool_clean_set(t->control->rail[place_rail(e->place)].pool, e->place,
				e->generation, false);
			t->spill_due = true; /* it is to be written again */
		} else if (!e)
			directory_remove(t->control, &page[i].key,
				&(struct location){
					.place = page[i].place, .generation = page[i].generation});
	}
	t->lost_due = n != 0;
	return n;
}
