/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MODIFY_QP and QUERY_QP: the states of a queue pair and the path to its peer. The peer's NIC is
 * found by the number at the end of its GIDs, or by its LID, which is that number. Run by program
 * threads, under uv_lock and nic->lock.
 */
#include <errno.h>

#include "tests/connectx/uverbs.h"

/*
 * The responder learns its own PSN only at RTS, but it answers from RTR on. So this half of
 * dv/soft's PSN check is disabled by using the same value on both ends; the other half, the
 * requester's PSN, is real.
 */
#define ANY_PSN 0xffffffffu
#define WAY_MASK                                                                                   \
	(IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |                           \
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define SEND_MASK                                                                                  \
	(IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |                    \
		IBV_QP_MAX_QP_RD_ATOMIC)
#define INIT_MASK (IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)

/* Returns the QP's state: an error of the send queue puts it in error without a MODIFY_QP. */
static enum ibv_qp_state state_of(const struct uv_qp *uq)
{
	return uq->qp->state == SOFT_ERROR ? IBV_QPS_ERR : uq->state;
}

static void show(struct uv_qp *uq)
{
	struct dv_qp *qp = uq->qp;
	struct soft_export_qp *entry = &qp->nic->table->qps[qp->qpn % SOFT_QPS_MAX];

	soft_world_write();
	entry->peer_qpn = qp->remote.qpn;
	entry->peer_psn = uq->attributes.rq_psn;
	entry->psn = ANY_PSN;
	dv_guard_open(&entry->qpn, qp->qpn);
	soft_world_done();
}

/*
 * Returns the number of the NIC that a QP's destination names; 0: none. A port reaches a GID only
 * from one of the same network: from link-local to link-local, from IPv4 to that of the same VLAN.
 */
static uint16_t number_of(const struct uv_device *device, const struct ib_uverbs_qp_dest *dest)
{
	uint8_t own[16];

	uv_gid(device, dest->sgid_index % uv_gids(device), own);
	if (dest->is_global && memcmp(own, dest->dgid, 14) != 0)
		return 0;
	if (dest->is_global)
		return dest->sgid_index < uv_gids(device) ? uv_gid_number(dest->dgid) : 0;
	/* RoCE requires a GID, so a destination without one names no NIC */
	return device->infiniband ? dest->dlid : 0;
}

static int to_rtr(struct uv_qp *uq, const struct ib_uverbs_modify_qp *in)
{
	struct uv_device *device = uq->object.context->device;
	struct uv_device peer = {.number = number_of(device, &in->dest)};
	struct dv_qp *qp = uq->qp;
	int rc;

	if ((in->attr_mask & WAY_MASK) != WAY_MASK || !peer.number)
		return EINVAL;
	if (device->down)
		return ENETDOWN;
	qp->remote = (struct dv_address){.version = 1,
		.kind = 3,
		.mtu = in->path_mtu,
		.qpn = in->dest_qp_num,
		.psn = ANY_PSN};
	uv_name(peer.number, qp->remote.gid);
	rc = soft_link_connect(qp);
	if (rc)
		return rc;
	uq->peer_number = peer.number;
	uq->peer_pid = 0;
	show(uq);
	return 0;
}

static int to_rts(struct uv_qp *uq, const struct ib_uverbs_modify_qp *in)
{
	if ((in->attr_mask & SEND_MASK) != SEND_MASK)
		return EINVAL;
	uq->qp->psn = in->sq_psn;
	uq->qp->state = SOFT_RTS;
	return 0;
}

static void to_reset(struct uv_qp *uq)
{
	soft_qp_hide(uq->qp);
	soft_link_disconnect(uq->qp);
	soft_qp_zero(uq->qp);
}

static void to_error(struct uv_qp *uq)
{
	soft_qp_hide(uq->qp);
	soft_flush(uq->qp);
}

static int change(struct uv_qp *uq, const struct ib_uverbs_modify_qp *in)
{
	enum ibv_qp_state from = state_of(uq), to = (enum ibv_qp_state)in->qp_state;

	switch (to) {
	case IBV_QPS_RESET: to_reset(uq); return 0;
	case IBV_QPS_ERR:
		if (uq->qp->nic->fault.dead & DV_DEAD_ERROR)
			return EIO;
		to_error(uq);
		return 0;
	case IBV_QPS_INIT:
		if (from == IBV_QPS_INIT)
			return 0;
		return from == IBV_QPS_RESET && (in->attr_mask & INIT_MASK) == INIT_MASK &&
				       in->port_num == 1 && in->pkey_index == 0
			       ? 0
			       : EINVAL;
	case IBV_QPS_RTR: return from == IBV_QPS_INIT ? to_rtr(uq, in) : EINVAL;
	case IBV_QPS_RTS:
		if (from == IBV_QPS_RTS)
			return 0;
		return from == IBV_QPS_RTR ? to_rts(uq, in) : EINVAL;
	default: return EINVAL;
	}
}

/* Stores the QP attributes that are in the command's mask; the others keep their values. */
static void note(struct ib_uverbs_modify_qp *to, const struct ib_uverbs_modify_qp *in)
{
	uint32_t mask = in->attr_mask;
	struct ib_uverbs_modify_qp old = *to;

	*to = *in;
	if (!(mask & IBV_QP_AV))
		to->dest = old.dest;
	if (!(mask & IBV_QP_RQ_PSN))
		to->rq_psn = old.rq_psn;
	if (!(mask & IBV_QP_SQ_PSN))
		to->sq_psn = old.sq_psn;
	if (!(mask & IBV_QP_DEST_QPN))
		to->dest_qp_num = old.dest_qp_num;
	if (!(mask & IBV_QP_ACCESS_FLAGS))
		to->qp_access_flags = old.qp_access_flags;
	if (!(mask & IBV_QP_PATH_MTU))
		to->path_mtu = old.path_mtu;
	if (!(mask & IBV_QP_MAX_QP_RD_ATOMIC))
		to->max_rd_atomic = old.max_rd_atomic;
	if (!(mask & IBV_QP_MAX_DEST_RD_ATOMIC))
		to->max_dest_rd_atomic = old.max_dest_rd_atomic;
	if (!(mask & IBV_QP_MIN_RNR_TIMER))
		to->min_rnr_timer = old.min_rnr_timer;
	if (!(mask & IBV_QP_PORT))
		to->port_num = old.port_num;
	if (!(mask & IBV_QP_TIMEOUT))
		to->timeout = old.timeout;
	if (!(mask & IBV_QP_RETRY_CNT))
		to->retry_cnt = old.retry_cnt;
	if (!(mask & IBV_QP_RNR_RETRY))
		to->rnr_retry = old.rnr_retry;
}

int uv_modify_qp(struct uv_context *context, struct uv_command *command)
{
	const struct ib_uverbs_modify_qp *in = command->core_in;
	struct ib_uverbs_ex_modify_qp_resp core = {.response_length = sizeof(core)};
	struct ib_uverbs_modify_qp before;
	struct uv_qp *uq = command->core_in_bytes < sizeof(*in)
				   ? NULL
				   : (void *)uv_object_find(context, in->qp_handle, UV_QP);
	int rc = 0;

	if (!uq)
		return EINVAL;
	soft_lock(context->device->nic);
	before = uq->attributes;
	/* stored before change(), which calls show(), which publishes some attributes */
	note(&uq->attributes, in);
	if (in->attr_mask & IBV_QP_STATE)
		rc = change(uq, in);
	if (rc)
		uq->attributes = before;
	else if (in->attr_mask & IBV_QP_STATE)
		uq->state = (enum ibv_qp_state)in->qp_state;
	soft_unlock(context->device->nic);
	if (!rc && command->extended)
		uv_answer(command->core_out, command->core_out_bytes, &core, sizeof(core));
	return rc;
}

int uv_query_qp(struct uv_context *context, struct uv_command *command)
{
	const struct ib_uverbs_query_qp *in = command->core_in;
	struct uv_qp *uq = command->core_in_bytes < sizeof(*in)
				   ? NULL
				   : (void *)uv_object_find(context, in->qp_handle, UV_QP);
	const struct ib_uverbs_modify_qp *at;
	struct ib_uverbs_query_qp_resp core;

	if (!uq)
		return EINVAL;
	soft_lock(context->device->nic);
	at = &uq->attributes;
	core = (struct ib_uverbs_query_qp_resp){
		.dest = at->dest,
		.max_send_wr = uq->caps.max_send_wr,
		.max_recv_wr = uq->caps.max_recv_wr,
		.max_send_sge = uq->caps.max_send_sge,
		.max_recv_sge = uq->caps.max_recv_sge,
		.max_inline_data = uq->caps.max_inline_data,
		.rq_psn = at->rq_psn,
		.sq_psn = at->sq_psn,
		.dest_qp_num = at->dest_qp_num,
		.qp_access_flags = at->qp_access_flags,
		.qp_state = (uint8_t)state_of(uq),
		.cur_qp_state = (uint8_t)state_of(uq),
		.path_mtu = at->path_mtu,
		.max_rd_atomic = at->max_rd_atomic,
		.max_dest_rd_atomic = at->max_dest_rd_atomic,
		.min_rnr_timer = at->min_rnr_timer,
		.port_num = at->port_num,
		.timeout = at->timeout,
		.retry_cnt = at->retry_cnt,
		.rnr_retry = at->rnr_retry,
		.sq_sig_all = uq->sq_sig_all,
	};
	soft_unlock(context->device->nic);
	uv_answer(command->core_out, command->core_out_bytes, &core, sizeof(core));
	return 0;
}
