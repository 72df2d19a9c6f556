/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests: the holder asks an owner for a sum over its entries of each slot of the map, and
 * computes the same from its index. Control plane's thread only.
 *
 * The two are not read at one moment. An entry that changes meanwhile is published or removed by
 * its own update, whatever the digests say; its slot may differ, so the pages of the slot are
 * published once more, which changes nothing.
 */
#include <stdlib.h>

#include "engine/abi/wire.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/pages/pages.h"

#define SKIPS 16u /* slots that are skipped at the cost of one page */

/* ---- the holder ------------------------------------------------------------------------------ */

void digest_drop(struct owner *owner)
{
	free(owner->digest);
	owner->digest = NULL;
}

bool digest_ask(struct directory *dir, struct owner *owner)
{
	struct rpc_link *link = member_link(dir->control, owner->ref);
	Pc__DigestAsk body = PC__DIGEST_ASK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	struct digest *digest;

	if (!link || link->member->contact->wire < WIRE_VERSION_SLOTS)
		return false;
	digest = calloc(1, sizeof(*digest));
	if (!digest)
		return false;
	digest->serial = body.serial = ++dir->serial;
	digest->via = link;
	digest->asked_ns = net_now();
	message.body_case = PC__MESSAGE__BODY_DIGEST_ASK;
	message.digest_ask = &body;
	if (rpc_send(link, &message))
		owner->digest = digest;
	else
		free(digest);
	return owner->digest != NULL;
}

static bool to_count(const struct owner *owner)
{
	return owner && owner->digest && !owner->digest->counted;
}

static bool slot_wanted(struct directory *dir, uint32_t slot)
{
	const struct map_view *view = dir->settled;
	const uint8_t *ranked = map_view_slot(view, slot);

	if (!slot_any(dir, slot))
		return false;
	for (unsigned i = 0; i < map_owning(view); i++)
		if (to_count(owner_of(dir, view->owner[ranked[i]].ref)))
			return true;
	return false;
}

static void page_count(struct directory *dir, const struct index_entry *entry)
{
	const struct map_view *view = dir->settled;
	uint32_t at[REPLICAS_MAX], slot = map_slot_of(&entry->key);
	unsigned owners = map_owners(view, &entry->key, at);

	for (unsigned i = 0; i < owners; i++) {
		struct owner *owner = owner_of(dir, view->owner[at[i]].ref);

		if (!to_count(owner) || !owner_takes(dir, owner->ref, entry->place))
			continue;
		owner->digest->pages++;
		owner->digest->differ[slot] +=
			shard_entry_hash(dir_tag(&entry->key), entry->place, entry->generation);
	}
}

bool digests_count(struct directory *dir)
{
	struct index_entry entries[MOVE_PART];
	unsigned skipped = 0, looked = 0;

	while (looked + skipped / SKIPS < MOVE_KEYS && dir->slot < MAP_SLOTS) {
		unsigned count;

		if (!dir->at && !slot_wanted(dir, dir->slot)) {
			dir->slot++;
			skipped += slot_any(dir, dir->slot % MAP_SLOTS);
			continue;
		}
		count = slot_pages(dir, dir->slot, &dir->at, MOVE_PART, entries);
		for (unsigned i = 0; i < count; i++)
			page_count(dir, &entries[i]);
		looked += 1 + count;
		dir->slot += !dir->at;
	}
	return dir->slot < MAP_SLOTS;
}

/* False: the sums do not fit the slots. */
static bool answer_take(const Pc__Digest *answer, uint64_t *differ)
{
	size_t at = 0;

	if (!answer->slots.len)
		return answer->n_sums == 0;
	if (answer->slots.len != MAP_SLOTS / 8)
		return false;
	for (uint32_t slot = 0; slot < MAP_SLOTS; slot++) {
		if (!(answer->slots.data[slot / 8] >> slot % 8 & 1))
			continue;
		if (at == answer->n_sums)
			return false;
		differ[slot] -= answer->sums[at++];
	}
	return at == answer->n_sums;
}

