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

unsigned member_rings(const uint64_t *hash, unsigned count, unsigned self,
	unsigned ret_neighbour[MEMBER_NEIGHBOURS_MAX])
{
	unsigned found = 0;

	if (count < 2)
		return 0;
	for (uint64_t ring = 0; ring < MEMBER_RINGS; ring++) {
		uint64_t salt = map_mix(ring + 1), own = map_mix(hash[self] ^ salt);
		uint64_t nearest = UINT64_MAX, farthest = 0;
		unsigned next = self, last = self;

		/* The farthest member in the direction of the successors is the predecessor. */
		for (unsigned i = 0; i < count; i++) {
			uint64_t distance = map_mix(hash[i] ^ salt) - own;

			if (i == self)
				continue;
			if (next == self || distance < nearest) {
				nearest = distance;
				next = i;
			}
			if (last == self || distance > farthest) {
				farthest = distance;
				last = i;
			}
		}
		found = neighbour_add(ret_neighbour, found, next);
		found = neighbour_add(ret_neighbour, found, last);
	}
	return found;
}

/* Chooses between the mesh and the rings. A few members fewer do not bring the mesh back. */
static bool rings_wanted(const struct member *member)
{
	if (member->strangers)
		return false;
	return member->alive > MEMBER_MESH_MAX ||
	       (member->rings && member->alive >= MEMBER_MESH_AGAIN);
}

static void link_wanted(struct control *control, struct member_entry *entry, uint64_t now_ns)
{
	if (entry->out || entry->in)
		return;
	entry->heard_ns = now_ns;
	entry->vouched_ns = 0;
	if (!entry->dial)
		member_entry_dial(control, entry, false);
}

static void rings_begin(struct control *control, uint64_t now_ns)
{
	struct member *member = control->member;

	member->rings = true;
	log_info("%u members: this engine keeps links with its neighbours only", member->alive);
	for (unsigned i = 1; i < MEMBER_ENTRIES; i++) {
		member->entry[i].used_ns = now_ns;
		member->entry[i].neighbour = false;
	}
}

static void mesh_begin(struct control *control, uint64_t now_ns)
{
	struct member *member = control->member;

	member->rings = false;
	log_info("%u members: this engine keeps links with all of them", member->alive);
	for (unsigned i = 1; i < MEMBER_ENTRIES; i++) {
		struct member_entry *entry = &member->entry[i];

		entry->neighbour = false;
		if (entry->state == MEMBER_ALIVE)
			link_wanted(control, entry, now_ns);
		else if (entry->state == MEMBER_DEAD && !entry->left)
			member_entry_dial(control, entry, true);
	}
}

static void neighbours_choose(struct control *control, uint64_t now_ns)
{
	struct member *member = control->member;
	static struct member_entry *at[MEMBER_ENTRIES];
	static uint64_t hash[MEMBER_ENTRIES];
	static bool chosen[MEMBER_ENTRIES];
	unsigned neighbour[MEMBER_NEIGHBOURS_MAX], count = 0, found;

	for (unsigned i = 0; i < MEMBER_ENTRIES; i++)
		if (member->entry[i].state == MEMBER_ALIVE) {
			at[count] = &member->entry[i];
			chosen[count] = false;
			hash[count++] = member->entry[i].name_hash;
		}
	found = member_rings(hash, count, 0, neighbour);
	for (unsigned i = 0; i < found; i++)
		chosen[neighbour[i]] = true;
	for (unsigned i = 1; i < count; i++) {
		struct member_entry *entry = at[i];

		if (entry->neighbour && !chosen[i])
			entry->used_ns = now_ns;
		if (!entry->neighbour && chosen[i])
			link_wanted(control, entry, now_ns);
		entry->neighbour = chosen[i];
		if (entry->neighbour && !entry->dial)
			member_entry_dial(control, entry, false);
	}
}

void member_rings_update(struct control *control)
{
	struct member *member = control->member;
	bool wanted = rings_wanted(member);
	uint64_t now_ns = net_now();

	if (wanted && !member->rings)
		rings_begin(control, now_ns);
	else if (!wanted && member->rings)
		mesh_begin(control, now_ns);
	if (member->rings)
		neighbours_choose(control, now_ns);
}
