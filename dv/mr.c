/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory registrations on libibverbs: with the fewest access rights, and with an error text that
 * names the limit that was hit. Helper threads of the control plane call it, because registering
 * large memory takes seconds.
 */
#include <fcntl.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#include "dv/verbs.h"

/* handles are small numbers: the kernel gives the lowest one that is free */
#define HANDLES_MAX (1u << 20)
/* a domain of libmlx5 itself, made with the context, has a smaller handle than this */
#define HANDLES_OWN 1024u
/* dv_mr_sweep() looks at this number beyond the last in use: a device has fewer other objects */
#define HANDLES_SWEPT (1u << 14)
#define MIB (1024.0 * 1024.0)
#define ACCESS_ALL (DV_LOCAL_WRITE | DV_REMOTE_READ | DV_REMOTE_WRITE | DV_RELAXED_ORDERING)

static unsigned access_flags(unsigned access)
{
	unsigned flags = 0;

	if (access & DV_LOCAL_WRITE)
		flags |= IBV_ACCESS_LOCAL_WRITE;
	if (access & DV_REMOTE_READ)
		flags |= IBV_ACCESS_REMOTE_READ;
	if (access & DV_REMOTE_WRITE) /* verbs allows remote write only together with local write */
		flags |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
	if (access & DV_RELAXED_ORDERING)
		flags |= IBV_ACCESS_RELAXED_ORDERING;
	return flags;
}

/*
 * Writes the error text of a failed registration. The kernel returns ENOMEM for three different
 * causes; the text says which one is likely and what to do.
 */
static int explain(const struct dv_device *device, const void *base, size_t length, int error)
{
	const char *name = device->name;
	struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};

	switch (error) {
	case -ENOMEM:
		getrlimit(RLIMIT_MEMLOCK, &limit);
		if (limit.rlim_cur != RLIM_INFINITY)
			return dv_fail(error,
				"registering %.1f MiB on %s: %m; RLIMIT_MEMLOCK is %llu KiB. Raise it: ulimit -l unlimited; LimitMEMLOCK=infinity (systemd); --ulimit memlock=-1 (containers)",
				(double)length / MIB, name,
				(unsigned long long)limit.rlim_cur / 1024);
		return dv_fail(error,
			"registering %.1f MiB on %s: %m. Not RLIMIT_MEMLOCK: too little memory to pin, or the NIC is out of translation entries. Use huge pages or less memory",
			(double)length / MIB, name);
	case -EFAULT:
		return dv_fail(error,
			"registering %.1f MiB at %p on %s: %m. Part of it is not mapped, is read-only, or is a file that cannot be pinned",
			(double)length / MIB, base, name);
	default:
		return dv_fail(error, "registering %.1f MiB at %p on %s: %m", (double)length / MIB,
			base, name);
	}
}

/* ---- handles --------------------------------------------------------------------------------- */

/* Sets the bit of a handle. False: it is set already, or there is no memory for it. */
static bool handle_take(struct dv_device *device, uint32_t handle)
{
	uint32_t end = (handle / 4096 + 1) * 4096;
	uint8_t bit = (uint8_t)(1u << handle % 8), *grown;
	bool taken = false;

	if (handle >= HANDLES_MAX)
		return false;
	pthread_mutex_lock(&device->known_lock);
	if (end > device->known_end && (grown = realloc(device->known, end / 8))) {
		memset(grown + device->known_end / 8, 0, (end - device->known_end) / 8);
		device->known = grown;
		device->known_end = end;
	}
	if (end <= device->known_end && !(device->known[handle / 8] & bit)) {
		device->known[handle / 8] |= bit;
		taken = true;
	}
	pthread_mutex_unlock(&device->known_lock);
	return taken;
}

static bool handle_known(struct dv_device *device, uint32_t handle)
{
	bool known;

	pthread_mutex_lock(&device->known_lock);
	known = handle < device->known_end && device->known[handle / 8] & 1u << handle % 8;
	pthread_mutex_unlock(&device->known_lock);
	return known;
}

