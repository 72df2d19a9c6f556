/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structs of a channel and of its batches. The channel's thread owns them all. Included only by
 * client.h.
 */
#ifndef CLIENT_CHANNEL_H
#define CLIENT_CHANNEL_H

/* ---- one channel ---------------------------------------------------------------------------- */

/* A location of a page according to the directory; it may be stale. ref 0: none. */
struct location {
	uint32_t ref;
	uint32_t place;
	uint32_t generation;
};

struct cache_entry {
	struct page_key key;
	struct location at;
	uint32_t seen_ms;    /* time of the last look-up or read, ms */
	uint32_t touched_ms; /* time of the last CTL_TOUCH, ms; 0: never */
};

struct map_pair {
	struct map_view current;
	struct map_view previous;
};

enum request_kind {
	REQUEST_FREE = 0,
	REQUEST_LOOK,    /* READ of a bucket, on a rail's ring */
	REQUEST_HEAD,    /* READ of a page head, on a rail's ring */
	REQUEST_FETCH,   /* READ of a page or a part of it, on a rail's ring */
	REQUEST_CREDIT,  /* op on the ctl ring */
	REQUEST_PUBLISH, /* op on the ctl ring */
	REQUEST_REMOVE,  /* op on the ctl ring */
};

/* A request in flight on a ring. Its cookie is generation << 32 | index in pc_channel.request. */
struct request {
	struct pc_batch *batch; /* NULL: the page no longer waits for the answer */
	uint32_t page;
	uint32_t generation;
	/* FETCH: bytes counted in channel_rail.bytes; CREDIT: page bytes requested */
	uint32_t bytes;
	uint32_t hold; /* LOOK, HEAD: scratch slot; FETCH: staging block, or CLIENT_NONE: none */
	uint32_t next; /* next request in the free list */
	uint8_t kind;
	uint8_t rail;
	uint16_t left; /* answers still to come; more than 1 only for CREDIT */
};

struct channel_rail {
	struct ring_producer ops;
	struct ring_consumer done;
	uint32_t unpublished; /* slots written and not yet published */
	uint32_t in_flight;
	uint64_t bytes;         /* bytes of pages in flight: the rail's backlog */
	uint64_t weight;        /* the fastest rail's estimate / this rail's, << WEIGHT_SHIFT */
	uint64_t credit[2];     /* limits of `bytes`; [1]: for an op longer than a slice */
	uint64_t rest_until_ns; /* failed recently: used last until this time */
	/* fields below: the rail's bandwidth estimate, in stripe.c */
	uint64_t weighed, weighed_max; /* inputs from which weight and credit were computed */
	uint64_t rate;                 /* the estimate, bytes per 1024 ns; 0: unknown */
	uint64_t moved;                /* bytes answered since the last sample */
	uint64_t busy_ns;              /* busy time since the last sample, counted up to since_ns */
	uint64_t since_ns;             /* start of the current uncounted busy time */
	/* times since the last sample that the rail went from idle to busy */
	uint32_t bursts;
	bool used; /* had bytes posted since the last sample of any rail */
};

struct staging_block {
	uint32_t offset; /* in the staging region */
	uint32_t bytes;
	bool freed;
};

/* Allocator of the staging region: blocks are taken and reclaimed in the same order. */
struct staging {
	unsigned char *base; /* start of the staging region; NULL: no channel segment */
	uint16_t region;
	uint32_t tail;        /* offset of the next free byte */
	uint32_t used;        /* bytes between the oldest block and tail, gaps included */
	uint32_t first, last; /* free-running numbers of the oldest block and of the next one */
	struct staging_block block[STAGING_BLOCKS];
	uint32_t scratch_free;
	uint32_t scratch_next[SCRATCH_SLOTS];
	/* registered memory of the library for one page larger than the staging region */
	void *large;
	bool large_busy;
};
#define STAGING_LARGE STAGING_BLOCKS /* block number that stands for staging.large */

struct credit {
	uint32_t place;
	uint32_t generation;
};

struct stock_rail {
	uint32_t have;
	uint32_t asked;
	uint32_t want; /* pages that found no credit in this step */
	/* credits requested in advance; 0: pages of this size are not being stored */
	uint32_t ahead;
	uint64_t refused_until_ns;
	struct credit credit[CREDIT_STOCK_MAX];
};

/* Stock of credits of one page size. */
struct stock {
	uint32_t bytes;
	uint64_t used_ns;
	struct stock_rail rail[RAILS_MAX];
};

struct pc_channel {
	struct pc *pc;
	struct session *session;    /* current session of the channel; NULL: not attached */
	struct page_key name_space; /* digest of the namespace */
	uint32_t id;
	int wake;
	unsigned char *segment;
	struct channel_layout layout;
	struct channel_header *header;

	struct channel_rail rail[RAILS_MAX];
	uint32_t rails;
	uint32_t resting;  /* bit per rail: rest_until_ns is set; it may have passed */
	uint64_t rate_max; /* the fastest rail's bandwidth estimate, bytes per 1024 ns */
	uint64_t least;    /* lower bound of `bytes * weight` of every rail */
	bool no_room;      /* a page found no rail with room, and no answer came since */
	uint32_t turn;     /* round-robin counter for look-ups and stores over the rails */
	struct ring_producer ctl;
	struct ring_consumer ctl_done;
	uint32_t ctl_unpublished;
	uint32_t ctl_awaited; /* answers that the control plane owes; at most CTL_DONE_SLOTS */
	uint64_t looked_ns;   /* time of the last check of the session's socket */
	uint64_t moves;       /* counter of all progress; a waiting call spins while it grows */
	/* a ring value of the engine is impossible: the session ends with this step */
	bool broken;

