/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel's cache of locations: a direct-mapped table in which a new key replaces the old one.
 * An entry may be stale at any time; the page head reveals that, and then the entry is dropped.
 * Channel thread. Included only by client.h.
 */
#ifndef CLIENT_CACHE_H
#define CLIENT_CACHE_H

static inline struct cache_entry *cache_slot(
	const struct pc_channel *ch, const struct page_key *key)
{
	return &ch->cache[(key->word[0] ^ key->word[1]) & (CACHE_SLOTS - 1)];
}

/* Prefetches the entry of the location cache for a key that is looked up soon. */
static inline void cache_expect(const struct pc_channel *ch, const struct page_key *key)
{
	__builtin_prefetch(cache_slot(ch, key));
}

static inline struct cache_entry *cache_find(struct pc_channel *ch, const struct page_key *key)
{
	struct cache_entry *e = cache_slot(ch, key);

	return e->at.ref && page_key_equal(&e->key, key) ? e : NULL;
}

static inline struct cache_entry *cache_put(struct pc_channel *ch, const struct page_key *key,
	const struct location *at, uint64_t now_ns)
{
	struct cache_entry *e = cache_slot(ch, key);

	if (!e->at.ref || !page_key_equal(&e->key, key))
		e->touched_ms = 0;
	e->key = *key;
	e->at = *at;
	e->seen_ms = (uint32_t)(now_ns / 1000000);
	return e;
}

static inline void cache_drop(struct pc_channel *ch, const struct page_key *key)
{
	struct cache_entry *e = cache_find(ch, key);

	if (e)
		e->at.ref = 0;
}

#endif
