/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pages of a simulated node: slots with a page head each, as pool.c and ctl.c make them
 * of pages without bytes; and what outlives the process, as warm.c stores it. One thread.
 */
#ifndef TESTS_SIM_PAGES_H
#define TESTS_SIM_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/abi/page.h"

struct control;

/* A slot: what its page head says, and the value that stands for its bytes. */
struct slot {
	struct page_key key;
	uint64_t number, value;
	uint32_t generation; /* raised when the page leaves, so that its entries are stale */
	bool live;
	bool removed; /* the page that it had last has left by a removal */
};

/* All slots of a node. They are the host's memory: a kept one outlives the process. */
struct pages {
	struct slot *slot;
	uint32_t slots, room;
	uint32_t limit; /* of pages; 0: none */
	uint32_t live, hand;
};

/* What the process that started the engine stores for the next one, beside the slots. */
struct kept {
	bool any; /* the process that ended last has stored its memory */
	uint32_t ref, life;
	int shard_fd, state_fd; /* of the directory shard */
	int removals_fd;        /* of the memory of removals */
};

/*
 * Stores page `number` with this value, or finds it stored: then its slot and value stay. Evicts
 * the oldest page above the limit. Returns the slot.
 */
const struct slot *page_put(
	unsigned node, uint64_t number, uint64_t value, struct location *ret_at);
/* Evicts `count` pages, those that were stored first, in a turn of the loop. */
void pages_evict(unsigned node, uint32_t count);
/* The page that is at this place now, as its head says; NULL: there is none. */
const struct slot *page_at(unsigned node, const struct page_key *key, const struct location *at);
/* The slot at this place, with a page or without; NULL: the node has fewer slots. */
const struct slot *page_there(unsigned node, uint32_t place);
/* Page `number`, if the node has it, in a process or kept for the next one; else NULL. */
const struct slot *page_of(unsigned node, uint64_t number);
/* How often a page with this number has left a node: evicted, removed or lost. */
uint64_t page_left(uint64_t number);

/* The process ends now: what outlives it is stored. Before node_crash(). */
void node_keep(unsigned node);
/* A process opens the shard: the stored one or a new one. */
void kept_shard_open(unsigned node, uint64_t entries);
/*
 * A process opens the memory of removals, stored or new. `pages`: it has pages of before, so it
 * takes no clients until it is told what it has missed (removals.c).
 */
void kept_removals_open(unsigned node, bool pages);
/* The memory of all pages is lost. */
void pages_lose(unsigned node);
/* A process puts the pages that are kept into its index. Returns how many there are. */
uint32_t pages_adopt(unsigned node);
void pages_close(void);

#endif
