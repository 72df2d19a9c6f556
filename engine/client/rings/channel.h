/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct pc_channel: everything of one thread: rings, requests, location cache, credits, batches.
 * It has no locks; only its thread touches it.
 */
#ifndef CLIENT_CHANNEL_H
#define CLIENT_CHANNEL_H

#include <sys/socket.h>

#include "config/limits.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/segment.h"
#include "engine/client/constants.h"
#include "engine/client/page/key.h"
#include "engine/client/peercache.h"
#include "engine/client/rings/staging.h"

struct cache_set;
struct client_request;
struct client_session;
struct device_copies;
struct memory_view;
struct opened;
struct pc_batch;
struct stock;

/* The members of the cluster map; see lookup/map.c. */
struct map_copy {
	struct map_member *member; /* by peer number; ref 0: none */
	uint32_t peers, members, room;
	/* hash table: ref of a member -> its peer number + 1; 0: empty */
	uint16_t *slot;
	uint32_t mask;
};

struct channel_rail {
	struct ring_producer ops;
	struct ring_consumer done;
	uint32_t in_flight;
	uint64_t bytes; /* bytes of the pages in flight on the rail: its backlog */
	/* until this time (ns) the rail is used last, because an op failed on it */
	uint64_t rest_until_ns;
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

/* A run of look-ups, or of page heads to READ, of one peer that is being made. */
struct look_open {
	/* the peer's word of the shared map while the run, and those after it, take further pages
	 * that have asked no owner, see look_usual(); 0: they take none */
	uint64_t word;
	const struct map_member *member;
	uint32_t head, tail; /* its first and its last page */
	uint32_t pages;      /* 0: the run is not open; what is below is that of the one before */
	uint32_t mask;       /* of the bucket numbers of the peer's shard */
	uint16_t tried;      /* rails_tried of all its pages */
	uint8_t region;      /* of the peer: REGION_SHARD, or REGION_HEADS_0 */
	/* number of the bucket, or place whose head is READ, for each page, in whole lines of the
	 * run */
	uint32_t bucket[LOOK_BUCKETS];
};
static_assert(LOOK_BUCKETS >= RUN_PAGES_MAX, "a bucket for each page of a run");

struct pc_channel {
	struct pc *pc;
	/* session that the channel belongs to; NULL: it is not attached. Changed under pc->lock */
	struct client_session *session;
	/* channel of the engine that the attach thread has opened for this one; NULL: none. Under
	 * pc->lock */
	struct opened *opened;
	struct key_space name_space;
	struct key_text key_text; /* input of the key hash, of `name_space` in its epochs */
	uint32_t limits_told;     /* pc.limits, as the engine knows them for this group */
	uint32_t epochs_version;  /* of these epochs; CLIENT_NONE: the text is prepared anew */
	uint32_t id;
	int wake;
	unsigned char *segment;
	struct channel_layout layout;
	size_t bytes; /* length of the segment */
	struct channel_header *header;

