/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pages of this host: the memory that holds them, the keys that name them, this host's shard of
 * the directory, eviction, the disk tier, the scrubber and warm restart. README.md beside this file
 * is the way in. Nothing here takes a lock: only the control plane's thread calls these functions,
 * and readers on other hosts and in clients read pools and shard without them.
 *
 * Functions return 0 or -errno, unless they say otherwise. A place and a generation that come from
 * a client or from another host may be any numbers: the pool checks them.
 *
 * Header for the other rooms and for the root; what only files of this room call is in
 * pages_inner.h, pool_inner.h and tier_inner.h.
 */
#ifndef CONTROL_PAGES_H
#define CONTROL_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/page.h"
#include "engine/control/pages/ghost.h"
#include "engine/control/pages/sizes.h"
#include "engine/disk/disk.h"
#include "numa/huge.h"

struct control;
struct ctl;
struct ctl_channel;
struct ctl_done;
struct ctl_op;
struct page_report;
struct rpc_link;
struct settings;
struct unit;
struct waiter;
struct Pc__Promote;
struct Pc__Promoted;

/* ---- what pages call of the rooms above ------------------------------------------------------ */

/*
 * The directory and the clients lie above this room: control->pages_events, of upward.c. The
 * functions are those of directory.h and clients.h with these names.
 */
struct pages_events {
	/* an op of a client of this host is answered: now, or later under a number */
	void (*answer)(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op,
		const struct ctl_done *done);
	uint32_t (*later)(struct ctl *ctl, const struct ctl_channel *c, const struct ctl_op *op,
		uint32_t pages); /* PAGES_NO_ANSWER: no memory */
	void (*later_answer)(struct ctl *ctl, uint32_t later, const struct ctl_done *done);

	/* a page has come, has left, or is on disk now: its owners are told */
	void (*publish)(struct control *control, const struct page_key *key,
		const struct location *at, const struct waiter *waiter);
	void (*remove)(
		struct control *control, const struct page_key *key, const struct location *at);
	void (*evicted)(struct control *control, const struct page_key *key,
		const struct location *at, enum evicted from);
	bool (*on_disk)(struct control *control, const struct disk_page *page);
	/* pages may be here that no owner knows: on disk, or in memory that was adopted */
	void (*disk_opened)(struct control *control);
	void (*forgotten)(struct control *control, uint32_t ref);
	/* many removes are queued: the tier names no more of them */
	bool (*busy)(const struct control *control);
	/* a client of this host has read a damaged page of engine `ref` */
	void (*report)(struct control *control, uint32_t ref, const struct page_report *report);
};
#define PAGES_NO_ANSWER UINT32_MAX
/* longest wait of a request for a page on disk, in ns; a later deadline is shortened to this */
#define PAGES_WAIT_NS_MAX 600000000000ull

/* ---- index: which keys this host's pools hold ------------------------------------------------ */

/*
 * key -> (place, generation, length). A hash table that grows one bucket at a time; index_slot()
 * reads the entries of one slot of the directory, which must be published when the slot has a new
 * owner.
 */

struct index;

struct index_entry {
	struct page_key key;
	uint32_t place;
	uint32_t generation;
	uint32_t length;
};

/*
 * `expected`: number of entries that the initial buckets are sized for, at most 2^31. Returns 0,
 * -EINVAL, -ENOMEM, or -EIO if the kernel has no random bytes.
 */
int index_open(uint64_t expected, struct index **ret_index);
void index_close(struct index *index);
/*
 * Returns NULL if the key is not in the index. The pointer is valid until the next put or remove.
 */
struct index_entry *index_find(struct index *index, const struct page_key *key);
/*
 * Prefetch what index_find() of the key reads: the head of its hash chain, and, once that has
 * arrived, the first entry of the chain.
 */
void index_prefetch_chain(const struct index *index, const struct page_key *key);
void index_prefetch_entry(const struct index *index, const struct page_key *key);
/*
 * Returns 0, -EEXIST or -ENOMEM. Unless `ret` is NULL, 0 and -EEXIST store the entry in the index
 * there: with -EEXIST it is the existing one, unchanged.
 */
