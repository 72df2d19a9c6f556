/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every limit of the tree, in one place; static_asserts check the relations between them.
 *
 * Every folder may include this file; it includes no other file of the tree. A number that comes
 * from the wire, a ring, a file or a user is compared with one of these limits before it is used.
 * Constants only: any thread.
 */
#ifndef CONFIG_LIMITS_H
#define CONFIG_LIMITS_H

#include <assert.h>

/* Limits of a machine and of the cluster. */
#define RAILS_MAX 15 /* NICs that one engine drives */
/* rail numbers that 4 bits of a place can express; the last one is no rail, see PLACE_DISK */
#define PLACE_RAILS 16
#define NODES_MAX 16384 /* live engines in one cluster */
#define OWNERS_MAX 256  /* members that own slots of the directory, at most */
#define REPLICAS_MAX 4  /* directory owners of one key, at most */
#define SEEDS_MAX 16    /* addresses in the setting cluster.seeds, at most */

/* Limits of pages and pools. */
/* Bytes of a unit; a slot starts at a multiple of it; each unit has a page head. */
#define PAGE_UNIT 4096u
/* units of one pool: 1 TiB; 28 bits of a place are the number of the unit */
#define PAGE_UNITS_MAX (1u << 28)
#define PAGE_BYTES_MAX (64u << 20) /* longest page */
#define SEGMENTS_MAX 1024          /* destination segments that one page is scattered to */
/* bytes of the longest READ; a longer page is read in several slices */
#define SLICE_BYTES (256u << 10)
#define CLASSES_MAX 64 /* size classes that one pool has at a time */

/* Limits of the clients of one engine. */
#define SESSIONS_MAX 64         /* attached client processes */
#define CLIENT_IDS_MAX 32       /* entries of engine.allowed_users, and of each list like it */
#define CLIENT_GROUPS_MAX 65536 /* supplementary groups of a process: NGROUPS_MAX of Linux */
#define CHANNELS_MAX 256        /* channels of all sessions together */
#define REGIONS_MAX 2048        /* regions of one engine, its own included, at most */
/*
 * What a session may have while enough is left (_MIN), and what it gets whatever the others have
 * taken (_SURE); see session_may_take() of control/clients/clients.c
 */
#define CHANNELS_SESSION_MIN 16
#define CHANNELS_SESSION_SURE 2 /* one to read, one to write */
#define RANGES_SESSION_MIN 64
#define RANGES_SESSION_SURE 8
#define EXTENTS_SESSION_MIN 512
#define EXTENTS_SESSION_SURE 32
/*
 * Users that are sure of a part of the sessions, at most, and that part: see user_may_attach() of
 * control/clients/clients.c
 */
#define USERS_SURE 8
#define SESSIONS_USER_SURE 4
/* What a single session can get of a total of which each session is sure to get a part. */
#define SESSION_ALONE(total, sure) (((total) - (SESSIONS_MAX - 1) * (sure)) / 2)
#define EXTENT_BYTES_MIN PAGE_UNIT /* length of the shortest extent of a registered range, bytes */
/* extents on each NIC, of the registered ranges of all sessions together */
#define EXTENTS_MAX 7168u
#define KEY_BYTES_MAX 1024 /* bytes of the longest key that a client may pass; keys are hashed */
#define BATCH_MAX 65536    /* pages in one call of the client library */
/*
 * bytes of staging memory of one channel, for destinations that are not registered: limits of
 * engine.staging_bytes
 */
#define STAGING_BYTES_MIN (4u << 20)
#define STAGING_BYTES_MAX (256u << 20)
#define CREDITS_MAX 4096 /* credits that one channel may have at a time */

/* Number of entries of each ring, a power of two, and their length. */
/* op ring, client to rail; entries of 64 bytes, an op has one or more */
#define OP_RING_SLOTS 2048u
#define DONE_RING_SLOTS 2048u /* done ring, rail to client; entries of 16 bytes */
#define CTL_RING_SLOTS 4096u  /* ctl ring, client to control plane; entries of 64 bytes */
#define CTL_DONE_SLOTS 4096u  /* ctl done ring, control plane to client; entries of 32 bytes */
/* inbox, control plane to rail, and its events back; entries of 64 bytes */
#define INBOX_SLOTS 1024u

/* Limits of one rail. A READ above RAIL_SMALL_BYTES is long, any other one is small. */
/* connections of one rail to members that it reads from, those that end included */
#define RAIL_CONNECTIONS_MAX 512
#define RAIL_TAKE_BURST 64u /* pages or buckets after which a step leaves a channel's ring */
#define RAIL_REAP_BURST 64u /* CQEs that one step of a rail consumes */
/* Bytes of posted READs in flight on one rail: four round trips at 400 Gbit/s. */
#define RAIL_IN_FLIGHT_BYTES (1u << 20)
/* Bytes of all ops that a rail has taken and not answered; some wait only for their page heads. */
#define RAIL_TAKEN_BYTES (2u << 20)
#define RAIL_SIGNAL_WQES 8u /* READs of a send queue that share one completion (one CQE), at most */
/*
 * Bytes of READs that share one completion, at most; the READ that reaches the limit requests one.
 */
