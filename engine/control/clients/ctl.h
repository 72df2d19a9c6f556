/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serves the ctl rings of clients (credits, publish, return, touch, stale, remove) and evicts
 * pages, which makes the room that credits need. Runs on the control plane's thread only.
 *
 * An op is taken from a ctl ring only if the channel's ctl_done ring has room for its answers and
 * for all answers the channel is already owed. Otherwise it stays in the ctl ring until the client
 * has read answers.
 */
#ifndef CONTROL_CTL_H
#define CONTROL_CTL_H

#include "engine/control/base/control.h"

/* ring entries taken from one channel's ctl ring in one turn, and the rest of a CTL_PUBLISH */
#define CTL_BURST 256u
/*
 * maximum number of slots that one call of ctl_refill() makes room for; the next turn continues
 */
#define CTL_EVICT_BURST 512u
/*
 * The reserve of free slots of a size class without demand: 2 % of the class, at least this number,
 * and at most 1/CTL_AHEAD_SHARE of the class.
 */
#define CTL_AHEAD_MIN 64u
#define CTL_AHEAD_SHARE 8u
/*
 * Once a credit request has waited, demand enlarges the reserve up to 1/CTL_DEMAND_SHARE of the
 * class. An evicted slot rests before it is reused, so a class that is filled within two limbo
 * times needs half of its slots for that. A class of fewer than CTL_DEMAND_SLOTS_MIN slots is
 * not halved: it rather gets chunks of other classes.
 */
#define CTL_DEMAND_SHARE 2u
#define CTL_DEMAND_SLOTS_MIN 32u
/*
 * maximum time, in ns, to the deadline of a credit request; a later deadline is shortened to this
 */
#define CTL_DEADLINE_NS 600000000000ull
/* longest time between two checks of the waiting credit requests, in ns */
#define CTL_RETRY_NS 20000000ull
/* shortest time between two checks of the waiting credit requests, in ns */
#define CTL_SOON_NS 100000ull
/* time after which a full ctl_done ring is checked again, in ns */
#define CTL_STALL_NS 1000000ull
/* maximum number of batches of evicted slots in limbo that a page size counts separately */
#define CTL_RESTS 16u

/* One credit, a cell of the hash table struct credits. length 0: the cell is empty. */
struct credit {
	uint32_t place;
	uint32_t generation;
	uint32_t length; /* length of the page for which the client requested the slot */
};

/* The credits of one channel: an open-addressing hash table with the place as the key. */
struct credits {
	struct credit *slot;
	uint32_t room; /* number of cells of the table, a power of two; 0: nothing allocated yet */
	uint32_t count;
};

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
	uint32_t owner; /* of the slots granted to the channel: warm_owner_new() */
	/* The fields from here on are written by ctl.c only. */
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
	uint32_t asked; /* number of slots that the waiting requests of this channel still need */
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
	/* counts `left` in `waiting`; ctl_class_of() may name another record meanwhile */
	struct ctl_class *class;
	uint32_t length;
	uint32_t left; /* number of slots still to be granted */
};

/*
 * One page size of one pool: how many slots its credit requests wait for, and the slots evicted for
 * it.
 */
struct ctl_class {
	uint32_t units;   /* page size in units; 0: this record is unused */
	uint32_t held;    /* number of credits and pages of this size */
	uint32_t waiting; /* number of slots that the waiting credit requests still need */
	/* number of slots evicted for this page size that are in limbo: the sum of rest[].slots */
	uint32_t resting;
	/* number of the last ctl_pass() in which pool_take() found no slot of this size */
	uint32_t pass;
	uint32_t taken; /* number of credits granted since window_ns */
	/*
	 * slots expected to be needed in one limbo period: 1.5 times the rate that `taken` showed
	 * last, 3 times if requests waited, or more if it was higher before
	 */
	uint32_t demand;
	uint64_t window_ns;
	/*
	 * true: a credit request had to wait since the demand last was below the smallest reserve.
	 * Until then the demand evicts nothing: a pool that has room is filled first.
	 */
	bool waited;
	bool slowed; /* a credit request waited since window_ns */
	unsigned rests;
	struct {
		/* times of clock_raw_ns() at which the first and the last slot leave limbo */
		uint64_t first_ns, until_ns;
		uint32_t slots;
	} rest[CTL_RESTS]; /* batches of evicted slots in limbo, oldest first */
};

struct ctl_rail {
	struct ctl_class class[CLASSES_MAX];
	struct ctl_request *first;
	/*
	 * the pointer to set when the next credit request is queued: &first, or &next of the last
	 * request
	 */
	struct ctl_request **last;
	uint32_t pass; /* number of the current ctl_pass() of this pool */
	/* true: a slot may have become free, so ctl_turn() must look at the waiting requests */
	bool retry;
};

/*
 * An op that is answered later: what a callback from directory.c needs. directory.c refers to it by
 * number, because the channel may be closed before the callback comes.
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

struct ctl {
	struct control *control;
	struct ctl_channel *channel[CHANNELS_MAX];
	unsigned channels_end;        /* no channel is open from this number on */
	uint32_t dirty[CHANNELS_MAX]; /* numbers of the channels whose `dirty` is set */
	unsigned dirties;
	uint32_t generation;
	struct ctl_rail rail[RAILS_MAX];
	struct ctl_answer *answer;
	uint32_t answers, answer_free, answers_used;
	uint64_t credits; /* number of credits held by all channels */
	uint64_t limbo_ns;
	uint64_t stored_ns; /* time of the last credit request or publish */
	struct event *timer;
	uint64_t timer_ns; /* time at which the timer fires; 0: it is not armed */
	/* true: an op stays in a ctl ring because its answers do not fit the ctl_done ring */
	bool stalled;
};

