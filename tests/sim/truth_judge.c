/* SPDX-License-Identifier: Apache-2.0 */
/*
 * truth.h: the judgement of all shards and of what all readers find, when no fault is left. One
 * thread.
 */
#include "engine/control/directory/directory_state.h"
#include "tests/sim/run.h"
#include "tests/sim/truth_state.h"

#define LAST_REMOVES 8u /* by each node, in the end */

/* ---- shards ---------------------------------------------------------------------------------- */

static bool owns(unsigned node, const struct page_key *key)
{
	const struct control *control = &world.node[node].control;
	const struct map_view *view = member_map(control);
	uint32_t at[REPLICAS_MAX];
	unsigned owners = map_owners(view, key, at);

	for (unsigned i = 0; i < owners; i++)
		if (view->owner[at[i]].ref == control->ref)
			return true;
	return false;
}

/* The page of an entry, by its place; the entry itself has a tag only. */
static bool entry_page(const struct dir_entry *entry, struct page_key *ret)
{
	int holder = node_by_ref(entry->ref);

	struct control *control = holder < 0 ? NULL : &world.node[holder].control;

	return control &&
	       (place_on_disk(entry->place)
			       ? tier_named(control, entry->place, entry->generation, ret)
			       : page_key_at(control, entry->place, entry->generation, ret)) &&
	       dir_tag(ret) == entry->tag;
}

static void entry_judge(unsigned owner, const struct dir_entry *entry)
{
	struct page_key key;

	truth.entries++;
	if (!entry_page(entry, &key))
		truth_broken(RULE_ENTRY_PAGE, entry->tag);
	else if (!owns(owner, &key))
		truth_broken(RULE_ENTRY_OWNED, entry->tag);
}

static void shard_judge(unsigned node)
{
	const struct shard *shard = world.node[node].control.shard;

	for (uint32_t b = 0; b < 1u << shard->bits; b++)
		for (unsigned i = 0; i < BUCKET_ENTRIES; i++)
			if (shard->bucket[b].entry[i].tag)
				entry_judge(node, &shard->bucket[b].entry[i]);
}

/* Calls back for each page that a node has. */
static void each_page(void (*call)(unsigned node, uint64_t number, const struct content *content))
{
	for (unsigned i = 0; i < world.nodes; i++)
		for (uint64_t number = 0; number < truth.pages; number++) {
			struct content content;

			if (page_of(i, number, &content))
				call(i, number, &content);
		}
}

static void page_judge(unsigned node, uint64_t number, const struct content *content)
{
	const struct page_key key = node_key(number);

	truth.held++;
	if (content->value <= truth.page[number].dead)
		truth_broken(RULE_REMOVED_HELD, number);
	for (unsigned lack = page_lacks(node, &key); lack; lack--)
		truth_broken(RULE_PAGE_ENTRY, number);
}

/* ---- readers --------------------------------------------------------------------------------- */

static unsigned missed; /* readers that did not find the page */

static void read_one(void *context, const struct call_result *result)
{
	(void)context;
	missed += result->end != CALL_HIT;
}

static void calls_end(void)
{
	while (truth.calls)
		world_run(world.now_ns + SIM_MS);
}

/* One page, by all readers. */
static void read_by_all(uint64_t number)
{
	bool had = truth_held(number);

	missed = 0;
	for (unsigned i = 0; i < world.nodes; i++)
		truth_call(CALL_GET, i, number, read_one, NULL);
	calls_end();
	/* pages that come from disk make others leave it; without disks none leaves */
	if (had && missed && (!run_has_disks() || truth_held(number)))
		truth_broken(RULE_PAGE_FOUND, number);
}

static void remove_some(void)
{
	for (unsigned k = 0; k < LAST_REMOVES; k++)
		for (unsigned i = 0; i < world.nodes; i++) {
			uint64_t number = world_random() % truth.pages;

			truth_call(CALL_REMOVE, i, number, NULL, NULL);
			calls_end();
			read_by_all(number);
			/* the page is set at once: the set stores it, or says why not */
			truth_call(CALL_SET, i, number, NULL, NULL);
			calls_end();
		}
}

static void sweep_judge(unsigned node)
{
	const struct epoch epoch = node_epoch(node);
	struct index_entry entry[64];
	uint64_t cursor = 0;

	do {
		unsigned count = index_walk(world.node[node].control.index, &cursor, 64, entry);

		for (unsigned i = 0; i < count; i++)
			if ((entry[i].key.word[0] & PAGE_EPOCH_0) != epoch_bits(&epoch))
				truth_broken(RULE_CLEARED_HELD, node);
	} while (cursor);
}

void truth_judge(void)
{
	calls_end();
	for (unsigned i = 0; i < world.nodes; i++)
		sweep_judge(i);
	for (unsigned i = 0; i < world.nodes; i++)
		shard_judge(i);
	each_page(page_judge);
	for (uint64_t number = 0; number < truth.pages; number++)
		read_by_all(number);
	truth_calm(true);
	remove_some();
	world_run(world.now_ns + SIM_S);
	for (unsigned i = 0; i < world.nodes; i++)
		books_judge(i);
}
