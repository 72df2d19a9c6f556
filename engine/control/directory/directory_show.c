/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries without a page. Where digests differ (directory_digest.c), the owner shows the holder the
 * entries that it has there, one part of its shard at a time, and the holder removes those that
 * name no page of its own. Control plane's thread only.
 *
 *      holder                                    owner
 *      EntriesAsk, slots, bucket          ->     reads a part of its shard
 *                                         <-     Entries, next
 *      Remove of those that are wrong     ->
 *      EntriesAsk, bucket = next          ->
 *
 * An entry names its page by place and generation, and no later page has the same name: the
 * generation of a place in memory only grows, and a name on disk has the random epoch of its
 * segment. So an entry that is wrong when the holder looks stays wrong, and the Remove, which names
 * exactly this entry, meets no newer one. Nothing has to be ordered with publishes in flight. An
 * owner that lies gets Removes of what it has shown, for its own shard.
 *
 * An engine looks at its own entries in its own shard in the same way.
 */
#include <stdlib.h>

#include "engine/control/clients/clients.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/pages/pages.h"

/* What a Remove needs of the key of an entry: its first bucket and its tag, see abi/bucket.h. */
static struct page_key entry_named(const struct shard_part *part, const struct dir_entry *entry)
{
	return (struct page_key){.word = {(uint64_t)part->first << 8, entry->tag}};
}

/* ---- the holder ------------------------------------------------------------------------------ */

/*
 * True if member `ref` owns the slot. A former owner keeps its entries while readers ask it, and
 * is looked at again.
 */
static bool slot_has(struct directory *dir, uint32_t slot, uint32_t ref)
{
	uint64_t now_ns = net_now();

	if (slot_owned(dir->settled, slot, ref))
		return true;
	if (now_ns >= dir->tidy_ns && !slot_lags(dir, slot))
		return false;
	compare_mark(dir, ref);
	if (now_ns >= dir->tidy_ns)
		dir->lag_ns = now_ns + dead_after_ns(dir);
	return true;
}

/* True if member `ref` should have this entry: it names a page of this engine, by its one name. */
static bool entry_right(struct directory *dir, uint32_t ref, const struct dir_entry *entry)
{
	struct control *control = dir->control;
	const struct index_entry *ours;
	struct page_key key;

	if (place_on_disk(entry->place)) {
		if (tier_opens(control))
			return true;
		if (!tier_named(control, entry->place, entry->generation, &key))
			return false;
	} else {
		if (!page_key_at(control, entry->place, entry->generation, &key))
			return false;
		ours = index_find(control->index, &key);
		if (!ours || ours->place != entry->place)
			return false;
	}
	return dir_tag(&key) == entry->tag && slot_has(dir, map_slot_of(&key), ref);
}

static void entry_withdraw(struct directory *dir, uint32_t ref, const struct page_key *key,
	const struct dir_entry *entry)
{
	struct dir_update *update = update_new(dir, DIR_REMOVE, key,
		&(struct location){.ref = dir->control->ref,
			.place = entry->place,
			.generation = entry->generation},
		1);

	if (!update)
		return;
	dir->control->counter[COUNTER_entries_withdrawn]++;
	update_add(dir, update, ref);
	update_start(dir, update);
}

/* False: nothing was sent; the owner shows nothing. */
static bool ask(struct directory *dir, struct owner *owner, struct show *show)
{
	Pc__EntriesAsk body = PC__ENTRIES_ASK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	struct rpc_link *link = member_link_now(dir->control, owner->ref);

	if (!link)
		return false;
	body.serial = show->serial = ++dir->serial;
	body.slots = (ProtobufCBinaryData){sizeof(show->slots), show->slots};
	body.bucket = show->bucket;
	message.body_case = PC__MESSAGE__BODY_ENTRIES_ASK;
	message.entries_ask = &body;
	show->via = link;
	show->asked = true;
	return rpc_send(link, &message);
}

void show_next(struct directory *dir, struct owner *owner)
{
	struct show *show = owner->show;

	/* It must have room for removes of all that one answer names. */
	if (!show || show->asked || owner->background + MESSAGE_PAGES_MAX > OWNER_REMOVES_MAX ||
		dir->background > BACKGROUND_MAX)
		return;
	if (!ask(dir, owner, show))
		show_drop(owner);
}

void show_begin(struct directory *dir, struct owner *owner)
{
	const struct digest *digest = owner->digest;
	struct show *show = digest->none ? NULL : calloc(1, sizeof(*show));
	bool any = false;

	for (uint32_t slot = 0; show && slot < MAP_SLOTS; slot++)
		if (digest->differ[slot]) {
			show->slots[slot / 8] |= (uint8_t)(1u << slot % 8);
			any = true;
		}
	if (!any) {
		free(show);
		return;
	}
	owner->show = show;
	show_next(dir, owner);
}

void show_drop(struct owner *owner)
{
	free(owner->show);
	owner->show = NULL;
}

/* An owner that was full has room for what it refused. */
static void show_end(struct owner *owner)
{
	if (owner->full_ns && owner->show->removed) {
		owner->full_ns = 0;
		owner->unsure = true;
	}
	show_drop(owner);
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

		if (entry_right(dir, owner->ref, &shown))
			continue;
		show->removed = true;
		entry_withdraw(dir, owner->ref, &key, &shown);
	}
	show->asked = false;
	show->bucket = answer->next;
	if (answer->next)
		show_next(dir, owner);
	else
		show_end(owner);
	return true;
}

void show_own(struct directory *dir)
{
	struct shard *shard = dir->control->shard;
	struct shard_part part = {.bucket = dir->own.cursor,
		.buckets = dir->own.left < SHOW_BUCKETS ? (uint32_t)dir->own.left : SHOW_BUCKETS};
	const struct dir_entry *entry;

	while ((entry = shard_show(shard, &part, dir->control->ref))) {
		struct page_key key = entry_named(&part, entry);

		if (!entry_right(dir, dir->control->ref, entry))
			entry_withdraw(dir, dir->control->ref, &key, entry);
	}
	dir->own.cursor = part.bucket;
	dir->own.left = part.bucket ? dir->own.left - SHOW_BUCKETS : 0;
	if (dir->own.left || dir->own.dropped == shard->dropped)
		return;
	/* what it had no room for */
	dir->own.dropped = shard->dropped;
	lacks_all(dir, &dir->self, dir->control->ref);
}

/* ---- the owner ------------------------------------------------------------------------------- */

bool directory_serve_entries_ask(
	struct control *control, struct rpc_link *link, const Pc__EntriesAsk *ask)
{
	struct directory *dir = control->directory;
	struct shard_part part = {
		.bucket = ask->bucket, .buckets = SHOW_BUCKETS, .slots = ask->slots.data};
	Pc__Entries body = PC__ENTRIES__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	const struct dir_entry *entry;
	struct page_key key;

	if (ask->slots.len != MAP_SLOTS / 8)
		return false;
	for (; body.n_entries < MESSAGE_PAGES_MAX; body.n_entries++) {
		Pc__Entry *at = dir->entry_at[body.n_entries];

		entry = shard_show(control->shard, &part, member_link_ref(link));
		if (!entry)
			break;
		key = entry_named(&part, entry);
		at->key0 = key.word[0];
		at->key1 = key.word[1];
		at->place = entry->place;
		at->generation = entry->generation;
		at->ref = 0;
	}
	body.serial = ask->serial;
	body.entries = dir->entry_at;
	body.next = part.bucket;
	message.body_case = PC__MESSAGE__BODY_ENTRIES;
	message.entries = &body;
	rpc_reply(link, &message);
	return true;
}
