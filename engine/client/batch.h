/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct pc_batch: the pages of one call, and the queues in which they wait. Each page is a small
 * state machine; page.c draws it. Channel thread.
 */
#ifndef CLIENT_BATCH_H
#define CLIENT_BATCH_H

#include <stdalign.h>

#include "config/limits.h"
#include "engine/abi/page.h"
#include "engine/abi/statistics.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/peercache.h"

struct clear;
struct peek;

/*
 * BATCH_PEEK and BATCH_CLEAR are no calls about pages: their "pages" are the READs of peek_all(),
 * and the requests of pc_clear() and pc_clear_cluster().
 */
enum batch_kind { BATCH_GET, BATCH_SET, BATCH_EXISTS, BATCH_REMOVE, BATCH_PEEK, BATCH_CLEAR };

/* State of a page of a batch. The states below PAGE_QUEUES are also queues of the batch. */
enum page_phase {
	PAGE_LOOK = 0, /* waits for room in an op ring, to READ a bucket of its key */
	PAGE_RUN,      /* waits to be planned into a run; then is in one of pc_batch.runs */
	PAGE_FETCH,    /* waits for room in an op ring, to READ the page by itself */
	PAGE_STAGE,    /* waits for room in an op ring and for staging memory, to READ the page */
	PAGE_STORE,    /* set: waits for a credit, to copy the page into its slot */
	/* the page READ was stale, or its CRC is due, or a set has found the page; waits for room
	 * in an op ring, to READ the page head. Also the READs of a BATCH_PEEK that wait for
	 * room */
	PAGE_HEAD,
	PAGE_PUBLISH, /* set: the page is copied; waits for room in the ctl ring */
	PAGE_REMOVE,  /* remove: waits for room in the ctl ring */
	/* get, exists: no owner knows the page, or it is on a disk; waits for room in the ctl ring,
	 * to have this host's disk searched, or the page read from that disk. Also the question of
	 * a BATCH_PEEK to the engine of this host */
	PAGE_DISK,
	PAGE_QUEUES,
	PAGE_IN_FLIGHT = PAGE_QUEUES, /* waits for the answer of a rail or of the control plane */
	PAGE_LOOKING,                 /* is in a run of look-ups or heads, open or in flight */
	PAGE_IN_RUN,                  /* is in a run that a rail READs into registered memory */
	/* set: waits for an earlier page of the batch that has the same key */
	PAGE_TWIN,
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
	/* index of the request in flight for the page; of a sliced page, the latest one. Not set
	 * for a page in a run of pages, look-ups or heads */
	uint32_t request;
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
	uint8_t epoch; /* of the map, its low 8 bits; `asked` belongs to it and to `slot_word` */
	/* bit per owner that was asked: the owners, from bit REPLICAS_MAX on the former ones */
	uint8_t asked;
	uint8_t slices;           /* get: number of slices of this page posted so far */
	uint8_t disk : 3;         /* enum page_disk */
	uint8_t other_length : 1; /* a location of the page had another length than the caller's */
	uint8_t verify : 4;       /* get: enum page_verify */
	union {
		/* set, state PAGE_TWIN: index of the earlier page whose result this page gets */
		uint32_t twin;
		/* first page of a run in pc_batch.runs: first page of the next run */
		uint32_t run_next;
		/* set, after the copy: CRC32C of the page */
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
	uint32_t count;
	uint32_t left;  /* number of pages that are not done */
	uint32_t twins; /* number of pages that are in state PAGE_TWIN */
	/* get: pc_channel.cache_changes before the first page was looked up in the cache: a page
	 * that was found later, or has lost its entry, has changed it */
	uint64_t cache_changes;
	/* get: all pages are of one length and one segment each, in one registered range */
	bool alike;
	union {
		const struct pc_page *pages;
		struct peek *peek;   /* BATCH_PEEK */
		struct clear *clear; /* BATCH_CLEAR */
	};
	enum pc_result *results;
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
	/* set: hash table that twins_find() uses, 4 * capacity entries behind `work` */
	uint32_t *twin_table;
	struct page_work work[];
};

/* Adds a batch to the channel; the caller sets kind, pages and times. NULL: no memory. */
struct pc_batch *batch_make(struct pc_channel *ch, uint32_t count);
void batch_free(struct pc_batch *b);
/* Checks the caller's arguments for the pages of a batch. Invalid pages are done. */
void pages_init(struct pc_batch *b);
/* Starts the next step of each page that is queued, as far as there is room. */
void batch_step(struct pc_batch *b);
void batch_gone(struct pc_batch *b, enum pc_result result);

/* True for a batch whose pages wait for credits, for one another or for room in the ctl ring. */
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

#endif
