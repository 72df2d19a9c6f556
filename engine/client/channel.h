/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structs of a channel and of its batches: all that one thread owns. Included by client.h
 * alone.
 */
#ifndef CLIENT_CHANNEL_H
#define CLIENT_CHANNEL_H

/* ---- one channel ---------------------------------------------------------------------------- */

/* Where a page is said to be. ref 0: nowhere. */
struct location {
	uint32_t ref;
	uint32_t place;
	uint32_t generation;
};

struct cache_entry {
	struct page_key key;
	struct location at;
	uint32_t seen_ms;    /* looked up or read */
	uint32_t touched_ms; /* reported as read; 0: never */
};

struct map_pair {
	struct map_view current;
	struct map_view previous;
};

enum request_kind {
	REQUEST_FREE = 0,
	REQUEST_LOOK,    /* rail: a bucket */
	REQUEST_HEAD,    /* rail: a page head */
	REQUEST_FETCH,   /* rail: a page */
	REQUEST_CREDIT,  /* control */
	REQUEST_PUBLISH, /* control */
	REQUEST_REMOVE,  /* control */
};

/* Something in flight. Its cookie is generation << 32 | index. */
struct request {
	struct pc_batch *batch; /* NULL: nobody waits for it any more */
	uint32_t page;
	uint32_t generation;
	uint32_t bytes; /* FETCH: counted in the rail's bytes; CREDIT: page bytes asked for */
	uint32_t hold;  /* LOOK, HEAD: scratch slot; FETCH: staging block, or CLIENT_NONE */
	uint32_t next;  /* free list */
	uint8_t kind;
	uint8_t rail;
	uint16_t left; /* CREDIT: answers still to come */
};

struct channel_rail {
	struct ring_producer ops;
	struct ring_consumer done;
	uint32_t unpublished; /* slots written, not yet shown to the rail */
	uint32_t in_flight;
	uint64_t bytes;         /* of pages, on their way */
	uint64_t weight;        /* the fastest rail's bandwidth over its own, << WEIGHT_SHIFT */
	uint64_t credit[2];     /* bytes it may have on their way; [1]: of pages above a slice */
	uint64_t rest_until_ns; /* failed lately: used last */
	/* its bandwidth: stripe.c */
	uint64_t weighed, weighed_max; /* what weight and credit were reckoned from */
	uint64_t rate;                 /* bytes per 1024 ns; 0: not known */
	uint64_t moved;                /* since the last sample ... */
	uint64_t busy_ns;              /* ... in so much time, up to since_ns */
	uint64_t since_ns;             /* bytes are on their way without a break since */
	uint32_t bursts;               /* times it began to have something to move */
	bool used;                     /* since another rail's last sample */
};

struct staging_block {
	uint32_t offset; /* in the staging region */
	uint32_t bytes;
	bool freed;
};

/* Blocks in the order they were taken; space comes back in that order. */
struct staging {
	unsigned char *base; /* the region; NULL: no channel segment */
	uint16_t region;
	uint32_t tail;        /* next free byte */
	uint32_t used;        /* bytes between the oldest block and tail, gaps included */
	uint32_t first, last; /* block numbers, running freely */
	struct staging_block block[STAGING_BLOCKS];
	uint32_t scratch_free;
	uint32_t scratch_next[SCRATCH_SLOTS];
	/* for one page larger than staging: registered memory of our own */
	void *large;
	bool large_busy;
};
#define STAGING_LARGE STAGING_BLOCKS /* its block number */

struct credit {
	uint32_t place;
	uint32_t generation;
};

struct stock_rail {
	uint32_t have;
	uint32_t asked;
	uint32_t want;  /* pages that found none in this step */
	uint32_t ahead; /* kept in stock beyond what is missing; 0: nobody stores such pages */
	uint64_t refused_until_ns;
	struct credit credit[CREDIT_STOCK_MAX];
};

/* Credits of one page size. */
struct stock {
	uint32_t bytes;
	uint64_t used_ns;
	struct stock_rail rail[RAILS_MAX];
};

struct pc_channel {
	struct pc *pc;
	struct session *session;    /* NULL: not attached */
	struct page_key name_space; /* digest */
	uint32_t id;
	int wake;
	unsigned char *segment;
	struct channel_layout layout;
	struct channel_header *header;

	struct channel_rail rail[RAILS_MAX];
	uint32_t rails;
	uint32_t resting;  /* rails that failed lately; some may have rested */
	uint64_t rate_max; /* of the fastest rail */
	uint64_t least;    /* bytes on their way times weight: no rail has less */
	bool no_room;      /* no page found a rail with room since the last answer */
	uint32_t turn;     /* spreads look-ups and stores over the rails */
	struct ring_producer ctl;
	struct ring_consumer ctl_done;
	uint32_t ctl_unpublished;
	uint32_t ctl_awaited; /* answers in flight; at most CTL_DONE_SLOTS */
	uint64_t looked_ns;   /* last look at the socket */
	uint64_t moves;       /* counts everything that moved; a wait spins while it grows */
	bool broken;          /* the engine's end is impossible: lost at the end of this step */

	struct request *request;
	uint32_t requests;
	uint32_t request_free;

