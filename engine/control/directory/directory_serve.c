/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serves requests of other engines on our shard and our pages. Each function returns false if the
 * message breaks a rule: then nothing of it was executed and the caller closes the link. Control
 * plane's thread only.
 */
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/pages/pages.h"

/* entries between the one that is changed and the one whose cache lines are prefetched */
#define PREFETCH_FAR 8u

bool entries_fit(size_t count, Pc__Entry *const *entries)
{
	if (count == 0 || count > MESSAGE_PAGES_MAX)
		return false;
	for (size_t i = 0; i < count; i++)
		if (!entries[i] || (entries[i]->key0 | entries[i]->key1) == 0)
			return false;
	return true;
}

struct page_key entry_key(const Pc__Entry *entry)
{
	return (struct page_key){.word = {entry->key0, entry->key1}};
}

static void acknowledge(
	struct rpc_link *link, uint64_t serial, uint32_t *failed, size_t failed_count)
{
	Pc__Ack ack = PC__ACK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	ack.serial = serial;
	ack.failed = failed;
	ack.n_failed = failed_count;
	message.body_case = PC__MESSAGE__BODY_ACK;
	message.ack = &ack;
	rpc_reply(link, &message);
}

bool entries_rails_fit(size_t count, Pc__Entry *const *entries, unsigned rails)
{
	for (size_t i = 0; i < count; i++)
		if (!place_on_disk(entries[i]->place) && place_rail(entries[i]->place) >= rails)
			return false;
	return true;
}

/* Prefetches what the change of an entry behind the i-th one will read. */
static void entries_prefetch(
	const struct control *control, size_t count, Pc__Entry *const *entries, size_t i)
{
	struct page_key key;

	if (i + PREFETCH_FAR >= count)
		return;
	key = entry_key(entries[i + PREFETCH_FAR]);
	shard_prefetch(control->shard, &key);
}

size_t entries_insert(struct directory *dir, uint32_t ref, size_t count, Pc__Entry *const *entries)
{
	struct control *control = dir->control;
	size_t failed = 0;

	for (size_t i = 0; i < count; i++) {
		const Pc__Entry *entry = entries[i];
		struct page_key key = entry_key(entry);

		entries_prefetch(control, count, entries, i);
		if (shard_insert(control->shard, &key, ref, entry->place, entry->generation) == 0) {
			control->counter[COUNTER_entries_inserted]++;
		} else {
			control->counter[COUNTER_entries_dropped]++;
			dir->failed[failed++] = (uint32_t)i;
			if (!place_on_disk(entry->place))
				departed_sweep(dir);
		}
	}
	return failed;
}

void entries_remove(struct directory *dir, size_t count, Pc__Entry *const *entries)
{
	struct control *control = dir->control;

	for (size_t i = 0; i < count; i++) {
		const Pc__Entry *entry = entries[i];
		struct page_key key = entry_key(entry);

		entries_prefetch(control, count, entries, i);
		if (shard_remove(control->shard, &key, entry->ref, entry->place, entry->generation))
			control->counter[COUNTER_entries_removed]++;
	}
}

/* Remembers the newest batch of a holder that was executed here: relays before it are refused. */
static void newest_set(struct directory *dir, const struct rpc_link *link, uint64_t serial)
{
	struct owner *holder = owner_at(dir, link->member->record.peer);

	if (serial > holder->newest)
		holder->newest = serial;
}

bool directory_serve_publish(
	struct control *control, struct rpc_link *link, const Pc__Publish *publish)
{
	struct directory *dir = control->directory;
	uint32_t ref = member_link_ref(link);
	size_t failed;

	if (publish->ref != ref || !entries_fit(publish->n_entries, publish->entries) ||
		!entries_rails_fit(
			publish->n_entries, publish->entries, link->member->record.rails))
		return false;
	newest_set(dir, link, publish->serial);
	failed = entries_insert(dir, ref, publish->n_entries, publish->entries);
	acknowledge(link, publish->serial, dir->failed, failed);
	return true;
}

bool directory_serve_remove(
	struct control *control, struct rpc_link *link, const Pc__Remove *remove)
{
	if (!entries_fit(remove->n_entries, remove->entries))
		return false;
	for (size_t i = 0; i < remove->n_entries; i++)
		if (remove->entries[i]->ref == 0)
			return false;
	newest_set(control->directory, link, remove->serial);
	entries_remove(control->directory, remove->n_entries, remove->entries);
	acknowledge(link, remove->serial, NULL, 0);
	return true;
}

/* True if the pages that the sender reports may be pages of this engine. */
static bool reported_fit(const struct control *control, const Pc__Touch *touch)
{
	if (touch->n_reported == 0)
		return true;
	if (touch->n_reported > REPORTS_MAX || !entries_fit(touch->n_reported, touch->reported))
		return false;
	for (size_t i = 0; i < touch->n_reported; i++)
		if (place_rail(touch->reported[i]->place) >= control->rails)
			return false;
	return true;
}

bool directory_serve_touch(struct control *control, struct rpc_link *link, const Pc__Touch *touch)
{
	(void)link;
	if (touch->n_places > MESSAGE_PAGES_MAX || !reported_fit(control, touch))
		return false;
	for (size_t i = 0; i < touch->n_places; i++)
		if (place_rail(touch->places[i]) >= control->rails)
			return false;
	for (size_t i = 0; i < touch->n_places; i++) {
		page_touched(control, touch->places[i]);
		tier_touched(control, touch->places[i], 0);
	}
	control->counter[COUNTER_pages_used_remotely] += touch->n_places;
	for (size_t i = 0; i < touch->n_reported; i++) {
		const Pc__Entry *entry = touch->reported[i];

		scrub_reported(control,
			&(struct page_report){entry_key(entry), entry->place, entry->generation});
	}
	return true;
}
