/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which slots an owner lacks entries of. A change of the map adds the slots that have new owners,
 * from the owners of both maps; a comparison (directory_compare.c) those that differ; a publish
 * that was skipped its own. Walks (directory_walk.c) read the entries of these slots only. Control
 * plane's thread only.
 *
 * Of each slot there is a byte, `lacks`: bit i stands for the slot's i-th owner by the map
 * `settled`. Without it, that owner has every entry of the slot, an update for it is in progress,
 * or the owner is to be compared with.
 */
#include <string.h>

#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/pages/pages.h"

#define NO_OWNER UINT16_MAX
static_assert(REPLICAS_MAX <= 8, "a bit of `lacks` for each owner");

/* From the owners of one map to those of the next one. */
struct owners_change {
	const struct map_view *was, *now;
	/* by index of an owner in `was`: its index in `now`, or NO_OWNER; it has lost a slot */
	uint16_t to[OWNERS_MAX];
	bool lost[OWNERS_MAX];
	/* by index of an owner in `now`: it will be compared with for all slots that it has */
	bool compared[OWNERS_MAX];
	uint32_t lacking[OWNERS_MAX]; /* number of slots that each owner of `now` lacks */
};

/* The owner, if there is one already. */
static struct owner *owner_there(const struct directory *dir, uint32_t ref)
{
	const struct member_record *record = member_by_ref(dir->control, ref);
	struct owner *owner = record ? owner_at(dir, record->peer) : NULL;

	return owner && owner->ref == ref ? owner : NULL;
}

/* Both views are in the order of hashes. */
static void change_open(struct directory *dir, struct owners_change *c)
{
	uint32_t k = 0;

	for (uint32_t i = 0; i < c->was->owners; i++)
		c->to[i] = NO_OWNER;
	for (uint32_t i = 0; i < c->now->owners; i++) {
		const struct placed *p = &c->now->owner[i];
		struct owner *owner = owner_there(dir, p->ref);

		while (k < c->was->owners && c->was->owner[k].hash < p->hash)
			k++;
		if (k < c->was->owners && c->was->owner[k].ref == p->ref &&
			!(dir->left[k / 64] >> k % 64 & 1)) {
			c->to[k] = (uint16_t)i;
		} else if (publishes(dir)) {
			owner = owner_of(dir, p->ref);
			if (owner)
				owner->fresh = true;
		}
		c->compared[i] = owner && owner->fresh && !owner->digest;
	}
}

static unsigned find(const uint16_t *owner, unsigned owners, uint16_t index)
{
	unsigned i = 0;

	while (i < owners && owner[i] != index)
		i++;
	return i;
}

static void slot_follow(struct directory *dir, struct owners_change *c, uint32_t slot)
{
	const uint8_t *now = map_view_slot(c->now, slot), *was = map_view_slot(c->was, slot);
	unsigned owners = map_owning(c->now), befores = map_owning(c->was);
	unsigned lacked = dir->lacks[slot], lacks = 0;
	uint16_t before[REPLICAS_MAX], after[REPLICAS_MAX];

	for (unsigned i = 0; i < befores; i++)
		before[i] = c->to[was[i]];
	for (unsigned i = 0; i < owners; i++) {
		unsigned at = find(before, befores, now[i]);
		bool lack = at < befores ? lacked >> at & 1 : !c->compared[now[i]];

		after[i] = now[i];
		lacks |= (unsigned)lack << i;
		c->lacking[now[i]] += lack;
	}
	dir->lacks[slot] = (uint8_t)lacks;
	for (unsigned i = 0; i < befores; i++)
		c->lost[was[i]] |=
			before[i] == NO_OWNER || find(after, owners, before[i]) == owners;
}

/* The walks go on where they are, from the start of a slot. */
static uint32_t walk_set(struct walk *walk, uint32_t slots)
{
	walk->slots = slots;
	walk->at = 0;
	walk->again = false;
	return slots;
}

/* Removes of entries that it has again are in its queue: see the top of directory_state.h. */
static bool removing_again(const struct owner *owner, uint32_t lacking)
{
	return lacking && owner_removing(owner);
}

