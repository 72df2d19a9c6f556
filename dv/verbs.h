/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What device.c, mr.c, cq.c, qp.c, event.c and cut.c share: setup.h over libibverbs and mlx5dv.
 * Slow path only. libibverbs may be called by several threads; the one lock here keeps them out of
 * a device that is being closed under them (dv_cut()).
 *
 * One dv_device is one ibv_context. Its queues are made on a parent domain with a thread domain, so
 * all of them ring one doorbell page that nobody else has: the one of the rail's poll core.
 */
#ifndef DV_VERBS_H
#define DV_VERBS_H

#include <errno.h>
#include <pthread.h>

#include "dv/hot.h"
#include "dv/ops.h"

#define DV_READS_MAX 16u /* outstanding READs of one QP, whatever else a device says it can */

enum dv_address_kind { /* dv_address.kind */
	DV_ADDRESS_INFINIBAND = 1,
	DV_ADDRESS_ROCE_V2 = 2,
};

struct dv_device {
	const struct dv_ops *ops;
	struct ibv_context *context;
	struct ibv_pd *pd;     /* memory regions are registered on it */
	struct ibv_td *td;     /* a doorbell page of its own */
	struct ibv_pd *domain; /* pd and td together: queues are made on it */
	struct verbs_cq *cqs;  /* which ibv_cq is behind a hot handle: cq.c */
	struct dv_attributes attributes;
	union ibv_gid gid;
	uint16_t lid;
	uint8_t port;
	uint8_t ports; /* that the device has */
	uint8_t gid_index;
	uint8_t kind;        /* enum dv_address_kind */
	uint8_t mtu;         /* enum ibv_mtu, active */
	bool grh;            /* the port sends nothing without a global routing header */
	uint8_t reads_out;   /* READs one QP may have under way as requester */
	uint8_t reads_in;    /* ... and as responder */
	uint8_t ack_timeout; /* as asked for; each QP knows what the device took */
	uint8_t traffic_class;
	uint8_t service_level;
	uint16_t pkey_index;
	bool one_flow;
	uint32_t ack_told;     /* the log has what the device took; a hint: threads race for it */
	pthread_rwlock_t gate; /* read-held while libibverbs is called; write-held by dv_cut() */
	uint32_t cut_wanted;   /* dv_cut() waits for the gate: a hint; readers stay out */
	bool cut;              /* under the gate */
	int cut_error;         /* what dv_cut() answered: -errno, the kernel still has the queues */
	void *doorbells;       /* a page: the thread domain's, as QPs have it */
};

struct dv_qp {
	const struct dv_ops *ops;
	struct dv_device *device;
	struct ibv_qp *qp;   /* NULL: killed */
	uint8_t ack_timeout; /* as the device took it; 0: not connected */
	uint32_t psn;        /* ours, a new one in each life of the QP */
	struct dv_sq sq;     /* owner: the poll core it was handed to; zeroed by dv_qp_reset() */
};

int dv_verbs_mr_register(struct dv_device *device, void *base, size_t length, unsigned access,
	int memfd, uint64_t memfd_offset, struct dv_mr *ret_mr);
int dv_verbs_mr_deregister(struct dv_device *device, struct dv_mr *mr);

int dv_verbs_cq_create(struct dv_device *device, unsigned depth, struct dv_cq *ret_cq);
void dv_verbs_cq_destroy(struct dv_device *device, struct dv_cq *cq);
/* The CQ behind a hot handle; NULL when it is not one of this device. */
struct ibv_cq *dv_verbs_cq_find(const struct dv_device *device, const struct dv_cq *cq);

int dv_verbs_qp_create(struct dv_device *device, struct dv_cq *cq, unsigned depth,
	struct dv_qp **ret_qp, struct dv_sq **ret_sq);
void dv_verbs_qp_address(const struct dv_qp *qp, struct dv_address *ret_address);
uint32_t dv_verbs_qp_number(const struct dv_qp *qp);
int dv_verbs_qp_connect(struct dv_qp *qp, const struct dv_address *remote);
int dv_verbs_qp_error(struct dv_qp *qp);
int dv_verbs_qp_reset(struct dv_qp *qp);
uint64_t dv_verbs_qp_ack_ns(const struct dv_qp *qp);
int dv_verbs_qp_kill(struct dv_qp *qp);
void dv_verbs_qp_destroy(struct dv_qp *qp);

/*
 * cut.c. False: the device is closed, or is being closed: there is no NIC to call. Does not block.
 */
bool dv_verbs_enter(struct dv_device *device);
void dv_verbs_leave(struct dv_device *device);
int dv_verbs_cut(struct dv_device *device);

int dv_verbs_event_fd(struct dv_device *device);
int dv_verbs_event_next(struct dv_device *device, struct dv_event *ret);

/* libibverbs leaves errno on a NULL result; some paths of old drivers forget to. */
static inline int dv_verbs_errno(int saved_errno)
{
	return saved_errno ? -saved_errno : -EIO;
}

/* libibverbs returns errno values of either sign, or -1 with errno. */
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
