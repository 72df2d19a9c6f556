/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internal header of the implementation on libibverbs and mlx5dv: device.c, mr.c, cq.c, qp.c,
 * event.c and cut.c. Slow path only. Several threads may call libibverbs; `gate` keeps them from
 * using a device that dv_cut() closes.
 *
 * One dv_device is one ibv_context. All its queues are created on a parent domain with a thread
 * domain, so they share one doorbell page, which only the rail's poll core writes.
 */
#ifndef DV_VERBS_H
#define DV_VERBS_H

#include <errno.h>
#include <pthread.h>
#include <infiniband/mlx5dv.h> /* before dv/hot.h: dv/mlx5.h */

#include "dv/hot.h"
#include "dv/ops.h"

#define DV_READS_MAX 16u /* READs in flight on one QP, at most, also if a device allows more */

enum dv_address_kind { /* values of dv_address.kind */
	DV_ADDRESS_INFINIBAND = 1,
	DV_ADDRESS_ROCE_V2 = 2,
};

/*
 * How packets leave a port, as the port was when it was read last. A queue pair keeps the path that
 * it was created with.
 */
struct dv_path {
	union ibv_gid gid;
	uint64_t bits_per_second; /* of the port; 0: unknown */
	uint16_t lid;
	uint8_t gid_index;
	uint8_t kind; /* kind of the port's network, enum dv_address_kind */
	uint8_t mtu;  /* active MTU of the port, enum ibv_mtu; 0: the port was not read yet */
	/* true: packets need a global routing header: RoCE always, InfiniBand if required */
	bool grh;
};

struct dv_device {
	const struct dv_ops *ops;
	struct ibv_context *context;
	struct ibv_pd *pd; /* protection domain of the device; memory is registered on it */
	/* thread domain of the device: all its queues share one doorbell page */
	struct ibv_td *td;
	struct ibv_pd *domain; /* parent domain of pd and td, on which the queues are created */
	char name[NAME_BYTES_MAX];
	uint64_t mr_bytes_max;     /* length of the longest memory registration, bytes */
	uint32_t qp_depth_max;     /* size of the largest send queue in WQEBBs */
	uint32_t cq_depth_max;     /* entries of the largest completion queue */
	pthread_mutex_t look_lock; /* held by the thread that reads the port */
	pthread_mutex_t path_lock; /* protects `path`; never held during a call of the driver */
	struct dv_path path;
	struct dv_options options; /* of dv_open(); the strings are not kept */
	uint8_t port;              /* number of the device's port that dv_open() opened */
	uint8_t ports;             /* number of ports of the device */
	uint8_t reads_out;         /* READs that one QP may have in flight as requester */
	uint8_t reads_in;          /* READs that one QP may answer at a time as responder */
	/* code of the requested ACK time-out; the one in use is dv_qp.ack_timeout */
	uint8_t ack_timeout;
	uint8_t traffic_class;
	uint8_t service_level;
	uint16_t pkey_index;
	bool one_flow;
	/* 1: the ACK time-out was logged; a hint, so two threads may both log it */
	uint32_t ack_told;
	/* held for reading by threads that call libibverbs, for writing by dv_cut(), dv_reopen() */
	pthread_rwlock_t gate;
	/* 1: dv_cut() waits for `gate` and new readers are refused; a hint */
	uint32_t cut_wanted;
	bool cut; /* true: dv_cut() has closed the device; protected by `gate` */
	/* number of times that the device was opened again; changes under `gate` */
	uint32_t life;
	/* held for reading while memory is registered, for writing by dv_mr_sweep() */
	pthread_rwlock_t mrs_lock;
	pthread_mutex_t known_lock; /* protects the two below; never held during a call */
	/* a bit per handle of libibverbs: whether a dv_mr has it; NULL: none has one yet */
	uint8_t *known;
	uint32_t known_end; /* number of bits */
	/* hints: lent since the last look for other processes' domains; lent since it was opened */
	uint32_t lent, lent_once;
	pthread_mutex_t domains_lock; /* held by the thread that looks for them */
	/* result of dv_cut(); negative: the kernel still has the device's queues */
	int cut_error;
	void *doorbells; /* the thread domain's doorbell page, whose address the QPs report */
};

