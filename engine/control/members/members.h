/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members, for the other rooms of the control plane: which engines of the cluster are alive, as
 * far as this engine can tell from its own links, who owns what (placement.h), and who is suspect
 * (suspect.h). README.md beside this file explains the room. Control plane's thread only.
 *
 * Pointers to members and their records are valid until the next turn of the event loop. Times are
 * in ns of CLOCK_MONOTONIC, unless the name says otherwise. What is not declared here is in
 * members_inner.h, which other rooms do not include.
 */
#ifndef CONTROL_MEMBERS_H
#define CONTROL_MEMBERS_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "config/address_text.h"
#include "config/limits.h"
#include "engine/abi/message.pb-c.h"
#include "engine/control/members/placement.h"
#include "engine/control/members/suspect.h"
#include "engine/control/net/address.h"
#include "engine/control/net/rpc.h"

struct member_contact;
struct member_text;

/* ---- one member ------------------------------------------------------------------------------ */

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
	bool plain : 1;   /* its address is `ipv4`, and its name is address:port */
	bool storage : 1; /* its engine.role */
};
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "ref is the low half of incarnation");
static_assert(sizeof(struct member_record) == 24, "an engine keeps one for each member");

/* A member's name, which no other member has, and its address. They point into this struct. */
struct member_texts {
	const char *name, *address;
	char plain[2 * sizeof("255.255.255.255") + sizeof(":65535") - 1];
};
#define MEMBER_LABEL_BYTES (NAME_BYTES_MAX + ADDRESS_TEXT_BYTES + 3)

enum member_state {
	MEMBER_FREE,
	MEMBER_CANDIDATE, /* known from a seed or from gossip; this engine dials it */
	MEMBER_ALIVE,     /* its Hello was received; it is on this engine's map */
	MEMBER_DEAD,      /* it was alive; it is remembered, and dialled at a low rate */
};

/* What the cluster knows of a member; the values of MemberRecord.state. */
enum record_state {
	RECORD_ALIVE,
	RECORD_CLAIMED, /* it is removed at `claim_until_ns`, unless it is admitted anew */
	RECORD_REMOVED,
	RECORD_LEFT,
	RECORD_STATES,
};

enum { PROBE_SMALL, PROBE_PADDED, PROBE_SIZES };

struct member {
	struct member_record record; /* first: member_by_ref() returns it */
	/* never NULL: an entry without one has member_no_contact, which is all zero, read-only */
	struct member_contact *contact;
	union {
		/* candidate: last time that gossip named it; dead member: time of its death */
		uint64_t since_ns;
		/* live member: its term for this engine; 0: not received yet */
		uint64_t term_theirs;
	};
	/* our term for this member: changes when it leaves our map; sent in Hello */
	uint32_t term_ours;
	uint32_t admission; /* counts admissions of this name; 0: it was never a member */
	uint16_t index;     /* of this entry in the table */
	/* the next entry of the same chain: by name (or of the free entries), by ref */
	uint16_t next_name, next_ref;
	uint8_t state : 2; /* an enum member_state */
	uint8_t stage : 2; /* an enum record_state */
	bool proven : 1;   /* it answered a probe, or a dial of this engine reached it */
	bool flood : 1;    /* one of too many of its address: it is not logged */
	bool left : 1; /* the member left the cluster with the message Leave: it is not dialled */
	/* up to MEMBER_MESH_MAX members all are; dead member: it was one when it was removed */
	bool neighbour : 1;
	bool wanted : 1;  /* a link is requested; it is dialled as soon as the limits permit */
	bool changed : 1; /* it is in member.news_list */
};
static_assert(sizeof(struct member) == 56, "10,000 entries have about half of 1 MiB");

/* The probes that this engine sends to a member. Times of its clock. */
struct member_probe {
	/* per size: when the oldest probe without an answer was due; 0: each was answered */
	uint64_t asked_ns[PROBE_SIZES];
	/* the last probe sent: its serial, when, and over which link; NULL: that link has closed */
	uint64_t serial[PROBE_SIZES];
	uint64_t sent_ns[PROBE_SIZES];
	const struct rpc_link *via[PROBE_SIZES];
	/* when the newest probe was sent that the member has answered; 0: none */
	uint64_t served_ns[PROBE_SIZES];
	unsigned turn; /* begins with a random one, so that not all engines send the same size */
};

/*
 * What a member that was removed must do to come back: the same process answers probes for a while,
 * or once, if it was only silent.
 */
struct member_trial {
	uint64_t incarnation; /* that must answer probes before it is a member; 0: none */
	uint64_t began_ns;
	uint64_t needs_ns; /* time for which it must answer all probes; 0: each size once */
	/* of the last removal because it did not serve; 0: there was none */
	uint64_t removed_ns;
	unsigned removals; /* of these, within TRIAL_MEMORY_NS of each other */
	uint64_t since_ns; /* since when it answers all probes; 0: it does not */
};

