/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of engines to join, from etcd (cluster.etcd), by the JSON gateway of its version 3.
 * Each engine keeps a key with its own address, PREFIX + cluster.id + "/" + name, under a lease of
 * ETCD_LEASE_S, and lists the keys of the others every ETCD_PERIOD_S. etcd gives addresses and
 * nothing else: a key that expires removes no member, and the cluster works on without etcd.
 *
 * A round with one endpoint is: resolve its name, log in (with cluster.etcd_user), keep the lease
 * alive, grant it and store the key if either is gone, list. The endpoint that finished the last
 * round is asked again; when it fails, the next one is. An answer takes at most ETCD_ANSWER_S, and
 * a round ends when the next one is due.
 *
 * The texts of requests and answers are made and read by pure functions, which etcd_inner.h
 * describes. Control plane's thread only; nothing blocks.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "config/text_fit.h"
#include "engine/control/members/etcd_inner.h"
#include "engine/control/members/members_inner.h"
#include "engine/control/net/net.h"

#define ETCD_ENDPOINTS_MAX 8
#define ETCD_PERIOD_S 10
#define ETCD_ANSWER_S 2
#define ETCD_BODY_MAX (1 << 20) /* bytes of an answer that is read: ETCD_LIST_MAX long keys */

#define DEPTH_MAX 8 /* levels of an answer; etcd uses four */
#define BASE64_BYTES(bytes) (((bytes) + 2) / 3 * 4 + 1)

/* ---- texts of requests ----------------------------------------------------------------------- */

/* Returns the text of the object, and frees the object. */
static char *etcd_text(json_object *object)
{
	const char *text = json_object_to_json_string_ext(object, JSON_C_TO_STRING_PLAIN);
	char *copy = text ? strdup(text) : NULL;

	json_object_put(object);
	return copy;
}

static void etcd_add_text(json_object *object, const char *name, const char *text)
{
	json_object_object_add(object, name, json_object_new_string(text));
}

static void etcd_add_number(json_object *object, const char *name, int64_t number)
{
	json_object_object_add(object, name, json_object_new_int64(number));
}

/* text: shorter than ETCD_KEY_BYTES */
static void etcd_base64(const char *text, char ret[BASE64_BYTES(ETCD_KEY_BYTES)])
{
	EVP_EncodeBlock((unsigned char *)ret, (const unsigned char *)text, (int)strlen(text));
}

static void etcd_add_base64(json_object *object, const char *name, const char *text)
{
	char coded[BASE64_BYTES(ETCD_KEY_BYTES)];

	etcd_base64(text, coded);
	etcd_add_text(object, name, coded);
}

char *etcd_ask_token(const char *user, const char *password)
{
	json_object *ask = json_object_new_object();

	etcd_add_text(ask, "name", user);
	etcd_add_text(ask, "password", password);
	return etcd_text(ask);
}

char *etcd_ask_lease(int64_t lease, unsigned seconds)
{
	json_object *ask = json_object_new_object();

	etcd_add_number(ask, "ID", lease);
	if (seconds)
		etcd_add_number(ask, "TTL", seconds);
	return etcd_text(ask);
}

char *etcd_ask_put(const struct etcd_keys *keys, int64_t lease)
{
	json_object *ask = json_object_new_object();

	etcd_add_base64(ask, "key", keys->own);
	etcd_add_base64(ask, "value", keys->value);
	etcd_add_number(ask, "lease", lease);
	return etcd_text(ask);
}

char *etcd_ask_list(const struct etcd_keys *keys)
{
	json_object *ask = json_object_new_object();
	char end[ETCD_KEY_BYTES];

	/* The first key behind all that begin with `start`: its last character is one higher. */
	snprintf(end, sizeof(end), "%s", keys->start);
	end[strlen(end) - 1]++;
	etcd_add_base64(ask, "key", keys->start);
	etcd_add_base64(ask, "range_end", end);
	etcd_add_number(ask, "limit", ETCD_LIST_MAX);
	/* The endpoint answers alone, also when etcd has no majority: an old list will do. */
	json_object_object_add(ask, "serializable", json_object_new_boolean(true));
	return etcd_text(ask);
}

/* ---- texts of answers ------------------------------------------------------------------------ */

