/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Maps one ioctl(RDMA_VERBS_IOCTL) to one command. libibverbs tries an ioctl method for everything
 * and falls back to INVOKE_WRITE, which carries a legacy write(2) command in attributes: that one
 * method covers nearly all of verbs. Only mlx5's doorbell pages have no write(2) command. Run by
 * program threads; uv_lock is held while a command runs.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "tests/connectx/uverbs.h"
#include <rdma/mlx5_user_ioctl_cmds.h>

typedef int (*uv_function)(struct uv_context *context, struct uv_command *command);

static const uv_function commands[] = {
	[IB_USER_VERBS_CMD_GET_CONTEXT] = uv_get_context,
	[IB_USER_VERBS_CMD_QUERY_DEVICE] = uv_query_device,
	[IB_USER_VERBS_CMD_QUERY_PORT] = uv_query_port,
	[IB_USER_VERBS_CMD_ALLOC_PD] = uv_alloc_pd,
	[IB_USER_VERBS_CMD_DEALLOC_PD] = uv_dealloc_pd,
	[IB_USER_VERBS_CMD_CREATE_AH] = uv_create_ah,
	[IB_USER_VERBS_CMD_DESTROY_AH] = uv_destroy_ah,
	[IB_USER_VERBS_CMD_REG_MR] = uv_reg_mr,
	[IB_USER_VERBS_CMD_DEREG_MR] = uv_dereg_mr,
	[IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL] = uv_create_channel,
	[IB_USER_VERBS_CMD_CREATE_CQ] = uv_create_cq,
	[IB_USER_VERBS_CMD_DESTROY_CQ] = uv_destroy_cq,
	[IB_USER_VERBS_CMD_CREATE_QP] = uv_create_qp,
	[IB_USER_VERBS_CMD_QUERY_QP] = uv_query_qp,
	[IB_USER_VERBS_CMD_MODIFY_QP] = uv_modify_qp,
	[IB_USER_VERBS_CMD_DESTROY_QP] = uv_destroy_qp,
};

void uv_answer(void *out, size_t out_bytes, const void *from, size_t bytes)
{
	if (out)
		memcpy(out, from, bytes < out_bytes ? bytes : out_bytes);
}

static struct ib_uverbs_attr *find(struct ib_uverbs_ioctl_hdr *header, uint16_t id)
{
	for (unsigned i = 0; i < header->num_attrs; i++)
		if (header->attrs[i].attr_id == id)
			return &header->attrs[i];
	return NULL;
}

/*
 * Returns the value of an ioctl's IN attribute; a value up to 8 bytes is in the attribute itself.
 */
static const void *in(struct ib_uverbs_ioctl_hdr *header, uint16_t id, size_t *ret_bytes)
{
	struct ib_uverbs_attr *attr = find(header, id);

	*ret_bytes = attr ? attr->len : 0;
	if (!attr || !attr->len)
		return NULL;
	return attr->len <= sizeof(attr->data) ? (void *)&attr->data
					       : (void *)(uintptr_t)attr->data;
}

static void *out(struct ib_uverbs_ioctl_hdr *header, uint16_t id, size_t *ret_bytes)
{
	struct ib_uverbs_attr *attr = find(header, id);

	*ret_bytes = attr ? attr->len : 0;
	return attr && attr->len ? (void *)(uintptr_t)attr->data : NULL;
}

/*
 * The probe for this method carries only the command and expects ENOSPC: after EPROTONOSUPPORT,
 * libibverbs would use write(2) on the descriptor.
 */
static int invoke_write(struct uv_context *context, struct ib_uverbs_ioctl_hdr *header)
{
	struct uv_command command = {0};
	size_t bytes;
	const void *at = in(header, UVERBS_ATTR_WRITE_CMD, &bytes);
	uint32_t number = 0;

	if (!at || bytes > sizeof(uint64_t))
		return EINVAL;
	memcpy(&number, at, bytes < sizeof(number) ? bytes : sizeof(number));
	if (header->num_attrs == 1)
		return ENOSPC;
	command.extended = number & IB_USER_VERBS_CMD_FLAG_EXTENDED;
	number &= IB_USER_VERBS_CMD_COMMAND_MASK;
	if (number >= sizeof(commands) / sizeof(commands[0]) || !commands[number])
		return EOPNOTSUPP;
	command.core_in = in(header, UVERBS_ATTR_CORE_IN, &command.core_in_bytes);
	command.core_out = out(header, UVERBS_ATTR_CORE_OUT, &command.core_out_bytes);
	command.uhw_in = in(header, UVERBS_ATTR_UHW_IN, &command.uhw_in_bytes);
	command.uhw_out = out(header, UVERBS_ATTR_UHW_OUT, &command.uhw_out_bytes);
	return commands[number](context, &command);
}

