/* SPDX-License-Identifier: Apache-2.0 */
/* What truth.c and truth_judge.c share; no other file includes this header. */
#ifndef TESTS_SIM_TRUTH_STATE_H
#define TESTS_SIM_TRUTH_STATE_H

#include "tests/sim/truth.h"
#include "tests/sim/world.h"

#define FAULT_NODES_MAX 64u /* a bit for each */

struct page_state {
	uint64_t value;   /* that a set stores now; values start at 1 */
	uint64_t dead;    /* this value and lower ones are removed or cleared */
	uint64_t left;    /* page_left() when a set said hit */
	bool set;         /* a set said hit, and no removal began since, */
	uint64_t holders; /* and a bit for each node whose page it stored or found */
	bool busy;        /* a set or a remove is in progress */
	bool late;        /* messages of a removal without an answer may still take entries */
};

struct broken {
	uint64_t at_ns, number;
};

struct seen_map {
	uint64_t digest, since_ns;
	uint64_t walks_ns; /* since when its walks could run: `since_ns` or later */
};

struct truth {
	uint64_t pages;
	struct page_state *page;
	unsigned calls; /* in progress */
	struct seen_map map[FAULT_NODES_MAX];
	bool calm;
	bool unaware[FAULT_NODES_MAX]; /* it need not know the last clear yet */
	uint64_t ends[CALL_KINDS][CALL_ENDS];
	uint64_t broken[RULES];
	struct broken first[RULES];
	uint64_t entries, held; /* in the end: entries of all shards, pages of all nodes */
};

extern struct truth truth;

void truth_broken(enum rule rule, uint64_t number);
/* A node has the page, or its memory or its disk is kept for its next process. */
bool truth_held(uint64_t number);
/* books.c: judges the node's books; a number of what is broken is the node's. */
void books_judge(unsigned node);

#endif
