/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The member table: what this engine knows of each member. Memory follows use: an entry has 56
 * bytes, 5 to 7 in the tables that find it, and, unless it is plain, a block with its name and
 * address; what an engine has only with members that it talks to or judges (links, probes, a trial,
 * a claim) is the entry's contact. In a cluster of more than MEMBER_MESH_MAX members few entries
 * have one, and only these are visited by timers. Control plane's thread only.
 */
#ifndef CONTROL_MEMBER_TABLE_H
#define CONTROL_MEMBER_TABLE_H

#include "engine/control/members/members.h"
#include "engine/control/net/rpc.h"
#include "engine/control/members/suspect.h"

/* capacity of the member table: live members, candidates and dead members */
#define MEMBER_ENTRIES (2 * NODES_MAX)
#define MEMBER_CHUNK 64          /* entries that are allocated at a time; they never move */
#define MEMBER_SOFTWARE_BYTES 32 /* limit of Hello.software, with the terminating zero */
#define MEMBER_NONE UINT16_MAX   /* no entry: ends a chain of a hash table */
static_assert(MEMBER_ENTRIES <= 1u << 15, "an index of an entry has 15 bits");
/* Buckets of the member list, see ListAsk; more above MEMBER_BUCKETS_FEW members. */
#define MEMBER_BUCKETS 64
#define MEMBER_BUCKETS_MAX 512
#define MEMBER_BUCKETS_FEW 2048

struct members;
struct member_contact;

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
	uint8_t state : 2;  /* an enum member_state */
	uint8_t stage : 2;  /* an enum record_state */
	bool summaries : 1; /* the member's engine answers SummaryAsk */
	bool disk : 1;      /* it stores entries of pages on disk, and answers Promote */
	bool probes : 1;    /* the member's engine answers Probe */
	bool relays : 1;    /* the member's engine passes relays on, and takes them */
	bool proven : 1;    /* it answered a probe, or a dial of this engine reached it */
	bool flood : 1;     /* one of too many of its address: it is not logged */
	bool left : 1; /* the member left the cluster with the message Leave: it is not dialled */
	/* ---- above MEMBER_MESH_MAX members ---- */
	bool lists : 1;     /* the member's engine knows MemberNews, ListAsk and ListPage */
	bool neighbour : 1; /* dead member: it was one when it was removed */
	bool wanted : 1;    /* a link is requested; it is dialled as soon as the limits permit */
	bool changed : 1;   /* it is in member.news_list */
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
	/* when it answered another member, as that one says; 0: never */
	uint64_t vouched_ns;
	unsigned turn;  /* begins with a random one, so that not all engines send the same size */
	unsigned hurry; /* probes to send out of turn: another member is not served by it */
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
	uint32_t wire; /* wire version that this engine and the member speak; 0: not known yet */
	uint32_t abi;  /* the member's ABI_VERSION; 0: not known */
	uint64_t heard_ns;
	/* since when it owes Told (removals.h); 0: it does not */
	uint64_t untold_ns;
	/*
	 * time of the last message from it that another member vouched for, by this engine's clock
	 */
	uint64_t vouched_ns;
	bool kept; /* on the map only because another member hears it */
	/*
	 * digests of the two engines' member lists when Members was last sent: the member's, and
	 * ours
	 */
	uint64_t digest_told;
	uint64_t digest_ours;
	uint64_t gossip_ns;
	struct member_probe probe;
	struct member_trial trial;
	/* ---- above MEMBER_MESH_MAX members ---- */
	uint64_t claim_until_ns;
	uint64_t claim_trial_ms; /* of the record that claims it */
	unsigned claim_served; /* sizes of probes, as bits, that it has answered since the claim */
	uint64_t accused_ns;   /* when this engine claimed it last; 0: never */
	uint64_t asserted_ns;  /* when this engine admitted it against another record; 0: never */
	uint64_t used_ns;      /* last use of a link with it */
};

/* Every entry without a contact of its own has this one. In read-only memory. */
extern const struct member_contact member_no_contact;

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

/* ---- member_table.c -------------------------------------------------------------------------- */

/* Returns 0 or -ENOMEM; member_table_close() frees what there is in both cases. */
int member_table_open(struct member_table *table);
void member_table_close(struct member_table *table);

/* The entry with that index, below table->entries. It may be free. */
static inline struct member *member_at(const struct member_table *table, unsigned index)
{
	return &table->chunk[index / MEMBER_CHUNK][index % MEMBER_CHUNK];
}

/* A free entry that was never used or was released; NULL: all are in use, or there is no memory. */
struct member *member_new(struct member_table *table);
/* Frees the entry, which is not alive, with its name and contact. */
void member_release(struct member_table *table, struct member *member);
/*
 * Gives the entry this name, address and port. An entry has at most one name for its whole life.
 * False: no memory; nothing was changed.
 */
bool member_name_set(struct member_table *table, struct member *member, const char *name,
	const char *address, uint16_t port);
/* The entry with this name, in any state; NULL: there is none. */
struct member *member_table_find(const struct member_table *table, const char *name);
struct member *member_table_ref(const struct member_table *table, uint32_t ref);
/*
 * A live member: takes a peer number, the one that was freed the longest ago, so that stale (peer,
 * ref) pairs of its former member are gone before the number is reused, and can be found by its
 * ref. Returns 0, -ENFILE when all NODES_MAX peer numbers are in use, or -ENOMEM.
 */
int member_table_add(struct member_table *table, struct member *member);
void member_table_remove(struct member_table *table, struct member *member);
static inline struct member *member_table_peer(const struct member_table *table, unsigned peer)
{
	if (peer >= table->peers_used || table->by_peer[peer] & PEER_FREE)
		return NULL;
	return member_at(table, table->by_peer[peer]);
}

/* The entry's contact, which is made if there is none; NULL: no memory. */
struct member_contact *member_contact(struct member_table *table, struct member *member);
static inline bool member_has_contact(const struct member *member)
{
	return member->contact != &member_no_contact;
}
void member_contact_free(struct member_table *table, struct member *member);

/* The link for requests to the member; NULL: there is none. */
static inline struct rpc_link *member_link_of(const struct member *member)
{
	return member->contact->out ? member->contact->out : member->contact->in;
}

/* ---- member_text.c --------------------------------------------------------------------------- */

/*
 * Gives the record this name, address and port, in place of those that it has, if any. False: no
 * memory; nothing was changed.
 */
bool member_text_set(
	struct member_record *record, const char *name, const char *address, uint16_t port);
/* The record has no name any more. */
void member_text_clear(struct member_record *record);
static inline bool member_has_name(const struct member_record *record)
{
	return record->plain || record->text;
}

/* True if the record, which has a name, has this one. */
bool member_is_named(const struct member_record *record, const char *name);
/* Hash of the name of an entry that has one. */
uint64_t member_hash(const struct member *member);

#endif
