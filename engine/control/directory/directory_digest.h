/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the directory: comparing the entries that an owner has of a holder with the holder's
 * pages. Control plane's thread only.
 */
#ifndef CONTROL_DIRECTORY_DIGEST_H
#define CONTROL_DIRECTORY_DIGEST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "engine/control/pages/pages.h"

struct directory;
struct index_entry;
struct owner;
struct rpc_link;

#define DIGEST_BUCKETS 32768         /* buckets of the shard counted in one step */
#define DIGEST_WAIT_NS 2000000000ull /* a fresh owner that has not answered by then is sent all */
/* Nothing waits for an unsure one, which reads its shard for one holder after the other. */
#define DIGEST_UNSURE_NS 20000000000ull
/* It is an owner's turn COMPARE_MIN_NS to COMPARE_MIN_NS + COMPARE_SPREAD_NS later. */
#define COMPARE_MIN_NS (45ull * 1000000000)
#define COMPARE_SPREAD_NS (30ull * 1000000000)
#define COMPARE_DIAL_NS 1000000000ull /* for links with owners that are no neighbours */
#define COMPARE_OWNERS_MAX 16u        /* owners asked at a time: 512 KiB each */
#define COMPARE_LOST_MAX 32u          /* owners of a map that need no turn: see compare_mark() */
#define COMPARE_TURN_OWNERS 8u        /* whose turn it is at a time */
#define COMPARE_FULL_NS (600ull * 1000000000) /* to one that refused an entry none is published */

/* What an owner has of this engine's entries, and what it should have. */
struct digest {
	uint64_t serial;            /* of the DigestAsk */
	const struct rpc_link *via; /* on which it was sent */
	uint64_t asked_ns;
	bool answered;
	bool none;      /* the owner has no entry of this engine */
	bool counted;   /* our index was read */
	uint64_t pages; /* number of entries that it should have */
	/* of each slot of the map: our sum less its sum, as far as they are known */
	uint64_t differ[MAP_SLOTS];
};

/* The entries that an owner has in the slots that differ; see directory_show.c. */
struct show {
	uint64_t serial;              /* of the EntriesAsk */
	const struct rpc_link *via;   /* on which it was sent */
	bool asked;                   /* its answer is missing */
	bool removed;                 /* an entry was wrong */
	uint32_t bucket;              /* of the owner's shard: where the next part begins */
	uint8_t slots[MAP_SLOTS / 8]; /* a bit for each slot that differs */
};

/* A DigestAsk of another engine that is not answered yet. */
struct asked {
	TAILQ_ENTRY(asked) next;
	struct rpc_link *link; /* on which it came */
	uint64_t serial;
	uint32_t ref;    /* of the engine that asked */
	uint32_t cursor; /* of shard_digest() */
	uint64_t left;   /* buckets not read yet */
	uint64_t *sums;  /* NULL: not begun */
};

TAILQ_HEAD(askeds, asked);

/* ---- directory_digest.c ---------------------------------------------------------------------- */

/* Asks an owner, whose `digest` is NULL. False: it cannot be asked now. */
bool digest_ask(struct directory *directory, struct owner *owner);
/* Reads the next pages for the owners that were asked. False: all are read. */
bool digests_count(struct directory *directory);
void digest_drop(struct owner *owner);
/* The next step of answering other engines. */
void digests_slice(struct directory *directory);
/* The link has closed, or the directory is: nothing is answered on it. NULL: all links. */
void digests_unask(struct directory *directory, const struct rpc_link *link);

/* This engine's own entries in its own shard. */
struct own_shard {
	uint64_t left;    /* buckets that are still to be looked at, */
	uint32_t cursor;  /* from here on */
	bool unsure;      /* it is to be looked at */
	uint64_t dropped; /* shard.dropped when all of it was last looked at */
};

/* ---- directory_show.c ------------------------------------------------------------------------ */

#define SHOW_BUCKETS DIGEST_BUCKETS /* buckets of the shard looked at for one answer */

/* The owner's digest is answered and counted: begins to look at its entries in what differs. */
void show_begin(struct directory *directory, struct owner *owner);
/* Asks for the next part, if the owner has room for removes. Called when it has acknowledged. */
void show_next(struct directory *directory, struct owner *owner);
void show_drop(struct owner *owner);
/* The next part of this engine's own shard, with its own entries. */
void show_own(struct directory *directory);

/* ---- directory_compare.c --------------------------------------------------------------------- */

/* Plans the next turn. */
void compare_later(struct directory *directory, uint64_t now_ns);
/* The member may have entries of slots that it has lost; nothing if it has left the map. */
void compare_mark(struct directory *directory, uint32_t ref);
/* Asks the owners that are due. Called while no pages are counted. */
void compare_start(struct directory *directory, uint64_t now_ns);
/* The owner has answered, or our pages were counted: judges it once both are true. */
void compare_answered(struct directory *directory, struct owner *owner);
/* Our pages were counted for all owners that were asked. */
void compare_counted(struct directory *directory);
/* Goes on without an answer: a fresh owner lacks all that it owns. */
void compare_without(struct directory *directory, struct owner *owner);
/* The same with the owners that have not answered in time. */
void compare_late(struct directory *directory, uint64_t now_ns);
void compare_tick(struct directory *directory, uint64_t now_ns);
/* True while owners are fresh or lack slots. */
bool moves_any(const struct directory *directory);
/* True while an owner, or this engine's shard, is unsure or compared with. */
bool compares_any(const struct directory *directory);
/* True while former owners may have entries. */
bool tidies(const struct directory *directory);

#endif
