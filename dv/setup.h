/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NIC's slow path: devices, memory regions, completion queues, queue pairs. Two implementations
 * stand behind it: libibverbs + mlx5dv (device.c, mr.c, cq.c, qp.c) and the software NIC (soft/),
 * chosen by the name given to dv_open(). The hot path never comes here.
 *
 * Every function returns 0 or a negative errno, leaves its outputs untouched on failure, and may be
 * called from any thread. CQs of one device are created and destroyed by one thread at a time; one
 * QP is used by one thread at a time, apart from its hot handle; memory regions may be registered
 * and deregistered by several threads at once.
 * On failure `dv_error()` of the calling thread says what was tried, on what, and what to do next.
 */
#ifndef DV_SETUP_H
#define DV_SETUP_H

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/limits.h"

struct dv_device; /* one NIC port, opened; its protection domain and its thread domain */
struct dv_qp;     /* one reliable-connected queue pair */
struct dv_sq;     /* dv/hot.h */
struct dv_cq;     /* dv/hot.h */

/*
 * What a software NIC pretends its link to be: the times at which WQEs complete are those of such a
 * port, in the order the bytes would have crossed it. What is measured over one is *modelled*.
 */
struct dv_model {
	uint32_t rate_gbps;         /* of the port; 0: no model, everything completes at once */
	uint32_t rtt_ns;            /* from a WQE's start to the first byte of its answer */
	uint32_t reads_per_qp;      /* READs one QP has under way: 1 to 16 */
	uint32_t qp_messages_per_s; /* WQEs one QP starts; 0: any number */
	uint32_t messages_per_s;    /* WQEs the port starts; 0: any number */
	uint32_t mtu;               /* payload of a packet: a power of two */
	uint32_t header_bytes;      /* what a packet has besides, gap on the wire included */
	uint32_t numa_ns;           /* added when local memory is on another node than the NIC */
	uint32_t numa_percent;      /* of the rate that is left then */
	bool move_bytes;            /* false: only messages of up to 1 KiB are moved */
};

#define DV_ACK_TIMEOUT 12 /* 16.8 ms; a device may take up to four times as long */

/* IBTA 9.7.6.1.3: the time-out of a code, 1 to 31. */
static inline uint64_t dv_ack_ns(uint8_t code)
{
	return 4096ull << code;
}

/* What dv_open() is told. Zero or empty members mean the default. */
struct dv_options {
	const char *name;    /* "soft" or "soft:N": the software NIC; else a verbs device */
	int port;            /* 1 */
	int gid_index;       /* -1: choose (RoCE v2 first, then IPv4-mapped before link-local) */
	uint8_t ack_timeout; /* dv_ack_ns() of it until a request is sent again; DV_ACK_TIMEOUT */
	int traffic_class;   /* of what is sent; -1: the port's (sysfs), else 0 */
	uint8_t service_level;
	uint16_t pkey_index;
	bool one_flow; /* no flow labels: all QPs to a peer may take one path */
	/* The software NIC only: */
	const char *link;    /* "shm" (same host; the default) or "tcp" */
	const char *address; /* tcp: where this NIC listens, IPv4 or IPv6 literal; "127.0.0.1" */
	uint16_t tcp_port;   /* tcp: 0 = any free port */
	bool threaded;       /* a thread of its own executes WQEs; else dv_step() does */
	int numa_node;       /* it pretends to be on; -1: near all memory */
	struct dv_model model;
};

struct dv_attributes {
	char name[NAME_BYTES_MAX];
	uint64_t mr_bytes_max;
	uint32_t qp_depth_max;
	uint32_t cq_depth_max;
	uint32_t reads_max;       /* outstanding READs one QP can have: 16 on ConnectX */
	uint64_t bits_per_second; /* of the port; 0: not known */
	int numa_node;            /* -1: not known */
	bool hardware;            /* false: the software NIC */
	bool modelled;            /* bits_per_second and all times are a model's */
};

int dv_open(const struct dv_options *options, struct dv_device **ret_device);
void dv_close(struct dv_device *device); /* every MR, CQ and QP of it is gone already */
void dv_attributes(const struct dv_device *device, struct dv_attributes *ret);

