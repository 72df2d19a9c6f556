/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a client process attaches to the engine of its host, and what the two map together.
 *
 * A Unix SOCK_SEQPACKET socket carries fixed-size requests and replies, one reply to each request,
 * in order; file descriptors come with them (SCM_RIGHTS). The engine checks SO_PEERCRED: the client
 * must be of the engine's own user, or root. The socket is the session: when it closes, the engine
 * stops the session's rings, drains what is in flight, then frees regions, pins and credits. A
 * connection that sends no request within 2 s is closed.
 *
 * Each side holds a pidfd of the other, because only the end of a process proves that it writes no
 * more: the engine to the client's memory, the client to a page slot. It works across PID
 * namespaces. A client without the engine's pidfd lets READs go to staging only; an engine without
 * the client's grants it no credits.
 *
 *   request        fds in     reply: a, b                    fds out
 *   HELLO          pidfd of   a = rails, b = session         status, control kick (eventfd),
 *                  the client                                shard; per rail: pool, heads, kick;
 *                  or none                                   pidfd of the engine, if it has one
 *   CHANNEL_OPEN   -          a = channel, b = staging       channel segment, wake
 *   CHANNEL_CLOSE  -          a (in) = channel               -
 *   REGION_ADD     memfd      a (in) = offset, b (in) =      -
 *                             length; out: a = region
 *   REGION_REMOVE  -          a (in) = region                -
 *   REPORT         -          a = bytes                      memfd: JSON, status and members
 *
 * `wake` is one end of a socket pair: readable when the client shall look at its rings. The kicks
 * are eventfds: clients write them; only the engine reads them.
 *
 * CHANNEL_CLOSE and REGION_REMOVE are answered when nothing is in flight there any more. A request
 * whose reply comes too late for the client is answered all the same: the client reads that reply
 * before its next request and undoes what it granted.
 */
#ifndef ABI_SEGMENT_H
#define ABI_SEGMENT_H

#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/statistics.h"

#define ABI_VERSION 6u
#define ATTACH_MAGIC 0x50434131u  /* "PCA1" */
#define STATUS_MAGIC 0x50435331u  /* "PCS1" */
#define CHANNEL_MAGIC 0x50434331u /* "PCC1" */

enum attach_kind {
	ATTACH_HELLO = 1,
	ATTACH_CHANNEL_OPEN = 2,
	ATTACH_CHANNEL_CLOSE = 3,
	ATTACH_REGION_ADD = 4,
	ATTACH_REGION_REMOVE = 5,
	ATTACH_REPORT = 6,
};

struct attach_request {
	uint32_t magic;
	uint16_t version;
	uint16_t kind; /* enum attach_kind */
	uint32_t serial;
	uint32_t spare;
	uint64_t a, b;
};
static_assert(sizeof(struct attach_request) == 32, "same in every build");

struct attach_reply {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;
	uint32_t serial; /* of the request */
	int32_t status;  /* 0 or a negative errno */
	uint64_t a, b;
	char text[224]; /* when status < 0: what was wrong and what to do, zero-terminated */
};
static_assert(sizeof(struct attach_reply) == 256, "same in every build");

/* File descriptors of one message: 3 + 3 per rail + the engine's pidfd. */
#define ATTACH_FDS_MAX (3 + 3 * RAILS_MAX + 1)

