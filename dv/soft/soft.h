/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software NIC, as its own files see it.
 *
 * Threads and locks:
 *   nic->lock   everything of one NIC; held by setup calls and by a step, for one step at a time.
 *   world       (world.c) read-write lock of the process: which NICs there are and what they export
 *               (memory, QPs). Read-held while payload moves from or to exported memory, write-held
 *               to change an export: a deregistration waits for the bytes in flight.
 *   peer->rx_lock   the TCP service thread holds it while it stores into a READ's destination.
 *   Order: nic->lock, then rx_lock or world; never two NICs' locks.
 * Threads: whoever calls dv_step() (or the NIC's own thread), setup callers, and one service thread
 * a NIC that blocks in poll() and does what sockets need.
 */
#ifndef DV_SOFT_SOFT_H
#define DV_SOFT_SOFT_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>
#include <netinet/in.h>

#include "dv/hot.h"
#include "dv/ops.h"
#include "dv/soft/export.h"
#include "dv/soft/fault.h"
#include "dv/soft/model.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define SOFT_QP_DEPTH_MAX 32768u /* the index is 16 bits */
#define SOFT_CQ_DEPTH_MAX (1u << 22)
#define SOFT_SGES_MAX 16u            /* data segments of one WQE */
#define SOFT_WINDOW 32u              /* WQEs of one QP decoded and not completed; a power of two */
#define SOFT_QP_BURST 32u            /* WQEs of one QP in one step */
#define SOFT_STEP_BYTES (256u << 10) /* payload of one step, more or less: completions flow */
#define SOFT_FLOW_BYTES (16u << 10)  /* moved until completions of the QP are written */
#define SOFT_LENGTH_MAX (1ull << 31) /* one message */
#define SOFT_SMALL_BYTES 1024u       /* moved even by a model that moves no bytes: page heads */
#define SOFT_RX_BYTES (64u << 10)    /* answers' headers, a peer */
#define SOFT_WRITE_TCP_MAX (64u << 20) /* a WRITE over TCP is copied into the socket's queue */
#define SOFT_RETRY_NS 1000000000ull
#define SOFT_REMOTE_ATOMIC 16u /* beside enum dv_access: hooks only */
#define SOFT_UAR_BYTES 4096u
/*
 * Doorbell registers: a block has the first halves of 32 QPs and then their second halves. The
 * distance is the one between the halves of a ConnectX.
 */
#define SOFT_BELLS_BLOCK 32u
#define SOFT_BF_REG 0x800u /* the first one's place in a UAR page */
#define SOFT_BF_SIZE (SOFT_BELLS_BLOCK * 8u)
#define SOFT_BELLS_BYTES (SOFT_QPS_MAX * 2u * sizeof(uint64_t))
static_assert(SOFT_BF_SIZE == 0x100, "as hardware has it");
static_assert(RAIL_HEADS_SPAN * 32 <= SOFT_SMALL_BYTES, "page heads always move");

enum soft_qp_state { SOFT_INIT, SOFT_RTS, SOFT_ERROR };

/* ---- asking ---------------------------------------------------------------------------------- */

/* Who asks and for what: checked by whoever answers. */
struct soft_ask {
	uint32_t dest_qpn, dest_psn; /* the QP that answers */
	uint32_t src_qpn, src_psn;   /* the QP that asks */
	uint32_t rkey, access;
	uint64_t address, length;
};

enum soft_result {
	SOFT_DONE,
	SOFT_SENT,         /* over TCP: the answer will come; hooks: gathered */
	SOFT_RETRY,        /* the other end is not ready */
	SOFT_DEAD,         /* there is no other end any more */
	SOFT_REFUSED,      /* rkey, bounds or rights */
	SOFT_UNKNOWN_FILE, /* shm: the memory is not mapped here yet */
	SOFT_TOO_LONG,     /* WRITE over TCP */
};

/* ---- work ------------------------------------------------------------------------------------ */

struct dv_qp;
struct soft_cq;
struct soft_op;

/*
 * Queues in the memory of a program whose driver nobody here wrote, and what only such programs
 * use: SEND, receive queues, atomics, inline data, events. dv/soft/uverbs/ implements it; a NIC of
 * the engine's own has NULL. All under nic->lock.
 */
struct soft_hooks {
	unsigned (*step)(struct dv_device *nic); /* before the queues of a step */
	bool (*knows)(uint8_t opcode);
	void (*decode)(struct dv_qp *qp, struct soft_op *op, uint32_t ds); /* after control */
	bool (*may_start)(struct dv_qp *qp, struct soft_op *op);
	bool (*keys_good)(struct dv_qp *qp, const struct soft_op *op);
	enum soft_result (*move)(
		struct dv_qp *qp, struct soft_op *op, uint64_t from, uint64_t count);
	void (*gathered)(struct dv_qp *qp); /* READs that move() only gathered are moved now */
	void (*flushed)(struct dv_qp *qp);  /* the send queue is empty */
	void (*completed)(struct soft_cq *cq, bool solicited); /* a CQE is there */
	void (*overrun)(struct soft_cq *cq);
};

enum soft_op_state { OP_NEW, OP_MOVING, OP_SENT, OP_DONE, OP_FAILED };

/* A READ of one or two segments that nothing disturbs touches the first two lines alone. */
struct soft_op {
	/* owner: nic->lock */
	alignas(64) uint32_t index; /* of the first block, free running */
	uint32_t rkey;
	uint8_t blocks, opcode, flags, sges;
	uint8_t state, syndrome, vendor;
	bool again, redone;  /* to be, was executed once more: dv_fault.retransmit_percent */
	bool backward;       /* pieces from the end */
	bool waited, fenced; /* counted already */
	uint64_t remote;
	uint64_t total, moved;
	uint64_t step;                        /* executed in */
	uint64_t ready_step;                  /* completes from here on */
	uint64_t rung_at, start_at, ready_at; /* model: begins, is complete (0: not begun) */
	uint64_t retry_ns;                    /* not before */
	struct dv_sge sge[SOFT_SGES_MAX];
	uint64_t since_ns, since_step; /* first try; set with `waited` */
	uint64_t sent_ns;              /* TCP: asked at; set with OP_SENT */
	/* zero unless the NIC has a TCP link or hooks */
	uint64_t id;                /* TCP: what the answer will name; 0: no answer is expected */
	uint32_t imm;               /* hooks: as in the WQE, big-endian */
	uint32_t inlined;           /* hooks: these segments are bytes of the WQE itself */
	uint64_t swap_add, compare; /* hooks: atomics */
};
static_assert(offsetof(struct soft_op, sge[2]) <= 128, "two lines");

struct soft_mr {
	uint32_t key; /* 0: free */
	uint8_t generation;
	uint8_t *base;
	uint64_t length;
	uint32_t access;
	uint32_t file;
	bool far; /* model: on another node than the NIC */
};

/* A memfd that backs exported memory, sent to peers that ask. Ids are never reused. */
struct soft_file {
	uint32_t id, references;
	int fd;
	uint64_t device, inode;
};

struct soft_cq {
	struct dv_device *nic;
	uint32_t cqn, cqe_cnt, pi;
	uint32_t cqe_size; /* 64 or 128: then the CQE proper is the second half */
	bool broken;       /* overrun: nothing is written any more */
	void *foreign;     /* hooks */
	uint8_t *buf;
	volatile __be32 *record;
};

struct soft_peer;

struct dv_qp {
	const struct dv_ops *ops;
	struct dv_sq sq; /* the poll core's */
	struct dv_device *nic;
	struct soft_cq *cq;
	uint8_t *buf;
	uint64_t *bell; /* its doorbell register in nic->bells, as SOFT_BELLS_* says */
	volatile __be32 *record;
	uint32_t qpn, psn, wqe_cnt;
	uint32_t uidx; /* what a CQE of version 1 names beside the QPN */
	void *foreign; /* hooks; `buf` and `record` are the program's */
	enum soft_qp_state state;
	uint32_t rung;       /* index up to which doorbells were seen */
	uint32_t fetched;    /* index of the next WQE to decode */
	uint32_t retired;    /* index up to which WQEs are complete */
	uint32_t head, tail; /* window[] of ops, free running */
	uint32_t executed;   /* ops before this one were started, free running */
	uint32_t reads;      /* READs among those from head to executed */
	bool redo;           /* some op is to be executed again */
	bool busy;           /* in nic->busy_first's list: it was rung, or has WQEs */
	struct dv_qp *busy_next;
	bool proven; /* TCP: the peer answered before: several may be under way */
	struct dv_address remote;
	struct soft_peer *peer; /* NULL: same process */
	struct dv_device *near; /* same process: the other NIC, as of near_epoch */
	uint64_t near_epoch;
	bool near_seen;
	bool killed; /* out of the NIC's lists: soft_qp_kill() */
	struct soft_pace pace;
	unsigned mapping[4]; /* shm: where mappings of a file were, by its low bits */
	struct soft_op window[SOFT_WINDOW];
};

/* ---- links ----------------------------------------------------------------------------------- */

enum soft_peer_state {
	PEER_ABSENT,  /* not there yet; the service thread tries again while somebody waits */
	PEER_GREETED, /* connecting (TCP), or its export is not here yet (shm) */
	PEER_UP,
	PEER_DEAD, /* was up and is gone: never again under this entry */
};

struct soft_mapping {
	uint32_t file;
	bool writable, missing; /* missing: the peer has no such file for us */
	uint8_t *at;
	uint64_t bytes;
};

struct soft_buffer {
	uint8_t *data;
	size_t head, tail, size;
};

/* The other end of a link, shared by all QPs to it. Freed by the service thread at references 0. */
struct soft_peer {
	struct soft_peer *next;
	unsigned references;
	enum soft_peer_state state;
	uint8_t gid[16];
	uint16_t tcp_port;
	int fd;
	bool wanted; /* a WQE waits for the connection */
	uint64_t retry_at_ns;
	/* shm */
	struct soft_export *table;
	struct soft_mapping *mappings;
	unsigned mapping_count;
	uint32_t want_file; /* ask for this one; 0: none */
	bool want_write, asked;
	/* TCP, sending: under nic->lock */
	struct soft_buffer tx;
	bool tx_blocked;      /* the socket is full: the service thread goes on */
	uint64_t progress_ns; /* a hint: bytes came */
	/* TCP, receiving: the service thread's, but for rx_live */
	uint8_t *rx;
	size_t rx_head, rx_tail;
	uint64_t rx_id; /* the answer under way; 0: between answers */
	uint64_t rx_left;
	struct iovec rx_to[SOFT_SGES_MAX];
	unsigned rx_to_count, rx_to_at;
	pthread_mutex_t rx_lock;
	bool rx_live; /* under rx_lock: the destination may be stored to */
};

/* A peer that asks us. The service thread's. */
struct soft_serve;
struct soft_conn {
	struct soft_conn *next;
	int fd;
	struct soft_serve *serve; /* TCP only */
	bool gone;
};

struct dv_device {
	const struct dv_ops *ops;
	pthread_mutex_t lock;
	uint32_t waiting; /* setup callers that want the lock: a step lets them in */
	char name[NAME_BYTES_MAX];
	bool tcp, threaded;
	uint8_t gid[16];
	uint16_t tcp_port;
	/* queues */
	struct dv_qp **qps; /* dense, in order of creation */
	unsigned qp_count, qp_room;
	struct dv_qp *busy_first, *busy_last; /* in the order they are served */
	uint32_t busy_count;                  /* also a hint, for a step that has nothing to do */
	uint64_t *bells;     /* every doorbell register, dense, so that idle ones cost nothing */
	uint32_t bell_count; /* those ever used; also a hint */
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
	struct soft_file *files;
	unsigned file_count;
	uint32_t file_last;
	uint32_t *drops; /* files that peers may still have mapped */
	unsigned drop_count;
	struct soft_export *table;
	int table_fd;
	/* time */
	uint64_t steps;
	uint64_t step_ns;      /* now, read at most once a step; 0: not read yet */
	uint64_t last_ns;      /* of the last step that read it */
	uint64_t behind_ns;    /* its clock, of CLOCK_MONOTONIC: dv_leave_out() */
	const uint64_t *clock; /* tests: what time it is; NULL: CLOCK_MONOTONIC */
	uint64_t step_bytes;
	bool faulty;         /* some fault is set */
	bool retrying;       /* in this step some WQE waited for something else than time */
	uint64_t idle_until; /* steps before then, ns, have nothing to do unless rung */
	bool world_held;     /* read-held since some WQE of this step, until it ends */
	uint64_t retry_ns, retry_steps;
	uint64_t ack_ns; /* dv_options.ack_timeout */
	/* links */
	struct dv_device *world_next;
	int pid;
	struct soft_peer *peers;
	struct soft_conn *conns;
	int listen_fd, wake_fd;
	uint32_t stop; /* a hint too */
	pthread_t service, runner;
	bool tx_any; /* some peer has something to send */
	uint64_t id_last;
	const struct soft_hooks *hooks;
	void *foreign; /* hooks */
	struct soft_model model;
	int numa_node;
	/* faults */
	struct dv_fault fault;
	int event_fd;
	bool port_down, port_told; /* as last told, or to be told */
	bool fatal_told;           /* DV_DEAD_SAYS_SO was */
	bool cut;                  /* dv_cut() */
	uint64_t rest_until_ns;    /* dv_fault.slow */
	uint64_t random;
	uint32_t error_count;
	struct dv_soft_stats stats;
};

/* ---- the files ------------------------------------------------------------------------------- */

/* nic.c */
/* `gid` NULL: a random one. `hooks` NULL: queues are the engine's own. */
int soft_nic_open(const struct dv_options *options, const uint8_t *gid,
	const struct soft_hooks *hooks, struct dv_device **ret_device);
void soft_lock(struct dv_device *nic);
void soft_unlock(struct dv_device *nic);
uint64_t soft_now_ns(void);
uint64_t soft_step_ns(struct dv_device *nic);
/* Its step has something to do. Under nic->lock. */
void soft_busy(struct dv_qp *qp);
/* Notes what the poll core did wrong and counts it. */
void soft_blame(struct dv_device *nic, uint64_t *counter, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* queue.c */
int soft_cq_create(struct dv_device *nic, unsigned depth, struct dv_cq *ret_cq);
void soft_cq_destroy(struct dv_device *nic, struct dv_cq *cq);
int soft_qp_create(struct dv_device *nic, struct dv_cq *cq, unsigned depth, struct dv_qp **ret_qp,
	struct dv_sq **ret_sq);
void soft_qp_address(const struct dv_qp *qp, struct dv_address *ret_address);
uint32_t soft_qp_number(const struct dv_qp *qp);
int soft_qp_connect(struct dv_qp *qp, const struct dv_address *remote);
uint64_t soft_qp_ack_ns(const struct dv_qp *qp);
int soft_qp_error(struct dv_qp *qp);
int soft_qp_reset(struct dv_qp *qp);
int soft_qp_kill(struct dv_qp *qp);
void soft_qp_destroy(struct dv_qp *qp);
/* dv_cut(): all QPs are taken away, and everything afterwards is refused or ignored. */
int soft_cut(struct dv_device *nic);
/* For queues made elsewhere: a number and a place in the lists. Under nic->lock. */
int soft_cq_add(struct dv_device *nic, struct soft_cq *cq);
struct soft_cq *soft_cq_find(struct dv_device *nic, uint32_t cqn);
int soft_qp_add(struct dv_device *nic, struct dv_qp *qp);
void soft_qp_zero(struct dv_qp *qp);
/* Peers get no answer from this QP any more. */
void soft_qp_hide(struct dv_qp *qp);
struct dv_qp *soft_qp_find(struct dv_device *nic, uint32_t qpn);

/* mr.c */
int soft_mr_register(struct dv_device *nic, void *base, size_t length, unsigned access, int memfd,
	uint64_t memfd_offset, struct dv_mr *ret_mr);
int soft_mr_deregister(struct dv_device *nic, struct dv_mr *mr);

/* wqe.c */
void soft_wqe_fetch(struct dv_qp *qp);
/* Takes the opcode of the WQE at op->index alone. Returns its blocks by its size; at least 1. */
uint32_t soft_wqe_skip(const struct dv_qp *qp, struct soft_op *op);
unsigned soft_doorbell(struct dv_qp *qp);

/* execute.c */
unsigned soft_qp_step(struct dv_qp *qp);
static inline struct soft_op *soft_op(struct dv_qp *qp, uint32_t n)
{
	return &qp->window[n & (SOFT_WINDOW - 1)];
}
/* The op `n` is the next to be executed, whatever was executed before. */
void soft_go_back(struct dv_qp *qp, uint32_t n);
void soft_op_fail(struct soft_op *op, uint8_t syndrome, uint8_t vendor);
void soft_op_done(struct dv_qp *qp, struct soft_op *op);
/*
 * The other end was not ready: this WQE and those after it are executed again, or patience is
 * over.
 */
void soft_op_retry(struct dv_qp *qp, uint32_t n);
void soft_ask_of(const struct dv_qp *qp, const struct soft_op *op, struct soft_ask *ret_ask);
/* memcpy() that may race with the memory's owner: see execute.c. */
void soft_copy(void *to, const void *from, size_t bytes);

/* complete.c */
unsigned soft_retire(struct dv_qp *qp);
/* False: no room, and the CQ is broken now. */
bool soft_cqe_write(struct soft_cq *cq, struct mlx5_cqe64 *cqe, uint8_t opcode, bool solicited);
/* QP -> ERROR: what was executed completes, everything else is flushed. */
void soft_flush(struct dv_qp *qp);

/* model.c; all but the first two under nic->lock, in a step, with nic->model.on */
int soft_model_open(struct dv_device *nic, const struct dv_options *options);
/* Are its bytes moved, or only its time? */
static inline bool soft_moves(const struct dv_device *nic, const struct soft_op *op)
{
	return op->total <= SOFT_SMALL_BYTES || nic->model.move_bytes || !nic->model.on;
}

/* Is the memory on another node than the NIC? */
bool soft_model_far(const struct dv_device *nic, const void *base);
void soft_model_step(struct dv_device *nic); /* another begins */
/* Has the time come at which a port would start this WQE? */
bool soft_model_may_start(struct dv_qp *qp, struct soft_op *op);
/* It starts: when is it complete? */
void soft_model_start(struct dv_qp *qp, struct soft_op *op);
/* Is it that late? Else the next step is due no later than then. */
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
/* For a step, which gives it back when it is over; anybody who wants to write in it, earlier. */
void soft_world_keep(struct dv_device *nic);
void soft_world_release(struct dv_device *nic);
/* The NIC of this process with that gid; world is held. */
struct dv_device *soft_world_find(const uint8_t gid[16]);
uint64_t soft_world_epoch(void);

/* link.c */
int soft_link_open(struct dv_device *nic, const struct dv_options *options);
void soft_link_close(struct dv_device *nic);
void soft_link_wake(struct dv_device *nic);
int soft_link_connect(struct dv_qp *qp);
void soft_link_disconnect(struct dv_qp *qp);
/* A WQE waits for the peer: the service thread should try to connect. */
void soft_link_want(struct dv_device *nic, struct soft_peer *peer);
/* Sends what the step queued. */
void soft_link_flush(struct dv_device *nic);
/* The link is gone: every QP on it will see SOFT_DEAD. Under nic->lock. */
void soft_peer_dead(struct dv_device *nic, struct soft_peer *peer);

/* link_shm.c */
int soft_shm_listen(struct dv_device *nic);
/* Same host, same user or root. */
bool soft_shm_trusts(int fd);
void soft_shm_connect(struct dv_device *nic, struct soft_peer *peer);
/* Answers a peer's question; false: close it. */
bool soft_shm_serve(struct dv_device *nic, struct soft_conn *conn);
/* Tells peers which files are gone. */
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
/* The destination is not stored to after this returns. Under nic->lock. */
void soft_tcp_cancel(struct dv_qp *qp, struct soft_op *op);
void soft_tcp_send(struct dv_device *nic, struct soft_peer *peer);

/* fault.c */
uint64_t soft_random(struct dv_device *nic);
static inline bool soft_fault_percent(struct dv_device *nic, unsigned percent)
{
	return percent && soft_random(nic) % 100 < percent;
}
bool soft_fault_lost(struct dv_device *nic, struct soft_op *op);
bool soft_fault_error(struct dv_qp *qp, struct soft_op *op);
/* dv_fault.slow: does the NIC rest now; it has worked since then. Under nic->lock. */
bool soft_fault_rests(struct dv_device *nic);
void soft_fault_rest(struct dv_device *nic, uint64_t since_ns);
int soft_trouble(struct dv_device *nic, const struct dv_trouble *trouble);
int soft_event_fd(struct dv_device *nic);
int soft_event_next(struct dv_device *nic, struct dv_event *ret);

#endif
