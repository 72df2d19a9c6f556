/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page key: the 128-bit XXH3 hash of (digest of the namespace, key). It is the same on every
 * machine and in every version, because the hash input is bytes in little-endian order, never
 * words. Any thread.
 */
#include "engine/abi/page.h"
#include "engine/client/key.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static struct page_key digest(const void *bytes, size_t count)
{
	XXH128_hash_t hash = XXH3_128bits(bytes, count);

	return (struct page_key){{hash.low64, hash.high64}};
}

void key_name_space(const char *name_space, struct page_key *ret_digest)
{
	*ret_digest = digest(name_space, strlen(name_space));
}

void key_text_init(struct key_text *text, const struct page_key *name_space)
{
	const uint64_t word[2] = {htole64(name_space->word[0]), htole64(name_space->word[1])};

	memcpy(text->name_space, word, sizeof(word));
	for (unsigned i = 0; i < sizeof(text->secret) / sizeof(text->secret[0]); i++)
		text->secret[i] = key_word(XXH3_kSecret + 16, i);
	text->name_space_mix = XXH3_mul128_fold64(name_space->word[0] ^ key_word(XXH3_kSecret, 0),
		name_space->word[1] ^ key_word(XXH3_kSecret, 1));
	text->name_space_sum = name_space->word[0] + name_space->word[1];
}

struct page_key key_hash_any(struct key_text *text, const void *key, size_t bytes)
{
	memcpy(text->key, key, bytes);
	return digest(text, sizeof(struct page_key) + bytes);
}
