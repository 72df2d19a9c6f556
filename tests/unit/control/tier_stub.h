/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tier*.c, promote_ask.c and a part of evict.c for tests of the links between engines: an engine
 * whose disk has the pages that tier_stub_pages() returns.
 */
#ifndef TEST_TIER_STUB_H
#define TEST_TIER_STUB_H

#include "engine/control/pages/pages.h"
#include "engine/control/net/rpc.h"

/* The pages on disk of this engine; *ret_count may be 0. */
static const struct disk_page *tier_stub_pages(const struct control *control, unsigned *ret_count);
/* True while its disk is being opened. */
static bool tier_stub_opens(const struct control *control);

bool tier_find(struct control *control, const struct page_key *key, struct disk_page *ret_page)
{
	unsigned count;
	const struct disk_page *page = tier_stub_pages(control, &count);

	for (unsigned i = 0; i < count; i++)
		if (page_key_equal(&page[i].key, key)) {
			*ret_page = page[i];
			return true;
		}
	return false;
}

bool tier_named(
	struct control *control, uint32_t place, uint32_t generation, struct page_key *ret_key)
{
	unsigned count;
	const struct disk_page *page = tier_stub_pages(control, &count);

	for (unsigned i = 0; i < count; i++)
		if (page[i].place == place && page[i].generation == generation) {
			*ret_key = page[i].key;
			return true;
		}
	return false;
}

bool tier_opens(const struct control *control)
{
	return tier_stub_opens(control);
}

/* evict.c: the engine has no pools, and a page is where its index says. */
bool page_key_at(
	struct control *control, uint32_t place, uint32_t generation, struct page_key *ret_key)
{
	struct index_entry entries[64];
	uint64_t cursor = 0;

	do {
		unsigned count = index_walk(control->index, &cursor, 64, entries);

		for (unsigned i = 0; i < count; i++)
			if (entries[i].place == place && entries[i].generation == generation) {
				*ret_key = entries[i].key;
				return true;
			}
	} while (cursor);
	return false;
}

unsigned tier_slot(struct control *control, uint32_t slot, uint64_t *cursor, unsigned max,
	struct disk_page *ret_pages)
{
	unsigned count, n = 0;
	const struct disk_page *page = tier_stub_pages(control, &count);

	for (; *cursor < count && n < max; ++*cursor)
		if (map_slot_of(&page[*cursor].key) == slot)
			ret_pages[n++] = page[*cursor];
	if (*cursor >= count)
		*cursor = 0;
	return n;
}

struct page_key *tier_flying(struct control *control, uint32_t *ret_count)
{
	*ret_count = 0;
	return NULL;
}

uint64_t tier_pages(const struct control *control)
{
	unsigned count;

	(void)tier_stub_pages(control, &count);
	return count;
}

void tier_touched(struct control *control, uint32_t place, uint32_t generation)
{
	(void)control, (void)place, (void)generation;
}

void tier_link_down(struct control *control, const struct rpc_link *link)
{
	(void)control, (void)link;
}

void promote_link_down(struct control *control, const struct rpc_link *link)
{
	(void)control, (void)link;
}

bool tier_serve_promote(struct control *control, struct rpc_link *link, const Pc__Promote *promote)
{
	(void)control, (void)link;
	return promote != NULL;
}

bool promote_serve_promoted(
	struct control *control, struct rpc_link *link, const Pc__Promoted *promoted)
{
	(void)control, (void)link;
	return promoted != NULL;
}

#endif
