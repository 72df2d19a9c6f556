/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct pc_batch: the pages of one call, and the queues in which they wait. Each page is a small
 * state machine, struct page_work; page.c draws it. Behind them: what becomes of a page after each
 * step, and the messages about it to the control plane (page.c). Inline is what every page uses
 * several times. Channel thread.
 */
#ifndef CLIENT_BATCH_H
#define CLIENT_BATCH_H

#include <stdalign.h>

#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/page.h"
#include "engine/abi/statistics.h"
#include "engine/client/page/cache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/peercache.h"

struct clear;
struct peek;

/*
 * BATCH_PEEK and BATCH_CLEAR are no calls about pages: their "pages" are the READs of peek_all(),
 * and the requests of pc_clear() and pc_clear_cluster(). BATCH_MATCH asks for all holders of pages
 * (pc_match()), BATCH_PREFETCH has pages brought to this host, and BATCH_PIN has them kept there;
 * they are in no statistics.
 */
enum batch_kind {
	BATCH_GET,
	BATCH_SET,
	BATCH_EXISTS,
	BATCH_REMOVE,
	BATCH_PEEK,
	BATCH_CLEAR,
	BATCH_MATCH,
	BATCH_PREFETCH,
	BATCH_PIN
};

/* State of a page of a batch. The states below PAGE_QUEUES are also queues of the batch. */
enum page_phase {
	PAGE_LOOK = 0, /* waits for room in an op ring, to READ a bucket of its key */
	PAGE_RUN,      /* waits to be planned into a run; then is in one of pc_batch.runs */
	/* waits for room in an op ring, and in staging if its memory is unregistered, to READ the
	 * page by itself */
	PAGE_FETCH,
	PAGE_STORE, /* set: waits for a credit, to copy the page into its slot */
	/* the page READ was stale, or its CRC is due, or a set has found the page; waits for room
	 * in an op ring, to READ the page head. Also the READs of a BATCH_PEEK that wait for
	 * room */
	PAGE_HEAD,
	PAGE_PUBLISH, /* set: the page is copied; waits for room in the ctl ring */
	PAGE_REMOVE,  /* remove, clear: waits for room in the ctl ring */
	/* get, exists: no owner knows the page, or it is on a disk; waits for room in the ctl ring,
	 * to have this host's disk searched, or the page read from that disk. Also the question of
	 * a BATCH_PEEK to the engine of this host */
	PAGE_DISK,
	PAGE_QUEUES,
	PAGE_IN_FLIGHT = PAGE_QUEUES, /* waits for the answer of a rail or of the control plane */
	PAGE_LOOKING,                 /* is in a run of look-ups or heads, open or in flight */
	PAGE_IN_RUN,                  /* is in a run that a rail READs into registered memory */
	PAGE_DONE,
};

enum page_flag {
	PAGE_SECOND = 1,  /* the look-up is at the second of the key's two buckets */
	PAGE_RETRIED = 2, /* the page was looked up again after a wrong location */
	PAGE_SAW_STALE = 4,
	PAGE_SAW_FAILURE = 8,   /* a READ from an owner or from a holder of the page failed */
	PAGE_REGISTERED = 16,   /* every segment of the page lies in registered memory */
	PAGE_SAW_ANSWER = 32,   /* an owner has answered the current look-up of the page */
	PAGE_SAME_PEER = 64,    /* the next bucket is READ from the same peer */
	PAGE_SAW_REFUSAL = 128, /* the rail refused a READ of the page: OP_INVALID */
	PAGE_PROVEN = 128,      /* prefetch: page_work.crc is that of the page */
};

/* What a page has to do with disks. */
enum page_disk {
	DISK_UNASKED = 0,
	DISK_ASKED, /* this host's disk was searched, which suffices */
	/* its holder read it from disk and keeps it in memory until this channel has read it */
	DISK_PROMOTED,
};

/* get: whether the page's bytes are compared with the CRC in its head. */
enum page_verify {
	VERIFY_NOT = 0,
	VERIFY_DUE,  /* from now on, whichever location the page is read from */
	VERIFY_HEAD, /* the bytes of a page of another member are here; its head is READ */
};

struct page_work {
	/* what every page uses, one cache line */
	struct page_key key;
	struct location at; /* location of the page that is being tried */
	uint32_t bytes;
	/* destination of a regular page, as in a run_entry, with the region in the upper bits */
	uint64_t to;
	uint32_t next; /* index of the next page in its queue or in its run */
	uint32_t spare;
	/* pages_init() makes everything from here to the end of the line 0 */
	/* cache_number() of the entry that had the page, if it still does. Before, and while the
	 * page is looked up: cache_index(), which keys_hash() of key.c sets at the end of
	 * pages_init() */
	uint32_t cached;
	uint16_t rails_tried;
	uint16_t pieces_out; /* get: number of ops in flight for this page alone */
	uint16_t peer; /* number of the peer that is being READ; of a run, in its first page */
	uint8_t phase;
	uint8_t flags;
	uint8_t others;
	/* get: the first result of an op of this page that was not OP_HIT, enum op_status.
	 * PAGE_HEAD: OP_INVALID: its run was refused, the head is READ alone; else OP_HIT */
	uint8_t piece_status;
	/* true: the page may be in a run: its segments are of one length and at one distance, and
	 * lie in one registered range */
	bool regular;
	uint8_t run_pages; /* first page of a run in pc_batch.runs: number of its pages */

