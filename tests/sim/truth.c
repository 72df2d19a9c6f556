/* SPDX-License-Identifier: Apache-2.0 */
/* truth.h: the judgement of single answers. truth_judge.c judges the whole. One thread. */
#include "tests/sim/truth_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/control/directory/directory_state.h"
#include "engine/control/pages/pages.h"
#include "tests/sim/disk.h"
#include "tests/sim/run.h"

#define SETTLED_NS SIM_S
#define WALKS_WAIT_NS (6 * SIM_S) /* twice dead_after_ms */

static const char *const names[RULES] = {
	[RULE_SET_STORED] = "set said hit, and no node has the page",
	[RULE_SET_FOUND] = "set said hit, and a get does not find the page",
	[RULE_BYTES] = "bytes of another page",
	[RULE_SET_ROOM] = "set without a fault is refused",
	[RULE_REMOVED_FOUND] = "removed page is found",
	[RULE_REMOVED_HELD] = "removed page came back",
	[RULE_REMOVED_ENTRY] = "removal ended before an owner dropped the entry",
	[RULE_REMOVAL_TOLD] = "removal without a fault is unreachable",
	[RULE_CLEARED_HELD] = "cleared page was not swept",
	[RULE_ENTRY_PAGE] = "entry without a page",
	[RULE_ENTRY_OWNED] = "entry at a member that does not own it",
	[RULE_PAGE_ENTRY] = "page without an entry",
	[RULE_PAGE_FOUND] = "page is not found",
	[RULE_CREDITS] = "credit is lost",
	[RULE_SLOTS] = "slot is lost",
	[RULE_ANSWERS] = "answer is lost",
};

struct truth truth;

/* A call that the oracle watches. */
struct watched {
	enum call_kind kind;
	unsigned node;
	uint64_t number;
	/* at the start of the call */
	uint64_t dead, value, left;
	uint64_t holders; /* a bit for each node that has the page and serves the reader */
	bool set;
	call_done then;
	void *context;
};

void truth_open(uint64_t pages)
{
	truth = (struct truth){.pages = pages, .page = calloc(pages, sizeof(*truth.page))};
	if (!truth.page)
		abort();
	for (uint64_t i = 0; i < pages; i++)
		truth.page[i].value = 1;
}

void truth_close(void)
{
	free(truth.page);
	truth.page = NULL;
	client_close();
}

void truth_broken(enum rule rule, uint64_t number)
{
	if (!truth.broken[rule]++)
		truth.first[rule] = (struct broken){world.now_ns, number};
	check(false, names[rule]);
}

void truth_clear(bool taken)
{
	for (uint64_t i = 0; i < truth.pages; i++) {
		struct page_state *page = &truth.page[i];

		page->set = false;
		if (taken)
			page->dead = page->value - 1;
		else
			page->value++;
	}
}

void truth_unaware(unsigned node, bool unaware)
{
	truth.unaware[node] = unaware;
}

bool truth_busy(uint64_t number)
{
	return truth.page[number].busy;
}

unsigned truth_open_calls(void)
{
	return truth.calls;
}

void truth_calm(bool calm)
{
	truth.calm = calm;
}

static bool link_is_cut(unsigned node)
{
	for (unsigned i = 0; i < world.nodes; i++)
		if (i != node && (world_is_cut(node, i) || world_is_cut(i, node)))
			return true;
	return false;
}

/*
 * The node cannot tell the owners of its map what it has. Once it has told them, and after a long
 * time, the answer is false.
 */
static bool walks_wait(unsigned node)
{
	const struct seen_map *map = &truth.map[node];

	if (world.now_ns - map->walks_ns >= SETTLED_NS ||
		world.now_ns - map->since_ns >= WALKS_WAIT_NS)
		return false;
	return world.node[node].stopped || link_is_cut(node);
}

/*
 * Notes when the node's map changed last, and since when its walks could run, as far as the calls
 * of its clients see it.
 */
static void map_look(unsigned node)
{
	const struct members *members = world.node[node].control.members;
	uint64_t digest = members ? members->digest : 0;
	struct seen_map *map = &truth.map[node];
	bool changed = map->digest != digest;

	if (changed)
		map->since_ns = world.now_ns;
	map->digest = digest;
	if (changed || (members && walks_wait(node)))
		map->walks_ns = world.now_ns;
}

