/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of connect: active ends (ours, handed to a rail), passive ends (held for a peer's
 * rail), commands a full inbox did not take yet. Control plane's thread only, apart from the calls
 * to the NIC's driver: helper threads make them, from two queues a rail, so that what is broken
 * never waits for what is being made.
 *
 *   connect.c       rails' wishes, Connected, members that go
 *   connect_active.c   one active end
 *   connect_serve.c answering     connect_qps.c   sets of queue pairs, and the calls
 *   connect_lost.c  queue pairs that do not drain, NICs that are lost
 *   connect_health.c   which rails are out of use, and when they are tried again
 */
#ifndef CONTROL_CONNECT_STATE_H
#define CONTROL_CONNECT_STATE_H

#include <sys/queue.h>

#include "engine/control/connect.h"
#include "engine/control/rpc.h"
#include "engine/control/work.h"

#define CONNECT_ANSWER_MS 2000 /* the peer's Connected */
#define CONNECT_MADE_MS 5000   /* all of it, from the wish to the rail's ADD */
#define CONNECT_BACKOFF_MS 100 /* after the first failure; doubles */
#define CONNECT_BACKOFF_MAX_MS 2000
#define CONNECT_STEADY_NS 10000000000ull /* lived that long: a break starts from 100 ms again */
#define CONNECT_RETRY_MS 1               /* rail_tell() said no */
#define CONNECT_STALL_ACKS 5             /* ACK time-outs without a completion are a stall */
/* A client waits no longer than this past a deadline: then the queue pairs are destroyed, ... */
#define CONNECT_OVERDUE_NS 2000000000ull
#define CONNECT_ABORT_NS 5000000000ull /* ... and then the process is, which ends it for sure */
/* Counted in ticks, which pass only while the loop turns: not while the process is stopped. */
#define CONNECT_TICK_NS 500000000ull
#define REGION_BYTES_MAX (1ull << 48)

struct qp_set {
	unsigned count;
	struct dv_qp *qp[QPS_PER_PEER_MAX];
};

/* What a helper thread does. Those from QPS_ERROR on have threads of their own. */
enum qps_call {
	QPS_MAKE, /* and, where there are addresses already, QPS_CONNECT */
	QPS_CONNECT,
	QPS_ERROR,
	QPS_KILL,    /* all or not: status */
	QPS_DESTROY, /* drained, killed or never used */
};

/*
 * A set of queue pairs and the call that is being made. While `busy` all of it is the helper's,
 * apart from `abandoned`.
 */
struct qps {
	struct work work;
	struct control *control;
	unsigned rail;
	bool busy;
	uint32_t abandoned; /* the loop's: make no more, connect no more; never taken back */
	enum qps_call call;
	unsigned count, depth; /* QPS_MAKE */
	unsigned remotes;      /* QPS_CONNECT: as many as queue pairs, or -EPROTO */
	struct dv_address remote[QPS_PER_PEER_MAX];
	void (*done)(struct qps *qps);
	/* what came of it */
	int status;
	char text[240];
	uint64_t ack_ns; /* connected: the longest ACK time-out that the device took */
	struct dv_sq *sq[QPS_PER_PEER_MAX];
	struct qp_set set;
};

enum active_state {
	ACTIVE_MAKING,     /* queue pairs are being made */
	ACTIVE_ASKED,      /* Connect sent; the queue pairs are ours */
	ACTIVE_CONNECTING, /* Connected came */
	ACTIVE_LIVE,       /* the rail's, from RAIL_PEER_ADD on */
	ACTIVE_BROKEN,     /* put in error; the rail drains and returns it */
};

/* Queue pairs of one of our rails to one peer. */
struct active {
	LIST_ENTRY(active) next;
	struct control *control;
	enum active_state state;
	bool gone;    /* given up before it was live, or returned: only to be destroyed */
	bool errored; /* QPS_ERROR was tried */
	bool kill;    /* it does not drain: QPS_KILL */
	bool retired; /* RAIL_PEER_RETIRE was sent */
	unsigned rail, to_rail;
	uint64_t serial;
	uint64_t made_until_ns; /* given up then unless it is live */
	uint64_t live_ns;
	struct event *deadline; /* to be live; ASKED: for Connected; BROKEN: ticks */
	unsigned ticks;         /* left before the engine ends itself */
	uint64_t tick_ns;       /* the last one */
	struct qps qps;
	struct rail_peer peer; /* what the rail is given; .control is this struct */
};

/* Queue pairs a peer's rail reads through. They never post. */
struct passive {
	LIST_ENTRY(passive) next;
	uint32_t ref;
	unsigned rail, to_rail; /* theirs, ours */
	uint64_t serial;
	bool gone; /* only to be destroyed */
	struct qps qps;
};

/* One rail of ours towards one peer. */
struct backoff {
	uint32_t ref;
	unsigned fails;
	uint64_t until_ns;
	bool out; /* clients are told to use other rails until a probe was answered */
};

/* One rail of ours. */
struct rail_health {
	bool port_down;
	bool lost; /* for good */
	bool cut;  /* ... and its device is closed: the NIC writes nothing any more */
	bool slow;
	unsigned slow_times;    /* in a row */
	uint64_t slow_until_ns; /* ... and when it was in use again */
	/* since the last comparison with the other rails */
	bool idle;
	unsigned behind; /* comparisons in a row */
	uint64_t bytes, pages;
};

