/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members, for the files of this folder and for tests: the state of the room, and what its
 * files call of each other. Other rooms include members.h. Control plane's thread only.
 *
 *   member.c          the table, the life of a member   member_text.c   names and addresses
 *   member_greet.c    Hello: who fits, who is refused   member_gossip.c what others name
 *   member_links.c    mesh, rings, links on demand      member_seeds.c  seeds and their silence
 *   member_heartbeat.c  heartbeats, silent members    seeds_file.c etcd.c  more seeds
 *   member_probe.c    probes, trials, claims            member_map.c    the cluster map
 *   placement.c       who owns what
 */
#ifndef CONTROL_MEMBERS_INNER_H
#define CONTROL_MEMBERS_INNER_H

#include "config/settings.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"

/* ---- numbers --------------------------------------------------------------------------------- */

#define NS_PER_MS 1000000ull

/* ---- links ---- */
#define MEMBER_MESH_MAX 32 /* up to this many members, all are neighbours; above, those on rings */
#define MEMBER_RINGS 8
#define MEMBER_NEIGHBOURS_MAX (2 * MEMBER_RINGS)
/* a link with a member that is no neighbour is closed after this time without use */
#define MEMBER_IDLE_NS (20ull * 1000000000)
/* the same for a link that was not requested: it brought a Hello, or was one with a neighbour */
#define MEMBER_UNUSED_NS (2ull * 1000000000)
/* dials that this engine starts in one heartbeat interval, beside those of seeds and neighbours */
#define MEMBER_DIALS_TICK 64

/*
 * in which a member whose link was closed for its key or certificate has a good one; of those that
 * are no neighbours, a few are dialled at a time: with more than MEMBER_DIALS_TICK of them it is
 * longer
 */
#define MEMBER_PROVE_NS (1ull * 1000000000)
#define MEMBER_PROVE_FAR_NS (5ull * 1000000000)

/* ---- memory ---- */
#define MEMBER_DEAD_NS (600ull * 1000000000)    /* time for which a dead member is still dialled */
#define REMEMBER_NS (24 * 3600ull * 1000000000) /* the address of a member that is away is kept */
#define MEMBER_NONE UINT16_MAX                  /* no entry: ends a chain of a hash table */

/* ---- messages ---- */
#define AGREED_BYTES_MAX 128          /* length limit of one text "name = value" in a Hello */
#define AGREED_ENTRIES_MAX 32         /* limit of the entries of Hello.agreed that are examined */
#define MEMBERS_MAX 1024              /* members that a message without pages names, at most */
#define MEMBER_PAGE_BYTES (16u << 10) /* length limit of MemberNews and ListPage */
#define PAGE_RECORDS_MAX 1024         /* records in one of them */
#define MEMBER_BUCKETS 256            /* of the member list, see ListAsk */

/* ---- what one address may do ---- */
#define MEMBER_SOURCES 256 /* addresses whose engines are counted */
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

/* ---- refusals, claims, the map ---- */
#define REFUSALS 64                           /* refused engines that are remembered */
#define REFUSAL_LASTS_NS (30ull * 1000000000) /* a refusal ends so long after the last one */
#define ACCUSE_PAUSE 10u /* times cluster.dead_after_ms between two claims of a member */

/* ---- Hello ----------------------------------------------------------------------------------- */

enum {
#define AGREED(name, format, value) +1
	AGREED_COUNT = 0
#include "engine/control/members/agreed.def"
#undef AGREED
};
enum { AGREED_LINKS = AGREED_COUNT, AGREED_TEXTS };

/*
 * The values in this engine's Hello that must be equal on every engine of the cluster (agreed.def).
 */
struct agreed {
	char text[AGREED_TEXTS][AGREED_BYTES_MAX];
	char *at[AGREED_TEXTS];
	uint64_t hash; /* of all texts but AGREED_LINKS */
	/*
	 * Hello.links of this engine. Without rails: of the first member that had some; each that
	 * comes later must have the same, because those that it names to each other share pages.
	 */
	uint64_t links;
};