int index_put(struct index *index, const struct index_entry *entry, struct index_entry **ret);
/* Removes the key. Returns false if the index did not have it. */
bool index_remove(struct index *index, const struct page_key *key);
uint64_t index_count(const struct index *index);
/*
 * Copies up to `max` entries to ret_entries, starting at *cursor (0 at first), and returns how
 * many. May return fewer, even 0, before the end. *cursor becomes 0 when the end was reached. An
 * entry that stays in the table during a whole walk is visited at least once, whatever is put or
 * removed meanwhile.
 */
unsigned index_walk(
	struct index *index, uint64_t *cursor, unsigned max, struct index_entry *ret_entries);
/*
 * The same for the entries of one slot of the directory (map_slot_of()), of which it copies `max`
 * unless it comes to the end: 256 KiB of memory and a list per slot make this independent of the
 * number of entries of other slots. A cursor is valid for its slot only.
 */
unsigned index_slot(struct index *index, uint32_t slot, uint64_t *cursor, unsigned max,
	struct index_entry *ret_entries);
/* True if the slot has an entry. */
bool index_slot_any(const struct index *index, uint32_t slot);

/* ---- pool: the page memory of one rail ------------------------------------------------------- */

/*
 * The page memory of one rail: its free units, the place of each page and the choice of pages to
 * evict. Clients do not call these functions; they write payload into the slots they hold credits
 * for.
 *
 * The pool is cut into chunks. A chunk belongs to one size class (a page size in units) at a time
 * and holds as many slots of that size as fit. A class without a free slot takes a free chunk. If
 * there is none, it evicts its own coldest pages; if it has no pages, it takes a chunk from the
 * class with the most chunks. The states of a slot:
 *
 *   FREE -> CREDIT (handed to a client) -> PAGE (published) -> LIMBO (retired) -> FREE
 *                 \-> LIMBO (returned unused) -> FREE
 *
 * Every slot that was handed out once passes through LIMBO before it is handed out again. Readers'
 * leases depend on this (VALIDATION.md); so the pool itself reads the clock of limbo, after the
 * slot's new generation is visible.
 *
 * Eviction: each class has two queues, of new pages and of pages that were used again; a bit of
 * each page says that it was used (pool_evict.c). Every call is amortised O(1), except
 * pool_victims(): it looks at all chunks when it chooses one to drain.
 */

struct pool;
struct pool_adopt; /* pages_inner.h */

struct pool_options {
	unsigned rail;
	uint64_t bytes;
	int numa_node;
	bool want_huge;
	/* L: how long a slot rests before it is handed out again, ns; fixed for the pool's life */
	uint64_t limbo_ns;
	bool want_state; /* keep a state with which the next process can adopt the pool */
	uint64_t owners; /* huge_number() of the file that numbers the owners of slots */
	/* the pool to adopt; NULL: a new one */
	const struct pool_adopt *adopt;
	/* CLOCK_MONOTONIC_RAW in ns. NULL: clock_raw_ns(); tests replace it */
	uint64_t (*clock_ns)(void);
};

void pool_close(struct pool *pool);

const struct huge *pool_memory(const struct pool *pool);
const struct huge *pool_heads(const struct pool *pool);
/* length of the longest page that this pool can hold */
uint64_t pool_page_bytes_max(const struct pool *pool);

/*
 * FREE -> CREDIT. Returns 0; -ENOSPC: no slot is free now (the caller evicts pages, or waits until
 * limbo ends); -EMSGSIZE: page_bytes is 0 or larger than pool_page_bytes_max(). *ret_generation is
 * the generation that the page's directory entry will carry.
 */
int pool_take(
	struct pool *pool, uint32_t page_bytes, uint32_t *ret_place, uint32_t *ret_generation);

/* Owners of a slot. Every other number is that of a channel, see warm.c. */
#define POOL_OWNER_NONE 0u
#define POOL_OWNER_DISK UINT32_MAX /* the disk tier reads a page into the slot */

/*
 * Records who may write to the slot of a credit; to be called before the slot is granted. Returning
 * the credit and pool_publish() end the ownership. No effect on a pool without a state.
 */
