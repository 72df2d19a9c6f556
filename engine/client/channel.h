/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structs of a channel and of its batches. The channel's thread owns them all. Included only by
 * client.h.
 */
#ifndef CLIENT_CHANNEL_H
#define CLIENT_CHANNEL_H

/* ---- one channel ---------------------------------------------------------------------------- */

struct cache_entry {
	struct page_key key;
	struct location at;
	uint32_t touched_ms; /* CLOCK_MONOTONIC of the last CTL_TOUCH for the page, ms; 0: never */
};
static_assert(sizeof(struct cache_entry) == 32, "two to a cache line");

/* The entries of the location cache whose keys have the same set number. */
struct cache_set {
	/* owner: the channel's thread; read by every look-up of a key of the set */
	alignas(64) uint16_t tag[CACHE_WAYS]; /* bits of the entry's key; 0: the entry is unused */
	/* CLOCK_MONOTONIC of the last look-up or read of the entry's page, ms */
	uint32_t seen_ms[CACHE_WAYS];
	/* owner: the channel's thread; read if the tag of an entry fits */
	alignas(64) struct cache_entry entry[CACHE_WAYS];
};
static_assert(offsetof(struct cache_set, entry) == 64, "the tags and times share one line");

/* The members of the cluster map; see map.c. */
struct map_copy {
	struct map_member *member; /* by peer number; ref 0: none */
	uint32_t peers, members, room;
	/* hash table: ref of a member -> its peer number + 1; 0: empty */
	uint16_t *slot;
	uint32_t mask;
};

enum request_kind {
	REQUEST_FREE = 0,
	REQUEST_LOOK,    /* OP_LOOKUP of buckets, on a rail's op ring */
	REQUEST_RUN,     /* OP_RUN of pages, on a rail's op ring */
	REQUEST_HEAD,    /* OP_READ of a page head, on a rail's op ring */
	REQUEST_PEEK,    /* OP_READ of a bucket or a page head for pc_explain(), likewise */
	REQUEST_FETCH,   /* OP_PAGE of a page or of slices of it, on a rail's op ring */
	REQUEST_CREDIT,  /* CTL_CREDIT on the ctl ring */
	REQUEST_PUBLISH, /* CTL_PUBLISH on the ctl ring */
	REQUEST_REMOVE,  /* CTL_REMOVE on the ctl ring */
	REQUEST_DISK,    /* CTL_PROMOTE on the ctl ring */
};

/*
 * A request in flight on an op ring or the ctl ring. Its cookie is generation << 32 | index in
 * pc_channel.request; that of a run, which has 32 bits, is generation << 16 | index.
 */
struct client_request {
	/* batch of the pages; NULL: they no longer wait for the answer */
	struct pc_batch *batch;
	union {
		/* RUN, LOOK, PUBLISH: first page; page_work.next leads to the others. Else: the
		 * page */
		uint32_t page;
		uint32_t next; /* FREE: index of the next request in the free list */
	};
	uint32_t generation;
	/* FETCH, RUN: bytes counted in channel_rail.bytes; CREDIT: length of the requested slots */
	uint32_t bytes;
	union {
		/* LOOK, HEAD, PEEK: number of the first scratch slot; FETCH: number of a staging
		 * block, or CLIENT_NONE */
		uint32_t hold;
		uint32_t waiting; /* PUBLISH: bit per page that was not answered yet */
	};
	uint8_t kind;
	uint8_t rail;
	uint8_t pages; /* RUN, LOOK, PUBLISH: number of pages, at most RUN_PAGES_MAX */
	uint16_t left; /* CREDIT: number of slots that no answer has told of yet */
};
static_assert(sizeof(struct client_request) == 32, "two to a cache line");

struct channel_rail {
	struct ring_producer ops;
	struct ring_consumer done;
	uint32_t unpublished; /* ring entries written to `ops` and not yet published */
	uint32_t in_flight;
	uint64_t bytes; /* bytes of the pages in flight on the rail: its backlog */
	/* bandwidth estimate of the fastest rail / this rail's, << WEIGHT_SHIFT */
	uint64_t weight;
	/* limits of `bytes`: [0] for an op of at most a slice, [1] for a longer one */
	uint64_t credit[2];
	/* until this time (ns) the rail is used last, because an op failed on it */
	uint64_t rest_until_ns;
	/* the fields below belong to the rail's bandwidth estimate, see stripe.c */
	/* estimates for which weight and credit[] were computed: this rail's, the fastest rail's */
	uint64_t weighed, weighed_max;
	uint64_t rate;  /* bandwidth estimate, bytes per 1024 ns; 0: unknown */
	uint64_t moved; /* bytes answered since the rail's last bandwidth sample */
	/* time with bytes in flight since the last sample, counted up to since_ns */
	uint64_t busy_ns;
	/* start of the time with bytes in flight that busy_ns does not contain yet */
	uint64_t since_ns;
	/* how often the rail went from idle to busy since its last sample */
	uint32_t bursts;
	bool used; /* true: the rail had bytes in flight since the last sample of any rail */
};

