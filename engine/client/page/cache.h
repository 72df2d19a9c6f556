/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel's cache of locations: a set-associative table. A new key replaces the entry of its
 * set that was not confirmed for the longest time. An entry may be stale at any time; the page head
 * reveals that, and then the entry is dropped.
 *
 * A look-up reads two cache lines: the set's first line, and the line with the entry. The table has
 * CACHE_SETS * CACHE_WAYS entries, twice as many as the CACHE_LOCATIONS that it is to remember:
 * with half of the table in use, 8 ways find more than 99% of them, 16 ways of a table without
 * spare entries would find 90%. Channel thread.
 */
#ifndef CLIENT_CACHE_H
#define CLIENT_CACHE_H

#if defined(__SSE4_1__)
#include <smmintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "config/likely.h"
#include "engine/abi/page.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"

struct cache_entry {
	struct page_key key;
	struct location at;
	uint32_t touched_ms; /* CLOCK_MONOTONIC of the last CTL_TOUCH for the page, ms; 0: never */
};
static_assert(sizeof(struct cache_entry) == 32, "two to a cache line");

/* The entries of the location cache whose keys have the same set number. */
struct cache_set {
	/* owner: the channel's thread; read by every look-up of a key of the set */
	alignas(64) uint16_t tag[CACHE_WAYS]; /* bits of the entry's key; 0: the entry is unused */
	/* CLOCK_MONOTONIC of the last look-up or read of the entry's page, ms */
	uint32_t seen_ms[CACHE_WAYS];
	/* owner: the channel's thread; read if the tag of an entry fits */
	alignas(64) struct cache_entry entry[CACHE_WAYS];
};
static_assert(offsetof(struct cache_set, entry) == 64, "the tags and times share one line");

static inline bool location_equal(const struct location *a, const struct location *b)
{
	return a->ref == b->ref && a->place == b->place && a->generation == b->generation;
}

static inline uint32_t cache_index(const struct page_key *key)
{
	return (uint32_t)(key->word[0] ^ key->word[1]) & (CACHE_SETS - 1);
}

static inline struct cache_set *cache_set(const struct pc_channel *ch, const struct page_key *key)
{
	return &ch->cache[cache_index(key)];
}

/* The key's tag: bits that do not choose the set. Never 0, the tag of an entry without a key. */
static inline uint16_t cache_tag(const struct page_key *key)
{
	return (uint16_t)(key->word[1] >> 48 | 1);
}

/* Prefetches the first line of the key's set, for a key that is looked up soon. */
static inline void cache_prefetch(const struct pc_channel *ch, const struct page_key *key)
{
	__builtin_prefetch(cache_set(ch, key));
}

/* The ways of the set that have the tag: bit 2 * way for each. */
static inline uint32_t cache_ways(const struct cache_set *set, uint16_t tag)
{
#if defined(__SSE2__)
	__m128i tags = _mm_load_si128((const __m128i *)(const void *)set->tag);

	return (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi16(tags, _mm_set1_epi16((short)tag))) &
	       0x5555;
#else
	uint32_t ways = 0;

	for (uint32_t way = 0; way < CACHE_WAYS; way++)
		ways |= (uint32_t)(set->tag[way] == tag) << 2 * way;
	return ways;
#endif
}
static_assert(sizeof(((struct cache_set *)0)->tag) == 16, "the tags are one vector");

/*
 * What a new key with this tag finds in the set: CACHE_WAYS_TAG, a bit for each way that has the
 * tag; above, the unused ways, for cache_unused().
 */
static inline uint32_t cache_ways_new(const struct cache_set *set, uint16_t tag)
{
#if defined(__SSE2__)
	__m128i tags = _mm_load_si128((const __m128i *)(const void *)set->tag);
	__m128i same = _mm_cmpeq_epi16(tags, _mm_set1_epi16((short)tag));
	__m128i unused = _mm_cmpeq_epi16(tags, _mm_setzero_si128());

	return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(same, unused));
