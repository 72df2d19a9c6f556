/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The texts that etcd.c exchanges with the JSON gateway of etcd, version 3. Keys and values are in
 * base64 there, 64-bit numbers are strings. Pure functions of etcd.c: any thread.
 *
 * Each etcd_ask function returns the body of a request, which the caller frees, or NULL: no memory.
 * What etcd sends is not trusted: a field that is absent or of another type counts as not there.
 */
#ifndef CONTROL_ETCD_INNER_H
#define CONTROL_ETCD_INNER_H

#include "engine/control/members/members.h"

struct json_object;

/* keys that one list has, at most */
#define ETCD_LIST_MAX 1024
#define ETCD_LEASE_S 60
#define ETCD_KEY_BYTES (3 * NAME_BYTES_MAX + 2)

struct etcd_keys {
	/* all keys of the cluster begin with it; it ends with "/" */
	char start[2 * NAME_BYTES_MAX + 2];
	char own[ETCD_KEY_BYTES];
	char value[ADDRESS_TEXT_BYTES]; /* of the own key: this engine's address:port */
};

struct etcd_list {
	struct seed_address address[ETCD_LIST_MAX];
	unsigned count;
	unsigned bad; /* number of values that are no address */
	bool more;    /* there are more keys behind these */
	bool own;     /* the own key is among them */
};

char *etcd_ask_token(const char *user, const char *password);
/* seconds 0: keeps the lease alive; else grants it for that time */
char *etcd_ask_lease(int64_t lease, unsigned seconds);
char *etcd_ask_put(const struct etcd_keys *keys, int64_t lease);
/* Asks for the first ETCD_LIST_MAX keys. */
char *etcd_ask_list(const struct etcd_keys *keys);

/* Parses an answer; json_object_put() frees it. NULL: no JSON object, or too deep. */
struct json_object *etcd_parse(const char *text, size_t bytes);
/* The text of an error, valid as long as `answer`; NULL: it is no error. `answer` may be NULL. */
const char *etcd_error(struct json_object *answer);
/* The token of a login, which the caller frees; NULL: there is none. */
char *etcd_token(struct json_object *answer);
/* Time that a lease that was kept alive has; 0: that lease is gone. */
int64_t etcd_lease_seconds(struct json_object *answer);

/* ---- etcd_tls.c: https ----------------------------------------------------------------------- */

struct ssl_ctx_st;
struct bufferevent;
struct event_base;

/* Reads the files of the settings. Returns 0, or -errno with what is wrong in `why`. */
int etcd_tls_open(
	const struct settings *settings, struct ssl_ctx_st **ret_tls, char *why, size_t why_bytes);
/* Whether one of the files was changed since. */
bool etcd_tls_changed(const struct settings *settings, const struct ssl_ctx_st *tls);
void etcd_tls_free(struct ssl_ctx_st *tls);
/* A stream that is not connected yet; `host` is the name in the certificate. NULL: no memory. */
struct bufferevent *etcd_tls_stream(
	struct ssl_ctx_st *tls, struct event_base *base, const char *host);
/* Why a connection over it gave no answer. */
const char *etcd_tls_error(struct bufferevent *stream, char *ret, size_t bytes);

/* ---- lists ----------------------------------------------------------------------------------- */

/* `fallback`: the port of an address without one. */
void etcd_list(struct json_object *answer, const struct etcd_keys *keys, uint16_t fallback,
	struct etcd_list *ret);

#endif