/* The first handle at which a search for those of other processes may end. */
static uint32_t handles_end(struct dv_device *device)
{
	uint32_t end;

	pthread_mutex_lock(&device->known_lock);
	end = device->known_end + HANDLES_SWEPT;
	pthread_mutex_unlock(&device->known_lock);
	return end;
}

static void handle_give(struct dv_device *device, uint32_t handle)
{
	pthread_mutex_lock(&device->known_lock);
	if (handle < device->known_end)
		device->known[handle / 8] &= (uint8_t) ~(1u << handle % 8);
	pthread_mutex_unlock(&device->known_lock);
}

void dv_verbs_mr_forget(struct dv_device *device)
{
	pthread_mutex_lock(&device->known_lock);
	if (device->known)
		memset(device->known, 0, device->known_end / 8);
	dv_hint_store(&device->lent, 0);
	dv_hint_store(&device->lent_once, 0);
	pthread_mutex_unlock(&device->known_lock);
}

/*
 * Deregisters an MR. Its handle is given back first: another registration may get it at once. If
 * the call fails, it is taken again.
 */
static int mr_end(struct dv_device *device, struct ibv_mr *mr)
{
	uint32_t handle = mr->handle;
	int rc;

	pthread_rwlock_rdlock(&device->mrs_lock);
	handle_give(device, handle);
	rc = dv_verbs_result(ibv_dereg_mr(mr));
	if (rc)
		(void)handle_take(device, handle);
	pthread_rwlock_unlock(&device->mrs_lock);
	return rc;
}

int dv_verbs_mr_register(
	struct dv_device *device, const struct dv_memory *memory, struct dv_mr *ret_mr)
{
	/* read before the gate: a registration during which the device is opened again is stale */
	uint32_t life = dv_hint_load(&device->life);
	struct ibv_mr *mr;
	void *base = memory->base;
	size_t length = memory->length;
	unsigned access = memory->access;
	int rc;

	/* memory->memfd and memfd_offset are unused here: only the software NIC needs them */
	if (!base || !length || access & ~(unsigned)ACCESS_ALL)
		return dv_fail(-EINVAL,
			"registering %zu bytes at %p with access 0x%x: invalid arguments", length,
			base, access);
	if (!dv_verbs_enter(
		    device)) { /* dv_cut() closed the device, so no NIC can access the memory */
		*ret_mr = (struct dv_mr){.base = base, .length = length, .life = life};
		return 0;
	}
	if (length > device->mr_bytes_max) {
		rc = dv_fail(-E2BIG,
			"registering %.1f MiB on %s: the device allows at most %.1f MiB in one registration (max_mr_size). Use a smaller pool",
			(double)length / MIB, device->name, (double)device->mr_bytes_max / MIB);
		dv_verbs_leave(device);
		return rc;
	}
	life = device->life;
	/* ibv_reg_mr_iova2() accepts optional access rights: if the kernel does not support relaxed
	 * ordering, libibverbs leaves it out instead of failing. */
	pthread_rwlock_rdlock(&device->mrs_lock);
	mr = ibv_reg_mr_iova2(device->pd, base, length, (uintptr_t)base, access_flags(access));
	rc = mr ? 0 : dv_verbs_errno(errno);
	if (mr && !handle_take(device, mr->handle)) {
		rc = -ENOMEM;
		(void)ibv_dereg_mr(mr);
	}
	pthread_rwlock_unlock(&device->mrs_lock);
	dv_verbs_leave(device);
	if (rc)
		return explain(device, base, length, rc);
	*ret_mr = (struct dv_mr){.base = base,
		.length = length,
		.lkey = mr->lkey,
		.rkey = mr->rkey,
		.life = life,
		.handle = mr};
	return 0;
}

bool dv_verbs_mr_stale(const struct dv_device *device, const struct dv_mr *mr)
{
	return mr->life != dv_hint_load(&device->life);
}

