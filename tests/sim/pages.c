/* SPDX-License-Identifier: Apache-2.0 */
/* pages.h. One thread. */
#include "tests/sim/pages.h"

#include <stdlib.h>
#include <string.h>

#include "engine/control/directory/directory.h"
#include "engine/control/pages/pages_inner.h"
#include "tests/sim/disk.h"
#include "tests/sim/keeper.h"
#include "tests/sim/world.h"

#define LEFT_CELLS (1u << 20)

/* By hash of the key: a page that shares its cell with another one counts as left too often. */
static uint32_t left[LEFT_CELLS];

/* ---- bytes ----------------------------------------------------------------------------------- */

static unsigned char *page_bytes(unsigned node, uint32_t place)
{
	const struct pool *pool = world.node[node].control.rail[place_rail(place)].pool;

	return (unsigned char *)pool_memory(pool)->base + place_offset(place);
}

/* Bytes of several pages are those of none. */
static struct content content_of(const unsigned char *bytes, uint32_t length)
{
	struct content content, other;

	memcpy(&content, bytes, sizeof(content));
	for (uint32_t at = PAGE_UNIT; at < length; at += PAGE_UNIT) {
		memcpy(&other, bytes + at, sizeof(other));
		if (other.number != content.number || other.value != content.value)
			return (struct content){.number = UINT64_MAX};
	}
	return content;
}

bool page_read(
	unsigned node, const struct page_key *key, const struct location *at, struct content *ret)
{
	unsigned rail = place_rail(at->place);
	const struct pool *pool =
		rail < SIM_RAILS ? world.node[node].control.rail[rail].pool : NULL;
	const struct page_head *heads;
	uint32_t length;

	if (!pool || place_offset(at->place) >= pool_memory(pool)->bytes)
		return false;
	heads = pool_heads(pool)->base;
	length = page_head_length(&heads[place_unit(at->place)], key, at->generation);
	if (length)
		*ret = content_of(page_bytes(node, at->place), length);
	return length != 0;
}

static bool kept_page(unsigned node, const struct page_key *key, struct content *ret)
{
	for (unsigned rail = 0; rail < SIM_RAILS; rail++) {
		size_t heads_bytes, pool_bytes = 0;
		const struct page_head *heads = keeper_memory(node, "heads", rail, &heads_bytes);
		const unsigned char *bytes = keeper_memory(node, "pool", rail, &pool_bytes);

		for (size_t unit = 0; heads && unit < pool_bytes / PAGE_UNIT; unit++) {
			if (!heads[unit].length || !page_key_equal(&heads[unit].key, key))
				continue;
			*ret = content_of(bytes + unit * PAGE_UNIT, heads[unit].length);
			return true;
		}
	}
	return false;
}

/* ---- pages that leave ------------------------------------------------------------------------ */

static uint32_t *left_of(const struct page_key *key)
{
	return &left[key->word[0] % LEFT_CELLS];
}

uint64_t page_left(uint64_t number)
{
	const struct page_key key = node_key(number);

	return *left_of(&key);
}

/* A page leaves the pool of the node that runs. */
__typeof__(pool_retire) __real_pool_retire, __wrap_pool_retire;

int __wrap_pool_retire(struct pool *pool, uint32_t place, uint32_t generation)
{
	struct disk_page page;
	struct page_key key;
	bool was = pool_key(pool, place, generation, &key);
	int rc = __real_pool_retire(pool, place, generation);

	if (was && !tier_find(&world.node[world.current].control, &key, &page))
		++*left_of(&key);
	return rc;
}

/* The page of an entry, as its holder has it, can be found by no reader from now on. */
static void entry_left(const struct dir_entry *entry)
{
	int node = node_by_ref(entry->ref);
	struct control *control = node >= 0 ? &world.node[node].control : NULL;
	struct page_key key;

	if (control && (place_on_disk(entry->place)
				       ? tier_named(control, entry->place, entry->generation, &key)
				       : pool_key(control->rail[place_rail(entry->place)].pool,
						 entry->place, entry->generation, &key)))
		++*left_of(&key);
}

/* A full shard: the page whose entry makes room is at other owners, or is a miss. */
__typeof__(shard_displace) __real_shard_displace, __wrap_shard_displace;

bool __wrap_shard_displace(struct shard *shard, const struct page_key *key)
{
	uint32_t at[2] = {dir_bucket_first(key, shard->bits)};
	struct bucket before[2];
	bool done;

	at[1] = dir_bucket_other(at[0], dir_tag(key), shard->bits);
	for (unsigned i = 0; i < 2; i++)
		before[i] = shard->bucket[at[i]];
	done = __real_shard_displace(shard, key);
	for (unsigned i = 0; done && i < 2 * BUCKET_ENTRIES; i++) {
		const struct dir_entry *was = &before[i / BUCKET_ENTRIES].entry[i % BUCKET_ENTRIES];

		if (was->tag &&
			!shard->bucket[at[i / BUCKET_ENTRIES]].entry[i % BUCKET_ENTRIES].tag)
			entry_left(was);
	}
	return done;
}

/* Pages that were on a disk, and are in no pool. */
__typeof__(disk_lost) __real_disk_lost, __wrap_disk_lost;

