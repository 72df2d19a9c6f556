/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the directory, shared by directory*.c: updates (one message for one or more owners),
 * a queue per owner, and a walk per owner that sends it the entries of the slots that it lacks.
 * Control plane's thread only.
 *
 * A slow owner, or one that acknowledges nothing, delays no other owner and costs bounded memory:
 * the targets that no client waits for are limited per owner. Above the limit, publishes are
 * skipped and the owner is `behind`: it lacks their slots, and its walk goes on once it
 * acknowledges again.
 *
 *   directory.c          the functions of directory.h
 *   directory_update.c   updates, deadlines, results
 *   directory_send.c     queues, batches, acks
 *   directory_move.c     changes of the map, and the steps that follow
 *   directory_slots.c    which slots owners lack
 *   directory_walk.c     walks over these slots, one for each owner
 *   directory_behind.c   limits, owners that are behind
 *   directory_suspect.c  owners that do not answer in time
 *   directory_relay.c    entries for owners that this engine has no connection with
 *   directory_pass.c     passing on other engines' relays, and taking them
 *   directory_serve.c    requests of other engines
 *   directory_durable.c  removals that wait for tombstones and for the owners of the pages
 *   directory_compare.c  when an owner is compared with, and what follows
 *   directory_digest.c   digests of entries
 *   directory_show.c     entries without a page
 *   directory_depart.c   entries of members that left the map
 *   directory_disk.c     entries of pages on this host's disk
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
#include "engine/control/directory/directory_digest.h"
#include "engine/control/directory/directory_durable.h"
#include "engine/control/directory/directory_relay.h"
#include "engine/control/directory/directory_slots.h"
#include "engine/control/net/net.h"

struct rpc_link;
struct index_entry;

#define BATCHES_MAX 16 /* limit of batches to one owner that it has not acknowledged */
/*
 * Limit of batches of removals that one owner has executed and not synced; above it, nothing waits
 * for the owner's disk: the removals are OUTCOME_VOLATILE
 */
#define UNSYNCED_MAX 256
/*
 * Limits on the targets of one owner that no client waits for, queued or in flight; see
 * owner_full().
 */
/*
 * Above this limit, the owner is `behind`: publishes to it are skipped, and a walk makes up for
 * them later
 */
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
#define MOVE_KEYS 2048            /* pages read in one step of the walks */
#define MOVE_PART (MOVE_KEYS / 8) /* pages copied to the stack at a time */
#define MOVE_BUCKETS 8192         /* buckets of the shard swept in one step */
#define MOVE_QUIET_NS 50000000ull /* see directory_move.c */
#define MOVE_QUIET_MAX_NS 1000000000ull
#define MOVE_PACE_MS 2 /* pause between two steps */
/*
 * The entries of a member that left the map stay in the shard for this many times
 * cluster.dead_after_ms: it may come back with the same ref and the same pages
 */
#define DEPARTED_DEADS 20
#define FORMERS_MAX (MAP_FORMERS_MAX + REPLICAS_MAX) /* former owners of a slot */
#define DEPARTED_MAX 64 /* members; beyond, the entries of the one that left first are swept */
#define OWNER_CHAINS OWNERS_MAX /* of directory.by_peer */
/* touches are collected for this time before they are sent to the owners */
#define TOUCH_PACE_MS 20

/* What is done to a key at an owner, in the order in which queued targets are sent to an owner. */
enum dir_kind { DIR_PUBLISH, DIR_FORGET, DIR_REMOVE, DIR_KINDS };

enum outcome {
	OUTCOME_DONE,
	/* The owner refused: its candidate buckets have no room, or it does not have the page */
	OUTCOME_FAILED,
	/*
	 * The owner has left the map, and no other owner takes its place. It may come back with the
	 * page or the entry that was to be removed
	 */
	OUTCOME_LOST,
	/* The page is removed, but it, or an entry of it, may come back after a crash */
	OUTCOME_VOLATILE,
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
	bool had;        /* DIR_FORGET: the owner had the page */
};
TAILQ_HEAD(dir_targets, dir_target);

