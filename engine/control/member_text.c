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
	char *text = malloc(name_bytes + address_bytes);

	if (!text)
		return NULL;
	memcpy(text, name, name_bytes);
	memcpy(text + name_bytes, address, address_bytes);
	return text;
}

void member_text_free(char *text)
{
	free(text);
}
