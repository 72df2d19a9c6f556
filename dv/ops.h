/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands behind dv/setup.h: one table of functions per implementation, and the error text both
 * write. Included by dv/ only.
 *
 * Each implementation defines its own `struct dv_device` and `struct dv_qp`, private to its files;
 * both begin with `const struct dv_ops *ops`, which is all that dv/setup.c looks at.
 * dv/setup.c has checked that pointers are not NULL and that options->name is not empty; values are
 * the implementation's to check. A function that fails says why with dv_fail().
 */
#ifndef DV_OPS_H
#define DV_OPS_H

#include "dv/setup.h"

struct dv_ops {
	int (*open)(const struct dv_options *options, struct dv_device **ret_device);
	void (*close)(struct dv_device *device);
	void (*attributes)(const struct dv_device *device, struct dv_attributes *ret);
	/* Those of one implementation that need it; NULL: the hardware steps itself */
	unsigned (*step_all)(struct dv_device *const *devices, unsigned count);
	void (*leave_out)(struct dv_device *const *devices, unsigned count, uint64_t ns);
	bool (*needs_step)(const struct dv_device *device); /* NULL: never */
	uint64_t (*due_ns)(const struct dv_device *device); /* NULL: never */

	int (*mr_register)(struct dv_device *device, void *base, size_t length, unsigned access,
		int memfd, uint64_t memfd_offset, struct dv_mr *ret_mr);
	int (*mr_deregister)(struct dv_device *device, struct dv_mr *mr);

	int (*cq_create)(struct dv_device *device, unsigned depth, struct dv_cq *ret_cq);
	void (*cq_destroy)(struct dv_device *device, struct dv_cq *cq);

	int (*qp_create)(struct dv_device *device, struct dv_cq *cq, unsigned depth,
		struct dv_qp **ret_qp, struct dv_sq **ret_sq);
	void (*qp_address)(const struct dv_qp *qp, struct dv_address *ret_address);
	uint32_t (*qp_number)(const struct dv_qp *qp);
	int (*qp_connect)(struct dv_qp *qp, const struct dv_address *remote);
	uint64_t (*qp_ack_ns)(const struct dv_qp *qp);
	int (*qp_error)(struct dv_qp *qp);
	int (*qp_reset)(struct dv_qp *qp);
	int (*qp_kill)(struct dv_qp *qp);
	void (*qp_destroy)(struct dv_qp *qp);
	int (*cut)(struct dv_device *device);

	/* NULL, both: there are no events */
	int (*event_fd)(struct dv_device *device);
	int (*event_next)(struct dv_device *device, struct dv_event *ret_event);
	/* NULL: not a software NIC */
	int (*trouble)(struct dv_device *device, const struct dv_trouble *trouble);
};

/* dv/device.c and friends: libibverbs + mlx5dv. */
extern const struct dv_ops dv_verbs_ops;
/* dv/soft/: the software NIC. */
extern const struct dv_ops dv_soft_ops;

/*
 * Stores the text dv_error() returns in this thread and returns `error`, a negative errno. %m in
 * the format is the text of that error:
 *
 *   return dv_fail(-errno, "ibv_open_device(%s): %m. Is the port's driver loaded?", name);
 */
int dv_fail(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
