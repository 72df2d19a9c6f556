/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs on mlx5dv: reliable connected, without a receive queue; the poll core writes the send
 * queue. Control plane, except that the hot handle (dv_qp.sq) belongs to the poll core that it was
 * given to.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include "config/log.h"
#include "dv/verbs.h"

#define ADDRESS_VERSION 1    /* the only valid value of dv_address.version */
#define NUMBER_MAX 0xffffffu /* largest QP number and packet sequence number: both have 24 bits */

/*
 * retry_cnt: how often the NIC retransmits a request that gets no ACK within
 * dv_options.ack_timeout. The rail's stall limit is at least five ACK time-outs
 * (out_conn_stall_ns() in conns.c), so that a lost packet causes one retransmission and does not
 * break the connection.
 */
#define RETRIES 7
static_assert(DV_GIVE_UP_ACKS == 4 * (RETRIES + 1), "each try waits up to four ACK time-outs");
/* 7 means unlimited retries; READ and WRITE need no receive WQE, so none occur */
#define RNR_RETRIES 7
#define RNR_TIMER 12 /* receiver-not-ready (RNR) timer: IBTA code of 0.64 ms */

/*
 * Chooses a random packet sequence number (PSN). Packets in flight to an earlier QP with the same
 * number then do not match this one's connection.
 */
static int psn_choose(struct dv_qp *qp)
{
	uint32_t random;

	if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
		return dv_fail(dv_verbs_errno(errno), "getrandom for a sequence number: %m");
	qp->psn = random & NUMBER_MAX;
	return 0;
}

/* Returns -ENODEV with the error text that dv_cut() has closed the device of `qp`. */
static int gone(const struct dv_qp *qp, const char *what)
{
	return dv_fail(-ENODEV, "QP 0x%x of %s: %s: %m: the device is lost", qp->sq.qpn,
		qp->device->name, what);
}

/* Calls ibv_modify_qp(). `what` names the state change, `hint` ends the error text. */
static int modify(
	struct dv_qp *qp, struct ibv_qp_attr *attr, int mask, const char *what, const char *hint)
{
	int rc;

	if (!qp->qp || !dv_verbs_enter(qp->device))
		return gone(qp, what);
	rc = dv_verbs_result(ibv_modify_qp(qp->qp, attr, mask | IBV_QP_STATE));
	dv_verbs_leave(qp->device);
	if (rc)
		return dv_fail(
			rc, "QP 0x%x of %s: %s: %m%s", qp->sq.qpn, qp->device->name, what, hint);
	return 0;
}

/*
 * RESET -> INIT. The QP accepts only remote READs, also for regions that allow more, because
 * engines only read from each other.
 */
static int to_init(struct dv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = qp->device->pkey_index,
		.port_num = qp->device->port,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ,
	};

	return modify(
		qp, &attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "-> INIT", "");
}

/*
 * Creates a QP whose send queue has at least `depth` WQEBBs. For READ or WRITE with max_send_sge =
 * 2 libmlx5 reserves 64 bytes for each work request, so `depth` work requests give `depth` WQEBBs;
 * the poll core may still post WQEs with up to DV_SGES_MAX segments in several WQEBBs, because the
 * NIC takes a WQE's length from the WQE. Scatter-to-CQE is disabled, so that the payload of a READ
 * is always written to its destination.
 */
static struct ibv_qp *qp_make(struct dv_device *device, struct ibv_cq *cq, unsigned depth)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = depth, .max_send_sge = 2},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 0,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = device->domain,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct mlx5dv_qp_init_attr mlx5_attr = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
		.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
	};

	return mlx5dv_create_qp(device->context, &attr, &mlx5_attr);
}

/*
 * Fills the send queue's handle (dv/hot.h). mlx5dv does not report the producer index; in a new QP
 * it is 0.
 */
static int sq_fill(struct dv_qp *qp, unsigned depth)
{
	const char *name = qp->device->name;
	struct mlx5dv_qp raw = {0};
	struct mlx5dv_obj object = {0};
	int rc;

	object.qp.in = qp->qp;
	object.qp.out = &raw;
	rc = dv_verbs_result(mlx5dv_init_obj(&object, MLX5DV_OBJ_QP));
	if (rc)
		return dv_fail(rc, "mlx5dv_init_obj(%s, QP): %m", name);
	if (!dv_is_power_of_two(raw.sq.wqe_cnt) || raw.sq.wqe_cnt < depth ||
		raw.sq.stride != DV_WQEBB)
		return dv_fail(-EPROTO,
			"%s created a send queue of %u blocks of %u bytes instead of %u blocks of %u bytes",
			name, raw.sq.wqe_cnt, raw.sq.stride, depth, DV_WQEBB);
	qp->sq = (struct dv_sq){.buf = raw.sq.buf,
		.record = raw.dbrec,
		.bf_reg = raw.bf.reg,
		.wqe_cnt = raw.sq.wqe_cnt,
		.qpn = qp->qp->qp_num,
		.bf_size = raw.bf.size};
	/* All queues of the thread domain share this page of doorbell registers. */
	qp->device->doorbells =
		(void *)((uintptr_t)raw.bf.reg & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1));
	return 0;
}

