/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the other files of this folder may know and call of the members: member.h and
 * member_table.h are for member*.c. Control plane's thread only.
 */
#ifndef CONTROL_MEMBERS_H
#define CONTROL_MEMBERS_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/abi/message.pb-c.h"
#include "config/address_text.h"

struct control;
struct map_view;
struct member_text;
struct rpc_dial;
struct rpc_link;

/* What the others need of one member. */
struct member_record {
	/* name and address: member_texts() */
	union {
		struct member_text *text; /* NULL: the record has no name yet */
		uint8_t ipv4[4];          /* `plain` */
	};
	union {
		uint64_t incarnation; /* identity of this start of the member's engine */
		uint32_t ref;         /* its low half; directory entries name the member by it */
	};
	uint16_t peer; /* number by which this engine knows the live member, below NODES_MAX */
	uint16_t port;
	uint8_t rails;       /* number of rails of the member */
	uint8_t bucket_bits; /* log2 of the number of buckets of its shard, 0..31 */
	bool self : 1;       /* the member is this engine */
	bool alive : 1;
	bool plain : 1; /* its address is `ipv4`, and its name is address:port */
};
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "ref is the low half of incarnation");
static_assert(sizeof(struct member_record) == 24, "an engine keeps one for each member");

/* A member's name, which no other member has, and its address. They point into this struct. */
struct member_texts {
	const char *name, *address;
	char plain[2 * sizeof("255.255.255.255") + sizeof(":65535") - 1];
};
/* `ret` is valid as long as the record has this name and address. */
void member_texts(const struct member_record *record, struct member_texts *ret);
#define MEMBER_LABEL_BYTES (NAME_BYTES_MAX + ADDRESS_TEXT_BYTES + 3)
/* Writes "NAME (ADDRESS:PORT)", for the log. Returns `ret`. */
const char *member_label(const struct member_record *record, char ret[MEMBER_LABEL_BYTES]);
/* Returns NULL if no live member has that ref. The pointer is valid until the next turn. */
const struct member_record *member_by_ref(const struct control *control, uint32_t ref);
const struct member_record *member_by_peer(const struct control *control, uint16_t peer);
/* Number of live members, this engine included. */
unsigned member_count(const struct control *control);
/*
 * True if an engine may be alive that this one has not found yet: one that another engine names,
 * or, while this engine is alone or has just been started, one that a seed may lead to.
 */
bool member_seeking(const struct control *control);
/* Returns the current map, as last written to the status segment. */
struct map_view *member_map(const struct control *control);

int members_open(struct control *control);
void members_close(struct control *control);
/*
 * Called by the heartbeat: sends heartbeats, dials, and removes members that are silent. False:
 * this engine is leaving, and the heartbeat does nothing more.
 */
bool members_tick(struct control *control, uint64_t now_ns);
/* Sends the message Leave to every member, so that they take this engine off their maps at once. */
void member_leave(struct control *control);
/* Addresses of engines to join, beside cluster.seeds: cluster.seeds_file and cluster.etcd. */
int seeds_file_open(struct control *control);
void seeds_file_close(struct control *control);
int etcd_open(struct control *control);
void etcd_close(struct control *control);

/* ---- called by messages.c -------------------------------------------------------------------- */

/* Messages of other engines, from messages.c; false: the message breaks a rule. */
bool member_hello(struct control *control, struct rpc_link *link, const Pc__Hello *hello);
bool member_heartbeat(struct control *control, struct rpc_link *link, const Pc__Heartbeat *beat);
bool member_members(struct control *control, struct rpc_link *link, const Pc__Members *members);
bool member_news(struct control *control, struct rpc_link *link, const Pc__MemberNews *news);
bool member_list_ask(struct control *control, struct rpc_link *link, const Pc__ListAsk *ask);
bool member_list_page(struct control *control, struct rpc_link *link, const Pc__ListPage *page);
bool member_left(struct control *control, struct rpc_link *link);
bool member_probe_ack(struct control *control, struct rpc_link *link, const Pc__ProbeAck *ack);

/* A message has arrived on the link. */
void member_heard(struct control *control, struct rpc_link *link);
/* Called when a dialled link is connected: sends our Hello, the first message on the link. */
void member_greet(struct control *control, struct rpc_link *link);
void member_link_down(struct control *control, struct rpc_link *link);
void member_dial_failed(struct control *control, struct rpc_dial *dial, int error);

#endif
