/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of engines to join, from etcd (cluster.etcd), by the JSON gateway of its version 3.
 * Each engine keeps a key with its own address, PREFIX + cluster.id + "/" + name, under a lease of
 * ETCD_LEASE_S, and lists the keys of the others every ETCD_PERIOD_S. etcd gives addresses and
 * nothing else: a key that expires removes no member, and the cluster works on without etcd.
 *
 * A round with one endpoint is: log in (with cluster.etcd_user), keep the lease alive, grant it and
 * store the key if either is gone, list. The endpoint that finished the last round is asked alone;
 * when it fails, all others are asked side by side. An answer takes at most ETCD_ANSWER_S.
 *
 * The texts of requests and answers are made and read by pure functions, which etcd_inner.h
 * describes. Control plane's thread only; nothing blocks.
 */
#include <errno.h>
#include <event2/buffer.h>
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
#define ETCD_ROUND_NS (8ull * 1000000000) /* a round that is not finished by then is given up */
#define ETCD_BODY_MAX (256 << 10)         /* bytes of an answer that is read */

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

char *etcd_ask_list(const struct etcd_keys *keys, bool from_own)
{
	json_object *ask = json_object_new_object();
	char end[ETCD_KEY_BYTES];

	/* The first key behind all that begin with `start`: its last character is one higher. */
	snprintf(end, sizeof(end), "%s", keys->start);
	end[strlen(end) - 1]++;
	etcd_add_base64(ask, "key", from_own ? keys->own : keys->start);
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

void etcd_free(struct json_object *answer)
{
	json_object_put(answer);
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
	struct etcd *etcd;
	char name[ADDRESS_TEXT_BYTES]; /* host:port, for the log and the header Host */
	char host[NAME_BYTES_MAX];
	uint16_t port;
	struct net_query *query; /* of the name, in STEP_NAME; NULL: none is in progress */
	unsigned tried;          /* addresses of the name; modulo their number it is the next one */
	char at[NAME_BYTES_MAX]; /* address of the connection */
	struct evhttp_connection *connection; /* NULL: the name had no address yet */
	struct evhttp_request *request;       /* the request in flight; NULL: none */
	enum step step;
	uint64_t begun_ns; /* start of the round */
	char *token;       /* of the last login, owned; NULL: none */
	bool failing;      /* the last round failed, and the reason was logged */
	bool works;        /* a round has succeeded since the last failure */
};

struct etcd {
	struct control *control;
	struct net_timer *tick;
	struct net_resolver *dns;
	struct etcd_keys keys;
	int64_t lease;         /* random number that this engine gave its lease; not 0 */
	bool stored;           /* the key was stored under this lease */
	bool more;             /* the last list from the start of the keys was not complete */
	bool from_own;         /* the next list starts at the own key */
	struct etcd_list list; /* that is used now */
	struct endpoint *good; /* finished the last round; NULL: none did */
	char user[NAME_BYTES_MAX];
	char password[NAME_BYTES_MAX];
	unsigned endpoints;
	struct endpoint endpoint[ETCD_ENDPOINTS_MAX];
};

static void endpoint_ask(struct endpoint *endpoint, enum step step);
static void endpoint_round_failed(struct endpoint *endpoint, const char *why);

/* Connects the endpoint to an address. False: no memory. */
static bool endpoint_connect(struct endpoint *endpoint, const char *address)
{
	struct timeval limit = {.tv_sec = ETCD_ANSWER_S};
	struct evhttp_connection *connection = evhttp_connection_base_new(
		endpoint->etcd->control->base, NULL, address, endpoint->port);

	if (!connection)
		return false;
	if (endpoint->connection)
		evhttp_connection_free(endpoint->connection);
	endpoint->connection = connection;
	snprintf(endpoint->at, sizeof(endpoint->at), "%s", address);
	evhttp_connection_set_timeout_tv(connection, &limit);
	evhttp_connection_set_retries(connection, 0);
	evhttp_connection_set_max_body_size(connection, ETCD_BODY_MAX);
	evhttp_connection_set_max_headers_size(connection, 16 << 10);
	return true;
}

/* Connects to the next address of the name, unless the one in use works and is among them. */
static bool endpoint_choose(struct endpoint *endpoint, const struct addrinfo *found)
{
	char address[NAME_BYTES_MAX], chosen[NAME_BYTES_MAX] = "";
	unsigned count = 0, skip;

	for (const struct addrinfo *each = found; each; each = each->ai_next)
		count++;
	skip = endpoint->tried % count;
	for (const struct addrinfo *each = found; each; each = each->ai_next) {
		if (getnameinfo(each->ai_addr, each->ai_addrlen, address, sizeof(address), NULL, 0,
			    NI_NUMERICHOST) != 0)
			continue;
		if (endpoint->works && strcmp(address, endpoint->at) == 0)
			return true;
		if (skip-- == 0)
			snprintf(chosen, sizeof(chosen), "%s", address);
	}
	endpoint->tried++;
	return chosen[0] && endpoint_connect(endpoint, chosen);
}

static void endpoint_round_connected(struct endpoint *endpoint)
{
	endpoint->begun_ns = net_now();
	endpoint_ask(
		endpoint, endpoint->etcd->user[0] && !endpoint->token ? STEP_LOGIN : STEP_KEEP);
}

/* A name that has no address now does not end a connection. */
static void endpoint_resolved(void *context, const char *error, const struct addrinfo *found)
{
	struct endpoint *endpoint = context;
	char why[96];

	endpoint->query = NULL;
	if (found && !endpoint_choose(endpoint, found))
		error = "no memory";
	if (endpoint->connection && (found || endpoint->works)) {
		endpoint_round_connected(endpoint);
		return;
	}
	text_fit(why, sizeof(why), "the name cannot be resolved: %.60s", error ? error : "?");
	endpoint_round_failed(endpoint, why);
	if (!endpoint->etcd->good)
		endpoint->etcd->control->members->list[SEED_ETCD].silence.sure = true;
}

static void endpoint_round_begin(struct endpoint *endpoint)
{
	struct net_query *query;
	struct sockaddr_storage literal;
	socklen_t bytes;

	if (endpoint->step != STEP_IDLE)
		return;
	endpoint->step = STEP_NAME;
	if (address_literal(endpoint->host, endpoint->port, &literal, &bytes) == 0) {
		if (endpoint->connection || endpoint_connect(endpoint, endpoint->host))
			endpoint_round_connected(endpoint);
		else
			endpoint_round_failed(endpoint, "no memory");
		return;
	}
	query = net_resolve(
		endpoint->etcd->dns, endpoint->host, endpoint->port, endpoint_resolved, endpoint);
	/* NULL: it was answered already. */
	if (query)
		endpoint->query = query;
}

static void endpoint_round_failed(struct endpoint *endpoint, const char *why)
{
	struct etcd *etcd = endpoint->etcd;
	char text[SEED_WHY_BYTES];

	if (!endpoint->failing)
		log_warn(
			"cluster.etcd %s: %s. It is asked again every %d s; the members stay members",
			endpoint->name, why, ETCD_PERIOD_S);
	endpoint->failing = true;
	endpoint->works = false;
	endpoint->step = STEP_IDLE;
	/* a token expires, and is invalid after a restart of etcd: the next round logs in again */
	free(endpoint->token);
	endpoint->token = NULL;
	if (etcd->good && etcd->good != endpoint)
		return;
	text_fit(text, sizeof(text), "%s: %s", endpoint->name, why);
	seed_source_read(etcd->control, SEED_ETCD, text);
	if (!etcd->good)
		return;
	etcd->good = NULL;
	for (unsigned i = 0; i < etcd->endpoints; i++)
		if (&etcd->endpoint[i] != endpoint)
			endpoint_round_begin(&etcd->endpoint[i]);
}

static void endpoint_round_done(struct endpoint *endpoint, const struct etcd_list *list)
{
	struct etcd *etcd = endpoint->etcd;
	bool part = etcd->from_own; /* the list has only the keys from the own one on */

	endpoint->step = STEP_IDLE;
	if (!endpoint->works)
		log_info("cluster.etcd %s: %s%u addresses at %s", endpoint->name,
			list->more ? "more than " : "", list->count, etcd->keys.start);
	endpoint->works = true;
	endpoint->failing = false;
	etcd->good = endpoint;
	seed_source_read(etcd->control, SEED_ETCD, NULL);
	if (!list->own && (part || !list->more))
		etcd->stored = false; /* removed by hand, for example: the next round stores it */
	if (!part)
		etcd->more = list->more;
	/* Of many engines, each lists the first ones and its followers in turn. */
	etcd->from_own = etcd->more && !part;
	if (list->bad)
		log_warn("cluster.etcd %s: %u values at %s are not address:port and are not used",
			endpoint->name, list->bad, etcd->keys.start);
	if (!list->count && part)
		return;
	etcd->list = *list;
	member_seeds_replace(etcd->control, SEED_ETCD, etcd->list.address, etcd->list.count);
}

/* Goes on with the round after a good answer to the present step. */
static void endpoint_step_done(struct endpoint *endpoint, struct json_object *answer)
{
	struct etcd *etcd = endpoint->etcd;
	struct etcd_list list;

	switch (endpoint->step) {
	case STEP_LOGIN:
		endpoint->token = etcd_token(answer);
		if (endpoint->token)
			endpoint_ask(endpoint, STEP_KEEP);
		else
			endpoint_round_failed(endpoint, "the answer to the login has no token");
		break;
	case STEP_KEEP:
		if (etcd_lease_seconds(answer) <= 0)
			endpoint_ask(endpoint, STEP_GRANT);
		else
			endpoint_ask(endpoint, etcd->stored ? STEP_LIST : STEP_PUT);
		break;
	case STEP_GRANT: endpoint_ask(endpoint, STEP_PUT); break;
	case STEP_PUT:
		etcd->stored = true;
		endpoint_ask(endpoint, STEP_LIST);
		break;
	case STEP_LIST:
		etcd_list(answer, &etcd->keys, (uint16_t)etcd->control->settings->cluster_port,
			&list);
		endpoint_round_done(endpoint, &list);
		break;
	case STEP_NAME:
	case STEP_IDLE: break;
	}
}

static void endpoint_answer(struct endpoint *endpoint, int code, struct json_object *answer)
{
	char why[160];
	const char *text = etcd_error(answer);

	if (code == HTTP_OK && answer && !text) {
		endpoint_step_done(endpoint, answer);
	} else if (endpoint->step == STEP_GRANT && text && strstr(text, "already exists")) {
		/* another endpoint of the same etcd was asked at the same time */
		endpoint_step_done(endpoint, answer);
	} else {
		text_fit(why, sizeof(why), "%s answers %d%s%.100s", path_of[endpoint->step], code,
			text ? ": " : "", text ? text : "");
		endpoint_round_failed(endpoint, why);
	}
}

static void endpoint_answered(struct evhttp_request *request, void *context)
{
	struct endpoint *endpoint = context;
	struct evbuffer *body;
	struct json_object *answer = NULL;
	int code = request ? evhttp_request_get_response_code(request) : 0;

	endpoint->request = NULL;
	if (!code) {
		endpoint_round_failed(endpoint, "no answer; check the address and the network");
		return;
	}
	body = evhttp_request_get_input_buffer(request);
	if (evbuffer_get_length(body) <= ETCD_BODY_MAX)
		answer = etcd_parse(
			(const char *)evbuffer_pullup(body, -1), evbuffer_get_length(body));
	endpoint_answer(endpoint, code, answer);
	etcd_free(answer);
}

/* Sends the request of a step; the round fails if that is not possible. */
static void endpoint_ask(struct endpoint *endpoint, enum step step)
{
	struct etcd *etcd = endpoint->etcd;
	struct evhttp_request *request = evhttp_request_new(endpoint_answered, endpoint);
	struct evkeyvalq *headers;
	char *body = NULL;

	endpoint->step = step;
	switch (step) {
	case STEP_LOGIN: body = etcd_ask_token(etcd->user, etcd->password); break;
	case STEP_KEEP: body = etcd_ask_lease(etcd->lease, 0); break;
	case STEP_GRANT:
		etcd->stored = false;
		body = etcd_ask_lease(etcd->lease, ETCD_LEASE_S);
		break;
	case STEP_PUT: body = etcd_ask_put(&etcd->keys, etcd->lease); break;
	case STEP_LIST: body = etcd_ask_list(&etcd->keys, etcd->from_own); break;
	case STEP_NAME:
	case STEP_IDLE: break;
	}
	if (!request || !body) {
		if (request)
			evhttp_request_free(request);
		free(body);
		endpoint_round_failed(endpoint, "no memory");
		return;
	}
	headers = evhttp_request_get_output_headers(request);
	evhttp_add_header(headers, "Host", endpoint->name);
	evhttp_add_header(headers, "Content-Type", "application/json");
	if (endpoint->token && step != STEP_LOGIN)
		evhttp_add_header(headers, "Authorization", endpoint->token);
	evbuffer_add(evhttp_request_get_output_buffer(request), body, strlen(body));
	free(body);
	endpoint->request = request;
	if (evhttp_make_request(endpoint->connection, request, EVHTTP_REQ_POST, path_of[step]) <
		0) {
		endpoint->request = NULL; /* libevent has freed it */
		endpoint_round_failed(endpoint, "cannot connect");
	}
}

static void etcd_tick(void *context)
{
	struct etcd *etcd = context;
	uint64_t now_ns = net_now();

	/* Engines that were started together ask at different times. */
	net_timer_set(
		etcd->tick, ETCD_PERIOD_S * 900000u + net_random() % (ETCD_PERIOD_S * 200000u));
	if (etcd->control->members->leaving)
		return;
	for (unsigned i = 0; i < etcd->endpoints; i++) {
		struct endpoint *endpoint = &etcd->endpoint[i];

		/* The resolver has a limit of its own. */
		if (endpoint->step == STEP_IDLE || endpoint->step == STEP_NAME ||
			now_ns - endpoint->begun_ns < ETCD_ROUND_NS)
			continue;
		if (endpoint->request)
			evhttp_cancel_request(endpoint->request);
		endpoint->request = NULL;
		endpoint_round_failed(endpoint, "its answers take too long");
	}
	for (unsigned i = 0; i < etcd->endpoints; i++)
		if (!etcd->good || etcd->good == &etcd->endpoint[i])
			endpoint_round_begin(&etcd->endpoint[i]);
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Opens the endpoint of one URL. Returns 0, -EINVAL after logging, or -ENOMEM. */
static int endpoint_open(struct etcd *etcd, const char *url)
{
	struct evhttp_uri *uri = evhttp_uri_parse(url);
	const char *scheme = uri ? evhttp_uri_get_scheme(uri) : NULL;
	const char *given = uri ? evhttp_uri_get_host(uri) : NULL;
	const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
	int port = uri ? evhttp_uri_get_port(uri) : -1, rc = -EINVAL;
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
	} else if (!scheme || strcmp(scheme, "http") != 0 || !host[0] || port == 0 ||
		   port > 65535 || (path && *path && strcmp(path, "/") != 0) ||
		   evhttp_uri_get_userinfo(uri)) {
		log_error(
			"cluster.etcd: \"%s\" is not http://host:port; TLS is not supported, and user and password have settings of their own",
			url);
	} else {
		port = port < 0 ? 2379 : port;
		endpoint->etcd = etcd;
		address_text(host, (uint16_t)port, endpoint->name);
		memcpy(endpoint->host, host, sizeof(endpoint->host));
		endpoint->port = (uint16_t)port;
		etcd->endpoints++;
		rc = 0;
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
	for (unsigned i = 0; i < etcd->endpoints; i++) {
		struct endpoint *endpoint = &etcd->endpoint[i];

		if (endpoint->request)
			evhttp_cancel_request(endpoint->request);
		if (endpoint->query)
			net_resolve_cancel(endpoint->query);
		if (endpoint->connection)
			evhttp_connection_free(endpoint->connection);
		free(endpoint->token);
	}
	net_timer_free(etcd->tick);
	if (etcd->dns)
		net_resolver_free(etcd->dns);
	explicit_bzero(etcd->password, sizeof(etcd->password));
	free(etcd);
	control->etcd = NULL;
}
