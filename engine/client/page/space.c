/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hashes of namespaces: XXH3 without a secret, BLAKE2b with one as its key. A page key is a hash of
 * this one (key.c), so software that lacks the secret computes other page
 * keys. Any thread.
 */
#include "config/clock.h"
#include "engine/client/error.h"
#include "engine/client/page/key.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <pthread.h>
#include <string.h>
#include <sys/random.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static struct page_key key_digest(const void *bytes, size_t count)
{
	XXH128_hash_t hash = XXH3_128bits(bytes, count);

	return (struct page_key){{hash.low64, hash.high64}};
}

static EVP_MAC *blake2b;

static void blake2b_find(void)
{
	blake2b = EVP_MAC_fetch(NULL, "BLAKE2BMAC", NULL);
}

/* `use`: of the hash, at most 16 characters. False: no memory. Leaves no copy of the secret. */
static bool secret_hash(const struct key_secret *secret, const char *use, const char *text,
	size_t bytes, unsigned char *ret, size_t ret_bytes)
{
	size_t size = ret_bytes;
	const OSSL_PARAM params[] = {OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size),
		OSSL_PARAM_construct_octet_string(
			OSSL_MAC_PARAM_CUSTOM, (void *)(uintptr_t)use, strlen(use)),
		OSSL_PARAM_construct_end()};
	EVP_MAC_CTX *mac = EVP_MAC_CTX_new(blake2b);
	bool done = mac &&
		    EVP_MAC_init(mac, (const unsigned char *)secret->byte, secret->bytes, params) &&
		    EVP_MAC_update(mac, (const unsigned char *)text, bytes) &&
		    EVP_MAC_final(mac, ret, &size, ret_bytes) && size == ret_bytes;

	EVP_MAC_CTX_free(mac);
	return done;
}

static bool secret_digest(const struct key_secret *secret, const char *use, const char *text,
	size_t bytes, struct page_key *ret)
{
	unsigned char out[sizeof(*ret)] = {0};
	bool done = secret_hash(secret, use, text, bytes, out, sizeof(out));

	*ret = (struct page_key){{key_word(out, 0), key_word(out, 1)}};
	return done;
}

/*
 * The page key is no cryptographic hash of the digest: with XXH3's own constants, a process that
 * sees the page keys of two known texts could compute that of any text.
 */
static bool secret_words(
	const struct key_secret *secret, const char *text, unsigned char ret[KEY_WORDS_BYTES])
{
	static const char *const use[] = {"pc words 0", "pc words 1", "pc words 2"};
	const size_t part = KEY_WORDS_BYTES / 3;
	bool done = true;

	for (size_t i = 0; i < 3 && done; i++)
		done = secret_hash(secret, use[i], text, strlen(text), ret + i * part, part);
	return done;
}

/* The rest of key_name_space(). `group`: bytes of the text in front of KEY_GROUP_END. */
static int key_name_space_secret(
	const struct key_secret *secret, const char *text, size_t group, struct key_space *ret)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct page_key plain = key_digest(text, strlen(text));

	/* processes use few namespaces, and name one for each call */
	if (page_key_equal(&plain, &ret->plain))
		return 0;
	pthread_once(&once, blake2b_find);
	if (blake2b && secret_digest(secret, "pc namespace", text, strlen(text), &ret->digest) &&
		secret_digest(secret, "pc group", text, group, &ret->group) &&
		secret_words(secret, text, ret->words)) {
		ret->plain = plain;
		return 0;
	}
	/* a namespace that no other process has, nor this one again */
	*ret = (struct key_space){.digest = {{clock_monotonic_ns(), (uintptr_t)ret}}};
	(void)!getrandom(&ret->digest, sizeof(ret->digest), GRND_NONBLOCK);
	return error_set(blake2b ? -ENOMEM : -EINVAL,
		"a namespace cannot be hashed with its secret: %s",
		blake2b ? "out of memory" : "OpenSSL has no BLAKE2b here; see its configuration");
}

int key_name_space(const struct key_secret *secret, const char *name_space, struct key_space *ret)
{
	const char *end = strstr(name_space, KEY_GROUP_END);
	size_t group = end ? (size_t)(end - name_space) : strlen(name_space);
	int rc = 0;

	if (secret) {
		rc = key_name_space_secret(secret, name_space, group, ret);
	} else {
		ret->digest = key_digest(name_space, strlen(name_space));
		ret->group = key_digest(name_space, group);
		memcpy(ret->words, XXH3_kSecret, sizeof(ret->words));
	}
	ret->group.word[0] &= PAGE_GROUP_0;
	ret->group.word[1] &= PAGE_GROUP_1;
	return rc;
}
