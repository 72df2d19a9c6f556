/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contents of a channel's rings. A channel belongs to one client thread and has
 *
 *   per rail   op ring    (client -> rail,    64-byte entries) runs: abi/run.h
 *              done ring  (rail -> client,    16-byte entries) struct run_done
 *   once       ctl ring   (client -> control, 64-byte entries) struct ctl_op
 *              ctl done   (control -> client, 32-byte entries) struct ctl_done
 *
 * Bytes 14 and 15 of every entry, `turn`, belong to the ring (abi/ring.h). An op names remote
 * memory as a region of a peer and units, buckets or places in it; the rail looks up addresses and
 * keys in its own tables. The rail copies an entry once and validates the copy.
 */
#ifndef ABI_OP_H
#define ABI_OP_H

#include "engine/abi/page.h"

enum op_status {
#define STATUS(name, text) OP_##name,
#include "engine/abi/status.def"
#undef STATUS
	OP_STATUS_COUNT
};

/* Region numbers that are the same on every member. */
enum {
	/* region number of the pool of rail 0; that of rail r is REGION_POOL_0 + r */
	REGION_POOL_0 = 0,
	/* region number of the page heads of rail 0; that of rail r is REGION_HEADS_0 + r */
	REGION_HEADS_0 = REGION_POOL_0 + PLACE_RAILS,
	REGION_SHARD = REGION_HEADS_0 + PLACE_RAILS, /* region number of the directory shard */
	REGIONS_EXPORTED,    /* number of regions that peers may READ, because they get the keys */
	REGION_CLIENT_0 = 64 /* first region number of client memory */
};
static_assert(REGION_HEADS_0 == 16 && REGION_SHARD == 32, "as in engines of other versions");
static_assert(REGIONS_EXPORTED <= REGION_CLIENT_0, "client regions are never exported");

/* What an op reads; all are runs, see abi/run.h. */
enum op_kind {
	/* reads one page of any length, or whole slices of it, to segments in any regions */
	OP_PAGE = 2,
	/* reads up to 32 pages */
	OP_RUN = 3,
	/* reads up to 32 buckets of the directory shard, or pairs of page heads of any pools */
	OP_LOOKUP = 4,
};

struct op_segment {
	uint64_t offset; /* offset of the segment in its region, bytes */
	uint32_t length; /* length of the segment in bytes, at least 1 */
	/* region of the segment: a client region of this session, or the channel's staging
	 * region */
	uint16_t region;
	/* sequence number of the ring, in the first segment of a ring entry; else unused */
	uint16_t turn;
};
static_assert(sizeof(struct op_segment) == 16, "four to a slot");
static_assert(offsetof(struct op_segment, turn) == RING_TURN_AT, "the ring's");

#define OP_LINE_SEGMENTS 4u

struct op_segments {
	struct op_segment segment[OP_LINE_SEGMENTS];
};
static_assert(sizeof(struct op_segments) == 64, "one slot");

/* Number of ring entries of an OP_PAGE: one, and if it has several segments, theirs behind it. */
static inline uint32_t op_page_lines(uint32_t segments)
{
	return segments == 1 ? 1 : 1 + (segments + OP_LINE_SEGMENTS - 1) / OP_LINE_SEGMENTS;
}

/*
 * The number of segments and the region of an op or run, in one word of a ring entry. Both are
 * below their bounds; else bits are lost. A page has at least one segment: 0 is SEGMENTS_MAX.
 */
#define OP_SEGMENTS_BITS 10u
#define OP_REGION_BITS 6u
static_assert(OP_SEGMENTS_BITS + OP_REGION_BITS == 16, "one word");
static_assert(SEGMENTS_MAX == 1 << OP_SEGMENTS_BITS, "0 is the largest number of segments");
static_assert(REGIONS_EXPORTED <= 1 << OP_REGION_BITS, "a region of a peer has 6 bits");

static inline uint16_t op_pack(uint32_t segments, uint32_t region)
{
	return (uint16_t)((segments & ((1u << OP_SEGMENTS_BITS) - 1)) | region << OP_SEGMENTS_BITS);
}

static inline uint16_t op_unpack_segments(uint8_t kind, uint16_t segments_region)
{
	uint16_t segments = segments_region & ((1u << OP_SEGMENTS_BITS) - 1);

	return segments || kind == OP_LOOKUP ? segments : SEGMENTS_MAX;
}

static inline uint8_t op_unpack_region(uint16_t segments_region)
{
	return (uint8_t)(segments_region >> OP_SEGMENTS_BITS);
}

static_assert(NODES_MAX <= 1 << 16, "members are numbered in 16 bits");
static_assert(REGIONS_MAX <= 1 << 16, "numbered in 16 bits");
static_assert(PAGE_BYTES_MAX / SLICE_BYTES <= 256, "slices are counted in 8 bits");

#define OP_TIME_NS 1024u /* granularity of a deadline in a ring entry, ns */
/* longest time from posting an op to its deadline: 36 minutes */
#define OP_SPAN_NS ((uint64_t)INT32_MAX * OP_TIME_NS)
#define OP_TO_BITS 48u /* bits of run_header.to that are an offset, a stride or a length */

