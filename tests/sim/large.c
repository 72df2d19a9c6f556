/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios of many nodes that leave and come back: a rack without power, an upgrade of one engine
 * after another, and churn. One thread.
 */
#include "tests/sim/run.h"

#define KBITS_S 20u
#define RESTARTS 1000u /* in `rolling`, at most */
#define CHURN_S 30

void measure_traffic(void)
{
	unsigned s = world.nodes > 1024 ? KBITS_S / 4 : KBITS_S;
	uint64_t bytes;

	pass(5 * SIM_S);
	bytes = world.bytes;
	pass(s * SIM_S);
	report.kbits = (double)(world.bytes - bytes) * 8 / 1000 / s / world.nodes;
	check(report.kbits <= 1000 || world.nodes <= MEMBER_MESH_MAX, "traffic above 1 Mbit/s");
}

/* Large clusters get fewer pages, so that a run takes seconds. */
static void start_large(void)
{
	start(world.nodes <= 64 ? PAGES / 5 : 2);
}

static void measure_agreed(void)
{
	uint64_t from_ns = world.now_ns;
	bool agreed = pass_until(nodes_agree, AGREE_NS);
	double ms = agreed ? (double)(world.now_ns - from_ns) / 1e6 : -1;

	if (!agreed || ms > report.agreed_ms)
		report.agreed_ms = ms;
	check(agreed, "healed back");
}

/* Each of the nodes that run since the beginning has removed `gone` others, and no more. */
static void check_removals(unsigned first, unsigned gone)
{
	for (unsigned i = 0; i < first; i++) {
		uint64_t died = world.node[i].control.counter[COUNTER_members_died];

		report.died += died > gone ? died - gone : 0;
	}
	check(report.died == 0, "false removal");
}

void rack(void)
{
	unsigned count = world.nodes / 25 ? world.nodes / 25 : 1, first = world.nodes - count;

	start_large();
	measure_traffic();
	moved_begin();
	for (unsigned i = first; i < world.nodes; i++) {
		moved_leaves(i, 1);
		node_crash(i, true);
	}
	measure_agreed();
	check(report.agreed_ms >= 0 && report.agreed_ms <= 4000, "dead gone");
	pass(20 * SIM_S);
	moved_end();
	look_all();
	check_removals(first, count);
	for (unsigned i = first; i < world.nodes; i++)
		node_open(i, replicas, entries);
	check(pass_until(nodes_linked, AGREE_NS), "healed back");
	check_removals(first, count);
}

void rolling(void)
{
	unsigned step = world.nodes / RESTARTS + 1, events = 0;

	start_large();
	moved_begin();
	for (unsigned i = 0; i < world.nodes; i += step, events++) {
		moved_leaves(i, 2);
		node_crash(i, false);
		pass(world_random() % SIM_S);
		node_open(i, replicas, entries);
		measure_agreed();
	}
	check(pass_until(nodes_linked, AGREE_NS), "healed back");
	pass(20 * SIM_S);
	moved_end();
	look_all();
	for (unsigned i = 0; i < world.nodes; i++)
		report.died += world.node[i].control.counter[COUNTER_members_died] > events;
	check(report.died == 0, "false removal");
}

void churn(void)
{
	unsigned half = world.nodes / 2, down = 0, events = 0;

	start_large();
	for (unsigned k = 0; k < CHURN_S * 5; k++) {
		unsigned i = half + (unsigned)(world_random() % (world.nodes - half));

		if (!world.node[i].running) {
			node_open(i, replicas, entries);
			down--;
		} else if (down < world.nodes / 8) {
			node_crash(i, world_random() % 2);
			down++;
			events++;
		}
		traffic(200 * SIM_MS);
	}
	for (unsigned i = half; i < world.nodes; i++)
		if (!world.node[i].running)
			node_open(i, replicas, entries);
	measure_agreed();
	check(pass_until(nodes_linked, AGREE_NS), "healed back");
	pass(30 * SIM_S);
	look_all();
	check_removals(half, events);
}

static bool all_have(bool rings)
{
	for (unsigned i = 0; i < world.nodes; i++)
		if (world.node[i].running && world.node[i].control.members->rings != rings)
			return false;
	return true;
}

/* The cluster shrinks below MEMBER_MESH_MAX nodes and grows again, by one node at a time. */
void cross(void)
{
	unsigned first = MEMBER_MESH_MAX - 6, gone = world.nodes - first;

	start_large();
	check(world.nodes <= MEMBER_MESH_MAX || all_have(true), "rings above 32 nodes");
	for (unsigned i = world.nodes; i-- > first;) {
		node_crash(i, false);
		traffic(SIM_S);
	}
	measure_agreed();
	check(pass_until(nodes_linked, AGREE_NS) && all_have(false), "mesh up to 32 nodes");
	pass(10 * SIM_S);
	check_removals(first, gone);
	for (unsigned i = first; i < world.nodes; i++) {
		node_open(i, replicas, entries);
		traffic(SIM_S);
	}
	measure_agreed();
	pass(10 * SIM_S);
	check(nodes_linked() && all_have(true), "rings above 32 nodes");
	look_all();
	check_removals(first, gone);
}