void pool_own(struct pool *pool, uint32_t place, uint32_t owner);

/*
 * CREDIT -> PAGE: writes the page head. -EINVAL: (place, generation) is no credit, length is 0 or
 * exceeds the page size of the slot's class, or the key is all zero.
 */
int pool_publish(struct pool *pool, uint32_t place, uint32_t generation, const struct page_key *key,
	uint32_t length);
/* A page whose head contains its CRC. length 0: none. */
struct pool_proven {
	struct page_key key;
	uint32_t place, generation, length, crc;
};
/*
 * Stores the CRC32C of the page that pool_publish() is to publish with the same arguments. The slot
 * stays CREDIT. -EINVAL: (place, generation) is no credit.
 */
int pool_prove(struct pool *pool, const struct pool_proven *page);

/*
 * Starts the limbo time of all slots that were returned or retired since the last call: one fence
 * and one reading of the clock for all of them. Until then they rest without end. To be called
 * after a batch; pool_take() and pool_limbo_left_ns() call it too.
 */
void pool_rest(struct pool *pool);
/*
 * The page at `place`, which was just published, is evicted before that at `before`, which was
 * published lately: it follows it in a prompt. Without effect if one of them is no page.
 */
void pool_order(struct pool *pool, uint32_t place, uint32_t before);
/*
 * Marks a page as used. A place without a page is ignored, because touches are hints that also
 * come from other hosts.
 */
void pool_touch(struct pool *pool, uint32_t place);

/*
 * The page at `place`, which was just published, is one that was used again: it was evicted from
 * that queue lately. False: it was known before, or it is no page.
 */
bool pool_again(struct pool *pool, uint32_t place, uint32_t generation);
/*
 * The page at `place`, which was just published, is a copy of one on another host: it is evicted
 * first, unless it is used. False: it is no page.
 */
bool pool_copy(struct pool *pool, uint32_t place, uint32_t generation);
/* Sets the weight of pages that were used again (ghost.h). */
void pool_weigh(struct pool *pool, uint32_t used_weight);

/* Prefetches the page head at this place, which need not be valid, for a publish. */
void pool_prefetch(const struct pool *pool, uint32_t place);

/*
 * pool_free(): slots for pages of that size that pool_take() would find without evicting. Slots
 * whose limbo has ended are not counted until pool_take() moves them out of limbo. pool_limbo():
 * slots of all sizes in limbo.
 */
uint32_t pool_free(const struct pool *pool, uint32_t page_bytes);
uint32_t pool_limbo(const struct pool *pool);
uint64_t pool_pages(const struct pool *pool);      /* number of pages that the pool holds now */
uint64_t pool_used_bytes(const struct pool *pool); /* bytes of the slots of these pages */
/* Returns the time, in ns, until the next slot leaves limbo; UINT64_MAX: no slot is in limbo. */
uint64_t pool_limbo_left_ns(struct pool *pool);

/* ---- eviction: how many slots each page size needs ------------------------------------------- */

/*
 * The reserve of free slots of a size class without demand: 2 % of the class, at least
 * EVICT_AHEAD_MIN, and at most 1/EVICT_AHEAD_SHARE of the class.
 */
#define EVICT_AHEAD_MIN 16u
#define EVICT_AHEAD_SHARE 8u
static inline uint64_t evict_reserve(uint64_t slots)
{
	uint64_t ahead = slots / 50 > EVICT_AHEAD_MIN ? slots / 50 : EVICT_AHEAD_MIN;

	return ahead < slots / EVICT_AHEAD_SHARE ? ahead : slots / EVICT_AHEAD_SHARE;
}

/* maximum number of batches of evicted slots in limbo that a page size counts separately */
#define EVICT_RESTS 16u

/*
 * One page size of one pool: how many slots its credit requests wait for, and the slots evicted for
 * it.
 */
