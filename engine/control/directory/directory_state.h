/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the directory, shared by directory*.c: updates (one message for one or more owners),
 * a queue per owner, and a walk per owner that sends it the entries of the slots that it lacks.
 * Control plane's thread only.
 *
 * A slow owner, or one that acknowledges nothing, delays no other owner and costs bounded memory:
 * the targets that no client waits for are limited per owner. Above the limit, publishes are
 * skipped: the owner lacks their slots, and its walk goes on once it acknowledges again.
 *
 * For one owner, publishes are sent before removes. That order is always correct because a remove
 * names a generation: a remove queued after the publish of its entry is also sent after it, and a
 * remove queued before a newer publish finds another generation in the entry and does nothing. One
 * for an owner that had lost the slot and has it again is not: that owner is compared with.
 */
#ifndef CONTROL_DIRECTORY_STATE_H
#define CONTROL_DIRECTORY_STATE_H

#include <sys/queue.h>

#include "engine/abi/message.pb-c.h"
#include "engine/control/base/control.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"
#include "engine/control/pages/pages.h"

struct rpc_link;
struct index_entry;

#define BATCHES_MAX 16 /* limit of batches to one owner that it has not acknowledged */
/*
 * Limits on the targets of one owner that no client waits for, queued or in flight; see
 * owner_full().
 */
/* Above this limit, publishes to the owner are skipped, and a walk makes up for them later */
#define OWNER_PUBLISHES_MAX (3 * MESSAGE_PAGES_MAX)
/*
 * Walks use this part of it: the rest is for pages that leave memory or come back from disk
 * meanwhile, which would otherwise make the owner behind again, without end
 */
#define OWNER_WALK_MAX MESSAGE_PAGES_MAX
/* Above this limit, removes are dropped: readers report the stale entries to the owner later */
#define OWNER_REMOVES_MAX (16u << 10)
/* Limit, over all owners, of updates that no client waits for; above it, removes are dropped */
#define BACKGROUND_MAX (1u << 20)
#define DUE_LOOKS 4096            /* updates looked at in one turn of the loop */
#define DUE_LOOK_MS 50            /* between two looks at the deadlines of updates that wait */
#define MOVE_KEYS 2048            /* pages read in one step of the walks */
#define MOVE_PART (MOVE_KEYS / 8) /* pages copied to the stack at a time */
/*
 * The entries of a member that left the map stay in the shard for this many times
 * cluster.dead_after_ms, if others do not need their room: it may come back with the same ref and
 * the same pages
 */
#define DEPARTED_DEADS 20
#define DEPARTED_MAX 64 /* members; beyond, the entries of the one that left first are swept */
#define OWNER_CHAINS OWNERS_MAX /* of directory.by_peer */

#define DIGEST_BUCKETS 32768 /* buckets of the shard counted in one step */
/* nothing waits for an owner, which reads its shard for one holder after the other */
#define DIGEST_WAIT_NS 20000000000ull
/* It is an owner's turn COMPARE_MIN_NS to COMPARE_MIN_NS + COMPARE_SPREAD_NS later. */
#define COMPARE_MIN_NS (45ull * 1000000000)
#define COMPARE_SPREAD_NS (30ull * 1000000000)
#define COMPARE_OWNERS_MAX 16u         /* owners asked at a time: 512 KiB each */
#define COMPARE_SLOTS (MAP_SLOTS / 16) /* slots that are published after one comparison */

#define SHOW_BUCKETS DIGEST_BUCKETS /* buckets of the shard looked at for one answer */
/* What is done to a key at an owner, in the order in which queued targets are sent to an owner. */
enum dir_kind { DIR_PUBLISH, DIR_FORGET, DIR_REMOVE, DIR_KINDS };

enum outcome {
	OUTCOME_DONE,
	/* The owner refused: it has no room for the entry, or does not have the page */
	OUTCOME_FAILED,
	/*
	 * The owner has left the map, and no other owner takes its place, or it is not sent the
	 * message. It may have the page or the entry that was to be removed
	 */
	OUTCOME_LOST,
};

/*
 * A target: the part of an update that concerns one owner. In exactly one queue or batch until the
 * owner has answered.
 */
struct dir_target {
	TAILQ_ENTRY(dir_target) next;
	struct dir_update *update;
	uint32_t ref; /* ref of the owner that this target is for */
	uint16_t peer;
	bool resolved;
	bool sent; /* the target is in a batch that was sent; false: it is in the owner's queue */
	bool background; /* the target is counted in owner.background */
};
TAILQ_HEAD(dir_targets, dir_target);

