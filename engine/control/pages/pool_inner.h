/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations shared by the files pool*.c; no other file includes this header.
 * The control plane's thread only.
 *
 * The number of a slot is chunk << shift | index in the chunk, so the slots of one chunk are
 * adjacent in the slot array. The array reserves 16 bytes of address space for each unit, but only
 * the entries of slots that were used take memory. Together with the 32-byte page head, a page of
 * one unit costs 48 bytes.
 *
 * A chunk's slots are carved one by one, when they are first needed, so giving a chunk to a class
 * is O(1). Where the page size of a class does not divide the chunk, the rest of the chunk is
 * unused: very little for pages much smaller than a chunk, almost half of it for pages just larger
 * than half a chunk.
 */
#ifndef CONTROL_POOL_INNER_H
#define CONTROL_POOL_INNER_H

#include <assert.h>
#include <stddef.h>

#include "engine/abi/op.h"
#include "engine/control/pages/pages_inner.h"

#define NONE UINT32_MAX /* stands for "no slot", "no chunk" and "no size class" */
/* maximum number of slots whose limbo has ended that one call of pool_take() makes free */
#define LIMBO_BURST 64
/*
 * time, in ns, for which a chunk that was drained stays reserved for the page size that it was
 * drained for
 */
#define RESERVE_NS 1000000000ull
/*
 * a drain is given up after this number of pool_victims() calls for other page sizes than the
 * drain's
 */
#define DRAIN_PATIENCE 64
/*
 * Each class keeps at least one chunk. When there is a class for each CLASS_CHUNKS chunks, a size
 * without one shares that of pages which are longer by 1/CLASS_WASTE at most.
 */
#define CLASS_CHUNKS 4
#define CLASS_WASTE 4
/* sizes that may have classes of their own: at least; at most, so that others fit CLASSES_MAX */
#define CLASSES_FEW 4u
#define CLASSES_EXACT 16u

/* ---- slots, chunks and classes --------------------------------------------------------------- */

enum slot_state { SLOT_FREE, SLOT_CREDIT, SLOT_PAGE, SLOT_LIMBO };

enum slot_disk {
	SLOT_WRITING = 1, /* its bytes are being written to disk: it is not handed out before */
	SLOT_CLEAN = 2,   /* in state PAGE: the page is on disk */
	/* in state PAGE: the page is not evicted */
	SLOT_PINNED = POOL_PIN_READER,
	SLOT_KEPT = POOL_PIN_CLIENT,
	SLOT_PINS = SLOT_PINNED | SLOT_KEPT,
	SLOT_HELD = 8, /* in state LIMBO: limbo has ended, only the write has not */
};

struct slot {
	/*
	 * FREE: next of the chunk's free list; PAGE: the next older page; LIMBO: the next to leave
	 */
	uint32_t next;
	uint8_t state;
	/* in state PAGE: its queue, enum queue_kind */
	uint8_t queue;
	/* what the disk tier knows of the slot: bits of enum slot_disk */
	uint8_t disk;
	uint8_t why : 7; /* in state PAGE: enum page_why */
	bool low : 1;    /* it was moved to the old end of its queue, and no page lies behind it */
	union {
		struct {
			uint32_t
				newer; /* in state PAGE: slot of the next newer page of the queue */
			/* in state PAGE: the clock pool->published when it got its place there */
			uint32_t queued_at;
		};
		/*
		 * in state LIMBO: the time at which limbo ends, on the pool's clock; UINT64_MAX:
		 * limbo has no end yet, see pool_rest()
		 */
		uint64_t until_ns;
	};
};
static_assert(sizeof(struct slot) == POOL_SLOT_BYTES, "memory_process_bytes() counts it");

struct chunk {
	uint32_t class; /* size class of the chunk, an index in pool->class; NONE: a free chunk */
	/*
	 * number of slots that were handed out at least once; the slots behind them were never used
	 */
	uint32_t carved;
	/*
	 * first and last slot of the list of free slots that were used before, the one that became
	 * free first at its head; `recycled` NONE: the list is empty
	 */
	uint32_t recycled, recycled_last;
	uint32_t free; /* number of free slots, used before or not */
	uint32_t credits, pages;
	uint32_t limbo; /* slots in the list of limbo */
	/* neighbours in pool->empty, in pool->leaving or in the list `ready` of its size class */
	uint32_t next, prev;
	uint32_t pinned; /* of `pages` */
	uint32_t kept;   /* of `pinned`: by clients, for long: the chunk does not drain */
	/*
	 * page size, in units, for which the chunk is emptied: none of its slots is handed out, and
	 * its class does not count them as free; 0: it is not
	 */
	uint32_t leaves_for;
	/*
	 * value of the clock pool->published when a page of this chunk was last published or
	 * touched
	 */
	uint64_t used_at;
};

