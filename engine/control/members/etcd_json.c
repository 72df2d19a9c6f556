/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to etcd and its answers as JSON: see etcd.h. Pure. */
#include <json-c/json.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/control/members/etcd.h"

#define DEPTH_MAX 8 /* levels of an answer; etcd uses four */
#define BASE64_BYTES(bytes) (((bytes) + 2) / 3 * 4 + 1)

/* ---- requests -------------------------------------------------------------------------------- */

/* Returns the text of the object, and frees the object. */
static char *text_of(json_object *object)
{
	const char *text = json_object_to_json_string_ext(object, JSON_C_TO_STRING_PLAIN);
	char *copy = text ? strdup(text) : NULL;

	json_object_put(object);
	return copy;
}

static void add_text(json_object *object, const char *name, const char *text)
{
	json_object_object_add(object, name, json_object_new_string(text));
}

static void add_number(json_object *object, const char *name, int64_t number)
{
	json_object_object_add(object, name, json_object_new_int64(number));
}

/* text: shorter than ETCD_KEY_BYTES */
static void base64(const char *text, char ret[BASE64_BYTES(ETCD_KEY_BYTES)])
{
	EVP_EncodeBlock((unsigned char *)ret, (const unsigned char *)text, (int)strlen(text));
}

static void add_base64(json_object *object, const char *name, const char *text)
{
	char coded[BASE64_BYTES(ETCD_KEY_BYTES)];

	base64(text, coded);
	add_text(object, name, coded);
}

char *etcd_ask_token(const char *user, const char *password)
{
	json_object *ask = json_object_new_object();

	add_text(ask, "name", user);
	add_text(ask, "password", password);
	return text_of(ask);
}

char *etcd_ask_lease(int64_t lease, unsigned seconds)
{
	json_object *ask = json_object_new_object();

	add_number(ask, "ID", lease);
	if (seconds)
		add_number(ask, "TTL", seconds);
	return text_of(ask);
}

char *etcd_ask_put(const struct etcd_keys *keys, int64_t lease)
{
	json_object *ask = json_object_new_object();

	add_base64(ask, "key", keys->own);
	add_base64(ask, "value", keys->value);
	add_number(ask, "lease", lease);
	return text_of(ask);
}

char *etcd_ask_list(const struct etcd_keys *keys, bool from_own)
{
	json_object *ask = json_object_new_object();
	char end[ETCD_KEY_BYTES];

	/* The first key behind all that begin with `start`: its last character is one higher. */
	snprintf(end, sizeof(end), "%s", keys->start);
	end[strlen(end) - 1]++;
	add_base64(ask, "key", from_own ? keys->own : keys->start);
	add_base64(ask, "range_end", end);
	add_number(ask, "limit", ETCD_LIST_MAX);
	/* The endpoint answers alone, also when etcd has no majority: an old list will do. */
	json_object_object_add(ask, "serializable", json_object_new_boolean(true));
	return text_of(ask);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The field of that type; NULL: there is none. `object` may be NULL. */
static json_object *field(json_object *object, const char *name, enum json_type type)
{
	json_object *found = NULL;

	if (!json_object_is_type(object, json_type_object) ||
		!json_object_object_get_ex(object, name, &found))
		return NULL;
	return json_object_is_type(found, type) ? found : NULL;
}

static const char *field_text(json_object *object, const char *name)
{
	json_object *found = field(object, name, json_type_string);

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
	const char *text = field_text(answer, "error");

	/* the answer to keepalive is a stream, whose errors are objects */
	return text ? text : field_text(field(answer, "error", json_type_object), "message");
}

char *etcd_token(struct json_object *answer)
{
	const char *token = field_text(answer, "token");

	return token && !strpbrk(token, "\r\n") ? strdup(token) : NULL;
}

int64_t etcd_lease_seconds(struct json_object *answer)
{
	const char *seconds = field_text(field(answer, "result", json_type_object), "TTL");

	return seconds ? strtoll(seconds, NULL, 10) : 0;
}

/* Decodes `coded` into `ret` of `room` bytes. False: it does not fit, or is not base64. */
static bool decoded(const char *coded, char *ret, size_t room)
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
static void list_add(
	json_object *kv, const struct etcd_keys *keys, uint16_t fallback, struct etcd_list *ret)
{
	const char *key = field_text(kv, "key"), *value = field_text(kv, "value");
	char own[BASE64_BYTES(ETCD_KEY_BYTES)], text[2 * NAME_BYTES_MAX];

	base64(keys->own, own);
	if (key && strcmp(key, own) == 0)
		ret->own = true;
	else if (value && decoded(value, text, sizeof(text)) &&
		 seed_parse(text, fallback, &ret->address[ret->count]) == 0)
		ret->count++;
	else
		ret->bad++;
}

void etcd_list(struct json_object *answer, const struct etcd_keys *keys, uint16_t fallback,
	struct etcd_list *ret)
{
	json_object *kvs = field(answer, "kvs", json_type_array), *more;
	size_t count = kvs ? json_object_array_length(kvs) : 0;

	*ret = (struct etcd_list){0};
	more = field(answer, "more", json_type_boolean);
	ret->more = more && json_object_get_boolean(more);
	for (size_t i = 0; i < count && ret->count < ETCD_LIST_MAX; i++)
		list_add(json_object_array_get_idx(kvs, i), keys, fallback, ret);
}
