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

#include "engine/control/pages/pool.h"

#define NONE UINT32_MAX /* stands for "no slot", "no chunk" and "no size class" */
/*
 * visited bits that the eviction hand clears per victim at most; after that it evicts visited pages
 * too
 */
#define SIEVE_STEPS 64
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

enum slot_state { SLOT_FREE, SLOT_CREDIT, SLOT_PAGE, SLOT_LIMBO };

enum slot_disk {
	SLOT_WRITING = 1, /* its bytes are being written to disk: it is not handed out before */
	SLOT_CLEAN = 2,   /* in state PAGE: the page is on disk */
	SLOT_PINNED = 4,  /* in state PAGE: the page is not evicted */
	SLOT_HELD = 8,    /* in state LIMBO: limbo has ended, only the write has not */
};

struct slot {
	/*
	 * FREE: next of the chunk's free list; PAGE: the next older page; LIMBO: the next to leave
	 */
	uint32_t next;
	uint8_t state;
	/* in state PAGE: the page was visited since the eviction hand last passed it */
	uint8_t visited;
	/* in state PAGE: the present pool_victims() call has chosen the page already */
	uint8_t picked;
	/* what the disk tier knows of the slot: bits of enum slot_disk */
	uint8_t disk;
	union {
		uint32_t newer; /* in state PAGE: slot of the next newer page of the size class */
		/*
		 * in state LIMBO: the time at which limbo ends, on the pool's clock; UINT64_MAX:
		 * limbo has no end yet, see pool_rest()
		 */
		uint64_t until_ns;
	};
};
static_assert(sizeof(struct slot) == 16, "the comment at the top counts 16 bytes");

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
	uint32_t credits, pages, limbo;
	/* neighbours of this chunk in pool->empty, or in the list `ready` of its size class */
	uint32_t next, prev;
	uint32_t pinned; /* of `pages` */
	/*
	 * value of the clock pool->published when a page of this chunk was last published or
	 * touched
	 */
	uint64_t used_at;
};

struct chunk_list {
	uint32_t first, last;
};

struct size_class {
	uint32_t units; /* page size in units; 0: this record is unused */
	uint32_t slots; /* slots in one chunk of this class */
	uint32_t chunks;
	/* number of free slots of this class, without those of the chunk that is draining */
	uint32_t free;
	uint32_t pages, limbo;
	uint32_t pinned; /* of `pages` */
	/*
	 * ends of the SIEVE queue of pages, and the eviction hand; hand NONE: it restarts at the
	 * oldest page
	 */
	uint32_t newest, oldest, hand;
	/* the page that pool_ahead() looks at next; NONE: it has looked at all */
	uint32_t spill;
	uint32_t dirty; /* of `pages`: neither on disk nor being written */
	/* pages evicted since this class last looked for an idle chunk of another class */
	uint32_t evicted;
	/* chunks of this class that have free slots, without the chunk that is draining */
	struct chunk_list ready;
};

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
	/* page size, in units, for which one free chunk is reserved; 0: no chunk is reserved */
	uint32_t reserved_units;
	uint64_t reserved_until_ns;

	uint32_t drain;       /* number of the chunk that is draining; NONE: no chunk is draining */
	uint32_t drain_units; /* page size, in units, of the pages that need the chunk */
	uint32_t drain_cursor; /* index in the chunk of the slot that drain_pick() examines next */
	/* number of pool_victims() calls for other page sizes since drain_pick() last ran */
	uint32_t drain_ignored;

	uint32_t limbo_first, limbo_last, limbo;
	/* the first slot of that list whose limbo has no end yet; NONE: all have one */
	uint32_t limbo_open;
	/*
	 * number of published pages; number of publishes so far, which is the clock of
	 * chunk->used_at
	 */
	uint64_t pages, published;
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

/* ---- pool.c ---------------------------------------------------------------------------------- */

/* Returns the slot that starts at `place`, in use or not; NONE: no slot starts there. */
uint32_t pool_locate(const struct pool *pool, uint32_t place);
/* Returns the slot at `place`, or NONE unless it is in `state` and its head has this generation. */
uint32_t pool_locate_exact(
	const struct pool *pool, uint32_t place, uint32_t generation, enum slot_state state);
/* Makes a slot whose limbo has ended, and which is in no list, free. */
void limbo_end(struct pool *pool, uint32_t slot, uint64_t now_ns);

/*
 * Puts a slot into limbo; pool_rest() sets its end. Its generation is new already, and its chunk
 * does not count it in another state.
 */
void limbo_enter(struct pool *pool, uint32_t slot);

/* ---- pool_adopt.c: what the next process needs, and its adoption ----------------------------- */

/* Makes the state of a new pool, if options->want_state. Returns 0 or -errno. */
int state_make(struct pool *pool, const struct pool_options *options);

/*
 * Maps the memory of options->adopt. Takes ownership of its descriptors, also on failure. Returns
 * 0, -EPROTO if it is not a pool of this geometry, or another -errno. Changes nothing in the
 * memory.
 */
int adopt_map(struct pool *pool, const struct pool_options *options);
/* Makes the tables from the memory, and retires the slots that are neither page nor owned. */
void adopt_slots(struct pool *pool, const struct pool_adopt *adopt);

/* ---- pool_chunk.c: chunks and their size classes --------------------------------------------- */

void chunk_list_add(struct pool *pool, struct chunk_list *list, uint32_t chunk);
void chunk_list_remove(struct pool *pool, struct chunk_list *list, uint32_t chunk);
/* Returns the size class for pages of `units`; NONE: there is none at present. */
uint32_t class_serving(const struct pool *pool, uint32_t units);
/*
 * Returns the number of free chunks that pages of `units` may take; another size's reserved chunk
 * is not counted.
 */
uint32_t chunks_for(const struct pool *pool, uint32_t units);
/*
 * Gives a free chunk to the class of `units`, opening the class if needed. Returns the class; NONE:
 * no free chunk, or no further class.
 */
uint32_t chunk_assign(struct pool *pool, uint32_t units);
/* Gives a certain free chunk to the class of `units`, as chunk_assign() does with any. */
uint32_t chunk_assign_at(struct pool *pool, uint32_t number, uint32_t units);
/* Takes a free slot of the size class, which must have one, and returns its number. */
uint32_t chunk_slot_take(struct pool *pool, struct size_class *class);
/* Marks the slot as free. A chunk whose slots are all free becomes a free chunk. */
void chunk_slot_free(struct pool *pool, uint32_t slot, uint64_t now_ns);
/*
 * Starts to drain the chunk, so that it can hold pages of `units`: none of its slots is handed out
 * until all its slots are free or the drain is given up.
 */
void drain_start(struct pool *pool, uint32_t chunk, uint32_t units);
void drain_give_up(struct pool *pool);

/* ---- pool_disk.c: what the disk tier needs --------------------------------------------------- */

/* The slot leaves the state PAGE, or is handed out: what the disk tier knew of it is void. */
void slot_unpin(struct pool *pool, uint32_t slot);
/* Whether a slot in state PAGE is neither on disk nor being written. */
static inline bool slot_dirty(const struct slot *page)
{
	return !(page->disk & (SLOT_CLEAN | SLOT_WRITING));
}

/* ---- pool_evict.c: choice of victims --------------------------------------------------------- */

void sieve_insert(struct pool *pool, uint32_t slot);
void sieve_remove(struct pool *pool, uint32_t slot);
/* Describes the page in the slot. */
void victim_name(const struct pool *pool, uint32_t slot, struct pool_victim *ret);

#endif
