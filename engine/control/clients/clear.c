/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a clear does, in this order:
 *
 *   memory  pages of the index: out of the index, the slot retired, the entry removed
 *   flight  pages that are being written to disk or read from it, in neither index
 *   disk    pages of the disk's index, slot by slot of the directory: tombstones
 *   again   the index once more: a page may have come back from disk meanwhile
 *   sync    until all tombstones are durable
 *
 * A page that moves between memory and disk during this is found in one of these places: a page
 * that leaves memory is on disk or in flight when these are looked at, and page_forget() removes a
 * key from all of them at once. A request is a client's of this host, or another engine's, whose
 * client empties the cluster. One is served at a time: those of this host first, then one of each
 * member in turn. A member repeats a Clear until it has the answer, and what it stores after that
 * answer must stay: so the end of a request is remembered, and a repeat never removes anything. The
 * control plane's thread only.
 */
#include "engine/control/clients/ctl_inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/queue.h>

#include "config/log.h"
#include "engine/abi/map.h"
#include "engine/abi/message.pb-c.h"
#include "engine/abi/op.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"
#include "engine/control/pages/pages.h"

enum clear_phase { CLEAR_MEMORY, CLEAR_FLIGHT, CLEAR_DISK, CLEAR_AGAIN, CLEAR_SYNC };

/* One request. */
struct clear_request {
	TAILQ_ENTRY(clear_request) next;
	struct page_key group;
	bool all;
	bool away;      /* one of the whole cluster, and removals_missing() when it began */
	uint32_t later; /* of a client of this host: number of ctl_later() */
	struct clear_member *member; /* of another engine, and the serial of its Clear; or NULL */
	uint64_t serial;
	enum clear_phase phase;
	uint64_t cursor; /* of the walk of the phase */
	uint32_t slot;   /* of the directory, in CLEAR_DISK */
	uint64_t pages, began_ns;
};

TAILQ_HEAD(clear_queue, clear_request);

/* How a request of another engine has ended. */
struct clear_end {
	uint64_t serial; /* 0: none */
	uint64_t pages;
	Pc__ClearResult result;
};

/*
 * Another engine that has requested a clear. Kept when its link closes, and when it leaves: it may
 * be back. It keeps its ref over a warm restart, so serials of a later life are larger.
 */
struct clear_member {
	TAILQ_ENTRY(clear_member) next;
	struct clear_queue waiting;
	uint32_t ref;
	unsigned count;     /* its requests that have not ended */
	unsigned ends;      /* requests that have ended; the last ones are in `end` */
	uint64_t forgotten; /* largest serial that was overwritten in `end` */
	struct clear_end end[CLEARS_MEMBER_MAX];
};

struct clears {
	struct clear_request *now; /* the one that is served, in no queue; NULL: none yet */
	struct clear_queue local;  /* those of clients of this host */
	/* the next one to serve, and to forget, is first */
	TAILQ_HEAD(, clear_member) members;
	unsigned members_count;
	unsigned count;       /* requests that have not ended */
	unsigned count_apart; /* of them: of other engines */
	/* tombstones that are being written, of `now` */
	uint32_t syncs;
	bool failed; /* one of them did not become durable */
};

/* These phases begin when all tombstones are written: the keys have left the disk's index then. */
static bool clear_waits(const struct clears *clears, enum clear_phase phase)
{
	return clears->syncs && (phase == CLEAR_FLIGHT || phase == CLEAR_SYNC);
}

static bool clear_concerns(const struct clear_request *r, const struct page_key *key)
{
	return r->all || page_key_grouped(key, &r->group);
}

static void clear_on_synced(struct control *control, void *context, uint32_t cookie, bool durable)
{
	struct clears *clears = context;

	(void)control;
	(void)cookie;
	clears->syncs--;
	clears->failed |= !durable;
}

/* Removes the key wherever this host has it. `at`: its location in the directory. */
static void clear_page(struct control *control, struct clear_request *r, const struct page_key *key,
	const struct location *at)
{
	struct clears *clears = control->clears;
	const struct page_key name = *key; /* `key` may be of what is removed */
	const struct forget_wait wait = {.done = clear_on_synced, .context = clears};
	bool had;

	if (at)
		directory_remove(control, &name, at);
	clears->syncs++;
	switch (page_forget(control, &name, &wait, &had)) {
	case FORGET_LATER: break;
	case FORGET_VOLATILE:
		clears->failed = true;
		/* fall through */
	case FORGET_DURABLE: clears->syncs--; break;
	}
	r->pages++;
}

