/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removals that absent members have missed. Each engine keeps the last REMOVALS_MAX removals that
 * it executed, and for each member the position at which it left the map. A removal that the member
 * had not acknowledged then follows that position. A member that comes back is sent what it has
 * missed, as Forgets, and then Told:
 *
 *      member that comes back            each member that it has a link with
 *      Hello, removals, pages       <->  Hello, removals
 *                                   <-   Forget, of the keys since its position
 *      executes them; Ack           ->
 *                                   <-   Told
 *
 * A member that was started again with pages of before opens the door when all members with which
 * it was in a map have told it, after cluster.dead_after_ms at the latest: until then it publishes
 * nothing, and takes no clients. Pages in memory that nothing proves are dropped then (see
 * DIRECTORY.md). A member that was only frozen or cut off has no door, but its walks wait for Told.
 *
 * Under a keeper the memory outlives the engine. Control plane's thread only.
 */
#ifndef CONTROL_REMOVALS_H
#define CONTROL_REMOVALS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/abi/message.pb-c.h"
#include "engine/abi/page.h"
#include "numa/huge.h"

struct control;
struct member;
struct rpc_link;

#define REMOVALS_MAX 65536u        /* removals that are remembered */
#define REMOVALS_NAMES 4096u       /* members whose positions are remembered */
#define REMOVALS_MAGIC 0x50435256u /* "PCRV" */
#define REMOVALS_LAYOUT 1u         /* raised when a field changes its place or meaning */
#define REMOVALS_PRESENT UINT64_MAX
/* A member that left the map so long ago is not expected back: removals are promises without it. */
#define REMOVALS_ABSENT_NS (600ull * 1000000000)

/* A removal, and its number, which no other one has; 0: not known. */
struct removal {
	struct page_key key;
	uint64_t number;
};

struct removals_name {
	uint64_t hash; /* of the member's name; 0: unused */
	/* position since which the member has missed removals; REMOVALS_PRESENT: none; 0: all */
	uint64_t at;
	uint64_t left_ns; /* when it left the map, CLOCK_MONOTONIC; 0: it is on the map */
};

/* In shared memory, for the next engine. Only the engine writes it. */
struct removals_log {
	uint32_t magic, layout;
	uint64_t head;   /* position of the next removal; the first one has 1 */
	uint64_t ran_ns; /* when the engine ran last, CLOCK_MONOTONIC */
	struct removals_name name[REMOVALS_NAMES];
	struct removal removal[REMOVALS_MAX]; /* by position */
};

struct removals_options {
	struct huge memory; /* of a struct removals_log; removals_close() closes it */
	bool adopted;       /* an engine before has written it */
	bool pages;         /* there are pages of before: the door is shut at first */
	/* The door opens. `drop`: pages in memory may be ones whose removal was a promise. */
	void (*opened)(struct control *control, bool drop);
};
/* Returns 0, or -ENOMEM: the memory stays the caller's. */
int removals_begin(struct control *control, const struct removals_options *options);
void removals_close(struct control *control);
/* removals_door.c: the same with the memory that the engine before has left. */
int removals_open(struct control *control);
/* Runs at every heartbeat. */
void removals_tick(struct control *control, uint64_t now_ns);

/* A number for a removal that a client of this engine wants. */
uint64_t removals_number(struct control *control);
/*
 * This engine executes the removal, or a member has left before it acknowledged that it did:
 * members that come back are told.
 */
void removals_add(struct control *control, const struct removal *removal);
/* True if this engine has executed this removal, not only one of the same key, lately. */
bool removals_done(const struct control *control, const struct removal *removal);
/* True if a member has left the map that is expected back: it may have what is removed now. */
bool removals_missing(const struct control *control);
/* True if this engine may have pages that were removed while it was away: it publishes none. */
bool removals_held(const struct control *control);
/* True if this engine has pages, or may find some: it wants to be told what it has missed. */
bool removals_wanted(const struct control *control);

/* ---- called by member*.c --------------------------------------------------------------------- */

void removals_member_up(struct control *control, const struct member *member);
/* The member is on the map because other members told so: they also tell it what it has missed. */
void removals_member_told(struct control *control, const struct member *member);
void removals_member_left(struct control *control, const struct member *member);
/* The live member at the other end of the link has sent this Hello. */
void removals_hello(struct control *control, struct rpc_link *link, const Pc__Hello *hello);

/* Message of another engine, from messages.c. */
bool removals_serve_told(struct control *control, struct rpc_link *link, const Pc__Told *told);

#endif
