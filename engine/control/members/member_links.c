/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links with members: which ones this engine keeps. Up to MEMBER_MESH_MAX members it has a link
 * with each. Above, the members are placed on MEMBER_RINGS rings, each in the order of another hash
 * of their names; the neighbours are the successor and the predecessor in each ring. So a
 * neighbour's neighbour is this engine, and the graph stays connected when a few members fail. Only
 * neighbours exchange heartbeats, probes and records. A link with another member is dialled when a
 * request needs it, a few at a time, and closed when it is idle.
 *
 * When the last link with a member closes, it is dialled at once: a refused connection shows that
 * its process has ended, long before the heartbeats time out. Control plane's thread only.
 */
#include <errno.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/members/members_inner.h"
#include "engine/control/net/net.h"

/* ---- links of one member --------------------------------------------------------------------- */

struct rpc_link *member_link_now(const struct control *control, uint32_t ref)
{
	const struct member *member = member_table_ref(&control->members->table, ref);

	return member ? member_link_of(member) : NULL;
}

uint32_t member_link_ref(const struct rpc_link *link)
{
	return link->member->record.ref;
}

void member_dial(struct control *control, struct member *member, bool seldom)
{
	uint32_t beat_ms = (uint32_t)control->settings->cluster_heartbeat_ms;
	uint32_t base_ms = seldom ? beat_ms : beat_ms / 10 + 1;
	uint32_t max_ms = beat_ms * (seldom ? 20 : 4);
	struct member_contact *contact;
	struct member_texts texts;

	if (control->members->leaving)
		return;
	contact = member_contact(&control->members->table, member);
	if (!contact)
		return;
	member_texts(&member->record, &texts);
	if (contact->dial && contact->dial->port == member->record.port &&
		strcmp(contact->dial->host, texts.address) == 0) {
		rpc_dial_hurry(contact->dial, base_ms, max_ms);
		return;
	}
	rpc_dial_stop(contact->dial);
	contact->dial = rpc_dial_start(control, &(struct rpc_target){.host = texts.address,
							.port = member->record.port,
							.base_ms = base_ms,
							.max_ms = max_ms,
							.owner = member,
							.seed = false});
}

void member_dial_stop(struct member *member)
{
	rpc_dial_stop(member->contact->dial);
	if (member_has_contact(member))
		member->contact->dial = NULL;
}

void member_links_close(struct member *member)
{
	if (member->contact->out)
		rpc_link_close(member->contact->out);
	if (member->contact->in)
		rpc_link_close(member->contact->in);
}

void member_link_down(struct control *control, struct rpc_link *link)
{
	struct member *member = link->member;
	struct member_contact *contact = member->contact;

	link->member = NULL;
	for (unsigned size = 0; size < PROBE_SIZES; size++)
		if (contact->probe.via[size] == link)
			contact->probe.via[size] = NULL;
	if (contact->out == link)
		contact->out = NULL;
	else if (contact->in == link)
		contact->in = NULL;
	else
		return;
	if (link->barred && member->state == MEMBER_ALIVE)
		member_prove(control, member->record.ref);
	if (!member_on_trial(member))
		control->member_events->link_down(control, member->record.peer, link);
	/*
	 * The member's process may have ended: dialling it at once shows that by ECONNREFUSED, long
	 * before the heartbeats time out.
	 */
	if (member->state == MEMBER_ALIVE && !member_link_of(member) && contact->dial &&
		!control->members->leaving)
		member_dial(control, member, false);
}

void member_dial_failed(struct control *control, struct rpc_dial *dial, int error)
{
	struct member *member = dial->owner;

	if (dial->seed) {
		seed_dial_failed(dial, error);
		return;
	}
	if (member->state != MEMBER_ALIVE || member_link_of(member) || control->members->leaving)
		return;
	if (error == EACCES)
		member_prove(control, member->record.ref);
	else if (error == ECONNREFUSED)
		member_lost(control, member,
			"its connections closed, and nothing listens at its address");
}

/* ---- rings ----------------------------------------------------------------------------------- */

static unsigned neighbour_add(unsigned *neighbour, unsigned count, unsigned index)
{
	for (unsigned i = 0; i < count; i++)
		if (neighbour[i] == index)
			return count;
	neighbour[count] = index;
	return count + 1;
}

static uint64_t ring_place(unsigned ring, uint64_t hash)
{
	return map_mix(hash ^ map_mix((uint64_t)ring + 1));
}