/* A part of the index. True: the walk is at its end. */
static bool clear_memory(struct control *control, struct clear_request *r)
{
	struct index_entry entry[CLEAR_BURST];
	unsigned n = index_walk(control->index, &r->cursor, CLEAR_BURST, entry);

	for (unsigned i = 0; i < n; i++)
		if (clear_concerns(r, &entry[i].key))
			clear_page(control, r, &entry[i].key,
				&(struct location){.place = entry[i].place,
					.generation = entry[i].generation});
	return r->cursor == 0;
}

/* A part of what is on disk. True: all slots were looked at. */
static bool clear_disk(struct control *control, struct clear_request *r)
{
	struct disk_page page[CLEAR_BURST];
	unsigned left = CLEAR_BURST;

	while (left && r->slot < MAP_SLOTS) {
		unsigned n = tier_slot(control, r->slot, &r->cursor, left, page);

		for (unsigned i = 0; i < n; i++)
			if (clear_concerns(r, &page[i].key))
				clear_page(control, r, &page[i].key,
					&(struct location){.place = page[i].place,
						.generation = page[i].generation});
		left -= n < left ? n + 1 : left; /* an empty slot costs something, too */
		if (r->cursor == 0)
			r->slot++;
	}
	return r->slot == MAP_SLOTS;
}

static void clear_flight(struct control *control, struct clear_request *r)
{
	uint32_t count;
	struct page_key *keys = tier_flying(control, &count);

	for (uint32_t i = 0; keys && i < count; i++)
		if (clear_concerns(r, &keys[i]))
			clear_page(control, r, &keys[i], NULL);
	if (count && !keys)
		control->clears->failed = true;
	free(keys);
}

static void cleared_send(
	struct rpc_link *link, uint64_t serial, Pc__ClearResult result, uint64_t pages)
{
	Pc__Cleared body = PC__CLEARED__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	body.serial = serial;
	body.result = result;
	body.pages = pages;
	message.body_case = PC__MESSAGE__BODY_CLEARED;
	message.cleared = &body;
	(void)rpc_send(link, &message); /* a Clear that is not answered is sent again */
}

/* Remembers how a request has ended, and forgets the oldest end. */
static void clear_end_set(struct clear_member *member, const struct clear_end *end)
{
	struct clear_end *at = &member->end[member->ends++ % CLEARS_MEMBER_MAX];

	if (at->serial > member->forgotten)
		member->forgotten = at->serial;
	*at = *end;
}

/* The member may have left, or have no link now: then it asks again, and this end is the answer. */
static void clear_end_send(struct control *control, const struct clear_request *r)
{
	struct rpc_link *link = member_link_now(control, r->member->ref);
	const struct clear_end end = {.serial = r->serial,
		.pages = r->pages,
		.result = control->clears->failed ? PC__CLEAR_RESULT__CLEAR_VOLATILE
						  : PC__CLEAR_RESULT__CLEAR_DONE};

	clear_end_set(r->member, &end);
	if (link)
		cleared_send(link, end.serial, end.result, end.pages);
}

static void clear_log(struct control *control, const struct clear_request *r)
{
	const struct member_record *from =
		r->member ? member_by_ref(control, r->member->ref) : NULL;
	char label[MEMBER_LABEL_BYTES] = "a client of this host";

	if (from)
		member_label(from, label);
	else if (r->member)
		snprintf(label, sizeof(label), "a member that has left");
	log_info("clear: %llu page(s)%s removed in %llu ms for %s%s", (unsigned long long)r->pages,
		r->all ? "" : " of a group of namespaces",
		(unsigned long long)((net_now() - r->began_ns) / 1000000), label,
		control->clears->failed ? "; the disk did not record all of them" : "");
}

/* Frees a request that is in no queue. */
static void clear_free(struct clears *clears, struct clear_request *r)
{
	clears->count--;
	if (r->member) {
		clears->count_apart--;
		r->member->count--;
	}
	free(r);
}