/* The field of that type; NULL: there is none. `object` may be NULL. */
static json_object *etcd_field(json_object *object, const char *name, enum json_type type)
{
	json_object *found = NULL;

	if (!json_object_is_type(object, json_type_object) ||
		!json_object_object_get_ex(object, name, &found))
		return NULL;
	return json_object_is_type(found, type) ? found : NULL;
}

static const char *etcd_field_text(json_object *object, const char *name)
{
	json_object *found = etcd_field(object, name, json_type_string);

	return found ? json_object_get_string(found) : NULL;
}

struct json_object *etcd_parse(const char *text, size_t bytes)
{
	struct json_tokener *tokener = json_tokener_new_ex(DEPTH_MAX);
	json_object *answer = NULL;

	if (tokener && text && bytes <= INT32_MAX)
		answer = json_tokener_parse_ex(tokener, text, (int)bytes);
	if (tokener)
		json_tokener_free(tokener);
	if (json_object_is_type(answer, json_type_object))
		return answer;
	json_object_put(answer);
	return NULL;
}

const char *etcd_error(struct json_object *answer)
{
	const char *text = etcd_field_text(answer, "error");

	/* the answer to keepalive is a stream, whose errors are objects */
	return text ? text
		    : etcd_field_text(etcd_field(answer, "error", json_type_object), "message");
}

char *etcd_token(struct json_object *answer)
{
	const char *token = etcd_field_text(answer, "token");

	return token && !strpbrk(token, "\r\n") ? strdup(token) : NULL;
}

int64_t etcd_lease_seconds(struct json_object *answer)
{
	const char *seconds =
		etcd_field_text(etcd_field(answer, "result", json_type_object), "TTL");

	return seconds ? strtoll(seconds, NULL, 10) : 0;
}

/* Decodes `coded` into `ret` of `room` bytes. False: it does not fit, or is not base64. */
static bool etcd_decode(const char *coded, char *ret, size_t room)
{
	size_t bytes = strlen(coded);
	int n;

	if (bytes + 1 > room || bytes % 4)
		return false;
	n = EVP_DecodeBlock((unsigned char *)ret, (const unsigned char *)coded, (int)bytes);
	if (n < 0)
		return false;
	ret[n] = '\0'; /* padding was decoded to zero bytes, so a text ends where it should */
	return true;
}

/* Appends the address of one key, unless it is the engine's own. */
static void etcd_list_add(
	json_object *kv, const struct etcd_keys *keys, uint16_t fallback, struct etcd_list *ret)
{
	const char *key = etcd_field_text(kv, "key"), *value = etcd_field_text(kv, "value");
	char own[BASE64_BYTES(ETCD_KEY_BYTES)], text[2 * NAME_BYTES_MAX];

	etcd_base64(keys->own, own);
	if (key && strcmp(key, own) == 0)
		ret->own = true;
	else if (value && etcd_decode(value, text, sizeof(text)) &&
		 seed_parse(text, fallback, &ret->address[ret->count]) == 0)
		ret->count++;
	else
		ret->bad++;
}

void etcd_list(struct json_object *answer, const struct etcd_keys *keys, uint16_t fallback,
	struct etcd_list *ret)
{
	json_object *kvs = etcd_field(answer, "kvs", json_type_array), *more;
	size_t count = kvs ? json_object_array_length(kvs) : 0;

	*ret = (struct etcd_list){0};
	more = etcd_field(answer, "more", json_type_boolean);
	ret->more = more && json_object_get_boolean(more);
	for (size_t i = 0; i < count && ret->count < ETCD_LIST_MAX; i++)
		etcd_list_add(json_object_array_get_idx(kvs, i), keys, fallback, ret);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

enum step { STEP_IDLE, STEP_NAME, STEP_LOGIN, STEP_KEEP, STEP_GRANT, STEP_PUT, STEP_LIST };

static const char *const path_of[] = {
	[STEP_LOGIN] = "/v3/auth/authenticate",
	[STEP_KEEP] = "/v3/lease/keepalive",
	[STEP_GRANT] = "/v3/lease/grant",
	[STEP_PUT] = "/v3/kv/put",
	[STEP_LIST] = "/v3/kv/range",
};

struct endpoint {
	char name[ADDRESS_TEXT_BYTES]; /* host:port, for the log and the header Host */
	char host[NAME_BYTES_MAX];
	uint16_t port;
	char at[NAME_BYTES_MAX]; /* address of the last round; "": none */
	bool tls;                /* https */
	unsigned tried; /* rounds that failed; modulo the number of addresses, which is next */
	bool failing;   /* the last round failed, and the reason was logged */
};

struct etcd {
	struct control *control;
	struct net_timer *tick;
	struct net_resolver *dns;
	struct etcd_keys keys;
	int64_t lease;         /* random number that this engine gave its lease; not 0 */
	bool stored;           /* the key was stored under this lease */
	bool listed;           /* a round has succeeded */
	struct etcd_list list; /* that is used now */
	char user[NAME_BYTES_MAX];
	char password[NAME_BYTES_MAX];
	unsigned endpoints;
	struct endpoint endpoint[ETCD_ENDPOINTS_MAX];

