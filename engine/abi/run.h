/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs: one op for up to RUN_PAGES_MAX pages (OP_RUN), directory buckets or page heads (OP_LOOKUP)
 * of one peer, or for one page of any length and destination (OP_PAGE); and one completion for all
 * of it. Rings and segments are those of abi/op.h.
 *
 *   Ring entries of a run: "lines" of 64 bytes, each of two halves. Bytes 14 and 15 of every line
 *   belong to the ring.
 *
 *     OP_RUN     half 0: header   half 1: entry 0 | entry 1   entry 2 | entry 3   entry 4 | ...
 *     OP_LOOKUP  half 0: header   half 1: buckets 0 to 7      | buckets 8 to 22 | 23 to 37 | ...
 *     OP_PAGE    half 0: header   half 1: entry 0 | segments 0 to 3 | segments 4 to 7 | ...
 *
 * All pages of a run have the same peer, pool, length and destination region. A page consists of
 * `segments` segments of equal length: segment j of page i lies at to(i) + j * stride of that
 * region. Bucket i of a look-up is READ to to + 64 * i. A look-up in page heads has places of
 * pages, in pools of any rails, instead of indexes of buckets. It READs pairs of heads, each as
 * long as a bucket: pair unit / 2 of a pool has the head of a unit. What this file says of buckets
 * holds for pairs of heads.
 *
 * An OP_PAGE reads a page, or whole slices of it: `length` bytes from slice `slice` on. A single
 * segment is where the entry says, and no line of segments follows. The rail READs the page head
 * after the payload and compares it with the key and generation of the entry and with page_bytes.
 *
 * The rail copies all lines of a run once and validates the copy. One invalid line rejects the
 * whole run with OP_INVALID, before any READ is posted. The run is answered once, when the NIC
 * holds nothing of it.
 */
#ifndef ABI_RUN_H
#define ABI_RUN_H

#include <string.h>

#include "engine/abi/bucket.h"
#include "engine/abi/op.h"

#define RUN_PAGES_MAX 32u /* pages or buckets of one run: the bits of a mask */
/* longest page of an OP_RUN, bytes: that of one READ; a longer page is an OP_PAGE, or several */
#define RUN_PAGE_BYTES_MAX SLICE_BYTES
#define RUN_HEADER_BUCKETS 8u   /* buckets named in the header's line of an OP_LOOKUP */
#define RUN_LINE_BUCKETS 15u    /* buckets named in each further line of an OP_LOOKUP */
#define RUN_LINES_MAX 17u       /* lines of the longest run: the header and 32 entries */
#define RUN_LINE_BYTES 64u      /* a line: one entry of an op ring */
#define RUN_TO_MAX (1ull << 48) /* offsets and strides in a destination region are below this */

/* The header of a run, unpacked. */
struct run {
	uint32_t cookie;   /* number chosen by the client; run_done returns it */
	uint32_t peer_ref; /* map_member.ref: the run is only for this incarnation of the peer */
	uint8_t kind;      /* enum op_kind */
	uint8_t pages;     /* number of pages or buckets, 1..RUN_PAGES_MAX; OP_PAGE: 1 */
	uint16_t peer;     /* the member to read from: map_member.peer */
	/* OP_RUN: number of segments of each page, 1..SEGMENTS_MAX; divides page_bytes.
	 * OP_PAGE: their lengths add up to `length`. OP_LOOKUP: 0 */
	uint16_t segments;
	/* destination: a client region of this session, or staging; of an OP_PAGE of several
	 * segments ignored */
	uint16_t to_region;
	/* region of a pool of the peer; OP_LOOKUP: REGION_SHARD, or REGION_HEADS_0 */
	uint8_t region;
	/* OP_PAGE: number of the first slice to read, counted from the page's start; else 0 */
	uint8_t slice;
	/* length that the head of every page must have. OP_RUN: 1..RUN_PAGE_BYTES_MAX; OP_PAGE:
	 * up to PAGE_BYTES_MAX; OP_LOOKUP: 0 */
	uint32_t page_bytes;
	/* OP_RUN: distance between the starts of two consecutive segments of a page, at least the
	 * length of a segment; 0 if `segments` is 1. OP_LOOKUP: offset in the destination region
	 * of bucket 0, bytes. OP_PAGE: `length`, the number of bytes to read, at least 1. Below
	 * RUN_TO_MAX */
	uint64_t stride_or_to;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC in ns; what is not posted by then times out */
};