bool directory_serve_digest(
	struct control *control, struct rpc_link *link, const Pc__Digest *answer)
{
	struct owner *owner = owner_at(control->directory, link->member->record.peer);
	struct digest *digest = owner->digest;

	if (!digest || digest->serial != answer->serial || digest->via != link)
		return answer->n_sums <= MAP_SLOTS; /* late */
	if (digest->answered || !answer_take(answer, digest->differ))
		return false;
	digest->answered = true;
	digest->none = answer->n_sums == 0;
	compare_answered(control->directory, owner);
	return true;
}

/* ---- the owner ------------------------------------------------------------------------------- */

/* `sums` NULL: there are none. They are moved together. */
static void reply(struct rpc_link *link, uint64_t serial, uint64_t *sums)
{
	static uint8_t slots[MAP_SLOTS / 8]; /* the thread's */
	Pc__Digest body = PC__DIGEST__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	for (uint32_t slot = 0; slot < MAP_SLOTS; slot++) {
		if (slot % 8 == 0)
			slots[slot / 8] = 0;
		if (!sums || !sums[slot])
			continue;
		slots[slot / 8] |= (uint8_t)(1u << slot % 8);
		sums[body.n_sums++] = sums[slot];
	}
	body.serial = serial;
	body.sums = sums;
	if (body.n_sums)
		body.slots = (ProtobufCBinaryData){sizeof(slots), slots};
	message.body_case = PC__MESSAGE__BODY_DIGEST;
	message.digest = &body;
	rpc_reply(link, &message);
}

bool directory_serve_digest_ask(
	struct control *control, struct rpc_link *link, const Pc__DigestAsk *ask)
{
	struct directory *dir = control->directory;
	struct asked *asked;

	/* It would read the sums of other slots: it goes on without an answer. */
	if (link->member->contact->wire < WIRE_VERSION_SLOTS)
		return true;
	digests_unask(dir, link);
	asked = control->shard->entries ? calloc(1, sizeof(*asked)) : NULL;
	if (!asked) {
		/* Also without memory: then the sender publishes everything again. */
		reply(link, ask->serial, NULL);
		return true;
	}
	asked->link = link;
	asked->serial = ask->serial;
	asked->ref = member_link_ref(link);
	asked->left = 1ull << control->shard->bits;
	TAILQ_INSERT_TAIL(&dir->asked, asked, next);
	move_soon(dir);
	return true;
}

void digests_unask(struct directory *dir, const struct rpc_link *link)
{
	struct asked *asked, *next;

	for (asked = TAILQ_FIRST(&dir->asked); asked; asked = next) {
		next = TAILQ_NEXT(asked, next);
		if (link && asked->link != link)
			continue;
		TAILQ_REMOVE(&dir->asked, asked, next);
		free(asked->sums);
		free(asked);
	}
}

/* Reads the next part of the shard. False: there is more to read. Without memory nothing is. */
static bool count_part(const struct shard *shard, struct asked *asked)
{
	uint32_t buckets = asked->left < DIGEST_BUCKETS ? (uint32_t)asked->left : DIGEST_BUCKETS;

	if (!asked->sums)
		asked->sums = calloc(MAP_SLOTS, sizeof(asked->sums[0]));
	if (!asked->sums)
		return true;
	shard_digest(shard, &asked->cursor, buckets, asked->ref, asked->sums);
	asked->left -= buckets;
	return asked->left == 0;
}

void digests_slice(struct directory *dir)
{
	struct asked *asked = TAILQ_FIRST(&dir->asked);

	if (!asked || !count_part(dir->control->shard, asked))
		return;
	TAILQ_REMOVE(&dir->asked, asked, next);
	reply(asked->link, asked->serial, asked->sums);
	free(asked->sums);
	free(asked);
}
