/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of this room: outgoing connections (made by us, handed to a rail) and incoming ones
 * (held for a peer's rail). Control plane's thread only, apart from the calls to the NIC's driver:
 * helper threads make those, from two queues per rail, so that tearing down a broken connection
 * never waits for the making of another one.
 *
 *   conns.c        outgoing connections
 *   conn_accept.c  incoming connections
 *   conn_qps.c     sets of queue pairs, driver calls
 *   rail_health.c  which rails are out of use; events of NICs; opens and closes the room
 *   nic_lost.c     lost NICs, and how they come back
 */
#ifndef CONTROL_CONNS_INNER_H
#define CONTROL_CONNS_INNER_H

#include <sys/queue.h>

#include "engine/control/conns/conns.h"
#include "engine/control/members/members.h"
#include "engine/control/net/rpc.h"
#include "engine/control/base/work.h"

#define CONN_ANSWER_MS 2000 /* time limit for the peer's Connected after our Connect */
/* time limit for making a connection, from the rail's request to RAIL_CONN_ADD */
#define CONN_MADE_MS 5000
/* back-off after a connection's first failure; doubles with each further failure */
#define CONN_BACKOFF_MS 100
#define CONN_BACKOFF_MAX_MS 2000
/*
 * After a connection that lived longer than this, the next back-off starts at CONN_BACKOFF_MS
 * again
 */
#define CONN_STEADY_NS 10000000000ull
/* a stall time is at least this number of ACK time-outs without a completion */
#define CONN_STALL_ACKS 5
/* time in which queue pairs read what they were told to, from peers that answer, ms */
#define CONN_LENT_MS 2000u
/*
 * If the posted work has not ended this long after its deadline, its queue pairs cannot be
 * destroyed: no client waits longer.
 */
#define CONN_OVERDUE_NS 2000000000ull
/*
 * The engine aborts this long after CONN_OVERDUE_NS: the end of the process stops the NIC for
 * sure.
 */
#define CONN_ABORT_NS 5000000000ull
/*
 * Period of the ticks that count down to the abort. Ticks pass only while the event loop runs, so
 * the time during which the process is stopped does not count.
 */
#define CONN_CALLS 4u   /* threads, and so driver calls at a time, of one queue of a rail */
#define CONN_CALL_S 10u /* shutdown: time limit for one driver call to return, in s */
#define CONN_TICK_NS 500000000ull
#define REGION_BYTES_MAX (1ull << 48)
#define PORT_WHY_BYTES 240u

struct qp_set {
	unsigned count;
	struct dv_qp *qp[QPS_PER_PEER_MAX];
};

/*
 * Driver calls that a helper thread executes. Calls from QPS_ERROR on tear down; they have a queue
 * and a thread of their own.
 */
enum qps_call {
	/* create the queue pairs; then QPS_CONNECT follows, if the peer's addresses are known */
	QPS_MAKE,
	QPS_CONNECT,
	QPS_ERROR,
	/*
	 * Destroy queue pairs that did not drain; `status` is 0 only if all of them were destroyed
	 */
	QPS_KILL,
	QPS_DESTROY, /* destroy queue pairs that have drained, were killed or were never used */
};

/*
 * A set of queue pairs and the driver call in progress. While `busy`, everything except `abandoned`
 * belongs to the helper thread.
 */
struct qps {
	struct work work;
	struct control *control;
	unsigned rail;
	bool busy;
	/*
	 * Written by the control plane: the helper thread stops making and connecting; never reset
	 */
	uint32_t abandoned;
	enum qps_call call;
	/* input of QPS_MAKE: number of queue pairs to create, WQEs that each can hold */
	unsigned count, depth;
	/*
	 * input of QPS_CONNECT: number of the peer's addresses in `remote`; must equal the number
	 * of queue pairs
	 */
	unsigned remotes;
	struct dv_address remote[QPS_PER_PEER_MAX];
	void (*done)(struct qps *qps);
	int port; /* result of QPS_MAKE: what the port was found to be; see dv_port_look() */
	/* results of the driver call, written by the helper thread */
	int status;
	char text[240];
	uint64_t ack_ns; /* result of QPS_CONNECT: the longest ACK time-out among the queue pairs */
	struct dv_sq *sq[QPS_PER_PEER_MAX];
	struct qp_set set;
};

enum out_conn_state {
	OUT_CONN_MAKING, /* state of a connection: a helper thread makes its queue pairs */
	/* state: Connect was sent; the control plane still owns the queue pairs */
	OUT_CONN_REQUESTED,
	/* state: Connected was received; a helper thread connects the queue pairs */
	OUT_CONN_CONNECTING,
	OUT_CONN_LIVE,   /* state: the rail owns the queue pairs, from RAIL_CONN_ADD on */
	OUT_CONN_BROKEN, /* state: the queue pairs are in error; the rail drains and returns them */
};

/* An outgoing connection: queue pairs of one of our rails to one peer. */
struct out_conn {
	LIST_ENTRY(out_conn) next;
	struct control *control;
	enum out_conn_state state;
	/*
	 * the connection was given up before it was live, or the rail returned it: it is only to be
	 * destroyed
	 */
	bool gone;
	bool linkless; /* the Connect is sent as soon as there is a link with the member */
	bool errored;  /* true: QPS_ERROR was executed, with or without success */
	bool kill;     /* true: the connection does not drain, so QPS_KILL must be executed */
	bool retired;  /* true: RAIL_CONN_RETIRE was sent to the rail */
	unsigned rail, to_rail;
	uint64_t serial;
	uint64_t made_until_ns; /* if the connection is not live at this time, it is given up */
	uint64_t live_ns;
	/*
	 * Timer: until the connection is live, it gives it up; once it is stuck, it counts `ticks`
	 * down
	 */
	struct net_timer *deadline;
	/*
	 * ticks left until the engine aborts because the rail did not return the connection; see
	 * CONN_TICK_NS
	 */
	unsigned ticks;
	uint64_t tick_ns; /* time of the last tick that was subtracted from `ticks` */
	struct qps qps;
	/* handed to the rail; its member .control points to this struct out_conn */
	struct rail_conn handle;
};

/*
 * An incoming connection: queue pairs that a peer's rail reads through. They never
 * post.
 */
struct in_conn {
	LIST_ENTRY(in_conn) next;
	uint32_t ref;
	unsigned rail, to_rail; /* the peer's rail that reads, and our rail that serves it */
	uint64_t serial;
	bool gone; /* true: nothing uses the queue pairs; they are only to be destroyed */
	struct qps qps;
};

/* Health of the connections of one of our rails to one peer: its failures. */
struct conn_health {
	LIST_ENTRY(conn_health) next; /* in conns.watched, if `watched` */
	bool watched;
	uint32_t ref;
	/* the connection that was opened last; NULL: it was freed, or there was none */
	const struct out_conn *conn;
	unsigned fails;
	uint64_t until_ns;
	bool out; /* true: clients use other rails until a probe of a new connection is answered */
	/* rail_conn.stalled of the live connection at the last two looks of rails_unread_watch() */
	uint32_t stall, stall_before;
	bool asked; /* true: at the last look a Connect was sent and not answered */
	/*
	 * looks at one hang before which READs completed, of whichever member; other looks neither
	 * count nor reset it
	 */
	unsigned hung_looks;
};

/* A look at the port of one of our rails, by a helper thread. */
struct port_look {
	struct work work; /* must be first: a pointer to it is cast to struct port_look */
	struct control *control;
	unsigned rail;
	bool busy;
	bool again; /* the port may have changed since: the result does not count, look once more */
	int status;
	char text[PORT_WHY_BYTES];
};

/* An attempt to open the NIC of a lost rail. A helper thread's until `returned`. */
struct nic_attempt {
	struct work work; /* must be first: a pointer to it is cast to struct nic_attempt */
	struct control *control;
	unsigned rail;
	bool returned; /* control plane: the memory of clients is next */
	bool opened;   /* the device is open: if the attempt fails, it has to be closed */
	int status, port;
	char text[PORT_WHY_BYTES], port_text[PORT_WHY_BYTES];
	struct dv_mr exported[REGIONS_EXPORTED]; /* see control_rail.exported */
};

/* Health of one of our rails. */
struct rail_health {
	/* 0: the port can be used; else why not, as dv_port_look() says */
	int port;
	char why[PORT_WHY_BYTES]; /* the same as a text with its remedy */
	struct port_look look;
	uint64_t looked_ns; /* when `port` was found out last */
	bool lost;          /* the rail's NIC died or is not there: see nic_lost.c */
	bool cut; /* the rail is lost and its device is closed: the NIC writes nothing any more */
	/* since when its device is to be closed, as soon as clients have given back their
	 * descriptors; 0: it is not. `cut_attempt`: the rail did not get the device */
	uint64_t cut_since_ns;
	bool cut_attempt, cut_told;
	bool lost_again;             /* it died while it came back */
	struct nic_attempt *attempt; /* to open it anew; NULL: none is in progress */
	uint64_t back_ns;            /* no attempt is made before this time */
	unsigned pauses;             /* number of pauses before an attempt so far */
	uint64_t found_ns;           /* when it was back last */
	bool slow;
	unsigned slow_times; /* number of times in a row that the rail was found slow */
	/* end of the rail's present rest if it is slow, else of its last rest */
	uint64_t slow_until_ns;
	/*
	 * The fields below count from the last comparison with the other rails. `idle`: the rail
	 * had no work at some moment.
	 */
	bool idle;
	unsigned behind; /* number of comparisons in a row in which the rail was behind */
	uint64_t bytes, pages;
};

struct conns {
	LIST_HEAD(, out_conn) out_conns;
	LIST_HEAD(, in_conn) in_conns;
	uint64_t serial;
	unsigned outstanding;
	/* indexed by the number of our rail and by peer number; untouched from `peers` on */
	struct conn_health conn_health[RAILS_MAX][NODES_MAX];
	unsigned peers; /* 1 + the highest peer number that a connection was wanted with */
	/*
	 * those of conn_health[][] that are out or stalled, and those that were at the last look of
	 * rails_unread_watch(), which alone removes them
	 */
	LIST_HEAD(, conn_health) watched;
	uint32_t stalls;      /* sum of rail_stalls() at the last look */
	unsigned stall_looks; /* looks that still search all connections for new stalls */
	struct rail_health health[RAILS_MAX];
	/* by peer number: ref of the member whose READs hang; 0: none */
	uint32_t unread[NODES_MAX];
	uint64_t completed; /* pages and buckets read by all rails, at the last rails_watch() */
	struct net_timer *watch;
	/* number of rails_watch() calls; after HEALTH_WATCHES of them the rails are compared */
	unsigned watches;
	struct works *works;
	struct works *openers; /* nic_lost.c; a queue for each rail */
};

/*
 * Each rail has two queues of driver calls: number 2 * rail for making connections, 2 * rail + 1
 * for destroying them.
 */
static inline unsigned work_queue_of(unsigned rail, bool breaking)
{
	return 2 * rail + breaking;
}

/* The watch of the rails looks at these connections from now on. */
static inline void conn_health_watch(struct conns *conns, struct conn_health *health)
{
	if (!health->watched)
		LIST_INSERT_HEAD(&conns->watched, health, next);
	health->watched = true;
}

/* True if the rail is out of use towards all peers: it has no link, is slow, or is lost. */
static inline bool rail_out(const struct control *control, unsigned rail)
{
	const struct rail_health *h = &control->conns->health[rail];

	return h->port || h->slow || h->lost;
}

/* ---- conns.c --------------------------------------------------------------------------------- */

/* Starts the next driver call that the connection needs, unless a call is in progress. */
void out_conn_go_on(struct out_conn *conn);
/*
 * The member with this ref and this peer number. NULL: it has left; or it is back with another
 * number, and another member may have this one.
 */
const struct member_record *conn_member(const struct control *control, uint16_t peer, uint32_t ref);
/*
 * Ends the connections of one of our rails that send with a source address that its port has no
 * more, outgoing and incoming ones. They are made anew.
 */
void conns_replace_stale(struct control *control, unsigned rail);
/* Gives up or breaks every outgoing connection of one of our rails. */
void out_conns_break_rail(struct control *control, unsigned rail);
/*
 * Opens a connection whose first READ is a probe, unless the rail already has a connection to `to`.
 */
void conns_probe(struct control *control, unsigned rail, const struct member_record *to);

/* Called when the QP with number `qpn` has failed: its connection is broken. */
void conns_qp_failed(struct control *control, unsigned rail, uint32_t qpn, const char *why);
/* What conns_open() and conns_close() of rail_health.c begin and end with. */
int out_conns_open(struct control *control);
void out_conns_close(struct control *control);
/* For tests: number of driver calls on queue pairs that helper threads execute now. */
unsigned conns_busy(const struct control *control);

/* ---- rail_health.c --------------------------------------------------------------------------- */

/*
 * Called when the port of the rail's NIC is known to be usable (status 0) or not (the other values
 * of dv_port_look(), and `why`).
 */
void conns_port(struct control *control, unsigned rail, int status, const char *why);
/* A helper thread looks at the port, because it may have changed; conns_port() follows. */
void conns_port_look(struct control *control, unsigned rail);

/* Sets or clears a rail's bit in a word of the status segment that tells clients which are out. */
static inline void rail_out_bit_set(uint32_t *word, unsigned rail, bool out)
{
	uint32_t bits = shm_load(word);

	shm_store(word, out ? bits | 1u << rail : bits & ~(1u << rail));
}

/* Takes the rail out of use: breaks its connections and tells clients to use the other rails. */
void rail_leaves(struct control *control, unsigned rail);
/*
 * Watches the events of the rail's NIC from here on. Returns 0, also if they cannot be watched, or
 * -ENOMEM. Forget stops it, because the device is about to be closed.
 */
int device_event_watch(struct control *control, unsigned rail);
void device_event_forget(struct control *control, unsigned rail);

/* ---- nic_lost.c ------------------------------------------------------------------------------ */

/* Called again and again while the NIC of the rail is lost: opens it anew when that is due. */
void nic_lost_watch(struct control *control, unsigned rail, uint64_t now_ns);
int nic_lost_open(struct control *control);
void nic_lost_close(struct control *control);

/* ---- conn_qps.c, for outgoing and incoming connections --------------------------------------- */

/*
 * Number of queue pairs from a rail to a peer: rail.qps_per_peer, or, if that is 0, as many as the
 * port's data rate needs.
 */
unsigned qps_wanted(const struct control *control, unsigned rail);
/* A helper thread executes the driver call; then the control plane calls done(). */
void qps_start(struct qps *qps, enum qps_call call);
/*
 * The queue pairs are not needed any more: the helper thread skips what it has not made or
 * connected yet.
 */
void qps_abandon(struct qps *qps);
/* True while a helper thread makes or connects these queue pairs. */
bool qps_making(const struct qps *qps);
/* See dv_qp_stale(); false while a helper thread works on them. */
bool qps_stale(const struct qps *qps);
/* Destroys the queue pairs. For conns_close() only, when no helper thread is running. */
void qps_destroy(struct qp_set *set);
/*
 * True if there are at most QPS_PER_PEER_MAX ends, in order, each with an address of the right
 * size.
 */
bool ends_fit(size_t count, Pc__QpEnd *const *ends);
/* Stores the peer's addresses for QPS_CONNECT; the caller has checked ends_fit(). */
void qps_remote(struct qps *qps, size_t count, Pc__QpEnd *const *ends);
/*
 * True if `qpn` is the number of one of these queue pairs; false while a helper thread works on
 * them.
 */
bool qps_have(const struct qps *qps, uint32_t qpn);

struct end_list {
	struct dv_address address[QPS_PER_PEER_MAX];
	Pc__QpEnd end[QPS_PER_PEER_MAX];
	Pc__QpEnd *at[QPS_PER_PEER_MAX];
};
void qps_describe(const struct qp_set *set, struct end_list *ret);

/* ---- conn_accept.c --------------------------------------------------------------------------- */

/*
 * Marks for destruction every incoming connection of member `ref`, or of all members if `ref` is 0.
 */
void in_conns_drop(struct control *control, uint32_t ref);
/* Marks for destruction every incoming connection on our rail `rail`, which is lost. */
void in_conns_drop_rail(struct control *control, unsigned rail);
void in_conn_fail(struct in_conn *in_conn);
/* Frees all incoming connections. For conns_close() only, when no helper thread is running. */
void in_conns_free(struct control *control);

#endif
