/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software NIC: its structs and the functions its files share. Only dv/soft/ includes it.
 *
 * Locks:
 *   nic->lock       all state of one NIC; held by setup calls and by a step, one step at a time.
 *   world           (world.c) read-write lock of the process: its NICs and their exports (memory,
 *                   QPs). Read-held while payload moves from or to exported memory; write-held to
 *                   change an export, so a deregistration waits for the bytes in flight.
 *   peer->rx_lock   held by the TCP service thread while it stores into a READ's destination.
 *   Order: nic->lock, then rx_lock or world; never two NICs' locks.
 * Threads: the caller of dv_step(), the setup callers, and one service thread per NIC, which
 * blocks in poll() and makes the socket calls.
 */
#ifndef DV_SOFT_SOFT_H
#define DV_SOFT_SOFT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>
#include <netinet/in.h>

#include "config/likely.h"
#include "dv/hot.h"
#include "dv/ops.h"
#include "dv/soft/base.h"
#include "dv/soft/export.h"
#include "dv/soft/fault.h"
#include "dv/soft/model.h"

#define SOFT_QP_DEPTH_MAX 32768u /* WQEBBs of a queue, at most; an index has 16 bits */
#define SOFT_CQ_DEPTH_MAX (1u << 22)
#define SOFT_SGES_MAX DV_SGES_MAX    /* data segments of one WQE, at most */
#define SOFT_WINDOW 32u              /* WQEs of a QP decoded and not complete; a power of two */
#define SOFT_QP_BURST 32u            /* WQEs that one step starts on one QP */
#define SOFT_STEP_BYTES (256u << 10) /* payload budget of a step; the last WQE may exceed it */
#define SOFT_FLOW_BYTES (16u << 10)  /* bytes moved before the CQEs of a QP are written */
#define SOFT_LENGTH_MAX (1ull << 31) /* bytes of the longest message */
/* a model that moves no payload still moves messages up to this length, such as page heads */
#define SOFT_SMALL_BYTES (PAGE_UNIT - 1)
#define SOFT_RX_BYTES (64u << 10) /* receive buffer of one peer, for answer headers */
#define SOFT_RETRY_NS 1000000000ull
#define SOFT_UAR_BYTES 4096u
/*
 * Doorbell registers: one block of them holds the first halves of 32 QPs, then their second halves.
 * The distance between the two halves of a QP is that of a ConnectX.
 */
#define SOFT_BELLS_BLOCK 32u
#define SOFT_BF_REG 0x800u /* offset of the first doorbell register in a UAR page */
#define SOFT_BF_SIZE (SOFT_BELLS_BLOCK * 8u)
#define SOFT_BELLS_BYTES (SOFT_QPS_MAX * 2u * sizeof(uint64_t))
static_assert(SOFT_BF_SIZE == 0x100, "distance between the halves as on a ConnectX");
static_assert(RUN_HEADS_SPAN * 32 <= SOFT_SMALL_BYTES, "page heads always move");

enum soft_qp_state { SOFT_INIT, SOFT_RTS, SOFT_ERROR };

/* ---- requests -------------------------------------------------------------------------------- */

enum soft_result {
	SOFT_DONE,
	SOFT_SENT,         /* TCP: request sent, answer follows; hooks: READ put in a batch */
	SOFT_RETRY,        /* the responder is not ready: try again */
	SOFT_DEAD,         /* the responder is gone */
	SOFT_REFUSED,      /* the responder refused rkey, bounds or rights */
	SOFT_UNKNOWN_FILE, /* shm: this process has not mapped the file with the memory yet */
};

/* ---- work ------------------------------------------------------------------------------------ */

struct dv_qp;
struct soft_cq;
struct soft_op;

/*
 * Hooks for queues that lie in the memory of a foreign program (libmlx5 behind the interposer), and
 * for the features only those programs use: inline data and events.
 * tests/connectx/ implements them. NULL for the engine's own NICs. All are called under nic->lock.
 */
struct soft_hooks {
	unsigned (*step)(struct dv_device *nic); /* called first in every step of the NIC */
	bool (*knows)(uint8_t opcode);
	/* decodes the segments of the WQE after the control segment */
	void (*decode)(struct dv_qp *qp, struct soft_op *op, uint32_t ds);
	bool (*keys_good)(struct dv_qp *qp, const struct soft_op *op);
	enum soft_result (*move)(
		struct dv_qp *qp, struct soft_op *op, uint64_t from, uint64_t count);
	void (*gathered)(struct dv_qp *qp); /* moves the READs that move() put in the batch */
	void (*completed)(struct soft_cq *cq, bool solicited); /* the NIC wrote a CQE */
	void (*overrun)(struct soft_cq *cq);
};