#define CTL_NO_ANSWER UINT32_MAX
/* A page of an op that is answered later: the number of ctl_later() and of the page. */
#define CTL_PAGE_BITS 5u
static_assert(1u << CTL_PAGE_BITS == CTL_PAGES_MAX, "a page's number has as many bits");

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
 * Returns a slot to its pool that an earlier engine granted and warm_begin() counted as a credit,
 * once nothing can write to it.
 */
void ctl_credit_return(struct control *control, const struct credit *credit);
/* Takes ops from the ctl rings of all channels. Returns 0 if there was nothing to do. */
unsigned ctl_turn(struct control *control);
/* Time of the last credit request or publish of a client, of clock_now_ns(). */
uint64_t ctl_stored_ns(const struct control *control);
/* Wakes the clients whose channels received answers since the last call. */
void ctl_flush(struct control *control);
/* Frees what ctl_close() kept. Called after directory_close(), which may still call back. */
void ctl_free(struct ctl *ctl);

/*
 * Credits held by all channels, requests that wait for room, and operations that directory.c has
 * not called back for.
 */
struct ctl_counts {
	uint64_t credits;
	uint64_t waiting;
	uint64_t answers;
};
void ctl_counts(const struct control *control, struct ctl_counts *ret);

int ctl_open(struct control *control);
void ctl_close(struct control *control);

/*
 * ---- called by directory*.c and tier*.c
 * ----------------------------------------------------------
 */

/* Another engine has read this engine's page. */
void ctl_touched(struct control *control, uint32_t place);
/*
 * The key of the page of that generation at `place` in this engine's memory. False: there is none.
 * `place` may be any number.
 */
bool ctl_page_at(
	struct control *control, uint32_t place, uint32_t generation, struct page_key *ret_key);
/* Whether a removal on this host outlasts a crash. */
enum forget_state {
	FORGET_DURABLE,  /* it does; always so without disk.paths */
	FORGET_LATER,    /* its tombstone is being written: the caller's `done` tells the result */
	FORGET_VOLATILE, /* it does not: no path of the disk is in service, or no memory */
};

/*
 * What ctl_forget() calls after FORGET_LATER: exactly once, at the latest when the tier is
 * closed, never from inside ctl_forget(). `durable` false is FORGET_VOLATILE.
 */
struct forget_wait {
	void (*done)(struct control *control, void *context, uint32_t cookie, bool durable);
	void *context;
	uint32_t cookie;
};
/*
 * A client of this or of another node wants the key deleted. Retires the page, of which the caller
 * removes the directory entries; it is not found here from here on. *ret_had: this node had it.
 * `wait` is copied; NULL: the caller does not wait.
 */
enum forget_state ctl_forget(struct control *control, const struct page_key *key,
	const struct forget_wait *wait, bool *ret_had);

/* ---- shared by ctl*.c -------------------------------------------------------------------- */

/*
 * Writes one answer to the channel's ctl_done ring. There is room for it, because it was counted in
 * `owed`. `told`: how many of those it settles, the slots or pages that it tells of.
 */
void ctl_put(struct ctl *ctl, struct ctl_channel *c, const struct ctl_done *done, uint32_t told);
/* Answers an op now: `done` needs neither cookie nor kind. */
void ctl_answer(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op,
	const struct ctl_done *done);
/*
 * The op is answered later. Returns the number of its first page; the others, if it has `pages` > 1
 * of them, follow. Each is to be ended once, by ctl_later_answer() if the op has one. Pages of a
 * CTL_PUBLISH are ended one by one, and the last one sends the answers. CTL_NO_ANSWER: no memory.
 * The channel may close meanwhile.
 */
uint32_t ctl_later(
	struct ctl *ctl, const struct ctl_channel *c, const struct ctl_op *op, uint32_t pages);
void ctl_later_answer(struct ctl *ctl, uint32_t later, const struct ctl_done *done);
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
/* Returns the record of this rail's requests and slots for this page size, never NULL. */
struct ctl_class *ctl_class_of(struct ctl *ctl, unsigned rail, uint32_t length);
/*
 * Adds `change` to the number of credits and pages of this page size. A credit that becomes a page
 * is not taken a second time.
 */
void ctl_hold(struct ctl *ctl, unsigned rail, uint32_t length, int change);
/*
 * Evicts pages until, after limbo, there are slots for the waiting credit requests and for the
 * reserve.
 */
void ctl_refill(struct ctl *ctl, unsigned rail, uint32_t length, uint64_t now_ns);
/* Takes one page out of the index, and sends its slot to limbo. Its entries are the caller's. */
void ctl_retire(struct ctl *ctl, const struct page_key *key, uint32_t place, uint32_t generation);
/* The same, and removes its entries from the directory. */
void ctl_take_away(
	struct ctl *ctl, const struct page_key *key, uint32_t place, uint32_t generation);

#endif
