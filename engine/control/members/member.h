/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The member table of this engine: which engines of the cluster are alive, as far as this engine
 * can tell from its own links. Called by the control plane's thread only.
 *
 *   member.c        joining and dying      member_table.c   memory of the table
 *   member_greet.c  Hello, gossip          member_candidate.c  engines that others name
 *   member_tick.c   heartbeats, time-outs  member_seeds.c   parses cluster.seeds
 *   member_map.c    builds the map         member_agree.c   which engines fit
 *   member_vouch.c  members that only other members hear
 *   member_probe.c  members that do not serve: probes, removal, trial
 *   member_rings.c  neighbours             member_demand.c  links with other members
 *   member_gossip.c records of members     member_claim.c   removal that all agree on
 *   member_list.c   pages of the list       member_source.c  limits of an address
 *   member_silent.c seeds that lead to no member  member_refuse.c  engines that are refused
 *
 * An engine learned from a seed or from gossip is only a candidate: it is dialled. A member
 * becomes alive, and enters the map, only by its own Hello on a link with it; so gossip about a
 * dead member can never bring it back. A member is declared dead when no message came from it for
 * cluster.dead_after_ms, when its last link closed and dialling it is refused, when another
 * incarnation of its name sends a Hello, or when it sends Leave. One that this engine does not
 * hear stays on the map while another member hears it: then only a link is cut. A member that sends
 * messages and does not serve is removed, too, and stays on trial (member_probe.c). Dead ones are
 * still dialled, at a low rate, for MEMBER_DEAD_NS, so that the two halves of a network partition
 * find each other again.
 */
#ifndef CONTROL_MEMBER_H
#define CONTROL_MEMBER_H

#include "engine/control/members/member_seed.h"
#include "engine/control/members/member_table.h"
#include "engine/control/members/slots.h"

#define MEMBER_DEAD_NS (600ull * 1000000000) /* time for which a dead member is still dialled */
/*
 * number of heartbeats between two Members messages to a member, if neither engine's member list
 * has changed
 */
#define MEMBER_GOSSIP_BEATS 20
/*
 * Up to this many members every engine keeps links with all of them; above, with its neighbours
 * only, until there are fewer than MEMBER_MESH_AGAIN.
 */
#define MEMBER_MESH_MAX 32
#define MEMBER_MESH_AGAIN 28
#define MEMBERS_MAX 1024 /* members that a message without pages names, at most */
#define MEMBER_RINGS 8
#define MEMBER_NEIGHBOURS_MAX (2 * MEMBER_RINGS)
/* a link with a member that is no neighbour is closed after this time without use */
#define MEMBER_IDLE_NS (20ull * 1000000000)
/* the same for a link that was not requested: it brought a Hello, or was one with a neighbour */
#define MEMBER_UNUSED_NS (2ull * 1000000000)
/* dials that this engine starts in one heartbeat interval, beside those of seeds and neighbours */
#define MEMBER_DIALS_TICK 64
#define MEMBER_PAGE_BYTES (16u << 10)      /* length limit of MemberNews and ListPage */
#define PAGE_RECORDS_MAX 1024              /* records in one of them */
#define MEMBER_LIST_NS (2ull * 1000000000) /* time between two ListAsk of this engine */
#define AGREED_BYTES_MAX 128               /* length limit of one text "name = value" in a Hello */
#define AGREED_ENTRIES_MAX 32 /* limit of the entries of Hello.agreed that are examined */
#define MEMBER_SOURCES 256    /* addresses whose engines are counted */
/* Engines of one address that may join at once, and further ones per second. */
#define SOURCE_JOINS 64u
#define SOURCE_JOINS_PER_S 20u
/*
 * Processes that this engine does not know and that one address may name at once, and more per
 * second. With rings they are members by that; otherwise they are dialled.
 */
