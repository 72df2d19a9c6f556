/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: a device, a CQ and a QP on the stubs, and the address of a peer. */
#ifndef TEST_VERBS_PAIR_H
#define TEST_VERBS_PAIR_H

#include "tests/unit/dv/test_verbs_stub.h"

static const struct dv_ops *ops = &dv_verbs_ops;

struct pair {
	struct dv_device *device;
	struct dv_cq cq;
	struct dv_qp *qp;
	struct dv_sq *sq;
};

static inline struct pair pair_make(void)
{
	struct pair p = {.device = stub_open()};

	assert_int_equal(ops->cq_create(p.device, 64, &p.cq), 0);
	assert_int_equal(ops->qp_create(p.device, &p.cq, 64, &p.qp, &p.sq), 0);
	return p;
}

static inline void pair_drop(struct pair *p)
{
	ops->qp_destroy(p->qp);
	ops->cq_destroy(p->device, &p->cq);
	ops->close(p->device);
}

static inline struct dv_address peer_address(void)
{
	struct dv_address remote = {.version = 1,
		.kind = DV_ADDRESS_ROCE_V2,
		.mtu = IBV_MTU_2048,
		.reads = 16,
		.qpn = 0x123456,
		.psn = 0xabcdef};

	inet_pton(AF_INET6, "::ffff:10.0.0.2", remote.gid);
	return remote;
}

#endif