/* Creates the QP, fills its handle (dv/hot.h) and moves it to the state INIT. */
static int make(struct dv_device *device, struct ibv_cq *cq, unsigned depth, struct dv_qp *qp)
{
	int rc;

	qp->qp = qp_make(device, cq, depth);
	if (!qp->qp)
		return dv_fail(dv_verbs_errno(errno),
			"mlx5dv_create_qp(%s, %u blocks): %m. Many queues need much locked memory: see ulimit -l",
			device->name, depth);
	rc = sq_fill(qp, depth);
	if (rc == 0)
		rc = to_init(qp);
	if (rc)
		ibv_destroy_qp(qp->qp);
	return rc;
}

int dv_verbs_qp_create(struct dv_device *device, struct dv_cq *cq, unsigned depth,
	struct dv_qp **ret_qp, struct dv_sq **ret_sq)
{
	const char *name = device->name;
	struct ibv_cq *verbs_cq = cq->handle;
	struct dv_qp *qp;
	int rc;

	if (!verbs_cq || verbs_cq->context != device->context)
		return dv_fail(-EINVAL,
			"creating a queue pair on %s: CQ 0x%x belongs to another NIC", name,
			cq->cqn);
	if (!depth || depth > device->qp_depth_max)
		return dv_fail(-EINVAL,
			"creating a send queue of %u blocks on %s: not possible; the device supports 1 to %u",
			depth, name, device->qp_depth_max);
	qp = aligned_alloc(alignof(struct dv_qp), sizeof(*qp));
	if (!qp)
		return dv_fail(-ENOMEM, "creating a queue pair on %s: %m", name);
	memset(qp, 0, sizeof(*qp));
	qp->ops = device->ops;
	qp->device = device;
	qp->path = dv_verbs_path(device);
	rc = psn_choose(qp);
	if (rc == 0 && !dv_verbs_enter(device)) {
		rc = dv_fail(-ENODEV, "creating a queue pair on %s: %m: the device is lost", name);
	} else if (rc == 0) {
		rc = make(device, verbs_cq, depth, qp);
		dv_verbs_leave(device);
	}
	if (rc) {
		free(qp);
		return rc;
	}
	*ret_qp = qp;
	*ret_sq = &qp->sq;
	return 0;
}

void dv_verbs_qp_address(const struct dv_qp *qp, struct dv_address *ret_address)
{
	const struct dv_device *device = qp->device;
	struct dv_address address = {
		.version = ADDRESS_VERSION,
		.kind = qp->path.kind,
		.mtu = qp->path.mtu,
		.reads = device->reads_in,
		.qpn = qp->sq.qpn,
		.psn = qp->psn,
		.lid = qp->path.lid,
	};

	memcpy(address.gid, qp->path.gid.raw, sizeof(address.gid));
	*ret_address = address;
}

/* Checks an address that another engine has sent. Returns what is wrong with it, or NULL. */
static const char *address_fault(const struct dv_path *path, const struct dv_address *remote)
{
	static const uint8_t zero[16];

	if (remote->version != ADDRESS_VERSION)
		return "unknown version";
	if (remote->kind != path->kind)
		return "another kind of network (InfiniBand, RoCE v2 and software do not mix)";
	if (remote->mtu < IBV_MTU_256 || remote->mtu > IBV_MTU_4096)
		return "impossible MTU";
	if (remote->reads == 0)
		return "it answers no READs";
	if (remote->qpn == 0 || remote->qpn > NUMBER_MAX || remote->psn > NUMBER_MAX)
		return "impossible QP or sequence number";
	if (remote->kind == DV_ADDRESS_INFINIBAND && remote->lid == 0)
		return "no LID";
	if (path->grh && memcmp(remote->gid, zero, sizeof(zero)) == 0)
		return "no GID";
	return NULL;
}

static uint8_t smaller(uint8_t a, uint8_t b)
{
	return a < b ? a : b;
}

/*
 * The flow label of a QP. The NIC derives the UDP source port of RoCE v2 from it: the 14 low bits
 * xor the high bits; switches use that port to spread flows over links. Multiplying by an odd
 * factor maps the low 14 bits of the QP number one to one, so QPs of one peer get different ports.
 * Bit 14 is set because 0 means no flow label.
 */
static uint32_t flow_label(const struct dv_qp *qp)
{
	return 1u << 14 | (qp->sq.qpn * 0x9e5u & 0x3fffu);
}