#define MEMBER_SOFTWARE_BYTES 32 /* limit of Hello.software, with the terminating zero */
/* What this engine has with a member that it dials, talks to, judges or remembers. */
struct member_contact {
	struct member *member;
	unsigned at; /* place in member.contact */
	struct rpc_dial *dial;
	/* link that this engine dialled, after both Hellos were exchanged; NULL: there is none */
	struct rpc_link *out;
	/* link that the member dialled, after both Hellos were exchanged; NULL: there is none */
	struct rpc_link *in;
	char software[MEMBER_SOFTWARE_BYTES]; /* program version; "": not known */
	uint64_t heard_ns;
	bool kept; /* silent, and on the map only because it serves another member */
	struct member_probe probe;
	struct member_trial trial;
	uint64_t claim_until_ns; /* the claim may be refuted at least until then */
	uint64_t claim_trial_ms; /* of the record that claims it */
	unsigned claim_served; /* sizes of probes, as bits, that it has answered since the claim */
	uint64_t accused_ns;   /* when this engine claimed it last; 0: never */
	uint64_t asserted_ns;  /* when this engine admitted it against another record; 0: never */
	uint64_t used_ns;      /* last use of a link with it */
	/* its last link was closed for its key or certificate: it has a good one by then */
	uint64_t prove_ns;
	bool barred; /* its connections at the NICs were closed for that, and no link is up since */
};

/* Every entry without a contact of its own has this one. In read-only memory. */
extern const struct member_contact member_no_contact;
static inline bool member_has_contact(const struct member *member)
{
	return member->contact != &member_no_contact;
}
/* The link for requests to the member; NULL: there is none. */
static inline struct rpc_link *member_link_of(const struct member *member)
{
	return member->contact->out ? member->contact->out : member->contact->in;
}

/* `ret` is valid as long as the record has this name and address. */
void member_texts(const struct member_record *record, struct member_texts *ret);
/* Writes "NAME (ADDRESS:PORT)", for the log. Returns `ret`. */
const char *member_label(const struct member_record *record, char ret[MEMBER_LABEL_BYTES]);
/* Hash of the name of an entry that has one. */
uint64_t member_hash(const struct member *member);
/* True if messages are expected from the live member: heartbeats, answers to probes. */
static inline bool member_watched(const struct member *member)
{
	return !member->record.self && member->neighbour;
}
/*
 * Time since the member's last message. 0 if it owes none: it is this engine, or no neighbour and
 * without a link.
 */
uint64_t member_silent_ns(const struct member *member, uint64_t now_ns);
/* Time for which the oldest probe waits for its answer; 0: none does. */
uint64_t member_unserved_ns(const struct member *member, uint64_t now_ns);
/* Time since a small and a padded probe were sent that the member answered; UINT64_MAX: never. */
uint64_t member_served_age_ns(const struct member *member, uint64_t now_ns);
/* The member is off the map and answers probes before it comes back; its links are up for that. */
bool member_on_trial(const struct member *member);

/* ---- the table ------------------------------------------------------------------------------- */

/*
 * Memory follows use: an entry has 56 bytes, 5 to 7 in the tables that find it, and, unless it is
 * plain, a block with its name and address; what an engine has only with members that it talks to
 * or judges (links, probes, a trial, a claim) is the entry's contact. In a cluster of more than
 * MEMBER_MESH_MAX members few entries have one, and only these are visited by timers.
 */
/* capacity of the member table: live members, candidates and dead members */
#define MEMBER_ENTRIES (2 * NODES_MAX)
static_assert(MEMBER_ENTRIES <= 1u << 15, "an index of an entry has 15 bits");
#define MEMBER_CHUNK 64 /* entries that are allocated at a time; they never move */
#define PEER_FREE (1u << 15)
#define PEER_NONE (PEER_FREE - 1)
static_assert(NODES_MAX <= PEER_NONE, "a peer number has 15 bits");

