/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the settings engine.quotas and engine.ttls. Any thread. */
#include "config/group_limits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/size_text.h"

bool group_limits_number(const char *name, uint32_t *ret)
{
	if (strlen(name) != 8 || strncmp(name, "0x", 2) != 0 ||
		strspn(name + 2, "0123456789abcdefABCDEF") != 6)
		return false;
	*ret = (uint32_t)strtoul(name + 2, NULL, 16);
	return true;
}

/* Copies a text without the blanks around it. False: it is empty or too long. */
static bool copy_trimmed(const char *begin, const char *end, char *ret, size_t bytes)
{
	while (begin < end && *begin == ' ')
		begin++;
	while (begin < end && end[-1] == ' ')
		end--;
	if (begin >= end || (size_t)(end - begin) >= bytes)
		return false;
	memcpy(ret, begin, (size_t)(end - begin));
	ret[end - begin] = '\0';
	return true;
}

int group_limits_next(const char **at, struct group_limit *ret, const char **ret_wrong)
{
	const char *begin = *at + strspn(*at, " ,"), *end = begin + strcspn(begin, ",");
	const char *equals = memrchr(begin, '=', (size_t)(end - begin));
	char value[32];

	*at = end;
	if (begin == end)
		return 0;
	*ret_wrong = "give GROUP=SIZE, comma separated";
	if (!equals || !copy_trimmed(begin, equals, ret->name, sizeof(ret->name)))
		return -EINVAL;
	*ret_wrong = "a group is the part of a namespace in front of its first ||";
	if (strstr(ret->name, "||"))
		return -EINVAL;
	*ret_wrong = "the limit is not above 0, or too large";
	return copy_trimmed(equals + 1, end, value, sizeof(value)) &&
			       size_parse(value, &ret->value) == 0 && ret->value &&
			       ret->value <= GROUP_LIMIT_MAX
		       ? 1
		       : -EINVAL;
}
