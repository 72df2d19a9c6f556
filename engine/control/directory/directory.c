/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of directory.h: each turns its request into an update for the owners of the key.
 * Control plane's thread only.
 */
#include "engine/control/directory/directory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/directory/removals.h"
#include "engine/control/pages/pages.h"

static void add_owners(struct directory *dir, struct dir_update *update)
{
	const struct map_view *view = member_map(dir->control);
	uint32_t owner[REPLICAS_MAX];
	unsigned owners = map_owners(view, &update->key, owner);

	for (unsigned i = 0; i < owners; i++)
		update_add(dir, update, view->owner[owner[i]].ref);
}

/* Answers a waiter for which there is no memory. */
static void waiter_refuse(const struct waiter *waiter)
{
	if (waiter)
		waiter->done(waiter->context, waiter->cookie, OP_NO_SPACE);
}

void directory_publish(struct control *control, const struct page_key *key,
	const struct location *at, const struct waiter *waiter)
{
	struct directory *dir = control->directory;
	struct dir_update *update = update_new(dir, DIR_PUBLISH, key, at, REPLICAS_MAX);

	if (!update) {
		waiter_refuse(waiter);
		return;
	}
	update_await(dir, update, waiter);
	add_owners(dir, update);
	update_start(dir, update);
}

#define HAVERS_MAX (REPLICAS_MAX + FORMERS_MAX)

/*
 * In its first seconds an engine does not know the former owners from the slots' words, but it
 * knows the owners of its last map.
 */
unsigned formers_of(const struct directory *dir, uint32_t slot, uint32_t ret_ref[FORMERS_MAX])
{
	unsigned count = slots_formers(dir->control, slot, ret_ref);
	const uint8_t *ranked = dir->was ? map_view_slot(dir->was, slot) : NULL;

	for (unsigned i = 0; ranked && i < map_owning(dir->was); i++) {
		uint32_t ref = dir->was->owner[ranked[i]].ref;

		if (!slot_owned(dir->settled, slot, ref))
			ret_ref[count++] = ref;
	}
	return count;
}

/* Refs of the owners of the key, and of the former ones that may have entries. */
static unsigned owners_of(
	const struct directory *dir, const struct page_key *key, uint32_t ret_ref[HAVERS_MAX])
{
	const struct map_view *view = member_map(dir->control);
	uint32_t at[REPLICAS_MAX];
	unsigned owners = map_owners(view, key, at);

	for (unsigned i = 0; i < owners; i++)
		ret_ref[i] = view->owner[at[i]].ref;
	return owners + formers_of(dir, map_slot_of(key), ret_ref + owners);
}

void entry_remove(struct directory *dir, const struct page_key *key, const struct location *at,
	const struct waiter *waiter)
{
	uint32_t ref[HAVERS_MAX];
	unsigned owners = owners_of(dir, key, ref);
	struct dir_update *update = update_new(dir, DIR_REMOVE, key, at, owners);

	if (!update) {
		waiter_refuse(waiter);
		return;
	}
	update_await(dir, update, waiter);
	for (unsigned i = 0; i < owners; i++)
		update_add(dir, update, ref[i]);
	update_start(dir, update);
}

bool entry_removing(struct directory *dir, const struct page_key *key)
{
	uint32_t ref[HAVERS_MAX];
	unsigned owners = owners_of(dir, key, ref);

	for (unsigned i = 0; i < owners; i++) {
		const struct owner *owner = owner_of(dir, ref[i]);

		if (owner && owner_removing(owner))
			return true;
	}
	return false;
}

void directory_remove(
	struct control *control, const struct page_key *key, const struct location *at)
{
	entry_remove(control->directory, key,
		&(struct location){
			.ref = control->ref, .place = at->place, .generation = at->generation},
		NULL);
}

void directory_stale(struct control *control, const struct page_key *key, const struct location *at)
{
	const struct index_entry *ours;
	struct disk_page page;

	if (at->ref == 0 || (key->word[0] | key->word[1]) == 0)
		return;
	if (at->ref == control->ref) {
		/* this engine has the page: the entry is right, the report wrong or late */
		ours = index_find(control->index, key);
		if (ours && ours->place == at->place && ours->generation == at->generation)
			return;
		if (place_on_disk(at->place) && tier_find(control, key, &page) &&
			page.place == at->place && page.generation == at->generation)
			return;
	}
	control->counter[COUNTER_entries_stale]++;
	entry_remove(control->directory, key, at, NULL);
}

static void forget_add(
	struct directory *dir, struct dir_update *update, const struct member_record *record)
{
	struct owner *owner = record->self ? dir->none : owner_make(dir, record->peer);

	/* a member may have just joined: the map with it comes later */
	if (owner != dir->none)
		owner_adopt(dir, owner);
	update_add(dir, update, record->ref);
}

void directory_forget(
	struct control *control, const struct page_key *key, const struct waiter *waiter)
{
	struct directory *dir = control->directory;
	struct dir_update *update = update_new(
		dir, DIR_FORGET, key, &(struct location){.ref = 0}, member_count(control));
	const struct member_table *table = members_table(control);
	const uint64_t number = removals_number(control);

