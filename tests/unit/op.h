/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One READ as tests describe it: an OP_PAGE, or one page or bucket of another run; and its answer.
 * Any thread.
 */
#ifndef TESTS_UNIT_OP_H
#define TESTS_UNIT_OP_H

#include "engine/abi/run.h"

struct op {
	uint64_t cookie; /* its low 32 bits count */
	uint8_t kind;    /* OP_PAGE, or OP_LOOKUP: one bucket or pair of heads */
	uint8_t slice;   /* number of the first slice to read */
	uint16_t segments;
	uint16_t peer;
	uint8_t region;
	uint64_t offset; /* offset of the page or bucket in that region, bytes */
	uint32_t peer_ref;
	uint32_t length; /* number of bytes to read */
	struct page_key key;
	uint64_t deadline_ns;
	uint32_t generation;
	uint32_t page_bytes;
};

/* Offset in the op's region of the first byte to read. */
static inline uint64_t op_start(const struct op *op)
{
	return op->offset + (uint64_t)op->slice * SLICE_BYTES;
}

/*
 * Writes an op as a run of the kind OP_PAGE into the entries from `at` behind the published ones.
 * Returns their number.
 */
static inline uint32_t op_write(struct ring_producer *ops, uint32_t at, const struct op *op,
	const struct op_segment *segments)
{
	struct run run = {.cookie = (uint32_t)op->cookie,
		.peer_ref = op->peer_ref,
		.kind = op->kind,
		.pages = 1,
		.segments = op->segments,
		.peer = op->peer,
		.to_region = segments->region,
		.region = op->region,
		.slice = op->slice,
		.page_bytes = op->page_bytes,
		.stride_or_to = op->length,
		.deadline_ns = op->deadline_ns};

	run_encode(&run, ring_slot_new(ops, at));
	*run_entry_new(ops, at, 0) = (struct run_entry){.unit = (uint32_t)(op->offset / PAGE_UNIT),
		.generation = op->generation,
		.to = segments->offset & (RUN_TO_MAX - 1),
		.key = op->key};
	if (op_page_lines(op->segments) > 1)
		run_segments_new(ops, at, segments, op->segments);
	return op_page_lines(op->segments);
}

/* The answer to an op. */
struct op_done {
	uint64_t cookie;
	uint32_t status; /* enum op_status */
};

static inline struct op_done op_done_of(const struct run_done *run)
{
	return (struct op_done){.cookie = run->cookie,
		.status = run->stale & 1 ? OP_STALE
			  : run->hit & 1 ? OP_HIT
					 : run->status};
}

#endif