struct dv_qp {
	const struct dv_ops *ops;
	struct dv_device *device;
	struct ibv_qp *qp;   /* the QP of libibverbs; NULL: dv_qp_kill() destroyed it */
	uint8_t ack_timeout; /* code of the ACK time-out that the NIC uses; 0: not connected */
	uint32_t psn;        /* packet sequence number that this end starts with */
	struct dv_path path; /* of the device when this was created; constant */
	/* handle of the send queue. owner: the poll core */
	struct dv_sq sq;
};

/* device.c: the path as it was read last, and whether a path leads out of the port elsewhere */
struct dv_path dv_verbs_path(const struct dv_device *device);
bool dv_verbs_path_differs(const struct dv_path *a, const struct dv_path *b);

int dv_verbs_mr_register(
	struct dv_device *device, const struct dv_memory *memory, struct dv_mr *ret_mr);
int dv_verbs_mr_deregister(struct dv_device *device, struct dv_mr *mr);
bool dv_verbs_mr_stale(const struct dv_device *device, const struct dv_mr *mr);
int dv_verbs_lend(struct dv_device *device, int *ret_fd, uint32_t *ret_domain);
int dv_verbs_mr_import(struct dv_device *device, const struct dv_memory *memory, uint32_t handle,
	uint32_t lkey, struct dv_mr *ret_mr);
int dv_verbs_mr_sweep(struct dv_device *device);
/* No handle is taken any more: those of a device that was opened anew are others. */
void dv_verbs_mr_forget(struct dv_device *device);

int dv_verbs_cq_create(struct dv_device *device, unsigned depth, struct dv_cq *ret_cq);
void dv_verbs_cq_destroy(struct dv_device *device, struct dv_cq *cq);

int dv_verbs_qp_create(struct dv_device *device, struct dv_cq *cq, unsigned depth,
	struct dv_qp **ret_qp, struct dv_sq **ret_sq);
void dv_verbs_qp_address(const struct dv_qp *qp, struct dv_address *ret_address);
int dv_verbs_qp_connect(struct dv_qp *qp, const struct dv_address *remote);
int dv_verbs_qp_error(struct dv_qp *qp);
uint64_t dv_verbs_qp_ack_ns(const struct dv_qp *qp);
bool dv_verbs_qp_stale(const struct dv_qp *qp);
int dv_verbs_qp_kill(struct dv_qp *qp);
void dv_verbs_qp_destroy(struct dv_qp *qp);

/*
 * cut.c: every call of libibverbs is between dv_verbs_enter() and dv_verbs_leave(). enter returns
 * false when the device is closed or being closed; libibverbs must not be called then. Does not
 * block.
 */
bool dv_verbs_enter(struct dv_device *device);
void dv_verbs_leave(struct dv_device *device);
int dv_verbs_cut(struct dv_device *device);

int dv_verbs_event_fd(struct dv_device *device);
int dv_verbs_event_next(struct dv_device *device, struct dv_event *ret);

/*
 * Returns the errno of a libibverbs function that returned NULL. Old drivers sometimes do not set
 * it.
 */
static inline int dv_verbs_errno(int saved_errno)
{
	return saved_errno ? -saved_errno : -EIO;
}

/* Converts a result of libibverbs, which may be errno, -errno, or -1 with errno set, to -errno. */
static inline int dv_verbs_result(int result)
{
	if (result == 0)
		return 0;
	if (result == -1)
		return dv_verbs_errno(errno);
	return result > 0 ? -result : result;
}

static inline bool dv_is_power_of_two(uint32_t n)
{
	return n && (n & (n - 1)) == 0;
}

#endif