struct member_table {
	struct member *chunk[MEMBER_ENTRIES / MEMBER_CHUNK];
	unsigned entries; /* entries below this index are in chunks; entry 0 is this engine */
	uint16_t freed;   /* first free entry, chained by next_name; MEMBER_NONE: there is none */
	/* hash tables: first entry of each chain. by_ref has live members only */
	uint16_t *by_name, *by_ref;
	unsigned heads; /* length of each, a power of two, at least MEMBER_BUCKETS */
	struct member_contact **contact;
	unsigned contacts, contacts_room;
	/*
	 * by peer number, below `peers_room`: index of the live member; of a number that is free
	 * again: PEER_FREE and the number that was freed next
	 */
	uint16_t *by_peer;
	unsigned peers_room, peers_used;
	uint16_t peer_first, peer_last; /* the number that was freed first, last; PEER_NONE */
};
/* Readers go through all entries, or all contacts; only this room changes the table. */
const struct member_table *members_table(const struct control *control);
/* The entry with that index, below table->entries. It may be free. */
static inline struct member *member_at(const struct member_table *table, unsigned index)
{
	return &table->chunk[index / MEMBER_CHUNK][index % MEMBER_CHUNK];
}
/* The live member with that ref, or of that peer number; NULL: there is none. */
struct member *member_table_ref(const struct member_table *table, uint32_t ref);
static inline struct member *member_table_peer(const struct member_table *table, unsigned peer)
{
	if (peer >= table->peers_used || table->by_peer[peer] & PEER_FREE)
		return NULL;
	return member_at(table, table->by_peer[peer]);
}
static inline struct member *member_peer(const struct control *control, unsigned peer)
{
	return member_table_peer(members_table(control), peer);
}
/* The same of which only the record is needed. */
const struct member_record *member_by_ref(const struct control *control, uint32_t ref);
const struct member_record *member_by_peer(const struct control *control, uint16_t peer);
/* Number of live members, this engine included. */
unsigned member_count(const struct control *control);
/*
 * True if an engine may be alive that this one has not found yet: one that another engine names,
 * or, while this engine is alone or has just been started, one that a seed may lead to.
 */
bool member_seeking(const struct control *control);
/* When the last heartbeat and the last round of probes ran: late ones prove a pause. */
uint64_t members_tick_ns(const struct control *control);
uint64_t members_probe_ns(const struct control *control);
/* Time between two rounds of probes. */
uint64_t member_probe_period_ns(const struct control *control);

/* ---- links ----------------------------------------------------------------------------------- */

/*
 * Returns the link for requests to member `ref`: the one we dialled, else the one it dialled, else
 * NULL.
 */
struct rpc_link *member_link_now(const struct control *control, uint32_t ref);
/*
 * The same for a request that can wait. If there is no link because the member is no neighbour, it
 * is dialled, and the event `link_up` follows.
 */
struct rpc_link *member_link(struct control *control, uint32_t ref);
/* True if there is no link yet, and member_link() dials. */
bool member_link_soon(const struct control *control, uint32_t ref);
/*
 * Member `ref` has no link, and maybe no key or certificate for one: it is dialled, and loses its
 * connections (event `barred`) if none is up some seconds later.
 */
void member_prove(struct control *control, uint32_t ref);
/* Returns the ref of the member at the other end of a link on which Hellos were exchanged. */
uint32_t member_link_ref(const struct rpc_link *link);

/* ---- the cluster map ------------------------------------------------------------------------- */

/* Returns the current map, as last written to the status segment. */
struct map_view *member_map(const struct control *control);

/* ---- what is wrong, for observe/ ----------------------------------------------------------- */

#define SEED_SILENT_MS 5000u /* from then on a seed that leads to no member is a finding */
#define SEED_WHY_BYTES 144
#define REFUSAL_BYTES 224
#define SEEDS_NAMED 8u    /* seeds that are named; the others are counted */
#define REFUSALS_NAMED 8u /* refused engines that are named */

struct seeds_report {
	unsigned others; /* seeds that may lead to other engines, and sources not read yet */
	unsigned silent; /* part of them that has led to no member for SEED_SILENT_MS */
	unsigned lost;   /* members that are down */
	/* this engine is alone, and has seeds that lead to no member, or members that are down */
	bool unmet;
	uint64_t unmet_ms; /* for how long */
	unsigned named;
	struct {
		char address[ADDRESS_TEXT_BYTES]; /* host:port, or the setting of a source */
		char why[SEED_WHY_BYTES];
		uint64_t ms; /* for how long */
	} seed[SEEDS_NAMED];
};
void seeds_report(const struct control *control, uint64_t now_ns, struct seeds_report *ret);

struct refusals_report {
	unsigned engines; /* that are refused, or refuse this one */
	unsigned named;
	struct refusal_report {
		char from[NAME_BYTES_MAX];
		char text[REFUSAL_BYTES];
		bool theirs; /* the other engine refuses this one */
		uint64_t ms; /* for how long */
	} engine[REFUSALS_NAMED];
};
void refusals_report(const struct control *control, uint64_t now_ns, struct refusals_report *ret);

/* ---- events ---------------------------------------------------------------------------------- */

/*
 * What rooms above do when members come and go: control->member_events, of upward.c. Every function
 * is set, may call any function of this header, and copes with parts of the engine that are not
 * open.
 */