struct evict_class {
	uint32_t units;   /* page size in units; 0: this record is unused */
	uint32_t held;    /* number of credits and pages of this size */
	uint32_t waiting; /* number of slots that the waiting credit requests still need */
	/* number of slots evicted for this page size that are in limbo: the sum of rest[].slots */
	uint32_t resting;
	/* of clients/ctl*.c: the last ctl_pass() in which pool_take() found no slot of this size */
	uint32_t pass;
	uint32_t taken; /* number of credits granted since window_ns */
	/*
	 * slots expected to be needed in one limbo period: 1.5 times the rate that `taken` showed
	 * last, 3 times if requests waited, or more if it was higher before
	 */
	uint32_t demand;
	uint64_t window_ns;
	/*
	 * true: a credit request had to wait since the demand last was below the smallest reserve.
	 * Until then the demand evicts nothing: a pool that has room is filled first.
	 */
	bool waited;
	bool slowed; /* a credit request waited since window_ns */
	unsigned rests;
	struct {
		/* times of clock_raw_ns() at which the first and the last slot leave limbo */
		uint64_t first_ns, until_ns;
		uint32_t slots;
	} rest[EVICT_RESTS]; /* batches of evicted slots in limbo, oldest first */
};

struct evict_rail {
	struct evict_class class[CLASSES_MAX];
	uint32_t requests; /* of clients/ctl*.c: credit requests of this pool that wait */
	/* true: a slot may have become free, so ctl_turn() must look at the waiting requests */
	bool retry;
};

struct evict {
	struct control *control;
	struct evict_rail rail[RAILS_MAX];
	uint64_t limbo_ns;
	/* slots that are granted to channels, or were by an earlier engine and are not returned */
	uint64_t credits;
	struct used_weight weight;
};

int evict_open(struct control *control);
void evict_close(struct control *control);

/* Returns the record of this rail's requests and slots for this page size, never NULL. */
struct evict_class *evict_class_of(struct evict *evict, unsigned rail, uint32_t length);
/*
 * Adds `change` to the number of credits and pages of this page size. A credit that becomes a page
 * is not taken a second time.
 */
void evict_hold(struct evict *evict, unsigned rail, uint32_t length, int change);
/*
 * Evicts pages until, after limbo, there are slots for the waiting credit requests and for the
 * reserve.
 */
void evict_refill(struct evict *evict, unsigned rail, uint32_t length, uint64_t now_ns);
/* Takes one page out of the index and the directory, and sends its slot to limbo. */
void evict_take_away(
	struct evict *evict, const struct page_key *key, uint32_t place, uint32_t generation);
/*
 * Returns an unused credit to its pool, once nothing can write to its slot. `length`: of the page
 * for which it was granted.
 */
void evict_give_back(struct evict *evict, uint32_t place, uint32_t generation, uint32_t length);

/* ---- pages that clients and other hosts name ------------------------------------------------- */

/* Another engine has read this engine's page. */
void page_touched(struct control *control, uint32_t place);
/*
 * An owner of the page's key says that its page was evicted lately, from that queue, or is a copy.
 * The page was stored meanwhile. EVICTED_NOT: the page was on disk. Ignored if it is not there.
 */
void page_again(struct control *control, const struct location *at, enum evicted from);
/*
 * The key of the page of that generation at `place` in this engine's memory. False: there is none.
 * `place` may be any number.
 */
bool page_key_at(
	struct control *control, uint32_t place, uint32_t generation, struct page_key *ret_key);
/* Whether a removal on this host outlasts a crash. */
enum forget_state {
	FORGET_DURABLE,  /* it does; always so without disk.paths */
	FORGET_LATER,    /* its tombstone is being written: the caller's `done` tells the result */
	FORGET_VOLATILE, /* it does not: no path of the disk is in service, or no memory */
};

/*
 * What page_forget() calls after FORGET_LATER: exactly once, at the latest when the tier is
 * closed, never from inside page_forget(). `durable` false is FORGET_VOLATILE.
 */
struct forget_wait {
	void (*done)(struct control *control, void *context, uint32_t cookie, bool durable);
	void *context;
	uint32_t cookie;
};
/*
 * A client of this or of another node wants the key deleted. Retires the page, of which the caller
 * removes the directory entries; it is not found here from here on. *ret_had: this node had it.
 * `wait` is copied; NULL: the caller does not wait.
 */
enum forget_state page_forget(struct control *control, const struct page_key *key,
	const struct forget_wait *wait, bool *ret_had);
