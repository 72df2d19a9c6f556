/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of removals.c, and what directory*.c, the tests and the simulator use of it. */
#ifndef CONTROL_REMOVALS_INNER_H
#define CONTROL_REMOVALS_INNER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "engine/abi/page.h"
#include "engine/control/directory/directory.h"
#include "numa/huge.h"

struct control;
struct net_timer;

#define REMOVALS_MAX 65536u        /* removals that are remembered */
#define REMOVALS_NAMES 4096u       /* members whose positions are remembered */
#define REMOVALS_MAGIC 0x50435256u /* "PCRV" */
#define REMOVALS_LAYOUT 4u         /* raised when a field changes its place or meaning */
#define REMOVALS_PRESENT UINT64_MAX
/* A member that left the map so long ago is not expected back: removals are promises without it. */
#define REMOVALS_ABSENT_NS (600ull * 1000000000)

/* A removal, and its number, which no other one has; 0: not known. */
struct removal {
	struct page_key key;
	uint64_t number;
};

enum told_limit {
	TOLD_ALL,          /* it can say all */
	TOLD_NOT_KNOWN,    /* not that its position was known */
	TOLD_NOT_COMPLETE, /* nor that all it has missed was remembered */
};

struct removals_name {
	uint64_t hash; /* of the member's name; 0: unused, as are all later ones */
	/* position since which the member has missed removals; REMOVALS_PRESENT: none; 0: all */
	uint64_t at;
	/*
	 * position since which it was sent removals and has not answered, or its disk has not
	 * recorded them; 0: none
	 */
	uint64_t owed_at;
	/* when it left the map with rails, CLOCK_MONOTONIC; 0: it has not since it had some */
	uint64_t left_ns;
	uint32_t ref; /* with which it was on the map of this process last */
	/* 1: it is on the map, and removals for it were dropped since its Hello */
	uint8_t behind;
	uint8_t limit; /* enum told_limit: what a Told on this map cannot say */
	/*
	 * 1: it has no rails, so no page in memory, but perhaps a disk that it does not use now.
	 * `at` and `left_ns` stay as they are until it has rails again: that disk misses removals
	 */
	uint8_t bare;
	uint8_t present; /* 1: it is on the map */
};

/* In shared memory, for the next engine. Only the engine writes it. */
struct removals_log {
	uint32_t magic, layout;
	uint64_t head;   /* position of the next removal; the first one has 1 */
	uint64_t ran_ns; /* when the engine ran last, CLOCK_MONOTONIC */
	struct removals_name name[REMOVALS_NAMES];
	struct removal removal[REMOVALS_MAX]; /* by position */
};

/* A member that is being sent what it has missed. */
struct telling {
	LIST_ENTRY(telling) next;
	struct removals *removals;
	uint64_t name; /* hash of its name */
	uint32_t ref;
	uint64_t at, end;   /* positions of the keys that it was not sent yet */
	uint64_t begin;     /* position of the first one */
	uint64_t later_at;  /* as removals_name.owed_at, of what came since; 0: none */
	uint64_t missed_at; /* position since which it has missed removals */
	unsigned waits;     /* keys that it has not acknowledged */
	bool failed;        /* it has left */
	bool complete;      /* all keys since its position are remembered */
	bool known;         /* its position is */
	bool unrecorded;    /* its disk has not recorded all of them */
};

struct removals {
	struct control *control;
	struct huge memory;
	struct removals_log *log;
	LIST_HEAD(, telling) tellings;
	uint64_t number; /* of the last removal that a client of this engine wanted */
	/* by the lowest bits of their numbers: removal_seal() and enum removal_state */
	uint64_t done[REMOVALS_MAX];
	unsigned owed;   /* element of log->name that was owed a removal last */
	unsigned absent; /* members that have left the map and are expected back */
	/* ---- the door ---- */
	struct net_timer *look;
	bool disk_opens; /* the disk was being opened when this was looked at last */
	void (*opened)(struct control *control, bool drop);
	uint64_t judged_ns; /* members that sent Hello before cannot make pages unproven any more */
	uint64_t opened_ns; /* when this engine was started */
	uint64_t away_ns;   /* for how long no engine ran before; UINT64_MAX: not known */
	/* bit per element of log->name: on the map of the engine before, has not sent Told yet */
	uint64_t awaited[REMOVALS_NAMES / 64];
	bool alone;      /* no other member was on the map when the engine before ended */
	bool unread;     /* what the engine before remembered cannot be read */
	bool proven;     /* a Told has shown that this engine has missed nothing else */
	bool incomplete; /* a Told has shown that its sender does not remember all */
};

/* A number for a removal that a client of this engine wants. */
uint64_t removals_number(struct control *control);
/* This engine executes the removal: members that come back are sent it. */
void removals_add(struct control *control, const struct removal *removal);
/*
 * Member `ref` has left before it acknowledged the removal, and gets it after its next Hello. Or it
 * is not sent it because too much waits for it, and gets it in the next tick, if it has a link.
 */
void removals_owe(struct control *control, uint32_t ref, const struct removal *removal);
enum removal_state {
	REMOVAL_UNKNOWN,  /* this engine has not executed it lately */
	REMOVAL_EXECUTED, /* its tombstone is not durable, or not yet */
	REMOVAL_DURABLE   /* after a crash of this engine the page stays away */
};
/* Of this removal, not only one of the same key. */
enum removal_state removals_state(const struct control *control, const struct removal *removal);
void removals_state_set(
	struct control *control, const struct removal *removal, enum removal_state state);
/* The member has sent one more part of what this engine has missed: its Told is not late. */
void removals_served(struct rpc_link *link);
/* True if this engine may have pages that were removed while it was away: it publishes none. */
bool removals_held(const struct control *control);

#endif
