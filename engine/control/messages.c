/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens when something arrives from another engine. message_serve() names the function that
 * serves each message. Control plane's thread only.
 *
 * A function that serves a message returns false when the message breaks a rule; net/ then closes
 * the link. It may close links itself, that of the message included.
 */
#include "engine/control/control_inner.h"

#include "engine/control/clients/clients.h"
#include "engine/control/conns/conns.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/net/rpc.h"
#include "engine/control/observe/observe.h"
#include "engine/control/pages/pages.h"

/* ---- messages -------------------------------------------------------------------------------- */

#define SERVE(KIND, call)                                                                          \
	case PC__MESSAGE__BODY_##KIND: return call

/* Messages of a member. Those that are not listed break a rule. */
static bool message_serve(struct rpc_link *link, const Pc__Message *m)
{
	struct control *control = link->control;

	switch (m->body_case) {
		/* members */
		SERVE(HEARTBEAT, member_heartbeat(control, link, m->heartbeat));
		SERVE(MEMBER_NEWS, member_news(control, link, m->member_news));
		SERVE(LIST_ASK, member_list_ask(control, link, m->list_ask));
		SERVE(LIST_PAGE, member_list_page(control, link, m->list_page));
		SERVE(LEAVE, member_left(control, link));
		SERVE(PROBE_ACK, member_probe_ack(control, link, m->probe_ack));
		/* directory */
		SERVE(PUBLISH, directory_serve_publish(control, link, m->publish));
		SERVE(REMOVE, directory_serve_remove(control, link, m->remove));
		SERVE(ACK, directory_serve_ack(control, link, m->ack));
		SERVE(TOUCH, directory_serve_touch(control, link, m->touch));
		SERVE(FORGET, directory_serve_forget(control, link, m->forget));
		SERVE(DIGEST_ASK, directory_serve_digest_ask(control, link, m->digest_ask));
		SERVE(DIGEST, directory_serve_digest(control, link, m->digest));
		SERVE(ENTRIES_ASK, directory_serve_entries_ask(control, link, m->entries_ask));
		SERVE(ENTRIES, directory_serve_entries(control, link, m->entries));
		SERVE(RELAY, directory_serve_relay(control, link, m->relay));
		SERVE(RELAYED, directory_serve_relayed(control, link, m->relayed));
		SERVE(PROBE, member_probe_serve(control, link, m->probe));
		SERVE(TOLD, removals_serve_told(control, link, m->told));
		/* connections */
		SERVE(CONNECT, conn_accept(control, link, m->connect));
		SERVE(CONNECTED, conn_accept_connected(control, link, m->connected));
		SERVE(DISCONNECT, conn_accept_disconnect(control, link, m->disconnect));
		/* pages */
		SERVE(PROMOTE, tier_serve_promote(control, link, m->promote));
		SERVE(PROMOTED, promote_serve_promoted(control, link, m->promoted));
		/* clients that empty the cluster */
		SERVE(CLEAR, clear_serve_member(control, link, m->clear));
		SERVE(CLEARED, clear_serve_cleared(control, link, m->cleared));
		/* view of the cluster */
		SERVE(SUMMARY_ASK, view_serve_ask(control, link));
		SERVE(SUMMARY, view_serve_summary(control, link, m->summary));
		SERVE(HELLO, member_refused(control, link, m->hello));
		SERVE(_NOT_SET, false);
	default: return false;
	}
}

bool message_arrived(struct rpc_link *link, const Pc__Message *message)
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
