/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checker `oracle`: "absent" is wrong if the page is there, its holder serves the reader, and
 * the reader's map has the holder. Readers look up every page of every holder on their map. One
 * thread.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/run.h"

/* The pages of each holder: 1 + the first one; of each page: 1 + the next one; 0: none. */
static unsigned *page_next, *page_first;

/* A look-up of a page whose holder is known. */
struct asked_page {
	struct looks *looks;
	unsigned reader, holder;
	struct page_key key;
};

bool page_served(unsigned reader, unsigned holder)
{
	return world.node[holder].running && !world.node[holder].gray &&
	       node_sees(reader, holder) && wire_reaches(reader, holder) &&
	       wire_reaches(holder, reader);
}

/* Else no owner knows the page yet: with one owner a key, the link to it may be cut. */
static bool owner_reached(unsigned holder, const struct page_key *key)
{
	const struct map_view *view = member_map(&world.node[holder].control);
	uint32_t at[REPLICAS_MAX];
	unsigned owners = map_owners(view, key, at);

	for (unsigned i = 0; i < owners; i++) {
		int owner = node_by_ref(view->owner[at[i]].ref);

		if (owner == (int)holder)
			return true;
		if (owner >= 0 && wire_reaches(holder, (unsigned)owner) &&
			wire_reaches((unsigned)owner, holder))
			return true;
	}
	return false;
}

static void looked_page(void *context, const struct looked *looked)
{
	struct asked_page *page = context;
	struct looks *looks = page->looks;
	bool hit = looked->how == LOOK_HIT;

	looks->count[looked->how]++;
	looks->foreign +=
		hit && !member_by_ref(&world.node[page->reader].control, looked->at[0].ref);
	looks->open--;
	if (!hit && !node_holds(page->holder, &page->key))
		looks->true_absent++;
	else if (!hit && (!page_served(page->reader, page->holder) ||
				 !owner_reached(page->holder, &page->key)))
		looks->unserved++;
	else if (looked->how == LOOK_ABSENT)
		looks->false_absent++;
	else if (looked->how == LOOK_UNREACHABLE && !looked->failed)
		looks->unproven++;
	free(page);
}

void look_start(unsigned reader, unsigned holder, uint64_t number, struct looks *looks)
{
	struct asked_page *page = malloc(sizeof(*page));

	if (!page)
		abort();
	*page = (struct asked_page){looks, reader, holder, node_key(number)};
	looks->open++;
	look_find(&(struct look_for){.key = page->key, .reader = reader}, looked_page, page);
}

static void pages_by_holder(void)
{
	page_next = realloc(page_next, (next_page + 1) * sizeof(*page_next));
	page_first = realloc(page_first, world.nodes * sizeof(*page_first));
	if (!page_next || !page_first)
		abort();
	memset(page_first, 0, world.nodes * sizeof(*page_first));
	for (unsigned p = next_page; p-- > 0;) {
		page_next[p] = page_first[page_holder[p]];
		page_first[page_holder[p]] = p + 1;
	}
}

/* All pages of the holders first .. end - 1. */
static void look_holders(unsigned reader, unsigned first, unsigned end)
{
	struct looks looks = {0};
	uint64_t total = 0;
	double share;

	for (unsigned holder = first; holder < end; holder++) {
		if (!world.node[holder].running || !node_sees(reader, holder))
			continue;
		for (unsigned p = page_first[holder]; p; p = page_next[p - 1], total++)
			look_start(reader, holder, p - 1, &looks);
	}
	while (looks.open)
		world_run(world.now_ns + SIM_MS);
	total -= looks.true_absent;
	report.true_absent += looks.true_absent;
	report.unserved += looks.unserved;
	check(looks.unproven == 0, "unreachable without a failed owner");
	share = total ? 100.0 * (double)(total - looks.count[LOOK_HIT]) / (double)total : 0;
	if (share > report.misses[reader])
		report.misses[reader] = share;
	report.false_absent += looks.false_absent;
	report.foreign += looks.foreign;
}

void look_all(void)
{
	unsigned together = world.nodes > READERS_MAX ? 256 : 1; /* holders */

	pages_by_holder();
	for (unsigned reader = 0; reader < world.nodes; reader++) {
		if (!world.node[reader].running || !node_reads(reader))
			continue;
		for (unsigned holder = 0; holder < world.nodes; holder += together) {
			unsigned end = holder + together;

			look_holders(reader, holder, end < world.nodes ? end : world.nodes);
		}
		progress_show();
	}
	check(report.false_absent == 0, "oracle");
	check(report.foreign == 0, "hit of a former process");
}

void look_all_close(void)
{
	free(page_next);
	free(page_first);
}