static void put(struct ib_uverbs_ioctl_hdr *header, uint16_t id, const void *from, size_t bytes)
{
	size_t room;
	void *at = out(header, id, &room);

	uv_answer(at, room, from, bytes);
}

/*
 * Creates and destroys doorbell pages (dynamic UARs), one object each; the program maps a page at
 * the returned offset.
 */
static int uar_method(struct uv_context *context, struct ib_uverbs_ioctl_hdr *header)
{
	struct ib_uverbs_attr *attr;
	struct uv_uar *uar;
	uint64_t offset;
	uint32_t length = SOFT_UAR_BYTES, page;
	int rc;

	if (header->method_id == MLX5_IB_METHOD_UAR_OBJ_DESTROY) {
		attr = find(header, MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE);
		uar = attr ? (void *)uv_object_find(context, (uint32_t)attr->data, UV_UAR) : NULL;
		if (!uar)
			return EINVAL;
		uv_uar_free(uar);
		return 0;
	}
	if (header->method_id != MLX5_IB_METHOD_UAR_OBJ_ALLOC)
		return EPROTONOSUPPORT;
	attr = find(header, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE);
	rc = attr ? uv_uar_alloc(context, &uar) : EINVAL;
	if (rc)
		return rc;
	attr->data = uar->object.handle;
	page = uar->page;
	offset = (uint64_t)page * SOFT_UAR_BYTES;
	put(header, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, &offset, sizeof(offset));
	put(header, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, &length, sizeof(length));
	put(header, MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, &page, sizeof(page));
	return 0;
}

/*
 * The GID table as it is now. Of a port of InfiniBand the kernel knows only the type "IB".
 */
static int gid_table(struct uv_context *context, struct ib_uverbs_ioctl_hdr *header)
{
	const struct uv_device *device = context->device;
	struct ib_uverbs_gid_entry entries[UV_GIDS_MAX] = {0};
	uint64_t count = uv_gids(device);

	for (unsigned i = 0; i < count; i++) {
		uint8_t gid[16];

		uv_gid(device, i, gid);
		memcpy(entries[i].gid, gid, sizeof(gid));
		entries[i].gid_index = i;
		entries[i].port_num = 1;
		entries[i].gid_type = device->infiniband ? IBV_GID_TYPE_IB
				      : i % 2            ? IBV_GID_TYPE_ROCE_V2
							 : IBV_GID_TYPE_ROCE_V1;
	}
	put(header, UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, entries, count * sizeof(*entries));
	put(header, UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, &count, sizeof(count));
	return 0;
}

/* ---- import ---------------------------------------------------------------------------------- */

static int query_context(struct uv_context *context, struct ib_uverbs_ioctl_hdr *header)
{
	struct mlx5_ib_alloc_ucontext_resp uhw = uv_context_attributes(context->device);
	uint64_t core_support = 0;
	uint32_t vectors = 1;

	put(header, UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, &vectors, sizeof(vectors));
	put(header, UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, &core_support, sizeof(core_support));
	put(header, MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX, &uhw, sizeof(uhw));
	return 0;
}

/* The object of this kind that an attribute names; NULL: none. */
static struct uv_object *named(struct uv_context *context, struct ib_uverbs_ioctl_hdr *header,
	uint16_t id, enum uv_kind kind)
{
	const struct ib_uverbs_attr *attr = find(header, id);

	return attr ? uv_object_find(context, (uint32_t)attr->data, kind) : NULL;
}

static int query_pd(struct uv_context *context, struct ib_uverbs_ioctl_hdr *header)
{
	struct uv_object *pd = named(context, header, MLX5_IB_ATTR_QUERY_PD_HANDLE, UV_PD);

	if (!pd)
		return ENOENT;
	put(header, MLX5_IB_ATTR_QUERY_PD_RESP_PDN, &pd->handle, sizeof(pd->handle));
	return 0;
}

static int query_mr(struct uv_context *context, struct ib_uverbs_ioctl_hdr *header)
{
	struct uv_mr *mr = (void *)named(context, header, UVERBS_ATTR_QUERY_MR_HANDLE, UV_MR);
	uint64_t length, address;

	if (!mr)
		return ENOENT;
	length = mr->mr.length;
	address = (uintptr_t)mr->mr.base;
	put(header, UVERBS_ATTR_QUERY_MR_RESP_LKEY, &mr->mr.lkey, sizeof(mr->mr.lkey));
	put(header, UVERBS_ATTR_QUERY_MR_RESP_RKEY, &mr->mr.rkey, sizeof(mr->mr.rkey));
	put(header, UVERBS_ATTR_QUERY_MR_RESP_LENGTH, &length, sizeof(length));
	put(header, UVERBS_ATTR_QUERY_MR_RESP_IOVA, &address, sizeof(address));
	return 0;
}