	struct map_pair *map; /* NULL: none read yet */
	struct map_pair *map_spare;
	struct map_pair *map_memory; /* both */
	uint32_t map_epoch;
	uint16_t map_slot[NODES_MAX * 4];  /* ref -> member index + 1 */
	const struct map_member *map_last; /* that was searched for; NULL: none since a change */
	uint64_t peer_rest_until_ns[NODES_MAX];

	struct cache_entry *cache;
	struct staging staging;
	struct stock *stock[CLASSES_MAX];
	uint32_t stocks;  /* of them, those ever used come first */
	uint32_t credits; /* held and asked for; at most CREDITS_MAX */

	struct memory_view *memory; /* sorted by base */
	uint32_t memories;
	uint32_t memory_changes;
	uint32_t memory_last; /* where the last search ended */

	struct pc_batch *first, *last; /* under way, oldest first */
	uint32_t waits[2];             /* pages in queues: [1] for room on a rail, [0] others */
	uint32_t writers;              /* batches that set or remove */
	uint64_t due_ns;               /* no batch has a deadline or grace that ends earlier */
	struct pc_batch *spare;        /* a finished one, kept for its memory; or NULL */
	struct pc_counts counts;
	struct channel_statistics *statistics; /* in the segment; NULL: not attached */
	struct pc_counts counts_told;          /* the part of `counts` that is in the statistics */
};

/* ---- one batch ------------------------------------------------------------------------------ */

enum batch_kind { BATCH_GET, BATCH_SET, BATCH_EXISTS, BATCH_REMOVE };

/* Where a page waits. The first ones are queues of the batch. */
enum page_phase {
	PAGE_LOOK = 0, /* for ring room, to READ a bucket */
	PAGE_FETCH,    /* for ring room, to READ the page */
	PAGE_STAGE,    /* the same, and for staging */
	PAGE_STORE,    /* for a credit */
	PAGE_HEAD,     /* was stale; for ring room, to READ its head */
	PAGE_PUBLISH,  /* copied; for room in the ctl ring */
	PAGE_REMOVE,   /* for room in the ctl ring */
	PAGE_QUEUES,
	PAGE_IN_FLIGHT = PAGE_QUEUES, /* for an answer */
	PAGE_TWIN,                    /* set: for the same key earlier in the batch */
	PAGE_DONE,
};

enum page_flag {
	PAGE_SECOND = 1,  /* looking at the second bucket */
	PAGE_RETRIED = 2, /* looked up again after a location was wrong */
	PAGE_SAW_STALE = 4,
	PAGE_SAW_FAILURE = 8,   /* an owner or a node with the page could not be read */
	PAGE_REGISTERED = 16,   /* every segment lies in registered memory */
	PAGE_SAW_ANSWER = 32,   /* an owner answered the look-up under way */
	PAGE_SAME_PEER = 64,    /* the next bucket is the same peer's */
	PAGE_SAW_REFUSAL = 128, /* the rail refused the READ */
};

struct page_work {
	struct page_key key;
	struct location at;                 /* being used */
	struct location other[PAGE_OTHERS]; /* to try next */
	struct location wrong;              /* the last one that was stale */
	uint32_t bytes;
	uint32_t next;    /* in a queue */
	uint32_t request; /* in flight; fetched: the last one's */
	uint32_t twin;    /* PAGE_TWIN: whose result it gets */
	uint16_t rails_tried;
	uint16_t pieces_out;  /* fetched: ops on their way ... */
	uint16_t slices;      /* ... slices of it given to rails so far ... */
	uint8_t piece_status; /* ... enum op_status: the first that was not OP_HIT */
	uint8_t phase;
	uint8_t flags;
	uint8_t others;
	uint8_t asked; /* owners asked: bit per owner by the map, then by the previous map */
	uint16_t peer; /* being asked */
	uint32_t owners_epoch;       /* the map that they and `asked` are of */
	uint8_t owner[REPLICAS_MAX]; /* of the key: members by index */
	uint8_t owners;
	uint8_t pad[7]; /* a shift, not a multiplication, finds a page: done many times for each */
};
static_assert(sizeof(struct page_work) == 128, "a power of two");
static_assert(NODES_MAX <= 256, "page_work.owner is a byte each");

struct page_queue {
	uint32_t head, tail;
};

struct pc_batch {
	struct pc_channel *channel;
	struct pc_batch *next;
	enum batch_kind kind;
	bool expired;   /* past the deadline: nothing new is begun */
	bool abandoned; /* past the grace: only registered memory is waited for */
	uint32_t count;
	uint32_t left;  /* pages not done */
	uint32_t twins; /* of them, those that wait for another page */
	const struct pc_page *pages;
	enum pc_result *results;
	uint64_t submitted_ns;
	uint64_t deadline_ns;
	uint32_t missed[STATISTICS_RESULTS]; /* pages done with another result than PC_HIT */
	struct page_queue queue[PAGE_QUEUES];
	uint64_t pinned[REGIONS_MAX / 64];
	bool pins;
	uint32_t first_rail;
	uint32_t capacity;
	struct page_work work[];
};

#endif
