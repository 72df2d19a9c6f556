/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements dv/setup.h: passes each call to the implementation that the device's name selects
 * (dv/ops.h). Has no state of its own; any thread, within the rules of dv/setup.h.
 */
#include <errno.h>
#include <string.h>

#include "config/text_fit.h"
#include "dv/ops.h"

/*
 * The implementation (struct dv_ops) of a device or QP; the pointer to it is the first member of
 * both structs.
 */
static const struct dv_ops *ops_of(const void *object)
{
	return *(const struct dv_ops *const *)object;
}

static bool is_soft(const char *name)
{
	return strcmp(name, "soft") == 0 || strncmp(name, "soft:", 5) == 0;
}

int dv_verbs_check(void)
{
	return dv_verbs() ? 0 : -ENODEV;
}

int dv_open(const struct dv_options *options, struct dv_device **ret_device)
{
	const struct dv_ops *ops;

	if (!options || !ret_device || !options->name || !options->name[0])
		return dv_fail(-EINVAL,
			"opening a NIC: no name given; see `ibv_devinfo -l`, or use \"soft\"");
	ops = is_soft(options->name) ? &dv_soft_ops : dv_verbs();
	if (!ops) {
		char why[DV_ERROR_BYTES];

		text_fit(why, sizeof(why), "%s", dv_error());
		return dv_fail(-ENODEV, "opening NIC %.32s: %s", options->name, why);
	}
	return ops->open(options, ret_device);
}

void dv_close(struct dv_device *device)
{
	if (device)
		ops_of(device)->close(device);
}

void dv_attributes(const struct dv_device *device, struct dv_attributes *ret)
{
	ops_of(device)->attributes(device, ret);
}

int dv_port_look(struct dv_device *device)
{
	return ops_of(device)->port_look(device);
}

unsigned dv_step(struct dv_device *device)
{
	return dv_step_all(&device, 1);
}

unsigned dv_step_all(struct dv_device *const *devices, unsigned count)
{
	const struct dv_ops *ops = ops_of(devices[0]);

	return ops->step_all ? ops->step_all(devices, count) : 0;
}

bool dv_needs_step(const struct dv_device *device)
{
	return ops_of(device)->step_all != NULL;
}

uint64_t dv_due_ns(const struct dv_device *device)
{
	const struct dv_ops *ops = ops_of(device);

	return ops->due_ns ? ops->due_ns(device) : UINT64_MAX;
}

int dv_mr_register(struct dv_device *device, const struct dv_memory *memory, struct dv_mr *ret_mr)
{
	return ops_of(device)->mr_register(device, memory, ret_mr);
}

int dv_mr_deregister(struct dv_device *device, struct dv_mr *mr)
{
	return ops_of(device)->mr_deregister(device, mr);
}

int dv_cq_create(struct dv_device *device, unsigned depth, struct dv_cq *ret_cq)
{
	return ops_of(device)->cq_create(device, depth, ret_cq);
}

void dv_cq_destroy(struct dv_device *device, struct dv_cq *cq)
{
	ops_of(device)->cq_destroy(device, cq);
}

int dv_qp_create(struct dv_device *device, struct dv_cq *cq, unsigned depth, struct dv_qp **ret_qp,
	struct dv_sq **ret_sq)
{
	return ops_of(device)->qp_create(device, cq, depth, ret_qp, ret_sq);
}

void dv_qp_address(const struct dv_qp *qp, struct dv_address *ret_address)
{
	ops_of(qp)->qp_address(qp, ret_address);
}

uint32_t dv_qp_number(const struct dv_qp *qp)
{
	struct dv_address address;

	dv_qp_address(qp, &address);
	return address.qpn;
}

int dv_qp_connect(struct dv_qp *qp, const struct dv_address *remote)
{
	return ops_of(qp)->qp_connect(qp, remote);
}

uint64_t dv_qp_ack_ns(const struct dv_qp *qp)
{
	return ops_of(qp)->qp_ack_ns(qp);
}

bool dv_qp_stale(const struct dv_qp *qp)
{
	const struct dv_ops *ops = ops_of(qp);

	return ops->qp_stale && ops->qp_stale(qp);
}

int dv_qp_error(struct dv_qp *qp)
{
	return ops_of(qp)->qp_error(qp);
}

int dv_qp_kill(struct dv_qp *qp)
{
	return ops_of(qp)->qp_kill(qp);
}

int dv_cut(struct dv_device *device)
{
	return ops_of(device)->cut(device);
}

int dv_reopen(struct dv_device *device)
{
	const struct dv_ops *ops = ops_of(device);

	return ops->reopen ? ops->reopen(device)
			   : dv_fail(-EOPNOTSUPP, "a software NIC that died does not come back");
}

bool dv_mr_stale(const struct dv_device *device, const struct dv_mr *mr)
{
	const struct dv_ops *ops = ops_of(device);

	return ops->mr_stale && ops->mr_stale(device, mr);
}

int dv_lend(struct dv_device *device, int *ret_fd, uint32_t *ret_domain)
{
	const struct dv_ops *ops = ops_of(device);

	return ops->lend ? ops->lend(device, ret_fd, ret_domain)
			 : dv_fail(-EOPNOTSUPP,
				   "a software NIC reaches only memory that is in a memfd");
}

int dv_mr_import(struct dv_device *device, const struct dv_memory *memory, uint32_t handle,
	uint32_t lkey, struct dv_mr *ret_mr)
{
	const struct dv_ops *ops = ops_of(device);

	return ops->mr_import ? ops->mr_import(device, memory, handle, lkey, ret_mr)
			      : dv_fail(-EOPNOTSUPP, "a software NIC imports no memory");
}

int dv_mr_sweep(struct dv_device *device)
{
	const struct dv_ops *ops = ops_of(device);

	return ops->mr_sweep ? ops->mr_sweep(device) : 0;
}

void dv_qp_destroy(struct dv_qp *qp)
{
	if (qp)
		ops_of(qp)->qp_destroy(qp);
}

int dv_event_fd(struct dv_device *device)
{
	return ops_of(device)->event_fd(device);
}

int dv_event_next(struct dv_device *device, struct dv_event *ret_event)
{
	return ops_of(device)->event_next(device, ret_event);
}