/* The number in an attribute; 0: the attribute is missing. */
static uint64_t number(struct ib_uverbs_ioctl_hdr *header, uint16_t id)
{
	const struct ib_uverbs_attr *attr = find(header, id);

	return attr ? attr->data : 0;
}

static int reg_dmabuf_mr(struct uv_context *context, struct ib_uverbs_ioctl_hdr *header)
{
	struct ib_uverbs_attr *handle = find(header, UVERBS_ATTR_REG_DMABUF_MR_HANDLE);
	struct ib_uverbs_reg_mr in = {.start = number(header, UVERBS_ATTR_REG_DMABUF_MR_IOVA),
		.hca_va = number(header, UVERBS_ATTR_REG_DMABUF_MR_IOVA),
		.length = number(header, UVERBS_ATTR_REG_DMABUF_MR_LENGTH),
		.pd_handle = (uint32_t)number(header, UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE),
		.access_flags = (uint32_t)number(header, UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS)};
	struct uv_mr *mr;
	int rc;

	if (!handle || !find(header, UVERBS_ATTR_REG_DMABUF_MR_FD))
		return EINVAL;
	rc = uv_reg_dmabuf_mr(context, &in, (int)number(header, UVERBS_ATTR_REG_DMABUF_MR_FD),
		number(header, UVERBS_ATTR_REG_DMABUF_MR_OFFSET), &mr);
	if (rc)
		return rc;
	handle->data = mr->object.handle;
	put(header, UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, &mr->mr.lkey, sizeof(mr->mr.lkey));
	put(header, UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, &mr->mr.rkey, sizeof(mr->mr.rkey));
	return 0;
}

/* An imported context gets no events: they go to the context that was opened. */
int uv_events_open(struct ib_uverbs_ioctl_hdr *header)
{
	struct ib_uverbs_attr *attr = find(header, UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE);
	int fd = attr ? eventfd(0, EFD_CLOEXEC) : -1;

	if (fd < 0)
		return attr ? errno : EINVAL;
	attr->data = (uint64_t)fd;
	return 0;
}

int uv_ioctl(struct uv_context *context, struct ib_uverbs_ioctl_hdr *header, int memory)
{
	int rc;

	pthread_mutex_lock(&uv_lock);
	context->memory = memory;
	if (uv_context_dead(context))
		rc = EIO;
	else if (header->object_id == UVERBS_OBJECT_DEVICE &&
		 header->method_id == UVERBS_METHOD_INVOKE_WRITE)
		rc = invoke_write(context, header);
	else if (header->object_id == UVERBS_OBJECT_DEVICE &&
		 header->method_id == UVERBS_METHOD_QUERY_GID_TABLE)
		rc = gid_table(context, header);
	else if (header->object_id == UVERBS_OBJECT_DEVICE &&
		 header->method_id == UVERBS_METHOD_QUERY_CONTEXT)
		rc = query_context(context, header);
	else if (header->object_id == UVERBS_OBJECT_PD &&
		 header->method_id == MLX5_IB_METHOD_PD_QUERY)
		rc = query_pd(context, header);
	else if (header->object_id == UVERBS_OBJECT_MR &&
		 header->method_id == UVERBS_METHOD_QUERY_MR)
		rc = query_mr(context, header);
	else if (header->object_id == UVERBS_OBJECT_MR &&
		 header->method_id == UVERBS_METHOD_REG_DMABUF_MR)
		rc = reg_dmabuf_mr(context, header);
	else if (header->object_id == UVERBS_OBJECT_ASYNC_EVENT)
		rc = uv_events_open(header);
	else if (header->object_id == MLX5_IB_OBJECT_UAR)
		rc = uar_method(context, header);
	else
		/* tells libibverbs that ioctls work but this method does not exist */
		rc = EPROTONOSUPPORT;
	pthread_mutex_unlock(&uv_lock);
	return rc < 0 ? -rc : rc;
}

/* ---- handles --------------------------------------------------------------------------------- */

struct uv_object *uv_object_find(struct uv_context *context, uint32_t handle, enum uv_kind kind)
{
	for (struct uv_object *object = context->objects; object; object = object->next)
		if (object->handle == handle && object->kind == kind)
			return object;
	return NULL;
}

void uv_object_add(struct uv_context *context, struct uv_object *object, enum uv_kind kind)
{
	object->kind = kind;
	object->handle = ++context->handle_last;
	object->context = context;
	object->next = context->objects;
	context->objects = object;
}

void uv_object_remove(struct uv_object *object)
{
	struct uv_object **at = &object->context->objects;

	while (*at && *at != object)
		at = &(*at)->next;
	if (*at)
		*at = object->next;
}
