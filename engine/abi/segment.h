/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a client process attaches to the engine of its host, and the memory that both map.
 *
 * A Unix SOCK_SEQPACKET socket carries fixed-size requests and replies, one reply to each request,
 * in order; file descriptors are passed with them (SCM_RIGHTS). The engine checks the client's user
 * and groups (control/clients/client_access.c). The socket is the session: when it closes, the
 * engine stops the session's rings, drains what is in flight, then frees regions, pins and credits.
 * A socket on which no request arrives within 2 s of the connect is closed.
 *
 * Each side holds a pidfd of the other, because only the end of a process proves that it writes no
 * more: the engine to the client's memory, the client to a page slot. This works across PID
 * namespaces. A client without the engine's pidfd directs READs to staging memory only; an engine
 * without the client's pidfd grants that client no credits.
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
 *   LEND           -          a (in) = rail, b (in) =        rail 0: `loan`; then, unless the
 *                             length; out: a = domain,       NIC is away, command descriptor of
 *                             b = log2 of the extents'       the rail's device
 *                             length; 0: one extent
 *   REGION_IMPORT  memfd:     a (in) = address, b (in) =     -
 *                  struct     length; 0: nothing was
 *                  region_key registered. Out: a = region
 *   REPORT         -          a = bytes                      memfd: JSON, status and members
 *   ASKED          -          a (in) = enum statistics_call  memfd: for each channel, a number
 *                             out: a = bytes                 of words, and its words (asked.h)
 *
 * `wake` is one end of a socket pair: it becomes readable when the client must check its rings.
 * The kicks are eventfds: clients write them; only the engine reads them.
 *
 * LEND and REGION_IMPORT register ordinary memory of the client, which no other process can map: it
 * registers the range itself, with the device and domain of each rail that it was lent, from rail 0
 * on. It closes the descriptors, sends a byte to `loan`, closes it and names the registrations. The
 * engine imports them and owns them from then on. A client has descriptors no longer than that,
 * because the kernel keeps queues while one is open, also when the engine has ended (`lent_ms`).
 * Where the session ends meanwhile, the byte proves that all are closed, or the end of the process
 * and of all copies of `loan`. -EAGAIN: begin again at rail 0 a little later.
 *
 * CHANNEL_CLOSE and REGION_REMOVE are answered once nothing of the channel or region is in flight.
 * If the client stops waiting for a reply, the engine still sends it: the client reads that reply
 * before its next request and undoes what it granted.
 */
#ifndef ABI_SEGMENT_H
#define ABI_SEGMENT_H

#include "engine/abi/asked.h"
#include "engine/abi/epoch.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/run.h"
#include "engine/abi/statistics.h"

#define ABI_VERSION 27u
#define ATTACH_MAGIC 0x50434131u  /* the bytes "PCA1", start of every request and reply */
#define STATUS_MAGIC 0x50435331u  /* the bytes "PCS1", start of a status segment */
#define CHANNEL_MAGIC 0x50434331u /* the bytes "PCC1", start of a channel segment */

enum attach_kind {
	ATTACH_HELLO = 1,
	ATTACH_CHANNEL_OPEN = 2,
	ATTACH_CHANNEL_CLOSE = 3,
	ATTACH_REGION_ADD = 4,
	ATTACH_REGION_REMOVE = 5,
	ATTACH_REPORT = 6,
	ATTACH_ASKED = 7,
	ATTACH_LEND = 8,
	ATTACH_REGION_IMPORT = 9,
};

/* An extent that the client has registered on a rail; in the order of rails, then of extents. */
struct region_key {
	uint32_t handle, lkey;
};

/* A request of a client on the engine's socket. */
struct attach_request {
	uint32_t magic;   /* ATTACH_MAGIC */
	uint16_t version; /* ABI_VERSION */
	uint16_t kind;    /* kind of request: enum attach_kind */
	uint32_t serial;  /* number chosen by the client; the reply returns it */
	uint32_t spare;
	uint64_t a, b; /* parameters of the request by its kind, see the table above */
};
static_assert(sizeof(struct attach_request) == 32, "same in every build");

