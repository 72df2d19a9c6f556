/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels in a channel's rings. One channel belongs to one client thread and has
 *
 *   per rail   op ring    (client -> rail,    64-byte slots)   struct op_slot, then its segments
 *              done ring  (rail -> client,    16-byte slots)   struct op_done
 *   once       ctl ring   (client -> control, 64-byte slots)   struct ctl_op
 *              ctl done   (control -> client, 32-byte slots)   struct ctl_done
 *
 * Bytes 14 and 15 of every slot, `turn`, are the ring's. A place is always (peer, region, offset,
 * length) here; addresses and keys of the NIC are looked up by the rail in its own tables. The rail
 * copies a slot once and validates the copy.
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

/* Well-known region numbers, the same on every node. */
enum {
	REGION_POOL_0 = 0,                          /* pool of rail r: REGION_POOL_0 + r */
	REGION_HEADS_0 = REGION_POOL_0 + RAILS_MAX, /* its page heads */
	REGION_SHARD = REGION_HEADS_0 + RAILS_MAX,  /* the directory shard */
	REGIONS_EXPORTED,                           /* what a peer learns about and may READ */
	REGION_CLIENT_0 = 64                        /* first number given to a client's memory */
};
static_assert(REGIONS_EXPORTED <= REGION_CLIENT_0, "client regions are never exported");

enum op_kind {
	OP_READ = 1, /* `length` bytes of an exported region; nothing is validated (buckets) */
	OP_PAGE = 2, /* a page of a pool region, or slices of it: `length` bytes from op_start() on;
			the page's head is READ after the payload and compared */
};

/* What is asked for; how it travels: struct op_slot. */
struct op {
	uint64_t cookie;      /* comes back in op_done */
	uint8_t kind;         /* enum op_kind */
	uint8_t slice;        /* OP_PAGE: starts so many SLICE_BYTES into the page; else 0 */
	uint16_t segments;    /* 1..SEGMENTS_MAX pieces of destination; they add up to `length` */
	uint8_t peer;         /* map_member.peer */
	uint8_t region;       /* of the peer */
	uint64_t offset;      /* in that region, bytes; OP_PAGE: of the page, whatever the slice */
	uint32_t peer_ref;    /* map_member.ref: the op is for this incarnation and no other */
	uint32_t length;      /* bytes to read, 1..PAGE_BYTES_MAX */
	struct page_key key;  /* OP_PAGE: expected in the head */
	uint64_t deadline_ns; /* CLOCK_MONOTONIC, absolute */
	uint32_t generation;  /* OP_PAGE: expected in the head */
	uint32_t page_bytes;  /* OP_PAGE: expected in the head; else 0 */
};
static_assert(sizeof(struct op) == 64, "one cache line");
static_assert(PAGE_BYTES_MAX / SLICE_BYTES <= 256, "slices are counted in 8 bits");

/* Where in the region the bytes begin. */
static inline uint64_t op_start(const struct op *op)
{
	return op->offset + (uint64_t)op->slice * SLICE_BYTES;
}

struct op_segment {
	uint64_t offset; /* in that region */
	uint32_t length; /* bytes, >= 1 */
	uint16_t region; /* a client region of this session, or the channel's staging region */
	uint16_t turn;   /* of the first of a slot */
};
static_assert(sizeof(struct op_segment) == 16, "four to a slot");
static_assert(offsetof(struct op_segment, turn) == RING_TURN_AT, "the ring's");

struct op_segments {
	struct op_segment segment[4];
};
static_assert(sizeof(struct op_segments) == 64, "one slot");

/* Slots of an op: one with one segment has it in its own. */
static inline uint32_t op_slots(uint32_t segments)
{
	return segments == 1 ? 1 : 1 + (segments + 3) / 4;
}

/*
 * One slot: with one segment, which is what nearly every op has, all of it goes from core to core
 * in one cache line. Otherwise ceil(segments / 4) slots of struct op_segments follow, and `to` is
 * not used.
 */