#define SOURCE_NAMES 1024u
#define SOURCE_NAMES_PER_S 128u
#define SOURCE_NAMES_MESH 64u
#define SOURCE_NAMES_MESH_PER_S 20u
/* Within this time after its start, an engine with rings takes lists as they are. */
#define NAMES_OPENING_NS (30ull * 1000000000)
/* Dials without an answer after which a candidate that was never a member is forgotten. */
#define CANDIDATE_FAILS 8u
#define SOURCE_LINES 32u /* refused engines of one address that are logged */
/* Dead members are dialled less often when there are more contacts than this. */
#define MEMBER_REDIALS 128u
/*
 * The map is rebuilt at once after a change, but only MAP_REBUILDS times within this time, and then
 * at its end; it is longer by as much for each further 1,024 members.
 */
#define MAP_APART_NS (100ull * 1000000)
#define MAP_REBUILDS 4
/*
 * With more than OWNERS_MAX members, a rebuild that took longer than MAP_COST_NS is followed by a
 * pause of MAP_PAUSES times as long, at most MAP_PAUSE_NS: maps take a fifth of the control plane's
 * time. Not with fewer: until all have the map with a new member, pages can be missed, and a
 * rebuild also takes long because the thread was preempted.
 */
#define MAP_COST_NS (5ull * 1000000)
#define MAP_PAUSES 4u
#define MAP_PAUSE_NS (500ull * 1000000)
/*
 * Within this time after its start, this engine counts as the last one that joined: the owners by a
 * map without it are the former owners.
 */
#define MAP_OPENING_NS (5ull * 1000000000)

enum {
#define AGREED(name, format, value) +1
	AGREED_COUNT = 0
#include "engine/control/members/agreed.def"
#undef AGREED
};

/*
 * The values in this engine's Hello that must be equal on every engine of the cluster (agreed.def).
 */
struct agreed {
	char text[AGREED_COUNT][AGREED_BYTES_MAX];
	char *at[AGREED_COUNT];
	uint64_t hash;
	uint64_t shm; /* Hello.shm */
};

/* A ring of all live members, as this engine sees it: its successor and its predecessor. */
struct member_ring {
	uint64_t nearest, farthest; /* their distances in the direction of the successors */
	uint32_t next, last;        /* their entries; MEMBER_NONE: there is no other member */
	bool stale;                 /* one of them has left */
};

struct source_budget {
	uint64_t since_ns; /* `left` is that of this time */
	unsigned left;     /* what the source may still do now */
	unsigned refused;  /* what was refused since `left` was at its limit */
};

/* The engines of one address: see member_source.c. */
struct member_source {
	uint64_t hash;              /* of the address; 0: the element is free */
	struct source_budget joins; /* engines that join */
	struct source_budget names; /* engines that it names and that this one does not know */
	unsigned logged;            /* refused engines that were logged */
	unsigned causes;            /* as bits, causes for which a record was refused and logged */
};

struct members {
	struct member_table table;
	struct member *self; /* this engine: entry 0 */
	struct member_seed seed[SEED_SOURCES * SEEDS_MAX];
	struct seed_list list[SEED_SOURCES];
	/* this engine has seeds and is alone, and no member has joined yet, or it is refused */
	struct silence unmet;
	bool met;            /* another engine has been a member */
	uint64_t rotated_ns; /* time of the last seeds_rotate() that did something */
	struct agreed agreed;
	struct refusal refusal[REFUSALS];
	unsigned refusals; /* stored so far: the table is a ring of REFUSALS elements */
	struct member_source source[MEMBER_SOURCES];
	struct member_ring ring[MEMBER_RINGS];
	bool rings;         /* links with neighbours only; see member_rings.c */
	unsigned strangers; /* live members that do not know lists */
	unsigned dials;     /* dials that may still be started before the next heartbeat */
	uint64_t list_ns;   /* time of the last ListAsk */
	uint64_t list_serial;
	unsigned list_buckets; /* of the last ListAsk */
	const struct rpc_link *list_via;
	struct net_timer *news, *claims;
	bool news_armed, news_urgent;
	/* entries whose records are to be sent to the neighbours; `changed` of each is set */
	uint16_t *news_list;
	unsigned news_count, news_room;
	unsigned news_sent; /* records that were sent the last time */
	uint64_t news_ns;   /* the last time */
	unsigned causes;    /* of records without a link: see member_source_cause() */
	uint32_t
		own_claim; /* admission of the last claim of this engine that was logged; 0: none */
	unsigned alive;    /* number of members alive, this engine included */
	unsigned candidates;
	uint64_t digest; /* sum of the hashes of the incarnations of all live members */
	uint64_t sum[MEMBER_BUCKETS_MAX]; /* the same of each bucket of the list */
	uint32_t terms;
	uint64_t tick_ns;
	uint64_t probe_ns;   /* time of the last member_probe_tick() */
	unsigned probe_next; /* place in table.contact of the member that is probed next */
	unsigned swept;      /* entry without a contact that is examined next */
	struct net_timer *probe;
	bool leaving;
	/* of the map: `rebuilds` times since window_ns */
	struct net_timer *rebuild;
	bool rebuild_armed;
	unsigned rebuilds;
	uint64_t window_ns;
	uint64_t paused_ns; /* no rebuild before this time */
	struct map_view *current;
	struct slots *slots; /* of the words in the status segment */
	uint64_t opened_ns;  /* when this engine started, or was alone last */
};

