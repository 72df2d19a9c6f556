/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page key: the 128-bit XXH3 hash of (digest of the namespace and its epochs, key), with the
 * bits of the namespace's group. It is the same on every machine and in every version, because the
 * hash input is bytes in little-endian order, never words. Any thread.
 *
 * Every page of every call needs it, so the keys of a batch that have the usual length (key.h) are
 * hashed four at a time where the CPU has AVX2. Then the channel's location cache is prefetched,
 * which the next pass over the pages reads.
 */
#include "config/likely.h"
#include "engine/abi/page.h"
#include "engine/client/page/batch.h"
#include "engine/client/page/cache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/page/key.h"
#include "engine/client/peercache.h"
#include "engine/client/attach/attach.h"
#include "engine/client/attach/session.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static struct page_key key_digest(const void *bytes, size_t count)
{
	XXH128_hash_t hash = XXH3_128bits(bytes, count);

	return (struct page_key){{hash.low64, hash.high64}};
}

/* Of the namespace in this epoch. Without a clear it is the namespace's own. */
static struct page_key key_epoch_digest(const struct key_space *space, const struct epoch *epoch)
{
	const uint64_t word[4] = {htole64(space->digest.word[0]), htole64(space->digest.word[1]),
		htole64(epoch->all), htole64(epoch->group)};

	return epoch->all | epoch->group ? key_digest(word, sizeof(word)) : space->digest;
}

void key_text_init(struct key_text *text, const struct key_space *space, const struct epoch *epoch)
{
	const struct page_key digest = key_epoch_digest(space, epoch), *name_space = &digest;
	const uint64_t word[2] = {htole64(name_space->word[0]), htole64(name_space->word[1])};
	const uint64_t bytes = sizeof(struct page_key) + KEY_BYTES_USUAL;

	text->group = space->group;
	text->group.word[0] |= epoch_bits(epoch);
	text->group_bits[0] = KEY_FIXED_0;
	text->group_bits[1] = KEY_FIXED_1;
	text->start[0] = bytes * KEY_PRIME_1;
	text->start[1] = bytes * KEY_PRIME_2;
	memcpy(text->name_space, word, sizeof(word));
	for (unsigned i = 0; i < sizeof(text->secret) / sizeof(text->secret[0]); i++)
		text->secret[i] = key_word(space->words + 16, i);
	text->name_space_mix = XXH3_mul128_fold64(name_space->word[0] ^ key_word(space->words, 0),
		name_space->word[1] ^ key_word(space->words, 1));
	memcpy(text->words, space->words, sizeof(text->words));
	text->name_space_sum = name_space->word[0] + name_space->word[1];
}

struct page_key key_hash_any(struct key_text *text, const void *key, size_t bytes)
{
	XXH128_hash_t hash;

	memcpy(text->key, key, bytes);
	hash = XXH3_128bits_withSecret(
		text, sizeof(struct page_key) + bytes, text->words, sizeof(text->words));
	return (struct page_key){{hash.low64, hash.high64}};
}

/* ---- the keys of a batch --------------------------------------------------------------------- */

/* Takes over the page key, and prefetches its set of the location cache. */
static inline void key_put(const struct pc_channel *ch, struct page_work *p)
{
	p->cached = cache_index(&p->key); /* the set's number, until the page is looked up */
	__builtin_prefetch(&ch->cache[p->cached]);
}

/* Hashes the keys of the pages from `i` on, before `end`. A page that is done may have none. */
static void keys_hash_each(struct pc_batch *b, uint32_t i, uint32_t end)
{
	struct pc_channel *ch = b->channel;

	for (; i < end; i++) {
		const struct pc_page *page = &b->pages[i];
		struct page_work *p = &b->work[i];

		if (unlikely(p->phase == PAGE_DONE))
			continue;
		key_hash(&ch->key_text, page->key, page->key_bytes, &p->key);
		key_put(ch, p);
	}
}

#if defined(__x86_64__)
#include <immintrin.h>

#define WIDE __attribute__((target("avx2")))

typedef __m256i wide; /* a 64-bit word of each of four keys */

WIDE static inline wide wide_set(uint64_t word)
{
	return _mm256_set1_epi64x((long long)word);
}

/*
 * key_mix() of four pairs of words. A product of 128 bits is the sum of four products of 32-bit
 * halves; none of the sums below exceeds 64 bits.
 */