struct untold {
	STAILQ_ENTRY(untold) next;
	unsigned rail;
	struct rail_command command;
};

struct connect {
	LIST_HEAD(, active) actives;
	LIST_HEAD(, passive) passives;
	STAILQ_HEAD(, untold) untold[RAILS_MAX];
	struct event *retry;
	uint64_t serial;
	unsigned outstanding;
	struct backoff backoff[RAILS_MAX][NODES_MAX]; /* by peer number */
	struct rail_health health[RAILS_MAX];
	struct event *watch;
	unsigned watches; /* since the last comparison */
	struct works *works;
};

/* The rail's two queues. */
static inline unsigned work_queue_of(unsigned rail, bool breaking)
{
	return 2 * rail + breaking;
}

/* connect_active.c */

struct active *active_find(struct control *control, unsigned rail, uint32_t ref);
/* Waits for the peer's ends no more: they are there, and are connected to now. */
void active_connect(struct active *active);
/*
 * Asks the peer for its ends, as soon as there are queue pairs. 0, -ENOMEM, or -EBUSY: a helper is
 * still at queue pairs to that peer which were given up.
 */
int active_open(struct control *control, unsigned rail, const struct member_record *to, bool probe);
/* Before it is live: nothing was posted. Informs the rail and the clients. */
void active_give_up(struct active *active);
/* Live: put in error, drained by the rail, destroyed. */
void active_break(struct active *active);
/* Either, as it is. */
void active_end(struct active *active);
/* Makes the next call that it needs, unless one is being made. */
void active_go_on(struct active *active);
void active_deadline_end(struct active *active);
/* So long until the engine ends itself, unless the rail returns it. */
void active_ticks_set(struct active *active, uint64_t ns);
void active_free(struct active *active);

/* connect.c, for the others */
void backoff_more(struct control *control, unsigned rail, uint16_t peer, uint32_t ref);
void tell_peer(struct control *control, unsigned rail, uint32_t kind, uint16_t peer, uint32_t ref);

/* The path's record; one of another incarnation begins anew. */
struct backoff *backoff_of(struct control *control, unsigned rail, uint16_t peer, uint32_t ref);
/* Everything of ours on that rail is put in error and given up. */
void actives_break_rail(struct control *control, unsigned rail);
/* In order, and never lost. */
void connect_tell(struct control *control, unsigned rail, const struct rail_command *command);
/* Asks for queue pairs whose first READ is a probe, unless there are some. */
void connect_probe(struct control *control, unsigned rail, const struct member_record *to);

/* connect_health.c, for connect.c */

/* A lost rail takes its leave; the others go on. */
void rail_leaves(struct control *control, unsigned rail);
/* Given no work at all. */
bool rail_out(const struct control *control, unsigned rail);

/* Failed: clients use other rails; tried again at its back-off's end. */
void path_out(struct control *control, unsigned rail, uint16_t peer, uint32_t ref);
/* A probe was answered. */
void path_back(struct control *control, unsigned rail, uint16_t peer, uint32_t ref);
/* The number may be another member's next. */
void paths_forget(struct control *control, uint16_t peer);
int health_open(struct control *control);
void health_close(struct control *control);

/* connect_qps.c, for both */

/* From a rail to a peer: rail.qps_per_peer, or what its port's rate asks for. */
unsigned qps_wanted(const struct control *control, unsigned rail);
/* A helper thread makes the call; then done(). */
void qps_start(struct qps *qps, enum qps_call call);
/* They are not wanted any more: what is not made or connected stays so. */
void qps_abandon(struct qps *qps);
/* A helper makes or connects them: one path keeps no second one busy. */
bool qps_making(const struct qps *qps);
/* connect_close(): no helper is left. */
void qps_destroy(struct qp_set *set);
/* At most QPS_PER_PEER_MAX ends, in order, each with an address of the right size. */
bool ends_fit(size_t count, Pc__QpEnd *const *ends);
/* `ends` fit: what QPS_CONNECT connects to. */
void qps_remote(struct qps *qps, size_t count, Pc__QpEnd *const *ends);
/* It has the queue pair of that number. */
bool qps_have(const struct qps *qps, uint32_t qpn);

struct end_list {
	struct dv_address address[QPS_PER_PEER_MAX];
	Pc__QpEnd end[QPS_PER_PEER_MAX];
	Pc__QpEnd *at[QPS_PER_PEER_MAX];
};
void qps_describe(const struct qp_set *set, struct end_list *ret);

/* connect_serve.c */

/* To be destroyed: every passive end of that member, or of all with ref 0. */
void passives_drop(struct control *control, uint32_t ref);
/* ... and those on that rail of ours, which is lost. */
void passives_drop_rail(struct control *control, unsigned rail);
void passive_fail(struct passive *passive);
/* connect_close(): no helper is left. */
void passives_free(struct control *control);

/* connect_lost.c */

/*
 * No command of the driver helps any more: nothing is given to the rail, its device is closed, and
 * what it had posted ends then. Lost until the engine is started again.
 */
__attribute__((format(printf, 3, 4))) void rail_lost(
	struct control *control, unsigned rail, const char *format, ...);

#endif
