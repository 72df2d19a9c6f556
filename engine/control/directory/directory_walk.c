/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks: each owner that lacks slots is sent their entries, in small steps, slot after slot. The
 * owner's queue limits its own walk only, so an owner that acknowledges nothing delays no other and
 * costs no time and no memory beyond the limit. Entries that the owner already has are written
 * again, which changes nothing. Control plane's thread only.
 */
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/pages/pages.h"

/* Cost of a search for the next slot, in entries: one for this many slots that it skips. */
#define SKIP_SLOTS 256u

static bool has_room(const struct owner *owner)
{
	return owner->background + MOVE_PART <= OWNER_WALK_MAX;
}

static bool owner_ready(const struct owner *owner)
{
	return owner->ref && owner->walk.slots && has_room(owner);
}

static void walk_publish(
	struct directory *dir, struct owner *owner, const struct index_entry *entry)
{
	uint32_t ref = owner ? owner->ref : dir->control->ref;
	struct dir_update *update;

	if (!owner_takes(dir, ref, entry->place))
		return;
	if (owner) {
		dir->control->counter[COUNTER_entries_repaired] += owner->repair;
		owner->kept -= owner->kept != 0;
	}
	update = update_new(dir, DIR_PUBLISH, &entry->key,
		&(struct location){.place = entry->place, .generation = entry->generation}, 1);
	if (!update)
		return;
	update_add(dir, update, ref);
	update_start(dir, update);
}

/* Moves the walk to the next slot that the owner lacks. Returns what the search cost. */
static unsigned walk_seek(const struct directory *dir, struct walk *walk, uint16_t index)
{
	uint32_t from = walk->slot, slot = lacks_next(dir, from, index);

	if (slot == MAP_SLOTS)
		slot = lacks_next(dir, 0, index);
	if (slot == MAP_SLOTS)
		walk->slots = 0;
	if (slot != from)
		walk->at = 0;
	walk->slot = slot % MAP_SLOTS;
	return ((slot - from) % MAP_SLOTS) / SKIP_SLOTS;
}

/* `owner` NULL: this engine. Returns what is left of the budget, in entries. */
static unsigned walk_step(
	struct directory *dir, struct walk *walk, struct owner *owner, unsigned budget)
{
	uint32_t ref = owner ? owner->ref : dir->control->ref;
	uint16_t index = (uint16_t)owner_index(dir->settled, ref);
	struct index_entry entries[MOVE_PART];
	unsigned count, cost;

	while (budget && walk->slots && (!owner || has_room(owner))) {
		cost = 1 + walk_seek(dir, walk, index);
		if (!walk->slots)
			break;
		count = slot_pages(dir, walk->slot, &walk->at, MOVE_PART, entries);
		for (unsigned i = 0; i < count; i++)
			walk_publish(dir, owner, &entries[i]);
		if (!walk->at && !walk->again)
			lack_end(dir, walk, ref);
		walk->again = walk->again && walk->at;
		cost += count;
		budget -= cost < budget ? cost : budget;
	}
	return budget;
}

void walk_end(const struct directory *dir, struct owner *owner)
{
	owner->behind = owner->repair = false;
	dir->control->counter[COUNTER_entries_kept] += owner->kept;
	owner->kept = 0;
}

void walks_slice(struct directory *dir)
{
	struct owner *owner, *first = STAILQ_FIRST(&dir->owners);
	unsigned budget = MOVE_KEYS;

	walk_step(dir, &dir->self, NULL, MOVE_KEYS);
	for (bool more = first; budget && more; more = STAILQ_FIRST(&dir->owners) != first) {
		/* those that come after the end of the budget have their turn first next time */
		owner = STAILQ_FIRST(&dir->owners);
		STAILQ_REMOVE_HEAD(&dir->owners, next);
		STAILQ_INSERT_TAIL(&dir->owners, owner, next);
		if (owner_ready(owner)) {
			budget = walk_step(dir, &owner->walk, owner, budget);
			if (!owner->walk.slots)
				walk_end(dir, owner);
		}
		owner->behind |= owner->ref && owner->walk.slots && !has_room(owner);
	}
}

bool walks_ready(const struct directory *dir)
{
	const struct owner *owner;

	if (dir->held)
		return false;
	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner_ready(owner))
			return true;
	return dir->self.slots != 0;
}
