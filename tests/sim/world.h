/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated world: control planes of many engines in one process and one thread, one queue of
 * events, virtual time. world.c owns time, the queue, timers and hosts; wire.c is TCP between
 * them; node.c opens and closes engines; look.c is the client's look-up. Together they implement
 * engine/control/net/net.h. The world of a seed is the same in every run.
 */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include <sys/queue.h>

#include "engine/abi/epoch.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members_inner.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"
#include "engine/control/pages/pages.h"
#include "tests/sim/pages.h"

#define SIM_NODES_MAX NODES_MAX
#define SIM_MS 1000000ull
#define SIM_S 1000000000ull
#define READERS_MAX 128u /* of larger clusters, only some nodes look pages up */
#define SIM_PORT 7000
#define SIM_MTU 1400
#define SIM_RTO_NS (200 * SIM_MS) /* TCP's first retransmission; doubles */

/* An object that events name; freed when it is closed and no event names it any more. */
struct thing {
	unsigned events;
	bool closed;
};

struct event_base {
	unsigned node;
};

/* A mistake that is planted in the world, to show that a checker finds it. */
enum mutant {
	MUTANT_NONE,
	MUTANT_FIRST_ABSENT,  /* a reader believes the first owner that does not have the key */
	MUTANT_LOST_ACK,      /* an owner acknowledges publishes that it did not store */
	MUTANT_DEAF_DEATH,    /* heartbeats of the dead go on: none is removed */
	MUTANT_OWN_WORD,      /* a message of a member counts as an answer to its probes */
	MUTANT_BEAT_REFUTE,   /* who hears a member refutes a claim of it */
	MUTANT_NO_LATCH,      /* a Hello brings back a member that did not serve */
	MUTANT_NO_PAD,        /* all probes are small */
	MUTANT_NO_COMPARE,    /* no engine compares its entries with their owners */
	MUTANT_SUSPECT_FACT,  /* a member that another one claims is removed at once */
	MUTANT_SWEEP_AT_ONCE, /* the entries of a member go as soon as it leaves the map */
	MUTANT_NO_REFUTE,     /* none refutes a claim */
	MUTANT_RESHUFFLE,     /* who owns a slot depends on the number of owners */
	MUTANT_WALK_RESTART,  /* a change of the map begins a walk anew */
	MUTANT_GLOBAL_CAP,    /* the backlog of one owner stops the walks for all */
	MUTANT_ANY_REF,       /* a reader takes entries of processes that are not on its map */
	MUTANT_FRESH_TRUSTED, /* a new owner counts as one that has the entries of its slots */
	MUTANT_NO_VERIFY,     /* a set that finds an entry does not read the page head */
	MUTANT_HALF_FORGET,   /* a removal drops the entries of a page and keeps the page */
	MUTANT_LOST_REMOVE,   /* an owner acknowledges removes of entries that it keeps */
	MUTANT_DISK_REMOVE,   /* the same of pages on disk */
	MUTANT_NO_PROMISE,    /* all removals are unreachable */
	MUTANT_NO_ROOM,       /* shards refuse one key in 64 */
	MUTANT_NO_SHOW,       /* owners show no entries: those without a page stay */
	MUTANT_LOST_RETURN,   /* credits that come back unused stay credits */
	MUTANT_NO_QUARANTINE, /* a client does not say which slot it writes into */
	MUTANT_NO_TOMBSTONE,  /* a removal leaves the page on the disk */
	MUTANT_UNREAD,        /* a page is published before the disk has read it */
	MUTANT_DISK_UNTOLD,   /* owners are not told that a page is on disk */
	MUTANT_NO_RECOVERY,   /* a disk is empty after each start */
	MUTANT_ERROR_IS_OK,   /* a page whose READ from disk has failed counts as read */
	MUTANT_LOST_WRITE,    /* the end of a write to disk does not free some slots */
	MUTANT_QP_REUSED,     /* a QP serves all that name its number, with any key */
	MUTANT_UNPROVEN,      /* no answer to a probe is reported */
	MUTANT_KEPT_CONN,     /* no connection that a rail returns is taken back */
	MUTANT_DEAF_PORT,     /* events of the NICs are lost */
	MUTANT_LOST_QP,       /* some QPs are not destroyed */
	MUTANT_KEPT_QPS,      /* connections with a member that has left the map stay */
	MUTANT_KEPT_STUCK,    /* QPs that do not complete what was posted are not destroyed */
	MUTANT_NO_STALL,      /* rails wait for READs without an answer for ever */
	MUTANT_NO_EPOCH,      /* epochs are not part of keys */
	MUTANT_OPEN_DOOR,     /* an engine takes clients before it has heard a member */
	MUTANT_DEAF_EPOCH,    /* epochs of other engines are not merged */
	MUTANT_LOST_EPOCHS,   /* an engine forgets its epochs when it ends */
	MUTANT_NO_SWEEP,      /* pages of before a clear stay */
	MUTANT_LATE_COPY,     /* a copy of a page is published although it was removed meanwhile */
	MUTANTS,
};

