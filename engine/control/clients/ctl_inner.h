/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ctl rings and credits. For ctl*.c, clear*.c and client_channel.c only. Runs on the
 * control plane's thread only.
 *
 *   ctl.c         ops of clients: taken, served, answered; publish, return, touch, stale, remove
 *   ctl_credit.c  page slots handed to clients in advance, and requests that wait for them
 *   groups.c      CTL_LIMITS: quotas of groups of namespaces, and how long their pages stay; pins
 *   clear.c       CTL_CLEAR: removes the pages of a group of namespaces
 *   clear_ask.c   CTL_CLEAR of the cluster: raises epochs
 *
 * pages/evict.c makes the room that credits need.
 *
 * An op is taken from a ctl ring only if the channel's ctl_done ring has room for its answers and
 * for all answers the channel is already owed. Otherwise it stays in the ctl ring until the client
 * has read answers.
 */
#ifndef CONTROL_CTL_INNER_H
#define CONTROL_CTL_INNER_H

#include "engine/control/base/control.h"
#include "engine/control/clients/clients.h"

/* ring entries taken from one channel's ctl ring in one turn, and the rest of a CTL_PUBLISH */
#define CTL_BURST 256u
/* longest time between two checks of the waiting credit requests, in ns */
#define CTL_RETRY_NS 20000000ull
/* shortest time between two checks of the waiting credit requests, in ns */
#define CTL_SOON_NS 100000ull
/* time after which a full ctl_done ring is checked again, in ns */
#define CTL_STALL_NS 1000000ull

#define CLEARS_MAX 1024u   /* CTL_CLEAR requests that wait; further ones are refused */
#define CLEAR_ASKS_MAX 16u /* of them: of the cluster */
#define CLEAR_BURST 256u   /* pages that a turn of a clear looks at */

/* The credits of one channel: an open-addressing hash table with the place as the key. */
struct credits {
	struct credit *slot;
	uint32_t room; /* number of cells of the table, a power of two; 0: nothing allocated yet */
	uint32_t count;
	uint64_t bytes[PLACE_RAILS]; /* of the pages, by rail */
};

/* One channel as ctl*.c sees it. Its memory belongs to client_channel.c. */
struct ctl_channel {
	uint32_t id; /* number of the channel, < CHANNELS_MAX */
	struct ring_consumer ops;
	struct ring_producer done;
	/* header of the channel's shared segment, in which the client may write anything */
	struct channel_header *header;
	int wake; /* the engine's end of a socket pair: a byte written to it wakes the client */
	/* true: every credit request is refused; see quarantine_allows_credits() */
	bool no_credits;
	bool restricted; /* the process does not administer the engine */
	uint32_t user;
	bool others;    /* the settings let other users attach */
	uint32_t owner; /* of the slots granted to the channel: warm_owner_new() */
	/* The fields from here on are written by ctl.c and ctl_credit.c only. */
	/*
	 * credit of the slot that the client was copying into when the channel was closed; length
	 * 0: none
	 */
	struct credit kept;
	/* differs from the generation of an earlier channel with the same number */
	uint32_t generation;
	/*
	 * number of answers that the ops taken may still produce, one for each slot and page; the
	 * ctl_done ring has room for them
	 */
	uint32_t owed;
	/* group of the last request, which has the credits, as far as is known */
	uint32_t group;
	uint32_t asked; /* number of slots that the waiting requests of this channel still need */
	uint64_t asked_bytes[RAILS_MAX];
	/*
	 * the batch of the last CTL_PUBLISH, which its deadline names, and the last page of it in
	 * each rail's pool, by place; UINT32_MAX: none
	 */
	uint64_t batch_deadline_ns;
	uint32_t batches;
	uint32_t batch_last[RAILS_MAX];
	struct credits credits;
	/*
	 * true: answers were written for the channel since ctl_flush() last ran, and its client
	 * may sleep
	 */
	bool dirty;
};

/* A credit request (op CTL_CREDIT) that waits because there was no free slot. */
struct ctl_request {
	struct ctl_request *next;
	struct ctl_channel *channel;
	uint64_t cookie;
	uint64_t deadline_ns;
	/* counts `left` in `waiting`; evict_class_of() may name another record meanwhile */
	struct evict_class *class;
	uint32_t length;
	uint32_t left; /* number of slots still to be granted */
	bool own;      /* its group gives pages for it: no reserve is needed */
};

