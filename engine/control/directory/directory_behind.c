/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owners that do not keep up. Limits what is queued for one owner without a client waiting for it;
 * the owner lacks the slots of publishes that are skipped, and its walk makes up for them
 * (directory_walk.c). Control plane's thread only.
 */
#include "config/log.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"

struct owner *owner_of(struct directory *dir, uint32_t ref)
{
	const struct member_record *record =
		ref == dir->control->ref ? NULL : member_by_ref(dir->control, ref);
	struct owner *owner = record ? owner_wanted(dir, record->peer) : NULL;

	return owner && owner->ref == ref ? owner : NULL;
}

bool owner_full(const struct directory *dir, const struct owner *owner, enum dir_kind kind)
{
	if (kind == DIR_PUBLISH)
		return owner->background >= OWNER_PUBLISHES_MAX;
	return owner->background >= OWNER_REMOVES_MAX || dir->background > BACKGROUND_MAX;
}

/*
 * ---- targets that no client waits for ----------------------------------------------------------
 */

static void left_out(struct directory *dir, struct owner *owner, const struct dir_update *update)
{
	struct control *control = dir->control;
	const struct member_record *record = member_by_peer(control, owner->peer);
	struct member_texts texts;

	if (update->kind == DIR_PUBLISH) {
		control->counter[COUNTER_publishes_deferred]++;
		lack_add(dir, &owner->walk, owner->ref, map_slot_of(&update->key));
		owner->behind = owner->walk.slots != 0;
	} else {
		control->counter[COUNTER_removes_dropped]++;
		owner->unsure = true;
	}
	if (owner->warned || !record)
		return;
	owner->warned = true;
	member_texts(record, &texts);
	log_warn(
		"member %s (%s:%u) is behind with %u directory messages: publishes to it are deferred, removes are dropped. If this lasts, restart its engine",
		texts.name, texts.address, record->port, owner->background);
}

void target_background(struct directory *dir, struct dir_target *target)
{
	struct owner *owner = owner_at(dir, target->peer);
	enum dir_kind kind = (enum dir_kind)target->update->kind;

	if (owner->ref != target->ref) /* it has died: this part of the update is in dir->orphans */
		return;
	if (!target->sent && owner_full(dir, owner, kind)) {
		TAILQ_REMOVE(&owner->queue[kind], target, next);
		owner->queued[kind]--;
		left_out(dir, owner, target->update);
		target_resolve(dir, target, OUTCOME_LOST);
		return;
	}
	target->background = true;
	owner->background++;
}

void target_background_end(struct directory *dir, struct dir_target *target)
{
	struct owner *owner = owner_at(dir, target->peer);

	if (!target->background)
		return;
	target->background = false;
	if (--owner->background == 0 && !owner->behind)
		owner->warned = false;
}

bool owner_lags(const struct directory *dir, const struct owner *owner)
{
	const struct batch *oldest = STAILQ_FIRST(&owner->batches);
	uint64_t dead_ns = (uint64_t)dir->control->settings->cluster_dead_after_ms * 1000000ull;

	return owner->behind || (oldest && net_now() - oldest->sent_ns >= dead_ns);
}

static const char *walk_name(const struct directory *dir)
{
	if (dir->lacking)
		return "publish";
	if (moves_any(dir))
		return "compare";
	if (tidies(dir))
		return net_now() < dir->tidy_ns ? "wait" : "remove";
	return "";
}

void directory_counts(const struct control *control, struct directory_counts *ret)
{
	const struct directory *dir = control->directory;
	const struct owner *owner;

	*ret = (struct directory_counts){.moving = moves_any(dir) || tidies(dir),
		.partial = dir->partial,
		.walk = walk_name(dir),
		.sweep_left = dir->sweep_left};
	if (dir->lacking) {
		ret->walk_position = dir->lacked - dir->lacking;
		ret->walk_end = dir->lacked;
	} else if (ret->moving && dir->counting) {
		ret->walk_position = dir->slot;
		ret->walk_end = MAP_SLOTS;
	}
	STAILQ_FOREACH (owner, &dir->owners, next) {
		ret->behind += owner->ref && owner->behind;
		ret->suspect += owner->ref && suspect_steers(owner->why);
	}
}
