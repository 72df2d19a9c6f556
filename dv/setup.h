/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slow path of a NIC: devices, memory registrations, completion queues, queue pairs. There are
 * two implementations: libibverbs + mlx5dv (device.c, mr.c, cq.c, qp.c) and the software NIC
 * (soft/). The name given to dv_open() selects one. The first is in a module that is loaded when it
 * is needed: module.c. The hot path is in dv/hot.h.
 *
 * Unless stated otherwise, functions that return int return 0 or a negative errno and leave their
 * outputs unchanged on failure; dv_error() then tells the calling thread what was tried, on what,
 * and what to do next. Unless stated otherwise, any thread may call any function, but only one
 * thread at a time may create or destroy CQs of a device, and only one thread at a time may use a
 * QP (its hot handle excepted). Several threads may register and deregister memory at the same
 * time.
 */
#ifndef DV_SETUP_H
#define DV_SETUP_H

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/limits.h"
#include "config/port_model.h"

struct dv_device; /* an open NIC port with its protection domain and thread domain */
struct dv_qp;     /* a reliable connected queue pair */
struct dv_sq;     /* handle with which the poll core uses a send queue: dv/hot.h */
struct dv_cq;     /* handle with which the poll core uses a completion queue: dv/hot.h */

/* default ACK time-out: IBTA code of 16.8 ms; a device may wait up to four times as long */
#define DV_ACK_TIMEOUT 12

/* Converts the code of an ACK time-out (1 to 31) to ns, IBTA 9.7.6.1.3. */
static inline uint64_t dv_ack_ns(uint8_t code)
{
	return 4096ull << code;
}

/* Options of dv_open(). A member that is 0, NULL or empty selects its default. */
struct dv_options {
	const char *name; /* "soft" or "soft:N": a software NIC; else the name of a verbs device */
	int port;         /* number of the NIC's port; default 1 */
	/* index of the GID; -1: choose one (RoCE v2; IPv4-mapped, then IPv6, then link-local) */
	int gid_index;
	/* ACK time-out of the QPs as a code, see dv_ack_ns(); 0: DV_ACK_TIMEOUT */
	uint8_t ack_timeout;
	int traffic_class; /* RoCE traffic class of all packets; -1: from sysfs, else 0 */
	uint8_t service_level;
	uint16_t pkey_index;
	/* true: dv_open() opens the NIC although its port has no link or no GID yet, or it is not
	 * there: then it is as after dv_cut(). dv_port_look() tells, dv_reopen() tries again */
	bool later;
	/* true: packets have no flow labels, so switches send all QPs to a peer over one path */
	bool one_flow;
	/* The options below are only for the software NIC. */
	const char *link; /* link to peers: "shm" (same host only; default) or "tcp" */
	/* link "tcp": IPv4 or IPv6 address to listen on; default "127.0.0.1" */
	const char *address;
	uint16_t tcp_port;       /* link "tcp": port to listen on; 0: any free port */
	struct port_model model; /* the port that it simulates */
};

struct dv_attributes {
	uint64_t bits_per_second; /* bits per second of the port; 0: unknown */
	bool hardware;            /* true: a real NIC; false: the software NIC */
	/* true: the software NIC simulates bits_per_second and all latencies */
	bool modelled;
};

/* Can this host use a ConnectX? Loads libibverbs. Negative: no; dv_error() says why. */
int dv_verbs_check(void);
/* Opens the NIC options->name. The caller closes *ret_device with dv_close(). */
int dv_open(const struct dv_options *options, struct dv_device **ret_device);
/* Closes a device; the caller has destroyed its MRs, CQs and QPs, or called dv_cut(). */
void dv_close(struct dv_device *device);
void dv_attributes(const struct dv_device *device, struct dv_attributes *ret);
/*
 * Reads the port again: its link, and its GIDs, one of which it chooses as dv_options.gid_index
 * says, for queue pairs that are created from now on. 0: the port can be used. -ENETDOWN: it has no
 * link. -EADDRNOTAVAIL: no GID that may be used. Makes calls of the driver.
 */