/* The engine's reply to a request on its socket. */
struct attach_reply {
	uint32_t magic;   /* ATTACH_MAGIC */
	uint16_t version; /* ABI_VERSION */
	uint16_t kind;    /* kind of the answered request */
	uint32_t serial;  /* serial number of the request */
	int32_t status;   /* result of the request: 0 or a negative errno */
	uint64_t a, b;    /* results of the request by its kind, see the table above */
	/* if status < 0: error text, with the reason and what to do, zero-terminated */
	char text[224];
};
static_assert(sizeof(struct attach_reply) == 256, "same in every build");

/*
 * Limit of file descriptors in one message, that of HELLO's reply: status, control kick, shard; 3
 * per rail; the engine's pidfd.
 */
#define ATTACH_FDS_MAX (3 + 3 * RAILS_MAX + 1)

/* The status segment: the engine writes it, clients and tools map it read-only. */
/*
 * Whether the control plane looks at its rings by itself. A client that has sent it a request
 * writes the control kick where this says so.
 */
enum control_sleep {
	CONTROL_AWAKE,
	CONTROL_SLEEPS, /* until a kick */
	/* for at most CONTROL_NAP_US: only a client that does nothing but wait needs to kick */
	CONTROL_NAPS,
};
#define CONTROL_NAP_US 100

struct status_segment {
	uint32_t magic;                   /* STATUS_MAGIC */
	uint32_t version;                 /* ABI_VERSION */
	uint64_t incarnation;             /* incarnation of this engine */
	uint32_t ref;                     /* low 32 bits of the incarnation */
	uint32_t pid;                     /* PID of the engine, in its own PID namespace */
	uint32_t rails;                   /* number of rails, 1..RAILS_MAX */
	uint32_t bucket_bits;             /* log2 of the number of buckets of this engine's shard */
	uint64_t pool_bytes[PLACE_RAILS]; /* length of each rail's pool, bytes */
	/* length of the largest page that every pool of this engine can hold, bytes */
	uint64_t page_bytes_max;
	/* owner: control plane; 1: this host has a disk in service, so a key without a location is
	 * worth a CTL_PROMOTE */
	uint32_t disk;
	/* owner: control plane, which counts it up 20 times a second while its loop runs: while it
	 * changes, a request that takes long is being worked on */
	uint32_t beat;
	/* owner: control plane; 1 + the enum statistics_call whose keys are recorded; 0: none is */
	uint32_t asked;
	/* owner: control plane; number of sessions that may have descriptors of the rails' devices:
	 * if the engine ends now, its queues do what they were told for up to `lent_ms` longer,
	 * after which they have given up a READ without an answer */
	uint32_t lent;
	uint32_t lent_ms;
	/* owner: control plane; 1: a NIC is lost or opened anew. Descriptors are to be given back,
	 * as soon as the extent in progress is registered */
	uint32_t lent_back;
	/* owner: control plane; bit r is set while clients should give rail r no work: rails_out
	 * for all peers, peer_rails_out[p] for member p. If every rail is out, clients try one
	 * anyway. */
	alignas(64) uint32_t rails_out;
	uint32_t peer_rails_out[NODES_MAX];
	/* owner: control plane; enum control_sleep */
	alignas(64) uint32_t control_sleeps;
	/* owner: the rail's poll core, one line per rail; 1 while the poll core sleeps: a client
	 * that sends it an op must write the rail's kick */
	struct {
		alignas(64) uint32_t sleeps;
	} rail[PLACE_RAILS];
	struct map_shared map;
	/* owner: control plane; clients look at its version before every batch */
	alignas(64) struct epochs_shared epochs;
};
static_assert(offsetof(struct status_segment, page_bytes_max) == 160,
	"as in other builds of ABI_VERSION");