/*
 * Executes what was posted on a software NIC that has no thread: returns the number of WQEs and
 * completions it moved, 0 when idle; a real NIC always returns 0. Called by the poll core that owns
 * the device's queues, between its own steps, or by a test that wants to decide when things happen.
 */
unsigned dv_step(struct dv_device *device);
/* The same for several at once, which share the reading of the clock; all need steps. */
unsigned dv_step_all(struct dv_device *const *devices, unsigned count);
/*
 * The clocks of these software NICs stood still for so long: the time of a dv_step_all() that a
 * port beside the core would not have taken. Whoever steps them calls it, between steps.
 */
void dv_leave_out(struct dv_device *const *devices, unsigned count, uint64_t ns);
/* Does dv_step() do anything? False for hardware and for a threaded software NIC. */
bool dv_needs_step(const struct dv_device *device);
/*
 * When the next dv_step() has something to do although nothing is posted, as its last one saw it:
 * CLOCK_MONOTONIC, ns. UINT64_MAX: only a doorbell or a peer gives it something to do.
 */
uint64_t dv_due_ns(const struct dv_device *device);

/* ---- memory -------------------------------------------------------------------------------- */

enum dv_access {
	DV_LOCAL_WRITE = 1,      /* a READ may land here */
	DV_REMOTE_READ = 2,      /* peers may READ it */
	DV_REMOTE_WRITE = 4,     /* peers may WRITE it: nothing in the engine asks for this */
	DV_RELAXED_ORDERING = 8, /* a destination, looked at only after a completion */
};

struct dv_mr {
	void *base;
	size_t length;
	uint32_t lkey, rkey;
	void *handle; /* the implementation's own */
};

/*
 * Registers [base, base + length). `memfd` >= 0: the memory is a mapping of that file from
 * `memfd_offset` on; the software NIC's shm link lets peers on this host map it (memory registered
 * with DV_REMOTE_READ must name it there; the fd is duplicated). Can take seconds for large memory.
 */
int dv_mr_register(struct dv_device *device, void *base, size_t length, unsigned access, int memfd,
	uint64_t memfd_offset, struct dv_mr *ret_mr);
/* After this returns the NIC does not touch the memory again. */
int dv_mr_deregister(struct dv_device *device, struct dv_mr *mr);

/* ---- queues -------------------------------------------------------------------------------- */

/*
 * `depth`: completions that can wait, rounded up to a power of two. Memory of *ret_cq is the
 * caller's.
 */
int dv_cq_create(struct dv_device *device, unsigned depth, struct dv_cq *ret_cq);
void dv_cq_destroy(struct dv_device *device, struct dv_cq *cq);

/*
 * A QP in state INIT whose completions go to `cq`. The send queue has at least `depth` blocks.
 * *ret_sq is the hot handle, for the poll core that will own it; it is valid until the QP is gone.
 */
int dv_qp_create(struct dv_device *device, struct dv_cq *cq, unsigned depth, struct dv_qp **ret_qp,
	struct dv_sq **ret_sq);

/* What the other end needs to know. Plain bytes: sent as is, checked by dv_qp_connect(). */
struct dv_address {
	uint8_t version; /* 1 */
	uint8_t kind;    /* 1 InfiniBand, 2 RoCE v2, 3 software */
	uint8_t mtu;     /* enum ibv_mtu */
	uint8_t reads;   /* READs it answers at a time: the other end has no more under way */
	uint32_t qpn;
	uint32_t psn;
	uint16_t lid;
	uint16_t tcp_port; /* software NIC over TCP; 0: the shm link */
	uint8_t gid[16];   /* software: TCP: its IP (v4 mapped); shm: the NIC's number */
};
static_assert(sizeof(struct dv_address) == 32, "sent in QpEnd.address");

void dv_qp_address(const struct dv_qp *qp, struct dv_address *ret_address);
uint32_t dv_qp_number(const struct dv_qp *qp);

/*
 * INIT -> RTR -> RTS towards `remote`. READs under way: the device's maximum, or what the other end
 * answers at a time where that is less. Can take a second: the kernel looks for the way. READs
 * of the other end are served from here on. READs posted here before the other end is ready are
 * retried by the NIC. -EPROTO: the address is malformed or of another kind.
 */
