/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which slots an owner lacks entries of, and which former owners still have entries of a slot. A
 * change of the map sets these from the owners of both maps; walks (directory_walk.c) and the
 * removal from former owners (directory_move.c) read the entries of these slots only. A further
 * change keeps what is known: an owner that has a slot goes on having it. Control plane's thread
 * only.
 *
 * Of each slot there is a byte, `lacks`: bit i stands for the slot's i-th owner by the map
 * `settled`. Without it, that owner has every entry of the slot, or an update for it is in
 * progress.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/control/directory_state.h"
#include "engine/control/member.h"
#include "engine/control/tier.h"

#define NO_OWNER UINT16_MAX
#define NO_PEER UINT16_MAX
static_assert(REPLICAS_MAX <= 8, "a bit of `lacks` for each owner");
static_assert(NODES_MAX < NO_PEER, "a peer number is not NO_PEER");

/* ---- former owners --------------------------------------------------------------------------- */

static bool former_any(const struct former *former)
{
	return former->peer[0] != NO_PEER;
}

/* The oldest former owner gives way: its stale entries stay until a reader reports them. */
static void former_add(struct directory *dir, uint32_t slot, uint16_t peer)
{
	struct former *former;
	unsigned count = 0;

	if (!dir->former) {
		dir->former = malloc(MAP_SLOTS * sizeof(*dir->former));
		if (!dir->former)
			return;
		memset(dir->former, 0xff, MAP_SLOTS * sizeof(*dir->former));
	}
	former = &dir->former[slot];
	dir->formers += !former_any(former);
	while (count < FORMERS_MAX && former->peer[count] != NO_PEER)
		if (former->peer[count++] == peer)
			return;
	if (count == FORMERS_MAX)
		memmove(former->peer, former->peer + 1, --count * sizeof(peer));
	former->peer[count] = peer;
}

static void former_remove(struct directory *dir, uint32_t slot, uint16_t peer)
{
	struct former *former = dir->former ? &dir->former[slot] : NULL;
	unsigned kept = 0;

	if (!former || !former_any(former))
		return;
	for (unsigned i = 0; i < FORMERS_MAX; i++)
		if (former->peer[i] != peer)
			former->peer[kept++] = former->peer[i];
	while (kept < FORMERS_MAX)
		former->peer[kept++] = NO_PEER;
	dir->formers -= !former_any(former);
}

unsigned formers_of(const struct directory *dir, uint32_t slot, uint32_t ret_ref[FORMERS_MAX])
{
	unsigned count = 0;

	for (unsigned i = 0; dir->former && i < FORMERS_MAX; i++) {
		uint16_t peer = dir->former[slot].peer[i];
		const struct member_record *record =
			peer == NO_PEER ? NULL : member_by_peer(dir->control, peer);

		if (record)
			ret_ref[count++] = record->ref;
	}
	return count;
}

bool formers_any(const struct directory *dir, uint32_t slot)
{
	return dir->former && former_any(&dir->former[slot]);
}

void formers_drop(struct directory *dir, uint32_t slot)
{
	if (!formers_any(dir, slot))
		return;
	memset(&dir->former[slot], 0xff, sizeof(dir->former[slot]));
	if (--dir->formers == 0) {
		free(dir->former);
		dir->former = NULL;
	}
}

/* ---- slots that owners lack ------------------------------------------------------------------ */

/* From the owners of one map to those of the next one. */
struct owners_change {
	const struct map_view *was, *now;
	/* by index of an owner in `was`: its index in `now`; NO_OWNER: none, or it has no entry */
	uint16_t to[OWNERS_MAX];
	/* and the peer number of a member that may still have entries, or NO_PEER */
	uint16_t was_peer[OWNERS_MAX];
	uint16_t now_peer[OWNERS_MAX];
	uint32_t lacking[OWNERS_MAX]; /* number of slots that each owner of `now` lacks */
};

static uint16_t peer_of(const struct directory *dir, uint32_t ref)
{
	const struct member_record *record = member_by_ref(dir->control, ref);

	return record ? record->peer : NO_PEER;
}

/* Both views are in the order of hashes. */
static void change_open(const struct directory *dir, const struct past *was,
	struct owners_change *c, bool ret_had[])
{
	uint32_t k = 0;

	for (uint32_t i = 0; i < c->now->owners; i++) {
		c->now_peer[i] = peer_of(dir, c->now->owner[i].ref);
		ret_had[i] = false;
	}
	for (uint32_t i = 0; c->was && i < c->was->owners; i++) {
		const struct placed *p = &c->was->owner[i];

		c->to[i] = NO_OWNER;
		c->was_peer[i] = NO_PEER;
		if (was->without[i / 64] >> i % 64 & 1)
			continue;
		c->was_peer[i] = peer_of(dir, p->ref);
		while (k < c->now->owners && c->now->owner[k].hash < p->hash)
			k++;
		if (k < c->now->owners && c->now->owner[k].ref == p->ref) {
			c->to[i] = (uint16_t)k;
			ret_had[k] = true;
		}
	}
}