struct dir_update {
	STAILQ_ENTRY(dir_update) finished;
	struct page_key key;
	/*
	 * of the page; its ref only in DIR_REMOVE: the holder that the entry names. DIR_FORGET: the
	 * number of the removal in place and generation; ref 1: the member has missed it
	 */
	struct location at;
	uint8_t kind;    /* an enum dir_kind: what is done at the owners */
	uint8_t status;  /* result of the update, an enum op_status; valid once `answered` */
	bool answered;   /* the update is on the list `finished`, or its `done` was called */
	bool background; /* the update is counted in directory.background */
	bool started;    /* update_start() was called: all its targets are there */
	bool partial;    /* answered without a suspect owner; counted in directory.partial */
	/* its `done` is called with the result; NULL: no client waits, or it was called already */
	struct waiter waiter;
	uint32_t heap; /* 1 + index of the update in directory.heap; 0: the update is not in it */
	uint16_t pending; /* number of targets without an outcome, plus 1 until update_start() */
	uint16_t acked, refused; /* OUTCOME_DONE, OUTCOME_FAILED */
	uint16_t unsafe;         /* what may bring back what is removed */
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
	/* executed by the owner, which will acknowledge them once more when they are durable */
	struct batches unsynced;
	unsigned unsynced_count;
	/* the batch that another member passes to this owner; NULL: none */
	struct batch *relay;  /* counted in directory.relaying */
	uint64_t unlinked_ns; /* when its last link closed; 0: it has one, or has had none */
	uint64_t relayed_ns;  /* when it last took a relay; 0: never, or relays fail now */
	unsigned relay_turn;  /* peer number of the member that passes the next relay on */
	unsigned relay_tries; /* relays that failed since the last tick */
	uint64_t newest;      /* serial of the newest batch of this member that was executed here */
	/* number of targets of this owner, queued or sent, that no client waits for */
	uint32_t background;
	struct walk walk;
	bool behind;   /* its walk waits for acknowledgements */
	bool fresh;    /* it may have any of our entries or none, */
	bool unsure;   /* or some that it should not have: see directory_compare.c */
	bool repair;   /* its walk publishes what it should have had, */
	uint64_t kept; /* or all but this number of entries at least, which it has */
	bool warned;
	bool takes_disk; /* the owner's engine knows entries of pages on disk */
	enum suspect_why
		why;         /* as of the last look: when it began to owe, on patrol, at its acks */
	uint32_t unread_ref; /* of the incarnation whose READs hang; 0: they do not */
	uint64_t suspect_ns; /* when `why` last became a reason not to wait */
	uint64_t wait_ns;    /* when it began to owe an answer, or last gave one */
	uint64_t served_ns;  /* time of its last acknowledgement; 0: none */
	uint64_t full_ns;    /* when it last had no room for an entry; 0: never */
	struct digest *digest; /* NULL: it is not compared with now */
	struct show *show;     /* the entries that it shows; NULL: none */
	uint32_t *touches;
	unsigned touched;
	struct page_report *report; /* REPORTS_MAX, to be sent with the touches; NULL: none yet */
	unsigned reports;
};