	/* what look-ups, slices and second attempts use */
	/* locations of the page to try next, the next one last */
	struct location other[PAGE_OTHERS];
	/* pages_init() makes everything from here to `verify` 0 */
	/* location of the page that last turned out to be wrong */
	struct location wrong;
	uint8_t epoch;    /* of the map, its low 8 bits; `asked` belongs to it and to `slot_word` */
	uint8_t asked;    /* bit per owner that was asked */
	uint8_t slices;   /* get: number of slices of this page posted so far */
	uint8_t disk : 2; /* enum page_disk */
	/* get, sized: the READ that was stale has brought all bytes of its room */
	uint8_t landed : 1;
	uint8_t other_length : 1; /* a location of the page had another length than the caller's */
	uint8_t verify : 4;       /* get: enum page_verify */
	union {
		/* first page of a run in pc_batch.runs: first page of the next run */
		uint32_t run_next;
		/* set, after the copy; prefetch, after the READ of the head: CRC32C of the page */
		uint32_t crc;
	};
	/* word of the key's slot on the map, in two halves */
	uint32_t slot_word[2];
};
static_assert(offsetof(struct page_work, other) == 64, "the first line is the hot one");
static_assert(sizeof(struct page_work) == 128, "a power of two");
static_assert(offsetof(struct page_work, cached) == 48, "one store makes the rest of the line 0");
static_assert(REGIONS_MAX / 64 <= 32, "pc_batch.pins has a bit per word");

struct page_queue {
	uint32_t head, tail;
};

struct pc_batch {
	struct pc_channel *channel;
	struct pc_batch *next;
	enum batch_kind kind;
	bool expired; /* the deadline of the batch has passed: nothing new is posted for it */
	/* ANSWER_GRACE_NS has passed, too: only READs into registered memory are still awaited */
	bool abandoned;
	bool gap;  /* set: its pages follow a page that is missing */
	bool head; /* exists: see pc_channel_head() */
	uint32_t count;
	uint32_t left; /* number of pages that are not done */
	/* get: pc_channel.cache_changes before the first page was looked up in the cache: a page
	 * that was found later, or has lost its entry, has changed it */
	uint64_t cache_changes;
	/* get: all pages are of one length and one segment each, in one registered range */
	bool alike;
	/* get, set: an address of GPU memory of the pages; NULL: they have none, and the CPU
	 * copies */
	const void *device;
	uint32_t gpus; /* a bit for each GPU whose memory the pages have, device_at() */
	union {
		const struct pc_page *pages;
		struct peek *peek;   /* BATCH_PEEK */
		struct clear *clear; /* BATCH_CLEAR */
	};
	enum pc_result *results;
	/* get: where the lengths of pages go that may be shorter than their room (sized); NULL:
	 * they may not */
	uint64_t *lengths;
	uint64_t submitted_ns;
	uint64_t deadline_ns;
	uint32_t missed[STATISTICS_RESULTS]; /* pages done with another result than PC_HIT */
	struct page_queue queue[PAGE_QUEUES];
	struct page_queue
		runs; /* planned runs that wait for room on a rail, by their first pages */
	/* bit per registered range that the batch pins, by memory_view.slot; and a bit per word of
	 * `pinned` that has one: the other words are not initialised */
	uint64_t pinned[REGIONS_MAX / 64];
	uint32_t pins;
	uint32_t first_rail;
	uint32_t capacity; /* number of pages that `work` has room for */
	struct page_work work[];
};

/* True for a batch whose pages wait for credits or for room in the ctl ring. */
static inline bool batch_writes(const struct pc_batch *b)
{
	return b->kind == BATCH_SET || b->kind == BATCH_REMOVE || b->kind == BATCH_CLEAR;
}

/* The time, ns, at which the batch must be stepped even if no answer comes. */
static inline uint64_t batch_due_ns(const struct pc_batch *b)
{
	if (!b->expired)
		return b->deadline_ns;
	return b->abandoned ? UINT64_MAX : b->deadline_ns + ANSWER_GRACE_NS;
}

/* limits.c: tells the engine the limits of the session for the group of the channel's namespace. */
void limits_tell(struct pc_channel *ch);