	/* ---- the round ---- */
	unsigned at;             /* the endpoint that is asked */
	unsigned fails;          /* rounds in a row, with any endpoint */
	struct net_query *query; /* of its name, in STEP_NAME; NULL: none is in progress */
	struct evhttp_connection *connection; /* of the last round; NULL: there was none */
	struct ssl_ctx_st *tls;               /* of https; NULL: none yet, or a round failed */
	enum step step;
	char *token; /* of the last login, owned; NULL: none */
};

static void etcd_ask(struct etcd *etcd, enum step step);

/* The next endpoint is asked, at once until each has been. */
static void round_failed(struct etcd *etcd, const char *why)
{
	struct endpoint *endpoint = &etcd->endpoint[etcd->at];
	char text[SEED_WHY_BYTES];

	if (!endpoint->failing)
		log_warn(
			"cluster.etcd %s: %s. It is asked again every %d s; the members stay members",
			endpoint->name, why, ETCD_PERIOD_S);
	endpoint->failing = true;
	endpoint->tried++;
	text_fit(text, sizeof(text), "%s: %s", endpoint->name, why);
	seed_source_read(etcd->control, SEED_ETCD, text);
	etcd->step = STEP_IDLE;
	/* a token expires, and is invalid after a restart of etcd: the next round logs in again */
	free(etcd->token);
	etcd->token = NULL;
	etcd->at = (etcd->at + 1) % etcd->endpoints;
	if (++etcd->fails % etcd->endpoints)
		net_timer_set(etcd->tick, 0);
}

/* Sets endpoint->at. The address that answered last stays, while the name has it or has none. */
static void endpoint_choose(struct endpoint *endpoint, const struct addrinfo *found)
{
	const struct addrinfo *each = found;
	char address[NAME_BYTES_MAX] = "";

	for (; !endpoint->failing && each; each = each->ai_next)
		if (getnameinfo(each->ai_addr, each->ai_addrlen, address, sizeof(address), NULL, 0,
			    NI_NUMERICHOST) == 0 &&
			strcmp(address, endpoint->at) == 0)
			return;
	if (!found && !endpoint->failing)
		return;
	endpoint->at[0] = '\0';
	each = found;
	for (unsigned skip = endpoint->tried; skip && each; skip--)
		each = each->ai_next ? each->ai_next : found;
	if (each)
		(void)getnameinfo(each->ai_addr, each->ai_addrlen, endpoint->at,
			sizeof(endpoint->at), NULL, 0, NI_NUMERICHOST);
}

/* NULL: the round has failed. */
static struct evhttp_connection *etcd_connection(struct etcd *etcd, const struct endpoint *endpoint)
{
	struct bufferevent *stream = NULL;
	struct evhttp_connection *made;
	char why[160];