/* The same on disk only: a page in memory stays. *ret_had: it was on disk. */
enum forget_state tier_forget(struct control *control, const struct page_key *key,
	const struct forget_wait *wait, bool *ret_had);

/* ---- shard: this host's part of the directory ------------------------------------------------ */

/*
 * This host's shard of the directory, with the buckets of abi/bucket.h. Readers take no lock: other
 * hosts READ it over RDMA, clients on this host map it read-only.
 */

struct shard_state;

/* Information about one bucket that only the owner has; readers do not see it. */
struct shard_side {
	/* bit i set: this bucket is the second candidate bucket of the key of entry i */
	uint8_t second;
	/*
	 * number of entries that have this bucket as first candidate but are stored in their second
	 * one
	 */
	uint8_t away;
	uint16_t slot[BUCKET_ENTRIES]; /* map_slot_of() the key of each entry */
};

struct shard {
	struct huge memory;
	struct bucket *bucket;
	/* what the next process of the engine needs beside the buckets; not visible to readers */
	struct huge state_memory;
	struct shard_state *state;
	struct shard_side *side; /* array, one for each bucket */
	uint32_t bits;           /* log2 of the number of buckets, 6..31 */
	uint64_t entries;        /* number of live entries */
	struct ghosts ghosts;    /* of keys whose entries this host had */
};

/* Prefetches what an insert or remove of the key's entry reads, some entries ahead of it. */
static inline void shard_prefetch(const struct shard *shard, const struct page_key *key)
{
	uint32_t first = dir_bucket_first(key, shard->bits);

	__builtin_prefetch(&shard->bucket[first], 1);
	__builtin_prefetch(&shard->side[first], 1);
}

void shard_close(struct shard *shard);

/*
 * Inserts or replaces the entry of (key, ref). It goes into the first candidate bucket of the key,
 * else into the second. If both are full, entries of either are moved from their first candidate
 * bucket to their second, at most two in a row; each is written to its new bucket before its old
 * cell is overwritten, so that readers never miss it. On an error nothing has changed. -ENOSPC: no
 * room in these buckets. -EDQUOT: the page is on disk, and three quarters of the shard are in use.
 * -EINVAL: ref or generation is 0.
 */
int shard_insert(struct shard *shard, const struct page_key *key, uint32_t ref, uint32_t place,
	uint32_t generation);
/*
 * Removes the entry of (key, ref) only if it also has this place and generation, so that a late
 * remove never deletes a newer entry. Returns whether an entry was removed.
 */
bool shard_remove(struct shard *shard, const struct page_key *key, uint32_t ref, uint32_t place,
	uint32_t generation);
/* Copies up to `max` entries of the key to `ret` and returns how many it copied. */
unsigned shard_find(
	const struct shard *shard, const struct page_key *key, struct dir_entry *ret, unsigned max);
/*
 * Looks at `buckets` buckets, starting at *cursor (0 at first; it wraps), and removes entries for
 * whose ref alive() returns false. Returns how many were removed. Called in slices after a member
 * died. Five parameters and a callback with its context.
 */
unsigned shard_sweep(struct shard *shard, uint32_t *cursor, uint32_t buckets,
	bool (*alive)(void *context, uint32_t ref), void *context);
/*
 * Removes one entry for whose ref alive() returns false from the candidate buckets of the key, to
 * make room for one of the key. False: they have none.
 */
bool shard_yield(struct shard *shard, const struct page_key *key,
	bool (*alive)(void *context, uint32_t ref), void *context);

/*
 * The digest of a slot of the map: the sum of this over its entries. A holder computes it from its
 * index, the owner from its shard.
 */
static inline uint64_t shard_entry_hash(uint32_t tag, uint32_t place, uint32_t generation)
{
	return map_mix(((uint64_t)tag << 32 | place) + map_mix(generation));
}
/*
 * Adds the entries of holder `ref` in `buckets` buckets, starting at *cursor (0 at first; it
 * wraps), to the digests of their slots of the map; `sums` has MAP_SLOTS. An entry that moves
 * between two calls can be counted twice or not at all. Five parameters: `cursor` and `buckets` are
 * one slice of the shard.
 */
