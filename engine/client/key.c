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

static struct page_key digest(const void *bytes, size_t count)
{
	XXH128_hash_t hash = XXH3_128bits(bytes, count);

	return (struct page_key){{hash.low64, hash.high64}};
}

void key_name_space(const char *name_space, struct page_key *ret_digest)
{
	*ret_digest = digest(name_space, strlen(name_space));
}

void key_hash(
	const struct page_key *name_space, const void *key, size_t bytes, struct page_key *ret_key)
{
	unsigned char text[sizeof(struct page_key) + KEY_BYTES_MAX];
	const uint64_t word[2] = {htole64(name_space->word[0]), htole64(name_space->word[1])};

	memcpy(text, word, sizeof(word));
	memcpy(text + sizeof(struct page_key), key, bytes);
	*ret_key = digest(text, sizeof(struct page_key) + bytes);
	if (ret_key->word[0] == 0 && ret_key->word[1] == 0)
		ret_key->word[0] = 1; /* an all-zero page key would mean "no page" */
}
