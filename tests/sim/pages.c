/* SPDX-License-Identifier: Apache-2.0 */
/* pages.h. One thread. */
#include "tests/sim/pages.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/control/clients/clients.h"
#include "engine/control/directory/removals_inner.h"
#include "engine/control/pages/pages.h"
#include "engine/control/pages/pages_inner.h"
#include "tests/sim/world.h"

#define OWNERS_NUMBER 1 /* of shard_keep() */

static uint64_t *left; /* by number */
static uint64_t left_room;

/* ---- slots ----------------------------------------------------------------------------------- */

static uint32_t place_of(uint32_t slot)
{
	return place_make(slot & 1, slot >> 1);
}

static struct slot *slot_at(struct pages *pages, uint32_t place)
{
	uint32_t slot = place_unit(place) << 1 | place_rail(place);

	return place_rail(place) < 2 && slot < pages->slots ? &pages->slot[slot] : NULL;
}

uint64_t page_left(uint64_t number)
{
	return number < left_room ? left[number] : 0;
}

static void left_count(uint64_t number)
{
	if (number >= left_room) {
		uint64_t room = 2 * number + 1024;

		left = realloc(left, room * sizeof(*left));
		if (!left)
			abort();
		memset(left + left_room, 0, (room - left_room) * sizeof(*left));
		left_room = room;
	}
	left[number]++;
}

static void retire(struct pages *pages, struct slot *slot)
{
	if (slot->live) {
		left_count(slot->number);
		pages->live--;
	}
	slot->live = false;
	slot->generation++;
}

static void entries_remove_all(
	struct control *control, const struct pages *pages, const struct slot *slot)
{
	const struct location at = {
		.place = place_of((uint32_t)(slot - pages->slot)), .generation = slot->generation};

	directory_remove(control, &slot->key, &at);
}

/* As evict_take_away(). */
static void take_away(struct control *control, struct pages *pages, struct slot *slot)
{
	entries_remove_all(control, pages, slot);
	(void)index_remove(control->index, &slot->key);
	retire(pages, slot);
}

static struct slot *slot_new(struct pages *pages)
{
	if (pages->slots == pages->room) {
		pages->room = 2 * pages->room + 64;
		pages->slot = realloc(pages->slot, pages->room * sizeof(*pages->slot));
		if (!pages->slot)
			abort();
	}
	pages->slot[pages->slots] = (struct slot){.generation = 1};
	return &pages->slot[pages->slots++];
}

/* The page that was stored first of those that the hand has not passed leaves. */
static void evict_one(struct control *control, struct pages *pages)
{
	struct slot *slot;

	do
		slot = &pages->slot[pages->hand++ % pages->slots];
	while (!slot->live);
	take_away(control, pages, slot);
}

/* A slot without a page, for the next one. */
static struct slot *slot_take(struct control *control, struct pages *pages)
{
	while (pages->limit && pages->live >= pages->limit)
		evict_one(control, pages);
	for (uint32_t i = 0; pages->live < pages->slots && i < pages->slots; i++) {
		struct slot *slot = &pages->slot[(pages->hand + i) % pages->slots];

		if (!slot->live)
			return slot;
	}
	return slot_new(pages);
}

const struct slot *page_put(unsigned node, uint64_t number, uint64_t value, struct location *ret_at)
{
	struct node *n = &world.node[node];
	struct index_entry entry = {.key = node_key(number), .length = 4096};
	const struct index_entry *old = index_find(n->control.index, &entry.key);
	struct slot *slot;

	if (old) {
		*ret_at = (struct location){.place = old->place, .generation = old->generation};
		return slot_at(&n->pages, old->place);
	}
	slot = slot_take(&n->control, &n->pages);
	*slot = (struct slot){.key = entry.key,
		.number = number,
		.value = value,
		.generation = slot->generation,
		.live = true};
	n->pages.live++;
	entry.place = place_of((uint32_t)(slot - n->pages.slot));
	entry.generation = slot->generation;
	if (index_put(n->control.index, &entry, NULL) < 0)
		abort();
	*ret_at = (struct location){.place = entry.place, .generation = entry.generation};
	return slot;
}

void pages_evict(unsigned node, uint32_t count)
{
	struct node *n = &world.node[node];

	world.current = node;
	while (count-- && n->pages.live)
		evict_one(&n->control, &n->pages);
	directory_flush(&n->control);
}

const struct slot *page_at(unsigned node, const struct page_key *key, const struct location *at)
{
	const struct slot *slot = slot_at(&world.node[node].pages, at->place);

	return slot && slot->live && slot->generation == at->generation &&
			       page_key_equal(&slot->key, key)
		       ? slot
		       : NULL;
}

