/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of limits of groups of namespaces in a setting: "GROUP=SIZE, GROUP=SIZE". A group is the
 * part of a namespace in front of its first "||", without a comma; or "0x" and the six hexadecimal
 * digits by which reports name it, the only way for one that is hashed with a secret. Any thread.
 */
#ifndef CONFIG_GROUP_LIMITS_H
#define CONFIG_GROUP_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#define GROUP_LIMIT_BYTES 256
#define GROUP_LIMIT_MAX (1ull << 50) /* bytes */
#define GROUP_TTL_MAX_S 31536000

struct group_limit {
	char name[GROUP_LIMIT_BYTES];
	uint64_t value; /* 1 to GROUP_LIMIT_MAX */
};

/* Reads the next one of the list at *at. Returns 1, 0 at its end, or -EINVAL and what is wrong. */
int group_limits_next(const char **at, struct group_limit *ret, const char **ret_wrong);
/* True if the name is a number of this form, which is stored. */
bool group_limits_number(const char *name, uint32_t *ret);

#endif