enum soft_op_state { OP_NEW, OP_MOVING, OP_SENT, OP_DONE, OP_FAILED };

/* A WQE in a window. A READ of 1 or 2 segments, without fault, touches only the first two lines. */
struct soft_op {
	/* owner: nic->lock */
	alignas(64) uint32_t index; /* number of the WQE's first WQEBB, free running */
	uint32_t rkey;
	uint8_t blocks, opcode, flags, sges;
	uint8_t state, syndrome, vendor;
	bool again, redone; /* fault: READ to be executed again; READ executed again */
	bool backward;      /* fault: the WQE's pieces are moved last to first */
	bool waited;        /* whether stats.retries counts this WQE */
	uint64_t remote;
	uint64_t total, moved;
	uint64_t step;                        /* number of the step that executed the WQE */
	uint64_t ready_step;                  /* number of the first step that may complete it */
	uint64_t rung_at, start_at, ready_at; /* model ticks: rung, started, complete; 0: unknown */
	uint64_t retry_ns;                    /* time before which the WQE is not retried, ns */
	struct dv_sge sge[SOFT_SGES_MAX];
	uint64_t since_ns, since_step; /* time and step of the first try, if `waited` */
	uint64_t sent_ns;              /* TCP: time the request was queued, if OP_SENT */
	/* the fields below are zero unless the NIC has a TCP link or hooks */
	uint64_t id;      /* TCP: request number; 0: no answer is expected */
	uint32_t inlined; /* hooks: one bit per segment whose bytes lie in the WQE itself */
};
static_assert(offsetof(struct soft_op, sge[2]) <= 128, "two lines");

/* One registered memory region (MR). Written by setup callers under nic->lock. */
struct soft_mr {
	uint32_t key; /* lkey and rkey of the MR; 0: the entry is free */
	uint8_t generation;
	uint8_t *base;
	uint64_t length;
	uint32_t access;
	uint32_t file;
	void *foreign; /* of the owner of the NIC, as in dv_qp */
};

/* A memfd with exported memory; peers get its descriptor on request. Ids are never reused. */
struct soft_file {
	uint32_t id, references;
	int fd;
	uint64_t device, inode;
};

struct soft_cq {
	struct dv_device *nic;
	uint32_t cqn, cqe_cnt, pi;
	uint32_t cqe_size; /* 64, or 128: struct mlx5_cqe64 is then the second half */
	bool broken;       /* true: the CQ was full once; no CQE is written to it any more */
	void *foreign;     /* private data of the hooks (struct uv_cq) */
	uint8_t *buf;
	volatile __be32 *record;
};

struct soft_peer;

struct dv_qp {
	const struct dv_ops *ops;
	struct dv_sq sq; /* handle with which the poll core uses the send queue */
	struct dv_device *nic;
	struct soft_cq *cq;
	uint8_t *buf;
	uint64_t *bell; /* the QP's doorbell register in nic->bells; layout: SOFT_BELLS_BLOCK */
	volatile __be32 *record;
	uint32_t qpn, psn, wqe_cnt;
	uint8_t token[DV_TOKEN_BYTES]; /* over TCP: what requests to this QP must have */
	uint32_t uidx; /* user index of the QP, which a version 1 CQE has beside the QP number */
	void *foreign; /* hooks' private data; if set, the program owns `buf` and `record` */
	enum soft_qp_state state;
	uint32_t rung;       /* index up to which doorbells cover the posted WQEs */
	uint32_t fetched;    /* index of the next WQE to decode */
	uint32_t retired;    /* index up to which WQEs are complete and retired */
	uint32_t head, tail; /* WQEs in window[]: the oldest, behind the newest; free running */
	uint32_t executed;   /* WQEs of window[] before it are executed; free running */
	uint32_t reads;      /* number of READs in window[] from `head` to `executed` */
	bool redo;           /* true: a READ in the window is to be executed again (op->again) */
	bool busy;           /* true: linked in nic->busy_first, because it was rung or has WQEs */
	struct dv_qp *busy_next;
	bool proven; /* TCP: the peer has answered; until then the QP has one request in flight */
	struct dv_address remote;
	struct soft_peer *peer; /* remote end of the link; NULL: the remote QP is in this process */
	struct dv_device *near; /* cached NIC of this process with the remote QP */
	uint64_t near_epoch;
	bool near_seen;
	bool killed; /* true: soft_qp_kill() removed the QP from the NIC's lists */
	struct soft_pace pace;
	/* shm: last used index in peer->mappings, by the low bits of the file id */
	unsigned mapping[4];
	struct soft_op window[SOFT_WINDOW];
};