int dv_qp_connect(struct dv_qp *qp, const struct dv_address *remote);

/* The ACK time-out that the device took for a connected QP; it may be more than was asked for. */
uint64_t dv_qp_ack_ns(const struct dv_qp *qp);

/*
 * -> ERR: everything posted completes, flushed or done; nothing new is executed. When the poll core
 * has reaped those completions (sq->ci == sq->pi), the NIC is done with every buffer.
 */
int dv_qp_error(struct dv_qp *qp);

/*
 * ERR, drained -> RESET -> INIT, queues empty, same number. The hot handle starts from zero
 * again.
 */
int dv_qp_reset(struct dv_qp *qp);

/*
 * Takes the QP from the NIC in whatever state it is, drained or not. 0: the NIC is done with every
 * buffer, and what has no completion yet gets none. The handles stay until dv_qp_destroy(); nothing
 * is posted any more. Negative: the NIC may still write. May be called again.
 */
int dv_qp_kill(struct dv_qp *qp);

/* The QP is drained, killed, or was never connected. */
void dv_qp_destroy(struct dv_qp *qp);

/* ---- a device that is lost ------------------------------------------------------------------ */

/*
 * Closes the device under everything that is left on it, because it cannot be destroyed one by one
 * any more. 0: the NIC reaches no memory of this process through this device. From then on
 * registering and deregistering memory, killing and destroying queues succeed and do nothing,
 * dv_close() frees what is left, everything else fails with -ENODEV. Before it is called the poll
 * core has stopped using the device's queues and nothing watches dv_event_fd(). Can take seconds.
 */
int dv_cut(struct dv_device *device);

/* ---- events -------------------------------------------------------------------------------- */

enum dv_event_kind {
	DV_EVENT_PORT_DOWN,
	DV_EVENT_PORT_UP,
	DV_EVENT_DEVICE_FATAL,
	DV_EVENT_CQ_OVERRUN,
	DV_EVENT_QP_ERROR,
	DV_EVENT_OTHER,
};

struct dv_event {
	enum dv_event_kind kind;
	uint8_t port;     /* of PORT_DOWN and PORT_UP: always the one that was opened */
	uint32_t qpn;     /* of QP_ERROR */
	const char *text; /* the driver's words; static */
};

/*
 * Readable when dv_event_next() has something; the same one as long as the device is open.
 * Negative: there are no events, or they cannot be watched.
 */
int dv_event_fd(struct dv_device *device);
/* Does not block: 1 and an event, 0 when there is none, or a negative errno. */
int dv_event_next(struct dv_device *device, struct dv_event *ret_event);

/* ---- trouble on purpose ---------------------------------------------------------------------- */

/* What a test wants to go wrong with a software NIC from now on. All zero: nothing. */
struct dv_trouble {
	bool link_down; /* its port says so, and nothing reaches any peer */
	bool mute;      /* nothing reaches any peer, and nothing is said */
	bool error;     /* the next WQE ends with an error */
	unsigned slow;  /* everything takes so many times as long; 0: as ever */
	bool lose;      /* one request is lost: it is retransmitted after the ACK time-out */
	unsigned dead;  /* enum dv_dead */
};

/* What a dying device does no more. */
enum dv_dead {
	DV_DEAD_CQES = 1,     /* no completion is written any more, of flushed WQEs neither */
	DV_DEAD_ERROR = 2,    /* dv_qp_error() fails with -EIO */
	DV_DEAD_KILL = 4,     /* dv_qp_kill() fails with -EIO */
	DV_DEAD_CUT = 8,      /* dv_cut() fails with -EIO */
	DV_DEAD_SAYS_SO = 16, /* DV_EVENT_DEVICE_FATAL, once */
};

/* -EOPNOTSUPP: not a software NIC. */
int dv_trouble(struct dv_device *device, const struct dv_trouble *trouble);

/* ---- errors -------------------------------------------------------------------------------- */

/* Text about the last failure in this thread; never NULL. */
const char *dv_error(void);
/* Text for a syndrome of struct dv_completion. */
const char *dv_syndrome(uint8_t syndrome);

#endif
