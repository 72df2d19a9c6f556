/* SPDX-License-Identifier: Apache-2.0 */
/*
 * REG_MR, REG_DMABUF_MR and DEREG_MR: memory that is registered with the software NIC by address.
 * Refuses what a kernel refuses: the device's limits, RLIMIT_MEMLOCK, unmapped memory, access flags
 * that contradict each other. Run by program threads, under uv_lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/connectx/uverbs.h"

#define PAGE 4096ull

/*
 * Access bits that are accepted; a device may ignore the optional ones, such as relaxed ordering.
 */
#define ACCESS_KNOWN                                                                               \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |               \
		(unsigned)IBV_ACCESS_OPTIONAL_RANGE)

static int access_of(uint32_t flags, unsigned *ret_access)
{
	bool local = flags & IBV_ACCESS_LOCAL_WRITE;

	if (flags & ~ACCESS_KNOWN)
		return EOPNOTSUPP;
	if (flags & IBV_ACCESS_REMOTE_WRITE && !local)
		return EINVAL;
	*ret_access = (local ? DV_LOCAL_WRITE : 0u) |
		      (flags & IBV_ACCESS_REMOTE_READ ? DV_REMOTE_READ : 0u) |
		      (flags & IBV_ACCESS_REMOTE_WRITE ? DV_REMOTE_WRITE : 0u);
	return 0;
}

static bool may_lock_anything(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}};

	return syscall(SYS_capget, &header, data) == 0 &&
	       (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK));
}

/*
 * Checks RLIMIT_MEMLOCK: pinned memory counts in whole pages, and overlapping regions count twice.
 */
static int lock_check(const struct uv_context *context, uint64_t bytes)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY ||
		may_lock_anything())
		return 0;
	return context->locked + bytes > limit.rlim_cur ? ENOMEM : 0;
}

/* Is the whole range mapped? mincore() returns ENOMEM if a part of it is not. */
static bool mapped(uint64_t first, uint64_t bytes)
{
	uint64_t pages = bytes / PAGE, at = 0;
	uint8_t vector[4096];

	for (; at < pages; at += sizeof(vector)) {
		uint64_t n = pages - at < sizeof(vector) ? pages - at : sizeof(vector);

		if (mincore((void *)(uintptr_t)(first + at * PAGE), n * PAGE, vector))
			return false;
	}
	return true;
}

/*
 * Registers the range of an MR. Memory in a file that peers can map is registered with its memfd.
 */
static int register_bytes(struct uv_context *context, const struct ib_uverbs_reg_mr *in,
	unsigned access, struct dv_mr *ret_mr)
{
	uint64_t offset = 0;
	int rc, file = -1;

	if (context->device->maps && access & (DV_REMOTE_READ | DV_REMOTE_WRITE))
		file = uv_shared_open(in->start, in->length, &offset);
	rc = soft_mr_register(context->device->nic,
		&(struct dv_memory){.base = (void *)(uintptr_t)in->start,
			.length = in->length,
			.access = access,
			.memfd = file,
			.memfd_offset = file < 0 ? 0 : offset},
		ret_mr);
	if (file >= 0)
		close(file);
	return rc;
}

/* What a kernel checks of the memory of the calling process. *ret_bytes: what is pinned. */
static int own_memory_check(
	const struct uv_context *context, const struct ib_uverbs_reg_mr *in, uint64_t *ret_bytes)
{
	uint64_t first = in->start / PAGE * PAGE;

	*ret_bytes = (in->start + in->length - first + PAGE - 1) / PAGE * PAGE;
	if (lock_check(context, *ret_bytes))
		return ENOMEM;
	return mapped(first, *ret_bytes) ? 0 : EFAULT;
}

int uv_reg_mr_check(struct ib_uverbs_ioctl_hdr *header)
{
	static const struct uv_context none; /* what other registrations pinned is not counted */
	const struct ib_uverbs_reg_mr *in = NULL;
	uint64_t command = 0, bytes;

	for (unsigned i = 0; i < header->num_attrs; i++) {
		const struct ib_uverbs_attr *attr = &header->attrs[i];

		if (attr->attr_id == UVERBS_ATTR_WRITE_CMD)
			command = attr->data;
		else if (attr->attr_id == UVERBS_ATTR_CORE_IN && attr->len >= sizeof(*in))
			in = (void *)(uintptr_t)attr->data;
	}
	if (header->object_id != UVERBS_OBJECT_DEVICE ||
		header->method_id != UVERBS_METHOD_INVOKE_WRITE ||
		command != IB_USER_VERBS_CMD_REG_MR || !in)
		return 0;
	return own_memory_check(&none, in, &bytes);
}

/*
 * The region of memory of another process, or of a dma-buf, has no rights for peers: they look for
 * it in this one.
 */