int dv_port_look(struct dv_device *device);

/*
 * Executes posted WQEs of a software NIC. Returns the number of WQEs and
 * completions processed, 0 when idle; for hardware always 0. Called between its steps by the poll
 * core that owns the device's queues, or by a test that controls when WQEs are executed.
 */
unsigned dv_step(struct dv_device *device);
/*
 * Does dv_step() for several software NICs and reads the clock once for all; all must need steps.
 */
unsigned dv_step_all(struct dv_device *const *devices, unsigned count);
/* Must dv_step() be called? False for hardware. */
bool dv_needs_step(const struct dv_device *device);
/*
 * The time (CLOCK_MONOTONIC, ns) when dv_step() next has work without a new doorbell, for example a
 * completion that is due then; computed by the last dv_step(). UINT64_MAX: it has no work until a
 * doorbell is rung or a peer sends.
 */
uint64_t dv_due_ns(const struct dv_device *device);

/* ---- memory -------------------------------------------------------------------------------- */

enum dv_access {
	DV_LOCAL_WRITE = 1,  /* the NIC may write the payload of READs to the memory */
	DV_REMOTE_READ = 2,  /* peers may READ the memory */
	DV_REMOTE_WRITE = 4, /* peers may WRITE the memory; the engine never uses it */
	DV_RELAXED_ORDERING =
		/* PCIe may reorder the NIC's writes; the program reads the memory only after the
		 * completion */
	8,
};

struct dv_mr {
	void *base;
	size_t length;
	uint32_t lkey, rkey;
	uint32_t life; /* of the device when this was made: see dv_reopen() */
	void *handle;  /* private data of the implementation (dv/ops.h) */
};

/* Memory to register. */
struct dv_memory {
	void *base;
	size_t length;
	unsigned access;       /* DV_LOCAL_WRITE and so on */
	int memfd;             /* the file of which the memory is a mapping; -1: it is not one */
	uint64_t memfd_offset; /* offset of `base` in that file, bytes */
};

/*
 * Registers memory. The shm link of the software NIC lets peers on this host map the
 * file, so there DV_REMOTE_READ requires a memfd. The fd is duplicated. Can take seconds for large
 * memory.
 */
int dv_mr_register(struct dv_device *device, const struct dv_memory *memory, struct dv_mr *ret_mr);
/* Deregisters memory; after success the NIC does not access it any more. */
int dv_mr_deregister(struct dv_device *device, struct dv_mr *mr);

/*
 * Lends the device to another process of this host, which registers memory of its own with it
 * (ibv_import_device(), ibv_import_pd()) and names it by the handle of libibverbs: dv_mr_import().
 * *ret_fd: a copy of the command descriptor, which the caller closes. As long as a process has a
 * copy, the kernel keeps the queues of the device: neither dv_cut() nor the end of this process
 * destroys them. -EOPNOTSUPP: a software NIC. -ENODEV: the NIC is away.
 */
int dv_lend(struct dv_device *device, int *ret_fd, uint32_t *ret_domain);
/*
 * Takes over the registration of another process: from now on it is one of dv_mr_register().
 * Refuses a handle that is taken, and one whose key, length or address is another. `memory`: base
 * and length there. -EAGAIN: a process has made a domain of its own; dv_mr_sweep() frees it.
 */
int dv_mr_import(struct dv_device *device, const struct dv_memory *memory, uint32_t handle,
	uint32_t lkey, struct dv_mr *ret_mr);
/*
 * Deregisters what other processes have registered and no dv_mr names, because they ended before,
 * and frees their domains; while the device is lent that would be what they are about to name.
 * Returns the number of registrations.
 */
int dv_mr_sweep(struct dv_device *device);

/* ---- queues -------------------------------------------------------------------------------- */

/*
 * Creates a CQ. `depth`: completions that it can hold, rounded up to a power of two. The caller
 * owns the memory of *ret_cq, the hot handle.
 */
int dv_cq_create(struct dv_device *device, unsigned depth, struct dv_cq *ret_cq);
/* Destroys a CQ; the caller has destroyed its QPs. */
void dv_cq_destroy(struct dv_device *device, struct dv_cq *cq);