/* ---- member.c -------------------------------------------------------------------------------- */

/*
 * Returns the link for requests to member `ref`: the one we dialled, else the one it dialled, else
 * NULL.
 */
struct rpc_link *member_link_now(const struct control *control, uint32_t ref);
/*
 * The same for a request that can wait. If there is no link because the member is no neighbour, it
 * is dialled: directory_link_up() and conns_link_up() tell when it is up.
 */
struct rpc_link *member_link(struct control *control, uint32_t ref);
/* True if there is no link yet, and member_link() dials. */
bool member_link_soon(const struct control *control, uint32_t ref);
/*
 * Time since the member's last message, ns. 0 if it owes none: it is this engine, or no neighbour
 * and without a link.
 */
uint64_t member_silent_ns(
	const struct control *control, const struct member *member, uint64_t now_ns);
/* True if messages are expected from the live member: heartbeats, answers to probes. */
bool member_watched(const struct control *control, const struct member *member);
/* Returns the ref of the member at the other end of a link on which Hellos were exchanged. */
uint32_t member_link_ref(const struct rpc_link *link);

/* Functions of this file's struct member that member_greet.c calls. */
struct member *member_find(const struct members *members, const char *name);
uint64_t member_name_hash(const char *name);
/* The live member of that peer number; NULL: there is none. */
static inline struct member *member_peer(const struct control *control, unsigned peer)
{
	return member_table_peer(&control->members->table, peer);
}
/* The engine of this live member or candidate knows lists, or does not. */
void member_lists_set(struct members *members, struct member *member, bool lists);
/*
 * Returns a free entry, or else that of a dead member or candidate, the oldest dead member first.
 * NULL: every entry belongs to a live member.
 */
struct member *member_take(struct control *control);
/* An entry of member_take() that was not filled is free again. */
void member_put_back(struct control *control, struct member *member);
void member_free(struct control *control, struct member *member);
/* Changes the state of an entry, and counts the candidates. */
static inline void member_state_set(
	struct members *members, struct member *member, enum member_state state)
{
	members->candidates -= member->state == MEMBER_CANDIDATE;
	member->state = (unsigned)state & 3;
	members->candidates += state == MEMBER_CANDIDATE;
}
void member_dial(struct control *control, struct member *member, bool seldom);
void member_dial_stop(struct member *member);
void member_links_close(struct member *member);
void member_down(struct control *control, struct member *member, const char *why);
/* The member seems to have ended: it is removed, or claimed where others know better. */
void member_lost(struct control *control, struct member *member, const char *why);
/*
 * Makes the entry a live member. Returns 0, or -ENFILE when all NODES_MAX peer numbers are in use.
 */
int member_up(struct control *control, struct member *member);

bool member_fits(const Pc__Member *m);
/* `texts`, which it fills, is to stay as long as *ret. */
void member_describe(const struct member *member, struct member_texts *texts, Pc__Member *ret);
/* False: no memory. */
bool member_fill(struct control *control, struct member *member, const Pc__Member *m);
/*
 * Makes `m`, which came over the link, a candidate that is dialled. Gossip is never proof that a
 * member is alive. link NULL: it came from a seed.
 */
