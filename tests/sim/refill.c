/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scenario `refill`: of two owners that come back without entries, one stops before it has
 * them. The other one is refilled all the same. One thread.
 */
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members_inner.h"
#include "tests/sim/run.h"

#define REFILL_PAGES 30000u /* of node 0: more than the limit of one owner */
#define REFILL_NS (1500 * SIM_MS)

/* The node that comes back and stays. */
static unsigned other(void)
{
	return world.nodes - 2;
}

static bool seen(unsigned i)
{
	return node_sees(0, i) && node_sees(1, i);
}

static bool victim_seen(void)
{
	return seen(victim());
}

static bool other_filled(void)
{
	return seen(other()) && owner_lacks(other()) == 0;
}

static void restart(unsigned i, uint64_t down_ns)
{
	node_crash(i, false);
	pass(down_ns);
	node_open(i, replicas, entries);
}

/* Until node 0 publishes to the owner that is back. */
static void walk_begins(void)
{
	const struct directory *dir = world.node[0].control.directory;

	for (unsigned ms = 0; !dir->lack.count && ms < 1000; ms++)
		world_run(world.now_ns + SIM_MS);
	check(dir->lack.count != 0, "walk begins");
}

/* With one owner a key, `lacks`: the slots whose owner lacks them are absent. */
static void look_some(bool lacks)
{
	struct looks looks = {0};

	for (unsigned reader = 0; reader < 2; reader++)
		for (unsigned p = 0; p < next_page; p += 3) {
			if (page_holder[p] == 0)
				look_start(reader, 0, p, &looks);
			if (looks.open > 200)
				world_run(world.now_ns + SIM_MS / 10);
		}
	while (looks.open)
		world_run(world.now_ns + SIM_MS);
	report.false_absent += replicas > 1 || !lacks ? looks.false_absent : 0;
	check(report.false_absent == 0, "oracle");
}

void refill(void)
{
	entries = 4 * REFILL_PAGES;
	start(1);
	for (unsigned k = 0; k < REFILL_PAGES; k++) {
		set_one(0);
		if (k % 64 == 0)
			world_run(world.now_ns + SIM_MS);
	}
	pass(10 * SIM_S);
	/* so long that the slots whose only owner died are complete again */
	restart(victim(), 10 * SIM_S);
	check(pass_until(victim_seen, 2 * SIM_S), "join");
	walk_begins();
	node_stop(victim(), true);
	pass(20 * SIM_MS); /* its queue at node 0 is full */
	/* With one owner per key, the entries of two owners would be lost at the same time. */
	if (replicas > 1) {
		restart(other(), 50 * SIM_MS);
		check(pass_until(other_filled, REFILL_NS), "refilled");
	}
	pass(100 * SIM_MS); /* before the victim is suspect, and asked last */
	look_some(true);
	node_stop(victim(), false);
	check(pass_until(nodes_agree, AGREE_NS), "healed back");
	pass(20 * SIM_S);
	look_some(false);
}
