/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes pages of many keys out of this host: those that a client clears here, and in a sweep those
 * that no client may find any more: after a clear of the cluster, of epochs that have ended; when a
 * group has got a time, what it has on disk only. In this order:
 *
 *   memory  pages of the index: out of the index, the slot retired, the entry removed
 *   flight  pages that are being written to disk or read from it, in neither index
 *   disk    pages of the disk's index, slot by slot of the directory
 *   again   the index once more: a page may have come back from disk meanwhile
 *
 * A page that moves between memory and disk during this is found in one of these places: a page
 * that leaves memory is on disk or in flight when these are looked at, and page_forget() removes a
 * key from all of them at once. One request is served at a time. The control plane's thread only.
 */
#include "engine/control/clients/ctl_inner.h"

#include <stdlib.h>
#include <sys/queue.h>

#include "config/log.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/control/copies/copies.h"
#include "engine/control/directory/directory.h"
#include "engine/control/net/net.h"
#include "engine/control/pages/pages.h"

enum clear_phase { CLEAR_MEMORY, CLEAR_FLIGHT, CLEAR_DISK, CLEAR_AGAIN, CLEAR_DONE };

/* One request of a client, or the sweep. */
struct clear_request {
	TAILQ_ENTRY(clear_request) next;
	struct page_key group;
	bool all;
	bool sweep;     /* no client waits */
	uint32_t later; /* number of ctl_later() */
	enum clear_phase phase;
	uint64_t cursor; /* of the walk of the phase */
	uint32_t slot;   /* of the directory, in CLEAR_DISK */
	uint64_t pages, began_ns;
};

struct clears {
	TAILQ_HEAD(, clear_request) waiting; /* the first one is served */
	unsigned count;
	uint32_t swept;             /* version for which the last sweep began */
	struct clear_request sweep; /* `phase` CLEAR_DONE: none runs */
};

static bool clear_concerns(
	const struct control *control, const struct clear_request *r, const struct page_key *key)
{
	if (r->sweep)
		return epoch_past(control, key) || index_ends(control->index, key);
	return r->all || page_key_grouped(key, &r->group);
}

/* Removes the key wherever this host has it. `at`: its location in the directory. */
static void clear_page(struct control *control, struct clear_request *r, const struct page_key *key,
	const struct location *at)
{
	const struct page_key name = *key; /* `key` may be of what is removed */

	if (r->sweep && !epoch_past(control, &name) && index_find(control->index, &name)) {
		(void)tier_forget(control, &name); /* the page in memory ends in its time */
		return;
	}
	if (at)
		directory_remove(control, &name, at);
	(void)page_forget(control, &name);
	r->pages++;
}

/* A part of the index. True: the walk is at its end. */
static bool clear_memory(struct control *control, struct clear_request *r)
{
	struct index_entry entry[CLEAR_BURST];
	unsigned n = index_walk(control->index, &r->cursor, CLEAR_BURST, entry);

	for (unsigned i = 0; i < n; i++)
		if (clear_concerns(control, r, &entry[i].key))
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
			if (clear_concerns(control, r, &page[i].key))
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
		if (clear_concerns(control, r, &keys[i]))
			clear_page(control, r, &keys[i], NULL);
	free(keys);
}

/* A part of the present phase. */
static void clear_request_turn(struct control *control, struct clear_request *r)
{
	bool ended = true;

	if (r->phase == CLEAR_MEMORY || r->phase == CLEAR_AGAIN)
		ended = clear_memory(control, r);
	else if (r->phase == CLEAR_DISK)
		ended = clear_disk(control, r);
	else
		clear_flight(control, r);
	r->phase += ended;
}

static void clear_finish(struct control *control, struct clear_request *r)
{
	struct clears *clears = control->clears;
	const struct ctl_done done = {.status = OP_HIT,
		.place = (uint32_t)r->pages,
		.generation = (uint32_t)(r->pages >> 32)};

	if (r->pages || !r->sweep)
		log_info("clear: %llu page(s)%s removed in %llu ms", (unsigned long long)r->pages,
			r->sweep ? " of groups that were cleared in the cluster or have got a time"
			: r->all ? ""
				 : " of a group of namespaces",
			(unsigned long long)((net_now() - r->began_ns) / 1000000));
	if (r->sweep)
		return;
	ctl_later_answer(control->ctl, r->later, &done);
	TAILQ_REMOVE(&clears->waiting, r, next);
	clears->count--;
	free(r);
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
	clears->sweep.phase = CLEAR_DONE;
	TAILQ_INIT(&clears->waiting);
	return clears;
}