/*
 * Creates a QP in state INIT whose completions go to `cq`. The send queue has at least `depth`
 * WQEBBs. *ret_sq is the hot handle for the poll core that will own it; it is valid until
 * dv_qp_destroy().
 */
int dv_qp_create(struct dv_device *device, struct dv_cq *cq, unsigned depth, struct dv_qp **ret_qp,
	struct dv_sq **ret_sq);

/*
 * The address of a QP, for the other end of the connection. It is sent as plain bytes;
 * dv_qp_connect() checks it.
 */
#define DV_TOKEN_BYTES 16
struct dv_address {
	uint8_t version; /* version of the address: 1 */
	uint8_t kind;    /* kind of the port's network: 1 InfiniBand, 2 RoCE v2, 3 software NIC */
	uint8_t mtu;     /* MTU of the port, enum ibv_mtu */
	/* READs that the QP answers at a time: limit for the other end's READs in flight */
	uint8_t reads;
	uint32_t qpn;
	uint32_t psn;
	uint16_t lid;
	uint16_t tcp_port; /* TCP port on which a software NIC listens; 0: it uses the shm link */
	/* GID; of a software NIC over TCP its IP (v4-mapped), over shm its number */
	uint8_t gid[16];
	/*
	 * Of a software NIC over TCP: 128 random bits of this QP, which each request to it has.
	 * Secret: with it a host reads what the QP serves, until the QP is destroyed.
	 */
	uint8_t token[DV_TOKEN_BYTES];
};
static_assert(sizeof(struct dv_address) == 48, "sent in QpEnd.address");

void dv_qp_address(const struct dv_qp *qp, struct dv_address *ret_address);
uint32_t dv_qp_number(const struct dv_qp *qp);

/*
 * Connects a QP: INIT -> RTR -> RTS towards `remote`. READs in flight are limited by the device and
 * by remote->reads. Can take a second, because the kernel resolves the route. From then on the NIC
 * serves READs of the other end; the NIC retries READs posted here until the other end is connected
 * too. -EPROTO: the address is malformed or of another kind of network.
 */
int dv_qp_connect(struct dv_qp *qp, const struct dv_address *remote);

/*
 * The ACK time-out of a connected QP in ns, as the device reports it; it may be longer than
 * requested. 0: not connected.
 */
uint64_t dv_qp_ack_ns(const struct dv_qp *qp);
/*
 * Number of ACK time-outs after which a QP without an answer has given up: it tries 8 times, and by
 * the IBTA specification waits up to four times as long for an ACK.
 */
#define DV_GIVE_UP_ACKS 32u

/*
 * Has the port another source address, or the same one at another index, since the QP was created?
 * Then what the QP sends goes out with a wrong address, and it has to be replaced.
 */
bool dv_qp_stale(const struct dv_qp *qp);

/*
 * Moves the QP to ERR: every posted WQE completes, successfully or flushed; later ones are only
 * flushed. Once the poll core has reaped these completions (sq->ci == sq->pi, the QP is drained),
 * the NIC no longer accesses any buffer.
 */
int dv_qp_error(struct dv_qp *qp);

/*
 * Destroys the QP in the NIC, in any state, drained or not. 0: the NIC no longer accesses any
 * buffer; WQEs without a completion get none. The handles stay valid until dv_qp_destroy(), but the
 * caller must not post. Negative: the NIC may still write; the call may be repeated.
 */
int dv_qp_kill(struct dv_qp *qp);

/* Destroys and frees a QP that is drained, killed, or was never connected. Ignores NULL. */
void dv_qp_destroy(struct dv_qp *qp);

/* ---- a device that is lost ------------------------------------------------------------------ */

/*
 * Closes a device together with all its queues and registrations, when they can no longer be
 * destroyed one by one. 0: through this device the NIC can access no memory of this process. From
 * then on registering and deregistering memory, and killing and destroying queues, succeed without
 * effect; dv_close() frees the rest; all other calls fail with -ENODEV. Before the call, the poll
 * core must have stopped using the device's queues, and no thread may watch dv_event_fd(). Can take
 * seconds.
 */