#define RAIL_SIGNAL_BYTES (32u << 10)
/*
 * page heads in one READ of heads, at most, including heads that no page needs; shorter than a
 * page, because software NICs that move no pages know heads by the length of the READ
 */
#define RUN_HEADS_SPAN 127u
/*
 * Long READs stay on one queue until it has this many bytes in flight, then use the least loaded
 * queue.
 */
#define RAIL_BULK_BYTES (512u << 10)
/* Bytes of the longest small READ; small READs avoid queues with long READs. */
#define RAIL_SMALL_BYTES PAGE_UNIT
#define QP_DEPTH 64u       /* WQEBBs of one send queue; a NIC executes 16 READs of a QP at a time */
#define QPS_PER_PEER_MAX 8 /* QPs from one rail to one peer */
#define CQ_DEPTH 512u      /* WQEs in flight on one rail; one connection may have half of them */

/* Limits of messages from engine to engine. */
#define MESSAGE_BYTES_MAX (4u << 20) /* bytes of the longest message between two engines */
/* bytes that a probe is padded with: its largest packet fills a jumbo frame */
#define PROBE_PAD_BYTES 9000u
#define MESSAGE_PAGES_MAX 4096 /* entries in one publish, remove or touch message */
/*
 * links that one engine accepts, below the member limit: it keeps them with its neighbours and with
 * members in use; one that is refused dials again
 */
#define LINKS_ACCEPTED_MAX 2048
/* bytes of a member name, device name or address, with the terminating zero */
#define NAME_BYTES_MAX 64

/* Limits of the disk tier. */
#define DISK_PATHS_MAX 8 /* directories of one engine, at most */
#define DISK_SEGMENT_BYTES (256u << 20)
/* segments of one engine, all paths together: 16 TiB; 16 bits of an index entry */
#define DISK_SEGMENTS_MAX 65535u
#define DISK_SEGMENTS_MIN 6u /* segments of one path, at least */
#define DISK_BLOCK_PAGES 64u /* pages that one header block describes */
/* A block is written when it has DISK_BLOCK_PAGES pages or this many bytes, or the path is idle. */
#define DISK_BLOCK_BYTES (4u << 20)
#define DISK_BLOCKS_FLIGHT 8u /* blocks of one path that are being written at a time */
#define DISK_READS_FLIGHT 64u /* pages of one path that are being read at a time */
/* bytes of pages that wait for their write on one path; above it pages are dropped */
#define DISK_QUEUE_BYTES (128u << 20)
/* read errors (EIO, short read, wrong CRC) after which a path is taken out of service */
#define DISK_READ_ERRORS_MAX 64u

static_assert((OP_RING_SLOTS & (OP_RING_SLOTS - 1)) == 0, "rings mask their indices");
static_assert((DONE_RING_SLOTS & (DONE_RING_SLOTS - 1)) == 0, "rings mask their indices");
static_assert((CTL_RING_SLOTS & (CTL_RING_SLOTS - 1)) == 0, "rings mask their indices");
static_assert((CTL_DONE_SLOTS & (CTL_DONE_SLOTS - 1)) == 0, "rings mask their indices");
static_assert((INBOX_SLOTS & (INBOX_SLOTS - 1)) == 0, "rings mask their indices");
static_assert((QP_DEPTH & (QP_DEPTH - 1)) == 0, "the device masks its WQE index");
static_assert((CQ_DEPTH & (CQ_DEPTH - 1)) == 0, "the owner bit is a bit of the consumer index");
static_assert(1 + (SEGMENTS_MAX + 3) / 4 < OP_RING_SLOTS, "the largest op fits its ring");
static_assert(RUN_HEADS_SPAN * 32 <= RAIL_SMALL_BYTES, "a READ of page heads is a small READ");
static_assert(RUN_HEADS_SPAN * 32 < PAGE_UNIT, "a READ of page heads is shorter than a page");
static_assert(SLICE_BYTES <= RAIL_IN_FLIGHT_BYTES, "an idle rail can post one slice");
static_assert(CREDITS_MAX <= CTL_DONE_SLOTS, "all credits of a channel fit its control done ring");
static_assert(DISK_SEGMENT_BYTES / PAGE_UNIT <= 65536, "16 bits are the unit of a segment");
static_assert(2ull * PAGE_BYTES_MAX < DISK_SEGMENT_BYTES, "the longest page fits a segment");
static_assert(PLACE_RAILS <= 16 && PAGE_UNITS_MAX <= 1u << 28, "a place is 4 + 28 bits");
static_assert(RAILS_MAX < PLACE_RAILS, "one rail number is left for the disk");

#endif
