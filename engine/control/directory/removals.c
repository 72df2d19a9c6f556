/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removals that absent members have missed. Each engine keeps the last REMOVALS_MAX removals that
 * it executed, and for each member the position at which it left the map. A removal that the member
 * had not acknowledged then follows that position. A member that comes back is sent what it has
 * missed, as Forgets, and then Told:
 *
 *      member that comes back            each member that it has a link with
 *      Hello, removals, pages       <->  Hello, removals
 *                                   <-   Forget, of the keys since its position
 *      executes them; Ack           ->
 *                                   <-   Told
 *
 * A member that was started again with pages of before opens the door when all members with which
 * it was in a map have sent it Told, after cluster.dead_after_ms at the latest: until then it
 * publishes nothing, and takes no clients if pages are in memory; pages on disk wait until the
 * disk is open, too, and no member still sends Forgets. The limit counts from the last Forget of a
 * member. Pages in memory that nothing proves are dropped then (see DIRECTORY.md). A member that
 * was only frozen or cut off has no door, but its walks wait for Told, and it drops its pages in
 * memory if Told says that not all removals are remembered.
 *
 * A seed only (no rails) executes removals on no disk. Its position stays where it left with rails,
 * and it counts as away: so the removals that its disk has missed are sent when it uses it again.
 *
 * Under a keeper the memory outlives the engine. Control plane's thread only.
 */
#include "engine/control/directory/removals_inner.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/directory/directory.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/pages/pages.h"

#define DOOR_LOOK_US 5000
#define TELL_KEYS 4096u                /* keys that one member is sent at a time */
#define TELL_NS (3600ull * 1000000000) /* for one of these parts; a member that is gone ends it */

/* ---- the memory ------------------------------------------------------------------------------ */

static uint64_t removals_hash(const struct member *member)
{
	uint64_t hash = member_hash(member);

	return hash ? hash : 1;
}

/* Names are never removed, only replaced: behind the first free one there is none. */
static struct removals_name *name_after(const struct removals *r, const struct removals_name *last)
{
	size_t next = last ? (size_t)(last - r->log->name) + 1 : 0;

	return next < REMOVALS_NAMES && r->log->name[next].hash ? &r->log->name[next] : NULL;
}

static struct removals_name *removals_find(const struct removals *r, uint64_t hash)
{
	struct removals_name *name = NULL;

	while ((name = name_after(r, name)))
		if (name->hash == hash)
			return name;
	return NULL;
}

/* The removals of one member come one after the other, so most are those of the last one. */
static struct removals_name *removals_find_ref(struct removals *r, uint32_t ref)
{
	struct removals_name *name = &r->log->name[r->owed];

	if (name->ref == ref)
		return name;
	name = NULL;
	while ((name = name_after(r, name)))
		if (name->ref == ref) {
			r->owed = (unsigned)(name - r->log->name);
			return name;
		}
	return NULL;
}

/* A place for a new name: the first free one, or that of the member that left first. */
static struct removals_name *removals_name_place(const struct removals *r)
{
	struct removals_name *oldest = NULL, *name = NULL;
	unsigned used = 0;

	while ((name = name_after(r, name))) {
		used++;
		if (!name->present && (!oldest || name->left_ns < oldest->left_ns))
			oldest = name;
	}
	return used < REMOVALS_NAMES ? &r->log->name[used] : oldest;
}

/* NULL: there are REMOVALS_NAMES members on the map. */
static struct removals_name *removals_name_make(const struct removals *r, uint64_t hash)
{
	struct removals_name *name = removals_find(r, hash);

	if (name)
		return name;
	name = removals_name_place(r);
	if (name)
		*name = (struct removals_name){.hash = hash};
	return name;
}

static void removals_absent_count(struct removals *r, uint64_t now_ns)
{
	const struct removals_name *name = NULL;

	r->absent = 0;
	while ((name = name_after(r, name)))
		/* it may have left after `now_ns`, in the same turn */
		r->absent += name->left_ns &&
			     (int64_t)(now_ns - name->left_ns) < (int64_t)REMOVALS_ABSENT_NS;
}

/* Position since which the member has missed removals; NULL: a member that is not remembered. */
static uint64_t name_missed_at(const struct removals *r, const struct removals_name *name)
{
	if (!name || !name->at)
		return 1;
	return name->at == REMOVALS_PRESENT ? r->log->head : name->at;
}

/* What telling the member now cannot say. */
static enum told_limit name_limit(const struct removals *r, const struct removals_name *name)
{
	enum told_limit limit = name ? name->limit : TOLD_NOT_KNOWN;