static_assert(offsetof(struct status_segment, beat) == 172, "as in other builds of ABI_VERSION");
static_assert(
	offsetof(struct status_segment, rail) % 64 == 0, "each sleep flag has its own cache line");
static_assert(offsetof(struct status_segment, map) ==
		      offsetof(struct status_segment, rail) + 64 * PLACE_RAILS,
	"same in every process of the host");
static_assert(offsetof(struct status_segment, rail) % 64 == 0, "one cache line per rail");

/*
 * The first page of a channel segment. The geometry of the segment follows from limits.h and the
 * number of rails.
 *
 * `copying` and `stopped` decide who owns a credited slot when a session ends while the client's
 * thread copies into it:
 *
 *   client                                    engine
 *     drain the stores of the copy before       stopped = 1
 *     copying = slot                            shm_fence_store_load()
 *     shm_fence_store_load()                    copying == slot? then the slot is quarantined
 *     stopped? then copying = 0, no copy        every other slot of the channel goes to limbo
 *     copy                                      quarantine ends: copying != slot (acquire), or the
 *     the same for each further slot            client's process has exited
 *     drain the stores, copying = 0 (release)
 *
 * With both fences at least one side sees the other's store. Pages are published after copying = 0.
 * An engine that adopts the memory of one that was killed does the same with the segments that its
 * predecessor has stored (control/pages/warm.c).
 */
struct channel_header {
	uint32_t magic;   /* CHANNEL_MAGIC */
	uint32_t version; /* ABI_VERSION */
	uint32_t rails;   /* number of the engine's rails, each with an op ring and a done ring */
	/* 1: every page is compared with its CRC32C, whatever pc_options.verify says, and one
	 * without is no hit (rail.validate = crc) */
	uint32_t compare_all;
	/* owner: the client sets it before it sleeps; the poll core or the control plane clears
	 * it when it publishes a completion, and then writes the wake socket */
	alignas(64) uint32_t client_waits;
	/* owner: client; slot_name() of the slot that its thread is copying a page into; 0: none */
	alignas(64) uint64_t copying;
	/* owner: control plane; 1: the channel ends and its credits are void */
	alignas(64) uint32_t stopped;
	/* owner: control plane; 1: every rail has returned the channel, so none of its READs is
	 * in flight. Stored with release; the wake socket is written after it. */
	uint32_t drained;
};
static_assert(sizeof(struct channel_header) == 256, "fits its page; one cache line per owner");
static_assert(offsetof(struct channel_header, copying) == 128, "the client's line");
static_assert(offsetof(struct channel_header, stopped) == 192, "the engine's line");

/*
 * Returns the identity of a credited slot. Never 0, because the generation of a credit is at least
 * 1.
 */
static inline uint64_t slot_name(uint32_t place, uint32_t generation)
{
	return (uint64_t)generation << 32 | place;
}

/* Offsets of the parts of a channel segment from its start, bytes. */
struct channel_layout {
	size_t statistics;      /* offset of struct channel_statistics */
	size_t op[RAILS_MAX];   /* offset of the op ring of each rail */
	size_t done[RAILS_MAX]; /* offset of the done ring of each rail */
	size_t ctl;             /* offset of the ctl ring */
	size_t ctl_done;        /* offset of the ctl done ring */
	size_t asked;           /* offset of struct channel_asked, aligned to 4096 */
	size_t staging;         /* offset of the staging memory, which ends the segment */
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
		at += ring_bytes(OP_RING_SLOTS, sizeof(struct run_line));
		l.done[r] = at;
		at += ring_bytes(DONE_RING_SLOTS, sizeof(struct run_done));
	}
	l.ctl = at;
	at += ring_bytes(CTL_RING_SLOTS, sizeof(struct ctl_op));
	l.ctl_done = at;
	at += ring_bytes(CTL_DONE_SLOTS, sizeof(struct ctl_done));
	l.asked = (at + 4095) & ~(size_t)4095;
	l.staging = l.asked + ASKED_BYTES;
	return l;
}

#endif
