/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs in the program's memory: libmlx5 puts the receive queue, which nothing fills, at the
 * start of one buffer and the send queue after it, and passes a doorbell record and the page it
 * will ring. Run by program threads, under uv_lock; state that the NIC's thread reads is changed
 * under nic->lock.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/connectx/uverbs.h"

/* Reads the fields that the plain and the extended create command have in common. */
static bool read_command(const struct uv_command *command, struct ib_uverbs_create_qp *ret)
{
	size_t skip = command->extended ? offsetof(struct ib_uverbs_create_qp, user_handle) : 0;
	size_t bytes = sizeof(*ret) - skip;

	if (command->core_in_bytes < bytes)
		return false;
	memcpy((uint8_t *)ret + skip, command->core_in, bytes);
	return true;
}

static bool uar_known(struct uv_context *context, uint32_t page)
{
	for (struct uv_object *object = context->objects; object; object = object->next)
		if (object->kind == UV_UAR && ((struct uv_uar *)object)->page == page)
			return true;
	return false;
}

static int check(struct uv_context *context, const struct ib_uverbs_create_qp *in,
	const struct mlx5_ib_create_qp *uhw)
{
	unsigned count = 0;

	if (in->qp_type != IBV_QPT_RC || in->is_srq)
		return EOPNOTSUPP;
	for (struct uv_object *object = context->objects; object; object = object->next)
		count += object->kind == UV_QP;
	if (context->device->odd & UV_ODD_QPS && count >= UV_ODD_QPS_MAX)
		return ENOMEM;
	if (in->max_send_sge > SOFT_SGES_MAX || in->max_recv_sge > SOFT_SGES_MAX ||
		uhw->sq_wqe_count > UV_SQ_DEPTH_MAX || uhw->rq_wqe_count > UV_RQ_DEPTH_MAX ||
		(uhw->sq_wqe_count & (uhw->sq_wqe_count - 1)) ||
		(uhw->rq_wqe_count & (uhw->rq_wqe_count - 1)) || uhw->rq_wqe_shift > 9)
		return EINVAL;
	if (uhw->flags & MLX5_QP_FLAG_SIGNATURE)
		return EOPNOTSUPP;
	if (!(uhw->flags & MLX5_QP_FLAG_UAR_PAGE_INDEX) || !uar_known(context, uhw->bfreg_index) ||
		!uv_object_find(context, in->pd_handle, UV_PD))
		return EINVAL;
	return 0;
}

/*
 * Creates the software NIC's QP. uar.c forwards the program's doorbells to this QP's own register.
 */
static struct dv_qp *new_qp(struct dv_device *nic, const struct mlx5_ib_create_qp *uhw)
{
	struct dv_qp *qp = aligned_alloc(alignof(struct dv_qp), sizeof(*qp));
	uint64_t rq_bytes = (uint64_t)uhw->rq_wqe_count << uhw->rq_wqe_shift;

	if (!qp)
		return NULL;
	memset(qp, 0, sizeof(*qp));
	qp->ops = &dv_soft_ops;
	qp->nic = nic;
	qp->wqe_cnt = uhw->sq_wqe_count ? uhw->sq_wqe_count : 1;
	qp->buf = (void *)(uintptr_t)(uhw->buf_addr + rq_bytes);
	qp->record = (void *)(uintptr_t)uhw->db_addr;
	qp->uidx = uhw->uidx;
	return qp;
}

static int make(struct uv_context *context, struct uv_qp *uq, const struct ib_uverbs_create_qp *in,
	const struct mlx5_ib_create_qp *uhw)
{
	struct uv_cq *send = (void *)uv_object_find(context, in->send_cq_handle, UV_CQ);
	struct dv_device *nic = context->device->nic;
	struct dv_qp *qp;
	int rc;

	if (!send || !uv_object_find(context, in->recv_cq_handle, UV_CQ))
		return EINVAL;
	qp = new_qp(nic, uhw);
	if (!qp)
		return ENOMEM;
	uq->page = uhw->bfreg_index;
	uq->bfreg = -1;
	uq->state = IBV_QPS_RESET;
	uq->qp = qp;
	qp->cq = send->cq;
	qp->foreign = uq;
	soft_lock(nic);
	rc = soft_qp_add(nic, qp);
	if (!rc)
		soft_qp_zero(qp);
	soft_unlock(nic);
	if (rc)
		free(qp);
	return rc;
}

int uv_create_qp(struct uv_context *context, struct uv_command *command)
{
	const struct mlx5_ib_create_qp *uhw = command->uhw_in;
	struct ib_uverbs_ex_create_qp_resp core = {.response_length = sizeof(core)};
	struct mlx5_ib_create_qp_resp answer = {0};
	struct ib_uverbs_create_qp in = {0};
	struct uv_qp *uq;
	int rc;

	if (!read_command(command, &in) ||
		command->uhw_in_bytes < offsetof(struct mlx5_ib_create_qp, sq_buf_addr))
		return EINVAL;
	rc = check(context, &in, uhw);
	if (rc)
		return rc;
	uq = calloc(1, sizeof(*uq));
	if (!uq)
		return ENOMEM;
	uq->user_handle = in.user_handle;
	uq->pd = in.pd_handle;
	uq->sq_sig_all = in.sq_sig_all;
	uv_object_add(context, &uq->object, UV_QP);
	rc = make(context, uq, &in, uhw);
	if (rc) {
		uv_object_remove(&uq->object);
		free(uq);
		return rc;
	}
	uq->caps = (struct ib_uverbs_create_qp_resp){.qp_handle = uq->object.handle,
		.qpn = uq->qp->qpn,
		.max_send_wr = in.max_send_wr,
		.max_recv_wr = in.max_recv_wr,
		.max_send_sge = in.max_send_sge,
		.max_recv_sge = in.max_recv_sge,
		.max_inline_data = in.max_inline_data};
	core.base = uq->caps;
	answer.bfreg_index = uhw->bfreg_index;
	uv_answer(command->core_out, command->core_out_bytes, &core,
		command->extended ? sizeof(core) : sizeof(core.base));
	uv_answer(command->uhw_out, command->uhw_out_bytes, &answer, sizeof(answer));
	return 0;
}

void uv_qp_free(struct uv_object *object)
{
	struct uv_qp *uq = (void *)object;
	struct dv_device *nic = object->context->device->nic;

	soft_lock(nic);
	soft_qp_hide(uq->qp);
	/* the program reads no further completion of this QP, so none is written */
	uq->qp->cq = NULL;
	soft_unlock(nic);
	soft_qp_destroy(uq->qp);
	uv_object_remove(object);
	free(uq);
}

/*
 * Returns the number of events that the program read; libibverbs waits until they are acknowledged.
 */
static uint32_t events_read(const struct uv_qp *uq)
{
	return uq->async_events - uv_channel_take_back(uq->object.context->async, uq->user_handle,
					  sizeof(struct ib_uverbs_async_event_desc));
}

int uv_destroy_qp(struct uv_context *context, struct uv_command *command)
{
	const struct ib_uverbs_destroy_qp *in = command->core_in;
	struct ib_uverbs_destroy_qp_resp core = {0};
	struct uv_object *object = command->core_in_bytes < sizeof(*in)
					   ? NULL
					   : uv_object_find(context, in->qp_handle, UV_QP);

	if (!object)
		return EINVAL;
	if (context->device->nic->fault.dead & DV_DEAD_KILL)
		return EIO;
	core.events_reported = events_read((void *)object);
	uv_qp_free(object);
	uv_answer(command->core_out, command->core_out_bytes, &core, sizeof(core));
	return 0;
}
