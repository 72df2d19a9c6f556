/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the member table: entries in chunks, hash tables by name and by ref, peer
 * numbers, contacts. Control plane's thread only.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/control/members/member.h"

const struct member_contact member_no_contact;

/* ---- hash tables ----------------------------------------------------------------------------- */

static uint16_t *heads_new(unsigned heads)
{
	uint16_t *head = malloc(heads * sizeof(*head));

	if (head)
		memset(head, 0xff, heads * sizeof(*head)); /* MEMBER_NONE */
	return head;
}

static void name_chain(struct member_table *table, struct member *member)
{
	uint16_t *head = &table->by_name[member_hash(member) & (table->heads - 1)];

	member->next_name = *head;
	*head = member->index;
}

static void ref_chain(struct member_table *table, struct member *member)
{
	uint16_t *head = &table->by_ref[member->record.ref & (table->heads - 1)];

	member->next_ref = *head;
	*head = member->index;
}

static void name_unchain(struct member_table *table, struct member *member)
{
	uint16_t *at = &table->by_name[member_hash(member) & (table->heads - 1)];

	while (*at != member->index)
		at = &member_at(table, *at)->next_name;
	*at = member->next_name;
}

static void ref_unchain(struct member_table *table, struct member *member)
{
	uint16_t *at = &table->by_ref[member->record.ref & (table->heads - 1)];

	while (*at != member->index)
		at = &member_at(table, *at)->next_ref;
	*at = member->next_ref;
}

/* Doubles the hash tables above two entries per chain. Without memory they stay. */
static void heads_grow(struct member_table *table)
{
	unsigned heads = table->heads * 2;
	uint16_t *by_name, *by_ref;

	if (table->entries <= 2 * table->heads)
		return;
	by_name = heads_new(heads);
	by_ref = heads_new(heads);
	if (!by_name || !by_ref) {
		free(by_name);
		free(by_ref);
		return;
	}
	free(table->by_name);
	free(table->by_ref);
	table->by_name = by_name;
	table->by_ref = by_ref;
	table->heads = heads;
	for (unsigned i = 0; i < table->entries; i++) {
		struct member *member = member_at(table, i);

		if (member_has_name(&member->record))
			name_chain(table, member);
		if (member->state == MEMBER_ALIVE)
			ref_chain(table, member);
	}
}

struct member *member_table_find(const struct member_table *table, const char *name)
{
	uint16_t at = table->by_name[member_name_hash(name) & (table->heads - 1)];

	while (at != MEMBER_NONE) {
		struct member *member = member_at(table, at);

		if (member_is_named(&member->record, name))
			return member;
		at = member->next_name;
	}
	return NULL;
}

struct member *member_table_ref(const struct member_table *table, uint32_t ref)
{
	uint16_t at = table->by_ref[ref & (table->heads - 1)];

	while (at != MEMBER_NONE) {
		struct member *member = member_at(table, at);

		if (member->record.ref == ref)
			return member;
		at = member->next_ref;
	}
	return NULL;
}

/* ---- entries --------------------------------------------------------------------------------- */

struct member *member_new(struct member_table *table)
{
	struct member *member, **chunk;

	if (table->freed != MEMBER_NONE) {
		member = member_at(table, table->freed);
		table->freed = member->next_name;
		return member;
	}
	if (table->entries == MEMBER_ENTRIES)
		return NULL;
	chunk = &table->chunk[table->entries / MEMBER_CHUNK];
	if (!*chunk)
		*chunk = calloc(MEMBER_CHUNK, sizeof(**chunk));
	if (!*chunk)
		return NULL;
	member = member_at(table, table->entries);
	member->index = (uint16_t)table->entries++;
	member->contact = (struct member_contact *)&member_no_contact;
	heads_grow(table);
	return member;
}

void member_release(struct member_table *table, struct member *member)
{
	uint16_t index = member->index;

	member_contact_free(table, member);
	if (member_has_name(&member->record)) {
		name_unchain(table, member);
		member_text_clear(&member->record);
	}
	memset(member, 0, sizeof(*member));
	member->index = index;
	member->contact = (struct member_contact *)&member_no_contact;
	member->next_name = table->freed;
	table->freed = index;
}

bool member_name_set(struct member_table *table, struct member *member, const char *name,
	const char *address, uint16_t port)
{
	bool had = member_has_name(&member->record);

	if (!member_text_set(&member->record, name, address, port))
		return false;
	if (!had)
		name_chain(table, member);
	return true;
}