void shard_digest(const struct shard *shard, uint32_t *cursor, uint32_t buckets, uint32_t ref,
	uint64_t *sums);

/* A part of a shard whose entries are looked at one by one. */
struct shard_part {
	uint32_t bucket;      /* the next one to look at; past the last bucket of the shard: 0 */
	uint32_t buckets;     /* how many more to look at */
	unsigned entry;       /* of the bucket, the next one to look at; 0 at first */
	const uint8_t *slots; /* a bit for each slot whose entries are wanted; NULL: all are */
	uint32_t first;       /* first candidate bucket of the entry that was returned */
};

/*
 * Returns the next entry of holder `ref` in the part, and moves the part on; NULL: there is none.
 * Valid until the shard is changed.
 */
const struct dir_entry *shard_show(
	const struct shard *shard, struct shard_part *part, uint32_t ref);

/* ---- tier: the disk -------------------------------------------------------------------------- */

/* Without disk.paths there is no tier: control->tier is NULL, and these functions do nothing. */
enum tier_state { TIER_OPENING, TIER_SERVING, TIER_FAILED };

int tier_open(struct control *control);
/*
 * For --check: logs what can be known to be wrong with disk.paths without opening the disk. `unit`
 * is as for control_check(). Returns 0 or -errno.
 */
int tier_check(const struct settings *settings, const struct unit *unit);
void tier_close(struct control *control);
/* Once in each turn of the loop: writes and reads what has become due. Returns how much it did. */
unsigned tier_turn(struct control *control);

/* A page was published: its size class may now be so full that pages must be written. */
void tier_published(struct control *control);

/* True, and the page, if the key is on disk and the disk serves. */
bool tier_find(struct control *control, const struct page_key *key, struct disk_page *ret_page);
/* The key of the page on disk with this name (struct disk_page). False: there is none. */
bool tier_named(
	struct control *control, uint32_t place, uint32_t generation, struct page_key *ret_key);
/* The disk is being opened: it is not known yet which pages are on it. */
bool tier_opens(const struct control *control);
/* As disk_slot(); nothing without a disk that serves. */
unsigned tier_slot(struct control *control, uint32_t slot, uint64_t *cursor, unsigned max,
	struct disk_page *ret_pages);
/*
 * The keys of the pages that are being written or read, *ret_count of them; the caller frees them.
 * NULL: none, or no memory for *ret_count.
 */
struct page_key *tier_flying(struct control *control, uint32_t *ret_count);
/* Number of pages on disk, as of the last report. */
uint64_t tier_pages(const struct control *control);

/* `key` was published with this length: forgets a page of another length that is on disk. */
void tier_replaced(struct control *control, const struct page_key *key, uint32_t length);

/*
 * A client has read the page at `place`. generation 0: of another host, whose message has none; a
 * pinned page is not evicted, so the place is enough.
 */
void tier_touched(struct control *control, uint32_t place, uint32_t generation);

/* The link has closed: requests that came on it are not answered. */
void tier_link_down(struct control *control, const struct rpc_link *link);

/* Promote of another engine; false: the message breaks a rule, and the link is to be closed. */
bool tier_serve_promote(
	struct control *control, struct rpc_link *link, const struct Pc__Promote *promote);

struct tier_counts {
	enum tier_state state;
	bool serves; /* a path is in service */
	uint32_t spills, promotes, waiting, pins;
	uint64_t spill_bytes, pinned_bytes;
	uint64_t writing_ns; /* time in which pages were being written, since the start */
	const struct disk_options *options;
	const struct disk_report *report; /* refreshed twice a second */
};
void tier_counts(const struct control *control, struct tier_counts *ret);

/* ---- promote: pages on the disks of other hosts ---------------------------------------------- */

/*
 * A client of this host has found a page there in the directory (CTL_PROMOTE and CTL_WANT with the
 * ref of its holder): this engine asks the holder to bring it into memory, and answers the client
 * with the place from which the client then READs it. A request ends with the holder's answer, with
 * the end of its link, or at its deadline, whichever comes first. The requests of one turn for one
 * holder are one message.
 */

