/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scenario `chaos`: faults of all kinds begin and end at random while all engines set pages. At
 * most one engine at a time is dead, stopped or does not serve; links are cut as well. One thread.
 */
#include "tests/sim/run.h"

#define STEPS 40u
#define CHAOS_ENTRIES 65536u  /* no shard is ever full */
#define HEAL_NS (700 * SIM_S) /* trials double: 5, 10, 20 .. 320 s */

static unsigned one_of(unsigned count)
{
	return (unsigned)(world_random() % count);
}

static void all_mended(void)
{
	world.loss = 0;
	for (unsigned i = 0; i < world.nodes; i++) {
		struct node *n = &world.node[i];

		for (unsigned j = 0; j < world.nodes; j++)
			world_cut(i, j, false);
		if (n->stopped)
			node_stop(i, false);
		n->gray = n->small_mtu = n->forgetful = false;
		n->slow_ns = 0;
		if (!n->running)
			node_open(i, replicas, entries);
	}
}

/* Something happens to one engine; the others are mended. */
static void one_fails(unsigned i)
{
	struct node *n = &world.node[i];

	all_mended();
	switch (one_of(7)) {
	case 0: node_crash(i, true); break;
	case 1: node_crash(i, false); break;
	case 2: node_stop(i, true); break;
	case 3: n->gray = true; break;
	case 4: n->small_mtu = true; break;
	case 5: n->slow_ns = (1 + one_of(60)) * SIM_MS; break;
	default: /* it dies and is back at once */
		node_crash(i, one_of(2));
		node_open(i, replicas, entries);
	}
}

static void links_fail(void)
{
	for (unsigned k = 0; k <= one_of(3); k++) {
		unsigned a = one_of(world.nodes), b = one_of(world.nodes);
		bool lost = one_of(3) > 0;

		world_cut(a, b, lost && a != b);
		if (one_of(2))
			world_cut(b, a, lost && a != b);
	}
	world.loss = one_of(4) ? 0 : 0.001 * one_of(20);
}

static void step(void)
{
	switch (one_of(4)) {
	case 0: one_fails(one_of(world.nodes)); break;
	case 1: all_mended(); break;
	default: links_fail(); break;
	}
	traffic(100 * SIM_MS + world_random() % (4 * SIM_S));
}

void chaos(void)
{
	entries = CHAOS_ENTRIES;
	start(100);
	for (unsigned k = 0; k < STEPS; k++)
		step();
	all_mended();
	check(pass_until(nodes_linked, HEAL_NS), "healed back");
	pass(20 * SIM_S);
	look_all();
	compare_all();
	check(owners_lack() == 0, "repaired");
	look_all();
}
