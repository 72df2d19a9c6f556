/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens in the directory and to connections when members come, go and are probed: fills
 * struct member_events. A part that is not open yet, or is closed already, is left out.
 * Control plane's thread only.
 */
#include "engine/control/member_events.h"

#include "engine/control/conns/conns.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"

static void member_event_gone(struct control *control, uint16_t peer, uint32_t ref)
{
	if (control->directory)
		directory_member_gone(control, peer, ref);
	if (control->conns)
		conns_member_gone(control, peer, ref);
}

static void member_event_link_up(
	struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	const struct member *member = link->member;

	removals_hello(control, link, hello);
	directory_link_up(control, member->record.peer, member->disk);
	if (control->conns)
		conns_link_up(control, member->record.ref);
}

static void member_event_map_changed(struct control *control)
{
	if (control->directory)
		directory_map_changed(control);
}

static const struct member_events member_events = {
	.up = removals_member_up,
	.told = removals_member_told,
	.leaving = removals_member_left,
	.gone = member_event_gone,
	.link_up = member_event_link_up,
	.link_down = directory_link_down,
	.forgotten = directory_forgotten,
	.map_changed = member_event_map_changed,
	.probed = directory_probed,
	.overdue = directory_overdue,
	.has_pages = removals_wanted,
};

int control_members_open(struct control *control)
{
	return members_open(control, &member_events);
}
