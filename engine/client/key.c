/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page key: the 128-bit XXH3 hash of (digest of the namespace, key). It is the same on every
 * machine and in every version, because the hash input is bytes in little-endian order, never
 * words. Any thread.
 */
#include "engine/client/client.h"

#include <endian.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define KEY_BYTES_USUAL 64u /* length of SGLang's keys: SHA-256 in hexadecimal */

static struct page_key digest(const void *bytes, size_t count)
{
	XXH128_hash_t hash = XXH3_128bits(bytes, count);

	return (struct page_key){{hash.low64, hash.high64}};
}

void key_name_space(const char *name_space, struct page_key *ret_digest)
{
	*ret_digest = digest(name_space, strlen(name_space));
}

/* ---- keys of the usual length ---------------------------------------------------------------- */

static inline uint64_t word_at(const unsigned char *at)
{
	uint64_t word;

	memcpy(&word, at, sizeof(word));
	return le64toh(word);
}

/* XXH3's mix of 16 bytes, given as two words, with its secret at `offset`. */
static inline uint64_t mix(uint64_t a, uint64_t b, unsigned offset)
{
	return XXH3_mul128_fold64(
		a ^ word_at(XXH3_kSecret + offset), b ^ word_at(XXH3_kSecret + offset + 8));
}

/*
 * XXH3_128bits() of the namespace's digest and a key of KEY_BYTES_USUAL bytes: the algorithm for
 * 65 to 96 bytes, written out because its 16-byte blocks are then whole parts of the key or the
 * digest. So the key is not copied, and the part of the digest is computed once.
 */
static struct page_key digest_usual(const struct key_text *text, const unsigned char *key)
{
	const uint64_t bytes = sizeof(struct page_key) + KEY_BYTES_USUAL;
	uint64_t a = word_at(key + 16), b = word_at(key + 24), c, d;
	uint64_t low = (bytes * XXH_PRIME64_1 + mix(a, b, 64)) ^ (a + b);
	uint64_t high = mix(a, b, 80) ^ (a + b);

	a = word_at(key);
	b = word_at(key + 8);
	c = word_at(key + 32);
	d = word_at(key + 40);
	low = (low + mix(a, b, 32)) ^ (c + d);
	high = (high + mix(c, d, 48)) ^ (a + b);
	c = word_at(key + 48);
	d = word_at(key + 56);
	low = (low + text->name_space_mix) ^ (c + d);
	high = (high + mix(c, d, 16)) ^ text->name_space_sum;
	return (struct page_key){{XXH3_avalanche(low + high),
		0 - XXH3_avalanche(
			    low * XXH_PRIME64_1 + high * XXH_PRIME64_4 + bytes * XXH_PRIME64_2)}};
}

/* ---- keys ------------------------------------------------------------------------------------ */

void key_text_init(struct key_text *text, const struct page_key *name_space)
{
	const uint64_t word[2] = {htole64(name_space->word[0]), htole64(name_space->word[1])};

	memcpy(text->name_space, word, sizeof(word));
	text->name_space_mix = mix(name_space->word[0], name_space->word[1], 0);
	text->name_space_sum = name_space->word[0] + name_space->word[1];
}

/* A key of any length. A function of its own, so that key_hash() needs few registers. */
__attribute__((noinline)) static struct page_key digest_any(
	struct key_text *text, const void *key, size_t bytes)
{
	memcpy(text->key, key, bytes);
	return digest(text, sizeof(struct page_key) + bytes);
}

void key_hash(struct key_text *text, const void *key, size_t bytes, struct page_key *ret_key)
{
	*ret_key = likely(bytes == KEY_BYTES_USUAL) ? digest_usual(text, key)
						    : digest_any(text, key, bytes);
	if (unlikely((ret_key->word[0] | ret_key->word[1]) == 0))
		ret_key->word[0] = 1; /* an all-zero page key would mean "no page" */
}
