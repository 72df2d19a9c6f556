/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serves the ctl rings of clients (credits, publish, return, touch, stale, remove) and evicts
 * pages, which makes the room that credits need. The loop's thread only.
 *
 * An op is taken from a ctl ring only if the channel's ctl_done ring has room for its answers and
 * for all answers the channel is already owed. Otherwise it stays in the ctl ring until the client
 * has read answers.
 */
#ifndef CONTROL_PUBLISH_H
#define CONTROL_PUBLISH_H

#include "engine/control/control.h"

#define PUBLISH_BURST 256u /* ops taken from one channel in one turn */
/* slots that one refill makes room for; the rest is made in the next turn */
#define PUBLISH_EVICT_BURST 512u
/* minimum reserve of free slots of a class; it grows to 2 % of the class or to its demand */
#define PUBLISH_AHEAD_MIN 64u
#define PUBLISH_AHEAD_SHARE 8u /* the reserve is at most 1/8 of the slots of the class */
/* longest time to the deadline of a request; a later deadline is shortened to this */
#define PUBLISH_DEADLINE_NS 600000000000ull
#define PUBLISH_RETRY_NS 20000000ull /* longest time between two looks at the waiting requests */
#define PUBLISH_SOON_NS 100000ull    /* shortest time between two looks at the waiting requests */
#define PUBLISH_STALL_NS 1000000ull  /* a full ctl_done ring is looked at again after this time */
/* maximum number of batches of evicted slots that a class counts separately */
#define PUBLISH_RESTS 16u

/* One credit, which is one cell of struct credits. length 0: an empty cell. */
struct credit {
	uint32_t place;
	uint32_t generation;
	uint32_t length; /* page bytes that the client requested the slot for */
};

/* The credits of a channel: an open-addressing hash table by place. */
struct credits {
	struct credit *slot;
	uint32_t room; /* cells of the table, a power of two; 0: nothing allocated yet */
	uint32_t count;
};

/* Makes room for `more` further credits, so that credits_add() need not allocate. 0 or -ENOMEM. */
int credits_reserve(struct credits *credits, uint32_t more);
/* Adds a credit. credits_reserve() must have made room for it. */
void credits_add(struct credits *credits, const struct credit *credit);
/* Returns NULL if the channel does not hold this credit. */
const struct credit *credits_find(
	const struct credits *credits, uint32_t place, uint32_t generation);
/* Removes a credit. Returns false if the channel does not hold it. */
bool credits_take(struct credits *credits, uint32_t place, uint32_t generation, struct credit *ret);
void credits_free(struct credits *credits);

/* One channel as publish.c sees it. Its memory belongs to attach.c. */
struct publish_channel {
	uint32_t id; /* < CHANNELS_MAX */
	struct ring_consumer ctl;
	struct ring_producer done;
	/* header of the channel segment, in which the client may write anything */
	struct channel_header *header;
	int wake;        /* the engine's end of a socket pair: written to wake the client */
	bool no_credits; /* every credit request is refused; see quarantine_allows_credits() */
	/* The fields from here on are written by publish.c only. */
	/* credit of the slot that the client was copying into at the close; length 0: none */
	struct credit kept;
	/* differs from the generation of an earlier channel with the same id */
	uint32_t generation;
	/* answers that the ops taken may still produce; the ctl_done ring has room for them */
	uint32_t owed;
	uint32_t asked; /* credits in `owed` whose requests wait for a free slot */
	struct credits credits;
	/* true: the channel got answers since publish_flush() last ran; its client may sleep */
	bool dirty;
};

/* A CTL_CREDIT op that waits because there was no free slot. */
struct publish_request {
	struct publish_request *next;
	struct publish_channel *channel;
	uint64_t cookie;
	uint64_t deadline_ns;
	uint32_t length;
	uint32_t left; /* slots still to be granted */
};

/* One page size of one pool: the requests that wait for it and the slots evicted for it. */
struct publish_class {
	uint32_t units;   /* page size in units; 0: unused record */
	uint32_t held;    /* credits and pages of this size */
	uint32_t waiting; /* slots that the waiting requests still need */
	/* slots evicted for this class that are in limbo: the sum of rest[].slots */
	uint32_t resting;
	uint32_t pass;   /* number of the last publish_pass() in which pool_take() found no slot */
	uint32_t taken;  /* credits granted and pages published since window_ns */
	uint32_t demand; /* 1.5 times `taken`, converted to one limbo period, when last measured */
	uint64_t window_ns;
	unsigned rests;
	struct {
		uint64_t first_ns; /* time at which the first slot of the batch leaves limbo */
		uint64_t until_ns; /* time at which the last slot of the batch leaves limbo */
		uint32_t slots;
	} rest[PUBLISH_RESTS]; /* batches of evicted slots in limbo, oldest first */
};