	if (r->log->head - name_missed_at(r, name) > REMOVALS_MAX)
		return TOLD_NOT_COMPLETE;
	return name && !name->at && limit == TOLD_ALL ? TOLD_NOT_KNOWN : limit;
}

/*
 * Stands for the number and the key: with another key a number was not given by its engine. The
 * lowest bits are for the enum removal_state.
 */
static uint64_t removal_seal(const struct removal *removal)
{
	return map_mix(removal->number ^ removal->key.word[0]) & ~3ull;
}

uint64_t removals_number(struct control *control)
{
	struct removals *r = control->removals;

	return r ? ++r->number : 0;
}

void removals_add(struct control *control, const struct removal *removal)
{
	struct removals *r = control->removals;

	if (!r)
		return;
	r->log->removal[r->log->head % REMOVALS_MAX] = *removal;
	/* in this order: the engine may be killed in between */
	shm_store64(&r->log->head, r->log->head + 1);
}

void removals_owe(struct control *control, uint32_t ref, const struct removal *removal)
{
	struct removals *r = control->removals;
	struct removals_name *name = r ? removals_find_ref(r, ref) : NULL;
	struct telling *t;

	if (!r)
		return;
	if (name && !name->owed_at)
		name->owed_at = r->log->head;
	if (name && name->present)
		name->behind = 1;
	LIST_FOREACH (t, &r->tellings, next)
		if (t->ref == ref && !t->later_at)
			t->later_at = r->log->head;
	removals_add(control, removal);
}

enum removal_state removals_state(const struct control *control, const struct removal *removal)
{
	const struct removals *r = control->removals;
	uint64_t done = r ? r->done[removal->number % REMOVALS_MAX] : 0;

	if (!removal->number || (done & ~3ull) != removal_seal(removal))
		return REMOVAL_UNKNOWN;
	return (enum removal_state)(done & 3);
}

void removals_state_set(
	struct control *control, const struct removal *removal, enum removal_state state)
{
	struct removals *r = control->removals;

	if (r)
		r->done[removal->number % REMOVALS_MAX] = removal_seal(removal) | state;
}

bool removals_missing(const struct control *control)
{
	return (control->removals && control->removals->absent) || member_seeking(control);
}

/* ---- telling: a member gets what it has missed ----------------------------------------------- */

static void telling_free(struct telling *t)
{
	LIST_REMOVE(t, next);
	free(t);
}

/* On all links with it: one of them may be dead. False: a link has no room, or there is none. */
static bool telling_end_send(const struct telling *t, const struct member *member)
{
	struct rpc_link *const link[] = {member->contact->out, member->contact->in};
	Pc__Told told = PC__TOLD__INIT;
	const Pc__Message message = message_of(PC__MESSAGE__BODY_TOLD, &told);
	bool sent = false;

	told.complete = t->complete;
	told.known = t->known;
	for (unsigned i = 0; i < 2; i++) {
		if (link[i] && !rpc_send(link[i], &message))
			return false;
		sent |= link[i] != NULL;
	}
	return sent;
}

static void telling_acknowledged(void *context, uint64_t cookie, enum op_status status);

static void telling_send(struct telling *t)
{
	struct removals *r = t->removals;
	const struct waiter waiter = {
		.deadline_ns = net_now() + TELL_NS, .done = telling_acknowledged, .context = t};
	uint64_t end = t->end - t->at > TELL_KEYS ? t->at + TELL_KEYS : t->end;

	/* without memory the answer comes at once: the last one must not free `t` here */
	t->waits = 1;
	for (; t->at < end; t->at++) {
		const struct removal *removal = &r->log->removal[t->at % REMOVALS_MAX];

		if (page_key_none(&removal->key))
			continue;
		t->waits++;
		directory_forget_at(r->control, removal, t->ref, &waiter);
	}
}

static void telling_step(struct telling *t)
{
	struct removals *r = t->removals;
	const struct member *member = member_table_ref(members_table(r->control), t->ref);
	struct removals_name *name;

	if (t->waits)
		return;
	/* what was not sent yet may have been overwritten */
	if (t->at < t->end && t->at + REMOVALS_MAX < r->log->head) {
		t->complete &=
			t->missed_at == t->end || t->missed_at + REMOVALS_MAX >= r->log->head;
		t->at = r->log->head - REMOVALS_MAX;
	}
	if (t->failed || !member) {
		name = member ? removals_find(r, t->name) : NULL;
		if (name)
			name->behind = 1;
		telling_free(t);
		return;
	}
	while (t->at < t->end && !t->failed) {
		telling_send(t);
		if (--t->waits)
			return;
	}
	if (t->failed || !telling_end_send(t, member))
		return;
	name = removals_find(r, t->name);
	if (name) {
		if (!t->complete)
			name->limit = TOLD_NOT_COMPLETE;
		else if (!t->known && name->limit == TOLD_ALL)
			name->limit = TOLD_NOT_KNOWN;
		if (!name->bare) { /* else its disk, which it does not use now, is owed it still */
			name->at = REMOVALS_PRESENT;
			name->owed_at = t->unrecorded ? t->begin : t->later_at;
		}
	}
	telling_free(t);
}