static void clear_finish(struct control *control, struct clear_request *r)
{
	struct clears *clears = control->clears;
	struct ctl_done done;

	clear_log(control, r);
	if (r->member) {
		clear_end_send(control, r);
	} else {
		clear_answer_of(clears->failed ? CLEARED_VOLATILE : CLEARED_ALL, r->pages, &done);
		if (r->away && !clears->failed)
			done.length = CLEARED_AWAY;
		ctl_later_answer(control->ctl, r->later, &done);
	}
	clears->failed = false;
	clears->now = NULL;
	clear_free(clears, r);
}

/* Goes to the next phase when the present one is done. */
static void clear_request_turn(struct control *control, struct clear_request *r)
{
	switch (r->phase) {
	case CLEAR_MEMORY:
		if (clear_memory(control, r))
			r->phase = CLEAR_FLIGHT;
		return;
	case CLEAR_FLIGHT:
		clear_flight(control, r);
		r->phase = CLEAR_DISK;
		return;
	case CLEAR_DISK:
		if (clear_disk(control, r))
			r->phase = CLEAR_AGAIN;
		return;
	case CLEAR_AGAIN:
		if (clear_memory(control, r))
			r->phase = CLEAR_SYNC;
		return;
	case CLEAR_SYNC: clear_finish(control, r); return;
	}
}

/* Takes the next request out of its queue. NULL: none waits. */
static struct clear_request *clear_next(struct clears *clears)
{
	struct clear_request *r = TAILQ_FIRST(&clears->local);
	struct clear_member *member;

	if (r) {
		TAILQ_REMOVE(&clears->local, r, next);
		return r;
	}
	TAILQ_FOREACH (member, &clears->members, next) {
		r = TAILQ_FIRST(&member->waiting);
		if (!r)
			continue;
		TAILQ_REMOVE(&member->waiting, r, next);
		TAILQ_REMOVE(&clears->members, member, next);
		TAILQ_INSERT_TAIL(&clears->members, member, next);
		return r;
	}
	return NULL;
}

unsigned clear_turn(struct control *control)
{
	struct clears *clears = control->clears;

	if (!clears || !clears->count || tier_opens(control) || directory_busy(control))
		return 0;
	if (!clears->now)
		clears->now = clear_next(clears);
	if (clears->syncs > CLEAR_SYNC_MAX || clear_waits(clears, clears->now->phase))
		return 0; /* acknowledgements of the disk and of owners make further turns */
	clear_request_turn(control, clears->now);
	return 1;
}

/* NULL: no memory. */
static struct clears *clears_open(struct control *control)
{
	struct clears *clears = control->clears;

	if (clears)
		return clears;
	clears = control->clears = calloc(1, sizeof(*clears));
	if (!clears)
		return NULL;
	TAILQ_INIT(&clears->local);
	TAILQ_INIT(&clears->members);
	return clears;
}

/* The caller says whose it is, and queues it. NULL: too many wait, or no memory. */
static struct clear_request *clear_new(
	struct clears *clears, const struct page_key *group, bool all)
{
	struct clear_request *r = clears->count < CLEARS_MAX ? calloc(1, sizeof(*r)) : NULL;

	if (!r)
		return NULL;
	r->group = *group;
	r->all = all;
	r->began_ns = net_now();
	clears->count++;
	return r;
}

/* A request of a client of this host. False: too many wait, or no memory. */
static bool clear_add(struct control *control, struct ctl_channel *c, const struct ctl_op *op)
{
	struct clears *clears = clears_open(control);
	struct clear_request *r = clears ? clear_new(clears, &op->key, op->count == 1) : NULL;

	if (!r)
		return false;
	r->later = ctl_later(control->ctl, c, op, 1);
	if (r->later == CTL_NO_ANSWER) {
		clear_free(clears, r);
		return false;
	}
	r->away = op->ref != 0 && removals_missing(control);
	TAILQ_INSERT_TAIL(&clears->local, r, next);
	return true;
}

void clear_serve(struct control *control, struct ctl_channel *c, const struct ctl_op *op,
	uint64_t deadline_ns)
{
	bool here = op->ref == 0 || op->ref == control->ref;
	struct ctl_done done;

	if (here ? clear_add(control, c, op) : clear_ask(control, c, op, deadline_ns))
		return;
	clear_answer_of(CLEARED_BUSY, 0, &done);
	ctl_answer_now(control->ctl, c, op, &done);
}

static void clear_member_free(struct clears *clears, struct clear_member *member)
{
	TAILQ_REMOVE(&clears->members, member, next);
	clears->members_count--;
	free(member);
}