	struct request *request;
	uint32_t requests;
	uint32_t request_free;

	struct map_pair *map; /* the map in use; NULL: none read yet */
	struct map_pair *map_spare;
	struct map_pair *map_memory; /* the allocation of both map_pairs */
	uint32_t map_epoch;
	uint16_t map_slot[NODES_MAX * 4]; /* hash table: ref -> member index + 1; 0: empty */
	/* result of the last map_search(); NULL: none since a map change */
	const struct map_member *map_last;
	uint64_t peer_rest_until_ns[NODES_MAX];

	struct cache_entry *cache;
	struct staging staging;
	struct stock *stock[CLASSES_MAX];
	uint32_t stocks;  /* length of the used front of `stock` */
	uint32_t credits; /* credits in stock and requested; at most CREDITS_MAX */

	struct memory_view *memory; /* copy of the registered ranges, sorted by base */
	uint32_t memories;
	uint32_t memory_changes;
	uint32_t memory_last; /* index of the last search's result in `memory` */

	struct pc_batch *first, *last; /* list of the batches in flight, oldest first */
	/* queued pages: [1] waiting for room on a rail, [0] all others */
	uint32_t waits[2];
	uint32_t writers; /* batches in flight that set or remove */
	/* lower bound of the end of every batch's deadline and grace */
	uint64_t due_ns;
	/* a finished batch, kept so that its memory is reused; or NULL */
	struct pc_batch *spare;
	struct pc_counts counts;
	struct channel_statistics *statistics; /* in the segment; NULL: not attached */
	struct pc_counts counts_told;          /* the part of `counts` that is in the statistics */
};

/* ---- one batch ------------------------------------------------------------------------------ */

enum batch_kind { BATCH_GET, BATCH_SET, BATCH_EXISTS, BATCH_REMOVE };

/* State of a page. The states below PAGE_QUEUES are also queues of the batch. */
enum page_phase {
	PAGE_LOOK = 0, /* waits for ring room to READ a bucket */
	PAGE_FETCH,    /* waits for ring room to READ the page */
	PAGE_STAGE,    /* waits for ring room and for staging memory to READ the page */
	PAGE_STORE,    /* waits for a credit */
	PAGE_HEAD,     /* was stale; waits for ring room to READ the page head */
	PAGE_PUBLISH,  /* copied; waits for room in the ctl ring */
	PAGE_REMOVE,   /* waits for room in the ctl ring */
	PAGE_QUEUES,
	PAGE_IN_FLIGHT = PAGE_QUEUES, /* waits for an answer */
	/* set: waits for an earlier page of the batch with the same key */
	PAGE_TWIN,
	PAGE_DONE,
};

enum page_flag {
	PAGE_SECOND = 1,  /* the second bucket is being looked at */
	PAGE_RETRIED = 2, /* was looked up again after a wrong location */
	PAGE_SAW_STALE = 4,
	PAGE_SAW_FAILURE = 8,   /* an owner or a node with the page could not be READ */
	PAGE_REGISTERED = 16,   /* every segment lies in registered memory */
	PAGE_SAW_ANSWER = 32,   /* an owner answered the current look-up */
	PAGE_SAME_PEER = 64,    /* the next bucket READ goes to the same peer */
	PAGE_SAW_REFUSAL = 128, /* the rail refused the READ: OP_INVALID */
};

struct page_work {
	struct page_key key;
	struct location at;                 /* location in use */
	struct location other[PAGE_OTHERS]; /* locations to try next, the next one last */
	struct location wrong;              /* the last location that was wrong */
	uint32_t bytes;
	uint32_t next;    /* next page in the queue */
	uint32_t request; /* request in flight; when sliced, the latest one */
	uint32_t twin;    /* PAGE_TWIN: index of the page whose result this page gets */
	uint16_t rails_tried;
	uint16_t pieces_out;  /* get: ops of this page in flight */
	uint16_t slices;      /* get: slices of this page posted so far */
	uint8_t piece_status; /* get: the first enum op_status of an op that was not OP_HIT */
	uint8_t phase;
	uint8_t flags;
	uint8_t others;
	uint8_t asked; /* bit per owner asked: by the current map, then by the previous map */
	uint16_t peer; /* peer that is being READ */
	uint32_t owners_epoch;       /* map epoch that `owner` and `asked` belong to */
	uint8_t owner[REPLICAS_MAX]; /* owners of the key: member indices in the map */
	uint8_t owners;
	/* padding to 128 bytes: a page is found by a shift, not by a multiplication */
	uint8_t pad[7];
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
	bool expired;   /* the deadline has passed: nothing new is posted */
	bool abandoned; /* the grace has passed: only READs into registered memory are awaited */
	uint32_t count;
	uint32_t left;  /* pages that are not done */
	uint32_t twins; /* of `left`: pages in PAGE_TWIN */
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
