/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk tier as the directory sees it: which pages are on disk, under which names, and which
 * entries to remove because their pages left the disk. The control plane's thread only.
 */
#include "engine/control/directory.h"
#include "engine/control/index.h"
#include "engine/control/tier.h"

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

uint64_t tier_pages(const struct control *control)
{
	return serves(control->tier) ? control->tier->report.pages : 0;
}

unsigned tier_lost(struct tier *t)
{
	struct disk_page page[TIER_LOST_BURST];
	unsigned n;

	if (directory_busy(t->control))
		return 0; /* its acknowledgements make further turns */
	n = disk_lost(t->disk, TIER_LOST_BURST, page);
	for (unsigned i = 0; i < n; i++)
		if (!index_find(t->control->index, &page[i].key))
			directory_remove(t->control, &page[i].key,
				&(struct location){
					.place = page[i].place, .generation = page[i].generation});
	t->lost_due = n != 0;
	return n;
}