/* Makes room: a member without requests is forgotten, one that has left before all others. */
static void clear_member_forget(struct control *control)
{
	struct clears *clears = control->clears;
	struct clear_member *member, *idle = NULL;

	TAILQ_FOREACH (member, &clears->members, next) {
		bool left = !member_by_ref(control, member->ref);

		if (member->count || (idle && !left))
			continue;
		idle = member;
		if (left)
			break;
	}
	if (idle)
		clear_member_free(clears, idle);
}

/* NULL: too many members have requests, or no memory. */
static struct clear_member *clear_member_of(struct control *control, uint32_t ref)
{
	struct clears *clears = clears_open(control);
	struct clear_member *member;

	if (!clears)
		return NULL;
	TAILQ_FOREACH (member, &clears->members, next)
		if (member->ref == ref)
			return member;
	if (clears->members_count >= CLEAR_MEMBERS_MAX)
		clear_member_forget(control);
	member = clears->members_count < CLEAR_MEMBERS_MAX ? calloc(1, sizeof(*member)) : NULL;
	if (!member)
		return NULL;
	member->ref = ref;
	TAILQ_INIT(&member->waiting);
	TAILQ_INSERT_TAIL(&clears->members, member, next);
	clears->members_count++;
	return member;
}

/* The request with this serial, if it has not ended. */
static const struct clear_request *clear_find(
	const struct clears *clears, const struct clear_member *member, uint64_t serial)
{
	const struct clear_request *r = clears->now;

	if (r && r->member == member && r->serial == serial)
		return r;
	TAILQ_FOREACH (r, &member->waiting, next)
		if (r->serial == serial)
			return r;
	return NULL;
}

/* The end of the request with this serial. NULL: it has not ended. */
static const struct clear_end *clear_end_of(const struct clear_member *member, uint64_t serial)
{
	static const struct clear_end forgotten = {.result = PC__CLEAR_RESULT__CLEAR_BUSY};

	for (unsigned i = 0; i < CLEARS_MEMBER_MAX; i++)
		if (member->end[i].serial == serial)
			return &member->end[i];
	return serial <= member->forgotten ? &forgotten : NULL;
}

/* Takes a request that is neither waiting nor over. Its end, if it is refused, is remembered. */
static struct clear_end clear_take(
	struct clears *clears, struct clear_member *member, const Pc__Clear *m)
{
	const struct page_key group = {.word = {m->group0, m->group1}};
	struct clear_end refused = {.serial = m->serial, .result = PC__CLEAR_RESULT__CLEAR_BUSY};
	struct clear_request *r = NULL;

	if (member->count < CLEARS_MEMBER_MAX && clears->count_apart < CLEARS_MEMBERS_MAX)
		r = clear_new(clears, &group, m->all);
	if (!r) {
		clear_end_set(member, &refused);
		return refused;
	}
	r->member = member;
	r->serial = m->serial;
	member->count++;
	clears->count_apart++;
	TAILQ_INSERT_TAIL(&member->waiting, r, next);
	return (struct clear_end){.result = PC__CLEAR_RESULT__CLEAR_GOES_ON};
}

bool clear_serve_member(struct control *control, struct rpc_link *link, const Pc__Clear *m)
{
	struct clear_end answer = {.result = PC__CLEAR_RESULT__CLEAR_BUSY};
	struct clear_member *member;
	const struct clear_request *r;
	const struct clear_end *end;

	if (!m->serial)
		return false;
	member = clear_member_of(control, member_link_ref(link));
	if (member) {
		r = clear_find(control->clears, member, m->serial);
		end = r ? NULL : clear_end_of(member, m->serial);
		if (r)
			answer = (struct clear_end){
				.pages = r->pages, .result = PC__CLEAR_RESULT__CLEAR_GOES_ON};
		else
			answer = end ? *end : clear_take(control->clears, member, m);
	}
	cleared_send(link, m->serial, answer.result, answer.pages);
	return true;
}

void clear_close(struct control *control)
{
	struct clears *clears = control->clears;
	struct clear_member *member;
	struct clear_request *r;

	clear_asks_close(control);
	if (!clears)
		return;
	if (clears->now)
		clear_free(clears, clears->now);
	while ((r = clear_next(clears)))
		clear_free(clears, r);
	while ((member = TAILQ_FIRST(&clears->members)))
		clear_member_free(clears, member);
	free(clears);
	control->clears = NULL;
}