void member_learn(struct control *control, const struct rpc_link *link, const Pc__Member *m);
/* The same for all of a message. False: one of them breaks a rule. */
bool member_learn_all(struct control *control, const struct rpc_link *link, size_t count,
	Pc__Member *const *members);

/* ---- member_rings.c, member_demand.c --------------------------------------------------------- */

/*
 * The neighbours of member `self` among `count` members with these hashes of their names: their
 * indices, in any order, each once. Returns how many they are. Pure.
 */
unsigned member_rings(const uint64_t *hash, unsigned count, unsigned self,
	unsigned ret_neighbour[MEMBER_NEIGHBOURS_MAX]);
/* True if links are to be kept with neighbours only: above MEMBER_MESH_MAX members. */
bool member_rings_wanted(const struct members *members);
void member_rings_open(struct members *members);
/* A member has joined or left. */
void member_rings_joined(struct members *members, const struct member *member);
void member_rings_left(struct members *members, const struct member *member);
/* Called soon after that: chooses between mesh and rings, and the neighbours. */
void member_rings_update(struct control *control);
/* The contact's link, without a request, is closed MEMBER_UNUSED_NS from now on. */
void member_unused(struct member_contact *contact, uint64_t now_ns);
/* Called once per heartbeat for each contact: dials and closes links on demand. */
void member_demand_tick(struct control *control, struct member *member, uint64_t now_ns);

/* ---- member_gossip.c ------------------------------------------------------------------------- */

#define NEWS_MANY 16 /* records sent at a time that are many: members come or go in numbers */
/* The entry's record has changed: it is sent to the neighbours soon. */
void member_changed(struct control *control, struct member *member);
/* Timer function: sends the records that have changed. */
void member_news_send(void *context);
struct record_list {
	Pc__MemberRecord record[PAGE_RECORDS_MAX];
	Pc__Member member[PAGE_RECORDS_MAX];
	struct member_texts texts[PAGE_RECORDS_MAX];
	Pc__MemberRecord *at[PAGE_RECORDS_MAX];
	unsigned count;
	size_t bytes;
};
/* The list of the message that is built now; there is one. */
struct record_list *record_list_empty(void);
/* Adds the entry's record to the list; false: the list is full. */
bool record_add(struct record_list *list, struct member *member);
/* Takes records that an engine has sent. False: they break a rule. */
bool member_records(struct control *control, struct rpc_link *link, size_t count,
	Pc__MemberRecord *const *records);

/* ---- member_claim.c -------------------------------------------------------------------------- */

#define ACCUSE_PAUSE 10u /* times cluster.dead_after_ms between two claims of a member */
/* This engine is not served by the member: above MEMBER_MESH_MAX members, the others are told. */
void member_accuse(
	struct control *control, struct member *member, uint64_t trial_ns, const char *why);
/* The member is removed soon, unless it is admitted anew. */
void member_claim(struct control *control, struct member *member, uint64_t trial_ms);
/* The member has answered a probe. */
void member_claim_served(struct control *control, struct member *member, unsigned size);
/* Timer function: removes members whose claims were not refuted. */
void member_claims_due(void *context);

/* ---- member_list.c --------------------------------------------------------------------------- */

/* The member has another list than this engine: requests what differs. */
void member_list_compare(struct control *control, struct rpc_link *link, uint64_t now_ns);

/* ---- member_source.c ------------------------------------------------------------------------- */

/* An engine at the other end joins. False: too many did; that is counted, and logged once. */
bool member_source_joins(struct control *control, const struct rpc_link *link, const char *name);
/*
 * The engine at the other end names a process that this engine does not know. False: it named too
 * many; that is counted, and logged once. What is true is named again. link NULL: always true.
 */
bool member_source_names(struct control *control, const struct rpc_link *link, const char *name);
/* True if many engines of that address have joined lately, and others were refused. */
bool member_source_flooded(struct control *control, const struct rpc_link *link);
/* True once for each cause, below 32, and address. */
bool member_source_cause(struct control *control, const struct rpc_link *link, unsigned cause);
/* True if the refusal of an engine at the other end is logged; the last one says that it is. */
bool member_source_logs(struct control *control, const struct rpc_link *link);

