/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an owner has of a holder's entries: digests, and the entries themselves where digests
 * differ. Both sides of both exchanges are here; MESSAGES.md shows them and says why a Remove of
 * what an owner has shown meets no newer entry. When they take place, and what the holder publishes
 * then, is in directory_compare.c. An engine looks at its own entries in its own shard in the same
 * way. Control plane's thread only.
 */
#include <stdlib.h>

#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/pages/pages.h"

#define SKIPS 16u /* slots that are skipped at the cost of one page */

/* ---- digests: the holder --------------------------------------------------------------------- */

void digest_drop(struct owner *owner)
{
	free(owner->digest);
	owner->digest = NULL;
}

bool digest_ask(struct directory *dir, struct owner *owner)
{
	struct rpc_link *link = member_link(dir->control, owner->ref);
	Pc__DigestAsk body = PC__DIGEST_ASK__INIT;
	Pc__Message message = message_of(PC__MESSAGE__BODY_DIGEST_ASK, &body);
	struct digest *digest;

	if (!link)
		return false;
	digest = calloc(1, sizeof(*digest));
	if (!digest)
		return false;
	digest->serial = body.serial = ++dir->serial;
	digest->via = link;
	digest->asked_ns = net_now();
	if (rpc_send(link, &message))
		owner->digest = digest;
	else
		free(digest);
	return owner->digest != NULL;
}

static bool slot_owned(const struct map_view *view, uint32_t slot, uint32_t ref)
{
	return slot_rank(view, slot, ref) < map_owning(view);
}

/* The next slot that differs, from `slot` on; MAP_SLOTS: none. */
static uint32_t digest_next(const struct digest *digest, uint32_t slot)
{
	while (slot < MAP_SLOTS && !digest->differ[slot])
		slot++;
	return slot;
}

static bool owner_counts(const struct owner *owner)
{
	return owner && owner->digest && !owner->digest->counted;
}

static bool slot_wanted(struct directory *dir, uint32_t slot)
{
	uint32_t owner[REPLICAS_MAX];
	unsigned owners = slot_any(dir, slot) ? slot_owners(dir->map.settled, slot, owner) : 0;

	for (unsigned i = 0; i < owners; i++)
		if (owner_counts(owner_of(dir, owner[i])))
			return true;
	return false;
}

static void digest_add(struct directory *dir, const struct index_entry *entry)
{
	uint32_t ref[REPLICAS_MAX], slot = map_slot_of(&entry->key);
	unsigned owners = slot_owners(dir->map.settled, slot, ref);

	for (unsigned i = 0; i < owners; i++) {
		struct owner *owner = owner_of(dir, ref[i]);

		if (!owner_counts(owner))
			continue;
		owner->digest->differ[slot] +=
			shard_entry_hash(dir_tag(&entry->key), entry->place, entry->generation);
	}
}

bool digests_count(struct directory *dir)
{
	struct index_entry entries[MOVE_PART];
	unsigned skipped = 0, looked = 0;

	while (looked + skipped / SKIPS < MOVE_KEYS && dir->reading.slot < MAP_SLOTS) {
		unsigned count;

		if (!dir->reading.at && !slot_wanted(dir, dir->reading.slot)) {
			dir->reading.slot++;
			skipped += slot_any(dir, dir->reading.slot % MAP_SLOTS);
			continue;
		}
		count = slot_pages(dir, dir->reading.slot, &dir->reading.at, MOVE_PART, entries);
		for (unsigned i = 0; i < count; i++)
			digest_add(dir, &entries[i]);
		looked += 1 + count;
		dir->reading.slot += !dir->reading.at;
	}
	return dir->reading.slot < MAP_SLOTS;
}

/* False: the sums do not fit the slots. */
static bool digest_take(const Pc__Digest *answer, uint64_t *differ)
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
	if (digest->answered || !digest_take(answer, digest->differ))
		return false;
	digest->answered = true;
	digest->none = answer->n_sums == 0;
	compare_answered(control->directory, owner);
	return true;
}

