/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From an address to a region: the channel's sorted copy of the registered ranges, and the pins
 * that keep a range from being released while a batch names it. Channel thread; takes pc->lock
 * briefly.
 */
#include "engine/client/client.h"

#include <stdlib.h>

static int by_base(const void *a, const void *b)
{
	const struct memory_view *x = a, *y = b;

	return x->base < y->base ? -1 : x->base > y->base;
}

/* Caller holds lock. */
static void copy_table(struct pc_channel *ch)
{
	struct pc *pc = ch->pc;

	ch->memories = 0;
	ch->memory_last = 0;
	for (uint32_t i = 0; i < REGIONS_MAX; i++) {
		const struct memory *m = pc->memory[i];

		if (m)
			ch->memory[ch->memories++] =
				(struct memory_view){.base = (uintptr_t)m->base,
					.bytes = m->bytes,
					.region = m->region,
					.slot = i};
	}
	qsort(ch->memory, ch->memories, sizeof(*ch->memory), by_base);
	ch->memory_changes = pc->memory_changes;
}

void memory_refresh(struct pc_channel *ch)
{
	pthread_mutex_lock(&ch->pc->lock);
	if (ch->memory_changes != ch->pc->memory_changes)
		copy_table(ch);
	pthread_mutex_unlock(&ch->pc->lock);
}

static bool holds(const struct memory_view *m, uintptr_t base, uint64_t bytes)
{
	return base >= m->base && base - m->base < m->bytes && bytes <= m->bytes - (base - m->base);
}

/* The range that [base, base + bytes) lies in, registered with the engine now; else NULL. */
const struct memory_view *memory_find(struct pc_channel *ch, const void *base, uint64_t bytes)
{
	uintptr_t at = (uintptr_t)base;
	uint32_t low = 0, high = ch->memories;

	if (!high)
		return NULL;
	if (!holds(&ch->memory[ch->memory_last], at, bytes)) {
		while (high - low > 1) {
			uint32_t middle = low + (high - low) / 2;

			if (ch->memory[middle].base <= at)
				low = middle;
			else
				high = middle;
		}
		if (!holds(&ch->memory[low], at, bytes))
			return NULL;
		ch->memory_last = low;
	}
	return ch->memory[ch->memory_last].region ? &ch->memory[ch->memory_last] : NULL;
}

static void find_all(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;

	b->pins = false;
	memset(b->pinned, 0, sizeof(b->pinned));
	for (uint32_t i = 0; i < b->count; i++) {
		const struct pc_page *page = &b->pages[i];
		unsigned found = 0;

		b->work[i].flags &= (uint8_t)~PAGE_REGISTERED;
		if (b->work[i].phase == PAGE_DONE)
			continue;
		for (unsigned s = 0; s < page->segment_count; s++) {
			const struct memory_view *m =
				memory_find(ch, page->segments[s].base, page->segments[s].bytes);

			if (!m)
				continue;
			b->pinned[m->slot / 64] |= 1ull << m->slot % 64;
			b->pins = true;
			found++;
		}
		if (found == page->segment_count)
			b->work[i].flags |= PAGE_REGISTERED;
	}
}

/* Caller holds lock. */
static void count_pins(const struct pc_batch *b, uint32_t change)
{
	for (uint32_t word = 0; word < REGIONS_MAX / 64; word++)
		for (uint64_t left = b->pinned[word]; left; left &= left - 1)
			b->channel->pc->memory[word * 64 + (unsigned)__builtin_ctzll(left)]->pins +=
				change;
}

void memory_pin(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	struct pc *pc = ch->pc;

	for (;;) {
		memory_refresh(ch);
		find_all(b);
		if (!b->pins)
			return;
		pthread_mutex_lock(&pc->lock);
		if (ch->memory_changes == pc->memory_changes)
			break;
		pthread_mutex_unlock(&pc->lock);
	}
	count_pins(b, 1);
	pthread_mutex_unlock(&pc->lock);
}

void memory_unpin(struct pc_batch *b)
{
	struct pc *pc = b->channel->pc;

	if (!b->pins)
		return;
	pthread_mutex_lock(&pc->lock);
	count_pins(b, UINT32_MAX); /* - 1 */
	pthread_mutex_unlock(&pc->lock);
	b->pins = false;
}