struct chunk_list {
	uint32_t first, last;
};

/* The queues of a size class: pages that were used once, and those that were used again. */
enum queue_kind { QUEUE_NEW, QUEUE_USED, QUEUES };

/* Ends of a queue of pages. */
struct queue {
	uint32_t newest, oldest;
	/* the page that pool_ahead() looks at next; NONE: it has looked at all */
	uint32_t spill;
	/* the newest page that was moved to the old end: pool_last(), pool_yield(); NONE: none */
	uint32_t last;
};

struct size_class {
	uint32_t units; /* page size in units; 0: this record is unused */
	uint32_t slots; /* slots in one chunk of this class */
	uint32_t chunks;
	/* number of free slots of this class, without those of chunks that leave */
	uint32_t free;
	/* `limbo`: of chunk.limbo, without chunks that leave and have only slots in limbo */
	uint32_t pages, limbo;
	uint32_t pinned; /* of `pages` */
	uint32_t kept;   /* of `pinned`, by clients */
	struct queue queue[QUEUES];
	uint32_t dirty; /* of `pages`: neither on disk nor being written */
	/* pages evicted since this class last looked for an idle chunk of another class */
	uint32_t evicted;
	/* chunks of this class that have free slots, without those that leave */
	struct chunk_list ready;
};

/* ---- the state for the next process ---------------------------------------------------------- */

#define POOL_STATE_MAGIC 0x50435354u /* "PCST" */
#define POOL_STATE_LAYOUT 1u         /* raised when a field changes its place or meaning */

/*
 * What a pool keeps about its chunks and slots in shared memory beside the page heads, so that the
 * engine's next process can adopt the pool: the size class of each chunk, and who may be writing to
 * a slot. No client and no other host maps it. Each word is written at once, in the order that the
 * comments name, because the engine may be killed between any two stores.
 *
 * Followed by `chunks` words, the page size of each chunk in units (0: the chunk has no class and
 * no slot in use), and then by one word for each unit of the pool: the owner of the slot that
 * starts there. Words of slots that were never used take no memory.
 */
struct pool_state {
	uint32_t magic, layout;
	uint32_t rail, chunks, chunk_units;
	int32_t numa_node; /* of the memory; -1: any */
	uint64_t limbo_ns; /* largest limbo time of any process that used the pool */
	/*
	 * huge_number() of the memory, of the heads and of the file that numbers the owners: parts
	 * of different pools are never taken for one pool
	 */
	uint64_t memory, heads, owners;
	uint64_t spare;
};
static_assert(sizeof(struct pool_state) == POOL_STATE_BYTES, "the tables behind it are aligned");

/* Bytes of the state of a pool with this number of chunks and of units in one. */
static inline size_t pool_state_bytes(uint32_t chunks, uint32_t chunk_units)
{
	return sizeof(struct pool_state) + chunks * sizeof(uint32_t) +
	       (size_t)chunks * chunk_units * sizeof(uint32_t);
}

static inline uint32_t *pool_state_units(struct pool_state *state)
{
	return (uint32_t *)(state + 1);
}

static inline uint32_t *pool_state_owners(struct pool_state *state)
{
	return pool_state_units(state) + state->chunks;
}

/* ---- the pool -------------------------------------------------------------------------------- */

struct pool {
	struct huge memory, heads_memory;
	/* the state for the next process, and its tables; NULL: the pool keeps none */
	struct huge state_memory;
	struct pool_state *state;
	uint32_t *state_units;
	uint32_t *state_owner;
	struct page_head *heads; /* array of the page heads, one for each unit of the pool */
	struct slot *slots;
	struct chunk *chunk;
	/*
	 * index of the size class that holds pages of n units, for n in 0..chunk_units; CLASS_NONE:
	 * there is none
	 */
	uint8_t *class_by_units;
	unsigned rail;
	/* number of chunks; units in one chunk, which are 1 << shift */
	uint32_t chunks, chunk_units, shift;
	uint64_t limbo_ns;
	uint64_t (*clock_ns)(void); /* CLOCK_MONOTONIC_RAW */
	/* last reading of the clock; safe for the end of limbo if old, never for its begin */
	uint64_t seen_ns;

	struct chunk_list empty; /* list of the free chunks */
	uint32_t empties;
	struct chunk_list leaving; /* list of the chunks with `leaves_for` */
	/* page size, in units, for which `reserved` free chunks are kept; 0: none is */
	uint32_t reserved_units;
	uint32_t reserved;
	uint64_t reserved_until_ns;

	/* number of the chunk that is draining: its pages are the victims; NONE: no chunk is */
	uint32_t drain;
	uint32_t drain_cursor; /* index in the chunk of the slot that drain_pick() examines next */
	/* number of pool_victims() calls for other page sizes since drain_pick() last ran */
	uint32_t drain_ignored;

