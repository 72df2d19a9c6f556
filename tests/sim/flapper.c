/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scenario `flapper`: the last node's process is stopped and resumed in turn, so that it seems
 * to come and go. No other member is removed, and the map changes a few times at most. One thread.
 */
#include "tests/sim/run.h"

#define FLAPPER_NS (20 * SIM_S)

static uint64_t changes(unsigned i)
{
	const uint64_t *counter = world.node[i].control.counter;

	return counter[COUNTER_members_joined] + counter[COUNTER_members_died];
}

static void others_agree(void)
{
	for (unsigned i = 0; i < victim(); i++)
		for (unsigned j = 0; j < victim(); j++)
			check(node_sees(i, j), "false removal");
}

/*
 * The process runs for `runs_ns` after each `stops_ns` in which it does not. A map changes `most`
 * times at most.
 */
static void stop_and_go(uint64_t stops_ns, uint64_t runs_ns, uint64_t most)
{
	uint64_t before[SIM_NODES_MAX], until_ns = world.now_ns + FLAPPER_NS;

	for (unsigned i = 0; i < victim(); i++)
		before[i] = changes(i);
	while (world.now_ns < until_ns) {
		node_stop(victim(), true);
		traffic(stops_ns); /* of the others: its own sets would end late */
		node_stop(victim(), false);
		pass(runs_ns + world_random() % (40 * SIM_MS)); /* out of step with heartbeats */
		others_agree();
	}
	for (unsigned i = 0; i < victim(); i++)
		check(changes(i) - before[i] <= most, "bounded changes");
}

void flapper(void)
{
	stop_and_go(250 * SIM_MS, 250 * SIM_MS, 0);
	stop_and_go(100 * SIM_MS, 100 * SIM_MS, 0);
	stop_and_go(4 * SIM_S, 100 * SIM_MS, 8);
	check(pass_until(nodes_agree, AGREE_NS), "healed back");
	pass(20 * SIM_S);
	others_agree();
	look_all();
}