int promote_open(struct control *control);
void promote_close(struct control *control);
/* Serves CTL_PROMOTE and CTL_WANT; those for this host's disk are the tier's. */
void promote_serve(
	struct control *control, struct ctl_channel *c, struct ctl_op *op, uint64_t now_ns);
/* The link has closed: no answer comes on it. */
void promote_link_down(struct control *control, const struct rpc_link *link);
/* Promoted of another engine; false: the message breaks a rule, and the link is to be closed. */
bool promote_serve_promoted(
	struct control *control, struct rpc_link *link, const struct Pc__Promoted *promoted);

/* ---- scrub: CRCs of the pages in memory ------------------------------------------------------ */

/*
 * Compares the pages of the local pools with the CRC32C in their heads, slowly and for ever, so
 * that damage by memory or by software is found before a reader gets it. Readers compare pages too
 * and report those that differ, through the engine of their host to the holder. The holder believes
 * no report: its scrubber compares the page next.
 */

/* A page that had another CRC32C than its head says when it was read. */
struct page_report {
	struct page_key key;
	uint32_t place, generation;
};

int scrub_open(struct control *control);
void scrub_close(struct control *control);

/* A client of this host reports a page of the engine `ref`: this engine or another one. */
void scrub_read(struct control *control, uint32_t ref, const struct page_report *report);
/*
 * A reader on any host reports a page of this engine: the scrubber compares it soon. A report about
 * a page that is not there any more, or that waits already, is ignored.
 */
void scrub_reported(struct control *control, const struct page_report *report);

/* ---- warm: the memory outlives the engine's process ------------------------------------------ */

/*
 * The process that started the engine (peercache-keeper, systemd) stores the descriptors of pools,
 * shard and removals, and the next engine adopts them: see WARM.md.
 */

struct warm_counts {
	uint32_t life;     /* 0: no process keeps this engine's memory */
	uint64_t adopted;  /* pages that were adopted at the start */
	uint64_t reserved; /* slots of earlier engines that cannot be used yet */
};

/*
 * Takes the stored descriptors. Returns 0, also if none are stored or if no process would store
 * any; -EBUSY after logging: another engine uses the memory; or another -errno.
 */
int warm_open(struct control *control);
void warm_close(struct control *control);

/*
 * Opens the pool of a rail: adopts the stored memory, or makes new memory and stores it. The pages
 * are put into control->index. Returns as pool_open() does.
 */
int warm_pool_open(
	struct control *control, const struct pool_options *options, struct pool **ret_pool);

/*
 * Opens the directory shard: adopts the stored one, or makes a new one and stores it. Returns as
 * shard_open() does.
 */
int warm_shard_open(struct control *control, uint64_t entries, int numa_node, bool want_huge);

/*
 * Opens the memory of removals (directory.h): adopts the stored one, or makes a new one, which is
 * zero, and stores it. Returns 0 or -errno.
 */
int warm_removals_open(
	struct control *control, size_t bytes, struct huge *ret_memory, bool *ret_adopted);

/* Called once when all pools are open: decides the engine's ref and incarnation. */
int warm_identity(struct control *control);
/*
 * Called once when the clients' part is open: counts what was adopted as ctl.c counts it,
 * watches the clients of earlier engines, and waits until the descriptors are stored.
 */
int warm_begin(struct control *control);
/* Stops watching. Slots that are still reserved stay so for the next engine. */
void warm_end(struct control *control);

/*
 * The number of a new channel as an owner of slots; its segment is stored. 0 if no process keeps
 * the memory. *process: the number of the client's process, whose pidfd is stored with its first
 * channel; 0 before, and while the pidfd is -1.
 */
uint32_t warm_owner_new(struct control *control, int segment, int pidfd, uint32_t *process);
/* The channel's client can write to no slot any more. Owner 0: no effect. */
void warm_owner_end(struct control *control, uint32_t owner, uint32_t process);
/* No channel of the process is stored any more. Process 0: no effect. */
void warm_process_end(struct control *control, uint32_t process);

void warm_counts(const struct control *control, struct warm_counts *ret);

#endif
