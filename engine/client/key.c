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

void key_text_init(struct key_text *text, const struct page_key *name_space)
{
	const uint64_t word[2] = {htole64(name_space->word[0]), htole64(name_space->word[1])};

	memcpy(text->name_space, word, sizeof(word));
}

void key_hash(struct key_text *text, const void *key, size_t bytes, struct page_key *ret_key)
{
	if (likely(bytes == KEY_BYTES_USUAL)) /* a constant length: the copy is a few moves */
		memcpy(text->key, key, KEY_BYTES_USUAL);
	else
		memcpy(text->key, key, bytes);
	*ret_key = digest(text, sizeof(struct page_key) + bytes);
	if (ret_key->word[0] == 0 && ret_key->word[1] == 0)
		ret_key->word[0] = 1; /* an all-zero page key would mean "no page" */
}