struct directory {
	struct control *control;
	LIST_HEAD(, forgets) forgets;
	LIST_HEAD(, pass) passes;
	/*
	 * A hash table of the members by peer number, made when they are needed: see owner_at().
	 * `none` stands for those that were not.
	 */
	struct owner *by_peer[OWNER_CHAINS];
	STAILQ_HEAD(owners, owner) owners;
	struct owner *none;
	STAILQ_HEAD(, owner) dirty; /* owners to which something is to be sent */
	STAILQ_HEAD(, dir_update)
	finished; /* updates whose `done` the next directory_flush() calls */
	/* targets of publishes whose owner died, kept until the next map change */
	struct dir_targets orphans;
	struct dir_update **heap; /* binary heap of the updates, the earliest deadline first */
	uint32_t heap_count, heap_room;
	struct net_timer *due;  /* timer that fires at the earliest deadline of the updates */
	uint64_t due_ns;        /* time at which the timer `due` fires; 0: it is not armed */
	struct net_timer *wake; /* event that calls directory_flush() at the end of this turn */
	struct net_timer *touch_due;
	bool touch_armed;
	uint64_t serial;
	uint32_t background;
	uint32_t relaying;        /* owners with a relay */
	uint32_t partial;         /* updates with `partial` */
	struct net_timer *patrol; /* looks at the owners that owe an answer */
	uint64_t patrol_ns;       /* when the timer `patrol` was armed; 0: it is not */
	uint64_t awake_ns;        /* when this engine was last found to run again after a pause */
	/* What follows a change of the map: walks and comparisons. */
	struct net_timer *move;
	bool move_soon;           /* true: the timer `move` fires within MOVE_PACE_MS */
	bool held;                /* no walk begins before walk_ns */
	uint64_t changed_ns;      /* time of the first of the last changes, */
	uint64_t walk_ns;         /* and time until which there may be further ones */
	uint64_t tidy_ns;         /* until then former owners keep their entries */
	uint64_t lag_ns;          /* or until then, because owners of their slots lag */
	bool tidying;             /* see tidies(); then */
	struct map_view *was;     /* the map before; NULL: none */
	struct map_view *settled; /* the map to which `lacks` refers: the present one */
	/* by index of an owner in `settled`, a bit: its member has left since, and may be back */
	uint64_t left[OWNERS_MAX / 64];
	bool left_any;
	uint8_t lacks[MAP_SLOTS]; /* see directory_slots.c */
	uint64_t lacking, lacked; /* pairs of an owner and a slot that it lacks; the most of late */
	struct walk self;         /* of this engine's own shard */
	bool counting;            /* pages are counted for the owners that were asked: */
	uint32_t slot;            /* the slot that is read, */
	uint64_t at;              /* and a cursor of slot_pages() */
	uint64_t compare_ns;      /* when it is the next owners' turn to be unsure */
	bool compare_dialled;     /* links with them were dialled */
	unsigned compare_turn;    /* place on the map of the first of them */
	bool published;           /* owners may have entries of this engine */
	struct own_shard own;
	uint32_t sweep_cursor;
	uint64_t sweep_left; /* number of buckets of the shard that are still to be swept */
	struct departed departed[DEPARTED_MAX]; /* the one that left first is the first */
	unsigned departeds;
	struct askeds asked; /* the first one is being answered */
	/* scratch memory for the entries of one message: MESSAGE_PAGES_MAX of each */
	Pc__Entry *entry, **entry_at;
	uint32_t *failed;
};

/* ---- directory_update.c ---------------------------------------------------------------------- */

/*
 * An update with room for `room` targets; NULL: no memory. The caller must pass it to
 * update_start(), which may free it.
 */
struct dir_update *update_new(struct directory *directory, enum dir_kind kind,
	const struct page_key *key, const struct location *at, unsigned room);
/*
 * Sets what waits for the end of the update. `waiter` NULL: nothing is changed.
 */
void update_await(
	struct directory *directory, struct dir_update *update, const struct waiter *waiter);
/*
 * Adds one owner to the update. If the owner is this engine, the kind is executed at once;
 * otherwise a target is queued. Does nothing if the owner was added before, or is no live member.
 */
void update_add(struct directory *directory, struct dir_update *update, uint32_t ref);
/* Called when all owners were added to the update. May free the update. */
void update_start(struct directory *directory, struct dir_update *update);
/* Answers a publish that waits for suspect owners only. Does not free the update. */
void update_check(struct directory *directory, struct dir_update *update);
/* Records the owner's answer to one target. May free the update. */
void target_resolve(struct directory *directory, struct dir_target *target, enum outcome outcome);
bool update_has(const struct dir_update *update, uint32_t ref);
/* Executes the update's kind on this engine's own shard or pages, and returns the outcome. */
enum outcome update_do_here(struct directory *directory, const struct dir_update *update);
/*
 * Calls `done` of the finished updates. Updates that finish during these calls are included, up to
 * ANSWER_ROUNDS rounds.
 */