#else
	uint32_t ways = 0;

	for (uint32_t way = 0; way < CACHE_WAYS; way++)
		ways |= (uint32_t)(set->tag[way] == tag) << way | (uint32_t)(set->tag[way] == 0)
									  << (CACHE_WAYS + way);
	return ways;
#endif
}
#define CACHE_WAYS_TAG ((1u << CACHE_WAYS) - 1)

/* The first unused way. `ways`: of cache_ways_new(), without a way that has the tag, and not 0. */
static inline uint32_t cache_unused(uint32_t ways)
{
	return (uint32_t)__builtin_ctz(ways) - CACHE_WAYS;
}

/* False: the set does not have the key. */
static inline bool cache_has_tag(const struct cache_set *set, const struct page_key *key)
{
	return cache_ways(set, cache_tag(key));
}

/* Returns the key's way in its set; CACHE_WAYS: the cache does not have the key. */
static inline uint32_t cache_way(const struct cache_set *set, const struct page_key *key)
{
	for (uint32_t left = cache_ways(set, cache_tag(key)); left; left &= left - 1) {
		uint32_t way = (uint32_t)__builtin_ctz(left) / 2;

		if (likely(page_key_equal(&set->entry[way].key, key)))
			return way;
	}
	return CACHE_WAYS;
}

/* The key's entry in its set, and its way; NULL: the set does not have the key. */
static inline const struct cache_entry *cache_entry_in(
	const struct cache_set *set, const struct page_key *key, uint32_t *ret_way)
{
	uint32_t ways = cache_ways(set, cache_tag(key)), way;
	const struct cache_entry *e;

	if (unlikely(!ways))
		return NULL;
	way = (uint32_t)__builtin_ctz(ways);

	/* nearly always, only the key itself has its tag */
	e = (const struct cache_entry *)(const void *)((const char *)set->entry +
						       way * (sizeof(*e) / 2));
	*ret_way = way / 2;
	if (likely(page_key_equal(&e->key, key)))
		return e;
	*ret_way = cache_way(set, key);
	return *ret_way < CACHE_WAYS ? &set->entry[*ret_way] : NULL;
}

/* The key's entry; NULL: the cache does not have the key. */
static inline struct cache_entry *cache_find(
	const struct pc_channel *ch, const struct page_key *key)
{
	struct cache_set *set = cache_set(ch, key);
	uint32_t way = cache_way(set, key);

	return way < CACHE_WAYS ? &set->entry[way] : NULL;
}

/* The way of a full set whose entry was not confirmed for the longest time; the first of equals. */
static inline uint32_t cache_oldest(const struct cache_set *set, uint32_t now_ms)
{
#if defined(__SSE4_1__)
	const __m128i *seen = (const __m128i *)(const void *)set->seen_ms;
	__m128i now = _mm_set1_epi32((int)now_ms);
	__m128i low = _mm_sub_epi32(now, _mm_load_si128(&seen[0]));
	__m128i high = _mm_sub_epi32(now, _mm_load_si128(&seen[1])), most, ways;

	most = _mm_max_epu32(low, high);
	most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0x4e));
	most = _mm_max_epu32(most, _mm_shuffle_epi32(most, 0xb1));
	ways = _mm_packs_epi32(_mm_cmpeq_epi32(low, most), _mm_cmpeq_epi32(high, most));
	return (uint32_t)__builtin_ctz((uint32_t)_mm_movemask_epi8(ways)) / 2;
#else
	uint32_t oldest = 0;

	for (uint32_t way = 1; way < CACHE_WAYS; way++) {
		if (now_ms - set->seen_ms[way] > now_ms - set->seen_ms[oldest])
			oldest = way;
	}
	return oldest;
#endif
}
static_assert(sizeof(((struct cache_set *)0)->seen_ms) == 32 &&
		      offsetof(struct cache_set, seen_ms) % 16 == 0,
	"the times are two vectors");

