/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of dv/setup.h without a NIC: see nic_stub.h. */
#include "tests/nic_stub.h"

#include <errno.h>

struct nic_stub nic_stub;

int dv_cq_create(struct dv_device *device, unsigned depth, struct dv_cq *ret_cq)
{
	(void)device;
	*ret_cq = (struct dv_cq){.buf = aligned_alloc(64, (size_t)depth * 64),
		.record = calloc(2, 4),
		.cqe_cnt = depth,
		.cqe_size = 64};
	memset(ret_cq->buf, 0, (size_t)depth * 64);
	for (unsigned i = 0; i < depth; i++)
		ret_cq->buf[i * 64 + 63] = MLX5_CQE_INVALID << 4;
	nic_stub.cq = ret_cq;
	nic_stub.cq_made = *ret_cq;
	nic_stub.cq_pi = 0;
	return 0;
}

void dv_cq_destroy(struct dv_device *device, struct dv_cq *cq)
{
	(void)device;
	free(cq->buf);
	free((void *)(uintptr_t)cq->record);
}

int dv_mr_register(struct dv_device *device, const struct dv_memory *memory, struct dv_mr *ret_mr)
{
	(void)device;
	if (nic_stub.mr_register)
		return nic_stub.mr_register(memory, ret_mr);
	*ret_mr = (struct dv_mr){.base = memory->base, .length = memory->length, .lkey = 1};
	return 0;
}

int dv_mr_deregister(struct dv_device *device, struct dv_mr *mr)
{
	(void)device;
	return nic_stub.mr_deregister ? nic_stub.mr_deregister(mr) : 0;
}

bool dv_mr_stale(const struct dv_device *device, const struct dv_mr *mr)
{
	(void)device;
	return nic_stub.mr_stale && nic_stub.mr_stale(mr);
}

int dv_lend(struct dv_device *device, int *ret_fd, uint32_t *ret_domain)
{
	(void)device;
	return nic_stub.lend ? nic_stub.lend(ret_fd, ret_domain) : -EOPNOTSUPP;
}

int dv_mr_import(struct dv_device *device, const struct dv_memory *memory, uint32_t handle,
	uint32_t lkey, struct dv_mr *ret_mr)
{
	(void)device;
	*ret_mr = (struct dv_mr){.base = memory->base, .length = memory->length, .lkey = lkey};
	return nic_stub.lend && handle ? 0 : -EPERM;
}

int dv_mr_sweep(struct dv_device *device)
{
	(void)device;
	__atomic_add_fetch(&nic_stub.sweeps, 1, __ATOMIC_SEQ_CST);
	return 0;
}

unsigned dv_step_all(struct dv_device *const *devices, unsigned count)
{
	return (void)devices, (void)count, 0;
}

bool dv_needs_step(const struct dv_device *device)
{
	return (void)device, false;
}

uint64_t dv_due_ns(const struct dv_device *device)
{
	return (void)device, UINT64_MAX;
}

int dv_event_fd(struct dv_device *device)
{
	return (void)device, -1;
}

int dv_event_next(struct dv_device *device, struct dv_event *ret_event)
{
	return (void)device, (void)ret_event, 0;
}

const char *dv_error(void)
{
	return "the NIC is full";
}

/* ---- test hooks ------------------------------------------------------------------------------ */

void dv_leave_out(struct dv_device *const *devices, unsigned count, uint64_t ns)
{
	(void)devices, (void)count, (void)ns;
}

int dv_test_fault(struct dv_device *device, const struct dv_test_fault *fault)
{
	return (void)device, (void)fault, -EOPNOTSUPP;
}