int dv_cut(struct dv_device *device);
/*
 * Opens the NIC of a device anew that dv_cut() closed, or that was not there at dv_open(): a new
 * life of the device, with the same options. -ENODEV: the NIC is not there. -EOPNOTSUPP: a
 * software NIC does not come back. The caller has destroyed the queues of the lives before.
 * Registrations of these are stale. Can take seconds.
 */
int dv_reopen(struct dv_device *device);
/* Is the registration of an earlier life of the device? The NIC does not know it. */
bool dv_mr_stale(const struct dv_device *device, const struct dv_mr *mr);

/* ---- events -------------------------------------------------------------------------------- */

enum dv_event_kind {
	DV_EVENT_PORT_DOWN,
	DV_EVENT_PORT_UP,
	DV_EVENT_ADDRESS, /* the port's GIDs or its LID may have changed */
	DV_EVENT_DEVICE_FATAL,
	DV_EVENT_CQ_OVERRUN,
	DV_EVENT_QP_ERROR,
	DV_EVENT_OTHER,
};

struct dv_event {
	enum dv_event_kind kind;
	/* port that the event is of, for PORT_DOWN, PORT_UP and ADDRESS: the one that dv_open()
	 * opened */
	uint8_t port;
	uint32_t qpn;     /* number of the QP that failed, for QP_ERROR */
	const char *text; /* libibverbs' name of the event; static string */
};

/*
 * A descriptor that is readable when dv_event_next() has an event; the same one until the device is
 * closed. Negative errno: they cannot be watched.
 */
int dv_event_fd(struct dv_device *device);
/*
 * Returns 1 and an event of the device, 0 when there is none, or a negative errno. Does not block.
 */
int dv_event_next(struct dv_device *device, struct dv_event *ret_event);

/* ---- test hooks: defined only in a build with -Dtest_hooks=true ---------------------------- */

/* Faults that a test injects into a software NIC. All zero: none. */
struct dv_test_fault {
	bool link_down; /* the port is reported as DOWN, and no packet reaches a peer */
	bool mute;      /* no packet reaches a peer, and the NIC does not report it */
	bool error;     /* the next WQE completes with an error */
	unsigned slow;  /* factor by which the NIC is slower; 0 or 1: not slower */
	bool lose;      /* one request packet is lost and is retransmitted after the ACK time-out */
	/* each READ samples its memory again after this time and after READs behind it; 0: not */
	unsigned late_ms;
	unsigned dead; /* symptoms of a failing device: values of enum dv_dead, combined with | */
};

/* Symptoms of a failing device that a test injects. */
enum dv_dead {
	DV_DEAD_CQES = 1,     /* the NIC writes no completions, not even of flushed WQEs */
	DV_DEAD_ERROR = 2,    /* while set, dv_qp_error() fails with -EIO */
	DV_DEAD_KILL = 4,     /* while set, dv_qp_kill() fails with -EIO */
	DV_DEAD_CUT = 8,      /* while set, dv_cut() fails with -EIO */
	DV_DEAD_SAYS_SO = 16, /* the NIC reports DV_EVENT_DEVICE_FATAL once */
};

/*
 * Subtracts `ns` of CPU time spent in dv_step_all() from the clocks of these software NICs, because
 * a real port would execute in parallel to the core. Called between steps by the thread that steps
 * them.
 */
void dv_leave_out(struct dv_device *const *devices, unsigned count, uint64_t ns);
/* Sets the faults of a software NIC. -EOPNOTSUPP: not a software NIC. */
int dv_test_fault(struct dv_device *device, const struct dv_test_fault *fault);

/* ---- errors -------------------------------------------------------------------------------- */

/* The text of the last failure in the calling thread; never NULL, valid until its next failure. */
__attribute__((visibility("default"))) const char *dv_error(void);
/* Returns the name of a syndrome of struct dv_completion (static storage). */
const char *dv_syndrome(uint8_t syndrome);

#endif