int dv_verbs_mr_deregister(struct dv_device *device, struct dv_mr *mr)
{
	int rc;

	/* After dv_cut() the MR is gone with the device. No rail has posted work that uses it. */
	if (!dv_verbs_enter(device)) {
		*mr = (struct dv_mr){0};
		return 0;
	}
	if (dv_verbs_mr_stale(device, mr)) {
		dv_verbs_leave(device);
		*mr = (struct dv_mr){0};
		return 0;
	}
	if (!mr->handle) {
		dv_verbs_leave(device);
		return dv_fail(
			-EINVAL, "deregistering memory on %s: it is not registered", device->name);
	}
	rc = mr_end(device, mr->handle);
	dv_verbs_leave(device);
	if (rc)
		return dv_fail(rc, "deregistering %.1f MiB at %p on %s: %m",
			(double)mr->length / MIB, mr->base, device->name);
	*mr = (struct dv_mr){0};
	return 0;
}

/* ---- registrations of other processes -------------------------------------------------------- */

/* Before other processes have the device: takes the handles of all domains that there are. */
static void domains_take(struct dv_device *device)
{
	for (uint32_t handle = 0; handle < HANDLES_OWN; handle++) {
		struct ibv_pd *pd = ibv_import_pd(device->context, handle);

		if (!pd)
			continue;
		ibv_unimport_pd(pd);
		(void)handle_take(device, handle);
	}
}

int dv_verbs_lend(struct dv_device *device, int *ret_fd, uint32_t *ret_domain)
{
	int fd, rc;

	if (!dv_verbs_enter(device))
		return dv_fail(-ENODEV, "there is no NIC %s here: see `rdma link` and dmesg",
			device->name);
	fd = fcntl(device->context->cmd_fd, F_DUPFD_CLOEXEC, 0);
	rc = fd < 0 ? -errno : 0;
	*ret_domain = device->pd->handle;
	if (!dv_hint_load(&device->lent_once))
		domains_take(device);
	dv_hint_store(&device->lent_once, 1);
	dv_hint_store(&device->lent, 1);
	dv_verbs_leave(device);
	if (rc)
		return dv_fail(rc, "lending %s: copying its descriptor: %m", device->name);
	*ret_fd = fd;
	return 0;
}

/*
 * The address by which the NIC knows the registration, which ibv_import_mr() does not tell; 0: the
 * kernel does not tell either.
 */
static uint64_t mr_address(const struct dv_device *device, uint32_t handle)
{
	uint64_t length, address = 0;
	uint32_t lkey, rkey;
	const struct ib_uverbs_attr attrs[] = {
		{.attr_id = UVERBS_ATTR_QUERY_MR_HANDLE, .data = handle},
		{UVERBS_ATTR_QUERY_MR_RESP_LKEY, sizeof(lkey), .data = (uintptr_t)&lkey},
		{UVERBS_ATTR_QUERY_MR_RESP_RKEY, sizeof(rkey), .data = (uintptr_t)&rkey},
		{UVERBS_ATTR_QUERY_MR_RESP_LENGTH, sizeof(length), .data = (uintptr_t)&length},
		{UVERBS_ATTR_QUERY_MR_RESP_IOVA, sizeof(address), .data = (uintptr_t)&address},
	};
	const unsigned count = sizeof(attrs) / sizeof(attrs[0]);
	alignas(8) uint8_t space[sizeof(struct ib_uverbs_ioctl_hdr) + sizeof(attrs)] = {0};
	struct ib_uverbs_ioctl_hdr *header = (void *)space;

	*header = (struct ib_uverbs_ioctl_hdr){.length = sizeof(space),
		.object_id = UVERBS_OBJECT_MR,
		.method_id = UVERBS_METHOD_QUERY_MR,
		.num_attrs = (uint16_t)count,
		.driver_id = RDMA_DRIVER_MLX5};
	memcpy(header->attrs, attrs, sizeof(attrs));
	for (unsigned i = 0; i < count; i++)
		header->attrs[i].flags = UVERBS_ATTR_F_MANDATORY;
	return ioctl(device->context->cmd_fd, RDMA_VERBS_IOCTL, header) ? 0 : address;
}

/*
 * Whether there are domains that other processes have made: a registration does not tell its own,
 * and the queue pairs of this device would break on it. `end`: also frees those without any.
 */