/* ---- links ----------------------------------------------------------------------------------- */

enum soft_peer_state {
	PEER_ABSENT,  /* the peer is not connected; the service thread retries while a WQE waits */
	PEER_GREETED, /* TCP: connecting; shm: connected, but the export table is not mapped yet */
	PEER_UP,
	PEER_DEAD, /* the link was up and is lost; final: connecting needs a new soft_peer */
};

struct soft_mapping {
	uint32_t file;
	bool writable, missing; /* missing: the peer has no file of this id */
	uint8_t *at;
	uint64_t bytes;
};

struct soft_buffer {
	uint8_t *data;
	size_t head, tail, size;
};

/* The remote end of a link, shared by its QPs; the service thread frees it at references 0. */
struct soft_peer {
	struct soft_peer *next;
	unsigned references;
	enum soft_peer_state state;
	uint8_t gid[16];
	uint16_t tcp_port;
	int fd;
	bool wanted; /* true: a WQE waits for the connection */
	uint64_t retry_at_ns;
	/* fields of an shm link */
	struct soft_export *table;
	struct soft_mapping *mappings;
	unsigned mapping_count;
	uint32_t want_file; /* id of the file to request from the peer; 0: none */
	bool want_write, asked;
	/* send side of a TCP link; under nic->lock */
	struct soft_buffer tx;
	bool tx_blocked;      /* the socket is full; the service thread resumes sending */
	uint64_t progress_ns; /* hint: time of the last bytes received, ns */
	/* receive side of a TCP link; service thread only, except rx_live */
	uint8_t *rx;
	size_t rx_head, rx_tail;
	uint64_t rx_id; /* id of the answer that is being received; 0: none */
	uint64_t rx_left;
	struct iovec rx_to[SOFT_SGES_MAX];
	unsigned rx_to_count, rx_to_at;
	pthread_mutex_t rx_lock;
	bool rx_live; /* true: the answer's destination may be written; under rx_lock */
};

/* A connection over which a remote NIC sends requests to this NIC; service thread only. */
struct soft_serve;
struct soft_conn {
	struct soft_conn *next;
	int fd;
	struct soft_serve *serve; /* state of a TCP connection's requests and answers; NULL: shm */
	bool gone;
	/* TCP: the remote NIC, once a token came; port 0: none yet, and it must until until_ns */
	uint8_t gid[16];
	uint16_t tcp_port;
	uint64_t until_ns;
};

struct dv_device {
	const struct dv_ops *ops;
	pthread_mutex_t lock;
	uint32_t waiting; /* setup callers waiting for the lock; a step yields to them */
	char name[NAME_BYTES_MAX];
	bool tcp;
	uint8_t gid[16];
	uint16_t tcp_port;
	/* queues */
	struct dv_qp **qps; /* all QPs of the NIC without gaps, in creation order */
	unsigned qp_count, qp_room;
	struct dv_qp *busy_first, *busy_last; /* FIFO of the QPs that steps serve */
	uint32_t busy_count; /* QPs in the FIFO above; also read without the lock, as a hint */
	uint64_t *bells;     /* doorbell registers of all QPs, dense: scanning is cheap */
	uint32_t bell_count; /* registers ever used; also read without the lock, as a hint */
	struct dv_qp **bell_qps;
	struct dv_qp **qp_slots;
	uint16_t *qp_generations;
	uint32_t qp_slot_last;
	struct soft_cq **cqs;
	unsigned cq_count;
	uint32_t cqn_last;
	/* memory */
	struct soft_mr *mrs;
	uint32_t mr_slot_last;
	uint8_t mr_first; /* random: added to the generations of keys */
	struct soft_file *files;
	unsigned file_count;
	uint32_t file_last;
	uint32_t *drops; /* ids of closed files that peers may still have mapped */
	unsigned drop_count;
	struct soft_export *table;
	int table_fd;
	/* time */
	uint64_t steps;
	uint64_t step_ns;      /* time of this step, read at most once a step; 0: not read yet */
	uint64_t last_ns;      /* time of the last step that read the clock */
	uint64_t behind_ns;    /* ns that the NIC's clock lags CLOCK_MONOTONIC: dv_leave_out() */
	const uint64_t *clock; /* tests: the time that the NIC uses; NULL: CLOCK_MONOTONIC */
	uint64_t step_bytes;
	bool faulty;         /* true: a fault of struct dv_fault is set */
	bool retrying;       /* true: in this step a WQE waited for something other than time */
	uint64_t idle_until; /* until this time (ns) a step finds no work unless a doorbell rings */
	bool world_held;     /* true: this step holds the world's read lock, until the step ends */
	uint64_t retry_ns, retry_steps;
	uint64_t ack_ns; /* ACK time-out (dv_options.ack_timeout) in ns */
	/* links */
	struct dv_device *world_next;
	struct soft_peer *peers;
	struct soft_conn *conns;
	uint64_t stranger_line_ns; /* time of the last line about strangers of the port */
	bool qps_gone; /* QPs were destroyed since soft_serve_tend() has looked; under `lock` */
	int listen_fd, wake_fd, pid;
	uint32_t stop; /* 1: the service thread must end; read without the lock, as a hint */
	pthread_t service;
	bool tx_any; /* true: a peer's send buffer has bytes to send */
	uint64_t id_last;
	const struct soft_hooks *hooks;
	void *foreign; /* private data of the hooks (struct uv_device) */
	struct soft_model model;
	uint32_t register_ms_per_gib;
	struct dv_fault fault; /* faults and events from here on */
	int event_fd;
	bool port_down, port_told; /* link is down; dv_event_next() has reported that */
	bool fatal_told;           /* true: dv_event_next() has reported DV_DEAD_SAYS_SO */
	bool cut;                  /* true: dv_cut() was called */
	uint64_t rest_until_ns;    /* dv_fault.slow: before this time (ns) no step does work */
	uint64_t random;
	uint32_t error_count;
	struct dv_soft_stats stats;
};

