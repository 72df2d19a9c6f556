/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pages the channel has touched lately: it touches a page at most once in TOUCH_NS, also if
 * the location cache has forgotten it meanwhile, because more keys are looked up than it remembers.
 * A set-associative table with one word for a page: a tag of its location, and the time. The page
 * that was touched longest ago makes room. Two pages with one tag in one set are taken for one,
 * which lasts TOUCH_NS at most; so does a time that has wrapped. Channel thread. Included only by
 * client.h.
 */
#ifndef CLIENT_TOUCHED_H
#define CLIENT_TOUCHED_H

#define TOUCHED_WAYS 16u
#define TOUCHED_SETS (8 * CACHE_LOCATIONS / TOUCHED_WAYS) /* a power of two */
#define TOUCHED_UNIT_MS 16u /* unit of the times; they have 16 bits and wrap after 17 minutes */
#define TOUCHED_LONG_AGO 0xffffu

struct touched_set {
	/* owner: the channel's thread; tag << 16 | time of the last touch; 0: unused */
	alignas(64) uint32_t page[TOUCHED_WAYS];
};
static_assert(sizeof(struct touched_set) == 64, "one line a page");

static inline uint64_t touched_hash(const struct location *at)
{
	return map_mix(map_mix((uint64_t)at->ref << 32 | at->place) + at->generation);
}

static inline uint32_t touched_word(uint64_t hash, uint32_t now_ms)
{
	return (uint32_t)(hash >> 48 | 1) << 16 | (now_ms / TOUCHED_UNIT_MS & 0xffff);
}

/* Units of time between the word's touch and `now`, which has the tag of any page. */
static inline uint32_t touched_age(uint32_t word, uint32_t now)
{
	return word ? (now - word) & 0xffff : TOUCHED_LONG_AGO;
}

/*
 * The word of the page in its set: that with its tag, or else the oldest one.
 */
static inline uint32_t *touched_find(
	const struct pc_channel *ch, const struct location *at, uint32_t now_ms, uint32_t *ret_now)
{
	uint64_t hash = touched_hash(at);
	uint32_t *page = ch->touched[hash & (TOUCHED_SETS - 1)].page, oldest = 0;

	*ret_now = touched_word(hash, now_ms);
	for (uint32_t k = 0; k < TOUCHED_WAYS; k++) {
		if ((page[k] ^ *ret_now) >> 16 == 0)
			return &page[k];
		if (touched_age(page[k], *ret_now) > touched_age(page[oldest], *ret_now))
			oldest = k;
	}
	return &page[oldest];
}

/* How long ago the page at this location was touched, ms; TOUCH_NS or more: long ago or never. */
static inline uint32_t touched_ago_ms(
	const struct pc_channel *ch, const struct location *at, uint32_t now_ms)
{
	uint32_t now, word = *touched_find(ch, at, now_ms, &now);

	return (word ^ now) >> 16 ? TOUCHED_LONG_AGO : touched_age(word, now) * TOUCHED_UNIT_MS;
}

static inline void touched_put(struct pc_channel *ch, const struct location *at, uint32_t now_ms)
{
	uint32_t now, *word = touched_find(ch, at, now_ms, &now);

	*word = now;
}

#endif
