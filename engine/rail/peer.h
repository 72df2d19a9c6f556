/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane: the queue pairs to one incarnation of one peer while this rail owns them, and the
 * requests that have something to post there. Several lanes of a peer number can exist, one open
 * and the others draining. Poll core only.
 *
 *   OPEN --error CQE, stall--> BROKEN --RAIL_PEER_DROP--> DROPPED --last WQE retired--> returned
 *                                `-----------RAIL_PEER_RETIRE: its WQEs are retired-----^
 *   ^  `--------------------RAIL_PEER_DROP----------------^
 *   `--PROBING, when it failed before: its first READ is the rail's own; ends like OPEN
 */
#ifndef RAIL_PEER_H
#define RAIL_PEER_H

#include "engine/rail/inbox.h"
#include "engine/rail/request.h"

#define LANES_MAX (2 * NODES_MAX)
#define LANE_QPS_MAX (LANES_MAX * QPS_PER_PEER_MAX)
/* Open addressing, never more than half full. */
#define LANE_TABLE_SLOTS (2 * LANE_QPS_MAX)
static_assert((LANE_TABLE_SLOTS & (LANE_TABLE_SLOTS - 1)) == 0, "the hash is masked");
static_assert(LANE_QPS_MAX < 1 << 16, "table slots are 16 bits");

/* No READ takes that long on a fabric that works. Broken later, or not: rail_peer.stall_ns. */
#define LANE_STALL_NS (20ull * 1000 * 1000)
#define LANE_WATCH_NS (5ull * 1000 * 1000)

struct rail;

/* What a posted WQE was for; by index of its first block. */
struct wqe {
	uint32_t bytes;
	uint16_t request; /* a READ of heads is for those that follow it by heads_next, too */
	uint16_t blocks;  /* 0: not the first block of a WQE */
};
static_assert(sizeof(struct wqe) == 8, "eight to a cache line");

struct lane_qp {
	struct dv_sq *sq;
	struct lane *lane;
	struct lane_qp *rung_next; /* rail->unrung */
	uint32_t bulk_bytes;       /* outstanding, of READs above RAIL_SMALL_BYTES */
	uint32_t silent_bytes;     /* posted since the last WQE that asks for a completion */
	uint32_t silent;           /* WQEs of them */
	bool unrung;
	struct wqe wqe[QP_DEPTH];
};

enum lane_state {
	LANE_OPEN,
	LANE_PROBING, /* no ops yet */
	LANE_BROKEN,  /* an error CQE, or nothing moved; the control plane has been told */
	LANE_DROPPED, /* by the control plane: every WQE retires, then the lane is returned */
};

struct lane {
	struct rail_peer *peer;
	struct link lanes;    /* rail->lanes: all of them, oldest first */
	struct link waiting;  /* rail->waiting: those with pending requests */
	struct link pending;  /* requests with payload to post */
	struct link heads;    /* requests with their head to read: these first */
	uint32_t wqes;        /* outstanding on all its QPs */
	uint32_t bytes;       /* outstanding on all its QPs */
	struct lane_qp *bulk; /* where the last long READ went */
	struct lane_qp *run;  /* where small READs go until its next completion is asked for */
	uint32_t requests;    /* live ones */
	uint64_t taken_bytes; /* their lengths */
	uint32_t expired;     /* ... past their deadlines: broken if it does not move meanwhile */
	uint32_t moved;       /* WQEs retired, free running: has it moved since we last looked? */
	uint32_t moved_seen;
	uint64_t still_ns; /* watched for so long, with something to do, without a move */
	bool begun;        /* it had nothing to do when it was last looked at, or now */
	uint64_t ended_ns; /* BROKEN or DROPPED since then; 0: neither */
	uint16_t number;
	uint8_t state; /* enum lane_state */
	bool overdue;  /* an expired request has used up its grace: broken in any case */
	bool stuck;    /* it does not drain, which was said */
	bool stalled;  /* what is on it counts as parked, and not against the rail's budgets */
	struct lane_qp qp[QPS_PER_PEER_MAX];
};

/* One number of the cluster map. */
struct peer_slot {
	struct lane *lane;   /* the newest; NULL: none */
	struct link parked;  /* requests waiting for a connection, in take order */
	uint32_t wanted_ref; /* RAIL_PEER_WANTED was said for it, and not answered yet */
	bool wanted;
};

/* An ADD makes its peer the newest lane; returned at once when there is no room for a lane. */
void lane_add(struct rail *rail, struct rail_peer *peer);
/* Stops posting; the control plane is told once. `syndrome` 0: nothing moved. */
void lane_break(struct rail *rail, struct lane *lane, uint32_t syndrome);
/* The READ of LANE_PROBING has ended. */
void lane_probed(struct rail *rail, struct lane *lane, enum op_status status);
/*
 * The control plane has put the QPs of (peer, ref) in error, or could not: nothing is posted on
 * them any more. `object`: which, when not NULL.
 */
void lane_drop(struct rail *rail, uint16_t peer, uint32_t ref, const struct rail_peer *object);
/* Gives a dropped lane back when nothing is outstanding on it. */
void lane_return_if_drained(struct rail *rail, struct lane *lane);

/*
 * A lane that retires nothing for LANE_STALL_NS keeps what it has, but the rail's budgets are for
 * the others from then on. Broken when that lasts for rail_peer.stall_ns, so that what is on it
 * goes over another rail, or when a request on it is past its deadline. Time counts only as far as
 * the poll core was there to watch.
 */
void lanes_watch(struct rail *rail, uint64_t now_ns);
/* A WQE of it retired. */
void lane_unstall(struct rail *rail, struct lane *lane);

/* NULL: no QP of ours has that number. */
struct lane_qp *lane_qp_find(struct rail *rail, uint32_t qpn);

/* The request's place is in what the peer exported, its head too. */
bool lane_has_place(const struct lane *lane, const struct op *op);

/* To its lane, to the car park, or straight back with OP_PEER_DOWN. */
void peer_route(struct rail *rail, struct request *request);
/* The control plane cannot connect to (peer, ref). */
void peer_refuse(struct rail *rail, uint16_t peer, uint32_t ref);

#endif
