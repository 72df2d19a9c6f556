/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios of members that send heartbeats and do not serve: they leave all maps, stay off while
 * they do not serve, and come back when they do; and of members that only seem so. One thread.
 */
#include "tests/sim/run.h"

#define GONE_NS (5 * SIM_S)
#define TRIAL_NS (5 * SIM_S) /* of dead_after_ms 3 s, after the first removal */

static bool off_all_maps(void)
{
	for (unsigned i = 0; i < victim(); i++)
		if (node_sees(i, victim()))
			return false;
	return true;
}

static bool on_a_map(void)
{
	return !off_all_maps();
}

static uint64_t others_died(void)
{
	uint64_t died = 0;

	for (unsigned i = 0; i < victim(); i++)
		died += world.node[i].control.counter[COUNTER_members_died];
	return died;
}

/* A path that large packets do not cross can look silent: the small ones wait behind them. */
static bool some_found_it_silent(void)
{
	for (unsigned i = 0; i < victim(); i++) {
		const uint64_t *counter = world.node[i].control.counter;

		if (counter[COUNTER_members_died] > counter[COUNTER_members_unserving])
			return true;
	}
	return false;
}

/* Sets go on until the condition holds; false: it does not hold within `limit_ns`. */
static bool traffic_until(bool (*condition)(void), uint64_t limit_ns)
{
	uint64_t until_ns = world.now_ns + limit_ns;

	while (!condition() && world.now_ns < until_ns)
		traffic(20 * SIM_MS);
	return condition();
}

static void unserving(bool *fault)
{
	uint64_t from_ns = world.now_ns;

	*fault = true;
	check(traffic_until(off_all_maps, GONE_NS), "gray: removed");
	report.gone_ms = (double)(world.now_ns - from_ns) / 1e6;
	pass(2 * SIM_S);
	counts_clear();
	check(!traffic_until(on_a_map, 10 * SIM_S), "gray: stays off");
	report.timeouts = timeouts_share();
	check(report.timeouts < 1, "gray: sets time out");
	/* each of the others has removed one member, and sees all others */
	report.died = others_died() - victim();
	for (unsigned i = 0; i < victim(); i++)
		check(member_count(&world.node[i].control) == victim(), "false removal");
	check(report.died == 0, "false removal");
	*fault = false;
	/* One that was removed because it was silent comes back as soon as it serves. */
	if (!some_found_it_silent())
		check(!pass_until(on_a_map, TRIAL_NS - 100 * SIM_MS),
			"gray: back before it has served");
	check(pass_until(nodes_linked, AGREE_NS), "healed back");
	pass(20 * SIM_S);
	look_all();
}

void gray(void)
{
	unserving(&world.node[victim()].gray);
}

void small_mtu(void)
{
	unserving(&world.node[victim()].small_mtu);
}

/* One link is cut; the other nodes do not run for 1 s, one after the other. */
void stalls(void)
{
	cut(0, victim(), true);
	for (unsigned k = 0; k < 24; k++) {
		unsigned i = 1 + k % (world.nodes - 1);

		node_stop(i, true);
		traffic(SIM_S);
		node_stop(i, false);
		traffic(world_random() % (600 * SIM_MS));
	}
	look_all();
	nobody_died();
	cut(0, victim(), false);
	check(pass_until(nodes_linked, AGREE_NS), "healed back");
}

/* The process gets no processor for a second, again and again; the host answers. */
void late(void)
{
	for (unsigned k = 0; k < 20; k++) {
		node_stop(victim(), true);
		traffic(SIM_S);
		node_stop(victim(), false);
		traffic(300 * SIM_MS);
	}
	pass(2 * SIM_S);
	look_all();
	nobody_died();
}
