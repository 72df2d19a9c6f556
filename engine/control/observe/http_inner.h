/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small HTTP/1 server on libevent for pages that only read: GET and HEAD, one request for each
 * connection. Everything is bounded: connections, bytes of a request, time for a request and for a
 * response. libevent's evhttp (2.1.12) is not used, because its time-out starts again with every
 * byte that comes, and it has no limit of connections nor a choice of the one that gives way.
 * One thread: the one that runs the event base.
 */
#ifndef CONTROL_HTTP_INNER_H
#define CONTROL_HTTP_INNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct evbuffer;
struct event_base;
struct http;

#define HTTP_CONNECTIONS_MAX 256u /* at this number one gives way to a new one */
#define HTTP_REQUEST_BYTES 4096u  /* request line and headers */
#define HTTP_PATH_BYTES 256u      /* with its terminating zero; a query is cut off */
#define HTTP_REQUEST_MS 5000u     /* from the connection to the end of the request */
#define HTTP_RESPONSE_MS 10000u   /* from there to the last byte taken by the client */
#define HTTP_LINGER_MS 1000u      /* from there to the client's close */

#define HTTP_AUTHORIZATION_BYTES 512u /* of the header, with its terminating zero */

struct http_request {
	bool head; /* HEAD: headers only */
	char path[HTTP_PATH_BYTES];
	/* the first header of that name; "": there is none, or it is too long */
	char authorization[HTTP_AUTHORIZATION_BYTES];
	int fd; /* of the connection */
};

/*
 * Parses a request. > 0: its length, *ret is filled. 0: it is not complete. < 0: the negated status
 * to answer with: -400, -405 (neither GET nor HEAD), -414, -431 or -505.
 */
int http_parse(const char *text, size_t bytes, struct http_request *ret);

struct http_response {
	unsigned status;
	const char *type;      /* of the content */
	const char *headers;   /* more header lines, each ending in CRLF; "" */
	struct evbuffer *body; /* empty; the server's. What many share is added by reference */
};

/* Fills *ret, which says 404 with an empty body. Must not block. */
typedef void (*http_answer)(
	void *context, const struct http_request *request, struct http_response *ret);

/* Takes the listening socket over. 0 or -errno; on failure `fd` is closed. */
int http_open(
	struct event_base *base, int fd, http_answer answer, void *context, struct http **ret_http);
#define HTTP_TLS_PATH_BYTES 1024

struct http_tls {
	struct ssl_ctx_st *ctx; /* NULL: http */
	uint64_t version;       /* of the files */
	char chain[HTTP_TLS_PATH_BYTES], key[HTTP_TLS_PATH_BYTES];
};

/* Folder "": http. Returns 0, or -errno after logging. */
int http_tls_open(const char *folder, struct http_tls *ret);
/* Reads the files again if they have changed. */
void http_tls_refresh(struct http_tls *tls);
void http_tls_close(struct http_tls *tls);
/* The handshake of a connection has failed; why: in words. */
typedef void (*http_refused)(void *context, int fd, const char *why);
/* From now on connections are https. The caller keeps `tls`. */
void http_secure(struct http *http, const struct http_tls *tls, http_refused refused);
void http_close(struct http *http);
unsigned http_connections(const struct http *http);

#endif