WIDE static inline wide wide_mix(wide a, wide b, const uint64_t *secret)
{
	wide x = _mm256_xor_si256(a, wide_set(secret[0])),
	     y = _mm256_xor_si256(b, wide_set(secret[1]));
	wide x1 = _mm256_srli_epi64(x, 32), y1 = _mm256_srli_epi64(y, 32);
	wide low = _mm256_mul_epu32(x, y);
	wide mid = _mm256_add_epi64(_mm256_mul_epu32(x1, y), _mm256_srli_epi64(low, 32));
	wide mid2 = _mm256_add_epi64(
		_mm256_mul_epu32(x, y1), _mm256_blend_epi32(mid, _mm256_setzero_si256(), 0xaa));
	wide high = _mm256_add_epi64(_mm256_mul_epu32(x1, y1),
		_mm256_add_epi64(_mm256_srli_epi64(mid, 32), _mm256_srli_epi64(mid2, 32)));

	return _mm256_xor_si256(_mm256_blend_epi32(low, _mm256_slli_epi64(mid2, 32), 0xaa), high);
}

/* The low 64 bits of x * factor. */
WIDE static inline wide wide_times(wide x, uint64_t factor)
{
	wide f = wide_set(factor), f1 = wide_set(factor >> 32);
	wide cross = _mm256_add_epi64(
		_mm256_mul_epu32(_mm256_srli_epi64(x, 32), f), _mm256_mul_epu32(x, f1));

	return _mm256_add_epi64(_mm256_mul_epu32(x, f), _mm256_slli_epi64(cross, 32));
}

WIDE static inline wide wide_avalanche(wide x)
{
	x = wide_times(_mm256_xor_si256(x, _mm256_srli_epi64(x, 37)), KEY_AVALANCHE);
	return _mm256_xor_si256(x, _mm256_srli_epi64(x, 32));
}

/* Word n of page keys, with the bits of the group. */
WIDE static inline wide wide_grouped(const struct key_text *text, unsigned n, wide word)
{
	return _mm256_blendv_epi8(
		word, wide_set(text->group.word[n]), wide_set(text->group_bits[n]));
}

/* Loads words 2n and 2n + 1 of four keys. */
WIDE static inline void wide_words(
	const struct pc_page *page, unsigned n, wide *ret_even, wide *ret_odd)
{
	wide a, b; /* keys 0 and 2; 1 and 3 */

#define PART(k) _mm_loadu_si128((const __m128i *)page[k].key + n)
	a = _mm256_inserti128_si256(_mm256_castsi128_si256(PART(0)), PART(2), 1);
	b = _mm256_inserti128_si256(_mm256_castsi128_si256(PART(1)), PART(3), 1);
#undef PART
	*ret_even = _mm256_unpacklo_epi64(a, b);
	*ret_odd = _mm256_unpackhi_epi64(a, b);
}

/* key_hash_usual() of four keys; the words of the page keys. */
WIDE static inline void keys_hash_four(
	const struct key_text *text, const struct pc_page *page, wide *ret_first, wide *ret_second)
{
	const uint64_t *secret = text->secret;
	wide a, b, low, high, sum;

	wide_words(page, 1, &a, &b);
	sum = _mm256_add_epi64(a, b);
	low = _mm256_add_epi64(wide_set(text->start[0]), wide_mix(a, b, secret + 6));
	low = _mm256_xor_si256(low, sum);
	high = _mm256_xor_si256(wide_mix(a, b, secret + 8), sum);
	wide_words(page, 0, &a, &b);
	low = _mm256_add_epi64(low, wide_mix(a, b, secret + 2));
	sum = _mm256_add_epi64(a, b);
	wide_words(page, 2, &a, &b);
	high = _mm256_xor_si256(_mm256_add_epi64(high, wide_mix(a, b, secret + 4)), sum);
	low = _mm256_xor_si256(low, _mm256_add_epi64(a, b));
	wide_words(page, 3, &a, &b);
	low = _mm256_xor_si256(
		_mm256_add_epi64(low, wide_set(text->name_space_mix)), _mm256_add_epi64(a, b));
	high = _mm256_xor_si256(
		_mm256_add_epi64(high, wide_mix(a, b, secret)), wide_set(text->name_space_sum));
	*ret_first = wide_grouped(text, 0, wide_avalanche(_mm256_add_epi64(low, high)));
	sum = _mm256_add_epi64(wide_times(low, KEY_PRIME_1), wide_times(high, KEY_PRIME_4));
	sum = wide_avalanche(_mm256_add_epi64(sum, wide_set(text->start[1])));
	*ret_second = wide_grouped(text, 1, _mm256_sub_epi64(_mm256_setzero_si256(), sum));
}