struct node {
	struct control control; /* first: control planes are found from it */
	struct settings settings;
	struct shard shard;
	struct status_segment *status; /* what its clients map; NULL: there are none */
	struct event_base base;
	struct net_listener *listener;
	LIST_HEAD(, net_link) links; /* its ends of connections */
	bool running;                /* the process exists */
	bool powered;                /* the host answers on the network and its NIC serves READs */
	bool stopped;        /* SIGSTOP: the process runs no event; its memory is still READ */
	bool gray;           /* heartbeats go on, requests are not served, nor are READs */
	bool forgetful;      /* it acknowledges publishes and stores nothing */
	bool small_mtu;      /* packets of more than SIM_MTU bytes from and to it are lost */
	uint64_t resumed_ns; /* when the process last ran again after it was stopped */
	uint64_t slow_ns;    /* added to each delivery to this node */
	int64_t clock_ns;    /* the host's clock minus the world's */
	int32_t skew_ppm;    /* rate of the host's clock */
	struct pages pages;
	uint64_t sets, hits, timeouts, others, set_worst_ns;
	uint64_t queue_worst;
};

struct world {
	uint64_t now_ns, seed, random, serial, trace, events;
	unsigned nodes, current;
	enum mutant mutant;
	bool keeper;             /* engines have a keeper, and with it pools and clients */
	bool copies;             /* engines copy pages of each other */
	unsigned stopped_writer; /* 1 + node: its clients stop while they write a page; 0: none */
	double loss;
	uint64_t driver_ns; /* longest time of a call of a NIC's driver */
	bool rails_apart;   /* rails have a network of their own, which no cut reaches */
	uint64_t crash_at;  /* number of the delivery at which `crash_node` dies; 0: none */
	unsigned crash_node;
	unsigned bare; /* 1 + index of the node that is opened without rails; 0: none */
	uint64_t deliveries;
	uint64_t bytes;     /* sent by all nodes */
	uint64_t *cut;      /* a bit per pair of nodes: see world_cut() */
	struct epoch epoch; /* of all keys, since the last clear that was taken */
	struct node *node;
};

extern struct world world;

/* ---- world.c --------------------------------------------------------------------------------- */

typedef void (*world_call)(struct thing *thing, uint64_t word);

void world_open(unsigned nodes, uint64_t seed);
void world_close(void);
uint64_t world_random(void);
/* Calls back at `at_ns` on behalf of `node`, not before it is resumed if it is stopped. */
void world_at(uint64_t at_ns, unsigned node, struct thing *thing, uint64_t word, world_call call);
/* Like world_at(), also while the node is stopped or dead: its kernel, its NIC, or a plan. */
void world_always(
	uint64_t at_ns, unsigned node, struct thing *thing, uint64_t word, world_call call);
void world_run(uint64_t until_ns);
/* The process is not stopped any more, or has ended: its events take place. */
void world_resume(unsigned node);
void world_trace(uint64_t word);
/* Packets from a to b are lost from now on, or are not. */
void world_cut(unsigned a, unsigned b, bool lost);
bool world_is_cut(unsigned a, unsigned b);
void thing_close(struct thing *thing);
/* Frees the thing if it is closed and no event names it. */
void thing_release(struct thing *thing);

