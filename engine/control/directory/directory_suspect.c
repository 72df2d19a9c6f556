/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owners that owe an answer. A timer looks at them while there are any; an owner that turns suspect
 * ends the waiting of the publishes that wait only for it. Control plane's thread only.
 */
#include "config/log.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"

static uint64_t dead_ns(const struct directory *dir)
{
	return (uint64_t)dir->control->settings->cluster_dead_after_ms * 1000000ull;
}

static uint64_t look_ns(const struct directory *dir)
{
	return suspect_patience_ns(dead_ns(dir)) / SUSPECT_LOOKS + 1;
}

static unsigned queued(const struct owner *owner)
{
	unsigned count = 0;

	for (unsigned kind = 0; kind < DIR_KINDS; kind++)
		count += owner->queued[kind];
	return count;
}

bool owner_idle(const struct owner *owner)
{
	return owner->in_flight == 0 && queued(owner) == 0 && !owner->relay;
}

/* Time of the oldest request that the owner has not answered; 0: there is none. */
static uint64_t unserved_since_ns(const struct directory *dir, const struct owner *owner)
{
	const struct batch *oldest = STAILQ_FIRST(&owner->batches);
	uint64_t since_ns = oldest                          ? oldest->sent_ns
			    : queued(owner) || owner->relay ? owner->wait_ns
							    : 0;

	if (since_ns && since_ns < dir->awake_ns)
		return dir->awake_ns;
	return since_ns;
}

/* How long the oldest probe waits; 0 after a pause of this engine, until that is forgiven. */
static uint64_t unprobed_ns(
	const struct directory *dir, const struct member *entry, uint64_t now_ns)
{
	const struct control *control = dir->control;

	if (now_ns - members_probe_ns(control) > 2 * member_probe_period_ns(control))
		return 0;
	return member_unserved_ns(entry, now_ns);
}

static enum suspect_why judge(
	const struct directory *dir, const struct owner *owner, uint64_t now_ns)
{
	const struct control *control = dir->control;
	const struct member *entry = member_peer(control, owner->peer);
	uint64_t beat_ns = (uint64_t)control->settings->cluster_heartbeat_ms * 1000000ull;
	uint64_t since_ns = unserved_since_ns(dir, owner), probe_ns;
	struct suspect_evidence evidence = {.beat_ns = beat_ns,
		.dead_ns = dead_ns(dir),
		.unserved_before = owner->why == SUSPECT_UNSERVED};

	if (!entry || entry->record.ref != owner->ref || !owner->ref)
		return SUSPECT_NOT;
	evidence.silent_ns = member_silent_ns(control, entry, now_ns);
	evidence.unserved_ns = since_ns && now_ns > since_ns ? now_ns - since_ns : 0;
	probe_ns = unprobed_ns(dir, entry, now_ns);
	if (evidence.unserved_ns < probe_ns)
		evidence.unserved_ns = probe_ns;
	evidence.unread = owner->unread_ref == owner->ref;
	evidence.linked = member_link_of(entry) || !member_watched(control, entry);
	evidence.paused = now_ns - members_tick_ns(control) > SUSPECT_BEATS * beat_ns;
	return suspect_judge(&evidence);
}

void waiters_check(struct directory *dir, struct owner *owner)
{
	struct batch *batch;
	struct dir_target *target;

	STAILQ_FOREACH (batch, &owner->batches, next)
		for (unsigned i = 0; i < batch->count; i++)
			update_check(dir, batch->target[i]->update);
	for (unsigned i = 0; owner->relay && i < owner->relay->count; i++)
		update_check(dir, owner->relay->target[i]->update);
	TAILQ_FOREACH (target, &owner->queue[DIR_PUBLISH], next)
		update_check(dir, target->update);
}

/* The clients of this host read the bit before they choose an owner to ask. */
static void suspect_show(const struct directory *dir, const struct owner *owner)
{
	uint64_t bit = 1ull << owner->peer % 64, *word;

	if (!dir->control->status)
		return;
	word = &dir->control->status->map.suspects[owner->peer / 64];
	shm_store64(word, suspect_steers(owner->why) ? *word | bit : *word & ~bit);
}