struct staging_block {
	uint32_t offset; /* offset of the block in the staging region, bytes */
	uint32_t bytes;
	bool freed;
};

/* Allocator of the staging region: staging blocks are taken and reclaimed in the same order. */
struct staging {
	/* start of the staging region; NULL: the channel has no segment mapped */
	unsigned char *base;
	uint16_t region;
	uint32_t tail; /* offset of the next free byte in the staging region */
	/* bytes of the staging region between the oldest block and `tail`, gaps included */
	uint32_t used;
	/* free-running numbers of the oldest staging block and of the next one */
	uint32_t first, last;
	struct staging_block block[STAGING_BLOCKS];
	/* bit per scratch slot: it is free; and the word in which the last search ended */
	uint32_t scratch_free[SCRATCH_SLOTS / 32];
	uint32_t scratch_last;
	/* memory registered by the library for one page that is larger than the staging region */
	void *large;
	bool large_busy;
};
#define STAGING_LARGE STAGING_BLOCKS /* number of a staging block that stands for staging.large */

struct stock_credit {
	uint32_t place;
	uint32_t generation;
};

struct stock_rail {
	uint32_t have;
	uint32_t first; /* index of the oldest credit in credit[], which is a ring */
	uint32_t asked;
	uint32_t want; /* pages that found no credit in this step of the channel */
	/* credits requested in advance; 0: the channel stores no pages of this size at present */
	uint32_t ahead;
	uint64_t refused_until_ns;
	/* The oldest is taken first: pages that are stored one after another then lie in ascending
	 * slots, and a READ may cover several of them. */
	struct stock_credit credit[CREDIT_STOCK_MAX];
};

/* Stock of credits for pages of one size. */
struct stock {
	uint32_t bytes;
	uint64_t used_ns;
	struct stock_rail rail[RAILS_MAX];
};

/* Pages of one step that may be in one run: they become one run or several. */
struct run_group {
	uint32_t ref; /* holder of the pages; 0: the group is unused */
	/* what the pages have in common, see run_add() */
	uint64_t to;     /* the upper bits: destination region */
	uint64_t stride; /* distance between the starts of the segments; 0: there is only one */
	uint32_t bytes, segments;
	uint32_t tries; /* run_tries() */
	uint32_t head, tail;
	uint32_t pages;
	uint32_t parts; /* number of runs to make of `pages`; see run_cut() */
	uint32_t spare[2];
};
static_assert(sizeof(struct run_group) == 64, "a power of two");

/* A run of look-ups of one peer that is being made. */
struct look_open {
	/* the peer's word of the shared map while the run, and those after it, take further pages
	 * that have asked no owner, see look_usual(); 0: they take none */
	uint64_t word;
	const struct map_member *member;
	uint32_t head, tail; /* its first and its last page */
	uint32_t pages;      /* 0: the run is not open; what is below is that of the one before */
	uint32_t mask;       /* of the bucket numbers of the peer's shard */
	uint16_t tried;      /* rails_tried of all its pages */
	/* number of the bucket that is READ for each page, in whole lines of the run */
	uint32_t bucket[LOOK_BUCKETS];
};
static_assert(LOOK_BUCKETS >= RUN_PAGES_MAX, "a bucket for each page of a run");

struct pc_channel {
	struct pc *pc;
	/* session that the channel belongs to; NULL: it is not attached */
	struct client_session *session;
	struct key_text key_text; /* input of the key hash, for the namespace of the channel */
	uint32_t id;
	int wake;
	unsigned char *segment;
	struct channel_layout layout;
	struct channel_header *header;

	struct channel_rail rail[RAILS_MAX];
	uint32_t rails;
	uint32_t told;     /* bit per rail: entries were published in this step of the channel */
	uint32_t untold;   /* bit per rail: it may have unpublished entries */
	uint32_t resting;  /* bit per rail: its rest_until_ns is set (and may have passed) */
	uint64_t rate_max; /* bandwidth estimate of the fastest rail, bytes per 1024 ns */
	uint64_t least;    /* lower bound of `bytes * weight`, the time to finish, of every rail */
	/* a bandwidth sample of a rail has ended: the weights are to be computed again */
	bool sampled;
	bool no_room;  /* a page found no rail with room, and no answer has come since */
	uint32_t turn; /* counter that distributes look-ups and stores over the rails */
	struct ring_producer ctl;
	struct ring_consumer ctl_done;
	uint32_t ctl_unpublished;
	struct ctl_touches touches; /* of the next CTL_TOUCHES; count 0: none */
	bool ctl_napped; /* requests were sent while the control plane napped, without a kick */
	bool ctl_urgent; /* an op other than CTL_TOUCHES was submitted since the last flush */
	uint64_t touch_woken_ns; /* CLOCK_MONOTONIC of the last wake-up for touches alone, ns */
	/* number of answers that the control plane owes, one for each page and slot at most; at
	 * most CTL_DONE_SLOTS */
	uint32_t ctl_awaited;
	uint64_t looked_ns; /* CLOCK_MONOTONIC of the last check of the session's socket, ns */
	/* counts everything that moves in the channel; a waiting call spins while it grows */
	uint64_t moves;
	/* number of waits left that sleep without spinning, because other threads need this
	 * thread's core; see wait.c */
	uint32_t crowded;
	/* the engine wrote an impossible value into a ring: the session ends with this step */
	bool broken;

