/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owners that do not keep up. Limits what is queued for one owner without a client waiting for it,
 * and runs a walk per owner that later publishes what was skipped. Control plane's thread only.
 *
 * The walk publishes every key that the owner owns by the present map, from the position where it
 * fell behind; entries that the owner already has are written again, unless their digests are known
 * to be equal (directory_digest.c). It advances only while the
 * owner's queue has room, so an owner that acknowledges nothing costs no time and no memory beyond
 * the limit.
 */
#include "config/log.h"
#include "engine/control/directory_state.h"
#include "engine/control/member.h"

struct owner *owner_of(struct directory *dir, uint32_t ref)
{
	const struct member_record *record =
		ref == dir->control->ref ? NULL : member_by_ref(dir->control, ref);
	struct owner *owner = record ? owner_wanted(dir, record->peer) : NULL;

	return owner && owner->ref == ref ? owner : NULL;
}

bool owner_full(const struct directory *dir, const struct owner *owner, enum verb verb)
{
	if (verb == VERB_PUBLISH)
		return owner->background >= OWNER_PUBLISHES_MAX;
	return owner->background >= OWNER_REMOVES_MAX || dir->background > BACKGROUND_MAX;
}

void owner_behind(struct owner *owner, uint64_t cursor)
{
	if (!owner->behind) {
		owner->behind = true;
		owner->cursor = cursor;
	} else if (cursor < owner->cursor) {
		owner->again = true;
	}
}

/* ---- items that no client waits for ---------------------------------------------------------- */

static void left_out(struct directory *dir, struct owner *owner, enum verb verb)
{
	struct control *control = dir->control;
	const struct member_record *record = member_by_peer(control, owner->peer);

	if (verb == VERB_PUBLISH) {
		control->counter[COUNTER_publishes_deferred]++;
		owner_behind(owner, 0);
		digest_drop(owner);
	} else {
		control->counter[COUNTER_removes_dropped]++;
	}
	if (owner->warned || !record)
		return;
	owner->warned = true;
	log_warn(
		"member %s (%s:%u) is behind with %u directory messages: publishes to it are deferred, removes are dropped. If this lasts, restart its engine",
		record->name, record->address, record->port, owner->background);
}

void item_background(struct directory *dir, struct item *item)
{
	struct owner *owner = owner_at(dir, item->peer);
	enum verb verb = (enum verb)item->claim->verb;

	if (owner->ref != item->ref) /* it has died: this part of the claim is in dir->orphans */
		return;
	if (!item->sent && owner_full(dir, owner, verb)) {
		TAILQ_REMOVE(&owner->queue[verb], item, next);
		owner->queued[verb]--;
		left_out(dir, owner, verb);
		item_resolve(dir, item, OUTCOME_LOST);
		return;
	}
	item->background = true;
	owner->background++;
}

void item_background_end(struct directory *dir, struct item *item)
{
	struct owner *owner = owner_at(dir, item->peer);

	if (!item->background)
		return;
	item->background = false;
	if (--owner->background == 0 && !owner->behind)
		owner->warned = false;
}

/* ---- walks ----------------------------------------------------------------------------------- */

static bool owner_ready(const struct owner *owner)
{
	return owner->behind && owner->background + MOVE_PART <= OWNER_WALK_MAX &&
	       !digest_waits(owner);
}

static void publish_to(struct directory *dir, struct owner *owner, const struct index_entry *entry)
{
	const struct map_view *view = member_map(dir->control);
	uint32_t at[REPLICAS_MAX];
	struct claim *claim;

	for (unsigned i = map_owners(view, &entry->key, at); i > 0; i--) {
		if (view->owner[at[i - 1]].ref != owner->ref ||
			!owner_takes(dir, owner->ref, entry->place))
			continue;
		if (digest_equal(owner, &entry->key)) {
			dir->control->counter[COUNTER_entries_kept] += !owner->digest->repair;
			return;
		}
		if (owner->digest && owner->digest->repair)
			dir->control->counter[COUNTER_entries_repaired]++;
		claim = claim_new(
			dir, VERB_PUBLISH, &entry->key, entry->place, entry->generation, 1);
		if (!claim)
			return;
		claim_add(dir, claim, owner->ref);
		claim_start(dir, claim);
	}
}

static void walk_one(struct directory *dir, struct owner *owner)
{
	struct index_entry entries[MOVE_PART];

	for (unsigned looked = 0; looked < MOVE_KEYS && owner_ready(owner); looked += MOVE_PART) {
		unsigned count = pages_walk(dir, &owner->cursor, MOVE_PART, entries);

		for (unsigned i = 0; i < count; i++)
			publish_to(dir, owner, &entries[i]);
		if (owner->cursor == 0) {
			owner->behind = owner->again;
			owner->again = false;
			digest_drop(owner);
		}
	}
}

void behind_slice(struct directory *dir)
{
	struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner_ready(owner))
			break;
	if (!owner)
		return;
	/* the others have their turn first next time */
	STAILQ_REMOVE(&dir->owners, owner, owner, next);
	STAILQ_INSERT_TAIL(&dir->owners, owner, next);
	walk_one(dir, owner);
}

bool behind_ready(const struct directory *dir)
{
	const struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner_ready(owner))
			return true;
	return false;
}

bool owner_lags(const struct directory *dir, const struct owner *owner)
{
	const struct batch *oldest = STAILQ_FIRST(&owner->batches);
	uint64_t dead_ns = (uint64_t)dir->control->settings->cluster_dead_after_ms * 1000000ull;

	return owner->behind || (oldest && net_now() - oldest->sent_ns >= dead_ns);
}

static const char *walk_name(enum move_phase phase)
{
	switch (phase) {
	case MOVE_ASK:
	case MOVE_COUNT:
	case MOVE_AWAIT: return "compare";
	case MOVE_WALK: return "publish";
	case MOVE_WAIT: return "wait";
	case MOVE_TIDY: return "remove";
	case MOVE_NONE:
	default: return "";
	}
}

void directory_counts(const struct control *control, struct directory_counts *ret)
{
	const struct directory *dir = control->directory;
	const struct owner *owner;

	*ret = (struct directory_counts){.moving = dir->phase != MOVE_NONE && !dir->comparing,
		.partial = dir->partial,
		.walk = walk_name(dir->phase),
		.sweep_left = dir->sweep_left};
	if (dir->phase == MOVE_COUNT || dir->phase == MOVE_WALK || dir->phase == MOVE_TIDY) {
		ret->walk_position = pages_position(dir, dir->cursor);
		ret->walk_end = pages_end(dir);
	}
	STAILQ_FOREACH (owner, &dir->owners, next) {
		ret->behind += owner->ref && owner->behind;
		ret->suspect += owner->ref && suspect_steers(owner->why);
	}
}

bool behind_any(const struct directory *dir)
{
	const struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner_lags(dir, owner))
			return true;
	return false;
}
