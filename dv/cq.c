/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion queues on mlx5dv. libmlx5 creates them; the poll core reads the CQEs without libmlx5.
 * Control plane. dv_cq.handle is the ibv_cq.
 */
#include "config/log.h"
#include "dv/verbs.h"

/*
 * Creates a CQ with 64-byte CQEs, no compression and no completion channel (the poll core polls).
 * attr.cqe is `entries` - 1, because libmlx5 adds one and rounds up to a power of two. All entries
 * can be filled: device and consumer count in 24 bits, so a full CQ differs from an empty one.
 */
static struct ibv_cq *cq_make(struct dv_device *device, uint32_t entries)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = entries - 1,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD,
		.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
		.parent_domain = device->domain,
	};
	struct mlx5dv_cq_init_attr mlx5_attr = {
		.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE,
		.cqe_size = 64,
	};
	struct ibv_cq_ex *cq = mlx5dv_create_cq(device->context, &attr, &mlx5_attr);

	return cq ? ibv_cq_ex_to_cq(cq) : NULL;
}

int dv_verbs_cq_create(struct dv_device *device, unsigned depth, struct dv_cq *ret_cq)
{
	const char *name = device->name;
	struct mlx5dv_cq raw = {0};
	struct mlx5dv_obj object = {0};
	uint32_t entries = 2;
	struct ibv_cq *cq;
	int rc;

	if (device->cut)
		return dv_fail(-ENODEV, "creating a completion queue: there is no NIC %s", name);
	if (!depth || depth > device->cq_depth_max)
		return dv_fail(-EINVAL,
			"creating a completion queue of %u entries on %s: not possible; the device supports 1 to %u",
			depth, name, device->cq_depth_max);
	while (entries < depth)
		entries *= 2;
	cq = cq_make(device, entries);
	if (!cq)
		return dv_fail(dv_verbs_errno(errno),
			"mlx5dv_create_cq(%s, %u entries): %m. Many queues need much locked memory: see ulimit -l",
			name, entries);
	object.cq.in = cq;
	object.cq.out = &raw;
	rc = dv_verbs_result(mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ));
	if (rc) {
		rc = dv_fail(rc, "mlx5dv_init_obj(%s, CQ): %m", name);
		goto no_raw;
	}
	if (!dv_is_power_of_two(raw.cqe_cnt) || raw.cqe_cnt < depth ||
		(raw.cqe_size != 64 && raw.cqe_size != 128)) {
		rc = dv_fail(-EPROTO,
			"%s created a CQ of %u entries of %u bytes instead of %u entries of 64 or 128 bytes",
			name, raw.cqe_cnt, raw.cqe_size, entries);
		goto no_raw;
	}
	/* libmlx5 has marked every CQE invalid, so the CQ is empty. */
	*ret_cq = (struct dv_cq){.buf = raw.buf,
		.record = raw.dbrec,
		.cqe_cnt = raw.cqe_cnt,
		.cqe_size = raw.cqe_size,
		.cqn = raw.cqn,
		.handle = cq};
	return 0;

no_raw:
	ibv_destroy_cq(cq);
	return rc;
}

void dv_verbs_cq_destroy(struct dv_device *device, struct dv_cq *cq)
{
	int rc = 0;

	if (!cq->handle)
		return;
	if (dv_verbs_enter(device)) {
		rc = dv_verbs_result(ibv_destroy_cq(cq->handle));
		dv_verbs_leave(device);
	}       /* if dv_cut() has closed the device, the kernel's CQ is gone too */
	if (rc) /* the CQ's memory is not freed: the NIC may still write to it */
		log_error("destroying CQ 0x%x of %s: %s: a queue pair still uses it", cq->cqn,
			device->name, strerror(-rc));
	else
		cq->handle = NULL;
}