/* An engine that is refused, or that refuses this one. */
struct refusal {
	uint64_t who, why; /* its incarnation, or a hash; a hash of the text. who 0: free */
	uint64_t since_ns, last_ns;
	uint64_t gap_ns; /* between the last two */
	bool theirs;     /* it refuses this engine */
	bool name_taken; /* for its name, which is that of another engine */
	char name[NAME_BYTES_MAX];
	char address[ADDRESS_TEXT_BYTES]; /* as it announces it, with its port */
	char from[NAME_BYTES_MAX];        /* where it is connected to or from */
	char text[REFUSAL_BYTES];
};

/* ---- gossip ---------------------------------------------------------------------------------- */

/* Members that a Hello names; more than MEMBER_MESH_MAX only until the map is made anew. */
struct member_list {
	Pc__Member member[MEMBERS_MAX];
	struct member_texts texts[MEMBERS_MAX];
	Pc__Member *at[MEMBERS_MAX];
	unsigned count;
};

struct source_budget {
	uint64_t since_ns; /* `left` is that of this time */
	unsigned left;     /* what the source may still do now */
	unsigned refused;  /* what was refused since `left` was at its limit */
};

/* The engines of one address: see member_gossip.c. */
struct member_source {
	uint64_t hash;              /* of the address; 0: the element is free */
	struct source_budget joins; /* engines that join */
	struct source_budget names; /* engines that it names and that this one does not know */
	unsigned logged;            /* refused engines that were logged */
	unsigned causes;            /* as bits, causes for which a record was refused and logged */
};

/* ---- seeds ----------------------------------------------------------------------------------- */

/*
 * Where the address of a seed comes from. Each source has SEEDS_MAX elements of members->seed.
 * Behind them are the members that this engine has had: they are dialled, and are no source that
 * was given, so health says nothing of them.
 */
enum seed_source { SEED_LIST, SEED_FILE, SEED_ETCD, SEED_SOURCES };
#define SEEDS_GIVEN (SEED_SOURCES * SEEDS_MAX)
#define SEED_ELEMENTS (SEEDS_GIVEN + REMEMBERED_MAX)

/*
 * Something that should answer and does not. Its line in the log comes after SEED_SILENT_MS, or at
 * once if that is sure, then whenever the time has doubled, at least every SEED_LINE_NS.
 */
struct silence {
	uint64_t since_ns; /* 0: it answers */
	bool sure;         /* its name has no address: that is a finding at once */
	uint64_t line_ns;  /* no line before this time; 0: there was none */
};

struct member_seed {
	struct seed_address address; /* host "": the element is free */
	/* the dial of the seed; NULL: the seed's engine is known, so the seed is not dialled */
	struct rpc_dial *dial;
	char name[NAME_BYTES_MAX];
	/* after the seed led to this engine itself: no new dial before this time */
	uint64_t retry_ns;
	bool self;              /* the seed is this engine's own address, so it is never dialled */
	bool refused;           /* its engine and this one refuse each other */
	struct silence silence; /* while it leads to no member */
	char why[SEED_WHY_BYTES]; /* how the last dial ended; "": none has ended yet */
};

/* All addresses of a source, which owns them: see member_seeds_replace(). */
struct seed_list {
	const struct seed_address *address; /* NULL: the source has not been read */
	unsigned count;
	struct silence silence;
	char why[SEED_WHY_BYTES]; /* why the source cannot be read; "": it can */
};

/* ---- the map --------------------------------------------------------------------------------- */

/* The owner numbers of the cluster map in shared memory (abi/map.h). */
struct slots {
	uint32_t bound[OWNERS_MAX]; /* per owner number: ref of its member, or 0 */
};

/* ---- the state of the room ------------------------------------------------------------------- */

/* A ring of all live members, as this engine sees it: its successor and its predecessor. */
struct member_ring {
	uint64_t nearest, farthest; /* their distances in the direction of the successors */
	uint32_t next, last;        /* their entries; MEMBER_NONE: there is no other member */
	bool stale;                 /* one of them has left */
};

struct members {

