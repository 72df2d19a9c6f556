/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contents of a channel's rings. A channel belongs to one client thread and has
 *
 *   per rail   op ring    (client -> rail,    64-byte slots)   struct op_slot, then its segments
 *              done ring  (rail -> client,    16-byte slots)   struct op_done
 *   once       ctl ring   (client -> control, 64-byte slots)   struct ctl_op
 *              ctl done   (control -> client, 32-byte slots)   struct ctl_done
 *
 * Bytes 14 and 15 of every slot, `turn`, belong to the ring (abi/ring.h). An op names remote memory
 * as (peer, region, offset, length); the rail looks up addresses and keys in its own tables. The
 * rail copies a slot once and validates the copy.
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

/* Region numbers that are the same on every node. */
enum {
	REGION_POOL_0 = 0, /* the pool of rail r is REGION_POOL_0 + r */
	/* the page heads of rail r are REGION_HEADS_0 + r */
	REGION_HEADS_0 = REGION_POOL_0 + RAILS_MAX,
	REGION_SHARD = REGION_HEADS_0 + RAILS_MAX, /* region number of the directory shard */
	REGIONS_EXPORTED,    /* number of regions whose keys peers get and that they may READ */
	REGION_CLIENT_0 = 64 /* first number for memory of clients */
};
static_assert(REGIONS_EXPORTED <= REGION_CLIENT_0, "client regions are never exported");

enum op_kind {
	OP_READ = 1, /* reads `length` bytes of an exported region without validation (buckets) */
	/* reads a page of a pool region, or whole slices of it: `length` bytes from op_start()
	 * on. The rail READs the page head after the payload and compares it with key,
	 * generation and page_bytes */
	OP_PAGE = 2,
};

/* One request of a client to a rail. struct op_slot is its form in the ring. */
struct op {
	uint64_t cookie; /* number chosen by the client; returned in op_done */
	uint8_t kind;    /* enum op_kind */
	uint8_t slice; /* OP_PAGE: first slice, in SLICE_BYTES from the page's start; OP_READ: 0 */
	/* destination segments, 1..SEGMENTS_MAX; their lengths add up to `length` */
	uint16_t segments;
	uint8_t peer;   /* the member to read from: map_member.peer */
	uint8_t region; /* exported region of the peer, < REGIONS_EXPORTED */
	/* offset in the region, bytes; OP_PAGE: of the page's first byte, a multiple of
	 * PAGE_UNIT */
	uint64_t offset;
	uint32_t peer_ref;    /* map_member.ref: the op is for this incarnation of the peer only */
	uint32_t length;      /* bytes to read, 1..PAGE_BYTES_MAX */
	struct page_key key;  /* OP_PAGE: key expected in the page head */
	uint64_t deadline_ns; /* CLOCK_MONOTONIC after which the op ends with OP_TIMEOUT */
	uint32_t generation;  /* OP_PAGE: generation expected in the page head */
	uint32_t page_bytes;  /* OP_PAGE: page length expected in the page head; else 0 */
};
static_assert(sizeof(struct op) == 64, "one cache line");
static_assert(PAGE_BYTES_MAX / SLICE_BYTES <= 256, "slices are counted in 8 bits");

/* Offset in the region of the first byte to read. */
static inline uint64_t op_start(const struct op *op)
{
	return op->offset + (uint64_t)op->slice * SLICE_BYTES;
}

struct op_segment {
	uint64_t offset; /* offset in the region, bytes */
	uint32_t length; /* length of the segment in bytes, at least 1 */
	uint16_t region; /* a client region of this session, or the channel's staging region */
	uint16_t turn;   /* belongs to the ring in the first segment of a slot, else unused */
};
static_assert(sizeof(struct op_segment) == 16, "four to a slot");
static_assert(offsetof(struct op_segment, turn) == RING_TURN_AT, "the ring's");

struct op_segments {
	struct op_segment segment[4];
};
static_assert(sizeof(struct op_segments) == 64, "one slot");

/* Ring slots of an op. A single segment is contained in the op's own slot. */
static inline uint32_t op_slots(uint32_t segments)
{
	return segments == 1 ? 1 : 1 + (segments + 3) / 4;
}

/*
 * An op in its ring slot. Nearly every op has one segment: then this slot contains everything, and
 * one cache line moves from core to core. Otherwise ceil(segments / 4) slots of struct op_segments
 * follow, and `to` is not used.
 */
struct op_slot {
	uint64_t cookie;
	uint8_t kind, slice;
	uint16_t segments;
	uint8_t peer, region;
	uint16_t turn;
	uint64_t to; /* the single segment, region << 48 | offset; its length is `length` */
	uint32_t peer_ref;
	uint32_t length;
	struct page_key key;
	uint32_t deadline; /* low 32 bits of the deadline: CLOCK_MONOTONIC in units of OP_TIME_NS */
	uint32_t at;       /* op.offset in units of PAGE_UNIT (OP_PAGE) or OP_UNIT (OP_READ) */
	uint32_t generation;
	uint32_t page_bytes;
};
static_assert(sizeof(struct op_slot) == 64, "one slot");
static_assert(offsetof(struct op_slot, turn) == RING_TURN_AT, "the ring's");
static_assert(NODES_MAX <= 256 && REGIONS_EXPORTED <= 256, "numbered in 8 bits");
static_assert(REGIONS_MAX <= 1 << 16, "numbered in 16 bits");

