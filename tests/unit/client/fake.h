/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fake engine for unit tests of the client library. One thread serves the attach socket with real
 * memfds, and acts as rails and control plane through the real rings. The fake engine has two rails
 * and simulates a cluster of three nodes: itself (FAKE_SELF) and two others, FAKE_A and FAKE_B,
 * whose memory is plain arrays.
 *
 * Tests change its state under `lock` (recursive), which the thread holds while it works.
 */
#ifndef TESTS_CLIENT_FAKE_H
#define TESTS_CLIENT_FAKE_H

#include <pthread.h>

#include "config/limits.h"
#include "engine/abi/run.h"
#include "engine/abi/segment.h"
#include "engine/client/peercache.h"
#include "tests/unit/op.h"

#define FAKE_NAME_BYTES 64
#ifndef FAKE_RAILS /* client_cost.c is built with more rails */
#define FAKE_RAILS 2u
#endif
#define FAKE_BITS 10u /* a shard has 2^FAKE_BITS buckets */
#define FAKE_POOL_BYTES (64u << 20)
#define FAKE_UNITS (FAKE_POOL_BYTES / PAGE_UNIT)
#define FAKE_CHANNELS 8
#define FAKE_SELF 0u
#define FAKE_A 1u
#define FAKE_B 2u
#define FAKE_NODES 3u
#define FAKE_REF(node) (0x1d3u * ((node) + 1))

struct fake_node {
	struct bucket *shard;
	unsigned char *pool[FAKE_RAILS];
	struct page_head *heads[FAKE_RAILS];
	uint32_t units_used[FAKE_RAILS]; /* units from the pool's start that pages occupy */
};

struct fake_channel {
	bool used;
	int wake, wake_client; /* the engine's and the client's end of the wake socket */
	int memfd;
	unsigned char *base;
	size_t bytes;
	unsigned answers;     /* entries written to its done rings */
	unsigned ctl_answers; /* entries written to its ctl done ring */
	struct ring_consumer ops[FAKE_RAILS];
	struct ring_producer done[FAKE_RAILS];
	struct ring_consumer ctl;
	struct ring_producer ctl_done;
};

struct fake_region {
	unsigned char *base; /* NULL: this entry is free */
	uint64_t bytes;
};

/* Return values of a hook: an op status to answer with, or one of these. */
#define FAKE_DO 1000u   /* answer as a correct engine does */
#define FAKE_HOLD 1001u /* ops: no answer before fake_answer_held(); control ops: no answer */

/* A run, as a rail copies it: `entry` of an OP_RUN, `bucket` of an OP_LOOKUP. */
struct fake_run {
	struct run head;
	struct run_entry entry[RUN_PAGES_MAX];
	uint32_t bucket[RUN_PAGES_MAX];
};

struct fake;
/* Called after the pages of a run were executed; may change the answer. */
typedef void fake_run_hook(
	struct fake *f, uint32_t rail, const struct fake_run *run, struct run_done *answer);
typedef uint32_t fake_op_hook(struct fake *f, uint32_t rail, const struct op *op);
typedef void fake_ctl_done_hook(struct fake *f, struct ctl_done *answer);
typedef uint32_t fake_ctl_hook(struct fake *f, const struct ctl_op *op);

struct fake {
	char path[108];
	pthread_t thread;
	pthread_mutex_t lock;
	bool stop;
	int listener;
	int connection;       /* socket of the only client process; -1: none */
	uint16_t version;     /* ABI version in the replies */
	uint64_t rails_said;  /* number of rails in the reply to HELLO */
	uint64_t region_said; /* region number in replies; 0: the right one */
	int status_fd, shard_fd, pool_fd[FAKE_RAILS], heads_fd[FAKE_RAILS];
	int control_kick, kick[FAKE_RAILS];
	struct status_segment *status;
	struct fake_node node[FAKE_NODES];
	struct fake_channel channel[FAKE_CHANNELS];
	struct fake_region region[REGIONS_MAX];
	uint32_t refuse_regions; /* errno with which REGION_ADD is refused; 0: accepted */
	int pidfd;               /* pidfd sent with the reply to HELLO; -1: none */
	bool mute;               /* accept connections, but read no requests */
	bool no_drain;           /* do not store `drained` when the connection ends */
	/* CHANNEL_OPENs that are answered; later ones wait until this is raised */
	unsigned opens_max;
	bool no_channels;   /* CHANNEL_OPEN: refuse it */
	unsigned surplus;   /* CHANNEL_OPEN: send this many descriptors too many */
	uint64_t staging;   /* CHANNEL_OPEN: bytes of staging memory */
	bool bad_channels;  /* CHANNEL_OPEN: send a segment of another version */
	bool compare_all;   /* CHANNEL_OPEN: as rail.validate = crc */
	bool still;         /* its loop does not turn, as far as the status tells */
	bool stall_regions; /* answer REGION_ADD only after this is false again */