/* ---- a page of a batch: page.c -------------------------------------------------------------- */

/* Adds a page that ended with a result other than PC_HIT to the channel's counters. */
void page_count(struct pc_batch *b, enum pc_result result);
/* The page's location p->at was found: queues a READ of it or of its head, or ends it here. */
void page_found(struct pc_batch *b, uint32_t i);
/* A look-up found no location of the page: every owner of its key was asked. */
void page_absent(struct pc_batch *b, uint32_t i);
/* Looks the page up, without the cache. */
void page_look_again(struct pc_batch *b, uint32_t i);
/* The location in use is stale: reports the directory entry, and is wrong. */
void page_stale(struct pc_batch *b, uint32_t i);
/*
 * The page at the location in use has another length than the caller expects, `stored` or, if it
 * is not known, 0. Another location may have it: two hosts that set at the same time, or a set of a
 * page that was on a disk only, store both. A get that is sized expects no more than its room.
 */
void page_length_differs(struct pc_batch *b, uint32_t i, uint32_t stored);
/* get, sized: the page at the location in use has this length, less than its room. */
static inline void page_shorter(struct page_work *p, uint32_t length)
{
	p->bytes = length;
	p->regular = false; /* no run: its segments are those of its room */
}
/* The holder of the location in use could not be asked: nothing is known of the page there. */
void page_unreached(struct pc_batch *b, uint32_t i);
/* Ends a page that the engine, or the driver of a GPU, refused, with PC_INVALID. */
void page_refused(struct pc_batch *b, uint32_t i);
/* set: the page at p->at was there, as long as `length`, after the call had begun. */
void page_stored(struct pc_batch *b, uint32_t i, uint32_t length);
/* hosts of a key, as far as its buckets tell, from which on it is not copied */
#define PREFETCH_HOLDERS 4u
/* prefetch: the page of another host at p->at has this head: requests a copy. */
void page_bring(struct pc_batch *b, uint32_t i, const struct page_head *head);
/* The page has other bytes than its head says: reports it, and the location is wrong. */
void page_corrupt(struct pc_batch *b, uint32_t i);
/* The page has no CRC, and all are compared: it is no hit at this location. */
void page_unproven(struct pc_batch *b, uint32_t i);
/* The page of another host is a hit, and was compared if that was due. */
void page_hit(struct pc_batch *b, uint32_t i);

/*
 * The i-th page of a batch, for a loop over pages. What is assumed is true; it makes the compiler
 * keep the address in a register, instead of computing it for each access.
 */
static inline struct page_work *page_at(struct pc_batch *b, uint32_t i)
{
	return __builtin_assume_aligned(&b->work[i], alignof(struct page_work));
}

static inline void page_done(struct pc_batch *b, uint32_t i, enum pc_result result)
{
	b->work[i].phase = PAGE_DONE;
	b->results[i] = result;
	b->left--;
	b->channel->moves++;
	if (unlikely(result != PC_HIT))
		page_count(b, result);
}

/*
 * True if a page in this phase waits for room on a rail. enum page_phase lists what the others wait
 * for.
 */
static inline bool waits_for_room(unsigned phase)
{
	return phase == PAGE_FETCH;
}

static inline void page_queue(struct pc_batch *b, uint32_t i, enum page_phase phase)
{
	struct page_queue *q = &b->queue[phase];

	b->work[i].phase = (uint8_t)phase;
	if (unlikely(b->expired)) {
		page_done(b, i, PC_TIMEOUT);
		return;
	}
	b->work[i].next = CLIENT_NONE;
	if (q->head == CLIENT_NONE)
		q->head = i;
	else
		b->work[q->tail].next = i;
	q->tail = i;
	b->channel->waits[waits_for_room(phase)]++;
	b->channel->moves++;
}

static inline bool page_waits(const struct pc_batch *b, enum page_phase phase)
{
	return b->queue[phase].head != CLIENT_NONE;
}

/*
 * Removes and returns the first page of a queue; CLIENT_NONE: empty. page_requeue() puts it back in
 * front.
 */
static inline uint32_t page_unqueue(struct pc_batch *b, enum page_phase phase)
{
	struct page_queue *q = &b->queue[phase];
	uint32_t i = q->head;

	if (i == CLIENT_NONE)
		return i;
	q->head = b->work[i].next;
	b->channel->waits[waits_for_room(phase)]--;
	return i;
}

static inline void page_requeue(struct pc_batch *b, uint32_t i)
{
	struct page_queue *q = &b->queue[b->work[i].phase];

	b->work[i].next = q->head;
	if (q->head == CLIENT_NONE)
		q->tail = i;
	q->head = i;
	b->channel->waits[waits_for_room(b->work[i].phase)]++;
}