	uint32_t limbo_first, limbo_last;
	uint32_t limbo; /* slots of that list, and those with SLOT_HELD */
	/* the first slot of that list whose limbo has no end yet; NONE: all have one */
	uint32_t limbo_open;
	/*
	 * number of published pages; number of publishes so far, which is the clock of
	 * chunk->used_at
	 */
	uint64_t pages, published;
	uint64_t hot_units; /* of the slots of pages that are here because of PAGE_HOT */
	uint32_t before;    /* place of the page that the next one follows, see pool_order() */
	/* the page that was touched last, and when; NONE: none was */
	uint32_t touched;
	uint64_t touched_ns;
	uint32_t used_weight; /* how much slower a page of QUEUE_USED ages, in 1/USED_WEIGHT_ONE */
	unsigned classes;
	struct size_class class[CLASSES_MAX];
};

#define CLASS_NONE 0xff
static_assert(CLASSES_MAX < CLASS_NONE, "a class number fits a byte");

static inline struct chunk *slot_chunk(const struct pool *pool, uint32_t slot)
{
	return &pool->chunk[slot >> pool->shift];
}

/* Returns the number of the slot's first unit. The slot's chunk must belong to a size class. */
static inline uint32_t slot_unit(const struct pool *pool, uint32_t slot)
{
	uint32_t index = slot & (pool->chunk_units - 1);

	return (slot - index) + index * pool->class[slot_chunk(pool, slot)->class].units;
}

/* Returns the units that a page of page_bytes needs; 0: this pool holds no pages of that length. */
static inline uint32_t pool_units(const struct pool *pool, uint32_t page_bytes)
{
	if (page_bytes == 0 || page_bytes > pool_page_bytes_max(pool))
		return 0;
	return (page_bytes - 1) / PAGE_UNIT + 1;
}

static inline void chunk_list_add(struct pool *pool, struct chunk_list *list, uint32_t chunk)
{
	pool->chunk[chunk].next = NONE;
	pool->chunk[chunk].prev = list->last;
	if (list->last == NONE)
		list->first = chunk;
	else
		pool->chunk[list->last].next = chunk;
	list->last = chunk;
}

static inline void chunk_list_remove(struct pool *pool, struct chunk_list *list, uint32_t chunk)
{
	uint32_t next = pool->chunk[chunk].next, prev = pool->chunk[chunk].prev;

	if (prev == NONE)
		list->first = next;
	else
		pool->chunk[prev].next = next;
	if (next == NONE)
		list->last = prev;
	else
		pool->chunk[next].prev = prev;
}

/* Whether a slot in state PAGE is neither on disk nor being written. */
static inline bool slot_dirty(const struct slot *page)
{
	return !(page->disk & (SLOT_CLEAN | SLOT_WRITING));
}

/* Whether the chunk has drained: it leaves, and what it has are slots in limbo or free ones. */
static inline bool chunk_rests(const struct pool *pool, uint32_t number)
{
	return pool->chunk[number].leaves_for && pool->drain != number;
}

/*
 * Returns the number of free chunks that pages of `units` may take; another size's reserved chunks
 * are not counted.
 */
static inline uint32_t chunks_for(const struct pool *pool, uint32_t units)
{
	uint32_t kept = pool->reserved_units == units ? 0 : pool->reserved;

	return pool->empties > kept ? pool->empties - kept : 0;
}

/* ---- pool.c ---------------------------------------------------------------------------------- */

/* Returns the slot that starts at `place`, in use or not; NONE: no slot starts there. */
uint32_t pool_locate(const struct pool *pool, uint32_t place);
/* The same; NONE unless it is in `state` and its head has this generation. */
uint32_t pool_locate_exact(
	const struct pool *pool, uint32_t place, uint32_t generation, enum slot_state state);
/*
 * Puts a slot into limbo; pool_rest() sets its end. Its generation is new already, and its chunk
 * does not count it in another state.
 */
void limbo_enter(struct pool *pool, uint32_t slot);
/* Returns the size class for pages of `units`; NONE: there is none at present. */
uint32_t class_serving(const struct pool *pool, uint32_t units);
/*
 * Gives a certain free chunk to the class of exactly `units`, opening it if needed; there are fewer
 * than CLASSES_MAX, or it is one of them. Returns the class.
 */
uint32_t chunk_assign_at(struct pool *pool, uint32_t number, uint32_t units);

/* ---- pool_evict.c ---------------------------------------------------------------------------- */

/* Makes a new page the newest of its class, or puts it behind the page at `before`. */
void queue_insert(struct pool *pool, uint32_t slot, uint32_t before);
/* Makes a page that is used the newest of QUEUE_USED. */
void queue_use(struct pool *pool, uint32_t slot);
/* Takes a page out of its queue. */
void queue_remove(struct pool *pool, uint32_t slot);

#endif
