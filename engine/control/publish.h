/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What clients tell the control plane through their ctl rings: credits, publish, return, touch,
 * stale, remove; and eviction, which makes the room that credits need. The loop's thread only.
 *
 * A channel is never owed more answers than its ctl_done ring has room for: an op that would exceed
 * that stays in the ring until the client has read.
 */
#ifndef CONTROL_PUBLISH_H
#define CONTROL_PUBLISH_H

#include "engine/control/control.h"

#define PUBLISH_BURST 256u       /* ops taken from one channel in one turn */
#define PUBLISH_EVICT_BURST 512u /* slots that one refill makes room for; the rest the next turn */
#define PUBLISH_AHEAD_MIN 64u    /* slots kept free ahead: this, 2 % of the class or the demand, */
#define PUBLISH_AHEAD_SHARE 8u   /* ... yet never more than one eighth of it */
#define PUBLISH_DEADLINE_NS 600000000000ull /* no client may make us wait longer */
#define PUBLISH_RETRY_NS 20000000ull /* waiting requests are looked at again at least this often */
#define PUBLISH_SOON_NS 100000ull    /* ... and not more often */
#define PUBLISH_STALL_NS 1000000ull  /* a full ctl_done ring is looked at again after this */
#define PUBLISH_RESTS 16u            /* batches of one class in limbo that are told apart */

/* Page slots a channel holds: an open-addressing table by place; length 0: empty. */
struct credit {
	uint32_t place;
	uint32_t generation;
	uint32_t length; /* page bytes the slot was asked for */
};

struct credits {
	struct credit *slot;
	uint32_t room; /* power of two; 0: nothing allocated yet */
	uint32_t count;
};

/* 0 or -ENOMEM: room for `more` further credits without allocating. */
int credits_reserve(struct credits *credits, uint32_t more);
/* credits_reserve() made room. */
void credits_add(struct credits *credits, const struct credit *credit);
/* NULL: the channel holds no such credit. */
const struct credit *credits_find(
	const struct credits *credits, uint32_t place, uint32_t generation);
/* False: there was none. */
bool credits_take(struct credits *credits, uint32_t place, uint32_t generation, struct credit *ret);
void credits_free(struct credits *credits);

/* One client thread as publish.c sees it. Memory is attach.c's. */
struct publish_channel {
	uint32_t id; /* < CHANNELS_MAX */
	struct ring_consumer ctl;
	struct ring_producer done;
	struct channel_header *header; /* of the channel segment: the client may write anything */
	int wake;
	bool no_credits; /* see quarantine_allows_credits() */
	/* publish.c's own */
	struct credit kept;  /* closed while its client copied into this slot; length 0: none */
	uint32_t generation; /* tells this channel from an earlier one of the same id */
	uint32_t owed;       /* answers promised and not yet in the ring */
	uint32_t asked;      /* credits among them that wait for room */
	struct credits credits;
	bool dirty; /* answers were added; the client may have to be woken */
};

/* A CTL_CREDIT that found no room yet. */
struct publish_request {
	struct publish_request *next;
	struct publish_channel *channel;
	uint64_t cookie;
	uint64_t deadline_ns;
	uint32_t length;
	uint32_t left; /* grants still owed */
};

/* One page size of one pool: what waits for it and what has been evicted for it. */
struct publish_class {
	uint32_t units;   /* page size; 0: unused record */
	uint32_t held;    /* credits and pages */
	uint32_t waiting; /* grants that requests wait for */
	uint32_t resting; /* slots evicted for this class, in limbo: the sum of rest[] */
	uint32_t pass;    /* the last pass in which pool_take() found nothing */
	uint32_t taken;   /* slots handed out since window_ns */
	uint32_t demand;  /* slots handed out in one limbo's time, when last measured */
	uint64_t window_ns;
	unsigned rests;
	struct {
		uint64_t first_ns; /* its first slot leaves limbo, ... */
		uint64_t until_ns; /* ... and its last */
		uint32_t slots;
	} rest[PUBLISH_RESTS]; /* oldest first */
};