	if (!update) {
		waiter_refuse(waiter);
		return;
	}
	update_await(dir, update, waiter);
	update->at.place = (uint32_t)number;
	update->at.generation = (uint32_t)(number >> 32);
	if (removals_missing(control) || member_seeking(control))
		update->unsafe++;
	for (unsigned peer = 0; peer < table->peers_used; peer++) {
		const struct member *member = member_table_peer(table, peer);

		if (member)
			forget_add(dir, update, &member->record);
	}
	update_start(dir, update);
}

void directory_forget_at(struct control *control, const struct removal *removal, uint32_t ref,
	const struct waiter *waiter)
{
	struct directory *dir = control->directory;
	const struct location at = {.ref = 1,
		.place = (uint32_t)removal->number,
		.generation = (uint32_t)(removal->number >> 32)};
	struct dir_update *update = update_new(dir, DIR_FORGET, &removal->key, &at, 1);
	const struct member_record *record = member_by_ref(control, ref);

	if (!update) {
		waiter_refuse(waiter);
		return;
	}
	update_await(dir, update, waiter);
	if (record)
		forget_add(dir, update, record);
	update_start(dir, update);
}

/* ---- touches --------------------------------------------------------------------------------- */

static void touches_send(struct directory *dir, struct owner *owner)
{
	struct rpc_link *link = owner->ref ? member_link(dir->control, owner->ref) : NULL;
	Pc__Touch touch = PC__TOUCH__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	for (unsigned i = 0; i < owner->reports; i++) {
		const struct page_report *report = &owner->report[i];

		dir->entry[i].key0 = report->key.word[0];
		dir->entry[i].key1 = report->key.word[1];
		dir->entry[i].place = report->place;
		dir->entry[i].generation = report->generation;
		dir->entry[i].ref = 0;
	}
	touch.n_reported = owner->reports;
	touch.reported = dir->entry_at;
	touch.n_places = owner->touched;
	touch.places = owner->touches;
	message.body_case = PC__MESSAGE__BODY_TOUCH;
	message.touch = &touch;
	/* touches are only hints to the owner: they are dropped when the link has no room */
	(void)rpc_send(link, &message);
	owner->touched = owner->reports = 0;
}

static void touches_due(void *context)
{
	struct directory *dir = context;
	struct owner *owner;

	dir->touch_armed = false;
	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->touched || owner->reports)
			touches_send(dir, owner);
}

/* The member `ref`, if it may have a page at `place`; else NULL. */
static struct owner *holder_of(struct control *control, uint32_t ref, uint32_t place)
{
	const struct member_record *record = member_by_ref(control, ref);
	struct owner *owner;

	if (!record || place_rail(place) >= record->rails)
		return NULL;
	owner = owner_wanted(control->directory, record->peer);
	return owner->ref == ref ? owner : NULL;
}

static void touch_soon(struct directory *dir)
{
	if (dir->touch_armed)
		return;
	dir->touch_armed = true;
	net_timer_set(dir->touch_due, TOUCH_PACE_MS * 1000);
}

void directory_report(struct control *control, uint32_t ref, const struct page_report *report)
{
	struct owner *owner = holder_of(control, ref, report->place);

	if (!owner || owner->reports == REPORTS_MAX)
		return;
	if (!owner->report)
		owner->report = malloc(REPORTS_MAX * sizeof(owner->report[0]));
	if (!owner->report)
		return;
	owner->report[owner->reports++] = *report;
	touch_soon(control->directory);
}

void directory_touch(struct control *control, uint32_t ref, uint32_t place)
{
	struct directory *dir = control->directory;
	struct owner *owner;

	if (ref == control->ref) {
		page_touched(control, place);
		return;
	}
	owner = holder_of(control, ref, place);
	if (!owner)
		return;
	if (!owner->touches)
		owner->touches = malloc(MESSAGE_PAGES_MAX * sizeof(owner->touches[0]));
	if (!owner->touches)
		return;
	owner->touches[owner->touched++] = place;
	if (owner->touched == MESSAGE_PAGES_MAX)
		touches_send(dir, owner);
	touch_soon(dir);
}

/* ---- turns, open and close ------------------------------------------------------------------- */

void directory_flush(struct control *control)
{
	struct directory *dir = control->directory;

	net_timer_stop(dir->wake);
	updates_answer(dir);
	owners_send(dir);
}

/* NULL: no memory. */
static struct owner *owner_new(uint16_t peer)
{
	struct owner *owner = calloc(1, sizeof(*owner));

	if (!owner)
		return NULL;
	owner->peer = peer;
	STAILQ_INIT(&owner->batches);
	STAILQ_INIT(&owner->unsynced);
	for (unsigned kind = 0; kind < DIR_KINDS; kind++)
		TAILQ_INIT(&owner->queue[kind]);
	return owner;
}

bool owners_few(const struct directory *dir)
{
	return member_count(dir->control) <= OWNERS_MAX;
}