/* Moves the QP from INIT to RTR, connected to `remote`, with the smaller MTU of both ends. */
static int to_rtr(struct dv_qp *qp, const struct dv_address *remote)
{
	const struct dv_device *device = qp->device;
	const struct dv_path *path = &qp->path;
	uint8_t mtu = smaller(remote->mtu, path->mtu);
	char text[INET6_ADDRSTRLEN] = "?", hint[128];
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = (enum ibv_mtu)mtu,
		.dest_qp_num = remote->qpn,
		.rq_psn = remote->psn,
		.max_dest_rd_atomic = device->reads_in,
		.min_rnr_timer = RNR_TIMER,
		.ah_attr = {.dlid = remote->lid,
			.port_num = device->port,
			.sl = device->service_level},
	};

	if (path->grh) {
		attr.ah_attr.is_global = 1;
		attr.ah_attr.grh.sgid_index = path->gid_index;
		attr.ah_attr.grh.hop_limit = 64;
		attr.ah_attr.grh.traffic_class = device->traffic_class;
		attr.ah_attr.grh.flow_label = device->one_flow ? 0 : flow_label(qp);
		memcpy(attr.ah_attr.grh.dgid.raw, remote->gid, sizeof(remote->gid));
	}
	inet_ntop(AF_INET6, remote->gid, text, sizeof(text));
	snprintf(hint, sizeof(hint), ". Can %s (LID %u) be reached from GID index %u of this port?",
		text, remote->lid, path->gid_index);
	return modify(qp, &attr,
		IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
		"INIT -> RTR", hint);
}

/* Reads back the ACK time-out that the device uses, because firmware may have a higher minimum. */
static void ack_timeout_read(struct dv_qp *qp)
{
	struct dv_device *device = qp->device;
	struct ibv_qp_init_attr unused;
	struct ibv_qp_attr attr = {0};
	int rc = -ENODEV;

	if (dv_verbs_enter(device)) {
		rc = dv_verbs_result(ibv_query_qp(qp->qp, &attr, IBV_QP_TIMEOUT, &unused));
		dv_verbs_leave(device);
	}
	qp->ack_timeout = rc || !attr.timeout ? device->ack_timeout : attr.timeout;
	if (dv_hint_load(&device->ack_told))
		return;
	dv_hint_store(&device->ack_told, 1);
	log_info(
		"%s: ACK time-out %u: a lost packet is retransmitted after %.1f ms, at most %.1f ms%s",
		device->name, qp->ack_timeout, (double)dv_ack_ns(qp->ack_timeout) / 1e6,
		4 * (double)dv_ack_ns(qp->ack_timeout) / 1e6,
		qp->ack_timeout == device->ack_timeout
			? ""
			: "; the device does not support the value of rail.ack_timeout and uses this one");
}

uint64_t dv_verbs_qp_ack_ns(const struct dv_qp *qp)
{
	return qp->ack_timeout ? dv_ack_ns(qp->ack_timeout) : 0;
}

bool dv_verbs_qp_stale(const struct dv_qp *qp)
{
	struct dv_path now = dv_verbs_path(qp->device);

	return dv_verbs_path_differs(&now, &qp->path);
}

/*
 * Moves the QP from RTR to RTS. Limit of READs in flight: what this NIC can request or the peer can
 * answer, whichever is smaller.
 */
static int to_rts(struct dv_qp *qp, const struct dv_address *remote)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = qp->device->ack_timeout,
		.retry_cnt = RETRIES,
		.rnr_retry = RNR_RETRIES,
		.sq_psn = qp->psn,
		.max_rd_atomic = smaller(qp->device->reads_out, remote->reads),
	};
	int rc;

	rc = modify(qp, &attr,
		IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			IBV_QP_MAX_QP_RD_ATOMIC,
		"RTR -> RTS", "");
	if (rc == 0)
		ack_timeout_read(qp);
	return rc;
}

/* After a failure the QP stays in the state that it has reached. */
int dv_verbs_qp_connect(struct dv_qp *qp, const struct dv_address *remote)
{
	const char *fault = address_fault(&qp->path, remote);
	int rc;

	if (fault)
		return dv_fail(-EPROTO, "QP 0x%x of %s: the peer's address is refused: %s",
			qp->sq.qpn, qp->device->name, fault);
	rc = to_rtr(qp, remote);
	if (rc)
		return rc;
	return to_rts(qp, remote);
}

int dv_verbs_qp_error(struct dv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	return modify(qp, &attr, 0, "-> ERR", "");
}

/*
 * Destroys the QP in the NIC and frees the queue's memory; the hot handle stays. libmlx5 reports
 * success only if the kernel destroyed the QP, because device.c removes
 * RDMAV_ALLOW_DISASSOC_DESTROY from the environment.
 */
int dv_verbs_qp_kill(struct dv_qp *qp)
{
	struct dv_device *device = qp->device;
	int rc;

	if (!qp->qp)
		return 0;
	if (dv_verbs_enter(device)) {
		rc = dv_verbs_result(ibv_destroy_qp(qp->qp));
		dv_verbs_leave(device);
	} else {
		/* dv_verbs_cut() returns at once if the device is cut; it waits if another
		 * thread is cutting it. */
		rc = dv_verbs_cut(device);
	}
	if (rc)
		return dv_fail(rc, "destroying QP 0x%x of %s: %m", qp->sq.qpn, device->name);
	qp->qp = NULL;
	return 0;
}

/*
 * If the QP cannot be destroyed its memory is not freed, because the NIC may still read the queue.
 */
void dv_verbs_qp_destroy(struct dv_qp *qp)
{
	if (dv_verbs_qp_kill(qp))
		log_error("%s", dv_error());
	else
		free(qp);
}
