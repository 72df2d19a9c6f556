/* SPDX-License-Identifier: Apache-2.0 */
/* The scenario `repair`: entries that an owner has lost without notice come back. One thread. */
#include "engine/control/directory/directory_state.h"
#include "tests/sim/run.h"

static bool stores(int node, const struct page_key *key, uint32_t ref)
{
	struct dir_entry found[2 * BUCKET_ENTRIES];
	unsigned count = 0;

	if (node >= 0)
		count = shard_find(world.node[node].control.shard, key, found, 2 * BUCKET_ENTRIES);
	for (unsigned i = 0; i < count; i++)
		if (found[i].ref == ref)
			return true;
	return false;
}

/* `at_node`: only this node counts; -1: each owner does. */
static unsigned lacks_of(unsigned holder, const struct page_key *key, int at_node)
{
	const struct control *control = &world.node[holder].control;
	const struct map_view *view = member_map(control);
	uint32_t at[REPLICAS_MAX];
	unsigned owners = map_owners(view, key, at), lack = 0;

	for (unsigned k = 0; k < owners; k++) {
		int node = node_by_ref(view->owner[at[k]].ref);

		lack += (at_node < 0 || node == at_node) && !stores(node, key, control->ref);
	}
	return lack;
}

unsigned page_lacks(unsigned holder, const struct page_key *key)
{
	return lacks_of(holder, key, -1);
}

static uint64_t lacks(int at_node)
{
	uint64_t lack = 0;

	for (unsigned p = 0; p < next_page; p++) {
		struct page_key key = node_key(p);

		if (node_holds((unsigned)page_holder[p], &key))
			lack += lacks_of((unsigned)page_holder[p], &key, at_node);
	}
	return lack;
}

uint64_t owners_lack(void)
{
	return lacks(-1);
}

uint64_t owner_lacks(unsigned node)
{
	return lacks((int)node);
}

void compare_all(void)
{
	unsigned rounds = (world.nodes + COMPARE_OWNERS_MAX - 2) / COMPARE_OWNERS_MAX;

	pass(2 * rounds * (COMPARE_MIN_NS + COMPARE_SPREAD_NS));
}

void repair(void)
{
	check(owners_lack() == 0, "owners have all");
	world.node[victim()].forgetful = true;
	traffic(2 * SIM_S);
	world.node[victim()].forgetful = false;
	check(owners_lack() > 20, "entries are lost");
	compare_all();
	check(owners_lack() == 0, "repaired");
	look_all();
	nobody_died();
}