/* Stores the page keys of four pages. False: one of them is all zero, which means "no page". */
WIDE static inline bool keys_store_four(struct page_work *p, wide first, wide second)
{
	wide even = _mm256_unpacklo_epi64(first, second);
	wide odd = _mm256_unpackhi_epi64(first, second);
	wide none = _mm256_cmpeq_epi64(_mm256_or_si256(first, second), _mm256_setzero_si256());

#define KEY(k) ((__m128i *)(void *)&p[k].key)
	_mm_storeu_si128(KEY(0), _mm256_castsi256_si128(even));
	_mm_storeu_si128(KEY(1), _mm256_castsi256_si128(odd));
	_mm_storeu_si128(KEY(2), _mm256_extracti128_si256(even, 1));
	_mm_storeu_si128(KEY(3), _mm256_extracti128_si256(odd, 1));
#undef KEY
	return _mm256_testz_si256(none, none);
}

/* key_put() of four pages. */
WIDE static inline void keys_put_four(
	const struct pc_channel *ch, struct page_work *p, wide first, wide second)
{
	const char *cache = (const char *)ch->cache;
	wide set = _mm256_and_si256(_mm256_xor_si256(first, second), wide_set(CACHE_SETS - 1));
	wide at = _mm256_mul_epu32(set, wide_set(sizeof(struct cache_set)));
	__m128i set_low = _mm256_castsi256_si128(set), at_low = _mm256_castsi256_si128(at);
	__m128i set_high = _mm256_extracti128_si256(set, 1);
	__m128i at_high = _mm256_extracti128_si256(at, 1);

	p[0].cached = (uint32_t)_mm_cvtsi128_si32(set_low);
	p[1].cached = (uint32_t)_mm_extract_epi32(set_low, 2);
	p[2].cached = (uint32_t)_mm_cvtsi128_si32(set_high);
	p[3].cached = (uint32_t)_mm_extract_epi32(set_high, 2);
	__builtin_prefetch(cache + _mm_cvtsi128_si64(at_low));
	__builtin_prefetch(cache + _mm_extract_epi64(at_low, 1));
	__builtin_prefetch(cache + _mm_cvtsi128_si64(at_high));
	__builtin_prefetch(cache + _mm_extract_epi64(at_high, 1));
}

static inline bool keys_usual(const struct pc_page *page)
{
	return page[0].key_bytes == KEY_BYTES_USUAL && page[1].key_bytes == KEY_BYTES_USUAL &&
	       page[2].key_bytes == KEY_BYTES_USUAL && page[3].key_bytes == KEY_BYTES_USUAL;
}

/* Hashes all keys of the batch. No page is done, so each has a key. */
WIDE static void keys_hash_wide(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	const struct pc_page *pages = b->pages;
	uint32_t i = 0, end = b->count;

	for (; i + 4 <= end; i += 4) {
		struct page_work *p = &b->work[i];
		wide first, second;

		if (unlikely(!keys_usual(&pages[i]))) {
			keys_hash_each(b, i, i + 4);
			continue;
		}
		keys_hash_four(&ch->key_text, &pages[i], &first, &second);
		keys_put_four(ch, p, first, second);
		if (unlikely(!keys_store_four(p, first, second)))
			keys_hash_each(b, i, i + 4);
	}
	keys_hash_each(b, i, end);
}
#endif

void channel_epoch(struct pc_channel *ch)
{
	const struct epochs_shared *epochs;
	struct epoch epoch;
	uint32_t version;

	if (unlikely(!ch->session))
		return; /* the batch is refused */
	if (unlikely(ch->limits_told != shm_load(&ch->pc->limits)))
		limits_tell(ch);
	epochs = &ch->session->status->epochs;
	version = shm_load_acquire(&epochs->version);
	if (likely(version == ch->epochs_version))
		return;
	epoch = epoch_load(epochs, epoch_group(&ch->name_space.group));
	key_text_init(&ch->key_text, &ch->name_space, &epoch);
	ch->epochs_version = version;
}

void keys_hash(struct pc_batch *b)
{
	channel_epoch(b->channel);
#if defined(__x86_64__)
	if (likely(b->left == b->count && __builtin_cpu_supports("avx2"))) {
		keys_hash_wide(b);
		return;
	}
#endif
	keys_hash_each(b, 0, b->count);
}
