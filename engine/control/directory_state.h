/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the directory: claims (one thing to tell one or more owners), a queue per owner,
 * the walk that moves entries when the map changes. Control plane's thread only.
 *
 * A slow owner, or one that acknowledges nothing, delays no other and costs bounded memory: what no
 * client waits for is bounded per owner. Beyond the bound, publishes are left out and the owner is
 * `behind`: a walk of its own publishes what it owns once it acknowledges again.
 *
 *   directory.c        the calls of directory.h      directory_claim.c   claims, deadlines, answers
 *   directory_send.c   queues, batches, acks         directory_move.c    map changes, sweeping
 *   directory_behind.c bounds, walks of owners that are behind
 *   directory_serve.c  what others ask of us
 *
 * Per owner, publishes are sent before removes. That is always right, because removes name a
 * generation: one that was queued after its publish follows it, one that was queued before a newer
 * publish finds another generation and does nothing.
 */
#ifndef CONTROL_DIRECTORY_STATE_H
#define CONTROL_DIRECTORY_STATE_H

#include <sys/queue.h>

#include "engine/abi/message.pb-c.h"
#include "engine/control/control.h"
#include "engine/control/directory.h"

struct rpc_link;

#define BATCHES_MAX 16 /* unacknowledged messages per owner */
/* Items of one owner that no client waits for, queued or in flight; see owner_full(). */
#define OWNER_PUBLISHES_MAX MESSAGE_PAGES_MAX /* beyond, the owner is behind */
#define OWNER_REMOVES_MAX (16u << 10) /* beyond, removes are dropped: readers report the entries */
#define BACKGROUND_MAX (1u << 20)     /* claims that no client waits for, all owners; the same */
#define MOVE_KEYS 2048                /* keys looked at in one slice of the walk */
#define MOVE_PART (MOVE_KEYS / 8)     /* keys copied from the index at a time */
#define MOVE_BUCKETS 8192             /* buckets swept in one slice */
#define FORMER_MAX 4                  /* maps whose owners are still to be tidied up */
#define MOVE_PACE_MS 2                /* between slices */
#define TOUCH_PACE_MS 20              /* touches are gathered for this long */

enum verb { VERB_PUBLISH, VERB_FORGET, VERB_REMOVE, VERBS }; /* in the order they are sent */

enum outcome {
	OUTCOME_DONE,
	OUTCOME_FAILED, /* the owner said no: no room, or not there */
	OUTCOME_LOST,   /* the owner is gone and has no successor for this */
};

/* One owner's part of a claim; in exactly one queue or batch until it is resolved. */
struct item {
	TAILQ_ENTRY(item) next;
	struct claim *claim;
	uint32_t ref; /* whom it is for */
	uint16_t peer;
	bool resolved;
	bool sent;       /* in a batch, not in a queue */
	bool background; /* counted in owner.background */
};
TAILQ_HEAD(items, item);

struct claim {
	STAILQ_ENTRY(claim) finished;
	struct page_key key;
	uint32_t place;
	uint32_t generation;
	uint32_t ref;    /* VERB_REMOVE: whose entry */
	uint8_t verb;    /* enum verb */
	uint8_t status;  /* enum op_status, once `answered` */
	bool answered;   /* on the list of finished ones */
	bool background; /* counted in directory.background */
	uint64_t deadline_ns;
	directory_done done; /* NULL: nobody waits, or was told */
	void *context;
	uint64_t cookie;
	uint32_t heap;    /* place in the heap + 1; 0: not there */
	uint16_t pending; /* items not resolved, and one while the claim is being made */
	uint16_t acked, refused;
	uint16_t items, room;
	struct item item[];
};

struct batch {
	STAILQ_ENTRY(batch) next;
	uint64_t serial;
	uint64_t sent_ns;
	const struct rpc_link *via;
	unsigned verb;
	unsigned count;
	struct item *item[];
};

struct owner {
	STAILQ_ENTRY(owner) next_dirty;
	bool dirty;
	uint16_t peer;
	uint32_t ref; /* 0: nobody has this peer number now */
	struct items queue[VERBS];
	STAILQ_HEAD(, batch) batches;
	unsigned in_flight;
	uint32_t background; /* items that no client waits for */
	bool behind;         /* publishes to it were left out: it is walked from `cursor` on ... */
	bool again;          /* ... and then once more from the start */
	bool warned;
	uint64_t cursor;
	uint32_t *touches;
	unsigned touched;
};

enum move_phase {
	MOVE_NONE,
	MOVE_WALK, /* new owners are told */
	MOVE_WAIT, /* readers get to know the new map */
	MOVE_TIDY, /* former owners are told to drop it */
};

