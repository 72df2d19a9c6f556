/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who lives: the member table of this engine, by its own observation. Control plane's thread only.
 *
 *   member.c        life and death           member_greet.c   Hello, gossip
 *   member_tick.c   heartbeats, silence      member_seeds.c   the text of cluster.seeds
 *   member_map.c    the map made of it       member_agree.c   who is refused, and why
 *
 * Hearing of an engine (seeds, gossip) makes it a candidate: it is dialled. Only its own Hello,
 * over a connection with it, makes it alive and puts it on the map; so what others still say about
 * a dead engine can never bring it back. It is dead when nothing was heard from it for
 * dead_after_ms, when no connection is left and dialling is refused, when another incarnation of
 * its name says Hello, or when it says Leave. The dead are dialled for a while, seldom, so that a
 * partition heals.
 */
#ifndef CONTROL_MEMBER_H
#define CONTROL_MEMBER_H

#include "engine/control/rpc.h"

#define MEMBER_ENTRIES (2 * NODES_MAX)            /* alive, candidates and dead */
#define MEMBER_REFS 1024                          /* slots of the table of refs; > 2 * NODES_MAX */
#define MEMBER_DEAD_NS (600ull * 1000000000)      /* how long a dead engine is dialled */
#define MEMBER_SELF_RETRY_NS (30ull * 1000000000) /* a seed that leads here may change its mind */
#define MEMBER_GOSSIP_BEATS 20          /* heartbeats between Members that changed nothing */
#define MEMBER_SOFTWARE_BYTES 32        /* program version in a Hello, with its zero */
#define AGREED_BYTES_MAX 128            /* "name = value" in a Hello */
#define AGREED_ENTRIES_MAX 32           /* ... and how many of them are looked at */
#define REFUSALS 64                     /* engines whose refusal was logged and is remembered */
#define MAP_HOLD_NS (5ull * 1000000000) /* changes this close share one previous map */
#define MAP_PREVIOUS_NS (60ull * 1000000000) /* after a change nobody asks the previous map */

enum member_state {
	MEMBER_FREE,
	MEMBER_CANDIDATE, /* heard of, dialled */
	MEMBER_ALIVE,     /* said Hello; on the map */
	MEMBER_DEAD,      /* remembered */
};

struct member_entry {
	struct member_record record;
	uint64_t name_hash;
	char software[MEMBER_SOFTWARE_BYTES]; /* program version; "": not known */
	enum member_state state;
	bool left; /* dead because it said so: not dialled */
	struct rpc_dial *dial;
	struct rpc_link *out; /* up, dialled by us */
	struct rpc_link *in;  /* up, accepted */
	uint64_t heard_ns;
	uint64_t since_ns;    /* candidate: last mentioned; dead: when it died */
	uint64_t term_ours;   /* another value each time it was taken off our map */
	uint64_t term_theirs; /* the same, as it tells us; 0: not told yet */
	uint64_t digest_told; /* its digest when Members were sent last, and ours */
	uint64_t digest_ours;
	uint64_t gossip_ns;
};

struct member_seed {
	char host[NAME_BYTES_MAX];
	uint16_t port;
	struct rpc_dial *dial; /* NULL: whom it leads to is known */
	char name[NAME_BYTES_MAX];
	uint64_t retry_ns; /* it led to ourselves: not before this */
	bool self;         /* it is our own address */
};

enum {
#define AGREED(name, format, value) +1
	AGREED_COUNT = 0
#include "engine/control/agreed.def"
#undef AGREED
};

/* What this engine's Hello says that must be equal. */
struct agreed {
	char text[AGREED_COUNT][AGREED_BYTES_MAX];
	char *at[AGREED_COUNT];
	uint64_t hash;
};

struct refusal {
	uint64_t who, why; /* hashes; who 0: free */
};

struct member {
	struct member_entry entry[MEMBER_ENTRIES]; /* [0] is ourselves */
	struct member_entry *by_peer[NODES_MAX];
	struct member_entry *by_ref[MEMBER_REFS];
	uint64_t peer_freed[NODES_MAX]; /* when the number was used last, counted; 0: never */
	uint64_t peers_freed;
	struct member_seed seed[SEEDS_MAX];
	unsigned seeds;
	struct agreed agreed;
	struct refusal refusal[REFUSALS];
	unsigned refusals; /* slots used, counted */
	unsigned alive;    /* ourselves included */
	uint64_t digest;   /* of the incarnations alive */
	uint64_t terms;
	uint64_t tick_ns;
	bool leaving;
	struct event *tick;
	struct event *rebuild;
	struct map_view *current, *previous;
	uint64_t opened_ns; /* or when the first other member came: until a hold after it we join */
	uint64_t changed_ns;
};

/* ---- member.c -------------------------------------------------------------------------------- */

/* The link requests go over: ours, else theirs, else NULL. */
struct rpc_link *member_link(const struct control *control, uint32_t ref);
/* Ref of the member a link that is up belongs to. */
uint32_t member_link_ref(const struct rpc_link *link);

/* For member_greet.c. */
struct member_entry *member_find(struct member *member, const char *name);
uint64_t member_name_hash(const char *name);
/* A free entry, or that of the engine dead for longest; NULL: everybody lives. */
struct member_entry *member_entry_take(struct control *control);
void member_entry_free(struct member_entry *entry);
void member_entry_dial(struct control *control, struct member_entry *entry, bool seldom);
void member_down(struct control *control, struct member_entry *entry, const char *why);
/* 0, -ENFILE: no peer number is left. */
int member_up(struct control *control, struct member_entry *entry);

/* Parses cluster.seeds. 0 or -EINVAL, logged. Needs no network. */
int member_seeds(const struct settings *settings, struct member *member);

/* ---- member_agree.c -------------------------------------------------------------------------- */

void member_agree_open(struct control *control);
/* The Hello's fields about it; they point into control->member. */
void member_agree_say(struct control *control, Pc__Hello *hello);
/*
 * Is it an engine of this wire version? If not, it was refused and the link is closed. Looks at
 * nothing that another version may have changed.
 */
bool member_agree_version(struct control *control, struct rpc_link *link, const Pc__Hello *hello);
/* Of this cluster, and at an address that both can use? The same; hello->self was checked. */
bool member_agree(struct control *control, struct rpc_link *link, const Pc__Hello *hello);
/* Does that text, an address some engine advertises, reach its own host only? */
bool member_address_local(const struct control *control, const char *address);
/*
 * Closes the link and logs why, once for each engine (`who`: its incarnation) and reason. `tell`:
 * says Hello first, because the other end comes to the same conclusion by it.
 */
__attribute__((format(printf, 5, 6))) void member_refuse(struct control *control,
	struct rpc_link *link, uint64_t who, bool tell, const char *format, ...);

/* ---- member_tick.c --------------------------------------------------------------------------- */

/* Every heartbeat. */
void member_tick(evutil_socket_t fd, short what, void *context);
/* Dials seeds that lead to nobody we know. */
void member_seeds_tick(struct control *control, uint64_t now_ns);

/* ---- member_map.c ---------------------------------------------------------------------------- */

/*
 * Pure: the map of `count` members, 1..NODES_MAX, in any order; they are sorted by name, so every
 * node comes to the same ring.
 */
void member_map_build(struct map_view *ret_view, const struct map_member *members, unsigned count,
	unsigned replicas);
/* Makes the map of who is alive, writes it to the status segment, tells directory.c. */
void member_map_rebuild(struct control *control);
/* Takes the previous map away once its time is over. */
void member_map_tick(struct control *control, uint64_t now_ns);

#endif
