/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the directory: digests of the entries that an owner has of a holder, by which the
 * two are compared, after a map change (directory_move.c) and about once a minute
 * (directory_compare.c). Control plane's thread only.
 */
#ifndef CONTROL_DIRECTORY_DIGEST_H
#define CONTROL_DIRECTORY_DIGEST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct directory;
struct index_entry;
struct owner;
struct page_key;
struct slots_reading;
struct rpc_link;

#define DIGEST_SLOT_ENTRIES 4 /* entries of one slot, about; see DigestAsk of message.proto */
#define DIGEST_BITS_MAX 16
#define DIGEST_BUCKETS 32768 /* buckets of the shard counted in one step */
/*
 * The walk waits this long for the digests of all owners; then it leaves those that have not
 * answered to their own walks, which wait until DIGEST_WAIT_NS after the question
 */
#define DIGEST_PATIENCE_NS 100000000ull
#define DIGEST_WAIT_NS 2000000000ull
/* A periodic comparison begins COMPARE_MIN_NS to COMPARE_MIN_NS + COMPARE_SPREAD_NS later. */
#define COMPARE_MIN_NS (45ull * 1000000000)
#define COMPARE_SPREAD_NS (30ull * 1000000000)
#define COMPARE_DIAL_NS 1000000000ull         /* for links with owners that are no neighbours */
#define COMPARE_OWNERS_MAX 8u                 /* owners asked in one periodic comparison */
#define COMPARE_FULL_NS (600ull * 1000000000) /* an owner that refused an entry is not asked */

/* What an owner has of this engine's entries, and what it should have; one walk. */
struct digest {
	uint64_t serial;            /* of the DigestAsk */
	const struct rpc_link *via; /* on which it was sent */
	uint64_t asked_ns;
	bool answered;
	bool none;       /* the owner has no entry of this engine */
	bool counted;    /* our index was read */
	bool repair;     /* asked by the periodic comparison: the owner should have all entries */
	unsigned bits;   /* 2^bits slots */
	uint64_t sums[]; /* of each slot: the owner's; then, of each slot, by our index */
};

/* The entries that an owner has in the slots that differ; see directory_show.c. */
struct show {
	uint64_t serial;            /* of the EntriesAsk */
	const struct rpc_link *via; /* on which it was sent */
	bool asked;                 /* its answer is missing */
	bool removed;               /* an entry was wrong */
	uint32_t bucket;            /* of the owner's shard: where the next part begins */
	unsigned bits;              /* as of the digest */
	uint32_t bytes;             /* length of `slots` */
	uint8_t slots[];            /* a bit for each slot that differs */
};

/* A DigestAsk of another engine that is not answered yet. */
struct asked {
	TAILQ_ENTRY(asked) next;
	struct rpc_link *link; /* on which it came */
	uint64_t serial;
	uint32_t ref; /* of the engine that asked */
	unsigned bits;
	uint32_t cursor; /* of shard_digest() */
	uint64_t left;   /* buckets not read yet */
	uint64_t *sums;  /* NULL: not begun */
};

TAILQ_HEAD(askeds, asked);

/* ---- directory_digest.c ---------------------------------------------------------------------- */

/*
 * Asks the owners that are new since the last finished walk which of our entries they have. False:
 * there is no owner to compare with.
 */
bool digests_ask(struct directory *directory);
/* Asks one owner, whose `digest` is NULL. False: it cannot be asked now. */
bool digest_ask(struct directory *directory, struct owner *owner);
/* Number of slots in which the owner's entries differ from ours; 0 if it has not answered. */
uint64_t digest_differs(const struct digest *digest);
/* Counts our pages for the owners that were asked; at its end digests_counted() is called. */
extern const struct slots_reading digest_reading;
void digests_counted(struct directory *directory);
/* True while the answer to a question of the last `limit_ns` is missing. */
bool digests_wait(const struct directory *directory, uint64_t limit_ns);
/* True while our index is read for this owner, or its answer is missing and not late. */
bool digest_waits(const struct owner *owner);
/* Leaves the owners that have not answered to their own walks. */
void digests_leave(struct directory *directory);
/* The map has changed, or what owners have: what was compared says nothing any more. */
void digests_stale(struct directory *directory);
/* The walk is finished: drops what only it needed. */
void digests_end(struct directory *directory);
/*
 * True if the owner has exactly our entries in the digest's slot of this key. Only for walks: an
 * entry that is newer than the digests is published by its update.
 */
bool digest_equal(struct owner *owner, const struct page_key *key);
/* The publish of this key was skipped: its slot differs, whatever the digests say. */
void digest_spoil(struct owner *owner, const struct page_key *key);
void digest_drop(struct owner *owner);
/* The owner has dropped our entries, or will: what it has must be compared anew. */
void digest_forgotten(struct owner *owner);
/* The next step of answering other engines. */
void digests_slice(struct directory *directory);
/* The link has closed, or the directory is: nothing is answered on it. NULL: all links. */
void digests_unask(struct directory *directory, const struct rpc_link *link);

/* This engine's own entries in its own shard. */
struct own_shard {
	uint64_t left;    /* buckets that are still to be looked at, */
	uint32_t cursor;  /* from here on */
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

/* Plans the next periodic comparison. */
void compare_later(struct directory *directory, uint64_t now_ns);
/* Begins a periodic comparison if one is due and no walk is in progress. */
void compare_tick(struct directory *directory, uint64_t now_ns);
/* All owners that were asked have answered, or are late: begins to mark, if any slot differs. */
void compare_answers(struct directory *directory);
/* The owners whose digests differ for a page lack its slot. */
extern const struct slots_reading compare_reading;
/* Ends the periodic comparison, if one is in progress. */
void compare_end(struct directory *directory);

#endif