/* What is served next; NULL: nothing. */
static struct clear_request *clear_next(struct control *control)
{
	struct clears *clears = control->clears;
	uint32_t version = epochs_version(control) + index_account(control->index)->ends;

	if (!version && !clears)
		return NULL;
	clears = clears_open(control);
	if (!clears || !TAILQ_EMPTY(&clears->waiting))
		return clears ? TAILQ_FIRST(&clears->waiting) : NULL;
	if (clears->sweep.phase == CLEAR_DONE && clears->swept == version)
		return NULL;
	if (clears->sweep.phase == CLEAR_DONE) {
		clears->swept = version;
		clears->sweep = (struct clear_request){.sweep = true, .began_ns = net_now()};
	}
	return &clears->sweep;
}

unsigned clear_turn(struct control *control)
{
	struct clear_request *r;

	if (tier_opens(control) || tier_forgets_many(control) || directory_busy(control))
		return 0;
	r = clear_next(control);
	if (!r)
		return 0;
	clear_request_turn(control, r);
	if (r->phase == CLEAR_DONE)
		clear_finish(control, r);
	return 1;
}

/* A clear of this host. False: too many wait, or no memory. */
static bool clear_add(struct control *control, struct ctl_channel *c, const struct ctl_op *op)
{
	struct clears *clears = clears_open(control);
	struct clear_request *r = NULL;

	if (clears && clears->count < CLEARS_MAX)
		r = calloc(1, sizeof(*r));
	if (!r)
		return false;
	r->later = ctl_later(control->ctl, c, op, 1);
	if (r->later == CTL_NO_ANSWER) {
		free(r);
		return false;
	}
	r->group = op->key;
	r->all = op->count & CLEAR_ALL;
	r->began_ns = net_now();
	clears->count++;
	TAILQ_INSERT_TAIL(&clears->waiting, r, next);
	return true;
}

/*
 * Whether the table of epochs has the group, or room for it in its first half: a clear of a group
 * that has no room is one of all groups.
 */
static bool clear_group_fits(const struct control *control, const struct ctl_op *op)
{
	const struct epochs_shared *shared = &control->status->epochs;
	uint32_t count = epochs_count(shared);

	return count <= EPOCHS_MAX / 2 || epochs_find(shared, count, epoch_group(&op->key)) < count;
}

void clear_serve(struct control *control, struct ctl_channel *c, const struct ctl_op *op,
	uint64_t deadline_ns)
{
	bool cluster = op->count & CLEAR_CLUSTER;
	int may = control->settings->engine_clients_clear;

	if (c->restricted && may != CLIENTS_CLEAR_ALL && cluster &&
		!clear_group_fits(control, op)) {
		client_deny(control, c->id,
			"it clears a group in the cluster, and half of the groups that may have been cleared are used up; only administrators clear further ones");
		ctl_answer_now(control->ctl, c, op, &(struct ctl_done){.status = OP_INVALID});
		return;
	}
	if (c->restricted && may != CLIENTS_CLEAR_ALL &&
		(may == CLIENTS_CLEAR_NO || op->count & CLEAR_ALL)) {
		client_deny(control, c->id,
			may == CLIENTS_CLEAR_NO
				? "it clears pages, which only administrators may (engine.clients_clear = no)"
				: "it clears all pages, which only administrators may (engine.clients_clear = group); name a group");
		ctl_answer_now(control->ctl, c, op, &(struct ctl_done){.status = OP_INVALID});
		return;
	}
	if (!cluster)
		copies_cleared(control);
	if (cluster ? clear_ask(control, c, op, deadline_ns) : clear_add(control, c, op))
		return;
	ctl_answer_now(control->ctl, c, op, &(struct ctl_done){.status = OP_NO_SPACE});
}

void clear_close(struct control *control)
{
	struct clears *clears = control->clears;
	struct clear_request *r;

	clear_asks_close(control);
	if (!clears)
		return;
	while ((r = TAILQ_FIRST(&clears->waiting))) {
		TAILQ_REMOVE(&clears->waiting, r, next);
		free(r);
	}
	free(clears);
	control->clears = NULL;
}