/*
 * The deadline in CLOCK_MONOTONIC ns whose low bits an op carries; `now_ns` is less than OP_SPAN_NS
 * away from it.
 */
static inline uint64_t op_deadline_ns(uint32_t deadline, uint64_t now_ns)
{
	uint64_t now = now_ns / OP_TIME_NS;
	int64_t left = (int32_t)(deadline - (uint32_t)now);

	return (uint64_t)((int64_t)now + left) * OP_TIME_NS;
}

enum ctl_kind {
	/* requests `count` credits: slots of `length` bytes in the pool of `rail`, for pages of the
	 * group of `key` */
	CTL_CREDIT = 1,
	/* publishes `count` pages of `length` bytes, which the client wrote at their places;
	 * consumes their credits (place, generation). The op has the first page, the entries behind
	 * it the others: struct ctl_page */
	CTL_PUBLISH = 2,
	CTL_RETURN = 3, /* returns the credit (place, generation), which the client has not used */
	CTL_TOUCH = 4,  /* reports that the page of `key` on the engine `ref` at `place` was read */
	CTL_STALE = 5, /* reports that the directory entry (key, ref, place, generation) is wrong */
	CTL_REMOVE = 6, /* removes the page of `key` from all members that hold it */
	/*
	 * ref 0: the client found no location of `key`: is it on a disk of this host? Else a
	 * directory entry says that it is on a disk of the engine `ref`. `count` says what for:
	 * enum ctl_promote
	 */
	CTL_PROMOTE = 7,
	/* reports that the page of `key` on the engine `ref` at (place, generation) had, when it
	 * was read, another CRC32C than its head says: the holder compares it */
	CTL_CORRUPT = 8,
	/* CTL_TOUCH for several pages of other engines: a struct ctl_touches */
	CTL_TOUCHES = 9,
	/*
	 * an exists found `key` on a disk of the engine `ref`: a get may follow, so the page is
	 * brought into memory if that engine has room
	 */
	CTL_WANT = 10,
	/*
	 * `key` has the bits of a group (page_key_grouped()), `count` is of CLEAR_*. OP_HIT: what
	 * this host has of it is gone, in memory and on disk; with CLEAR_CLUSTER: no client of the
	 * cluster finds what was stored before. OP_NO_SPACE: too many requests wait, or no memory.
	 * OP_PEER_DOWN: members have not taken the clear before the deadline; they do when they can
	 * be reached. `place` has the low 32 bits of the number of pages removed, `generation` the
	 * others; with CLEAR_CLUSTER `place` counts hosts that have taken it, `generation` others
	 */
	CTL_CLEAR = 11,
	/* limits of the group of `key` from now on: `cookie`, its quota, bytes, and `deadline_ns`,
	 * seconds after which its pages are gone; 0: none, -1: as it is */
	CTL_LIMITS = 12,
};

/* Bits of a CTL_CLEAR. */
#define CLEAR_ALL 1u     /* all groups */
#define CLEAR_CLUSTER 2u /* on all hosts */

/* What a CTL_PROMOTE is for. The engine of this host answers EXISTS and LOOK at once. */
enum ctl_promote {
	PROMOTE_GET = 0,    /* a get of `length` bytes: the page is brought into memory there */
	PROMOTE_EXISTS = 1, /* an exists; a get may follow, so the page may come into memory */
	PROMOTE_LOOK = 2,   /* is the page in memory or on a disk here? Nothing is changed */
	PROMOTE_ROOM = 3,   /* as PROMOTE_GET, of at most `length` bytes */
	/* the page (key, ref, place, generation, length, crc) of another engine is to be brought
	 * into a pool of this host; answered when that is queued. `publish`: PUBLISH_CRC */
	PROMOTE_COPY = 4,
	/* the page in memory here is not to be evicted for `length` seconds; 0: it may be again */
	PROMOTE_PIN = 5,
	PROMOTE_KINDS
};

/* Why a page is in a pool of this host. */
enum page_why {
	PAGE_STORED = 0, /* a client of this host has set it, or a disk of this host had it */
	PAGE_PREFETCHED, /* a copy that a client of this host has requested */
	PAGE_DRAINED,    /* a copy of a page of a host that was drained */
	PAGE_KEPT,       /* a copy of a page that a client of another host has stored */
	PAGE_HOT,        /* a copy of a page that clients of several hosts use again and again */
	PAGE_WHYS
};

#define PUBLISH_CRC 1u /* the CRCs are set: the client computes them */
#define PUBLISH_GAP                                                                                \
	2u /* a page before these of the prompt is not stored: the first to be evicted */

/*
 * A request of a client to the control plane. REMOVE, PROMOTE and CLEAR get one ctl_done,
 * PUBLISH and CREDIT by one or several, the others by none.
 */