/* A run's header in its ring entry: the first half of its first line. */
struct run_header {
	uint32_t cookie;
	uint32_t peer_ref;
	uint8_t kind;
	uint8_t pages;            /* OP_PAGE: run.slice */
	uint16_t segments_region; /* op_pack() */
	uint16_t peer;
	uint16_t turn;
	uint32_t page_bytes;
	uint32_t deadline; /* low 32 bits of the deadline: CLOCK_MONOTONIC in units of OP_TIME_NS */
	uint64_t to;       /* to_region << OP_TO_BITS | stride_or_to */
};
static_assert(sizeof(struct run_header) == 32, "half a line");
static_assert(offsetof(struct run_header, turn) == RING_TURN_AT, "the ring's");

/* One page of an OP_RUN or OP_PAGE: half a line. */
struct run_entry {
	uint32_t unit;       /* first unit of the page in the peer's pool: place_unit() */
	uint32_t generation; /* generation that the page head must have */
	/* offset of the page's first segment in the destination region, bytes: the low OP_TO_BITS
	 * bits; the other bits are the ring's in the first half of a line, and ignored */
	uint64_t to;
	struct page_key key; /* page key that the page head must have */
};
static_assert(sizeof(struct run_entry) == 32, "two to a line");
static_assert(offsetof(struct run_entry, to) + 6 == RING_TURN_AT, "the ring's turn is above `to`");

/* One line as the rail copies it. */
struct run_line {
	/* owner: the client until it publishes the line; the copy belongs to the poll core */
	alignas(64) union {
		struct run_header header;
		struct run_entry half[2];
		uint32_t bucket[16]; /* see run_bucket_word(); word 3 contains the turn */
		struct op_segments segments;
	};
};
static_assert(sizeof(struct run_line) == RUN_LINE_BYTES, "one slot");

/* Number of ring entries (lines) of an OP_RUN or OP_LOOKUP of `pages` >= 1 pages or buckets. */
static inline uint32_t run_lines(uint8_t kind, uint32_t pages)
{
	if (kind == OP_RUN)
		return 1 + pages / 2;
	return pages <= RUN_HEADER_BUCKETS
		       ? 1
		       : 1 + (pages - RUN_HEADER_BUCKETS + RUN_LINE_BUCKETS - 1) / RUN_LINE_BUCKETS;
}

static_assert(1 + RUN_PAGES_MAX / 2 == RUN_LINES_MAX, "the longest run");
static_assert(RUN_PAGES_MAX <= 32, "masks have 32 bits");
static_assert(2 * sizeof(struct page_head) == sizeof(struct bucket), "a pair of heads is as long");

/* Where entry i of an OP_RUN is: its line, and which half of it. */
static inline uint32_t run_entry_line(uint32_t i)
{
	return (i + 1) / 2;
}

static inline uint32_t run_entry_half(uint32_t i)
{
	return (i + 1) % 2;
}

/* Where the index of bucket i of an OP_LOOKUP is: its line, and which 32-bit word of it. */
static inline uint32_t run_bucket_line(uint32_t i)
{
	return i < RUN_HEADER_BUCKETS ? 0 : 1 + (i - RUN_HEADER_BUCKETS) / RUN_LINE_BUCKETS;
}

static inline uint32_t run_bucket_word(uint32_t i)
{
	uint32_t k;

	if (i < RUN_HEADER_BUCKETS)
		return RUN_HEADER_BUCKETS + i;
	k = (i - RUN_HEADER_BUCKETS) % RUN_LINE_BUCKETS;
	return k < 3 ? k : k + 1; /* word 3 contains the ring's turn */
}

/*
 * Packs the header into its half line; `ret` is the first half of the run's first ring entry.
 * run->deadline_ns is less than OP_SPAN_NS away.
 */
