/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links with members that are no neighbours: dialled when they are needed, a few at a time, and
 * closed when they are idle. Control plane's thread only.
 */
#include "engine/control/members/member.h"

bool member_watched(const struct control *control, const struct member *member)
{
	return !member->record.self && (!control->members->rings || member->neighbour);
}

uint64_t member_silent_ns(
	const struct control *control, const struct member *member, uint64_t now_ns)
{
	bool linked = member_link_of(member) != NULL;

	if (member->record.self || (!member_watched(control, member) && !linked))
		return 0;
	return now_ns > member->contact->heard_ns ? now_ns - member->contact->heard_ns : 0;
}

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
	if (!link && control->members->rings)
		demand_dial(control, member);
	return link;
}

bool member_link_soon(const struct control *control, uint32_t ref)
{
	const struct member_record *record = member_by_ref(control, ref);
	const struct member *member;

	if (!record || record->self || !control->members->rings)
		return false;
	member = member_peer(control, record->peer);
	return member->wanted && !member_link_of(member);
}

void member_unused(struct member_contact *contact, uint64_t now_ns)
{
	uint64_t then_ns = now_ns - (MEMBER_IDLE_NS - MEMBER_UNUSED_NS);

	if (contact->used_ns < then_ns)
		contact->used_ns = then_ns;
}

void member_demand_tick(struct control *control, struct member *member, uint64_t now_ns)
{
	bool linked = member_link_of(member) != NULL;

	if (!control->members->rings || member->neighbour)
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