/* ---- the files ------------------------------------------------------------------------------- */

/* nic.c */
/* Opens a NIC. `gid` NULL: choose a random one. `hooks` NULL: the queues are the engine's own. */
int soft_nic_open(const struct dv_options *options, const uint8_t *gid,
	const struct soft_hooks *hooks, struct dv_device **ret_device);
/* Queues the QP, so that the next step serves it. Under nic->lock. */
void soft_busy(struct dv_qp *qp);

/* queue.c */
int soft_cq_create(struct dv_device *nic, unsigned depth, struct dv_cq *ret_cq);
void soft_cq_destroy(struct dv_device *nic, struct dv_cq *cq);
int soft_qp_create(struct dv_device *nic, struct dv_cq *cq, unsigned depth, struct dv_qp **ret_qp,
	struct dv_sq **ret_sq);
void soft_qp_address(const struct dv_qp *qp, struct dv_address *ret_address);
int soft_qp_connect(struct dv_qp *qp, const struct dv_address *remote);
uint64_t soft_qp_ack_ns(const struct dv_qp *qp);
int soft_qp_error(struct dv_qp *qp);
int soft_qp_kill(struct dv_qp *qp);
void soft_qp_destroy(struct dv_qp *qp);
/* Implements dv_cut(): removes all QPs; later calls are refused or do nothing. */
int soft_cut(struct dv_device *nic);
/* Adds a queue of the hooks: assigns its number, links it in the NIC. Under nic->lock. */
int soft_cq_add(struct dv_device *nic, struct soft_cq *cq);
int soft_qp_add(struct dv_device *nic, struct dv_qp *qp);
void soft_qp_zero(struct dv_qp *qp);
struct dv_qp *soft_qp_find(struct dv_device *nic, uint32_t qpn);

/* mr.c */
int soft_mr_register(struct dv_device *nic, const struct dv_memory *memory, struct dv_mr *ret_mr);
int soft_mr_deregister(struct dv_device *nic, struct dv_mr *mr);

/* wqe.c */
void soft_wqe_fetch(struct dv_qp *qp);
/* Reads only the opcode of the WQE at op->index. Returns the WQE's length in WQEBBs, at least 1. */
uint32_t soft_wqe_skip(const struct dv_qp *qp, struct soft_op *op);
/*
 * Takes the doorbells of the QP's register, if any. Returns how many were valid. *ret_overrun: they
 * announce more than the send queue holds; the caller flushes the QP.
 */
unsigned soft_doorbell(struct dv_qp *qp, bool *ret_overrun);

/* execute.c */
unsigned soft_qp_step(struct dv_qp *qp);
static inline struct soft_op *soft_op(struct dv_qp *qp, uint32_t n)
{
	return &qp->window[n & (SOFT_WINDOW - 1)];
}
/* Makes WQE `n` of the window the next to execute; later ones are executed again. */
void soft_op_done(struct dv_qp *qp, struct soft_op *op);
/* The responder was not ready: executes WQE `n` and later ones again, or fails `n` on time-out. */
void soft_op_retry(struct dv_qp *qp, uint32_t n);

