/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request: one op under way, from the ring slot it was copied from to the completion that answers
 * it. All requests, and the blocks their segments are kept in, are allocated by rail_open(); free
 * ones wait on stacks. Poll core only.
 *
 *   taken -> parked (no such peer yet) -> pending on a lane -> posted, piece by piece
 *         -> all payload CQEs seen -> among lane->heads -> head CQE seen -> answered
 */
#ifndef RAIL_REQUEST_H
#define RAIL_REQUEST_H

#include "engine/abi/op.h"

/* Blocks of four segments: the first RAIL_REQUESTS belong to the request of the same number. */
#define REQUEST_BLOCKS 16384u
#define REQUEST_SEGMENTS 4u /* in a block: one ring slot, copied as it is */

#define REQUEST_NONE 0xffffu /* no request's number */

/* An op may not ask to wait longer: a parked request is never there for ever. */
#define REQUEST_DEADLINE_MAX_NS (60ull * 1000 * 1000 * 1000)
/* In-flight requests of a channel that stops get at most this long. */
#define REQUEST_STOP_NS (1000ull * 1000 * 1000)
/* Past its deadline, on a lane that still moves, a posted request gets this long to be retired. */
#define REQUEST_GRACE_NS (250ull * 1000 * 1000)

static_assert(REQUEST_BLOCKS <= 1u << 16, "block numbers are 16 bits");
static_assert(RAIL_REQUESTS <= REQUEST_NONE, "request numbers are 16 bits");
static_assert(REQUEST_BLOCKS >= RAIL_REQUESTS + SEGMENTS_MAX / REQUEST_SEGMENTS,
	"the largest op fits beside one block for every request");

/* A place on a doubly linked ring of places; alone when it points at itself. */
struct link {
	struct link *next, *previous;
};

static inline void link_init(struct link *link)
{
	link->next = link->previous = link;
}

/* Is it in a list, or is the list that it heads not empty? */
static inline bool link_linked(const struct link *link)
{
	return link->next != link;
}

static inline void link_insert_before(struct link *at, struct link *link)
{
	link->next = at;
	link->previous = at->previous;
	at->previous->next = link;
	at->previous = link;
}

/* At the end of the list that `head` heads. */
static inline void link_append(struct link *head, struct link *link)
{
	link_insert_before(head, link);
}

static inline void link_remove(struct link *link)
{
	link->previous->next = link->next;
	link->next->previous = link->previous;
	link_init(link);
}

struct lane;

/* The channel of a request that no client asked for: LANE_PROBING. */
enum { CHANNEL_NONE = CHANNELS_MAX };

enum request_stage {
	REQUEST_PAYLOAD, /* pieces are being posted, or their CQEs awaited */
	REQUEST_HEAD,    /* all payload arrived; the page head is being read */
};

struct request {
	/* owner: poll core; copied from the ring, validated, read-only after that */
	alignas(64) struct op op;
	/* owner: poll core; moves with every piece */
	alignas(64) struct lane *lane; /* NULL while parked */
	struct link pending;           /* lane->pending, lane->heads, or peer_slot.parked */
	uint64_t deadline_ns;          /* when it is looked at next */
	uint32_t posted;               /* payload bytes in WQEs so far */
	uint32_t segment_done;         /* bytes of the segment at the cursor posted so far */
	uint32_t head;                 /* while its head is being read: where in rail->head[] */
	uint16_t heads_next;           /* the next request of the same READ; REQUEST_NONE: last */
	uint16_t block;                /* cursor: block and segment in it */
	uint16_t outstanding;          /* WQEs posted and not retired */
	uint16_t number;
	uint16_t channel; /* id */
	uint8_t segment;
	uint8_t stage;  /* enum request_stage */
	uint8_t status; /* OP_HIT: nothing went wrong so far */
	bool one_sge;   /* one segment in one MR: each piece of it is one SGE */
	bool counted;   /* its region users are counted: validation passed */
	bool expired;   /* past its own deadline: the answer is OP_TIMEOUT */
};
static_assert(sizeof(struct request) == 128, "two cache lines");
/* The cursor begins at the first segment. A request with one_sge needs `posted` alone. */
static inline void request_cursor_start(struct request *request)
{
	request->block = request->number;
	request->segment_done = 0;
	request->segment = 0;
}

/* Each segment, slice and extent ends a WQE at most once. */
static_assert(
	2 * SEGMENTS_MAX + 1 + PAGE_BYTES_MAX / SLICE_BYTES + PAGE_BYTES_MAX / EXTENT_BYTES_MIN <
		1u << 16,
	"a request's WQEs are counted in 16 bits");

#endif