	/* ---- the table ---- */
	struct member_table table;
	struct member *self; /* this engine: entry 0 */
	unsigned alive;      /* number of members alive, this engine included */
	unsigned serving;    /* those with rails, as of the last map */
	unsigned candidates;
	bool leaving; /* Leave was sent, or the room is being closed */
	/* when a map was made last in which no other engine has rails; that of the start is one */
	uint64_t sole_last_ns;
	uint32_t terms;  /* given so far, see struct member */
	uint64_t digest; /* sum of the hashes of the incarnations of all live members */
	uint64_t sum[MEMBER_BUCKETS]; /* the same of each bucket of the list */

	/* ---- Hello ---- */
	struct agreed agreed;
	struct refusal refusal[REFUSALS];
	unsigned refusals; /* stored so far: the table is a ring of REFUSALS elements */

	/* ---- links ---- */
	struct member_ring ring[MEMBER_RINGS];
	bool rings;     /* not all members are neighbours; see member_links.c */
	unsigned dials; /* dials that may still be started before the next heartbeat */

	/* ---- gossip ---- */
	struct member_source source[MEMBER_SOURCES];
	unsigned causes; /* of records without a link: see member_source_cause() */
	struct net_timer *news;
	bool news_armed, news_urgent;
	/* entries whose records are to be sent to the neighbours; `changed` of each is set */
	uint16_t *news_list;
	unsigned news_count, news_room;
	unsigned news_sent; /* records that were sent the last time */
	uint64_t news_ns;   /* the last time */
	uint64_t list_ns;   /* time of the last ListAsk */
	uint64_t list_serial;
	const struct rpc_link *list_via;

	/* ---- heartbeats, probes, claims ---- */
	uint64_t tick_ns;    /* time of the last members_tick() */
	unsigned swept;      /* entry without a contact that is examined next */
	uint64_t probe_ns;   /* time of the last member_probe_tick() */
	unsigned probe_next; /* place in table.contact of the member that is probed next */
	struct net_timer *probe, *claims;
	/* admission of the last claim of this engine that was logged; 0: none */
	uint32_t own_claim;

	/* ---- seeds ---- */
	struct member_seed seed[SEED_ELEMENTS];
	uint64_t remembered_until_ns[REMEMBERED_MAX]; /* of the last elements; 0: it is dropped */
	struct seed_list list[SEED_SOURCES];
	/* this engine has seeds and is alone */
	struct silence unmet;
	uint64_t rotated_ns; /* time of the last seeds_rotate() that did something */

	/* ---- the map: `rebuilds` times since window_ns ---- */
	struct net_timer *rebuild;
	bool rebuild_armed;
	unsigned rebuilds;
	uint64_t window_ns;
	struct map_view *current;
	struct slots *slots; /* of the words in the status segment; NULL: it has none */
};

/* 0 if the time is in the future. */
static inline uint64_t members_since_ns(uint64_t then_ns, uint64_t now_ns)
{
	return now_ns > then_ns ? now_ns - then_ns : 0;
}

/* ---- member.c -------------------------------------------------------------------------------- */

/* Returns 0 or -ENOMEM; member_table_close() frees what there is in both cases. */
int member_table_open(struct member_table *table);
void member_table_close(struct member_table *table);
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
/*
 * A live member: takes a peer number, the one that was freed the longest ago, so that stale (peer,
 * ref) pairs of its former member are gone before the number is reused, and can be found by its
 * ref. Returns 0, -ENFILE when all NODES_MAX peer numbers are in use, or -ENOMEM.
 */
int member_table_add(struct member_table *table, struct member *member);
void member_table_remove(struct member_table *table, struct member *member);
/* The entry's contact, which is made if there is none; NULL: no memory. */
struct member_contact *member_contact(struct member_table *table, struct member *member);
void member_contact_free(struct member_table *table, struct member *member);

/* The member or candidate of this name, not this engine; NULL: there is none. */
struct member *member_find(const struct members *members, const char *name);
/*
 * Returns a free entry, or else that of a dead member or candidate, the oldest dead member first.
 * NULL: every entry belongs to a live member.
 */