static void telling_acknowledged(void *context, uint64_t cookie, enum op_status status)
{
	struct telling *t = context;

	(void)cookie;
	/* OP_PEER_DOWN: its disk has not recorded the removal, or the member has left */
	t->unrecorded |= status == OP_PEER_DOWN;
	t->failed |= status != OP_HIT && status != OP_MISS && status != OP_PEER_DOWN;
	if (--t->waits == 0)
		telling_step(t);
}

static bool telling_runs(const struct removals *r, uint32_t ref)
{
	const struct telling *t;

	LIST_FOREACH (t, &r->tellings, next)
		if (t->ref == ref && !t->failed)
			return true;
	return false;
}

/* False: no memory. */
static bool telling_begin(struct removals *r, const struct member *member, bool pages)
{
	uint64_t hash = removals_hash(member), head = r->log->head;
	const struct removals_name *name = removals_find(r, hash);
	enum told_limit limit = name_limit(r, name);
	struct telling *t;

	if (telling_runs(r, member->record.ref))
		return true;
	t = calloc(1, sizeof(*t));
	if (!t) {
		log_error("no memory to tell a member what was removed while it was away");
		return false;
	}
	t->removals = r;
	t->name = hash;
	t->ref = member->record.ref;
	t->end = head;
	/* without rails it has no page now: it is sent only what is dropped from now on */
	t->missed_at = member->record.rails ? name_missed_at(r, name) : head;
	t->known = name && name->at && name->limit == TOLD_ALL;
	t->complete = !pages || !member->record.rails || limit != TOLD_NOT_COMPLETE;
	t->at = name && name->owed_at && name->owed_at < t->missed_at ? name->owed_at
								      : t->missed_at;
	if (!pages)
		t->at = t->end;
	else if (head - t->at > REMOVALS_MAX)
		t->at = head - REMOVALS_MAX;
	t->begin = t->at;
	LIST_INSERT_HEAD(&r->tellings, t, next);
	telling_step(t);
	return true;
}

/* Members on the map for which removals were dropped: over the link that they have. */
static void telling_catch_up(struct removals *r)
{
	struct removals_name *name = NULL;

	while ((name = name_after(r, name))) {
		const struct member *member =
			name->behind ? member_table_ref(members_table(r->control), name->ref)
				     : NULL;

		if (!member || !member_link_of(member) || telling_runs(r, name->ref))
			continue;
		name->behind = 0;
		if (!telling_begin(r, member, true))
			name->behind = 1;
	}
}

/* ---- members --------------------------------------------------------------------------------- */

void removals_member_up(struct control *control, const struct member *member)
{
	struct removals *r = control->removals;
	struct removals_name *name = r ? removals_name_make(r, removals_hash(member)) : NULL;

	if (!name)
		return;
	name->present = 1;
	name->behind = 0; /* its Hello begins a telling */
	name->limit = TOLD_ALL;
	name->ref = member->record.ref;
	name->bare = member->record.rails == 0;
	if (!name->bare)
		name->left_ns = 0;
	else if (name->at == REMOVALS_PRESENT)
		name->at = r->log->head;
	removals_absent_count(r, net_now());
}

void removals_member_admitted(struct control *control, const struct member *member)
{
	struct removals *r = control->removals;
	struct removals_name *name = r ? removals_find(r, removals_hash(member)) : NULL;

	if (!name)
		return;
	name->limit = (uint8_t)name_limit(r, name);
	if (!name->bare)
		name->at = REMOVALS_PRESENT;
	if (name->owed_at) /* a Hello follows on the new link */
		(void)member_link(control, member->record.ref);
}

void removals_member_left(struct control *control, const struct member *member)
{
	struct removals *r = control->removals;
	struct removals_name *name = r ? removals_name_make(r, removals_hash(member)) : NULL;
	uint64_t now_ns = net_now();
	struct telling *t;

	if (!name)
		return;
	LIST_FOREACH (t, &r->tellings, next)
		t->failed |= t->ref == member->record.ref;
	name->present = 0;
	if (member->record.rails) {
		if (name->at == REMOVALS_PRESENT)
			name->at = r->log->head;
		name->left_ns = now_ns;
	}
	removals_absent_count(r, now_ns);
}

