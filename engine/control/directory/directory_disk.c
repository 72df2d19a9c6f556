/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directory entries of pages on this host's disk. A key has one entry of this engine at each owner:
 * the place in memory if the page is there, else its name on disk (struct disk_page). So eviction
 * replaces the entry in place of removing it, and promotion replaces it again. Control plane's
 * thread only.
 *
 * The publish that replaces an entry is sent in order with the other publishes of the key, and a
 * remove names the place that it removes: an entry cannot end up older than the page. An engine
 * that does not know these entries (Hello.disk) gets a remove.
 */
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/pages/pages.h"

/* A cursor of slot_pages() with this bit is one of tier_slot(), or 0: at its start. */
#define CURSOR_DISK (1ull << 63)
/* Limit of updates that no client waits for, above which removes of lost pages wait */
#define BUSY_CLAIMS 2048u

unsigned slot_pages(struct directory *dir, uint32_t slot, uint64_t *cursor, unsigned max,
	struct index_entry *ret_entries)
{
	struct control *control = dir->control;
	uint64_t at = *cursor & ~CURSOR_DISK;
	struct disk_page pages[MOVE_PART];
	unsigned count, n = 0;

	if (!(*cursor & CURSOR_DISK)) {
		n = index_slot(control->index, slot, cursor, max, ret_entries);
		control->counter[COUNTER_pages_moving] += n;
		if (*cursor || !tier_pages(control))
			return n;
		at = 0;
	}
	if (n == max) {
		*cursor = CURSOR_DISK;
		return n;
	}
	count = tier_slot(control, slot, &at, max - n < MOVE_PART ? max - n : MOVE_PART, pages);
	*cursor = at ? at | CURSOR_DISK : 0;
	control->counter[COUNTER_pages_moving] += count;
	for (unsigned i = 0; i < count; i++)
		if (!index_find(control->index, &pages[i].key))
			ret_entries[n++] = (struct index_entry){.key = pages[i].key,
				.place = pages[i].place,
				.generation = pages[i].generation,
				.length = pages[i].length};
	return n;
}

bool slot_any(const struct directory *dir, uint32_t slot)
{
	return index_slot_any(dir->control->index, slot) || tier_pages(dir->control);
}

uint64_t pages_count(const struct directory *dir)
{
	return index_count(dir->control->index) + tier_pages(dir->control);
}

bool owner_takes(struct directory *dir, uint32_t ref, uint32_t place)
{
	const struct owner *owner;

	if (!place_on_disk(place) || ref == dir->control->ref)
		return true;
	owner = owner_of(dir, ref);
	return owner && owner->takes_disk;
}

bool directory_on_disk(struct control *control, const struct disk_page *page)
{
	struct directory *dir = control->directory;
	const struct map_view *view = member_map(control);
	struct dir_update *update = update_new(dir, DIR_PUBLISH, &page->key,
		&(struct location){.place = page->place, .generation = page->generation},
		REPLICAS_MAX);
	uint32_t owner[REPLICAS_MAX], former[FORMERS_MAX];
	/* former owners are not told, and may have the older entry */
	bool all = update && !(dir->tidying && formers_of(dir, map_slot_of(&page->key), former));
	unsigned owners = map_owners(view, &page->key, owner);

	if (!update)
		return false;
	for (unsigned i = 0; i < owners; i++) {
		uint32_t ref = view->owner[owner[i]].ref;

		if (owner_takes(dir, ref, page->place))
			update_add(dir, update, ref);
		else
			all = false;
	}
	update_start(dir, update);
	return all;
}

void directory_disk_opened(struct control *control)
{
	if (control->directory && tier_pages(control))
		move_again(control->directory);
}

bool directory_busy(const struct control *control)
{
	const struct directory *dir = control->directory;
	uint32_t updates = dir->background;
	const struct owner *owner;

	/* What waits for a suspect owner has a limit of its own and must not hold the others up. */
	STAILQ_FOREACH (owner, &dir->owners, next) {
		if (updates <= BUSY_CLAIMS)
			break;
		if (owner->ref && suspect_steers(owner->why))
			updates -= updates < owner->background ? updates : owner->background;
	}
	return updates > BUSY_CLAIMS;
}
