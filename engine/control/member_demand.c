/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links with members that are no neighbours: dialled when they are needed, a few at a time, and
 * closed when they are idle. Control plane's thread only.
 */
#include "engine/control/member.h"

bool member_watched(const struct control *control, const struct member_entry *entry)
{
	return !entry->record.map.self && (!control->member->rings || entry->neighbour);
}

uint64_t member_silent_ns(
	const struct control *control, const struct member_entry *entry, uint64_t now_ns)
{
	bool linked = entry->out || entry->in;

	if (entry->record.map.self || (!member_watched(control, entry) && !linked))
		return 0;
	return now_ns > entry->heard_ns ? now_ns - entry->heard_ns : 0;
}

static void demand_dial(struct control *control, struct member_entry *entry)
{
	struct member *member = control->member;

	entry->wanted = true;
	if (entry->dial || !member->dials)
		return;
	member->dials--;
	member_entry_dial(control, entry, false);
}

struct rpc_link *member_link(struct control *control, uint32_t ref)
{
	struct rpc_link *link = member_link_now(control, ref);
	const struct member_record *record = member_by_ref(control, ref);
	struct member_entry *entry;

	if (!record || record->map.self)
		return link;
	entry = control->member->by_peer[record->map.peer];
	entry->used_ns = net_now();
	if (!link && control->member->rings)
		demand_dial(control, entry);
	return link;
}

bool member_link_soon(const struct control *control, uint32_t ref)
{
	const struct member_record *record = member_by_ref(control, ref);
	const struct member_entry *entry;

	if (!record || record->map.self || !control->member->rings)
		return false;
	entry = control->member->by_peer[record->map.peer];
	return entry->wanted && !entry->out && !entry->in;
}

void member_demand_tick(struct control *control, struct member_entry *entry, uint64_t now_ns)
{
	bool linked = entry->out || entry->in;

	if (!control->member->rings || entry->neighbour)
		return;
	if (entry->state == MEMBER_DEAD && !linked) {
		rpc_dial_stop(entry->dial);
		entry->dial = NULL;
	}
	if (entry->state != MEMBER_ALIVE)
		return;
	if (linked)
		entry->wanted = false;
	if (entry->wanted && !entry->dial)
		demand_dial(control, entry);
	if (!entry->dial || now_ns - entry->used_ns < MEMBER_IDLE_NS)
		return;
	entry->wanted = false;
	rpc_dial_stop(entry->dial);
	entry->dial = NULL;
}
