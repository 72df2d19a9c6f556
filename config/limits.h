/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every bound of the tree, in one place, with the relations between them checked.
 *
 * Included by everything; includes nothing of ours. A number that comes from the wire, a ring, a
 * file or a user is compared with one of these before it is used.
 */
#ifndef CONFIG_LIMITS_H
#define CONFIG_LIMITS_H

#include <assert.h>

/* Machine and cluster. */
#define RAILS_MAX 16   /* NICs of one host that one engine drives; 4 bits of a place */
#define NODES_MAX 256  /* live engines in one cluster */
#define VNODES 64      /* points of one node on the hash ring */
#define REPLICAS_MAX 4 /* directory owners per key */
#define SEEDS_MAX 16   /* discovery addresses in the settings */

/* Pages and pools. */
#define PAGE_UNIT 4096u           /* a page starts at a multiple of this; one page head per unit */
#define PAGE_UNITS_MAX (1u << 28) /* units one pool can have: 1 TiB; 28 bits of a place */
#define PAGE_BYTES_MAX (64u << 20)
#define SEGMENTS_MAX 512         /* pieces of client memory that one page is scattered to */
#define SLICE_BYTES (256u << 10) /* a READ is never longer: bigger pages are split */
#define CLASSES_MAX 64           /* distinct page sizes (in units) one pool serves at a time */

/* Clients of one engine. */
#define SESSIONS_MAX 64            /* attached processes */
#define CHANNELS_MAX 256           /* client threads of all sessions together */
#define REGIONS_MAX 2048           /* registered memory ranges, the engine's own included */
#define CHANNELS_SESSION_MIN 16    /* a session's share of those left, at least: attach.h */
#define RANGES_SESSION_MIN 64      /* the same, of registered memory ranges */
#define EXTENTS_SESSION_MIN 512    /* the same, of their extents */
#define EXTENT_BYTES_MIN PAGE_UNIT /* a range is registered in pieces no smaller than this */
#define EXTENTS_MAX 7168u          /* ... of which all ranges together have so many on each NIC */
#define KEY_BYTES_MAX 1024         /* a page key, before it is hashed */
#define BATCH_MAX 65536            /* pages in one call of the client library */
#define STAGING_BYTES (8u << 20)   /* per channel, for destinations nobody registered */
#define CREDITS_MAX 4096           /* page credits one channel may hold */

/* Rings: slots, powers of two. */
#define OP_RING_SLOTS 2048u   /* client -> rail, 64-byte slots: an op and its segments */
#define DONE_RING_SLOTS 2048u /* rail -> client, 16-byte slots */
#define CTL_RING_SLOTS 4096u  /* client -> control, 64-byte slots */
#define CTL_DONE_SLOTS 4096u  /* control -> client, 32-byte slots */
#define INBOX_SLOTS 1024u     /* control -> rail and rail -> control, 64-byte slots */

/* One rail. */
#define RAIL_REQUESTS 2048u             /* operations a rail has under way */
#define RAIL_TAKE_BURST 64u             /* operations taken from one channel in one step */
#define RAIL_REAP_BURST 64u             /* CQEs consumed in one step */
#define RAIL_IN_FLIGHT_BYTES (1u << 20) /* payload on the wire per rail: four round trips at 400G */
#define RAIL_TAKEN_BYTES (2u << 20)     /* ... and of pages that wait for their heads beside it */
#define RAIL_SIGNAL_WQES 8u           /* at most so many READs of a queue share a completion ... */
#define RAIL_SIGNAL_BYTES (32u << 10) /* ... and of longer ones fewer: from here on one each */
#define RAIL_HEADS_SPAN 32u          /* page heads, wanted or between two wanted, in one READ ... */
#define RAIL_HEADS_GAP 8u            /* ... no two wanted ones further apart than this */
#define RAIL_BULK_BYTES (512u << 10) /* of long READs on one queue before another is looked for */
#define RAIL_SMALL_BYTES PAGE_UNIT   /* a READ up to this keeps off queues with longer ones */
#define QP_DEPTH 64u       /* WQEBBs of one send queue; a NIC runs 16 READs of it at once */
#define QPS_PER_PEER_MAX 8 /* queue pairs from one rail to one peer */
#define CQ_DEPTH 512u      /* WQEs of a rail under way, half of them to one peer */

/* Messages between engines. */
#define MESSAGE_BYTES_MAX (4u << 20)
#define MESSAGE_PAGES_MAX 4096 /* entries in one publish, remove or touch */
#define NAME_BYTES_MAX 64      /* node name, device name, address */

static_assert((OP_RING_SLOTS & (OP_RING_SLOTS - 1)) == 0, "rings mask their indices");
static_assert((DONE_RING_SLOTS & (DONE_RING_SLOTS - 1)) == 0, "rings mask their indices");
static_assert((CTL_RING_SLOTS & (CTL_RING_SLOTS - 1)) == 0, "rings mask their indices");
static_assert((CTL_DONE_SLOTS & (CTL_DONE_SLOTS - 1)) == 0, "rings mask their indices");
static_assert((INBOX_SLOTS & (INBOX_SLOTS - 1)) == 0, "rings mask their indices");
static_assert((QP_DEPTH & (QP_DEPTH - 1)) == 0, "the device masks its WQE index");
static_assert((CQ_DEPTH & (CQ_DEPTH - 1)) == 0, "the owner bit follows from the index");
static_assert(1 + (SEGMENTS_MAX + 3) / 4 < OP_RING_SLOTS, "the largest op fits its ring");
static_assert(RAIL_HEADS_SPAN * 32 <= RAIL_SMALL_BYTES, "a READ of page heads is a small one");
static_assert(SLICE_BYTES <= RAIL_IN_FLIGHT_BYTES, "one slice may always be posted");
static_assert(CREDITS_MAX <= CTL_DONE_SLOTS, "grants never overflow the ring they arrive in");
static_assert(RAILS_MAX <= 16 && PAGE_UNITS_MAX <= 1u << 28, "a place is 4 + 28 bits");

#endif
