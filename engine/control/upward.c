/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rooms call of rooms above them, which they do not know: one table for each room, in struct
 * control. message_serve() names the function that serves each message of another engine. Links and
 * members come before the other rooms are open, and go after they are closed: these events leave
 * out what is not open. Pages and clients are opened last and closed first, so the other events
 * find all rooms open. Control plane's thread only.
 */
#include "engine/control/control_inner.h"

#include "engine/control/clients/clients.h"
#include "engine/control/conns/conns.h"
#include "engine/control/copies/copies.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/net/rpc.h"
#include "engine/control/observe/observe.h"
#include "engine/control/pages/pages.h"

/* ---- members come and go --------------------------------------------------------------------- */

static void upward_member_gone(struct control *control, uint16_t peer, uint32_t ref)
{
	copies_peer_leaves(control, peer, false);
	if (control->directory)
		directory_member_gone(control, peer, ref);
	if (control->conns)
		conns_member_gone(control, peer, ref);
}

static void upward_link_up(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	const struct member *member = link->member;

	epochs_heard(control, hello);
	directory_link_up(control, member->record.peer);
	if (control->conns)
		conns_link_up(control, member->record.ref);
}

static void upward_link_down(struct control *control, uint16_t peer, const struct rpc_link *link)
{
	copies_link_down(control, link);
	copies_peer_leaves(control, peer, false); /* its heartbeats tell, once there is a link */
	directory_link_down(control, peer, link);
}

static void upward_barred(struct control *control, uint32_t ref)
{
	if (control->conns)
		conns_forgotten(control, ref);
}

static void upward_rights(struct control *control)
{
	if (control->conns)
		conns_prove(control);
}

/* It ended its connections with this engine, too. */
static void upward_forgotten(struct control *control, uint32_t ref)
{
	directory_forgotten(control, ref);
	if (control->conns)
		conns_forgotten(control, ref);
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

/*
 * ---- messages of other engines -----------------------------------------------------------------
 *
 * A function that serves a message returns false when the message breaks a rule; net/ then closes
 * the link. It may close links itself, that of the message included.
 */

#define SERVE(KIND, call)                                                                          \
	case PC__MESSAGE__BODY_##KIND: return call

/* Messages of a member. Those that are not listed break a rule. */
static bool message_serve(struct rpc_link *link, const Pc__Message *m)
{
	struct control *control = link->control;

	switch (m->body_case) {
		/* members */
		SERVE(HEARTBEAT, copies_serve_heartbeat(control, link, m->heartbeat) &&
					 member_heartbeat(control, link, m->heartbeat));
		SERVE(MEMBER_NEWS, member_news(control, link, m->member_news));
		SERVE(LIST_ASK, member_list_ask(control, link, m->list_ask));
		SERVE(LIST_PAGE, member_list_page(control, link, m->list_page));
		SERVE(HELLO, member_refused(control, link, m->hello));
		SERVE(LEAVE, member_left(control, link));
		SERVE(PROBE, member_probe_serve(control, link, m->probe));
		SERVE(PROBE_ACK, member_probe_ack(control, link, m->probe_ack));
		/* directory */
		SERVE(PUBLISH, directory_serve_publish(control, link, m->publish));
		SERVE(REMOVE, directory_serve_remove(control, link, m->remove));
		SERVE(ACK, directory_serve_ack(control, link, m->ack));
		SERVE(TOUCH, directory_serve_touch(control, link, m->touch) &&
				     copies_serve_touch(control, link, m->touch));
		SERVE(FORGET, directory_serve_forget(control, link, m->forget));
		SERVE(DIGEST_ASK, directory_serve_digest_ask(control, link, m->digest_ask));
		SERVE(DIGEST, directory_serve_digest(control, link, m->digest));
		SERVE(ENTRIES_ASK, directory_serve_entries_ask(control, link, m->entries_ask));
		SERVE(ENTRIES, directory_serve_entries(control, link, m->entries));
		SERVE(EPOCHS, epochs_serve(control, link, m->epochs));
		/* connections */
		SERVE(CONNECT, conn_accept(control, link, m->connect));
		SERVE(CONNECTED, conn_accept_connected(control, link, m->connected));
		SERVE(DISCONNECT, conn_accept_disconnect(control, link, m->disconnect));
		/* pages */
		SERVE(PROMOTE, tier_serve_promote(control, link, m->promote));
		SERVE(PROMOTED, promote_serve_promoted(control, link, m->promoted));
		/* copies */
		SERVE(OFFER, copies_serve_offer(control, link, m->offer));
		SERVE(OFFERED, copies_serve_offered(control, link, m->offered));
		/* clients that empty the cluster */
		SERVE(CLEAR, clear_serve_member(control, link, m->clear));
		SERVE(CLEARED, clear_serve_cleared(control, link, m->cleared));
		/* view of the cluster */
		SERVE(SUMMARY_ASK, view_serve_ask(control, link));
		SERVE(SUMMARY, view_serve_summary(control, link, m->summary));
		SERVE(_NOT_SET, false);
	default: return false;
	}
}

/*
 * Serves a message of another engine. The first message of a link is a Hello. Until a member has
 * shown that it serves (it is on trial), only members/ serves its messages. False: the message
 * breaks a rule.
 */
static bool message_arrived(struct rpc_link *link, const Pc__Message *message)
{
	if (link->member)
		member_heard(link->control, link);
	if (link->up && link->member && member_on_trial(link->member))
		return member_trial_serve(link, message);
	if (link->up)
		return message_serve(link, message);
	return message->body_case == PC__MESSAGE__BODY_HELLO &&
	       member_hello(link->control, link, message->hello);
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
	.gone = upward_member_gone,
	.link_up = upward_link_up,
	.link_down = upward_link_down,
	.barred = upward_barred,
	.forgotten = upward_forgotten,
	.map_changed = upward_map_changed,
	.probed = directory_probed,
	.overdue = directory_overdue,
	.say = epochs_say,
};

static const struct rpc_events rpc_events = {
	.message = message_arrived,
	.connected = member_greet,
	.down = member_link_down,
	.rights = upward_rights,
	.dial_failed = member_dial_failed,
};

void upward_fill(struct control *control)
{
	control->client_events = &client_events;
	control->pages_events = &pages_events;
	control->member_events = &member_events;
	control->rpc_events = &rpc_events;
}
