/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct rail_run: a run in flight, from the ring entries it was copied from to the completion that
 * answers it. rail_open() allocates all of them; free ones are on a stack. Poll core only.
 *
 *   taken -> parked (peer not connected) -> on conn->runs -> posted, lot by lot
 *         -> for each group of pages whose payload has arrived: on conn->run_heads
 *         -> CQE of the READ of their heads seen -> bits of `hit` or `stale`
 *         -> every page decided, or an error and no WQE at the NIC -> answered
 *
 * A lone page is a run of one page that is READ slice by slice, each with a record of its own:
 * every OP_PAGE, and an OP_RUN of one page of one segment.
 */
#ifndef RAIL_RUN_H
#define RAIL_RUN_H

#include "config/likely.h"
#include "engine/abi/run.h"
#include "engine/rail/inbox.h"
#include "engine/rail/list.h"

/*
 * Limit of a run's time-out; deadlines further away are shortened, so that no run is parked for
 * ever.
 */
#define RUN_DEADLINE_MAX_NS (60ull * 1000 * 1000 * 1000)
/* Longest time that a run has left when its channel is stopped. */
#define RUN_STOP_NS (1000ull * 1000 * 1000)
/* Time that a posted run gets to retire after its deadline while its connection makes progress. */
#define RUN_GRACE_NS (250ull * 1000 * 1000)

#define RAIL_RUNS 2048u /* runs in flight on one rail */
/*
 * Share of one connection: it may hold half as many runs as are free (conn_full()). One connection
 * alone can hold a third of all runs, and n connections that make no progress leave (2/3)^n of them
 * to the others. Less than a third keeps a connection's QPs busy, because it posts at most
 * CQ_DEPTH / 2 WQEs at a time. With at least RAIL_RUNS_PLENTY free runs no connection can hold more
 * than its share.
 */
#define RAIL_RUNS_PLENTY (RAIL_RUNS - RAIL_RUNS / 3)
static_assert(RAIL_RUNS / 3 > CQ_DEPTH, "the share of a connection keeps its QPs busy");
static_assert(RAIL_RUNS <= 1u << 16, "numbers of runs have 16 bits");

/* Channel number of the rail's own run, the probe READ of a CONN_PROBING connection. */
enum { CHANNEL_NONE = RAIL_CHANNELS_MAX };
/*
 * A lot: what is posted of one run before another run has its turn. Each READ of payload or buckets
 * counts as RAIL_READ_CHARGE bytes more than it brings, because short READs cost time as well.
 * READs of page heads are not charged, by lease or by tail.
 */
#define RAIL_LOT_BYTES (512u << 10)
#define RAIL_READ_CHARGE 4096u
/* bytes of READs of runs that share one completion, at most */
#define RUN_SIGNAL_BYTES (512u << 10)
/*
 * Bytes of posted READs up to which runs post payload: the rail's budget, and a few READs of page
 * heads, which would otherwise leave a gap just too short for the next page.
 */
#define RUN_IN_FLIGHT_BYTES (RAIL_IN_FLIGHT_BYTES + 4 * RAIL_SMALL_BYTES)
/* READs of runs that share one completion, at most: as many as a NIC executes of a QP at a time */
#define RUN_SIGNAL_WQES 16u
#define RUN_RAIL_SHIFT 48 /* see run_remote() */
static_assert(RUN_SIGNAL_WQES >= RAIL_SIGNAL_WQES && 2 * RUN_SIGNAL_WQES <= QP_DEPTH,
	"a series fits beside the one before it");
/* a run of pages shorter than this many units READs up to as many heads that no page needs */
#define RUN_HEADS_GAP 8u

struct conn_qp;