	if (endpoint->tls) {
		/* files are parsed on this thread: at the start, and when they have changed */
		if (etcd->tls && etcd->fails &&
			etcd_tls_changed(etcd->control->settings, etcd->tls)) {
			etcd_tls_free(etcd->tls);
			etcd->tls = NULL;
		}
		if (!etcd->tls &&
			etcd_tls_open(etcd->control->settings, &etcd->tls, why, sizeof(why)) < 0) {
			round_failed(etcd, why);
			return NULL;
		}
		stream = etcd_tls_stream(etcd->tls, etcd->control->base, endpoint->host);
	}
	made = stream || !endpoint->tls
		       ? evhttp_connection_base_bufferevent_new(
				 etcd->control->base, NULL, stream, endpoint->at, endpoint->port)
		       : NULL;
	if (!made && stream)
		bufferevent_free(stream);
	if (!made)
		round_failed(etcd, "no memory");
	return made;
}

static void round_resolved(void *context, const char *error, const struct addrinfo *found)
{
	struct etcd *etcd = context;
	struct endpoint *endpoint = &etcd->endpoint[etcd->at];
	char why[96];

	etcd->query = NULL;
	endpoint_choose(endpoint, found);
	if (!endpoint->at[0]) {
		text_fit(why, sizeof(why), "the name cannot be resolved: %.60s",
			error ? error : "?");
		round_failed(etcd, why);
		etcd->control->members->list[SEED_ETCD].silence.sure = true;
		return;
	}
	if (etcd->connection)
		evhttp_connection_free(etcd->connection);
	etcd->connection = etcd_connection(etcd, endpoint);
	if (!etcd->connection)
		return;
	evhttp_connection_set_timeout(etcd->connection, ETCD_ANSWER_S);
	evhttp_connection_set_max_body_size(etcd->connection, ETCD_BODY_MAX);
	evhttp_connection_set_max_headers_size(etcd->connection, 16 << 10);
	etcd_ask(etcd, etcd->user[0] && !etcd->token ? STEP_LOGIN : STEP_KEEP);
}

static void round_done(struct etcd *etcd)
{
	struct endpoint *endpoint = &etcd->endpoint[etcd->at];
	const struct etcd_list *list = &etcd->list;

	etcd->step = STEP_IDLE;
	if (endpoint->failing || !etcd->listed)
		log_info("cluster.etcd %s: %s%u addresses at %s", endpoint->name,
			list->more ? "more than " : "", list->count, etcd->keys.start);
	etcd->listed = true;
	endpoint->failing = false;
	etcd->fails = 0;
	if (!list->own && !list->more)
		etcd->stored = false; /* removed by hand, for example: the next round stores it */
	if (list->bad)
		log_warn("cluster.etcd %s: %u values at %s are not address:port and are not used",
			endpoint->name, list->bad, etcd->keys.start);
	member_seeds_replace(etcd->control, SEED_ETCD, list->address, list->count);
}

/* Goes on with the round after a good answer to the present step. */
static void step_done(struct etcd *etcd, struct json_object *answer)
{
	switch (etcd->step) {
	case STEP_LOGIN:
		etcd->token = etcd_token(answer);
		if (etcd->token)
			etcd_ask(etcd, STEP_KEEP);
		else
			round_failed(etcd, "the answer to the login has no token");
		break;
	case STEP_KEEP:
		if (etcd_lease_seconds(answer) <= 0)
			etcd_ask(etcd, STEP_GRANT);
		else
			etcd_ask(etcd, etcd->stored ? STEP_LIST : STEP_PUT);
		break;
	case STEP_GRANT: etcd_ask(etcd, STEP_PUT); break;
	case STEP_PUT:
		etcd->stored = true;
		etcd_ask(etcd, STEP_LIST);
		break;
	case STEP_LIST:
		etcd_list(answer, &etcd->keys, (uint16_t)etcd->control->settings->cluster_port,
			&etcd->list);
		round_done(etcd);
		break;
	case STEP_NAME:
	case STEP_IDLE: break;
	}
}

static void etcd_answered(struct evhttp_request *request, void *context)
{
	struct etcd *etcd = context;
	struct evbuffer *body;
	struct json_object *answer;
	int code = request ? evhttp_request_get_response_code(request) : 0;
	const char *text;
	char why[160];

	if (!code) {
		round_failed(etcd, etcd->endpoint[etcd->at].tls
					   ? etcd_tls_error(evhttp_connection_get_bufferevent(
								    etcd->connection),
						     why, sizeof(why))
					   : "no answer; check the address and the network");
		return;
	}
	body = evhttp_request_get_input_buffer(request);
	answer = etcd_parse((const char *)evbuffer_pullup(body, -1), evbuffer_get_length(body));
	text = etcd_error(answer);
	if (code == HTTP_OK && answer && !text) {
		step_done(etcd, answer);
	} else {
		text_fit(why, sizeof(why), "%s answers %d%s%.100s", path_of[etcd->step], code,
			text ? ": " : "", text ? text : "");
		round_failed(etcd, why);
	}
	json_object_put(answer);
}

/* Sends the request of a step; the round fails if that is not possible. */
static void etcd_ask(struct etcd *etcd, enum step step)
{
	struct evhttp_request *request = evhttp_request_new(etcd_answered, etcd);
	struct evkeyvalq *headers;
	char *body = NULL;

	etcd->step = step;
	switch (step) {
	case STEP_LOGIN: body = etcd_ask_token(etcd->user, etcd->password); break;
	case STEP_KEEP: body = etcd_ask_lease(etcd->lease, 0); break;
	case STEP_GRANT:
		etcd->stored = false;
		body = etcd_ask_lease(etcd->lease, ETCD_LEASE_S);
		break;
	case STEP_PUT: body = etcd_ask_put(&etcd->keys, etcd->lease); break;
	case STEP_LIST: body = etcd_ask_list(&etcd->keys); break;
	case STEP_NAME:
	case STEP_IDLE: break;
	}
	if (!request || !body) {
		if (request)
			evhttp_request_free(request);
		free(body);
		round_failed(etcd, "no memory");
		return;
	}
	headers = evhttp_request_get_output_headers(request);
	evhttp_add_header(headers, "Host", etcd->endpoint[etcd->at].name);
	evhttp_add_header(headers, "Content-Type", "application/json");
	if (etcd->token && step != STEP_LOGIN)
		evhttp_add_header(headers, "Authorization", etcd->token);
	evbuffer_add(evhttp_request_get_output_buffer(request), body, strlen(body));
	free(body);
	/* libevent frees the request, also if this fails */
	if (evhttp_make_request(etcd->connection, request, EVHTTP_REQ_POST, path_of[step]) < 0)
		round_failed(etcd, "cannot connect");
}

/* What is in flight is dropped. */
static void round_drop(struct etcd *etcd)
{
	if (etcd->query)
		net_resolve_cancel(etcd->query);
	etcd->query = NULL;
	if (etcd->connection)
		evhttp_connection_free(etcd->connection);
	etcd->connection = NULL;
}

static void etcd_tick(void *context)
{
	struct etcd *etcd = context;
	const struct endpoint *endpoint;
	struct net_query *query;

	/* Engines that were started together ask at different times. */
	net_timer_set(
		etcd->tick, ETCD_PERIOD_S * 900000u + net_random() % (ETCD_PERIOD_S * 200000u));
	if (etcd->control->members->leaving)
		return;
	if (etcd->step != STEP_IDLE) {
		round_drop(etcd);
		round_failed(etcd, "it answers too slowly: the round was not finished in time");
		return;
	}
	etcd->step = STEP_NAME;
	endpoint = &etcd->endpoint[etcd->at];
	query = net_resolve(etcd->dns, endpoint->host, endpoint->port, round_resolved, etcd);
	/* NULL: it was answered already. */
	if (query)
		etcd->query = query;
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Files that are wrong at the start are an error; later ones are tried again. */
static int etcd_tls_check(struct etcd *etcd)
{
	char why[160];
	int rc = etcd->tls ? 0
			   : etcd_tls_open(etcd->control->settings, &etcd->tls, why, sizeof(why));

	if (rc < 0)
		log_error("cluster.etcd: %s", why);
	return rc;
}

/* Opens the endpoint of one URL. Returns 0, -EINVAL after logging, or -ENOMEM. */
static int endpoint_open(struct etcd *etcd, const char *url)
{
	struct evhttp_uri *uri = evhttp_uri_parse(url);
	const char *scheme = uri ? evhttp_uri_get_scheme(uri) : NULL;
	const char *given = uri ? evhttp_uri_get_host(uri) : NULL;
	const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
	int port = uri ? evhttp_uri_get_port(uri) : -1, rc = -EINVAL;
	bool tls = scheme && strcmp(scheme, "https") == 0;
	struct endpoint *endpoint = &etcd->endpoint[etcd->endpoints];
	char host[NAME_BYTES_MAX] = "";
	size_t bytes;

	if (given && *given == '[')
		given++;
	bytes = given ? strcspn(given, "]") : 0;
	if (bytes && bytes < sizeof(host))
		memcpy(host, given, bytes);
	if (etcd->endpoints == ETCD_ENDPOINTS_MAX) {
		log_error(
			"cluster.etcd has more than %d endpoints; give fewer", ETCD_ENDPOINTS_MAX);
	} else if (!scheme || (strcmp(scheme, "http") != 0 && !tls) || !host[0] || port == 0 ||
		   port > 65535 || (path && *path && strcmp(path, "/") != 0) ||
		   evhttp_uri_get_userinfo(uri)) {
		log_error(
			"cluster.etcd: \"%s\" is neither http://host:port nor https://host:port; user and password have settings of their own",
			url);
	} else {
		port = port < 0 ? 2379 : port;
		address_text(host, (uint16_t)port, endpoint->name);
		memcpy(endpoint->host, host, sizeof(endpoint->host));
		endpoint->port = (uint16_t)port;
		endpoint->tls = tls;
		if (!tls && etcd->user[0])
			log_warn(
				"cluster.etcd %s: the password of cluster.etcd_user goes over the network in clear text; give https://",
				endpoint->name);
		etcd->endpoints++;
		rc = tls ? etcd_tls_check(etcd) : 0;
	}
	if (uri)
		evhttp_uri_free(uri);
	return rc;
}

/* Reads the first line of cluster.etcd_password_file. Returns 0 or -errno, after logging. */
static int etcd_password_read(struct etcd *etcd)
{
	const struct settings *s = etcd->control->settings;
	FILE *file;
	int rc = 0;

	snprintf(etcd->user, sizeof(etcd->user), "%s", s->cluster_etcd_user);
	if (!s->cluster_etcd_password_file[0])
		return 0;
	file = fopen(s->cluster_etcd_password_file, "re");
	if (!file || !fgets(etcd->password, sizeof(etcd->password), file)) {
		rc = file ? -EINVAL : -errno;
		log_error("cluster.etcd_password_file %s: %s", s->cluster_etcd_password_file,
			file ? "it is empty" : strerror(-rc));
	}
	if (file)
		fclose(file);
	etcd->password[strcspn(etcd->password, "\r\n")] = '\0';
	return rc;
}

/* Sets the keys, the value and the number of the lease. */
static void etcd_identity_set(struct etcd *etcd)
{
	const struct control *control = etcd->control;
	const struct settings *s = control->settings;

	snprintf(etcd->keys.start, sizeof(etcd->keys.start), "%s%s/", s->cluster_etcd_prefix,
		s->cluster_id);
	snprintf(etcd->keys.own, sizeof(etcd->keys.own), "%s%s", etcd->keys.start, control->name);
	address_text(s->cluster_address, (uint16_t)s->cluster_port, etcd->keys.value);
	/* 62 bits: positive, and a JSON parser that uses doubles is not in the path */
	etcd->lease = (int64_t)(((uint64_t)net_random() << 32 | net_random()) >> 2) | 1;
}

static int etcd_parts_open(struct etcd *etcd)
{
	char text[sizeof(etcd->control->settings->cluster_etcd)], *rest = NULL;
	int rc = etcd_password_read(etcd);

	etcd->dns = net_resolver_new(etcd->control->base);
	etcd->tick = net_timer_new(etcd->control->base, false, etcd_tick, etcd);
	if (rc == 0 && (!etcd->dns || !etcd->tick))
		rc = -ENOMEM;
	snprintf(text, sizeof(text), "%s", etcd->control->settings->cluster_etcd);
	for (char *each = strtok_r(text, ", \t", &rest); rc == 0 && each;
		each = strtok_r(NULL, ", \t", &rest))
		rc = endpoint_open(etcd, each);
	return rc;
}

int etcd_open(struct control *control)
{
	struct etcd *etcd;
	int rc;

	if (!control->settings->cluster_etcd[0])
		return 0;
	etcd = calloc(1, sizeof(*etcd));
	if (!etcd)
		return -ENOMEM;
	control->etcd = etcd;
	etcd->control = control;
	etcd_identity_set(etcd);
	rc = etcd_parts_open(etcd);
	if (rc == 0 && net_timer_set(etcd->tick, 0) < 0)
		rc = -ENOMEM;
	if (rc < 0) {
		etcd_close(control);
		return rc;
	}
	return 0;
}

void etcd_close(struct control *control)
{
	struct etcd *etcd = control->etcd;

	if (!etcd)
		return;
	round_drop(etcd);
	free(etcd->token);
	etcd_tls_free(etcd->tls);
	net_timer_free(etcd->tick);
	if (etcd->dns)
		net_resolver_free(etcd->dns);
	explicit_bzero(etcd->password, sizeof(etcd->password));
	free(etcd);
	control->etcd = NULL;
}