#define OP_UNIT 32u      /* granularity of an OP_READ offset in bytes: half a bucket */
#define OP_TIME_NS 1024u /* granularity of a deadline in op_slot, ns */
/* limit of the time until an op's deadline: 36 minutes */
#define OP_SPAN_NS ((uint64_t)INT32_MAX * OP_TIME_NS)
#define OP_TO_BITS 48u /* bits of the offset in op_slot.to */

/*
 * Packs an op into its slot. `first` is its first segment. op->deadline_ns is less than OP_SPAN_NS
 * away and op->offset a multiple of the unit; else bits are lost.
 */
static inline void op_encode(
	const struct op *op, const struct op_segment *first, struct op_slot *ret)
{
	uint32_t unit = op->kind == OP_PAGE ? PAGE_UNIT : OP_UNIT;

	ret->cookie = op->cookie;
	ret->kind = op->kind;
	ret->slice = op->slice;
	ret->segments = op->segments;
	ret->peer = op->peer;
	ret->region = op->region;
	ret->to = (uint64_t)first->region << OP_TO_BITS | first->offset;
	ret->peer_ref = op->peer_ref;
	ret->length = op->length;
	ret->key = op->key;
	ret->deadline = (uint32_t)(op->deadline_ns / OP_TIME_NS);
	ret->at = (uint32_t)(op->offset / unit);
	ret->generation = op->generation;
	ret->page_bytes = op->page_bytes;
}

/*
 * Unpacks an op and its first segment from `slot`, a private copy that is not validated yet.
 * `now_ns` (CLOCK_MONOTONIC) completes the deadline. Segments in further slots are not read.
 */
static inline void op_decode(
	const struct op_slot *slot, uint64_t now_ns, struct op *ret, struct op_segment *ret_first)
{
	uint64_t now = now_ns / OP_TIME_NS;
	int64_t left = (int32_t)(slot->deadline - (uint32_t)now);

	ret->cookie = slot->cookie;
	ret->kind = slot->kind;
	ret->slice = slot->slice;
	ret->segments = slot->segments;
	ret->peer = slot->peer;
	ret->region = slot->region;
	ret->offset = (uint64_t)slot->at * (slot->kind == OP_PAGE ? PAGE_UNIT : OP_UNIT);
	ret->peer_ref = slot->peer_ref;
	ret->length = slot->length;
	ret->key = slot->key;
	ret->deadline_ns = (uint64_t)((int64_t)now + left) * OP_TIME_NS;
	ret->generation = slot->generation;
	ret->page_bytes = slot->page_bytes;
	*ret_first = (struct op_segment){.region = (uint16_t)(slot->to >> OP_TO_BITS),
		.length = slot->length,
		.offset = slot->to & ((1ull << OP_TO_BITS) - 1)};
}

/* The completion of an op. */
struct op_done {
	uint64_t cookie; /* cookie of the op */
	uint32_t status; /* enum op_status */
	uint16_t spare;
	uint16_t turn;
};
static_assert(sizeof(struct op_done) == 16, "four to a cache line");
static_assert(offsetof(struct op_done, turn) == RING_TURN_AT, "the ring's");

enum ctl_kind {
	CTL_CREDIT = 1, /* requests `count` page slots of `length` bytes in the pool of `rail` */
	/* the page of `key` is written at `place`; consumes the credit (place, generation) */
	CTL_PUBLISH = 2,
	CTL_RETURN = 3, /* returns the unused credit (place, generation) */
	CTL_TOUCH = 4,  /* the page of `key` on engine `ref` at `place` was read */
	CTL_STALE = 5, /* the directory entry (key, ref, place, generation) was found to be wrong */
	CTL_REMOVE = 6, /* removes the page of `key` from all members */
};

/*
 * A request of a client to the control plane. PUBLISH and REMOVE are answered by one ctl_done,
 * CREDIT by one or several, the others by none.
 */
struct ctl_op {
	uint64_t cookie; /* number chosen by the client; returned in ctl_done */
	uint8_t kind;    /* enum ctl_kind */
	uint8_t rail;    /* CTL_CREDIT: index of the rail whose pool the slots come from */
	uint16_t count;  /* CTL_CREDIT: number of slots */
	uint16_t spare;
	uint16_t turn;
	struct page_key key;
	uint32_t length; /* length of the page, bytes */
	uint32_t place;
	uint32_t generation;
	uint32_t ref;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC by which PUBLISH, REMOVE and CREDIT are answered */
	uint64_t spare2;
};
static_assert(sizeof(struct ctl_op) == 64, "one slot");
static_assert(offsetof(struct ctl_op, turn) == RING_TURN_AT, "the ring's");

/*
 * The answer to a ctl_op. A CREDIT gets one for each slot granted, with its place; then, if fewer
 * than `count` were granted, one more for all missing slots, with a status other than OP_HIT.
 */
struct ctl_done {
	uint64_t cookie; /* cookie of the ctl_op */
	uint8_t kind;    /* enum ctl_kind of the request */
	uint8_t spare[5];
	uint16_t turn;
	uint32_t status;     /* enum op_status; OP_HIT: success */
	uint32_t place;      /* CTL_CREDIT: place of the granted slot */
	uint32_t generation; /* CTL_CREDIT: generation of the granted slot */
	uint32_t length;     /* CTL_CREDIT: page length that was requested, bytes */
};
static_assert(sizeof(struct ctl_done) == 32, "two to a cache line");
static_assert(offsetof(struct ctl_done, turn) == RING_TURN_AT, "the ring's");

#endif