	/* called for each op, and for each page of a run as an op of its own; NULL: FAKE_DO */
	fake_op_hook *on_op;
	fake_run_hook *on_run; /* called for each run; NULL: no change */
	/* called for each control op, and for each page of a CTL_PUBLISH; NULL: FAKE_DO */
	fake_ctl_hook *on_ctl;
	/* called for each answer of the control plane, which it may change; NULL: no change */
	fake_ctl_done_hook *on_ctl_done;
	bool deaf;             /* the control plane sleeps, and no kick wakes it */
	bool no_sleep;         /* rails never sleep, so the client need not kick */
	uint32_t credits_left; /* credits that are still granted; UINT32_MAX: no limit */
	uint32_t grant_max;    /* slots that one answer to a CTL_CREDIT grants; 0: no limit */
	struct {               /* the ops without an answer, after FAKE_HOLD */
		struct fake_channel *channel;
		uint32_t rail;
		struct op op;
		struct op_segment segment[SEGMENTS_MAX];
	} held[64];
	unsigned held_ops;
	struct { /* the runs without an answer, after FAKE_HOLD for their first page */
		struct fake_channel *channel;
		uint32_t rail;
		struct fake_run run;
	} held_run[64];
	unsigned held_runs;
	unsigned held_count; /* both together */
	/* a request was received and not answered, because of stall_regions or opens_max */
	bool stalled;
	struct attach_request stalled_request;
	int stalled_fd;

	/*
	 * Counters of requests from the client. reads: READs of shards. pages: ops that read a
	 * page, by rail. kicked: kicks of sleeping rails. closes: channels closed.
	 */
	unsigned hellos, reads, pages[FAKE_RAILS], touches, stales, returned, publishes, removes;
	unsigned publish_runs; /* CTL_PUBLISHes; `publishes` counts their pages */
	unsigned opens;        /* CHANNEL_OPENs answered */
	unsigned regions_added, regions_removed, kicked, closes;
	/* OP_RUNs, their ring entries, the pages of the longest; runs of look-ups */
	unsigned runs, run_lines, run_pages_max, look_runs;
	unsigned op_lines;              /* ring entries of OP_PAGEs */
	unsigned head_runs, head_reads; /* runs of page heads; heads that were READ, also alone */
	/* READs into a destination into which a READ without an answer may still write */
	unsigned overlaps;
	unsigned segments_max,
		in_flight_max; /* most segments of an op; most slots in use in a ring */
	struct ctl_op last_stale;
	/* CTL_PROMOTE and CTL_WANT: how many came, the last one, and where promoted pages are */
	unsigned promotes, wants;
	struct ctl_op last_promote;
	uint32_t promote_place, promote_generation;
	bool here; /* answers a PROMOTE_LOOK with these two; false: with OP_MISS */
};

void fake_start(struct fake *f);
void fake_stop(struct fake *f);
/*
 * Simulates the engine's death: closes the client's connection, its channels and the listening
 * socket. fake_revive() listens again with the same memory.
 */
void fake_die(struct fake *f);
void fake_revive(struct fake *f);

/* The page key of `name` in the namespace of the tests. */
struct page_key fake_key(const char *name);
/*
 * Writes the entry, with the key's tag, into the shards of the key's owners. `only` < FAKE_NODES:
 * into the shard of that node instead.
 */
void fake_insert(
	struct fake *f, const struct page_key *key, uint32_t only, const struct dir_entry *entry);
/*
 * Makes a page of `bytes` bytes in the pool of `rail` on `node`, publishes it with generation 7 and
 * enters it in the directory. Returns its place.
 */
uint32_t fake_page(struct fake *f, const char *name, uint32_t node, uint32_t rail, uint32_t bytes);
/* The page head of a place. */
struct page_head *fake_head(struct fake *f, uint32_t node, uint32_t place);
/* The byte that fake_page() writes at offset `at`. */
unsigned char fake_byte(const char *name, uint32_t at);
/* Index of the first owner of a key. */
uint32_t fake_owner(struct fake *f, const char *name);
/*
 * Finds a name "<stem>-<n>" whose first owner is `node`; n counts up from *at. Sets *at to the n
 * after it.
 */
void fake_name_owned(struct fake *f, const char *stem, uint32_t node, unsigned *at,
	char ret_name[FAKE_NAME_BYTES]);
/*
 * Rewrites the map: its members are the first `members` of the FAKE_NODES nodes.
 */
void fake_map(struct fake *f, unsigned members, uint32_t replicas);
/* The owners of a key by the map, as nodes. Returns their number. */
unsigned fake_owners(struct fake *f, const struct page_key *key, uint32_t ret_owner[REPLICAS_MAX]);
/* The op, and its segments, that reads page or bucket k of the run alone. */
void fake_run_op(
	const struct fake_run *run, uint32_t k, struct op *ret, struct op_segment *ret_segment);
/* Writes an answer and wakes the client. */
void fake_done(struct fake_channel *channel, uint32_t rail, const struct run_done *answer);
/* Executes and answers the ops in `held`. The caller holds the lock. */
void fake_answer_held(struct fake *f);
/* Sets `drained` in the channel segment: no rail uses the channel any more. Wakes the client. */
void fake_drain(struct fake_channel *channel);
/* Serves the rings of all channels once. Returns the number of requests. Call with the lock. */
unsigned fake_serve_rings(struct fake *f);
/* Wakes a client that sleeps on the channel's wake socket. */
void fake_wake(struct fake_channel *channel);
void fake_lock(struct fake *f);
void fake_unlock(struct fake *f);

#endif
