/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page key: the 128-bit XXH3 hash of (digest of the namespace, key), with the bits of the
 * namespace's group. It is the same on every machine and in every version, because the hash input
 * is bytes in little-endian order, never words. Any thread.
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

void key_name_space(const char *name_space, struct key_space *ret)
{
	const char *end = strstr(name_space, KEY_GROUP_END);

	ret->digest = digest(name_space, strlen(name_space));
	ret->group = end ? digest(name_space, (size_t)(end - name_space)) : ret->digest;
	ret->group.word[0] &= PAGE_GROUP_0;
	ret->group.word[1] &= PAGE_GROUP_1;
}

void key_text_init(struct key_text *text, const struct key_space *space)
{
	const struct page_key *name_space = &space->digest;
	const uint64_t word[2] = {htole64(name_space->word[0]), htole64(name_space->word[1])};

	text->group = space->group;
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