bool member_fill(struct control *control, struct member *member, const Pc__Member *m)
{
	struct member_record *record = &member->record;

	if (!member_name_set(
		    &control->members->table, member, m->name, m->address, (uint16_t)m->port))
		return false;
	if (record->incarnation != m->incarnation)
		member->proven = member->flood = false;
	record->incarnation = m->incarnation;
	record->rails = (uint8_t)m->rails;
	record->bucket_bits = (uint8_t)m->bucket_bits;
	return true;
}

/* ---- live members ---------------------------------------------------------------------------- */

/*
 * Returns the array with room for one more than the `used` elements of `each` bytes. NULL: no
 * memory; the array stays.
 */
static void *array_grown(void *array, unsigned used, unsigned *room, size_t each)
{
	unsigned more = *room + *room / 4 + MEMBER_CHUNK;
	void *larger;

	if (used < *room)
		return array;
	larger = realloc(array, more * each);
	if (larger)
		*room = more;
	return larger;
}

int member_table_add(struct member_table *table, struct member *member)
{
	uint16_t *by_peer;
	unsigned peer;

	if (table->peers_used < NODES_MAX) {
		by_peer = array_grown(
			table->by_peer, table->peers_used, &table->peers_room, sizeof(*by_peer));
		if (!by_peer)
			return -ENOMEM;
		table->by_peer = by_peer;
		peer = table->peers_used++;
	} else if (table->peer_first != PEER_NONE) {
		peer = table->peer_first;
		table->peer_first = table->by_peer[peer] & (PEER_FREE - 1);
	} else {
		return -ENFILE;
	}
	table->by_peer[peer] = member->index;
	member->record.peer = (uint16_t)peer;
	ref_chain(table, member);
	return 0;
}

void member_table_remove(struct member_table *table, struct member *member)
{
	uint16_t peer = member->record.peer;

	ref_unchain(table, member);
	table->by_peer[peer] = PEER_FREE | PEER_NONE;
	if (table->peer_first == PEER_NONE)
		table->peer_first = peer;
	else
		table->by_peer[table->peer_last] = PEER_FREE | peer;
	table->peer_last = peer;
}

/* ---- contacts -------------------------------------------------------------------------------- */

static void contact_place(struct member_table *table, struct member_contact *contact, unsigned at)
{
	table->contact[at] = contact;
	contact->at = at;
}

struct member_contact *member_contact(struct member_table *table, struct member *member)
{
	struct member_contact *fresh, **contact;
	unsigned at;

	if (member_has_contact(member))
		return member->contact;
	contact = array_grown(
		table->contact, table->contacts, &table->contacts_room, sizeof(*contact));
	if (!contact)
		return NULL;
	table->contact = contact;
	fresh = calloc(1, sizeof(*fresh));
	if (!fresh)
		return NULL;
	fresh->member = member;
	/* Each engine has an order of its own, so that it does not probe what all others probe. */
	at = net_random() % (table->contacts + 1);
	if (at < table->contacts)
		contact_place(table, table->contact[at], table->contacts);
	contact_place(table, fresh, at);
	table->contacts++;
	member->contact = fresh;
	return fresh;
}

void member_contact_free(struct member_table *table, struct member *member)
{
	struct member_contact *contact = member->contact;

	if (!member_has_contact(member))
		return;
	contact_place(table, table->contact[--table->contacts], contact->at);
	member->contact = (struct member_contact *)&member_no_contact;
	free(contact);
}

/* ---- open and close -------------------------------------------------------------------------- */

int member_table_open(struct member_table *table)
{
	table->freed = MEMBER_NONE;
	table->peer_first = PEER_NONE;
	table->heads = MEMBER_BUCKETS;
	table->by_name = heads_new(table->heads);
	table->by_ref = heads_new(table->heads);
	return table->by_name && table->by_ref ? 0 : -ENOMEM;
}

void member_table_close(struct member_table *table)
{
	for (unsigned i = 0; i < table->entries; i++) {
		struct member *member = member_at(table, i);

		member_contact_free(table, member);
		member_text_clear(&member->record);
	}
	for (unsigned i = 0; i < MEMBER_ENTRIES / MEMBER_CHUNK; i++)
		free(table->chunk[i]);
	free(table->by_name);
	free(table->by_ref);
	free(table->by_peer);
	free(table->contact);
}