/* complete.c */
unsigned soft_retire(struct dv_qp *qp);
/* Writes a CQE. False: the CQ had no room and is broken. */
/* Moves the QP to the error state: executed WQEs complete, all others are flushed. */
void soft_flush(struct dv_qp *qp);

/* model.c: in a step, under nic->lock, with nic->model.on; except _open, _close, _register */
int soft_model_open(struct dv_device *nic, const struct dv_options *options);
/* Is the WQE's payload moved? A model may simulate only the time. */
static inline bool soft_moves(const struct dv_device *nic, const struct soft_op *op)
{
	return op->total <= SOFT_SMALL_BYTES || !nic->model.still;
}

void soft_model_close(struct dv_device *nic);
void soft_model_register(const struct dv_device *nic, size_t length); /* takes that time */
void soft_model_step(struct dv_device *nic); /* begins a step of the model: reads the clock once */
/* Would the model's port have started this WQE by now? */
bool soft_model_may_start(struct dv_qp *qp, struct soft_op *op);
/* Starts the WQE in the model: computes its completion time. */
void soft_model_start(struct dv_qp *qp, struct soft_op *op);
/* Has the model's clock reached `at`? If not, the next step is due at `at` or before. */
static inline bool soft_reached(struct dv_device *nic, uint64_t at)
{
	if (!at)
		return true;
	if (!nic->model.now)
		nic->model.now = soft_step_ns(nic) * SOFT_TICKS_NS;
	if (at <= nic->model.now)
		return true;
	if (at < nic->model.due)
		nic->model.due = at;
	return false;
}

/* world.c */
void soft_world_add(struct dv_device *nic);
void soft_world_remove(struct dv_device *nic);
void soft_world_read(void);
void soft_world_write(void);
void soft_world_done(void);
/* Read-locks the world for a step, until the step ends or has to write an export table. */
void soft_world_keep(struct dv_device *nic);
void soft_world_release(struct dv_device *nic);
/* Returns the NIC of this process that has this gid, or NULL. The caller holds the world lock. */
struct dv_device *soft_world_find(const uint8_t gid[16]);
uint64_t soft_world_epoch(void);
/* Removes the QP from the export table: peers get no answer from it any more. */
void soft_qp_hide(struct dv_qp *qp);

/* link.c */
int soft_link_open(struct dv_device *nic, const struct dv_options *options);
void soft_link_close(struct dv_device *nic);
int soft_link_connect(struct dv_qp *qp);
void soft_link_disconnect(struct dv_qp *qp);
/* Sends the requests that the step queued for peers. */
void soft_link_flush(struct dv_device *nic);

/* link_shm.c */
int soft_shm_listen(struct dv_device *nic);
/* Does the process at the other end of the socket run as the same user or as root? */
bool soft_shm_trusts(int fd);
void soft_shm_connect(struct dv_device *nic, struct soft_peer *peer);
/* Answers the requests that a peer sent over this connection; false: close the connection. */
bool soft_shm_serve(struct dv_device *nic, struct soft_conn *conn);
/* Sends the peers the ids of the files that are closed, so that they unmap them. */
void soft_shm_drops(struct dv_device *nic);
void soft_shm_receive(struct dv_device *nic, struct soft_peer *peer);
void soft_shm_ask(struct dv_device *nic, struct soft_peer *peer);
void soft_shm_close(struct soft_peer *peer);

/* link_tcp.c */
int soft_tcp_listen(struct dv_device *nic, const struct dv_options *options);
void soft_tcp_connect(struct dv_device *nic, struct soft_peer *peer);
void soft_tcp_connected(struct dv_device *nic, struct soft_peer *peer);
void soft_tcp_close(struct soft_peer *peer);
enum soft_result soft_tcp_start(struct dv_qp *qp, struct soft_op *op);
void soft_tcp_send(struct dv_device *nic, struct soft_peer *peer);

/* fault.c */
static inline bool soft_fault_percent(struct dv_device *nic, unsigned percent)
{
	return percent && soft_random(nic) % 100 < percent;
}
bool soft_fault_lost(struct dv_device *nic, struct soft_op *op);
bool soft_fault_error(struct dv_qp *qp, struct soft_op *op);
int soft_event_fd(struct dv_device *nic);
int soft_event_next(struct dv_device *nic, struct dv_event *ret);

#endif
