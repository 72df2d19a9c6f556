/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests on libmlx5: two emulated ConnectX ports in this process and, on the first of
 * them, two queue pairs that do the same work: one is posted through libibverbs, one through
 * dv/hot.h. One thread, besides those of the NICs.
 */
#ifndef TESTS_VERBS_SIDE_H
#define TESTS_VERBS_SIDE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "config/clock.h"
#include "dv/verbs.h"
#include "tests/connectx/testing.h"

#define SIDE_BYTES (1u << 20)
#ifndef SIDE_DEPTH
#define SIDE_DEPTH 32u /* length of both send queues in WQEBBs */
#endif
/* number of WRs that fit: libmlx5 allocates eight WQEBBs for a WR of DV_SGES_MAX segments */
#define SIDE_WRS (SIDE_DEPTH / 8)
#define PATIENCE_NS 20000000000ull

struct side {
	/* the fields below belong to the queue pair that is used through libibverbs */
	struct ibv_qp *ibv;
	struct mlx5dv_qp ibv_queue;
	struct dv_cq ibv_cq; /* only side_cqe() reads it: its CQEs are consumed by ibv_poll_cq() */
	struct ibv_cq *ibv_cq_object;
	/* the fields below belong to the queue pair that is used through dv/hot.h */
	struct dv_qp *hot;
	struct dv_sq *sq;
	struct dv_cq cq;
	/* the fields below are used by both queue pairs */
	struct dv_device *near, *far;
	uint8_t *local, *remote;
	struct dv_mr local_mr, remote_mr;
	/* the queue pairs on `far` to which the two queue pairs are connected */
	struct dv_qp *answers[2];
	struct dv_cq answers_cq;
};

static inline void good(int rc)
{
	if (rc)
		fail_msg("%d: %s", rc, dv_error());
}

static inline uint64_t now_ns(void)
{
	return clock_monotonic_ns();
}

static inline struct ibv_qp *side_make_ibv(struct side *side)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = side->ibv_cq_object,
		.recv_cq = side->ibv_cq_object,
		.cap = {.max_send_wr = SIDE_WRS, .max_send_sge = DV_SGES_MAX},
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = side->near->domain,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct mlx5dv_qp_init_attr more = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
		.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE,
	};
	struct mlx5dv_obj object = {0};
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
	struct ibv_qp *qp = mlx5dv_create_qp(side->near->context, &attr, &more);

	assert_non_null(qp);
	object.qp.in = qp;
	object.qp.out = &side->ibv_queue;
	assert_int_equal(mlx5dv_init_obj(&object, MLX5DV_OBJ_QP), 0);
	assert_int_equal(side->ibv_queue.sq.wqe_cnt, SIDE_DEPTH);
	assert_int_equal(
		ibv_modify_qp(qp, &init,
			IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
		0);
	return qp;
}

/*
 * Connects both queue pairs by dv_qp_connect(); libibverbs' QP is wrapped in a struct dv_qp for
 * that.
 */
static inline void side_connect(struct side *side)
{
	struct dv_qp ibv = {.ops = side->near->ops,
		.device = side->near,
		.qp = side->ibv,
		.psn = 0x123456,
		.path = side->near->path,
		.sq = {.qpn = side->ibv->qp_num}};
	struct dv_qp *ours[2] = {&ibv, side->hot};

	for (unsigned i = 0; i < 2; i++) {
		struct dv_address here, there;

		dv_qp_address(ours[i], &here);
		dv_qp_address(side->answers[i], &there);
		good(dv_qp_connect(side->answers[i], &here));
		good(dv_qp_connect(ours[i], &there));
	}
}

/* Puts a new queue pair, which is not connected, in the place of one. */
static inline void side_renew(
	struct dv_device *device, struct dv_cq *cq, struct dv_qp **qp, struct dv_sq **ret_sq)
{
	dv_qp_destroy(*qp);
	good(dv_qp_create(device, cq, SIDE_DEPTH, qp, ret_sq));
}

