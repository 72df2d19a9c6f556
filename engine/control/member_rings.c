/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The neighbours of this engine, for clusters of more than MEMBER_MESH_MAX members. The members are
 * placed on MEMBER_RINGS rings, each in the order of another hash of their names; the neighbours
 * are the successor and the predecessor in each ring. So a neighbour's neighbour is this engine,
 * and the graph stays connected when a few members fail. Only neighbours exchange heartbeats,
 * probes and records. Control plane's thread only.
 */
#include "config/log.h"
#include "engine/control/member.h"

static unsigned neighbour_add(unsigned *neighbour, unsigned count, unsigned index)
{
	for (unsigned i = 0; i < count; i++)
		if (neighbour[i] == index)
			return count;
	neighbour[count] = index;
	return count + 1;
}

static uint64_t place_on(unsigned ring, uint64_t hash)
{
	return map_mix(hash ^ map_mix((uint64_t)ring + 1));
}

/* A member with this hash of its name is on the ring: takes it if it is nearer. */
static void ring_offer(
	struct member_ring *at, unsigned ring, uint64_t own, uint64_t hash, uint32_t index)
{
	uint64_t distance = place_on(ring, hash) - place_on(ring, own);

	/* The farthest member in the direction of the successors is the predecessor. */
	if (at->next == MEMBER_NONE || distance < at->nearest) {
		at->nearest = distance;
		at->next = index;
	}
	if (at->last == MEMBER_NONE || distance > at->farthest) {
		at->farthest = distance;
		at->last = index;
	}
}

static void ring_clear(struct member_ring *at)
{
	*at = (struct member_ring){.next = MEMBER_NONE, .last = MEMBER_NONE};
}

static unsigned rings_neighbours(
	const struct member_ring ring[MEMBER_RINGS], unsigned ret_neighbour[MEMBER_NEIGHBOURS_MAX])
{
	unsigned found = 0;

	for (unsigned i = 0; i < MEMBER_RINGS; i++) {
		if (ring[i].next == MEMBER_NONE)
			continue;
		found = neighbour_add(ret_neighbour, found, ring[i].next);
		found = neighbour_add(ret_neighbour, found, ring[i].last);
	}
	return found;
}

unsigned member_rings(const uint64_t *hash, unsigned count, unsigned self,
	unsigned ret_neighbour[MEMBER_NEIGHBOURS_MAX])
{
	struct member_ring ring[MEMBER_RINGS];

	for (unsigned k = 0; k < MEMBER_RINGS; k++) {
		ring_clear(&ring[k]);
		for (unsigned i = 0; i < count; i++)
			if (i != self)
				ring_offer(&ring[k], k, hash[self], hash[i], i);
	}
	return rings_neighbours(ring, ret_neighbour);
}

void member_rings_joined(struct member *member, const struct member_entry *entry)
{
	uint64_t own = member_entry_hash(member->self), hash = member_entry_hash(entry);

	for (unsigned k = 0; k < MEMBER_RINGS; k++)
		ring_offer(&member->ring[k], k, own, hash, entry->index);
}

void member_rings_left(struct member *member, const struct member_entry *entry)
{
	for (unsigned k = 0; k < MEMBER_RINGS; k++)
		member->ring[k].stale |= member->ring[k].next == entry->index ||
					 member->ring[k].last == entry->index;
}

void member_rings_open(struct member *member)
{
	for (unsigned k = 0; k < MEMBER_RINGS; k++)
		ring_clear(&member->ring[k]);
}

/* A neighbour on some rings has left: looks for the next one. */
static void rings_repair(struct member *member)
{
	unsigned stale[MEMBER_RINGS], stales = 0;
	uint64_t own = member_entry_hash(member->self), hash;

	for (unsigned k = 0; k < MEMBER_RINGS; k++) {
		if (!member->ring[k].stale)
			continue;
		ring_clear(&member->ring[k]);
		stale[stales++] = k;
	}
	for (unsigned i = 1; stales && i < member->table.entries; i++) {
		const struct member_entry *entry = member_at(&member->table, i);

		if (entry->state != MEMBER_ALIVE)
			continue;
		hash = member_entry_hash(entry);
		for (unsigned n = 0; n < stales; n++)
			ring_offer(&member->ring[stale[n]], stale[n], own, hash, i);
	}
}

/* Chooses between the mesh and the rings. A few members fewer do not bring the mesh back. */
bool member_rings_wanted(const struct member *member)
{
	if (member->strangers)
		return false;
	return member->alive > MEMBER_MESH_MAX ||
	       (member->rings && member->alive >= MEMBER_MESH_AGAIN);
}

static void link_wanted(struct control *control, struct member_entry *entry, uint64_t now_ns)
{
	struct member_contact *contact = member_contact(&control->member->table, entry);

	if (!contact || member_entry_link(entry))
		return;
	contact->heard_ns = now_ns;
	contact->vouched_ns = 0;
	if (!contact->dial)
		member_entry_dial(control, entry, false);
}

static void rings_begin(struct control *control, uint64_t now_ns)
{
	struct member *member = control->member;

	member->rings = true;
	member->list_ns = 0; /* the next member that is heard tells the list */
	log_info("%u members: this engine keeps links with its neighbours only", member->alive);
	for (unsigned i = 0; i < member->table.contacts; i++) {
		member_unused(member->table.contact[i], now_ns);
		member->table.contact[i]->entry->neighbour = false;
	}
}

static void mesh_begin(struct control *control, uint64_t now_ns)
{
	struct member *member = control->member;

	member->rings = false;
	log_info("%u members: this engine keeps links with all of them", member->alive);
	for (unsigned i = 1; i < member->table.entries; i++) {
		struct member_entry *entry = member_at(&member->table, i);

		entry->neighbour = false;
		if (entry->state == MEMBER_ALIVE)
			link_wanted(control, entry, now_ns);
		else if (entry->state == MEMBER_DEAD && !entry->left && entry->proven)
			member_entry_dial(control, entry, true);
	}
}

static void neighbours_choose(struct control *control, uint64_t now_ns)
{
	struct member *member = control->member;
	struct member_table *table = &member->table;
	unsigned neighbour[MEMBER_NEIGHBOURS_MAX], found;

	rings_repair(member);
	found = rings_neighbours(member->ring, neighbour);
	for (unsigned i = 0; i < table->contacts; i++) {
		struct member_entry *entry = table->contact[i]->entry;
		bool chosen = false;

		for (unsigned k = 0; k < found; k++)
			chosen |= neighbour[k] == entry->index;
		if (entry->state != MEMBER_ALIVE || !entry->neighbour || chosen)
			continue;
		member_unused(entry->contact, now_ns);
		entry->neighbour = false;
	}
	for (unsigned k = 0; k < found; k++) {
		struct member_entry *entry = member_at(table, neighbour[k]);

		if (!entry->neighbour)
			link_wanted(control, entry, now_ns);
		entry->neighbour = member_has_contact(entry);
		if (entry->neighbour && !entry->contact->dial)
			member_entry_dial(control, entry, false);
	}
}

void member_rings_update(struct control *control)
{
	struct member *member = control->member;
	bool wanted = member_rings_wanted(member);
	uint64_t now_ns = net_now();

	if (wanted && !member->rings)
		rings_begin(control, now_ns);
	else if (!wanted && member->rings)
		mesh_begin(control, now_ns);
	if (member->rings)
		neighbours_choose(control, now_ns);
}
