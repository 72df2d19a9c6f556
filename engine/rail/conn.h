/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct conn: a connection, that is the QPs to one incarnation of one peer while this rail owns
 * them, and the runs that have WQEs to post there. A peer can have several connections at a
 * time: one open, the others draining. Poll core only.
 *
 *   OPEN --error CQE, stall--> BROKEN --RAIL_CONN_DROP--> DROPPED --last WQE retired--> returned
 *                                `-----------RAIL_CONN_RETIRE: its WQEs are retired-----^
 *   ^  `--------------------RAIL_CONN_DROP----------------^
 *   `--PROBING, if it failed before: its first READ is the rail's own; ends like OPEN
 */
#ifndef RAIL_CONN_H
#define RAIL_CONN_H

#include "engine/rail/inbox.h"
#include "engine/rail/run.h"

#define CONN_QPS_MAX (RAIL_CONNECTIONS_MAX * QPS_PER_PEER_MAX)
/* Entries of the hash table from QP number to QP: open addressing, at most half of them used. */
#define CONN_TABLE_SLOTS (2 * CONN_QPS_MAX)
static_assert((CONN_TABLE_SLOTS & (CONN_TABLE_SLOTS - 1)) == 0, "the hash is masked");
static_assert(CONN_QPS_MAX < 1 << 16, "table slots are 16 bits");

struct rail;

enum wqe_kind {
	WQE_LONE,       /* a slice of a lone page, or its head */
	WQE_RUN_PAGES,  /* payload of a run: it completes `pages` */
	WQE_RUN_HEADS,  /* the heads of `pages` of a run, posted after the CQEs of their payload */
	WQE_RUN_LEASED, /* the heads of `pages` of a run, posted behind their payload on its QP */
	/* Series, see run_post.c: WQEs of one WQEBB each that have one record. WQE_RUN_SERIES,
	 * WQE_RUN_LONG_SERIES: payload, as WQE_RUN_PAGES, in small and in long READs.
	 * WQE_RUN_OWN_HEADS: as WQE_RUN_HEADS, one head a READ, in the place of the run.
	 * WQE_RUN_PAIRS, WQE_RUN_LONG_PAIRS: pairs of payload and, behind it, the heads of its
	 * pages; `bytes` are the payload. Those of long READs have the bit WQE_LONG */
	WQE_RUN_SERIES,
	WQE_RUN_LONG_SERIES,
	WQE_RUN_OWN_HEADS,
	WQE_RUN_PAIRS = 8,
	WQE_RUN_LONG_PAIRS,
};
#define WQE_LONG 1u
static_assert(!(WQE_RUN_SERIES & WQE_LONG) && !(WQE_RUN_OWN_HEADS & WQE_LONG) &&
		      !(WQE_RUN_PAIRS & WQE_LONG) &&
		      WQE_RUN_LONG_SERIES == (WQE_RUN_SERIES | WQE_LONG) &&
		      WQE_RUN_LONG_PAIRS == (WQE_RUN_PAIRS | WQE_LONG),
	"the bit says that a series is of long READs");

/*
 * A posted WQE, or a series of them: what it is for, and its size. Stored at the index of its
 * first WQEBB, modulo QP_DEPTH. Records follow each other without gaps from sq->ci to sq->pi.
 */
struct wqe {
	uint32_t bytes; /* number of bytes that the WQE READs */
	uint16_t run;   /* number of the WQE's run */
	uint8_t blocks; /* size in WQEBBs; 0, as from its retiring on: no record begins here */
	uint8_t kind;   /* enum wqe_kind */
	uint32_t pages; /* pages of the run that the WQE completes, or whose heads it READs */
	uint16_t first; /* the first of them */
	/* WQE_RUN_HEADS, WQE_RUN_LEASED: the landing block: see run_landing(). Series: the number
	 * of pages of each READ of payload or pair; of heads 1 */
	uint16_t landing;
};
static_assert(sizeof(struct wqe) == 16, "four to a cache line");

static inline bool wqe_is_series(const struct wqe *wqe)
{
	return wqe->kind >= WQE_RUN_SERIES;
}

static inline bool wqe_is_pairs(const struct wqe *wqe)
{
	return wqe->kind >= WQE_RUN_PAIRS;
}

/* The members run, blocks and kind in one word. */
static inline uint32_t wqe_owner(uint16_t run, uint8_t blocks, enum wqe_kind kind)
{
	return run | (uint32_t)blocks << 16 | (uint32_t)kind << 24;
}

/* Writes a record in two stores; `detail` is first | landing << 16. */
static inline void wqe_store(
	struct wqe *wqe, uint32_t bytes, uint32_t owner, uint32_t pages, uint32_t detail)
{
	uint64_t word[2] = {bytes | (uint64_t)owner << 32, pages | (uint64_t)detail << 32};

	memcpy(wqe, word, sizeof(*wqe));
}
static_assert(offsetof(struct wqe, run) == 4 && offsetof(struct wqe, blocks) == 6 &&
		      offsetof(struct wqe, kind) == 7 && offsetof(struct wqe, first) == 12 &&
		      offsetof(struct wqe, landing) == 14,
	"as wqe_store() writes them");

static_assert(QP_DEPTH <= UINT8_MAX, "conn_qp.blocks_max has 8 bits");

struct conn_qp {
	struct dv_sq *sq;
	struct conn *conn;
	struct conn_qp *rung_next; /* next QP in the list rail->unrung */
	/* bytes of long READs (above RAIL_SMALL_BYTES) that are posted and not retired */
	uint32_t bulk_bytes;
	/* bytes of READs posted after the last WQE of the QP that requests a CQE */
	uint32_t silent_bytes;
	/* number of WQEs posted after the last WQE of the QP that requests a CQE */
	uint32_t silent;
	bool unrung; /* true while the QP is in the list rail->unrung */
	/* WQEBBs that may be outstanding: the smaller one of QP_DEPTH, the size of wqe[], and the
	 * send queue's size */
	uint8_t blocks_max;
	struct wqe wqe[QP_DEPTH];
};

enum conn_state {
	CONN_OPEN, /* CONN_OPEN: the connection takes ops */
	/* CONN_PROBING: the connection takes no ops until the rail's own probe READ has
	 * succeeded */
	CONN_PROBING,
	/* CONN_BROKEN: an error CQE, a stall, an overdue run or the loss of the NIC ended
	 * the connection; RAIL_CONN_BROKEN was sent */
	CONN_BROKEN,
	/* CONN_DROPPED: RAIL_CONN_DROP was received; the connection is returned once every WQE
	 * has retired */
	CONN_DROPPED,
};

struct conn {
	struct rail_conn *handle;
	struct list conns; /* entry in rail->conns, the list of all connections, oldest first */
	/* entry in rail->waiting, the list of connections with READs to post */
	struct list waiting;
	/* list of this connection's runs with payload to post, in the order of their tags */
	struct list runs;
	/* list of this connection's runs with page heads to READ; posted before all payload */
	struct list run_heads;
	/* number of WQEs posted and not retired on all QPs of the connection */
	uint32_t wqes;
	/* bytes of READs posted and not retired on all QPs of the connection */
	uint32_t bytes;
	struct conn_qp *bulk; /* QP to which the last long READ was posted; NULL: none */
	/* QP to which small READs are posted until one of them requests a CQE; NULL: none */
	struct conn_qp *small;
	uint32_t runs_live; /* number of live runs of this connection */
	/* channel of all of them; CHANNEL_NONE: they are, or some that ended were, of several */
	uint32_t runs_channel;
	uint32_t run_pages;   /* number of their pages and buckets */
	uint64_t taken_bytes; /* bytes of this connection's live runs, posted or not */
	/* number of runs past their deadlines that still have WQEs at the NIC */
	uint32_t expired;
	uint32_t moved;      /* number of WQEs of this connection retired so far; wraps */
	uint32_t moved_seen; /* value that `moved` had at the last conns_watch() */
	/* time with WQEs posted and none retired, as far as conns_watch() saw it, ns */
	uint64_t still_ns;
	/* true: the connection has had WQEs posted all the time since the last conns_watch() */
	bool begun;
	/* the limbo time of the peer, for leases, ns; 0: its pages are validated by tail */
	uint64_t limbo_ns;
	/* CLOCK_MONOTONIC when the connection became CONN_BROKEN or CONN_DROPPED, ns; 0: neither */
	uint64_t ended_ns;
	uint16_t number; /* number of the peer: map_member.peer */
	uint8_t state;   /* state of the connection: enum conn_state */
	/* true: a run outlived RUN_GRACE_NS, too; rail_expire() breaks the connection */
	bool overdue;
	bool stuck; /* true: the connection does not drain; RAIL_CONN_STUCK was sent */
	/* true: the connection is stalled: its runs count as parked, and its bytes not
	 * against the rail's budgets */
	bool stalled;
	struct conn_qp qp[QPS_PER_PEER_MAX];
};

/* What the rail knows of one peer, by map_member.peer. */
struct peer_slot {
	struct conn *conn;  /* newest connection to the peer; NULL: none */
	struct list parked; /* list of runs that wait for a connection to the peer, oldest first */
	/* if `wanted`: ref of the incarnation for which RAIL_CONN_WANTED was sent */
	uint32_t wanted_ref;
	bool wanted; /* true: RAIL_CONN_WANTED was sent and is not answered yet */
};

/*
 * RAIL_CONN_ADD: makes `handle` the newest connection of its member and routes the runs that wait
 * for it. If the rail cannot use it (no free struct conn, rail stopping, NIC lost), it is returned
 * at once and those runs are refused.
 */
void conn_add(struct rail *rail, struct rail_conn *handle);
/*
 * Ends an open or probing connection: nothing more is posted on it, unposted runs fail,
 * RAIL_CONN_BROKEN is sent. `syndrome` is that of the error CQE; 0: there was none (stall, overdue
 * run, failed probe, lost NIC).
 */
void conn_break(struct rail *rail, struct conn *conn, uint32_t syndrome);
/*
 * The probe READ of a CONN_PROBING connection has ended with `status`: opens or breaks the
 * connection.
 */
void conn_probed(struct rail *rail, struct conn *conn, enum op_status status);
/*
 * RAIL_CONN_DROP: nothing more is posted on the connection, which is returned when it is drained.
 * The control plane has moved the QPs to the error state, or failed to. `object`: the connection
 * meant; NULL: one of (peer, ref).
 */
void conn_drop(struct rail *rail, uint16_t peer, uint32_t ref, const struct rail_conn *object);
/* Executes RAIL_LOST: from then on the rail does not touch the NIC's memory and queues. */
void rail_lose(struct rail *rail);
/* Executes RAIL_FOUND: the rail uses what rail_nic_open() made. */
void rail_find(struct rail *rail);
/* The rail has no NIC, from its opening or from now on: it touches no queue of one. */
void rail_without_nic(struct rail *rail);
/*
 * Executes RAIL_CONN_RETIRE: retires what is posted on the connection of `object` and returns it.
 */
void conn_retire(struct rail *rail, const struct rail_conn *object);
/* Returns a dropped connection to the control plane if none of its WQEs is at the NIC. */
void conn_return_if_drained(struct rail *rail, struct conn *conn);

/*
 * Stall detection; runs every CONN_WATCH_NS. After CONN_STALL_NS without a completion a connection
 * keeps its posted WQEs, but they no longer count against the rail's budgets. It is broken after
 * rail_conn.stall_ns without a completion, so that its runs can be repeated over another rail,
 * or earlier once it is stalled and one of its runs is past its deadline. Only time during
 * which the poll core was running is counted.
 */
void conns_watch(struct rail *rail, uint64_t now_ns);
/*
 * Ends the stall of a connection, because one of its WQEs retires with `syndrome`: its runs
 * count against the rail's budgets again. After an error rail_conn.stalled stays, until the
 * control plane has read RAIL_CONN_BROKEN: an error is no answer of the peer.
 */
void conn_unstall(struct rail *rail, struct conn *conn, uint32_t syndrome);

/* Finds the QP of this rail with that QP number; NULL: none. */
struct conn_qp *conn_qp_find(struct rail *rail, uint32_t qpn);

/*
 * Requests a connection to (peer, ref) from the control plane, unless a request for one to this
 * peer is open.
 */
void peer_want(struct rail *rail, struct peer_slot *slot, uint16_t peer, uint32_t ref);
/*
 * RAIL_CONN_REFUSE: the control plane cannot connect to (peer, ref), so the runs that wait for
 * it end with OP_PEER_DOWN.
 */
void peer_refuse(struct rail *rail, uint16_t peer, uint32_t ref);

#endif
