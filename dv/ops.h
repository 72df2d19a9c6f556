/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between dv/setup.c and the two implementations of a NIC: a table of functions for
 * each, and dv_fail(), which stores the error text. Included by dv/ only; threads as in dv/setup.h.
 *
 * Each implementation defines its own `struct dv_device` and `struct dv_qp`, private to its files;
 * both begin with `const struct dv_ops *ops`, the only member that dv/setup.c reads. dv/setup.c
 * checks that the pointers given to dv_open() are not NULL and that options->name is not empty; the
 * implementation checks all other values. A function that fails stores the reason with dv_fail().
 */
#ifndef DV_OPS_H
#define DV_OPS_H

#include "dv/setup.h"

struct dv_ops {
	int (*open)(const struct dv_options *options, struct dv_device **ret_device);
	void (*close)(struct dv_device *device);
	void (*attributes)(const struct dv_device *device, struct dv_attributes *ret);
	int (*port_look)(struct dv_device *device);
	/* Functions of the software NIC only; NULL for hardware, which executes WQEs by itself. */
	unsigned (*step_all)(struct dv_device *const *devices, unsigned count);
	uint64_t (*due_ns)(const struct dv_device *device);
	/* Hardware only; NULL for the software NIC, whose queue pairs keep their address. */
	bool (*qp_stale)(const struct dv_qp *qp);

	int (*mr_register)(
		struct dv_device *device, const struct dv_memory *memory, struct dv_mr *ret_mr);
	int (*mr_deregister)(struct dv_device *device, struct dv_mr *mr);

	int (*cq_create)(struct dv_device *device, unsigned depth, struct dv_cq *ret_cq);
	void (*cq_destroy)(struct dv_device *device, struct dv_cq *cq);

	int (*qp_create)(struct dv_device *device, struct dv_cq *cq, unsigned depth,
		struct dv_qp **ret_qp, struct dv_sq **ret_sq);
	void (*qp_address)(const struct dv_qp *qp, struct dv_address *ret_address);
	int (*qp_connect)(struct dv_qp *qp, const struct dv_address *remote);
	uint64_t (*qp_ack_ns)(const struct dv_qp *qp);
	int (*qp_error)(struct dv_qp *qp);
	int (*qp_kill)(struct dv_qp *qp);
	void (*qp_destroy)(struct dv_qp *qp);
	int (*cut)(struct dv_device *device);
	/* Hardware only; NULL for the software NIC, which has one life. */
	int (*reopen)(struct dv_device *device);
	bool (*mr_stale)(const struct dv_device *device, const struct dv_mr *mr);
	int (*lend)(struct dv_device *device, int *ret_fd, uint32_t *ret_domain);
	int (*mr_import)(struct dv_device *device, const struct dv_memory *memory, uint32_t handle,
		uint32_t lkey, struct dv_mr *ret_mr);
	int (*mr_sweep)(struct dv_device *device);

	int (*event_fd)(struct dv_device *device);
	int (*event_next)(struct dv_device *device, struct dv_event *ret_event);
};

/* ConnectX through libibverbs and mlx5dv: dv/device.c. Only in the verbs module: dv_verbs(). */
extern const struct dv_ops dv_verbs_ops;
/* dv_verbs_ops, from the module that the first call loads. NULL: dv_error() says why. */
const struct dv_ops *dv_verbs(void);
/* The software NIC, implemented in dv/soft/. */
extern const struct dv_ops dv_soft_ops;

#define DV_ERROR_BYTES 320 /* of the text, with its zero byte; more is cut */

/*
 * Stores the text that dv_error() returns to the calling thread, and returns `error`, a negative
 * errno. %m in the format prints that errno:
 *
 *   return dv_fail(-errno, "ibv_open_device(%s): %m. Is the port's driver loaded?", name);
 */
__attribute__((format(printf, 2, 3), visibility("default"))) int dv_fail(
	int error, const char *format, ...);

#endif