void removals_hello(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	struct removals *r = control->removals;
	struct member *member = link->member;

	if (!r)
		return;
	/* on the second link it is still telling what the first one has begun */
	if (!member->contact->untold_ns || !member->contact->out || !member->contact->in)
		member->contact->hello_ns = net_now();
	member->contact->untold_ns = net_now();
	(void)telling_begin(r, member, hello->pages);
}

void removals_served(struct rpc_link *link)
{
	if (link->member->contact->untold_ns)
		link->member->contact->untold_ns = net_now();
}

bool removals_wanted(const struct control *control)
{
	return index_count(control->index) > 0 || control->settings->disk_paths[0];
}

/* ---- the door -------------------------------------------------------------------------------- */

static bool door_untold_any(const struct control *control, uint64_t now_ns)
{
	const struct member_table *table = members_table(control);

	for (unsigned i = 0; i < table->contacts; i++) {
		const struct member_contact *contact = table->contact[i];

		if (contact->member->state == MEMBER_ALIVE && contact->untold_ns &&
			now_ns - contact->untold_ns < control_dead_ns(control))
			return true;
	}
	return false;
}

bool removals_held(const struct control *control)
{
	const struct removals *r = control->removals;
	bool disk_opened = r && r->disk_opens && !tier_opens(control);

	return r && (control->door_shut || disk_opened || door_untold_any(control, net_now()));
}

static bool door_awaited_any(const struct removals *r)
{
	for (unsigned i = 0; i < REMOVALS_NAMES / 64; i++)
		if (r->awaited[i])
			return true;
	return false;
}

/* True if no member can have removed a page while this engine was away. */
static bool door_alone(const struct removals *r)
{
	const struct member_table *table = members_table(r->control);

	if (!r->unread)
		return r->alone;
	/* it was if it still is */
	for (unsigned i = 0; i < table->contacts; i++) {
		const struct member *member = table->contact[i]->member;

		if (member->state == MEMBER_ALIVE && !member->record.self)
			return false;
	}
	return true;
}

/* True if pages in memory may be ones whose removal was a promise. */
static bool door_pages_unproven(const struct removals *r)
{
	if (r->proven || door_alone(r))
		return false;
	return r->incomplete || r->away_ns >= REMOVALS_ABSENT_NS;
}

static void removals_door_open(struct removals *r)
{
	bool drop = door_pages_unproven(r);

	r->control->door_shut = false;
	if (r->proven || drop)
		r->judged_ns = net_now();
	if (r->opened)
		r->opened(r->control, drop);
}

/*
 * The disk is open: only now are the first removals that were sent acknowledged, and the next ones
 * follow.
 */
static void door_untold_renew(const struct control *control, uint64_t now_ns)
{
	const struct member_table *table = members_table(control);

	for (unsigned i = 0; i < table->contacts; i++)
		if (table->contact[i]->untold_ns)
			table->contact[i]->untold_ns = now_ns;
}

/* After the door, once no member is still sending what was removed. */
static void door_disk_look(struct removals *r, uint64_t now_ns)
{
	struct control *control = r->control;

	if (control->door_shut || tier_opens(control) || door_untold_any(control, now_ns))
		return;
	control->disk_shut = false;
	net_timer_stop(r->look);
}

/* Timer function, and called when a member has sent Told. */
static void door_look(void *context)
{
	struct removals *r = context;
	const struct control *control = r->control;
	uint64_t now_ns = net_now();

	if (!control->disk_shut || !control->directory)
		return;
	/* whether it is alone is not known before it has dialled */
	if (r->unread && control->exporting)
		r->opened_ns = now_ns;
	if (r->disk_opens && !tier_opens(control))
		door_untold_renew(control, now_ns);
	r->disk_opens = tier_opens(control);
	if (control->door_shut && now_ns - r->opened_ns < control_dead_ns(control) &&
		(door_awaited_any(r) || member_seeking(control) ||
			door_untold_any(control, now_ns)))
		return;
	if (control->door_shut)
		removals_door_open(r);
	door_disk_look(r, now_ns);
}

