/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits the input of a link into frames, decodes each into a message and calls its handler.
 * Control plane's thread only.
 *
 * A message is decoded into one arena of fixed size, which is reused for the next message: a frame
 * that would need more memory than that fails like any other malformed one, and nothing has to be
 * freed.
 */
#include <arpa/inet.h>
#include <string.h>

#include "engine/control/conns/conns.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/member.h"
#include "engine/control/pages/pages.h"
#include "engine/control/directory/removals.h"
#include "engine/control/observe/observe.h"

/* Memory of the decoded message. Only what large messages use of it is ever touched. */
static alignas(16) uint8_t arena_memory[RPC_ARENA_BYTES];

static void *arena_alloc(void *context, size_t bytes)
{
	size_t *used = context, room = sizeof(arena_memory) - *used;
	void *at = arena_memory + *used;

	if (bytes > room || ((bytes + 15) & ~(size_t)15) > room)
		return NULL;
	*used += (bytes + 15) & ~(size_t)15;
	return at;
}

static void arena_free(void *context, void *at)
{
	(void)context;
	(void)at;
}

static bool serve_member(struct rpc_link *link, const Pc__Message *m)
{
	struct control *control = link->control;

	switch (m->body_case) {
	case PC__MESSAGE__BODY_HEARTBEAT: return member_heartbeat(control, link, m->heartbeat);
	case PC__MESSAGE__BODY_MEMBERS: return member_members(control, link, m->members);
	case PC__MESSAGE__BODY_MEMBER_NEWS: return member_news(control, link, m->member_news);
	case PC__MESSAGE__BODY_LIST_ASK: return member_list_ask(control, link, m->list_ask);
	case PC__MESSAGE__BODY_LIST_PAGE: return member_list_page(control, link, m->list_page);
	case PC__MESSAGE__BODY_LEAVE: return member_left(control, link);
	case PC__MESSAGE__BODY_PUBLISH: return directory_serve_publish(control, link, m->publish);
	case PC__MESSAGE__BODY_REMOVE: return directory_serve_remove(control, link, m->remove);
	case PC__MESSAGE__BODY_ACK: return directory_serve_ack(control, link, m->ack);
	case PC__MESSAGE__BODY_TOUCH: return directory_serve_touch(control, link, m->touch);
	case PC__MESSAGE__BODY_FORGET: return directory_serve_forget(control, link, m->forget);
	case PC__MESSAGE__BODY_DIGEST_ASK:
		return directory_serve_digest_ask(control, link, m->digest_ask);
	case PC__MESSAGE__BODY_DIGEST: return directory_serve_digest(control, link, m->digest);
	case PC__MESSAGE__BODY_ENTRIES_ASK:
		return directory_serve_entries_ask(control, link, m->entries_ask);
	case PC__MESSAGE__BODY_ENTRIES: return directory_serve_entries(control, link, m->entries);
	case PC__MESSAGE__BODY_RELAY: return directory_serve_relay(control, link, m->relay);
	case PC__MESSAGE__BODY_RELAYED: return directory_serve_relayed(control, link, m->relayed);
	case PC__MESSAGE__BODY_PROBE: return directory_serve_probe(control, link, m->probe);
	case PC__MESSAGE__BODY_PROBE_ACK: return member_probe_ack(control, link, m->probe_ack);
	case PC__MESSAGE__BODY_CONNECT: return conn_accept(control, link, m->connect);
	case PC__MESSAGE__BODY_CONNECTED: return conn_accept_connected(control, link, m->connected);
	case PC__MESSAGE__BODY_DISCONNECT:
		return conn_accept_disconnect(control, link, m->disconnect);
	case PC__MESSAGE__BODY_PROMOTE: return tier_serve_promote(control, link, m->promote);
	case PC__MESSAGE__BODY_PROMOTED: return promote_serve_promoted(control, link, m->promoted);
	case PC__MESSAGE__BODY_SUMMARY_ASK: return view_serve_ask(control, link);
	case PC__MESSAGE__BODY_SUMMARY: return view_serve_summary(control, link, m->summary);
	case PC__MESSAGE__BODY_TOLD: return removals_serve_told(control, link, m->told);
	case PC__MESSAGE__BODY_HELLO:
	case PC__MESSAGE__BODY__NOT_SET:
	default: return false;
	}
}

bool rpc_serve(struct rpc_link *link, const Pc__Message *message)
{
	if (link->up && link->member && member_on_trial(link->member))
		return member_trial_serve(link, message);
	if (link->up)
		return serve_member(link, message);
	return message->body_case == PC__MESSAGE__BODY_HELLO &&
	       member_hello(link->control, link, message->hello);
}

static void frame(struct rpc_link *link, const uint8_t *bytes, size_t length)
{
	size_t used = 0;
	ProtobufCAllocator arena = {
		.alloc = arena_alloc, .free = arena_free, .allocator_data = &used};
	Pc__Message *message;
	unsigned kind;

	message = pc__message__unpack(&arena, length, bytes);
	if (!message) {
		rpc_link_bad(link, "%zu bytes that are no message", length);
		return;
	}
	link->control->counter[COUNTER_messages_in]++;
	if (link->member)
		member_heard(link->control, link);
	kind = (unsigned)message->body_case;
	if (!rpc_serve(link, message))
		rpc_link_bad(link, "message of kind %u out of place or malformed", kind);
}

void rpc_frames(struct rpc_link *link)
{
	while (!link->closed) {
		uint32_t max = link->up ? MESSAGE_BYTES_MAX : RPC_HELLO_BYTES_MAX;
		size_t have = net_received(link->net);
		const uint8_t *bytes;
		uint32_t length;

		if (have < 4)
			break;
		bytes = net_front(link->net, 4);
		if (!bytes) {
			rpc_link_bad(link, "no memory for the length of a message");
			return;
		}
		memcpy(&length, bytes, 4);
		length = ntohl(length);
		if (length == 0 || length > max) {
			rpc_link_bad(
				link, "a message of %u bytes, at most %u are served", length, max);
			return;
		}
		if (have - 4 < length) {
			net_want(link->net, (size_t)length + 4);
			return;
		}
		bytes = net_front(link->net, (size_t)length + 4);
		if (!bytes) {
			rpc_link_bad(link, "no memory for a message of %u bytes", length);
			return;
		}
		frame(link, bytes + 4, length);
		net_drain(link->net, (size_t)length + 4);
	}
	if (!link->closed)
		net_want(link->net, 4);
}
