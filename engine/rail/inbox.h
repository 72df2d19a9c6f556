/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages between the control plane and a rail: two SPSC rings in process memory, one for
 * commands (control plane -> rail), one for events (rail -> control plane). Ownership travels with
 * the message: the control plane builds an object, the rail owns it from the command on and returns
 * it in an event, and the control plane frees it. A rail never waits for the control plane, and the
 * control plane never touches what a rail owns.
 */
#ifndef RAIL_INBOX_H
#define RAIL_INBOX_H

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <stdbool.h>

#include "config/limits.h"
#include "engine/abi/op.h"
#include "engine/abi/ring.h"
#include "engine/abi/segment.h"

struct dv_sq;

/* Channels that a rail has: those of clients, and that of the control plane's copier. */
#define CHANNEL_COPIES CHANNELS_MAX
#define RAIL_CHANNELS_MAX (CHANNELS_MAX + 64)
/* Numbers of regions that only the copier's runs name: the pool of rail r is REGION_OWN_0 + r. */
#define REGION_OWN_0 REGIONS_EXPORTED
static_assert(REGION_OWN_0 + RAILS_MAX <= REGION_CLIENT_0, "below those of clients");

/*
 * Time without a completion after which a connection counts as stalled; no READ takes that long on
 * a working fabric. When a stalled connection is broken is decided by rail_conn.stall_ns and the
 * deadlines.
 */
#define CONN_STALL_NS (20ull * 1000 * 1000)
/* Interval at which a rail looks for stalled connections, ns. */
#define CONN_WATCH_NS (5ull * 1000 * 1000)
/*
 * Drain time-out of an ended connection: a QP in the error state flushes its WQEs at once, so a
 * longer wait means that the flush CQEs are missing.
 */
#define CONN_DRAIN_NS (1500ull * 1000 * 1000)

/*
 * An exported region of a peer, as registered on the NIC of the peer that this rail is connected
 * to.
 */
struct rail_remote {
	uint64_t base;   /* virtual address at which the peer has registered the region */
	uint64_t length; /* length of the region, bytes; 0: the peer does not have this region */
	uint32_t rkey;
	uint32_t spare;
};

/*
 * A connection to a peer, as the control plane hands it over: its QPs are ready to send and have
 * nothing posted.
 */
struct rail_conn {
	/* read-only once the rail has it */
	uint16_t peer; /* number of the peer: map_member.peer */
	uint16_t rail; /* index of this engine's rail that the connection is for */
	uint32_t ref;  /* ref of the peer's incarnation: map_member.ref */
	unsigned qps;  /* valid entries of sq[], 1..QPS_PER_PEER_MAX */
	/* true: the connection failed before, so the rail first posts one small READ (the probe)
	 * and, when that succeeds, sends RAIL_CONN_PROVEN */
	bool probe;
	/* ns without a completion after which the rail breaks the connection; 0: a stall alone
	 * does not break it, only a stall and a passed deadline */
	uint64_t stall_ns;
	/* L of abi/page.h, announced by the peer, at most LEASE_NS_MAX, ns; 0: READs on this
	 * connection cannot be validated by lease */
	uint64_t limbo_ns;
	struct dv_sq *sq[QPS_PER_PEER_MAX];
	/* exported regions of the peer, by region number */
	struct rail_remote region[REGIONS_EXPORTED];
	void *control; /* private data of the control plane; the rail does not use it */
	/* not 0: READs are posted and none has succeeded for CONN_STALL_NS; another number for each
	 * stall of the rail. Written by the rail, read by the control plane */
	uint32_t stalled;
	/* struct conn of the rail while the rail owns the connection; NULL at hand-over and at
	 * return */
	void *conn;
};

/*
 * Wakes a client that sleeps on its end of the socket pair. Never blocks; a send that fails because
 * the socket is full is harmless, because the client is then awake already. A socket pair, not an
 * eventfd: the client can only change its own end, whereas it could make a shared eventfd blocking
 * and fill it.
 */