/* Starts all queue pairs anew: libibverbs' one through RESET, the others as new ones. */
static inline void side_reconnect(struct side *side)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
	struct dv_sq *unused;

	side_renew(side->near, &side->cq, &side->hot, &side->sq);
	for (unsigned i = 0; i < 2; i++)
		side_renew(side->far, &side->answers_cq, &side->answers[i], &unused);
	good(ibv_modify_qp(side->ibv, &reset, IBV_QP_STATE));
	good(ibv_modify_qp(side->ibv, &init,
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	side_connect(side);
}

static inline uint8_t *side_memory(struct dv_device *device, unsigned access, struct dv_mr *ret)
{
	uint8_t *at =
		mmap(NULL, SIDE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(at, MAP_FAILED);
	good(dv_mr_register(device,
		&(struct dv_memory){
			.base = at, .length = SIDE_BYTES, .access = access, .memfd = -1},
		ret));
	return at;
}

static inline void side_open(struct side *side)
{
	struct dv_options near = {.name = "mlx5_0", .gid_index = -1};
	struct dv_options far = {.name = "mlx5_1", .gid_index = -1};
	struct dv_sq *unused;

	*side = (struct side){0};
	good(dv_open(&near, &side->near));
	good(dv_open(&far, &side->far));
	good(dv_cq_create(side->near, 64, &side->cq));
	good(dv_cq_create(side->near, 64, &side->ibv_cq));
	good(dv_cq_create(side->far, 64, &side->answers_cq));
	side->ibv_cq_object = side->ibv_cq.handle;
	side->ibv = side_make_ibv(side);
	good(dv_qp_create(side->near, &side->cq, SIDE_DEPTH, &side->hot, &side->sq));
	for (unsigned i = 0; i < 2; i++)
		good(dv_qp_create(
			side->far, &side->answers_cq, SIDE_DEPTH, &side->answers[i], &unused));
	side->local = side_memory(side->near, DV_LOCAL_WRITE, &side->local_mr);
	side->remote = side_memory(
		side->far, DV_LOCAL_WRITE | DV_REMOTE_READ | DV_REMOTE_WRITE, &side->remote_mr);
	side_connect(side);
}

static inline void side_close(struct side *side)
{
	good(ibv_destroy_qp(side->ibv));
	dv_qp_destroy(side->hot);
	dv_qp_destroy(side->answers[0]);
	dv_qp_destroy(side->answers[1]);
	dv_cq_destroy(side->near, &side->cq);
	dv_cq_destroy(side->near, &side->ibv_cq);
	dv_cq_destroy(side->far, &side->answers_cq);
	good(dv_mr_deregister(side->near, &side->local_mr));
	good(dv_mr_deregister(side->far, &side->remote_mr));
	munmap(side->local, SIDE_BYTES);
	munmap(side->remote, SIDE_BYTES);
	dv_close(side->near);
	dv_close(side->far);
}

/*
 * Waits for the CQE that is `ahead` of the consumer index; NULL: the NIC did not write it in time.
 */
static inline const struct mlx5_cqe64 *side_cqe(
	const struct dv_cq *cq, uint32_t ahead, uint64_t patience_ns)
{
	struct dv_cq later = *cq;
	const uint8_t *at;
	uint64_t end = now_ns() + patience_ns;

	later.ci += ahead;
	while (!dv_cq_has(&later)) {
		if (now_ns() > end)
			return NULL;
		usleep(50);
	}
	dv_owner_before_cqe();
	at = later.buf + (size_t)(later.ci & (later.cqe_cnt - 1)) * later.cqe_size;
	return (const void *)(at + later.cqe_size - 64);
}

/*
 * Consumes the next completion of dv/hot.h's queue and returns its syndrome; it must be that of the
 * oldest WQE.
 */
static inline int side_reap(struct side *s)
{
	struct dv_completion done = {0};

	assert_non_null(side_cqe(&s->cq, 0, PATIENCE_NS));
	assert_int_equal(dv_poll(&s->cq, &done, 1), 1);
	assert_int_equal(done.wqe_counter, (uint16_t)s->sq->ci);
	s->sq->ci++;
	return done.syndrome;
}

#endif