/* What is to be done, and who waits for it. */
struct dir_request {
	enum dir_kind kind;
	struct page_key key;
	struct location at;
	const struct waiter *waiter; /* NULL: none */
	enum evicted evicted;        /* DIR_REMOVE: why */
};

struct dir_update {
	STAILQ_ENTRY(dir_update) finished;
	struct page_key key;
	/* of the page; its ref only in DIR_REMOVE: the holder that the entry names */
	struct location at;
	uint8_t kind;    /* an enum dir_kind: what is done at the owners */
	uint8_t evicted; /* DIR_REMOVE: why, an enum evicted */
	uint8_t status;  /* result of the update, an enum op_status; valid once `answered` */
	bool answered;   /* the update is on the list `finished`, or its `done` was called */
	bool background; /* the update is counted in directory.background */
	bool started;    /* update_start() was called: all its targets are there */
	bool partial;    /* answered without a suspect owner; counted in directory.partial */
	/* its `done` is called with the result; NULL: no client waits, or it was called already */
	struct waiter waiter;
	TAILQ_ENTRY(dir_update) waits; /* with a waiter, until it is answered */
	uint16_t pending; /* number of targets without an outcome, plus 1 until update_start() */
	uint16_t acked, refused; /* OUTCOME_DONE, OUTCOME_FAILED */
	uint16_t lost;           /* OUTCOME_LOST: what is removed may come back */
	uint16_t targets, room;
	struct dir_target target[];
};

struct batch {
	STAILQ_ENTRY(batch) next;
	uint64_t serial;
	uint64_t sent_ns;
	const struct rpc_link *via;
	unsigned kind;
	unsigned count;
	struct dir_target *target[];
};

/* A member that left the map, whose entries are still in the shard. */
struct departed {
	uint32_t ref;
	uint64_t since_ns;
};

/* Sends an owner the entries of the slots that it lacks. */
struct walk {
	uint32_t slots; /* number of these slots */
	uint32_t slot;  /* where the walk is, */
	uint64_t at;    /* and a cursor of slot_pages(); 0: at the start of the slot */
	bool again;     /* an entry of the slot was skipped meanwhile: read it once more */
};

/* What an owner has of this engine's entries, and what it should have. */
struct digest {
	uint64_t serial;            /* of the DigestAsk */
	const struct rpc_link *via; /* on which it was sent */
	uint64_t asked_ns;
	bool answered;
	bool none;    /* the owner has no entry of this engine */
	bool counted; /* our index was read */
	/* of each slot of the map: our sum less its sum, as far as they are known */
	uint64_t differ[MAP_SLOTS];
};

