/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request: one op in flight, from the ring entry it was copied from to the completion that
 * answers it. rail_open() allocates all requests, and the segment blocks that hold their segments;
 * free ones are on stacks. Poll core only.
 *
 *   taken -> parked (peer not connected) -> pending on a connection -> posted, slice by slice
 *         -> all payload CQEs seen -> on conn->heads -> CQE of the head READ seen -> answered
 */
#ifndef RAIL_REQUEST_H
#define RAIL_REQUEST_H

#include "engine/abi/op.h"
#include "engine/rail/list.h"

/*
 * Number of segment blocks, of REQUEST_SEGMENTS segments each. Block i < RAIL_REQUESTS always
 * belongs to request i; the others are free, or further blocks of a request.
 */
#define REQUEST_BLOCKS 16384u
#define REQUEST_SEGMENTS 4u /* segments in a segment block, which is a copy of one ring entry */

#define REQUEST_NONE 0xffffu /* end of a list of requests that are linked by number */

/*
 * Limit of an op's time-out; deadlines further away are shortened, so that no request is parked for
 * ever.
 */
#define REQUEST_DEADLINE_MAX_NS (60ull * 1000 * 1000 * 1000)
/* Longest time that a request has left when its channel is stopped. */
#define REQUEST_STOP_NS (1000ull * 1000 * 1000)
/*
 * Time that a posted request gets to retire after its deadline while its connection makes progress.
 */
#define REQUEST_GRACE_NS (250ull * 1000 * 1000)

static_assert(REQUEST_BLOCKS <= 1u << 16, "block numbers are 16 bits");
static_assert(RAIL_REQUESTS <= REQUEST_NONE, "request numbers are 16 bits");
static_assert(REQUEST_BLOCKS >= RAIL_REQUESTS + SEGMENTS_MAX / REQUEST_SEGMENTS,
	"the largest op fits beside one block for every request");

struct conn;

/* Channel number of the rail's own request, the probe READ of a CONN_PROBING connection. */
enum { CHANNEL_NONE = CHANNELS_MAX };

enum request_stage {
	/* the request's slices, and if it is leased its page head, are being posted, or their CQEs
	 * are awaited */
	REQUEST_PAYLOAD,
	/* all payload of the request has arrived; its page head is to be READ or is being READ */
	REQUEST_HEAD,
};

struct request {
	/* owner: poll core; copied from the op ring and validated, read-only after that */
	alignas(64) struct op op;
	/* owner: poll core; changes with every slice. conn: connection on which the request is
	 * posted; NULL while the request is parked */
	alignas(64) struct conn *conn;
	/* entry in the list conn->pending, conn->heads or peer_slot.parked */
	struct list pending;
	/* CLOCK_MONOTONIC at which rail_expire() looks at the request
	 * next, ns */
	uint64_t deadline_ns;
	uint32_t posted; /* payload bytes of the request posted so far */
	/* position in the destination: posted bytes of the current segment */
	uint32_t segment_done;
	uint32_t head; /* while the page head is being READ: index in rail->head[] */
	/* number of the next request of the same READ of page heads; REQUEST_NONE: this is the
	 * last */
	uint16_t heads_next;
	/* position in the destination: segment block of the current segment */
	uint16_t block;
	uint16_t outstanding; /* number of WQEs of the request posted and not retired */
	uint16_t number;      /* number of this request: its index in rail->request[] */
	/* id of the channel to answer; CHANNEL_NONE: the request is a probe */
	uint16_t channel;
	/* position in the destination: index of the current segment in its segment block */
	uint8_t segment;
	uint8_t stage; /* stage of the request: enum request_stage */
	/* result that the answer will have: enum op_status; OP_HIT: no error so far */
	uint8_t status;
	/* true: the destination is one segment in one MR, so each slice has one SGE */
	bool one_sge;
	/* true: the request has several segments, all in one region */
	bool one_region;
	/* true: the request was validated, and region_slot.users counts its segments */
	bool counted;
	/* true: the deadline of the op has passed: the answer is OP_TIMEOUT unless an error came
	 * first */
	bool expired;
	/* true: the READ of the page head was posted with the payload; see rail->request_t0_ns */
	bool leased;
};
static_assert(sizeof(struct request) == 128, "two cache lines");
/*
 * Sets the cursor to the first segment. A request with one_sge does not need it; `posted` suffices.
 */
static inline void request_cursor_start(struct request *request)
{
	request->block = request->number;
	request->segment_done = 0;
	request->segment = 0;
}

/*
 * A WQE ends at a segment, slice or extent boundary, which bounds the number of WQEs of a request.
 */
static_assert(
	2 * SEGMENTS_MAX + 1 + PAGE_BYTES_MAX / SLICE_BYTES + PAGE_BYTES_MAX / EXTENT_BYTES_MIN <
		1u << 16,
	"a request's WQEs are counted in 16 bits");

#endif