/*
 * The two nodes have had the same map for some time, and the holder could tell the owners that both
 * know what it has. The owners of its map before may be ones that the reader never knew: those of
 * a part of the cluster that was cut off.
 */
static bool owners_told(unsigned reader, unsigned holder)
{
	const struct seen_map *map = truth.map;

	return map[reader].digest == map[holder].digest &&
	       world.now_ns - map[reader].since_ns >= SETTLED_NS &&
	       world.now_ns - map[holder].walks_ns >= SETTLED_NS;
}

/* A process that lives, but is stopped or was until a moment ago. */
static bool was_stopped(const struct node *owner)
{
	return owner->running && (owner->stopped || world.now_ns - owner->resumed_ns < SETTLED_NS);
}

/*
 * What an owner of the page, on the reader's map, says counts: one that ran all the time has the
 * entries, and one that died says nothing. If all that live were stopped, they take the entries
 * later, but a long time after the change of the map they have them.
 */
static bool owners_count(unsigned reader, uint64_t number)
{
	const struct map_view *view = member_map(&world.node[reader].control);
	const struct page_key key = node_key(number);
	uint32_t at[REPLICAS_MAX];
	unsigned owners = map_owners(view, &key, at), late = 0;

	for (unsigned i = 0; i < owners; i++) {
		int owner = node_by_ref(view->owner[at[i]].ref);

		if (owner < 0 || !world.node[owner].running)
			continue;
		if (!was_stopped(&world.node[owner]))
			return true;
		late++;
	}
	return !late || world.now_ns - truth.map[reader].since_ns >= WALKS_WAIT_NS;
}

/* Nodes that have a page which the reader must find: newer than all removed ones. */
static uint64_t holders_of(unsigned reader, uint64_t number)
{
	uint64_t holders = 0;

	for (unsigned i = 0; i < world.nodes; i++)
		map_look(i);
	if (!world.node[reader].control.members || !owners_count(reader, number))
		return 0;

	for (unsigned i = 0; i < world.nodes; i++) {
		bool due = page_served(reader, i) && owners_told(reader, i);
		struct content content;

		if (due && page_of(i, number, &content) && content.value > truth.page[number].dead)
			holders |= 1ull << i;
	}
	return holders;
}

