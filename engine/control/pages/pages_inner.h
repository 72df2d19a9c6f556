/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this room call of each other, beside pages.h. Of the product's files outside
 * the room, only tools/bench_policy.c includes this header: it runs a pool without an engine. The
 * control plane's thread only.
 */
#ifndef CONTROL_PAGES_INNER_H
#define CONTROL_PAGES_INNER_H

#include "engine/abi/op.h"
#include "engine/control/base/control.h"
#include "engine/control/pages/pages.h"

/* ---- pool: opening and adoption -------------------------------------------------------------- */

/*
 * A slot that a client or a disk may be writing to, although the engine that granted it has ended.
 */
struct pool_quarantined {
	uint32_t owner; /* as pool_own() recorded it */
	uint32_t place, generation;
	uint32_t length; /* of the slot, bytes */
};

/*
 * A pool that an earlier process of this engine left. The fields are descriptors of its memfds,
 * which pool_open() takes ownership of, and two functions.
 */
struct pool_adopt {
	int memory_fd, heads_fd, state_fd;
	/*
	 * Tells of an adopted page. Returns false if the page is not wanted, for example because
	 * another slot has the same key: its slot is then retired.
	 */
	bool (*page)(void *context, const struct page_head *head, uint32_t place);
	/*
	 * Tells of a slot in quarantine. It is a credit: pool_return() ends its quarantine, once
	 * its owner is known to write no more.
	 */
	void (*quarantined)(void *context, const struct pool_quarantined *slot);
	void *context;
};

/*
 * Opens a pool of options->bytes, 4 MiB to 1 TiB; a remainder smaller than a chunk is not used.
 * Returns 0, -EINVAL (bytes or rail out of range), -ENOMEM or the error of huge_open(). With
 * options->adopt also -EPROTO: the memory is of another layout or geometry, or its state is
 * damaged; nothing in it was changed, and the caller opens a new pool.
 */
int pool_open(const struct pool_options *options, struct pool **ret_pool);

/* The memory of the state; NULL without one. */
const struct huge *pool_state_memory(const struct pool *pool);

/* ---- pool: states of a slot ------------------------------------------------------------------ */

/*
 * CREDIT -> LIMBO, because the client may still be writing to the slot. -EINVAL: (place,
 * generation) is no credit.
 */
int pool_return(struct pool *pool, uint32_t place, uint32_t generation);

/*
 * Evicts a page (slot state PAGE -> LIMBO): increments its generation. -EINVAL: `place` has no page
 * of that generation.
 */
int pool_retire(struct pool *pool, uint32_t place, uint32_t generation);

struct pool_victim {
	struct page_key key;
	uint32_t place;
	uint32_t generation;
	uint32_t length;
	enum evicted queue; /* that has it */
};

/*
 * Chooses up to `max` pages to evict so that pages of `page_bytes` get room. They stay PAGE until
 * the caller has unpublished and then retired them. The victims are pages of the same class or,
 * when the class has none, pages of one chunk of another class, preferably of the class with the
 * most chunks. `clean`: passes over pages that are neither on disk nor being written, and may
 * return 0 although there are others, if these are very few.
 */
unsigned pool_victims(struct pool *pool, uint32_t page_bytes, bool clean, unsigned max,
	struct pool_victim *ret_victims);

/* The key of the page of that generation at `place`. False: there is none. */
bool pool_key(
	const struct pool *pool, uint32_t place, uint32_t generation, struct page_key *ret_key);
/* That of the page at `place`, where pool_touch() has found one. */
const struct page_key *pool_key_at(const struct pool *pool, uint32_t place);

/* ---- pool: what the disk tier needs ---------------------------------------------------------- */

/*
 * Names up to `max` pages of this size that are neither on disk nor being written, the oldest
 * first: those that have reached 1 - `share` / POOL_AHEAD_ALL of the age at which pages are evicted
 * now. A page is named once; if all are to be, again when its write has failed or the disk has lost
 * it. Amortised O(1) for each page that is named.
 */
#define POOL_AHEAD_ALL 256u
unsigned pool_ahead(struct pool *pool, uint32_t page_bytes, uint32_t share, unsigned max,
	struct pool_victim *ret_victims);
/*
 * The bytes of a page are about to be written to disk: until pool_write_end() its slot is not
 * handed out, whatever becomes of the page. -EINVAL: no page is there, or it is being written.
 */
