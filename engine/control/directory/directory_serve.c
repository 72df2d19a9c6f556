/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What other engines want of this engine as an owner: changes of its shard, touches of its pages.
 * Also the sweep that removes entries of
 * members that left the map from the shard, in small slices. Each directory_serve_...() returns
 * false if the message breaks a rule: then nothing of it was executed and the caller closes the
 * link. Control plane's thread only.
 */
#include <errno.h>
#include <string.h>

#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/pages/pages.h"

#define MOVE_BUCKETS 8192 /* buckets of the shard swept in one step */

/* entries between the one that is changed and the one whose cache lines are prefetched */
#define PREFETCH_FAR 8u

/* ---- members that left the map --------------------------------------------------------------- */

static struct location entry_location(const Pc__Entry *entry)
{
	return (struct location){entry->ref, entry->place, entry->generation};
}

static void sweep_start(struct directory *dir)
{
	dir->sweep.left = 1ull << dir->control->shard->bits;
	move_soon(dir);
}

static void departed_remove(struct directory *dir, unsigned at)
{
	memmove(&dir->sweep.departed[at], &dir->sweep.departed[at + 1],
		(--dir->sweep.departeds - at) * sizeof(dir->sweep.departed[0]));
}

void departed_add(struct directory *dir, uint32_t ref)
{
	for (unsigned i = 0; i < dir->sweep.departeds; i++)
		if (dir->sweep.departed[i].ref == ref)
			departed_remove(dir, i);
	if (dir->sweep.departeds == DEPARTED_MAX) {
		departed_remove(dir, 0);
		sweep_start(dir);
	}
	dir->sweep.departed[dir->sweep.departeds++] = (struct departed){ref, net_now()};
}

void departed_tick(struct directory *dir, uint64_t now_ns)
{
	uint64_t stay_ns = control_dead_ns(dir->control) * DEPARTED_DEADS;

	while (dir->sweep.departeds && now_ns - dir->sweep.departed[0].since_ns >= stay_ns) {
		if (!member_by_ref(dir->control, dir->sweep.departed[0].ref))
			sweep_start(dir);
		departed_remove(dir, 0);
	}
}

static bool is_member(void *context, uint32_t ref)
{
	return member_by_ref(context, ref) != NULL;
}

static bool sweep_keeps(void *context, uint32_t ref)
{
	const struct control *control = context;
	const struct directory *dir = control->directory;

	for (unsigned i = 0; i < dir->sweep.departeds; i++)
		if (dir->sweep.departed[i].ref == ref)
			return true;
	return is_member(context, ref);
}

void sweep_slice(struct directory *dir)
{
	struct control *control = dir->control;
	uint32_t buckets =
		dir->sweep.left < MOVE_BUCKETS ? (uint32_t)dir->sweep.left : MOVE_BUCKETS;

	control->counter[COUNTER_entries_removed] +=
		shard_sweep(control->shard, &dir->sweep.cursor, buckets, sweep_keeps, control);
	dir->sweep.left -= buckets;
}

/* ---- entries of the shard -------------------------------------------------------------------- */

bool entries_fit(size_t count, Pc__Entry *const *entries)
{
	if (count == 0 || count > MESSAGE_PAGES_MAX)
		return false;
	for (size_t i = 0; i < count; i++)
		if (!entries[i] || (entries[i]->key0 | entries[i]->key1) == 0)
			return false;
	return true;
}

/*
 * The shard has an entry of a member for the key: readers find the page without another one.
 * `beside`: only of a page in the memory of another member than this one; NULL: any.
 */
static bool entry_any(
	const struct control *control, const struct page_key *key, const struct location *beside)
{
	struct dir_entry found[2 * BUCKET_ENTRIES];
	unsigned count = shard_find(control->shard, key, found, 2 * BUCKET_ENTRIES);

	for (unsigned i = 0; i < count; i++)
		if (member_by_ref(control, found[i].ref) &&
			(!beside ||
				(found[i].ref != beside->ref && !place_on_disk(found[i].place))))
			return true;
	return false;
}