/* ---- member_agree.c -------------------------------------------------------------------------- */

void member_agree_open(struct control *control);
/*
 * Fills the fields of a Hello that carry versions and the values that must be equal on every
 * engine; the fields point into control->members.
 */
void member_agree_say(struct control *control, Pc__Hello *hello);
/*
 * The newest wire version that this engine and the sender of `hello` both speak; 0: none. Pure.
 */
uint32_t member_wire_common(const Pc__Hello *hello);
/*
 * True if this engine and the sender have a wire version in common. Otherwise the sender is refused
 * and the link is closed. Reads only the fields whose meaning is the same in every wire version.
 */
bool member_agree_version(struct control *control, struct rpc_link *link, const Pc__Hello *hello);
/*
 * Notes the versions of a member that has just joined or sent another Hello. If they differ from
 * ours, it logs them once for each incarnation.
 */
void member_agree_versions(
	const struct rpc_link *link, struct member *member, const Pc__Hello *hello);
/*
 * True if the sender has the values that must be equal on every engine, an address that fits ours
 * and a name of its own. Otherwise the sender is refused and the link is closed.
 */
bool member_agree(struct control *control, struct rpc_link *link, const Pc__Hello *hello);
/*
 * True if `address`, as an engine advertises it, can be reached only from that engine's own host.
 */
bool member_address_local(const struct control *control, const char *address);
/* ---- member_vouch.c -------------------------------------------------------------------------- */

/* True if the engine asks the other members whether they hear this live one. */
bool member_doubted(const struct control *control, const struct member *member, uint64_t now_ns);
/* Takes the vouches of a heartbeat and answers its doubts. False: the message breaks a rule. */
bool member_vouch(struct control *control, struct rpc_link *link, const Pc__Heartbeat *beat);
/*
 * Called once per heartbeat for a live member. Returns false when the member is dead: neither this
 * engine nor one that vouches for it has heard it for cluster.dead_after_ms.
 */
bool member_heard_of(struct control *control, struct member *member, uint64_t now_ns);

/* ---- member_probe.c -------------------------------------------------------------------------- */

/* Time between two calls of member_probe_tick(). */
uint64_t member_probe_period_ns(const struct control *control);
/* Timer function: probes members, removes those that do not serve, ends trials. */
void member_probe_tick(void *context);
/* Since when the oldest probe waits for its answer; 0: none does. */
uint64_t member_unserved_ns(const struct member *member, uint64_t now_ns);
/* Time since a small and a padded probe were sent that the member answered; UINT64_MAX: never. */
uint64_t member_served_age_ns(const struct member *member, uint64_t now_ns);
/* The member is off the map and answers probes before it comes back; its links are up for that. */
bool member_on_trial(const struct member *member);
/* Sends a probe of each size to the member now, unless one waits for its answer. */
void member_probe_now(const struct control *control, struct member *member);
/* A member was removed because it did not serve (`needs_ns` > 0), or because it was silent. */
void member_trial_begin(struct control *control, struct member *member, uint64_t needs_ns);
/* The same for one that did not serve: a further removal follows soon, its trial is longer. */
void member_trial_removed(struct control *control, struct member *member, uint64_t needs_ns);
/*
 * Serves a message of a member on trial: probes only. False: the message breaks a rule.
 */
bool member_trial_serve(struct rpc_link *link, const Pc__Message *message);
/*
 * A Hello of that incarnation of the member has come. True: it is on trial, and its link is only
 * probed.
 */
bool member_trial_hello(struct control *control, struct member *member, uint64_t incarnation);

/* ---- member_tick.c --------------------------------------------------------------------------- */

/* ---- member_map.c ---------------------------------------------------------------------------- */

/* Builds the map of the live members, writes it to the status segment and notifies directory.c. */
void member_map_rebuild(struct control *control);
/* Ends the time of former owners of slots in the status segment. */
void member_map_tick(struct control *control, uint64_t now_ns);

#endif