struct ctl_op {
	uint64_t cookie; /* number chosen by the client; ctl_done returns it */
	uint8_t kind;    /* what the control plane is to do: enum ctl_kind */
	uint8_t rail;    /* CTL_CREDIT: index of the rail whose pool the slots come from */
	/* CTL_CREDIT: number of credits requested; CTL_PUBLISH: of pages, 1..CTL_PAGES_MAX;
	 * CTL_PROMOTE: enum ctl_promote; CTL_CLEAR: CLEAR_* */
	uint16_t count;
	uint16_t publish; /* CTL_PUBLISH: bits PUBLISH_* */
	uint16_t turn;
	struct page_key key;
	/* length of the page, bytes; CTL_CREDIT: of the pages that the slots are for */
	uint32_t length;
	uint32_t place;
	uint32_t generation;
	uint32_t ref;
	/* deadline of PUBLISH, REMOVE, CREDIT, PROMOTE, CLEAR: the answer arrives before it,
	 * CLOCK_MONOTONIC in ns; a clear of this host goes on behind it */
	uint64_t deadline_ns;
	uint32_t crc; /* CTL_PUBLISH: CRC32C of the page, its segments in page order */
	uint32_t spare;
};
static_assert(sizeof(struct ctl_op) == 64, "one slot");
static_assert(offsetof(struct ctl_op, turn) == RING_TURN_AT, "the ring's");

#define CTL_PAGES_MAX 32u /* pages of a CTL_PUBLISH: the bits of a mask */

/* A page of a CTL_PUBLISH behind the first one: half a ring entry. */
struct ctl_page {
	uint32_t place;
	uint32_t generation;
	uint32_t crc; /* as ctl_op.crc */
	uint16_t spare;
	uint16_t turn; /* of the ring, in the first half of an entry; else unused */
	struct page_key key;
};
static_assert(2 * sizeof(struct ctl_page) == sizeof(struct ctl_op), "two to an entry");
static_assert(offsetof(struct ctl_page, turn) == RING_TURN_AT, "the ring's");

/* Number of ring entries of a CTL_PUBLISH of `pages` >= 1 pages. */
static inline uint32_t ctl_lines(uint32_t pages)
{
	return 1 + pages / 2;
}
static_assert(CTL_PAGES_MAX <= 32, "masks have 32 bits");

/*
 * Page i of a CTL_PUBLISH, 1 <= i < count: its entry, counted from that of the op, and which half
 * of it.
 */
static inline uint32_t ctl_page_line(uint32_t i)
{
	return (i + 1) / 2;
}

static inline uint32_t ctl_page_half(uint32_t i)
{
	return (i + 1) % 2;
}

#define CTL_TOUCHES_MAX 6u

/* A CTL_TOUCHES, in the place of a ctl_op. */
struct ctl_touches {
	uint64_t spare;
	uint8_t kind; /* CTL_TOUCHES */
	uint8_t spare_byte;
	uint16_t count; /* number of pages, 1..CTL_TOUCHES_MAX */
	uint16_t spare_half;
	uint16_t turn;
	struct {
		uint32_t ref; /* the engine that has the page */
		uint32_t place;
	} page[CTL_TOUCHES_MAX];
};
static_assert(sizeof(struct ctl_touches) == sizeof(struct ctl_op), "one ring");
static_assert(offsetof(struct ctl_touches, kind) == offsetof(struct ctl_op, kind) &&
		      offsetof(struct ctl_touches, turn) == RING_TURN_AT,
	"the kind tells which of the two an entry is; the turn is the ring's");

/*
 * The answer to a ctl_op. A CREDIT gets one for each run of slots granted, which have places at one
 * distance and the same generation; then, if fewer than `count` were granted, one more for all
 * missing slots, with a status other than OP_HIT. A PUBLISH gets one for each status that pages of
 * it ended with, when all have ended: nearly always one.
 */
struct ctl_done {
	uint64_t cookie; /* cookie of the answered ctl_op */
	uint8_t kind;    /* kind of the answered request: enum ctl_kind */
	uint8_t why;     /* PROMOTE_LOOK, a page in memory: enum page_why */
	uint16_t count;  /* CTL_CREDIT: number of slots that are granted, or missing */
	uint16_t stride; /* CTL_CREDIT: distance between the places of two granted slots */
	uint16_t turn;
	uint32_t status; /* result of the request: enum op_status; OP_HIT: success */
	union {
		/* CTL_CREDIT: place of the first slot; CTL_PROMOTE: of the page, on the engine
		 * `ref` */
		uint32_t place;
		/* CTL_PUBLISH: bit i: page i has ended with `status` */
		uint32_t pages;
	};
	/* CTL_CREDIT: generation of the slots; CTL_PROMOTE: of the slot; with OP_HIT: 0 for a page
	 * that is on disk, not in memory. CTL_CLEAR has numbers in `place` and here: see clear.c */
	uint32_t generation;
	/* CTL_CREDIT: page length that the request named, bytes; CTL_PROMOTE, OP_INVALID: of the
	 * page, or 0 */
	uint32_t length;
};
static_assert(sizeof(struct ctl_done) == 32, "two to a cache line");
static_assert(offsetof(struct ctl_done, turn) == RING_TURN_AT, "the ring's");

#endif