	struct channel_rail rail[RAILS_MAX];
	uint32_t rails;
	uint32_t told;    /* bit per rail: entries were published in this step of the channel */
	uint32_t resting; /* bit per rail: its rest_until_ns is set (and may have passed) */
	uint64_t least;   /* lower bound of `bytes` of every rail */
	bool no_room;     /* a page found no rail with room, and no answer has come since */
	uint32_t turn;    /* counter that distributes look-ups and stores over the rails */
	struct ring_producer ctl;
	struct ring_consumer ctl_done;
	uint32_t ctl_unpublished;
	struct match *match;        /* of pc_match(), while it runs: an exists is a match */
	struct ctl_touches touches; /* of the next CTL_TOUCHES; count 0: none */
	bool ctl_napped;  /* requests were sent while the control plane napped, without a kick */
	bool gap;         /* of the sets that are submitted from now on, see pc_channel_gap() */
	bool head;        /* of the look-ups, see pc_channel_head() */
	uint32_t seconds; /* of the pins: their calls wait */
	bool ctl_urgent;  /* an op other than CTL_TOUCHES was submitted since the last flush */
	uint64_t touch_woken_ns; /* CLOCK_MONOTONIC of the last wake-up for touches alone, ns */
	/* number of answers that the control plane owes, one for each page and slot at most; at
	 * most CTL_DONE_SLOTS */
	uint32_t ctl_awaited;
	/* CLOCK_MONOTONIC at the start of this step, or of the call that makes a batch, ns */
	uint64_t now_ns;
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
	/* the same: KiB x ns that READs of pages of the peer took lately, halved every
	 * PEER_LOAD_NS: as much as was queued there on average */
	uint64_t *peer_load;
	uint64_t peer_loads_ns; /* CLOCK_MONOTONIC until which all are halved */
	uint64_t peer_load_run; /* what the last READ added */

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
	bool devices;         /* some of them are GPU memory */
	struct device_copies *device; /* copies to and from it; NULL: none was needed yet */
	uint32_t gpus;                /* the bit of their GPU */

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
	/* page.c: hits until the next one that is compared; 0: none is */
	uint32_t verify_left;
	bool verify_all; /* page.c: as the engine says: each hit is compared, and has a CRC */
	struct pc_verify_counts verify_counts;
	uint64_t verify_random; /* state of the generator of those distances; never 0 */
	struct pc_counts counts;
	struct channel_statistics *statistics; /* in the segment; NULL: not attached */
	struct channel_asked *asked;           /* in the segment, too */
	uint32_t asked_lost; /* batches that found no room there since the last one that did */
	struct pc_counts counts_told; /* the part of `counts` that is in the statistics */
	struct pc_channel *next;      /* in the list of open channels, under pc->lock */

	/* descriptor.c: pc_channel_fd() and its timer; -1: none was requested */
	int descriptor, timer;
	uint64_t timer_ns; /* time that the timer has; DESCRIPTOR_IDLE: none */
	bool listens;      /* the descriptor listens to the wake socket */
};

struct session_call;

/*
 * Checks and maps the channel segment that the engine sent with the reply to CHANNEL_OPEN. Returns
 * 0 or -errno.
 */
int channel_map(struct pc_channel *ch, struct client_session *session, struct session_call *call);
/* Unmaps the segment: nothing of the session but the number of its users is left. */
void channel_unmap(struct pc_channel *ch);
/*
 * In a child of fork(): leaves the parent's session. A page of an inherited batch is PC_GONE in the
 * next step.
 */
void channel_inherited(struct pc_channel *ch);

/* ---- the descriptor of a channel: descriptor.c ----------------------------------------------- */

#define DESCRIPTOR_IDLE UINT64_MAX /* in 585 years */
#define DESCRIPTOR_NOW 1u          /* a time, ns: in the past */

/* Makes ch->descriptor. Returns 0 or -errno. */
int descriptor_open(struct pc_channel *ch);
/* Makes it readable, which ends waits for it, and closes it, if there is one. */
void descriptor_close(struct pc_channel *ch);
/* The descriptor becomes readable when the engine wakes the channel or ends. */
void descriptor_listen(struct pc_channel *ch);
/* It does not any more. Called before the channel leaves its session. */
void descriptor_mute(struct pc_channel *ch);
/* It becomes readable at this time or earlier; DESCRIPTOR_IDLE: at no time. */
void descriptor_wake_at(struct pc_channel *ch, uint64_t at_ns, uint64_t now_ns);

static inline uint32_t channel_now_ms(const struct pc_channel *ch)
{
	return (uint32_t)(ch->now_ns / 1000000);
}

/*
 * Marks the channel as broken because the engine's side of a ring has an impossible value. The
 * session ends with this step.
 */
static inline void channel_break(struct pc_channel *ch)
{
	ch->broken = true;
}

/*
 * Reads the wake-ups that wait in the channel's wake socket. False: the engine has closed its end.
 */
static inline bool channel_wake_clear(const struct pc_channel *ch)
{
	char bytes[64];

	return recv(ch->wake, bytes, sizeof(bytes), MSG_DONTWAIT) != 0;
}

#endif
