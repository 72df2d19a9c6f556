/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rail without a thread, a fake NIC, the memory of one peer, and clients. One thread: the test
 * calls rail_step() and decides when, in which order and with which syndrome each WQE completes.
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
#include "tests/nic_stub.h"
#include "tests/unit/op.h"

#define WORLD_UNITS 4096u           /* number of units of the peer's pool, 16 MiB */
#define WORLD_BUCKETS 1024u         /* number of buckets of the peer's shard */
#define WORLD_HOME_BYTES (8u << 20) /* length of `home`, the clients' destination memory */
#define WORLD_SESSION 7u            /* number of the session that the clients belong to */
/* region number of `home`; only clients of the session WORLD_SESSION may name it in ops */
#define WORLD_REGION 100u
#define WORLD_POOL_RKEY 0x1000u
#define WORLD_HEADS_RKEY 0x2000u
#define WORLD_SHARD_RKEY 0x3000u
#define WORLD_LKEY 0x4000u
#define WORLD_HEADS_LKEY 0x5000u

/* A READ in the send queue that a doorbell has announced to the fake NIC. */
struct fake_wqe {
	struct fake_qp *qp;
	uint32_t index;  /* index of the WQE's first WQEBB in the send queue */
	uint64_t remote; /* address in the peer's memory to read from */
	uint32_t rkey;
	unsigned sges; /* number of valid entries of sge[] */
	struct dv_sge sge[DV_SGES_MAX];
	uint32_t bytes; /* length of the READ in bytes */
	uint8_t flags;  /* when the WQE requests a CQE: DV_CE_* */
	/* syndrome that the WQE will complete with; not used by the tests so far */
	uint8_t syndrome;
	bool sampled; /* the bytes were moved already, by nic_sample() */
};

struct fake_qp {
	struct nic_stub_qp stub;
	bool error; /* the QP is in the error state: every later WQE is flushed */
	struct fake_qp *next;
};

/* A client thread: one channel, its rings and its sleep flag. */
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
	struct fake_qp *qps;  /* list of all QPs of the fake NIC */
	uint32_t qpn_next;    /* number that the next QP created will get */
	struct fake_wqe *wqe; /* READs announced and not completed, oldest first */
	unsigned wqes;        /* number of valid entries of wqe[] */
	uint64_t now_ns;      /* time of the test clock in ns; 0: the real clock is used */
	/* engine's end of the socket pair of the clients created from now on; -1: they have none */
	int wake;
	int woken; /* the clients' end of that socket pair */
	/* the peer's exported memory */
	uint8_t *pool;
	struct page_head *heads;
	struct bucket *shard;
	/* the clients' destination memory */
	uint8_t *home;
};

/* Makes what lies behind the table of regions look like a region of WORLD_SESSION. */
void world_region_beyond(struct world *w);

/* Allocate and free the memory of the peer and of the clients. */
void world_memory(struct world *w);
void world_memory_free(struct world *w);

/* Opens a rail on the fake NIC with the region `home`; the test clock stands still. */
int world_setup(void **state);
int world_teardown(void **state);

/* Sends a command to the rail through its inbox. */
void world_command(struct world *w, struct rail_command command);
/* Takes the rail's next event; the test fails if there is none or it has another kind. */
struct rail_event world_event(struct world *w, uint32_t kind);
/* True if the rail has reported no event. If it has reported one, takes it from the ring. */
bool world_silent(struct world *w);
/* Steps the rail until a step finds no work. Does nothing for a rail with a poll core. */
void world_settle(struct world *w);
uint64_t world_counter(struct world *w, enum counter which);

/* Creates a client and adds its channel to the rail. */
struct client *client_new(struct world *w, uint32_t id, uint32_t session);
void client_free(struct client *client);
void client_submit(struct client *client, const struct op *op, const struct op_segment *segments);
/* Takes the client's next completion. Returns false if there is none. */
bool client_run_done(struct client *client, struct run_done *ret_done);
/* The same for an op, or a run of one page or bucket. */
bool client_done(struct client *client, struct op_done *ret_done);
/* Takes the client's next completion; the test fails unless it has this cookie and status. */
void client_expect(struct client *client, uint64_t cookie, enum op_status status);

/*
 * Creates a connection of `qps` QPs to a peer that exports pool 0, its page heads and the shard.
 * The rail is not told.
 */
struct rail_conn *rail_conn_new(struct world *w, uint16_t number, uint32_t ref, unsigned qps);
/* Tells the rail of a new connection (sends RAIL_CONN_ADD). */
void rail_conn_add(struct world *w, struct rail_conn *handle);
/* Tells the rail to drop the peer's connection (sends RAIL_CONN_DROP without an object). */
void rail_conn_drop(struct world *w, struct rail_conn *handle);
void rail_conn_free(struct world *w, struct rail_conn *handle);

/* Writes a page of pseudo-random bytes and its page head into the peer's memory. */
void page_put(struct world *w, uint32_t unit, uint32_t length, uint64_t key);
/*
 * Returns an OP_PAGE for that page of peer (3, 33). Its deadline is one second away, or a minute
 * with the real clock.
 */
struct op page_op(struct world *w, uint64_t cookie, uint32_t unit, uint32_t length, uint64_t key);
/* Returns a segment that describes `length` bytes of `home` at `offset`. */
struct op_segment home_at(uint64_t offset, uint32_t length);
/* Submits a read of one page into one segment, `home` at `offset`. */
void page_get(struct world *w, struct client *client, uint64_t cookie, uint32_t unit,
	uint32_t length, uint64_t key, uint64_t offset);
/* Submits a look-up of one bucket of the peer's shard, to `home` at `offset`. */
void bucket_get(
	struct world *w, struct client *client, uint32_t cookie, uint32_t bucket, uint64_t offset);
/* True if the bytes of the page at `unit` are in `home` at `offset`. */
bool page_arrived(const struct world *w, uint32_t unit, uint32_t length, uint64_t offset);

/*
 * The fake NIC takes the WQEs announced by doorbells: appends them to w->wqe and checks the bytes
 * of each.
 */
void nic_pull(struct world *w);
/*
 * Executes w->wqe[i]: copies the bytes if `syndrome` is 0, else breaks its QP. Returns true if it
 * wrote a CQE, which it does for every error and for a WQE that requests one.
 */
bool nic_complete(struct world *w, unsigned i, uint8_t syndrome);
/*
 * Moves the bytes of w->wqe[i] now, before or after those of other WQEs of its QP: a NIC may sample
 * memory in any order. nic_complete() then only completes it.
 */
void nic_sample(struct world *w, unsigned i);
/*
 * Moves the QPs of the peer's connection to the error state and flushes all their outstanding WQEs.
 */
void nic_flush(struct world *w, const struct rail_conn *handle);
/* Writes a CQE that no WQE caused. */
void nic_cqe(uint32_t qpn, uint16_t counter, uint8_t syndrome);
/* Steps the rail and completes all WQEs in order, until nothing is left to do. */
void world_run(struct world *w);

#endif
