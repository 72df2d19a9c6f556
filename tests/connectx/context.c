/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts (one per open of the device), the attributes of device and port, PDs and address
 * handles. Run by program threads, under uv_lock.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/connectx/uverbs.h"

struct uv_context *uv_contexts;

struct uv_context *uv_context_open(unsigned index)
{
	struct uv_context *context = calloc(1, sizeof(*context));
	int rc = context ? 0 : -ENOMEM;

	pthread_mutex_lock(&uv_lock);
	if (!rc)
		rc = uv_device_get(uv_device(index));
	if (!rc) {
		context->device = uv_device(index);
		context->life = dv_hint_load(&context->device->life);
		context->memory = -1;
		context->next = uv_contexts;
		uv_contexts = context;
	}
	pthread_mutex_unlock(&uv_lock);
	if (rc) {
		free(context);
		return NULL;
	}
	context->fd = uv_share_open(context);
	if (context->fd >= 0)
		return context;
	context->server_fd = -1;
	uv_context_close(context);
	return NULL;
}

static void free_kind(
	struct uv_context *context, enum uv_kind kind, void (*give)(struct uv_object *object))
{
	struct uv_object *object = context->objects;

	while (object) {
		struct uv_object *next = object->next;

		if (object->kind == kind) {
			give(object);
			/* read again: `give` may have removed other objects too */
			object = context->objects;
		} else {
			object = next;
		}
	}
}

static void free_uar(struct uv_object *object)
{
	uv_uar_free((void *)object);
}

static void free_plain(struct uv_object *object)
{
	uv_object_remove(object);
	free(object);
}

/*
 * Frees the context's objects that the program did not destroy, each before the objects it depends
 * on.
 */
void uv_context_close(struct uv_context *context)
{
	struct uv_context **at = &uv_contexts;

	pthread_mutex_lock(&uv_lock);
	while (*at != context)
		at = &(*at)->next;
	*at = context->next;
	free_kind(context, UV_QP, uv_qp_free);
	free_kind(context, UV_CQ, uv_cq_free);
	free_kind(context, UV_MR, uv_mr_free);
	free_kind(context, UV_UAR, free_uar);
	free_kind(context, UV_AH, free_plain);
	free_kind(context, UV_PD, free_plain);
	uv_device_put(context->device);
	pthread_mutex_unlock(&uv_lock);
	if (context->server_fd >= 0)
		close(context->server_fd);
	free(context);
}

/*
 * tot_bfregs 0: doorbell pages are objects of their own (dynamic UARs). cqe_version 1: a CQE names
 * the QP by the index that its creator gave it. Every response_length must be set: libmlx5 ignores
 * the fields beyond it.
 */
struct mlx5_ib_alloc_ucontext_resp uv_context_attributes(const struct uv_device *device)
{
	return (struct mlx5_ib_alloc_ucontext_resp){
		.qp_tab_size = SOFT_QPS_MAX,
		.bf_reg_size = device->odd & UV_ODD_NOBF ? 0 : 2 * SOFT_BF_SIZE,
		.cache_line_size = 64,
		.max_sq_desc_sz = 1024,
		.max_rq_desc_sz = 512,
		.max_send_wqebb = UV_SQ_DEPTH_MAX,
		.max_recv_wr = UV_RQ_DEPTH_MAX,
		.max_srq_recv_wr = UV_RQ_DEPTH_MAX,
		.num_ports = 1,
		.response_length = sizeof(struct mlx5_ib_alloc_ucontext_resp),
		.cqe_version = 1,
		.cmds_supp_uhw =
			MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH,
		.eth_min_inline = MLX5_USER_INLINE_MODE_NONE,
		.log_uar_size = 12,
		.num_uars_per_page = 1,
		.num_dyn_bfregs = 2 * UV_UARS_MAX,
	};
}

int uv_get_context(struct uv_context *context, struct uv_command *command)
{
	struct ib_uverbs_get_context_resp core = {.num_comp_vectors = 1};
	struct mlx5_ib_alloc_ucontext_resp uhw = uv_context_attributes(context->device);

	if (!context->async)
		context->async = uv_channel_open();
	if (!context->async)
		return EMFILE;
	core.async_fd = (uint32_t)context->async->read_fd;
	uv_answer(command->core_out, command->core_out_bytes, &core, sizeof(core));
	uv_answer(command->uhw_out, command->uhw_out_bytes, &uhw, sizeof(uhw));
	return 0;
}

static void base_attributes(
	const struct uv_context *context, struct ib_uverbs_query_device_resp *ret)
{
	uint64_t guid = htobe64(0x5c0f7c0000000000ull | context->device->number);

	*ret = (struct ib_uverbs_query_device_resp){
		.fw_ver = 28ull << 32,
		.node_guid = guid,
		.sys_image_guid = guid,
		.max_mr_size = context->device->mr_bytes_max,
		.page_size_cap = 0xfffffffffffff000ull,
		.vendor_id = 0x02c9,
		.vendor_part_id = 4129,
		.max_qp = SOFT_QPS_MAX - 1,
		.max_qp_wr = UV_SQ_DEPTH_MAX,
		.max_sge = SOFT_SGES_MAX,
		.max_sge_rd = context->device->odd & UV_ODD_SEGMENTS ? 8 : SOFT_SGES_MAX,
		.max_cq = 1u << 16,
		.max_cqe = SOFT_CQ_DEPTH_MAX - 1,
		.max_mr = SOFT_MRS_MAX - SOFT_MR_FIRST,
		.max_pd = 1u << 16,
		.max_qp_rd_atom = SOFT_READS_MAX,
		.max_res_rd_atom = SOFT_READS_MAX * SOFT_QPS_MAX,
		.max_qp_init_rd_atom = SOFT_READS_MAX,
		.atomic_cap = IBV_ATOMIC_NONE,
		.max_ah = 1u << 16,
		.max_pkeys = 1,
		.local_ca_ack_delay = 16,
		.phys_port_cnt = 1,
	};
}