void updates_answer(struct directory *directory);
void updates_close(struct directory *directory);
void updates_due(void *context);

/* ---- directory.c ----------------------------------------------------------------------------- */

/* Refs of former owners of the slot that may have entries. Returns their number. */
unsigned formers_of(
	const struct directory *directory, uint32_t slot, uint32_t ret_ref[FORMERS_MAX]);
/*
 * Sends a remove of the entry `at` to the present owners of the key, and to the former ones that
 * may have it. `waiter`, NULL: none, gets OP_HIT when all of them have dropped the entry, and
 * OP_PEER_DOWN if one of them has left the map meanwhile: it may come back with the entry.
 */
void entry_remove(struct directory *directory, const struct page_key *key,
	const struct location *at, const struct waiter *waiter);
/* True if an owner of the key, or a former one, has not acknowledged an earlier remove yet. */
bool entry_removing(struct directory *directory, const struct page_key *key);

/* ---- directory_send.c ------------------------------------------------------------------------ */

/* True if removes for the owner are queued or sent, and not acknowledged. */
bool owner_removing(const struct owner *owner);

/*
 * Puts the target into its owner's queue, or among the orphans if that owner has died during this
 * turn.
 */
void target_queue(struct directory *directory, struct dir_target *target);
void owner_dirty(struct directory *directory, struct owner *owner);
void owners_send(struct directory *directory);
/*
 * Moves all batches in flight back to their queues, in no particular order: the caller gives up all
 * of this owner's targets next.
 */
void owner_rewind(struct directory *directory, struct owner *owner);
/*
 * Empties the queues of a dead owner: its publishes move to directory.orphans, its other targets
 * end as lost.
 */
void owner_clear(struct directory *directory, struct owner *owner);

/* Takes a batch from the front of a queue. NULL: no memory. The queue is not empty. */
struct batch *batch_take(struct owner *owner, unsigned kind);
/* Puts the parts of a batch back to the front of the owner's queue, in their former order. */
void batch_rewind(struct owner *owner, struct batch *batch);
/* Fills directory.entry_at with the entries of the batch. */
void batch_entries(struct directory *directory, const struct batch *batch);
/* Resolves all targets of a batch that was executed, and frees it. */
void batch_resolve(struct directory *directory, struct owner *owner, struct batch *batch,
	const uint32_t *failed, size_t failed_count);

/* True if another member passes batches to this owner, which has no link with this engine. */
static inline bool owner_relays(const struct owner *owner)
{
	return owner->unlinked_ns && owner->relayed_ns;
}

/* ---- directory_serve.c ----------------------------------------------------------------------- */

/* True if a message has entries, not too many, and all have a key. */
bool entries_fit(size_t count, Pc__Entry *const *entries);
struct page_key entry_key(const Pc__Entry *entry);
/*
 * Inserts entries of holder `ref`. Returns the number of those without room; directory.failed holds
 * their indices.
 */
size_t entries_insert(
	struct directory *directory, uint32_t ref, size_t count, Pc__Entry *const *entries);
void entries_remove(struct directory *directory, size_t count, Pc__Entry *const *entries);
/* True if all entries may be published by a member with this number of rails. */
bool entries_rails_fit(size_t count, Pc__Entry *const *entries, unsigned rails);

/* ---- directory_suspect.c --------------------------------------------------------------------- */

/* True if the owner owes no answer. */
bool owner_idle(const struct owner *owner);
/* The owner begins to owe an answer: before this target it was idle, or its link has closed. */
void owner_waits(struct directory *directory, struct owner *owner);
/* The owner has acknowledged a batch. */
void owner_served(struct directory *directory, struct owner *owner);
/* Judges the owner anew, and shows clients whether it is suspect. */
void owner_look(struct directory *directory, struct owner *owner, uint64_t now_ns);
/* The owner is no longer suspect. */
void owner_trusted(struct directory *directory, struct owner *owner);
/* Answers the publishes that wait for this owner only, if it is suspect. */
void waiters_check(struct directory *directory, struct owner *owner);
void patrol(void *context);

/* ---- directory_move.c ------------------------------------------------------------------------ */

