/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a clear does, in this order:
 *
 *   memory  pages of the index: out of the index, the slot retired, the entry removed
 *   flight  pages that are being written to disk or read from it, in neither index
 *   disk    pages of the disk's index, slot by slot of the directory: tombstones
 *   again   the index once more: a page may have come back from disk meanwhile
 *   sync    until all tombstones are durable and the owners have dropped the entries
 *
 * A page that moves between memory and disk during this is found in one of these places: a page
 * that leaves memory is on disk or in flight when these are looked at, and page_forget() removes a
 * key from all of them at once. A request is a client's of this host, or another engine's, whose
 * client empties the cluster. The control plane's thread only.
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
#include "engine/control/net/rpc.h"
#include "engine/control/pages/pages.h"
#include "numa/clock.h"

enum clear_phase { CLEAR_MEMORY, CLEAR_FLIGHT, CLEAR_DISK, CLEAR_AGAIN, CLEAR_SYNC };

/* One request. */
struct clear_request {
	TAILQ_ENTRY(clear_request) next;
	struct page_key group;
	bool all;
	uint32_t later; /* number of ctl_later(); CTL_NO_ANSWER: it is another engine's */
	uint32_t from;  /* ref of that engine, and the serial of its Clear */
	uint64_t serial;
	enum clear_phase phase;
	uint64_t cursor; /* of the walk of the phase */
	uint32_t slot;   /* of the directory, in CLEAR_DISK */
	uint64_t pages, began_ns;
};

struct clears {
	TAILQ_HEAD(, clear_request) requests; /* the first one is served */
	unsigned count;
	unsigned members; /* of `count`: requests of other engines */
	/* tombstones that are being written, of the first request */
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

static void clear_tell(
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

/* The engine that requested it may have left, or have no link now: then it asks again. */
static void clear_tell_end(struct control *control, const struct clear_request *r)
{
	struct rpc_link *link = member_link_now(control, r->from);

	if (link)
		clear_tell(link, r->serial,
			control->clears->failed ? PC__CLEAR_RESULT__CLEAR_VOLATILE
						: PC__CLEAR_RESULT__CLEAR_DONE,
			r->pages);
}

static void clear_log(struct control *control, const struct clear_request *r)
{
	const struct member_record *from =
		r->later == CTL_NO_ANSWER ? member_by_ref(control, r->from) : NULL;
	char label[MEMBER_LABEL_BYTES] = "a client of this host";

	if (from)
		member_label(from, label);
	else if (r->later == CTL_NO_ANSWER)
		snprintf(label, sizeof(label), "a member that has left");
	log_info("clear: %llu page(s)%s removed in %llu ms for %s%s", (unsigned long long)r->pages,
		r->all ? "" : " of a group of namespaces",
		(unsigned long long)((clock_now_ns() - r->began_ns) / 1000000), label,
		control->clears->failed ? "; the disk did not record all of them" : "");
}

static void clear_free(struct clears *clears, struct clear_request *r)
{
	TAILQ_REMOVE(&clears->requests, r, next);
	clears->count--;
	clears->members -= r->later == CTL_NO_ANSWER;
	free(r);
}

static void clear_finish(struct control *control, struct clear_request *r)
{
	struct clears *clears = control->clears;
	struct ctl_done done;

	clear_log(control, r);
	if (r->later == CTL_NO_ANSWER) {
		clear_tell_end(control, r);
	} else {
		clear_answer_of(clears->failed ? CLEARED_VOLATILE : CLEARED_ALL, r->pages, &done);
		ctl_later_answer(control->ctl, r->later, &done);
	}
	clears->failed = false;
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

unsigned clear_turn(struct control *control)
{
	struct clears *clears = control->clears;
	struct clear_request *r = clears ? TAILQ_FIRST(&clears->requests) : NULL;

	if (!r || tier_opens(control) || directory_busy(control) ||
		clears->syncs > CLEAR_SYNC_MAX || clear_waits(clears, r->phase))
		return 0; /* acknowledgements of the disk and of owners make further turns */
	clear_request_turn(control, r);
	return 1;
}

/* NULL: too many wait, or no memory. The caller sets whose it is. */
static struct clear_request *clear_new(
	struct control *control, const struct page_key *group, bool all)
{
	struct clears *clears = control->clears;
	struct clear_request *r;

	if (!clears) {
		clears = control->clears = calloc(1, sizeof(*clears));
		if (!clears)
			return NULL;
		TAILQ_INIT(&clears->requests);
	}
	r = clears->count < CLEARS_MAX ? calloc(1, sizeof(*r)) : NULL;
	if (!r)
		return NULL;
	r->group = *group;
	r->all = all;
	r->later = CTL_NO_ANSWER;
	r->began_ns = clock_now_ns();
	TAILQ_INSERT_TAIL(&clears->requests, r, next);
	clears->count++;
	clears->members++;
	return r;
}

/* A request of a client of this host. False: too many wait, or no memory. */
static bool clear_add(struct control *control, struct ctl_channel *c, const struct ctl_op *op)
{
	struct clear_request *r = clear_new(control, &op->key, op->count == 1);

	if (!r)
		return false;
	r->later = ctl_later(control->ctl, c, op, 1);
	if (r->later == CTL_NO_ANSWER) {
		clear_free(control->clears, r);
		return false;
	}
	control->clears->members--;
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

/* The engine's request with this serial, and how many it has. NULL: it has none. */
static struct clear_request *clear_find(
	const struct clears *clears, uint32_t from, uint64_t serial, unsigned *ret_count)
{
	struct clear_request *r, *found = NULL;

	*ret_count = 0;
	if (!clears)
		return NULL;
	TAILQ_FOREACH (r, &clears->requests, next) {
		if (r->later != CTL_NO_ANSWER || r->from != from)
			continue;
		++*ret_count;
		if (r->serial == serial)
			found = r;
	}
	return found;
}

bool clear_serve_member(struct control *control, struct rpc_link *link, const Pc__Clear *m)
{
	const struct page_key group = {.word = {m->group0, m->group1}};
	uint32_t from = member_link_ref(link);
	struct clear_request *r;
	unsigned count;

	if (!m->serial)
		return false;
	r = clear_find(control->clears, from, m->serial, &count);
	if (!r && count < CLEARS_MEMBER_MAX &&
		(!control->clears || control->clears->members < CLEARS_MEMBERS_MAX)) {
		r = clear_new(control, &group, m->all);
		if (r) {
			r->from = from;
			r->serial = m->serial;
		}
	}
	if (r)
		clear_tell(link, m->serial, PC__CLEAR_RESULT__CLEAR_GOES_ON, r->pages);
	else
		clear_tell(link, m->serial, PC__CLEAR_RESULT__CLEAR_BUSY, 0);
	return true;
}

void clear_close(struct control *control)
{
	struct clears *clears = control->clears;
	struct clear_request *r;

	clear_asks_close(control);
	if (!clears)
		return;
	while ((r = TAILQ_FIRST(&clears->requests)))
		clear_free(clears, r);
	free(clears);
	control->clears = NULL;
}
