/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory registrations on libibverbs: with the fewest access rights, and with an error text that
 * names the limit that was hit. Helper threads of the control plane call it, because registering
 * large memory takes seconds.
 */
#include <stdlib.h>
#include <sys/resource.h>

#include "dv/verbs.h"

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
	mr = ibv_reg_mr_iova2(device->pd, base, length, (uintptr_t)base, access_flags(access));
	rc = mr ? 0 : dv_verbs_errno(errno);
	dv_verbs_leave(device);
	if (!mr)
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
	rc = dv_verbs_result(ibv_dereg_mr(mr->handle));
	dv_verbs_leave(device);
	if (rc)
		return dv_fail(rc, "deregistering %.1f MiB at %p on %s: %m",
			(double)mr->length / MIB, mr->base, device->name);
	*mr = (struct dv_mr){0};
	return 0;
}
