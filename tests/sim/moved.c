/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many directory entries move when members leave and come back, and how many may. An owner
 * that leaves or joins moves its share, 1 / min(N, OWNERS_MAX) of all entries; above OWNERS_MAX
 * members another one takes its place or gives way, and moves as many. One thread.
 */
#include <math.h>

#include "tests/sim/run.h"
#include "engine/control/pages/pages.h"

#define SPARE 1.1     /* shares differ a little from each other */
#define DEVIATIONS 3. /* of the number of entries in a share, which is a random sample */

static uint64_t inserted_before; /* by all nodes up to moved_begin() */
static uint64_t inserted_gone;   /* by processes that have ended */
static double expected;          /* entries that the events so far move */

static uint64_t inserted_by(const struct node *n)
{
	return n->running ? n->control.counter[COUNTER_entries_inserted] : 0;
}

static uint64_t inserted(void)
{
	uint64_t sum = inserted_gone;

	for (unsigned i = 0; i < world.nodes; i++)
		sum += inserted_by(&world.node[i]);
	return sum;
}

/* Entries of all pages that running nodes hold. */
static double entries_live(void)
{
	uint64_t pages = 0;

	for (unsigned i = 0; i < world.nodes; i++)
		if (world.node[i].running)
			pages += index_count(world.node[i].control.index);
	return (double)pages * replicas;
}

static bool is_owner(uint32_t ref)
{
	for (unsigned i = 0; i < world.nodes; i++) {
		const struct map_view *view;

		if (!world.node[i].running)
			continue;
		view = member_map(&world.node[i].control);
		for (uint32_t k = 0; k < view->owners; k++)
			if (view->owner[k].ref == ref)
				return true;
		return false;
	}
	return false;
}

void moved_begin(void)
{
	inserted_gone = 0;
	inserted_before = inserted();
	expected = 0;
}

void moved_leaves(unsigned i, unsigned events)
{
	unsigned owners = world.nodes < OWNERS_MAX ? world.nodes : OWNERS_MAX;
	unsigned displaced = world.nodes > OWNERS_MAX ? 2 : 1;

	if (is_owner(world.node[i].control.ref))
		expected += events * displaced * entries_live() / owners;
	inserted_gone += inserted_by(&world.node[i]);
}

void moved_end(void)
{
	double all = (double)next_page * replicas;
	double moved = (double)(inserted() - inserted_before);
	double most = SPARE * expected + DEVIATIONS * sqrt(expected);

	report.moved = 100.0 * moved / all;
	report.moved_most = 100.0 * most / all;
	check(moved <= most, "more entries moved than the shares of the members");
}