static int reg_mr_check(struct uv_context *context, const struct ib_uverbs_reg_mr *in, bool dmabuf,
	unsigned *ret_access, uint64_t *ret_bytes)
{
	int rc;

	if (!in->length || in->length > context->device->mr_bytes_max ||
		in->start + in->length < in->start ||
		!uv_object_find(context, in->pd_handle, UV_PD))
		return EINVAL;
	if (in->hca_va != in->start)
		/* the device knows an MR only by the program's address and supports no other
		 * iova */
		return EOPNOTSUPP;
	rc = access_of(in->access_flags, ret_access);
	if (rc || (context->memory < 0 && !dmabuf))
		return rc ? rc : own_memory_check(context, in, ret_bytes);
	return *ret_access & (DV_REMOTE_READ | DV_REMOTE_WRITE) ? EOPNOTSUPP : 0;
}

/* Takes ownership of `mr`. */
static int mr_register(
	struct uv_context *context, const struct ib_uverbs_reg_mr *in, struct uv_mr *mr)
{
	uint64_t bytes = 0;
	unsigned access;
	int rc = reg_mr_check(context, in, mr->map, &access, &bytes);

	mr->memory = -1;
	if (rc) {
		free(mr);
		return rc;
	}
	if (context->memory >= 0)
		mr->memory = fcntl(context->memory, F_DUPFD_CLOEXEC, 3);
	rc = context->memory >= 0 && mr->memory < 0 ? EMFILE
						    : register_bytes(context, in, access, &mr->mr);
	if (rc) {
		if (mr->memory >= 0)
			close(mr->memory);
		free(mr);
		return rc;
	}
	mr->pd = in->pd_handle;
	mr->locked = bytes;
	context->locked += bytes;
	uv_object_add(context, &mr->object, UV_MR);
	soft_lock(context->device->nic);
	((struct soft_mr *)mr->mr.handle)->foreign = mr;
	soft_unlock(context->device->nic);
	return 0;
}

int uv_reg_mr(struct uv_context *context, struct uv_command *command)
{
	struct ib_uverbs_reg_mr_resp core;
	struct uv_mr *mr = calloc(1, sizeof(*mr));
	int rc;

	if (!mr)
		return ENOMEM;
	if (command->core_in_bytes < sizeof(struct ib_uverbs_reg_mr)) {
		free(mr);
		return EINVAL;
	}
	rc = mr_register(context, command->core_in, mr);
	if (rc)
		return rc;
	core = (struct ib_uverbs_reg_mr_resp){
		.mr_handle = mr->object.handle, .lkey = mr->mr.lkey, .rkey = mr->mr.rkey};
	uv_answer(command->core_out, command->core_out_bytes, &core, sizeof(core));
	return 0;
}

int uv_reg_dmabuf_mr(struct uv_context *context, const struct ib_uverbs_reg_mr *in, int fd,
	uint64_t offset, struct uv_mr **ret_mr)
{
	uint64_t skip = offset % PAGE;
	struct uv_mr *mr;
	struct stat st;
	void *map;
	int rc;

	if (in->start % PAGE != skip || !in->length || fstat(fd, &st) ||
		offset + in->length < offset || offset + in->length > (uint64_t)st.st_size)
		return EINVAL;
	map = mmap(NULL, skip + in->length, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		(off_t)(offset - skip));
	if (map == MAP_FAILED)
		return errno;
	mr = calloc(1, sizeof(*mr));
	if (mr)
		*mr = (struct uv_mr){.map = map, .map_bytes = skip + in->length, .map_skip = skip};
	rc = mr ? mr_register(context, in, mr) : ENOMEM;
	if (rc)
		munmap(map, skip + in->length);
	else
		*ret_mr = mr;
	return rc;
}

bool uv_mr_of(const struct dv_qp *qp, uint32_t key, const struct uv_mr **ret_mr)
{
	const struct uv_mr *mr = qp->nic->mrs[(key >> 8) % SOFT_MRS_MAX].foreign;
	const struct uv_qp *uq = qp->foreign;

	*ret_mr = mr;
	return mr && mr->object.context == uq->object.context && mr->pd == uq->pd;
}

void uv_mr_free(struct uv_object *object)
{
	struct uv_mr *mr = (void *)object;

	soft_mr_deregister(object->context->device->nic, &mr->mr);
	if (mr->memory >= 0)
		close(mr->memory);
	if (mr->map)
		munmap(mr->map, mr->map_bytes);
	object->context->locked -= mr->locked;
	uv_object_remove(object);
	free(mr);
}

int uv_dereg_mr(struct uv_context *context, struct uv_command *command)
{
	const struct ib_uverbs_dereg_mr *in = command->core_in;
	struct uv_object *object = command->core_in_bytes < sizeof(*in)
					   ? NULL
					   : uv_object_find(context, in->mr_handle, UV_MR);

	if (!object)
		return EINVAL;
	uv_mr_free(object);
	return 0;
}