struct owner *owner_make(struct directory *dir, uint16_t peer)
{
	struct owner **chain = &dir->by_peer[peer % OWNER_CHAINS];
	struct owner *owner = owner_at(dir, peer);

	if (owner != dir->none)
		return owner;
	owner = owner_new(peer);
	if (owner) {
		owner->next_by_peer = *chain;
		*chain = owner;
		STAILQ_INSERT_TAIL(&dir->owners, owner, next);
		if (!owners_few(dir))
			owner_adopt(dir, owner);
	}
	return owner ? owner : dir->none;
}

void owner_adopt(struct directory *dir, struct owner *owner)
{
	const struct member_record *record = member_by_peer(dir->control, owner->peer);

	if (record && !record->self)
		owner->ref = record->ref;
}

static void owner_unchain(struct directory *dir, struct owner *owner)
{
	struct owner **at = &dir->by_peer[owner->peer % OWNER_CHAINS];

	while (*at != owner)
		at = &(*at)->next_by_peer;
	*at = owner->next_by_peer;
}

static void owner_free(struct owner *owner)
{
	free(owner->touches);
	free(owner->report);
	digest_drop(owner);
	show_drop(owner);
	free(owner);
}

void owners_trim(struct directory *dir)
{
	struct owners keep = STAILQ_HEAD_INITIALIZER(keep);
	struct owner *owner;

	while ((owner = STAILQ_FIRST(&dir->owners))) {
		STAILQ_REMOVE_HEAD(&dir->owners, next);
		if (owner->ref || owner->dirty || owner->background || !owner_idle(owner)) {
			STAILQ_INSERT_TAIL(&keep, owner, next);
			continue;
		}
		owner_unchain(dir, owner);
		owner_free(owner);
	}
	STAILQ_CONCAT(&dir->owners, &keep);
}

static void wake(void *context)
{
	struct directory *dir = context;

	directory_flush(dir->control);
}

static void queues_open(struct directory *dir)
{
	STAILQ_INIT(&dir->dirty);
	STAILQ_INIT(&dir->finished);
	TAILQ_INIT(&dir->orphans);
	TAILQ_INIT(&dir->asked);
	STAILQ_INIT(&dir->owners);
}

/* Of all control planes of the process, which in tests and in the simulator are many. */
static void scratch_open(struct directory *dir)
{
	static Pc__Entry entry[MESSAGE_PAGES_MAX], *entry_at[MESSAGE_PAGES_MAX];
	static uint32_t failed[MESSAGE_PAGES_MAX];

	for (unsigned i = 0; i < MESSAGE_PAGES_MAX && !entry_at[i]; i++) {
		entry[i] = (Pc__Entry)PC__ENTRY__INIT;
		entry_at[i] = &entry[i];
	}
	dir->entry = entry;
	dir->entry_at = entry_at;
	dir->failed = failed;
}

int directory_open(struct control *control)
{
	struct directory *dir = calloc(1, sizeof(*dir));

	if (!dir)
		return -ENOMEM;
	dir->control = control;
	queues_open(dir);
	scratch_open(dir);
	control->directory = dir;
	dir->none = owner_new(0);
	dir->due = net_timer_new(control->base, false, updates_due, dir);
	dir->wake = net_timer_new(control->base, false, wake, dir);
	dir->touch_due = net_timer_new(control->base, false, touches_due, dir);
	dir->move = net_timer_new(control->base, false, move_slice, dir);
	dir->patrol = net_timer_new(control->base, false, patrol, dir);
	if (!dir->none || !dir->due || !dir->wake || !dir->touch_due || !dir->move ||
		!dir->patrol) {
		directory_close(control);
		return -ENOMEM;
	}
	compare_later(dir, net_now());
	/* of before a warm restart */
	dir->published = control->kept_ref != NULL;
	dir->settled = map_view_share(member_map(control));
	/* Members of before a warm restart that do not return have no record of when they left. */
	if (control->shard->entries)
		departed_add(dir, 0);
	directory_map_changed(control);
	return 0;
}

void directory_close(struct control *control)
{
	struct directory *dir = control->directory;
	struct owner *owner;
	struct net_timer *timers[] = {dir ? dir->due : NULL, dir ? dir->wake : NULL,
		dir ? dir->touch_due : NULL, dir ? dir->move : NULL, dir ? dir->patrol : NULL};

	if (!dir)
		return;
	forgets_drop(dir, NULL);
	digests_unask(dir, NULL);
	passes_drop(dir, NULL);
	STAILQ_FOREACH (owner, &dir->owners, next) {
		owner->ref = 0;
		owner_rewind(dir, owner);
	}
	updates_close(dir);
	while ((owner = STAILQ_FIRST(&dir->owners))) {
		STAILQ_REMOVE_HEAD(&dir->owners, next);
		owner_free(owner);
	}
	free(dir->none);
	for (unsigned i = 0; i < sizeof(timers) / sizeof(timers[0]); i++)
		if (timers[i])
			net_timer_free(timers[i]);
	map_view_drop(dir->settled);
	map_view_drop(dir->was);
	free(dir);
	control->directory = NULL;
}