/* ---- digests: the owner ---------------------------------------------------------------------- */

/* `sums` NULL: there are none. They are moved together. */
static void digest_reply(struct rpc_link *link, uint64_t serial, uint64_t *sums)
{
	static uint8_t slots[MAP_SLOTS / 8]; /* the thread's */
	Pc__Digest body = PC__DIGEST__INIT;
	Pc__Message message = message_of(PC__MESSAGE__BODY_DIGEST, &body);

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
	rpc_reply(link, &message);
}

/* The link has closed, NULL: all links: nothing is answered on it. */
static void digests_unask(struct directory *dir, const struct rpc_link *link)
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

bool directory_serve_digest_ask(
	struct control *control, struct rpc_link *link, const Pc__DigestAsk *ask)
{
	struct directory *dir = control->directory;
	struct asked *asked;

	digests_unask(dir, link);
	asked = control->shard->entries ? calloc(1, sizeof(*asked)) : NULL;
	if (!asked) {
		/* Also without memory: then the sender publishes everything again. */
		digest_reply(link, ask->serial, NULL);
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

/* Reads the next part of the shard. False: there is more to read. Without memory nothing is. */
static bool asked_count(const struct shard *shard, struct asked *asked)
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

	if (!asked || !asked_count(dir->control->shard, asked))
		return;
	TAILQ_REMOVE(&dir->asked, asked, next); /* an answer can close the link */
	digest_reply(asked->link, asked->serial, asked->sums);
	free(asked->sums);
	free(asked);
}

/* ---- entries: the holder --------------------------------------------------------------------- */

/* True if member `ref` should have this entry: it names a page of this engine, by its one name. */
static bool entry_right(struct directory *dir, uint32_t ref, const struct dir_entry *entry)
{
	const struct location at = {dir->control->ref, entry->place, entry->generation};
	struct page_key key;

	if (place_on_disk(entry->place) && tier_opens(dir->control))
		return true;
	if (!location_names(dir->control, &at, &key))
		return false;
	return dir_tag(&key) == entry->tag && slot_owned(dir->map.settled, map_slot_of(&key), ref);
}

/* Removes an entry that the member should not have. */
static void entry_check(struct directory *dir, uint32_t ref, const struct page_key *key,
	const struct dir_entry *entry)
{
	const struct dir_request request = {DIR_REMOVE, .key = *key,
		.at = {dir->control->ref, entry->place, entry->generation}};

	if (!entry_right(dir, ref, entry))
		dir->control->counter[COUNTER_entries_withdrawn] +=
			update_send(dir, &request, &ref, 1);
}

void show_drop(struct owner *owner)
{
	free(owner->show);
	owner->show = NULL;
}

void show_next(struct directory *dir, struct owner *owner)
{
	struct show *show = owner->show;
	Pc__EntriesAsk body = PC__ENTRIES_ASK__INIT;
	Pc__Message message = message_of(PC__MESSAGE__BODY_ENTRIES_ASK, &body);
	struct rpc_link *link;

	/* It must have room for removes of all that one answer names. */
	if (!show || show->asked || owner->background + MESSAGE_PAGES_MAX > OWNER_REMOVES_MAX ||
		dir->background > BACKGROUND_MAX)
		return;
	link = member_link_now(dir->control, owner->ref);
	body.serial = show->serial = ++dir->serial;
	body.slots = (ProtobufCBinaryData){sizeof(show->slots), show->slots};
	body.bucket = show->bucket;
	show->via = link;
	show->asked = true;
	if (!link || !rpc_send(link, &message))
		show_drop(owner);
}

void show_begin(struct directory *dir, struct owner *owner)
{
	const struct digest *digest = owner->digest;
	uint32_t slot = digest_next(digest, 0);
	struct show *show;

	if (digest->none || slot == MAP_SLOTS)
		return;
	show = calloc(1, sizeof(*show));
	if (!show)
		return;
	for (; slot < MAP_SLOTS; slot = digest_next(digest, slot + 1))
		show->slots[slot / 8] |= (uint8_t)(1u << slot % 8);
	owner->show = show;
	show_next(dir, owner);
}

void digests_link_down(struct directory *dir, struct owner *owner, const struct rpc_link *link)
{
	digests_unask(dir, link);
	if (owner->digest && owner->digest->via == link && !owner->digest->answered) {
		owner->unsure = true;
		digest_drop(owner);
	}
	if (owner->show && owner->show->via == link) {
		owner->unsure = true;
		show_drop(owner);
	}
}

bool directory_serve_entries(
	struct control *control, struct rpc_link *link, const Pc__Entries *answer)
{
	struct directory *dir = control->directory;
	struct owner *owner = owner_at(dir, link->member->record.peer);
	struct show *show = owner->show;