int pool_write_begin(struct pool *pool, uint32_t place, uint32_t generation);
/* `on_disk`: the page is on disk now; it is marked unless it is gone. */
void pool_write_end(struct pool *pool, uint32_t place, uint32_t generation, bool on_disk);
/* The page is on disk, or is not any more; no effect if it is gone. */
void pool_clean_set(struct pool *pool, uint32_t place, uint32_t generation, bool on_disk);
/* True if the page is on disk, is being written to it, or does not exist. */
bool pool_clean(const struct pool *pool, uint32_t place, uint32_t generation);

/* ---- pool: what the scrubber needs ----------------------------------------------------------- */

/*
 * Looks at up to `most` slots from *cursor on, which is 0 at first, and stops at the first page
 * with a CRC in its head. Moves *cursor on; 0 again: the end of the pool was reached. Returns the
 * number of slots looked at.
 */
unsigned pool_scrub_next(
	struct pool *pool, uint32_t *cursor, unsigned most, struct pool_proven *ret_page);
/*
 * The page of that generation at `place`. False: there is none, or its head contains no CRC; then
 * *ret_page is unchanged.
 */
bool pool_proven(
	const struct pool *pool, uint32_t place, uint32_t generation, struct pool_proven *ret_page);
/*
 * Returns the bytes of a page, until the end of the caller's turn; NULL: no page of that generation
 * is there.
 */
const void *pool_page(const struct pool *pool, uint32_t place, uint32_t generation);

/* ---- shard ----------------------------------------------------------------------------------- */

/*
 * Sizes the shard so that `entries` entries fill half of it. Returns 0, -EINVAL (too many entries),
 * -ENOMEM or the error of huge_open().
 */
int shard_open(uint64_t entries, int numa_node, bool want_huge, struct shard *ret_shard);
/*
 * Opens the shard that an earlier process of the engine left, however it ended: the files of its
 * `memory` and `state_memory`, which this call takes over, also on failure. Sizes as for
 * shard_open(). `owners`: shard_keep() of that process had this number. Returns 0; -EPROTO: the
 * files are not those of one shard of this size, or the process ended in the middle of a change; or
 * another -errno.
 */
int shard_adopt(
	uint64_t entries, int memory_fd, int state_fd, uint64_t owners, struct shard *ret_shard);
/* The shard may be adopted by a process that knows this number, which is not 0. */
void shard_keep(struct shard *shard, uint64_t owners);

/* ---- tier ------------------------------------------------------------------------------------ */

/*
 * The page is about to be evicted: written now, if it was not and the budget allows. True, and the
 * page: it is on disk already.
 */
bool tier_evicting(
	struct control *control, const struct pool_victim *page, struct disk_page *ret_page);
/*
 * The disk serves and no page was dropped lately: a page that is neither on disk nor being written
 * is evicted only for a request that waits, and only if there is no other.
 */
bool tier_keeps_up(const struct control *control);

/* ---- scrub ----------------------------------------------------------------------------------- */

#define SCRUB_REPORTS_MAX 64u     /* reports of readers that wait; further ones are dropped */
#define SCRUB_LOG_NS 100000000ull /* minimum time between two log lines about reports */
#define SCRUB_PIECE_BYTES (256u << 10)
#define SCRUB_TICK_NS_MIN 1000000ull
#define SCRUB_TICK_NS_MAX 1000000000ull
#define SCRUB_SLOTS 1024u /* slots that one tick looks at, at most */

/* How the scrubber divides its work: `bytes` each `tick_ns`. */
struct scrub_pace {
	uint32_t bytes;
	uint64_t tick_ns;
};

/* `pools`: bytes of all pools; `seconds`: not 0. */
struct scrub_pace scrub_pace(uint64_t pools, uint64_t seconds);

/* What a tick does: compares up to `bytes` bytes. */
void scrub_step(struct control *control, uint32_t bytes);

/*
 * The page has the CRC32C `crc`, which is not that of its head: counts and logs it, and takes it
 * out of the pool, of the directory and of the disk, as far as it is still there. `who` found it.
 */
void scrub_condemn(
	struct control *control, const struct pool_proven *page, uint32_t crc, const char *who);

/* ---- promote_ask.c --------------------------------------------------------------------------- */

/* Requests that wait for an answer, of all clients; a further one is refused. */
#define PROMOTE_ASKS_MAX 8192u
#define PROMOTE_TICK_US 10000 /* between two looks at the deadlines, while requests wait */

/* Number of requests that wait for an answer. */
unsigned promote_waiting(const struct control *control);

/* ---- warm ------------------------------------------------------------------------------------ */

/* The owner of slots into which the disk tier reads. */
uint32_t warm_owner_disk(const struct control *control);
/* The locks of all paths of disk.paths are taken: no earlier I/O writes to a slot any more. */
void warm_disk_locked(struct control *control);

#endif
