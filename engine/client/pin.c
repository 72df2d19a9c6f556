/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the region of an address in the channel's sorted copy of the registered ranges, and pins
 * ranges, so that a range is not released while a batch names it. Channel thread; holds pc->lock
 * for a short time.
 */
#include "config/limits.h"
#include "engine/abi/ring.h"
#include "engine/client/attach.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/likely.h"
#include "engine/client/memory.h"
#include "engine/client/peercache.h"

#include <stdlib.h>

static int by_base(const void *a, const void *b)
{
	const struct memory_view *x = a, *y = b;

	return x->base < y->base ? -1 : x->base > y->base;
}

/* Copies the table of registered ranges into the channel. The caller holds `lock`. */
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
	/* No order is needed: a caller that registers memory and then names it in a batch has its
	 * own, and what memory_pin() finds under the lock is decisive. */
	if (likely(ch->memory_changes == shm_load(&ch->pc->memory_changes)))
		return;
	pthread_mutex_lock(&ch->pc->lock);
	copy_table(ch);
	pthread_mutex_unlock(&ch->pc->lock);
}

__attribute__((noinline)) const struct memory_view *memory_search(
	struct pc_channel *ch, uintptr_t at, uint64_t bytes)
{
	uint32_t low = 0, high = ch->memories;

	if (!high)
		return NULL;
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (ch->memory[middle].base <= at)
			low = middle;
		else
			high = middle;
	}
	if (!memory_holds(&ch->memory[low], at, bytes))
		return NULL;
	ch->memory_last = low;
	return ch->memory[low].region ? &ch->memory[low] : NULL;
}

static void pin(struct pc_batch *b, const struct memory_view *m)
{
	uint32_t word = m->slot / 64;

	if (!(b->pins >> word & 1)) {
		b->pins |= 1u << word;
		b->pinned[word] = 0;
	}
	b->pinned[word] |= 1ull << m->slot % 64;
}

/* Each segment by itself: they lie in several ranges, or some in none. */
static bool find_segments(
	struct pc_batch *b, const struct pc_page *page, const struct memory_view **last)
{
	bool all = true;

	for (unsigned s = 0; s < page->segment_count; s++) {
		const struct pc_segment *segment = &page->segments[s];
		const struct memory_view *m = *last;

		if (likely(m && memory_holds(m, (uintptr_t)segment->base, segment->bytes)))
			continue;
		m = memory_find(b->channel, segment->base, segment->bytes);
		if (!m) {
			all = false;
			continue;
		}
		pin(b, m);
		*last = m;
	}
	return all;
}

const struct memory_view *memory_find_new(struct pc_batch *b, struct page_work *p,
	const struct pc_page *page, const struct memory_view *last)
{
	if (p->regular) { /* all segments at once; else each may be in a range of its own */
		const struct memory_view *m =
			memory_find(b->channel, page->segments->base, page_span(page));

		if (m) {
			pin(b, m);
			memory_found(p, page, m);
			return m;
		}
		p->regular = false;
	}
	if (find_segments(b, page, &last))
		p->flags |= PAGE_REGISTERED;
	return last;
}

static void find_all(struct pc_batch *b)
{
	const struct memory_view *last = NULL;

	b->pins = 0;
	for (uint32_t i = 0; i < b->count; i++)
		if (b->work[i].phase != PAGE_DONE) {
			b->work[i].flags &= (uint8_t)~PAGE_REGISTERED;
			last = memory_find_page(b, &b->work[i], &b->pages[i], last);
		}
}

/* Adds `change` to the pin count of every range that the batch pins. The caller holds `lock`. */
static void count_pins(const struct pc_batch *b, uint32_t change)
{
	for (uint32_t words = b->pins; words; words &= words - 1) {
		uint32_t word = (uint32_t)__builtin_ctz(words);

		for (uint64_t left = b->pinned[word]; left; left &= left - 1)
			b->channel->pc->memory[word * 64 + (unsigned)__builtin_ctzll(left)]->pins +=
				change;
	}
}

void memory_pin(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	struct pc *pc = ch->pc;

	while (b->pins) {
		bool current;

		pthread_mutex_lock(&pc->lock);
		current = ch->memory_changes == pc->memory_changes;
		if (current)
			count_pins(b, 1);
		pthread_mutex_unlock(&pc->lock);
		if (likely(current))
			return;
		memory_refresh(ch);
		find_all(b);
	}
}

void memory_unpin(struct pc_batch *b)
{
	struct pc *pc = b->channel->pc;

	if (!b->pins)
		return;
	pthread_mutex_lock(&pc->lock);
	count_pins(b, UINT32_MAX); /* adds -1 modulo 2^32 */
	pthread_mutex_unlock(&pc->lock);
	b->pins = 0;
}
