/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of libpeercache: sizes, limits and times. */
#ifndef CLIENT_CONSTANTS_H
#define CLIENT_CONSTANTS_H

#include "engine/abi/run.h"
#include "engine/abi/segment.h"

#define CLIENT_NONE UINT32_MAX
#define SOCKET_DEFAULT "/run/peercache/engine.sock"

/*
 * The front of the staging region consists of scratch slots of 64 bytes, one per bucket or page
 * head being READ.
 */
#define SCRATCH_SLOTS 4096u
#define SCRATCH_BYTES (SCRATCH_SLOTS * 64u)
/* staging blocks of a channel, one for each page in staging; a power of two */
#define STAGING_BLOCKS 1024u
/* bytes that one op READs into staging, at most: a longer page goes through it in pieces */
#define STAGING_PIECE_BYTES (8 * SLICE_BYTES)
/* locations that a channel's location cache is to remember: more than 98% of them are found */
#define CACHE_LOCATIONS 65536u
#define CACHE_WAYS 8u                                 /* entries of one set of the location cache */
#define CACHE_SETS (2 * CACHE_LOCATIONS / CACHE_WAYS) /* a power of two */
/* finished batches of a channel whose memory is kept; longer ones than SPARE_PAGES_MAX: one */
#define SPARE_BATCHES_MAX 16u
#define SPARE_PAGES_MAX 1024u
#define RUN_GROUPS_MAX 32u /* groups of pages that a step plans at the same time */
#define RUN_PLAN_MAX 256u  /* pages that are planned together; a power of two */
#define LOOK_OPEN_MAX 16u  /* runs of look-ups that one step makes at the same time */
/* buckets that the lines of the longest run of look-ups have room for */
#define LOOK_BUCKETS (RUN_HEADER_BUCKETS + 2 * RUN_LINE_BUCKETS)
/* bytes of a run's pages, at most: a rail has room for two runs, so it is busy between them */
#define RUN_BYTES (STRIPE_BYTES / 2)
#define TOUCH_BYTES (2u << 20) /* bytes of a pool that one madvise() call maps for writing */
/* credits in stock, at most, for one page size and rail, and their bytes: more than the client
 * copies while the control plane waits for a core */
#define CREDIT_STOCK_MAX 128u
#define CREDIT_STOCK_BYTES (16u << 20)
/* and at most this part of the rail's pool: a client that is stopped keeps them */
#define CREDIT_STOCK_SHARE 16u
/* a set publishes the pages that it has copied, and requests credits, each time it has copied this
 * many bytes */
#define SET_PUBLISH_BYTES (1u << 20)
/* credits requested beyond the missing ones; doubled each time a stock is empty */
#define CREDIT_AHEAD 2u
/* limit of the credits requested beyond the missing ones: pool size / 64 */
#define CREDIT_AHEAD_SHARE 64u
#define SKIP_MAX 64u /* pages without a credit that one step of a set may pass over */
/* a ctl ring with this many unpublished entries is published at once */
#define FLUSH_SLOTS 64u
/* other locations kept for a page; they are tried if the first is wrong */
#define PAGE_OTHERS 3
#define STRIPE_BYTES (2u << 20) /* bytes that a channel may have in flight on one rail */
/* the same limit for an op longer than a slice: it holds more than two of them */
#define STRIPE_BYTES_BIG (4u << 20)

#define FRESH_NS 1000000000ull    /* how long exists and set trust a location in the cache */
#define TOUCH_NS 1000000000ull    /* minimum time between two CTL_TOUCH for one page */
#define TOUCH_HEAD_NS 50000000ull /* the same for look-ups of heads, see pc_channel_head() */
/* minimum time between two wake-ups of the control plane for touches alone: it sends them to their
 * holders every 20 ms */
#define TOUCH_WAKE_NS 2000000ull
#define PEER_REST_NS 1000000000ull  /* after a failed READ a peer is tried last for this time */
#define PEER_LOAD_NS 50000000ull    /* half-life of pc_channel.peer_load */
#define RAIL_REST_NS 100000000ull   /* after a failed op a rail is used last for this time */
#define REFUSED_NS 20000000ull      /* how long a refused request for credits stops new ones */
#define STOCK_IDLE_NS 1000000000ull /* credits that are not used for this time are returned */
#define REATTACH_NS 200000000ull    /* minimum time between two starts of the attach thread */
#define SLEEP_NS_MAX 100000000ull   /* longest time between two steps of a channel that waits */
#define DEVICE_LOOK_NS 50000ull /* time between checks of copies to GPU memory, if not waited for */
#define LOOK_AROUND_NS 10000000ull /* time between checks of the session's socket */
/* longest time until the deadline of one op; the rail has the same limit */
#define SHARE_NS_MAX 60000000000ull
#define ANSWER_GRACE_NS 10000000ull  /* how long answers are awaited after a batch's deadline */
#define DRAIN_WARN_NS 1000000000ull  /* a wait for the engine's NIC of this length is logged */
#define LENT_MS_MAX 150000u          /* longest status_segment.lent_ms that is waited for */
#define ATTACH_WAIT_NS 1000000000ull /* longest time that a call waits for the attach thread */

static_assert(SCRATCH_SLOTS % 32 == 0 && RUN_PAGES_MAX <= 32, "a run's slots are in one word");
static_assert(RAILS_MAX * DONE_RING_SLOTS + CTL_DONE_SLOTS <= 65536, "see request_cookie()");
static_assert(SCRATCH_BYTES + STAGING_PIECE_BYTES < STAGING_BYTES_MIN, "a piece fits");
static_assert(CREDIT_STOCK_MAX <= CREDITS_MAX, "one size may be stocked");

#endif
