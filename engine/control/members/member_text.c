/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names and addresses of members. Most engines have an IPv4 address and the name that is the
 * default, address:port: their texts are made when they are needed, and only the address is kept.
 * Control plane's thread only.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "engine/control/members/members_inner.h"

/* The texts of a member whose record is not plain. */
struct member_text {
	uint64_t hash; /* of the name */
	char name[];   /* behind its terminating zero the address */
};

bool member_text_prints(const char *text, size_t room)
{
	size_t bytes = strnlen(text, room);

	for (size_t i = 0; i < bytes; i++)
		if (text[i] < ' ' || text[i] > '~')
			return false;
	return bytes > 0 && bytes < room;
}

/* ---- plain records --------------------------------------------------------------------------- */

static char *number_put(char *at, unsigned number)
{
	if (number >= 10)
		at = number_put(at, number / 10);
	*at = (char)('0' + number % 10);
	return at + 1;
}

/* Writes the address and returns its end. */
static char *ipv4_put(char *at, const uint8_t ipv4[4])
{
	for (unsigned i = 0; i < 4; i++) {
		at = number_put(at, ipv4[i]);
		*at++ = '.';
	}
	*--at = '\0';
	return at;
}

/* Writes the name and returns the first byte behind its terminating zero. */
static char *name_put(const struct member_record *record, char *at)
{
	at = ipv4_put(at, record->ipv4);
	*at++ = ':';
	at = number_put(at, record->port);
	*at++ = '\0';
	return at;
}

/* True if the record with this address is plain; fills its address and port. */
static bool plain_set(
	struct member_record *record, const char *name, const char *address, uint16_t port)
{
	struct member_record plain = *record;
	struct member_texts texts;

	plain.text = NULL;
	plain.port = port;
	plain.plain = true;
	if (inet_pton(AF_INET, address, plain.ipv4) != 1)
		return false;
	member_texts(&plain, &texts);
	if (strcmp(texts.name, name) != 0 || strcmp(texts.address, address) != 0)
		return false;
	*record = plain;
	return true;
}

/* ---- all records ----------------------------------------------------------------------------- */

void member_texts(const struct member_record *record, struct member_texts *ret)
{
	char *address;

	if (record->plain) {
		address = name_put(record, ret->plain);
		(void)ipv4_put(address, record->ipv4);
		ret->name = ret->plain;
		ret->address = address;
	} else {
		ret->name = record->text->name;
		ret->address = ret->name + strlen(ret->name) + 1;
	}
}

bool member_is_named(const struct member_record *record, const char *name)
{
	char plain[sizeof(((struct member_texts *)NULL)->plain)];

	if (!record->plain)
		return strcmp(record->text->name, name) == 0;
	(void)name_put(record, plain);
	return strcmp(plain, name) == 0;
}

uint64_t member_hash(const struct member *member)
{
	char plain[sizeof(((struct member_texts *)NULL)->plain)];

	if (!member->record.plain)
		return member->record.text->hash;
	(void)name_put(&member->record, plain);
	return placement_hash(plain);
}

static struct member_text *text_new(const char *name, const char *address)
{
	size_t name_bytes = strlen(name) + 1, address_bytes = strlen(address) + 1;
	struct member_text *text = malloc(sizeof(*text) + name_bytes + address_bytes);

	if (!text)
		return NULL;
	text->hash = placement_hash(name);
	memcpy(text->name, name, name_bytes);
	memcpy(text->name + name_bytes, address, address_bytes);
	return text;
}

bool member_text_set(
	struct member_record *record, const char *name, const char *address, uint16_t port)
{
	struct member_text *was = record->plain ? NULL : record->text, *text;

	if (!plain_set(record, name, address, port)) {
		text = text_new(name, address);
		if (!text)
			return false;
		record->text = text;
		record->port = port;
		record->plain = false;
	}
	free(was);
	return true;
}

void member_text_clear(struct member_record *record)
{
	if (!record->plain)
		free(record->text);
	record->text = NULL;
	record->plain = false;
}

const char *member_label(const struct member_record *record, char ret[MEMBER_LABEL_BYTES])
{
	char address[ADDRESS_TEXT_BYTES];
	struct member_texts texts;

	member_texts(record, &texts);
	snprintf(ret, MEMBER_LABEL_BYTES, "%s (%s)", texts.name,
		address_text(texts.address, record->port, address));
	return ret;
}