struct publish_rail {
	struct publish_class class[CLASSES_MAX];
	struct publish_request *first;
	/* the pointer to set when the next request is queued: `first`, or `next` of the last one */
	struct publish_request **last;
	uint32_t pass; /* number of the current publish_pass() */
	/* a slot may have become free: publish_turn() must look at the waiting requests */
	bool retry;
};

/*
 * What a callback from directory.c needs. directory.c refers to it by number, because the channel
 * may be closed before the callback comes.
 */
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
	uint32_t dirty[CHANNELS_MAX]; /* ids of the channels whose `dirty` is set */
	unsigned dirties;
	uint32_t generation;
	struct publish_rail rail[RAILS_MAX];
	struct publish_answer *answer;
	uint32_t answers, answer_free, answers_used;
	uint64_t credits; /* credits held by all channels */
	uint64_t limbo_ns;
	struct event *timer;
	uint64_t timer_ns; /* when the timer fires; 0: it is not armed */
	/* true: an op stays in a ctl ring because its answers do not fit into the ctl_done ring */
	bool stalled;
};

#define PUBLISH_NO_ANSWER UINT32_MAX

/* Starts to serve a channel. The caller has set id, ctl, done, header and wake. */
void publish_channel_open(struct control *control, struct publish_channel *channel);
/*
 * Stops serving a channel: its credits go back to their pools, its waiting requests and outstanding
 * answers are dropped. The slot that the client's thread is copying into stays reserved until
 * publish_channel_release() returns it.
 */
void publish_channel_close(struct control *control, struct publish_channel *channel);
/*
 * Called after the close. Returns true when no slot is reserved any more: the client has left the
 * slot, or `gone` says that its process has exited. The segment must stay mapped until then.
 */
bool publish_channel_release(struct control *control, struct publish_channel *channel, bool gone);

/* Takes ops from all channels. Returns 0 if there was nothing to do. */
unsigned publish_turn(struct control *control);
/* Wakes the clients whose channels received answers. */
void publish_flush(struct control *control);
/* Frees what publish_close() kept. Called after directory_close(), which may still call back. */
void publish_free(struct publish *publish);

/*
 * Credits held by all channels, requests that wait for room, and operations that directory.c has
 * not called back for.
 */
struct publish_counts {
	uint64_t credits;
	uint64_t waiting;
	uint64_t answers;
};
void publish_counts(const struct control *control, struct publish_counts *ret);

/* ---- shared by publish.c, publish_credit.c and publish_evict.c ------------------------------- */

/* Writes one answer to the channel's ctl_done ring. It was counted in `owed`, so there is room. */
void publish_put(struct publish *p, struct publish_channel *c, const struct ctl_done *done);
/* Serves CTL_CREDIT: grants the slots or queues the request. `owed` includes op->count already. */
void publish_credit(
	struct publish *p, struct publish_channel *c, const struct ctl_op *op, uint64_t now_ns);
/*
 * Looks at the waiting requests of a rail: grants slots, refuses requests past their deadline, and
 * evicts for the rest.
 */
void publish_pass(struct publish *p, unsigned rail, uint64_t now_ns);
/* Drops the waiting requests of a channel. */
void publish_requests_drop(struct publish *p, struct publish_channel *c);
/* Arms the timer for the next time at which a waiting request or a full ring must be looked at. */
void publish_timer(struct publish *p, uint64_t now_ns);

/* Returns the record of this page size, never NULL. */
struct publish_class *publish_class_of(struct publish *p, unsigned rail, uint32_t length);
/* Adds `change` to the number of credits and pages of this page size. */
void publish_hold(struct publish *p, unsigned rail, uint32_t length, int change);
/* Evicts until, after limbo, there are slots for the waiting requests and for the reserve. */
void publish_refill(struct publish *p, unsigned rail, uint32_t length, uint64_t now_ns);
/* Unpublishes one page and sends its slot to limbo. */
void publish_take_away(struct publish *p, const struct page_key *key, uint32_t place,
	uint32_t generation, uint64_t now_ns);

#endif