/* The entries that an owner has in the slots that differ; see directory_digest.c. */
struct show {
	uint64_t serial;              /* of the EntriesAsk */
	const struct rpc_link *via;   /* on which it was sent */
	bool asked;                   /* its answer is missing */
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

/* This engine's own entries in its own shard. */
struct own_shard {
	uint64_t left;   /* buckets that are still to be looked at, */
	uint32_t cursor; /* from here on */
	bool refused;    /* an entry of it had no room */
};

/* Told a holder TOUCH_PACE_MS after the first of them, best effort. */
struct hints {
	unsigned touches, reports;
	uint32_t touch[MESSAGE_PAGES_MAX]; /* places that were read */
	struct page_report report[REPORTS_MAX];
};

struct owner {
	STAILQ_ENTRY(owner) next;
	STAILQ_ENTRY(owner) next_dirty;
	struct owner *next_by_peer;
	bool dirty;
	uint16_t peer;
	uint32_t ref; /* ref of the owner; 0: no member has this peer number */
	struct dir_targets queue[DIR_KINDS];
	unsigned queued[DIR_KINDS]; /* lengths of the queues */
	STAILQ_HEAD(batches, batch) batches;
	unsigned in_flight;
	/* number of targets of this owner, queued or sent, that no client waits for */
	uint32_t background;
	struct walk walk;
	bool unsure; /* it may have entries that it should not have, or lack some unnoticed */
	bool warned;
	enum suspect_why
		why;         /* as of the last look: when it began to owe, on patrol, at its acks */
	uint32_t unread_ref; /* of the incarnation whose READs hang; 0: they do not */
	uint64_t suspect_ns; /* when `why` last became a reason not to wait */
	uint64_t wait_ns;    /* when it began to owe an answer, or last gave one */
	uint64_t served_ns;  /* time of its last acknowledgement; 0: none */
	struct digest *digest; /* NULL: it is not compared with now */
	struct show *show;     /* the entries that it shows; NULL: none */
	struct hints *hints;   /* NULL: none yet */
};

/* Updates whose waiters are not answered. */
struct waits {
	TAILQ_HEAD(, dir_update) list;
	struct dir_update *next; /* the one to look at next; NULL: a look begins with the first */
	struct net_timer *timer; /* looks at their deadlines */
	bool armed;
};

/* Looks at the owners that owe an answer. */
struct patrol {
	struct net_timer *timer;
	uint64_t armed_ns; /* when it was armed; 0: it is not */
	uint64_t awake_ns; /* when this engine was last found to run again after a pause */
};

/* The steps that follow a change of the map: walks and comparisons. */
struct move {
	struct net_timer *timer;
	bool soon;           /* the timer fires within MOVE_PACE_MS */
	bool held;           /* no walk begins before walk_ns */
	bool walking;        /* until owners have what they lack by these changes */
	uint64_t changed_ns; /* time of the first of the last changes, */
	uint64_t walk_ns;    /* and time until which there may be further ones */
	/* from then on all members have the present map: no owner is compared with before */
	uint64_t compare_ns;
};

struct maps {
	struct map_view *settled; /* the map to which struct lacks refers: the present one */
	/* by index of an owner in `settled`, a bit: its member has left since, and may be back */
	uint64_t left[OWNERS_MAX / 64];
	bool left_any;
};

/* Slots that owners lack: COMPARING.md. */
struct lacks {
	uint8_t bits[MAP_SLOTS];
	uint64_t count, most; /* pairs of an owner and a slot that it lacks; the most of late */
};

/* Pages are counted for the owners whose digests were requested. */
struct reading {
	bool on;
	uint32_t slot; /* that is read, */
	uint64_t at;   /* and a cursor of slot_pages() */
};

/* The owners that become unsure next. */
struct turn {
	uint64_t at_ns;
	bool dialled;  /* links with them were dialled */
	unsigned next; /* place on the map of the first of them */
};

/* Entries of members that left the map. */
struct sweep {
	uint32_t cursor;
	uint64_t left; /* number of buckets of the shard that are still to be swept */
	struct departed departed[DEPARTED_MAX]; /* the one that left first is the first */
	unsigned departeds;
};

struct directory {
	struct control *control;
	/*
	 * A hash table of the members by peer number, made when they are needed: see owner_at().
	 * `none` stands for those that were not, `self` for this engine; they are in no list.
	 */
	struct owner *by_peer[OWNER_CHAINS];
	STAILQ_HEAD(owners, owner) owners;
	struct owner *none, *self;
	/* ---- updates ---- */
	STAILQ_HEAD(, dir_update) finished; /* the next directory_flush() calls their `done` */
	struct dir_targets orphans; /* publishes whose owner died, until the next map change */
	struct waits waits;
	uint32_t background; /* updates that no client waits for */
	uint32_t partial;    /* updates with `partial` */
	bool published;      /* owners may have entries of this engine */
	/* ---- sending ---- */
	STAILQ_HEAD(, owner) dirty; /* owners to which something is to be sent */
	struct net_timer *wake;     /* calls directory_flush() at the end of this turn */
	uint64_t serial;            /* of the last request */
	struct {
		struct net_timer *timer;
		bool armed;
	} hints;
	struct patrol patrol;
	/* ---- comparing ---- */
	struct move move;
	struct maps map;
	struct lacks lack;
	struct reading reading;
	struct turn turn;
	struct own_shard own;
	/* ---- serving ---- */
	struct sweep sweep;
	struct askeds asked; /* the first one is being answered */
	/* scratch memory for the entries of one message: MESSAGE_PAGES_MAX of each */
	Pc__Entry **entry_at;
	uint32_t *failed, *again;
};

/* The owner's index in the view, or view->owners. */
static inline uint32_t owner_index(const struct map_view *view, uint32_t ref)
{
	uint32_t i = 0;

	while (i < view->owners && view->owner[i].ref != ref)
		i++;
	return i;
}

/* Writes the refs of the slot's owners. Returns their number. */
static inline unsigned slot_owners(
	const struct map_view *view, uint32_t slot, uint32_t ret_ref[REPLICAS_MAX])
{
	const uint8_t *ranked = map_view_slot(view, slot);
	unsigned owners = map_owning(view);

	for (unsigned i = 0; i < owners; i++)
		ret_ref[i] = view->owner[ranked[i]].ref;
	return owners;
}

/* The member's place among the slot's owners; map_owning(): it does not own the slot. */
static inline unsigned slot_rank(const struct map_view *view, uint32_t slot, uint32_t ref)
{
	const uint8_t *ranked = map_view_slot(view, slot);
	unsigned rank = 0;

	while (rank < map_owning(view) && view->owner[ranked[rank]].ref != ref)
		rank++;
	return rank;
}

/* ---- messages -------------------------------------------------------------------------------- */

static inline void ack_reply(struct rpc_link *link, Pc__Ack *ack)
{
	Pc__Message message = message_of(PC__MESSAGE__BODY_ACK, ack);

	rpc_reply(link, &message);
}

static inline struct page_key entry_key(const Pc__Entry *entry)
{
	return (struct page_key){.word = {entry->key0, entry->key1}};
}

static inline void entry_write(
	Pc__Entry *ret, const struct page_key *key, const struct location *at)
{
	ret->key0 = key->word[0];
	ret->key1 = key->word[1];
	ret->place = at->place;
	ret->generation = at->generation;
	ret->ref = at->ref;
	ret->evicted = EVICTED_NOT;
	ret->set = false;
}

/* ---- directory.c ----------------------------------------------------------------------------- */

/* A request that waits for longer is late. */
static inline uint64_t patience_ns(const struct control *control)
{
	return suspect_patience_ns(control_dead_ns(control));
}

/* The owner with that peer number, with ref 0 if there is none. Never NULL. */
static inline struct owner *owner_at(const struct directory *directory, uint16_t peer)
{
	struct owner *owner = directory->by_peer[peer % OWNER_CHAINS];

	while (owner && owner->peer != peer)
		owner = owner->next_by_peer;
	return owner ? owner : directory->none;
}
/*
 * The owner of a live member that is to be sent something, or whose entries are taken; it is made
 * when it is first needed. `none`: it is no live member but this engine, or there is no memory.
 */
struct owner *owner_wanted(struct directory *directory, uint16_t peer);
/* `self` if the member is this engine. NULL: it is no live member, or there is no memory. */
struct owner *owner_of(struct directory *directory, uint32_t ref);
/* Frees owners whose members have left, and all targets with them. */
void owners_trim(struct directory *directory);
static inline unsigned owner_queued(const struct owner *owner)
{
	return owner->queued[DIR_PUBLISH] + owner->queued[DIR_FORGET] + owner->queued[DIR_REMOVE];
}
/* True if the owner owes no answer. */
static inline bool owner_idle(const struct owner *owner)
{
	return owner->in_flight == 0 && owner_queued(owner) == 0;
}
/* The owner begins to owe an answer: before this target it was idle, or its link has closed. */
void owner_waits(struct directory *directory, struct owner *owner);
/* The owner has acknowledged a batch. */
void owner_served(struct directory *directory, struct owner *owner);
/* The owner is suspect for this reason now, or no longer. */
void owner_suspect(struct directory *directory, struct owner *owner, enum suspect_why why);

/* ---- directory_update.c ---------------------------------------------------------------------- */

#define AGAIN_KINDS 4u /* of Ack.again: values of enum evicted */
/*
 * Sends the request to these members: those that are live, each once. What concerns this engine is
 * executed at once. False: no memory, and the waiter was answered.
 */
bool update_send(struct directory *directory, const struct dir_request *request,
	const uint32_t *ref, unsigned refs);
/* Records the owner's answer to one target. May free the update. */
void target_resolve(struct directory *directory, struct dir_target *target, enum outcome outcome);
void target_background_end(struct directory *directory, struct dir_target *target);
/* Answers the publishes that wait for this owner only, if it is suspect. */
void waiters_check(struct directory *directory, struct owner *owner);
/* True if this owner has reached its limit of targets with this kind that no client waits for. */
bool owner_full(const struct directory *directory, const struct owner *owner, enum dir_kind kind);
/* The key of the page of this engine that is at `at`. False: none is. */
bool location_names(struct control *control, const struct location *at, struct page_key *ret_key);
/*
 * True if an entry of `key` with this location is that of a page of this engine, which is there:
 * who says that it is wrong, is. An entry has no key: others with its tag and bucket are the same.
 */
bool location_right(struct control *control, const struct page_key *key, const struct location *at);
/* Finds a new owner for each publish whose owner has died; other targets end as lost. */
void orphans_place(struct directory *directory);
/*
 * Calls `done` of the finished updates. Updates that finish during these calls are included, up to
 * ANSWER_ROUNDS rounds.
 */
void updates_answer(struct directory *directory);
void updates_due(void *context);
void updates_close(struct directory *directory);

/* ---- directory_send.c ------------------------------------------------------------------------ */

/*
 * Puts the target into its owner's queue, or among the orphans if that owner has died during this
 * turn.
 */
void target_queue(struct directory *directory, struct dir_target *target);
void owner_dirty(struct directory *directory, struct owner *owner);
/* Puts the batches sent over this link, NULL: over any, back to the front of their queues. */
void owner_rewind(struct owner *owner, const struct rpc_link *link);
/*
 * Empties the queues of a dead owner: its publishes move to directory.orphans, its other targets
 * end as lost.
 */
void owner_clear(struct directory *directory, struct owner *owner);
void hints_due(void *context);

/* ---- directory_serve.c ----------------------------------------------------------------------- */

/*
 * Changes an entry of this engine's shard; `at` with the ref of its holder. It may take the room of
 * an entry of a member that left the map, and for a set that of another key. False: no room; it is
 * counted. *ret_evicted: whether the page of the key was evicted lately.
 */
bool entry_insert(struct directory *directory, const struct page_key *key,
	const struct location *at, bool set, enum evicted *ret_evicted);
/* `evicted`: its holder has evicted the page. */
void entry_delete(struct directory *directory, const struct page_key *key,
	const struct location *at, enum evicted evicted);
/* True if a message has entries, not too many, and all have a key. */
bool entries_fit(size_t count, Pc__Entry *const *entries);
/* A member has left the map now; ref 0: one that is not known. Its entries stay for a time. */
void departed_add(struct directory *directory, uint32_t ref);
/* Sweeps the entries of members that left the map DEPARTED_DEADS times dead_after_ms ago. */
void departed_tick(struct directory *directory, uint64_t now_ns);
/* Examines the next part of the shard for entries of members that left. */
void sweep_slice(struct directory *directory);
/* ---- directory_digest.c ---------------------------------------------------------------------- */

/* Asks an owner, whose `digest` is NULL. False: it cannot be asked now. */
bool digest_ask(struct directory *directory, struct owner *owner);
/* Reads the next pages for the owners that were asked. False: all are read. */
bool digests_count(struct directory *directory);
void digest_drop(struct owner *owner);
/* The next step of answering other engines. */
void digests_slice(struct directory *directory);
/*
 * The link has closed, or the directory is (NULL: all links): nothing is answered on it, and what
 * the owner was asked on it has no answer.
 */
void digests_link_down(
	struct directory *directory, struct owner *owner, const struct rpc_link *link);
/* The owner's digest is answered and counted: begins to look at its entries in what differs. */
void show_begin(struct directory *directory, struct owner *owner);
/* Asks for the next part, if the owner has room for removes. Called when it has acknowledged. */
void show_next(struct directory *directory, struct owner *owner);
void show_drop(struct owner *owner);
/* The next part of this engine's own shard, with its own entries. */
void show_own(struct directory *directory);

/* ---- directory_compare.c --------------------------------------------------------------------- */

/*
 * As index_slot(), for all pages of this host: those in memory, then those that are only on disk.
 */
unsigned slot_pages(struct directory *directory, uint32_t slot, uint64_t *cursor, unsigned max,
	struct index_entry *ret_entries);
/* True if slot_pages() may find a page. */
bool slot_any(const struct directory *directory, uint32_t slot);
/* True if the owner's walk waits for its acknowledgements. */
static inline bool owner_behind(const struct owner *owner)
{
	return owner->walk.slots && owner->background + MOVE_PART > OWNER_WALK_MAX;
}
/* True if the owner `ref` lacks the slot. */
bool lacks_slot(const struct directory *directory, uint32_t slot, uint32_t ref);
/* The owner may lack entries of the slot; nothing if it does not own the slot. */
void lack_add(struct directory *directory, struct owner *owner, uint32_t slot);
/* It may lack entries of all slots that it owns. */
void lacks_all(struct directory *directory, struct owner *owner);
/* Plans the next turn. */
void compare_later(struct directory *directory, uint64_t now_ns);
/* The owner has answered, or our pages were counted: judges it once both are true. */
void compare_answered(struct directory *directory, struct owner *owner);
void compare_tick(struct directory *directory, uint64_t now_ns);
/* True while owners lack slots. */
static inline bool moves_any(const struct directory *directory)
{
	return directory->lack.count != 0;
}
/* True while an owner, or this engine's shard, is unsure or compared with. */
bool compares_any(const struct directory *directory);
/* Makes the next step run within MOVE_PACE_MS. */
void move_soon(struct directory *directory);
void move_slice(void *context);

#endif
