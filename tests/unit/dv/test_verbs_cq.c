/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests dv/cq.c against stubs: the requested attributes, the content of the handle for the hot
 * path, and that a failure frees what was created before it. One thread.
 */
#include "tests/unit/dv/test_verbs_stub.h"

static const struct dv_ops *ops = &dv_verbs_ops;

static void a_cq_has_a_power_of_two_of_64_byte_cqes(void **state)
{
	static const struct {
		unsigned depth, entries;
	} rows[] = {{1, 2}, {2, 2}, {3, 4}, {33, 64}, {64, 64}, {16384, 16384}};
	struct dv_device *device = stub_open();

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct dv_cq cq;

		stub.cq_raw.cqe_cnt = rows[i].entries;
		assert_int_equal(ops->cq_create(device, rows[i].depth, &cq), 0);
		/* one less than requested, because libmlx5 adds one */
		assert_int_equal(stub.cq_attr.cqe, rows[i].entries - 1);
		assert_null(stub.cq_attr.channel);
		assert_int_equal(stub.cq_attr.wc_flags, 0);
		assert_int_equal(stub.cq_attr.comp_mask,
			IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD);
		assert_int_equal(stub.cq_attr.flags, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
		assert_ptr_equal(stub.cq_attr.parent_domain, &stub_domain);
		assert_int_equal(stub.cq_mlx5_attr.comp_mask, MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE);
		assert_int_equal(stub.cq_mlx5_attr.cqe_size, 64);
		assert_ptr_equal(cq.buf, stub_queue);
		assert_ptr_equal(cq.record, stub_cq_record);
		assert_int_equal(cq.cqe_cnt, rows[i].entries);
		assert_int_equal(cq.cqe_size, 64);
		assert_int_equal(cq.ci, 0);
		assert_int_equal(cq.cqn, 0x77);
		ops->cq_destroy(device, &cq);
		assert_int_equal(stub.alive.cq, 0);
		assert_null(cq.handle);
	}
	ops->close(device);
}

static void an_impossible_cq_is_refused(void **state)
{
	struct dv_device *device = stub_open();
	struct dv_cq cq = {.cqn = 42};

	assert_int_equal(ops->cq_create(device, 0, &cq), -EINVAL);
	assert_int_equal(ops->cq_create(device, 4194304, &cq), -EINVAL);
	error_has("supports 1 to 4194303");
	stub.cq_raw.cqe_cnt = 48;
	assert_int_equal(ops->cq_create(device, 40, &cq), -EPROTO);
	stub.cq_raw.cqe_cnt = 32;
	assert_int_equal(ops->cq_create(device, 40, &cq), -EPROTO);
	stub.cq_raw.cqe_cnt = 64;
	stub.cq_raw.cqe_size = 32;
	assert_int_equal(ops->cq_create(device, 40, &cq), -EPROTO);
	stub.cq_raw.cqe_size = 64;
	stub.fail_errno = ENOSPC;
	/* the two calls that can fail: create, init_obj */
	for (unsigned step = 1; step <= 2; step++) {
		stub.fail_at = stub.calls + step;
		assert_int_equal(ops->cq_create(device, 40, &cq), -ENOSPC);
		assert_int_equal(stub.alive.cq, 0);
	}
	assert_int_equal(cq.cqn, 42);
	ops->close(device);
}

static void each_hot_handle_has_its_own_ibv_cq(void **state)
{
	struct dv_device *device = stub_open();
	struct dv_cq cq[3], stranger = {.cqn = 9};

	for (unsigned i = 0; i < 3; i++) {
		stub.cq_raw.cqn = i;
		assert_int_equal(ops->cq_create(device, 64, &cq[i]), 0);
	}
	ops->cq_destroy(device, &stranger);
	assert_int_equal(stub.alive.cq, 3);
	ops->cq_destroy(device, &cq[1]);
	assert_int_equal(stub.alive.cq, 2);
	ops->cq_destroy(device, &cq[1]); /* it is gone already */
	assert_int_equal(stub.alive.cq, 2);
	stub.alive.qp = 1; /* while a QP uses the CQ, the CQ cannot be destroyed */
	ops->cq_destroy(device, &cq[0]);
	assert_non_null(cq[0].handle);
	assert_non_null(strstr(stub.log, "still uses it"));
	stub.alive.qp = 0;
	ops->cq_destroy(device, &cq[0]);
	ops->cq_destroy(device, &cq[2]);
	ops->close(device);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(a_cq_has_a_power_of_two_of_64_byte_cqes),
		TEST(an_impossible_cq_is_refused),
		TEST(each_hot_handle_has_its_own_ibv_cq),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
