/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removals that wait until their tombstones are durable: those of this engine's clients, here and
 * at other engines, and those of other engines here. Control plane's thread only.
 *
 * An engine with a disk acknowledges a Forget at once with `later`, so that its disk delays no
 * other message, and once more when all tombstones of the message are synced or have failed:
 *
 *      sender                                    holder
 *      Forget, wait                       ->     pages leave memory and the disk's index
 *                                         <-     Ack, later; failed: had no page
 *                                                tombstones of many messages share one sync
 *                                         <-     Ack, synced; failed: not durable
 */
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/ctl.h"
#include "engine/control/directory_state.h"
#include "engine/control/member.h"
#include "engine/control/rpc.h"

/* ---- this engine ----------------------------------------------------------------------------- */

static void here_done(struct control *control, void *context, uint32_t cookie, bool durable)
{
	struct dir_target *target = context;

	(void)cookie;
	target_resolve(control->directory, target,
		!durable      ? OUTCOME_VOLATILE
		: target->had ? OUTCOME_DONE
			      : OUTCOME_FAILED);
}

void forget_here(struct directory *dir, struct dir_target *target)
{
	const struct forget_wait wait = {.done = here_done, .context = target};

	switch (ctl_forget(dir->control, &target->update->key, &wait, &target->had)) {
	case FORGET_DURABLE: here_done(dir->control, target, 0, true); return;
	case FORGET_VOLATILE: here_done(dir->control, target, 0, false); return;
	case FORGET_LATER: return;
	}
}

/* ---- other engines, for clients of this one -------------------------------------------------- */

bool failed_fit(size_t count, size_t failed_count, const uint32_t *failed)
{
	for (size_t i = 0; i < failed_count; i++)
		if (failed[i] >= count || (i > 0 && failed[i] <= failed[i - 1]))
			return false;
	return true;
}

void batch_unsynced(struct directory *dir, struct owner *owner, struct batch *batch)
{
	if (owner->unsynced_count < UNSYNCED_MAX) {
		owner->unsynced_count++;
		STAILQ_INSERT_TAIL(&owner->unsynced, batch, next);
		return;
	}
	for (unsigned i = 0; i < batch->count; i++)
		target_resolve(dir, batch->target[i], OUTCOME_VOLATILE);
	free(batch);
}

bool batch_synced(
	struct directory *dir, struct owner *owner, const struct rpc_link *link, const Pc__Ack *ack)
{
	struct batch *batch;
	size_t failed = 0;

	STAILQ_FOREACH (batch, &owner->unsynced, next)
		if (batch->serial == ack->serial && batch->via == link)
			break;
	if (!batch) /* above UNSYNCED_MAX nothing waits for it */
		return true;
	if (!failed_fit(batch->count, ack->n_failed, ack->failed))
		return false;
	STAILQ_REMOVE(&owner->unsynced, batch, batch, next);
	owner->unsynced_count--;
	for (unsigned i = 0; i < batch->count; i++) {
		struct dir_target *target = batch->target[i];
		bool no = failed < ack->n_failed && ack->failed[failed] == i;

		failed += no;
		target_resolve(dir, target,
			no            ? OUTCOME_VOLATILE
			: target->had ? OUTCOME_DONE
				      : OUTCOME_FAILED);
	}
	free(batch);
	return true;
}

/* ---- this engine, for clients of other ones -------------------------------------------------- */

static void acknowledge(struct rpc_link *link, const Pc__Ack *ack)
{
	Pc__Ack copy = *ack;
	Pc__Message message = PC__MESSAGE__INIT;

	message.body_case = PC__MESSAGE__BODY_ACK;
	message.ack = &copy;
	rpc_reply(link, &message);
}

static void forgets_end(struct directory *dir, struct forgets *forgets)
{
	Pc__Ack ack = PC__ACK__INIT;

	ack.serial = forgets->serial;
	ack.synced = true;
	ack.failed = dir->failed;
	for (uint32_t i = 0; i < forgets->count; i++)
		if (forgets->failed[i])
			dir->failed[ack.n_failed++] = i;
	if (forgets->link)
		acknowledge(forgets->link, &ack);
	LIST_REMOVE(forgets, next);
	free(forgets);
}

static void forgets_done(struct control *control, void *context, uint32_t cookie, bool durable)
{
	struct forgets *forgets = context;

	forgets->failed[cookie] = !durable;
	if (--forgets->waits == 0)
		forgets_end(control->directory, forgets);
}

void forgets_drop(struct directory *dir, const struct rpc_link *link)
{
	struct forgets *forgets;

	LIST_FOREACH (forgets, &dir->forgets, next)
		if (!link || forgets->link == link)
			forgets->link = NULL;
}

/* Removes the pages. `forgets` NULL: the sender does not wait. Returns the number of misses. */
static size_t forget_all(
	struct directory *dir, const Pc__Forget *message, struct forgets *forgets, bool *ret_later)
{
	struct forget_wait wait = {.done = forgets_done, .context = forgets};
	size_t missed = 0;

	for (size_t i = 0; i < message->n_entries; i++) {
		struct page_key key = entry_key(message->entries[i]);
		enum forget_state state;
		bool had;

		wait.cookie = (uint32_t)i;
		state = ctl_forget(dir->control, &key, forgets ? &wait : NULL, &had);
		if (!had)
			dir->failed[missed++] = (uint32_t)i;
		*ret_later |= state != FORGET_DURABLE;
		if (forgets && state == FORGET_LATER)
			forgets->waits++;
		else if (forgets)
			forgets->failed[i] = state == FORGET_VOLATILE;
	}
	return missed;
}

bool directory_serve_forget(
	struct control *control, struct rpc_link *link, const Pc__Forget *message)
{
	struct directory *dir = control->directory;
	struct forgets *forgets = NULL;
	Pc__Ack ack = PC__ACK__INIT;
	bool later = false;

	if (!entries_fit(message->n_entries, message->entries))
		return false;
	if (message->wait) {
		forgets = calloc(1, sizeof(*forgets) + message->n_entries);
		if (!forgets) {
			log_error("no memory to answer removals: they are sent again");
			rpc_link_close(link);
			return true;
		}
		*forgets = (struct forgets){.link = link,
			.serial = message->serial,
			.count = (uint32_t)message->n_entries,
			.waits = 1};
		LIST_INSERT_HEAD(&dir->forgets, forgets, next);
	}
	ack.serial = message->serial;
	ack.n_failed = forget_all(dir, message, forgets, &later);
	ack.failed = dir->failed;
	ack.later = forgets && later;
	acknowledge(link, &ack);
	if (!forgets)
		return true;
	if (!later)
		forgets->link = NULL;
	if (--forgets->waits == 0)
		forgets_end(dir, forgets);
	return true;
}
