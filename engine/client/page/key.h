/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hash of keys of the usual length, written out because every page of every call needs it:
 * XXH3_128bits() of the namespace's digest and a key of KEY_BYTES_USUAL bytes, the algorithm for 65
 * to 96 bytes. Its 16-byte blocks are then whole parts of the key or the digest, so the key is not
 * copied, and the part of the digest is computed once. Any thread.
 */
#ifndef CLIENT_KEY_H
#define CLIENT_KEY_H

#include <endian.h>
#include <string.h>

#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/epoch.h"
#include "engine/abi/page.h"

#define KEY_BYTES_USUAL 64u /* length of SGLang's keys: SHA-256 in hexadecimal */
/* XXH3's numbers: the first, second and fourth 64-bit prime, and the factor of the avalanche */
#define KEY_PRIME_1 0x9e3779b185ebca87ull
#define KEY_PRIME_2 0xc2b2ae3d27d4eb4full
#define KEY_PRIME_4 0x85ebca77c2b2ae63ull
#define KEY_AVALANCHE 0x165667919e3779f9ull

#define KEY_WORDS_BYTES 192u /* XXH_SECRET_DEFAULT_SIZE */

/*
 * The input of the key hash: the digest of a namespace, in little-endian bytes, then a key. Behind
 * it, what the hash of a key of the usual length needs besides the key.
 */
struct key_text {
	alignas(16) unsigned char name_space[sizeof(struct page_key)];
	unsigned char key[KEY_BYTES_MAX];
	uint64_t name_space_mix, name_space_sum; /* computed of the digest alone */
	/* key_space.group, and the bits of its epochs */
	struct page_key group;
	/* in memory, because constants of this length take up to three instructions each: */
	uint64_t group_bits[2]; /* KEY_FIXED_*: those of `group` */
	uint64_t start[2];      /* first and second prime, times the number of bytes hashed */
	uint64_t secret[10];    /* `words` from byte 16 on */
	/* in place of XXH3's constants, or these */
	unsigned char words[KEY_WORDS_BYTES];
};
static_assert(offsetof(struct key_text, key) == sizeof(struct page_key), "hashed as one text");

/* A namespace, hashed: what its page keys need of it. */
struct key_space {
	struct page_key digest; /* of the whole text */
	struct page_key group;  /* bits of PAGE_GROUP_*, of the text in front of KEY_GROUP_END */
	struct page_key plain;  /* with a secret: hash of the text without it */
	unsigned char words[KEY_WORDS_BYTES];
};
#define KEY_GROUP_END "||"
/* bits of a page key that are the same in all keys of a namespace and an epoch */
#define KEY_FIXED_0 (PAGE_GROUP_0 | PAGE_EPOCH_0)
#define KEY_FIXED_1 PAGE_GROUP_1

/*
 * A secret of a tenant. Namespaces are then hashed by BLAKE2b with it as the key, so that another
 * tenant with the same namespaces has other page keys. In a page of its own, which is not in core
 * dumps and is all zero in children of fork().
 */
struct key_secret {
	unsigned bytes;
	char byte[64]; /* the longest key of BLAKE2b */
};
#define KEY_SECRET_BYTES_MIN 32u

/*
 * Hashes a namespace; `secret` may be NULL. *ret has one, or is all zero. Returns 0, or -errno
 * with an error text: then *ret is a namespace that no process has.
 */
int key_name_space(const struct key_secret *secret, const char *name_space, struct key_space *ret);
/*
 * Prepares `text` for key_hash(): writes the digest of the namespace and its epochs in front of the
 * place of the key, once for all keys of the namespace.
 */
void key_text_init(
	struct key_text *text, const struct key_space *name_space, const struct epoch *epoch);

__extension__ typedef unsigned __int128 key_wide;

/* XXH3's mix of 16 bytes, given as two words, with two words of its secret. */
static inline uint64_t key_mix(uint64_t a, uint64_t b, const uint64_t *secret)
{
	key_wide product = (key_wide)(a ^ secret[0]) * (b ^ secret[1]);

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t key_avalanche(uint64_t x)
{
	x = (x ^ x >> 37) * KEY_AVALANCHE;
	return x ^ x >> 32;
}

static inline uint64_t key_word(const unsigned char *key, unsigned i)
{
	uint64_t word;

	memcpy(&word, key + 8 * (size_t)i, sizeof(word));
	return le64toh(word);
}

static inline struct page_key key_hash_usual(const struct key_text *text, const unsigned char *key)
{
	const uint64_t bytes = sizeof(struct page_key) + KEY_BYTES_USUAL, *secret = text->secret;
	uint64_t a = key_word(key, 2), b = key_word(key, 3), c, d;
	uint64_t low = (bytes * KEY_PRIME_1 + key_mix(a, b, secret + 6)) ^ (a + b);
	uint64_t high = key_mix(a, b, secret + 8) ^ (a + b);

	a = key_word(key, 0);
	b = key_word(key, 1);
	c = key_word(key, 4);
	d = key_word(key, 5);
	low = (low + key_mix(a, b, secret + 2)) ^ (c + d);
	high = (high + key_mix(c, d, secret + 4)) ^ (a + b);
	c = key_word(key, 6);
	d = key_word(key, 7);
	low = (low + text->name_space_mix) ^ (c + d);
	high = (high + key_mix(c, d, secret)) ^ text->name_space_sum;
	return (struct page_key){{key_avalanche(low + high),
		0 - key_avalanche(low * KEY_PRIME_1 + high * KEY_PRIME_4 + bytes * KEY_PRIME_2)}};
}

/* The page key of a key of another length: see key_hash(). */
struct page_key key_hash_any(struct key_text *text, const void *key, size_t bytes);

/* The page key of `key`, at most KEY_BYTES_MAX bytes. Overwrites the key in `text`. */
static inline void key_hash(
	struct key_text *text, const void *key, size_t bytes, struct page_key *ret_key)
{
	struct page_key hash = likely(bytes == KEY_BYTES_USUAL) ? key_hash_usual(text, key)
								: key_hash_any(text, key, bytes);

	ret_key->word[0] = (hash.word[0] & ~KEY_FIXED_0) | text->group.word[0];
	ret_key->word[1] = (hash.word[1] & ~KEY_FIXED_1) | text->group.word[1];
	if (unlikely(page_key_none(ret_key)))
		ret_key->word[0] = 1; /* an all-zero page key would mean "no page" */
}

struct pc_batch;
struct pc_channel;

/*
 * Looks whether a clear has raised the epochs of the channel's namespace since its last key, and
 * prepares the text of its keys anew then. Channel thread.
 */
void channel_epoch(struct pc_channel *ch);
/* Hashes the keys of all pages of a batch that are not done. Channel thread. */
void keys_hash(struct pc_batch *b);

#endif