/* The status segment: the engine writes, clients and tools map it read-only. */
struct status_segment {
	uint32_t magic;
	uint32_t version;
	uint64_t incarnation;
	uint32_t ref;
	uint32_t pid;
	uint32_t rails;
	uint32_t bucket_bits; /* of this host's shard */
	uint64_t pool_bytes[RAILS_MAX];
	uint64_t page_bytes_max; /* the largest page every pool here can hold */
	/* owner: control plane; a bit per rail that is given no work now: by itself, and towards
	 * the peer of that number. When every rail is out one is tried all the same. */
	alignas(64) uint32_t rails_out;
	uint32_t peer_rails_out[NODES_MAX];
	/* owner: control plane; 1 while it sleeps: write the control kick */
	alignas(64) uint32_t control_sleeps;
	/* owner: each rail its own line; 1 while it sleeps: write the rail's kick */
	struct {
		alignas(64) uint32_t sleeps;
	} rail[RAILS_MAX];
	struct map_shared map;
	/* owner: the poll core whose first rail it is; by how much the clock of the modelled ports
	 * is behind CLOCK_MONOTONIC: model.own_time, and 0 otherwise */
	struct {
		alignas(64) uint64_t behind_ns;
	} clock[RAILS_MAX];
};
static_assert(offsetof(struct status_segment, rail) % 64 == 0, "sleep flags: a line each");
static_assert(offsetof(struct status_segment, map) ==
		      offsetof(struct status_segment, rail) + 64 * RAILS_MAX,
	"same in every process of the host");
static_assert(offsetof(struct status_segment, rail) % 64 == 0, "a line a rail");

/*
 * First page of a channel segment. Geometry is fixed by limits.h and the number of rails.
 *
 * `copying` and `stopped` decide who owns a credited slot when a session ends while the client's
 * thread copies into it:
 *
 *   client                                    engine
 *     copying = slot                            stopped = 1
 *     shm_fence_store_load()                    shm_fence_store_load()
 *     stopped? then copying = 0, no copy        copying == slot? then the slot is quarantined
 *     copy, drain the stores                    every other slot of the channel goes to limbo
 *     copying = 0 (release)                     quarantine ends: copying != slot (acquire), or the
 *                                               client's process has exited
 *
 * Both fences together let at least one side see the other's store.
 */
struct channel_header {
	uint32_t magic;
	uint32_t version;
	uint32_t rails;
	uint32_t spare;
	/* owner: client sets it; who completes something takes it down and writes wake */
	alignas(64) uint32_t client_waits;
	/* owner: client; slot_name() of the slot that its thread copies a page into; 0: none */
	alignas(64) uint64_t copying;
	/* owner: control plane; 1: the channel ends, its credits are void */
	alignas(64) uint32_t stopped;
	/* owner: control plane; 1: every rail has returned the channel, no READ of it is in flight.
	 * Stored with release; wake is written after it. */
	uint32_t drained;
};
static_assert(sizeof(struct channel_header) == 256, "fits its page; a line for each owner");
static_assert(offsetof(struct channel_header, copying) == 128, "the client's line");
static_assert(offsetof(struct channel_header, stopped) == 192, "the engine's line");

/* Never 0: the generation of a credit is at least 1. */
static inline uint64_t slot_name(uint32_t place, uint32_t generation)
{
	return (uint64_t)generation << 32 | place;
}

struct channel_layout {
	size_t statistics;    /* struct channel_statistics */
	size_t op[RAILS_MAX]; /* offsets in the segment */
	size_t done[RAILS_MAX];
	size_t ctl;
	size_t ctl_done;
	size_t staging; /* STAGING_BYTES, page-aligned */
	size_t bytes;   /* of the whole segment */
};

static inline struct channel_layout channel_layout(uint32_t rails)
{
	struct channel_layout l;
	size_t at = 4096;

	memset(&l, 0, sizeof(l));
	l.statistics = at;
	at += STATISTICS_BYTES;
	for (uint32_t r = 0; r < rails && r < RAILS_MAX; r++) {
		l.op[r] = at;
		at += ring_bytes(OP_RING_SLOTS, sizeof(struct op_slot));
		l.done[r] = at;
		at += ring_bytes(DONE_RING_SLOTS, sizeof(struct op_done));
	}
	l.ctl = at;
	at += ring_bytes(CTL_RING_SLOTS, sizeof(struct ctl_op));
	l.ctl_done = at;
	at += ring_bytes(CTL_DONE_SLOTS, sizeof(struct ctl_done));
	l.staging = (at + 4095) & ~(size_t)4095;
	l.bytes = l.staging + STAGING_BYTES;
	return l;
}

#endif
