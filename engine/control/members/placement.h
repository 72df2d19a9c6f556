/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement: which members own which slots of the directory. A pure function of the members' names
 * and directory capacities, so that all engines with the same members agree.
 *
 * Weighted rendezvous hashing: each member has a rank in each slot, from a hash of its name and the
 * slot, divided by its weight, which is the number of its shard's buckets. The members with the
 * lowest ranks own the slot. So a member owns slots in proportion to its capacity, a member that
 * joins only takes slots, and one that leaves only gives up its own. All in integers.
 *
 * A member can claim any weight, but its weight counts only up to that of all other members
 * together, or 2^PLACEMENT_CAP_BITS times the median of all, the lower one of two.
 *
 * At most OWNERS_MAX members own slots: those with the lowest ranks in a slot of its own,
 * MAP_SLOTS. One change of the members replaces one owner at most. The control plane's thread only.
 */
#ifndef CONTROL_PLACEMENT_H
#define CONTROL_PLACEMENT_H

#include "engine/abi/map.h"

#define PLACEMENT_CAP_BITS 3u

/* A member as a candidate for owning slots. */
struct placed {
	uint64_t hash; /* placement_hash() of its name */
	uint32_t ref;
	uint8_t bucket_bits; /* log2 of its weight, 0..31 */
	uint8_t spare[3];
};

/* Who owns what: never changed once it is made, shared by reference. */
struct map_view {
	uint32_t uses; /* references to this view */
	uint32_t owners, replicas;
	bool lazy;                       /* see map_view_lazy() */
	struct placed owner[OWNERS_MAX]; /* ascending by hash */
	uint8_t slots[];                 /* map_view_slot() */
};

/* FNV-1a of a member's name, mixed. */
uint64_t placement_hash(const char *name);
/* Rank of a member in a slot, at most MAP_SLOTS: the lowest wins. Never equal to UINT64_MAX. */
uint64_t placement_rank(uint64_t hash, unsigned bucket_bits, uint32_t slot);
/* Caps the weights of all live members, as above. */
void placement_cap(struct placed *members, unsigned count);
/*
 * Caps the weights, and moves the members that may own slots to the front of `members`, ascending
 * by hash. Returns their number: min(count, OWNERS_MAX).
 */
unsigned placement_choose(struct placed *members, unsigned count);
/*
 * Returns a new reference to the view of these owners, which are as placement_choose() left them.
 * `from`: an earlier view, of which it takes what has not changed; NULL: none. If nothing has, it
 * is `from` itself. NULL: no memory.
 */
struct map_view *map_view_make(
	struct map_view *from, const struct placed *owner, unsigned owners, unsigned replicas);
/*
 * The same, without the owners of slots: those are found when map_view_slot() is called, so that a
 * view costs only what is looked up in it. For control planes that no client reads.
 */
struct map_view *map_view_lazy(
	struct map_view *from, const struct placed *owner, unsigned owners, unsigned replicas);
/* Finds the owners of a slot of a lazy view, if they are not known yet. */
void map_view_rank(const struct map_view *view, uint32_t slot);
struct map_view *map_view_share(struct map_view *view);
/* Gives up a reference; NULL is ignored. */
void map_view_drop(struct map_view *view);

/* Number of owners that each slot has. */
static inline unsigned map_owning(const struct map_view *view)
{
	return view->replicas < view->owners ? view->replicas : view->owners;
}

/* The owners of a slot: map_owning() indices in view->owner, the best one first. */
static inline const uint8_t *map_view_slot(const struct map_view *view, uint32_t slot)
{
	if (view->lazy)
		map_view_rank(view, slot);
	return &view->slots[(size_t)slot * map_owning(view)];
}

/*
 * Writes the owners of a key, the best one first, as indices in view->owner. Returns their number.
 */
static inline unsigned map_owners(
	const struct map_view *view, const struct page_key *key, uint32_t ret_owner[REPLICAS_MAX])
{
	const uint8_t *slot = map_view_slot(view, map_slot_of(key));
	unsigned owners = map_owning(view);

	for (unsigned i = 0; i < owners; i++)
		ret_owner[i] = slot[i];
	return owners;
}

#endif
