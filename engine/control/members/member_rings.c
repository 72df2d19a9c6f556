/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The neighbours of this engine, for clusters of more than MEMBER_MESH_MAX members. The members are
 * placed on MEMBER_RINGS rings, each in the order of another hash of their names; the neighbours
 * are the successor and the predecessor in each ring. So a neighbour's neighbour is this engine,
 * and the graph stays connected when a few members fail. Only neighbours exchange heartbeats,
 * probes and records. Control plane's thread only.
 */
#include "config/log.h"
#include "engine/control/members/member.h"

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

void member_rings_joined(struct members *members, const struct member *member)
{
	uint64_t own = member_hash(members->self), hash = member_hash(member);

	for (unsigned k = 0; k < MEMBER_RINGS; k++)
		ring_offer(&members->ring[k], k, own, hash, member->index);
}

void member_rings_left(struct members *members, const struct member *member)
{
	for (unsigned k = 0; k < MEMBER_RINGS; k++)
		members->ring[k].stale |= members->ring[k].next == member->index ||
					  members->ring[k].last == member->index;
}

void member_rings_open(struct members *members)
{
	for (unsigned k = 0; k < MEMBER_RINGS; k++)
		ring_clear(&members->ring[k]);
}

/* A neighbour on some rings has left: looks for the next one. */
static void rings_repair(struct members *members)
{
	unsigned stale[MEMBER_RINGS], stales = 0;
	uint64_t own = member_hash(members->self), hash;

	for (unsigned k = 0; k < MEMBER_RINGS; k++) {
		if (!members->ring[k].stale)
			continue;
		ring_clear(&members->ring[k]);
		stale[stales++] = k;
	}
	for (unsigned i = 1; stales && i < members->table.entries; i++) {
		const struct member *member = member_at(&members->table, i);

		if (member->state != MEMBER_ALIVE)
			continue;
		hash = member_hash(member);
		for (unsigned n = 0; n < stales; n++)
			ring_offer(&members->ring[stale[n]], stale[n], own, hash, i);
	}
}

/* Chooses between the mesh and the rings. A few members fewer do not bring the mesh back. */
bool member_rings_wanted(const struct members *members)
{
	if (members->strangers)
		return false;
	return members->alive > MEMBER_MESH_MAX ||
	       (members->rings && members->alive >= MEMBER_MESH_AGAIN);
}

static void link_wanted(struct control *control, struct member *member, uint64_t now_ns)
{
	struct member_contact *contact = member_contact(&control->members->table, member);

	if (!contact || member_link_of(member))
		return;
	contact->heard_ns = now_ns;
	contact->vouched_ns = 0;
	if (!contact->dial)
		member_dial(control, member, false);
}

static void rings_begin(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;

	members->rings = true;
	members->list_ns = 0; /* the next member that is heard tells the list */
	log_info("%u members: this engine keeps links with its neighbours only", members->alive);
	for (unsigned i = 0; i < members->table.contacts; i++) {
		member_unused(members->table.contact[i], now_ns);
		members->table.contact[i]->member->neighbour = false;
	}
}

static void mesh_begin(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;

	members->rings = false;
	log_info("%u members: this engine keeps links with all of them", members->alive);
	for (unsigned i = 1; i < members->table.entries; i++) {
		struct member *member = member_at(&members->table, i);

		member->neighbour = false;
		if (member->state == MEMBER_ALIVE)
			link_wanted(control, member, now_ns);
		else if (member->state == MEMBER_DEAD && !member->left && member->proven)
			member_dial(control, member, true);
	}
}

static void neighbours_choose(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;
	struct member_table *table = &members->table;
	unsigned neighbour[MEMBER_NEIGHBOURS_MAX], found;

	rings_repair(members);
	found = rings_neighbours(members->ring, neighbour);
	for (unsigned i = 0; i < table->contacts; i++) {
		struct member *member = table->contact[i]->member;
		bool chosen = false;

		for (unsigned k = 0; k < found; k++)
			chosen |= neighbour[k] == member->index;
		if (member->state != MEMBER_ALIVE || !member->neighbour || chosen)
			continue;
		member_unused(member->contact, now_ns);
		member->neighbour = false;
	}
	for (unsigned k = 0; k < found; k++) {
		struct member *member = member_at(table, neighbour[k]);

		if (!member->neighbour)
			link_wanted(control, member, now_ns);
		member->neighbour = member_has_contact(member);
		if (member->neighbour && !member->contact->dial)
			member_dial(control, member, false);
	}
}

void member_rings_update(struct control *control)
{
	struct members *members = control->members;
	bool wanted = member_rings_wanted(members);
	uint64_t now_ns = net_now();

	if (wanted && !members->rings)
		rings_begin(control, now_ns);
	else if (!wanted && members->rings)
		mesh_begin(control, now_ns);
	if (members->rings)
		neighbours_choose(control, now_ns);
}