struct member *member_take(struct control *control);
/* An entry of member_take() that was not filled is free again. */
void member_put_back(struct control *control, struct member *member);
/* Forgets the entry, which is not alive, and closes its dial and its links. */
void member_free(struct control *control, struct member *member);

/* Changes the state of an entry, and counts the candidates. */
static inline void member_state_set(
	struct members *members, struct member *member, enum member_state state)
{
	members->candidates -= member->state == MEMBER_CANDIDATE;
	member->state = (unsigned)state & 3;
	members->candidates += state == MEMBER_CANDIDATE;
}

/* Gives the entry what `m` says of the engine. False: no memory; nothing was changed. */
bool member_fill(struct control *control, struct member *member, const Pc__Member *m);
/*
 * Makes the entry a live member. Returns 0, or -ENFILE when all NODES_MAX peer numbers are in use.
 */
int member_put_on_map(struct control *control, struct member *member);
/*
 * Takes a live member off the map: closes its links, and informs the other rooms. `why` is logged.
 * A member that answered once is still dialled, at a low rate.
 */
void member_take_off_map(struct control *control, struct member *member, const char *why);
/* Its key or certificate allows no link: its connections at the NICs are closed. */
void member_barred(struct control *control, struct member *member);
/* The member seems to have ended: it is removed, or claimed where others know better. */
void member_lost(struct control *control, struct member *member, const char *why);

/* ---- member_text.c --------------------------------------------------------------------------- */

/* True for printable ASCII that is not empty and fits `room` bytes with its zero. */
bool member_text_prints(const char *text, size_t room);

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

/* ---- member_links.c -------------------------------------------------------------------------- */

/* Dials the member, `seldom` with long pauses; a dial of the same address goes on, at once. */
void member_dial(struct control *control, struct member *member, bool seldom);
void member_dial_stop(struct member *member);
void member_links_close(struct member *member);
static inline bool member_rings_wanted(const struct members *members)
{
	return members->alive > MEMBER_MESH_MAX;
}
void member_rings_open(struct members *members);
/* A member has joined or left. */
void member_rings_joined(struct members *members, const struct member *member);
void member_rings_left(struct members *members, const struct member *member);
/* Called soon after that. */
void member_neighbours_choose(struct control *control);
/* The contact's link, without a request, is closed MEMBER_UNUSED_NS from now on. */
void member_link_unused(struct member_contact *contact, uint64_t now_ns);
/* Called once per heartbeat for each contact: dials and closes links on demand. */
void member_demand_tick(struct control *control, struct member *member, uint64_t now_ns);

/* ---- member_greet.c -------------------------------------------------------------------------- */

void member_agree_open(struct control *control);
/*
 * Fills the fields of a Hello that carry the version and the values that must be equal on every
 * engine; the fields point into control->members.
 */
void member_agree_say(struct control *control, Pc__Hello *hello);
/*
 * True if `address`, as an engine advertises it, can be reached only from that engine's own host.
 */
bool member_address_local(const struct control *control, const char *address);
/*
 * True if the map has room for the engine, which another one names. Otherwise it is a finding, one
 * for all that find no room, and is logged once.
 */
bool member_has_room(struct control *control, const Pc__Member *m);

/* ---- member_gossip.c ------------------------------------------------------------------------- */

/* An engine at the other end joins. False: too many did; that is counted, and logged once. */
bool member_source_joins(struct control *control, const struct rpc_link *link, const char *name);
/* True if many engines of that address have joined lately, and others were refused. */
bool member_source_flooded(struct control *control, const struct rpc_link *link);
/* True if the refusal of an engine at the other end is logged; the last one says that it is. */
bool member_source_logs(struct control *control, const struct rpc_link *link);
/* True if every field is within its limits. `m` may be NULL. */
bool member_fits(const Pc__Member *m);
/*
 * Makes `m`, which came over the link, a candidate that is dialled. Gossip is never proof that a
 * member is alive. link NULL: it came from a seed.
 */