	struct client_request *request;
	uint32_t requests;
	uint32_t request_free;

	/* runs that this step is making, and a bit for each that is in use; unused between steps */
	struct run_group run_group[RUN_GROUPS_MAX];
	struct look_open look_open[LOOK_OPEN_MAX];
	uint32_t run_grouped, look_opened;

	/* `map_memory`; NULL: no map of this engine was read yet */
	const struct map_copy *map;
	struct map_copy map_memory;
	uint32_t map_epoch; /* of `map` */
	/* member found by the last map_search(); NULL: none since the last map change */
	const struct map_member *map_last;
	uint64_t *peer_rest_until_ns; /* by peer number */

	struct cache_set *cache; /* CACHE_SETS sets */
	/* counts the changes of keys and locations in the cache: while it stays the same, what a
	 * batch found there is still right */
	uint64_t cache_changes;
	struct staging staging;
	struct stock *stock[CLASSES_MAX];
	uint32_t stocks;  /* number of sizes in `stock`, which come first in the array */
	uint32_t credits; /* number of credits in stock or requested; at most CREDITS_MAX */

	/* copy of the session's table of registered ranges, sorted by base */
	struct memory_view *memory;
	uint32_t memories;
	uint32_t memory_changes;
	uint32_t memory_last; /* index in `memory` of the range that the last search found */

	struct pc_batch *first, *last; /* list of the batches in flight, oldest first */
	/* number of queued pages: [1] those that wait for room on a rail, [0] all others */
	uint32_t waits[2];
	uint32_t writers; /* number of batches in flight that set or remove pages */
	/* lower bound, for all batches, of the end of the deadline and of ANSWER_GRACE_NS after
	 * it */
	uint64_t due_ns;
	/* list of finished batches whose memory the next batches use again, and its length */
	struct pc_batch *spare;
	uint32_t spares;
	/* verify.c: hits until the next one that is compared; 0: none is */
	uint32_t verify_left;
	struct pc_verify_counts verify_counts;
	uint64_t verify_random; /* state of the generator of those distances; never 0 */
	struct pc_counts counts;
	struct channel_statistics *statistics; /* in the segment; NULL: not attached */
	struct pc_counts counts_told;          /* the part of `counts` that is in the statistics */
};

/* ---- one batch ------------------------------------------------------------------------------ */

/* BATCH_PEEK is no call about pages: its "pages" are the READs of peek_all(). */
enum batch_kind { BATCH_GET, BATCH_SET, BATCH_EXISTS, BATCH_REMOVE, BATCH_PEEK };

/* State of a page of a batch. The states below PAGE_QUEUES are also queues of the batch. */
enum page_phase {
	PAGE_LOOK = 0, /* waits for room in an op ring, to READ a bucket of its key */
	PAGE_RUN,      /* waits to be planned into a run; then is in one of pc_batch.runs */
	PAGE_FETCH,    /* waits for room in an op ring, to READ the page by itself */
	PAGE_STAGE,    /* waits for room in an op ring and for staging memory, to READ the page */
	PAGE_STORE,    /* set: waits for a credit, to copy the page into its slot */
	/* the page READ was stale, or its CRC is due; waits for room in an op ring, to READ the
	 * page head. Also the READs of a BATCH_PEEK that wait for room */
	PAGE_HEAD,
	PAGE_PUBLISH, /* set: the page is copied; waits for room in the ctl ring */
	PAGE_REMOVE,  /* remove: waits for room in the ctl ring */
	/* get, exists: no owner knows the page, or it is on a disk; waits for room in the ctl ring,
	 * to have this host's disk searched, or the page read from that disk */
	PAGE_DISK,
	PAGE_QUEUES,
	PAGE_IN_FLIGHT = PAGE_QUEUES, /* waits for the answer of a rail or of the control plane */
	PAGE_LOOKING,                 /* is in a run of look-ups, open or in flight */
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
	 * for a page in a run, nor for one in a run of look-ups */
	uint32_t request;
	/* pages_init() makes everything from here to the end of the line 0 */
	/* cache_number() of the entry that had the page, if it still does. While the page is looked
	 * up: cache_index() */
	uint32_t cached;
	uint16_t rails_tried;
	uint16_t pieces_out; /* get: number of ops in flight for this page alone */
	uint16_t peer; /* number of the peer that is being READ; of a run, in its first page */
	uint8_t phase;
	uint8_t flags;
	uint8_t others;
	/* get: the first result of an op of this page that was not OP_HIT, enum op_status */
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
	uint8_t slices;     /* get: number of slices of this page posted so far */
	uint8_t disk : 4;   /* enum page_disk */
	uint8_t verify : 4; /* get: enum page_verify */
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
		struct peek *peek; /* BATCH_PEEK */
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
	/* set: hash table that find_twins() uses, 4 * capacity entries behind `work` */
	uint32_t *twin_table;
	struct page_work work[];
};

#endif
