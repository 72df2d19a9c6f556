/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the directory: which slots owners lack (directory_slots.c), and the walks that send
 * owners what they lack (directory_walk.c). Control plane's thread only.
 */
#ifndef CONTROL_DIRECTORY_SLOTS_H
#define CONTROL_DIRECTORY_SLOTS_H

#include "engine/control/members/members.h"

struct directory;
struct owner;

/* Sends an owner the entries of the slots that it lacks. */
struct walk {
	uint32_t slots; /* number of these slots */
	uint32_t slot;  /* where the walk is, */
	uint64_t at;    /* and a cursor of slot_pages(); 0: at the start of the slot */
	bool again;     /* an entry of the slot was skipped meanwhile: read it once more */
};

/* The owner's index in the view, or view->owners. */
static inline uint32_t owner_index(const struct map_view *view, uint32_t ref)
{
	uint32_t i = 0;

	while (i < view->owners && view->owner[i].ref != ref)
		i++;
	return i;
}

/* True if the member owns the slot. */
static inline bool slot_owned(const struct map_view *view, uint32_t slot, uint32_t ref)
{
	const uint8_t *ranked = map_view_slot(view, slot);

	for (unsigned i = 0; i < map_owning(view); i++)
		if (view->owner[ranked[i]].ref == ref)
			return true;
	return false;
}

/* ---- directory_slots.c ----------------------------------------------------------------------- */

/*
 * The owners have become those of `now`. Owners that have got a slot lack it; those that have come
 * are fresh, and those that have lost a slot are unsure: see directory_compare.c.
 */
void lacks_follow(struct directory *directory, const struct map_view *now);
/* True if the owner with that index in directory.settled lacks the slot. */
bool lacks_slot(const struct directory *directory, uint32_t slot, uint16_t owner);
/* The next slot, from `slot` on, that it lacks; MAP_SLOTS: none. */
uint32_t lacks_next(const struct directory *directory, uint32_t slot, uint16_t owner);
/* The owner `ref` may lack entries of the slot; nothing if it does not own the slot. */
void lack_add(struct directory *directory, struct walk *walk, uint32_t ref, uint32_t slot);
/* It may lack entries of all slots that it owns. */
void lacks_all(struct directory *directory, struct walk *walk, uint32_t ref);
/* The owner `ref` does not lack the slot any more at which its walk is. */
void lack_end(struct directory *directory, struct walk *walk, uint32_t ref);
/* True if an owner of the slot is slow: its former owners keep their entries. */
bool slot_lags(struct directory *directory, uint32_t slot);

/* ---- directory_walk.c ------------------------------------------------------------------------ */

/* The next step of the walks of all owners that are ready. */
void walks_slice(struct directory *directory);
/* True if walks_slice() would read pages. */
bool walks_ready(const struct directory *directory);
/* The owner lacks nothing any more. */
void walk_end(const struct directory *directory, struct owner *owner);

#endif