	if (answer->n_entries && !entries_fit(answer->n_entries, answer->entries))
		return false;
	if (!show || !show->asked || show->serial != answer->serial || show->via != link)
		return true; /* late */
	if (answer->next && answer->next <= show->bucket)
		return false;
	for (size_t i = 0; i < answer->n_entries; i++) {
		const Pc__Entry *entry = answer->entries[i];
		struct page_key key = entry_key(entry);
		struct dir_entry shown = {.tag = dir_tag(&key),
			.place = entry->place,
			.generation = entry->generation};

		entry_check(dir, owner->ref, &key, &shown);
	}
	show->asked = false;
	show->bucket = answer->next;
	if (answer->next) {
		show_next(dir, owner);
		return true;
	}
	show_drop(owner);
	return true;
}

/* ---- entries: the owner ---------------------------------------------------------------------- */

/* What a Remove needs of the key of an entry: its first bucket and its tag, see abi/bucket.h. */
static struct page_key entry_named(const struct shard_part *part, const struct dir_entry *entry)
{
	return (struct page_key){.word = {(uint64_t)part->first << 8, entry->tag}};
}

bool directory_serve_entries_ask(
	struct control *control, struct rpc_link *link, const Pc__EntriesAsk *ask)
{
	struct directory *dir = control->directory;
	struct shard_part part = {
		.bucket = ask->bucket, .buckets = SHOW_BUCKETS, .slots = ask->slots.data};
	Pc__Entries body = PC__ENTRIES__INIT;
	Pc__Message message = message_of(PC__MESSAGE__BODY_ENTRIES, &body);
	const struct dir_entry *entry;
	struct page_key key;

	if (ask->slots.len != MAP_SLOTS / 8)
		return false;
	while (body.n_entries < MESSAGE_PAGES_MAX) {
		entry = shard_show(control->shard, &part, member_link_ref(link));
		if (!entry)
			break;
		key = entry_named(&part, entry);
		entry_write(dir->entry_at[body.n_entries++], &key,
			&(struct location){0, entry->place, entry->generation});
	}
	body.serial = ask->serial;
	body.entries = dir->entry_at;
	body.next = part.bucket;
	rpc_reply(link, &message);
	return true;
}

/* ---- entries of this engine in its own shard ------------------------------------------------- */

void show_own(struct directory *dir)
{
	struct shard *shard = dir->control->shard;
	struct shard_part part = {.bucket = dir->own.cursor,
		.buckets = dir->own.left < SHOW_BUCKETS ? (uint32_t)dir->own.left : SHOW_BUCKETS};
	const struct dir_entry *entry;

	while ((entry = shard_show(shard, &part, dir->control->ref))) {
		struct page_key key = entry_named(&part, entry);

		entry_check(dir, dir->control->ref, &key, entry);
	}
	dir->own.cursor = part.bucket;
	dir->own.left = part.bucket ? dir->own.left - SHOW_BUCKETS : 0;
	if (dir->own.left || !dir->own.refused)
		return;
	dir->own.refused = false;
	lacks_all(dir, dir->self);
}
