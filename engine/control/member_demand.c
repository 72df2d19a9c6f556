/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links with members that are no neighbours: dialled when they are needed, a few at a time, and
 * closed when they are idle. Control plane's thread only.
 */
#include "engine/control/member.h"

bool member_watched(const struct control *control, const struct member_entry *entry)
{
	return !entry->record.self && (!control->member->rings || entry->neighbour);
}

uint64_t member_silent_ns(
	const struct control *control, const struct member_entry *entry, uint64_t now_ns)
{
	bool linked = member_entry_link(entry) != NULL;

	if (entry->record.self || (!member_watched(control, entry) && !linked))
		return 0;
	return now_ns > entry->contact->heard_ns ? now_ns - entry->contact->heard_ns : 0;
}

static void demand_dial(struct control *control, struct member_entry *entry)
{
	struct member *member = control->member;

	entry->wanted = true;
	if (entry->contact->dial || !member->dials)
		return;
	member->dials--;
	member_entry_dial(control, entry, false);
}

struct rpc_link *member_link(struct control *control, uint32_t ref)
{
	struct rpc_link *link = member_link_now(control, ref);
	const struct member_record *record = member_by_ref(control, ref);
	struct member_contact *contact;
	struct member_entry *entry;

	if (!record || record->self)
		return link;
	entry = member_peer(control, record->peer);
	contact = member_contact(&control->member->table, entry);
	if (!contact)
		return link;
	contact->used_ns = net_now();
	if (!link && control->member->rings)
		demand_dial(control, entry);
	return link;
}

bool member_link_soon(const struct control *control, uint32_t ref)
{
	const struct member_record *record = member_by_ref(control, ref);
	const struct member_entry *entry;

	if (!record || record->self || !control->member->rings)
		return false;
	entry = member_peer(control, record->peer);
	return entry->wanted && !member_entry_link(entry);
}

void member_unused(struct member_contact *contact, uint64_t now_ns)
{
	uint64_t then_ns = now_ns - (MEMBER_IDLE_NS - MEMBER_UNUSED_NS);

	if (contact->used_ns < then_ns)
		contact->used_ns = then_ns;
}

void member_demand_tick(struct control *control, struct member_entry *entry, uint64_t now_ns)
{
	bool linked = member_entry_link(entry) != NULL;

	if (!control->member->rings || entry->neighbour)
		return;
	if (entry->state == MEMBER_DEAD && !linked)
		member_dial_stop(entry);
	if (entry->state != MEMBER_ALIVE)
		return;
	if (linked)
		entry->wanted = false;
	if (entry->wanted && !entry->contact->dial)
		demand_dial(control, entry);
	if (!entry->contact->dial || now_ns - entry->contact->used_ns < MEMBER_IDLE_NS)
		return;
	entry->wanted = false;
	member_dial_stop(entry);
}