/* The way that the next new key of the set takes: an unused one, or else the oldest. */
static inline uint32_t cache_victim(const struct cache_set *set, uint32_t now_ms)
{
	uint32_t unused = cache_ways(set, 0);

	return unused ? (uint32_t)__builtin_ctz(unused) / 2 : cache_oldest(set, now_ms);
}

/* Prefetches the entry that a new key will take, for a key that is entered soon. */
static inline void cache_prefetch_victim(
	const struct pc_channel *ch, const struct page_key *key, uint32_t now_ms)
{
	const struct cache_set *set = cache_set(ch, key);

	__builtin_prefetch(&set->entry[cache_victim(set, now_ms)], 1);
}

/* Enters a key that the set does not have. */
static inline struct cache_entry *cache_enter(struct cache_set *set, uint32_t way,
	const struct page_key *key, const struct location *at, uint32_t now_ms)
{
	struct cache_entry *e = &set->entry[way];

	set->tag[way] = cache_tag(key);
	set->seen_ms[way] = now_ms;
	e->key = *key;
	e->at = *at;
	e->touched_ms = 0;
	return e;
}

static inline struct cache_entry *cache_put(struct pc_channel *ch, const struct page_key *key,
	const struct location *at, uint32_t now_ms)
{
	struct cache_set *set = cache_set(ch, key);
	uint32_t way = cache_way(set, key);

	ch->cache_changes++;
	if (way == CACHE_WAYS)
		return cache_enter(set, cache_victim(set, now_ms), key, at, now_ms);
	set->seen_ms[way] = now_ms;
	set->entry[way].at = *at;
	return &set->entry[way];
}

/* The number of the key's entry in the cache, for cache_numbered() and cache_again(). */
static inline uint32_t cache_number(const struct page_key *key, uint32_t way)
{
	return cache_index(key) * CACHE_WAYS + way;
}

/* The entry with this number; NULL: it does not have the key, or no longer. */
static inline struct cache_entry *cache_numbered(
	const struct pc_channel *ch, uint32_t number, const struct page_key *key)
{
	struct cache_set *set = &ch->cache[number / CACHE_WAYS];
	uint32_t way = number % CACHE_WAYS;

	return page_key_equal(&set->entry[way].key, key) ? &set->entry[way] : NULL;
}

/*
 * Confirms a location like cache_put(), in the entry that had the key when it was looked up. NULL:
 * another key has that entry now.
 */
static inline struct cache_entry *cache_again(struct pc_channel *ch, uint32_t number,
	const struct page_key *key, const struct location *at, uint32_t now_ms)
{
	struct cache_entry *e = cache_numbered(ch, number, key);

	if (!e)
		return NULL;
	ch->cache[number / CACHE_WAYS].seen_ms[number % CACHE_WAYS] = now_ms;
	if (unlikely(!location_equal(&e->at, at))) {
		e->at = *at;
		ch->cache_changes++;
	}
	return e;
}

/*
 * cache_again() while no entry has changed since the key was looked up (pc_channel.cache_changes):
 * the entry with this number has the key and the location.
 */
static inline struct cache_entry *cache_again_same(
	struct pc_channel *ch, uint32_t number, uint32_t now_ms)
{
	struct cache_set *set = &ch->cache[number / CACHE_WAYS];

	set->seen_ms[number % CACHE_WAYS] = now_ms;
	return &set->entry[number % CACHE_WAYS];
}

/* True if the entry's page was read and it is time to tell the control plane so. */
static inline bool cache_touch_due(const struct cache_entry *e, uint32_t now_ms)
{
	return !e->touched_ms || now_ms - e->touched_ms >= TOUCH_NS / 1000000;
}

static inline void cache_drop(struct pc_channel *ch, const struct page_key *key)
{
	struct cache_set *set = cache_set(ch, key);
	uint32_t way = cache_way(set, key);

	ch->cache_changes++; /* also if another key took the entry: see cache_again_same() */
	if (way == CACHE_WAYS)
		return;
	set->tag[way] = 0;
	set->entry[way].key = (struct page_key){{0, 0}}; /* for cache_numbered(): no page's key */
}

#endif
