/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion queues whose entries and record lie in the program's memory, and their completion
 * events. Program threads create them, under uv_lock; the NIC's thread completes, under nic->lock.
 */
#include <errno.h>
#include <stdlib.h>

#include "tests/connectx/uverbs.h"

#define ARM_RECORD 1u
/* arm bit of a CQ doorbell record, MLX5_CQ_DB_REQ_NOT_SOL of libmlx5 */
#define ARM_SOLICITED (1u << 24)
#define ARM_NEVER 0xffffffffu /* no program writes this value to arm a CQ, see add() */
#define INDEX_MASK 0xffffffu

/* Reads a create command, plain or extended, and returns it in the extended form. */
static bool read_command(const struct uv_command *command, struct ib_uverbs_ex_create_cq *ret)
{
	const struct ib_uverbs_create_cq *plain = command->core_in;

	if (command->extended) {
		if (command->core_in_bytes < sizeof(*ret))
			return false;
		memcpy(ret, command->core_in, sizeof(*ret));
		return true;
	}
	if (command->core_in_bytes < sizeof(*plain))
		return false;
	*ret = (struct ib_uverbs_ex_create_cq){.user_handle = plain->user_handle,
		.cqe = plain->cqe,
		.comp_channel = plain->comp_channel};
	return true;
}

static int add(struct uv_context *context, struct uv_cq *uc, const struct mlx5_ib_create_cq *uhw,
	uint32_t entries)
{
	struct dv_device *nic = context->device->nic;
	struct soft_cq *cq = calloc(1, sizeof(*cq));
	int rc;

	if (!cq)
		return ENOMEM;
	cq->nic = nic;
	cq->cqe_cnt = entries;
	cq->cqe_size = uhw->cqe_size;
	cq->buf = (void *)(uintptr_t)uhw->buf_addr;
	cq->record = (void *)(uintptr_t)uhw->db_addr;
	cq->foreign = uc;
	uc->cq = cq;
	uc->record = cq->record;
	/*
	 * The first arm may write 0, which libmlx5 left in the record: it is seen only if the
	 * record held another value before.
	 */
	uc->arm_seen = ARM_NEVER;
	dv_record_store(&uc->record[ARM_RECORD], ARM_NEVER);
	soft_lock(nic);
	rc = soft_cq_add(nic, cq);
	soft_unlock(nic);
	if (rc)
		free(cq);
	return rc;
}

int uv_create_cq(struct uv_context *context, struct uv_command *command)
{
	const struct mlx5_ib_create_cq *uhw = command->uhw_in;
	struct ib_uverbs_ex_create_cq_resp core = {.response_length = sizeof(core)};
	struct mlx5_ib_create_cq_resp answer = {0};
	struct ib_uverbs_ex_create_cq in;
	struct uv_cq *uc;
	int rc;

	if (!read_command(command, &in) || command->uhw_in_bytes < sizeof(uhw->buf_addr) * 3 ||
		in.cqe >= SOFT_CQ_DEPTH_MAX || (in.cqe & (in.cqe + 1)) ||
		(uhw->cqe_size != 64 && uhw->cqe_size != 128))
		return EINVAL;
	uc = calloc(1, sizeof(*uc));
	if (!uc)
		return ENOMEM;
	uc->user_handle = in.user_handle;
	if (in.comp_channel >= 0)
		uc->channel = uv_channel_find(in.comp_channel);
	rc = in.comp_channel >= 0 && !uc->channel ? EINVAL : add(context, uc, uhw, in.cqe + 1);
	if (rc) {
		free(uc);
		return rc;
	}
	uv_object_add(context, &uc->object, UV_CQ);
	core.base.cq_handle = uc->object.handle;
	core.base.cqe = in.cqe;
	answer.cqn = uc->cq->cqn;
	uv_answer(command->core_out, command->core_out_bytes, &core,
		command->extended ? sizeof(core) : sizeof(core.base));
	uv_answer(command->uhw_out, command->uhw_out_bytes, &answer, sizeof(answer));
	return 0;
}

void uv_cq_free(struct uv_object *object)
{
	struct uv_cq *uc = (void *)object;
	struct dv_cq handle = {.handle = uc->cq};

	soft_cq_destroy(object->context->device->nic, &handle);
	uv_object_remove(object);
	free(uc);
}

static bool in_use(const struct uv_cq *uc)
{
	for (struct uv_object *at = uc->object.context->objects; at; at = at->next) {
		const struct uv_qp *uq = (void *)at;

		if (at->kind == UV_QP && uq->qp->cq == uc->cq)
			return true;
	}
	return false;
}

int uv_destroy_cq(struct uv_context *context, struct uv_command *command)
{
	const struct ib_uverbs_destroy_cq *in = command->core_in;
	struct ib_uverbs_destroy_cq_resp core;
	struct uv_cq *uc = command->core_in_bytes < sizeof(*in)
				   ? NULL
				   : (void *)uv_object_find(context, in->cq_handle, UV_CQ);

	if (!uc)
		return EINVAL;
	if (in_use(uc))
		return EBUSY;
	soft_lock(context->device->nic);
	uc->armed = false;
	if (uc->channel)
		uc->events -= uv_channel_take_back(
			uc->channel, uc->user_handle, sizeof(struct ib_uverbs_comp_event_desc));
	if (context->async && uc->async_events)
		uc->async_events -= uv_channel_take_back(
			context->async, uc->user_handle, sizeof(struct ib_uverbs_async_event_desc));
	core = (struct ib_uverbs_destroy_cq_resp){uc->events, uc->async_events};
	soft_unlock(context->device->nic);
	uv_cq_free(&uc->object);
	uv_answer(command->core_out, command->core_out_bytes, &core, sizeof(core));
	return 0;
}

/* ---- events: under nic->lock ----------------------------------------------------------------- */

static void fire(struct uv_cq *uc)
{
	struct ib_uverbs_comp_event_desc event = {.cq_handle = uc->user_handle};

	uc->armed = false;
	uc->events++;
	uv_channel_send(uc->channel, &event, sizeof(event));
}

void uv_cq_completed(struct soft_cq *cq, bool solicited)
{
	struct uv_cq *uc = cq->foreign;

	if (uc->armed && (solicited || !uc->solicited_only))
		fire(uc);
}

/*
 * The doorbell names one CQ, but a second doorbell may have replaced it before it was read, so the
 * arm records of all CQs are checked. An arm holds the consumer index of the program: if a CQE was
 * written since, the event is sent at once.
 */
void uv_cq_arm_scan(struct dv_device *nic)
{
	if (!uv_uar_armed(nic))
		return;
	for (unsigned i = 0; i < nic->cq_count; i++) {
		struct uv_cq *uc = nic->cqs[i]->foreign;
		uint32_t arm;

		if (!uc->channel)
			continue;
		arm = dv_device_load_record(&uc->record[ARM_RECORD]);
		if (arm == uc->arm_seen)
			continue;
		uc->arm_seen = arm;
		uc->armed = true;
		uc->solicited_only = arm & ARM_SOLICITED;
		if ((uc->cq->pi & INDEX_MASK) != (arm & INDEX_MASK))
			fire(uc);
	}
}

/* The CQ has overrun: dv/soft has flushed the QPs that send to it. */
void uv_cq_overrun(struct soft_cq *cq)
{
	struct uv_cq *uc = cq->foreign;

	uc->async_events++;
	uv_async(uc->object.context, uc->user_handle, IBV_EVENT_CQ_ERR);
}