struct rail_run {
	/* owner: poll core; copied from the op ring and validated, read-only after that */
	alignas(64) struct run header;
	/* owner: poll core; changes with every WQE. conn: connection on which the run is posted;
	 * NULL while it is parked */
	alignas(64) struct conn *conn;
	struct list pending; /* entry in the list conn->runs or peer_slot.parked */
	struct list heads;   /* entry in the list conn->run_heads */
	uint32_t hit;        /* pages that were validated; look-up: buckets that have arrived */
	uint32_t stale;      /* pages with another page head than expected */
	uint32_t arrived;    /* pages whose payload has arrived and whose heads are to be READ */
	/* pages whose heads were posted behind their payload: their own CQE, or a later one of that
	 * QP, says that both have arrived. Bits stay set */
	uint32_t leased;
	uint16_t outstanding; /* number of the run's records (struct wqe) that are not retired */
	uint8_t next;         /* number of pages posted completely: index of the next one */
	/* result of the pages in neither mask: enum op_status; OP_HIT: no error so far */
	uint8_t status;
	bool listed;  /* true: the destination is the list rail->segments[number] */
	bool several; /* true: that list names several regions */
	bool counted; /* true: the run was validated, and region_slot.users counts it */
	bool expired; /* true: the deadline of the run has passed */
	/* owner: poll core; changes less often. deadline_ns: CLOCK_MONOTONIC at which
	 * rail_expire() looks at the run next, ns */
	alignas(64) uint64_t deadline_ns;
	/* when the run has its turn among the runs of its connection: see run_queue() */
	uint64_t tag;
	uint64_t reach;    /* end of the last byte to READ in the peer's region */
	uint32_t unit_max; /* OP_RUN: the last unit whose head is needed */
	/* bytes that count against the budgets of bytes taken: of the pages or buckets that are
	 * not decided yet */
	uint32_t bytes;
	/* bit i: page i + 1 follows page i both at the peer and here, so that one READ brings
	 * both */
	uint32_t joined;
	uint32_t join_max;      /* number of joined pages that one READ brings, at most */
	uint32_t item_bytes;    /* bytes to READ of each page, or of a bucket */
	uint32_t segment_bytes; /* length of a segment, bytes */
	/* position in the destination: bytes of the page that are posted, 0 unless it is posted in
	 * part; then those of its current segment, and where that starts in the region */
	uint32_t done, segment_done;
	uint64_t segment_at;
	uint16_t number;  /* number of this run: its index in rail->run[] */
	uint16_t channel; /* id of the channel to answer; CHANNEL_NONE: the run is a probe */
	bool one_sge;     /* true: every page is one segment in one MR */
	bool alone;       /* true: a lone page */
	/* position in a list of segments: index of the segment at which the run is */
	uint16_t segment;
	/* QP of the WQEs of a page that is posted in part, so that its last WQE completes last;
	 * NULL: no page is */
	struct conn_qp *split;
	/* a time at or before the first WQE of the page that is being posted, for t0_ns[] */
	uint64_t page_t0_ns;
	/* a lone page, or pages of several segments or MRs: bytes of the lot that are posted, with
	 * RAIL_READ_CHARGE for each READ of payload. A lot lasts over steps */
	uint32_t lot;
	/* owner: poll core; the private copy of the lines, read-only */
	alignas(64) struct run_line line[RUN_LINES_MAX];
	/* owner: poll core; by the first page of a series of pairs, or of a leased READ of heads:
	 * its T0, at or before the first WQE of all of its pages */
	alignas(64) uint64_t t0_ns[RUN_PAGES_MAX];
	/* owner: poll core; by the first page of a pair whose heads arrive in a landing block: that
	 * block; see run_pair_lands() */
	uint16_t landing[RUN_PAGES_MAX];
};

static_assert(offsetof(struct rail_run, deadline_ns) == 128, "every WQE touches two cache lines");

/* Entry i of an OP_RUN. */
static inline const struct run_entry *run_entry(const struct rail_run *run, uint32_t i)
{
	return &run->line[0].half[0] + 1 + i;
}

/* Index of bucket i of an OP_LOOKUP, whose copy has no turns: see run_join_buckets(). */
static inline const uint32_t *run_bucket(const struct rail_run *run, uint32_t i)
{
	return &run->line[0].bucket[0] + RUN_HEADER_BUCKETS + i;
}

/*
 * Offset in the peer's region of page or bucket i, bytes; of a pair of heads, with the rail of its
 * pool in the bits from RUN_RAIL_SHIFT on. `kind` is that of the run.
 */
static inline uint64_t run_remote(const struct rail_run *run, uint8_t kind, uint32_t i)
{
	uint32_t bucket = *run_bucket(run, i), pair = place_unit(bucket) / 2;

	if (kind == OP_RUN)
		return (uint64_t)run_entry(run, i)->unit * PAGE_UNIT;
	if (likely(run->header.region == REGION_SHARD))
		return (uint64_t)bucket * sizeof(struct bucket);
	return (uint64_t)place_rail(bucket) << RUN_RAIL_SHIFT | pair * sizeof(struct bucket);
}

/* Offset in the destination region of page or bucket i, bytes. */
static inline uint64_t run_to(const struct rail_run *run, uint8_t kind, uint32_t i)
{
	if (kind == OP_RUN)
		return run_entry(run, i)->to & (RUN_TO_MAX - 1);
	return run->header.stride_or_to + i * sizeof(struct bucket);
}

/*
 * Do the heads of pairs of `n` pages arrive in landing blocks, because there are others between
 * them in the peer's array? Otherwise they have a place in the run: see run_own_heads().
 */
static inline bool run_pair_lands(const struct rail_run *run, uint32_t n)
{
	return n > 1 && run->item_bytes > PAGE_UNIT;
}

/*
 * A WQE ends at a segment, slice or extent boundary, which bounds the number of WQEs of a run.
 */
static_assert(
	2 * SEGMENTS_MAX + 1 + PAGE_BYTES_MAX / SLICE_BYTES + PAGE_BYTES_MAX / EXTENT_BYTES_MIN <
		1u << 16,
	"a run's WQEs are counted in 16 bits");

/* The bits of `count` pages from `first` on; count <= RUN_PAGES_MAX. */
static inline uint32_t run_mask(uint32_t first, uint32_t count)
{
	return (uint32_t)(((1ull << count) - 1) << first);
}

#endif