/* ---- wire.c ---------------------------------------------------------------------------------- */

void wire_address(unsigned node, struct sockaddr_storage *ret);
uint64_t wire_latency(unsigned to);
/* A packet from a to b arrives at b's host. */
bool wire_reaches(unsigned a, unsigned b);
/* Ends all connections of a node whose process died; resets reach the others. */
void wire_crash(unsigned node);

/* ---- ready.c --------------------------------------------------------------------------------- */

/* The process of the node watches the descriptor. */
bool ready_watched(unsigned node, int fd);
/* The descriptor is readable: the process that watches it, if one does, is called back. */
void ready_call(unsigned node, int fd);

/* ---- node.c ---------------------------------------------------------------------------------- */

/* Look-ups of this node are simulated: all nodes up to 127, of larger clusters one in a few. */
bool node_reads(unsigned i);
void node_open(unsigned i, unsigned replicas, uint64_t entries);
/*
 * Ends the process at once, without Leave, and its memory goes. `power`: the host is silent, too.
 */
void node_crash(unsigned i, bool power);
/* The same; the keeper has the memory for the next process. */
void node_keep(unsigned i);
/* What the engine's loop does at the end of each turn. */
void node_turn(unsigned i);
/* The clock of the node's host. */
uint64_t node_now(unsigned i);
void node_stop(unsigned i, bool stopped);
struct page_key node_key(uint64_t number);
/* The key that the clients of the node compute: what they know of clears may be old. */
struct page_key node_key_of(unsigned i, uint64_t number);
/* The epoch that the clients of the node know. */
struct epoch node_epoch(unsigned i);
/* Stores a page without bytes on node i and publishes it, with a deadline of one second. */
void node_set(unsigned i, uint64_t number);
bool node_holds(unsigned i, const struct page_key *key);
bool node_sees(unsigned i, unsigned j);
/* Every live node has exactly the live nodes on its map. */
bool nodes_agree(void);
/* And each hears each of the others over a link of its own; above 32 nodes its neighbours. */
bool nodes_linked(void);
int node_by_ref(uint32_t ref);

/* ---- views.c --------------------------------------------------------------------------------- */

/* Bytes of all map views, which nodes share. */
uint64_t views_bytes(void);
void views_close(void);

/* ---- look.c ---------------------------------------------------------------------------------- */

enum look_end { LOOK_HIT, LOOK_ABSENT, LOOK_UNREACHABLE, LOOK_ENDS };

struct look_for {
	struct page_key key;
	unsigned reader;
	struct location wrong; /* not to be found; ref 0: none */
};

/* What a look-up found: of a hit, all locations in the bucket, the first one best. */
struct looked {
	enum look_end how;
	bool failed; /* an owner could not be asked */
	unsigned count;
	struct location at[BUCKET_ENTRIES];
};

typedef void (*look_done)(void *context, const struct looked *looked);

/* Frees what the look-ups of all nodes remember. */
void look_close(void);
/* Looks a key up. Calls back once, possibly from inside this call. */
void look_find(const struct look_for *what, look_done done, void *context);
/* A READ of this node has failed, or has not: after a failure it is asked last for a time. */
void look_read(unsigned reader, unsigned owner, bool failed);
bool look_failed_lately(unsigned reader, unsigned owner);

/* ---- look_all.c ------------------------------------------------------------------------------ */

struct looks {
	unsigned open;
	uint64_t count[LOOK_ENDS];
	uint64_t
		false_absent; /* the holder serves, is on the reader's map, and its set was a hit */
	uint64_t foreign;     /* hits of an entry whose holder is not on the reader's map */
	uint64_t true_absent; /* the holder does not have the page */
	uint64_t unserved; /* not found; the holder is gray, cut off or not on the reader's map */
	uint64_t unproven; /* not found, and no owner that failed explains it: a mistake */
};

/* Node `reader` looks up page `number` of `holder`; the result is counted in *looks. */
void look_start(unsigned reader, unsigned holder, uint64_t number, struct looks *looks);
/* The reader's map has the node, whose NIC and process serve it. */
bool page_served(unsigned reader, unsigned holder);

#endif
