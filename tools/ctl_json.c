/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the engine's report and turns numbers into words; see ctl.h. Any thread. */
#include <stdio.h>
#include <string.h>

#include "tools/ctl.h"

size_t json_length(json_object *array)
{
	return json_object_is_type(array, json_type_array) ? json_object_array_length(array) : 0;
}

json_object *json_at(json_object *array, size_t i)
{
	return i < json_length(array) ? json_object_array_get_idx(array, i) : NULL;
}

const char *text_duration(uint64_t ms, char ret[WORDS_BYTES])
{
	uint64_t s = ms / 1000;

	if (s >= 86400)
		snprintf(ret, WORDS_BYTES, "%lu d %lu h", s / 86400, s / 3600 % 24);
	else if (s >= 3600)
		snprintf(ret, WORDS_BYTES, "%lu h %lu min", s / 3600, s / 60 % 60);
	else if (s >= 60)
		snprintf(ret, WORDS_BYTES, "%lu min %lu s", s / 60, s % 60);
	else
		snprintf(ret, WORDS_BYTES, "%lu s", s);
	return ret;
}

const char *text_bytes(double amount, char ret[WORDS_BYTES])
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	unsigned unit = 0;

	amount = amount > 0 ? amount : 0;
	for (; amount >= 1024 && unit < 5; unit++)
		amount /= 1024;
	snprintf(ret, WORDS_BYTES, unit && amount < 100 ? "%.1f %s" : "%.0f %s", amount,
		units[unit]);
	return ret;
}

const char *text_count(double amount, char ret[WORDS_BYTES])
{
	static const char *const units[] = {"", "k", "M", "G", "T"};
	unsigned unit = 0;

	amount = amount > 0 ? amount : 0;
	for (; amount >= 9999.5 && unit < 4; unit++)
		amount /= 1000;
	snprintf(ret, WORDS_BYTES, unit && amount < 100 ? "%.1f%s" : "%.0f%s", amount, units[unit]);
	return ret;
}

const char *text_ns(uint64_t ns, char ret[WORDS_BYTES])
{
	static const char *const units[] = {"ns", "us", "ms", "s"};
	double amount = (double)ns;
	unsigned unit = 0;

	for (; amount >= 999.5 && unit < 3; unit++)
		amount /= 1000;
	snprintf(
		ret, WORDS_BYTES, unit && amount < 9.95 ? "%.1f%s" : "%.0f%s", amount, units[unit]);
	return ret;
}

const char *text_plain(const char *text, char *ret, size_t bytes)
{
	size_t n = 0;

	for (; *text && n + 1 < bytes; text++)
		ret[n++] = *text >= 0x20 && *text < 0x7f ? *text : '?';
	ret[n] = '\0';
	return ret;
}

const char *json_plain(json_object *o, const char *name, char ret[PLAIN_BYTES])
{
	return text_plain(json_text(o, name), ret, PLAIN_BYTES);
}

json_object *json_member_with(json_object *members, const char *ref)
{
	for (size_t i = 0; i < json_length(members); i++) {
		json_object *member = json_at(members, i);
		const char *incarnation = json_text(member, "incarnation");
		size_t length = strlen(incarnation);

		if (length >= 8 && !strcmp(incarnation + length - 8, ref))
			return member;
	}
	return NULL;
}
