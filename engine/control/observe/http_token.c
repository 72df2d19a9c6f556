/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The token that readers of the HTTP port send, from metrics.token_file: as a bearer, or as the
 * password of any user, for which browsers ask. The file is read again when it has changed; one
 * that is wrong then leaves the token as it was. The metrics thread; http_token_open(): any thread.
 */
#include <ctype.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>
#include <strings.h>

#include "config/log.h"
#include "config/secret_file.h"
#include "engine/control/observe/http_inner.h"
#include "engine/control/observe/http_token_inner.h"

/* Reads the file. Returns 0, or -errno after logging; *ret is unchanged then. */
static int token_read(const char *path, char ret[HTTP_TOKEN_BYTES])
{
	char text[HTTP_TOKEN_BYTES] = "";
	const char *wrong;
	int n = secret_file_read(path, text, sizeof(text) - 1, &wrong);

	for (int i = 0; i < n; i++) {
		if (isgraph((unsigned char)text[i]))
			continue;
		wrong = "it has more than one word";
		n = -EINVAL;
	}
	if (n >= 0 && n < HTTP_TOKEN_LEAST) {
		wrong = "it has less than 16 characters; make one with openssl rand -hex 32";
		n = -EINVAL;
	}
	if (n >= 0) {
		memset(ret, 0, HTTP_TOKEN_BYTES);
		memcpy(ret, text, (size_t)n);
	} else {
		log_error("metrics.token_file %s: %s", path, wrong);
	}
	explicit_bzero(text, sizeof(text));
	return n < 0 ? n : 0;
}

int http_token_open(const char *path, struct http_token *ret)
{
	*ret = (struct http_token){.path = path};
	if (!*path)
		return 0;
	ret->version = files_version(&path, 1);
	return token_read(path, ret->text);
}

void http_token_refresh(struct http_token *token)
{
	uint64_t version = *token->path ? files_version(&token->path, 1) : token->version;

	if (version == token->version)
		return;
	token->version = version;
	if (token_read(token->path, token->text) == 0)
		log_info("metrics.token_file %s was read again", token->path);
	else
		log_error("metrics: the token of before is still accepted");
}

/* The password of "user:password" in base64; "": there is none. It is written into `text`. */
static const char *basic_password(const char *coded, char text[HTTP_AUTHORIZATION_BYTES])
{
	size_t bytes = strlen(coded);
	int n = bytes % 4 ? -1
			  : EVP_DecodeBlock((unsigned char *)text, (const unsigned char *)coded,
				    (int)bytes);
	const char *colon;

	text[n > 0 ? n : 0] = '\0'; /* padding was decoded to zero bytes */
	colon = strchr(text, ':');
	return colon ? colon + 1 : "";
}

bool http_token_allows(const struct http_token *token, const char *authorization)
{
	char text[HTTP_AUTHORIZATION_BYTES] = "", given[HTTP_TOKEN_BYTES] = "";
	const char *word = "";
	bool allowed;

	if (!*token->path)
		return true;
	if (!strncasecmp(authorization, "Bearer ", 7))
		word = authorization + 7;
	else if (!strncasecmp(authorization, "Basic ", 6))
		word = basic_password(authorization + 6, text);
	strncpy(given, word, sizeof(given) - 1);
	/* all bytes are compared, whatever the word is; a longer one was cut */
	allowed = CRYPTO_memcmp(given, token->text, sizeof(given)) == 0 &&
		  strlen(word) < sizeof(given);
	explicit_bzero(text, sizeof(text));
	explicit_bzero(given, sizeof(given));
	return allowed;
}
