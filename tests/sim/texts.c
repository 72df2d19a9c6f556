/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of members: all tables of all nodes share one block for the same text. One thread. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world.h"

#define CHAINS (1u << 14)

struct text {
	LIST_ENTRY(text) next;
	uint32_t uses, bytes;
	struct member_text text;
};

static LIST_HEAD(, text) chain[CHAINS];
static uint64_t alone_bytes;

static uint64_t hash_of(const char *name, const char *address)
{
	return placement_hash(name) ^ placement_hash(address) * 3;
}

char *__wrap_member_text_new(const char *name, const char *address);
char *__wrap_member_text_new(const char *name, const char *address)
{
	size_t name_bytes = strlen(name) + 1, bytes = name_bytes + strlen(address) + 1;
	uint64_t hash = hash_of(name, address);
	struct text *text;

	LIST_FOREACH (text, &chain[hash % CHAINS], next)
		if (!strcmp(text->text.name, name) &&
			!strcmp(text->text.name + name_bytes, address))
			break;
	if (!text) {
		text = calloc(1, sizeof(*text) + bytes);
		if (!text)
			abort();
		text->bytes = (uint32_t)(sizeof(text->text) + bytes);
		text->text.hash = member_name_hash(name);
		memcpy(text->text.name, name, name_bytes);
		memcpy(text->text.name + name_bytes, address, bytes - name_bytes);
		LIST_INSERT_HEAD(&chain[hash % CHAINS], text, next);
	}
	text->uses++;
	alone_bytes += text->bytes;
	return text->text.name;
}

void __wrap_member_text_free(char *at);
void __wrap_member_text_free(char *at)
{
	struct text *text = (void *)(at - offsetof(struct text, text.name));

	alone_bytes -= text->bytes;
	if (--text->uses)
		return;
	LIST_REMOVE(text, next);
	free(text);
}

uint64_t texts_alone_bytes(void)
{
	return alone_bytes;
}