/* Removes the first waiting run. Returns its first page; CLIENT_NONE: none. */
static inline uint32_t run_unqueue(struct pc_batch *b)
{
	uint32_t head = b->runs.head;

	if (head != CLIENT_NONE) {
		b->runs.head = b->work[head].run_next;
		b->channel->waits[1]--;
	}
	return head;
}

static inline void page_in_flight(struct pc_batch *b, uint32_t i)
{
	b->work[i].phase = PAGE_IN_FLIGHT;
	b->channel->moves++;
}

/* The phase in which a page waits to be READ from another host. */
static inline enum page_phase page_read_phase(const struct page_work *p)
{
	return likely(p->regular) ? PAGE_RUN : PAGE_FETCH;
}

/*
 * The deadline of one attempt that others may follow, ns: it gets 1 / `parts` of the time to the
 * batch's deadline.
 */
static inline uint64_t page_attempt_ns(const struct pc_batch *b, unsigned parts)
{
	struct pc_channel *ch = b->channel;
	uint64_t ns = ch->now_ns < b->deadline_ns ? b->deadline_ns - ch->now_ns : 0;

	if (parts > 1)
		ns /= parts;
	return ch->now_ns + (ns < SHARE_NS_MAX ? ns : SHARE_NS_MAX);
}

/* READs of pages of the peer, `bytes` in all, were answered: pc_channel.peer_load. */
static inline void peer_load_add(const struct pc_batch *b, uint32_t peer, uint32_t bytes)
{
	struct pc_channel *ch = b->channel;

	ch->peer_load_run = (ch->now_ns - b->submitted_ns) * bytes >> 10;
	ch->peer_load[peer] += ch->peer_load_run;
}

/* ---- segments -------------------------------------------------------------------------------- */

/* Distance between the starts of the segments of a regular page; 0: it has only one. */
static inline uint64_t page_stride(const struct pc_page *page)
{
	const struct pc_segment *s = page->segments;

	return page->segment_count > 1 ? (uintptr_t)s[1].base - (uintptr_t)s[0].base : 0;
}

/* Bytes from the start of the first segment of a regular page to the end of the last one. */
static inline uint64_t page_span(const struct pc_page *page)
{
	return page_stride(page) * (page->segment_count - 1) + page->segments->bytes;
}

/* ---- comparing with the CRC ------------------------------------------------------------------ */

/* Chooses the first hit that is compared. */
void verify_open(struct pc_channel *ch);
/*
 * The page is the one to compare: makes it VERIFY_DUE, so that no run contains it any more, and
 * chooses the distance to the next one.
 */
void verify_choose(struct pc_channel *ch, struct page_work *p);

/* True if this hit is one to compare; the page is then VERIFY_DUE. */
static inline bool verify_due(struct pc_channel *ch, struct page_work *p)
{
	if (likely(!ch->verify_left || --ch->verify_left))
		return p->verify != VERIFY_NOT;
	verify_choose(ch, p);
	return true;
}

/* ---- pages of this host ---------------------------------------------------------------------- */

/*
 * Copies a page of this host. Returns PC_HIT, PC_STALE, PC_MISS: all are compared, and it has no
 * CRC, PC_INVALID: the stored page has another length, or PC_UNREACHABLE: the driver of a GPU
 * failed. *ret_corrupt: PC_STALE, for the CRC of the head.
 */
enum pc_result local_get(struct pc_batch *b, const struct page_work *p, const struct pc_page *page,
	bool *ret_corrupt);
/* Returns the length of the page that is at `at` now, bytes; 0: it is not there. */
uint32_t local_length(const struct client_session *session, const struct page_key *key,
	const struct location *at);

/* ---- messages to the control plane without an answer ----------------------------------------- */

/*
 * notice_touch() calls it. `e`: the page's entry in the location cache, or NULL: the cache does not
 * have the page.
 */
void notice_touch_due(
	struct pc_channel *ch, const struct page_work *p, struct cache_entry *e, uint32_t now_ms);
/* Submits CTL_TOUCHES_MAX or fewer touches that were collected; there is room for them. */
void notice_touches_submit(struct pc_channel *ch);
void notice_touches_end(struct pc_channel *ch); /* submits the touches that were collected */

/*
 * The page was read: confirms its location in the cache, and tells the control plane at most once
 * in TOUCH_NS. `now_ms`: CLOCK_MONOTONIC.
 */
static inline void notice_touch(struct pc_channel *ch, const struct page_work *p, uint32_t now_ms)
{
	struct cache_entry *e = cache_again(ch, p->cached, &p->key, &p->at, now_ms);

	if (unlikely(!e || cache_touch_due(e, now_ms)))
		notice_touch_due(ch, p, e, now_ms);
}

/* The time of a touch as cache_entry.touched_ms has it: never 0. */
static inline uint32_t notice_stamp(uint32_t now_ms)
{
	return now_ms + !now_ms;
}

#endif