struct member_events {
	/* Its links are closed. The entry may be used for another member. */
	void (*gone)(struct control *control, uint16_t peer, uint32_t ref);
	/*
	 * A link with a live member is up: it has sent this Hello. epochs_heard(),
	 * directory_link_up(), conns_link_up().
	 */
	void (*link_up)(struct control *control, struct rpc_link *link, const Pc__Hello *hello);
	/* A link with a live or dead member, not one on trial, has closed. */
	void (*link_down)(struct control *control, uint16_t peer, const struct rpc_link *link);
	/* The member has lost its right to links with this engine: conns_forgotten(). */
	void (*barred)(struct control *control, uint32_t ref);
	/* Member `ref` had removed this engine from its map, and its entries from its shard. */
	void (*forgotten)(struct control *control, uint32_t ref);
	/* member_map() returns another map: directory_map_changed(). */
	void (*map_changed)(struct control *control);
	/* The member has answered a probe, and none waits for too long (`served`), or one does. */
	void (*probed)(struct control *control, uint16_t peer, bool served);
	/* True if a request to the member waits too long for its acknowledgement: it is probed. */
	bool (*overdue)(const struct control *control, uint16_t peer);
	/* Adds to a Hello what rooms above say in it: epochs_say(). */
	void (*say)(const struct control *control, Pc__Hello *hello);
};

/* ---- addresses of members, for the next engine ----------------------------------------------- */

#define REMEMBERED_MAX 32
/*
 * The address of a member, in memory that outlives the process: another version may have written
 * it, or half of it. It is used if `check` is right.
 */
struct remembered {
	uint64_t check;    /* hash of the address, and of what tells where this engine belongs */
	uint64_t until_ns; /* of CLOCK_MONOTONIC: it is forgotten then */
	struct seed_address address;
	uint16_t pad[3];
};
static_assert(sizeof(struct remembered) == 88, "versions of the engine share them");

/* ---- open, close, heartbeat ------------------------------------------------------------------ */

/* Finds mistakes in cluster.seeds. Returns 0 or -errno, after logging. Uses no network. */
int member_seeds_check(struct control *control);
int members_open(struct control *control);
void members_close(struct control *control);
/* Addresses of engines to join, beside cluster.seeds: cluster.seeds_file and cluster.etcd. */
int seeds_file_open(struct control *control);
void seeds_file_close(struct control *control);
int etcd_open(struct control *control);
void etcd_close(struct control *control);
/*
 * Called by the heartbeat: sends heartbeats, and removes members that are silent. False: this
 * engine is leaving, and the heartbeat does nothing more.
 */
bool members_tick(struct control *control, uint64_t now_ns);
/*
 * Dials each seed that does not lead to a live member or a candidate of the table; none while the
 * own memory is being registered. Called when that is done (memory_export_done()), at each
 * heartbeat after members_tick(), for a new list of seeds, and by members_open().
 */
void member_seeds_tick(struct control *control, uint64_t now_ns);
/* Sends the message Leave to every member, so that they take this engine off their maps at once. */
void member_leave(struct control *control);

/* ---- links and messages, called from below --------------------------------------------------- */

/* Messages of other engines, from upward.c; false: the message breaks a rule. */
bool member_hello(struct control *control, struct rpc_link *link, const Pc__Hello *hello);
/*
 * A further Hello on a link that is up: the member at its end refuses this engine. False: it is no
 * refusal, which breaks a rule.
 */
bool member_refused(struct control *control, struct rpc_link *link, const Pc__Hello *hello);
bool member_heartbeat(struct control *control, struct rpc_link *link, const Pc__Heartbeat *beat);
bool member_news(struct control *control, struct rpc_link *link, const Pc__MemberNews *news);
bool member_list_ask(struct control *control, struct rpc_link *link, const Pc__ListAsk *ask);
bool member_list_page(struct control *control, struct rpc_link *link, const Pc__ListPage *page);
bool member_left(struct control *control, struct rpc_link *link);
bool member_probe_serve(struct control *control, struct rpc_link *link, const Pc__Probe *probe);
bool member_probe_ack(struct control *control, struct rpc_link *link, const Pc__ProbeAck *ack);
/* A message of a member on trial: only probes are served. */
bool member_trial_serve(struct rpc_link *link, const Pc__Message *message);

/* A message has arrived on the link. */
void member_heard(struct control *control, struct rpc_link *link);
/*
 * Sends our Hello, the first message on the link: when a dialled link is connected, and when an
 * accepted one has said Hello.
 */
void member_greet(struct control *control, struct rpc_link *link);
void member_link_down(struct control *control, struct rpc_link *link);
/* A dial has failed with this errno, and is tried again. This may end the dial. */
void member_dial_failed(struct control *control, struct rpc_dial *dial, int error);

#endif