void owner_trusted(struct directory *dir, struct owner *owner)
{
	owner->why = SUSPECT_NOT;
	suspect_show(dir, owner);
}

void owner_look(struct directory *dir, struct owner *owner, uint64_t now_ns)
{
	bool steered = suspect_steers(owner->why);

	owner->why = judge(dir, owner, now_ns);
	suspect_show(dir, owner);
	if (suspect_steers(owner->why) && !steered) {
		owner->suspect_ns = now_ns;
		dir->control->counter[COUNTER_owners_suspected]++;
		waiters_check(dir, owner);
	}
}

static void patrol_arm(struct directory *dir, uint64_t now_ns)
{
	if (dir->patrol_ns)
		return;
	dir->patrol_ns = now_ns;
	(void)net_timer_set(dir->patrol, look_ns(dir) / 1000);
}

void owner_waits(struct directory *dir, struct owner *owner)
{
	owner->wait_ns = net_now();
	owner_look(dir, owner, owner->wait_ns);
	patrol_arm(dir, owner->wait_ns);
}

void owner_served(struct directory *dir, struct owner *owner)
{
	const struct member *entry;

	owner->served_ns = owner->wait_ns = net_now();
	entry = member_peer(dir->control, owner->peer);
	if (owner->why == SUSPECT_UNSERVED &&
		(!entry || unprobed_ns(dir, entry, owner->served_ns) <=
				   suspect_patience_ns(dead_ns(dir))))
		owner_trusted(dir, owner);
	owner_look(dir, owner, owner->served_ns);
}

void directory_probed(struct control *control, uint16_t peer, bool served)
{
	struct directory *dir = control->directory;
	struct owner *owner = dir ? owner_at(dir, peer) : NULL;
	uint64_t now_ns = net_now(), since_ns;

	if (!owner || !owner->ref)
		return;
	since_ns = unserved_since_ns(dir, owner);
	if (served && owner->why == SUSPECT_UNSERVED &&
		(!since_ns || now_ns - since_ns <= suspect_patience_ns(dead_ns(dir))))
		owner_trusted(dir, owner);
	owner_look(dir, owner, now_ns);
}

void directory_unread(struct control *control, uint16_t peer, uint32_t ref, bool unread)
{
	struct directory *dir = control->directory;
	struct owner *owner;

	if (!dir)
		return;
	owner = owner_make(dir, peer);
	if (owner == dir->none)
		return;
	owner->unread_ref = unread ? ref : 0;
	owner_look(dir, owner, net_now());
}

bool directory_overdue(const struct control *control, uint16_t peer)
{
	const struct directory *dir = control->directory;
	const struct owner *owner = dir ? owner_at(dir, peer) : NULL;

	return owner && owner->ref && owner->why == SUSPECT_UNSERVED && !owner_idle(owner);
}

void patrol(void *context)
{
	struct directory *dir = context;
	struct owner *owner;
	uint64_t now_ns = net_now();
	bool more = false;

	/*
	 * If this timer is late, this engine did not run and could not receive: answers may be in
	 * its sockets. Owners get their time anew.
	 */
	if (now_ns - dir->patrol_ns > 2 * look_ns(dir))
		dir->awake_ns = now_ns;
	dir->patrol_ns = 0;
	STAILQ_FOREACH (owner, &dir->owners, next) {
		if (!owner->ref || owner_idle(owner))
			continue;
		more = true;
		owner_look(dir, owner, now_ns);
		relay_look(dir, owner, now_ns);
	}
	if (more)
		patrol_arm(dir, now_ns);
}

void directory_owner(const struct control *control, uint16_t peer, struct directory_owner *ret)
{
	const struct directory *dir = control->directory;
	const struct owner *owner = owner_at(dir, peer);
	uint64_t now_ns = net_now(), since_ns = unserved_since_ns(dir, owner);

	*ret = (struct directory_owner){.why = judge(dir, owner, now_ns),
		.queued = queued(owner),
		.in_flight = owner->in_flight,
		.background = owner->background,
		.behind = owner->behind};
	if (since_ns && now_ns > since_ns)
		ret->unserved_ms = (now_ns - since_ns) / 1000000;
	ret->served_ms = owner->served_ns ? (int64_t)((now_ns - owner->served_ns) / 1000000) : -1;
}