/* A member with this hash of its name is on the ring: takes it if it is nearer. */
static void ring_offer(
	struct member_ring *at, unsigned ring, uint64_t own, uint64_t hash, uint32_t index)
{
	uint64_t distance = ring_place(ring, hash) - ring_place(ring, own);

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

/* ---- neighbours ------------------------------------------------------------------------------ */

static void neighbour_link(struct control *control, struct member *member, uint64_t now_ns)
{
	struct member_contact *contact = member_contact(&control->members->table, member);

	if (!contact || member_link_of(member))
		return;
	contact->heard_ns = now_ns;
	if (!contact->dial)
		member_dial(control, member, false);
}

/* Up to MEMBER_MESH_MAX members, all others are neighbours. */
static unsigned all_neighbours(
	const struct members *members, unsigned ret_neighbour[MEMBER_MESH_MAX])
{
	unsigned found = 0;

	for (unsigned i = 1; i < members->table.entries && found < MEMBER_MESH_MAX; i++)
		if (member_at(&members->table, i)->state == MEMBER_ALIVE)
			ret_neighbour[found++] = i;
	return found;
}

void member_neighbours_choose(struct control *control)
{
	struct members *members = control->members;
	struct member_table *table = &members->table;
	unsigned neighbour[MEMBER_MESH_MAX], found;
	uint64_t now_ns = net_now();

	if (!members->rings && member_rings_wanted(members))
		members->list_ns = 0; /* the next member that is heard sends the list */
	members->rings = member_rings_wanted(members);
	rings_repair(members);
	found = members->rings ? rings_neighbours(members->ring, neighbour)
			       : all_neighbours(members, neighbour);
	for (unsigned i = 0; i < table->contacts; i++) {
		struct member *member = table->contact[i]->member;
		bool chosen = false;

		for (unsigned k = 0; k < found; k++)
			chosen |= neighbour[k] == member->index;
		if (member->state != MEMBER_ALIVE || !member->neighbour || chosen)
			continue;
		member_link_unused(member->contact, now_ns);
		member->neighbour = false;
	}
	for (unsigned k = 0; k < found; k++) {
		struct member *member = member_at(table, neighbour[k]);

		if (!member->neighbour)
			neighbour_link(control, member, now_ns);
		member->neighbour = member_has_contact(member);
		if (member->neighbour && !member->contact->dial)
			member_dial(control, member, false);
	}
}

/* ---- links on demand ------------------------------------------------------------------------- */

static void demand_dial(struct control *control, struct member *member)
{
	struct members *members = control->members;

	member->wanted = true;
	if (member->contact->dial || !members->dials)
		return;
	members->dials--;
	member_dial(control, member, false);
}

struct rpc_link *member_link(struct control *control, uint32_t ref)
{
	struct rpc_link *link = member_link_now(control, ref);
	const struct member_record *record = member_by_ref(control, ref);
	struct member_contact *contact;
	struct member *member;

	if (!record || record->self)
		return link;
	member = member_peer(control, record->peer);
	contact = member_contact(&control->members->table, member);
	if (!contact)
		return link;
	contact->used_ns = net_now();
	if (!link && !member->neighbour)
		demand_dial(control, member);
	return link;
}

bool member_link_soon(const struct control *control, uint32_t ref)
{
	const struct member_record *record = member_by_ref(control, ref);
	const struct member *member;

	if (!record || record->self)
		return false;
	member = member_peer(control, record->peer);
	return !member->neighbour && member->wanted && !member_link_of(member);
}

void member_link_unused(struct member_contact *contact, uint64_t now_ns)
{
	uint64_t then_ns = now_ns - (MEMBER_IDLE_NS - MEMBER_UNUSED_NS);

	if (contact->used_ns < then_ns)
		contact->used_ns = then_ns;
}

void member_demand_tick(struct control *control, struct member *member, uint64_t now_ns)
{
	bool linked = member_link_of(member) != NULL;

	if (member->neighbour)
		return;
	if (member->state == MEMBER_DEAD && !linked)
		member_dial_stop(member);
	if (member->state != MEMBER_ALIVE)
		return;
	if (linked)
		member->wanted = false;
	if (member->wanted && !member->contact->dial)
		demand_dial(control, member);
	if (!member->contact->dial || now_ns - member->contact->used_ns < MEMBER_IDLE_NS)
		return;
	member->wanted = false;
	member_dial_stop(member);
}

/* ---- members that have lost their right ------------------------------------------------------ */

void member_prove(struct control *control, uint32_t ref)
{
	struct member *member = member_table_ref(&control->members->table, ref);
	struct member_contact *contact;
	uint64_t turn_ns;

	if (!member || member->record.self || member_link_of(member) || member->contact->barred ||
		member->contact->prove_ns)
		return;
	contact = member_contact(&control->members->table, member);
	if (!contact)
		return;
	contact->used_ns = net_now();
	/* those that are no neighbours are dialled MEMBER_DIALS_TICK in a heartbeat interval */
	turn_ns = control->members->table.contacts / MEMBER_DIALS_TICK * control_beat_ns(control);
	contact->prove_ns = contact->used_ns +
			    (member->neighbour ? MEMBER_PROVE_NS : MEMBER_PROVE_FAR_NS + turn_ns);
	if (contact->dial)
		member_dial(control, member, false);
	else if (!member->neighbour)
		demand_dial(control, member);
}

void member_barred(struct control *control, struct member *member)
{
	char label[MEMBER_LABEL_BYTES];

	member->contact->prove_ns = 0;
	if (member->contact->barred)
		return;
	member->contact->barred = true;
	control->counter[COUNTER_members_barred]++;
	log_warn(
		"member %s: no link with it is up since its key or certificate, or the files here, have changed: its connections at the NICs are closed. If it belongs to the cluster, give it the files that the others have",
		member_label(&member->record, label));
	control->member_events->barred(control, member->record.ref);
}
