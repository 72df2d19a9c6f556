/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What pool.c, pool_chunk.c and pool_evict.c share; nobody else includes it. Control plane only.
 *
 * A slot is named by chunk << shift | index in the chunk, so the slots of a chunk lie side by side
 * and only as much of the slot array is ever touched as there are pages: 16 bytes are reserved for
 * each unit, and used for each slot. With the page head that makes 48 bytes for a page of one unit.
 *
 * A chunk's slots are carved one by one, so giving a chunk to a class costs nothing. Where the size
 * of a class does not divide the chunk, the rest of the chunk is idle: next to nothing for pages
 * much smaller than a chunk, almost half of it for pages just larger than half a chunk.
 */
#ifndef CONTROL_POOL_INNER_H
#define CONTROL_POOL_INNER_H

#include "engine/control/pool.h"

#define NONE UINT32_MAX /* no slot, no chunk, no class */
#define SIEVE_STEPS 64  /* pages looked at for one victim before the next one goes anyway */
#define LIMBO_BURST 64  /* slots a take moves out of limbo although it has found one */
#define RESERVE_NS 1000000000ull /* how long an emptied chunk waits for those it was emptied for */
#define DRAIN_PATIENCE 64 /* evictions of others after which an unfinished drain is given up */

enum slot_state { SLOT_FREE, SLOT_CREDIT, SLOT_PAGE, SLOT_LIMBO };

struct slot {
	uint32_t next; /* FREE: in the chunk's list; PAGE: the next older; LIMBO: the next later */
	uint8_t state;
	uint8_t visited; /* PAGE: read since the hand passed */
	uint8_t picked;  /* PAGE: already among the victims of this call */
	uint8_t spare;
	union {
		uint32_t newer;    /* PAGE */
		uint64_t until_ns; /* LIMBO */
	};
};
static_assert(sizeof(struct slot) == 16, "the bytes a unit costs, told above");

struct chunk {
	uint32_t class;    /* NONE: a free chunk */
	uint32_t carved;   /* slots that were handed out at least once; the others follow them */
	uint32_t recycled; /* first slot of the list of free ones among them */
	uint32_t free;     /* free slots, carved or not */
	uint32_t credits, pages, limbo;
	uint32_t next, prev; /* among the free chunks, or those of its class with free slots */
	uint32_t spare;
	uint64_t used_at; /* pool->published when a page of it was last published or touched */
};

struct chunk_list {
	uint32_t first, last;
};

struct size_class {
	uint32_t units; /* of a page; 0: this entry is not in use */
	uint32_t slots; /* per chunk */
	uint32_t chunks;
	uint32_t free; /* slots that may be handed out: not those of a draining chunk */
	uint32_t pages, limbo;
	uint32_t newest, oldest, hand; /* SIEVE's queue; hand NONE: starts again at the oldest */
	uint32_t evicted;              /* victims since it last looked at the chunks of others */
	struct chunk_list ready;       /* its chunks that have free slots */
};

struct pool {
	struct huge memory, heads_memory;
	struct page_head *heads; /* one per unit */
	struct slot *slots;
	struct chunk *chunk;
	uint8_t *class_by_units; /* 0..chunk_units; CLASS_NONE: no such class */
	unsigned rail;
	uint32_t chunks, chunk_units, shift; /* chunk_units == 1 << shift */
	uint64_t limbo_ns;

	struct chunk_list empty; /* free chunks */
	uint32_t empties;
	uint32_t reserved_units; /* one free chunk is kept for this page size; 0: none is */
	uint64_t reserved_until_ns;

	uint32_t drain;         /* the chunk that is being emptied, or NONE */
	uint32_t drain_units;   /* for pages of this size */
	uint32_t drain_cursor;  /* index of the slot to look at next */
	uint32_t drain_ignored; /* evictions for others since somebody last worked on it */

	uint32_t limbo_first, limbo_last, limbo;
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

/* The unit at which the slot's page starts; its chunk belongs to a class. */
static inline uint32_t slot_unit(const struct pool *pool, uint32_t slot)
{
	uint32_t index = slot & (pool->chunk_units - 1);

	return (slot - index) + index * pool->class[slot_chunk(pool, slot)->class].units;
}

/* 0: no page is that small or that large. */
static inline uint32_t pool_units(const struct pool *pool, uint32_t page_bytes)
{
	if (page_bytes == 0 || page_bytes > pool_page_bytes_max(pool))
		return 0;
	return (page_bytes - 1) / PAGE_UNIT + 1;
}

/* ---- pool.c -------------------------------------------------------------------------------- */

/* The slot that starts at `place`, in use or not; NONE: none does. */
uint32_t pool_locate(const struct pool *pool, uint32_t place);

/* ---- pool_chunk.c: who has which chunk ------------------------------------------------------ */

void chunk_list_add(struct pool *pool, struct chunk_list *list, uint32_t chunk);
void chunk_list_remove(struct pool *pool, struct chunk_list *list, uint32_t chunk);
/* The class that serves pages of so many units now; NONE: it would have to be opened, or cannot. */
uint32_t class_serving(const struct pool *pool, uint32_t units);
/* Free chunks that pages of so many units may have. */
uint32_t chunks_for(const struct pool *pool, uint32_t units);
/* Gives a free chunk to the class of so many units. Returns the class; NONE: there is none. */
uint32_t chunk_assign(struct pool *pool, uint32_t units);
/* A slot of the class that is not in use; the class has one. */
uint32_t chunk_slot_take(struct pool *pool, struct size_class *class);
/* The slot is free from now on; an empty chunk goes back to the free ones. */
void chunk_slot_free(struct pool *pool, uint32_t slot, uint64_t now_ns);
/* Hands out nothing of the chunk any more, until it is empty or the drain is given up. */
void drain_start(struct pool *pool, uint32_t chunk, uint32_t units);
void drain_give_up(struct pool *pool);

/* ---- pool_evict.c: who goes next ------------------------------------------------------------ */

void sieve_insert(struct pool *pool, uint32_t slot);
void sieve_remove(struct pool *pool, uint32_t slot);

#endif
