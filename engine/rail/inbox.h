/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the control plane and a rail say to each other: two SPSC rings in process memory, commands
 * one way, events the other. Ownership travels with the message: the control plane builds an
 * object, the rail owns it from the command on, returns it in an event, and the control plane frees
 * it. A rail never waits for the control plane, and the control plane never touches what a rail
 * owns.
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

/* A region of a peer, as registered on the NIC this rail is connected to. */
struct rail_remote {
	uint64_t base;
	uint64_t length; /* 0: the peer has no such region */
	uint32_t rkey;
	uint32_t spare;
};

/* A peer this rail is connected to: queue pairs ready to send, empty. */
struct rail_peer {
	/* read-only once handed over */
	uint16_t peer;     /* map_member.peer */
	uint16_t rail;     /* this rail's index */
	uint32_t ref;      /* map_member.ref */
	unsigned qps;      /* 1..QPS_PER_PEER_MAX */
	bool probe;        /* it failed before: one small READ first, then RAIL_PEER_PROVEN */
	uint64_t stall_ns; /* nothing completes for so long: it is broken; 0: only when a deadline
			      passes, too */
	struct dv_sq *sq[QPS_PER_PEER_MAX];
	struct rail_remote region[REGIONS_EXPORTED];
	void *control; /* the control plane's own, not looked at by the rail */
	void *lane;    /* the rail's own while it has the peer; NULL at hand-over and return */
};

/*
 * Wakes a client that sleeps on its end of the pair. Never blocks and never fails: a full socket
 * has woken it already. The client can change its own end only. An eventfd would be shared: the
 * client could make it blocking and fill it.
 */
static inline void client_wake(int wake)
{
	(void)!send(wake, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/*
 * Takes the kicks that have come. Clients share this eventfd and may have made it blocking or taken
 * the kick themselves: RWF_NOWAIT does not block all the same. Before Linux 5.8 a plain read.
 */
static inline void kick_take(int fd)
{
	uint64_t count;
	struct iovec into = {&count, sizeof(count)};

	if (preadv2(fd, &into, 1, -1, RWF_NOWAIT) < 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
		(void)!read(fd, &count, sizeof(count));
}

/* One client thread as this rail sees it. */
struct rail_channel {
	uint32_t id;      /* < CHANNELS_MAX */
	uint32_t session; /* whose regions its ops may name */
	struct ring_consumer ops;
	struct ring_producer done;
	uint32_t *client_waits; /* in the channel segment: exchanged with 0 before `wake` is set */
	int wake;               /* the engine's end of a socket pair: client_wake() */
	/* the rail's own while it has the channel */
	uint32_t in_flight;
	bool stopping;
	bool broken; /* an index was impossible: the control plane ends the session */
	void *control;
};

/*
 * A destination on this host: one memory registration (MR) on this rail's NIC, or a row of extents,
 * one MR each.
 */
struct rail_region {
	uint64_t base; /* address in this process */
	uint64_t length;
	const uint32_t *extent_lkey; /* by extent; valid until RAIL_REGION_RETURNED */
	uint32_t lkey;               /* of the one MR */
	uint32_t session;            /* who may name it; never 0 */
	uint32_t id;                 /* REGION_CLIENT_0 .. REGIONS_MAX-1 */
	uint8_t extent_shift;        /* an extent has 1 << extent_shift bytes; 0: one MR */
	uint8_t spare[3];
};

enum rail_command_kind {
	RAIL_PEER_ADD = 1, /* object: struct rail_peer */
	RAIL_PEER_REFUSE,  /* peer, ref: cannot be connected now; what waits for it ends */
	RAIL_PEER_DROP,    /* peer, ref: post no more; drain, then RAIL_PEER_RETURNED. Its QPs are
			      in error, unless that failed: then RAIL_PEER_STUCK */
	RAIL_PEER_RETIRE,  /* object: its QPs are destroyed, the NIC writes nothing any more: end
			      what is posted without completions, then RAIL_PEER_RETURNED */
	RAIL_LOST,         /* the NIC is not used any more: break all, then RAIL_QUIET */
	RAIL_CHANNEL_ADD,  /* object: struct rail_channel */
	RAIL_CHANNEL_STOP, /* object: the same; take no more, drain, then RAIL_CHANNEL_RETURNED */
	RAIL_REGION_ADD,   /* region */
	RAIL_REGION_DROP,  /* region.id: refuse new ops, then RAIL_REGION_RETURNED when unused */
	RAIL_STOP,         /* finish: what is in flight is drained, the thread ends */
};

struct rail_command {
	uint32_t kind;
	uint16_t peer;
	uint16_t spare;
	uint32_t ref;
	uint16_t spare2;
	uint16_t turn; /* the ring's */
	void *object;
	struct rail_region region;
};
static_assert(sizeof(struct rail_command) == 64, "one slot");
static_assert(offsetof(struct rail_command, turn) == RING_TURN_AT, "the ring's");

enum rail_event_kind {
	RAIL_PEER_WANTED = 1,  /* peer, ref: an op waits for a connection; said once */
	RAIL_PEER_BROKEN,      /* object: rail_peer, still the rail's; detail: syndrome, or 0 when
				  nothing completed. Put its QPs in error, send RAIL_PEER_DROP */
	RAIL_PEER_RETURNED,    /* object: drained; the control plane's again */
	RAIL_PEER_STUCK,       /* object: it broke or was dropped and does not drain; ns: the first
				  deadline on it. Nothing is posted on it any more, and only
				  from here on may its QPs be destroyed: then RAIL_PEER_RETIRE */
	RAIL_QUIET,            /* after RAIL_LOST: the rail touches nothing of its NIC any more */
	RAIL_PEER_PROVEN,      /* object: its probe was answered; ops are taken from here on */
	RAIL_CHANNEL_BROKEN,   /* object: a hostile or broken client; end its session */
	RAIL_CHANNEL_RETURNED, /* object: nothing in flight; the control plane's again */
	RAIL_REGION_RETURNED,  /* region id in detail */
	RAIL_STOPPED,
};

struct rail_event {
	uint32_t kind;
	uint16_t peer;
	uint16_t spare;
	uint32_t ref;
	uint16_t spare2;
	uint16_t turn; /* the ring's */
	void *object;
	uint32_t detail;
	uint32_t spare3;
	uint64_t ns; /* CLOCK_MONOTONIC */
	uint64_t spare4[3];
};
static_assert(sizeof(struct rail_event) == 64, "one slot");
static_assert(offsetof(struct rail_event, turn) == RING_TURN_AT, "the ring's");

/*
 * Both directions of one rail. Memory is the control plane's; each end is used by its own
 * thread.
 */
struct inbox {
	struct ring_producer command_out; /* control plane */
	struct ring_consumer command_in;  /* rail */
	struct ring_producer event_out;   /* rail */
	struct ring_consumer event_in;    /* control plane */
};

#endif
