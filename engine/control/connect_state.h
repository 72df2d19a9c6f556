/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of connect: active ends (ours, handed to a rail), passive ends (held for a peer's
 * rail), commands a full inbox did not take yet. Control plane's thread only.
 *
 *   connect.c       asking: rails' wishes, Connected, breaking up
 *   connect_serve.c answering     connect_qps.c   sets of queue pairs
 *   connect_health.c   which rails are out of use, and when they are tried again
 */
#ifndef CONTROL_CONNECT_STATE_H
#define CONTROL_CONNECT_STATE_H

#include <sys/queue.h>

#include "engine/control/connect.h"
#include "engine/control/rpc.h"

#define CONNECT_ANSWER_MS 2000 /* the peer's Connected */
#define CONNECT_BACKOFF_MS 100 /* after the first failure; doubles */
#define CONNECT_BACKOFF_MAX_MS 2000
#define CONNECT_STEADY_NS 10000000000ull /* lived that long: a break starts from 100 ms again */
#define CONNECT_RETRY_MS 1               /* rail_tell() said no */
#define REGION_BYTES_MAX (1ull << 48)

enum active_state {
	ACTIVE_ASKED,  /* Connect sent; the queue pairs are ours */
	ACTIVE_LIVE,   /* the rail's, from RAIL_PEER_ADD on */
	ACTIVE_BROKEN, /* in error; the rail drains and returns it */
};

struct qp_set {
	unsigned count;
	struct dv_qp *qp[QPS_PER_PEER_MAX];
};

/* Queue pairs of one of our rails to one peer. */
struct active {
	LIST_ENTRY(active) next;
	struct control *control;
	enum active_state state;
	unsigned rail, to_rail;
	uint64_t serial;
	uint64_t live_ns;
	struct event *deadline;
	struct qp_set qps;
	struct rail_peer peer; /* what the rail is given; .control is this struct */
};

/* Queue pairs a peer's rail reads through. They never post. */
struct passive {
	LIST_ENTRY(passive) next;
	uint32_t ref;
	unsigned rail, to_rail; /* theirs, ours */
	uint64_t serial;
	struct qp_set qps;
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
};

/* connect.c, for connect_health.c */

/* The path's record; one of another incarnation begins anew. */
struct backoff *backoff_of(struct control *control, unsigned rail, uint16_t peer, uint32_t ref);
/* Everything of ours on that rail is put in error and given up. */
void actives_break_rail(struct control *control, unsigned rail);
/* Asks for queue pairs whose first READ is a probe, unless there are some. */
void connect_probe(struct control *control, unsigned rail, const struct member_record *to);

/* connect_health.c, for connect.c */

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
/* 0 or -errno; all or none. */
int qps_create(struct control *control, unsigned rail, unsigned count, unsigned depth,
	struct qp_set *ret, struct dv_sq **ret_sq);
void qps_error(struct qp_set *qps);
void qps_destroy(struct qp_set *qps);
/* At most QPS_PER_PEER_MAX ends, in order, each with an address of the right size. */
bool ends_fit(size_t count, Pc__QpEnd *const *ends);
/* `ends` fit. -EPROTO: not as many as there are queue pairs, or dv_qp_connect() refused one. */
int qps_connect(struct qp_set *qps, size_t count, Pc__QpEnd *const *ends);

struct end_list {
	struct dv_address address[QPS_PER_PEER_MAX];
	Pc__QpEnd end[QPS_PER_PEER_MAX];
	Pc__QpEnd *at[QPS_PER_PEER_MAX];
};
void qps_describe(const struct qp_set *qps, struct end_list *ret);

/* connect_serve.c */

/* In error and destroyed: every passive end of that member, or of all with ref 0. */
void passives_drop(struct control *control, uint32_t ref);

#endif
