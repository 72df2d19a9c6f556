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

void text_duration(uint64_t ms, char *ret, size_t bytes)
{
	uint64_t s = ms / 1000;

	if (s >= 86400)
		snprintf(ret, bytes, "%lu d %lu h", s / 86400, s / 3600 % 24);
	else if (s >= 3600)
		snprintf(ret, bytes, "%lu h %lu min", s / 3600, s / 60 % 60);
	else if (s >= 60)
		snprintf(ret, bytes, "%lu min %lu s", s / 60, s % 60);
	else
		snprintf(ret, bytes, "%lu s", s);
}

void text_bytes(double amount, char *ret, size_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	unsigned unit = 0;

	for (; amount >= 1024 && unit < 5; unit++)
		amount /= 1024;
	snprintf(ret, bytes, unit && amount < 100 ? "%.1f %s" : "%.0f %s", amount, units[unit]);
}

void text_count(double amount, char *ret, size_t bytes)
{
	static const char *const units[] = {"", "k", "M", "G", "T"};
	unsigned unit = 0;

	for (; amount >= 9999.5 && unit < 4; unit++)
		amount /= 1000;
	snprintf(ret, bytes, unit && amount < 100 ? "%.1f%s" : "%.0f%s", amount, units[unit]);
}

void text_ns(uint64_t ns, char *ret, size_t bytes)
{
	static const char *const units[] = {"ns", "us", "ms", "s"};
	double amount = (double)ns;
	unsigned unit = 0;

	for (; amount >= 999.5 && unit < 3; unit++)
		amount /= 1000;
	snprintf(ret, bytes, unit && amount < 9.95 ? "%.1f%s" : "%.0f%s", amount, units[unit]);
}

void text_plain(const char *text, char *ret, size_t bytes)
{
	size_t n = 0;

	for (; *text && n + 1 < bytes; text++)
		ret[n++] = *text >= 0x20 && *text < 0x7f ? *text : '?';
	ret[n] = '\0';
}
