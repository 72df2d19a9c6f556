/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owners, and the life of the directory: open, close, turns and ticks. An owner that owes an
 * answer is looked at by a timer; one that turns suspect ends the waiting of the publishes that
 * wait only for it. Control plane's thread only.
 */
#include "engine/control/directory/directory.h"

#include <errno.h>
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"

/* ---- owners ---------------------------------------------------------------------------------- */

/* NULL: no memory. */
static struct owner *owner_new(uint16_t peer)
{
	struct owner *owner = calloc(1, sizeof(*owner));

	if (!owner)
		return NULL;
	owner->peer = peer;
	STAILQ_INIT(&owner->batches);
	for (unsigned kind = 0; kind < DIR_KINDS; kind++)
		TAILQ_INIT(&owner->queue[kind]);
	return owner;
}

struct owner *owner_wanted(struct directory *dir, uint16_t peer)
{
	const struct member_record *record = member_by_peer(dir->control, peer);
	struct owner **chain = &dir->by_peer[peer % OWNER_CHAINS];
	struct owner *owner = owner_at(dir, peer);

	if (!record || record->self)
		return dir->none;
	if (owner == dir->none) {
		owner = owner_new(peer);
		if (!owner)
			return dir->none;
		owner->next_by_peer = *chain;
		*chain = owner;
		STAILQ_INSERT_TAIL(&dir->owners, owner, next);
	}
	owner->ref = record->ref;
	return owner;
}

struct owner *owner_of(struct directory *dir, uint32_t ref)
{
	const struct member_record *record;
	struct owner *owner;