const struct slot *page_there(unsigned node, uint32_t place)
{
	return slot_at(&world.node[node].pages, place);
}

const struct slot *page_of(unsigned node, uint64_t number)
{
	const struct node *n = &world.node[node];
	struct page_key key = node_key(number);
	const struct index_entry *entry;

	if (n->running) {
		entry = index_find(n->control.index, &key);
		return entry ? slot_at(&world.node[node].pages, entry->place) : NULL;
	}
	for (uint32_t i = 0; i < n->pages.slots; i++)
		if (n->pages.slot[i].live && n->pages.slot[i].number == number)
			return &n->pages.slot[i];
	return NULL;
}

enum forget_state page_forget(struct control *control, const struct page_key *key,
	const struct forget_wait *wait, bool *ret_had)
{
	struct pages *pages = &((struct node *)(void *)control)->pages;
	const struct index_entry *entry = index_find(control->index, key);
	struct slot *slot = entry ? slot_at(pages, entry->place) : NULL;

	(void)wait;
	*ret_had = slot != NULL;
	if (slot && world.mutant == MUTANT_HALF_FORGET) {
		entries_remove_all(control, pages, slot);
	} else if (slot) {
		take_away(control, pages, slot);
		slot->removed = true;
	}
	return FORGET_DURABLE;
}

/* Hosts here have no disk. */
enum forget_state tier_forget(struct control *control, const struct page_key *key,
	const struct forget_wait *wait, bool *ret_had)
{
	(void)control;
	(void)key;
	(void)wait;
	*ret_had = false;
	return FORGET_DURABLE;
}

/* ---- what outlives the process --------------------------------------------------------------- */

/* What the process has written, in the file of the memory. Returns a descriptor of it. */
static int stored(const struct huge *memory)
{
	if (pwrite(memory->fd, memory->base, memory->bytes, 0) != (ssize_t)memory->bytes)
		abort();
	return dup(memory->fd);
}

void node_keep(unsigned node)
{
	struct node *n = &world.node[node];
	struct shard *shard = n->control.shard;

	if (!n->running)
		return;
	shard_keep(shard, OWNERS_NUMBER);
	n->kept = (struct kept){.any = true,
		.ref = n->control.ref,
		.life = n->kept.life,
		.shard_fd = stored(&shard->memory),
		.state_fd = stored(&shard->state_memory),
		.removals_fd = stored(&n->control.removals->memory)};
}

void kept_shard_open(unsigned node, uint64_t entries)
{
	struct node *n = &world.node[node];
	struct shard *shard = n->control.shard;

	if (n->kept.any &&
		shard_adopt(entries, n->kept.shard_fd, n->kept.state_fd, OWNERS_NUMBER, shard) == 0)
		return;
	if (shard_open(entries, -1, false, shard) < 0)
		abort();
}

static void door_opened(struct control *control, bool drop)
{
	if (drop)
		pages_evict((unsigned)((struct node *)control - world.node), UINT32_MAX);
}

void kept_removals_open(unsigned node, bool pages)
{
	struct node *n = &world.node[node];
	size_t bytes = sizeof(struct removals_log);
	struct removals_options options = {.pages = pages, .opened = door_opened};

	options.adopted = n->kept.any;
	if ((options.adopted ? huge_adopt(n->kept.removals_fd, bytes, &options.memory)
			     : huge_open("removals", bytes, -1, false, &options.memory)) < 0)
		abort();
	memory_own(&options.memory);
	if (removals_open(&n->control, &options) < 0)
		abort();
}

void pages_lose(unsigned node)
{
	struct pages *pages = &world.node[node].pages;

	for (uint32_t i = 0; i < pages->slots; i++)
		if (pages->slot[i].live)
			left_count(pages->slot[i].number);
	pages->slots = pages->live = pages->hand = 0;
}

uint32_t pages_adopt(unsigned node)
{
	struct node *n = &world.node[node];
	uint32_t adopted = 0;

	for (uint32_t i = 0; i < n->pages.slots; i++) {
		struct slot *slot = &n->pages.slot[i];
		struct index_entry entry = {.key = slot->key,
			.place = place_of(i),
			.generation = slot->generation,
			.length = 4096};

		if (slot->live && index_put(n->control.index, &entry, NULL) == 0)
			adopted++;
		else
			retire(&n->pages, slot);
	}
	return adopted;
}

void pages_close(void)
{
	free(left);
	left = NULL;
	left_room = 0;
	for (unsigned i = 0; i < world.nodes; i++)
		free(world.node[i].pages.slot);
}