unsigned __wrap_disk_lost(struct disk *disk, unsigned max, struct disk_page *ret_pages)
{
	unsigned count = __real_disk_lost(disk, max, ret_pages);

	for (unsigned i = 0; i < count; i++)
		if (!index_find(world.node[world.current].control.index, &ret_pages[i].key))
			++*left_of(&ret_pages[i].key);
	return count;
}

void page_lost(unsigned node, const struct page_key *key)
{
	struct content content;

	if (!kept_page(node, key, &content) && !disk_has(node, key))
		++*left_of(key);
}

void pages_lost(unsigned node)
{
	const struct control *control = &world.node[node].control;
	struct index_entry entry[64];
	uint64_t cursor = 0;

	do {
		unsigned count = index_walk(control->index, &cursor, 64, entry);

		for (unsigned i = 0; i < count; i++)
			page_lost(node, &entry[i].key);
	} while (cursor);
}

bool page_removed(unsigned node, const struct dir_entry *entry)
{
	const struct pages *pages = &world.node[node].pages;

	return place_rail(entry->place) < SIM_RAILS &&
	       place_offset(entry->place) < pages->pool_bytes &&
	       pages->removed[place_rail(entry->place)][place_unit(entry->place)] ==
		       entry->generation;
}

__typeof__(page_forget) __real_page_forget, __wrap_page_forget;

bool __wrap_page_forget(struct control *control, const struct page_key *key)
{
	const struct pages *pages = &world.node[world.current].pages;
	const struct index_entry *entry = index_find(control->index, key);

	if (entry)
		pages->removed[place_rail(entry->place)][place_unit(entry->place)] =
			entry->generation;
	if (!entry || world.mutant != MUTANT_HALF_FORGET)
		return __real_page_forget(control, key);
	directory_remove(control, key,
		&(struct location){.place = entry->place, .generation = entry->generation});
	return true;
}

void pages_evict(unsigned node, uint64_t count)
{
	struct control *control = &world.node[node].control;
	struct index_entry entry[64];
	uint64_t cursor = 0;

	world.current = node;
	while (count && (cursor || index_count(control->index))) {
		unsigned most = count < 64 ? (unsigned)count : 64;
		unsigned n = index_walk(control->index, &cursor, most, entry);

		for (unsigned i = 0; i < n; i++)
			evict_take_away(
				control->evict, &entry[i].key, entry[i].place, entry[i].generation);
		count -= n;
	}
	directory_flush(control);
}

void pages_limit(unsigned node)
{
	const struct node *n = &world.node[node];
	uint64_t count = index_count(n->control.index);

	if (n->pages.limit && count > n->pages.limit)
		pages_evict(node, count - n->pages.limit);
}

/* ---- pages by number ------------------------------------------------------------------------- */

bool page_of(unsigned node, uint64_t number, struct content *ret)
{
	const struct node *n = &world.node[node];
	const struct page_key key = node_key(number);
	const struct index_entry *entry;

	if (!n->running)
		return kept_page(node, &key, ret);
	entry = index_find(n->control.index, &key);
	if (entry)
		*ret = content_of(page_bytes(node, entry->place), entry->length);
	return entry || (!n->control.door_shut && disk_content(node, &key, ret));
}

void page_fill(unsigned node, uint64_t number)
{
	struct control *control = &world.node[node].control;
	struct index_entry entry = {.key = node_key(number), .length = PAGE_UNIT};
	unsigned rail = number % SIM_RAILS;

	world.current = node;
	if (pool_take(control->rail[rail].pool, PAGE_UNIT, &entry.place, &entry.generation) < 0 ||
		index_put(control->index, &entry, NULL) < 0 ||
		pool_publish(control->rail[rail].pool, entry.place, entry.generation, &entry.key,
			PAGE_UNIT) < 0)
		abort();
	evict_hold(control->evict, rail, PAGE_UNIT, 1);
	directory_publish(control, &entry.key,
		&(struct location){.place = entry.place, .generation = entry.generation}, NULL);
}

/* ---- pools ----------------------------------------------------------------------------------- */

bool run_has_disks(void)
{
	return world.node[0].pages.disks;
}

void pools_open(unsigned node)
{
	struct node *n = &world.node[node];

	for (unsigned rail = 0; rail < n->control.rails; rail++) {
		const struct pool_options options = {.rail = rail,
			.bytes = n->pages.pool_bytes,
			.numa_node = -1,
			.limbo_ns = control_limbo_ns(&n->control)};

		if (warm_pool_open(&n->control, &options, &n->control.rail[rail].pool) < 0)
			abort();
		if (!n->pages.removed[rail])
			n->pages.removed[rail] =
				calloc(n->pages.pool_bytes / PAGE_UNIT, sizeof(uint32_t));
		if (!n->pages.removed[rail])
			abort();
	}
}

void pools_close(unsigned node)
{
	struct control *control = &world.node[node].control;

	for (unsigned rail = 0; rail < control->rails; rail++)
		pool_close(control->rail[rail].pool);
}

void pages_close(void)
{
	for (unsigned i = 0; i < world.nodes; i++)
		for (unsigned rail = 0; rail < SIM_RAILS; rail++)
			free(world.node[i].pages.removed[rail]);
}
