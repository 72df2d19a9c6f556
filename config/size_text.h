/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A size as people write it: "4096", "64k", "1.5 GiB", "10GB", "4gb". Units are powers of 1024, in
 * any case, with or without B. Settings and tools take the same; so does size() of the Python
 * package. Any thread.
 */
#ifndef CONFIG_SIZE_TEXT_H
#define CONFIG_SIZE_TEXT_H

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#define SIZE_FRACTION_DIGITS 9 /* after the point, at most */

/* Reads a unit. Returns its power of 1024, or -EINVAL. */
static inline int size_unit_parse(const char *text)
{
	static const char powers[] = "kmgt";
	const char *power = *text ? strchr(powers, *text | 0x20) : NULL;

	if (!*text || !strcasecmp(text, "B"))
		return 0;
	if (!power || !*power)
		return -EINVAL;
	text++;
	if (*text && strcasecmp(text, "B") && strcasecmp(text, "iB"))
		return -EINVAL;
	return (int)(power - powers) + 1;
}

/* Returns 0; -EINVAL: not a size; -ERANGE: 2^64 bytes or more. */
static inline int size_parse(const char *text, uint64_t *ret)
{
	uint64_t whole = 0, part = 0, scale = 1;
	const char *at = text;
	int power;

	for (; *at >= '0' && *at <= '9'; at++)
		if (__builtin_mul_overflow(whole, 10u, &whole) ||
			__builtin_add_overflow(whole, (uint64_t)(*at - '0'), &whole))
			return -ERANGE;
	if (at == text)
		return -EINVAL;
	if (*at == '.') {
		const char *point = at++;

		for (; *at >= '0' && *at <= '9'; at++, scale *= 10) {
			if (at - point > SIZE_FRACTION_DIGITS)
				return -EINVAL;
			part = part * 10 + (uint64_t)(*at - '0');
		}
		if (at == point + 1)
			return -EINVAL;
	}
	if (*at == ' ' && at[1])
		at += strspn(at, " ");
	power = size_unit_parse(at);
	if (power < 0)
		return power;
	part = (uint64_t)((unsigned __int128)part * (1ull << 10 * power) / scale);
	if (__builtin_mul_overflow(whole, 1ull << 10 * power, &whole) ||
		__builtin_add_overflow(whole, part, ret))
		return -ERANGE;
	return 0;
}

#endif
