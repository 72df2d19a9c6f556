/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rooms call of rooms above them, which they do not know: one table for each room, in struct
 * control. Links and members come before the other rooms are open, and go after they are closed:
 * these events leave out what is not open. Pages and clients are opened last and closed first, so
 * the other events find all rooms open. Control plane's thread only.
 */
#include "engine/control/control_inner.h"

#include "engine/control/clients/clients.h"
#include "engine/control/conns/conns.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/net/rpc.h"
#include "engine/control/observe/observe.h"
#include "engine/control/pages/pages.h"

/* ---- members come and go --------------------------------------------------------------------- */

static void upward_member_gone(struct control *control, uint16_t peer, uint32_t ref)
{
	if (control->directory)
		directory_member_gone(control, peer, ref);
	if (control->conns)
		conns_member_gone(control, peer, ref);
}

static void upward_link_up(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	const struct member *member = link->member;

	removals_hello(control, link, hello);
	directory_link_up(control, member->record.peer);
	if (control->conns)
		conns_link_up(control, member->record.ref);
}

static void upward_map_changed(struct control *control)
{
	if (control->directory)
		directory_map_changed(control);
}

/* Once the connections are closed, no rail is left to take out. */
static void upward_nic_lost(struct control *control, unsigned rail, const char *why)
{
	if (control->conns)
		rail_lost(control, rail, "%s", why);
}

/* ---- the tables ------------------------------------------------------------------------------ */

static const struct client_events client_events = {
	.nic_lost = upward_nic_lost,
	.report = snapshot_report,
};

static const struct pages_events pages_events = {
#define EVENT(member, function) .member = function,
#include "engine/control/upward_pages.def"
#undef EVENT
};

enum {
#define EVENT(member, function) +1
	PAGES_EVENTS = 0
#include "engine/control/upward_pages.def"
#undef EVENT
};
static_assert(sizeof(pages_events) == PAGES_EVENTS * sizeof(void (*)(void)), "each has a row");

static const struct member_events member_events = {
	.up = removals_member_up,
	.admitted = removals_member_admitted,
	.leaving = removals_member_left,
	.gone = upward_member_gone,
	.link_up = upward_link_up,
	.link_down = directory_link_down,
	.forgotten = directory_forgotten,
	.forgotten_by_all = directory_forgotten_by_all,
	.map_changed = upward_map_changed,
	.probed = directory_probed,
	.overdue = directory_overdue,
	.has_pages = removals_wanted,
};

static const struct rpc_events rpc_events = {
	.message = message_arrived,
	.connected = member_greet,
	.former = member_former,
	.down = member_link_down,
	.dial_failed = member_dial_failed,
};

void upward_fill(struct control *control)
{
	control->client_events = &client_events;
	control->pages_events = &pages_events;
	control->member_events = &member_events;
	control->rpc_events = &rpc_events;
}
