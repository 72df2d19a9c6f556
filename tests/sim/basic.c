/* SPDX-License-Identifier: Apache-2.0 */
/* Scenarios of one fault each: a link, a host, a process or half of the cluster. One thread. */
#include "engine/control/directory/directory_state.h"
#include "tests/sim/run.h"

#define GONE_NS (4 * SIM_S) /* dead_after_ms 3 s, heartbeats 0.5 s, and the map's rebuild */

static bool victim_gone(void)
{
	for (unsigned i = 0; i < world.nodes; i++)
		if (world.node[i].running && i != victim() &&
			member_count(&world.node[i].control) != world.nodes - 1)
			return false;
	return true;
}

static void measure_gone(void)
{
	uint64_t from_ns = world.now_ns;
	bool gone = pass_until(victim_gone, GONE_NS);

	report.gone_ms = gone ? (double)(world.now_ns - from_ns) / 1e6 : -1;
	check(gone, "dead gone");
}

/* The node whose link with node 0 is cut: node 2; above 32 nodes a neighbour of node 0. */
static unsigned other_end(void)
{
	const struct members *member = world.node[0].control.members;

	for (unsigned i = 1; member->rings && i < world.nodes; i++) {
		const struct member *entry =
			member_table_ref(&member->table, world.node[i].control.ref);

		if (entry && entry->neighbour)
			return i;
	}
	return 2;
}

void one_link(void)
{
	unsigned other = other_end();

	cut(0, other, true);
	pass(10 * SIM_S);
	traffic(10 * SIM_S);
	look_all();
	nobody_died();
	cut(0, other, false);
	check(pass_until(nodes_linked, AGREE_NS), "healed back");
}

void power(void)
{
	node_crash(victim(), true);
	measure_gone();
	pass(10 * SIM_S);
	look_all();
}

void killed(void)
{
	node_crash(victim(), false);
	measure_gone();
	pass(10 * SIM_S);
	look_all();
	node_open(victim(), replicas, entries);
	check(pass_until(nodes_agree, AGREE_NS), "healed back");
}

/* Is the victim on the map of each other node, and owns nothing there? */
static bool victim_owns_nothing(void)
{
	for (unsigned i = 0; i < world.nodes; i++) {
		const struct map_view *map = member_map(&world.node[i].control);

		for (unsigned k = 0; world.node[i].running && k < map->owners; k++)
			if (map->owner[k].ref == world.node[victim()].control.ref)
				return false;
	}
	return nodes_agree();
}

/* The victim goes and comes, twice: as a seed only, which owns nothing and keeps no page. */
void seed_only(void)
{
	for (unsigned turn = 0; turn < 2; turn++) {
		node_crash(victim(), false);
		measure_gone();
		pass(10 * SIM_S);
		look_all();
		world.bare = victim() + 1;
		node_open(victim(), replicas, entries);
		check(pass_until(victim_owns_nothing, AGREE_NS), "healed back");
		pass(10 * SIM_S);
		look_all();
		check(victim_owns_nothing(), "a seed only owns nothing");
	}
}

void crash(void)
{
	world.crash_node = victim();
	world.crash_at = world.deliveries + 1 + world_random() % 2000;
	traffic(5 * SIM_S);
	pass(10 * SIM_S);
	check(!world.node[victim()].running, "crash happened");
	check(victim_gone(), "dead gone");
	node_open(victim(), replicas, entries);
	check(pass_until(nodes_agree, AGREE_NS), "healed back");
	pass(10 * SIM_S);
	look_all();
}

void partition(void)
{
	unsigned half = world.nodes / 2;

	for (unsigned a = 0; a < half; a++)
		for (unsigned b = half; b < world.nodes; b++)
			cut(a, b, true);
	pass(20 * SIM_S);
	check(member_count(&world.node[0].control) == half, "dead gone");
	for (unsigned a = 0; a < half; a++)
		for (unsigned b = half; b < world.nodes; b++)
			cut(a, b, false);
	check(pass_until(nodes_agree, AGREE_NS), "healed back");
	/* owners have kept the entries of the other half */
	look_all();
	pass(20 * SIM_S);
	look_all();
}

void one_way(void)
{
	unsigned other = other_end();

	world_cut(0, other, true);
	pass(10 * SIM_S);
	traffic(10 * SIM_S);
	look_all();
	nobody_died();
	world_cut(0, other, false);
	check(pass_until(nodes_linked, AGREE_NS), "healed back");
	pass(20 * SIM_S);
	look_all();
}

void stopped(void)
{
	node_stop(victim(), true);
	measure_gone();
	node_stop(victim(), false);
	check(pass_until(nodes_agree, AGREE_NS), "healed back");
	pass(20 * SIM_S);
	look_all();
}

void join(void)
{
	measure_traffic();
	look_all();
	nobody_died();
}