static unsigned find(const uint16_t *owner, unsigned owners, uint16_t index)
{
	unsigned i = 0;

	while (i < owners && owner[i] != index)
		i++;
	return i;
}

/* The slot's owners of before, as indices in the new map. Returns their number. */
static unsigned owners_before(
	const struct owners_change *c, uint32_t slot, uint16_t ret[REPLICAS_MAX])
{
	unsigned owners = c->was ? map_owning(c->was) : 0;

	for (unsigned i = 0; i < owners; i++)
		ret[i] = c->to[map_view_slot(c->was, slot)[i]];
	return owners;
}

static void slot_follow(struct directory *dir, struct owners_change *c, uint32_t slot)
{
	const uint8_t *now = map_view_slot(c->now, slot), *was;
	unsigned owners = map_owning(c->now), befores, lacked = dir->lacks[slot], lacks = 0;
	uint16_t before[REPLICAS_MAX], after[REPLICAS_MAX];

	befores = owners_before(c, slot, before);
	for (unsigned i = 0; i < owners; i++) {
		unsigned at = find(before, befores, now[i]);
		bool lack = at == befores || lacked >> at & 1;

		after[i] = now[i];
		lacks |= (unsigned)lack << i;
		c->lacking[now[i]] += lack;
		former_remove(dir, slot, c->now_peer[now[i]]);
	}
	dir->lacks[slot] = (uint8_t)lacks;
	was = c->was ? map_view_slot(c->was, slot) : NULL;
	for (unsigned i = 0; i < befores; i++)
		if (c->was_peer[was[i]] != NO_PEER &&
			(before[i] == NO_OWNER || find(after, owners, before[i]) == owners))
			former_add(dir, slot, c->was_peer[was[i]]);
}

/* The walks go on where they are, from the start of a slot. */
static uint32_t walk_set(struct walk *walk, uint32_t slots)
{
	walk->slots = slots;
	walk->at = 0;
	walk->again = false;
	return slots;
}

void lacks_follow(struct directory *dir, const struct past *was, const struct map_view *now)
{
	struct owners_change c = {.was = was->view, .now = now};
	bool had[OWNERS_MAX], disk = tier_pages(dir->control) != 0;
	struct owner *owner;

	change_open(dir, was, &c, had);
	for (uint32_t slot = 0; slot < MAP_SLOTS; slot++)
		if (disk || index_slot_any(dir->control->index, slot))
			slot_follow(dir, &c, slot);
		else
			dir->lacks[slot] = 0;
	dir->lacking = 0;
	STAILQ_FOREACH (owner, &dir->owners, next)
		walk_set(&owner->walk, 0);
	walk_set(&dir->self, 0);
	for (uint32_t i = 0; i < now->owners; i++) {
		uint32_t ref = now->owner[i].ref;

		/* an owner is made for those that may have a wrong entry: see owners_few() */
		owner = c.lacking[i] || (!had[i] && publishes(dir)) ? owner_of(dir, ref) : NULL;
		if (!owner && ref != dir->control->ref)
			continue;
		dir->lacking += walk_set(owner ? &owner->walk : &dir->self, c.lacking[i]);
		if (owner && !had[i])
			owner->fresh = true;
	}
	dir->lacked = dir->lacking;
}

bool lacks_slot(const struct directory *dir, uint32_t slot, uint16_t owner)
{
	const uint8_t *ranked = map_view_slot(dir->settled.view, slot);
	unsigned owners = map_owning(dir->settled.view);

	for (unsigned i = 0; i < owners; i++)
		if (ranked[i] == owner)
			return dir->lacks[slot] >> i & 1;
	return false;
}

/* Changes the bit of the slot's owner `ref`. False: it is no owner, or the bit was so. */
static bool lack_change(struct directory *dir, uint32_t slot, uint32_t ref, bool lack)
{
	const struct map_view *view = dir->settled.view;
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

void lacks_self(struct directory *dir)
{
	for (uint32_t slot = 0; slot < MAP_SLOTS; slot++)
		if (slot_any(dir, slot))
			lack_add(dir, &dir->self, dir->control->ref, slot);
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

bool slot_owner_any(struct directory *dir, uint32_t slot,
	bool (*is)(const struct directory *dir, const struct owner *owner))
{
	const struct map_view *view = dir->settled.view;
	const uint8_t *ranked = map_view_slot(view, slot);
	unsigned owners = map_owning(view);

	for (unsigned i = 0; i < owners; i++) {
		const struct owner *owner = owner_of(dir, view->owner[ranked[i]].ref);

		if (owner && is(dir, owner))
			return true;
	}
	return false;
}

bool slot_lags(struct directory *dir, uint32_t slot)
{
	return dir->lacks[slot] || slot_owner_any(dir, slot, owner_lags);
}