static inline void run_encode(const struct run *run, struct run_header *ret)
{
	ret->cookie = run->cookie;
	ret->peer_ref = run->peer_ref;
	ret->kind = run->kind;
	ret->pages = run->kind == OP_PAGE ? run->slice : run->pages;
	ret->segments_region = op_pack(run->segments, run->region);
	ret->peer = run->peer;
	ret->turn = 0;
	ret->page_bytes = run->page_bytes;
	ret->deadline = (uint32_t)(run->deadline_ns / OP_TIME_NS);
	ret->to = (uint64_t)run->to_region << OP_TO_BITS | run->stride_or_to;
}

/*
 * Unpacks a header from a private copy that is not validated yet. `now_ns` (CLOCK_MONOTONIC)
 * completes the deadline.
 */
static inline void run_decode(const struct run_header *header, uint64_t now_ns, struct run *ret)
{
	ret->cookie = header->cookie;
	ret->peer_ref = header->peer_ref;
	ret->kind = header->kind;
	ret->pages = header->kind == OP_PAGE ? 1 : header->pages;
	ret->slice = header->kind == OP_PAGE ? header->pages : 0;
	ret->segments = op_unpack_segments(header->kind, header->segments_region);
	ret->peer = header->peer;
	ret->region = op_unpack_region(header->segments_region);
	ret->to_region = (uint16_t)(header->to >> OP_TO_BITS);
	ret->page_bytes = header->page_bytes;
	ret->stride_or_to = header->to & (RUN_TO_MAX - 1);
	ret->deadline_ns = op_deadline_ns(header->deadline, now_ns);
}

/*
 * The client's side: entry i of a run whose first line is the unpublished ring entry `at`. The
 * client stores unit, generation, to and key.
 *
 *   lines = run_lines(OP_RUN, n);                       if (ring_room(p, lines) >= (int)lines)
 *   run_encode(&run, ring_slot_new(p, 0));
 *   *run_entry_new(p, 0, i) = entry;                    for each i < n
 *   ring_publish(p, lines);                             run_done: the answer
 */
static inline struct run_entry *run_entry_new(struct ring_producer *p, uint32_t at, uint32_t i)
{
	struct run_entry *line = ring_slot_new(p, at + run_entry_line(i));

	return line + run_entry_half(i);
}

/* The same for the index of bucket i of a look-up. */
static inline uint32_t *run_bucket_new(struct ring_producer *p, uint32_t at, uint32_t i)
{
	uint32_t *line = ring_slot_new(p, at + run_bucket_line(i));

	return line + run_bucket_word(i);
}

/* The same for the `count` > 1 segments of an OP_PAGE. */
static inline void run_segments_new(
	struct ring_producer *p, uint32_t at, const struct op_segment *segment, uint32_t count)
{
	struct op_segment *line = NULL;

	for (uint32_t i = 0; i < count; i++) {
		if (i % OP_LINE_SEGMENTS == 0)
			line = ring_slot_new(p, at + 1 + i / OP_LINE_SEGMENTS);
		line[i % OP_LINE_SEGMENTS] = segment[i];
	}
}

/*
 * The completion of a run, an entry of a done ring. Bit i of a mask is page or bucket i; the masks
 * have no bit in common, and no bits from `pages` on.
 */
struct run_done {
	uint32_t cookie; /* cookie of the completed run */
	uint32_t hit;    /* pages whose bytes are valid; buckets that were read */
	/* pages whose page head is not the expected one: their directory entries are wrong. A
	 * page whose READ failed is never among them */
	uint32_t stale;
	/* result of the pages in neither mask: enum op_status, never OP_STALE; OP_HIT if every
	 * page is in a mask */
	uint8_t status;
	uint8_t kind; /* kind of the run: enum op_kind */
	uint16_t turn;
};
static_assert(sizeof(struct run_done) == 16, "four to a cache line");
static_assert(offsetof(struct run_done, turn) == RING_TURN_AT, "the ring's");
static_assert(OP_STATUS_COUNT <= 256, "a status has 8 bits");

#endif