struct publish_rail {
	struct publish_class class[CLASSES_MAX];
	struct publish_request *first;
	struct publish_request **last; /* where the next one is linked */
	uint32_t pass;
	bool retry; /* something changed: look at the waiting requests in this turn */
};

/* What a callback from directory.c needs; found by number, so the channel may be gone. */
struct publish_answer {
	uint64_t cookie;
	uint32_t channel;
	uint32_t generation;
	uint32_t next_free;
	uint8_t kind;
	bool used;
};

struct publish {
	struct control *control;
	struct publish_channel *channel[CHANNELS_MAX];
	uint32_t dirty[CHANNELS_MAX]; /* ids with `dirty` set */
	unsigned dirties;
	uint32_t generation;
	struct publish_rail rail[RAILS_MAX];
	struct publish_answer *answer;
	uint32_t answers, answer_free, answers_used;
	uint64_t credits; /* of all channels */
	uint64_t limbo_ns;
	struct event *timer;
	uint64_t timer_ns; /* when it fires; 0: not armed */
	bool stalled;      /* some channel has an op that found no room for its answer */
};

#define PUBLISH_NO_ANSWER UINT32_MAX

/* id, rings, header and wake are set. */
void publish_channel_open(struct control *control, struct publish_channel *channel);
/*
 * Credits go back to their pools, waiting requests and outstanding answers are forgotten. The slot
 * that the client's thread is copying into is kept: publish_channel_release() gives it back.
 */
void publish_channel_close(struct control *control, struct publish_channel *channel);
/*
 * After the close: true when no slot is kept any more, because the client has left it or `gone`:
 * its process has exited. The segment stays mapped until then.
 */
bool publish_channel_release(struct control *control, struct publish_channel *channel, bool gone);

/* Takes ops from all channels; returns how much was done. */
unsigned publish_turn(struct control *control);
/* Wakes the clients that were answered. */
void publish_flush(struct control *control);
/* After directory_close(), which may still have called back: frees what publish_close() kept. */
void publish_free(struct publish *publish);

/* Credits held by all channels, requests that wait, answers outstanding. */
struct publish_counts {
	uint64_t credits;
	uint64_t waiting;
	uint64_t answers;
};
void publish_counts(const struct control *control, struct publish_counts *ret);

/* ---- between publish.c, publish_credit.c and publish_evict.c --------------------------------- */

/* One answer into the channel's ring; it was owed, so there is room. */
void publish_put(struct publish *p, struct publish_channel *c, const struct ctl_done *done);
/* CTL_CREDIT: granted at once or queued. `owed` has been raised by op->count. */
void publish_credit(
	struct publish *p, struct publish_channel *c, const struct ctl_op *op, uint64_t now_ns);
/* Looks at the waiting requests of a rail: grants, gives up those past their deadline, evicts. */
void publish_pass(struct publish *p, unsigned rail, uint64_t now_ns);
/* Forgets the waiting requests of a channel. */
void publish_requests_drop(struct publish *p, struct publish_channel *c);
/* (Re-)arms the timer for whatever must happen next. */
void publish_timer(struct publish *p, uint64_t now_ns);

struct publish_class *publish_class_of(struct publish *p, unsigned rail, uint32_t length);
/* The page size has `change` more credits and pages. */
void publish_hold(struct publish *p, unsigned rail, uint32_t length, int change);
/* Evicts so that what waits and the slots kept ahead will be there once limbo has passed. */
void publish_refill(struct publish *p, unsigned rail, uint32_t length, uint64_t now_ns);
/* Unpublishes one page and sends its slot to limbo. */
void publish_take_away(struct publish *p, const struct page_key *key, uint32_t place,
	uint32_t generation, uint64_t now_ns);

#endif
