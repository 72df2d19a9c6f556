/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle of the words hit and miss. It knows all pages of all nodes, so it judges each answer
 * of each client, and after the faults the directory itself. One thread.
 *
 * The value of a page changes when a client removes the page, and at no other time. So two nodes
 * that store a page without a removal between have equal bytes, as with KV pages.
 */
#ifndef TESTS_SIM_TRUTH_H
#define TESTS_SIM_TRUTH_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/client.h"

/* Each is a checker; truth.c has its name. */
enum rule {
	/* A set says hit: then a node has the page, unless it was evicted or removed since. */
	RULE_SET_STORED,
	/*
	 * From then on no get says absent whose reader reaches a holder, until it is evicted or a
	 * removal begins, whatever that says: an owner drops entries of members that have left its
	 * map, and the reader may still have the holder on its own. The holder and the reader have
	 * had one map for a second, and during it the holder may tell the owners and does run: what
	 * was set in a part that was cut off is at the owners of that part until then. Each removal
	 * of it had an answer: else owners may execute it later, when they are reached.
	 */
	RULE_SET_FOUND,
	/* A get has the bytes of the page that it is about. */
	RULE_BYTES,
	/* Without a fault: each set hits; the pools and shards of the scenarios have room. */
	RULE_SET_ROOM,
	/*
	 * A removal without a fault says hit or miss: then no get and no set finds the page again.
	 * Nor does one that begins after a clear, on a host that knows of it.
	 */
	RULE_REMOVED_FOUND,
	/* And no node has it. */
	RULE_REMOVED_HELD,
	/* No owner has an entry of the page when its removal ends, */
	RULE_REMOVED_ENTRY,
	/* and each removal ends with hit or miss. */
	RULE_REMOVAL_TOLD,
	/* After two quiet rounds: no node has a page of before a clear, */
	RULE_CLEARED_HELD,
	/* no owner has an entry of a page that its holder does not have, */
	RULE_ENTRY_PAGE,
	/* no member has an entry of a key that it does not own, */
	RULE_ENTRY_OWNED,
	/* and each owner has the entry of each page. */
	RULE_PAGE_ENTRY,
	/* After that, each reader finds each page that a node has. */
	RULE_PAGE_FOUND,
	/* In the end, without an open call: no slot is granted to a client, */
	RULE_CREDITS,
	/*
	 * each slot is one page of the index, or free, or in limbo that ends in time; it is counted
	 * once, is not pinned and is not being written to disk,
	 */
	RULE_SLOTS,
	/* and no request waits: of a client, for a disk, or for another host's. */
	RULE_ANSWERS,
	RULES,
};

/* The oracle watches this many pages, which are numbered from 0. */
void truth_open(uint64_t pages);
void truth_close(void);
/* A client calls. `then`: called after the oracle has judged the answer; NULL: nothing is. */
void truth_call(enum call_kind kind, unsigned node, uint64_t number, call_done then, void *context);
/* A set or a remove of the page is in progress: no other one may begin. */
bool truth_busy(uint64_t number);
/* Calls in progress. */
unsigned truth_open_calls(void);
/*
 * All pages are cleared: from now on sets store new values. Once the clear is `taken`, no older one
 * may be found,
 */
void truth_clear(bool taken);
/* but on a node that was not on the map then, and has not been reached. */
void truth_unaware(unsigned node, bool unaware);
/* No fault is in progress, nor was one lately. */
void truth_calm(bool calm);
/* After two quiet rounds: judges all shards, and what all readers read. Ends with removals. */
void truth_judge(void);
/* Adds the figures of the oracle to the report, if it was open. */
void truth_print(bool json);

#endif