static bool domains_of_others(struct dv_device *device, bool end)
{
	uint32_t handles = handles_end(device);
	bool found = false;

	for (uint32_t handle = 0; handle < handles; handle++) {
		struct ibv_pd *pd = handle_known(device, handle)
					    ? NULL
					    : ibv_import_pd(device->context, handle);

		if (!pd)
			continue;
		found = true;
		if (!end || ibv_dealloc_pd(pd))
			ibv_unimport_pd(pd);
	}
	return found;
}

/* -EAGAIN: they are freed by the next dv_mr_sweep(). Looks once after each loan. */
static int domains_check(struct dv_device *device)
{
	bool found = false;

	pthread_mutex_lock(&device->domains_lock);
	if (dv_hint_load(&device->lent)) {
		dv_hint_store(&device->lent, 0);
		found = domains_of_others(device, false);
		if (found)
			dv_hint_store(&device->lent, 1);
	}
	pthread_mutex_unlock(&device->domains_lock);
	return found ? dv_fail(-EAGAIN, "a process has made a domain on %s: its memory is refused",
			       device->name)
		     : 0;
}

/* Under mrs_lock; the caller has taken the handle. */
static int mr_import(struct dv_device *device, const struct dv_memory *memory, uint32_t handle,
	uint32_t lkey, struct ibv_mr **ret_mr)
{
	struct ibv_mr *mr = ibv_import_mr(device->pd, handle);
	uint64_t address = mr ? mr_address(device, handle) : 0;

	if (!mr)
		return dv_fail(dv_verbs_errno(errno),
			"ibv_import_mr(%s, %u): %m: it was deregistered", device->name, handle);
	if (mr->lkey != lkey || mr->length != memory->length ||
		(address && address != (uintptr_t)memory->base)) {
		ibv_unimport_mr(mr);
		return dv_fail(-EPERM,
			"registration %u on %s has another key, length or address than was named",
			handle, device->name);
	}
	*ret_mr = mr;
	return 0;
}

int dv_verbs_mr_import(struct dv_device *device, const struct dv_memory *memory, uint32_t handle,
	uint32_t lkey, struct dv_mr *ret_mr)
{
	uint32_t life = dv_hint_load(&device->life);
	struct ibv_mr *mr = NULL;
	int rc;

	if (!dv_verbs_enter(device)) { /* as in dv_verbs_mr_register() */
		*ret_mr = (struct dv_mr){
			.base = memory->base, .length = memory->length, .life = life};
		return 0;
	}
	life = device->life;
	pthread_rwlock_rdlock(&device->mrs_lock);
	if (!handle_take(device, handle)) {
		rc = dv_fail(-EPERM, "registration %u on %s is not one of the process", handle,
			device->name);
	} else {
		rc = domains_check(device);
		if (rc == 0)
			rc = mr_import(device, memory, handle, lkey, &mr);
		if (rc)
			handle_give(device, handle);
	}
	pthread_rwlock_unlock(&device->mrs_lock);
	dv_verbs_leave(device);
	if (rc == 0)
		*ret_mr = (struct dv_mr){.base = memory->base,
			.length = memory->length,
			.lkey = mr->lkey,
			.rkey = mr->rkey,
			.life = life,
			.handle = mr};
	return rc;
}

int dv_verbs_mr_sweep(struct dv_device *device)
{
	uint32_t end;
	int found = 0;

	if (!dv_verbs_enter(device))
		return 0;
	pthread_rwlock_wrlock(&device->mrs_lock);
	end = handles_end(device);
	for (uint32_t handle = 0; handle < end; handle++) {
		struct ibv_mr *mr;

		if (handle_known(device, handle))
			continue;
		mr = ibv_import_mr(device->pd, handle);
		if (mr && ibv_dereg_mr(mr) == 0) {
			found++;
			end = handle + HANDLES_SWEPT > end ? handle + HANDLES_SWEPT : end;
		}
	}
	(void)domains_of_others(device, true);
	pthread_rwlock_unlock(&device->mrs_lock);
	dv_verbs_leave(device);
	return found;
}