bool removals_serve_told(struct control *control, struct rpc_link *link, const Pc__Told *told)
{
	struct removals *r = control->removals;
	const struct removals_name *name = r ? removals_find(r, removals_hash(link->member)) : NULL;
	/* 0: it owes none, and makes up for what it had dropped */
	uint64_t hello_ns = link->member->contact->untold_ns ? link->member->contact->hello_ns : 0;

	link->member->contact->untold_ns = 0;
	if (!r)
		return true;
	r->proven |= told->complete && (told->known || r->away_ns < REMOVALS_ABSENT_NS);
	r->incomplete |= !told->complete;
	if (!control->door_shut && told->known && !told->complete && hello_ns > r->judged_ns) {
		r->judged_ns = net_now();
		if (r->opened)
			r->opened(control, true);
	}
	if (name)
		r->awaited[(name - r->log->name) / 64] &= ~(1ull << (name - r->log->name) % 64);
	door_look(r);
	return true;
}

void removals_tick(struct control *control, uint64_t now_ns)
{
	struct removals *r = control->removals;
	struct telling *t, *next;

	if (!r)
		return;
	shm_store64(&r->log->ran_ns, now_ns);
	removals_absent_count(r, now_ns);
	for (t = LIST_FIRST(&r->tellings); t; t = next) {
		next = LIST_NEXT(t, next);
		telling_step(t);
	}
	telling_catch_up(r);
}

/* ---- open and close -------------------------------------------------------------------------- */

/* The engine before has ended: all members that were on its map have missed what comes now. */
static void removals_log_adopt(struct removals *r)
{
	struct removals_log *log = r->log;
	struct removals_name *name = NULL;

	if (log->ran_ns && log->ran_ns <= r->opened_ns)
		r->away_ns = r->opened_ns - log->ran_ns;
	while ((name = name_after(r, name))) {
		size_t i = (size_t)(name - log->name);

		name->ref = 0;
		name->behind = 0;
		name->limit = TOLD_ALL;
		if (name->at > log->head && name->at != REMOVALS_PRESENT)
			name->at = 0;
		if (name->owed_at > log->head)
			name->owed_at = 1;
		if (!name->present)
			continue;
		name->present = 0;
		r->alone = false;
		r->awaited[i / 64] |= 1ull << i % 64;
		if (name->bare)
			continue;
		name->left_ns = r->opened_ns;
		if (name->at == REMOVALS_PRESENT)
			name->at = log->head;
	}
	/* with a disk: it is not known which tombstones are durable */
	for (uint64_t i = 0; i < REMOVALS_MAX && !r->control->settings->disk_paths[0]; i++)
		removals_state_set(r->control, &log->removal[i], REMOVAL_DURABLE);
}

static bool removals_log_fits(const struct removals_log *log)
{
	return log->magic == REMOVALS_MAGIC && log->layout == REMOVALS_LAYOUT;
}

size_t removals_bytes(void)
{
	return sizeof(struct removals_log);
}

int removals_open(struct control *control, const struct removals_options *options)
{
	struct removals *r = calloc(1, sizeof(*r));
	const struct settings *s = control->settings;
	bool fits = options->adopted && removals_log_fits(options->memory.base);

	if (!r)
		return -ENOMEM;
	r->control = control;
	r->look = net_timer_new(control->base, true, door_look, r);
	if (!r->look || net_timer_set(r->look, DOOR_LOOK_US) < 0) {
		net_timer_free(r->look);
		free(r);
		return -ENOMEM;
	}
	r->memory = options->memory;
	r->log = r->memory.base;
	r->opened = options->opened;
	r->opened_ns = net_now();
	r->away_ns = UINT64_MAX;
	r->number = map_mix(control->incarnation);
	r->alone = true;
	r->unread = options->warm && !fits;
	control->removals = r;
	if (fits)
		removals_log_adopt(r);
	else if (options->adopted)
		memset(r->log, 0, sizeof(*r->log));
	if (!r->log->head)
		r->log->head = 1;
	r->log->magic = REMOVALS_MAGIC;
	r->log->layout = REMOVALS_LAYOUT;
	removals_absent_count(r, r->opened_ns);
	control->door_shut =
		options->pages && (!r->alone || s->cluster_seeds[0] || s->cluster_seeds_file[0] ||
					  s->cluster_etcd[0]);
	control->disk_shut = control->door_shut;
	if (!control->disk_shut)
		net_timer_stop(r->look);
	return 0;
}

void removals_close(struct control *control)
{
	struct removals *r = control->removals;
	struct telling *t;

	if (!r)
		return;
	control->removals = NULL;
	while ((t = LIST_FIRST(&r->tellings)))
		telling_free(t);
	net_timer_free(r->look);
	huge_close(&r->memory);
	free(r);
}