struct op_slot {
	uint64_t cookie;
	uint8_t kind, slice;
	uint16_t segments;
	uint8_t peer, region;
	uint16_t turn;
	uint64_t to; /* the segment: region << 48 | offset; its length is `length` */
	uint32_t peer_ref;
	uint32_t length;
	struct page_key key;
	uint32_t deadline; /* CLOCK_MONOTONIC / OP_TIME_NS, low bits: within OP_SPAN_NS */
	uint32_t at;       /* offset, in units of PAGE_UNIT for OP_PAGE, else of OP_UNIT */
	uint32_t generation;
	uint32_t page_bytes;
};
static_assert(sizeof(struct op_slot) == 64, "one slot");
static_assert(offsetof(struct op_slot, turn) == RING_TURN_AT, "the ring's");
static_assert(NODES_MAX <= 256 && REGIONS_EXPORTED <= 256, "numbered in 8 bits");
static_assert(REGIONS_MAX <= 1 << 16, "numbered in 16 bits");

#define OP_UNIT 32u /* a page head; a bucket has two */
#define OP_TIME_NS 1024u
#define OP_SPAN_NS ((uint64_t)INT32_MAX * OP_TIME_NS) /* 36 minutes */
#define OP_TO_BITS 48u

/* `first`: its first segment. The deadline is less than OP_SPAN_NS away. */
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

/* Everything but segments that follow; `slot` is a copy, and says what it likes. */
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

struct op_done {
	uint64_t cookie;
	uint32_t status; /* enum op_status */
	uint16_t spare;
	uint16_t turn;
};
static_assert(sizeof(struct op_done) == 16, "four to a cache line");
static_assert(offsetof(struct op_done, turn) == RING_TURN_AT, "the ring's");

enum ctl_kind {
	CTL_CREDIT = 1,  /* asks for `count` page slots of `length` bytes in the pool of `rail` */
	CTL_PUBLISH = 2, /* the page of `key` is written at `place`; a credit is used up */
	CTL_RETURN = 3,  /* a credit is given back unused: place, generation */
	CTL_TOUCH = 4,   /* the page of `key` on node `ref` at `place` was read */
	CTL_STALE = 5,   /* the entry (key, ref, place, generation) was found to be wrong */
	CTL_REMOVE = 6,  /* forget `key`, wherever it is */
};

/* Answered by one ctl_done per PUBLISH and REMOVE, several per CREDIT, nothing otherwise. */
struct ctl_op {
	uint64_t cookie;
	uint8_t kind; /* enum ctl_kind */
	uint8_t rail; /* CTL_CREDIT: whose pool */
	uint16_t count;
	uint16_t spare;
	uint16_t turn;
	struct page_key key;
	uint32_t length; /* page bytes */
	uint32_t place;
	uint32_t generation;
	uint32_t ref;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC; PUBLISH, REMOVE and CREDIT are answered by then */
	uint64_t spare2;
};
static_assert(sizeof(struct ctl_op) == 64, "one slot");
static_assert(offsetof(struct ctl_op, turn) == RING_TURN_AT, "the ring's");

/*
 * CREDIT: one of these for each slot that is granted, with its place; then, if fewer than `count`
 * were, one more with a status other than OP_HIT for all that are missing.
 */
struct ctl_done {
	uint64_t cookie;
	uint8_t kind; /* enum ctl_kind of what is answered */
	uint8_t spare[5];
	uint16_t turn;
	uint32_t status;     /* enum op_status; OP_HIT: done */
	uint32_t place;      /* CTL_CREDIT */
	uint32_t generation; /* CTL_CREDIT */
	uint32_t length;     /* CTL_CREDIT: page bytes the slot was asked for */
};
static_assert(sizeof(struct ctl_done) == 32, "two to a cache line");
static_assert(offsetof(struct ctl_done, turn) == RING_TURN_AT, "the ring's");

#endif