struct directory {
	struct control *control;
	struct owner owner[NODES_MAX]; /* by peer number */
	STAILQ_HEAD(, owner) dirty;    /* have something to send */
	STAILQ_HEAD(, claim) finished; /* to be answered by directory_flush() */
	struct items orphans;          /* publishes whose owner died, until the next map */
	struct claim **heap;           /* by deadline */
	uint32_t heap_count, heap_room;
	struct event *due;  /* the first deadline */
	uint64_t due_ns;    /* when `due` fires; 0: not armed */
	struct event *wake; /* calls directory_flush() at the end of this turn */
	struct event *touch_due;
	bool touch_armed;
	uint64_t serial;
	uint32_t background;
	/* moving entries after the map changed; a member with ref 0 in these views holds nothing */
	struct event *move;
	bool move_soon; /* it fires within MOVE_PACE_MS */
	bool untidy;    /* entries were left with former owners because a new one lags */
	unsigned turn;  /* the owner whose own walk is next */
	enum move_phase phase;
	uint64_t cursor;
	uint64_t tidy_ns;         /* MOVE_WAIT: when it ends */
	struct map_view *settled; /* of the last finished walk */
	struct map_view *target;  /* of the walk under way, or settled */
	struct map_view *former;  /* FORMER_MAX of them: owners by these are to be tidied up */
	unsigned formers;
	uint32_t sweep_cursor;
	uint64_t sweep_left; /* buckets */
	/* scratch for one message */
	Pc__Entry entry[MESSAGE_PAGES_MAX];
	Pc__Entry *entry_at[MESSAGE_PAGES_MAX];
	uint32_t failed[MESSAGE_PAGES_MAX];
};

/* ---- directory_claim.c ----------------------------------------------------------------------- */

/* A claim with room for `room` items; NULL: no memory. It exists until claim_start() at least. */
struct claim *claim_new(struct directory *directory, enum verb verb, const struct page_key *key,
	uint32_t place, uint32_t generation, unsigned room);
/* Somebody waits for it until then. */
void claim_await(struct directory *directory, struct claim *claim, uint64_t deadline_ns,
	directory_done done, void *context, uint64_t cookie);
/* One more owner: done here and now when that is us, queued otherwise. Ignored when it is there. */
void claim_add(struct directory *directory, struct claim *claim, uint16_t peer, uint32_t ref);
/* All owners were added; the claim may be gone afterwards. */
void claim_start(struct directory *directory, struct claim *claim);
/* The claim may be gone afterwards. */
void item_resolve(struct directory *directory, struct item *item, enum outcome outcome);
bool claim_has(const struct claim *claim, uint32_t ref);
/* Does the verb for ourselves. */
enum outcome claim_do_here(struct directory *directory, const struct claim *claim);
/* Calls what is finished; what the calls finish in turn is called too, up to a bound. */
void claims_answer(struct directory *directory);
void claims_close(struct directory *directory);
void claims_due(evutil_socket_t fd, short what, void *context);

/* ---- directory_send.c ------------------------------------------------------------------------ */

/* Into its owner's queue, or among the orphans if that has died this turn. */
void item_queue(struct directory *directory, struct item *item);
void owner_dirty(struct directory *directory, struct owner *owner);
void owners_send(struct directory *directory);
/* Batches under way go back to the queues, in no particular order: what they held is given up next.
 */
void owner_rewind(struct owner *owner);
/* Takes everything it holds: publishes to `orphans`, the rest is lost. */
void owner_clear(struct directory *directory, struct owner *owner);

/* ---- directory_move.c ------------------------------------------------------------------------ */

void move_slice(evutil_socket_t fd, short what, void *context);
/* The next slice within MOVE_PACE_MS. */
void move_soon(struct directory *directory);

/* ---- directory_behind.c ---------------------------------------------------------------------- */

/* NULL: the member is this engine, or gone. */
struct owner *owner_of(struct directory *directory, uint16_t peer, uint32_t ref);
/* Is there no room for another item of this verb that no client waits for? */
bool owner_full(const struct directory *directory, const struct owner *owner, enum verb verb);
/* Publishes are left out: of the index from `cursor` on. */
void owner_behind(struct owner *owner, uint64_t cursor);
/* No client waits for the item: counts it, or drops it when its owner is full. */
void item_background(struct directory *directory, struct item *item);
void item_background_end(struct directory *directory, struct item *item);
/* Publishes to one owner that is behind and has room again. */
void behind_slice(struct directory *directory);
/* Would behind_slice() find something to do? */
bool behind_ready(const struct directory *directory);
/* Has the owner not acknowledged what was published to it dead_after_ms ago? */
bool owner_lags(const struct directory *directory, const struct owner *owner);
bool behind_any(const struct directory *directory);

#endif
