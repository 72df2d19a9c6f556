/* SPDX-License-Identifier: Apache-2.0 */
/* The token of the HTTP port. http_token.c says which thread calls what. */
#ifndef CONTROL_HTTP_TOKEN_INNER_H
#define CONTROL_HTTP_TOKEN_INNER_H

#include <stdbool.h>
#include <stdint.h>

#define HTTP_TOKEN_LEAST 16  /* characters */
#define HTTP_TOKEN_BYTES 256 /* with zeroes behind it, at least one */

struct http_token {
	const char *path; /* "": everybody may read */
	uint64_t version; /* of the file */
	char text[HTTP_TOKEN_BYTES];
};

/* 0, or -errno after logging. The caller keeps `path`. */
int http_token_open(const char *path, struct http_token *ret);
/* Reads the file again if it has changed. */
void http_token_refresh(struct http_token *token);
/* Whether a request with this value of the header Authorization may be answered. */
bool http_token_allows(const struct http_token *token, const char *authorization);

#endif