int uv_query_device(struct uv_context *context, struct uv_command *command)
{
	struct ib_uverbs_ex_query_device_resp core = {
		.response_length = sizeof(core),
		.timestamp_mask = UINT64_MAX,
		.hca_core_clock = 1000000,
	};
	struct mlx5_ib_query_device_resp uhw = {.response_length = sizeof(uhw)};

	base_attributes(context, &core.base);
	uv_answer(command->core_out, command->core_out_bytes, &core,
		command->extended ? sizeof(core) : sizeof(core.base));
	if (command->extended)
		uv_answer(command->uhw_out, command->uhw_out_bytes, &uhw, sizeof(uhw));
	return 0;
}

/* Returns the PortInfo LinkSpeedActive code of one lane, for a port of four lanes. */
static uint8_t speed_of(unsigned gbits)
{
	if (gbits >= 400)
		return 128;
	if (gbits >= 200)
		return 64;
	return gbits >= 100 ? 32 : 16;
}

int uv_query_port(struct uv_context *context, struct uv_command *command)
{
	const struct uv_device *device = context->device;
	const struct ib_uverbs_query_port *in = command->core_in;
	struct ib_uverbs_query_port_resp core = {
		/* PortInfo capability bit: the port uses IP based GIDs */
		.port_cap_flags = 1u << 26,
		.max_msg_sz = (uint32_t)SOFT_LENGTH_MAX,
		.gid_tbl_len = uv_gids(device),
		.pkey_tbl_len = 1,
		.lid = device->infiniband ? device->number : 0,
		.sm_lid = device->infiniband ? 1 : 0,
		.state = device->down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE,
		.max_mtu = IBV_MTU_4096,
		.active_mtu = device->odd & UV_ODD_MTU && device->index == 1 ? IBV_MTU_2048
									     : IBV_MTU_4096,
		.max_vl_num = 1,
		.active_width = 2, /* PortInfo code of four lanes (4x) */
		.active_speed = speed_of(device->gbits),
		.phys_state = device->down ? 3 : 5,
		.link_layer =
			device->infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET,
	};

	if (command->core_in_bytes < sizeof(*in) || in->port_num != 1)
		return EINVAL;
	uv_answer(command->core_out, command->core_out_bytes, &core, sizeof(core));
	return 0;
}

static struct uv_object *new_plain(struct uv_context *context, enum uv_kind kind)
{
	struct uv_object *object = calloc(1, sizeof(*object));

	if (object)
		uv_object_add(context, object, kind);
	return object;
}

int uv_alloc_pd(struct uv_context *context, struct uv_command *command)
{
	struct uv_object *pd = new_plain(context, UV_PD);
	struct ib_uverbs_alloc_pd_resp core;
	struct mlx5_ib_alloc_pd_resp uhw;

	if (!pd)
		return ENOMEM;
	core.pd_handle = pd->handle;
	uhw.pdn = pd->handle;
	uv_answer(command->core_out, command->core_out_bytes, &core, sizeof(core));
	uv_answer(command->uhw_out, command->uhw_out_bytes, &uhw, sizeof(uhw));
	return 0;
}

static bool pd_in_use(const struct uv_context *context, uint32_t pd)
{
	for (struct uv_object *object = context->objects; object; object = object->next)
		if ((object->kind == UV_QP && ((struct uv_qp *)object)->pd == pd) ||
			(object->kind == UV_MR && ((struct uv_mr *)object)->pd == pd))
			return true;
	return false;
}

int uv_dealloc_pd(struct uv_context *context, struct uv_command *command)
{
	const struct ib_uverbs_dealloc_pd *in = command->core_in;
	struct uv_object *pd;

	if (command->core_in_bytes < sizeof(*in))
		return EINVAL;
	pd = uv_object_find(context, in->pd_handle, UV_PD);
	if (!pd)
		return EINVAL;
	if (pd_in_use(context, pd->handle))
		return EBUSY;
	free_plain(pd);
	return 0;
}

/* The device has no datagrams, but programs create address handles to look up a peer's path. */
int uv_create_ah(struct uv_context *context, struct uv_command *command)
{
	struct uv_object *ah = new_plain(context, UV_AH);
	struct ib_uverbs_create_ah_resp core;
	struct {
		uint32_t response_length;
		uint8_t mac[6], reserved[6];
	} uhw = {.response_length = sizeof(uhw), .mac = {2}};

	if (!ah)
		return ENOMEM;
	core.ah_handle = ah->handle;
	uv_answer(command->core_out, command->core_out_bytes, &core, sizeof(core));
	uv_answer(command->uhw_out, command->uhw_out_bytes, &uhw, sizeof(uhw));
	return 0;
}

int uv_destroy_ah(struct uv_context *context, struct uv_command *command)
{
	const struct ib_uverbs_destroy_ah *in = command->core_in;
	struct uv_object *ah = command->core_in_bytes < sizeof(*in)
				       ? NULL
				       : uv_object_find(context, in->ah_handle, UV_AH);

	if (!ah)
		return EINVAL;
	free_plain(ah);
	return 0;
}
