/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests dv/mr.c against stubs: the requested access rights, and error texts that name the limit
 * that was hit. One thread.
 */
#include <sys/resource.h>

#include "tests/unit/dv/test_verbs_stub.h"

static const struct dv_ops *ops = &dv_verbs_ops;
static char memory[8192];

static void a_region_gets_the_fewest_access_rights(void **state)
{
	static const struct {
		unsigned access, flags;
	} rows[] = {
		{0, 0},
		{DV_LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE},
		{DV_REMOTE_READ, IBV_ACCESS_REMOTE_READ},
		{DV_REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE},
		{DV_LOCAL_WRITE | DV_RELAXED_ORDERING,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING},
	};
	struct dv_device *device = stub_open();

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct dv_mr mr;

		assert_int_equal(ops->mr_register(device,
					 &(struct dv_memory){.base = memory,
						 .length = sizeof(memory),
						 .access = rows[i].access,
						 .memfd = -1},
					 &mr),
			0);
		assert_int_equal(stub.mr_access, rows[i].flags);
		assert_ptr_equal(stub.mr_pd, &stub_pd);
		assert_ptr_equal(mr.base, memory);
		assert_int_equal(mr.length, sizeof(memory));
		assert_int_equal(mr.lkey, 0x1111);
		assert_int_equal(mr.rkey, 0x2222);
		assert_int_equal(ops->mr_deregister(device, &mr), 0);
		assert_null(mr.handle);
		assert_int_equal(ops->mr_deregister(device, &mr), -EINVAL);
		error_has("it is not registered");
	}
	ops->close(device);
}

static void a_refused_region_has_an_explanation(void **state)
{
	struct dv_device *device = stub_open();
	struct dv_mr mr = {.lkey = 42};
	struct rlimit old, small, large;

	(void)state;
	assert_int_equal(ops->mr_register(device,
				 &(struct dv_memory){.base = NULL, .length = 1, .memfd = -1}, &mr),
		-EINVAL);
	assert_int_equal(
		ops->mr_register(
			device, &(struct dv_memory){.base = memory, .length = 0, .memfd = -1}, &mr),
		-EINVAL);
	assert_int_equal(
		ops->mr_register(device,
			&(struct dv_memory){.base = memory, .length = 1, .access = 16, .memfd = -1},
			&mr),
		-EINVAL);
	device->mr_bytes_max = 4096;
	assert_int_equal(
		ops->mr_register(device,
			&(struct dv_memory){.base = memory, .length = 4097, .memfd = -1}, &mr),
		-E2BIG);
	error_has("max_mr_size");

	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &old), 0);
	small = (struct rlimit){65536, old.rlim_max};
	if (setrlimit(RLIMIT_MEMLOCK, &small) == 0) {
		stub.fail_at = stub.calls + 1;
		assert_int_equal(
			ops->mr_register(device,
				&(struct dv_memory){.base = memory, .length = 4096, .memfd = -1},
				&mr),
			-ENOMEM);
		error_has("RLIMIT_MEMLOCK is 64 KiB. Raise it: ulimit -l unlimited");
	}
	large = (struct rlimit){RLIM_INFINITY, old.rlim_max};
	if (setrlimit(RLIMIT_MEMLOCK, &large) == 0) {
		stub.fail_at = stub.calls + 1;
		assert_int_equal(
			ops->mr_register(device,
				&(struct dv_memory){.base = memory, .length = 4096, .memfd = -1},
				&mr),
			-ENOMEM);
		error_has("Not RLIMIT_MEMLOCK");
	}
	setrlimit(RLIMIT_MEMLOCK, &old);
	stub.fail_at = stub.calls + 1;
	stub.fail_errno = EFAULT;
	assert_int_equal(
		ops->mr_register(device,
			&(struct dv_memory){.base = memory, .length = 4096, .memfd = -1}, &mr),
		-EFAULT);
	error_has("not mapped, is read-only");
	assert_int_equal(mr.lkey, 42); /* the call failed and left its outputs unchanged */
	ops->close(device);
}

static void a_region_that_stays_registered_keeps_its_handle(void **state)
{
	struct dv_device *device = stub_open();
	struct dv_mr mr;

	(void)state;
	assert_int_equal(
		ops->mr_register(device,
			&(struct dv_memory){.base = memory, .length = 4096, .memfd = -1}, &mr),
		0);
	stub.fail_at = stub.calls + 1;
	stub.fail_errno = EBUSY;
	assert_int_equal(ops->mr_deregister(device, &mr), -EBUSY);
	assert_ptr_equal(mr.handle, &stub_mr);
	assert_int_equal(ops->mr_deregister(device, &mr), 0);
	ops->close(device);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(a_region_gets_the_fewest_access_rights),
		TEST(a_refused_region_has_an_explanation),
		TEST(a_region_that_stays_registered_keeps_its_handle),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
