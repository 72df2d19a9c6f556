/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three nodes of which HOLDER has KEYS pages: the tests of comparisons. A node is one control plane
 * in the test's process; time is simulated.
 */
#ifndef TESTS_HOLDER_WORLD_H
#define TESTS_HOLDER_WORLD_H

#include "tests/unit/control/directory/mute_world.h"

#undef KEYS
#define KEYS 1500
#define HOLDER 2

static inline int begin(void **state)
{
	nodes_setup(20, 300);
	return 0;
}

static inline struct directory *holder(void)
{
	return node[HOLDER].control.directory;
}

static inline uint64_t counted(enum counter counter)
{
	return node[HOLDER].control.counter[counter];
}

static inline bool settled(void)
{
	return all_agree() && still(holder());
}

static inline void open_three(void)
{
	for (unsigned i = 0; i <= HOLDER; i++)
		assert_int_equal(node_open(i, i ? node_at(0) : node_at(1)), 0);
	assert_true(nodes_until(settled(), 9000));
}

/* All owners have the pages. HOLDER compares at no time of its own. */
static inline void open_with_pages(void)
{
	open_three();
	for (unsigned k = 0; k < KEYS; k++)
		node_put(HOLDER, k, 1, 3000);
	assert_true(nodes_until(node[HOLDER].hits == KEYS && settled(), 9000));
	holder()->turn.at_ns = UINT64_MAX;
}

static inline bool all_found(void)
{
	for (unsigned k = 0; k < KEYS; k++)
		if (found_at_owners(0, HOLDER, k) != 2)
			return false;
	return true;
}

/* Entries that nodes 0 and 1 have stored since they were opened, also those stored again. */
static inline uint64_t stored(void)
{
	return node[0].control.counter[COUNTER_entries_inserted] +
	       node[1].control.counter[COUNTER_entries_inserted];
}

/* Entries of the holder in the shard of a node. */
static inline unsigned held_by(unsigned n)
{
	const struct shard *shard = node[n].control.shard;
	struct shard_part part = {.buckets = 1u << shard->bits};
	unsigned count = 0;

	while (shard_show(shard, &part, node[HOLDER].control.ref))
		count++;
	return count;
}

/* Every owner's turn comes now, and no other one follows. */
static inline void compare_begins(void)
{
	node[HOLDER].control.directory->turn.at_ns = 0;
	assert_true(nodes_until(holder()->turn.at_ns != 0, 3000));
	holder()->turn.at_ns = UINT64_MAX;
}

static inline void compare_once(void)
{
	compare_begins();
	assert_true(nodes_until(settled(), 9000));
}

#endif