void member_learn(struct control *control, const struct rpc_link *link, const Pc__Member *m);
/* The same for all of a message. False: one of them breaks a rule. */
bool member_learn_all(struct control *control, const struct rpc_link *link, size_t count,
	Pc__Member *const *members);
/* `texts`, which it fills, is to stay as long as *ret. */
void member_describe(const struct member *member, struct member_texts *texts, Pc__Member *ret);
/* Fills it with the members that a message without pages names. */
void member_list_alive(struct control *control, struct member_list *ret);
/* The entry's record has changed: it is sent to the neighbours soon. */
void member_record_changed(struct control *control, struct member *member);
/* Timer function: sends the records that have changed. */
void member_news_send(void *context);
/* Takes records that an engine has sent. False: they break a rule. */
bool member_records(struct control *control, struct rpc_link *link, size_t count,
	Pc__MemberRecord *const *records);
/* The member has another list than this engine: requests what differs. */
void member_list_compare(struct control *control, struct rpc_link *link, uint64_t now_ns);

/* ---- member_probe.c -------------------------------------------------------------------------- */

/* Timer function: probes members, removes those that do not serve, ends trials. */
void member_probe_tick(void *context);
/*
 * A Hello of that incarnation of the member has come. True: it is on trial, and its link is only
 * probed.
 */
bool member_trial_hello(struct control *control, struct member *member, uint64_t incarnation);
/* This engine is not served by the member: the others learn it, and may refute it for wait_ns. */
void member_accuse(struct control *control, struct member *member, uint64_t trial_ns,
	uint64_t wait_ns, const char *why);
/* The member is removed after wait_ms, unless it is admitted anew. Bounds both times. */
void member_claim(
	struct control *control, struct member *member, uint64_t trial_ms, uint64_t wait_ms);
/* The member has answered a probe. */
void member_claim_served(struct control *control, struct member *member, unsigned size);
/* Timer function: removes members whose claims were not refuted. */
void member_claims_due(void *context);

/* ---- member_seeds.c -------------------------------------------------------------------------- */

/*
 * Parses cluster.seeds into the elements of SEED_LIST. Returns the number of addresses, or -EINVAL
 * after logging the reason. Uses no network.
 */
int member_seeds_parse(const struct settings *settings, struct members *members);
/* Makes the address a seed in a free element. */
void seed_set(struct member_seed *seed, const struct seed_address *address,
	const struct settings *settings);
/* A dial of a seed has ended; error: errno, ECONNABORTED if this engine closed the link. */
void seed_dial_failed(const struct rpc_dial *dial, int error);
/* The source cannot be read, for this reason; NULL: it can. The text is copied. */
void seed_source_read(struct control *control, enum seed_source source, const char *why);
/*
 * Makes `count` addresses the seeds of one source. Seeds that are not among them are no longer
 * dialled; members stay members. SEEDS_MAX of them are dialled at a time, from a random place of
 * the list on; those that do not answer make room for others. The caller keeps `address` as it is
 * until the next call or until the member table is closed. Never call it from a callback of a link
 * or a dial.
 */
void member_seeds_replace(struct control *control, enum seed_source source,
	const struct seed_address *address, unsigned count);
/* Takes the addresses that the engine before has kept. Called once, by members_open(). */
void remembered_open(struct control *control);
/* Remembers the address, if the member is there and a dial has reached it. */
void remembered_note(struct control *control, const struct member *member, uint64_t now_ns);
/* The member has left in order: it is not dialled. */
void remembered_left(struct control *control, const struct member *member);
/* What answers the dial is no member: if the address was remembered, it is dialled no longer. */
void remembered_drop(const struct rpc_dial *dial);
/* Called by member_seeds_tick(): notes which seeds lead to members, and logs those that do not. */
void seeds_watch(struct control *control, uint64_t now_ns);

/* ---- member_map.c ---------------------------------------------------------------------------- */

/*
 * Builds the map of the live members, writes it to the status segment and calls
 * directory_map_changed().
 */
void member_map_rebuild(struct control *control);

#endif