static void walks_set(struct directory *dir, const struct owners_change *c)
{
	struct owner *owner;

	dir->lacking = 0;
	STAILQ_FOREACH (owner, &dir->owners, next)
		walk_set(&owner->walk, 0);
	walk_set(&dir->self, 0);
	for (uint32_t i = 0; i < c->now->owners; i++) {
		uint32_t ref = c->now->owner[i].ref;

		/* an owner is made for those that lack something: see owners_few() */
		owner = c->lacking[i] ? owner_of(dir, ref) : NULL;
		if (owner)
			owner->unsure |= removing_again(owner, c->lacking[i]);
		if (owner || ref == dir->control->ref)
			dir->lacking += walk_set(owner ? &owner->walk : &dir->self, c->lacking[i]);
	}
	dir->lacked = dir->lacking;
	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->behind && !owner->walk.slots)
			walk_end(dir, owner); /* the pages are gone, or the slots */
}

void lacks_follow(struct directory *dir, const struct map_view *now)
{
	struct owners_change c = {.was = dir->settled, .now = now};
	bool disk = tier_pages(dir->control) != 0;

	change_open(dir, &c);
	for (uint32_t slot = 0; slot < MAP_SLOTS; slot++)
		if (disk || index_slot_any(dir->control->index, slot))
			slot_follow(dir, &c, slot);
		else
			dir->lacks[slot] = 0;
	walks_set(dir, &c);
	for (uint32_t i = 0; i < c.was->owners; i++)
		if (c.lost[i])
			compare_mark(dir, c.was->owner[i].ref);
}

bool lacks_slot(const struct directory *dir, uint32_t slot, uint16_t owner)
{
	const uint8_t *ranked = map_view_slot(dir->settled, slot);
	unsigned owners = map_owning(dir->settled);

	for (unsigned i = 0; i < owners; i++)
		if (ranked[i] == owner)
			return dir->lacks[slot] >> i & 1;
	return false;
}

/* Changes the bit of the slot's owner `ref`. False: it is no owner, or the bit was so. */
static bool lack_change(struct directory *dir, uint32_t slot, uint32_t ref, bool lack)
{
	const struct map_view *view = dir->settled;
	const uint8_t *ranked = map_view_slot(view, slot);
	unsigned owners = map_owning(view), bit;

	for (unsigned i = 0; i < owners; i++) {
		bit = 1u << i;
		if (view->owner[ranked[i]].ref != ref || !(dir->lacks[slot] & bit) != lack)
			continue;
		dir->lacks[slot] = (uint8_t)(dir->lacks[slot] ^ bit);
		return true;
	}
	return false;
}

void lack_add(struct directory *dir, struct walk *walk, uint32_t ref, uint32_t slot)
{
	if (lack_change(dir, slot, ref, true)) {
		walk->slots++;
		dir->lacking++;
		if (dir->lacked < dir->lacking)
			dir->lacked = dir->lacking;
	} else if (walk->slot == slot && walk->at) {
		walk->again = true;
	}
}

void lacks_all(struct directory *dir, struct walk *walk, uint32_t ref)
{
	for (uint32_t slot = 0; slot < MAP_SLOTS; slot++)
		if (slot_any(dir, slot))
			lack_add(dir, walk, ref, slot);
}

void lack_end(struct directory *dir, struct walk *walk, uint32_t ref)
{
	if (!lack_change(dir, walk->slot, ref, false))
		return;
	walk->slots--;
	if (--dir->lacking == 0)
		dir->lacked = 0;
}

uint32_t lacks_next(const struct directory *dir, uint32_t slot, uint16_t owner)
{
	uint64_t eight;

	for (; slot < MAP_SLOTS; slot++) {
		if (slot % 8 == 0) {
			memcpy(&eight, &dir->lacks[slot], sizeof(eight));
			if (!eight) {
				slot += 7;
				continue;
			}
		}
		if (dir->lacks[slot] && lacks_slot(dir, slot, owner))
			break;
	}
	return slot < MAP_SLOTS ? slot : MAP_SLOTS;
}

bool slot_lags(struct directory *dir, uint32_t slot)
{
	const struct map_view *view = dir->settled;
	const uint8_t *ranked = map_view_slot(view, slot);
	unsigned owners = map_owning(view);

	for (unsigned i = 0; i < owners; i++) {
		const struct owner *owner = owner_of(dir, view->owner[ranked[i]].ref);

		if (owner && owner_lags(dir, owner))
			return true;
	}
	return false;
}