static inline void client_wake(int wake)
{
	(void)!send(wake, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/*
 * Clears the kick eventfd. Clients share its open file: one may have made it blocking, or read the
 * kick itself, so it is read with RWF_NOWAIT, which never blocks. Kernels before Linux 5.8 refuse
 * that flag for an eventfd and get a plain read.
 */
static inline void kick_take(int fd)
{
	uint64_t count;
	struct iovec into = {&count, sizeof(count)};

	if (preadv2(fd, &into, 1, -1, RWF_NOWAIT) < 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
		(void)!read(fd, &count, sizeof(count));
}

/* The channel of one client thread as one rail sees it. */
struct rail_channel {
	uint32_t id;               /* id of the channel, < RAIL_CHANNELS_MAX */
	uint32_t session;          /* the session whose regions the channel's ops may name */
	struct ring_consumer ops;  /* op ring, client -> rail; entries are struct run_line */
	struct ring_producer done; /* done ring, rail -> client; entries are struct run_done */
	/* client_waits of the channel segment, set while the client sleeps; the rail exchanges
	 * it with 0 before it calls client_wake() */
	uint32_t *client_waits;
	int wake; /* the engine's end of the channel's socket pair, for client_wake() */
	/* the rail uses the fields below while it has the channel */
	uint32_t in_flight; /* number of runs of this channel that are taken and not answered */
	bool stopping;      /* true: RAIL_CHANNEL_STOP was received */
	/* true: a ring index or an op was impossible; RAIL_CHANNEL_BROKEN was sent */
	bool broken;
	void *control; /* private data of the control plane; the rail does not use it */
};

/*
 * A destination region on this host: one MR on this rail's NIC, or an array of extents of equal
 * length with one MR each.
 */
struct rail_region {
	uint64_t base;   /* start of the region: address in the engine's process */
	uint64_t length; /* length of the region, bytes */
	/* lkey of each extent of the region; must stay valid until RAIL_REGION_RETURNED */
	const uint32_t *extent_lkey;
	uint32_t lkey;        /* lkey of the region's MR; unused if it has extents */
	uint32_t session;     /* the session whose ops may name the region; never 0 */
	uint32_t id;          /* region number, REGION_OWN_0..REGIONS_MAX-1 */
	uint8_t extent_shift; /* log2 of an extent's bytes; 0: the region has one MR */
	uint8_t spare[3];
};

enum rail_command_kind {
	/* object: struct rail_conn, a new connection, which the rail owns from here on */
	RAIL_CONN_ADD = 1,
	/* peer, ref: no connection to this member can be made now; the rail ends the runs
	 * that wait for one with OP_PEER_DOWN */
	RAIL_CONN_REFUSE,
	/* peer, ref, object (may be NULL): post nothing more, drain, then send
	 * RAIL_CONN_RETURNED. The QPs are in the error state; if moving them there failed, the
	 * connection does not drain and RAIL_CONN_STUCK follows */
	RAIL_CONN_DROP,
	/* object: struct rail_conn whose QPs are destroyed, so the NIC writes nothing more: end
	 * what is posted without waiting for CQEs, then send RAIL_CONN_RETURNED */
	RAIL_CONN_RETIRE,
	RAIL_LOST, /* the rail's NIC is lost: break all connections, then send RAIL_QUIET */
	/* the lost NIC is open again and rail_nic_open() has succeeded: use it. The rail has no
	 * connection */
	RAIL_FOUND,
	RAIL_CHANNEL_ADD, /* object: struct rail_channel, which the rail owns from here on */
	/* object: struct rail_channel that the rail owns; take no more of its ops, drain, then
	 * send RAIL_CHANNEL_RETURNED */
	RAIL_CHANNEL_STOP,
	RAIL_REGION_ADD, /* region: a new destination region */
	/* region.id, lkey: the region's key on a NIC that was opened again; ignored for a region
	 * that is being dropped. Those of extents are in extent_lkey already */
	RAIL_REGION_KEY,
	/* region.id: refuse new ops that name this region; send RAIL_REGION_RETURNED when no
	 * run uses it */
	RAIL_REGION_DROP,
	/* cancel new ops, drain what is in flight, send RAIL_STOPPED; the poll core's thread
	 * ends when all of its rails have stopped */
	RAIL_STOP,
};

struct rail_command {
	uint32_t kind;
	uint16_t peer;
	uint16_t spare;
	uint32_t ref;
	uint16_t spare2;
	uint16_t turn; /* sequence number of the ring entry (abi/ring.h) */
	void *object;
	struct rail_region region;
};
static_assert(sizeof(struct rail_command) == 64, "one slot");
static_assert(offsetof(struct rail_command, turn) == RING_TURN_AT, "the ring's");

/* loop_event_serve() of control/loop.c takes each of them and calls the room that serves it. */
enum rail_event_kind {
	/* peer, ref: an op waits for a connection to this member; sent once until RAIL_CONN_ADD
	 * or RAIL_CONN_REFUSE. Served by conns_wanted() of control/conns/conns.c */
	RAIL_CONN_WANTED = 1,
	/* object: struct rail_conn, still owned by the rail; detail: syndrome, or 0 if there was
	 * no error CQE (stall, overdue run, failed probe, lost NIC). The control plane moves
	 * the QPs to error and sends RAIL_CONN_DROP: conns_broken() of control/conns/conns.c */
	RAIL_CONN_BROKEN,
	/* object: struct rail_conn, which is drained; the control plane owns it again */
	RAIL_CONN_RETURNED,
	/* object: struct rail_conn that broke or was dropped and does not drain; ns: the first
	 * deadline of its runs. The rail posts nothing on it any more. Only from here on may
	 * the control plane destroy the QPs; it then sends RAIL_CONN_RETIRE */
	RAIL_CONN_STUCK,
	RAIL_QUIET, /* answer to RAIL_LOST: from here on the rail touches nothing of its NIC */
	/* object: struct rail_conn whose probe succeeded; from here on the rail takes ops for it */
	RAIL_CONN_PROVEN,
	/* object: struct rail_channel of a hostile or broken client; the control plane must end
	 * its session */
	RAIL_CHANNEL_BROKEN,
	/* object: struct rail_channel with nothing in flight; the control plane owns it again */
	RAIL_CHANNEL_RETURNED,
	/* detail: number of a region that was dropped and that no run uses */
	RAIL_REGION_RETURNED,
	RAIL_STOPPED, /* answer to RAIL_STOP: everything is drained; no event follows */
};

struct rail_event {
	uint32_t kind;
	uint16_t peer;
	uint16_t spare;
	uint32_t ref;
	uint16_t spare2;
	uint16_t turn; /* sequence number of the ring entry (abi/ring.h) */
	void *object;
	uint32_t detail;
	uint32_t spare3;
	uint64_t ns; /* RAIL_CONN_STUCK: CLOCK_MONOTONIC of a deadline, ns */
	uint64_t spare4[3];
};
static_assert(sizeof(struct rail_event) == 64, "one slot");
static_assert(offsetof(struct rail_event, turn) == RING_TURN_AT, "the ring's");

/*
 * Both rings of one rail. The control plane allocates the memory; each end is used by one thread
 * only.
 */
struct inbox {
	struct ring_producer command_out; /* commands to the rail, the control plane's end */
	struct ring_consumer command_in;  /* commands to the rail, the rail's end */
	struct ring_producer event_out;   /* events of the rail, the rail's end */
	struct ring_consumer event_in;    /* events of the rail, the control plane's end */
};

#endif
