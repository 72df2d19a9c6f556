/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The texts of members, name and address in one block, so that the simulator can keep one block for
 * the same member of many tables. Control plane's thread only.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/control/member.h"

char *member_text_new(const char *name, const char *address)
{
	size_t name_bytes = strlen(name) + 1, address_bytes = strlen(address) + 1;
	struct member_text *text = malloc(sizeof(*text) + name_bytes + address_bytes);

	if (!text)
		return NULL;
	text->hash = member_name_hash(name);
	memcpy(text->name, name, name_bytes);
	memcpy(text->name + name_bytes, address, address_bytes);
	return text->name;
}

void member_text_free(char *text)
{
	free(text - offsetof(struct member_text, name));
}
