/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations shared by removals*.c; the simulator includes them, too. */
#ifndef CONTROL_REMOVALS_INNER_H
#define CONTROL_REMOVALS_INNER_H

#include <sys/queue.h>

#include "engine/control/directory/removals.h"

struct net_timer;

/* A member that is being told what it has missed. */
struct telling {
	LIST_ENTRY(telling) next;
	struct removals *removals;
	uint64_t name; /* hash of its name */
	uint32_t ref;
	uint64_t at, end; /* positions of the keys that it was not sent yet */
	unsigned waits;   /* keys that it has not acknowledged */
	bool failed;      /* it has left */
	bool complete;    /* all keys since its position are remembered */
	bool known;       /* its position is */
};

struct removals {
	struct control *control;
	struct huge memory;
	struct removals_log *log;
	LIST_HEAD(, telling) tellings;
	uint64_t number; /* of the last removal that a client of this engine wanted */
	/* removals that were executed here, as seal(), by the lowest bits of their numbers */
	uint64_t done[REMOVALS_MAX];
	unsigned absent; /* members that have left the map and are expected back */
	/* ---- the door ---- */
	struct net_timer *look;
	void (*opened)(struct control *control, bool drop);
	uint64_t opened_ns; /* when this engine was started */
	uint64_t away_ns;   /* for how long no engine ran before; UINT64_MAX: not known */
	/* bit per element of log->name: on the map of the engine before, has not told yet */
	uint64_t awaited[REMOVALS_NAMES / 64];
	bool alone;      /* no other member was on the map when the engine before ended */
	bool proven;     /* a member has told that this engine has missed nothing else */
	bool incomplete; /* a member has told that it does not remember all */
};

/* ---- removals.c ------------------------------------------------------------------------------ */

/* Of the member's name; never 0. */
uint64_t removals_hash(const struct member *member);
/* NULL: the name is not known. */
struct removals_name *removals_find(const struct removals *r, uint64_t hash);

/* ---- removals_tell.c ------------------------------------------------------------------------- */

/*
 * Tells the live member what it has missed, if `pages`, and then that this was all. Does nothing if
 * it is being told.
 */
void telling_begin(struct removals *r, const struct member *member, bool pages);
/* Sends the next keys, or Told. May free it. */
void telling_step(struct telling *t);
void telling_free(struct telling *t);

#endif