bool truth_held(uint64_t number)
{
	const struct page_key key = node_key(number);
	struct content content;

	for (unsigned i = 0; i < world.nodes; i++)
		if (page_of(i, number, &content) || disk_has(i, &key))
			return true;
	return false;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void got(const struct watched *w, const struct call_result *result)
{
	const struct page_state *page = &truth.page[w->number];
	/*
	 * "stale": entries were wrong, and the page may be elsewhere: while it moves between memory
	 * and disk, or after a fault
	 */
	bool absent = result->end == CALL_MISS ||
		      (truth.calm && !run_has_disks() && result->end == CALL_STALE);

	if (result->end == CALL_HIT && result->mixed)
		truth_broken(RULE_BYTES, w->number);
	else if (result->end == CALL_HIT && result->value <= w->dead)
		truth_broken(RULE_REMOVED_FOUND, w->number);
	if (absent && w->set && page->set && !page->late && page->left == w->left &&
		page_left(w->number) == w->left &&
		w->holders & page->holders & holders_of(w->node, w->number))
		truth_broken(RULE_SET_FOUND, w->number);
}

static void was_set(const struct watched *w, const struct call_result *result)
{
	struct page_state *page = &truth.page[w->number];
	struct content content;

	page->busy = false;
	if (result->end != CALL_HIT && truth.calm)
		truth_broken(RULE_SET_ROOM, w->number);
	if (result->end != CALL_HIT)
		return;
	if (!result->unread && result->value <= page->dead)
		truth_broken(RULE_REMOVED_FOUND, w->number);
	if (!truth_held(w->number) && page_left(w->number) == w->left)
		truth_broken(RULE_SET_STORED, w->number);
	if (!page->set || page->left != page_left(w->number))
		page->holders = 0;
	/* false: it was evicted before the set ended */
	page->set = page_of(result->holder, w->number, &content);
	page->left = page_left(w->number);
	page->holders |= 1ull << result->holder;
}

/*
 * The entry of a page that a removal took away, from memory or from disk; the remove of an evicted
 * one may be in flight.
 */
static bool entry_removed(const struct dir_entry *entry)
{
	int holder = node_by_ref(entry->ref);
	struct page_key key;

	if (holder >= 0 && place_on_disk(entry->place))
		return !tier_named(
			&world.node[holder].control, entry->place, entry->generation, &key);
	return holder >= 0 && page_removed((unsigned)holder, entry);
}

static void entries_dropped(const struct watched *w)
{
	const struct page_key key = node_key(w->number);
	struct dir_entry entry[2 * BUCKET_ENTRIES];

	for (unsigned i = 0; i < world.nodes; i++) {
		unsigned count =
			shard_find(world.node[i].control.shard, &key, entry, 2 * BUCKET_ENTRIES);

		for (unsigned k = 0; k < count; k++)
			if (entry_removed(&entry[k]))
				truth_broken(RULE_REMOVED_ENTRY, w->number);
	}
}

/* A host that is away during a removal may bring the page back: it is judged without faults. */
static void removed(const struct watched *w, const struct call_result *result)
{
	struct page_state *page = &truth.page[w->number];

	page->busy = false;
	page->late |= result->end != CALL_HIT && result->end != CALL_MISS;
	if (!truth.calm)
		return;
	if (result->end != CALL_HIT && result->end != CALL_MISS) {
		truth_broken(RULE_REMOVAL_TOLD, w->number);
		return;
	}
	if (page->dead < w->value)
		page->dead = w->value;
	entries_dropped(w);
}

static void answered(void *context, const struct call_result *result)
{
	struct watched *w = context;

	truth.calls--;
	truth.ends[w->kind][result->end]++;
	switch (w->kind) {
	case CALL_GET: got(w, result); break;
	case CALL_SET: was_set(w, result); break;
	case CALL_REMOVE: removed(w, result); break;
	case CALL_CLEAR:
	case CALL_KINDS:
	default: break;
	}
	if (w->then)
		w->then(w->context, result);
	free(w);
}

void truth_call(enum call_kind kind, unsigned node, uint64_t number, call_done then, void *context)
{
	struct page_state *page = &truth.page[number];
	struct watched *w = malloc(sizeof(*w));

	if (!w)
		abort();
	*w = (struct watched){.kind = kind,
		.node = node,
		.number = number,
		.dead = truth.unaware[node] ? 0 : page->dead,
		.value = page->value,
		.left = page_left(number),
		.holders = kind == CALL_GET ? holders_of(node, number) : 0,
		.set = page->set && page->left == page_left(number),
		.then = then,
		.context = context};
	page->busy |= kind != CALL_GET;
	page->value += kind == CALL_REMOVE;
	page->set &= kind != CALL_REMOVE;
	truth.calls++;
	call_start(
		&(struct call_for){
			.kind = kind, .node = node, .number = number, .value = &page->value},
		answered, w);
}

/* ---- the report ------------------------------------------------------------------------------ */

static void print_broken(bool json)
{
	printf(json ? "\"broken\": {" : "");
	for (unsigned i = 0, shown = 0; i < RULES; i++) {
		if (!truth.broken[i])
			continue;
		if (json)
			printf("%s\"%s\": %llu", shown++ ? ", " : "", names[i],
				(unsigned long long)truth.broken[i]);
		else
			printf("broken %llu times, first after %.3f s with page %llu: %s\n",
				(unsigned long long)truth.broken[i],
				(double)truth.first[i].at_ns / 1e9 - 1000,
				(unsigned long long)truth.first[i].number, names[i]);
	}
	printf(json ? "}, " : "");
}

void truth_print(bool json)
{
	static const char *const ends[CALL_ENDS] = {
		"hit", "miss", "stale", "unreachable", "timeout", "full", "gone"};
	static const char *const kinds[CALL_KINDS] = {"gets", "sets", "removes"};

	if (!truth.pages)
		return;
	for (unsigned kind = 0; kind < CALL_CLEAR; kind++) {
		printf(json ? "\"%s\": {" : "%s:", kinds[kind]);
		for (unsigned end = 0; end < CALL_ENDS; end++)
			printf(json ? "%s\"%s\": %llu" : "%s %s %llu", json && end ? ", " : "",
				ends[end], (unsigned long long)truth.ends[kind][end]);
		printf(json ? "}, " : "\n");
	}
	printf(json ? "\"entries\": %llu, \"pages\": %llu, "
		    : "%llu entries of %llu pages in the end\n",
		(unsigned long long)truth.entries, (unsigned long long)truth.held);
	print_broken(json);
}