bool entry_insert(struct directory *dir, const struct page_key *key, const struct location *at,
	bool set, enum evicted *ret_evicted)
{
	struct control *control = dir->control;
	int rc = shard_insert(control->shard, key, at->ref, at->place, at->generation);
	bool displaces;

	*ret_evicted = ghost_take(&control->shard->ghosts, key, control->shard->entries);
	control->counter[COUNTER_entries_again_soon] = control->shard->ghosts.soon;
	if (rc == -ENOSPC && shard_yield(control->shard, key, is_member, control)) {
		control->counter[COUNTER_entries_removed]++;
		rc = shard_insert(control->shard, key, at->ref, at->place, at->generation);
	}
	/* a set does not fail, and its page is found: what loses its entry is a miss */
	displaces = set && rc == -ENOSPC && !entry_any(control, key, NULL) &&
		    shard_displace(control->shard, key);
	if (displaces)
		rc = shard_insert(control->shard, key, at->ref, at->place, at->generation);
	dir->own.refused |= displaces; /* it may be one of this engine's */
	if (rc == 0 && *ret_evicted == EVICTED_NOT && entry_any(control, key, at))
		*ret_evicted = EVICTED_COPY;
	if (rc == 0)
		control->counter[COUNTER_entries_inserted]++;
	if (displaces || (rc != 0 && !entry_any(control, key, NULL)))
		control->counter[COUNTER_entries_dropped]++;
	else if (rc != 0)
		control->counter[COUNTER_entries_surplus]++;
	return rc == 0;
}

void entry_delete(struct directory *dir, const struct page_key *key, const struct location *at,
	enum evicted evicted)
{
	struct control *control = dir->control;
	struct shard *shard = control->shard;

	if (!shard_remove(shard, key, at->ref, at->place, at->generation))
		return;
	control->counter[COUNTER_entries_removed]++;
	if (evicted != EVICTED_NOT && !entry_any(control, key, NULL))
		ghost_put(&shard->ghosts, key, evicted, shard->entries);
}

/* What a holder changes in this engine's shard. */
struct change {
	bool remove;     /* of these entries, which name their holders; false: inserts them */
	uint32_t holder; /* of those that are inserted */
	unsigned rails;  /* of the holder */
	size_t count;
	Pc__Entry *const *entry;
};

static bool change_fits(const struct change *c)
{
	if (!entries_fit(c->count, c->entry))
		return false;
	for (size_t i = 0; i < c->count; i++) {
		uint32_t place = c->entry[i]->place;

		if (c->remove ? c->entry[i]->ref == 0
			      : !place_on_disk(place) && place_rail(place) >= c->rails)
			return false;
	}
	return true;
}

/*
 * Returns the number of entries without room; directory.failed has their indices. *ret_again: the
 * number of entries in directory.again (Ack.again).
 */
static size_t change_execute(struct directory *dir, const struct change *c, size_t *ret_again)
{
	size_t failed = 0, again = 0;

	for (size_t i = 0; i < c->count; i++) {
		const struct page_key key = entry_key(c->entry[i]);
		struct location at = entry_location(c->entry[i]);
		uint32_t why = c->entry[i]->evicted;
		enum evicted evicted = why < EVICTED_KINDS ? (enum evicted)why : EVICTED_NOT;
		struct page_key later;

		if (i + PREFETCH_FAR < c->count) {
			later = entry_key(c->entry[i + PREFETCH_FAR]);
			shard_prefetch(dir->control->shard, &later);
		}
		if (c->remove) {
			if (!location_right(dir->control, &key, &at))
				entry_delete(dir, &key, &at, evicted);
			continue;
		}
		at.ref = c->holder;
		if (!entry_insert(dir, &key, &at, c->entry[i]->set, &evicted))
			dir->failed[failed++] = (uint32_t)i;
		if (evicted != EVICTED_NOT)
			dir->again[again++] = (uint32_t)i * AGAIN_KINDS + evicted;
	}
	*ret_again = again;
	return failed;
}

/* ---- batches of holders ---------------------------------------------------------------------- */

static bool change_serve(
	struct directory *dir, struct rpc_link *link, uint64_t serial, const struct change *c)
{
	Pc__Ack ack = PC__ACK__INIT;

	if (!change_fits(c))
		return false;
	ack.serial = serial;
	ack.n_failed = change_execute(dir, c, &ack.n_again);
	ack.failed = dir->failed;
	ack.again = dir->again;
	ack_reply(link, &ack);
	return true;
}

bool directory_serve_publish(
	struct control *control, struct rpc_link *link, const Pc__Publish *publish)
{
	const struct change change = {.holder = member_link_ref(link),
		.rails = link->member->record.rails,
		.count = publish->n_entries,
		.entry = publish->entries};

	return publish->ref == change.holder &&
	       change_serve(control->directory, link, publish->serial, &change);
}

bool directory_serve_remove(
	struct control *control, struct rpc_link *link, const Pc__Remove *remove)
{
	const struct change change = {
		.remove = true, .count = remove->n_entries, .entry = remove->entries};

	return change_serve(control->directory, link, remove->serial, &change);
}

/* ---- touches --------------------------------------------------------------------------------- */

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
