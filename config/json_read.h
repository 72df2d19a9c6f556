/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of a JSON object that another program has sent: each function checks the type, also of
 * the object. For programs that use json-c. Any thread.
 */
#ifndef CONFIG_JSON_READ_H
#define CONFIG_JSON_READ_H

#include <stdbool.h>
#include <stdint.h>

#include <json-c/json.h>

/* The member `name` of an object, or NULL. The object owns it. */
static inline json_object *json_get(json_object *o, const char *name)
{
	json_object *value = NULL;

	if (json_object_is_type(o, json_type_object))
		json_object_object_get_ex(o, name, &value);
	return value;
}

/* "" when it is not there, or no text. The object owns it. */
static inline const char *json_text(json_object *o, const char *name)
{
	json_object *value = json_get(o, name);

	return json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";
}

/* False when it is not there, or no whole number; *ret is unchanged then. */
static inline bool json_whole(json_object *o, const char *name, int64_t *ret)
{
	json_object *value = json_get(o, name);

	if (!json_object_is_type(value, json_type_int))
		return false;
	*ret = json_object_get_int64(value);
	return true;
}

#endif
