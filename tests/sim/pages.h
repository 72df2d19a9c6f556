/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pages of a simulated host in the scenarios of faults.c: pools, eviction and warm restart are
 * the product's, and pages have bytes. In the other scenarios nothing reads a page: it is an entry
 * of the index. One thread.
 */
#ifndef TESTS_SIM_PAGES_H
#define TESTS_SIM_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/abi/page.h"

struct dir_entry;

#define SIM_RAILS 2u /* of each node */

/* What a client writes into each unit of a page, and what a reader finds. */
struct content {
	uint64_t number; /* 1 + that of the page; 0: nothing was written */
	uint64_t value;
};

struct pages {
	uint64_t pool_bytes; /* of each rail */
	uint32_t length;     /* of a page, bytes */
	bool disks;          /* the host has disks */
	uint64_t limit;      /* of pages, if below what the pools hold; 0: none */
	/* by unit of each rail: generation of the last page there that a removal took away */
	uint32_t *removed[SIM_RAILS];
};

/* Have the hosts of this run disks? All of them have, or none. */
bool run_has_disks(void);
/* Opens the pools of a process, with the pages of the one before that its keeper has. */
void pools_open(unsigned node);
void pools_close(unsigned node);
/*
 * The process ends: counts the pages of its memory that the node does not have any more. disk.c
 * counts those that its disks may not have.
 */
void pages_lost(unsigned node);
/* The page is not in the process any more. It counts as left if the node does not keep it. */
void page_lost(unsigned node, const struct page_key *key);

/*
 * What a READ of the page at this place finds there now, also of a stopped process. False: the page
 * head is that of another page, or of none.
 */
bool page_read(
	unsigned node, const struct page_key *key, const struct location *at, struct content *ret);
/* Page `number`, if the node has it, in a process or kept for the next one. */
bool page_of(unsigned node, uint64_t number, struct content *ret);
/* How often a page with this number has left a node: evicted, removed or lost. */
uint64_t page_left(uint64_t number);
/* The entry is that of a page of this node which a removal took away. */
bool page_removed(unsigned node, const struct dir_entry *entry);

/* Stores page `number`, of one unit, without a client and without bytes; publishes it. */
void page_fill(unsigned node, uint64_t number);
/* Evicts this many pages in a turn of the loop, or all. */
void pages_evict(unsigned node, uint64_t count);
/* Evicts pages above the limit. */
void pages_limit(unsigned node);
void pages_close(void);

#endif
