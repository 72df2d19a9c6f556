/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scenario `flap`: the map changes faster than a walk over an index ends. Pages are found all
 * the time, and walks go on. One thread.
 */
#include "engine/control/directory/directory_state.h"
#include "tests/sim/run.h"

#define FLAP_NS (40 * SIM_MS)
#define FLAP_PAGES 60000u /* a walk over them takes longer than FLAP_NS */
#define FLAP_ENTRIES (4 * FLAP_PAGES)
#define FLAP_LOOKS 20u /* pages that each reader looks up in each FLAP_NS */

/* Looks up some pages of living holders by all living readers, while the rest goes on. */
static void look_some(struct looks *looks)
{
	for (unsigned reader = 0; reader < victim(); reader++)
		for (unsigned i = 0; i < FLAP_LOOKS; i++) {
			unsigned page = (unsigned)(world_random() % next_page);
			unsigned holder = (unsigned)page_holder[page];

			if (holder != victim() && node_sees(reader, holder))
				look_start(reader, holder, page, looks);
		}
}

/* Returns the largest part of what owners lack, in percent, that node 0 publishes meanwhile. */
static uint64_t walk_reaches(uint64_t ns)
{
	uint64_t until_ns = world.now_ns + ns, farthest = 0;

	while (world.now_ns < until_ns) {
		const struct directory *dir = world.node[0].control.directory;
		uint64_t done;

		world_run(world.now_ns + 4 * SIM_MS);
		done = dir->lack.most ? (dir->lack.most - dir->lack.count) * 100 / dir->lack.most
				      : 100;
		farthest = done > farthest ? done : farthest;
	}
	return farthest;
}

/*
 * The last node is killed and started again in turn, so that the map changes faster than a walk
 * over the index of node 0 ends.
 */
void flap(void)
{
	const uint64_t *counter = world.node[0].control.counter;
	uint64_t changes, reaches, farthest = 0, until_ns;
	struct looks looks = {0};

	entries = FLAP_ENTRIES;
	start(1);
	for (unsigned k = 0; k < FLAP_PAGES; k++) {
		set_one(0);
		if (k % 64 == 0)
			world_run(world.now_ns + SIM_MS);
	}
	pass(10 * SIM_S);
	changes = counter[COUNTER_members_joined] + counter[COUNTER_members_died];
	until_ns = world.now_ns + 13 * SIM_S;
	for (unsigned turn = 1; world.now_ns < until_ns; turn++) {
		if (world.node[victim()].running)
			node_crash(victim(), false);
		else
			node_open(victim(), replicas, entries);
		look_some(&looks);
		for (unsigned i = 0; i < victim(); i++)
			set_one(i);
		reaches = walk_reaches(FLAP_NS);
		farthest = reaches > farthest ? reaches : farthest;
		if (turn % (2 * SIM_S / FLAP_NS))
			continue;
		check(farthest >= 85, "progress");
		farthest = 0;
	}
	while (looks.open)
		world_run(world.now_ns + SIM_MS);
	changes = counter[COUNTER_members_joined] + counter[COUNTER_members_died] - changes;
	check(changes >= 300, "300 changes of the map");
	/* with one owner a key, a node that comes back has no entries of its slots for a moment */
	report.false_absent += replicas > 1 ? looks.false_absent : 0;
	check(report.false_absent == 0, "oracle");
	check(looks.false_absent * 200 < looks.count[LOOK_HIT], "entries move at once");
	check(looks.count[LOOK_HIT] > 5000, "pages looked up");
	if (!world.node[victim()].running)
		node_open(victim(), replicas, entries);
	check(pass_until(nodes_agree, AGREE_NS), "healed back");
}