/*
 * An op that is answered later: what a callback of updates_answer() needs. The directory refers to
 * it by number, because the channel may be closed before the callback comes.
 */
struct ctl_answer {
	uint64_t cookie;
	uint32_t channel;
	uint32_t generation;
	uint32_t next_free;
	uint32_t waiting; /* bit per page of the op that has not ended; 0: this record is free */
	uint32_t ended[OP_STATUS_COUNT]; /* the pages that have ended, by their status */
	uint8_t kind;
};

/* A page of an op that is answered later: the number of ctl_later() and of the page. */
#define CTL_PAGE_BITS 5u
static_assert(1u << CTL_PAGE_BITS == CTL_PAGES_MAX, "a page's number has as many bits");

/* ---- ctl.c ----------------------------------------------------------------------------------- */

/* Starts to serve a channel. The caller has set the channel's id, ops, done, header and wake. */
void ctl_channel_open(struct control *control, struct ctl_channel *channel);
/*
 * Stops serving a channel: its credits go back to their pools, its waiting requests and outstanding
 * answers are dropped. The slot that the client's thread is copying into stays reserved until
 * ctl_channel_release() returns it.
 */
void ctl_channel_close(struct control *control, struct ctl_channel *channel);
/*
 * Called after the close. Returns true when no slot is reserved any more: the client has left the
 * slot, or `gone` says that its process has exited. The segment must stay mapped until then.
 */
bool ctl_channel_release(struct control *control, struct ctl_channel *channel, bool gone);

/*
 * Writes one answer to the channel's ctl_done ring. There is room for it, because it was counted in
 * `owed`. `told`: how many of those it settles, the slots or pages that it tells of.
 */
void ctl_answer_write(
	struct ctl *ctl, struct ctl_channel *c, const struct ctl_done *done, uint32_t told);

/* ---- ctl_credit.c ---------------------------------------------------------------------------- */

/*
 * Makes room for `more` further credits, so that credits_add() need not allocate. Returns 0 or
 * -ENOMEM.
 */
int credits_reserve(struct credits *credits, uint32_t more);
/* Adds a credit. credits_reserve() must have made room for it. */
void credits_add(struct credits *credits, const struct credit *credit);
/* Returns the credit of this place and generation, or NULL if the channel does not hold it. */
const struct credit *credits_find(
	const struct credits *credits, uint32_t place, uint32_t generation);
/* Removes a credit and returns it. False: the channel does not hold that credit. */
bool credits_take(struct credits *credits, uint32_t place, uint32_t generation, struct credit *ret);
void credits_free(struct credits *credits);

/*
 * Serves the op CTL_CREDIT: grants the slots or queues the request. c->owed includes op->count
 * already.
 */
void ctl_credit(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op, uint64_t now_ns);
/*
 * Looks at the waiting requests of a rail: grants slots, refuses requests past their deadline, and
 * evicts for the rest.
 */
void ctl_pass(struct ctl *ctl, unsigned rail, uint64_t now_ns);
/* Drops the waiting credit requests of a channel. */
void ctl_requests_drop(struct ctl *ctl, struct ctl_channel *c);

/* ---- groups.c -------------------------------------------------------------------------------- */

/* Serves the op CTL_PROMOTE with PROMOTE_PIN. */
enum op_status pin_serve(struct control *control, const struct ctl_op *op);
/* Serves the op CTL_LIMITS. */
void groups_serve(struct control *control, struct ctl_channel *c, const struct ctl_op *op);

/* ---- clear.c --------------------------------------------------------------------------------- */

/*
 * Takes the op CTL_CLEAR. Of this host: served in parts by clear_turn(), and answered at its end.
 * Of the cluster: clear_ask().
 */
void clear_serve(struct control *control, struct ctl_channel *c, const struct ctl_op *op,
	uint64_t deadline_ns);

/* ---- clear_ask.c ----------------------------------------------------------------------------- */

/* Takes the op CTL_CLEAR of the cluster. False: too many wait, or no memory. */
bool clear_ask(struct control *control, struct ctl_channel *c, const struct ctl_op *op,
	uint64_t deadline_ns);
void clear_asks_close(struct control *control);

#endif
