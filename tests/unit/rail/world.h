/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rail without a thread, a NIC that the test is, one peer's memory, and clients. One thread: the
 * test calls rail_step() and decides when, in which order and how each WQE completes.
 */
#ifndef TEST_RAIL_WORLD_H
#define TEST_RAIL_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "dv/hot.h"
#include "engine/abi/bucket.h"
#include "engine/rail/core.h"

#define WORLD_UNITS 4096u /* of the peer's pool: 16 MiB */
#define WORLD_BUCKETS 1024u
#define WORLD_HOME_BYTES (8u << 20)
#define WORLD_SESSION 7u
#define WORLD_REGION 100u /* `home`, of WORLD_SESSION */
#define WORLD_POOL_RKEY 0x1000u
#define WORLD_HEADS_RKEY 0x2000u
#define WORLD_SHARD_RKEY 0x3000u
#define WORLD_LKEY 0x4000u
#define WORLD_HEADS_LKEY 0x5000u

/* A WQE the device was told of. */
struct fake_wqe {
	struct fake_qp *qp;
	uint32_t index;
	uint64_t remote;
	uint32_t rkey;
	unsigned sges;
	struct dv_sge sge[DV_SGES_MAX];
	uint32_t bytes;
	uint8_t flags;
	uint8_t syndrome; /* what it will complete with */
};

struct fake_qp {
	struct dv_sq sq;
	uint32_t record[2];
	uint64_t bf[2];
	uint32_t seen; /* blocks parsed */
	bool error;    /* every later WQE is flushed */
	struct fake_qp *next;
};

struct client {
	struct rail_channel channel;
	struct channel_header *header;
	void *ops_memory, *done_memory;
	struct ring_producer ops;
	struct ring_consumer done;
};

struct world {
	struct rail *rail;
	struct status_segment *status;
	struct fake_qp *qps;
	uint32_t qpn_next;
	struct fake_wqe *wqe; /* told of and not completed, oldest first */
	unsigned wqes;
	uint64_t now_ns; /* 0: time is real */
	int wake;        /* of clients that are made next */
	int woken;       /* their end of it */
	/* the peer's */
	uint8_t *pool;
	struct page_head *heads;
	struct bucket *shard;
	/* ours */
	uint8_t *home;
};

/* The peer's memory, and ours. */
void world_memory(struct world *w);
void world_memory_free(struct world *w);

/* A rail on the test's own NIC, with its region; time stands still. */
int world_setup(void **state);
int world_teardown(void **state);

void world_tell(struct world *w, struct rail_command command);
/* The next event; fails the test when there is none, or another. */
struct rail_event world_hear(struct world *w, uint32_t kind);
bool world_silent(struct world *w);
/* Steps until a step finds no work; a rail that has its thread does that itself. */
void world_settle(struct world *w);
uint64_t world_counter(struct world *w, enum counter which);

struct client *client_new(struct world *w, uint32_t id, uint32_t session);
void client_free(struct client *client);
void client_submit(struct client *client, const struct op *op, const struct op_segment *segments);
/* The next completion, or false. */
bool client_done(struct client *client, struct op_done *ret_done);
/* Fails the test unless the next completion is this one. */
void client_expect(struct client *client, uint64_t cookie, enum op_status status);

/* A peer of `qps` queue pairs that exports pool 0, its heads and the shard; not told to the rail.
 */
struct rail_peer *peer_new(struct world *w, uint16_t number, uint32_t ref, unsigned qps);
void peer_add(struct world *w, struct rail_peer *peer);
void peer_drop(struct world *w, struct rail_peer *peer);
void peer_free(struct world *w, struct rail_peer *peer);

/* The peer publishes a page of pseudo-random bytes. */
void page_put(struct world *w, uint32_t unit, uint32_t length, uint64_t key);
/* An OP_PAGE for it; deadline one second from now, or a minute when time is real. */
struct op page_op(struct world *w, uint64_t cookie, uint32_t unit, uint32_t length, uint64_t key);
struct op_segment home_at(uint64_t offset, uint32_t length);
/* Submits a page read into `home` at `offset`, one segment. */
void page_get(struct world *w, struct client *client, uint64_t cookie, uint32_t unit,
	uint32_t length, uint64_t key, uint64_t offset);
/* Did those bytes arrive there? */
bool page_arrived(const struct world *w, uint32_t unit, uint32_t length, uint64_t offset);

/* Takes what doorbells were rung for into w->wqe; checks the bytes of every WQE. */
void nic_pull(struct world *w);
/*
 * Executes w->wqe[i]: moves the bytes when `syndrome` is 0, else breaks its QP. Returns whether it
 * wrote a CQE: always for an error, else when the WQE asks for one.
 */
bool nic_complete(struct world *w, unsigned i, uint8_t syndrome);
/* dv_qp_error(): all that is outstanding on the peer's QPs is flushed. */
void nic_flush(struct world *w, const struct rail_peer *peer);
/* A CQE out of nowhere. */
void nic_cqe(uint32_t qpn, uint16_t counter, uint8_t syndrome);
/* Pulls, completes all in order, steps; until nothing moves. */
void world_run(struct world *w);

#endif