void move_slice(void *context);
/* True while owners get entries, other than those that are behind. */
bool moving(const struct directory *directory);
/* Makes the next step run within MOVE_PACE_MS. */
void move_soon(struct directory *directory);
/* Owners may lack any entry of ours: they are compared with. */
void move_again(struct directory *directory);
static inline uint64_t dead_after_ns(const struct directory *directory)
{
	return (uint64_t)directory->control->settings->cluster_dead_after_ms * 1000000ull;
}

/* When unsure owners are compared with. */
static inline uint64_t tidy_from_ns(const struct directory *directory)
{
	return directory->tidy_ns > directory->lag_ns ? directory->tidy_ns : directory->lag_ns;
}

/* ---- directory_depart.c ---------------------------------------------------------------------- */

/* A member has left the map now; ref 0: one that is not known. Its entries stay for a time. */
void departed_add(struct directory *directory, uint32_t ref);
/* The shard had no room for an entry: entries of members that left the map go at once. */
void departed_sweep(struct directory *directory);
/* Sweeps the entries of members that left the map DEPARTED_DEADS times dead_after_ms ago. */
void departed_tick(struct directory *directory, uint64_t now_ns);
/* Examines the next part of the shard for entries of members that left. */
void sweep_slice(struct directory *directory);

/* ---- directory_disk.c ------------------------------------------------------------------------ */

/*
 * As index_slot(), for all pages of this host: those in memory, then those that are only on disk.
 */
unsigned slot_pages(struct directory *directory, uint32_t slot, uint64_t *cursor, unsigned max,
	struct index_entry *ret_entries);
/* True if slot_pages() may find a page. */
bool slot_any(const struct directory *directory, uint32_t slot);
/* Number of pages of this host, about. */
uint64_t pages_count(const struct directory *directory);
/* True if owners may have entries of this engine. */
static inline bool publishes(const struct directory *directory)
{
	return directory->published || pages_count(directory) != 0;
}
/* True if this member is sent entries with this place. */
bool owner_takes(struct directory *directory, uint32_t ref, uint32_t place);

/* ---- directory_behind.c ---------------------------------------------------------------------- */

/* The owner with that peer number, with ref 0 if there is none. Never NULL. */
static inline struct owner *owner_at(const struct directory *directory, uint16_t peer)
{
	struct owner *owner = directory->by_peer[peer % OWNER_CHAINS];

	while (owner && owner->peer != peer)
		owner = owner->next_by_peer;
	return owner ? owner : directory->none;
}
/* The same, made if it is missing; without memory `none`, which stays as it is. */
struct owner *owner_make(struct directory *directory, uint16_t peer);
/* The member with the owner's peer number, if there is one, is this owner from now on. */
void owner_adopt(struct directory *directory, struct owner *owner);
/*
 * True if all members may own slots: then each change of the map makes an owner of each of them. In
 * larger clusters most members own nothing, and an owner is made when it is first needed.
 */
bool owners_few(const struct directory *directory);
/* The owner of a live member that is to be sent something, or whose entries are taken. */
static inline struct owner *owner_wanted(struct directory *directory, uint16_t peer)
{
	return owners_few(directory) ? owner_at(directory, peer) : owner_make(directory, peer);
}
/* Frees owners whose members have left, and all targets with them. */
void owners_trim(struct directory *directory);
/* Returns NULL if the member is this engine, or no live member. */
struct owner *owner_of(struct directory *directory, uint32_t ref);
/* True if this owner has reached its limit of targets with this kind that no client waits for. */
bool owner_full(const struct directory *directory, const struct owner *owner, enum dir_kind kind);
/*
 * No client waits for the target any more: counts it against its owner's limit, or drops it if that
 * limit is reached.
 */
void target_background(struct directory *directory, struct dir_target *target);
void target_background_end(struct directory *directory, struct dir_target *target);
/*
 * True if the owner is behind, or has not acknowledged a batch sent dead_after_ms ago or earlier.
 */
bool owner_lags(const struct directory *directory, const struct owner *owner);

#endif
