/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scenario `turns`: the last two nodes die one after the other, so that the owner that took the
 * place of the first one has no entries yet when the second one dies: keys are absent until they
 * are published again. One thread.
 */
#include "engine/control/members/members_inner.h"
#include "tests/sim/run.h"

#define TURNS_PAGES 2000u /* of node 0 and of node 1 */
#define TURNS_LOOKS 20u   /* pages that each reader looks up in each millisecond */

static bool gone(unsigned i)
{
	return !node_sees(0, i) && !node_sees(1, i);
}

static bool victim_gone(void)
{
	return gone(victim());
}

static bool other_gone(void)
{
	return gone(victim() - 1);
}

/* Pages of nodes 0 and 1, by both of them, for this time. */
static void look_for(uint64_t ns, struct looks *looks)
{
	uint64_t until_ns = world.now_ns + ns;

	while (world.now_ns < until_ns) {
		for (unsigned i = 0; i < 2 * TURNS_LOOKS; i++) {
			unsigned page = (unsigned)(world_random() % next_page);

			if (page_holder[page] < 2)
				look_start(i % 2, (unsigned)page_holder[page], page, looks);
		}
		world_run(world.now_ns + SIM_MS);
	}
	while (looks->open)
		world_run(world.now_ns + SIM_MS);
}

void turns(void)
{
	struct looks looks = {0}, later = {0};

	start(1);
	for (unsigned k = 0; k < 2 * TURNS_PAGES; k++) {
		set_one(k % 2);
		if (k % 64 == 0)
			world_run(world.now_ns + SIM_MS);
	}
	pass(5 * SIM_S);
	node_crash(victim(), false);
	check(pass_until(victim_gone, SIM_S), "dead gone");
	node_crash(victim() - 1, false);
	look_for(500 * SIM_MS, &looks);
	check(other_gone(), "dead gone");
	check(looks.count[LOOK_HIT] > 1000, "pages looked up");
	pass(500 * SIM_MS);
	look_for(SIM_S, &later);
	report.false_absent += later.false_absent;
	check(later.false_absent == 0, "oracle");
	check(later.count[LOOK_HIT] > 1000 && later.count[LOOK_UNREACHABLE] == 0,
		"pages are published again");
	/* pages that no node has set */
	later = (struct looks){0};
	for (unsigned i = 0; i < 2 * TURNS_PAGES; i++) {
		look_start(i % 2, 0, next_page + i, &later);
		world_run(world.now_ns + SIM_MS / 10);
	}
	pass(SIM_S);
	check(later.count[LOOK_ABSENT] == 2 * TURNS_PAGES, "absence is a miss");
}