	if (ref == dir->self->ref)
		return dir->self;
	record = member_by_ref(dir->control, ref);
	owner = record ? owner_wanted(dir, record->peer) : NULL;
	return owner && owner->ref == ref ? owner : NULL;
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
	free(owner->hints);
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

/* ---- suspicion ------------------------------------------------------------------------------- */

static uint64_t patrol_period_ns(const struct directory *dir)
{
	return patience_ns(dir->control) / SUSPECT_LOOKS + 1;
}

/* How long the oldest request to the owner waits for its answer; 0: there is none. */
static uint64_t unserved_ns(const struct directory *dir, const struct owner *owner, uint64_t now_ns)
{
	const struct batch *oldest = STAILQ_FIRST(&owner->batches);
	uint64_t since_ns = owner_queued(owner) ? owner->wait_ns : 0;

	if (oldest)
		since_ns = oldest->sent_ns;
	if (since_ns && since_ns < dir->patrol.awake_ns)
		since_ns = dir->patrol.awake_ns;
	return since_ns && now_ns > since_ns ? now_ns - since_ns : 0;
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

/* Judges a live member. Nothing was sent to one whose owner is dir->none. */
static enum suspect_why member_judge(const struct directory *dir, const struct member *entry,
	const struct owner *owner, uint64_t now_ns)
{
	const struct control *control = dir->control;
	uint64_t beat_ns = control_beat_ns(control);
	uint64_t probe_ns;
	struct suspect_evidence evidence = {.beat_ns = beat_ns,
		.dead_ns = control_dead_ns(control),
		.unserved_ns = unserved_ns(dir, owner, now_ns),
		.unserved_before = owner->why == SUSPECT_UNSERVED};

	evidence.silent_ns = member_silent_ns(entry, now_ns);
	probe_ns = unprobed_ns(dir, entry, now_ns);
	if (evidence.unserved_ns < probe_ns)
		evidence.unserved_ns = probe_ns;
	evidence.unread = owner->ref && owner->unread_ref == owner->ref;
	evidence.linked = member_link_of(entry) || !member_watched(entry);
	evidence.paused = now_ns - members_tick_ns(control) > SUSPECT_BEATS * beat_ns;
	return suspect_judge(&evidence);
}

static enum suspect_why owner_judge(
	const struct directory *dir, const struct owner *owner, uint64_t now_ns)
{
	const struct member *entry = member_peer(dir->control, owner->peer);

	if (!entry || entry->record.ref != owner->ref || !owner->ref)
		return SUSPECT_NOT;
	return member_judge(dir, entry, owner, now_ns);
}

void owner_suspect(struct directory *dir, struct owner *owner, enum suspect_why why)
{
	uint64_t bit = 1ull << owner->peer % 64, *word;

	owner->why = why;
	/* the clients of this host read the bit before they choose an owner to ask */
	if (!dir->control->status)
		return;
	word = &dir->control->status->map.suspects[owner->peer / 64];
	shm_store64(word, suspect_steers(why) ? *word | bit : *word & ~bit);
}

/* Judges the owner anew, and shows clients whether it is suspect. */
static void owner_look(struct directory *dir, struct owner *owner, uint64_t now_ns)
{
	bool steered = suspect_steers(owner->why);

	owner_suspect(dir, owner, owner_judge(dir, owner, now_ns));
	if (suspect_steers(owner->why) && !steered) {
		owner->suspect_ns = now_ns;
		dir->control->counter[COUNTER_owners_suspected]++;
		waiters_check(dir, owner);
	}
}

static void patrol_arm(struct directory *dir, uint64_t now_ns)
{
	if (dir->patrol.armed_ns)
		return;
	dir->patrol.armed_ns = now_ns;
	(void)net_timer_set(dir->patrol.timer, patrol_period_ns(dir) / 1000);
}

static void patrol_run(void *context)
{
	struct directory *dir = context;
	struct owner *owner;
	uint64_t now_ns = net_now();
	bool more = false;

	/*
	 * If this timer is late, this engine did not run and could not receive: answers may be in
	 * its sockets. Owners get their time anew.
	 */
	if (now_ns - dir->patrol.armed_ns > 2 * patrol_period_ns(dir))
		dir->patrol.awake_ns = now_ns;
	dir->patrol.armed_ns = 0;
	STAILQ_FOREACH (owner, &dir->owners, next) {
		if (!owner->ref || owner_idle(owner))
			continue;
		more = true;
		owner_look(dir, owner, now_ns);
	}
	if (more)
		patrol_arm(dir, now_ns);
}

void owner_waits(struct directory *dir, struct owner *owner)
{
	owner->wait_ns = net_now();
	owner_look(dir, owner, owner->wait_ns);
	patrol_arm(dir, owner->wait_ns);
}

/* The owner has answered; the oldest answer that it still owes waits for this time. */
static void owner_answered(
	struct directory *dir, struct owner *owner, uint64_t now_ns, uint64_t waits_ns)
{
	if (owner->why == SUSPECT_UNSERVED && waits_ns <= patience_ns(dir->control))
		owner_suspect(dir, owner, SUSPECT_NOT);
	owner_look(dir, owner, now_ns);
}

void owner_served(struct directory *dir, struct owner *owner)
{
	const struct member *entry = member_peer(dir->control, owner->peer);
	uint64_t now_ns = net_now();

	owner->served_ns = owner->wait_ns = now_ns;
	owner_answered(dir, owner, now_ns, entry ? unprobed_ns(dir, entry, now_ns) : 0);
}

void directory_probed(struct control *control, uint16_t peer, bool served)
{
	struct directory *dir = control->directory;
	struct owner *owner = dir ? owner_at(dir, peer) : NULL;
	uint64_t now_ns = net_now();

	if (owner && owner->ref)
		owner_answered(
			dir, owner, now_ns, served ? unserved_ns(dir, owner, now_ns) : UINT64_MAX);
}

/* NULL: the directory is not open, it is no live member, or there is no memory. */
static struct owner *owner_opened(struct directory *dir, uint16_t peer)
{
	struct owner *owner = dir ? owner_wanted(dir, peer) : NULL;

	return dir && owner != dir->none ? owner : NULL;
}

void directory_unread(struct control *control, uint16_t peer, uint32_t ref, bool unread)
{
	struct owner *owner = owner_opened(control->directory, peer);

	if (!owner)
		return;
	owner->unread_ref = unread ? ref : 0;
	owner_look(control->directory, owner, net_now());
}

bool directory_overdue(const struct control *control, uint16_t peer)
{
	const struct directory *dir = control->directory;
	const struct owner *owner = dir ? owner_at(dir, peer) : NULL;

	return owner && owner->ref && owner->why == SUSPECT_UNSERVED && !owner_idle(owner);
}

void directory_owner(const struct control *control, uint16_t peer, struct directory_owner *ret)
{
	const struct directory *dir = control->directory;
	const struct member *entry = member_peer(control, peer);
	const struct owner *owner = owner_at(dir, peer);
	uint64_t now_ns = net_now();

	*ret = (struct directory_owner){
		.why = entry ? member_judge(dir, entry, owner, now_ns) : SUSPECT_NOT,
		.queued = owner_queued(owner),
		.in_flight = owner->in_flight,
		.background = owner->background,
		.behind = owner_behind(owner),
		.unserved_ms = unserved_ns(dir, owner, now_ns) / 1000000,
		.served_ms = -1};
	if (owner->served_ns)
		ret->served_ms = (int64_t)((now_ns - owner->served_ns) / 1000000);
}

/* ---- changes of the members ------------------------------------------------------------------ */

void directory_link_up(struct control *control, uint16_t peer)
{
	struct owner *owner = owner_opened(control->directory, peer);

	if (!owner)
		return;
	owner_dirty(control->directory, owner);
}

void directory_member_gone(struct control *control, uint16_t peer, uint32_t ref)
{
	struct directory *dir = control->directory;
	struct owner *owner = owner_at(dir, peer);
	uint32_t at = owner_index(dir->map.settled, ref);

	if (owner->ref == ref) {
		owner->ref = 0;
		owner_clear(dir, owner);
	}
	if (at < dir->map.settled->owners) {
		dir->map.left[at / 64] |= 1ull << at % 64;
		dir->map.left_any = true;
	}
	departed_add(dir, ref);
}

/* ---- turns and ticks ------------------------------------------------------------------------- */

static void directory_wake(void *context)
{
	struct directory *dir = context;

	directory_flush(dir->control);
}

void directory_tick(struct control *control, uint64_t now_ns)
{
	struct directory *dir = control->directory;
	uint64_t dead_ns = control_dead_ns(control);
	struct owner *owner;

	ghosts_tick(&control->shard->ghosts, now_ns / 1000000000);
	departed_tick(dir, now_ns);
	compare_tick(dir, now_ns);
	owners_trim(dir);
	STAILQ_FOREACH (owner, &dir->owners, next) {
		const struct batch *oldest = STAILQ_FIRST(&owner->batches);
		const struct member_record *record = member_by_peer(control, owner->peer);
		struct member_texts texts;

		/* patrol_run() looks at the others: it knows whether this engine was paused */
		if (owner->ref && owner_idle(owner))
			owner_look(dir, owner, now_ns);
		if (!oldest || !record || now_ns - oldest->sent_ns <= 2 * dead_ns)
			continue;
		member_texts(record, &texts);
		log_warn(
			"member %s is alive but acknowledges no directory messages: closing the connection to dial it again",
			texts.name);
		rpc_link_close((struct rpc_link *)oldest->via);
	}
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Of all control planes of the process, which in tests and in the simulator are many. */
static void scratch_open(struct directory *dir)
{
	static Pc__Entry entry[MESSAGE_PAGES_MAX], *entry_at[MESSAGE_PAGES_MAX];
	static uint32_t failed[MESSAGE_PAGES_MAX], again[MESSAGE_PAGES_MAX];

	for (unsigned i = 0; i < MESSAGE_PAGES_MAX && !entry_at[i]; i++) {
		entry[i] = (Pc__Entry)PC__ENTRY__INIT;
		entry_at[i] = &entry[i];
	}
	dir->entry_at = entry_at;
	dir->failed = failed;
	dir->again = again;
}

int directory_open(struct control *control)
{
	struct directory *dir = calloc(1, sizeof(*dir));

	if (!dir)
		return -ENOMEM;
	dir->control = control;
	STAILQ_INIT(&dir->dirty);
	STAILQ_INIT(&dir->finished);
	STAILQ_INIT(&dir->owners);
	TAILQ_INIT(&dir->orphans);
	TAILQ_INIT(&dir->waits.list);
	TAILQ_INIT(&dir->asked);
	scratch_open(dir);
	control->directory = dir;
	dir->none = owner_new(0);
	dir->self = owner_new(0);
	dir->waits.timer = net_timer_new(control->base, false, updates_due, dir);
	dir->wake = net_timer_new(control->base, false, directory_wake, dir);
	dir->hints.timer = net_timer_new(control->base, false, hints_due, dir);
	dir->move.timer = net_timer_new(control->base, false, move_slice, dir);
	dir->patrol.timer = net_timer_new(control->base, false, patrol_run, dir);
	if (!dir->none || !dir->self || !dir->waits.timer || !dir->wake || !dir->hints.timer ||
		!dir->move.timer || !dir->patrol.timer) {
		directory_close(control);
		return -ENOMEM;
	}
	dir->self->ref = control->ref;
	compare_later(dir, net_now());
	/* of before a warm restart */
	dir->published = control->kept_ref != NULL;
	dir->map.settled = map_view_share(member_map(control));
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
	struct net_timer *timers[] = {dir ? dir->waits.timer : NULL, dir ? dir->wake : NULL,
		dir ? dir->hints.timer : NULL, dir ? dir->move.timer : NULL,
		dir ? dir->patrol.timer : NULL};

	if (!dir)
		return;
	if (dir->none)
		digests_link_down(dir, dir->none, NULL);
	STAILQ_FOREACH (owner, &dir->owners, next) {
		owner->ref = 0;
		owner_rewind(owner, NULL);
	}
	updates_close(dir);
	while ((owner = STAILQ_FIRST(&dir->owners))) {
		STAILQ_REMOVE_HEAD(&dir->owners, next);
		owner_free(owner);
	}
	free(dir->none);
	free(dir->self);
	for (unsigned i = 0; i < sizeof(timers) / sizeof(timers[0]); i++)
		net_timer_free(timers[i]);
	map_view_drop(dir->map.settled);
	free(dir);
	control->directory = NULL;
}
